package plugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/lowkey"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
	externalschema "github.com/backline-dev/backline/schema/external"
	keikischema "github.com/backline-dev/backline/schema/keiki"
	lowkeyschema "github.com/backline-dev/backline/schema/lowkey"
)

// A Plugin hosts adapters. It is an http.Handler that can be mounted anywhere; see Config.Prefix. Its
// methods may be called from several goroutines.
//
// A program that mounts a Plugin in a server of its own calls Drain before it shuts that server down.
type Plugin struct {
	conf        Config
	engine      *runtime.Engine
	sessions    *session.Cache
	turns       *lowkey.Handler
	external    *external.Handler // nil unless Config.External
	keiki       *keiki.Handler    // nil unless Config.Keiki
	inbox       *keiki.Inbox      // nil unless Config.Keiki.Inbox
	handler     http.Handler
	saidTimeout atomic.Bool
}

// New returns a plugin, or a [*ConfigError] that names every wrong field. It starts no goroutine. With
// Config.External it also settles what a process that died left open in the ledger, and reads the
// admissions: a file that is wrong is a [*ConfigError] that names it, and another error is that of the
// ledger.
func New(conf Config) (*Plugin, error) {
	c, err := conf.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Plugin{conf: c}
	if p.sessions, err = session.New(session.Config{Entries: c.Sessions, Bytes: c.SessionBytes, TTL: c.SessionTTL}); err != nil {
		return nil, &ConfigError{err}
	}
	p.engine, err = runtime.New(runtime.Config{
		Sessions:    p.sessions,
		Logger:      c.Logger,
		Hooks:       c.Hooks,
		TurnTimeout: c.TurnTimeout,
		FirstOutput: c.FirstOutput,
		Idle:        c.Idle,
		Heartbeat:   c.Heartbeat,
		SessionWait: c.SessionWait,
		RefuseBusy:  c.RefuseBusy,
		MaxTurns:    c.MaxTurns,
		HostGone:    c.HostGone,
		Replay:      c.Replay,
		ReplayBytes: c.ReplayBytes,
		Stream:      ndjson.LogConfig{WriteTimeout: c.WriteTimeout},
	})
	if err != nil {
		return nil, &ConfigError{err}
	}
	p.turns, err = lowkey.New(lowkey.Config{
		Engine:      p.engine,
		Plugins:     c.Adapters,
		Tokens:      c.Tokens,
		MaxBody:     c.MaxBody,
		BodyTimeout: c.BodyTimeout,
		Logger:      c.Logger,
	})
	if err != nil {
		return nil, &ConfigError{err}
	}

	if c.External != nil {
		if err := p.openExternal(); err != nil {
			return nil, err
		}
	}
	if c.Keiki != nil {
		if err := p.openKeiki(); err != nil {
			return nil, err
		}
	}

	// No path is cleaned and nothing redirected: a POST that is redirected loses its body.
	m := mux.NewRouter().SkipClean(true).UseEncodedPath()
	route := func(path string, h http.HandlerFunc) {
		m.HandleFunc(c.Prefix+path, p.unread(h)).Methods(http.MethodGet, http.MethodHead)
	}
	m.Handle(c.Prefix+c.TurnPath, p.turns)
	m.Handle(c.Prefix+c.TurnPath+"/", p.turns)
	route("/healthz", p.serveHealth)
	route("/readyz", p.serveReady)
	route("/manifest.json", p.serveManifest)
	route(lowkeyschema.SchemaPath, serveSchemaOf(lowkeyschema.Schema()))
	if p.external != nil {
		for _, kind := range externalschema.Values[externalschema.Document]() {
			route(externalSchemas+externalschema.SchemaFile(kind), serveExternalSchema(kind))
		}
		m.PathPrefix(c.Prefix + ExternalPath + "/").Handler(probed(p.externalHandler()))
	}
	if p.keiki != nil {
		for _, kind := range keikischema.Kinds() {
			route(keikiSchemas+keikischema.SchemaFile(kind), serveSchemaOf(keikischema.Schema(kind)))
		}
		route(keikiSchemas+keikischema.ClaimSchemaFile, serveSchemaOf(keikischema.ClaimSchema()))
		m.Handle(c.Prefix+c.Keiki.Path, p.keiki)
		m.Handle(c.Prefix+c.Keiki.Path+"/", p.keiki)
	}
	route(probePath, serveProbe)
	m.NotFoundHandler = p.unread(p.serveNotFound)
	m.MethodNotAllowedHandler = p.unread(serveMethod)

	p.handler = routes{m}
	for i := len(c.Middleware) - 1; i >= 0; i-- {
		p.handler = c.Middleware[i](p.handler)
	}
	if len(c.Middleware) > 0 {
		if err := p.CheckMiddleware(p.handler); err != nil {
			c.Logger.Warn("the middleware is in the way of turns", "error", oneLine(err))
		}
	}
	if c.Replicas > 1 {
		c.Logger.Warn("sessions and repeated turns are kept in each server's own memory: send a session's turns to one replica",
			"replicas", c.Replicas)
	}
	return p, nil
}

// Format makes fmt show a plugin as its configuration: it would show unexported fields without asking the
// secrets in them how they want to be shown.
func (p *Plugin) Format(f fmt.State, _ rune) { show(f, p.conf) }

// ServeHTTP serves turns at Config.TurnPath, /healthz, /readyz, /manifest.json and the schemas, with
// Config.External the endpoints below [ExternalPath], and with Config.Keiki signed requests at its Path.
func (p *Plugin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.saidTimeout.Load() {
		p.lookAtServer(r)
	}
	p.handler.ServeHTTP(w, r)
}

// routes calls what a router finds for a request. The routes have no variables, so the copies of the
// request that carry them are spared: in an open stream they would stay in memory.
type routes struct{ *mux.Router }

func (m routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var match mux.RouteMatch
	m.Match(r, &match) // where nothing matches, it is one of the two handlers for that
	match.Handler.ServeHTTP(w, r)
}

// lookAtServer says once that a server's WriteTimeout is overridden.
func (p *Plugin) lookAtServer(r *http.Request) {
	if !p.saidTimeout.CompareAndSwap(false, true) {
		return
	}
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		p.conf.Logger.Warn("the http.Server has a WriteTimeout, which would cut long turns: it is replaced by a limit on each write",
			"WriteTimeout", s.WriteTimeout)
	}
}

// Drain refuses new turns from now on (readiness answers 503) and waits for the running ones to end.
// When ctx is done, what is left is cancelled, and Drain returns why ctx was done once it has ended. Turns
// of agent.external-runtime that await an observation end as cancelled at once. Turns of Keiki are over when
// their completion is sent.
func (p *Plugin) Drain(ctx context.Context) error {
	// Each drains the engine too, and has something of its own to end.
	var protocols []func(context.Context) error
	if p.external != nil {
		protocols = append(protocols, p.external.Drain)
	}
	if p.keiki != nil {
		protocols = append(protocols, p.keiki.Drain)
	}
	if p.inbox != nil {
		protocols = append(protocols, p.inbox.Drain)
	}
	protocols = append(protocols, p.engine.Drain)
	errs := make([]error, len(protocols))
	var all sync.WaitGroup
	for i, drain := range protocols {
		all.Go(func() { errs[i] = drain(ctx) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// Stats are a plugin's counts at one moment, over all protocols.
type Stats struct {
	Turns    runtime.Stats
	Sessions session.Stats
}

// Stats returns the plugin's counts.
func (p *Plugin) Stats() Stats { return Stats{p.engine.Stats(), p.sessions.Stats()} }

// unread is for what takes no body. The server reads one all the same, to use the connection again; one
// that never comes would hold the connection for ever.
func (p *Plugin) unread(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			if r.ProtoMajor == 1 { // over HTTP/2 it would end the streams of others
				w.Header().Set("Connection", "close")
			}
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadTimeout)) // else the server's own holds
		}
		h(w, r)
	}
}

// unreadTimeout is how long the server may read a body that nobody wants.
const unreadTimeout = time.Second

func (p *Plugin) serveHealth(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") }

func (p *Plugin) serveReady(w http.ResponseWriter, r *http.Request) {
	if p.engine.Draining() {
		answer(w, http.StatusServiceUnavailable, "draining")
		return
	}
	if err := p.storeReady(r.Context()); err != nil {
		p.conf.Logger.Debug("the ledger is not ready", "error", err)
		answer(w, http.StatusServiceUnavailable, "the ledger takes no facts")
		return
	}
	answer(w, http.StatusOK, "ready")
}

func (p *Plugin) serveManifest(w http.ResponseWriter, r *http.Request) {
	m := p.conf.Manifest
	if m == nil {
		var err error
		if m, err = p.ownManifest(r); err != nil {
			answer(w, http.StatusBadRequest, "no manifest can be made for the address that this request came to")
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(m.Bytes())
}

// ownManifest names the address that the request came to.
func (p *Plugin) ownManifest(r *http.Request) (*manifest.Manifest, error) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	id := p.conf.ID
	if id == "" {
		id = slices.Min(slices.Collect(maps.Keys(p.conf.Adapters)))
	}
	return manifest.New(id, scheme+"://"+r.Host+p.conf.Prefix+p.conf.TurnPath)
}

// serveSchemaOf serves one published schema.
func serveSchemaOf(schema []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		_, _ = w.Write(schema)
	}
}

// serveNotFound answers what nobody serves. A POST may well be a turn for a mistyped endpoint, whose host reads
// events.
func (p *Plugin) serveNotFound(w http.ResponseWriter, r *http.Request) {
	text := "nothing is served here; turns are sent with POST to " + p.conf.Prefix + p.conf.TurnPath
	if p.external != nil {
		text += " or " + p.conf.Prefix + ExternalPath + "/turns"
	}
	if p.keiki != nil {
		text += " or " + p.conf.Prefix + p.conf.Keiki.Path
	}
	if r.Method == http.MethodPost {
		lowkey.Refuse(w, http.StatusNotFound, text)
		return
	}
	answer(w, http.StatusNotFound, text)
}

func serveMethod(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", "GET, HEAD")
	answer(w, http.StatusMethodNotAllowed, "only GET is served here")
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// TurnURL is the URL of the turn endpoint on a server that listens on addr.
func (p *Plugin) TurnURL(addr string) string {
	return "http://" + strings.TrimRight(addr, "/") + p.conf.Prefix + p.conf.TurnPath
}
