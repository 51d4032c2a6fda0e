package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

func TestRepeatsOfARunningTurnAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first := g.send(spec("t", counting(10)))
		g.until(4500 * ms)
		var joiners []*host
		for range 5 {
			joiners = append(joiners, g.send(spec("t", never(t))))
		}
		synctest.Wait()
		for _, j := range joiners {
			if j.Repeat != runtime.Joined {
				t.Errorf("the repeat is %v, want Joined", j.Repeat)
			}
			j.wantLines(counted(4)[:5]...)
		}
		if s := g.Stats(); s.Active != 1 || s.Total != 1 {
			t.Errorf("%+v, want one turn", s)
		}
		for _, h := range append(joiners, first) {
			if err := h.wait(); err != nil {
				t.Errorf("Serve = %v", err)
			}
			h.wantLines(counted(10)...)
		}
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 10*time.Second)
	})
}

// A joined turn is flushed to each reader as it comes.
func TestJoinersGetLinesAsTheyCome(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first := g.send(spec("t", counting(3)))
		joiner := g.send(spec("t", never(t)))
		for i := range 2 {
			g.until(time.Duration(i+1) * time.Second)
			first.wantLines(counted(i + 1)[:i+2]...)
			joiner.wantLines(counted(i + 1)[:i+2]...)
		}
	})
}

func TestTheLastReaderDecides(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first := g.send(spec("t", counting(100)))
		a, b := g.send(spec("t", never(t))), g.send(spec("t", never(t)))
		g.until(10500 * ms)
		first.leave()
		g.until(20500 * ms)
		a.leave()
		if err := a.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("a joiner's Serve = %v, want ErrGone", err)
		}
		g.until(30500 * ms)
		if !g.running("t") {
			t.Fatal("the turn ended although a reader was left")
		}
		b.wantLines(counted(30)[:31]...)
		b.leave()
		_ = first.wait()
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 30500*ms)
	})
}

// A joiner that is slow holds the adapter up at the bound, and no other reader before it.
func TestASlowJoiner(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Stream = ndjson.LogConfig{WriteTimeout: -1, Ahead: 1 << 10}
		g := newRig(t, conf)
		var written atomic.Int64
		first := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			for range 100 {
				if err := w.Text(strings.Repeat("x", 100)); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		})))
		slow := g.send(spec("t", never(t)))
		synctest.Wait()
		slow.hold(10)
		g.until(10 * time.Second)
		if n, w := first.count("text"), int(written.Load()); w > 20 || n < 8 || n < w-1 {
			t.Errorf("%d chunks written, %d seen by the reader that keeps up; the bound is 1 KiB", w, n)
		}
		slow.leave()
		slow.release()
		_ = slow.wait()
		_ = first.wait()
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 10*time.Second)
	})
}

// A joiner that takes nothing for the write timeout is gone; the turn goes on for the others.
func TestAStalledJoiner(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first := g.send(spec("t", counting(100)))
		stalled := g.send(spec("t", never(t)))
		synctest.Wait()
		stalled.hold(3)
		if err := stalled.wait(); err == nil {
			t.Error("Serve = nil")
		}
		if at := g.now(); at < 30*time.Second || at > 32*time.Second {
			t.Errorf("the stalled joiner was given up after %v", at)
		}
		_ = first.wait()
		first.wantLines(counted(100)...)
	})
}

func TestCompletedTurnsAreReplayed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first := g.send(spec("t", counting(10)))
		_ = first.wait()
		for _, at := range []time.Duration{10 * time.Second, time.Minute, 5*time.Minute + 10*time.Second - 1} {
			g.until(at)
			var hosts []*host
			for range 3 {
				hosts = append(hosts, g.send(spec("t", never(t))))
			}
			for _, h := range hosts {
				if err := h.wait(); err != nil || h.Repeat != runtime.Replayed {
					t.Errorf("%v, Serve = %v, want Replayed", h.Repeat, err)
				}
				if h.seen() != first.seen() {
					t.Errorf("the replay is\n%s\nwant\n%s", h.seen(), first.seen())
				}
			}
			if s := g.Stats(); s.Replayable != 1 || s.ReplayBytes < int64(len(first.seen())) || s.Total != 1 {
				t.Errorf("%+v", s)
			}
		}
		g.until(5*time.Minute + 10*time.Second)
		if s := g.Stats(); s.Replayable != 0 || s.ReplayBytes != 0 {
			t.Errorf("after the retention: %+v", s)
		}
		again := g.send(spec("t", say("afresh")))
		_ = again.wait()
		if again.Repeat != runtime.First {
			t.Errorf("after the retention the repeat is %v", again.Repeat)
		}
	})
}

// A repeat in the moment of expiry, before anybody has swept.
func TestReplayExpiresWithoutBeingSwept(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Replay = time.Minute
		g := newRig(t, conf)
		_ = g.send(spec("t", say("x"))).wait()
		g.until(time.Minute)
		if h := g.send(spec("t", say("y"))); h.Repeat != runtime.First {
			t.Errorf("the repeat is %v, want First", h.Repeat)
		}
		synctest.Wait()
		if s := g.Stats(); s.Replayable != 1 {
			t.Errorf("%+v, want one", s)
		}
		h := g.send(spec("t", never(t)))
		_ = h.wait()
		h.wantLines("started", `text "y"`, "end completed completed")
	})
}

// A reader of a replay may be slow, longer than the retention.
func TestAReplayOutlivesItsRetention(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Replay = time.Minute
		conf.Stream = ndjson.LogConfig{WriteTimeout: -1}
		g := newRig(t, conf)
		first := g.send(spec("t", say("a", "b", "c")))
		_ = first.wait()
		c := newConn(t)
		c.hold(5)
		h := g.sendTo(c, spec("t", never(t)))
		g.until(time.Hour)
		_ = g.Stats()
		c.release()
		_ = h.wait()
		if h.seen() != first.seen() {
			t.Errorf("the replay is %q", h.seen())
		}
		c2 := newConn(t)
		c2.hold(5)
		h2 := g.sendTo(c2, spec("t", say("d"))) // whose host goes
		h2.leave()
		c2.release()
		_ = h2.wait()
	})
}

func TestReplayIsBoundedInBytes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.ReplayBytes = 100 << 10
		g := newRig(t, conf)
		text := strings.Repeat("x", 9000)
		for i := range 100 {
			id := fmt.Sprint(i)
			_ = g.send(spec(id, say(text))).wait()
			if s := g.Stats(); s.ReplayBytes > 100<<10 || s.Replayable < min(int64(i)+1, 5) || s.Replayable > 11 {
				t.Fatalf("after %d turns: %+v", i+1, s)
			}
		}
		h := g.send(spec("99", never(t)))
		_ = h.wait()
		if h.Repeat != runtime.Replayed {
			t.Errorf("the last turn's repeat is %v", h.Repeat)
		}
		h = g.send(spec("0", say("afresh")))
		_ = h.wait()
		if h.Repeat != runtime.First {
			t.Errorf("the first turn's repeat is %v", h.Repeat)
		}
		// One that is over the whole bound drives out all, and is not kept.
		_ = g.send(spec("large", say(strings.Repeat("x", 200<<10)))).wait()
		if s := g.Stats(); s.Replayable != 0 || s.ReplayBytes != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestNoReplay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Replay = -1
		g := newRig(t, conf)
		_ = g.send(spec("t", say("x"))).wait()
		if s := g.Stats(); s.Replayable != 0 || s.ReplayBytes != 0 {
			t.Errorf("%+v", s)
		}
		h := g.send(spec("t", say("y")))
		_ = h.wait()
		h.wantLines("started", `text "y"`, "end completed completed")
	})
}

// Only completed turns are kept.
func TestTurnsThatDidNotCompleteAreForgotten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		adapter adapters.Func
		end     func(*rig, *host)
	}{
		"failed":    {returning(errors.New("e")), nil},
		"panicked":  {panicking("v"), nil},
		"timed out": {block, func(g *rig, h *host) { g.until(time.Minute) }},
		"stopped":   {block, func(g *rig, h *host) { g.Stop(adapters.Lowkey, key("s"), "t") }},
		"left":      {block, func(g *rig, h *host) { h.leave() }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = time.Minute
				g := newRig(t, conf)
				h := g.send(spec("t", tc.adapter))
				synctest.Wait()
				if tc.end != nil {
					tc.end(g, h)
				}
				_ = h.wait()
				if s := g.Stats(); s.Replayable != 0 || s.ReplayBytes != 0 {
					t.Errorf("%+v", s)
				}
				again := spec("t", say("afresh"))
				again.Fingerprint = 2 // another turn may even take the id
				h = g.send(again)
				_ = h.wait()
				h.wantLines("started", `text "afresh"`, "end completed completed")
			})
		})
	}
}

func TestConflict(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", counting(3)))
		other := spec("t", never(t))
		other.Fingerprint = 2
		if _, err := g.Start(t.Context(), other); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("while it runs: Start = %v, want ErrConflict", err)
		}
		_ = h.wait()
		if _, err := g.Start(t.Context(), other); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("after its end: Start = %v, want ErrConflict", err)
		}
		again := g.send(spec("t", never(t)))
		_ = again.wait()
		if again.seen() != h.seen() {
			t.Error("the conflict changed the first one's replay")
		}
		if s := g.Stats(); s.Total != 1 {
			t.Errorf("%+v", s)
		}
		g.until(10 * time.Minute)
		other.Adapter = say("y")
		again = g.send(other)
		_ = again.wait()
		again.wantLines("started", `text "y"`, "end completed completed")
	})
}

// The same id in another session, protocol, plugin or of another principal is another turn.
func TestTurnsOfOneIDAreToldApart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		changes := []func(*runtime.Spec){
			func(*runtime.Spec) {},
			func(s *runtime.Spec) { s.Session.Handle = "other" },
			func(s *runtime.Spec) { s.Session.Plugin = "other" },
			func(s *runtime.Spec) { s.Session.Principal = "other" },
			func(s *runtime.Spec) { s.Turn.Protocol = adapters.Keiki },
			func(s *runtime.Spec) { s.Session.Handle, s.Turn.ID = "st", "" },
			func(s *runtime.Spec) { s.Session.Handle, s.Turn.ID = "", "st" },
		}
		for i, change := range changes {
			s := spec("t", say(fmt.Sprint(i)))
			change(s)
			h := g.send(s)
			_ = h.wait()
			if h.Repeat != runtime.First {
				t.Errorf("turn %d is a repeat: %v", i, h.Repeat)
			}
		}
		for i, change := range changes {
			s := spec("t", never(t))
			change(s)
			h := g.send(s)
			_ = h.wait()
			h.wantLines("started", fmt.Sprintf("text %q", fmt.Sprint(i)), "end completed completed")
		}
	})
}

// A turn that is already ending is not joined: the repeat queues and runs afresh.
func TestAnEndingTurnIsNotJoined(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*rig, *host){
		"stopped":  func(g *rig, h *host) { g.Stop(adapters.Lowkey, key("s"), "t") },
		"left":     func(g *rig, h *host) { h.leave() },
		"too long": func(g *rig, h *host) { g.until(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = 10 * time.Second
				g := newRig(t, conf)
				var runs atomic.Bool
				first := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					runs.Store(true)
					defer runs.Store(false)
					<-ctx.Done()
					time.Sleep(time.Second) // tidying up
					return nil
				})))
				g.until(5 * time.Second)
				end(g, first)
				synctest.Wait()
				ended := g.now() + time.Second
				other := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					if runs.Load() {
						t.Error("two adapters of one session run")
					}
					return w.Text("afresh")
				}))
				again := g.send(other)
				joiner := g.send(spec("t", never(t)))
				if again.Repeat != runtime.First || joiner.Repeat != runtime.Joined {
					t.Errorf("the repeats are %v and %v, want First and Joined", again.Repeat, joiner.Repeat)
				}
				_ = again.wait()
				_ = joiner.wait()
				again.wantLines("started", `text "afresh"`, "end completed completed")
				joiner.wantLines("started", `text "afresh"`, "end completed completed")
				if now := g.now(); now != ended {
					t.Errorf("the repeat ended at %v, want %v", now, ended)
				}
				_ = first.wait()
				// The first one's end took nothing away from the second one's record.
				replay := g.send(spec("t", never(t)))
				_ = replay.wait()
				replay.wantLines("started", `text "afresh"`, "end completed completed")
				if s := g.Stats(); s.Replayable != 1 || s.Total != 2 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A repeat of a turn whose output has outgrown what is kept is refused while it runs, and runs again
// afterwards.
func TestOutgrown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Stream = ndjson.LogConfig{Keep: 1 << 10}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for range 20 {
				_ = w.Text(strings.Repeat("x", 100))
				time.Sleep(time.Second)
			}
			return nil
		})))
		g.until(500 * ms)
		early := g.send(spec("t", never(t)))
		g.until(15 * time.Second)
		if _, err := g.Start(t.Context(), spec("t", never(t))); !errors.Is(err, runtime.ErrOutgrown) {
			t.Errorf("Start = %v, want ErrOutgrown", err)
		}
		conflict := spec("t", never(t))
		conflict.Fingerprint = 2
		if _, err := g.Start(t.Context(), conflict); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("Start = %v, want ErrConflict", err)
		}
		_ = h.wait()
		_ = early.wait()
		if h.seen() != early.seen() || h.count("text") != 20 {
			t.Error("a reader that came in time did not get everything")
		}
		again := g.send(spec("t", say("afresh")))
		_ = again.wait()
		if again.Repeat != runtime.First {
			t.Errorf("after its end the repeat is %v, want First", again.Repeat)
		}
	})
}

// Between Start and Serve a log may outgrow its bound.
func TestOutgrownBetweenStartAndServe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Stream = ndjson.LogConfig{Keep: 1 << 10}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			_ = w.Text(strings.Repeat("x", 3000))
			time.Sleep(time.Second)
			return nil
		})))
		stream, err := g.Start(t.Context(), spec("t", never(t)))
		if err != nil || stream.Repeat != runtime.Joined {
			t.Fatalf("Start = %v, %v", stream.Repeat, err)
		}
		g.until(1500 * ms)
		c := newConn(t)
		if err := stream.Serve(t.Context(), c); !errors.Is(err, runtime.ErrOutgrown) {
			t.Errorf("Serve = %v, want ErrOutgrown", err)
		}
		if c.seen() != "" {
			t.Errorf("something was written: %q", c.seen())
		}
		_ = h.wait()
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 2*time.Second)
	})
}

func TestRefuseBusy(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.RefuseBusy = true
		g := newRig(t, conf)
		h := g.send(spec("a", counting(5)))
		if _, err := g.Start(t.Context(), spec("b", never(t))); !errors.Is(err, runtime.ErrSessionBusy) {
			t.Errorf("Start = %v, want ErrSessionBusy", err)
		}
		joiner := g.send(spec("a", never(t))) // a repeat is no second turn
		other := g.send(in("other", spec("c", say("x"))))
		_ = other.wait()
		_ = h.wait()
		// The host that has the last line may send the next turn at once.
		next := g.send(spec("b", say("y")))
		_ = next.wait()
		next.wantLines("started", `text "y"`, "end completed completed")
		_ = joiner.wait()
		if s := g.Stats(); s.Total != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A busy session is told before a lack of capacity, and a refusal for lack of capacity keeps no
// session.
func TestRefuseBusyAtCapacity(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.RefuseBusy = true
		conf.MaxTurns = 1
		g := newRig(t, conf)
		h := g.send(spec("a", counting(5)))
		if _, err := g.Start(t.Context(), spec("b", never(t))); !errors.Is(err, runtime.ErrSessionBusy) {
			t.Errorf("Start = %v, want ErrSessionBusy", err)
		}
		if _, err := g.Start(t.Context(), in("other", spec("b", never(t)))); !errors.Is(err, runtime.ErrAtCapacity) {
			t.Errorf("Start = %v, want ErrAtCapacity", err)
		}
		_ = h.wait()
		_ = g.send(in("other", spec("b", say("x")))).wait()
	})
}

func TestMaxTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.MaxTurns = 3
		g := newRig(t, conf)
		a := g.send(spec("a", counting(5)))
		done := g.send(in("done", spec("done", say("x"))))
		_ = done.wait()
		b := g.send(spec("b", counting(5))) // waits, and counts
		c := g.send(in("other", spec("c", counting(5))))
		synctest.Wait()
		if _, err := g.Start(t.Context(), in("third", spec("d", never(t)))); !errors.Is(err, runtime.ErrAtCapacity) {
			t.Errorf("Start = %v, want ErrAtCapacity", err)
		}
		if s := g.Stats(); s.Active != 3 || s.Total != 4 {
			t.Errorf("%+v", s)
		}
		// Repeats pass at capacity: attached, replayed, in conflict.
		joiner := g.send(spec("b", never(t)))
		replay := g.send(in("done", spec("done", never(t))))
		_ = replay.wait()
		replay.wantLines("started", `text "x"`, "end completed completed")
		conflict := spec("a", never(t))
		conflict.Fingerprint = 2
		if _, err := g.Start(t.Context(), conflict); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("Start = %v, want ErrConflict", err)
		}
		_ = a.wait()
		_ = c.wait()
		// The slot is free when the last line is out.
		d := g.send(in("third", spec("d", say("y"))))
		_ = d.wait()
		_ = b.wait()
		_ = joiner.wait()
		joiner.wantLines(counted(5)...)
		g.wantEnd("b", runtime.Completed, adapters.CauseCompleted, 10*time.Second)
	})
}

// Whoever has read the last line may send the next turn: slot and session are free by then.
func TestSlotAndSessionAreFreeWhenTheLastLineIsOut(t *testing.T) {
	t.Parallel()
	for name, adapter := range map[string]adapters.Func{"completed": say("x"), "failed": returning(errors.New("e"))} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.RefuseBusy = true
				conf.MaxTurns = 1
				conf.Hooks = []runtime.Hooks{{TurnEnd: func(context.Context, runtime.TurnInfo, *runtime.Outcome) {
					time.Sleep(time.Minute) // the last line does not wait for hooks
				}}}
				g := newRig(t, conf)
				for i := range 20 {
					id := fmt.Sprint(i)
					g.send(spec(id, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
						time.Sleep(time.Second)
						return adapter(ctx, turn, w)
					})))
					joiner := g.send(spec(id, never(t)))
					_ = joiner.wait() // it has the last line, while the first one's host waits for the hooks
					if want := time.Duration(i+1) * time.Second; g.now() != want {
						t.Fatalf("turn %d ended at %v, want %v", i, g.now(), want)
					}
				}
			})
		})
	}
}

// Fault E5 and G2, for the engine: the same turn many times at the same moment is one turn.
func TestTheSameTurnManyTimesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		const rounds, repeats = 20, 50
		for round := range rounds {
			id := fmt.Sprint(round)
			var calls atomic.Int64
			adapter := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				calls.Add(1)
				for i := range 20 {
					if err := w.Text(fmt.Sprint(i)); err != nil {
						return err
					}
				}
				return nil
			})
			var wg sync.WaitGroup
			seen := make([]string, repeats)
			for i := range repeats {
				wg.Go(func() {
					h := g.send(spec(id, adapter))
					if err := h.wait(); err != nil {
						t.Errorf("Serve = %v", err)
					}
					seen[i] = h.seen()
				})
			}
			wg.Wait()
			if n := calls.Load(); n != 1 {
				t.Fatalf("the adapter was called %d times", n)
			}
			for i := range seen {
				if seen[i] != seen[0] || !strings.HasSuffix(seen[i], "end completed completed\n") {
					t.Fatalf("host %d got\n%s\nand the first\n%s", i, seen[i], seen[0])
				}
			}
		}
	})
}

// What is kept of a turn does not keep its request: keys are copies.
func TestKeysAreCopies(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		b := []byte("s-and-t")
		s := spec(alias(b[6:]), say("x"))
		s.Session = session.Key{Plugin: "muse", Handle: alias(b[:1])}
		_ = g.send(s).wait()
		copy(b, "#######") // the request's memory is used again
		again := spec("t", never(t))
		again.Session = session.Key{Plugin: "muse", Handle: "s"}
		h := g.send(again)
		_ = h.wait()
		if h.Repeat != runtime.Replayed {
			t.Errorf("the repeat is %v, want Replayed", h.Repeat)
		}
	})
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"ab"}, {"a", "b"}, {"b", "a"}, {"a\x00b"}} {
		f := runtime.Fingerprint(parts...)
		if other, ok := seen[f]; ok {
			t.Errorf("%q has the fingerprint of %s", parts, other)
		}
		seen[f] = fmt.Sprintf("%q", parts)
		if f != runtime.Fingerprint(parts...) {
			t.Errorf("%q has two fingerprints", parts)
		}
	}
}
