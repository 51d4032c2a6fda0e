package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// behind has turn:1 await an observation, and sends q, which waits for the binding then.
func (g *rig) behind(q doc) (start reply, waiting *seen) {
	g.t.Helper()
	start = g.post(aRequest("turn:1", script(toolStep, goodUsage)))
	waiting = g.watch(q)
	turn := q.ref("turn/ref")
	eventually(g.t, "the second turn waits", func() bool {
		r := g.do("GET", "turns/"+turn, nil)
		return r.status == 200 && strings.Contains(r.body, `"reserved"`)
	})
	return start, waiting
}

// A turn that waits for its binding is reserved: what holds it up is told, and nothing is charged for it,
// however it ends before its adapter is called.
func TestATurnThatWaits(t *testing.T) {
	t.Parallel()
	t.Run("says so", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, nil)
		start, waiting := g.behind(aRequest("turn:2", goodScript))
		if s := g.look("turn:2"); s.State != "reserved" || s.WaitingFor != "turn:1" {
			t.Errorf("the turn that waits is %+v", s)
		}
		if row, err := g.store.Turn(t.Context(), "turn:2"); err != nil || row.State != ledger.Reserved || !row.DispatchedAt.IsZero() {
			t.Errorf("the ledger has %+v, %v", row, err)
		}
		if logs := g.logs.String(); !strings.Contains(logs, `"turn waits for its binding","turn":"turn:2"`) || !strings.Contains(logs, `"behind":"turn:1"`) {
			t.Errorf("the log does not say that it waits\n%s", logs)
		}
		if again := g.watch(aRequest("turn:2", goodScript)); again == nil {
			t.Error("nobody joins it")
		}
		g.post(aRequest("turn:1", script(toolStep, goodUsage)).answering("key:c", start.asked())).ends("completed/completed")
		r := (<-waiting.done).ends("completed/completed")
		if k := r.kinds(); k != "accepted running product-candidate usage turn-outcome" {
			t.Errorf("the events are %s", k)
		}
		row, err := g.store.Turn(t.Context(), "turn:2")
		if err != nil || row.DispatchedAt.Sub(row.ReservedAt) <= 0 {
			t.Errorf("the ledger has %+v, %v", row, err)
		}
	})
	for name, end := range map[string]struct {
		ends  string
		retry wire.Retryability
		setup func(*setup)
		do    func(g *rig)
	}{
		"cancelled": {"cancelled/cancelled", wire.Terminal, nil, func(g *rig) {
			if w := g.cancel("turn:2"); w != "acknowledged" {
				g.t.Errorf("cancellation %s", w)
			}
		}},
		"too long for the profile": {"failed/event-timeout", wire.Retryable, withProfile("limits", limits(64, 65536, 65536, 300)), func(*rig) {}},
		"too long for the server":  {"failed/event-timeout", wire.Retryable, func(s *setup) { s.engine.SessionWait = 200 * time.Millisecond }, func(*rig) {}},
		"the server drains": {"cancelled/cancelled", wire.Terminal, nil, func(g *rig) {
			g.engine.CancelAll()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, end.setup)
			// The one in the way was there before, and its own time is longer.
			g.admit("profiles", aProfile().with("profile/ref", "profile:long"))
			_, waiting := g.behindLong(aRequest("turn:2", goodScript).with("budget/reservation", budget(512, 1000, 100, 10)))
			end.do(g)
			(<-waiting.done).ends(end.ends)
			o := g.outcome("turn:2")
			if o.BudgetCharged != (wire.Usage{}) || o.UsageFidelity != wire.FidelityUnavailable || o.Retryability != end.retry {
				t.Errorf("outcome %+v", o)
			}
			if n := g.adapter.calls.Load(); n != 1 {
				t.Errorf("%d calls of adapters", n)
			}
		})
	}
}

// behindLong is behind, with a session that is held whatever the profile says.
func (g *rig) behindLong(q doc) (start reply, waiting *seen) {
	g.t.Helper()
	// The waiting turn's own clock must be the one that runs out: turn:1 is sent under another profile, in
	// the same binding.
	long := aBinding().with("profile/ref", "profile:long").sealed()
	g.admit("bindings", long)
	start = g.post(aRequest("turn:1", script(toolStep, goodUsage)).with("binding/digest", long["binding/digest"]))
	g.admit("bindings", aBinding().sealed())
	waiting = g.watch(q)
	eventually(g.t, "the second turn waits", func() bool { return g.do("GET", "turns/turn:2", nil).status == 200 })
	return start, waiting
}

// The time that a turn waits is not its own: neither is it charged, nor does it end the turn.
func TestWaitingIsNoWallTime(t *testing.T) {
	t.Parallel()
	deadline := make(chan time.Duration, 2)
	g := newRig(t, func(s *setup) {
		play := s.adapter
		s.adapter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if turn.ID == "turn:2" {
				at, ok := ctx.Deadline()
				if !ok || !at.Equal(turn.Deadline) {
					return fmt.Errorf("the context's deadline is %v, the turn's %v", at, turn.Deadline)
				}
				deadline <- time.Until(at)
				return finish(w)
			}
			return play.Run(ctx, turn, w)
		})
	})
	start, waiting := g.behind(aRequest("turn:2", "x").with("budget/reservation", budget(512, 1000, 10_000, 10)))
	time.Sleep(500 * time.Millisecond)
	g.post(aRequest("turn:1", script(toolStep, goodUsage)).answering("key:c", start.asked()))
	(<-waiting.done).ends("completed/completed")
	if left := <-deadline; left < 9600*time.Millisecond || left > 10*time.Second {
		t.Errorf("the adapter has %v of its 10 s", left)
	}
	if ms := g.outcome("turn:2").BudgetCharged.MaxWallTimeMS; ms > 400 {
		t.Errorf("charged %d ms", ms)
	}
}

// What limits a turn that had to wait counts from when its adapter is called.
func TestLimitsOfATurnThatWaited(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wall, timeout time.Duration
		deadline      time.Duration // from when the request is sent
		ends          string
		at            time.Duration
	}{
		"wall time":       {2 * time.Second, 30 * time.Second, time.Hour, "failed/budget-exhausted", 12 * time.Second},
		"turn-timeout-ms": {30 * time.Second, 11 * time.Second, time.Hour, "failed/event-timeout", 21 * time.Second},
		"both":            {11 * time.Second, 11 * time.Second, time.Hour, "failed/event-timeout", 21 * time.Second},
		"deadline/at":     {30 * time.Second, 30 * time.Second, 13 * time.Second, "failed/event-timeout", 13 * time.Second},
		"while it waits":  {2 * time.Second, 30 * time.Second, 4 * time.Second, "failed/event-timeout", 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine, err := runtime.New(runtime.Config{Logger: quiet, Idle: -1, FirstOutput: -1})
				if err != nil {
					t.Fatal(err)
				}
				h, err := external.New(external.Config{Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{}), OperatorToken: operatorToken, Logger: quiet,
					Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
						if turn.ID == "turn:1" {
							time.Sleep(10 * time.Second)
							return finish(w)
						}
						<-ctx.Done()
						if !errors.Is(ctx.Err(), context.DeadlineExceeded) || adapters.CauseOf(ctx) != adapters.CauseTurnTimeout {
							t.Errorf("the adapter's context ended with %v, %v", ctx.Err(), context.Cause(ctx))
						}
						return context.Cause(ctx)
					})})
				if err != nil {
					t.Fatal(err)
				}
				serve := func(method, path string, d doc) reply { return serveIn(t, h, method, path, d) }
				serve("PUT", "profiles/"+profileRef, aProfile().with("limits", limits(64, 65536, 65536, c.timeout.Milliseconds())))
				b := aBinding().with("expires/at", "9000-01-01T00:00:00Z").sealed()
				serve("PUT", "bindings/"+bindingRef, b)
				request := func(turn string) doc {
					return aRequest(turn, "x").with("binding/digest", b["binding/digest"], "deadline/at", wire.DateTimeOf(time.Now().Add(c.deadline)))
				}
				began := time.Now()
				first := make(chan reply, 1)
				go func() { first <- serve("POST", "turns", request("turn:1").with("deadline/at", "2999-01-01T00:00:00Z")) }()
				synctest.Wait()
				serve("POST", "turns", request("turn:2").with("budget/reservation", budget(512, 1000, c.wall.Milliseconds(), 10))).ends(c.ends)
				if took := time.Since(began); took != c.at {
					t.Errorf("it ended after %v, want %v", took, c.at)
				}
				<-first
				engine.WaitAdapters()
			})
		})
	}
}

// Closing the session ends the turn that has it. Those behind it begin a new one.
func TestTheSessionIsClosedBeforeTheTurnsThatWait(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	g.post(aRequest("turn:0", script(`{"remember":{"key":"k","value":1}}`, `{"text":"x"}`, goodUsage)))
	_, waiting := g.behind(aRequest("turn:2", script(`{"recall":"k"}`, `{"remember":{"key":"l","value":2}}`, goodUsage)))
	third := g.watch(aRequest("turn:3", script(`{"recall":"l"}`, goodUsage)))
	if w := g.closeSession(); w != "closed" {
		t.Errorf("close: %s", w)
	}
	if o := g.outcome("turn:1"); o.ReasonCode != wire.ReasonSessionLost {
		t.Errorf("the turn that had the session ended %s/%s", o.Status, o.ReasonCode)
	}
	for turn, want := range map[*seen]string{waiting: "null", third: "2"} {
		r := (<-turn.done).ends("completed/completed")
		for _, e := range r.events() {
			if e.Kind == wire.EventProductCandidate && e.Content != want {
				t.Errorf("%s recalled %s, want %s", e.TurnRef, e.Content, want)
			}
		}
	}
	if s, err := g.store.Session(t.Context(), bindingRef); err != nil || !s.Open || string(s.Values) != `{"l":2}` {
		t.Errorf("the session is %+v, %v", s, err)
	}
}

// The ledger fails when the turn's time has come: nothing was called, nothing is charged.
func TestATurnThatCannotBeDispatched(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	_, waiting := g.behind(aRequest("turn:2", goodScript))
	store.shut("dispatch").opened(errors.New("the disk is full"))
	g.cancel("turn:1")
	(<-waiting.done).ends("failed/provider-unavailable")
	if o := g.outcome("turn:2"); o.BudgetCharged != (wire.Usage{}) {
		t.Errorf("charged %+v", o.BudgetCharged)
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("%d calls of adapters", n)
	}
}

// A process that dies with a turn that waits has run nothing of it: the same request runs afresh, and what it
// says then has names of its own.
func TestTheProcessDiesWithATurnThatWaits(t *testing.T) {
	t.Parallel()
	for _, stop := range []string{"", "dispatching"} {
		t.Run("at "+stop, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			server := startChild(t, dir, stop)
			server.admit()
			start := server.must("POST", "turns", aRequest("turn:1", script(toolStep)).json())
			q := aRequest("turn:2", goodScript)
			heard := make(chan string, 1)
			go func() {
				r, _ := server.do("POST", "turns", q.json())
				heard <- r.body
			}()
			eventually(t, "the second turn waits", func() bool {
				r, err := server.do("GET", "turns/turn:2", nil)
				return err == nil && strings.Contains(r.body, `"reserved"`)
			})
			if stop != "" {
				_, _ = server.do("POST", "turns/turn:1/cancel", nil)
				server.died()
			}
			server.kill()
			before := <-heard

			server = startChild(t, dir, "")
			if stop == "" {
				if o := server.outcome("turn:1"); o.Status != wire.StatusUnknown {
					t.Errorf("the turn in the way is %s", o.Status)
				}
				if r := server.must("POST", "turns", aRequest("turn:1", script(toolStep)).json()); r.body != start.body {
					t.Errorf("its replay is\n%s\nand not\n%s", r.body, start.body)
				}
			}
			if r, err := server.do("GET", "turns/turn:2", nil); err != nil || r.status != 404 {
				t.Errorf("after the restart the turn is known: %d %v %s", r.status, err, r.body)
			}
			r := server.must("POST", "turns", q.json()).ends("completed/completed")
			if n := calls(t, dir)["turn:2"]; n != 1 {
				t.Errorf("%d calls", n)
			}
			was := map[wire.EventRef]bool{}
			for line := range strings.Lines(before) {
				var e wire.Event
				if json.Unmarshal([]byte(line), &e) == nil {
					was[e.EventRef] = true
				}
			}
			for _, e := range r.events() {
				if was[e.EventRef] {
					t.Errorf("%s names another event than before", e.EventRef)
				}
			}
			if len(was) == 0 {
				t.Error("nothing was heard of the turn before")
			}
		})
	}
}

// What a host saw of a turn whose end nobody saw, and the line that says so, have no name in common.
func TestARecoveredTurnsLineHasItsOwnRef(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startChild(t, dir, "")
	server.admit()
	q := aRequest("turn:1", script(action(), `{"sleep":"300ms"}`, `{"exit":3}`))
	before, _ := server.do("POST", "turns", q.json())
	server.died()
	server = startChild(t, dir, "")
	after := server.must("POST", "turns", q.json()).ends("unknown/unknown").events()
	seen := 0
	for line := range strings.Lines(before.body) {
		if e, err := wire.ParseEvent([]byte(line)); err == nil {
			seen++
			if e.EventRef == after[0].EventRef {
				t.Errorf("%s was %s and is %s", e.EventRef, e.Kind, after[0].Kind)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d events were seen before: %q", seen, before.body)
	}
}
