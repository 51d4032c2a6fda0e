package session_test

import (
	"errors"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

func TestContinuity(t *testing.T) {
	t.Parallel()
	a, b, c, d := user("a"), agent("b"), user("c"), agent("d")
	past := talk(a, b, c, d)
	tests := map[string]struct {
		window, history []adapters.Message
		how             adapters.Continuity
	}{
		"all of it":                {talk(a, b, c, d), talk(a, b, c, d), adapters.ContinuitySame},
		"all of it, and more":      {talk(a, b, c, d, a), talk(a, b, c, d, a), adapters.ContinuitySame},
		"its end":                  {talk(c, d), talk(a, b, c, d), adapters.ContinuityExtended},
		"its end, and more":        {talk(d, a, b), talk(a, b, c, d, a, b), adapters.ContinuityExtended},
		"its beginning":            {talk(a, b), talk(a, b), adapters.ContinuityReplaced},
		"its middle":               {talk(b, c), talk(b, c), adapters.ContinuityReplaced},
		"in part, then different":  {talk(c, a), talk(c, a), adapters.ContinuityReplaced},
		"another role":             {talk(agent("d"), a), talk(a, b, c, d, a), adapters.ContinuityExtended},
		"another role at its end":  {talk(user("d"), a), talk(user("d"), a), adapters.ContinuityReplaced},
		"something else":           {talk(user("x")), talk(user("x")), adapters.ContinuityReplaced},
		"more before than is kept": {talk(user("x"), a, b, c, d), talk(user("x"), a, b, c, d), adapters.ContinuityReplaced},
		"nothing":                  {nil, []adapters.Message{}, adapters.ContinuityCleared},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := newCache(t, session.Config{})
			turn(t, cache, key("s"), past[:2], "c", "d")
			got, how := peek(t, cache, key("s"), tt.window...)
			wantHistory(t, got, tt.history)
			wantHow(t, how, tt.how)
			check(t, cache)
		})
	}
}

func TestTimestampsTellEqualMessagesApart(t *testing.T) {
	t.Parallel()
	at := func(m adapters.Message, ms int64) adapters.Message {
		m.Time = time.UnixMilli(ms)
		return m
	}
	ok := user("ok")
	tests := map[string]struct {
		past, window []adapters.Message
		length       int
		how          adapters.Continuity
	}{
		"both have one, equal":      {talk(at(ok, 1)), talk(at(ok, 1)), 1, adapters.ContinuitySame},
		"both have one, other":      {talk(at(ok, 1)), talk(at(ok, 2)), 1, adapters.ContinuityReplaced},
		"only the window has one":   {talk(ok), talk(at(ok, 2)), 1, adapters.ContinuitySame},
		"only the past has one":     {talk(at(ok, 1)), talk(ok), 1, adapters.ContinuitySame},
		"the epoch is a time":       {talk(at(ok, 0)), talk(at(ok, 1)), 1, adapters.ContinuityReplaced},
		"they move the overlap":     {talk(at(ok, 1), at(ok, 2)), talk(at(ok, 2), at(ok, 3)), 3, adapters.ContinuityExtended},
		"missing ones do not":       {talk(ok, ok), talk(at(ok, 2), at(ok, 3)), 2, adapters.ContinuitySame},
		"not transitive":            {talk(at(ok, 1), ok, at(ok, 2)), talk(at(ok, 3), ok, ok), 4, adapters.ContinuityExtended},
		"another zone, same moment": {talk(at(ok, 1)), talk(adapters.Message{Role: ok.Role, Content: "ok", Time: time.UnixMilli(1).UTC()}), 1, adapters.ContinuitySame},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := newCache(t, session.Config{})
			l := acquire(t, cache, key("s"))
			l.Join(tt.past)
			l.Commit(adapters.Message{}, adapters.Message{})
			l.Release()
			got, how := peek(t, cache, key("s"), tt.window...)
			if len(got) != tt.length {
				t.Errorf("history has %d messages, want %d", len(got), tt.length)
			}
			wantHistory(t, got[len(got)-len(tt.window):], tt.window)
			wantHow(t, how, tt.how)
		})
	}
}

func TestUnknownSessions(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})

	got, how := peek(t, c, key("s"))
	wantHow(t, how, adapters.ContinuityNew)
	if got == nil {
		t.Error("an empty history is nil")
	}
	_, how = peek(t, c, key("s"), user("a"))
	wantHow(t, how, adapters.ContinuityNew) // the turn before failed and left nothing

	l := acquire(t, c, key("s"))
	store(t, l, "k", `1`)
	_, how = l.Join(talk(user("a")))
	wantHow(t, how, adapters.ContinuityNew) // storing first does not make it known
	l.Release()

	got, how = peek(t, c, key("s"), user("a"))
	wantHow(t, how, adapters.ContinuitySame) // known by its value, with nothing said
	wantHistory(t, got, talk(user("a")))
	_, how = peek(t, c, session.Key{Plugin: "muse", Principal: "other", Handle: "s"})
	wantHow(t, how, adapters.ContinuityNew)
	_, how = peek(t, c, session.Key{Plugin: "musedefault", Handle: "s"})
	wantHow(t, how, adapters.ContinuityNew)
	check(t, c)
}

func TestOnlyCommitExtends(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	turn(t, c, key("s"), nil, "a", "b")

	l := acquire(t, c, key("s"))
	l.Join(talk(user("edited")))
	store(t, l, "k", `"held"`)
	l.Release() // failed

	l = acquire(t, c, key("s"))
	got, how := l.Join(talk(agent("b")))
	wantHistory(t, got, talk(user("a"), agent("b")))
	wantHow(t, how, adapters.ContinuityExtended)
	wantValue(t, l, "k", `"held"`)
	l.Commit(user("c"), agent("d"))
	l.Commit(user("again"), agent("again")) // only the first counts
	l.Release()
	l.Commit(user("late"), agent("late"))

	got, _ = peek(t, c, key("s"), agent("d"))
	wantHistory(t, got, talk(user("a"), agent("b"), user("c"), agent("d")))
	check(t, c)
}

func TestClearingHoldsAlsoIfTheTurnFails(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	turn(t, c, key("s"), nil, "hello", "a secret")
	l := acquire(t, c, key("s"))
	store(t, l, "k", `1`)
	l.Release()

	_, how := peek(t, c, key("s"))
	wantHow(t, how, adapters.ContinuityCleared)
	check(t, c)

	// Begins as the dropped conversation ended.
	l = acquire(t, c, key("s"))
	got, how := l.Join(talk(agent("a secret")))
	wantHistory(t, got, talk(agent("a secret")))
	wantHow(t, how, adapters.ContinuitySame)
	wantValue(t, l, "k", `1`)
	l.Release()
}

func TestCommitAddsWhatHasContent(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	turn(t, c, key("s"), nil, "a", "")
	turn(t, c, key("s"), talk(user("a")), "", "b")
	turn(t, c, key("s"), talk(agent("b"), agent("")), "", "")
	wantHistory(t, c.Said(key("s")), talk(user("a"), agent("b"), agent("")))
	check(t, c)
}

func TestCommitWithoutJoinContinues(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	for _, s := range []string{"a", "b"} {
		l := acquire(t, c, key("s"))
		l.Commit(user(s), agent(s))
		l.Release()
	}
	wantHistory(t, c.Said(key("s")), talk(user("a"), agent("a"), user("b"), agent("b")))
	check(t, c)
}

func TestForget(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	turn(t, c, key("s"), nil, "a", "b")

	l := acquire(t, c, key("s"))
	l.Join(talk(agent("b")))
	store(t, l, "k", `1`)
	if !l.Forget() || l.Forget() {
		t.Error("Forget does not tell whether there was anything")
	}
	wantValue(t, l, "k", "")
	if s := c.Stats(); s != (session.Stats{Held: 1}) {
		t.Errorf("after Forget: %+v", s)
	}
	l.Commit(user("c"), agent("d"))
	l.Release()
	if l.Forget() {
		t.Error("Forget works after Release")
	}
	wantHistory(t, c.Said(key("s")), talk(agent("b"), user("c"), agent("d")))
	check(t, c)

	l = acquire(t, c, key("s"))
	l.Forget()
	l.Release()
	_, how := peek(t, c, key("s"))
	wantHow(t, how, adapters.ContinuityNew)

	// Also that it was evicted.
	c = newCache(t, session.Config{Entries: 1})
	turn(t, c, key("s"), nil, "a", "b")
	turn(t, c, key("another"), nil, "a", "b")
	l = acquire(t, c, key("s"))
	if l.Forget() {
		t.Error("Forget of an evicted session tells that there was something")
	}
	l.Release()
	_, how = peek(t, c, key("s"))
	wantHow(t, how, adapters.ContinuityNew)
}

// What the host says of a message now is what the next turn sees, also beyond its window.
func TestLabelsFollowTheWindow(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	turn(t, c, key("s"), nil, "a", "b")
	long := strings.Repeat("n", 100)
	window := talk(
		adapters.Message{Role: "user", Content: "a", TurnID: "t1", Time: time.UnixMilli(1)},
		adapters.Message{Role: "agent", Content: "b", TurnID: "t1", AgentID: "muse", AgentName: long, Time: time.UnixMilli(2)},
		adapters.Message{Role: "oracle", Content: "x", TurnID: "t1", AgentID: "muse", AgentName: long},
	)
	turn(t, c, key("s"), window, "c", "d")
	check(t, c)
	want := append(slices.Clone(window), user("c"), agent("d"))
	got, how := peek(t, c, key("s"), agent("d"))
	wantHistory(t, got, want)
	wantHow(t, how, adapters.ContinuityExtended)

	want[1].AgentName, want[2].AgentName, want[2].TurnID = "short", "", "t2"
	turn(t, c, key("s"), want[1:], "e", "f")
	check(t, c)
	wantHistory(t, c.Said(key("s")), append(slices.Clone(want), user("e"), agent("f")))
}

// Whatever a host and its user do, the history is what the rules say: compared with the plainest
// way to find the overlap.
func TestJoinProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, err := session.New(session.Config{})
		if err != nil {
			t.Fatal(err)
		}
		message := rapid.Custom(func(t *rapid.T) adapters.Message {
			m := adapters.Message{
				Role:    rapid.SampledFrom([]adapters.Role{"user", "agent"}).Draw(t, "role"),
				Content: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "content"),
				AgentID: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "agent"),
			}
			if ms := rapid.Int64Range(0, 3).Draw(t, "time"); ms > 0 {
				m.Time = time.UnixMilli(ms)
			}
			return m
		})
		var said []adapters.Message
		known := false
		for range rapid.IntRange(1, 12).Draw(t, "turns") {
			// A window cut out of what was said, and gone on with.
			from := rapid.IntRange(0, len(said)).Draw(t, "from")
			to := rapid.IntRange(from, len(said)).Draw(t, "to")
			window := slices.Concat(said[from:to], rapid.SliceOfN(message, 0, 3).Draw(t, "more"))

			l, _ := c.TryAcquire(key("s"))
			got, how := l.Join(window)

			want, wantHow := window, adapters.ContinuitySame
			switch k := plainOverlap(said, window); {
			case !known:
				wantHow = adapters.ContinuityNew
			case len(said) == 0:
			case len(window) == 0:
				wantHow, said = adapters.ContinuityCleared, nil
			case k == 0:
				wantHow = adapters.ContinuityReplaced
			case k < len(said):
				wantHow = adapters.ContinuityExtended
				want = slices.Concat(said[:len(said)-k], window)
			}
			if how != wantHow {
				t.Fatalf("continuity = %q, want %q", how, wantHow)
			}
			if diff := cmp.Diff(want, got, cmp.Transformer("nil", func(ms []adapters.Message) []adapters.Message {
				return append([]adapters.Message{}, ms...)
			})); diff != "" && len(want)+len(got) > 0 {
				t.Fatalf("history (-want +got):\n%s", diff)
			}
			if rapid.Bool().Draw(t, "completes") {
				m, a := message.Draw(t, "message"), message.Draw(t, "answer")
				l.Commit(m, a)
				known, said = true, slices.Clone(want)
				for _, m := range talk(m, a) {
					if m.Content != "" {
						said = append(said, m)
					}
				}
			}
			l.Release()
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// In a conversation that only grows, seen through a window of any one length, with turns that fail,
// others' messages in between and an eviction now and then, and with few different messages: no turn
// sees more than was said.
func TestHistoryNeverRepeats(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, err := session.New(session.Config{})
		if err != nil {
			t.Fatal(err)
		}
		word := rapid.SampledFrom([]string{"ok", "yes"})
		timed := rapid.Bool().Draw(t, "timed")
		limit := rapid.IntRange(1, 8).Draw(t, "limit")
		var transcript []adapters.Message
		say := func(m adapters.Message) {
			if timed {
				m.Time = time.UnixMilli(int64(len(transcript) + 1))
			}
			transcript = append(transcript, m)
		}
		for range rapid.IntRange(1, 15).Draw(t, "turns") {
			for range rapid.IntRange(0, 2).Draw(t, "others") {
				say(agent(word.Draw(t, "other")))
			}
			window := transcript[max(0, len(transcript)-limit):]
			l, _ := c.TryAcquire(key("s"))
			if rapid.IntRange(0, 9).Draw(t, "evict") == 9 {
				l.Forget()
			}
			got, how := l.Join(window)
			if len(got) < len(window) || !cmp.Equal(got[len(got)-len(window):], window) && len(window) > 0 {
				t.Fatalf("history does not end with the window")
			}
			if !subsequence(got, transcript) {
				t.Fatalf("%s: saw %v, while all that was said is %v", how, texts(got), texts(transcript))
			}
			m, a := user(word.Draw(t, "message")), agent(word.Draw(t, "answer"))
			if rapid.IntRange(0, 3).Draw(t, "fails") > 0 {
				l.Commit(m, a)
				say(m)
				say(a)
			} else if rapid.Bool().Draw(t, "message shown") {
				say(m)
			}
			l.Release()
		}
	})
}

func texts(ms []adapters.Message) (s []string) {
	for _, m := range ms {
		s = append(s, m.Content)
	}
	return s
}

func same(a, b adapters.Message) bool {
	return a.Role == b.Role && a.Content == b.Content &&
		(a.Time.IsZero() || b.Time.IsZero() || a.Time.Equal(b.Time))
}

func subsequence(part, whole []adapters.Message) bool {
	for _, m := range whole {
		if len(part) > 0 && same(part[0], m) {
			part = part[1:]
		}
	}
	return len(part) == 0
}

func plainOverlap(said, window []adapters.Message) int {
	for k := min(len(said), len(window)); k > 0; k-- {
		if slices.EqualFunc(said[len(said)-k:], window[:k], same) {
			return k
		}
	}
	return 0
}

func FuzzOverlap(f *testing.F) {
	f.Add([]byte("aaaa"), []byte("aaa"))
	f.Add([]byte("abcabcab"), []byte("abcabd"))
	f.Add([]byte{0, 16, 0, 32, 0}, []byte{0, 32, 0, 48})
	f.Add([]byte("aabaabaaab"), []byte("aabaaabaab"))
	f.Add([]byte{0x10, 0x20, 0x10}, []byte{0x20, 0x10, 0x30}) // equal but for the times
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(b) == 0 || len(a) > 250 || len(b) > 250 {
			t.Skip() // longer ones may give up; Join never asks for an empty window
		}
		messages := func(bs []byte) (ms []adapters.Message) {
			for _, b := range bs {
				m := adapters.Message{Role: adapters.RoleUser, Content: strings.Repeat("x", int(b&3))}
				if b&4 != 0 {
					m.Role = adapters.RoleAgent
				}
				if at := b >> 4 & 3; at != 0 {
					m.Time = time.UnixMilli(int64(at))
				}
				ms = append(ms, m)
			}
			return ms
		}
		said, window := messages(a), messages(b)
		if got, want := session.Overlap(said, window), plainOverlap(said, window); got != want {
			t.Errorf("overlap of %d and %d = %d, want %d", a, b, got, want)
		}
		said = said[max(0, len(said)-len(window)):]
		if got, want := session.OverlapByHash(said, window), plainOverlap(said, window); got != want {
			t.Errorf("overlap by hash of %d and %d = %d, want %d", a, b, got, want)
		}
	})
}

// The plainest way to find the overlap finds the same.
func TestOverlapProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := []string{"a", "b"}[:rapid.IntRange(1, 2).Draw(t, "words")]
		times := rapid.Int64Range(0, 2).Draw(t, "times")
		message := rapid.Custom(func(t *rapid.T) adapters.Message {
			m := user(rapid.SampledFrom(words).Draw(t, "content"))
			if at := rapid.Int64Range(0, times).Draw(t, "time"); at > 0 {
				m.Time = time.UnixMilli(at)
			}
			return m
		})
		// The window repeats some of what was said, so that there is something to find.
		said := rapid.SliceOfN(message, 0, 40).Draw(t, "said")
		again := said[rapid.IntRange(0, len(said)).Draw(t, "from"):]
		if rapid.Bool().Draw(t, "other times") {
			again = slices.Clone(again)
			for i := range again {
				again[i].Time = message.Draw(t, "time").Time
			}
		}
		window := slices.Concat(again, rapid.SliceOfN(message, 1, 20).Draw(t, "more"))
		if i := rapid.IntRange(0, 2*len(window)).Draw(t, "spoilt"); i < len(window) {
			window[i] = message.Draw(t, "spoilt message")
		}
		want := plainOverlap(said, window)
		if got := session.Overlap(said, window); got != want {
			t.Fatalf("overlap = %d, want %d", got, want)
		}
		said = said[max(0, len(said)-len(window)):]
		if got := session.OverlapByHash(said, window); got != want {
			t.Fatalf("overlap by hash = %d, want %d", got, want)
		}
	})
}

// Windows made to be slow: equal messages, with one in the way at the worst place. The time is held
// against that of comparing each message once, on the same machine at the same moment.
func TestOverlapIsLinear(t *testing.T) {
	t.Parallel()
	const n = 50_000
	tests := map[string]struct {
		spoil func(said, window []adapters.Message)
		want  int
	}{
		"the last differs":      {func(_, window []adapters.Message) { window[n-1] = user("no") }, n - 1},
		"the last said differs": {func(said, _ []adapters.Message) { said[n-1] = user("no") }, 0},
		"the middle differs":    {func(_, window []adapters.Message) { window[n/2] = user("no") }, n / 2},
		"times that agree half-way": {func(said, window []adapters.Message) {
			setTimes(said[:n/2], 1)
			setTimes(window, 2)
		}, n / 2},
		"times that disagree in the middle": {func(said, window []adapters.Message) {
			setTimes(said[n/2:n/2+1], 1)
			setTimes(window[1:], 2)
		}, 0}, // there is one of n/2-1, not worth the search: the window alone is always right
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			said, window := make([]adapters.Message, n), make([]adapters.Message, n)
			for i := range n {
				said[i], window[i] = user("ok"), user("ok")
			}
			start := time.Now()
			for range 10 {
				if !slices.EqualFunc(said, window, same) {
					t.Fatal("they differ")
				}
			}
			once := time.Since(start) / 10

			tt.spoil(said, window)
			start = time.Now()
			if got := session.Overlap(said, window); got != tt.want {
				t.Errorf("overlap = %d, want %d", got, tt.want)
			}
			// The bound on comparing timestamps is 128; n/8 times as long would be quadratic.
			if took := time.Since(start); took > n/32*once {
				t.Errorf("took %v, and comparing each message once takes %v", took, once)
			}
		})
	}
}

func setTimes(ms []adapters.Message, at int64) {
	for i := range ms {
		ms[i].Time = time.UnixMilli(at)
	}
}

// The request's memory is let go with the lease, and is not read again: it may be used for the next
// request.
func TestNothingOfTheRequestIsKept(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})

	request := func(f func(s func(string) string)) weak.Pointer[byte] {
		body := make([]byte, 0, 1<<16)
		f(func(s string) string {
			at := len(body)
			body = append(body, s...)
			return unsafe.String(unsafe.SliceData(body[at:cap(body)]), len(s))
		})
		for i := range body[:cap(body)] {
			body[:cap(body)][i] = '!'
		}
		return weak.Make(unsafe.SliceData(body))
	}
	long := strings.Repeat("long ", 30)
	message := func(s func(string) string, role, content, id, name, turn string) adapters.Message {
		return adapters.Message{
			Role: adapters.Role(s(role)), Content: s(content),
			AgentID: s(id), AgentName: s(name), TurnID: s(turn),
		}
	}
	var kept []*session.Lease
	var bodies []weak.Pointer[byte]
	for i := range 4 {
		bodies = append(bodies, request(func(s func(string) string) {
			k := session.Key{Plugin: s("muse"), Principal: s(""), Handle: s("s")}
			l := c.Enqueue(k)
			next := c.Enqueue(session.Key{Plugin: s("muse"), Principal: s(""), Handle: s("s")})
			kept = append(kept, l, next)
			window := talk(
				message(s, "user", numbered(i), "", "", "t1"),
				message(s, "oracle", long, long, s(""), "t1"),
				message(s, "agent", "b", "muse", long[i:], "t2"))
			l.Join(window)
			store(t, l, s("key"), s(`"value"`))
			l.Commit(message(s, "user", "c", "", "", "t3"), message(s, "agent", "", "", "", ""))
			l.Release()

			// The same again, with labels that the host has found out since.
			for j := range window {
				window[j].TurnID, window[j].AgentName = s("turn "+numbered(i)), s(long[:100+i])
			}
			window = append(window, message(s, "user", "c", "", "", "new"))
			if _, how := next.Join(window[1:]); how != adapters.ContinuityExtended {
				t.Errorf("continuity = %q", how)
			}
			next.Commit(adapters.Message{}, adapters.Message{})
			next.Release()

			failed := c.Enqueue(k)
			kept = append(kept, failed)
			failed.Join(window)
			failed.Release()
		}))
		check(t, c)
	}
	for range 3 {
		goruntime.GC()
	}
	for i, b := range bodies {
		if b.Value() != nil {
			t.Errorf("request %d is still in memory", i)
		}
	}
	for _, m := range c.Said(session.Key{Plugin: "muse", Handle: "s"}) {
		if strings.Contains(m.Content+string(m.Role)+m.AgentID+m.AgentName+m.TurnID, "!") {
			t.Errorf("a message was overwritten: %+v", m)
		}
	}
	l := acquire(t, c, session.Key{Plugin: "muse", Handle: "s"})
	wantValue(t, l, "key", `"value"`)
	l.Release()
	goruntime.KeepAlive(kept)
}

// A lease that an abandoned adapter keeps does not keep a session that has been evicted.
func TestAReleasedLeaseKeepsNothing(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{Entries: 1})
	l := acquire(t, c, key("s"))
	l.Join(nil)
	l.Commit(user("some text"), agent("an answer"))
	text := weak.Make(unsafe.StringData(c.Said(key("s"))[0].Content))
	l.Release()
	goruntime.GC()
	if text.Value() == nil {
		t.Fatal("the conversation is gone too early")
	}
	turn(t, c, key("another"), nil, "a", "b")
	goruntime.GC()
	if text.Value() != nil {
		t.Error("the evicted conversation is still in memory")
	}
	goruntime.KeepAlive(l)
}

func TestAfterRelease(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	l := acquire(t, c, key("s"))
	store(t, l, "k", `1`)
	l.Release()
	l.Release()
	if err := l.Store("k", []byte(`2`)); !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("Store after Release = %v", err)
	}
	if err := l.Delete("k"); !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("Delete after Release = %v", err)
	}
	wantValue(t, l, "k", "")
	if keys := l.Keys(); keys != nil {
		t.Errorf("Keys after Release = %q", keys)
	}
	got, how := l.Join(talk(user("a")))
	wantHistory(t, got, talk(user("a")))
	wantHow(t, how, adapters.ContinuityNew)
	if l.Held() {
		t.Error("held after Release")
	}
	l = acquire(t, c, key("s"))
	defer l.Release()
	wantValue(t, l, "k", `1`)
}

func TestBeforeHeld(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	l := acquire(t, c, key("s"))
	store(t, l, "k", `1`)
	w := c.Enqueue(key("s"))
	if err := w.Store("k", []byte(`2`)); !errors.Is(err, session.ErrNotHeld) {
		t.Errorf("Store = %v", err)
	}
	if err := w.Delete("k"); !errors.Is(err, session.ErrNotHeld) {
		t.Errorf("Delete = %v", err)
	}
	wantValue(t, w, "k", "")
	if keys := w.Keys(); keys != nil {
		t.Errorf("Keys = %q", keys)
	}
	for name, f := range map[string]func(){
		"Join":   func() { w.Join(nil) },
		"Commit": func() { w.Commit(user("a"), agent("b")) },
		"Forget": func() { w.Forget() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			f()
		}()
	}
	l.Release()
	wantValue(t, w, "k", `1`)
	w.Release()
	if s := c.Stats(); s.Held != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	l := acquire(t, c, key("s"))
	if err := l.Delete("k"); err != nil {
		t.Errorf("Delete of nothing = %v", err)
	}
	if n := c.Stats().Entries; n != 0 {
		t.Errorf("Delete of nothing made %d entries", n)
	}
	if keys := l.Keys(); len(keys) != 0 {
		t.Errorf("Keys = %q", keys)
	}
	want := map[string]string{}
	for range 1000 {
		k := string(rune('a' + rand.IntN(26)))
		switch v := strings.Repeat("1", 1+rand.IntN(50)); rand.IntN(3) {
		case 0:
			delete(want, k)
			if err := l.Delete(k); err != nil {
				t.Fatal(err)
			}
		default:
			want[k] = v
			store(t, l, k, v)
		}
		check(t, c)
	}
	keys := l.Keys()
	if !slices.IsSorted(keys) || len(keys) != len(want) {
		t.Errorf("Keys = %q, want those of %v", keys, want)
	}
	for k, v := range want {
		wantValue(t, l, k, v)
	}
	l.Release()
}

// TestRecall: a host that sends no window at all takes nothing back.
func TestRecall(t *testing.T) {
	t.Parallel()
	cache := newCache(t, session.Config{})
	recall := func(message, answer string) ([]adapters.Message, adapters.Continuity) {
		t.Helper()
		l := cache.Enqueue(key("s"))
		defer l.Release()
		history, how := l.Recall()
		if message != "" {
			l.Commit(adapters.Message{Role: adapters.RoleUser, Content: message}, adapters.Message{Role: adapters.RoleAgent, Content: answer})
		}
		return history, how
	}
	got, how := recall("a", "b")
	wantHistory(t, got, []adapters.Message{})
	wantHow(t, how, adapters.ContinuityNew)
	got, how = recall("c", "d")
	wantHistory(t, got, talk(user("a"), agent("b")))
	wantHow(t, how, adapters.ContinuityExtended)
	got, how = recall("", "")
	wantHistory(t, got, talk(user("a"), agent("b"), user("c"), agent("d")))
	wantHow(t, how, adapters.ContinuityExtended)

	l := cache.Enqueue(key("s"))
	l.Release()
	got, how = l.Recall()
	wantHistory(t, got, []adapters.Message{})
	wantHow(t, how, adapters.ContinuityNew)
	check(t, cache)
}
