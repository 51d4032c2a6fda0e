package runtime_test

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// Faults that others met, as far as they are the engine's. Where there are sockets, they are tested there
// once more.

// Fault B3: a host that goes away before the first token.
func TestFaultB3HostsThatGoBeforeTheFirstToken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		var called atomic.Int64
		waits := adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			called.Add(1)
			select { // for a provider that says nothing
			case <-time.After(time.Hour):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		var hosts []*host
		for i := range 200 {
			session := fmt.Sprint(i)
			if i%2 == 0 {
				session = "one" // half of them wait for its lock
			}
			hosts = append(hosts, g.send(in(session, spec(fmt.Sprint(i), waits))))
		}
		g.until(100 * ms)
		// The one that holds the session last, or the next in its queue may be called before its own host
		// has gone.
		for _, h := range hosts {
			if h != hosts[0] {
				h.leave()
			}
		}
		synctest.Wait()
		for _, h := range hosts {
			h.leave()
		}
		for i, h := range hosts {
			<-h.done
			g.wantEnd(fmt.Sprint(i), runtime.Cancelled, adapters.CauseHostGone, 100*ms)
		}
		if n := called.Load(); n != 101 {
			t.Errorf("%d adapters were called, want 101: those that wait never run", n)
		}
		_ = g.send(in("one", spec("next", say("x")))).wait()
		g.wantEnd("next", runtime.Completed, adapters.CauseCompleted, 100*ms)
	})
}

// Fault B5: a panic where no handler recovers.
func TestFaultB5PanicsBesideHealthyTurns(t *testing.T) {
	t.Parallel()
	for name, sick := range map[string]adapters.Func{
		"at once": func(context.Context, *adapters.Turn, adapters.Writer) error { panic("at once") },
		"after three chunks": func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			_ = say("a", "b", "c")(ctx, turn, w)
			panic("after three chunks")
		},
		"with nil":              func(context.Context, *adapters.Turn, adapters.Writer) error { panic(nothing) },
		"with a bad error":      func(context.Context, *adapters.Turn, adapters.Writer) error { panic(badError{}) },
		"by ending a goroutine": func(context.Context, *adapters.Turn, adapters.Writer) error { goruntime.Goexit(); return nil },
		"in Tool": func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{})
			return err
		},
		"while taking arrivals": func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			arrivals, err := w.Arrivals()
			if err != nil {
				return err
			}
			<-arrivals
			panic("while taking arrivals")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.MaxTurns = 200
				g := newRig(t, conf)
				arrivals := make(chan adapters.Arrival)
				close(arrivals)
				var healthy, ill []*host
				for i := range 100 {
					id := fmt.Sprint(i)
					s := in("sick "+id, spec("sick "+id, sick))
					s.Sink = fullSink{
						mediatedSink{answer: func(context.Context) (adapters.Observation, error) { panic("in Tool") }}, arrivals,
					}
					ill = append(ill, g.send(s))
					healthy = append(healthy, g.send(in(id, spec(id, counting(3)))))
				}
				for i, h := range healthy {
					if err := h.wait(); err != nil {
						t.Errorf("Serve = %v", err)
					}
					h.wantLines(counted(3)...)
					<-ill[i].done
					if ill[i].count("end") != 1 || ill[i].last() != "end failed panic" {
						t.Errorf("the sick turn %d wrote %q", i, ill[i].lines())
					}
					for _, l := range ill[i].lines() {
						if strings.Contains(l, "panic") && l != "end failed panic" || strings.Contains(l, "goroutine") {
							t.Errorf("the host has got %q", l)
						}
					}
				}
				for i := range 100 { // sessions and slots are free
					_ = g.send(in(fmt.Sprintf("sick %d", i), spec(fmt.Sprintf("next %d", i), say("x")))).wait()
				}
			})
		})
	}
}

// Fault H3: shared memory between turns. The race detector looks on.
func TestFaultH3WhatAnAdapterChangesIsItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		stop := make(chan struct{})
		var vandals sync.WaitGroup
		vandal := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			value := []byte(`"kept"`)
			if err := turn.Session.Store("k", rawJSON(value)); err != nil {
				return err
			}
			spoil := func() {
				copy(value, `"####"`)
				for i := range turn.History {
					turn.History[i].Content = "spoilt"
				}
				turn.History = append(turn.History, adapters.Message{Content: "spoilt"})[:len(turn.History)]
				turn.ID, turn.Message = "spoilt", "spoilt"
			}
			spoil()
			vandals.Go(func() { // which goes on after the turn
				for {
					select {
					case <-stop:
						return
					default:
						spoil()
						goruntime.Gosched()
					}
				}
			})
			return w.Text("answer")
		})
		for i := range 50 {
			handle := fmt.Sprint(i)
			window := []adapters.Message{{Role: adapters.RoleUser, Content: "old " + handle}}
			first := in(handle, spec("1", vandal))
			first.Window = window
			_ = g.send(first).wait()
			second := in(handle, spec("2", vandal))
			second.Window = slices.Clone(window)
			_ = g.send(second).wait()
			var seen string
			third := in(handle, spec("3", adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
				for _, m := range turn.History {
					seen += m.Content + ","
				}
				var v string
				_, err := turn.Session.Load("k", &v)
				seen += v
				return err
			})))
			third.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "old " + handle}, {Role: adapters.RoleUser, Content: "message of 2"}, {Role: adapters.RoleAgent, Content: "answer"}}
			_ = g.send(third).wait()
			if want := "old " + handle + ",message of 2,answer,kept"; seen != want {
				t.Fatalf("session %s: the third turn sees %q, want %q", handle, seen, want)
			}
		}
		close(stop)
		vandals.Wait()
	})
}

// rawJSON is stored as it is.
type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// Fault H4: waiting for each other.
func TestFaultH4WaitersHaveTheirOwnContexts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.SessionWait = 10 * time.Second
		g := newRig(t, conf)
		var running atomic.Int64
		var mu sync.Mutex
		var order []string
		work := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if n := running.Add(1); n != 1 {
				t.Errorf("%d adapters of the session run", n)
			}
			defer running.Add(-1)
			mu.Lock()
			order = append(order, turn.ID)
			mu.Unlock()
			if turn.ID == "1" {
				return block(ctx, turn, w)
			}
			time.Sleep(time.Second)
			return nil
		})
		var hosts []*host
		for i := range 4 {
			hosts = append(hosts, g.send(spec(fmt.Sprint(i+1), work)))
			synctest.Wait()
		}
		other := g.send(in("other", spec("other", say("x"))))
		_ = other.wait()
		g.wantEnd("other", runtime.Completed, adapters.CauseCompleted, 0)
		g.until(time.Second)
		hosts[1].leave()
		g.until(2 * time.Second)
		hosts[0].leave()
		for _, h := range hosts {
			<-h.done
		}
		g.wantEnd("2", runtime.Cancelled, adapters.CauseHostGone, time.Second)
		g.wantEnd("1", runtime.Cancelled, adapters.CauseHostGone, 2*time.Second)
		g.wantEnd("3", runtime.Completed, adapters.CauseCompleted, 3*time.Second)
		g.wantEnd("4", runtime.Completed, adapters.CauseCompleted, 4*time.Second)
		if got := strings.Join(order, ""); got != "134" {
			t.Errorf("the turns ran in the order %s, want 134", got)
		}

		// The bound of the wait.
		blocker := g.send(spec("5", block))
		late := g.send(spec("6", never(t)))
		_ = late.wait()
		g.wantEnd("6", runtime.Failed, adapters.CauseSessionBusy, 14*time.Second)
		blocker.leave()
	})
}

// Fault K3: shutdown with streams open.
func TestFaultK3Drain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Heartbeat = 500 * ms
		g := newRig(t, conf)
		short := g.send(in("1", spec("short", sleep(800*ms))))
		long := g.send(in("2", spec("long", block)))
		stubborn := g.send(in("3", spec("stubborn", sleep(time.Minute))))
		waiter := g.send(in("2", spec("waiter", never(t))))
		synctest.Wait()
		d := g.drain(2 * time.Second)
		g.until(100 * ms)
		if _, err := g.Start(t.Context(), in("4", spec("new", never(t)))); !errors.Is(err, runtime.ErrDraining) {
			t.Errorf("Start = %v, want ErrDraining", err)
		}
		result := <-d
		if result.at > 5*time.Second {
			t.Errorf("Drain took %v, want at most drain, grace and a second", result.at)
		}
		synctest.Wait()
		short.wantLines("started", "beat", "end completed completed")
		for _, h := range []*host{long, stubborn, waiter} {
			if h.last() != "end cancelled drain" || h.count("beat") < 3 {
				t.Errorf("a host has got %q", h.lines())
			}
		}
	})
}
