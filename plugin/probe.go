package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const probePath = "/.well-known/backline-probe"

// probeTurn is where a turn is found whose ref has all that a router may take apart, and plainTurn one whose
// ref has nothing of it.
const (
	plainTurn = ExternalPath + "/turns/backline-probe"
	probeTurn = plainTurn + "%3A%2F%2Fa%2F..%2F%25"
)

type probeKey struct{}

// A probe is one request that looks whether a chain of middleware lets flushes and paths through.
type probe struct {
	header  http.Header
	reached string // the path as it came to the plugin's handler
	wrote   int    // bytes that came out of the chain
	flushed int    // of which were there at a flush
	err     error
}

func (p *probe) Header() http.Header { return p.header }

func (p *probe) WriteHeader(int) {}

func (p *probe) Write(b []byte) (int, error) {
	p.wrote += len(b)
	return len(b), nil
}

func (p *probe) FlushError() error {
	p.flushed = p.wrote
	return nil
}

func (p *probe) SetReadDeadline(time.Time) error { return nil }

func (p *probe) SetWriteDeadline(time.Time) error { return nil }

// probed gives a handler's probes to the plugin's end of them.
func probed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(probeKey{}) != nil {
			serveProbe(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// serveProbe is the plugin's end of a probe.
func serveProbe(w http.ResponseWriter, r *http.Request) {
	p, ok := r.Context().Value(probeKey{}).(*probe)
	if !ok {
		answer(w, http.StatusNotFound, "nothing is served here")
		return
	}
	p.reached = r.URL.EscapedPath()
	streamType := "application/x-ndjson; charset=utf-8"
	w.Header().Set("Content-Type", streamType)
	if _, p.err = w.Write([]byte("\n")); p.err != nil {
		return
	}
	rc := http.NewResponseController(w)
	if p.err = rc.Flush(); p.err != nil {
		p.err = fmt.Errorf("flushing: %w", p.err)
		return
	}
	if p.flushed == 0 {
		p.err = errors.New("a flush does not send what was written before it")
		return
	}
	if err := rc.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		p.err = fmt.Errorf("setting a write deadline: %w", err)
	}
}

// CheckMiddleware looks whether a chain of middleware lets a plugin through: it sends a few requests through
// h, which ends in this plugin, and returns what is in the way, nil for nothing.
//
// Events have to get through at once. A ResponseWriter that hides what the server's can do needs a method
// Unwrap() http.ResponseWriter. With [Config.External] paths have to arrive as they were sent, since they hold
// percent-encoded refs: a router that decodes or cleans them (gorilla/mux does, unless it is told
// UseEncodedPath and SkipClean(true)) answers such a request with a redirect, or not at all.
//
// A chain that does not pass the requests on to the plugin (it asks for a password, say) cannot be checked: that
// is nil. A panic on the way is an error, not a panic.
func (p *Plugin) CheckMiddleware(h http.Handler) error {
	pr, err := p.probe(h, probePath)
	if err != nil {
		return err
	}
	if pr.err != nil {
		err = fmt.Errorf("a middleware's ResponseWriter is in the way (give it a method Unwrap() http.ResponseWriter): %w", pr.err)
	}
	return errors.Join(err, p.checkPaths(h))
}

// checkPaths looks whether refs in paths arrive as they were sent.
func (p *Plugin) checkPaths(h http.Handler) error {
	if p.external == nil {
		return nil
	}
	if plain, err := p.probe(h, plainTurn); err != nil || plain.reached == "" {
		return err
	}
	pr, err := p.probe(h, probeTurn)
	switch want := p.conf.Prefix + probeTurn; {
	case err != nil:
		return err
	case pr.reached == "":
		return fmt.Errorf("a router on the way does not pass paths on that hold percent-encoded slashes, such as %s: have it leave paths alone (gorilla/mux: UseEncodedPath().SkipClean(true))", want)
	case pr.reached != want:
		return fmt.Errorf("a router on the way changes paths: %s arrives as %s; have it leave paths alone (gorilla/mux: UseEncodedPath().SkipClean(true))", want, pr.reached)
	}
	return nil
}

// probe sends one request through h. The error is that of a panic on the way.
func (p *Plugin) probe(h http.Handler, path string) (_ *probe, err error) {
	pr := &probe{header: http.Header{}}
	ctx := context.WithValue(context.Background(), probeKey{}, pr)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+p.conf.Prefix+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a middleware cannot be checked: it panics with a value of type %T", v)
		}
	}()
	h.ServeHTTP(pr, r)
	return pr, nil
}
