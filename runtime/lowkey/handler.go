package lowkey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
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
	engine  *runtime.Engine
	plugins map[string]plugin
	names   string
	tokens  wirehttp.Tokens
	body    wirehttp.Body
	log     *slog.Logger
	streams wirehttp.Streams
}

type plugin struct {
	id      string
	adapter adapters.Adapter
}

// New returns the handler of one endpoint, or an error that names every wrong field of conf.
func New(conf Config) (*Handler, error) {
	h := &Handler{
		engine:  conf.Engine,
		plugins: map[string]plugin{},
		body:    wirehttp.Body{MaxBytes: conf.MaxBody, Timeout: conf.BodyTimeout}.WithDefaults(),
		log:     conf.Logger,
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
		names = append(names, wirehttp.Excerpt(id))
	}
	sort.Strings(names)
	h.names = strings.Join(names, ", ")
	for name, t := range conf.Tokens {
		if name == "" || t == "" {
			errs = append(errs, fmt.Errorf("lowkey: token %q needs a name and a value", name))
		}
		h.tokens.Add(name, t)
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	h.streams.Logger = h.log
	return h, errors.Join(errs...)
}

// ServeHTTP serves one turn. The order of the checks is the protocol page's ("Settled readings").
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	h.body.Bound(w, r)
	if r.Method != http.MethodPost {
		f := wirehttp.Refuse(http.StatusMethodNotAllowed, "method", "Turns are sent with POST, not %s.", wirehttp.Excerpt(r.Method)).Unread(r)
		f.Allow = http.MethodPost
		h.refuse(ctx, w, f)
		return
	}
	principal, ok := h.tokens.Find(r.Header)
	if h.tokens.Any() && !ok {
		h.refuse(ctx, w, wirehttp.Refuse(http.StatusUnauthorized, "unauthenticated", "This server asks for a bearer token: send the header Authorization with one that it knows.").Unread(r))
		return
	}
	body, f := h.body.Read(w, r)
	if f != nil {
		h.refuse(ctx, w, f)
		return
	}
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
	wirehttp.StreamHeader(w.Header(), contentType)
	c := h.streams.Open(w, r)
	defer c.Close()
	if stream.Repeat != runtime.First {
		c.HeaderFirst()
	}
	err = stream.Serve(ctx, c.Lent())
	if c.Crashed() {
		panic(http.ErrAbortHandler)
	}
	if errors.Is(err, runtime.ErrOutgrown) { // it grew between the look-up and here
		h.refuse(ctx, w, startRefusal(err, turnID))
	}
}

// Wait waits until the last line of every stream is on its way, or ctx is done. It is for the end of a
// server, whose own shutdown does not know of a stream that was ended for an adapter that is stuck.
func (h *Handler) Wait(ctx context.Context) { h.streams.Wait(ctx) }

// contentType is that of streams and refusals, shared by all of them.
var contentType = []string{"application/x-ndjson; charset=utf-8"}
