package lowkey

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/secret"
)

// Config tunes a [Handler].
type Config struct {
	// Engine runs the turns. Required.
	Engine *runtime.Engine
	// Plugins are the hosted plugins: plugin id to adapter. At least one.
	Plugins map[string]adapters.Adapter
	// Tokens are the bearer tokens that hosts may send: name to token. Empty means that none is asked
	// for. The name of the token becomes the turn's principal, and is part of the session's key.
	Tokens map[string]secret.Text
	// MaxBody limits a request's body in bytes, after decompression. Default 8 MiB; negative means no
	// limit.
	MaxBody int64
	// BodyTimeout limits the reading of a body. Default 30 seconds; negative means no limit.
	BodyTimeout time.Duration
	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

// A Handler is the endpoint of the protocol. It looks at method, headers and body, not at the path.
type Handler struct {
	engine      *runtime.Engine
	plugins     map[string]plugin
	names       string
	tokens      []token
	maxBody     int64
	bodyTimeout time.Duration
	log         *slog.Logger
	warnFlush   sync.Once
	serving     atomic.Int64 // streams that have not ended yet
}

type plugin struct {
	id      string
	adapter adapters.Adapter
}

type token struct {
	name string
	sum  [sha256.Size]byte
}

// New returns the handler of one endpoint, or an error that names every wrong field of conf.
func New(conf Config) (*Handler, error) {
	h := &Handler{
		engine:      conf.Engine,
		plugins:     map[string]plugin{},
		maxBody:     conf.MaxBody,
		bodyTimeout: conf.BodyTimeout,
		log:         conf.Logger,
	}
	var errs []error
	if conf.Engine == nil {
		errs = append(errs, errors.New("lowkey: Engine is nil"))
	}
	if len(conf.Plugins) == 0 {
		errs = append(errs, errors.New("lowkey: no plugin to host"))
	}
	var names []string
	for id, a := range conf.Plugins {
		if id == "" || a == nil {
			errs = append(errs, fmt.Errorf("lowkey: plugin %q needs an id and an adapter", id))
		}
		h.plugins[id] = plugin{id, a}
		names = append(names, excerpt(id))
	}
	sort.Strings(names)
	h.names = strings.Join(names, ", ")
	for name, t := range conf.Tokens {
		if name == "" || t == "" {
			errs = append(errs, fmt.Errorf("lowkey: token %q needs a name and a value", name))
		}
		h.tokens = append(h.tokens, token{name, sha256.Sum256([]byte(t.Reveal()))})
	}
	switch {
	case h.maxBody == 0:
		h.maxBody = 8 << 20
	case h.maxBody < 0:
		h.maxBody = 1<<63 - 2
	}
	if h.bodyTimeout == 0 {
		h.bodyTimeout = 30 * time.Second
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	return h, errors.Join(errs...)
}

// ServeHTTP serves one turn. The order of the checks is the protocol page's ("Settled readings").
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	// First of all, because the server reads on after a refusal too, to use the connection again: a body
	// that never comes would hold it for ever.
	rc := http.NewResponseController(w)
	cleared := h.bodyDeadline(rc)
	refuseUnread := func(f *refusal) {
		f.closing = r.ContentLength != 0
		h.refuse(ctx, w, f)
	}
	if r.Method != http.MethodPost {
		refuseUnread(refuse(http.StatusMethodNotAllowed, "method", "Turns are sent with POST, not %s.", excerpt(r.Method)))
		return
	}
	principal, ok := h.authenticate(r.Header)
	if !ok {
		refuseUnread(refuse(http.StatusUnauthorized, "unauthenticated", "This server asks for a bearer token: send the header Authorization with one that it knows."))
		return
	}
	if !acceptType(r.Header) {
		refuseUnread(refuse(http.StatusUnsupportedMediaType, "media-type", "The Content-Type is %s, expected application/json.", excerpt(r.Header.Get("Content-Type"))))
		return
	}
	gz, ok := encoding(r.Header)
	if !ok {
		refuseUnread(refuse(http.StatusUnsupportedMediaType, "encoding", "The Content-Encoding is %s, expected gzip or none.", excerpt(strings.Join(r.Header["Content-Encoding"], ", "))))
		return
	}
	body, f := h.readBody(r, gz)
	if f != nil {
		h.refuse(ctx, w, f)
		return
	}
	cleared()
	spec, f := h.parse(body, principal)
	if f != nil {
		h.refuse(ctx, w, f)
		return
	}
	turnID := spec.Turn.ID
	stream, err := h.engine.Start(ctx, spec)
	if err != nil {
		h.refuse(ctx, w, startRefusal(err, turnID))
		return
	}
	switch stream.Repeat {
	case runtime.Joined:
		h.engine.Refuse(ctx, adapters.Lowkey, "joined")
	case runtime.Replayed:
		h.engine.Refuse(ctx, adapters.Lowkey, "replayed")
	}
	streamHeader(w.Header())
	c := &conn{
		w: w, rc: rc, handler: h,
		chunked: r.ProtoMajor == 1 && r.ProtoMinor > 0,
		shared:  r.ProtoMajor > 1,
		repeat:  stream.Repeat != runtime.First,
	}
	h.serving.Add(1)
	defer c.leave()
	if c.shared {
		err = stream.Serve(ctx, c)
	} else {
		err = stream.Serve(ctx, ownConn{c})
	}
	if c.crashed {
		panic(http.ErrAbortHandler) // a stream without its end must not look like one that has it
	}
	if errors.Is(err, runtime.ErrOutgrown) { // it grew between the look-up and here
		h.refuse(ctx, w, startRefusal(err, turnID))
	}
}

// Wait waits until the last line of every stream is on its way, or ctx is done. It is for the end of a
// server, whose own shutdown does not know of a stream that was ended for an adapter that is stuck.
func (h *Handler) Wait(ctx context.Context) {
	for tick := time.NewTicker(time.Millisecond); ; {
		if h.serving.Load() == 0 || ctx.Err() != nil {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// authenticate finds the token that a host sent. All tokens are compared, in constant time.
func (h *Handler) authenticate(header http.Header) (principal string, ok bool) {
	if len(h.tokens) == 0 {
		return "", true
	}
	scheme, value, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(value)))
	for i := range h.tokens {
		if subtle.ConstantTimeCompare(sum[:], h.tokens[i].sum[:]) == 1 {
			principal, ok = h.tokens[i].name, true
		}
	}
	return principal, ok
}

var (
	contentType = []string{"application/x-ndjson; charset=utf-8"}
	noStore     = []string{"no-store"}
	noBuffering = []string{"no"}
)

// streamHeader sets the header that streams and refusals share.
func streamHeader(h http.Header) {
	h["Content-Type"] = contentType
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = noBuffering
}

// conn is the host's connection as the turn's log writes to it.
type conn struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	chunked bool // the response ends with an empty chunk
	handler *Handler

	// The write deadline is set anew for each piece of a write, so that a reader who takes a little at a
	// time is slow and not stalled, however long the line.
	limit time.Duration // 0 where the connection has no deadlines
	armed time.Time     // when it was set last; zero while it is not set
	cut   atomic.Bool   // the write is to fail at once, and all later ones

	// HTTP/2: the connection is shared, and a write deadline resets the stream when it passes, also if
	// nothing is being written. So it must not be left in place while the turn is silent.
	shared bool

	// The stream of a repeat may come in one piece, to which net/http would give a Content-Length.
	repeat bool // and nothing was written yet

	crashed bool // a middleware's ResponseWriter panicked
	left    atomic.Bool
}

// leave says that the stream has ended.
func (c *conn) leave() {
	if c.left.CompareAndSwap(false, true) {
		c.handler.serving.Add(-1)
	}
}

// guard is deferred around what may run a foreign middleware's code on a goroutine of ours, where nobody
// else would recover from its panic.
func (c *conn) guard(err *error) {
	if v := recover(); v != nil {
		c.crashed = true
		*err = errCrashed
		c.handler.log.Error("a middleware's ResponseWriter panicked",
			"writer", fmt.Sprintf("%T", c.w), "panic_type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
	}
}

var errCrashed = errors.New("the ResponseWriter panicked")

// writePiece is how much is written under one write deadline.
const writePiece = 32 << 10

func (c *conn) Write(p []byte) (n int, err error) {
	defer c.guard(&err)
	if c.repeat {
		c.repeat = false
		_ = c.rc.Flush() // the header; Flush below tells of writers that cannot
	}
	for {
		piece := p[n:min(n+writePiece, len(p))]
		c.arm()
		k, err := c.w.Write(piece)
		n += k
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// arm sets the write deadline, unless that was done so shortly before that it is as good as new.
func (c *conn) arm() {
	if c.limit <= 0 {
		return
	}
	now := time.Now()
	if !c.armed.IsZero() && now.Sub(c.armed) < c.limit/16 {
		return
	}
	c.armed = now
	_ = c.rc.SetWriteDeadline(now.Add(c.limit))
	if c.cut.Load() {
		_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
	}
}

func (c *conn) Flush() (err error) {
	defer c.guard(&err)
	err = c.rc.Flush()
	if c.shared && !c.armed.IsZero() {
		c.armed = time.Time{}
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

// SetWriteDeadline is called before a write by whoever writes, and by others only with a time that has
// passed, to cut a write short.
func (c *conn) SetWriteDeadline(t time.Time) error {
	now := time.Now()
	d := t.Sub(now)
	if d <= 0 {
		c.cut.Store(true)
		return c.rc.SetWriteDeadline(t)
	}
	err := c.rc.SetWriteDeadline(t)
	if err == nil {
		c.limit, c.armed = d, now
	}
	return err
}

// An ownConn is a connection that carries this response alone (HTTP/1).
type ownConn struct{ *conn }

// HangUp ends the response of an adapter that does not return. net/http knows no end of a response but
// the handler's, so the connection is taken from it.
func (c ownConn) HangUp() {
	defer c.leave()
	_ = c.Flush()
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
