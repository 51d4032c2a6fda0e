package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// A fullSink is a protocol that has everything an adapter may ask for.
type fullSink struct {
	mediatedSink
	arrivals chan adapters.Arrival
}

func (s fullSink) Arrivals() (<-chan adapters.Arrival, error) { return s.arrivals, nil }

func (s fullSink) Candidate(dst []byte, event json.RawMessage) ([]byte, error) {
	if string(event) == "bad" {
		return append(dst, "half a li"...), errors.New("bad event")
	}
	return append(append(append(dst, "candidate "...), event...), '\n'), nil
}

// allOver checks that every method of a Writer says that the turn is over.
func allOver(t *testing.T, when string, w adapters.Writer, cause adapters.Cause) {
	t.Helper()
	isOver(t, when+": Text", w.Text("late"), cause)
	isOver(t, when+": empty Text", w.Text(""), cause)
	n, err := w.Write([]byte("late"))
	isOver(t, when+": Write", err, cause)
	if n != 0 {
		t.Errorf("%s: Write took %d bytes", when, n)
	}
	isOver(t, when+": Status", w.Status("late"), cause)
	isOver(t, when+": Usage", w.Usage(adapters.Usage{}), cause)
	_, err = w.Tool(context.Background(), adapters.ToolRequest{})
	isOver(t, when+": Tool", err, cause)
	_, err = w.Ask(context.Background(), adapters.Question{})
	isOver(t, when+": Ask", err, cause)
	_, err = w.Arrivals()
	isOver(t, when+": Arrivals", err, cause)
	isOver(t, when+": Candidate", w.Candidate(json.RawMessage("{}")), cause)
}

// An adapter that ignores its end.
func TestGraceEndsATurnWithoutItsAdapter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		grace time.Duration
		late  func() // what the adapter does in the end
	}{
		"that returns at last":      {0, func() {}},
		"under a grace of its own":  {500 * ms, func() {}},
		"that panics at last":       {0, func() { panic("late") }},
		"that ends its goroutine":   {0, goruntime.Goexit},
		"that panics with an error": {0, func() { panic(badError{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = 10 * time.Second
				conf.Grace = tc.grace
				g := newRig(t, conf)
				at := 10*time.Second + g.Config().Grace
				if tc.grace == 0 && g.Config().Grace != 2*time.Second {
					t.Errorf("the grace is %v by default", g.Config().Grace)
				}
				s := spec("stubborn", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					_ = w.Text("before")
					if err := turn.Session.Store("k", "before"); err != nil {
						t.Errorf("Store = %v", err)
					}
					<-ctx.Done()
					allOver(t, "in the grace", w, adapters.CauseTurnTimeout)
					time.Sleep(time.Hour - g.now())
					allOver(t, "afterwards", w, adapters.CauseTurnTimeout)
					if err := turn.Session.Store("k", "late"); !errors.Is(err, adapters.ErrTurnOver) {
						t.Errorf("Store = %v afterwards, want ErrTurnOver", err)
					}
					if err := turn.Session.Delete("k"); !errors.Is(err, adapters.ErrTurnOver) {
						t.Errorf("Delete = %v afterwards, want ErrTurnOver", err)
					}
					tc.late()
					return nil
				}))
				s.Sink = fullSink{}
				h := g.send(s)
				g.until(9 * time.Second)
				next := g.send(spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					var v string
					_, err := turn.Session.Load("k", &v)
					if err != nil {
						return err
					}
					return w.Text(v)
				})))

				g.until(at - 1)
				if !g.running("stubborn") {
					t.Fatalf("the turn ended at %v", g.end("stubborn").at)
				}
				h.wantLines("started", `text "before"`)
				g.until(at)
				e := g.wantEnd("stubborn", runtime.Failed, adapters.CauseTurnTimeout, at)
				if !e.Abandoned || e.Err != nil {
					t.Errorf("abandoned %t, error %v", e.Abandoned, e.Err)
				}
				g.wantEnd("next", runtime.Completed, adapters.CauseCompleted, at)
				next.wantLines("started", `text "before"`, "end completed completed")
				if s := g.Stats(); s.Abandoned != 1 || s.Active != 0 {
					t.Errorf("after the end: %+v", s)
				}
				if l := g.log.turn(t, "stubborn"); l["abandoned"] != true {
					t.Errorf("the log says %v", l)
				}
				// The host has it all, although Serve is still with the adapter.
				h.wantLines("started", `text "before"`, "end failed turn-timeout")
				if len(h.hungUp) != 1 || !h.hungUp[0].Equal(g.began.Add(at)) {
					t.Errorf("hung up at %v, want once, at %v", h.hungUp, at)
				}
				select {
				case <-h.done:
					t.Error("Serve returned while the adapter runs")
				default:
				}

				again := g.send(spec("stubborn", say("afresh"))) // the same turn, once more
				_ = again.wait()
				again.wantLines("started", `text "afresh"`, "end completed completed")

				<-h.done
				if now := g.now(); now != time.Hour {
					t.Errorf("Serve returned after %v", now)
				}
				h.wantLines("started", `text "before"`, "end failed turn-timeout")
				synctest.Wait()
				if s := g.Stats(); s.Abandoned != 0 {
					t.Errorf("after the adapter's return: %+v", s)
				}
				g.mu.Lock()
				defer g.mu.Unlock()
				if len(g.ends) != 3 {
					t.Errorf("%d ends, want 3", len(g.ends))
				}
			})
		})
	}
}

type badError struct{}

func (badError) Error() string { panic("Error panics") }

// plain hides that a connection can be hung up.
type plain struct{ ndjson.Conn }

// A connection that cannot be hung up gets the last line all the same.
// A connection that cannot be hung up is not lent to an adapter that may keep it: its response ends in the
// usual way.
func TestGraceWithoutHangUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		g := newRig(t, conf)
		c := newConn(t)
		stream, err := g.Start(t.Context(), spec("t", sleep(time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- stream.Serve(t.Context(), plain{c}); c.end() }()
		g.until(3 * time.Second)
		if err := <-done; err != nil {
			t.Errorf("Serve = %v, want nil: the response is whole", err)
		}
		c.wantLines("started", "end failed turn-timeout")
		time.Sleep(2 * time.Hour) // the adapter comes back
	})
}

func TestAdaptersMayUseTheirGrace(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"nil": nil, "an error": errors.New("interrupted")} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = time.Second
				g := newRig(t, conf)
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					<-ctx.Done()
					time.Sleep(2*time.Second - 1)
					if err := turn.Session.Store("k", 1); err != nil {
						t.Errorf("Store = %v in the grace", err)
					}
					return result
				})))
				_ = h.wait()
				e := g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, 3*time.Second-1)
				if e.Abandoned || !errors.Is(e.Err, result) {
					t.Errorf("abandoned %t, error %v, want false and %v", e.Abandoned, e.Err, result)
				}
				if len(h.hungUp) != 0 {
					t.Error("the connection was hung up")
				}
			})
		})
	}
}

// The grace counts from the first order to end; a second order does not lengthen it or change why.
func TestTheFirstCauseCounts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = 4 * time.Second
		g := newRig(t, conf)
		h := g.send(spec("t", sleep(time.Hour)))
		g.until(3 * time.Second)
		g.Stop(adapters.Lowkey, key("s"), "t")
		g.until(4 * time.Second)
		h.leave()
		g.Stop(adapters.Lowkey, key("s"), "t")
		g.until(6 * time.Second)
		g.wantEnd("t", runtime.Cancelled, adapters.CauseStopped, 5*time.Second)
	})
}

// Readers that came later get the end of an abandoned turn too.
func TestAbandonedTurnsEndForAllReaders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		g := newRig(t, conf)
		h := g.send(spec("t", sleep(time.Hour)))
		joiner := g.send(spec("t", never(t)))
		if err := joiner.wait(); err != nil {
			t.Errorf("the joiner's Serve = %v", err)
		}
		if at := g.now(); at != 3*time.Second {
			t.Errorf("the joiner's Serve returned after %v", at)
		}
		joiner.wantLines("started", "end failed turn-timeout")
		synctest.Wait()
		h.wantLines("started", "end failed turn-timeout")
		if len(h.hungUp) != 1 || len(joiner.hungUp) != 0 {
			t.Errorf("hung up %d and %d times, want the first once", len(h.hungUp), len(joiner.hungUp))
		}
	})
}

// A host that is slow gets the end of an abandoned turn when it takes it.
func TestAbandonedTurnWithASlowReader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		conf.Stream = ndjson.LogConfig{WriteTimeout: -1}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(ms)
			_ = say("a", "b", "c")(ctx, turn, w)
			time.Sleep(time.Hour)
			return nil
		})))
		synctest.Wait()
		h.hold(len("text \"a\"\n") + 3)
		g.until(10 * time.Second)
		g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, 3*time.Second)
		if len(h.hungUp) != 0 {
			t.Error("hung up before the host has all lines")
		}
		h.release()
		synctest.Wait()
		h.wantLines("started", `text "a"`, `text "b"`, `text "c"`, "end failed turn-timeout")
		if len(h.hungUp) != 1 {
			t.Errorf("hung up %d times, want once", len(h.hungUp))
		}
	})
}

// An adapter that is blocked in a write to a host that takes nothing is abandoned like any other.
func TestAbandonedInAWrite(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Stream = ndjson.LogConfig{WriteTimeout: 30 * time.Second}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(5 * time.Second)
			return sayThenBlock("a")(ctx, turn, w)
		})))
		synctest.Wait()
		h.hold(0)
		g.until(6 * time.Second)
		g.Stop(adapters.Lowkey, key("s"), "t")
		g.until(8 * time.Second)
		g.wantEnd("t", runtime.Cancelled, adapters.CauseStopped, 8*time.Second)
		next := g.send(spec("next", say("x")))
		_ = next.wait()
		if err := h.wait(); err == nil {
			t.Error("Serve = nil although the write failed")
		}
		if at := g.now(); at != 35*time.Second {
			t.Errorf("Serve returned after %v, want when the write timed out", at)
		}
	})
}

// A turn whose start hook hangs ends without its adapter ever being called.
func TestAHookThatHangsIsNotAnAdapter(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		conf.Hooks = []runtime.Hooks{{TurnStart: func(ctx context.Context, i runtime.TurnInfo) context.Context {
			time.Sleep(time.Hour)
			return ctx
		}}}
		g := newRig(t, conf)
		s := spec("t", never(t))
		s.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "before"}}
		owner := &recycler{}
		s.Owner = owner
		h := g.send(s)
		g.until(3 * time.Second)
		if e := g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, 3*time.Second); !e.Abandoned {
			t.Error("the turn does not count as abandoned")
		}
		<-h.done
		if owner.count() > 0 {
			t.Error("the window was given back although it was still to be read")
		}
	})
}

type recycler struct{ times atomic.Int64 }

func (r *recycler) Recycle()     { r.times.Add(1) }
func (r *recycler) count() int64 { return r.times.Load() }

// TurnEnd's context carries what TurnStart put into it, for abandoned turns too: a trace that began
// must end.
func TestHookContextOfAnAbandonedTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		conf.Hooks = []runtime.Hooks{{TurnStart: func(ctx context.Context, i runtime.TurnInfo) context.Context {
			return context.WithValue(ctx, hookKey{}, "span")
		}}}
		g := newRig(t, conf)
		_ = g.send(spec("t", sleep(time.Hour))).wait()
		if e := g.end("t"); e.ctx.Value(hookKey{}) != "span" || e.ctx.Err() != nil {
			t.Errorf("TurnEnd's context has the value %v and the error %v", e.ctx.Value(hookKey{}), e.ctx.Err())
		}
	})
}

// Many adapters that are left behind at once are all counted, and all come back.
func TestManyAbandoned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		conf.MaxTurns = 100
		g := newRig(t, conf)
		var hosts []*host
		for i := range 100 {
			id := fmt.Sprint(i)
			hosts = append(hosts, g.send(in(id, spec(id, sleep(time.Minute)))))
		}
		g.until(3 * time.Second)
		if s := g.Stats(); s.Abandoned != 100 || s.Active != 0 {
			t.Errorf("%+v, want 100 abandoned", s)
		}
		_ = g.send(spec("one more", say("x"))).wait() // they hold no slot
		for _, h := range hosts {
			<-h.done
		}
	})
}

// An adapter that returns at the very moment at which it is given up: its host gets the last line
// whichever of the two comes first.
func TestAnAdapterThatReturnsAsItsGraceEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = time.Second
		g := newRig(t, conf)
		var hosts []*host
		for i := range 500 {
			id := fmt.Sprint(i)
			s := in(id, spec(id, sleep(3*time.Second)))
			if i%2 == 0 { // so that the end takes its time
				s.Sink = settlingSink{settle: func(*runtime.Outcome) { time.Sleep(time.Second) }}
			}
			hosts = append(hosts, g.send(s))
		}
		for i, h := range hosts {
			<-h.done
			if h.last() != "end failed turn-timeout" {
				t.Errorf("host %d has got %q, and Serve = %v", i, h.lines(), h.err)
			}
		}
	})
}
