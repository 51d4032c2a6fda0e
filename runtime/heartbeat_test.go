package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// arrivals tells when the host got each line that begins with prefix.
func (c *conn) arrivals(began time.Time, prefix string) (at []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := 0
	for _, f := range c.flushes {
		for line := range strings.Lines(string(c.data[from:f.size])) {
			if strings.HasPrefix(line, prefix) {
				at = append(at, f.at.Sub(began))
			}
		}
		from = f.size
	}
	return at
}

// wantBeats checks when the host got heartbeats.
func (g *rig) wantBeats(c *conn, want ...time.Duration) {
	g.t.Helper()
	if got := c.arrivals(g.began, "beat"); !slices.Equal(got, want) {
		g.t.Errorf("heartbeats at %v, want %v", got, want)
	}
}

// every is the times from first to last, one each d.
func every(d, first, last time.Duration) (at []time.Duration) {
	for ; first <= last; first += d {
		at = append(at, first)
	}
	return at
}

const ms = time.Millisecond

// beating has a heartbeat of 50 ms and no other limit.
var beating = runtime.Config{TurnTimeout: -1, FirstOutput: -1, Idle: -1, Heartbeat: 50 * ms}

func TestHeartbeatsWhileTheAdapterIsSilent(t *testing.T) {
	t.Parallel()
	steps := func(steps ...any) adapters.Func {
		return func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for _, s := range steps {
				var err error
				switch s := s.(type) {
				case time.Duration:
					time.Sleep(s)
				case string:
					err = w.Text(s)
				case func(adapters.Writer) error:
					err = s(w)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	status := func(w adapters.Writer) error { return w.Status("working") }
	flow := []any{}
	for range 100 {
		flow = append(flow, 49*ms, "x")
	}
	for name, tc := range map[string]struct {
		adapter adapters.Func
		want    []time.Duration
	}{
		"from the start":            {sleep(520 * ms), every(50*ms, 50*ms, 500*ms)},
		"after an output":           {steps(30*ms, "x", 120*ms), []time.Duration{80 * ms, 130 * ms}},
		"after a status":            {steps(30*ms, status, 120*ms), []time.Duration{80 * ms, 130 * ms}},
		"between outputs":           {steps("x", 60*ms, "y", 60*ms, "z", 60*ms), []time.Duration{50 * ms, 110 * ms, 170 * ms}},
		"after a burst":             {steps(10*ms, "a", "b", "c", "d", 75*ms), []time.Duration{60 * ms}},
		"none while output flows":   {steps(flow...), nil},
		"none in a turn of no time": {say("a"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, beating)
				h := g.send(spec("t", tc.adapter))
				if err := h.wait(); err != nil {
					t.Errorf("Serve = %v", err)
				}
				g.wantBeats(h.conn, tc.want...)
				if e := g.end("t"); e.Heartbeats != int64(len(tc.want)) || e.Cause != adapters.CauseCompleted {
					t.Errorf("%d heartbeats counted, want %d; cause %q", e.Heartbeats, len(tc.want), string(e.Cause))
				}
			})
		})
	}
}

// A turn's wire must not be silent because of calls that write nothing on it.
func TestHeartbeatsGoOnWhileNothingIsWritten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		call func(w adapters.Writer) error
		sink runtime.Sink
	}{
		"empty chunks":                     {func(w adapters.Writer) error { return w.Text("") }, lineSink{}},
		"usage reports":                    {func(w adapters.Writer) error { return w.Usage(adapters.Usage{Steps: adapters.Count(1)}) }, lineSink{}},
		"statuses that the protocol drops": {func(w adapters.Writer) error { return w.Status("x") }, mute{}},
		"text that the protocol gathers":   {func(w adapters.Writer) error { return w.Text("x") }, mute{}},
		"parts of characters":              {func(w adapters.Writer) error { _, err := w.Write([]byte("\xf0")); return err }, mute{}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, beating)
				s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					for range 26 {
						time.Sleep(20 * ms)
						if err := tc.call(w); err != nil {
							return err
						}
					}
					return nil
				}))
				s.Sink = tc.sink
				h := g.send(s)
				_ = h.wait()
				g.wantBeats(h.conn, every(50*ms, 50*ms, 500*ms)...)
			})
		})
	}
}

// mute is a protocol that has no lines for what an adapter says.
type mute struct{ lineSink }

func (mute) Text(dst []byte, _ string) []byte   { return dst }
func (mute) Status(dst []byte, _ string) []byte { return dst }

func TestNoHeartbeatsWhenOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", sleep(24*time.Hour)))
		_ = h.wait()
		g.wantBeats(h.conn)
	})
}

func TestHeartbeatByDefault(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		h := g.send(spec("t", sleep(50*time.Second)))
		_ = h.wait()
		g.wantBeats(h.conn, 15*time.Second, 30*time.Second, 45*time.Second)
	})
}

func TestHeartbeatsWhileATurnWaitsForItsSession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, beating)
		g.send(spec("first", sleep(220*ms)))
		h := g.send(spec("second", sleep(70*ms)))
		synctest.Wait()
		h.wantLines("started")
		_ = h.wait()
		g.wantBeats(h.conn, every(50*ms, 50*ms, 250*ms)...)
		if at := h.arrivals(g.began, "started"); len(at) != 1 || at[0] != 0 {
			t.Errorf("started came at %v", at)
		}
	})
}

func TestNoHeartbeatsWhileAReaderIsBehind(t *testing.T) {
	t.Parallel()
	for name, chunks := range map[string][]string{
		"who waits in the write of a line":     {"a"},
		"who waits for lines that are let out": {"a", "b", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, beating)
				h := g.send(spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					time.Sleep(20 * ms)
					_ = say(chunks...)(ctx, turn, w)
					time.Sleep(1130*ms - g.now())
					return nil
				})))
				g.until(10 * ms)
				h.hold(3)
				g.until(time.Second)
				h.release()
				_ = h.wait()
				g.wantBeats(h.conn, 1050*ms, 1100*ms)
			})
		})
	}
}

// The heartbeat itself may be what the reader does not take.
func TestNoSecondHeartbeatWhileOneIsNotTaken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, beating)
		h := g.send(spec("t", sleep(1130*ms)))
		g.until(10 * ms)
		h.hold(2)
		g.until(1010 * ms)
		h.release()
		_ = h.wait()
		g.wantBeats(h.conn, 1010*ms, 1050*ms, 1100*ms) // the clock of heartbeats has gone on
		if e := g.end("t"); e.Heartbeats != 3 {
			t.Errorf("%d heartbeats counted, want 3", e.Heartbeats)
		}
	})
}

func TestNoHeartbeatAfterTheLastLine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := beating
		conf.Replay = 24 * time.Hour
		g := newRig(t, conf)
		h := g.send(spec("t", sleep(70*ms)))
		_ = h.wait()
		g.until(time.Hour)
		h.wantLines("started", "beat", "end completed completed")
		again := g.send(spec("t", never(t)))
		_ = again.wait()
		again.wantLines("started", "beat", "end completed completed")
	})
}

func TestHeartbeatsAreForAllReaders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, beating)
		h := g.send(spec("t", sleep(120*ms)))
		g.until(60 * ms)
		joiner := g.send(spec("t", never(t)))
		_ = h.wait()
		_ = joiner.wait()
		h.wantLines("started", "beat", "beat", "end completed completed")
		joiner.wantLines("started", "beat", "beat", "end completed completed")
	})
}

// Each heartbeat sets the deadline for its write anew, and a host that takes none for that long ends
// the turn.
func TestHeartbeatsFindAStalledHost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := beating
		conf.Heartbeat = 10 * time.Second
		conf.Stream = ndjson.LogConfig{WriteTimeout: 30 * time.Second}
		g := newRig(t, conf)
		h := g.send(spec("t", block))
		for i := range 10 {
			g.until(time.Duration(i)*10*time.Second + time.Second)
			h.mu.Lock()
			if want := g.began.Add(time.Duration(i)*10*time.Second + 30*time.Second); !h.deadline.Equal(want) {
				t.Errorf("after heartbeat %d the write deadline is %v, want %v", i, h.deadline.Sub(g.began), want.Sub(g.began))
			}
			h.mu.Unlock()
		}
		h.hold(0)
		err := h.wait()
		g.wantEnd("t", runtime.Cancelled, adapters.CauseHostStalled, 130*time.Second)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Serve = %v, want the error of the write", err)
		}
	})
}

// Fault B8: silence on the wire. (Its socket side is tested where there are sockets.)
func TestFaultB8SilenceOnTheWire(t *testing.T) {
	t.Parallel()
	const chunks = 10_000
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("slow=%t", slow), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, beating)
				c := newConn(t)
				h := g.sendTo(c, spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					if got := c.seen(); got != "started\n" {
						t.Errorf("before the adapter is called the host has %q", got)
					}
					time.Sleep(480 * ms)
					for i := range chunks {
						if err := w.Text(fmt.Sprint(i, " ")); err != nil {
							return err
						}
					}
					time.Sleep(180 * ms)
					return nil
				})))
				if slow { // 1 KB each 10 ms
					go func() {
						for {
							c.hold(1 << 10)
							select {
							case <-time.After(10 * ms):
							case <-h.done:
								return
							}
						}
					}()
				}
				_ = h.wait()
				var before, between, behind int
				next := 0
				for _, l := range h.lines() {
					switch {
					case strings.HasPrefix(l, "text"):
						if want := fmt.Sprintf("text %q", fmt.Sprint(next, " ")); l != want {
							t.Fatalf("line %q, want %q", l, want)
						}
						next++
					case l == "beat" && next == 0:
						before++
					case l == "beat" && next == chunks:
						behind++
					case l == "beat":
						between++
					}
				}
				if next != chunks || before != 9 || between != 0 {
					t.Errorf("%d chunks, %d heartbeats before and %d between them, want %d, 9 and 0", next, before, between, chunks)
				}
				if !slow && behind != 3 || behind > 3 { // a slow reader may be behind to the end
					t.Errorf("%d heartbeats behind the chunks", behind)
				}
				if h.last() != "end completed completed" {
					t.Errorf("the last line is %q", h.last())
				}
			})
		})
	}
}
