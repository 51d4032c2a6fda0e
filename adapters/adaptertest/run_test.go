package adaptertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// run runs a function as the adapter of one turn.
func run(t *testing.T, turn *adaptertest.Turn, f adapters.Func) *adaptertest.Result {
	t.Helper()
	return adaptertest.Run(t.Context(), f, turn)
}

func TestRunRecordsInOrder(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn("hello")
	turn.Protocol = adapters.ExternalRuntime
	turn.OnTool = func(_ context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
		return adapters.Observation{Admitted: true, Receipt: "receipt of " + r.Ref}, nil
	}
	turn.OnAsk = func(context.Context, adapters.Question) (adapters.Observation, error) {
		return adapters.Observation{Reason: "operator-away"}, nil
	}
	turn.OnCandidate = func(json.RawMessage) error { return nil }
	var heard []string
	turn.OnText = func(text string) { heard = append(heard, text) }

	res := run(t, turn, func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		input := json.RawMessage(`{"n":1E+2}`)
		o, err := w.Tool(ctx, adapters.ToolRequest{Ref: "clock", Schema: "s1", Input: input})
		copy(input, "changed later")
		if err != nil {
			return err
		}
		q, err := w.Ask(ctx, adapters.Question{Schema: "s2", Question: json.RawMessage(`{}`)})
		if err != nil {
			return err
		}
		return errors.Join(
			w.Status("thinking"),
			w.Text("one "),
			w.Text(""),
			w.Candidate(json.RawMessage(`{"kind":"x"}`)),
			w.Usage(adapters.Usage{Tokens: adapters.Count(3), Steps: adapters.Count(1)}),
			w.Text(fmt.Sprintf("%v %s %v %s", o.Admitted, o.Receipt, q.Admitted, q.Reason)),
			w.Usage(adapters.Usage{Tokens: adapters.Count(5), Fidelity: adapters.Estimated}),
		)
	})

	if res.Err != nil {
		t.Fatal(res.Err)
	}
	var events []string
	for _, e := range res.Events {
		events = append(events, e.String())
	}
	want := []string{
		`tool "clock"`,
		`question "s2"`,
		`status "thinking"`,
		`text "one "`,
		`candidate "{\"kind\":\"x\"}"`,
		`usage "tokens 3, cost unmeasured, wall time unmeasured, steps 1"`,
		`text "true receipt of clock false operator-away"`,
		`usage "tokens 5, cost unmeasured, wall time unmeasured, steps unmeasured"`,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if want := "one true receipt of clock false operator-away"; res.Text() != want {
		t.Errorf("text %q, want %q", res.Text(), want)
	}
	if diff := cmp.Diff(res.Chunks, heard); diff != "" {
		t.Errorf("OnText heard something else than the chunks (-chunks +heard):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"thinking"}, res.Statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if got := string(res.Tools[0].Input); got != `{"n":1E+2}` {
		t.Errorf("tool input %s changed after the call", got)
	}
	if len(res.Questions) != 1 || len(res.Candidates) != 1 || len(res.UsageReports) != 2 {
		t.Errorf("%d questions, %d candidates, %d usage reports; want 1, 1, 2", len(res.Questions), len(res.Candidates), len(res.UsageReports))
	}
	usage := adapters.Usage{Tokens: adapters.Count(5), Steps: adapters.Count(1), Fidelity: adapters.Estimated}
	if res.Usage != usage {
		t.Errorf("usage %+v, want %+v", res.Usage, usage)
	}
}

func TestUnansweredIsUnsupported(t *testing.T) {
	t.Parallel()
	calls := map[string]func(context.Context, adapters.Writer) error{
		"tool": func(ctx context.Context, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{})
			return err
		},
		"ask": func(ctx context.Context, w adapters.Writer) error {
			_, err := w.Ask(ctx, adapters.Question{})
			return err
		},
		"arrivals": func(_ context.Context, w adapters.Writer) error {
			_, err := w.Arrivals()
			return err
		},
		"candidate": func(_ context.Context, w adapters.Writer) error { return w.Candidate(json.RawMessage(`{}`)) },
	}
	for feature, call := range calls {
		for given, shown := range map[adapters.Protocol]adapters.Protocol{"": adapters.Lowkey, adapters.Keiki: adapters.Keiki} {
			turn := &adaptertest.Turn{Turn: adapters.Turn{Protocol: given}}
			res := run(t, turn, func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error { return call(ctx, w) })
			unsupported, ok := errors.AsType[*adapters.UnsupportedError](res.Err)
			if !ok || !errors.Is(res.Err, adapters.ErrNotSupported) || unsupported.Feature != feature || unsupported.Protocol != shown {
				t.Errorf("%s under %q: error %#v, want an UnsupportedError of %q", feature, given, res.Err, shown)
			}
			if len(res.Events) != 0 {
				t.Errorf("%s: the host saw %v", feature, res.Events)
			}
		}
	}
}

func TestEverythingFailsOnceTheTurnIsOver(t *testing.T) {
	t.Parallel()
	var given *adapters.Turn
	var writer adapters.Writer
	all := func() []error {
		ctx := context.Background()
		_, writeErr := writer.Write([]byte("x"))
		_, toolErr := writer.Tool(ctx, adapters.ToolRequest{})
		_, askErr := writer.Ask(ctx, adapters.Question{})
		_, arrivalsErr := writer.Arrivals()
		return []error{
			writeErr, toolErr, askErr, arrivalsErr, writer.Text("x"), writer.Text(""), writer.Status("x"),
			writer.Usage(adapters.Usage{}), writer.Candidate(nil), given.Session.Store("k", 1), given.Session.Delete("k"),
		}
	}
	remember := func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		given, writer = turn, w
		return nil
	}
	host := adaptertest.NewTurn("hello")
	host.OnTool = func(context.Context, adapters.ToolRequest) (adapters.Observation, error) {
		t.Error("a tool was asked for after the end")
		return adapters.Observation{}, nil
	}
	host.OnCandidate = func(json.RawMessage) error { return nil }
	host.Arrivals = adaptertest.Arrive("late")

	res := run(t, host, remember)
	if res.Late() != 0 {
		t.Errorf("%d late calls before there were any", res.Late())
	}
	for i, err := range all() {
		if !errors.Is(err, adapters.ErrTurnOver) || !errors.Is(err, adapters.CauseCompleted) {
			t.Errorf("call %d after a good turn: error %v, want %v because of %v", i, err, adapters.ErrTurnOver, adapters.CauseCompleted)
		}
	}
	if res.Late() != 11 {
		t.Errorf("%d late calls counted, want 11", res.Late())
	}
	if len(res.Events) != 0 {
		t.Errorf("late calls were recorded: %v", res.Events)
	}
	if ok, err := host.Session.Load("k", new(int)); ok || err != nil {
		t.Errorf("a late value was stored (%v)", err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	res = adaptertest.Run(ctx, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		_ = remember(ctx, turn, w)
		cancel(adapters.CauseStopped)
		for i, err := range all() {
			if !errors.Is(err, adapters.ErrTurnOver) || !errors.Is(err, adapters.CauseStopped) {
				t.Errorf("call %d while the turn is being stopped: error %v, want %v because of %v", i, err, adapters.ErrTurnOver, adapters.CauseStopped)
			}
		}
		return adapters.CauseOf(ctx)
	}), host)
	if res.Late() != 0 || !errors.Is(res.Err, adapters.CauseStopped) {
		t.Errorf("stopped turn: %d late calls, error %v", res.Late(), res.Err)
	}
}

func TestCausesOfTheEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		want adapters.Cause
		f    adapters.Func
	}{
		{adapters.CauseCompleted, func(context.Context, *adapters.Turn, adapters.Writer) error { return nil }},
		{adapters.CauseAdapter, func(context.Context, *adapters.Turn, adapters.Writer) error { return errors.New("no") }},
		{adapters.CauseProvider, func(context.Context, *adapters.Turn, adapters.Writer) error {
			return fmt.Errorf("asking: %w", &adapters.Unavailable{})
		}},
		{adapters.CausePanic, func(context.Context, *adapters.Turn, adapters.Writer) error { panic("no") }},
	} {
		var cause func() adapters.Cause // asked once the turn is over
		res := run(t, nil, func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			cause = func() adapters.Cause { return adapters.CauseOf(ctx) }
			return tt.f(ctx, turn, w)
		})
		if got := cause(); got != tt.want {
			t.Errorf("the context of a turn with error %v ended because of %q, want %q", res.Err, got, tt.want)
		}
	}
}

var nothing any

// An errorThatPanics cannot even be shown.
type errorThatPanics struct{}

func (errorThatPanics) Error() string { panic("no words") }

func TestPanicsEndTheTurnAlone(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name string
		f    adapters.Func
		is   error
		want string
	}{
		{"value", func(context.Context, *adapters.Turn, adapters.Writer) error { panic("boom") }, nil, "the adapter panicked: boom"},
		{"error", func(context.Context, *adapters.Turn, adapters.Writer) error { panic(boom) }, boom, "the adapter panicked: boom"},
		{"nil", func(context.Context, *adapters.Turn, adapters.Writer) error { panic(nothing) }, nil, "panic called with nil argument"},
		{"abort", func(context.Context, *adapters.Turn, adapters.Writer) error { panic(http.ErrAbortHandler) }, http.ErrAbortHandler, "abort"},
		{"goexit", func(context.Context, *adapters.Turn, adapters.Writer) error { goruntime.Goexit(); return nil }, nil, "the adapter ended its goroutine"},
		{"panicking error", func(context.Context, *adapters.Turn, adapters.Writer) error { panic(errorThatPanics{}) }, nil, "PANIC=Error method: no words"},
		{"nil adapter", nil, nil, "nil pointer dereference"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := run(t, nil, func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				if err := w.Text("before"); err != nil {
					return err
				}
				return tt.f(ctx, turn, w)
			})
			p, ok := errors.AsType[*adaptertest.PanicError](res.Err)
			if !ok || !strings.Contains(res.Err.Error(), tt.want) {
				t.Fatalf("error %v, want a PanicError with %q", res.Err, tt.want)
			}
			if tt.is != nil && !errors.Is(res.Err, tt.is) {
				t.Errorf("error %v does not unwrap to %v", res.Err, tt.is)
			}
			if p.Value != nil && !strings.Contains(string(p.Stack), "run_test.go") {
				t.Errorf("the stack does not show the adapter:\n%s", p.Stack)
			}
			if res.Text() != "before" {
				t.Errorf("text %q, want what was written before", res.Text())
			}
		})
	}
}

func TestAnAdapterThatIgnoresItsEndIsAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, grace := range []time.Duration{0, 5 * time.Second} {
			want := grace
			if want == 0 {
				want = adaptertest.DefaultGrace
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(adapters.CauseHostGone) })
			turn := adaptertest.NewTurn("hello")
			turn.Grace = grace
			start := time.Now()
			res := adaptertest.Run(ctx, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("in time")
				time.Sleep(time.Minute)
				if err := w.Text("too late"); !errors.Is(err, adapters.ErrTurnOver) {
					t.Errorf("write after the turn was abandoned: error %v, want %v", err, adapters.ErrTurnOver)
				}
				return nil
			}), turn)
			if !errors.Is(res.Err, adaptertest.ErrAbandoned) || time.Since(start) != time.Second+want {
				t.Errorf("after %v: error %v; want %v after %v", time.Since(start), res.Err, adaptertest.ErrAbandoned, time.Second+want)
			}
			time.Sleep(time.Hour)
			if res.Text() != "in time" {
				t.Errorf("text %q, want what came in time", res.Text())
			}
			if res.Late() != 0 {
				t.Errorf("%d calls are late, although the adapter had not returned", res.Late())
			}
		}
	})
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context, turn *adapters.Turn, _ adapters.Writer) error {
			if until, ok := ctx.Deadline(); !ok || !until.Equal(turn.Deadline) {
				t.Errorf("the context ends at %v (%v), the turn says %v", until, ok, turn.Deadline)
			}
			<-ctx.Done()
			return adapters.CauseOf(ctx)
		}
		turn := adaptertest.NewTurn("hello")
		turn.Deadline = time.Now().Add(3 * time.Second)
		start := time.Now()
		res := run(t, turn, wait)
		if !errors.Is(res.Err, adapters.CauseTurnTimeout) || time.Since(start) != 3*time.Second {
			t.Errorf("deadline of the turn: error %v after %v", res.Err, time.Since(start))
		}

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, adapters.CauseStopped)
		defer cancel()
		turn.Deadline = time.Now().Add(time.Hour)
		if res := adaptertest.Run(ctx, adapters.Func(wait), turn); !errors.Is(res.Err, adapters.CauseStopped) {
			t.Errorf("deadline of the context: error %v, want %v", res.Err, adapters.CauseStopped)
		}
	})
}

func TestAnswersEndWithTheTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn := adaptertest.NewTurn("hello")
		turn.OnTool = func(ctx context.Context, _ adapters.ToolRequest) (adapters.Observation, error) {
			<-ctx.Done()
			return adapters.Observation{}, context.Cause(ctx)
		}
		run(t, turn, func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := w.Tool(ctx, adapters.ToolRequest{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call with its own deadline: error %v, want %v", err, context.DeadlineExceeded)
			}
			return nil
		})

		turn.Deadline = time.Now().Add(time.Second)
		run(t, turn, func(context.Context, *adapters.Turn, adapters.Writer) error { return nil })
		run(t, turn, func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			// The context of the call knows nothing of the turn.
			_, err := w.Tool(context.Background(), adapters.ToolRequest{})
			if !errors.Is(err, adapters.ErrTurnOver) || !errors.Is(err, adapters.CauseTurnTimeout) {
				t.Errorf("a call that the turn did not wait for: error %v, want %v because of %v", err, adapters.ErrTurnOver, adapters.CauseTurnTimeout)
			}
			return nil
		})
	})
}

// taker takes arrivals or not, and joins what it gets.
type taker bool

func (t taker) TakesArrivals(*adapters.Turn) bool { return bool(t) }

func (taker) Run(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
	arrivals, err := w.Arrivals()
	if err != nil {
		return err
	}
	again, err := w.Arrivals()
	if err != nil || again != arrivals {
		return fmt.Errorf("a second call gave another channel, or %w", err)
	}
	for a := range arrivals {
		for _, m := range a.Messages {
			if err := w.Text(fmt.Sprintf("%d:%s ", a.Sequence, m.Text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn("hello")
	turn.Arrivals = adaptertest.Arrive("a", "b", "c")
	res := adaptertest.Run(t.Context(), taker(true), turn)
	if res.Err != nil || res.Text() != "1:a 2:b 3:c " || len(res.Arrivals) != 3 {
		t.Errorf("text %q, %d arrivals received, error %v", res.Text(), len(res.Arrivals), res.Err)
	}

	turn.Arrivals = adaptertest.Arrive("a")
	for name, a := range map[string]adapters.Adapter{
		"that answers false": taker(false),
		"that cannot answer": adapters.Func(taker(true).Run),
	} {
		res := adaptertest.Run(t.Context(), a, turn)
		if res.Err != nil || res.Text() != "" || len(res.Arrivals) != 0 {
			t.Errorf("an adapter %s: text %q, %d arrivals received, error %v; want none", name, res.Text(), len(res.Arrivals), res.Err)
		}
	}
}

func TestArrivalsEndWithTheTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed := make(chan adapters.Arrival, 3)
		for i := range 3 {
			feed <- adapters.Arrival{Sequence: int64(i + 1)}
		}
		turn := adaptertest.NewTurn("hello")
		turn.Arrivals = feed
		var left <-chan adapters.Arrival
		res := adaptertest.Run(t.Context(), arrivalFunc(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) (err error) {
			left, err = w.Arrivals()
			<-left
			return err
		}), turn)
		if res.Err != nil || len(res.Arrivals) != 1 {
			t.Errorf("%d arrivals received, error %v; want 1", len(res.Arrivals), res.Err)
		}
		if a, ok := <-left; ok {
			t.Errorf("the channel gave %v after the turn, want it closed", a)
		}
	})
}

// An arrivalFunc is a function that takes arrivals.
type arrivalFunc adapters.Func

func (f arrivalFunc) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	return f(ctx, turn, w)
}
func (arrivalFunc) TakesArrivals(*adapters.Turn) bool { return true }

func TestTheAdapterGetsACopy(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn("hello")
	turn.History = []adapters.Message{{Role: adapters.RoleUser, Content: "earlier"}}
	turn.Messages = []adapters.Inbound{{Text: "hello"}}
	turn.Attachments = []adapters.Attachment{{Ref: "a"}}
	turn.Context = json.RawMessage(`{"a":1}`)
	turn.Channel = json.RawMessage(`"sms"`)
	before := adaptertest.NewTurn("hello").Turn
	before.Session = turn.Session
	before.History = []adapters.Message{{Role: adapters.RoleUser, Content: "earlier"}}
	before.Messages = []adapters.Inbound{{Text: "hello"}}
	before.Attachments = []adapters.Attachment{{Ref: "a"}}
	before.Context = json.RawMessage(`{"a":1}`)
	before.Channel = json.RawMessage(`"sms"`)

	run(t, turn, func(_ context.Context, given *adapters.Turn, _ adapters.Writer) error {
		if diff := cmp.Diff(before, *given, ignoreSession); diff != "" {
			t.Errorf("the adapter was told something else (-want +got):\n%s", diff)
		}
		given.Message = "changed"
		given.History[0].Content = "changed"
		given.Messages[0].Text = "changed"
		given.Attachments[0].Ref = "changed"
		given.Context[0], given.Channel[0] = '?', '?'
		return nil
	})
	if diff := cmp.Diff(before, turn.Turn, ignoreSession); diff != "" {
		t.Errorf("the adapter changed the test's turn (-before +after):\n%s", diff)
	}
}

var ignoreSession = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Session" }, cmp.Ignore())

func TestZeroTurn(t *testing.T) {
	t.Parallel()
	for _, turn := range []*adaptertest.Turn{nil, {}} {
		res := run(t, turn, func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if err := turn.Session.Store("k", "v"); err != nil {
				return err
			}
			return w.Text(fmt.Sprintf("%s %s %q", turn.Protocol, turn.Continuity, turn.Message))
		})
		if res.Err != nil || res.Text() != `lowkey new ""` {
			t.Errorf("text %q, error %v", res.Text(), res.Err)
		}
	}
}

func TestASessionOfOnesOwn(t *testing.T) {
	t.Parallel()
	shared := adaptertest.NewSession("shared").Values()
	turn := adaptertest.NewTurn("hello")
	turn.Session = shared
	res := run(t, turn, func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
		return turn.Session.Store("from", turn.Session.ID())
	})
	var from string
	if _, err := shared.Load("from", &from); res.Err != nil || err != nil || from != "shared" {
		t.Errorf("the session kept %q (%v, %v), want %q", from, res.Err, err, "shared")
	}
}

func TestSessionKeepsHistoryAndValues(t *testing.T) {
	t.Parallel()
	var count = adapters.NewValue[int]("count")
	counting := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		n, _, err := count.Load(turn.Session)
		if err != nil {
			return err
		}
		if err := count.Store(turn.Session, n+1); err != nil {
			return err
		}
		if turn.Message == "fail" {
			_ = w.Text("not this")
			return errors.New("failed")
		}
		if turn.Message == "quiet" {
			return nil
		}
		return w.Text(fmt.Sprintf("%s %d after %d", turn.Continuity, n, len(turn.History)))
	})
	s := adaptertest.NewSession("s")
	say := func(message string) string {
		return adaptertest.Run(t.Context(), counting, s.Turn(message)).Text()
	}
	for i, step := range []struct{ message, answer string }{
		{"a", "new 0 after 0"},
		{"b", "same 1 after 2"},
		{"fail", "not this"},
		{"c", "same 3 after 4"},
		{"quiet", ""},
		{"d", "same 5 after 7"},
		{"", "same 6 after 9"},
		{"e", "same 7 after 10"},
	} {
		if got := say(step.message); got != step.answer {
			t.Errorf("turn %d: %q, want %q", i+1, got, step.answer)
		}
	}
	user := func(turn, text string) adapters.Message {
		return adapters.Message{Role: adapters.RoleUser, Content: text, TurnID: turn}
	}
	agent := func(turn, text string) adapters.Message {
		return adapters.Message{Role: adapters.RoleAgent, Content: text, TurnID: turn, AgentID: "agent-1"}
	}
	want := []adapters.Message{
		user("turn-1", "a"), agent("turn-1", "new 0 after 0"),
		user("turn-2", "b"), agent("turn-2", "same 1 after 2"),
		user("turn-4", "c"), agent("turn-4", "same 3 after 4"),
		user("turn-5", "quiet"),
		user("turn-6", "d"), agent("turn-6", "same 5 after 7"),
		agent("turn-7", "same 6 after 9"),
		user("turn-8", "e"), agent("turn-8", "same 7 after 10"),
	}
	if diff := cmp.Diff(want, s.History()); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}

	// The user takes all but the first exchange back.
	turn := s.Turn("f")
	turn.History, turn.Continuity = turn.History[:2], adapters.ContinuityReplaced
	if got := adaptertest.Run(t.Context(), counting, turn).Text(); got != "replaced 8 after 2" {
		t.Errorf("rewound turn: %q", got)
	}
	if got := len(s.History()); got != 4 {
		t.Errorf("%d messages after the rewind, want 4", got)
	}
	if n, _, err := count.Load(s.Values()); n != 9 || err != nil {
		t.Errorf("count %d (%v), want 9", n, err)
	}
}

func TestTurnsOfASessionWaitForOneAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running := 0
		a := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			mu.Lock()
			running++
			if running > 1 {
				t.Error("two turns of one session run at once")
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		})
		s := adaptertest.NewSession("s")
		start := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if res := adaptertest.Run(t.Context(), a, s.Turn("x")); res.Err != nil {
					t.Error(res.Err)
				}
			})
		}
		all.Go(func() {
			synctest.Wait()
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Millisecond, func() { cancel(adapters.CauseSessionBusy) })
			res := adaptertest.Run(ctx, adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
				t.Error("a turn that was cancelled while it waited ran")
				return nil
			}), s.Turn("y"))
			if !errors.Is(res.Err, adapters.CauseSessionBusy) {
				t.Errorf("cancelled waiter: error %v, want %v", res.Err, adapters.CauseSessionBusy)
			}
		})
		all.Wait()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("three turns of a second each took %v", took)
		}
	})
}

func TestOneTurnRunSeveralTimesAtOnce(t *testing.T) {
	t.Parallel()
	turn := &adaptertest.Turn{Turn: adapters.Turn{Message: "hello", History: make([]adapters.Message, 3)}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			res := run(t, turn, func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				turn.History[1].Content = "mine"
				turn.Message += "!"
				return w.Text(turn.Message)
			})
			if res.Text() != "hello!" || res.Err != nil {
				t.Errorf("text %q, error %v", res.Text(), res.Err)
			}
		})
	}
	all.Wait()
}
