package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const probePath = "/.well-known/backline-probe"

type probeKey struct{}

// A probe is one request that looks whether flushes get through a chain of middleware.
type probe struct {
	header  http.Header
	reached bool // the plugin's handler
	wrote   int  // bytes that came out of the chain
	flushed int  // of which were there at a flush
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

// serveProbe is the plugin's end of a probe.
func serveProbe(w http.ResponseWriter, r *http.Request) {
	p, ok := r.Context().Value(probeKey{}).(*probe)
	if !ok {
		answer(w, http.StatusNotFound, "nothing is served here")
		return
	}
	p.reached = true
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

// CheckMiddleware looks whether events get through a chain of middleware at once: it sends one request
// through h, which ends in this plugin, and returns what a ResponseWriter on the way cannot do. Such a
// ResponseWriter needs a method Unwrap() http.ResponseWriter. A chain that does not pass the request on
// to the plugin (it asks for a password, say) cannot be checked: that is nil. A panic on the way is an
// error, not a panic.
func (p *Plugin) CheckMiddleware(h http.Handler) (err error) {
	pr := &probe{header: http.Header{}}
	ctx := context.WithValue(context.Background(), probeKey{}, pr)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+p.conf.Prefix+probePath, http.NoBody)
	if err != nil {
		return err
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a middleware cannot be checked: it panics with a value of type %T", v)
		}
	}()
	h.ServeHTTP(pr, r)
	if !pr.reached || pr.err == nil {
		return nil
	}
	return fmt.Errorf("a middleware's ResponseWriter is in the way (give it a method Unwrap() http.ResponseWriter): %w", pr.err)
}
