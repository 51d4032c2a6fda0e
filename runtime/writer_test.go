package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// texts are the chunks that a host has got.
func texts(t *testing.T, lines []string) (chunks []string) {
	t.Helper()
	for _, l := range lines {
		quoted, ok := strings.CutPrefix(l, "text ")
		if !ok {
			continue
		}
		s, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("line %q: %v", l, err)
		}
		chunks = append(chunks, s)
	}
	return chunks
}

// replaced is s with U+FFFD in place of each byte that belongs to no character.
func replaced(s string) string {
	var b strings.Builder
	for _, r := range s { // ranging takes each invalid byte by itself
		b.WriteRune(r)
	}
	return b.String()
}

// The answer is the concatenation of its chunks, byte for byte, wherever it is cut.
func TestTextIsJoined(t *testing.T) {
	t.Parallel()
	cut := func(at ...int) func(string) []string {
		return func(s string) (parts []string) {
			from := 0
			for _, i := range at {
				parts, from = append(parts, s[from:i]), i
			}
			return append(parts, s[from:])
		}
	}
	for name, tc := range map[string]struct {
		text string
		cut  func(string) []string
		want []string
	}{
		"whole":                            {"naïve 渐渐 👩🏽‍🚀", cut(), []string{"naïve 渐渐 👩🏽‍🚀"}},
		"two bytes":                        {"é", cut(1), []string{"é"}},
		"three bytes":                      {"a渐b", cut(2, 3), []string{"a", "渐b"}},
		"four bytes":                       {"😀", cut(1, 2, 3), []string{"😀"}},
		"empty chunks in between":          {"😀", cut(1, 1, 2, 2, 3), []string{"😀"}},
		"no character":                     {"\xff", cut(), []string{"\uFFFD"}},
		"a run of no characters":           {"\xff\xfe\x80", cut(1, 2), []string{"\uFFFD", "\uFFFD", "\uFFFD"}},
		"cut off, then something else":     {"\xe6\xb8x", cut(2), []string{"\uFFFD\uFFFDx"}},
		"cut off, then another":            {"\xe6\xb8\xe6\xb8\x90", cut(2, 4), []string{"\uFFFD\uFFFD", "渐"}},
		"cut off at the end":               {"a\xf0\x9f\x98", cut(2), []string{"a", "\uFFFD\uFFFD\uFFFD"}},
		"one byte at the end":              {"\xc3", cut(), []string{"\uFFFD"}},
		"a surrogate is no character":      {"\xed\xa0\x80", cut(1, 2), []string{"\uFFFD\uFFFD", "\uFFFD"}},
		"too long a form":                  {"\xc0\xaf", cut(1), []string{"\uFFFD", "\uFFFD"}},
		"too high":                         {"\xf4\x90\x80\x80", cut(1), []string{"\uFFFD\uFFFD\uFFFD\uFFFD"}},
		"a replacement character, as such": {"\uFFFD", cut(1), []string{"\uFFFD"}},
		"NUL and line ends":                {"\x00\n\r\u2028", cut(1), []string{"\x00", "\n\r\u2028"}},
	} {
		for _, status := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/status=%t", name, status), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					g := newRig(t, none)
					h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
						for i, p := range tc.cut(tc.text) {
							if i%2 == 0 {
								if err := w.Text(p); err != nil {
									return err
								}
							} else if n, err := w.Write([]byte(p)); err != nil || n != len(p) {
								return fmt.Errorf("Write = %d, %w", n, err)
							}
							if status {
								if err := w.Status("\xc3"); err != nil { // which is joined with nothing
									return err
								}
							}
						}
						return nil
					})))
					_ = h.wait()
					if got := texts(t, h.lines()); !slices.Equal(got, tc.want) {
						t.Errorf("the host has got the chunks %q, want %q", got, tc.want)
					}
					if h.last() != "end completed completed" {
						t.Errorf("the last line is %q", h.last())
					}
					for _, l := range h.lines() {
						if strings.HasPrefix(l, "status") && l != `status "`+"\uFFFD"+`"` {
							t.Errorf("the host has got %q", l)
						}
					}
					e := g.end("t")
					if want := len(strings.Join(tc.want, "")); e.Bytes != int64(want) || e.Chunks != int64(len(tc.want)) {
						t.Errorf("%d chunks of %d bytes counted, want %d of %d", e.Chunks, e.Bytes, len(tc.want), want)
					}
				})
			})
		}
	}
}

// Fault A4, for the engine: whatever the bytes and the cuts, what arrives is the same.
func TestTextIsJoinedProperty(t *testing.T) {
	t.Parallel()
	g := newRig(t, runtime.Config{Replay: -1})
	g.realTime = true // properties and bubbles do not mix
	id := 0
	rapid.Check(t, func(rt *rapid.T) {
		var whole strings.Builder
		chunks := rapid.SliceOfN(rapid.OneOf(
			rapid.String(),
			rapid.Custom(func(rt *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(rt, "bytes")) }),
			rapid.SampledFrom([]string{"", "\xf0", "\x9f", "\x98", "\x80", "\xe6", "\xb8", "\x90", "\xc3", "\xa9", "x"}),
		), 0, 20).Draw(rt, "chunks")
		statuses := rapid.SliceOfN(rapid.Bool(), len(chunks), len(chunks)).Draw(rt, "statuses")
		for _, c := range chunks {
			whole.WriteString(c)
		}
		id++
		h := g.send(spec(fmt.Sprint(id), adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for i, c := range chunks {
				if statuses[i] {
					_ = w.Status("s")
				}
				if _, err := w.Write([]byte(c)); err != nil {
					return err
				}
			}
			return nil
		})))
		if err := h.wait(); err != nil {
			rt.Fatal(err)
		}
		if got, want := strings.Join(texts(t, h.lines()), ""), replaced(whole.String()); got != want {
			rt.Fatalf("the text is %q, want %q", got, want)
		}
		if !utf8.ValidString(h.seen()) || h.last() != "end completed completed" {
			rt.Fatalf("the host has got %q", h.seen())
		}
	})
}

// Several goroutines may write at once: each call stays whole, each goroutine's calls in order.
func TestWriterFromManyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		const writers, each = 16, 200
		h := g.send(spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					for j := range each {
						var err error
						switch s := fmt.Sprintf("%d.%d ", i, j); j % 4 {
						case 0:
							err = w.Text(s)
						case 1:
							_, err = w.Write([]byte(s))
						case 2:
							err = errors.Join(w.Status(s), w.Usage(adapters.Usage{Steps: adapters.Count(int64(j))}))
						case 3:
							_, unsupported := w.Tool(ctx, adapters.ToolRequest{})
							if !errors.Is(unsupported, adapters.ErrNotSupported) {
								t.Errorf("Tool = %v", unsupported)
							}
							err = w.Text(s)
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			return nil
		})))
		_ = h.wait()
		next := make([]int, writers)
		for _, l := range h.lines()[1 : 1+writers*each] {
			_, quoted, _ := strings.Cut(l, " ")
			var i, j int
			if n, err := fmt.Sscanf(quoted, `"%d.%d "`, &i, &j); n != 2 || err != nil {
				t.Fatalf("line %q", l)
			}
			if j != next[i] {
				t.Fatalf("writer %d's call %d came when %d was due", i, j, next[i])
			}
			next[i]++
		}
		if e := g.end("t"); e.Chunks != writers*each*3/4 {
			t.Errorf("%d chunks counted", e.Chunks)
		}
		if h.last() != "end completed completed" || len(h.lines()) != writers*each+2 {
			t.Errorf("%d lines, the last is %q", len(h.lines()), h.last())
		}
	})
}

// A character may be split between goroutines, as long as they take turns.
func TestACharacterFromTwoGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			first := make(chan struct{})
			go func() {
				_ = w.Text("\xc3")
				close(first)
			}()
			<-first
			_ = w.Status("thinking")
			return w.Text("\xa9")
		})))
		_ = h.wait()
		h.wantLines("started", `status "thinking"`, `text "é"`, "end completed completed")
	})
}

// Write does not keep its argument, whether it is text, part of a character, or none.
func TestWriteKeepsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			buf := make([]byte, 0, 64)
			for _, c := range []string{"abc", "\xe6", "\xb8", "\x90", "\xff", "tail"} {
				buf = append(buf[:0], c...)
				if _, err := w.Write(buf); err != nil {
					return err
				}
				for i := range buf {
					buf[i] = '#'
				}
			}
			return nil
		}))
		h := g.send(s)
		_ = h.wait()
		if got := strings.Join(texts(t, h.lines()), ""); got != "abc渐\uFFFDtail" {
			t.Errorf("the text is %q", got)
		}
		// What is remembered of it must not have changed either.
		next := spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return w.Text(turn.History[1].Content)
		}))
		next.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "message of t"}, {Role: adapters.RoleAgent, Content: "abc渐\uFFFDtail"}}
		n := g.send(next)
		_ = n.wait()
		n.wantLines("started", `text "abc渐`+"\uFFFD"+`tail"`, "end completed completed")
	})
}

// Lines of any size arrive whole, in any order of sizes.
func TestChunksOfAnySize(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		sizes := []int{1, 400, 900, 1000, 4000, 4096, 8000, 32700, 32768, 40000, 100, 300_000, 5, 31000, 31000, 31000, 1 << 20}
		r := rand.New(rand.NewPCG(1, 2))
		for range 100 {
			sizes = append(sizes, r.IntN(40000))
		}
		var want []string
		for i, n := range sizes {
			want = append(want, strings.Repeat(string(rune('a'+i%26)), n))
		}
		h := g.send(spec("t", say(want...)))
		if err := h.wait(); err != nil {
			t.Errorf("Serve = %v", err)
		}
		want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
		if got := texts(t, h.lines()); !slices.Equal(got, want) {
			t.Errorf("%d chunks, want %d", len(got), len(want))
		}
	})
}

func TestUsageIsMerged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		var seen []adapters.Usage
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for _, u := range []adapters.Usage{
				{Tokens: adapters.Count(1), Steps: adapters.Count(1), InputTokens: adapters.Count(9)},
				{Tokens: adapters.Count(5), Fidelity: adapters.Authoritative},
				{},
				{CostMicros: adapters.RawMeasure("1.5"), Steps: adapters.Count(0)},
			} {
				if err := w.Usage(u); err != nil {
					return err
				}
			}
			return errors.New("usage counts also when the turn fails")
		}))
		s.Sink = usageSink{seen: &seen}
		h := g.send(s)
		_ = h.wait()
		e := g.end("t")
		want := adapters.Usage{
			Tokens: adapters.Count(5), CostMicros: adapters.RawMeasure("1.5"), Steps: adapters.Count(0),
			InputTokens: adapters.Count(9), Fidelity: adapters.Authoritative,
		}
		if e.Usage != want || !e.UsageReported {
			t.Errorf("usage is %+v, want %+v", e.Usage, want)
		}
		if len(seen) != 4 || seen[3].CostMicros != want.CostMicros {
			t.Errorf("the sink saw %+v", seen)
		}
		h.wantLines("started", "end failed adapter-error")

		_ = g.send(spec("none", say("x"))).wait()
		if e := g.end("none"); e.UsageReported || e.Usage.Tokens.Known() {
			t.Errorf("usage is %+v although none was reported", e.Usage)
		}
		_ = g.send(spec("empty", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Usage(adapters.Usage{})
		}))).wait()
		if e := g.end("empty"); !e.UsageReported || e.Usage != (adapters.Usage{}) {
			t.Errorf("usage is %+v, reported: %t, want an empty report", e.Usage, e.UsageReported)
		}
	})
}

type usageSink struct {
	lineSink
	seen *[]adapters.Usage
}

func (s usageSink) Usage(u adapters.Usage) { *s.seen = append(*s.seen, u) }

func TestWhatAProtocolDoesNotHave(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, tool := w.Tool(ctx, adapters.ToolRequest{})
			_, ask := w.Ask(ctx, adapters.Question{})
			arrivals, taken := w.Arrivals()
			if arrivals != nil {
				t.Error("Arrivals returned a channel")
			}
			for feature, err := range map[string]error{
				"tool": tool, "ask": ask, "arrivals": taken, "candidate": w.Candidate(json.RawMessage("{}")),
			} {
				var unsupported *adapters.UnsupportedError
				if !errors.Is(err, adapters.ErrNotSupported) || !errors.As(err, &unsupported) {
					t.Errorf("%s = %v, want an UnsupportedError", feature, err)
					continue
				}
				if *unsupported != (adapters.UnsupportedError{Feature: feature, Protocol: adapters.Keiki}) {
					t.Errorf("%s: %+v", feature, *unsupported)
				}
				if errors.Is(err, adapters.ErrTurnOver) {
					t.Errorf("%s = %v although the turn is not over", feature, err)
				}
			}
			time.Sleep(time.Second)
			return w.Text("x")
		}))
		s.Turn.Protocol = adapters.Keiki
		_ = g.send(s).wait()
		if e := g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, time.Second); e.FirstOutput != time.Second {
			t.Errorf("the first output came after %v", e.FirstOutput)
		}
	})
}

// A recorder is a protocol that remembers what was asked of it.
type recorder struct {
	lineSink
	tools     chan adapters.ToolRequest
	questions chan adapters.Question
	answer    adapters.Observation
	err       error
}

func (s recorder) Tool(_ context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
	s.tools <- r
	return s.answer, s.err
}

func (s recorder) Ask(_ context.Context, q adapters.Question) (adapters.Observation, error) {
	s.questions <- q
	return s.answer, s.err
}

func TestToolsAndQuestions(t *testing.T) {
	t.Parallel()
	failed := errors.New("no connection")
	for name, tc := range map[string]struct {
		answer adapters.Observation
		err    error
	}{
		"admitted": {adapters.Observation{Admitted: true, Receipt: "r-1", Evidence: []string{"e"}}, nil},
		"refused":  {adapters.Observation{Reason: "policy-denied"}, nil}, // which is no error
		"failed":   {adapters.Observation{}, failed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, none)
				sink := recorder{tools: make(chan adapters.ToolRequest, 1), questions: make(chan adapters.Question, 1), answer: tc.answer, err: tc.err}
				request := adapters.ToolRequest{Ref: "tool:x", Schema: "s", Input: json.RawMessage(`{"n":9007199254740993}`)}
				question := adapters.Question{Schema: "q", Question: json.RawMessage(`{"a":1.0}`)}
				s := spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
					o, err := w.Tool(ctx, request)
					if !cmp.Equal(o, tc.answer) || !errors.Is(err, tc.err) {
						t.Errorf("Tool = %+v, %v, want %+v, %v", o, err, tc.answer, tc.err)
					}
					o, err = w.Ask(ctx, question)
					if !cmp.Equal(o, tc.answer) || !errors.Is(err, tc.err) {
						t.Errorf("Ask = %+v, %v, want %+v, %v", o, err, tc.answer, tc.err)
					}
					return nil
				}))
				s.Sink = sink
				_ = g.send(s).wait()
				if diff := cmp.Diff(request, <-sink.tools); diff != "" {
					t.Errorf("the request (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(question, <-sink.questions); diff != "" {
					t.Errorf("the question (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Whoever waits for an observation learns of the turn's end, whatever context the adapter passed on.
func TestObservationsEndWithTheTurn(t *testing.T) {
	t.Parallel()
	for name, background := range map[string]bool{"the turn's context": false, "a context of the adapter's own": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := newRig(t, none)
				s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if background {
						ctx = context.WithValue(context.WithoutCancel(ctx), hookKey{}, "own")
					}
					_, err := w.Tool(ctx, adapters.ToolRequest{})
					isOver(t, "Tool", err, adapters.CauseStopped)
					return err
				}))
				s.Sink = mediatedSink{answer: func(ctx context.Context) (adapters.Observation, error) {
					if background && ctx.Value(hookKey{}) != "own" {
						t.Error("the context's values are lost")
					}
					return after(time.Hour)(ctx)
				}}
				h := g.send(s)
				g.until(time.Second)
				g.Stop(adapters.Lowkey, key("s"), "t")
				_ = h.wait()
				g.wantEnd("t", runtime.Cancelled, adapters.CauseStopped, time.Second)
			})
		})
	}
}

// The adapter's own context still bounds its wait.
func TestAnAdapterMayGiveUpAnObservation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := w.Tool(short, adapters.ToolRequest{})
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, adapters.ErrTurnOver) {
				t.Errorf("Tool = %v, want the adapter's own deadline", err)
			}
			return w.Text("without it")
		}))
		s.Sink = mediatedSink{answer: after(time.Hour)}
		h := g.send(s)
		_ = h.wait()
		h.wantLines("started", `text "without it"`, "end completed completed")
	})
}

// A panic of a protocol's Tool is one on the adapter's goroutine, and leaves the clocks as they were.
func TestAPanicWhileAnObservationIsAwaited(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.Idle = 3 * time.Second
		g := newRig(t, conf)
		s := spec("t", adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			func() {
				defer func() { _ = recover() }()
				_, _ = w.Tool(ctx, adapters.ToolRequest{})
			}()
			return block(ctx, turn, w)
		}))
		s.Sink = mediatedSink{answer: func(context.Context) (adapters.Observation, error) { panic("in Tool") }}
		_ = g.send(s).wait()
		g.wantEnd("t", runtime.Failed, adapters.CauseIdle, 3*time.Second)
	})
}

func TestCandidates(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			event := []byte(`{"a":1}`)
			if err := w.Candidate(event); err != nil {
				t.Errorf("Candidate = %v", err)
			}
			copy(event, "#######")
			if err := w.Candidate(json.RawMessage("bad")); err == nil || err.Error() != "bad event" {
				t.Errorf("Candidate = %v, want the sink's own error", err)
			}
			_ = w.Text("x")
			return w.Candidate(json.RawMessage(`{"b":2}`))
		}))
		s.Sink = fullSink{}
		h := g.send(s)
		_ = h.wait()
		h.wantLines("started", `candidate {"a":1}`, `text "x"`, `candidate {"b":2}`, "end completed completed")
	})
}

func TestArrivals(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		arrivals := make(chan adapters.Arrival, 4)
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			in, err := w.Arrivals()
			again, err2 := w.Arrivals()
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			if in != again {
				t.Error("two calls of Arrivals gave two channels")
			}
			for a := range in {
				if err := w.Text(a.Messages[0].Text); err != nil {
					return err
				}
			}
			return nil
		}))
		s.Sink = fullSink{arrivals: arrivals}
		h := g.send(s)
		for i, text := range []string{"one", "two"} {
			g.until(time.Duration(i+1) * time.Second)
			arrivals <- adapters.Arrival{Sequence: int64(i) + 1, Messages: []adapters.Inbound{{Text: text}}}
		}
		g.until(3 * time.Second)
		h.wantLines("started", `text "one"`, `text "two"`)
		close(arrivals)
		_ = h.wait()
	})
}

// Goroutines that an adapter leaves behind write nowhere.
func TestGoroutinesThatOutliveTheirTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		var late sync.WaitGroup
		h := g.send(spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			late.Go(func() {
				for w.Text("x") == nil {
				}
				allOver(t, "afterwards", w, adapters.CauseCompleted)
			})
			return w.Text("first")
		})))
		_ = h.wait()
		late.Wait()
		if h.last() != "end completed completed" || h.count("end") != 1 {
			t.Errorf("the lines end with %q", h.lines()[max(0, len(h.lines())-3):])
		}
		if e := g.end("t"); int64(h.count("text")) != e.Chunks {
			t.Errorf("%d chunks counted, %d on the wire", e.Chunks, h.count("text"))
		}
		replay := g.send(spec("t", never(t)))
		_ = replay.wait()
		if replay.seen() != h.seen() {
			t.Error("the replay has something else")
		}
	})
}

// A settling protocol has something to commit before the last line.
type settlingSink struct {
	lineSink
	settle func(o *runtime.Outcome)
}

func (s settlingSink) Settle(o *runtime.Outcome) { s.settle(o) }

func TestSettle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		adapter  adapters.Func
		to       runtime.Status // changed to; empty for no change
		cause    adapters.Cause
		status   runtime.Status
		want     adapters.Cause
		at       time.Duration
		remember int // messages in the next turn's history
	}{
		"completed":                {say("x"), "", "", runtime.Completed, adapters.CauseCompleted, 3 * time.Second, 2},
		"failed":                   {returning(errors.New("e")), "", "", runtime.Failed, adapters.CauseAdapter, 3 * time.Second, 0},
		"panicked":                 {panicking("v"), "", "", runtime.Failed, adapters.CausePanic, 3 * time.Second, 0},
		"completed, found failed":  {say("x"), runtime.Failed, "usage-missing", runtime.Failed, "usage-missing", 3 * time.Second, 0},
		"failed, found completed":  {returning(errors.New("e")), runtime.Completed, adapters.CauseCompleted, runtime.Completed, adapters.CauseCompleted, 3 * time.Second, 2},
		"an adapter left behind":   {sleep(time.Hour), "", "", runtime.Failed, adapters.CauseTurnTimeout, 15 * time.Second, 0},
		"that panics in its sleep": {func(context.Context, *adapters.Turn, adapters.Writer) error { time.Sleep(time.Hour); panic("late") }, "", "", runtime.Failed, adapters.CauseTurnTimeout, 15 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				conf := none
				conf.TurnTimeout = 10 * time.Second
				g := newRig(t, conf)
				var settled atomic.Int64
				var out runtime.Output
				s := spec("t", tc.adapter)
				s.Sink = settlingSink{settle: func(o *runtime.Outcome) {
					settled.Add(1)
					if !g.running("t") {
						t.Error("settled after the end")
					}
					time.Sleep(3 * time.Second) // a commit
					if err := out.Append(func(dst []byte) []byte { return append(dst, "charged\n"...) }); err != nil {
						t.Errorf("Append = %v", err)
					}
					if tc.to != "" {
						o.Status, o.Cause = tc.to, tc.cause
					}
				}}
				stream, err := g.Start(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				out = stream.Output()
				h := g.serve(newConn(t), stream)
				synctest.Wait()
				next := spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					return w.Text(fmt.Sprint(len(turn.History)))
				}))
				next.Deadline = g.began.Add(time.Minute)
				if tc.remember > 0 {
					next.Window = []adapters.Message{{Role: adapters.RoleAgent, Content: "x"}}
				}
				n := g.send(next)
				_ = n.wait()
				synctest.Wait()
				g.wantEnd("t", tc.status, tc.want, tc.at)
				if e := g.end("next"); e.at != tc.at {
					t.Errorf("the next turn of the session ended at %v, want when this one had settled, at %v", e.at, tc.at)
				}
				if n := settled.Load(); n != 1 {
					t.Errorf("settled %d times", n)
				}
				lines := h.lines()
				if l := len(lines); l < 2 || lines[l-2] != "charged" || lines[l-1] != fmt.Sprintf("end %s %s", tc.status, string(tc.want)) {
					t.Errorf("the host has got %q", lines)
				}
				if l := g.log.turn(t, "t"); l["status"] != string(tc.status) || l["cause"] != string(tc.want) {
					t.Errorf("the log says %v", l)
				}
				if want := fmt.Sprintf("text %q", fmt.Sprint(tc.remember)); n.lines()[1] != want {
					t.Errorf("the next turn's history: %s, want %s", n.lines()[1], want)
				}
				if got := g.Stats().Replayable; got != map[bool]int64{true: 2, false: 1}[tc.status == runtime.Completed] {
					t.Errorf("%d turns can be replayed", got)
				}
				<-h.done
			})
		})
	}
}

// Between the adapter's return and the last line nothing of the adapter's gets out any more.
func TestLateOutputWhileSettling(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		var late sync.WaitGroup
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			late.Go(func() {
				time.Sleep(time.Second)
				isOver(t, "Text", w.Text("late"), "")
				isOver(t, "Status", w.Status("late"), "")
				isOver(t, "Usage", w.Usage(adapters.Usage{Steps: adapters.Count(9)}), "")
			})
			return w.Text("x")
		}))
		s.Sink = settlingSink{settle: func(*runtime.Outcome) { time.Sleep(2 * time.Second) }}
		h := g.send(s)
		_ = h.wait()
		late.Wait()
		h.wantLines("started", `text "x"`, "end completed completed")
		if e := g.end("t"); e.Chunks != 1 || e.UsageReported {
			t.Errorf("%d chunks, usage reported: %t", e.Chunks, e.UsageReported)
		}
	})
}
