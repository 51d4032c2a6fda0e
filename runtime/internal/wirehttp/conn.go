package wirehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
)

// Streams are the streams of one handler. Its fields are not changed once it is used, and it is not copied.
// Its methods may be called from several goroutines.
type Streams struct {
	// Logger gets a warning about middleware that is in the way. Required.
	Logger *slog.Logger
	// WriteTimeout is how long a reader may take nothing, until whoever writes sets another limit with
	// SetWriteDeadline. Default 30 seconds; negative means no limit.
	WriteTimeout time.Duration

	warnFlush sync.Once
	open      atomic.Int64
}

// Open returns the connection of a response that is to be a stream. Close must be called when the stream has
// ended.
func (s *Streams) Open(w http.ResponseWriter, r *http.Request) *Conn {
	s.open.Add(1)
	c := &Conn{
		w:       w,
		streams: s,
		chunked: r.ProtoMajor == 1 && r.ProtoMinor > 0,
		shared:  r.ProtoMajor > 1,
	}
	c.rc = *http.NewResponseController(w)
	switch {
	case s.WriteTimeout > 0:
		c.limit = s.WriteTimeout
	case s.WriteTimeout == 0:
		c.limit = answerTimeout
	}
	return c
}

// Wait waits until the last line of every stream is on its way, or ctx is done. It is for the end of a
// server, whose own shutdown does not know of a stream that was ended with HangUp.
func (s *Streams) Wait(ctx context.Context) {
	for tick := time.NewTicker(time.Millisecond); ; {
		if s.open.Load() == 0 || ctx.Err() != nil {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// A Conn is a connection as a turn's log writes to it. Write and Flush are never called at the same time;
// SetWriteDeadline may be called during either.
type Conn struct {
	w       http.ResponseWriter
	streams *Streams
	pieces
	chunked bool // the response ends with an empty chunk

	// HTTP/2: the connection is shared, and a write deadline resets the stream when it passes, also if
	// nothing is being written. So it must not be left in place while the turn is silent.
	shared bool

	headerFirst bool // before anything else, which was not yet written
	began       bool
	crashed     atomic.Bool // a middleware's ResponseWriter panicked
	closed      atomic.Bool
}

var _ ndjson.Conn = (*Conn)(nil)

// Lent returns the connection for a log whose producer may keep the goroutine of the handler. Where the
// protocol allows it (HTTP/1) it is an [ndjson.HangUper].
func (c *Conn) Lent() ndjson.Conn {
	if c.shared {
		return c
	}
	return ownConn{c}
}

// HeaderFirst has the header go out by itself, for a stream that may come in one piece: net/http would
// give that a Content-Length. It is called before the first Write.
func (c *Conn) HeaderFirst() { c.headerFirst = true }

// Began tells whether something was written.
func (c *Conn) Began() bool { return c.began }

// Crashed tells whether a middleware's ResponseWriter panicked, which is in the log then. The handler must
// panic with http.ErrAbortHandler: a stream without its end must not look like one that has it.
func (c *Conn) Crashed() bool { return c.crashed.Load() }

// Close says that the stream has ended. It may be called several times, and writes nothing.
func (c *Conn) Close() {
	if c.closed.CompareAndSwap(false, true) {
		c.streams.open.Add(-1)
	}
}

// guard is deferred around what may run a foreign middleware's code on a goroutine of ours, where nobody
// else would recover from its panic.
func (c *Conn) guard(err *error) {
	if v := recover(); v != nil {
		c.crashed.Store(true)
		*err = errCrashed
		c.streams.Logger.Error("a middleware's ResponseWriter panicked",
			"writer", fmt.Sprintf("%T", c.w), "panic_type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
	}
}

var errCrashed = errors.New("the ResponseWriter panicked")

// Write implements [ndjson.Conn].
func (c *Conn) Write(p []byte) (n int, err error) {
	defer c.guard(&err)
	if c.headerFirst {
		c.headerFirst = false
		_ = c.rc.Flush() // Flush below tells of writers that cannot
	}
	c.began = true
	return c.write(c.w, p)
}

// Flush implements [ndjson.Conn].
func (c *Conn) Flush() (err error) {
	defer c.guard(&err)
	err = c.rc.Flush()
	if c.shared && !c.armed.IsZero() {
		c.armed = time.Time{}
		_ = c.rc.SetWriteDeadline(time.Time{})
	}
	if err != nil && errors.Is(err, http.ErrNotSupported) {
		c.streams.warnFlush.Do(func() {
			c.streams.Logger.Warn("a middleware's ResponseWriter cannot flush, so events arrive late: give it an Unwrap method",
				"writer", fmt.Sprintf("%T", c.w))
		})
	}
	return err
}

// SetWriteDeadline implements [ndjson.Conn]. It is called before a write by whoever writes, and by others
// only with a time that has passed, to cut a write short. How far ahead the time is becomes the limit for
// each piece of what is written from now on.
func (c *Conn) SetWriteDeadline(t time.Time) (err error) {
	defer c.guard(&err)
	now := time.Now()
	d := t.Sub(now)
	if d <= 0 && !t.IsZero() {
		c.cut.Store(true)
		return c.rc.SetWriteDeadline(t)
	}
	err = c.rc.SetWriteDeadline(t)
	switch {
	case err != nil || t.IsZero():
		c.limit = 0
	default:
		c.limit, c.armed = d, now
	}
	return err
}

// pieces writes a little at a time. The write deadline is set anew for each piece, so that a reader who takes
// a little at a time is slow and not stalled, however long the line.
type pieces struct {
	rc    http.ResponseController
	limit time.Duration // 0 where the connection has no deadlines
	armed time.Time     // when it was set last; zero while it is not set
	cut   atomic.Bool   // the write is to fail at once, and all later ones
}

// writePiece is how much is written under one write deadline.
const writePiece = 32 << 10

func (p *pieces) write(w io.Writer, b []byte) (n int, err error) {
	for {
		piece := b[n:min(n+writePiece, len(b))]
		p.arm()
		k, err := w.Write(piece)
		n += k
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// arm sets the write deadline, unless that was done so shortly before that it is as good as new.
func (p *pieces) arm() {
	if p.limit <= 0 {
		return
	}
	now := time.Now()
	if !p.armed.IsZero() && now.Sub(p.armed) < p.limit/16 {
		return
	}
	p.armed = now
	if p.rc.SetWriteDeadline(now.Add(p.limit)) != nil {
		p.limit = 0
	}
	if p.cut.Load() {
		_ = p.rc.SetWriteDeadline(time.Unix(1, 0))
	}
}

// An ownConn is a connection that carries this response alone (HTTP/1).
type ownConn struct{ *Conn }

var _ ndjson.HangUper = ownConn{}

// HangUp ends the response of an adapter that does not return. net/http knows no end of a response but
// the handler's, so the connection is taken from it.
func (c ownConn) HangUp() {
	defer c.Close()
	_ = c.Flush()
	var err error
	defer c.guard(&err)
	raw, _, err := c.rc.Hijack()
	if err != nil { // a middleware is in the way
		_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
		return
	}
	_ = raw.SetDeadline(time.Now().Add(time.Second))
	if c.chunked {
		_, _ = io.WriteString(raw, "0\r\n\r\n")
	}
	_ = raw.Close()
}
