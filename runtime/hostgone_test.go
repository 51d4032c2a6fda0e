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
)

func TestHostGoneCancelsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", sayThenBlock("a")))
		g.until(time.Second)
		h.leave()
		if err := h.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Serve = %v, want ErrGone", err)
		}
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, time.Second)
		h.wantLines("started", `text "a"`) // nobody is there for more
		_ = g.send(spec("t", say("again"))).wait()
	})
}

// A host whose connection takes nothing from the start has its turn cancelled before the adapter is
// called.
func TestHostGoneBeforeTheFirstFlush(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		c := newConn(t)
		reset := errors.New("connection reset")
		c.breakWith(reset)
		h := g.sendTo(c, spec("t", never(t)))
		if err := h.wait(); !errors.Is(err, reset) {
			t.Errorf("Serve = %v, want the error of the write", err)
		}
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 0)
		_ = g.send(spec("next", say("x"))).wait()
		g.wantEnd("next", runtime.Completed, adapters.CauseCompleted, 0)
	})
}

// A host that is known to be gone before Serve: the turn ends all the same, once.
func TestHostGoneBeforeServe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 50 {
			id := fmt.Sprint(i)
			stream, err := g.Start(ctx, spec(id, block))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Serve(ctx, newConn(t)); !errors.Is(err, ndjson.ErrGone) {
				t.Errorf("Serve = %v, want ErrGone", err)
			}
			g.wantEnd(id, runtime.Cancelled, adapters.CauseHostGone, 0)
		}
	})
}

func TestHostGoneDuringAWrite(t *testing.T) {
	t.Parallel()
	for name, chunks := range map[string][]string{
		"in which the adapter waits":   {"a"},
		"of lines that are let out":    {"a", "b", "c"},
		"while the adapter is far off": {"a", strings.Repeat("b", 300<<10), "c"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.Stream = ndjson.LogConfig{WriteTimeout: -1}
				g := newRig(t, conf)
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					time.Sleep(time.Second)
					_ = say(chunks...)(ctx, turn, w)
					<-ctx.Done()
					isOver(t, "Text", w.Text("late"), adapters.CauseHostGone)
					return nil
				})))
				synctest.Wait()
				h.hold(3)
				g.until(5 * time.Second)
				h.leave()
				if err := h.wait(); err == nil {
					t.Error("Serve = nil")
				}
				g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 5*time.Second)
			})
		})
	}
}

// A write that fails ends the turn, whoever made it.
func TestAFailedWriteEndsTheTurn(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	for name, conf := range map[string]runtime.Config{"the adapter's": none, "a heartbeat's": beating} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, conf)
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if conf.Heartbeat > 0 {
						return block(ctx, turn, w)
					}
					time.Sleep(50 * ms)
					return sayThenBlock("a", "b")(ctx, turn, w)
				})))
				synctest.Wait()
				h.breakWith(reset)
				if err := h.wait(); !errors.Is(err, reset) {
					t.Errorf("Serve = %v, want the error of the write", err)
				}
				g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 50*ms)
			})
		})
	}
}

// A turn whose host goes while it waits for its session never runs, and the others keep their order.
func TestHostGoneDuringTheWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		var order []string
		note := func(d time.Duration) adapters.Func {
			return func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
				order = append(order, turn.ID)
				time.Sleep(d)
				return nil
			}
		}
		g.send(spec("1", note(10*time.Second)))
		synctest.Wait()
		second := g.send(spec("2", never(t)))
		synctest.Wait()
		third := g.send(spec("3", note(time.Second)))
		synctest.Wait()
		fourth := g.send(spec("4", note(time.Second)))
		g.until(5 * time.Second)
		second.leave()
		if err := second.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Serve = %v, want ErrGone", err)
		}
		e := g.wantEnd("2", runtime.Cancelled, adapters.CauseHostGone, 5*time.Second)
		if e.Waited != 5*time.Second {
			t.Errorf("waited %v", e.Waited)
		}
		if s := g.Stats(); s.Active != 3 {
			t.Errorf("%+v, want 3 active", s)
		}
		_ = third.wait()
		_ = fourth.wait()
		if got := strings.Join(order, " "); got != "1 3 4" {
			t.Errorf("ran %s, want 1 3 4", got)
		}
		g.wantEnd("4", runtime.Completed, adapters.CauseCompleted, 12*time.Second)
	})
}

// What an adapter stored before the host went stays; the conversation is not extended.
func TestStoredValuesStayWhenTheHostGoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if err := turn.Session.Store("draft", "kept"); err != nil {
				return err
			}
			return sayThenBlock("half an ans")(ctx, turn, w)
		})))
		synctest.Wait()
		h.leave()
		_ = h.wait()
		next := g.send(spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			var v string
			_, err := turn.Session.Load("draft", &v)
			return errors.Join(err, w.Text(fmt.Sprint(v, len(turn.History))))
		})))
		_ = next.wait()
		next.wantLines("started", `text "kept0"`, "end completed completed")
	})
}

// counting writes 0, 1, 2, … one each second, until it is told to end or has written n.
func counting(n int) adapters.Func {
	return func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := range n {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := w.Text(fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	}
}

// counted are the lines of counting.
func counted(n int) []string {
	l := []string{"started"}
	for i := range n {
		l = append(l, fmt.Sprintf("text %q", fmt.Sprint(i)))
	}
	return append(l, "end completed completed")
}

// coming lets hosts come back within 30 seconds.
func coming() runtime.Config {
	conf := none
	conf.HostGone = 30 * time.Second
	return conf
}

func TestHostsMayComeBackInTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, coming())
		first := g.send(spec("t", counting(100)))
		g.until(10500 * ms)
		first.leave()
		// Serve is with the adapter still; nothing more is written to the host.
		g.until(40 * time.Second)
		first.wantLines(counted(10)[:11]...)
		second := g.send(spec("t", never(t)))
		if second.Repeat != runtime.Joined {
			t.Fatalf("the repeat is %v, want Joined", second.Repeat)
		}
		g.until(40500 * ms)
		second.wantLines(counted(40)[:41]...)
		second.leave()
		if err := second.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Serve = %v, want ErrGone", err)
		}
		g.until(70*time.Second + 499*ms) // its time counts from the last one's going
		third := g.send(spec("t", never(t)))
		if err := third.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		third.wantLines(counted(100)...)
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 100*time.Second)
		if err := first.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("the first Serve = %v, want ErrGone", err)
		}
		replay := g.send(spec("t", never(t)))
		_ = replay.wait()
		if replay.Repeat != runtime.Replayed || replay.seen() != third.seen() {
			t.Errorf("the replay (%v) differs from what the last host got", replay.Repeat)
		}
	})
}

func TestHostsMayNotComeBackTooLate(t *testing.T) {
	t.Parallel()
	for _, heartbeat := range []time.Duration{-1, 7 * time.Second, time.Hour} {
		t.Run(heartbeat.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := coming()
				conf.Heartbeat = heartbeat
				g := newRig(t, conf)
				first := g.send(spec("t", counting(1000)))
				g.until(10500 * ms)
				first.leave()
				g.until(20500 * ms)
				second := g.send(spec("t", never(t)))
				g.until(25500 * ms)
				second.leave()
				g.until(56 * time.Second)
				g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 55500*ms)
				again := g.send(spec("t", say("afresh")))
				if again.Repeat != runtime.First {
					t.Errorf("the repeat is %v, want First", again.Repeat)
				}
				_ = again.wait()
				_ = first.wait()
			})
		})
	}
}

// A host may come back while its turn waits for the session.
func TestHostsMayComeBackDuringTheWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, coming())
		g.send(spec("first", sleep(20*time.Second)))
		synctest.Wait()
		h := g.send(spec("t", say("x")))
		g.until(time.Second)
		h.leave()
		g.until(10 * time.Second)
		back := g.send(spec("t", never(t)))
		_ = back.wait()
		back.wantLines("started", `text "x"`, "end completed completed")
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 20*time.Second)

		g.send(spec("second", sleep(time.Minute)))
		synctest.Wait()
		gone := g.send(spec("gone", never(t)))
		synctest.Wait()
		gone.leave()
		g.until(51 * time.Second)
		g.wantEnd("gone", runtime.Cancelled, adapters.CauseHostGone, 50*time.Second)
	})
}

// A host that went before the first line may come back too: its turn runs.
func TestHostsMayComeBackFromAFailedFlush(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, coming())
		c := newConn(t)
		c.breakWith(errors.New("reset"))
		first := g.sendTo(c, spec("t", counting(10)))
		g.until(5 * time.Second)
		back := g.send(spec("t", never(t)))
		_ = back.wait()
		back.wantLines(counted(10)...)
		_ = first.wait()
	})
}

// Where the log has outgrown its bound there is nothing to come back to.
func TestNoComingBackToAnOutgrownLog(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := coming()
		conf.Stream = ndjson.LogConfig{Keep: 1 << 10}
		g := newRig(t, conf)
		h := g.send(spec("t", sayThenBlock(strings.Repeat("x", 2000))))
		g.until(time.Second)
		h.leave()
		_ = h.wait()
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, time.Second)
	})
}

// An adapter that is alone waits before its log outgrows the bound, so that a host that comes back
// finds all of it.
func TestAloneTheAdapterWaitsForTheHost(t *testing.T) {
	t.Parallel()
	const chunks = 100
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprintf("back=%t", back), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := coming()
				conf.Stream = ndjson.LogConfig{Keep: 1 << 10}
				conf.Idle = 3 * time.Second
				g := newRig(t, conf)
				var written atomic.Int64
				h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					if err := w.Text("first"); err != nil {
						return err
					}
					time.Sleep(2 * time.Second)
					for range chunks {
						if err := w.Text(strings.Repeat("x", 100)); err != nil {
							return err
						}
						written.Add(1)
					}
					return nil
				})))
				g.until(time.Second)
				h.leave()
				g.until(20 * time.Second)
				if n := written.Load(); n < 5 || n > 30 {
					t.Errorf("alone the adapter wrote %d chunks of 100 bytes, the bound is 1 KiB", n)
				}
				if !back {
					_ = h.wait()
					g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 31*time.Second)
					return
				}
				second := g.send(spec("t", never(t)))
				if err := second.wait(); err != nil {
					t.Errorf("Serve = %v", err)
				}
				g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 20*time.Second)
				if n := second.count("text"); n != chunks+1 || second.lines()[0] != "started" {
					t.Errorf("the host that came back got %d chunks, and first %q", n, second.lines()[0])
				}
				_ = h.wait()
			})
		})
	}
}

// A line longer than all bounds, written while nobody is there.
func TestOutgrownWhileAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := coming()
		conf.Stream = ndjson.LogConfig{Keep: 1 << 10, Ahead: 1 << 10}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(2 * time.Second)
			return sayThenBlock(strings.Repeat("x", 10_000))(ctx, turn, w)
		})))
		g.until(time.Second)
		h.leave()
		g.until(3 * time.Second)
		if _, err := g.Start(t.Context(), spec("t", never(t))); !errors.Is(err, runtime.ErrOutgrown) {
			t.Errorf("Start = %v, want ErrOutgrown", err)
		}
		_ = h.wait()
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostGone, 31*time.Second)
	})
}

// Limits go on while nobody is there.
func TestLimitsOfATurnThatIsAlone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		conf  func(*runtime.Config)
		cause adapters.Cause
		at    time.Duration
	}{
		"turn timeout": {func(c *runtime.Config) { c.TurnTimeout = 20 * time.Second }, adapters.CauseTurnTimeout, 20 * time.Second},
		"first output": {func(c *runtime.Config) { c.FirstOutput = 20 * time.Second }, adapters.CauseFirstOutput, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := coming()
				tc.conf(&conf)
				g := newRig(t, conf)
				h := g.send(spec("t", block))
				g.until(time.Second)
				h.leave()
				_ = h.wait()
				g.wantEnd("t", runtime.Failed, tc.cause, tc.at)
			})
		})
	}
}

func TestDetach(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.HostGone = runtime.Detach
		conf.Replay = 24 * time.Hour
		g := newRig(t, conf)
		h := g.send(spec("t", counting(7200)))
		g.until(1500 * ms)
		h.leave()
		g.until(time.Hour)
		back := g.send(spec("t", never(t)))
		synctest.Wait()
		if n := back.count("text"); back.Repeat != runtime.Joined || n < 3599 {
			t.Errorf("%v, %d chunks", back.Repeat, n)
		}
		back.leave()
		_ = back.wait()
		if err := h.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Serve = %v, want ErrGone", err)
		}
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 2*time.Hour)
		replay := g.send(spec("t", never(t)))
		_ = replay.wait()
		replay.wantLines(counted(7200)...)
	})
}

// The policy of a turn holds for it, whatever the engine's is: also for how far its adapter may run
// ahead while nobody is there.
func TestHostGoneOfASpec(t *testing.T) {
	t.Parallel()
	long := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		_ = w.Text("first")
		time.Sleep(2 * time.Second)
		for range 100 {
			if err := w.Text(strings.Repeat("x", 100)); err != nil {
				return err
			}
		}
		return nil
	})
	for name, tc := range map[string]struct {
		engine, spec time.Duration
		status       runtime.Status
		cause        adapters.Cause
		at           time.Duration
	}{
		"detached where others may come back":   {30 * time.Second, runtime.Detach, runtime.Completed, adapters.CauseCompleted, 2 * time.Second},
		"may come back where others cannot":     {runtime.CancelAtOnce, 30 * time.Second, runtime.Cancelled, adapters.CauseHostGone, 31 * time.Second},
		"may come back where others detach":     {runtime.Detach, 30 * time.Second, runtime.Cancelled, adapters.CauseHostGone, 31 * time.Second},
		"may come back sooner than others":      {time.Hour, 30 * time.Second, runtime.Cancelled, adapters.CauseHostGone, 31 * time.Second},
		"detached where others are cancelled":   {runtime.CancelAtOnce, runtime.Detach, runtime.Completed, adapters.CauseCompleted, 2 * time.Second},
		"as others, where it says nothing else": {runtime.Detach, 0, runtime.Completed, adapters.CauseCompleted, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = 10 * time.Minute
				conf.HostGone = tc.engine
				conf.Stream = ndjson.LogConfig{Keep: 1 << 10}
				g := newRig(t, conf)
				s := spec("t", long)
				s.HostGone = tc.spec
				h := g.send(s)
				g.until(time.Second)
				h.leave()
				g.until(9 * time.Minute)
				g.wantEnd("t", tc.status, tc.cause, tc.at)
				_ = h.wait()
			})
		})
	}
}

// Hosts that go at the very moment at which the engine looks at the turn's clocks: their time counts
// all the same. Without heartbeats nothing else would make it look again.
func TestHostsThatGoWhileTheClocksAreLookedAt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.HostGone = 30 * time.Second
		conf.Idle = time.Hour
		g := newRig(t, conf)
		const turns = 400
		var hosts []*host
		for i := range turns {
			id := fmt.Sprint(i)
			hosts = append(hosts, g.send(in(id, spec(id, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("a")
				time.Sleep(30 * time.Minute) // at an hour the engine looks, and will look again half an hour later
				return sayThenBlock("b")(ctx, turn, w)
			})))))
		}
		synctest.Wait()
		var wg sync.WaitGroup
		for _, h := range hosts {
			wg.Go(func() {
				time.Sleep(time.Hour - g.now())
				h.leave()
			})
		}
		wg.Wait()
		for _, h := range hosts {
			<-h.done
		}
		late := 0
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, e := range g.ends {
			if e.Cause != adapters.CauseHostGone || e.at != time.Hour+30*time.Second {
				late++
				if late < 5 {
					t.Errorf("turn %s ended %q at %v, want host-gone at 1h0m30s", e.TurnID, string(e.Cause), e.at)
				}
			}
		}
		if late > 0 {
			t.Errorf("%d of %d turns did not end in time", late, turns)
		}
	})
}

// A repeat that comes at the very moment at which the last reader goes either attaches to a turn that
// goes on, or runs the turn afresh; it is not attached to a turn that is then taken away.
func TestARepeatAtTheMomentTheHostGoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		const turns = 400
		var wg sync.WaitGroup
		var mu sync.Mutex
		bad := 0
		for i := range turns {
			id := fmt.Sprint(i)
			adapter := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(10 * time.Second):
					return w.Text("x")
				}
			})
			h := g.send(in(id, spec(id, adapter)))
			wg.Go(func() {
				time.Sleep(time.Second - g.now())
				h.leave()
			})
			wg.Go(func() {
				time.Sleep(time.Second - g.now())
				repeat := g.send(in(id, spec(id, adapter)))
				_ = repeat.wait()
				if repeat.last() != "end completed completed" {
					mu.Lock()
					defer mu.Unlock()
					if bad++; bad < 5 {
						t.Errorf("turn %s, repeat %v, ends with %q", id, repeat.Repeat, repeat.last())
					}
				}
			})
		}
		wg.Wait()
		if bad > 0 {
			t.Errorf("%d of %d repeats did not get an answer", bad, turns)
		}
	})
}
