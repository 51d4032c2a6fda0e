package external

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// readBody reads a request's whole body within the limits. What is not within them is 400 here
// (external-runtime.md, Settled readings).
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	rc := http.NewResponseController(w)
	if h.conf.BodyTimeout > 0 {
		_ = rc.SetReadDeadline(time.Now().Add(h.conf.BodyTimeout)) // without it the server's own holds
	}
	fail := func(status int, reason, format string, args ...any) ([]byte, *problem) {
		p := problemf(status, reason, format, args...)
		p.closing = true
		return nil, p
	}
	if !acceptType(r.Header.Get("Content-Type")) {
		return fail(http.StatusUnsupportedMediaType, "media-type", "The Content-Type is %s, expected application/json.", excerpt(r.Header.Get("Content-Type")))
	}
	limit := h.conf.MaxBody
	var src io.Reader = r.Body
	switch e := strings.ToLower(strings.TrimSpace(strings.Join(r.Header["Content-Encoding"], ","))); e {
	case "", "identity":
		if r.ContentLength > limit {
			return fail(http.StatusBadRequest, "too-large", "The request is larger than the limit of %d bytes.", limit)
		}
	case "gzip":
		z, err := gzip.NewReader(http.MaxBytesReader(nil, r.Body, limit+1<<20))
		if err != nil {
			return fail(http.StatusBadRequest, "bad-gzip", "The request's body is not valid gzip.")
		}
		src = z
	default:
		return fail(http.StatusUnsupportedMediaType, "encoding", "The Content-Encoding is %s, expected gzip or none.", excerpt(e))
	}
	size := int64(4 << 10)
	if src == r.Body && r.ContentLength >= 0 {
		size = min(r.ContentLength, 512<<10) // no more is allocated on the word of a Content-Length alone
	}
	buf := make([]byte, 0, size+1) // one more, so that the end is seen without growing
	for {
		if int64(len(buf)) > limit {
			return fail(http.StatusBadRequest, "too-large", "The request is larger than the limit of %d bytes.", limit)
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		var large *http.MaxBytesError
		switch {
		case err == io.EOF:
			if int64(len(buf)) > limit {
				return fail(http.StatusBadRequest, "too-large", "The request is larger than the limit of %d bytes.", limit)
			}
			if h.conf.BodyTimeout > 0 {
				_ = rc.SetReadDeadline(time.Time{}) // or it would cancel the request in the middle of its stream
			}
			return buf, nil
		case errors.As(err, &large):
			return fail(http.StatusBadRequest, "too-large", "The request is larger than the limit of %d bytes.", limit)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fail(http.StatusRequestTimeout, "slow-body", "The request's body did not arrive in time.")
		case err != nil:
			return fail(http.StatusBadRequest, "cut-body", "The request's body could not be read to its end.")
		}
	}
}

// acceptType tells whether a Content-Type is JSON. None at all is accepted.
func acceptType(v string) bool {
	if v == "application/json" || v == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(v)
	if err != nil {
		return false
	}
	return t == "application/json" || strings.HasSuffix(t, "+json") && strings.Contains(t, "/")
}

func streamHeader(h http.Header) {
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
}

// conn is the host's connection as the turn's log writes to it.
type conn struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	handler *Handler
	began   bool // something was written

	// HTTP/2: the connection is shared, and a write deadline resets the stream when it passes, also if
	// nothing is being written. So it must not be left in place while the turn is silent.
	shared bool
	limit  time.Duration
	armed  bool

	crashed bool // a middleware's ResponseWriter panicked
}

func (h *Handler) newConn(w http.ResponseWriter, r *http.Request) *conn {
	return &conn{w: w, rc: http.NewResponseController(w), handler: h, shared: r.ProtoMajor > 1}
}

// guard is deferred around what may run a foreign middleware's code.
func (c *conn) guard(err *error) {
	if v := recover(); v != nil {
		c.crashed = true
		*err = errCrashed
		c.handler.log.Error("a middleware's ResponseWriter panicked",
			"writer", fmt.Sprintf("%T", c.w), "panic_type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
	}
}

var errCrashed = errors.New("the ResponseWriter panicked")

func (c *conn) Write(p []byte) (n int, err error) {
	defer c.guard(&err)
	if c.shared && !c.armed && c.limit > 0 {
		c.armed = true
		_ = c.rc.SetWriteDeadline(time.Now().Add(c.limit))
	}
	c.began = true
	return c.w.Write(p)
}

func (c *conn) Flush() (err error) {
	defer c.guard(&err)
	err = c.rc.Flush()
	if c.shared && c.armed {
		c.armed = false
		_ = c.rc.SetWriteDeadline(time.Time{})
	}
	if err != nil && errors.Is(err, http.ErrNotSupported) {
		c.handler.warnFlush.Do(func() {
			c.handler.log.Warn("a middleware's ResponseWriter cannot flush, so events arrive late: give it an Unwrap method",
				"writer", fmt.Sprintf("%T", c.w))
		})
	}
	return err
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.shared {
		if d := time.Until(t); d > 0 {
			c.limit, c.armed = d, true
		}
	}
	return c.rc.SetWriteDeadline(t)
}
