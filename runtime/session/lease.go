package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/backline-dev/backline/adapters"
)

// ErrNotHeld reports that a lease was used while its turn still waits for the session.
var ErrNotHeld = errors.New("session: the lease is not held yet")

// A Lease is a turn's claim to its session: a place in the session's queue at first, the session
// itself once it is held, and nothing after [Lease.Release]. Its methods may be called from several
// goroutines. A lease must be released, whatever became of it, or its session is stuck; only a Wait
// that failed has done so itself.
//
// A Lease is the [adapters.Values] of its turn's session. It may be kept for ever, by an adapter that
// was abandoned, say: once it is released it holds on to nothing and does nothing.
type Lease struct {
	c     *Cache
	ready chan struct{} // closed when the lease stops waiting; nil if it never waited
	state atomic.Uint32 // changes under c.mu; holding is published after entry and origin

	// The queue, under c.mu. The lease that holds the session is its head and also knows its end.
	key        Key
	hash       hash
	prev, next *Lease
	last       *Lease

	// mu guards what follows once the lease is held; until then it is c.mu that does. It comes before
	// c.mu.
	mu        sync.Mutex
	entry     *entry              // nil while nothing is remembered
	origin    adapters.Continuity // new or evicted if the session was not known, else same
	window    []adapters.Message  // as joined
	keep      int                 // how much of the conversation comes before the window
	overlap   int                 // how much of it the window repeats
	joined    bool
	committed bool
}

var _ adapters.Values = (*Lease)(nil)

const (
	waiting uint32 = iota
	holding
	over
)

// A value is one stored value; its bytes are never changed.
type value struct {
	key string
	raw json.RawMessage
}

// Enqueue takes the next place in the queue of key's session, at once, and does not block: the lease
// is held already where nobody was before it, else [Lease.Wait] tells when it is.
func (c *Cache) Enqueue(key Key) *Lease {
	l := &Lease{c: c, key: key, hash: c.hash(key)}
	c.mu.Lock()
	defer c.mu.Unlock()
	head := c.held[key]
	if head == nil {
		c.hand(l)
		return l
	}
	l.ready = make(chan struct{})
	l.prev = head.last
	head.last.next = l
	head.last = l
	c.waiting++
	return l
}

// TryAcquire returns a held lease on key's session if no turn holds or awaits it, else false.
func (c *Cache) TryAcquire(key Key) (*Lease, bool) {
	l := &Lease{c: c, key: key, hash: c.hash(key)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[key] != nil {
		return nil, false
	}
	c.hand(l)
	return l, true
}

// hand gives the session to l, which is the head of its queue. It needs c.mu.
func (c *Cache) hand(l *Lease) {
	if l.last == nil {
		l.last = l
	}
	c.held[l.key] = l
	l.entry, l.origin = c.find(l.key, l.hash)
	if l.entry != nil {
		l.entry.leased = true
	}
	l.state.Store(holding)
	if l.ready != nil {
		c.waiting--
		close(l.ready)
	}
}

// Held tells whether the lease has the session now.
func (l *Lease) Held() bool { return l.state.Load() == holding }

// Wait blocks until the lease is held. If ctx is done first, or is done already, it releases the
// lease and returns context.Cause(ctx): the turn loses its place, all others keep their order, and
// a session that was handed over at that moment goes on to the next. It returns
// [adapters.ErrTurnOver] if the lease was released meanwhile.
func (l *Lease) Wait(ctx context.Context) error {
	if l.ready != nil {
		select {
		case <-l.ready:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		l.Release()
		return context.Cause(ctx)
	}
	if !l.Held() {
		return adapters.ErrTurnOver
	}
	return nil
}

// Release gives the session to the next in its queue, or gives up the lease's place in it. What was
// not committed is forgotten. Releasing again does nothing. Strings and slices that were given to the
// lease are no longer used when it returns.
func (l *Lease) Release() {
	l.mu.Lock() // let a Store or Commit that has begun come to its end
	defer l.mu.Unlock()
	if l.state.Load() == over {
		return
	}

	c := l.c
	c.mu.Lock()
	if l.state.Swap(over) == waiting {
		l.prev.next = l.next
		if l.next != nil {
			l.next.prev = l.prev
		} else {
			c.held[l.key].last = l.prev
		}
		c.waiting--
		close(l.ready)
	} else {
		if e := l.entry; e != nil {
			e.leased = false
			if e.kept {
				e.used = c.now()
				c.kept.Get(l.hash)
			}
		}
		// Not overwritten by the next one: the map might keep this turn's key, in its request's memory.
		delete(c.held, l.key)
		if next := l.next; next != nil {
			next.prev = nil
			if l.last != next {
				next.last = l.last
			}
			c.hand(next)
		}
	}
	c.mu.Unlock()

	l.key, l.prev, l.next, l.last = Key{}, nil, nil, nil
	l.entry, l.window = nil, nil
}

// Join joins the transcript window that the host sent (oldest first, without the current message)
// with the remembered conversation. history is what the adapter may see and is its own, with room for
// a few messages more; it is never nil. Where nothing is remembered, history is a copy of the window.
//
// The window, its strings included, is read again by Commit: it must stay as it is until then, or
// until Release. Of several calls the last one counts. Join panics while the lease is waiting; after
// Release it returns a copy of the window, as of a new session.
func (l *Lease) Join(window []adapters.Message) (history []adapters.Message, c adapters.Continuity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mine() {
		return concat(nil, window), adapters.ContinuityNew
	}
	l.joined, l.window = true, window
	l.keep, l.overlap = 0, 0

	if l.origin != adapters.ContinuitySame {
		return concat(nil, window), l.origin
	}
	said := l.entry.said
	switch {
	case len(said) == 0:
		return concat(nil, window), adapters.ContinuitySame
	case len(window) == 0:
		l.entry.said = nil
		l.settle(-messagesSize(said))
		return concat(nil, nil), adapters.ContinuityCleared
	}
	l.overlap = overlap(said, window)
	if l.overlap == 0 {
		return concat(nil, window), adapters.ContinuityReplaced
	}
	l.keep = len(said) - l.overlap
	if l.keep == 0 {
		return concat(nil, window), adapters.ContinuitySame
	}
	return concat(said[:l.keep], window), adapters.ContinuityExtended
}

// Recall is Join for a turn whose host sent no window at all, which is not an empty one: history is what
// is remembered, and nothing of it is dropped. The continuity is [adapters.ContinuityExtended] where
// there is something. After Release it returns an empty history, as of a new session.
func (l *Lease) Recall() (history []adapters.Message, c adapters.Continuity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.mine():
		return concat(nil, nil), adapters.ContinuityNew
	case l.origin != adapters.ContinuitySame:
		return concat(nil, nil), l.origin
	}
	l.joined, l.window, l.overlap = false, nil, 0 // Commit goes on from what is remembered
	if len(l.entry.said) == 0 {
		return concat(nil, nil), adapters.ContinuitySame
	}
	return concat(l.entry.said, nil), adapters.ContinuityExtended
}

// concat returns a and b in a slice of its own. Nothing takes no memory.
func concat(a, b []adapters.Message) []adapters.Message {
	n := len(a) + len(b)
	if n == 0 {
		return []adapters.Message{}
	}
	const room = 2 // the current message, and one to spare
	return append(append(make([]adapters.Message, 0, n+room), a...), b...)
}

// Commit says that the turn completed: from now on the conversation is what Join returned, then
// message, then answer, as far as they have content. Without a Join it is what was remembered before,
// and these. Only the first call counts; after Release it does nothing, and while the lease is
// waiting it panics. The strings are copied where the cache has no copy of them yet.
//
// A Time in message or answer must be the host's own; zero is right where the host has not told one,
// because a message with another time is another message.
func (l *Lease) Commit(message, answer adapters.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mine() || l.committed {
		return
	}
	l.committed = true

	delta := l.create()
	said := l.entry.said
	if !l.joined {
		l.keep = len(said)
	}
	if same := l.keep + l.overlap; same < len(said) { // the window replaces it all
		delta -= messagesSize(said)
		said = nil
	}
	delta += relabel(said, l.keep, l.window[:l.overlap])

	from := len(said)
	said = grow(said, len(l.window)-l.overlap+2)
	said = append(said, l.window[l.overlap:]...)
	for _, m := range [...]*adapters.Message{&message, &answer} {
		if m.Content != "" {
			said = append(said, *m)
		}
	}
	own(said, from)
	delta += messagesSize(said[from:])

	l.entry.said = said
	l.settle(delta)
}

// Forget drops all that is remembered of the session, values too, as if it had never been, and tells
// whether there was anything. What the turn stores or commits afterwards begins a new session.
func (l *Lease) Forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mine() {
		return false
	}
	was := l.entry != nil
	l.c.mu.Lock()
	if was {
		l.c.remove(l.entry)
	}
	l.c.lost.remove(l.hash)
	l.c.mu.Unlock()
	l.entry, l.origin = nil, adapters.ContinuityNew
	l.keep, l.overlap = 0, 0
	return was
}

// Load returns a copy of the JSON stored under key, or false. After Release there is none.
func (l *Lease) Load(key string) (json.RawMessage, bool) {
	raw, ok := l.load(key)
	return bytes.Clone(raw), ok // never changed, so that it can be copied without the lock
}

func (l *Lease) load(key string) (json.RawMessage, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load() != holding || l.entry == nil {
		return nil, false
	}
	i, ok := l.entry.find(key)
	if !ok {
		return nil, false
	}
	return l.entry.values[i].raw, true
}

// Store keeps a copy of raw under key, at once: it holds also if the turn then fails. It returns
// [adapters.ErrTurnOver] after Release, [ErrNotHeld] before the lease is held, and no other error.
func (l *Lease) Store(key string, raw json.RawMessage) error {
	raw = append(make(json.RawMessage, 0, len(raw)), raw...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.err(); err != nil {
		return err
	}
	delta := l.create()
	e := l.entry
	if i, ok := e.find(key); ok {
		delta += int64(len(raw) - len(e.values[i].raw))
		e.values[i].raw = raw
	} else {
		v := value{strings.Clone(key), raw}
		e.values = slices.Insert(e.values, i, v)
		delta += valueSize(v)
	}
	l.settle(delta)
	return nil
}

// Delete forgets key. Its errors are those of Store.
func (l *Lease) Delete(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.err(); err != nil || l.entry == nil {
		return err
	}
	e := l.entry
	if i, ok := e.find(key); ok {
		delta := -valueSize(e.values[i])
		e.values = slices.Delete(e.values, i, i+1)
		if len(e.values) < cap(e.values)/4 {
			e.values = slices.Clone(e.values) // room that is not counted
		}
		l.settle(delta)
	}
	return nil
}

// Keys returns the keys in use, sorted. After Release there are none.
func (l *Lease) Keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load() != holding || l.entry == nil {
		return nil
	}
	keys := make([]string, len(l.entry.values))
	for i, v := range l.entry.values {
		keys[i] = v.key
	}
	return keys
}

func (e *entry) find(key string) (int, bool) {
	return slices.BinarySearchFunc(e.values, key, func(v value, key string) int {
		return strings.Compare(v.key, key)
	})
}

// The methods below need l.mu.

// mine tells whether the lease is held, as opposed to released. It panics while the lease is waiting:
// another turn has the session, and the program forgot to wait.
func (l *Lease) mine() bool {
	err := l.err()
	if errors.Is(err, ErrNotHeld) {
		panic(err)
	}
	return err == nil
}

func (l *Lease) err() error {
	switch l.state.Load() {
	case waiting:
		return ErrNotHeld
	case over:
		return adapters.ErrTurnOver
	}
	return nil
}

// create makes sure that there is an entry, and returns by how much it has grown if it is new. The
// caller settles.
func (l *Lease) create() int64 {
	if l.entry != nil {
		return 0
	}
	l.entry = &entry{key: l.key.clone(), hash: l.hash, leased: true}
	return entrySize(l.key)
}

// settle counts that the entry has grown by delta bytes and is used now.
func (l *Lease) settle(delta int64) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.c.settle(l.entry, delta)
}
