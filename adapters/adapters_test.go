package adapters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

func TestMeasure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		m     adapters.Measure
		known bool
		n     int64
		ok    bool
		text  string
	}{
		{adapters.Measure{}, false, 0, false, "unmeasured"},
		{adapters.RawMeasure(""), false, 0, false, "unmeasured"},
		{adapters.Count(0), true, 0, true, "0"},
		{adapters.Count(-3), true, -3, true, "-3"},
		{adapters.Count(math.MaxInt64), true, math.MaxInt64, true, "9223372036854775807"},
		{adapters.RawMeasure("7"), true, 7, true, "7"},
		{adapters.RawMeasure("9007199254740993"), true, 9007199254740993, true, "9007199254740993"},
		{adapters.RawMeasure("9223372036854775808"), true, 0, false, "9223372036854775808"},
		{adapters.RawMeasure("123456789012345678901234567890"), true, 0, false, "123456789012345678901234567890"},
		{adapters.RawMeasure("1.0"), true, 0, false, "1.0"},
		{adapters.RawMeasure(`"many"`), true, 0, false, `"many"`},
		{adapters.RawMeasure("null"), true, 0, false, "null"},
	} {
		n, ok := tt.m.Int()
		if tt.m.Known() != tt.known || ok != tt.ok || ok && n != tt.n || tt.m.String() != tt.text {
			t.Errorf("%s: known %v, Int = %d, %v; want known %v, %d, %v, text %q", tt.m, tt.m.Known(), n, ok, tt.known, tt.n, tt.ok, tt.text)
		}
	}
	if adapters.Count(5) != adapters.RawMeasure("5") {
		t.Error("Count(5) and RawMeasure(5) differ")
	}
}

func TestUsageMerge(t *testing.T) {
	t.Parallel()
	c := adapters.Count
	all := adapters.Usage{Tokens: c(1), CostMicros: c(2), WallTimeMS: c(3), Steps: c(4), InputTokens: c(5), OutputTokens: c(6), Fidelity: adapters.Estimated}
	other := adapters.Usage{Tokens: c(0), CostMicros: c(20), WallTimeMS: c(30), Steps: c(40), InputTokens: c(50), OutputTokens: c(60), Fidelity: adapters.Authoritative}
	for name, tt := range map[string]struct{ earlier, later, want adapters.Usage }{
		"nothing with nothing":       {adapters.Usage{}, adapters.Usage{}, adapters.Usage{}},
		"nothing later":              {all, adapters.Usage{}, all},
		"nothing earlier":            {adapters.Usage{}, all, all},
		"the last counts, also zero": {all, other, other},
		"axis by axis": {
			adapters.Usage{Tokens: c(1), Steps: c(1), Fidelity: adapters.HostMeasured},
			adapters.Usage{Tokens: c(9), CostMicros: c(9)},
			adapters.Usage{Tokens: c(9), CostMicros: c(9), Steps: c(1), Fidelity: adapters.HostMeasured},
		},
	} {
		earlier := tt.earlier
		if got := earlier.Merge(tt.later); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
		if earlier != tt.earlier {
			t.Errorf("%s: Merge changed what it was called on", name)
		}
	}
}

// The last report counts, not the sum of all.
func TestUsageReportsAreTotals(t *testing.T) {
	t.Parallel()
	report := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		return errors.Join(
			w.Usage(adapters.Usage{InputTokens: adapters.Count(27), OutputTokens: adapters.Count(1)}),
			w.Usage(adapters.Usage{OutputTokens: adapters.Count(20)}),
			w.Usage(adapters.Usage{OutputTokens: adapters.Count(47)}),
		)
	})
	res := adaptertest.Run(t.Context(), report, nil)
	want := adapters.Usage{InputTokens: adapters.Count(27), OutputTokens: adapters.Count(47)}
	if res.Usage != want || res.Err != nil {
		t.Errorf("usage %+v, error %v; want %+v", res.Usage, res.Err, want)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cause := io.ErrUnexpectedEOF
	for _, tt := range []struct {
		err  error
		text string
		is   error
	}{
		{adapters.Public("Try later.", nil), "Try later.", nil},
		{adapters.Public("Try later.", cause), "Try later.: unexpected EOF", cause},
		{&adapters.Unavailable{}, "provider unavailable", nil},
		{&adapters.Unavailable{Err: cause}, "provider unavailable: unexpected EOF", cause},
		{&adapters.Unavailable{Message: "Overloaded.", Err: cause}, "Overloaded.: unexpected EOF", cause},
		{&adapters.UnsupportedError{Feature: "tool", Protocol: adapters.Lowkey}, "tool is not supported under lowkey", adapters.ErrNotSupported},
		{adapters.CauseDrain, "turn ended: drain", adapters.CauseDrain},
	} {
		if tt.err.Error() != tt.text {
			t.Errorf("%#v: text %q, want %q", tt.err, tt.err, tt.text)
		}
		wrapped := fmt.Errorf("asking: %w", tt.err)
		if tt.is != nil && !errors.Is(wrapped, tt.is) {
			t.Errorf("%#v does not match %v", tt.err, tt.is)
		}
		if tt.is == nil && errors.Unwrap(tt.err) != nil {
			t.Errorf("%#v unwraps to %v, want nothing", tt.err, errors.Unwrap(tt.err))
		}
		for _, other := range []error{adapters.ErrTurnOver, adapters.ErrToolNotAdmitted, adapters.ErrNotSupported} {
			if errors.Is(wrapped, other) != (tt.is == other) { //nolint:errorlint // which row of the table it is
				t.Errorf("%#v matches %v", tt.err, other)
			}
		}
	}
	if e, ok := errors.AsType[*adapters.UnsupportedError](fmt.Errorf("asking: %w", &adapters.UnsupportedError{Feature: "ask", Protocol: adapters.Keiki})); !ok || e.Feature != "ask" || e.Protocol != adapters.Keiki {
		t.Errorf("a wrapped UnsupportedError is found as %v", e)
	}
}

func TestCauseOf(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	child, cancelChild := context.WithTimeout(ctx, time.Hour)
	defer cancelChild()
	if got := adapters.CauseOf(ctx); got != "" {
		t.Errorf("a live context ended because of %q", got)
	}
	cancel(fmt.Errorf("the 3rd reader: %w", adapters.CauseHostGone))
	for name, ctx := range map[string]context.Context{"context": ctx, "derived context": child} {
		if got := adapters.CauseOf(ctx); got != adapters.CauseHostGone {
			t.Errorf("%s ended because of %q, want %q", name, got, adapters.CauseHostGone)
		}
	}

	plain, cancelPlain := context.WithCancel(t.Context())
	cancelPlain()
	if got := adapters.CauseOf(plain); got != "" {
		t.Errorf("a cancellation that is not the engine's has the cause %q", got)
	}
	own, cancelOwn := context.WithTimeout(t.Context(), 0)
	defer cancelOwn()
	if got := adapters.CauseOf(own); got != "" {
		t.Errorf("a deadline of the adapter's own has the cause %q", got)
	}
}

func TestFromSeq(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	var yielded, cleanedUp int
	seq := func(chunks ...any) adapters.Adapter {
		return adapters.FromSeq(func(context.Context, *adapters.Turn) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				defer func() { cleanedUp++ }()
				for _, c := range chunks {
					yielded++
					s, _ := c.(string)
					err, _ := c.(error)
					if !yield(s, err) {
						return
					}
				}
			}
		})
	}
	if res := adaptertest.Run(t.Context(), seq("a", "", "b"), nil); res.Text() != "ab" || res.Err != nil {
		t.Errorf("text %q, error %v", res.Text(), res.Err)
	}
	yielded = 0
	if res := adaptertest.Run(t.Context(), seq("a", failed, "b"), nil); res.Text() != "a" || !errors.Is(res.Err, failed) || yielded != 2 {
		t.Errorf("an error in the sequence: text %q, error %v, %d elements asked for", res.Text(), res.Err, yielded)
	}
	yielded = 0
	ctx, cancel := context.WithCancelCause(t.Context())
	turn := adaptertest.NewTurn("")
	turn.OnText = func(string) { cancel(adapters.CauseHostGone) }
	if res := adaptertest.Run(ctx, seq("a", "b", "c"), turn); res.Text() != "a" || !errors.Is(res.Err, adapters.ErrTurnOver) || yielded != 2 {
		t.Errorf("a failed write: text %q, error %v, %d elements asked for", res.Text(), res.Err, yielded)
	}
	if cleanedUp != 3 {
		t.Errorf("%d of 3 sequences were left properly", cleanedUp)
	}
}

func TestExerciseFromSeq(t *testing.T) {
	adaptertest.Exercise(t, func() adapters.Adapter {
		return adapters.FromSeq(func(_ context.Context, turn *adapters.Turn) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for word := range strings.SplitSeq(turn.Message, " ") {
					if !yield(word, nil) {
						return
					}
				}
			}
		})
	})
}

// Middleware passes the suite that the adapters pass.
func TestExerciseMiddleware(t *testing.T) {
	adaptertest.Exercise(t, func() adapters.Adapter {
		return counting{adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return errors.Join(w.Status("thinking"), w.Text(turn.Message), w.Usage(adapters.Usage{Steps: adapters.Count(1)}))
		}), func(int64) {}}
	})
}

func TestSessionTakesValuesAsTheyAre(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s").Values()
	type value struct{ List []string }
	v := value{[]string{"a"}}
	raw := json.RawMessage(`{"n":1}`)
	if err := errors.Join(s.Store("v", v), s.Store("raw", raw)); err != nil {
		t.Fatal(err)
	}
	v.List[0] = "changed"
	copy(raw, `[changed`)

	var got value
	var gotRaw json.RawMessage
	for range 2 { // what is loaded is the adapter's own, too
		if ok, err := s.Load("v", &got); !ok || err != nil || got.List[0] != "a" {
			t.Errorf("loaded %v (%v, %v), want what was stored", got, ok, err)
		}
		if ok, err := s.Load("raw", &gotRaw); !ok || err != nil || string(gotRaw) != `{"n":1}` {
			t.Errorf("loaded %s (%v, %v), want what was stored", gotRaw, ok, err)
		}
		got.List[0] = "changed"
		copy(gotRaw, `[changed`)
	}
}

func TestFaultA7SessionValuesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s").Values()
	for _, text := range []string{
		"9007199254740993", "123456789012345678901234567890", "1.10", "1E+2", "-0", `"\u00e9\/"`, "null",
		`{ "b" : 1E+2,"a":[1.10, 123456789012345678901234567890],"a":"<&>" }`,
	} {
		if err := s.Store("k", json.RawMessage(text)); err != nil {
			t.Errorf("Store(%s): %v", text, err)
		}
		var got json.RawMessage
		if ok, err := s.Load("k", &got); !ok || err != nil || string(got) != text {
			t.Errorf("loaded %s (%v, %v), want %s", got, ok, err, text)
		}
	}
}

func TestSessionErrors(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s").Values()
	if s.ID() != "s" {
		t.Errorf("id %q", s.ID())
	}
	for name, v := range map[string]any{
		"a channel":      make(chan int),
		"broken JSON":    json.RawMessage(`{"a":`),
		"several values": json.RawMessage(`1 2`),
		"no JSON at all": json.RawMessage(``),
		"not a number":   math.NaN(),
	} {
		err := s.Store("k", v)
		if err == nil || !strings.HasPrefix(err.Error(), `session value "k": `) {
			t.Errorf("Store of %s: error %v", name, err)
		}
		if ok, _ := s.Load("k", new(any)); ok {
			t.Errorf("Store of %s kept something", name)
		}
	}

	n := 7
	if ok, err := s.Load("k", &n); ok || err != nil || n != 7 {
		t.Errorf("Load of nothing = %v, %v, and put %d", ok, err, n)
	}
	if err := s.Store("k", "text"); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Load("k", &n); ok || err == nil || !strings.HasPrefix(err.Error(), `session value "k": `) {
		t.Errorf("Load of a string into a number = %v, %v", ok, err)
	}
	if err := errors.Join(s.Delete("k"), s.Delete("k")); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if ok, _ := s.Load("k", new(any)); ok {
		t.Error("a deleted value is still there")
	}
}

func TestSessionClear(t *testing.T) {
	t.Parallel()
	s, other := adaptertest.NewSession("s").Values(), adaptertest.NewSession("other").Values()
	if err := errors.Join(s.Store("a", 1), s.Store("b", 2), other.Store("a", 3), s.Clear(), s.Clear()); err != nil {
		t.Fatal(err)
	}
	for key, session := range map[string]*adapters.Session{"a": s, "b": s} {
		if ok, _ := session.Load(key, new(any)); ok {
			t.Errorf("%s is still there", key)
		}
	}
	if ok, _ := other.Load("a", new(any)); !ok {
		t.Error("another session's value is gone")
	}

	// The first error ends it and is returned.
	full := adapters.NewSession("full", stuck{})
	if err := full.Clear(); !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("Clear of a session that is over: error %v", err)
	}
}

// stuck has a value and cannot delete it.
type stuck struct{ memory }

func (stuck) Keys() []string      { return []string{"a"} }
func (stuck) Delete(string) error { return adapters.ErrTurnOver }

func TestValue(t *testing.T) {
	t.Parallel()
	type draft struct {
		Title string
		Words []string
	}
	v := adapters.NewValue[draft]("draft")
	s := adaptertest.NewSession("s").Values()
	if got, ok, err := v.Load(s); ok || err != nil || got.Title != "" {
		t.Errorf("Load of nothing = %v, %v, %v", got, ok, err)
	}
	want := draft{"a", []string{"b"}}
	if err := v.Store(s, want); err != nil {
		t.Fatal(err)
	}
	got, ok, err := v.Load(s)
	if diff := cmp.Diff(want, got); diff != "" || !ok || err != nil {
		t.Errorf("Load = %v, %v (-want +got):\n%s", ok, err, diff)
	}
	if _, ok, err := adapters.NewValue[int]("draft").Load(s); ok || err == nil {
		t.Errorf("Load as another type = %v, %v, want an error", ok, err)
	}
	if err := v.Delete(s); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := v.Load(s); ok {
		t.Error("the deleted value is still there")
	}
}
