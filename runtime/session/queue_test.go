package session_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

func TestQueueIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, session.Config{})
		first := c.Enqueue(key("s"))
		if !first.Held() {
			t.Fatal("an idle session is not handed over at once")
		}
		if _, ok := c.TryAcquire(key("s")); ok {
			t.Error("TryAcquire took a session in use")
		}
		var order []int
		for i := range 100 {
			l := c.Enqueue(key("s"))
			go func() {
				defer l.Release()
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				order = append(order, i) // safe only if one at a time: the race detector knows
			}()
		}
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("a turn ran beside the one that holds the session")
		}
		if s := c.Stats(); s.Held != 1 || s.Waiting != 100 {
			t.Errorf("%+v, want 1 held and 100 waiting", s)
		}
		if other, ok := c.TryAcquire(key("other")); !ok {
			t.Error("another session waits")
		} else {
			other.Release()
		}
		first.Release()
		synctest.Wait()
		if len(order) != 100 || !slices.IsSorted(order) {
			t.Errorf("order is %v", order)
		}
		if s := c.Stats(); s != (session.Stats{}) {
			t.Errorf("%+v is left", s)
		}
	})
}

func TestWaitWithAContextThatIsOver(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(adapters.CauseHostGone)

	l := c.Enqueue(key("s"))
	if err := l.Wait(ctx); !errors.Is(err, adapters.CauseHostGone) {
		t.Errorf("Wait = %v, want %v", err, adapters.CauseHostGone)
	}
	l = acquire(t, c, key("s")) // it was given back
	w := c.Enqueue(key("s"))
	if err := w.Wait(ctx); !errors.Is(err, adapters.CauseHostGone) {
		t.Errorf("Wait = %v, want %v", err, adapters.CauseHostGone)
	}
	w.Release()
	if s := c.Stats(); s.Held != 1 || s.Waiting != 0 {
		t.Errorf("%+v, want one held and none waiting", s)
	}
	if !l.Held() {
		t.Error("the holder lost its session to a waiter that left")
	}
	l.Release()
	if err := l.Wait(t.Context()); !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("Wait after Release = %v", err)
	}
}

func TestReleaseWakesItsOwnWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, session.Config{})
		l := acquire(t, c, key("s"))
		w := c.Enqueue(key("s"))
		got := make(chan error, 1)
		go func() { got <- w.Wait(t.Context()) }()
		synctest.Wait()
		w.Release()
		if err := <-got; !errors.Is(err, adapters.ErrTurnOver) {
			t.Errorf("Wait = %v", err)
		}
		l.Release()
	})
}

// The session is released and its next waiter cancelled at one moment: whoever wins, the one after
// gets it.
func TestHandoverIsNeverLost(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	for range 2000 {
		holder, next, third := c.Enqueue(key("s")), c.Enqueue(key("s")), c.Enqueue(key("s"))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(holder.Release)
		wg.Go(cancel)
		wg.Go(func() {
			if next.Wait(ctx) == nil {
				next.Release()
			}
		})
		if err := third.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		third.Release()
		wg.Wait()
	}
	if s := c.Stats(); s != (session.Stats{}) {
		t.Errorf("%+v is left", s)
	}
}

// Many turns of a few sessions, some of which leave while they wait: one at a time, and none stuck.
func TestQueueUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCache(t, session.Config{})
	var inside [3]atomic.Int32
	var ran, left atomic.Int32
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(g)))
			for range 300 {
				s := random.IntN(len(inside))
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(2) == 0 {
					go cancel()
				}
				l := c.Enqueue(key(numbered(s)))
				if err := l.Wait(ctx); err != nil {
					left.Add(1)
				} else {
					ran.Add(1)
					if inside[s].Add(1) != 1 {
						t.Error("two turns of one session at once")
					}
					store(t, l, "k", `1`)
					inside[s].Add(-1)
					l.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n := ran.Load() + left.Load(); n != 16*300 || ran.Load() == 0 {
		t.Errorf("%d ran and %d left", ran.Load(), left.Load())
	}
	if s := c.Stats(); s.Held != 0 || s.Waiting != 0 {
		t.Errorf("%+v is left", s)
	}
	check(t, c)
}

// Any order of calls, against a slice per session.
func TestQueueModel(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	rapid.Check(t, func(t *rapid.T) {
		c, err := session.New(session.Config{})
		if err != nil {
			t.Fatal(err)
		}
		queues := map[string][]*session.Lease{}
		var gone []*session.Lease
		handle := rapid.SampledFrom([]string{"x", "y", "z"})
		pick := func(t *rapid.T) (string, int) {
			h := handle.Draw(t, "session")
			if len(queues[h]) == 0 {
				t.Skip("nobody there")
			}
			return h, rapid.IntRange(0, len(queues[h])-1).Draw(t, "place")
		}
		leave := func(h string, i int) {
			gone = append(gone, queues[h][i])
			queues[h] = slices.Delete(queues[h], i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"enqueue": func(t *rapid.T) {
				h := handle.Draw(t, "session")
				queues[h] = append(queues[h], c.Enqueue(key(h)))
			},
			"try": func(t *rapid.T) {
				h := handle.Draw(t, "session")
				l, ok := c.TryAcquire(key(h))
				if ok != (len(queues[h]) == 0) {
					t.Fatalf("TryAcquire = %t with %d in the queue", ok, len(queues[h]))
				}
				if ok {
					queues[h] = append(queues[h], l)
				}
			},
			"release": func(t *rapid.T) {
				h, i := pick(t)
				queues[h][i].Release()
				leave(h, i)
			},
			"cancel": func(t *rapid.T) {
				h, i := pick(t)
				if err := queues[h][i].Wait(over); !errors.Is(err, context.Canceled) {
					t.Fatalf("Wait = %v", err)
				}
				leave(h, i)
			},
			"release again": func(t *rapid.T) {
				if len(gone) == 0 {
					t.Skip("nobody left yet")
				}
				rapid.SampledFrom(gone).Draw(t, "lease").Release()
			},
			"": func(t *rapid.T) {
				var want session.Stats
				for h, q := range queues {
					for i, l := range q {
						if l.Held() != (i == 0) {
							t.Fatalf("place %d of %q: held = %t", i, h, l.Held())
						}
					}
					want.Held += min(1, len(q))
					want.Waiting += max(0, len(q)-1)
				}
				for _, l := range gone {
					if l.Held() {
						t.Fatal("a lease that was given up is held")
					}
				}
				if s := c.Stats(); s != want {
					t.Fatalf("%+v, want %+v", s, want)
				}
			},
		})
	})
}

// Fault H4: waiting for each other.
func TestFaultH4WaitingForEachOther(t *testing.T) {
	t.Parallel()

	// queue starts n turns, which note when they run, and run until they are cancelled or told to end.
	type running struct {
		cancel context.CancelCauseFunc
		end    chan struct{}
		err    error
		done   bool
	}
	queue := func(t *testing.T, c *session.Cache, n int, order *[]int) []*running {
		var inside atomic.Int32
		turns := make([]*running, n)
		for i := range turns {
			ctx, cancel := context.WithCancelCause(t.Context())
			r := &running{cancel: cancel, end: make(chan struct{})}
			turns[i] = r
			l := c.Enqueue(key("s"))
			go func() {
				defer func() { r.done = true }()
				if r.err = l.Wait(ctx); r.err != nil {
					return
				}
				defer l.Release()
				if inside.Add(1) != 1 {
					t.Error("two turns of one session at once")
				}
				defer inside.Add(-1)
				*order = append(*order, i+1)
				select {
				case <-ctx.Done():
				case <-r.end:
				}
			}()
		}
		synctest.Wait()
		return turns
	}
	wantOrder := func(t *testing.T, got *[]int, want ...int) {
		t.Helper()
		synctest.Wait()
		if !slices.Equal(*got, want) {
			t.Errorf("turns ran in the order %v, want %v", *got, want)
		}
	}

	t.Run("the second is cancelled, then the first", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newCache(t, session.Config{})
			var order []int
			turns := queue(t, c, 4, &order)
			turns[1].cancel(adapters.CauseHostGone)
			wantOrder(t, &order, 1)
			if !errors.Is(turns[1].err, adapters.CauseHostGone) || turns[2].done || turns[3].done {
				t.Errorf("the second ended with %v", turns[1].err)
			}
			turns[0].cancel(adapters.CauseStopped)
			wantOrder(t, &order, 1, 3)
			close(turns[2].end)
			wantOrder(t, &order, 1, 3, 4)
			close(turns[3].end)
			synctest.Wait()
			if turns[2].err != nil || turns[3].err != nil || c.Stats() != (session.Stats{}) {
				t.Errorf("the third: %v, the fourth: %v, left: %+v", turns[2].err, turns[3].err, c.Stats())
			}
		})
	})

	t.Run("the second waiter is cancelled, then the first, then the last", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newCache(t, session.Config{})
			var order []int
			turns := queue(t, c, 6, &order)
			for _, i := range []int{2, 1, 5} {
				turns[i].cancel(adapters.CauseHostGone)
				synctest.Wait()
			}
			if s := c.Stats(); s.Waiting != 2 {
				t.Errorf("%d wait, want 2", s.Waiting)
			}
			late := c.Enqueue(key("s"))
			for _, i := range []int{0, 3, 4} {
				close(turns[i].end)
				synctest.Wait()
			}
			wantOrder(t, &order, 1, 4, 5)
			if !late.Held() {
				t.Error("who came after the last had left is not served")
			}
			late.Release()
		})
	})

	t.Run("ten at once, the first is cancelled", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newCache(t, session.Config{})
			var order []int
			turns := queue(t, c, 10, &order)
			turns[0].cancel(adapters.CauseHostGone)
			for _, r := range turns[1:] {
				close(r.end)
			}
			wantOrder(t, &order, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		})
	})

	t.Run("the wait is bounded", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newCache(t, session.Config{})
			holder := acquire(t, c, key("s"))
			defer holder.Release()
			start := time.Now()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, adapters.CauseSessionBusy)
			defer cancel()
			l := c.Enqueue(key("s"))

			other := c.Enqueue(key("other"))
			if !other.Held() {
				t.Error("another session waits")
			}
			other.Release()

			if err := l.Wait(ctx); !errors.Is(err, adapters.CauseSessionBusy) {
				t.Errorf("Wait = %v, want %v", err, adapters.CauseSessionBusy)
			}
			if d := time.Since(start); d != 200*time.Millisecond {
				t.Errorf("waited %v", d)
			}
		})
	})
}

func ExampleLease_Wait() {
	c, err := session.New(session.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	k := session.Key{Plugin: "muse", Handle: "s-1"}
	running := c.Enqueue(k) // the session was idle: held at once

	next := c.Enqueue(k)
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, adapters.CauseSessionBusy)
	defer cancel()
	fmt.Println(next.Wait(ctx))

	last := c.Enqueue(k)
	running.Release()
	fmt.Println(last.Wait(context.Background()), last.Held())
	last.Release()
	// Output:
	// turn ended: session-busy
	// <nil> true
}
