package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// returning is an adapter that writes one chunk and returns err.
func returning(err error) adapters.Func {
	return func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		_ = w.Text("x")
		return err
	}
}

// panicking is an adapter that writes one chunk and panics.
func panicking(v any) adapters.Func {
	return func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		_ = w.Text("x")
		panic(v)
	}
}

// What a program has by mistake.
var (
	noMap   map[string]int
	nothing any
)

// Errors that hurt whoever looks at them.
type (
	badUnwrap struct{}
	badAs     struct{}
	badIs     struct{}
)

func (badUnwrap) Error() string { return "bad" }
func (badUnwrap) Unwrap() error { panic("Unwrap panics") }
func (badAs) Error() string     { return "bad" }
func (badAs) As(any) bool       { panic("As panics") }
func (badIs) Error() string     { return "bad" }
func (badIs) Is(error) bool     { panic("Is panics") }

func TestEveryTurnEndsOnce(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause")
	var (
		noPublic      *adapters.PublicError
		noUnavailable *adapters.Unavailable
		noUnsupported *adapters.UnsupportedError
	)
	for name, tc := range map[string]struct {
		adapter adapters.Func
		status  runtime.Status
		cause   adapters.Cause
		level   string
		err     error // that the outcome's error must wrap
	}{
		"nil":                        {returning(nil), runtime.Completed, adapters.CauseCompleted, "INFO", nil},
		"an error":                   {returning(cause), runtime.Failed, adapters.CauseAdapter, "WARN", cause},
		"a wrapped error":            {returning(fmt.Errorf("more: %w", cause)), runtime.Failed, adapters.CauseAdapter, "WARN", cause},
		"a public error":             {returning(adapters.Public("Sorry.", cause)), runtime.Failed, adapters.CauseAdapter, "WARN", cause},
		"unavailable":                {returning(&adapters.Unavailable{Message: "down", Err: cause}), runtime.Failed, adapters.CauseProvider, "WARN", cause},
		"wrapped unavailable":        {returning(fmt.Errorf("more: %w", &adapters.Unavailable{Temporary: true, Err: cause})), runtime.Failed, adapters.CauseProvider, "WARN", cause},
		"unavailable among others":   {returning(errors.Join(cause, &adapters.Unavailable{})), runtime.Failed, adapters.CauseProvider, "WARN", cause},
		"public, of unavailable":     {returning(adapters.Public("Sorry.", &adapters.Unavailable{Err: cause})), runtime.Failed, adapters.CauseProvider, "WARN", cause},
		"a cancellation not of ours": {returning(context.Canceled), runtime.Failed, adapters.CauseAdapter, "WARN", context.Canceled},
		"a timeout not of ours":      {returning(context.DeadlineExceeded), runtime.Failed, adapters.CauseAdapter, "WARN", context.DeadlineExceeded},
		"a cause that was not":       {returning(adapters.CauseHostGone), runtime.Failed, adapters.CauseAdapter, "WARN", adapters.CauseHostGone},
		"ErrTurnOver from nowhere":   {returning(adapters.ErrTurnOver), runtime.Failed, adapters.CauseAdapter, "WARN", adapters.ErrTurnOver},
		"a panic":                    {panicking("v"), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a panic with nil":           {panicking(nil), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a panic with an error":      {panicking(cause), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a panic with a bad error":   {panicking(badError{}), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a panic to abort":           {panicking(http.ErrAbortHandler), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a nil map":                  {func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error { noMap[turn.ID] = 1; return nil }, runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"Goexit": {func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("x")
			goruntime.Goexit()
			return nil
		}, runtime.Failed, adapters.CausePanic, "ERROR", nil},

		// Errors that panic when they are looked at count as a panic. A typed nil is the commonest.
		"an error that cannot be printed":               {returning(badError{}), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"an error that cannot be followed":              {returning(badUnwrap{}), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"an error that is no other":                     {returning(badAs{}), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"an error that cannot be compared":              {returning(badIs{}), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"a public error that is nil":                    {returning(noPublic), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"an unavailable one that is nil":                {returning(noUnavailable), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"an unsupported one that is nil":                {returning(noUnsupported), runtime.Failed, adapters.CausePanic, "ERROR", nil},
		"one that wraps an unsupported one that is nil": {returning(fmt.Errorf("more: %w", noUnsupported)), runtime.Failed, adapters.CauseAdapter, "WARN", nil},
		"one that wraps a nil one":                      {returning(fmt.Errorf("more: %w", noPublic)), runtime.Failed, adapters.CausePanic, "ERROR", nil},
	} {
		for _, public := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/public=%t", name, public), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					g := newRig(t, none)
					s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
						time.Sleep(time.Second)
						return tc.adapter(ctx, turn, w)
					}))
					s.PublicTexts = public
					h := g.send(s)
					g.until(time.Millisecond)
					joiner := g.send(spec("t", never(t)))
					waiter := g.send(spec("next", say("y")))
					<-h.done
					<-joiner.done
					<-waiter.done
					synctest.Wait()

					e := g.end("t")
					g.wantEnd("t", tc.status, tc.cause, time.Second)
					if tc.err != nil && !errors.Is(e.Err, tc.err) {
						t.Errorf("the outcome's error is %v, want one that wraps %v", e.Err, tc.err)
					}
					want := []string{"started"}
					if e.Chunks > 0 {
						want = append(want, `text "x"`)
					}
					want = append(want, fmt.Sprintf("end %s %s", tc.status, string(tc.cause)))
					h.wantLines(want...)
					joiner.wantLines(want...)
					waiter.wantLines("started", `text "y"`, "end completed completed")
					if (len(h.hungUp) > 0) != (name == "Goexit") || h.returned == (name == "Goexit") {
						t.Errorf("hung up %d times, Serve returned: %t", len(h.hungUp), h.returned)
					}
					if l := g.log.turn(t, "t"); l["level"] != tc.level || l["status"] != string(tc.status) || l["cause"] != string(tc.cause) {
						t.Errorf("the log says %v, want level %s", l, tc.level)
					}
				})
			})
		}
	}
}

// What the log says of a turn that ends in this way; and that it never says more.
func TestLogOfAnEnd(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for name, tc := range map[string]struct {
		adapter     adapters.Func
		kind, value string // attributes
		want        string // of the kind
	}{
		"an error":          {returning(errors.New(secret)), "error_type", "error", "*errors.errorString"},
		"a public error":    {returning(adapters.Public(secret, nil)), "error_type", "error", "*adapters.PublicError"},
		"a panic":           {panicking(secret), "panic_type", "panic", "string"},
		"a panic's error":   {panicking(errors.New(secret)), "panic_type", "panic", "*errors.errorString"},
		"a panic's nil":     {panicking(nil), "panic_type", "panic", "*runtime.PanicNilError"},
		"a panic's trouble": {panicking(badError{}), "panic_type", "panic", "runtime_test.badError"},
		"Goexit":            {func(context.Context, *adapters.Turn, adapters.Writer) error { goruntime.Goexit(); return nil }, "panic_type", "panic", "runtime.Goexit"},
	} {
		for _, public := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/public=%t", name, public), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					g := newRig(t, none)
					s := spec("t", tc.adapter)
					s.PublicTexts = public
					<-g.send(s).done
					l := g.log.turn(t, "t")
					if l[tc.kind] != tc.want {
						t.Errorf("%s is %v, want %s", tc.kind, l[tc.kind], tc.want)
					}
					text, has := l[tc.value].(string)
					if has != public {
						t.Errorf("%s is %q, want it only where texts may be logged", tc.value, text)
					}
					log := g.log.String()
					if !public && strings.Contains(log, secret) {
						t.Errorf("the log has the text: %s", log)
					}
					if strings.Contains(log, "message of t") {
						t.Errorf("the log has content: %s", log)
					}
					if stack, _ := l["stack"].(string); (tc.kind == "panic_type") != strings.Contains(stack, "endings_test.go") {
						t.Errorf("stack is %q", stack)
					}
					if l["correlation"] != g.end("t").CorrelationID {
						t.Errorf("correlation is %v, want the outcome's %q", l["correlation"], g.end("t").CorrelationID)
					}
				})
			})
		}
	}
}

func TestLogOfACompletedTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		g.send(spec("before", sleep(time.Second)))
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			time.Sleep(2 * time.Second)
			_ = w.Text("naïve")
			_ = w.Text("!")
			_ = w.Usage(adapters.Usage{Tokens: adapters.Count(7)})
			time.Sleep(3 * time.Second)
			return nil
		}))
		s.Session.Principal = "ci"
		s.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "old"}}
		g.send(in("s", spec("waits", say()))) // another principal's session, so it does not wait for t
		before := spec("blocker", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			return errors.New("and nothing to remember")
		}))
		before.Session = s.Session
		g.send(before)
		synctest.Wait()
		_ = g.send(s).wait()
		got := g.log.turn(t, "t")
		delete(got, "time")
		want := map[string]any{
			"level": "INFO", "msg": "turn", "protocol": "lowkey", "plugin": "muse", "session": "s", "turn": "t",
			"status": "completed", "cause": "completed", "principal": "ci", "tokens": "7",
			"duration": float64(6 * time.Second), "first_output": float64(3 * time.Second), "waited": float64(time.Second),
			"chunks": 2.0, "bytes": 7.0, "history": 1.0, "continuity": "new",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log line (-want +got):\n%s", diff)
		}
	})
}

// A long text of an adapter does not flood the log.
func TestLogCutsLongTexts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", returning(errors.New(strings.Repeat("渐", 5000))))
		s.PublicTexts = true
		_ = g.send(s).wait()
		text, _ := g.log.turn(t, "t")["error"].(string)
		if len(text) > 2100 || !strings.HasPrefix(text, "渐渐") || strings.Contains(text, "\uFFFD") || !strings.HasSuffix(text, "…") {
			t.Errorf("%d bytes of error in the log: %q", len(text), text)
		}
	})
}

// A logger that takes no such lines is not given any.
func TestLogLevel(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var l logs
		conf := none
		conf.Logger = slog.New(slog.NewJSONHandler(&l, &slog.HandlerOptions{Level: slog.LevelError}))
		e, err := runtime.New(conf)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []adapters.Func{say("x"), returning(errors.New("e")), panicking("v")} {
			stream, err := e.Start(t.Context(), spec("t", a))
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Config().Sessions.Stats(); err.Held != 1 {
				t.Errorf("%+v", err)
			}
			if err := stream.Serve(t.Context(), newConn(t)); err != nil {
				t.Error(err)
			}
			if stream.Repeat == runtime.Replayed {
				t.Error("replayed")
			}
			synctest.Wait()
			if replay := e.Stats().Replayable; replay == 1 {
				time.Sleep(time.Hour) // so that the next one runs
			}
		}
		if n := strings.Count(l.String(), "\n"); n != 1 || !strings.Contains(l.String(), `"cause":"panic"`) {
			t.Errorf("the log is %s", l.String())
		}
	})
}

// What comes from outside while an adapter is on its way out does not change what it returned.
func TestStopAfterTheEndChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", say("x")))
		_ = h.wait()
		if g.Stop(adapters.Lowkey, key("s"), "t") {
			t.Error("Stop found a turn that has ended")
		}
		if g.Stop(adapters.Lowkey, key("s"), "unknown") || g.Stop(adapters.Keiki, key("s"), "t") || g.Stop(adapters.Lowkey, key("other"), "t") {
			t.Error("Stop found a turn that never was")
		}
		h.wantLines("started", `text "x"`, "end completed completed")
	})
}

// A panic after the order to end is told as a panic: it is what somebody must look at.
func TestPanicAfterTheOrderToEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			<-ctx.Done()
			panic("on the way out")
		})))
		synctest.Wait()
		h.leave()
		_ = h.wait()
		g.wantEnd("t", runtime.Failed, adapters.CausePanic, 0)
	})
}

func TestHooksThatPanicHarmNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		var second []string
		conf.Hooks = []runtime.Hooks{{
			TurnStart: func(context.Context, runtime.TurnInfo) context.Context { panic("secret") },
			TurnEnd:   func(context.Context, runtime.TurnInfo, *runtime.Outcome) { panic(badError{}) },
			Refuse:    func(context.Context, adapters.Protocol, string) { panic(nothing) },
		}, {
			TurnStart: func(ctx context.Context, _ runtime.TurnInfo) context.Context {
				second = append(second, "start")
				return context.WithValue(ctx, hookKey{}, "second")
			},
			TurnEnd: func(ctx context.Context, _ runtime.TurnInfo, _ *runtime.Outcome) {
				second = append(second, fmt.Sprint("end ", ctx.Value(hookKey{})))
			},
			Refuse: func(_ context.Context, p adapters.Protocol, reason string) {
				second = append(second, fmt.Sprint("refuse ", p, " ", reason))
			},
		}}
		g := newRig(t, conf)
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Text(fmt.Sprint(ctx.Value(hookKey{})))
		})))
		if err := h.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		h.wantLines("started", `text "second"`, "end completed completed")
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 0)
		g.Refuse(t.Context(), adapters.Lowkey, "busy")
		if diff := cmp.Diff([]string{"start", "end second", "refuse lowkey busy"}, second); diff != "" {
			t.Errorf("the second hooks (-want +got):\n%s", diff)
		}
		var hooks []string
		for _, l := range g.log.records(t) {
			if l["level"] == "ERROR" {
				hooks = append(hooks, fmt.Sprint(l["hook"]))
			}
		}
		if diff := cmp.Diff([]string{"TurnStart", "TurnEnd", "Refuse"}, hooks); diff != "" {
			t.Errorf("hooks that the log says panicked (-want +got):\n%s", diff)
		}
		if strings.Contains(g.log.String(), "secret") {
			t.Error("the log has a panic's value")
		}
	})
}

func TestHooksLearnWhichTurnItIs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		var got []runtime.TurnInfo
		conf.Hooks = []runtime.Hooks{{
			TurnStart: func(ctx context.Context, i runtime.TurnInfo) context.Context { got = append(got, i); return nil },
			TurnEnd:   func(_ context.Context, i runtime.TurnInfo, _ *runtime.Outcome) { got = append(got, i) },
		}}
		g := newRig(t, conf)
		s := spec("t", adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
			turn.ID, turn.AgentID, turn.PluginID, turn.Flags.Headless = "", "", "", false // its own
			return nil
		}))
		s.Session = session.Key{Plugin: "muse", Principal: "ci", Handle: "s"}
		s.Turn.Flags.Headless = true
		_ = g.send(s).wait()
		want := runtime.TurnInfo{
			Protocol: adapters.Lowkey, PluginID: "muse", AgentID: "muse", SessionID: "s", TurnID: "t", Principal: "ci", Headless: true,
		}
		if diff := cmp.Diff([]runtime.TurnInfo{want, want}, got); diff != "" {
			t.Errorf("hooks were told (-want +got):\n%s", diff)
		}
	})
}

// Turns that never ran have their hooks too.
func TestHooksOfATurnThatNeverRan(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.SessionWait = time.Second
		g := newRig(t, conf)
		h := g.send(spec("first", block))
		_ = g.send(spec("second", never(t))).wait()
		g.mu.Lock()
		if g.begun["second"] != 1 {
			t.Errorf("TurnStart ran %d times", g.begun["second"])
		}
		g.mu.Unlock()
		if e := g.end("second"); e.History != 0 || e.Continuity != "" || e.Err != nil {
			t.Errorf("%+v", e.Outcome)
		}
		h.leave()
	})
}

// What is remembered of a turn.
func TestOnlyACompletedTurnExtendsTheConversation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		adapter adapters.Func
		want    []string // that the next turn sees
	}{
		"completed": {say("answer ", "of t"), []string{"old", "message of t", "answer of t"}},
		"silent":    {say(), []string{"old", "message of t"}},
		"failed":    {returning(errors.New("e")), []string{"old"}},
		"panicked":  {panicking("v"), []string{"old"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, none)
				s := spec("t", tc.adapter)
				s.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "old"}}
				_ = g.send(s).wait()
				var got []string
				next := spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
					for _, m := range turn.History {
						got = append(got, m.Content)
					}
					return nil
				}))
				// As a host that shows only the newest message, or the old one where nothing was added.
				next.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "old"}}
				if len(tc.want) == 3 {
					next.Window = []adapters.Message{{Role: adapters.RoleAgent, Content: "answer of t"}}
				} else if len(tc.want) == 2 {
					next.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "message of t"}}
				}
				_ = g.send(next).wait()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("the next turn's history (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// An answer that is too long to be remembered is not, and works all the same.
func TestAnAnswerTooLongToRemember(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		chunk := strings.Repeat("x", 1<<20)
		h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for range 9 {
				if err := w.Text(chunk); err != nil {
					return err
				}
			}
			return nil
		})))
		_ = h.wait()
		if e := g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 0); e.Bytes != 9<<20 {
			t.Errorf("%d bytes", e.Bytes)
		}
		if n := h.count("text"); n != 9 {
			t.Errorf("%d chunks", n)
		}
		if s := g.sessions.Stats(); s.Bytes > 1<<20 {
			t.Errorf("the session cache holds %d bytes", s.Bytes)
		}
		if s := g.Stats(); s.Replayable != 0 {
			t.Errorf("%+v: a log that outgrew its bound was kept", s)
		}
	})
}

// The memory that a turn borrowed goes back once, when the last line is out.
func TestTheWindowGoesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.SessionWait = time.Second
		conf.MaxTurns = 2
		g := newRig(t, conf)
		owners := map[string]*recycler{}
		lend := func(s *runtime.Spec) *runtime.Spec {
			o := &recycler{}
			owners[fmt.Sprint(s.Turn.ID, len(owners))] = o
			s.Owner, s.Window = o, []adapters.Message{{Role: adapters.RoleUser, Content: "w"}}
			return s
		}
		a := g.send(lend(spec("a", sleep(5*time.Second))))
		_ = g.send(lend(spec("waits", never(t)))).wait()
		joiner := g.send(lend(spec("a", never(t))))
		_ = g.send(lend(spec("b", never(t)))) // waits
		if _, err := g.Start(t.Context(), lend(spec("c", never(t)))); !errors.Is(err, runtime.ErrAtCapacity) {
			t.Errorf("Start = %v, want ErrAtCapacity", err)
		}
		conflict := lend(spec("a", never(t)))
		conflict.Fingerprint++
		if _, err := g.Start(t.Context(), conflict); !errors.Is(err, runtime.ErrConflict) {
			t.Errorf("Start = %v, want ErrConflict", err)
		}
		synctest.Wait()
		if n := owners["a0"].count(); n != 0 {
			t.Errorf("the running turn's window went back %d times", n)
		}
		_ = a.wait()
		_ = joiner.wait()
		_ = g.send(lend(spec("a", never(t)))).wait() // a replay
		synctest.Wait()
		for name, o := range owners {
			if n := o.count(); n != 1 {
				t.Errorf("the window of %s went back %d times, want once", name, n)
			}
		}
	})
}
