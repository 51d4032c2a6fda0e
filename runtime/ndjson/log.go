package ndjson

import (
	"errors"
	"sync"
	"time"
	"unsafe"
)

// How a turn's lines get out
//
// The producer appends whole lines under the log's lock. Each Tail has an offset, and at any moment at
// most one goroutine writes for it:
//
//   - A line that comes while the tail is caught up and its last flush is some time ago is written and
//     flushed by the producer itself. That is the case of a model's tokens, and costs no switch of
//     goroutines.
//   - A line that comes close behind a flush starts a burst. A goroutine is started that writes all
//     there is behind the offset, again and again, until it has caught up, and ends. While it is in the
//     kernel the producer goes on appending, so the faster the producer, the larger the writes.
//   - What is left when the log is sealed is written without a flush, because it leaves with the end
//     of the response.
//
// Readers that come later have a goroutine of their own in Follow, which is woken instead.
//
// Back-pressure is a limit on what the slowest tail has not taken. There is no second buffer and no
// timer.
//
// Bytes that were appended never change, so they are written outside the lock.

// Errors of a [Log] and a [Tail].
var (
	// ErrSealed reports an append after the log's last line.
	ErrSealed = errors.New("ndjson: log is sealed")
	// ErrTrimmed reports that a log outgrew its bound, so that its beginning is gone.
	ErrTrimmed = errors.New("ndjson: log has outgrown its bound")
	// ErrGone reports that the reader of a [Tail] went away.
	ErrGone = errors.New("ndjson: reader is gone")
)

// LogConfig bounds a [Log]. The zero value of a field means its default.
type LogConfig struct {
	// Keep is how many bytes are kept for readers that come later. A log that outgrows it goes on
	// and can no longer be attached to. Default 1 MiB.
	Keep int64
	// Ahead is how far the producer may be ahead of the slowest tail, in bytes, before it waits.
	// Default 256 KiB.
	Ahead int64
	// WriteTimeout is how long one write to a tail may take. Default 30 seconds; negative means no
	// limit.
	WriteTimeout time.Duration
	// Unread is what happens while nobody reads: false lets the producer go on for ever, true makes
	// it wait once the log has reached Keep, so that a reader who comes back still finds all of it.
	HoldUnread bool
}

const (
	defaultKeep         = 1 << 20
	defaultAhead        = 256 << 10
	defaultWriteTimeout = 30 * time.Second

	// burstGap is how close behind a flush a line must come to be taken for part of a burst. A write
	// to a socket takes some ten microseconds; whoever produces lines faster than a few of those gains
	// by gathering.
	burstGap = int64(100 * time.Microsecond)

	firstSegment = 1 << 10
	nextSegment  = 4 << 10
	largeSegment = 32 << 10
)

var largeSegments = sync.Pool{New: func() any { return new([largeSegment]byte) }}

// epoch lies so far back that Now is positive under a test's own time too.
var epoch = time.Now().Add(-100 * 365 * 24 * time.Hour)

// Now is the clock that a log's times are on: nanoseconds, monotonic, positive.
func Now() int64 { return int64(time.Since(epoch)) }

// A Log is the append-only record of the lines of one turn. Appending is in two steps, so that lines
// are encoded in place:
//
//	if err := log.Begin(); err != nil { … }
//	line := append(log.Room(64), "…\n"...)
//	log.Commit(line, true)
//
// Its methods may be called from several goroutines; Begin holds the log's lock until Commit, Seal or
// Abort. Call Init before anything else.
type Log struct {
	mu      sync.Mutex
	conf    *LogConfig
	segs    [][]byte // oldest first
	base    int64    // offset of the first byte of segs
	end     int64    // offset behind the last byte
	trimmed bool
	sealed  bool
	cuts    []int64
	tail    *Tail   // the only one, mostly
	more    []*Tail // the others
	failed  []*Tail // those whose fail is to be called
	space   chan struct{}
	stalled int   // producers that wait for room
	mark    int64 // where the producer's last own line ends
	taken   int64 // when every tail had got that far; 0 while one has not
	sealedC chan struct{}

	firstSeg [1][]byte // where segs begins, to save an allocation
}

// Init makes l ready. conf is kept and not changed; nil means all defaults.
func (l *Log) Init(conf *LogConfig) {
	if conf == nil {
		conf = &LogConfig{}
	}
	l.conf = conf
	l.segs = l.firstSeg[:0]
}

func (l *Log) keep() int64 { return orDefault(l.conf.Keep, defaultKeep) }
func (l *Log) writeTimeout() time.Duration {
	return orDefault(l.conf.WriteTimeout, defaultWriteTimeout)
}
func (l *Log) ahead() int64 { return orDefault(l.conf.Ahead, defaultAhead) }

func orDefault[T int64 | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// Begin starts an append. After nil the log is locked until Commit, Seal or Abort; after [ErrSealed]
// it is not.
func (l *Log) Begin() error {
	l.mu.Lock()
	if l.sealed {
		l.mu.Unlock()
		return ErrSealed
	}
	return nil
}

// Room returns an empty slice to append lines to, with place for n bytes. Appending more is right
// too, and costs a copy. To be called between Begin and Commit or Seal, once.
func (l *Log) Room(n int) []byte {
	if k := len(l.segs); k > 0 {
		if s := l.segs[k-1]; cap(s)-len(s) >= n {
			return s[len(s):len(s):cap(s)]
		}
	}
	var size int
	switch {
	case l.end < firstSegment/2:
		size = firstSegment
	case l.end < nextSegment:
		size = nextSegment
	default:
		if n <= largeSegment {
			s := largeSegments.Get().(*[largeSegment]byte)
			l.segs = append(l.segs, s[:0])
			return s[:0]
		}
	}
	return make([]byte, 0, max(size, n))
}

// Commit appends the lines that were written to the slice Room returned (or any other whole lines
// that will never change), unlocks the log and sees that they leave. own tells that they are the
// producer's own and not, say, a heartbeat: then the calling goroutine may write to a reader itself,
// and Taken speaks of them. It reports whether the producer is now too far ahead and should call
// [Log.WaitRoom].
func (l *Log) Commit(lines []byte, own bool) (tooFar bool) {
	if len(lines) > 0 {
		l.put(lines)
		if own {
			l.mark, l.taken = l.end, 0
		}
		l.deliver(own)
	}
	tooFar = l.tooFar()
	l.unlock()
	return tooFar
}

// unlock unlocks the log and tells whose writes have failed meanwhile.
func (l *Log) unlock() {
	failed := l.failed
	l.failed = nil
	l.mu.Unlock()
	for _, t := range failed {
		t.fail(t.err)
	}
}

// Seal is Commit for the last lines: nothing can be appended afterwards. They are written by whoever
// follows or closes a tail. With orphaned nobody will: the producer has been given up, and the
// connections that wait for it are served and hung up.
func (l *Log) Seal(lines []byte, orphaned bool) {
	l.put(lines)
	l.sealed = true
	if l.sealedC != nil {
		close(l.sealedC)
	}
	l.release()
	l.each(func(t *Tail) {
		if t.wake != nil {
			t.deliver(false)
		} else if orphaned {
			t.orphan = true
			t.deliver(false)
		}
	})
	l.unlock()
}

// Abort ends an append that was begun, without appending.
func (l *Log) Abort() { l.mu.Unlock() }

// Cut marks the end of a part: a [Tail] that was attached before the cut ends there, one that is
// attached behind it begins there.
func (l *Log) Cut() {
	l.mu.Lock()
	l.cuts = append(l.cuts, l.end)
	l.deliver(false)
	l.unlock()
}

// Part returns the offset at which the n-th part begins, counted from 0, and false if there is none
// such yet.
func (l *Log) Part(n int) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		return 0, true
	}
	if n > len(l.cuts) {
		return 0, false
	}
	return l.cuts[n-1], true
}

// Bursting tells, between Begin and Commit, whether lines of the producer are being let out at this
// moment, so that Taken will say when they were.
func (l *Log) Bursting() bool {
	return l.tail != nil && l.tail.pumping && len(l.more) == 0 && l.taken == 0
}

// Size tells how many bytes were appended in all.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Held tells how many bytes of memory the log's lines take.
func (l *Log) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, s := range l.segs {
		n += int64(cap(s))
	}
	return n
}

// Trimmed tells whether the log has outgrown its bound, so that Attach would fail.
func (l *Log) Trimmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trimmed
}

// Behind tells whether a reader is behind: some line has been appended that it has not taken.
func (l *Log) Behind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return (l.tail != nil || len(l.more) > 0) && l.slowest() < l.end
}

// Taken tells whether the readers have taken all of the producer's own lines, and since when (on the
// clock of [Now]; 0 where there never was a reader to take one).
func (l *Log) Taken() (since int64, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stalled > 0 || (l.tail != nil || len(l.more) > 0) && l.slowest() < l.mark {
		return 0, false
	}
	return l.taken, true
}

// Sealed returns a channel that is closed when the log is sealed.
func (l *Log) Sealed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealedC == nil {
		l.sealedC = make(chan struct{})
		if l.sealed {
			close(l.sealedC)
		}
	}
	return l.sealedC
}

// WaitRoom waits until the producer is no longer too far ahead, the log is sealed, or done is closed.
func (l *Log) WaitRoom(done <-chan struct{}) {
	l.mu.Lock()
	for l.tooFar() {
		if l.space == nil {
			l.space = make(chan struct{})
		}
		space := l.space
		l.stalled++
		l.mu.Unlock()
		over := false
		select {
		case <-space:
		case <-done:
			over = true
		}
		l.mu.Lock()
		l.stalled--
		if over {
			break
		}
	}
	l.mu.Unlock()
}

func (l *Log) tooFar() bool {
	if l.sealed {
		return false
	}
	if l.tail == nil && len(l.more) == 0 {
		return l.conf.HoldUnread && !l.trimmed && l.end-l.base > l.keep()
	}
	return l.end-l.slowest() > l.ahead()
}

// release lets waiting producers look again.
func (l *Log) release() {
	if l.space != nil {
		close(l.space)
		l.space = nil
	}
}

// slowest is the least offset of all tails. There is at least one.
func (l *Log) slowest() int64 {
	low := l.end
	if l.tail != nil {
		low = l.tail.off
	}
	for _, t := range l.more {
		low = min(low, t.off)
	}
	return low
}

func (l *Log) put(lines []byte) {
	if len(lines) == 0 {
		return
	}
	k := len(l.segs)
	if k > 0 {
		s := l.segs[k-1]
		if len(s) < cap(s) && unsafe.SliceData(s[len(s):cap(s)]) == unsafe.SliceData(lines) {
			l.segs[k-1] = s[:len(s)+len(lines)]
			l.end += int64(len(lines))
			l.trim()
			return
		}
		if len(s) == 0 { // fetched for this append, which then outgrew it
			l.segs = l.segs[:k-1]
		}
	}
	l.segs = append(l.segs, lines)
	l.end += int64(len(lines))
	l.trim()
}

// trim gives up the beginning of a log that has outgrown its bound.
func (l *Log) trim() {
	if l.end-l.base <= l.keep() && !l.trimmed {
		return
	}
	attached := l.tail != nil || len(l.more) > 0
	if !l.trimmed {
		if !attached && l.conf.HoldUnread && l.end-l.base <= l.keep()+l.ahead() {
			return // the producer waits now, and the log stays whole for a reader that comes back
		}
		l.trimmed = true
	}
	low := l.end
	if attached {
		low = l.slowest()
	}
	keep := 1 // the one that is appended to
	if l.sealed && !attached {
		keep = 0
	}
	n := 0
	for n < len(l.segs)-keep && l.base+int64(len(l.segs[n])) <= low {
		l.base += int64(len(l.segs[n]))
		if cap(l.segs[n]) == largeSegment {
			largeSegments.Put((*[largeSegment]byte)(l.segs[n][:largeSegment]))
		}
		n++
	}
	if n > 0 {
		rest := copy(l.segs, l.segs[n:])
		clear(l.segs[rest:])
		l.segs = l.segs[:rest]
	}
}

// deliver sees that every tail gets what it has not taken. It may unlock and lock again.
func (l *Log) deliver(inPlace bool) {
	if l.tail != nil && len(l.more) == 0 {
		l.tail.deliver(inPlace)
		return
	}
	l.each(func(t *Tail) { t.deliver(false) }) // a slow reader must not hold up the others
}

func (l *Log) each(f func(*Tail)) {
	if l.tail != nil {
		f(l.tail)
	}
	for _, t := range l.more {
		f(t)
	}
}
