package external_test

import (
	"context"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// Fault B5: a hundred adapters panic beside healthy turns. Each of their turns ends once and by itself, and
// leaves its session and its place free.
func TestFaultB5AHundredPanicsBesideHealthyTurns(t *testing.T) {
	t.Parallel()
	const bindings, each, healthy = 10, 10, 2 // turns of one binding: so many that crash, so many that do not
	for version := range versions {
		for name, crash := range map[string]func(ctx context.Context, w adapters.Writer){
			"at once": func(context.Context, adapters.Writer) { panic("secret-panic") },
			"after some work": func(_ context.Context, w adapters.Writer) {
				for range 3 {
					_ = w.Status("busy")
				}
				panic("secret-panic")
			},
			"after an observation": func(ctx context.Context, w adapters.Writer) {
				_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:x", Schema: "x.v1", Input: []byte(`{"a":1}`)})
				panic(fmt.Errorf("secret-panic: %w", err))
			},
			"for arrivals": func(_ context.Context, w adapters.Writer) {
				_, err := w.Arrivals()
				panic(fmt.Errorf("secret-panic: %w", err))
			},
			"by Goexit":                 func(context.Context, adapters.Writer) { goruntime.Goexit() },
			"with http.ErrAbortHandler": func(context.Context, adapters.Writer) { panic(http.ErrAbortHandler) },
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				g := newRig(t, both(over(version), func(s *setup) {
					s.engine.MaxTurns = bindings * (each + healthy)
					s.adapter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
						if turn.Message == "crash" {
							crash(ctx, w)
						}
						return finish(w)
					})
				}))
				refs := make([]doc, bindings)
				for i := range refs {
					refs[i] = aBinding().with("binding/ref", fmt.Sprintf("binding:%d", i)).sealed()
					g.admit("bindings", refs[i])
				}
				request := func(i int, name, message string) doc {
					b := refs[i%bindings]
					return aRequest(fmt.Sprintf("turn:%s:%d", name, i), message).with("binding/ref", b["binding/ref"], "binding/digest", b["binding/digest"])
				}
				var all sync.WaitGroup
				for i := range bindings * each {
					all.Go(func() {
						q := request(i, "crash", "crash")
						r := g.post(q)
						if strings.Contains(name, "observation") {
							q = q.answering(fmt.Sprintf("key:c%d", i), r.asked())
							r = g.post(q)
						}
						r.ends("failed/provider-unavailable")
						if strings.Contains(r.body, "secret") || strings.Contains(r.body, "goroutine") {
							t.Errorf("the panic is on the wire:\n%s", r.body)
						}
						if o := g.outcome(q.ref("turn/ref")); o.Retryability != "terminal" {
							t.Errorf("outcome %+v", o)
						}
						if again := g.post(q); again.body != r.body {
							t.Error("the replay differs")
						}
					})
				}
				for i := range bindings * healthy {
					all.Go(func() { g.post(request(i, "healthy", "x")).ends("completed/completed") })
				}
				all.Wait()
				if n := g.adapter.calls.Load(); n != bindings*(each+healthy) {
					t.Errorf("%d calls", n)
				}
				eventually(t, "no turn is left", func() bool { return g.engine.Stats().Active == 0 })
				for i := range bindings { // sessions and places are free
					g.post(request(i, "after", "x")).ends("completed/completed")
				}
				if logs := g.logs.String(); strings.Contains(logs, "secret") || strings.Count(logs, `"stack"`) < bindings*each {
					t.Error("the log holds a panic's value, or lacks a stack")
				}
			})
		}
	}
}

// A crashing is a middleware's ResponseWriter with a mistake in one of its methods.
type crashing struct {
	http.ResponseWriter
	in    string
	calls int
}

func (w *crashing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *crashing) call(method string) {
	if w.in == method {
		if w.calls++; w.calls > 2 {
			panic("secret-panic")
		}
	}
}

func (w *crashing) Write(p []byte) (int, error) {
	w.call("Write")
	return w.ResponseWriter.Write(p)
}

func (w *crashing) FlushError() error {
	w.call("FlushError")
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *crashing) SetWriteDeadline(t time.Time) error {
	w.call("SetWriteDeadline")
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}

// Where foreign middleware panics while a stream is written, the stream breaks off, and its turn and all
// else go on.
func TestFaultB5AMiddlewareThatPanicsWhileItWrites(t *testing.T) {
	t.Parallel()
	for version := range versions {
		for _, method := range []string{"Write", "FlushError", "SetWriteDeadline"} {
			t.Run(version+" "+method, func(t *testing.T) {
				t.Parallel()
				var crash atomic.Bool
				lead := make(chan struct{})
				g := newRig(t, both(over(version), func(s *setup) {
					s.engine.Stream.WriteTimeout = 480 * time.Millisecond // so that deadlines are set again and again
					s.adapter = candidates(lead, 20)
					s.around = func(next http.Handler) http.Handler {
						return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if crash.Load() {
								w = &crashing{ResponseWriter: w, in: method}
							}
							next.ServeHTTP(w, r)
						})
					}
				}))
				q := aRequest("turn:1", "x")
				crash.Store(true)
				s := g.stream(q)
				crash.Store(false)
				go func() {
					for range 20 {
						lead <- struct{}{}
						time.Sleep(10 * time.Millisecond) // the adapter's pace
					}
				}()
				if r := s.rest(); r.err == nil || strings.Contains(r.body, "turn-outcome") {
					t.Errorf("the stream has a good end:\n%s", r.body)
				}
				r := g.settled(q)
				if n := strings.Count(r.kinds(), "action-candidate"); n != 20 {
					t.Errorf("the turn has %d candidates", n)
				}
				if logs := g.logs.String(); strings.Contains(logs, "secret") || !strings.Contains(logs, "a middleware's ResponseWriter panicked") {
					t.Errorf("the log is %s", logs)
				}
			})
		}
	}
}
