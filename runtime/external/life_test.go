package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A session keeps its values from turn to turn, also of a turn that failed, until it is closed or its
// fence changes.
func TestSessionValues(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	n := 0
	recall := func(q func(doc) doc, want string) {
		t.Helper()
		n++
		r := g.post(q(aRequest(fmt.Sprintf("turn:recall:%d", n), script(`{"recall":"k"}`, goodUsage))))
		r.ends("completed/completed")
		for _, e := range r.events() {
			if e.Kind == wire.EventProductCandidate && e.Content != want {
				t.Errorf("recalled %s, want %s", e.Content, want)
			}
		}
	}
	plain := func(d doc) doc { return d }
	remember := func(turn, value string, more ...string) reply {
		t.Helper()
		return g.post(aRequest(turn, script(append([]string{`{"remember":{"key":"k","value":` + value + `}}`}, more...)...)))
	}
	recall(plain, "null")
	remember("turn:1", `{"a":1.10,"b":"<&>"}`, `{"text":"x"}`, goodUsage).ends("completed/completed")
	recall(plain, `{"a":1.10,"b":"<&>"}`)
	remember("turn:2", `12345678901234567890123`, `{"error":"no"}`).ends("failed/provider-unavailable")
	recall(plain, `12345678901234567890123`)

	// Suspended: what was stored holds over the suspension, and what is stored then comes on top.
	q := aRequest("turn:3", script(`{"remember":{"key":"k","value":3}}`, toolStep, `{"remember":{"key":"l","value":4}}`, `{"recall":"k"}`, goodUsage))
	start := g.post(q)
	if s, err := g.store.Session(t.Context(), bindingRef); err != nil || string(s.Values) != `{"k":3}` {
		t.Errorf("the suspended turn's session is %s, %v", s.Values, err)
	}
	g.post(q.answering("key:c", start.asked())).ends("completed/completed")
	if s, err := g.store.Session(t.Context(), bindingRef); err != nil || string(s.Values) != `{"k":3,"l":4}` {
		t.Errorf("the session is %s, %v", s.Values, err)
	}

	if w := g.closeSession(); w != "closed" {
		t.Errorf("close: %s", w)
	}
	if w := g.closeSession(); w != "unknown" {
		t.Errorf("close again: %s", w)
	}
	recall(plain, "null")
	remember("turn:4", "5", `{"text":"x"}`, goodUsage)
	recall(plain, "5")

	changed := aBinding().with("created/by", "someone").sealed()
	g.admit("bindings", changed)
	recall(func(d doc) doc { return d.with("binding/digest", changed["binding/digest"]) }, "null")

	// Another server with the same store finds the session, as long as its epoch is the same.
	other := newRig(t, func(s *setup) { s.conf.Store = g.store; s.binding = s.binding.with("created/by", "someone") })
	g, recallHere := other, func(want string) {
		recall(func(d doc) doc { return d.with("binding/digest", changed["binding/digest"]) }, want)
	}
	g.post(aRequest("turn:5", script(`{"remember":{"key":"k","value":6}}`, `{"text":"x"}`, goodUsage)).with("binding/digest", changed["binding/digest"])).ends("completed/completed")
	recallHere("6")
	g = newRig(t, func(s *setup) {
		s.conf.Store, s.conf.Epoch = other.store, "epoch:next"
		s.binding = s.binding.with("created/by", "someone")
	})
	recallHere("null")
}

// Turns of one binding come one after another; those of others do not wait.
func TestTurnsOfABindingWaitForOneAnother(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	other := aBinding().with("binding/ref", "binding:other").sealed()
	g.admit("bindings", other)
	first := g.running(aRequest("turn:1", script(`{"block":true}`)))
	waiting := make(chan reply, 1)
	go func() {
		r, err := g.send(context.Background(), "POST", "turns", aRequest("turn:2", goodScript).json())
		if err != nil {
			t.Error(err)
			waiting <- reply{}
			return
		}
		waiting <- g.read(r)
	}()
	eventually(t, "the second turn waits", func() bool { return g.do("GET", "turns/turn:2", nil).status == 200 })
	g.post(aRequest("turn:3", goodScript).with("binding/ref", "binding:other", "binding/digest", other["binding/digest"])).ends("completed/completed")
	select {
	case r := <-waiting:
		t.Errorf("the second turn did not wait:\n%s", r.body)
	default:
	}
	g.cancel("turn:1")
	(<-first).ends("cancelled/cancelled")
	(<-waiting).ends("completed/completed")
}

// Fault B5: a panic fails its turn and nothing else; no text of it leaves the process.
func TestFaultB5Panics(t *testing.T) {
	t.Parallel()
	type step = func(ctx context.Context, w adapters.Writer)
	for name, crash := range map[string]step{
		"at once":     func(context.Context, adapters.Writer) { panic("secret-panic") },
		"after text":  func(_ context.Context, w adapters.Writer) { _ = w.Text("a"); _ = w.Text("b"); panic("secret-panic") },
		"nil":         func(context.Context, adapters.Writer) { panic(nothing()) },
		"a bad error": func(context.Context, adapters.Writer) { panic(&badError{}) },
		"Goexit":      func(context.Context, adapters.Writer) { goruntime.Goexit() },
		"after a tool": func(ctx context.Context, w adapters.Writer) {
			_, _ = w.Tool(ctx, adapters.ToolRequest{})
			panic("secret-panic")
		},
		"ErrAbort-like": func(context.Context, adapters.Writer) { panic(errors.New("secret-panic")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, func(s *setup) {
				s.adapter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if turn.Message == "crash" {
						crash(ctx, w)
					}
					return echo.New().Run(ctx, turn, w)
				})
			})
			ends := "failed/provider-unavailable"
			if name == "after a tool" {
				ends = "failed/event-malformed"
			}
			for i := range 20 {
				q := aRequest(fmt.Sprintf("turn:%d", i), "crash")
				if i%2 == 1 {
					q = aRequest(fmt.Sprintf("turn:%d", i), "fine")
				}
				r := g.post(q)
				if i%2 == 1 {
					r.ends("completed/completed")
				} else {
					r.ends(ends)
				}
				if strings.Contains(r.body, "secret") {
					t.Errorf("the panic is on the wire:\n%s", r.body)
				}
			}
			if strings.Contains(g.logs.String(), "secret") {
				t.Error("the panic's value is in the log")
			}
		})
	}
}

type badError struct{}

func (*badError) Error() string { panic("worse") }

// Prompts, answers and an adapter's texts are in no log.
func TestLogsHoldNoContent(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for i, lines := range [][]string{
		{`{"text":"secret-answer"}`, goodUsage},
		{`{"error":"secret-error"}`},
		{`{"unavailable":"secret-provider"}`},
		{`{"panic":"secret-panic"}`},
		{`{"status":"secret-status"}`, `{"tool":{"ref":"t","schema":"s","input":{"secret-key":"secret-value"}}}`},
		{`{"remember":{"key":"secret-key","value":"secret-value"}}`, action("more", "secret-event")},
		{`{"usage":{"max_tokens":"secret-usage"}}`, `{"text":"x"}`},
	} {
		g.post(aRequest(fmt.Sprintf("turn:%d", i), script(append([]string{`{"text":"x"}`}, lines...)...)))
		g.cancel(fmt.Sprintf("turn:%d", i)) // one awaits an observation
	}
	g.do("POST", "turns", []byte(`{"secret":`))
	g.do("POST", "turns", aRequest("turn:bad", "x").with("kind", "secret-kind").json())
	logs := g.logs.String()
	if i := strings.Index(logs, "secret"); i >= 0 {
		t.Errorf("the log holds content: …%s…", logs[max(0, i-200):min(len(logs), i+100)])
	}
	if !strings.Contains(logs, "turn:1") || !strings.Contains(logs, "provider-unavailable") {
		t.Errorf("the log does not tell what happened:\n%s", logs)
	}
}

// Fault K3, for this protocol: a drain refuses new turns, lets running ones go on, and is not held up by
// suspended ones, which it ends as cancelled.
func TestFaultK3Drain(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.gated = false })
	other := aBinding().with("binding/ref", "binding:other").sealed()
	g.admit("bindings", other)
	onOther := func(d doc) doc {
		return d.with("binding/ref", "binding:other", "binding/digest", other["binding/digest"])
	}
	q := aRequest("turn:1", script(toolStep, goodUsage))
	start := g.post(q)
	running := g.running(onOther(aRequest("turn:2", script(action(`turn/ref`, "turn:2"), `{"sleep":"300ms"}`, `{"text":"x"}`, goodUsage))))
	drained := make(chan error, 1)
	go func() { drained <- g.h.Drain(context.Background()) }()
	eventually(t, "the suspended turn ends", func() bool {
		row, err := g.store.Turn(t.Context(), "turn:1")
		return err == nil && row.State == ledger.Settled
	})
	if o := g.outcome("turn:1"); o.Status != wire.StatusCancelled || o.ReasonCode != wire.ReasonCancelled || o.BudgetCharged != wire.Usage(o.BudgetReserved) {
		t.Errorf("the suspended turn's outcome is %+v", o)
	}
	r := g.do("POST", "turns", aRequest("turn:3", "x").json())
	r.problem(503)
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if again := g.post(q); again.body != start.body {
		t.Error("a replay while draining differs")
	}
	(<-running).ends("completed/completed")
	if err := <-drained; err != nil {
		t.Errorf("Drain = %v", err)
	}
}

func TestADrainThatIsCutShort(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	running := g.running(aRequest("turn:1", script(goodUsage, action(), `{"block":true}`)))
	g.reached("turn:1", 3)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("no more time")
	cancel(why)
	if err := g.h.Drain(ctx); !errors.Is(err, why) {
		t.Errorf("Drain = %v", err)
	}
	(<-running).ends("cancelled/cancelled")
	if o := g.outcome("turn:1"); o.BudgetCharged.MaxTokens != 3 {
		t.Errorf("charged %+v", o.BudgetCharged)
	}
}

// A turn that would be suspended while the server drains is ended.
func TestSuspendedWhileDraining(t *testing.T) {
	t.Parallel()
	g := newRig(t, gated)
	running := g.running(aRequest("turn:1", script(toolStep)))
	drained := make(chan error, 1)
	go func() { drained <- g.h.Drain(context.Background()) }()
	eventually(t, "it drains", g.engine.Draining)
	g.open()
	if k := (<-running).kinds(); k != "accepted running tool-request awaiting-observation" {
		t.Errorf("the events are %s", k)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if o := g.outcome("turn:1"); o.Status != wire.StatusCancelled {
		t.Errorf("outcome %+v", o)
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.engine.MaxTurns = 1 })
	running := g.running(aRequest("turn:1", script(`{"block":true}`)))
	q := aRequest("turn:2", goodScript)
	g.do("POST", "turns", q.json()).problem(503)
	if r := g.do("GET", "turns/turn:2", nil); r.status != 404 {
		t.Errorf("a turn that was not taken is known: %s", r.body)
	}
	g.cancel("turn:1")
	<-running
	g.post(q).ends("completed/completed")
}

// Very small limits bind what the adapter says: the outcome always goes; progress is dropped first, then
// usage.
func TestSmallLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		events, bytes int64
		ends, kinds   string
	}{
		{1, 65536, "failed/event-oversized", "turn-outcome"},
		{2, 65536, "completed/completed", "product-candidate turn-outcome"},
		{3, 65536, "completed/completed", "product-candidate usage turn-outcome"},
		{4, 65536, "completed/completed", "accepted product-candidate usage turn-outcome"},
		{5, 65536, "completed/completed", "accepted running product-candidate usage turn-outcome"},
		{64, 1, "failed/event-oversized", "turn-outcome"},
		{64, 210, "failed/event-oversized", "turn-outcome"},
	} {
		g := newRig(t, withProfile("limits", limits(c.events, c.bytes, 1024, 60000)))
		r := g.post(aRequest("turn:1", goodScript)).ends(c.ends)
		if got := r.kinds(); got != c.kinds {
			t.Errorf("max-events %d, max-event-bytes %d: %s, want %s", c.events, c.bytes, got, c.kinds)
		}
		// However much an adapter says, it cannot use up the events with it.
		q := aRequest("turn:2", script(`{"text":"x","repeat":1000}`, `{"status":"busy"}`, `{"text":"y","repeat":10,"every":"5ms"}`, goodUsage))
		if n := len(g.post(q).ends(c.ends).events()); int64(n) > c.events {
			t.Errorf("%d events of at most %d", n, c.events)
		}
	}
}

// A silent adapter's heartbeats, and a busy one's statuses, are running events with counters: spread over
// the time that the turn may take, they leave room for all else.
func TestProgressIsThinned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine, err := runtime.New(runtime.Config{Heartbeat: time.Second, Idle: -1, FirstOutput: -1, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		h, err := external.New(external.Config{Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{}), OperatorToken: operatorToken, Logger: quiet,
			Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for range 100 {
					time.Sleep(5500 * time.Millisecond)
					if err := errors.Join(w.Status("prose"), w.Text("xy")); err != nil {
						return err
					}
				}
				return w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(1)})
			})})
		if err != nil {
			t.Fatal(err)
		}
		serve := func(method, path string, d doc) reply { return serveIn(t, h, method, path, d) }
		serve("PUT", "profiles/"+profileRef, aProfile().with("limits", limits(32, 65536, 65536, 1_000_000)))
		b := aBinding().with("budget/turn-ceiling", budget(1000, 1000, 10_000_000, 100), "expires/at", "9000-01-01T00:00:00Z").sealed()
		serve("PUT", "bindings/"+bindingRef, b)
		r := serve("POST", "turns", aRequest("turn:1", "x").with("binding/digest", b["binding/digest"], "budget/reservation", budget(1000, 1000, 10_000_000, 100)))
		r.ends("completed/completed")
		var running, last int64
		var at time.Time
		for _, e := range r.events() {
			when, err := e.At.Time()
			if err != nil || when.Before(at) {
				t.Errorf("time goes back: %s, %v", e.At, err)
			}
			at = when
			if e.ProgressCode != wire.ProgressRunning {
				continue
			}
			if running++; e.ProgressCurrent < last {
				t.Errorf("progress goes back: %d after %d", e.ProgressCurrent, last)
			}
			last = e.ProgressCurrent
		}
		if running < 4 || running > 8 {
			t.Errorf("%d running events of 32\n%s", running, r.body)
		}
		if strings.Contains(r.body, "prose") {
			t.Error("progress has prose")
		}
		engine.WaitAdapters()
	})
}

// Retention: content and recorded streams are forgotten in time, outcomes are not.
func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine, err := runtime.New(runtime.Config{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		h, err := external.New(external.Config{Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{}), OperatorToken: operatorToken, Logger: quiet,
			Adapter: echo.New(), ProductRetention: time.Hour, StreamRetention: 2 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		serve := func(method, path string, d doc) reply { return serveIn(t, h, method, path, d) }
		serve("PUT", "profiles/"+profileRef, aProfile())
		serve("PUT", "bindings/"+bindingRef, aBinding().sealed())
		q := aRequest("turn:1", "x")
		serve("POST", "turns", q).ends("completed/completed")
		o, err := wire.ParseOutcome([]byte(serve("GET", "turns/turn:1", nil).body))
		if err != nil {
			t.Fatal(err)
		}
		product := "products/" + string(o.ProductRef)
		for _, sweep := range []bool{false, true} {
			if sweep {
				if err := h.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if r := serve("GET", product, nil); !sweep && r.status != 200 || sweep && r.status != 410 {
				t.Errorf("product: %d", r.status)
			}
			time.Sleep(time.Hour)
			serve("GET", product, nil).problem(410)
			if r := serve("POST", "turns", q); !sweep && r.status != 200 || sweep && r.status != 410 {
				t.Errorf("replay: %d", r.status)
			}
		}
		if r := serve("GET", "turns/turn:1", nil); r.status != 200 {
			t.Errorf("outcome: %d", r.status)
		}
		engine.WaitAdapters()
	})
}

// A stream that outgrows the turn's log is still had in full by who joins: from the ledger, once it has
// ended.
func TestAJoinerOfAStreamThatOutgrewItsLog(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) {
		s.engine.Stream.Keep = 4 << 10
		s.profile = s.profile.with("limits", limits(1024, 65536, 65536, 60000))
	})
	var lines []string
	for range 50 {
		lines = append(lines, action())
	}
	q := aRequest("turn:1", script(append(lines, `{"sleep":"200ms"}`, `{"text":"x"}`, goodUsage)...))
	first := g.running(q)
	g.reached("turn:1", 52)
	joined := g.post(q)
	if r := <-first; r.body != joined.body {
		t.Errorf("the joiner has\n%s\nand not\n%s", joined.body, r.body)
	}
}

// A failing store fails what it must: nothing runs without its reservation, and no outcome is sent that
// is not committed.
func TestAStoreThatFails(t *testing.T) {
	t.Parallel()
	store := &failingStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	store.failing.Store("reserve")
	g.do("POST", "turns", aRequest("turn:1", goodScript).json()).problem(503)
	if g.adapter.calls.Load() != 0 {
		t.Error("the adapter was called without a reservation")
	}
	store.failing.Store("")
	g.post(aRequest("turn:1", goodScript)).ends("completed/completed")

	store.failing.Store("refuse")
	g.do("POST", "turns", aRequest("turn:2", "x").with("passage/no", 9).json()).problem(503)

	store.failing.Store("settle once")
	g.post(aRequest("turn:3", goodScript)).ends("completed/completed")

	store.failing.Store("settle")
	// The stream breaks off, before or behind its first line.
	if answer, err := g.send(context.Background(), "POST", "turns", aRequest("turn:4", goodScript).json()); err == nil {
		if r := g.read(answer); r.err == nil || strings.Contains(r.body, "turn-outcome") {
			t.Errorf("an outcome that was not committed was sent: %v\n%s", r.err, r.body)
		}
	}
	store.failing.Store("suspend")
	r := g.do("POST", "turns", aRequest("turn:5", script(toolStep)).json())
	r.ends("failed/provider-unavailable")
}

type failingStore struct {
	ledger.Store
	failing atomic.Value
	once    sync.Once
}

var errDisk = errors.New("the disk is full")

func (s *failingStore) fails(call string) bool { return s.failing.Load() == call }

func (s *failingStore) Reserve(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	if s.fails("reserve") {
		return ledger.Verdict{}, errDisk
	}
	return s.Store.Reserve(ctx, r)
}

func (s *failingStore) Refuse(ctx context.Context, r ledger.Refusal) (ledger.Verdict, error) {
	if s.fails("refuse") {
		return ledger.Verdict{}, errDisk
	}
	return s.Store.Refuse(ctx, r)
}

func (s *failingStore) Suspend(ctx context.Context, r ledger.Suspension) (ledger.Turn, error) {
	if s.fails("suspend") {
		return ledger.Turn{}, errDisk
	}
	return s.Store.Suspend(ctx, r)
}

func (s *failingStore) Settle(ctx context.Context, r ledger.Settlement) (t ledger.Turn, err error) {
	if s.fails("settle once") {
		s.once.Do(func() { err = errDisk })
		if err != nil {
			return t, err
		}
	}
	if s.fails("settle") {
		return t, ledger.ErrClosed
	}
	return s.Store.Settle(ctx, r)
}

// A turn's adapter sees what the request says.
func TestWhatTheAdapterSees(t *testing.T) {
	t.Parallel()
	seen := make(chan adapters.Turn, 1)
	g := newRig(t, func(s *setup) {
		s.adapter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			seen <- *turn
			if d, ok := ctx.Deadline(); !ok || !d.Equal(turn.Deadline) {
				return fmt.Errorf("the context's deadline is %v, the turn's %v", d, turn.Deadline)
			}
			return echo.New().Run(ctx, turn, w)
		})
	})
	parts := []doc{{"kind": "text", "text": "one"}, {"kind": "artifact", "artifact/ref": "artifact:1", "artifact/digest": wire.ContentDigest(nil), "artifact/size-bytes": 7}, {"kind": "text", "text": "two"}}
	digest, err := wire.CanonicalDigest(mustJSON(parts))
	if err != nil {
		t.Fatal(err)
	}
	q := aRequest("turn:1", "x").with("input/parts", parts, "input/digest", digest)
	g.post(q).ends("completed/completed")
	turn := <-seen
	if turn.Protocol != adapters.ExternalRuntime || turn.ID != "turn:1" || turn.AgentID != agentID || turn.ConversationID != "passage:1" ||
		turn.Message != "one\n\ntwo" || len(turn.Messages) != 2 || turn.Messages[1].Text != "two" ||
		len(turn.Attachments) != 1 || turn.Attachments[0].Size != 7 || turn.Attachments[0].Ref != "artifact:1" ||
		turn.Budget.Tokens != 512 || turn.Budget.WallTime != 30*time.Second || turn.Raw != string(q.json()) ||
		turn.Session.ID() != bindingRef || len(turn.History) != 0 || turn.Continuity != adapters.ContinuityNew {
		t.Errorf("the adapter saw %+v", turn)
	}
	if left := time.Until(turn.Deadline); left > 30*time.Second || left < 20*time.Second {
		t.Errorf("the deadline is in %v", left)
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// An agent's own adapter goes before the one for all.
func TestAdaptersByAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	own := &counter{Adapter: echo.New()}
	h, err := external.New(external.Config{Engine: g.engine, Store: g.store, Adapter: g.adapter, Adapters: map[string]adapters.Adapter{agentID: own}})
	if err != nil {
		t.Fatal(err)
	}
	g.server.Config.Handler = h
	g.post(aRequest("turn:1", "x")).ends("completed/completed")
	if own.calls.Load() != 1 || g.adapter.calls.Load() != 0 {
		t.Error("the wrong adapter was called")
	}
}

// A long ref is escaped and bounded everywhere.
func TestLongRefs(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	ref := strings.Repeat("界", 512)
	q := aRequest(ref, script(toolStep, goodUsage)).with("idempotency/key", ref)
	start := g.post(q)
	g.post(q.answering("key:c", start.asked())).ends("completed/completed")
	if r := g.do("GET", "turns/"+url.PathEscape(ref), nil); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// Where the ledger keeps less of a stream than the turn said, the outcome stands and the replay is gone.
func TestAStreamThatIsTooLongToBeKept(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) {
		s.conf.Store = ledger.NewMemory(ledger.MemoryConfig{Limits: ledger.Limits{Lines: 600}})
	})
	q := aRequest("turn:1", script(`{"text":"x"}`, toolStep, goodUsage))
	start := g.post(q)
	c := q.answering("key:c", start.asked())
	g.post(c).ends("completed/completed")
	for _, d := range []doc{q, c} {
		g.do("POST", "turns", d.json()).problem(410)
	}
	if o := g.outcome("turn:1"); o.Status != wire.StatusCompleted {
		t.Errorf("outcome %+v", o)
	}
}

// A host that cancels twice is told once that the turn is being cancelled.
func TestCancelledTwice(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.engine.Grace = 3 * time.Second })
	done := g.running(aRequest("turn:1", script(`{"stall":"4s"}`)))
	for range 2 {
		if w := g.cancel("turn:1"); w != "pending" {
			t.Errorf("cancellation %s", w)
		}
	}
	if k := (<-done).ends("cancelled/cancelled").kinds(); k != "accepted running cancelling turn-outcome" {
		t.Errorf("the events are %s", k)
	}
}

// Refs with what JSON escapes: the product's digest verifies, and its document is valid.
func TestProductOfOddRefs(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	odd := "\"\\/<&>é😀\u0080"
	q := aRequest("turn:"+odd, goodScript).with("passage/ref", "passage:"+odd, "parent-product/refs", []string{odd + "1", odd + "2"}, "classification", label("Public"))
	g.post(q).ends("completed/completed")
	o := g.outcome("turn:" + odd)
	var p struct{ Product json.RawMessage }
	if err := json.Unmarshal([]byte(g.do("GET", "products/"+string(o.ProductRef), nil).body), &p); err != nil {
		t.Fatal(err)
	}
	product, err := wire.ParseProduct(p.Product)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := wire.DigestWithout(p.Product, "product/digest")
	if err != nil || digest != o.ProductDigest || product.PassageRef != wire.PassageRef("passage:"+odd) || product.TurnRef != o.TurnRef || len(product.ParentProductRefs) != 2 {
		t.Errorf("digest %s, %v, want %s of %s", digest, err, o.ProductDigest, p.Product)
	}
}

func nothing() any { return nil }
