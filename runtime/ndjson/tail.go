package ndjson

import (
	"errors"
	"io"
	"os"
	"time"
)

// A Conn is where a [Tail] writes to. Write and Flush are never called at the same time;
// SetWriteDeadline may be called during either. An error of SetWriteDeadline means that the
// connection has no deadlines; an error that is errors.ErrUnsupported from Flush means that it cannot
// flush, which is no failure.
type Conn interface {
	io.Writer
	Flush() error
	SetWriteDeadline(t time.Time) error
}

// A HangUper is a [Conn] whose response can be ended although the handler that serves it has not
// returned. Where a connection is none, who serves it must not lend its goroutine to code that may
// keep it.
type HangUper interface{ HangUp() }

// A Tail is one reader of a [Log]: an offset into it and the connection that its bytes go to. It is
// served in one of two ways.
//
//   - [Log.Feed]: lines are written by the goroutine that appends them or by one that lives only while
//     some are pending. The goroutine that owns the connection is free to do something else, such as
//     being the producer, and calls Close at the end.
//   - [Log.Attach]: the goroutine that owns the connection calls Follow, and then Detach.
//
// When Close or Follow has returned nobody touches the connection any more.
type Tail struct {
	log  *Log
	conn Conn
	fail func(error)
	from int64
	off  int64

	parked  bool // Follow waits to be woken
	busy    bool // somebody writes
	pumping bool // a goroutine for pending lines has been started
	closing bool // Close does the rest
	orphan  bool // nobody will end the response: flush the last line and hang up
	gone    bool // nothing is to be written any more
	told    bool // fail was called
	plain   bool // the connection has no deadlines

	err     error
	flushed int64         // when the last flush ended
	armed   int64         // when the write deadline was set last
	wake    chan struct{} // of Follow; nil if the log feeds the tail
	quiet   chan struct{} // closed when the write in hand is over; nil unless somebody waits
}

// Attach adds a reader that starts at offset from (0, or the beginning of a [Log.Part]) and is served
// by its Follow. The error is [ErrTrimmed] where that offset is gone. The caller must call Detach.
func (l *Log) Attach(conn Conn, from int64) (*Tail, error) {
	return l.add(&Tail{log: l, conn: conn, from: from, off: from, wake: make(chan struct{}, 1)})
}

// Feed adds a reader that starts at offset from and is served by whoever appends. fail, if not nil, is
// called once if a write fails, without a lock; not for what Flush or Close return. The error is that
// of Attach. The caller must call Close or HangUp.
func (l *Log) Feed(conn Conn, from int64, fail func(error)) (*Tail, error) {
	return l.add(&Tail{log: l, conn: conn, from: from, off: from, fail: fail})
}

func (l *Log) add(t *Tail) (*Tail, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trimmed || t.from < l.base {
		return nil, ErrTrimmed
	}
	if l.tail == nil && len(l.more) == 0 {
		l.tail = t
	} else {
		l.more = append(l.more, t)
	}
	return t, nil
}

// Detach removes the tail from its log. It may be called twice. Not to be called while Follow runs.
func (t *Tail) Detach() {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	t.log.remove(t)
}

func (l *Log) remove(t *Tail) {
	if l.tail == t {
		l.tail = nil
		if k := len(l.more); k > 0 {
			l.tail, l.more[k-1] = l.more[k-1], nil
			l.more = l.more[:k-1]
		}
	} else {
		for i, o := range l.more {
			if o == t {
				l.more = append(l.more[:i], l.more[i+1:]...)
				break
			}
		}
	}
	l.release()
	if l.trimmed && l.sealed {
		l.trim() // nobody can read it any more
	}
}

// Flush writes what there is and flushes, on the calling goroutine.
func (t *Tail) Flush() error {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.busy && t.err == nil && t.off < l.end {
		told := t.told
		t.told = true // by what Flush returns
		t.write()
		t.told = told || t.err != nil
	}
	return t.err
}

// Drop gives up a reader that is gone: what it has not taken is dropped, a write that is under way is
// cut short, and the log goes on without it. It does not wait. Close must still be called. It returns
// why the reader got no further: [ErrGone], or the error of a write, which is an
// os.ErrDeadlineExceeded if a write has just passed its limit.
func (t *Tail) Drop() error {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	t.gone = true
	if t.err == nil {
		t.err = ErrGone
		if timeout := l.writeTimeout(); t.busy && !t.plain && timeout > 0 && Now()-t.armed >= int64(timeout) {
			t.err = os.ErrDeadlineExceeded
		}
	}
	if t.busy {
		_ = t.conn.SetWriteDeadline(time.Unix(1, 0))
	}
	l.remove(t)
	return t.err
}

// Close ends a tail that was served by whoever appends. It waits for a write that is under way,
// writes what is left (the last line of a sealed log may stay in the connection's buffer, to leave
// with the end of the response), removes the tail from the log, and returns the first error there was.
func (t *Tail) Close() error {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	t.closing = true
	for t.busy {
		t.waitQuiet()
	}
	for limit, _ := t.limit(); t.err == nil && t.off < limit; limit, _ = t.limit() {
		t.write()
	}
	l.remove(t)
	return t.err
}

// HangUp is Close for a handler that will not return in the usual way: it flushes the last line and
// ends the response as far as the connection can.
func (t *Tail) HangUp() error {
	t.log.mu.Lock()
	t.orphan = true
	t.log.mu.Unlock()
	err := t.Close()
	if h, ok := t.conn.(HangUper); ok && err == nil {
		h.HangUp()
	}
	return err
}

func (t *Tail) waitQuiet() {
	if t.quiet == nil {
		t.quiet = make(chan struct{})
	}
	quiet := t.quiet
	t.log.mu.Unlock()
	<-quiet
	t.log.mu.Lock()
}

// Follow writes lines as they come, and returns nil when the last line of the log (or of the part)
// is written. It returns [ErrGone] when done is closed, and what a failed write returned. The last
// line may still be in the connection's buffer: it leaves with the end of the response.
func (t *Tail) Follow(done <-chan struct{}) error {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch limit, last := t.limit(); {
		case t.err != nil:
			return t.err
		case t.off < limit:
			t.write()
			continue
		case last:
			return nil
		}
		t.parked = true
		l.mu.Unlock()
		select {
		case <-t.wake:
			l.mu.Lock()
			t.parked = false
		case <-done:
			l.mu.Lock()
			t.parked, t.gone = false, true
			t.err = ErrGone
			return t.err
		}
	}
}

// Offset tells how far the reader has got.
func (t *Tail) Offset() int64 {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.off
}

// limit is the offset at which this tail ends for now, and whether it ends there for good.
func (t *Tail) limit() (int64, bool) {
	for _, c := range t.log.cuts {
		if c > t.from {
			return c, true
		}
	}
	return t.log.end, t.log.sealed
}

// deliver sees that the tail gets what it has not taken, on the calling goroutine (which may be the
// only one that can) or on another. Called with the log locked; it may unlock meanwhile.
func (t *Tail) deliver(inPlace bool) {
	if t.wake != nil {
		if t.parked {
			t.parked = false
			select {
			case t.wake <- struct{}{}:
			default:
			}
		}
		return
	}
	if t.busy || t.pumping || t.closing || t.err != nil {
		return // whoever is at it looks again
	}
	if inPlace && Now()-t.flushed > burstGap {
		t.write()
		if t.closing || t.err != nil {
			return
		}
		if limit, _ := t.limit(); t.off == limit && !t.orphan {
			return
		}
		// Other producers have appended meanwhile.
	}
	t.pumping = true
	go t.pump()
}

// pump writes lines until none is pending. It is started by deliver and does not outlive Close, but
// for the moment that it takes to find that it has nothing to do.
func (t *Tail) pump() {
	l := t.log
	l.mu.Lock()
	for !t.closing && t.err == nil {
		if limit, _ := t.limit(); t.off == limit {
			break
		}
		t.write()
	}
	t.pumping = false
	if t.orphan && !t.closing && t.err == nil {
		t.hangUp()
	}
	l.unlock()
}

// hangUp ends the response of a handler that does not return. Called with the log locked.
func (t *Tail) hangUp() {
	h, ok := t.conn.(HangUper)
	t.err, t.gone = ErrGone, true
	if !ok {
		return
	}
	t.begin()
	t.log.mu.Unlock()
	h.HangUp()
	t.log.mu.Lock()
	t.end()
}

// begin and end mark that somebody uses the connection.
func (t *Tail) begin() { t.busy = true }

func (t *Tail) end() {
	t.busy = false
	if t.quiet != nil {
		close(t.quiet)
		t.quiet = nil
	}
}

// write writes what is behind the offset and flushes. Called with the log locked, which it unlocks
// meanwhile; it leaves the result in t.err.
func (t *Tail) write() {
	l := t.log
	limit, last := t.limit()
	var at [4][]byte
	vec, next := at[:0], l.base
	for _, s := range l.segs {
		begin := next
		next += int64(len(s))
		if next <= t.off {
			continue
		}
		if t.off > begin {
			s = s[t.off-begin:]
		}
		if next > limit {
			s = s[:int64(len(s))-(next-limit)]
		}
		vec = append(vec, s)
		if len(vec) == cap(vec) || next >= limit {
			break
		}
	}
	flushEnd := t.orphan
	deadline, due := t.due()
	t.begin()
	l.mu.Unlock()

	if due {
		t.arm(deadline)
	}
	var n int
	var err error
	for _, s := range vec {
		var k int
		k, err = t.conn.Write(s)
		n += k
		if err != nil {
			break
		}
	}
	if ends := last && t.off+int64(n) == limit; err == nil && (!ends || flushEnd) {
		if err = t.conn.Flush(); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
	}
	ended := Now()

	l.mu.Lock()
	t.end()
	t.off += int64(n)
	t.flushed = ended
	if err != nil && t.err == nil {
		t.err = err
		if t.fail != nil && !t.closing && !t.told {
			t.told = true
			l.failed = append(l.failed, t)
		}
	}
	if l.taken == 0 && l.slowest() >= l.mark {
		l.taken = ended
	}
	if l.space != nil && (t.err != nil || l.end-l.slowest() <= l.ahead()/2) {
		l.release()
	}
	if l.trimmed {
		l.trim()
	}
}

// due tells whether the write deadline is to be set anew, and to what: not where it was set so shortly
// before that it is as good as new. Called with the log locked.
func (t *Tail) due() (deadline time.Time, due bool) {
	if t.plain {
		return deadline, false
	}
	if timeout := t.log.writeTimeout(); timeout > 0 { // else none, also where the server around us has set one
		at := Now()
		if t.armed != 0 && at-t.armed < int64(timeout/16) {
			return deadline, false
		}
		t.armed, deadline = at, time.Now().Add(timeout)
	}
	return deadline, true
}

// arm sets the write deadline of a write that has begun. Called without the lock.
func (t *Tail) arm(deadline time.Time) {
	err := t.conn.SetWriteDeadline(deadline)
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	t.plain = err != nil || deadline.IsZero()
	if t.gone { // Drop came in between, and it is its deadline that counts
		_ = t.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}
