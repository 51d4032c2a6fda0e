package runtime_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// drain calls Drain with so much time on a goroutine of its own, and tells when it returned what.
func (g *rig) drain(limit time.Duration) <-chan drained {
	result := make(chan drained, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(g.t.Context()), limit)
		defer cancel()
		err := g.Drain(ctx)
		result <- drained{err, g.now()}
	}()
	synctest.Wait()
	return result
}

type drained struct {
	err error
	at  time.Duration
}

func (d drained) want(t *testing.T, err error, at time.Duration) {
	t.Helper()
	if !errors.Is(d.err, err) || d.at != at {
		t.Errorf("Drain = %v after %v, want %v after %v", d.err, d.at, err, at)
	}
}

func TestDrainWaitsForRunningTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Heartbeat = time.Second
		g := newRig(t, conf)
		if g.Draining() {
			t.Error("Draining before Drain")
		}
		replayed := g.send(in("other", spec("done", say("x"))))
		_ = replayed.wait()
		a := g.send(spec("a", sleep(5500*ms)))
		synctest.Wait()
		b := g.send(spec("b", sleep(5*time.Second))) // it waits for a, and runs all the same
		synctest.Wait()
		d := g.drain(time.Hour)
		if !g.Draining() {
			t.Error("not Draining during Drain")
		}
		if _, err := g.Start(t.Context(), spec("c", never(t))); !errors.Is(err, runtime.ErrDraining) {
			t.Errorf("Start = %v, want ErrDraining", err)
		}
		// Repeats pass.
		joiner := g.send(spec("b", never(t)))
		replay := g.send(in("other", spec("done", never(t))))
		_ = replay.wait()
		replay.wantLines("started", `text "x"`, "end completed completed")
		conflict := spec("a", never(t))
		conflict.Fingerprint = 2
		if _, err := g.Start(t.Context(), conflict); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("Start = %v, want ErrConflict", err)
		}
		(<-d).want(t, nil, 10500*ms)
		_ = a.wait()
		_ = b.wait()
		_ = joiner.wait()
		g.wantEnd("a", runtime.Completed, adapters.CauseCompleted, 5500*ms)
		g.wantEnd("b", runtime.Completed, adapters.CauseCompleted, 10500*ms)
		if n := b.count("beat"); n != 10 {
			t.Errorf("%d heartbeats while draining, want 10", n)
		}
		// It stays that way.
		if _, err := g.Start(t.Context(), spec("c", never(t))); !errors.Is(err, runtime.ErrDraining) {
			t.Errorf("Start = %v, want ErrDraining", err)
		}
		(<-g.drain(time.Hour)).want(t, nil, 10500*ms)
	})
}

func TestDrainOfAnIdleEngine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // also where there is no time at all
			if err := g.Drain(ctx); err != nil {
				t.Fatalf("Drain = %v although nothing ran", err)
			}
		}
	})
}

func TestDrainCancelsWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		short := g.send(in("1", spec("short", sleep(time.Second))))
		long := g.send(in("2", spec("long", sayThenBlock("a"))))
		tidy := g.send(in("3", spec("tidy", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}))))
		stubborn := g.send(in("4", spec("stubborn", sleep(time.Hour))))
		waiter := g.send(in("2", spec("waiter", never(t))))
		synctest.Wait()
		d := g.drain(10 * time.Second)
		(<-d).want(t, context.DeadlineExceeded, 12*time.Second)
		for _, h := range []*host{short, long, tidy, waiter} {
			if err := h.wait(); err != nil {
				t.Errorf("Serve = %v", err)
			}
		}
		g.wantEnd("short", runtime.Completed, adapters.CauseCompleted, time.Second)
		g.wantEnd("long", runtime.Cancelled, adapters.CauseDrain, 10*time.Second)
		g.wantEnd("waiter", runtime.Cancelled, adapters.CauseDrain, 10*time.Second)
		g.wantEnd("tidy", runtime.Cancelled, adapters.CauseDrain, 11*time.Second)
		g.wantEnd("stubborn", runtime.Cancelled, adapters.CauseDrain, 12*time.Second)
		long.wantLines("started", `text "a"`, "end cancelled drain")
		waiter.wantLines("started", "end cancelled drain")
		synctest.Wait()
		stubborn.wantLines("started", "end cancelled drain") // although Serve has not returned
		if s := g.Stats(); s.Abandoned != 1 || s.Active != 0 {
			t.Errorf("%+v", s)
		}
		g.WaitAdapters()
		if now := g.now(); now != time.Hour {
			t.Errorf("WaitAdapters returned after %v", now)
		}
	})
}

// Two drains at once, as when a second signal shortens the time of the first.
func TestDrainTwice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", block))
		synctest.Wait()
		long, short := g.drain(time.Hour), g.drain(3*time.Second)
		(<-short).want(t, context.DeadlineExceeded, 3*time.Second)
		(<-long).want(t, nil, 3*time.Second)
		_ = h.wait()
		g.wantEnd("t", runtime.Cancelled, adapters.CauseDrain, 3*time.Second)
	})
}

// Drain returns the cause of its context.
func TestDrainTellsWhyItGaveUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", block))
		synctest.Wait()
		why := errors.New("second signal")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if err := g.Drain(ctx); !errors.Is(err, why) {
			t.Errorf("Drain = %v, want the cause", err)
		}
		_ = h.wait()
	})
}

// Drain waits for hooks too: what they record must not be lost.
func TestDrainWaitsForHooks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		recorded := 0
		conf := none
		conf.Hooks = []runtime.Hooks{{TurnEnd: func(ctx context.Context, _ runtime.TurnInfo, _ *runtime.Outcome) {
			select {
			case <-time.After(time.Second):
				recorded++
			case <-ctx.Done():
				t.Error("a hook's context was cancelled")
			}
		}}}
		g := newRig(t, conf)
		g.send(spec("good", sleep(time.Second)))
		g.send(in("other", spec("cut off", block)))
		g.until(1500 * ms)
		if s := g.Stats(); s.Active != 1 {
			t.Errorf("%+v, want the completed turn to hold no slot", s)
		}
		(<-g.drain(2 * time.Second)).want(t, context.DeadlineExceeded, 4500*ms)
		if recorded != 2 {
			t.Errorf("%d turns recorded when Drain returned, want 2", recorded)
		}
	})
}

// Drain does not wait for ever, not even for a hook that hangs.
func TestDrainDoesNotWaitForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Hooks = []runtime.Hooks{{TurnEnd: func(context.Context, runtime.TurnInfo, *runtime.Outcome) { time.Sleep(time.Hour) }}}
		g := newRig(t, conf)
		h := g.send(spec("t", block))
		synctest.Wait()
		d := <-g.drain(time.Second)
		if !errors.Is(d.err, context.DeadlineExceeded) || d.at < time.Second || d.at > 10*time.Second {
			t.Errorf("Drain = %v after %v", d.err, d.at)
		}
		<-h.done
	})
}

// A turn that is detached, or whose host may come back, is waited for as any other.
func TestDrainOfTurnsThatNobodyReads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.HostGone = time.Hour
		g := newRig(t, conf)
		a := g.send(spec("a", counting(5)))
		s := in("other", spec("b", counting(8)))
		s.HostGone = runtime.Detach
		b := g.send(s)
		g.until(time.Second)
		a.leave()
		b.leave()
		(<-g.drain(time.Minute)).want(t, nil, 8*time.Second)
		g.wantEnd("a", runtime.Completed, adapters.CauseCompleted, 5*time.Second)
		g.wantEnd("b", runtime.Completed, adapters.CauseCompleted, 8*time.Second)
	})
}

// A turn that was accepted but is not served yet holds the drain, and ends with it.
func TestDrainOfATurnThatIsNotServedYet(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		stream, err := g.Start(t.Context(), spec("t", never(t)))
		if err != nil {
			t.Fatal(err)
		}
		d := g.drain(time.Second)
		g.until(2 * time.Second)
		h := g.serve(newConn(t), stream)
		(<-d).want(t, context.DeadlineExceeded, 2*time.Second)
		if err := h.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		h.wantLines("started", "end cancelled drain")
	})
}
