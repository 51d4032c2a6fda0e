package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A causes adapter runs and says in which way its context ended.
func causes(run func(ctx context.Context, turn *adapters.Turn, w adapters.Writer)) (adapters.Adapter, <-chan adapters.Cause) {
	told := make(chan adapters.Cause, 1)
	return adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		run(ctx, turn, w)
		<-ctx.Done()
		told <- adapters.CauseOf(ctx)
		return errors.New("the connection was cancelled, or so the provider says")
	}), told
}

func TestLimits(t *testing.T) {
	t.Parallel()
	const short = 150 * time.Millisecond
	for name, tt := range map[string]struct {
		conf  plugin.Config
		run   func(ctx context.Context, turn *adapters.Turn, w adapters.Writer)
		cause adapters.Cause
		text  string
		says  []string
	}{
		"first output": {
			conf:  plugin.Config{FirstOutput: short, Idle: time.Hour},
			run:   func(context.Context, *adapters.Turn, adapters.Writer) {},
			cause: adapters.CauseFirstOutput,
			says:  []string{"first output", short.String()},
		},
		"an empty chunk is no output": {
			conf:  plugin.Config{FirstOutput: short, Idle: time.Hour},
			run:   func(_ context.Context, _ *adapters.Turn, w adapters.Writer) { _ = w.Text("") },
			cause: adapters.CauseFirstOutput,
			says:  []string{"first output", short.String()},
		},
		"idle after text": {
			conf:  plugin.Config{Idle: short, FirstOutput: time.Hour},
			run:   func(_ context.Context, _ *adapters.Turn, w adapters.Writer) { _ = w.Text("x") },
			cause: adapters.CauseIdle,
			text:  "x",
			says:  []string{"idle", short.String()},
		},
		"idle after a status": {
			conf:  plugin.Config{Idle: short, FirstOutput: time.Hour},
			run:   func(_ context.Context, _ *adapters.Turn, w adapters.Writer) { _ = w.Status("thinking") },
			cause: adapters.CauseIdle,
			says:  []string{"idle", short.String()},
		},
		"the whole turn": {
			conf: plugin.Config{TurnTimeout: short, Idle: time.Hour, FirstOutput: time.Hour},
			run: func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) {
				_ = w.Text("x")
				if at, ok := ctx.Deadline(); !ok || !at.Equal(turn.Deadline) {
					t.Errorf("the context's deadline is %v, %v, the turn's %v", at, ok, turn.Deadline)
				}
			},
			cause: adapters.CauseTurnTimeout,
			text:  "x",
			says:  []string{"turn timeout", short.String()},
		},
		"the whole turn, while it writes": {
			conf: plugin.Config{TurnTimeout: short, Idle: time.Hour},
			run: func(_ context.Context, _ *adapters.Turn, w adapters.Writer) {
				var err error
				for err == nil {
					err = w.Status("busy")
				}
				if !errors.Is(err, adapters.ErrTurnOver) || !errors.Is(err, adapters.CauseTurnTimeout) {
					t.Errorf("a write after the end: %v", err)
				}
			},
			cause: adapters.CauseTurnTimeout,
			says:  []string{"turn timeout", short.String()},
		},
	} {
		for version := range versions {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				var e ends
				var log logs
				conf := tt.conf
				conf.Heartbeat = 20 * time.Millisecond // which must not count
				conf.Hooks, conf.Logger = e.hooks(), log.logger()
				adapter, told := causes(tt.run)
				conf.Adapter = adapter
				p := newPlugin(t, conf)
				h := mount(t, p, bothVersions).speak(t, version)
				began := time.Now()
				r := h.post(t, request{})
				why := r.failed(t)
				for _, s := range tt.says {
					if !strings.Contains(why, s) {
						t.Errorf("the host is told %q, want it to name %q", why, s)
					}
				}
				if took := time.Since(began); took < short-20*time.Millisecond || took > short+patience/2 {
					t.Errorf("the limit of %v ended the turn after %v", short, took)
				}
				if r.text() != tt.text {
					t.Errorf("the text is %q", r.text())
				}
				if cause := receive(t, "the adapter's end", told); cause != tt.cause {
					t.Errorf("the adapter is told %q, want %q", cause, tt.cause)
				}
				end := e.wait(t, "t-1")
				if end.Cause != tt.cause || end.Status != "failed" || end.Limit != short {
					t.Errorf("the hook is told %s, %s, %v", end.Cause, end.Status, end.Limit)
				}
				eventually(t, "the log line", func() bool { return len(log.turnLines(t, "t-1")) > 0 })
				if l := log.turnLines(t, "t-1")[0]; l["cause"] != string(tt.cause) || l["status"] != "failed" {
					t.Errorf("the log has %v", l)
				}
				quiet(t, p)
			})
		}
	}
}

func TestSignsOfLifeResetTheIdleClock(t *testing.T) {
	t.Parallel()
	const idle = 400 * time.Millisecond
	for name, sign := range map[string]func(adapters.Writer, int) error{
		"text":   func(w adapters.Writer, i int) error { return w.Text("x") },
		"status": func(w adapters.Writer, i int) error { return w.Status(fmt.Sprint(i)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, h := start(t, plugin.Config{Idle: idle, FirstOutput: idle, Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for i := range 12 {
					if err := sign(w, i); err != nil {
						return err
					}
					time.Sleep(idle / 4) // the adapter's pace
				}
				return nil
			})})
			h.post(t, request{}).completed(t)
		})
	}
}

func TestTheClocksStandWhileATurnWaitsForItsSession(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	release := newGate(t)
	var e ends
	_, h := start(t, plugin.Config{FirstOutput: limit, Idle: limit, Hooks: e.hooks(), Heartbeat: 50 * time.Millisecond,
		Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if turn.ID == "first" {
				for {
					if err := w.Text("x"); err != nil {
						return err
					}
					select {
					case <-release.C:
						return nil
					case <-time.After(limit / 4):
					}
				}
			}
			time.Sleep(limit / 3) // within the limit, if that counts from the call
			return w.Text("my turn")
		})})
	first := h.post(t, request{turn: "first"}).started(t)
	second := h.post(t, request{turn: "second"}).started(t)
	time.Sleep(3 * limit) // the wait
	if n := len(e.of("second")); n != 0 {
		t.Fatal("the turn that waits has ended")
	}
	release.open()
	first.completed(t)
	if text := second.completed(t); text != "my turn" || second.count(wire.StatusWorking) == 0 {
		t.Errorf("the stream of the one that waited is %q, want heartbeats and its text", second.raw)
	}
	if end := e.wait(t, "second"); end.Waited < 2*limit {
		t.Errorf("the hook is told that the turn waited %v", end.Waited)
	}
}

func TestTheClocksStandWhileAReaderIsBehind(t *testing.T) {
	t.Parallel()
	const idle = 500 * time.Millisecond
	p := newPlugin(t, plugin.Config{Idle: idle, Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for range 30 {
			if err := w.Text(strings.Repeat("x", 100_000)); err != nil {
				return err
			}
		}
		return nil
	})})
	r := mountSmall(t, p).post(t, request{}).started(t)
	time.Sleep(3 * idle) // the reader's pause
	if text := r.completed(t); len(text) != 3_000_000 {
		t.Errorf("the text has %d bytes", len(text))
	}
}

func TestTheWholeTurnCountsTheWaitForItsSession(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	var calls called
	began := make(chan struct{})
	_, h := start(t, plugin.Config{TurnTimeout: timeout, Adapter: calls.by(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		close(began)
		<-ctx.Done()
		time.Sleep(timeout) // past the other's end
		return nil
	}))})
	h.post(t, request{turn: "first"}).started(t)
	receive(t, "the adapter", began)
	why := h.post(t, request{turn: "second"}).failed(t)
	if !strings.Contains(why, "waited") || !strings.Contains(why, "turn timeout") {
		t.Errorf("the host is told %q", why)
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls: a turn that ended while it waited must not run", n)
	}
}

// An adapter that ignores its end.
func TestAnAdapterThatIgnoresItsEndIsAbandoned(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var e ends
			var log logs
			hold, came := newGate(t), make(chan error, 1)
			p := newPlugin(t, plugin.Config{Idle: 100 * time.Millisecond, Hooks: e.hooks(), Logger: log.logger(), MaxTurns: 1, Adapter: adapters.Func(
				func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if turn.ID != "stuck" {
						return w.Text("free")
					}
					if err := w.Text("before"); err != nil {
						return err
					}
					<-hold.C
					err := w.Text("after")
					if stored := turn.Session.Store("k", 1); !errors.Is(stored, adapters.ErrTurnOver) {
						t.Errorf("Store after the end = %v", stored)
					}
					came <- err
					return nil
				})})
			h := mount(t, p, bothVersions).speak(t, version)
			began := time.Now()
			r := h.post(t, request{turn: "stuck"})
			for r.grammar.Ended() == false {
				if _, err := r.next(); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took < grace || took > grace+2*time.Second {
				t.Errorf("the last line came after %v, want the idle limit and a grace of %v", took, grace)
			}
			if r.text() != "before" || !strings.Contains(r.last().Content, "idle") {
				t.Errorf("the stream is %q", r.raw)
			}
			if s := p.Stats().Turns; s.Abandoned != 1 || s.Active != 0 {
				t.Errorf("%+v, want one abandoned", s)
			}
			// Its session and its place are free at once.
			other := mountedAgain(t, h, version)
			if text := other.post(t, request{turn: "next"}).completed(t); text != "free" {
				t.Errorf("the next turn of the session: %q", text)
			}
			if end := e.wait(t, "stuck"); !end.Abandoned || end.Cause != adapters.CauseIdle || len(e.of("stuck")) != 1 {
				t.Errorf("the hook is told %+v", end)
			}
			// The response ends too, although its handler is stuck.
			if err := r.read(); err != nil && version == "HTTP/1.1" {
				t.Errorf("the response ends with %v", err)
			}
			hold.open()
			if err := receive(t, "the adapter's return", came); !errors.Is(err, adapters.ErrTurnOver) {
				t.Errorf("a write after the end: %v", err)
			}
			quiet(t, p)
			if strings.Contains(string(r.raw), "after") {
				t.Errorf("later output came through: %q", r.raw)
			}
			if l := log.turnLines(t, "stuck"); len(l) != 1 || l[0]["abandoned"] != true {
				t.Errorf("the log has %v", l)
			}
		})
	}
}

// mountedAgain is a host with connections of its own to the same server.
func mountedAgain(t testing.TB, h *host, version string) *host {
	t.Helper()
	return hostAt(t, h.addr).speak(t, version)
}

// A reader that takes nothing for the write timeout ends its turn.
func TestASlowReaderIsEndedByTheWriteTimeout(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const timeout = 300 * time.Millisecond
			var e ends
			var log logs
			told := make(chan adapters.Cause, 1)
			p := newPlugin(t, plugin.Config{WriteTimeout: timeout, Hooks: e.hooks(), Logger: log.logger(), Adapter: adapters.Func(
				func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					var err error
					for range 10_000 { // 100 MB, more than sockets hold
						if err = w.Text(strings.Repeat("x", 10_000)); err != nil {
							break
						}
					}
					if !errors.Is(err, adapters.ErrTurnOver) {
						t.Errorf("a write after the end: %v", err)
					}
					<-ctx.Done()
					told <- adapters.CauseOf(ctx)
					return err
				})})
			h := mount(t, p, bothVersions).speak(t, version)
			began := time.Now()
			r := h.post(t, request{}).started(t)
			if cause := receive(t, "the adapter's end", told); cause != adapters.CauseHostStalled {
				t.Errorf("the adapter is told %q", cause)
			}
			if took := time.Since(began); took < timeout {
				t.Errorf("the turn ended after %v", took)
			}
			if end := e.wait(t, "t-1"); end.Cause != adapters.CauseHostStalled || end.Status != "cancelled" {
				t.Errorf("the hook is told %s, %s", end.Cause, end.Status)
			}
			eventually(t, "the log line", func() bool { return len(log.turnLines(t, "t-1")) > 0 })
			if l := log.turnLines(t, "t-1")[0]; l["cause"] != "host-stalled" {
				t.Errorf("the log has %v", l)
			}
			quiet(t, p)
			if err := r.read(); err == nil {
				t.Error("the stream has a good end")
			}
		})
	}
}

// A reader that takes something now and then is slow, not stalled.
func TestAReaderThatTakesALittleKeepsItsTurn(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, plugin.Config{WriteTimeout: 2 * time.Second, Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		return w.Text(strings.Repeat("x", 600_000)) // one line
	})})
	h := mountSmall(t, p)
	r := h.post(t, request{})
	r.slowly(16<<10, 100*time.Millisecond) // four seconds in all
	if text := r.completed(t); len(text) != 600_000 {
		t.Errorf("the text has %d bytes", len(text))
	}
}

// A slow reader's turn holds no more memory than its bounds.
func TestASlowReaderIsBoundedInMemory(t *testing.T) {
	t.Parallel()
	ahead := make(chan int, 1)
	hold := newGate(t)
	p := newPlugin(t, plugin.Config{Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		n := 0
		done := make(chan struct{})
		go func() { // says how far it got while nobody reads
			defer close(done)
			for ctx.Err() == nil {
				if err := w.Text(strings.Repeat("x", 1000)); err != nil {
					return
				}
				n += 1000
			}
		}()
		<-hold.C
		<-ctx.Done()
		<-done
		ahead <- n
		return nil
	})})
	h := mountSmall(t, p)
	r := h.post(t, request{}).started(t)
	time.Sleep(300 * time.Millisecond) // as far as it gets
	hold.open()
	r.close()
	if n := receive(t, "the adapter", ahead); n > 2<<20 {
		t.Errorf("the adapter got %d bytes ahead of a reader that takes nothing", n)
	}
	quiet(t, p)
}

func TestMaxTurnsCountsThoseThatWait(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	p, h := start(t, plugin.Config{MaxTurns: 2, Drain: patience, Adapter: adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
		<-hold.C
		return nil
	})})
	runs := h.post(t, request{turn: "runs"}).started(t)
	waits := h.post(t, request{turn: "waits"}).started(t)
	why := h.post(t, request{session: "other", turn: "third"}).refused(t, 503)
	if !strings.Contains(why, "as many turns") {
		t.Errorf("the refusal is %q", why)
	}
	waits.close()
	eventually(t, "the place of the one that waited", func() bool { return p.Stats().Turns.Active == 1 })
	third := h.post(t, request{session: "other", turn: "third"}).started(t)
	hold.open()
	runs.completed(t)
	third.completed(t)
	quiet(t, p)
}

func TestWhatAnAdapterSaysOfItsFailure(t *testing.T) {
	t.Parallel()
	var e ends
	for name, tt := range map[string]struct {
		err   error
		says  string
		cause adapters.Cause
	}{
		"any":                 {errors.New(secret), "The agent failed (reference ", adapters.CauseAdapter},
		"public":              {adapters.Public("Ask somebody else.", errors.New(secret)), "Ask somebody else.", adapters.CauseAdapter},
		"public, wrapped":     {fmt.Errorf("%s: %w", secret, adapters.Public("Ask somebody else.", nil)), "Ask somebody else.", adapters.CauseAdapter},
		"public, empty":       {adapters.Public("", errors.New(secret)), "The agent failed (reference ", adapters.CauseAdapter},
		"unavailable":         {&adapters.Unavailable{Message: "Overloaded.", Err: errors.New(secret)}, "Overloaded.", adapters.CauseProvider},
		"unavailable, silent": {&adapters.Unavailable{Err: errors.New(secret)}, "unavailable (reference ", adapters.CauseProvider},
		"like a cancellation": {context.Canceled, "The agent failed (reference ", adapters.CauseAdapter},
		"like a deadline":     {context.DeadlineExceeded, "The agent failed (reference ", adapters.CauseAdapter},
		"like a cause":        {adapters.CauseHostGone, "The agent failed (reference ", adapters.CauseAdapter},
		"invalid UTF-8":       {adapters.Public("caf\xe9\u2028", nil), "caf\uFFFD\u2028", adapters.CauseAdapter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, h := start(t, plugin.Config{Hooks: e.hooks(), Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("so far")
				return tt.err
			})})
			r := h.post(t, request{turn: name})
			if why := r.failed(t); !strings.Contains(why, tt.says) || strings.Contains(why, secret) || r.text() != "so far" {
				t.Errorf("the stream is %q, want it to say %q", r.raw, tt.says)
			}
			if end := e.wait(t, name); end.Cause != tt.cause {
				t.Errorf("the hook is told %s, want %s", end.Cause, tt.cause)
			}
		})
	}
}
