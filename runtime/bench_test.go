package runtime_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// sinkhole is a connection that takes everything and keeps nothing.
type sinkhole struct{ bytes, flushes int }

func (c *sinkhole) Write(p []byte) (int, error)      { c.bytes += len(p); return len(p), nil }
func (c *sinkhole) Flush() error                     { c.flushes++; return nil }
func (c *sinkhole) SetWriteDeadline(time.Time) error { return nil }
func (c *sinkhole) HangUp()                          {}

// A fastSink writes lines as a protocol does: without allocating.
type fastSink struct{}

var fastStarted = []byte("started\n")[:8:8]

func (fastSink) Started([]byte) []byte { return fastStarted }
func (fastSink) Text(dst []byte, s string) []byte {
	return append(append(append(dst, `{"text":"`...), s...), "\"}\n"...)
}
func (s fastSink) Status(dst []byte, t string) []byte { return s.Text(dst, t) }
func (fastSink) Heartbeat(dst []byte) []byte          { return append(dst, "beat\n"...) }
func (fastSink) End(dst []byte, o *runtime.Outcome) []byte {
	return append(append(append(dst, "end "...), o.Status...), '\n')
}

// benchEngine is an engine with everything on and nothing that takes time: hooks, a log line, all limits.
func benchEngine(tb testing.TB, sessions *session.Cache, replay time.Duration) *runtime.Engine {
	e, err := runtime.New(runtime.Config{
		Sessions: sessions,
		Logger:   slog.New(slog.DiscardHandler),
		Hooks: []runtime.Hooks{{
			TurnStart: func(ctx context.Context, _ runtime.TurnInfo) context.Context { return ctx },
			TurnEnd:   func(context.Context, runtime.TurnInfo, *runtime.Outcome) {},
		}},
		Replay: replay,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

const fortyBytes = "forty bytes of an answer, more or less .."

var fiveChunks = adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
	for range 5 {
		if err := w.Text(fortyBytes); err != nil {
			return err
		}
	}
	return nil
})

// serveOnce runs one turn.
func serveOnce(ctx context.Context, tb testing.TB, e *runtime.Engine, spec *runtime.Spec, c *sinkhole) {
	stream, err := e.Start(ctx, spec)
	if err != nil {
		tb.Fatal(err)
	}
	if err := stream.Serve(ctx, c); err != nil {
		tb.Fatal(err)
	}
}

func benchSpec(a adapters.Adapter) *runtime.Spec {
	return &runtime.Spec{
		Turn:    adapters.Turn{Protocol: adapters.Lowkey, ID: "t", PluginID: "muse", AgentID: "muse", Message: "hello"},
		Adapter: a,
		Sink:    fastSink{},
	}
}

// BenchmarkTurn is what one short turn of five chunks costs the engine, each of another session than the
// one before, with so many sessions remembered. It must not grow with them.
func BenchmarkTurn(b *testing.B) {
	window := []adapters.Message{{Role: adapters.RoleUser, Content: "a message"}, {Role: adapters.RoleAgent, Content: "an answer"}}
	for _, n := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("sessions=%d", n), func(b *testing.B) {
			if testing.Short() && n > 10_000 {
				b.Skip("takes a gigabyte")
			}
			sessions, err := session.New(session.Config{Entries: -1, Bytes: -1, TTL: -1})
			if err != nil {
				b.Fatal(err)
			}
			keys := make([]session.Key, n)
			for i := range keys {
				keys[i] = session.Key{Plugin: "muse", Handle: fmt.Sprintf("session-%d", i)}
				lease, _ := sessions.TryAcquire(keys[i])
				lease.Join(nil)
				lease.Commit(window[0], window[1])
				lease.Release()
			}
			e := benchEngine(b, sessions, -1)
			s, c, ctx := benchSpec(fiveChunks), &sinkhole{}, b.Context()
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				s.Session, s.Window = keys[i], window
				serveOnce(ctx, b, e, s, c)
				if i += 7919; i >= n {
					i %= n
				}
			}
			if got := sessions.Stats(); got.Entries != n {
				b.Fatalf("%+v", got)
			}
		})
	}
}

// BenchmarkTurnsAtOnce is BenchmarkTurn on all processors.
func BenchmarkTurnsAtOnce(b *testing.B) {
	e := benchEngine(b, nil, -1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		s, c, ctx := benchSpec(fiveChunks), &sinkhole{}, b.Context()
		s.Session = session.Key{Plugin: "muse", Handle: fmt.Sprintf("%p", c)}
		for pb.Next() {
			serveOnce(ctx, b, e, s, c)
		}
	})
}

// BenchmarkText is what one text event costs the engine, in a long turn whose adapter never pauses. It
// must not grow with the turn.
func BenchmarkText(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			e := benchEngine(b, nil, -1)
			s, ctx := benchSpec(adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for range n {
					if err := w.Text("twenty bytes of text"); err != nil {
						return err
					}
				}
				return nil
			})), b.Context()
			s.Session = session.Key{Plugin: "muse", Handle: "s"}
			b.ReportAllocs()
			for b.Loop() {
				serveOnce(ctx, b, e, s, &sinkhole{})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkReplay is what it costs to repeat a turn that has completed.
func BenchmarkReplay(b *testing.B) {
	e := benchEngine(b, nil, time.Hour)
	s, c, ctx := benchSpec(fiveChunks), &sinkhole{}, b.Context()
	s.Session = session.Key{Plugin: "muse", Handle: "s"}
	serveOnce(ctx, b, e, s, c)
	b.ReportAllocs()
	for b.Loop() {
		serveOnce(ctx, b, e, s, c)
	}
}

// An event in the steady state allocates nothing: neither where each is let out by itself, nor in a
// burst, nor as a status.
func TestAllocationsPerEvent(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	e := benchEngine(t, nil, -1)
	for name, event := range map[string]func(w adapters.Writer) error{
		"text": func(w adapters.Writer) error { return w.Text(fortyBytes) },
		"bytes": func() func(w adapters.Writer) error {
			p := []byte(fortyBytes)
			return func(w adapters.Writer) error { _, err := w.Write(p); return err }
		}(),
		"status":           func(w adapters.Writer) error { return w.Status(fortyBytes) },
		"nothing":          func(w adapters.Writer) error { return w.Text("") },
		"another alphabet": func(w adapters.Writer) error { return w.Text("naïve 渐渐 👩🏽‍🚀") },
	} {
		for _, pause := range []bool{false, true} {
			if pause && name != "text" && name != "status" {
				continue
			}
			var allocs float64
			s := benchSpec(adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				const events = 50 // each memory segment of the log is shared by many
				run := func() {
					for range events {
						if pause { // longer than what counts as a burst
							for began := time.Now(); time.Since(began) < 150*time.Microsecond; {
							}
						}
						if err := event(w); err != nil {
							t.Error(err)
						}
					}
				}
				for range 5 {
					run() // to the steady state
				}
				allocs = testing.AllocsPerRun(5, run) / events
				return nil
			}))
			s.Session = session.Key{Plugin: "muse", Handle: name}
			serveOnce(t.Context(), t, e, s, &sinkhole{})
			if allocs > 0.05 { // goroutines of bursts and segments of the log, now and then
				t.Errorf("%s, pauses %t: %.2f allocations per event, want none", name, pause, allocs)
			}
		}
	}
}

// A turn's allocations in the engine, with a session, hooks and limits. The number is what it takes now;
// it may go down.
func TestAllocationsPerTurn(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	const most = 28
	e := benchEngine(t, nil, -1)
	s, c := benchSpec(fiveChunks), &sinkhole{}
	s.Session = session.Key{Plugin: "muse", Handle: "s"}
	allocs := testing.AllocsPerRun(500, func() { serveOnce(t.Context(), t, e, s, c) })
	t.Logf("%.1f allocations per turn", allocs)
	if allocs > most {
		t.Errorf("%.1f allocations per turn, want at most %d", allocs, most)
	}
}
