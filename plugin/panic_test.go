package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// secret is in what adapters panic with; it must not reach the host.
const secret = "the-password-is-swordfish"

type badError struct{}

func (badError) Error() string { panic(secret) }

type badStringer struct{}

func (badStringer) String() string { panic(secret) }

// lying are errors whose methods panic when errors.Is or errors.As walk them.
type badUnwrap struct{}

func (badUnwrap) Error() string { return secret }
func (badUnwrap) Unwrap() error { panic(secret) }

type badAs struct{}

func (badAs) Error() string { return secret }
func (badAs) As(any) bool   { panic(secret) }

// crashes are the ways in which an adapter can end without returning.
var crashes = map[string]func(w adapters.Writer) error{
	"at once": func(adapters.Writer) error { panic(secret) },
	"after three chunks": func(w adapters.Writer) error {
		for range 3 {
			if err := w.Text("x"); err != nil {
				return err
			}
		}
		panic(secret)
	},
	"with an error": func(adapters.Writer) error { panic(errors.New(secret)) },
	"in a tool": func(w adapters.Writer) error {
		_, err := w.Tool(context.Background(), adapters.ToolRequest{})
		panic(fmt.Errorf("%s: %w", secret, err))
	},
	"for arrivals": func(w adapters.Writer) error {
		c, err := w.Arrivals()
		if err != nil {
			panic(fmt.Errorf("%s: %w", secret, err))
		}
		<-c
		return nil
	},
	"with nil":                  func(adapters.Writer) error { panic(nil) },
	"with a nil error":          func(adapters.Writer) error { var e *badUnwrap; panic(e) },
	"with a panicking Error":    func(adapters.Writer) error { panic(badError{}) },
	"with a panicking String":   func(adapters.Writer) error { panic(badStringer{}) },
	"with http.ErrAbortHandler": func(adapters.Writer) error { panic(http.ErrAbortHandler) },
	"with a huge value":         func(adapters.Writer) error { panic(strings.Repeat(secret, 100_000)) },
	"by a runtime error":        func(adapters.Writer) error { var words []string; return errors.New(secret + words[len(secret)]) },
	"by Goexit":                 func(adapters.Writer) error { goruntime.Goexit(); return nil },
	"by Goexit after a chunk": func(w adapters.Writer) error {
		_ = w.Text("x")
		goruntime.Goexit()
		return nil
	},
	"in a deferred call": func(adapters.Writer) error {
		defer func() { panic(secret + " again") }()
		panic(secret)
	},
}

// returned are errors that are dangerous to look at.
var returned = map[string]error{
	"a panicking Error":            badError{},
	"a panicking Error, wrapped":   fmt.Errorf("wrapped: %w", badUnwrap{}),
	"a panicking Unwrap":           badUnwrap{},
	"a panicking As":               badAs{},
	"a nil pointer that is public": (*adapters.PublicError)(nil),
	"a nil pointer, unavailable":   (*adapters.Unavailable)(nil),
	"public with a panicking part": adapters.Public("a sentence", badError{}),
	"unavailable with one":         &adapters.Unavailable{Message: "a sentence", Err: badUnwrap{}},
	"a joined one":                 errors.Join(errors.New("x"), badAs{}),
}

// Fault B5: a panic where no handler recovers.
func TestFaultB5APanicEndsItsTurnAlone(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, crash := range crashes {
			if version == "HTTP/2" && !strings.Contains("at once, after three chunks, by Goexit, with http.ErrAbortHandler", name) {
				continue // it differs only in how a response ends
			}
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				const crashing, healthy = 100 / (1 + slowness/5), 20
				var log logs
				p := newPlugin(t, plugin.Config{
					Logger:   log.logger(),
					MaxTurns: crashing + healthy,
					Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
						if turn.Message == "crash" {
							return crash(w)
						}
						return w.Text(turn.Message)
					}),
				})
				h := mount(t, p, bothVersions).speak(t, version)
				var wg sync.WaitGroup
				for i := range crashing + healthy {
					wg.Go(func() {
						q := request{session: numbered("s", i), turn: numbered("t", i), message: "crash"}
						if i >= crashing {
							q.message = "healthy"
						}
						h := h
						if strings.Contains(name, "Goexit") && version == "HTTP/1.1" {
							// The connection ends with the adapter's goroutine, which a host may notice only when it
							// sends the next turn on it.
							h = hostAt(t, h.addr)
						}
						r, err := h.run(q)
						switch {
						case err != nil:
							t.Errorf("%s: %v", q.turn, err)
						case i >= crashing:
							if r.text() != "healthy" || r.last().Status != wire.StatusComplete {
								t.Errorf("a healthy turn: %q", r.raw)
							}
						default:
							if e := r.last(); e.Type != wire.EventError || e.Content == "" {
								t.Errorf("%s ends with %+v, want an error", q.turn, e)
							}
							if strings.Contains(string(r.raw), secret) || strings.Contains(string(r.raw), "goroutine") {
								t.Errorf("the host is told %q", r.raw)
							}
							if want := strings.Repeat("x", strings.Count(name, "three")*3+strings.Count(name, "a chunk")); r.text() != want {
								t.Errorf("the text is %q, want %q: what was sent stays", r.text(), want)
							}
						}
					})
				}
				wg.Wait()
				quiet(t, p)
				eventually(t, "all log lines", func() bool { return strings.Count(log.String(), `"msg":"turn"`) >= crashing+healthy })
				byTurn := map[any][]map[string]any{}
				for _, l := range log.lines(t, func(m map[string]any) bool { return m["msg"] == "turn" }) {
					byTurn[l["turn"]] = append(byTurn[l["turn"]], l)
				}
				for i := range crashing {
					lines := byTurn[numbered("t", i)]
					if len(lines) != 1 {
						t.Fatalf("turn %d has %d log lines", i, len(lines))
					}
					l := lines[0]
					if l["cause"] != "panic" || l["level"] != "ERROR" || l["panic"] == "" || l["correlation"] == "" ||
						!strings.Contains(fmt.Sprint(l["stack"]), "plugin_test") {
						t.Fatalf("turn %d is logged as %.1000v", i, l)
					}
				}
				// Sessions and slots are free.
				for i := range 10 {
					if text := h.post(t, request{session: numbered("s", i), turn: numbered("again", i), message: "x"}).completed(t); text != "x" {
						t.Errorf("afterwards: %q", text)
					}
				}
			})
		}
	}
}

func TestFaultB5TheHostIsToldTheReferenceThatTheLogHas(t *testing.T) {
	t.Parallel()
	var log logs
	_, h := start(t, plugin.Config{Logger: log.logger(), Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
		if turn.Message == "panic" {
			panic(secret)
		}
		return errors.New(secret)
	})})
	for _, message := range []string{"panic", "error"} {
		why := h.post(t, request{turn: message, message: message}).failed(t)
		eventually(t, "the log line", func() bool { return len(log.turnLines(t, message)) > 0 })
		line := log.turnLines(t, message)[0]
		id := fmt.Sprint(line["correlation"])
		if len(id) < 8 || !strings.Contains(why, id) || strings.Contains(why, secret) {
			t.Errorf("the host is told %q, and the log has %q", why, id)
		}
		if !strings.Contains(fmt.Sprint(line["panic"], line["error"]), secret) {
			t.Errorf("the log has %v, want the value", line)
		}
	}
}

func TestFaultB5ErrorsThatAreDangerousToLookAt(t *testing.T) {
	t.Parallel()
	for name, bad := range returned {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logs
			p, h := start(t, plugin.Config{Logger: log.logger(), Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				if turn.Message == "bad" {
					return bad
				}
				return w.Text(turn.Message)
			})})
			why := h.post(t, request{message: "bad"}).failed(t)
			if strings.Contains(why, secret) {
				t.Errorf("the host is told %q", why)
			}
			quiet(t, p)
			eventually(t, "the log line", func() bool { return len(log.turnLines(t, "t-1")) > 0 })
			if text := h.post(t, request{turn: "next", message: "x"}).completed(t); text != "x" {
				t.Errorf("afterwards: %q", text)
			}
		})
	}
}

func TestFaultB5AHookThatCrashesHarmsNothing(t *testing.T) {
	t.Parallel()
	for how, crash := range map[string]func(){
		"panics":             func() { panic(secret) },
		"panics with nil":    func() { panic(nil) }, //nolint:govet // the nil is the point
		"aborts the handler": func() { panic(http.ErrAbortHandler) },
		"panics badly":       func() { panic(badError{}) },
	} {
		for name, hooks := range map[string]plugin.Hooks{
			"TurnStart": {TurnStart: func(context.Context, plugin.TurnInfo) context.Context { crash(); return nil }},
			"TurnEnd":   {TurnEnd: func(context.Context, plugin.TurnInfo, *plugin.Outcome) { crash() }},
			"Refuse":    {Refuse: func(context.Context, adapters.Protocol, string) { crash() }},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				var e ends
				var log logs
				p, h := start(t, plugin.Config{Adapter: echo, Hooks: append([]plugin.Hooks{hooks}, e.hooks()...), Logger: log.logger(), MaxTurns: 1})
				for i := range 2 {
					r := h.post(t, request{turn: numbered("t", i), message: "x"})
					if text := r.completed(t); text != "x" {
						t.Errorf("turn %d: the text is %q", i, text)
					}
					if end := e.wait(t, numbered("t", i)); end.Cause != adapters.CauseCompleted {
						t.Errorf("turn %d ended as %s", i, end.Cause)
					}
				}
				h.post(t, request{plugin: "nobody"}).refused(t, http.StatusNotFound)
				if !strings.Contains(log.String(), "a hook panicked") {
					t.Error("the log does not tell")
				}
				quiet(t, p)
				if err := p.Drain(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A hook that ends its goroutine (as t.FailNow does) must not take the rest of the turn's end with it.
func TestFaultB5AHookThatExits(t *testing.T) {
	t.Parallel()
	for name, hooks := range map[string]plugin.Hooks{
		"TurnStart": {TurnStart: func(context.Context, plugin.TurnInfo) context.Context { goruntime.Goexit(); return nil }},
		"TurnEnd":   {TurnEnd: func(context.Context, plugin.TurnInfo, *plugin.Outcome) { goruntime.Goexit() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, h := start(t, plugin.Config{Adapter: echo, Hooks: []plugin.Hooks{hooks}, MaxTurns: 1})
			for i := range 2 {
				if err := hostAt(t, h.addr).post(t, request{turn: numbered("t", i)}).read(); err != nil {
					t.Errorf("turn %d: %v", i, err)
				}
			}
			quiet(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), patience/4)
			defer cancel()
			if err := p.Drain(ctx); err != nil {
				t.Errorf("Drain = %v", err)
			}
		})
	}
}

// A hook that has no context to give.
func TestAHookThatReturnsNoContext(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{
		Hooks: []plugin.Hooks{{TurnStart: func(context.Context, plugin.TurnInfo) context.Context { return nil }}},
		Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return errors.Join(ctx.Err(), w.Text("fine"))
		}),
	})
	if text := h.post(t, request{}).completed(t); text != "fine" {
		t.Errorf("the text is %q", text)
	}
}

// crashingWriter is a middleware's ResponseWriter with a bug.
type crashingWriter struct {
	http.ResponseWriter
	writes int
}

func (w *crashingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *crashingWriter) Write(p []byte) (int, error) {
	if w.writes++; w.writes > 3 {
		panic(secret)
	}
	return w.ResponseWriter.Write(p)
}

// Where a foreign middleware panics while it writes, its turn ends, and nothing else does.
func TestFaultB5AMiddlewareThatPanicsWhileItWrites(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	for name, write := range map[string]func(adapters.Writer, int) error{
		"paced": func(w adapters.Writer, i int) error {
			for range 1000 {
				goruntime.Gosched()
			}
			return w.Text(fmt.Sprint(i))
		},
		"in a burst": func(w adapters.Writer, i int) error { return w.Text(fmt.Sprint(i)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e ends
			p := newPlugin(t, plugin.Config{Hooks: e.hooks(), Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				n := 100_000
				if turn.ID == "next" {
					n = 10
				}
				for i := range n {
					if err := write(w, i); err != nil {
						return err
					}
				}
				return nil
			})})
			h := mount(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Crash") != "" {
					w = &crashingWriter{ResponseWriter: w}
				}
				p.ServeHTTP(w, r)
			}), nil)
			r := h.with("X-Crash", "1").post(t, request{}).started(t)
			if err := r.read(); err == nil {
				t.Error("the stream has a good end")
			}
			if end := e.wait(t, "t-1"); end.Cause == adapters.CauseCompleted {
				t.Errorf("the turn ended as %s", end.Cause)
			}
			quiet(t, p)
			if text := h.post(t, request{turn: "next"}).completed(t); !strings.HasSuffix(text, "789") {
				t.Errorf("the next turn's text ends with %q", text[max(0, len(text)-10):])
			}
		})
	}
}
