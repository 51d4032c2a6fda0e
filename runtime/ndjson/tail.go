package ndjson

import (
	"errors"
	"io"
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

// A Tail is one reader of a [Log]: an offset into it and the connection that its bytes go to. Follow
// belongs to one goroutine; while it runs, the log's producer may write to the connection too, one at
// a time. When Follow has returned nobody touches the connection any more.
type Tail struct {
	log  *Log
	conn Conn
	from int64
	off  int64

	parked  bool // Follow waits to be woken
	busy    bool // somebody writes
	leaving bool // Follow is about to return
	wake    chan struct{}
	err     error
	flushed int64 // when the last flush ended
	armed   int64 // when the write deadline was set last
	plain   bool  // the connection has no deadlines
}

// Attach adds a reader that starts at offset from (0, or the beginning of a [Log.Part]). The error is
// [ErrTrimmed] where that is gone. The caller must call Follow or Detach.
func (l *Log) Attach(conn Conn, from int64) (*Tail, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trimmed || from < l.base {
		return nil, ErrTrimmed
	}
	t := &Tail{log: l, conn: conn, from: from, off: from, wake: make(chan struct{}, 1)}
	if l.tail == nil && len(l.more) == 0 {
		l.tail = t
	} else {
		l.more = append(l.more, t)
	}
	return t, nil
}

// Detach removes the tail from its log. It may be called twice. Not to be called while Follow runs.
func (t *Tail) Detach() {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
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
}

// Flush writes what there is and flushes, on the calling goroutine. To be called before Follow.
func (t *Tail) Flush() error {
	l := t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.err == nil && t.off < l.end {
		t.write()
	}
	return t.err
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
		case t.busy:
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
			t.parked, t.leaving = false, true
			for t.busy { // cut short the write that the producer is in
				l.mu.Unlock()
				_ = t.conn.SetWriteDeadline(time.Unix(1, 0))
				<-t.wake
				l.mu.Lock()
			}
			if t.err == nil {
				t.err = ErrGone
			}
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

// rouse wakes Follow. Called with the log locked.
func (t *Tail) rouse() {
	if t.parked || t.leaving {
		t.parked = false
		select {
		case t.wake <- struct{}{}:
		default:
		}
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
	t.busy = true
	l.mu.Unlock()

	t.arm()
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
	ends := last && t.off+int64(n) == limit
	if err == nil && !ends {
		if err = t.conn.Flush(); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
	}
	ended := Now()

	l.mu.Lock()
	t.busy = false
	t.off += int64(n)
	t.flushed = ended
	if err != nil && t.err == nil {
		t.err = err
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

// arm sets the write deadline anew, unless it was set so shortly before that it is as good as new.
func (t *Tail) arm() {
	timeout := orDefault(t.log.conf.WriteTimeout, defaultWriteTimeout)
	if t.plain || timeout < 0 {
		return
	}
	at := Now()
	if t.armed != 0 && at-t.armed < int64(timeout/16) {
		return
	}
	t.armed = at
	if t.conn.SetWriteDeadline(time.Now().Add(timeout)) != nil {
		t.plain = true
	}
}
