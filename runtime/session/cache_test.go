package session_test

import (
	"math"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

func TestEntryLimit(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{Entries: 2})
	turn(t, c, key("a"), nil, "1", "1")
	turn(t, c, key("b"), nil, "1", "1")
	peek(t, c, key("a"), user("1")) // a failed turn is a use too
	turn(t, c, key("c"), nil, "1", "1")
	check(t, c)
	if got, want := handles(c), []string{"a", "c"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q", got, want)
	}
	_, how := turn(t, c, key("b"), talk(user("1")), "2", "2")
	wantHow(t, how, adapters.ContinuityEvicted)
	_, how = turn(t, c, key("b"), talk(user("1"), user("2"), agent("2")), "3", "3")
	wantHow(t, how, adapters.ContinuitySame)
	if s := c.Stats(); s.Entries != 2 || s.Evicted != 2 {
		t.Errorf("%+v, want 2 kept and 2 evicted", s)
	}
}

func TestLimitsOfAConfig(t *testing.T) {
	t.Parallel()
	none := session.Config{Entries: math.MaxInt, Bytes: math.MaxInt64, TTL: math.MaxInt64}
	tests := map[string]struct{ cfg, want session.Config }{
		"zero means the defaults": {session.Config{}, session.Config{Entries: 4096, Bytes: 256 << 20, TTL: 24 * time.Hour}},
		"negative means no limit": {session.Config{Entries: -1, Bytes: -1, TTL: -1}, none},
		"others are as they are":  {session.Config{Entries: 1, Bytes: 2, TTL: 3}, session.Config{Entries: 1, Bytes: 2, TTL: 3}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := newCache(t, tt.cfg).Limits(); got != tt.want {
				t.Errorf("limits are %+v, want %+v", got, tt.want)
			}
		})
	}
}

// What a turn does late counts as late, also if others came and went meanwhile.
func TestLastUseOfOverlappingTurns(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{Bytes: 10_000})
	turn(t, c, key("a"), nil, "1", "1")
	l := acquire(t, c, key("a"))
	turn(t, c, key("b"), nil, "1", "1")
	l.Release()
	if got, want := handles(c), []string{"b", "a"}; !slices.Equal(got, want) {
		t.Errorf("oldest first, they are %q, want %q", got, want)
	}
	l = acquire(t, c, key("b"))
	turn(t, c, key("a"), talk(agent("1")), "1", "1")
	store(t, l, "k", strings.Repeat("1", 9_000))
	if got, want := handles(c), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q, which was used last", got, want)
	}
	check(t, c)
	l.Release()
}

func TestNoLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, session.Config{Entries: -1, Bytes: -1, TTL: -1})
		const n = session.DefaultEntries + 1
		for i := range n {
			turn(t, c, key(numbered(i)), nil, "a", "b")
		}
		time.Sleep(10 * 365 * 24 * time.Hour)
		turn(t, c, key(numbered(0)), talk(agent("b")), "a", "b")
		check(t, c)
		if s := c.Stats(); s.Entries != n || s.Evicted != 0 {
			t.Errorf("%+v, want %d entries", s, n)
		}
	})
}

func TestIdleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 100 * time.Millisecond
		c := newCache(t, session.Config{TTL: ttl})
		turn(t, c, key("a"), nil, "1", "1")
		turn(t, c, key("b"), nil, "1", "1")

		time.Sleep(ttl - 1)
		_, how := peek(t, c, key("a"), agent("1"))
		wantHow(t, how, adapters.ContinuityExtended)
		time.Sleep(time.Nanosecond)
		_, how = peek(t, c, key("b"), agent("1")) // checked on access
		wantHow(t, how, adapters.ContinuityEvicted)
		check(t, c)
		if got, want := handles(c), []string{"a"}; !slices.Equal(got, want) {
			t.Errorf("kept %q, want %q", got, want)
		}

		time.Sleep(ttl)
		turn(t, c, key("c"), nil, "1", "1") // dropped when one is added
		if got, want := handles(c), []string{"c"}; !slices.Equal(got, want) {
			t.Errorf("kept %q, want %q", got, want)
		}
		time.Sleep(ttl)
		if s := c.Stats(); s != (session.Stats{Evicted: 3}) {
			t.Errorf("%+v, want nothing but 3 evicted", s)
		}
	})
}

// A turn that takes longer than the idle time is not idle, nor is its session just after.
func TestIdleTimeOfASessionInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 100 * time.Millisecond
		c := newCache(t, session.Config{TTL: ttl})
		turn(t, c, key("a"), nil, "1", "1")

		l := acquire(t, c, key("a"))
		time.Sleep(10 * ttl)
		turn(t, c, key("b"), nil, "1", "1")
		if n := c.Stats().Entries; n != 2 {
			t.Errorf("%d entries are kept, want the one in use and another", n)
		}
		_, how := l.Join(talk(agent("1")))
		wantHow(t, how, adapters.ContinuityExtended)
		l.Commit(user("2"), agent("2"))
		waiter := c.Enqueue(key("a"))
		time.Sleep(10 * ttl)
		l.Release()

		_, how = waiter.Join(talk(agent("2")))
		wantHow(t, how, adapters.ContinuityExtended)
		time.Sleep(10 * ttl)
		waiter.Release()
		time.Sleep(ttl - 1)
		_, how = peek(t, c, key("a"), agent("2"))
		wantHow(t, how, adapters.ContinuityExtended)
		check(t, c)
	})
}

func TestEvictedInUse(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(l *session.Lease) adapters.Continuity{
		"nothing": func(*session.Lease) adapters.Continuity { return adapters.ContinuityEvicted },
		"a store": func(l *session.Lease) adapters.Continuity {
			store(t, l, "other", `2`)
			return adapters.ContinuityExtended
		},
		"a delete": func(l *session.Lease) adapters.Continuity {
			if err := l.Delete("x"); err != nil {
				t.Error(err)
			}
			return adapters.ContinuityExtended
		},
		"a commit": func(l *session.Lease) adapters.Continuity {
			l.Commit(user("2"), agent("1"))
			return adapters.ContinuityExtended
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, session.Config{Entries: 1})
			turn(t, c, key("a"), nil, "1", "1")
			l := acquire(t, c, key("a"))
			store(t, l, "k", `1`)
			store(t, l, "x", `1`)

			turn(t, c, key("b"), nil, "1", "1")
			if got, want := handles(c), []string{"b"}; !slices.Equal(got, want) {
				t.Fatalf("kept %q, want %q", got, want)
			}
			got, how := l.Join(talk(agent("1")))
			wantHistory(t, got, talk(user("1"), agent("1")))
			wantHow(t, how, adapters.ContinuityExtended)
			wantValue(t, l, "k", `1`)
			want := after(l)
			l.Release()
			check(t, c)

			l = acquire(t, c, key("a"))
			_, how = l.Join(talk(agent("1")))
			wantHow(t, how, want)
			if want == adapters.ContinuityExtended {
				wantValue(t, l, "k", `1`)
			} else {
				wantValue(t, l, "k", ``)
			}
			l.Release()
		})
	}
}

func TestTooLargeForTheCache(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{Bytes: 10_000})
	turn(t, c, key("small"), nil, "1", "1")

	l := acquire(t, c, key("large"))
	store(t, l, "k", `1`)
	big := `"` + strings.Repeat("x", 20_000) + `"`
	for range 3 {
		store(t, l, "big", big)
	}
	check(t, c)
	wantValue(t, l, "big", big)
	wantValue(t, l, "k", `1`)
	if got, want := handles(c), []string{"small"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q", got, want)
	}
	if n := c.Stats().Evicted; n != 1 {
		t.Errorf("counted as %d evictions", n)
	}
	l.Join(nil)
	l.Commit(user("1"), agent("1"))
	l.Release()
	check(t, c)

	l = acquire(t, c, key("large"))
	_, how := l.Join(nil)
	wantHow(t, how, adapters.ContinuityEvicted)
	wantValue(t, l, "k", ``)
	store(t, l, "k", `1`)
	store(t, l, "big", big)
	if err := l.Delete("big"); err != nil { // it fits again
		t.Fatal(err)
	}
	l.Release()
	check(t, c)
	l = acquire(t, c, key("large"))
	wantValue(t, l, "k", `1`)
	l.Release()
}

func TestEvictedKeysAreForgottenInTheEnd(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{Entries: 1})
	for i := range session.RememberedLost + 3 {
		l := acquire(t, c, key(numbered(i)))
		store(t, l, "k", `1`)
		l.Release()
	}
	keys, places := c.LostMemory()
	if keys != session.RememberedLost || places != session.RememberedLost {
		t.Errorf("%d keys in %d places, want %d", keys, places, session.RememberedLost)
	}
	for i, want := range map[int]adapters.Continuity{
		0:                          adapters.ContinuityNew,
		1:                          adapters.ContinuityNew,
		2:                          adapters.ContinuityEvicted,
		3:                          adapters.ContinuityEvicted,
		session.RememberedLost + 2: adapters.ContinuitySame,
	} {
		if _, how := peek(t, c, key(numbered(i))); how != want {
			t.Errorf("session %d: %q, want %q", i, how, want)
		}
	}
	// Coming and going takes places, and must not crowd out more than it should.
	for range 10 {
		for i := range 2 {
			turn(t, c, key(numbered(i)), nil, "a", "b")
		}
	}
	if keys, places = c.LostMemory(); keys > session.RememberedLost || places != session.RememberedLost {
		t.Errorf("%d keys in %d places", keys, places)
	}
	_, how := peek(t, c, key(numbered(session.RememberedLost)))
	wantHow(t, how, adapters.ContinuityEvicted)
	// What counts is when one was evicted last.
	for i := range session.RememberedLost - 10 {
		l := acquire(t, c, key("again "+numbered(i)))
		store(t, l, "k", `1`)
		l.Release()
	}
	_, how = peek(t, c, key(numbered(0)))
	wantHow(t, how, adapters.ContinuityEvicted)
}

// Any turns, against a plain list of what should be kept.
func TestLimitsModel(t *testing.T) {
	t.Parallel()
	type model struct {
		handle string
		said   int   // messages
		text   int64 // bytes in them
		values map[string]int
	}
	rapid.Check(t, func(t *rapid.T) {
		cfg := session.Config{
			Entries: rapid.IntRange(1, 4).Draw(t, "entries"),
			Bytes:   rapid.Int64Range(100, 8000).Draw(t, "bytes"),
		}
		c, err := session.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var kept []*model // oldest first
		known := map[string]bool{}
		size := func(m *model) int64 {
			n := session.EntryOverhead + int64(len("muse"+"default"+m.handle)) +
				int64(m.said)*session.MessageOverhead + m.text
			for k, v := range m.values {
				n += session.ValueOverhead + int64(len(k)+v)
			}
			return n
		}
		total := func() (n int64) {
			for _, m := range kept {
				n += size(m)
			}
			return n
		}
		without := func(m *model) {
			kept = slices.DeleteFunc(kept, func(o *model) bool { return o == m })
		}
		settle := func(m *model) {
			without(m)
			known[m.handle] = true
			if size(m) > cfg.Bytes {
				return
			}
			kept = append(kept, m)
			for len(kept) > cfg.Entries || total() > cfg.Bytes {
				kept = kept[1:]
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "turns") {
			h := rapid.SampledFrom([]string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff"}).Draw(t, "session")
			l, _ := c.TryAcquire(key(h))
			m := &model{handle: h, values: map[string]int{}}
			want := adapters.ContinuityNew
			if known[h] {
				want = adapters.ContinuityEvicted
			}
			if i := slices.IndexFunc(kept, func(m *model) bool { return m.handle == h }); i >= 0 {
				m, want = kept[i], adapters.ContinuitySame
				if m.said > 0 {
					want = adapters.ContinuityReplaced
				}
				without(m)
				kept = append(kept, m)
			}
			_, how := l.Join(talk(user("another window")))
			if how != want {
				t.Fatalf("%q is %q, want %q", h, how, want)
			}
			if got, want := len(l.Keys()), len(m.values); got != want {
				t.Fatalf("%q has %d values, want %d", h, got, want)
			}
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				k := rapid.SampledFrom([]string{"k", "kk"}).Draw(t, "key")
				if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
					_, there := m.values[k]
					delete(m.values, k)
					if err := l.Delete(k); err != nil {
						t.Fatal(err)
					}
					if there {
						settle(m)
					}
				} else {
					n := rapid.IntRange(0, 3000).Draw(t, "size")
					m.values[k] = n
					if err := l.Store(k, []byte(strings.Repeat("x", n))); err != nil {
						t.Fatal(err)
					}
					settle(m)
				}
			}
			if rapid.Bool().Draw(t, "completes") {
				n := rapid.IntRange(1, 3000).Draw(t, "answer")
				l.Commit(user("m"), agent(strings.Repeat("x", n)))
				m.said = 3
				m.text = int64(len("user"+"another window"+"user"+"m"+"agent") + n)
				settle(m)
			}
			l.Release()
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			var order []string
			for _, m := range kept {
				order = append(order, m.handle)
			}
			if got := handles(c); !slices.Equal(got, order) {
				t.Fatalf("kept %q, want %q", got, order)
			}
			if s := c.Stats(); s.Bytes != total() {
				t.Fatalf("%d bytes, want %d", s.Bytes, total())
			}
		}
	})
}

// Fault H2: a cache bounded by entries alone.
func TestFaultH2CacheBoundedByEntriesAlone(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	within := func(t *testing.T, c *session.Cache) session.Stats {
		t.Helper()
		check(t, c)
		s := c.Stats()
		if s.Bytes > mib {
			t.Fatalf("%d bytes are kept", s.Bytes)
		}
		return s
	}

	t.Run("100 sessions of 100 KiB", func(t *testing.T) {
		t.Parallel()
		c := newCache(t, session.Config{Bytes: mib})
		for i := range 100 {
			turn(t, c, key(numbered(i)), nil, "go", strings.Repeat("x", 100<<10))
			within(t, c)
		}
		if s := within(t, c); s.Entries != 10 || s.Evicted != 90 {
			t.Errorf("%+v, want 10 kept and 90 evicted", s)
		}
		if hs := handles(c); hs[0] != "s-90" || hs[9] != "s-99" {
			t.Errorf("kept %q, want the newest", hs)
		}
		window := talk(user("go"))
		got, how := peek(t, c, key("s-0"), window...)
		wantHistory(t, got, window)
		wantHow(t, how, adapters.ContinuityEvicted)
	})

	t.Run("one session updated 10,000 times", func(t *testing.T) {
		t.Parallel()
		c := newCache(t, session.Config{Bytes: mib})
		turn(t, c, key("other"), nil, "a", "b")
		raw := []byte(strings.Repeat("1", 200<<10))
		l := acquire(t, c, key("s"))
		defer l.Release()
		for i := range 10_000 {
			n := 1<<10 + i*7919%(199<<10)
			if err := l.Store("k", raw[:n]); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				within(t, c)
			}
		}
		if s := within(t, c); s.Entries != 2 || s.Evicted != 0 {
			t.Errorf("%+v, want both kept", s)
		}
	})

	t.Run("one of 2 MiB", func(t *testing.T) {
		t.Parallel()
		c := newCache(t, session.Config{Bytes: mib})
		turn(t, c, key("other"), nil, "a", "b")
		turn(t, c, key("s"), nil, "a", "b")
		l := acquire(t, c, key("s"))
		history, _ := l.Join(talk(user("a"), agent("b")))
		big := strings.Repeat("1", 2*mib)
		store(t, l, "k", big)
		within(t, c)
		wantValue(t, l, "k", big)
		wantHistory(t, history, talk(user("a"), agent("b")))
		l.Commit(user("c"), agent("d"))
		l.Release()
		if s := within(t, c); s.Entries != 1 || s.Evicted != 1 {
			t.Errorf("%+v, want the other kept and this one evicted", s)
		}
		l = acquire(t, c, key("s"))
		_, how := l.Join(talk(agent("d")))
		wantHow(t, how, adapters.ContinuityEvicted)
		wantValue(t, l, "k", "")
		l.Release()
	})

	t.Run("idle time-to-live", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newCache(t, session.Config{Bytes: mib, TTL: 100 * time.Millisecond})
			for i := range 1000 {
				turn(t, c, key(numbered(i)), nil, "a", "b")
			}
			time.Sleep(100 * time.Millisecond)
			_, how := peek(t, c, key(numbered(0)), user("a"))
			wantHow(t, how, adapters.ContinuityEvicted)
			if s := within(t, c); s.Entries != 0 || s.Bytes != 0 || s.Evicted != 1000 {
				t.Errorf("%+v, want none", s)
			}
		})
	})
}

// Not parallel: it looks at the heap.
func TestFaultH2HeapDoesNotGrow(t *testing.T) {
	c := newCache(t, session.Config{Bytes: 1 << 20})
	heap := func() int64 {
		goruntime.GC()
		goruntime.GC()
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	empty, worst := heap(), int64(math.MinInt64)
	for round := range 20 {
		for i := range 100 {
			k := key(numbered(round<<10 + i))
			window := talk(user("hello"))
			for n := range 10 {
				l := acquire(t, c, k)
				l.Join(window)
				store(t, l, "k", strings.Repeat("1", 1000))
				said := adapters.Message{
					Role: adapters.RoleAgent, Content: strings.Repeat("x", 1000),
					AgentID: strings.Repeat("y", n*10), TurnID: numbered(n),
				}
				l.Commit(user(numbered(n)), said)
				l.Release()
				said.AgentID += "changes" // so that labels are replaced
				window = talk(user("hello"), user(numbered(n)), said)[n%2:]
			}
		}
		worst = max(worst, heap()-empty)
		check(t, c)
	}
	s := c.Stats()
	t.Logf("%d bytes are counted, the heap has grown by at most %d", s.Bytes, worst)
	if worst > s.Bytes*3/2 {
		t.Errorf("the heap has grown by %d bytes, and %d are counted", worst, s.Bytes)
	}

	// Many small values, and none of them in the end.
	c = newCache(t, session.Config{})
	l := acquire(t, c, key("s"))
	before := heap()
	for i := range 5_000 {
		store(t, l, numbered(i), "")
	}
	for i := range 5_000 {
		if err := l.Delete(numbered(i)); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 50_000 {
		t.Errorf("deleted values take %d bytes", grown)
	}
	l.Release()
	goruntime.KeepAlive(c)
}

// No session sees another's, also where two keys have one hash: each drives the other out.
func TestTwoKeysWithOneHash(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	a, b := key("a"), key("b")
	turn(t, c, a, nil, "of a", "of a")
	l := acquire(t, c, a)
	store(t, l, "k", `"of a"`)
	l.Release()

	l = c.AcquireAs(b, a)
	history, how := l.Join(talk(agent("of a")))
	wantHistory(t, history, talk(agent("of a")))
	wantHow(t, how, adapters.ContinuityNew)
	wantValue(t, l, "k", "")
	check(t, c)
	store(t, l, "k", `"of b"`)
	l.Release()
	check(t, c)
	if s := c.Stats(); s.Entries != 1 || s.Evicted != 1 {
		t.Errorf("%+v, want one driven out by the other", s)
	}

	l = acquire(t, c, a)
	wantValue(t, l, "k", "")
	l.Release()
	l = c.AcquireAs(b, a)
	wantValue(t, l, "k", `"of b"`)
	l.Release()
}
