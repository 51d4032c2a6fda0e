package external_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A gatedStore is a store that stops in front of calls, by their names.
type gatedStore struct {
	ledger.Store
	mu    sync.Mutex
	gates map[string]*gate
}

// A gate stops a call until it is opened: with an error the call fails, and all later ones.
type gate struct {
	reached chan struct{} // closed when the first call is there
	once    sync.Once
	open    chan struct{}
	err     error
}

func newGatedStore(inner ledger.Store) *gatedStore {
	if inner == nil {
		inner = ledger.NewMemory(ledger.MemoryConfig{})
	}
	return &gatedStore{Store: inner, gates: map[string]*gate{}}
}

// shut makes a gate in front of a call.
func (s *gatedStore) shut(call string) *gate {
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	s.mu.Lock()
	s.gates[call] = g
	s.mu.Unlock()
	return g
}

func (g *gate) opened(err error) { g.err = err; close(g.open) }

func (g *gate) wait(t testing.TB) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		t.Fatal("the call never came")
	}
}

func (s *gatedStore) pass(ctx context.Context, call string) error {
	s.mu.Lock()
	g := s.gates[call]
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *gatedStore) Suspend(ctx context.Context, r ledger.Suspension) (ledger.Turn, error) {
	if err := s.pass(ctx, "suspend"); err != nil {
		return ledger.Turn{}, err
	}
	return s.Store.Suspend(ctx, r)
}

func (s *gatedStore) Continue(ctx context.Context, r ledger.Continuation) (ledger.Verdict, error) {
	if err := s.pass(ctx, "continue"); err != nil {
		return ledger.Verdict{}, err
	}
	return s.Store.Continue(ctx, r)
}

func (s *gatedStore) Settle(ctx context.Context, r ledger.Settlement) (ledger.Turn, error) {
	if err := s.pass(ctx, "settle"); err != nil {
		return ledger.Turn{}, err
	}
	return s.Store.Settle(ctx, r)
}

func (s *gatedStore) Dispatch(ctx context.Context, turn ledger.TurnRef, version int64, at time.Time) (ledger.Turn, error) {
	if err := s.pass(ctx, "dispatch"); err != nil {
		return ledger.Turn{}, err
	}
	return s.Store.Dispatch(ctx, turn, version, at)
}

func (s *gatedStore) Admit(ctx context.Context, a ledger.Admission, at time.Time) (ledger.Admission, ledger.Change, error) {
	if err := s.pass(ctx, "admit"); err != nil {
		return ledger.Admission{}, "", err
	}
	return s.Store.Admit(ctx, a, at)
}

// A seen stream is read line by line on a goroutine of its own.
type seen struct {
	mu   sync.Mutex
	text strings.Builder
	done chan reply
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// watch sends a request, and reads what comes as it comes.
func (g *rig) watch(q doc) *seen {
	g.t.Helper()
	s := &seen{done: make(chan reply, 1)}
	go func() {
		r, err := g.send(context.Background(), "POST", "turns", q.json())
		if err != nil {
			s.done <- reply{t: g.t, err: err}
			return
		}
		defer func() { _ = r.Body.Close() }()
		lines := bufio.NewReader(r.Body)
		for {
			line, err := lines.ReadString('\n')
			s.mu.Lock()
			s.text.WriteString(line)
			s.mu.Unlock()
			if err != nil {
				s.done <- reply{g.t, r.StatusCode, r.Header, s.String(), nil}
				return
			}
		}
	}()
	return s
}

// state is what GET says of a turn that has no outcome.
type state struct {
	State       string   `json:"state"`
	WaitingFor  string   `json:"waiting/for"`
	RequestRefs []string `json:"request/refs"`
	Deadline    string   `json:"deadline/at"`
	Status      string   `json:"status"` // of an outcome
}

func (g *rig) look(turn string) (s state) {
	g.t.Helper()
	r := g.do("GET", "turns/"+turn, nil)
	if err := json.Unmarshal([]byte(r.body), &s); err != nil || r.status != 200 {
		g.t.Fatalf("GET %s: %d %v %s", turn, r.status, err, r.body)
	}
	return s
}

// a short time in which what must not happen would.
const aWhile = 150 * time.Millisecond

// Nothing of a request leaves before it is committed that it is awaited: a host that acts on one acts on what
// the ledger knows.
func TestARequestLeavesOnceItsSuspensionIsCommitted(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	gate := store.shut("suspend")
	q := aRequest("turn:1", script(action(), toolStep, goodUsage))
	first := g.watch(q)
	gate.wait(t)
	joiner := g.watch(q)
	time.Sleep(aWhile)
	for _, s := range []*seen{first, joiner} {
		if text := s.String(); strings.Contains(text, "tool-request") || strings.Contains(text, "awaiting") {
			t.Errorf("before the suspension is committed a host has\n%s", text)
		}
	}
	if s := g.look("turn:1"); s.State != "dispatched" || len(s.RequestRefs) != 0 {
		t.Errorf("before the suspension is committed the turn is %+v", s)
	}
	gate.opened(nil)
	r := <-first.done
	if k := r.kinds(); k != "accepted running action-candidate tool-request awaiting-observation" {
		t.Errorf("the events are %s", k)
	}
	if other := <-joiner.done; other.body != r.body {
		t.Errorf("who joined has\n%s\nand not\n%s", other.body, r.body)
	}
	if s := g.look("turn:1"); s.State != "suspended" || len(s.RequestRefs) != 1 || s.RequestRefs[0] != r.asked() {
		t.Errorf("the suspended turn is %+v", s)
	}
	if again := g.post(q); again.body != r.body {
		t.Errorf("the replay is\n%s\nand not\n%s", again.body, r.body)
	}
	g.post(q.answering("key:c", r.asked())).ends("completed/completed")
}

// Where the suspension cannot be committed, the turn ends as if nothing had been asked.
func TestASuspensionThatCannotBeCommitted(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	store.shut("suspend").opened(errors.New("the disk is full"))
	q := aRequest("turn:1", script(toolStep, goodUsage))
	r := g.post(q).ends("failed/provider-unavailable")
	if k := r.kinds(); k != "accepted running turn-outcome" {
		t.Errorf("the events are %s", k)
	}
	if again := g.post(q); again.body != r.body {
		t.Errorf("the replay is\n%s\nand not\n%s", again.body, r.body)
	}
}

// The same for a part that only has what was asked before: who continues the turn sees it with the turn's
// end.
func TestASecondSuspensionThatCannotBeCommitted(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store, s.adapter = store, asks(2) })
	q := aRequest("turn:1", "x")
	start := g.post(q)
	g.reached("turn:1", 5) // the second request was made
	gate := store.shut("suspend")
	settle := store.shut("settle")
	c := q.answering("key:c", start.asked())
	continued := g.watch(c)
	gate.wait(t)
	gate.opened(errors.New("the disk is full"))
	settle.wait(t)
	joiner := g.watch(c)
	time.Sleep(aWhile)
	for _, s := range []*seen{continued, joiner} {
		if text := s.String(); strings.Contains(text, "tool-request") {
			t.Errorf("before the turn's end is committed a host has\n%s", text)
		}
	}
	settle.opened(nil)
	r := (<-continued.done).ends("failed/provider-unavailable")
	if strings.Contains(r.body, "awaiting") {
		t.Errorf("the stream says that something is awaited\n%s", r.body)
	}
	if other := <-joiner.done; other.body != r.body {
		t.Errorf("who joined has\n%s\nand not\n%s", other.body, r.body)
	}
	if again := g.post(c); again.body != r.body {
		t.Errorf("the replay is\n%s\nand not\n%s", again.body, r.body)
	}
}

// However few events there are, a stream whose turn goes on ends with awaiting-observation, and a turn that
// has no room for its requests is event-oversized.
func TestASuspendedStreamSaysSo(t *testing.T) {
	t.Parallel()
	tools := make([]string, 12)
	for i := range tools {
		tools[i] = toolStep
	}
	for events := int64(1); events <= 24; events++ {
		for name, adapter := range map[string]adapters.Adapter{"one after another": nil, "five at once": asks(5)} {
			t.Run(fmt.Sprintf("%d/%s", events, name), func(t *testing.T) {
				t.Parallel()
				g := newRig(t, func(s *setup) {
					s.profile = s.profile.with("limits", limits(events, 65536, 65536, 60000))
					if adapter != nil {
						s.adapter = adapter
					}
				})
				message := "x"
				if adapter == nil {
					message = script(slices.Concat(tools, []string{`{"text":"x"}`, goodUsage})...)
				}
				q := aRequest("turn:1", message)
				r := g.post(q)
				var open []string
				total := 0
				for i := 0; ; i++ {
					all := r.events()
					total += len(all)
					for _, e := range all {
						if e.RequestRef != "" {
							open = append(open, string(e.RequestRef))
						}
					}
					last := r.last()
					if last.Kind == wire.EventTurnOutcome {
						break
					}
					if last.ProgressCode != wire.ProgressAwaitingObservation || len(open) == 0 {
						t.Fatalf("the stream ends with %s, and %d requests are known\n%s", last.Kind, len(open), r.body)
					}
					next := q.answering(fmt.Sprintf("key:%d", i), open[0])
					open = open[1:]
					r = g.post(next)
					if last := r.last(); last.Kind == wire.EventTurnOutcome && last.Status == wire.StatusRefused {
						// The turn has ended while it was suspended: what it asked last had no room.
						if o := g.outcome("turn:1"); o.ReasonCode != wire.ReasonEventOversized {
							t.Errorf("the outcome is %s", o.ReasonCode)
						}
						return
					}
				}
				if reason := r.last().ReasonCode; reason != wire.ReasonEventOversized && reason != wire.ReasonCompleted {
					t.Errorf("the turn ends %s\n%s", reason, r.body)
				}
				if int64(total) > events {
					t.Errorf("%d events of at most %d", total, events)
				}
			})
		}
	}
}

// What a host was asked it can answer: the room for what that takes is kept when it is asked, and what came
// later gets none of it.
func TestWhatWasAskedCanBeAnswered(t *testing.T) {
	t.Parallel()
	taken := 0
	for events := int64(6); events <= 24; events++ {
		g := newRig(t, func(s *setup) {
			s.profile = s.profile.with("limits", limits(events, 65536, 65536, 60000))
			s.adapter = asks(5)
		})
		q := aRequest("turn:1", "x")
		start := g.post(q)
		asked := start.last().SeqNo + 4
		eventually(t, "all is asked, or the turn has ended", func() bool {
			body := g.do("GET", "turns/turn:1", nil).body
			return strings.Contains(body, fmt.Sprintf(`"seq/no":%d`, asked)) || strings.Contains(body, "outcome/ref")
		})
		if start.last().Kind == wire.EventTurnOutcome || g.look("turn:1").State != "suspended" {
			continue
		}
		taken++
		open := []string{start.asked()}
		r := start
		for i := 0; r.last().Kind != wire.EventTurnOutcome; i++ {
			r = g.post(q.answering(fmt.Sprintf("key:%d", i), open[0]))
			open = open[1:]
			for _, e := range r.events() {
				if e.RequestRef != "" {
					open = append(open, string(e.RequestRef))
				}
			}
		}
		if r.last().ReasonCode != wire.ReasonCompleted {
			t.Errorf("with %d events, five requests were let through and the turn ends %s", events, r.last().ReasonCode)
		}
	}
	if taken == 0 {
		t.Error("nothing was tested")
	}
}

// A turn that is ended by what its adapter said is charged the same, however fast the adapter goes on.
func TestUsageBehindWhatEndsTheTurnDoesNotCount(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	for name, end := range map[string]func(adapters.Writer){
		"a candidate": func(w adapters.Writer) { _ = w.Candidate(json.RawMessage(`{"kind":"none"}`)) },
		"text":        func(w adapters.Writer) { _ = w.Text(long) },
		"a tool": func(w adapters.Writer) {
			_, _ = w.Tool(context.Background(), adapters.ToolRequest{Ref: "has space", Schema: "s", Input: json.RawMessage(`{"a":1}`)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, func(s *setup) {
				s.profile = s.profile.with("limits", limits(64, 65536, 100, 60000))
				s.adapter = adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					end(w)
					_ = w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)})
					return nil
				})
			})
			for i := range 50 {
				turn := fmt.Sprintf("turn:%d", i)
				g.post(aRequest(turn, "x"))
				if o := g.outcome(turn); o.Status != wire.StatusFailed || o.BudgetCharged != wire.Usage(o.BudgetReserved) {
					t.Fatalf("%s is charged %+v", o.ReasonCode, o.BudgetCharged)
				}
			}
		})
	}
}

// What a host is told of a cancellation is what became of the turn.
func TestACancellationThatCameTooLate(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	gate := store.shut("settle")
	first := g.watch(aRequest("turn:1", goodScript))
	gate.wait(t)
	cancelled := make(chan string, 1)
	go func() { cancelled <- g.cancel("turn:1") }()
	time.Sleep(aWhile / 3)
	gate.opened(nil)
	(<-first.done).ends("completed/completed")
	if w := <-cancelled; w != "unknown" {
		t.Errorf("the cancellation of a turn that completed is %s", w)
	}
}

// Behind cancelling nothing says that the turn runs or awaits something, whichever of two requests was faster.
func TestACancellationWhileTheTurnIsContinued(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		adapter adapters.Adapter
		events  string
	}{
		"one request":  {asks(1), "cancelling turn-outcome"},
		"two requests": {asks(2), "tool-request cancelling turn-outcome"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newGatedStore(nil)
			g := newRig(t, func(s *setup) { s.conf.Store, s.adapter = store, c.adapter })
			q := aRequest("turn:1", "x")
			start := g.post(q)
			if name == "two requests" {
				g.reached("turn:1", 5)
			}
			gate := store.shut("continue")
			next := q.answering("key:c", start.asked())
			continued := g.watch(next)
			gate.wait(t)
			settle := store.shut("settle")
			if w := g.cancel("turn:1"); w != "pending" {
				t.Errorf("cancellation %s", w)
			}
			gate.opened(nil)
			settle.wait(t)
			time.Sleep(aWhile / 3)
			if text := continued.String(); strings.Contains(text, "tool-request") {
				t.Errorf("before the turn's end is committed a host has\n%s", text)
			}
			settle.opened(nil)
			r := (<-continued.done).ends("cancelled/cancelled")
			if k := r.kinds(); k != c.events {
				t.Errorf("the events are %s", k)
			}
			if again := g.post(next); again.body != r.body {
				t.Errorf("the replay is\n%s\nand not\n%s", again.body, r.body)
			}
		})
	}
}

// A turn that is being cancelled awaits nothing any more, also while its adapter takes its time.
func TestAnAnswerToATurnThatIsBeingCancelled(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) {
		s.adapter = adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "t", Schema: "s", Input: json.RawMessage(`{"a":1}`)})
			time.Sleep(time.Second)
			return err
		})
	})
	q := aRequest("turn:1", "x")
	start := g.post(q)
	if w := g.cancel("turn:1"); w != "pending" {
		t.Errorf("cancellation %s", w)
	}
	g.post(q.answering("key:c", start.asked())).ends("refused/event-unauthorized")
	if w := g.look("turn:1"); w.State != "suspended" {
		t.Errorf("the turn is %+v", w)
	}
}
