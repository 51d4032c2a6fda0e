package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

// none switches off what would get in the way of the limit that a test is about.
var none = runtime.Config{TurnTimeout: -1, FirstOutput: -1, Idle: -1, Heartbeat: -1}

// paced writes so many chunks, one each every, the first after one every, and then blocks.
func paced(n int, every time.Duration) adapters.Func {
	return func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for range n {
			select {
			case <-time.After(every):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := w.Text("x"); err != nil {
				return err
			}
		}
		return block(ctx, turn, w)
	}
}

func TestLimitsEndATurnAtTheirTime(t *testing.T) {
	t.Parallel()
	statuses := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for range 4 {
			time.Sleep(2 * time.Second)
			if err := w.Status("thinking"); err != nil {
				return err
			}
		}
		return block(ctx, turn, w)
	})
	for name, tc := range map[string]struct {
		conf    runtime.Config
		adapter adapters.Func
		cause   adapters.Cause
		limit   time.Duration
		at      time.Duration
	}{
		"turn timeout of a silent adapter": {
			runtime.Config{TurnTimeout: 10 * time.Second, FirstOutput: -1, Idle: -1}, block,
			adapters.CauseTurnTimeout, 10 * time.Second, 10 * time.Second,
		},
		"turn timeout of a busy adapter": {
			runtime.Config{TurnTimeout: 10*time.Second + 1}, paced(100, time.Second),
			adapters.CauseTurnTimeout, 10*time.Second + 1, 10*time.Second + 1,
		},
		"first output": {
			runtime.Config{FirstOutput: 5 * time.Second}, block,
			adapters.CauseFirstOutput, 5 * time.Second, 5 * time.Second,
		},
		"heartbeats are no output": {
			runtime.Config{FirstOutput: 5 * time.Second, Heartbeat: 700 * time.Millisecond}, block,
			adapters.CauseFirstOutput, 5 * time.Second, 5 * time.Second,
		},
		"idle after some output": {
			runtime.Config{FirstOutput: 5 * time.Second, Idle: 3 * time.Second}, paced(2, 2*time.Second),
			adapters.CauseIdle, 3 * time.Second, 7 * time.Second,
		},
		"an output just before each limit": {
			runtime.Config{FirstOutput: 5 * time.Second, Idle: 5 * time.Second}, paced(3, 5*time.Second-1),
			adapters.CauseIdle, 5 * time.Second, 3*(5*time.Second-1) + 5*time.Second,
		},
		"heartbeats do not end idleness": {
			runtime.Config{Idle: 3 * time.Second, Heartbeat: 700 * time.Millisecond}, say2Block,
			adapters.CauseIdle, 3 * time.Second, 3 * time.Second,
		},
		"a heartbeat longer than the limit": {
			runtime.Config{Idle: 3 * time.Second, Heartbeat: time.Hour}, paced(4, time.Second),
			adapters.CauseIdle, 3 * time.Second, 7 * time.Second,
		},
		"a status is an output": {
			runtime.Config{FirstOutput: 2500 * time.Millisecond, Idle: 2500 * time.Millisecond}, statuses,
			adapters.CauseIdle, 2500 * time.Millisecond, 8*time.Second + 2500*time.Millisecond,
		},
		"what writes nothing is no first output": {
			runtime.Config{FirstOutput: 5 * time.Second}, nothings,
			adapters.CauseFirstOutput, 5 * time.Second, 5 * time.Second,
		},
		"what writes nothing does not end idleness": {
			runtime.Config{Idle: 5 * time.Second}, func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("x")
				return nothings(ctx, turn, w)
			},
			adapters.CauseIdle, 5 * time.Second, 5 * time.Second,
		},
		"idle does not count before the first output": {
			runtime.Config{FirstOutput: 5 * time.Second, Idle: time.Second}, block,
			adapters.CauseFirstOutput, 5 * time.Second, 5 * time.Second,
		},
		"first output by default":  {runtime.Config{}, block, adapters.CauseFirstOutput, 5 * time.Minute, 5 * time.Minute},
		"idle by default":          {runtime.Config{}, say2Block, adapters.CauseIdle, 3 * time.Minute, 3 * time.Minute},
		"turn timeout by default":  {runtime.Config{}, paced(100, 59*time.Second), adapters.CauseTurnTimeout, 10 * time.Minute, 10 * time.Minute},
		"no limit but the timeout": {runtime.Config{FirstOutput: -1, Idle: -1, Heartbeat: -1}, block, adapters.CauseTurnTimeout, 10 * time.Minute, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, tc.conf)
				h := g.send(spec("t", tc.adapter))
				if err := h.wait(); err != nil {
					t.Errorf("Serve = %v", err)
				}
				e := g.wantEnd("t", runtime.Failed, tc.cause, tc.at)
				if e.Limit != tc.limit || e.Total != tc.at || e.Abandoned {
					t.Errorf("limit %v, total %v, abandoned %t, want %v, %v, false", e.Limit, e.Total, e.Abandoned, tc.limit, tc.at)
				}
				if want := "end failed " + string(tc.cause); h.last() != want {
					t.Errorf("the last line is %q, want %q", h.last(), want)
				}
			})
		})
	}
}

var say2Block = sayThenBlock("a")

// nothings calls the Writer for ever without writing anything.
func nothings(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
	for {
		select {
		case <-time.After(time.Second - 1):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := errors.Join(w.Text(""), w.Usage(adapters.Usage{Steps: adapters.Count(1)})); err != nil {
			return err
		}
	}
}

func TestFirstOutputIsWhenSomethingWasWritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		_ = g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			_ = w.Text("") // as models begin
			time.Sleep(time.Second)
			return w.Text("x")
		}))).wait()
		if e := g.end("t"); e.FirstOutput != 2*time.Second || e.Chunks != 1 || e.Bytes != 1 {
			t.Errorf("first output after %v, %d chunks, %d bytes", e.FirstOutput, e.Chunks, e.Bytes)
		}
	})
}

func TestNegativeMeansNoLimit(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for name, adapter := range map[string]adapters.Func{
		"before the first output": func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(day)
			return w.Text("late")
		},
		"between two outputs": func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("early")
			time.Sleep(day)
			return w.Text("late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, none)
				deadline := make(chan bool, 1)
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					_, has := ctx.Deadline()
					deadline <- has || !turn.Deadline.IsZero()
					return adapter(ctx, turn, w)
				})))
				if err := h.wait(); err != nil {
					t.Errorf("Serve = %v", err)
				}
				if <-deadline {
					t.Error("the turn has a deadline")
				}
				g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, day)
				if h.count("beat") != 0 {
					t.Error("heartbeats although they are off")
				}
			})
		})
	}
}

func TestNegativeSessionWaitMeansNoLimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.SessionWait = -1
		g := newRig(t, conf)
		g.send(spec("first", sleep(24*time.Hour)))
		h := g.send(spec("second", say("x")))
		_ = h.wait()
		g.wantEnd("second", runtime.Completed, adapters.CauseCompleted, 24*time.Hour)
	})
}

// A Spec's own deadline takes the place of TurnTimeout, be it earlier, later, or the only one.
func TestSpecDeadline(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{time.Second, time.Hour, -1} {
		t.Run(timeout.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = timeout
				g := newRig(t, conf)
				deadlines := make(chan time.Time, 2)
				s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					d, _ := ctx.Deadline()
					deadlines <- d
					deadlines <- turn.Deadline
					return block(ctx, turn, w)
				}))
				s.Deadline = g.began.Add(7 * time.Second)
				_ = g.send(s).wait()
				e := g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, 7*time.Second)
				if e.Limit != 7*time.Second {
					t.Errorf("Limit = %v, want 7s", e.Limit)
				}
				for range 2 {
					if d := <-deadlines; !d.Equal(s.Deadline) {
						t.Errorf("the adapter's deadline is %v, want %v", d, s.Deadline)
					}
				}
			})
		})
	}
}

// A deadline that has passed before the turn starts ends it at once, whatever the adapter does.
func TestSpecDeadlineInThePast(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", block)
		s.Deadline = g.began.Add(-time.Hour)
		_ = g.send(s).wait()
		g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, 0)
	})
}

// What an adapter learns from its context.
func TestContextTellsWhyTheTurnEnds(t *testing.T) {
	t.Parallel()
	second := func(conf runtime.Config) runtime.Config {
		conf.Heartbeat = -1
		return conf
	}
	for name, tc := range map[string]struct {
		conf    runtime.Config
		adapter adapters.Func // before it waits
		end     func(g *rig, h *host)
		cause   adapters.Cause
		err     error
	}{
		"turn timeout": {second(runtime.Config{TurnTimeout: time.Second}), nil, nil, adapters.CauseTurnTimeout, context.DeadlineExceeded},
		"first output": {second(runtime.Config{FirstOutput: time.Second}), nil, nil, adapters.CauseFirstOutput, context.DeadlineExceeded},
		"idle":         {second(runtime.Config{Idle: time.Second}), say("x"), nil, adapters.CauseIdle, context.DeadlineExceeded},
		"host gone": {none, nil, func(g *rig, h *host) {
			h.leave()
		}, adapters.CauseHostGone, context.Canceled},
		"stopped": {none, nil, func(g *rig, h *host) {
			if !g.Stop(adapters.Lowkey, key("s"), "t") {
				g.t.Error("Stop found no turn")
			}
		}, adapters.CauseStopped, context.Canceled},
		"drain": {none, nil, func(g *rig, h *host) {
			ctx, cancel := context.WithCancel(g.t.Context())
			cancel()
			if err := g.Drain(ctx); !errors.Is(err, context.Canceled) {
				g.t.Errorf("Drain = %v, want why its context ended", err)
			}
		}, adapters.CauseDrain, context.Canceled},
		"host stalled": {func() runtime.Config {
			conf := none
			conf.Stream = ndjson.LogConfig{WriteTimeout: time.Second}
			return conf
		}(), func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return errors.Join(w.Text("x"), w.Text("y"))
		}, nil, adapters.CauseHostStalled, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, tc.conf)
				called, checked := make(chan bool), make(chan bool)
				s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					defer close(checked)
					child, cancel := context.WithCancel(context.WithValue(ctx, hookKey{}, "v"))
					defer cancel()
					grandchild, cancel2 := context.WithTimeout(child, 100*time.Hour)
					defer cancel2()
					if ctx.Err() != nil || context.Cause(ctx) != nil || adapters.CauseOf(ctx) != "" {
						t.Errorf("before the end: %v, %v", ctx.Err(), context.Cause(ctx))
					}
					d, ok := ctx.Deadline()
					if want := time.Now().Add(tc.conf.TurnTimeout); tc.conf.TurnTimeout > 0 && (!ok || !d.Equal(want)) {
						t.Errorf("Deadline() = %v, %v, want %v", d, ok, want)
					}
					if d2, ok2 := grandchild.Deadline(); ok && (!ok2 || !d2.Equal(d)) {
						t.Errorf("a derived context's Deadline() = %v, %v, want the turn's", d2, ok2)
					}
					if tc.adapter != nil {
						_ = tc.adapter(ctx, turn, w)
					}
					close(called)

					<-grandchild.Done()
					<-ctx.Done()
					if err := ctx.Err(); !errors.Is(err, tc.err) {
						t.Errorf("Err() = %v, want %v", err, tc.err)
					}
					other := context.Canceled
					if errors.Is(tc.err, context.Canceled) {
						other = context.DeadlineExceeded
					}
					for name, ctx := range map[string]context.Context{"the context": ctx, "a child": child, "a grandchild": grandchild} {
						if got := adapters.CauseOf(ctx); got != tc.cause {
							t.Errorf("CauseOf(%s) = %q, want %q", name, string(got), string(tc.cause))
						}
						cause := context.Cause(ctx)
						if !errors.Is(cause, tc.cause) || !errors.Is(cause, tc.err) || errors.Is(cause, other) {
							t.Errorf("the cause of %s is %v: it must be %v, and %v, and not %v", name, cause, tc.cause, tc.err, other)
						}
						if ctx.Err() == nil {
							t.Errorf("%s has no error", name)
						}
					}
					isOver(t, "Text", w.Text("late"), tc.cause)
					return ctx.Err()
				}))
				c := newConn(t)
				h := g.sendTo(c, s)
				if name == "host stalled" {
					c.hold(len("started\n"))
				}
				if tc.end != nil {
					<-called
					tc.end(g, h)
				}
				<-checked
				<-h.done
				if e := g.end("t"); e.Cause != tc.cause {
					t.Errorf("the turn's cause is %q, want %q", string(e.Cause), string(tc.cause))
				}
			})
		})
	}
}

type hookKey struct{}

// The turn's context keeps the values of the one it was started with, not its cancellation.
func TestContextKeepsValuesAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), hookKey{}, "trace"))
		stream, err := g.Start(ctx, spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			if ctx.Err() != nil {
				t.Errorf("the turn is over: %v", context.Cause(ctx))
			}
			return w.Text(fmt.Sprint(ctx.Value(hookKey{})))
		})))
		if err != nil {
			t.Fatal(err)
		}
		h := g.serve(newConn(t), stream)
		cancel()
		if err := h.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		h.wantLines("started", `text "trace"`, "end completed completed")
		e := g.end("t")
		if e.ctx.Value(hookKey{}) != "trace" || e.ctx.Err() != nil {
			t.Errorf("TurnEnd's context has the value %v and the error %v", e.ctx.Value(hookKey{}), e.ctx.Err())
		}
	})
}

func TestClocksStandWhileATurnWaitsForItsSession(t *testing.T) {
	t.Parallel()
	for name, conf := range map[string]runtime.Config{
		"with heartbeats":      {TurnTimeout: -1, FirstOutput: 5 * time.Second, Idle: 3 * time.Second},
		"with rare heartbeats": {TurnTimeout: -1, FirstOutput: 5 * time.Second, Idle: 3 * time.Second, Heartbeat: time.Hour},
		"without heartbeats":   {TurnTimeout: -1, FirstOutput: 5 * time.Second, Idle: 3 * time.Second, Heartbeat: -1},
		"and a deadline":       {TurnTimeout: time.Hour, FirstOutput: 5 * time.Second, Idle: 3 * time.Second, Heartbeat: -1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, conf)
				g.send(spec("first", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					for range 20 {
						time.Sleep(time.Second)
						_ = w.Text("x")
					}
					return nil
				})))
				silent := g.send(spec("silent", block))
				g.send(spec("third", say2Block))
				_ = silent.wait()
				e := g.wantEnd("silent", runtime.Failed, adapters.CauseFirstOutput, 25*time.Second)
				if e.Waited != 20*time.Second || e.Limit != 5*time.Second {
					t.Errorf("waited %v under a limit of %v", e.Waited, e.Limit)
				}
				g.until(28 * time.Second)
				g.wantEnd("third", runtime.Failed, adapters.CauseIdle, 28*time.Second)
			})
		})
	}
}

// A mediated protocol answers tool requests and questions after a while.
type mediatedSink struct {
	lineSink
	answer func(ctx context.Context) (adapters.Observation, error)
}

func (s mediatedSink) Tool(ctx context.Context, _ adapters.ToolRequest) (adapters.Observation, error) {
	return s.answer(ctx)
}

func (s mediatedSink) Ask(ctx context.Context, _ adapters.Question) (adapters.Observation, error) {
	return s.answer(ctx)
}

func after(d time.Duration) func(ctx context.Context) (adapters.Observation, error) {
	return func(ctx context.Context) (adapters.Observation, error) {
		select {
		case <-time.After(d):
			return adapters.Observation{Admitted: true, Receipt: "r"}, nil
		case <-ctx.Done():
			return adapters.Observation{}, context.Cause(ctx)
		}
	}
}

func TestClocksStandWhileAnObservationIsAwaited(t *testing.T) {
	t.Parallel()
	ask := func(ctx context.Context, w adapters.Writer) {
		if o, err := w.Ask(ctx, adapters.Question{}); err != nil || o.Receipt != "r" {
			panic(fmt.Sprint(o, err))
		}
	}
	use := func(ctx context.Context, w adapters.Writer) {
		if o, err := w.Tool(ctx, adapters.ToolRequest{}); err != nil || o.Receipt != "r" {
			panic(fmt.Sprint(o, err))
		}
	}
	for name, tc := range map[string]struct {
		adapter adapters.Func
		cause   adapters.Cause
		at      time.Duration
	}{
		"a tool, then silence": {func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("x")
			use(ctx, w)
			return block(ctx, turn, w)
		}, adapters.CauseIdle, 63 * time.Second},
		"two questions, then silence": {func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("x")
			ask(ctx, w)
			time.Sleep(2 * time.Second)
			ask(ctx, w)
			return block(ctx, turn, w)
		}, adapters.CauseIdle, 125 * time.Second},
		"two at a time": {func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("x")
			done := make(chan bool)
			go func() {
				time.Sleep(50 * time.Second)
				use(ctx, w)
				close(done)
			}()
			use(ctx, w)
			time.Sleep(49 * time.Second) // idle only if the other one did not count
			<-done
			return block(ctx, turn, w)
		}, adapters.CauseIdle, 113 * time.Second},
		"a tool as the first output": {func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(4 * time.Second)
			use(ctx, w)
			return block(ctx, turn, w)
		}, adapters.CauseIdle, 67 * time.Second},
		"the deadline does not stand": {func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			for range 10 {
				if _, err := w.Tool(ctx, adapters.ToolRequest{}); err != nil {
					return err
				}
			}
			return nil
		}, adapters.CauseTurnTimeout, 200 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, runtime.Config{TurnTimeout: 200 * time.Second, FirstOutput: 5 * time.Second, Idle: 3 * time.Second})
				s := spec("t", tc.adapter)
				s.Sink = mediatedSink{answer: after(time.Minute)}
				_ = g.send(s).wait()
				g.wantEnd("t", runtime.Failed, tc.cause, tc.at)
			})
		})
	}
}

func TestClocksStandWhileTheReaderIsBehind(t *testing.T) {
	t.Parallel()
	for name, adapter := range map[string]adapters.Func{
		"who waits in the write of a line":     sayThenBlock("a"),
		"who waits for lines that are let out": sayThenBlock("a", "b", "c"),
		"with more than the adapter may be ahead": func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			for range 1000 {
				if err := w.Text("some more of the answer"); err != nil {
					return err
				}
			}
			return block(ctx, turn, w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, runtime.Config{
					TurnTimeout: time.Hour, FirstOutput: 5 * time.Second, Idle: 3 * time.Second,
					Stream: ndjson.LogConfig{WriteTimeout: -1, Ahead: 4 << 10},
				})
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					time.Sleep(2 * time.Second)
					return adapter(ctx, turn, w)
				})))
				g.until(time.Second)
				h.hold(3)
				g.until(time.Minute)
				if !g.running("t") {
					t.Fatalf("the turn ended at %v", g.end("t").at)
				}
				h.release()
				_ = h.wait()
				g.wantEnd("t", runtime.Failed, adapters.CauseIdle, time.Minute+3*time.Second)
			})
		})
	}
}

// The limit for the whole turn goes on while a reader is behind.
func TestTurnTimeoutDoesNotStandForASlowReader(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		room string // what the reader takes before it falls behind
		at   time.Duration
		want []string
	}{
		"who waits for lines that are let out": {
			"text \"a\"\n", 20 * time.Second, []string{"started", `text "a"`, `text "b"`, "end failed turn-timeout"},
		},
		// The adapter is in the write, so it cannot know of its end.
		"who waits in the write of a line": {
			"text", 22 * time.Second, []string{"started", `text "a"`, "end failed turn-timeout"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, runtime.Config{
					TurnTimeout: 20 * time.Second, Idle: 3 * time.Second,
					Stream: ndjson.LogConfig{WriteTimeout: -1},
				})
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					time.Sleep(time.Second)
					return sayThenBlock("a", "b")(ctx, turn, w)
				})))
				g.until(time.Millisecond)
				h.hold(len(tc.room))
				g.until(30 * time.Second)
				g.wantEnd("t", runtime.Failed, adapters.CauseTurnTimeout, tc.at)
				h.release()
				_ = h.wait()
				h.wantLines(tc.want...)
			})
		})
	}
}

func TestSessionWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.SessionWait = 4 * time.Second
		g := newRig(t, conf)
		g.send(spec("first", sleep(10*time.Second)))
		second := g.send(spec("second", never(t)))
		other := g.send(in("other", spec("other", say("x"))))
		g.until(8 * time.Second)
		third := g.send(spec("third", say("x")))
		_ = second.wait()
		_ = third.wait()
		_ = other.wait()
		e := g.wantEnd("second", runtime.Failed, adapters.CauseSessionBusy, 4*time.Second)
		if e.Limit != 4*time.Second || e.Waited != 4*time.Second || e.Continuity != "" {
			t.Errorf("limit %v, waited %v, continuity %q", e.Limit, e.Waited, e.Continuity)
		}
		second.wantLines("started", "end failed session-busy")
		g.wantEnd("third", runtime.Completed, adapters.CauseCompleted, 10*time.Second)
		g.wantEnd("other", runtime.Completed, adapters.CauseCompleted, 0)
		g.wantEnd("first", runtime.Completed, adapters.CauseCompleted, 10*time.Second)
	})
}

// The limit for the whole turn covers the wait.
func TestTurnTimeoutCoversTheWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = 10 * time.Second
		g := newRig(t, conf)
		g.send(spec("first", sleep(6*time.Second)))
		second := g.send(spec("second", block))
		_ = second.wait()
		e := g.wantEnd("second", runtime.Failed, adapters.CauseTurnTimeout, 10*time.Second)
		if e.Waited != 6*time.Second || e.Continuity == "" {
			t.Errorf("waited %v, continuity %q", e.Waited, e.Continuity)
		}
	})
}

// A turn whose time passes while it waits never runs.
func TestTurnTimeoutDuringTheWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.TurnTimeout = 10 * time.Second
		g := newRig(t, conf)
		h := g.send(spec("first", sleep(9*time.Second)))
		g.until(5 * time.Second)
		g.send(spec("second", sleep(8*time.Second)))
		s := spec("third", never(t))
		s.Deadline = g.began.Add(12 * time.Second)
		third := g.send(s)
		_ = third.wait()
		e := g.wantEnd("third", runtime.Failed, adapters.CauseTurnTimeout, 12*time.Second)
		if e.Waited != 7*time.Second || e.Limit != 7*time.Second || e.Continuity != "" {
			t.Errorf("waited %v, limit %v, continuity %q", e.Waited, e.Limit, e.Continuity)
		}
		_ = h.wait()
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := runtime.New(runtime.Config{Grace: -1, MaxTurns: -1, HostGone: -2})
	for _, want := range []string{"Grace", "MaxTurns", "HostGone"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error that names %s", err, want)
		}
	}
	e, err := runtime.New(runtime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := e.Config()
	for name, tc := range map[string]struct{ got, want any }{
		"TurnTimeout": {c.TurnTimeout, 10 * time.Minute},
		"FirstOutput": {c.FirstOutput, 5 * time.Minute},
		"Idle":        {c.Idle, 3 * time.Minute},
		"Heartbeat":   {c.Heartbeat, 15 * time.Second},
		"Grace":       {c.Grace, 2 * time.Second},
		"Replay":      {c.Replay, 5 * time.Minute},
		"ReplayBytes": {c.ReplayBytes, int64(64 << 20)},
		"HostGone":    {c.HostGone, runtime.CancelAtOnce},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %v by default, want %v", name, tc.got, tc.want)
		}
	}
	if c.Sessions == nil || c.Logger == nil {
		t.Error("no session cache or no logger by default")
	}
	if s := (session.Stats{}); c.Sessions.Stats() != s {
		t.Errorf("a new engine's sessions: %+v", c.Sessions.Stats())
	}
}
