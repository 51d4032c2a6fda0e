package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/external"
)

// Config tunes a [Handler]. A zero duration or size means the default.
type Config struct {
	// Engine runs the turns; it may be shared with other protocols. Required.
	Engine *runtime.Engine
	// Store keeps the durable facts. Required. The handler does not close it.
	Store ledger.Store
	// Adapters answer turns, by agent id. Adapter answers for agents that are not named there. At least
	// one is required; a turn for an agent without an adapter is refused.
	Adapters map[string]adapters.Adapter
	Adapter  adapters.Adapter
	// Tokens are the bearer tokens that hosts may send: name to token. Empty means that none is asked
	// for.
	Tokens map[string]secret.Text
	// OperatorToken is the bearer token for the endpoints that admit and revoke. Without one they are
	// not there.
	OperatorToken secret.Text
	// MaxBody limits a request's body in bytes. Default 8 MiB; negative means no limit.
	MaxBody int64
	// BodyTimeout limits the reading of a body. Default 30 seconds; negative means no limit.
	BodyTimeout time.Duration
	// ProductRetention is how long a product's content can be fetched. Default 24 hours; negative means
	// always.
	ProductRetention time.Duration
	// StreamRetention is how long the streams of ended requests can be replayed. Default 24 hours;
	// negative means always. Outcomes are kept in any case.
	StreamRetention time.Duration
	// Epoch names this life of the adapter: a session that began in another does not continue. Empty
	// means that the binding's own adapter-instance/epoch is all that counts.
	Epoch string
	// Logger gets warnings; nil means slog.Default(). Lines hold refs, digests, counters and codes.
	Logger *slog.Logger
}

// A Handler serves the protocol's endpoints below /external-runtime/. Make one with [New]. Its methods
// may be called from several goroutines.
type Handler struct {
	conf     Config
	engine   *runtime.Engine
	store    ledger.Store
	tokens   wirehttp.Tokens
	operator wirehttp.Tokens
	body     wirehttp.Body
	streams  wirehttp.Streams
	log      *slog.Logger
	router   *mux.Router
	admitted admitted

	// hurry is done when a drain has no more time.
	hurry   context.Context
	hurryUp context.CancelFunc

	mu       sync.Mutex
	live     map[wire.TurnRef]*turn
	draining bool
	tasks    sync.WaitGroup // turns that run, and what ends them early
}

var _ http.Handler = (*Handler)(nil)

const defaultRetention = 24 * time.Hour

// New returns a handler, or an error that names every wrong field of conf. Call [Handler.Recover] before
// it serves.
func New(conf Config) (*Handler, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("external: "+format, args...)) }
	if conf.Engine == nil {
		wrong("Engine is nil")
	}
	if conf.Store == nil {
		wrong("Store is nil")
	}
	if conf.Adapter == nil && len(conf.Adapters) == 0 {
		wrong("no adapter: neither Adapter nor Adapters is set")
	}
	for id, a := range conf.Adapters {
		if !wire.ValidRef(id) || a == nil {
			wrong("Adapters[%.80q] needs an agent id and an adapter", id)
		}
	}
	h := &Handler{
		engine: conf.Engine,
		store:  conf.Store,
		body:   wirehttp.Body{MaxBytes: conf.MaxBody, Timeout: conf.BodyTimeout}.WithDefaults(),
		log:    conf.Logger,
		live:   map[wire.TurnRef]*turn{},
	}
	for name, t := range conf.Tokens {
		if name == "" || t == "" {
			wrong("token %.80q needs a name and a value", name)
		}
		h.tokens.Add(name, t)
	}
	if conf.OperatorToken != "" {
		h.operator.Add("operator", conf.OperatorToken)
		if h.tokens.Knows(conf.OperatorToken) {
			wrong("OperatorToken is also a host's token")
		}
	}
	if conf.Epoch != "" && !wire.ValidRef(conf.Epoch) {
		wrong("Epoch %.80q is no ref: want 1 to 512 characters without white space", conf.Epoch)
	}
	if conf.ProductRetention == 0 {
		conf.ProductRetention = defaultRetention
	}
	if conf.StreamRetention == 0 {
		conf.StreamRetention = defaultRetention
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	h.hurry, h.hurryUp = context.WithCancel(context.Background())
	h.streams.Logger = h.log
	if conf.Engine != nil {
		h.streams.WriteTimeout = conf.Engine.Config().Stream.WriteTimeout
	}
	conf.Tokens, conf.OperatorToken = nil, "" // their digests are all that is needed
	h.conf = conf
	h.router = h.routes()
	return h, errors.Join(errs...)
}

func (h *Handler) routes() *mux.Router {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	// A way of taking a token, and what takes a request then.
	type guard func(endpoint) endpoint
	route := func(path string, g guard, by map[string]endpoint) {
		for m, f := range by {
			by[m] = g(f)
		}
		r.Handle("/external-runtime/"+path, h.methods(by))
	}
	route("turns", h.guarded, map[string]endpoint{"POST": h.postTurn})
	route("turns/{ref}", h.guarded, map[string]endpoint{"GET": bodiless(h.getTurn)})
	route("turns/{ref}/cancel", h.guarded, map[string]endpoint{"POST": bodiless(h.cancelTurn)})
	route("products/{ref}", h.guarded, map[string]endpoint{"GET": bodiless(h.getProduct)})
	route("bindings/{ref}/session", h.guarded, map[string]endpoint{"DELETE": bodiless(h.closeSession)})
	if h.operator.Any() {
		route("profiles", h.operated, map[string]endpoint{"GET": bodiless(h.listProfiles)})
		route("bindings", h.operated, map[string]endpoint{"GET": bodiless(h.listBindings)})
		for _, kind := range ledger.Kinds() {
			route(string(kind)+"s/{ref}", h.operated, map[string]endpoint{
				"GET":    bodiless(h.getAdmission(kind)),
				"PUT":    h.putAdmission(kind),
				"DELETE": bodiless(h.deleteAdmission(kind)),
			})
		}
	}
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.refuse(w, r, unread(r, problemf(http.StatusNotFound, "not-found", "There is nothing at this path.")))
	})
	return r
}

// ServeHTTP serves all endpoints. It never redirects.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.body.Bound(w, r)
	h.router.ServeHTTP(w, r)
}

// An endpoint answers a request, or returns the problem that is to be its answer.
type endpoint func(w http.ResponseWriter, r *http.Request) *problem

// bodiless is an endpoint whose requests need no body.
func bodiless(f endpoint) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *problem {
		wirehttp.Unwanted(w, r)
		return f(w, r)
	}
}

// unread is a problem that was found before the request's body was read.
func unread(r *http.Request, p *problem) *problem {
	p.Unread(r)
	return p
}

func (h *Handler) methods(by map[string]endpoint) http.Handler {
	var allow []string
	for _, m := range []string{"DELETE", "GET", "POST", "PUT"} {
		if by[m] != nil {
			allow = append(allow, m)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := by[r.Method]
		if f == nil {
			p := unread(r, problemf(http.StatusMethodNotAllowed, "method", "This path answers %s, not %s.", strings.Join(allow, ", "), wirehttp.Excerpt(r.Method)))
			p.Allow = strings.Join(allow, ", ")
			h.refuse(w, r, p)
			return
		}
		if p := f(w, r); p != nil {
			h.refuse(w, r, p)
		}
	})
}

// guarded asks for a host's token, where there are any.
func (h *Handler) guarded(f endpoint) endpoint { return asking(&h.tokens, f) }

// operated asks for the operator's token.
func (h *Handler) operated(f endpoint) endpoint { return asking(&h.operator, f) }

func asking(tokens *wirehttp.Tokens, f endpoint) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *problem {
		if _, ok := tokens.Find(r.Header); tokens.Any() && !ok {
			return unread(r, problemf(http.StatusUnauthorized, "unauthenticated", "This endpoint asks for a bearer token: send the header Authorization with one that it knows."))
		}
		return f(w, r)
	}
}

// readBody reads a request's whole body. One that is too large is 400 here (external-runtime.md, Settled
// readings).
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	body, f := h.body.Read(w, r)
	if f == nil {
		return body, nil
	}
	if f.Status == http.StatusRequestEntityTooLarge {
		f.Status = http.StatusBadRequest
	}
	return nil, &problem{Refusal: *f}
}

// refOf is the ref in a request's path, which is percent-encoded there.
func refOf(r *http.Request) (string, *problem) {
	ref, err := url.PathUnescape(mux.Vars(r)["ref"])
	if err != nil || !wire.ValidRef(ref) {
		return "", problemf(http.StatusBadRequest, "ref", "The path names no ref: expected 1 to 512 characters without white space, percent-encoded.")
	}
	return ref, nil
}

// commitTimeout bounds what must be committed whatever becomes of the host's connection.
const commitTimeout = 10 * time.Second

// lasting is a context for a commit that outlives the host.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
}

// Drain refuses new turns from now on, ends those that await an observation as cancelled, and drains the
// engine: running turns go on until ctx is done, and are cancelled then. So long an outcome may wait for a
// ledger that does not take it. The error is that of [runtime.Engine.Drain].
func (h *Handler) Drain(ctx context.Context) error {
	context.AfterFunc(ctx, h.hurryUp)
	h.mu.Lock()
	h.draining = true
	turns := make([]*turn, 0, len(h.live))
	for _, t := range h.live {
		turns = append(turns, t)
	}
	h.mu.Unlock()
	for _, t := range turns {
		t.stopIfSuspended(adapters.CauseDrain)
	}
	return h.engine.Drain(ctx)
}

func (h *Handler) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// Sweep forgets product content and recorded streams whose retention is over. Nothing calls it by
// itself; a server does so now and then.
func (h *Handler) Sweep(ctx context.Context) error {
	for {
		s, err := h.store.Sweep(ctx, time.Now(), 0)
		if err != nil || !s.More {
			return err
		}
	}
}

// expiry is when something is forgotten that is kept this long; zero means never.
func expiry(now time.Time, keep time.Duration) time.Time {
	if keep < 0 {
		return time.Time{}
	}
	return now.Add(keep)
}

// expired tells whether what expires at this time is over, swept or not.
func expired(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }
