package session_test

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

func heapInUse() int64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkSessions runs whole turns (Enqueue, Wait, Join, Commit, Release), each of another session
// than the one before, with so many sessions remembered. Conversations grow to eight messages, and are
// then cleared. heap/session and counted/session are bytes.
func BenchmarkSessions(b *testing.B) {
	var conversation []adapters.Message
	for range 4 {
		conversation = append(conversation, user("a message"), agent("an answer"))
	}
	for _, n := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if testing.Short() && n > 10_000 {
				b.Skip("takes a gigabyte")
			}
			keys := make([]session.Key, n)
			for i := range keys {
				keys[i] = key(numbered(i))
			}
			said := make([]int8, n)
			empty := heapInUse()
			c := newCache(b, session.Config{Entries: -1, Bytes: -1, TTL: -1})
			run := func(i int) {
				l := c.Enqueue(keys[i])
				if err := l.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				l.Join(conversation[:said[i]])
				l.Commit(conversation[0], conversation[1])
				l.Release()
				said[i] = (said[i] + 2) % 8
			}
			for i := range keys {
				run(i)
			}
			heap, counted := heapInUse()-empty, c.Stats().Bytes
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				run(i)
				if i += 7919; i >= n {
					i %= n
				}
			}
			b.ReportMetric(float64(heap)/float64(n), "heap/session")
			b.ReportMetric(float64(counted)/float64(n), "counted/session")
		})
	}
}

// BenchmarkJoin joins windows of 40 messages of 500 bytes with 42 remembered ones.
func BenchmarkJoin(b *testing.B) {
	var said []adapters.Message
	for i := range 45 {
		said = append(said, agent(fmt.Sprint(i, strings.Repeat(" and so on", 50))))
	}
	for name, window := range map[string][]adapters.Message{
		"extended": said[2:42],
		"more":     said[5:45], // others spoke since
		"replaced": append(said[1:40:40], user("edited")),
	} {
		b.Run(name, func(b *testing.B) {
			c := newCache(b, session.Config{})
			l := acquire(b, c, key("s"))
			l.Join(said[:42])
			l.Commit(adapters.Message{}, adapters.Message{})
			l.Release()
			l = acquire(b, c, key("s"))
			b.ReportAllocs()
			for b.Loop() {
				l.Join(window)
			}
			l.Release()
		})
	}
}

// BenchmarkLongConversation completes turns with a window of 40 messages, in a conversation that grows
// from 40 to some 1000.
func BenchmarkLongConversation(b *testing.B) {
	var said []adapters.Message
	for i := range 1000 {
		said = append(said, agent(fmt.Sprint(i, strings.Repeat(" and so on", 50))))
	}
	c := newCache(b, session.Config{})
	at := 40
	b.ReportAllocs()
	for b.Loop() {
		l := c.Enqueue(key("s"))
		if at == 40 {
			l.Forget()
		}
		l.Join(said[at-40 : at])
		l.Commit(said[at], said[at+1])
		l.Release()
		if at += 2; at >= 998 {
			at = 40
		}
	}
}

// BenchmarkQueue hands one session from turn to turn.
func BenchmarkQueue(b *testing.B) {
	c := newCache(b, session.Config{})
	l := c.Enqueue(key("s"))
	b.ReportAllocs()
	for b.Loop() {
		next := c.Enqueue(key("s"))
		l.Release()
		l = next
	}
	l.Release()
}

func BenchmarkSessionsInParallel(b *testing.B) {
	c := newCache(b, session.Config{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			l := c.Enqueue(key(fmt.Sprintf("%p-%d", pb, i%100)))
			l.Join(nil)
			l.Commit(user("a message"), agent("an answer"))
			l.Release()
		}
	})
}
