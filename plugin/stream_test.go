package plugin_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/mux"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// Writers as middleware wraps them, each with some of what the server's own can do.
type (
	unwrapOnly struct{ http.ResponseWriter }
	flushOnly  struct {
		http.ResponseWriter
		flush func()
	}
	neither struct{ http.ResponseWriter }
)

func (w unwrapOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w flushOnly) Flush() { w.flush() }

var wrappers = map[string]func(http.ResponseWriter) http.ResponseWriter{
	"none":        func(w http.ResponseWriter) http.ResponseWriter { return w },
	"Unwrap only": func(w http.ResponseWriter) http.ResponseWriter { return unwrapOnly{w} },
	"Flush only": func(w http.ResponseWriter) http.ResponseWriter {
		return flushOnly{w, func() { _ = http.NewResponseController(w).Flush() }}
	},
	"neither": func(w http.ResponseWriter) http.ResponseWriter { return neither{w} },
}

// wrapping is the middleware of a wrapper.
func wrapping(name string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrappers[name](w), r) })
	}
}

// Fault B1: flush lost in a wrapped ResponseWriter.
func TestFaultB1EachEventArrivesBeforeTheNextIsEmitted(t *testing.T) {
	t.Parallel()
	for name := range wrappers {
		if name == "neither" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const chunks = 50
			arrived := make(chan struct{})
			p := newPlugin(t, plugin.Config{Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for i := range chunks {
					var err error
					if i%2 == 0 {
						err = w.Text(strconv.Itoa(i))
					} else {
						err = w.Status(strconv.Itoa(i))
					}
					if err != nil {
						return err
					}
					select { // the next one comes only when this one has arrived
					case <-arrived:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			})})
			r := mount(t, wrapping(name)(p), nil).post(t, request{}).started(t)
			read := make(chan error)
			go func() {
				for i := range chunks {
					e, err := r.next()
					if err == nil && e.Content != strconv.Itoa(i) {
						err = fmt.Errorf("event %d is %+v", i, e)
					}
					if err != nil {
						read <- err
						return
					}
					arrived <- struct{}{}
				}
				read <- r.read()
			}()
			if err := receive(t, "the arrival of each event", read); err != nil {
				t.Fatal(err)
			}
			if r.last().Status != wire.StatusComplete {
				t.Errorf("the turn ends with %+v", r.last())
			}
		})
	}
}

func TestFaultB1StampsAreReadAtOnce(t *testing.T) {
	t.Parallel()
	for name := range wrappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logs
			p := newPlugin(t, plugin.Config{Adapter: scripted.New(scripted.Config{}), Logger: log.logger()})
			h := mount(t, wrapping(name)(p), nil)
			r := h.post(t, request{message: script(`{"stamp":true,"repeat":50,"every":"20ms"}`)})
			var delays []time.Duration
			for {
				e, err := r.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if e.Type == wire.EventText {
					at, err := strconv.ParseInt(strings.TrimSpace(e.Content), 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					delays = append(delays, time.Since(time.Unix(0, at)))
				}
			}
			if len(delays) != 50 || r.last().Status != wire.StatusComplete {
				t.Fatalf("%d stamps, and the end %+v", len(delays), r.last())
			}
			slices.Sort(delays)
			warned := len(log.warnings(t))
			if name == "neither" {
				h.post(t, request{turn: "second", message: "again"}).completed(t)
				if warned = len(log.warnings(t)); warned != 1 {
					t.Errorf("%d warnings about a writer that cannot flush, want one: %s", warned, log.String())
				}
				return
			}
			t.Logf("delay: median %v, most %v", delays[25], delays[49])
			// Gathered, they would be late by half a second. The pause between two is 20 ms.
			if delays[25] > 20*time.Millisecond*slowness {
				t.Errorf("the median delay is %v", delays[25])
			}
			if warned != 0 {
				t.Errorf("warnings: %s", log.String())
			}
		})
	}
}

func TestNewLooksWhetherEventsGetThroughMiddleware(t *testing.T) {
	t.Parallel()
	stops := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	}
	panics := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("this request lacks something") })
	}
	keeps := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(flushOnly{discarding{w}, func() {}}, r)
		})
	}
	for name, tt := range map[string]struct {
		chain []func(http.Handler) http.Handler
		says  string
	}{
		"nothing":         {nil, ""},
		"Unwrap only":     {[]func(http.Handler) http.Handler{wrapping("Unwrap only")}, ""},
		"Flush only":      {[]func(http.Handler) http.Handler{wrapping("Flush only")}, "deadline"},
		"neither":         {[]func(http.Handler) http.Handler{wrapping("Unwrap only"), wrapping("neither"), wrapping("Unwrap only")}, "flush"},
		"keeps it back":   {[]func(http.Handler) http.Handler{keeps}, "flush"},
		"does not get on": {[]func(http.Handler) http.Handler{stops, wrapping("neither")}, ""},
		"panics":          {[]func(http.Handler) http.Handler{panics}, "panic"},
		"TimeoutHandler": {[]func(http.Handler) http.Handler{
			func(next http.Handler) http.Handler { return http.TimeoutHandler(next, time.Minute, "") },
		}, "flush"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logs
			p := newPlugin(t, plugin.Config{Adapter: echo, Middleware: tt.chain, Logger: log.logger()})
			warnings := log.warnings(t)
			if tt.says == "" {
				if len(warnings) > 0 {
					t.Errorf("New warns: %v", warnings)
				}
			} else if len(warnings) != 1 || !strings.Contains(log.String(), tt.says) {
				t.Errorf("New warns %v, want one warning that says %q", warnings, tt.says)
			}
			// The same by hand, for a chain around the plugin.
			var h http.Handler = newPlugin(t, plugin.Config{Adapter: echo})
			own := h
			for i := len(tt.chain) - 1; i >= 0; i-- {
				h = tt.chain[i](h)
			}
			err := own.(*plugin.Plugin).CheckMiddleware(h)
			if (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("CheckMiddleware = %v, want one that says %q", err, tt.says)
			}
			_ = p
		})
	}
}

// TestCheckMiddlewareFindsRoutersThatChangePaths: refs stand in paths percent-encoded, and have to arrive so.
func TestCheckMiddlewareFindsRoutersThatChangePaths(t *testing.T) {
	t.Parallel()
	gorilla := func(r *mux.Router) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			r.PathPrefix("/agents/").Handler(next)
			return r
		}
	}
	standard := func(pattern string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			m := http.NewServeMux()
			m.Handle(pattern, next)
			return m
		}
	}
	decoding := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.RawPath = ""
			next.ServeHTTP(w, r)
		})
	}
	for name, tt := range map[string]struct {
		chain func(http.Handler) http.Handler
		says  string
	}{
		"net/http":                  {standard("/agents/"), ""},
		"net/http, one protocol":    {standard("/agents/external-runtime/"), ""},
		"gorilla/mux":               {gorilla(mux.NewRouter()), "does not pass paths on"},
		"gorilla/mux, SkipClean":    {gorilla(mux.NewRouter().SkipClean(true)), ""},
		"gorilla/mux, as we say":    {gorilla(mux.NewRouter().UseEncodedPath().SkipClean(true)), ""},
		"a router that decodes":     {decoding, "arrives as /agents/external-runtime/turns/backline-probe://a/../%25"},
		"another protocol's routes": {standard("/agents/lowkey/"), ""}, // cannot be checked
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/agents", External: &plugin.External{}})
			h := tt.chain(p)
			if err := p.CheckMiddleware(h); (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("CheckMiddleware = %v, want one that says %q", err, tt.says)
			}
			// What it says is so: an unknown turn of such a ref is told with its ref, or not.
			const ref = "turn://a/../%"
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/agents/external-runtime/turns/"+url.PathEscape(ref), http.NoBody)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if gets := strings.Contains(w.Body.String(), ref); gets != (tt.says == "") && name != "another protocol's routes" {
				t.Errorf("a turn of the ref %s gets %d %s", ref, w.Code, w.Body)
			}

			// Where only Lowkey is served there are no such paths.
			lowkey := newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/agents"})
			if err := lowkey.CheckMiddleware(tt.chain(lowkey)); err != nil {
				t.Errorf("without External: %v", err)
			}
		})
	}
}

// discarding takes what is written to nowhere.
type discarding struct{ http.ResponseWriter }

func (discarding) Write(p []byte) (int, error) { return len(p), nil }

// versions are the protocols that a server is asked in.
var versions = map[string]func(*http.Protocols){
	"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
	"HTTP/2":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
}

// speak makes the host use one version of HTTP.
func (h *host) speak(t testing.TB, version string) *host {
	t.Helper()
	var p http.Protocols
	versions[version](&p)
	tr := &http.Transport{DisableCompression: true, Protocols: &p}
	t.Cleanup(tr.CloseIdleConnections)
	other := *h
	other.client = &http.Client{Transport: tr}
	return &other
}

func bothVersions(s *http.Server) {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	s.Protocols = &p
}

// reusing sends a turn and tells whether its connection had served one before.
func (h *host) reusing(t testing.TB, q request) (r *reply, reused bool) {
	t.Helper()
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(context.Background(), trace))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.addr+h.path, bytes.NewReader(q.body()))
	if err != nil {
		t.Fatal(err)
	}
	res, err := h.client.Do(req) //nolint:bodyclose // the reply closes it
	if err != nil {
		t.Fatal(err)
	}
	r = newReply(res, cancel)
	t.Cleanup(r.close)
	return r, reused
}

// Fault B2: server timeouts that end long streams.
func TestFaultB2ForeignServerTimeouts(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var log logs
			p := newPlugin(t, plugin.Config{Adapter: scripted.New(scripted.Config{}), Logger: log.logger()})
			h := mount(t, p, func(s *http.Server) {
				s.ReadTimeout, s.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
				s.IdleTimeout = time.Minute
				bothVersions(s)
			}).speak(t, version)
			eventually(t, "the connection", func() bool { // a busy machine may take longer than the server's timeouts
				res, err := h.client.Get("http://" + h.addr + "/healthz")
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body) // to its end, so that the connection is used again
					res.Body.Close()
				}
				return err == nil
			})
			for i := range 2 {
				r, reused := h.reusing(t, request{turn: numbered("t", i), message: script(`{"text":"x","repeat":15,"every":"200ms"}`)})
				if text := r.completed(t); text != strings.Repeat("x", 15) {
					t.Errorf("turn %d: the text is %q", i, text)
				}
				if r.Proto[:6] != version[:6] || !reused {
					t.Errorf("turn %d: %s, on a connection used before: %v", i, r.Proto, reused)
				}
			}
			// A silence, too: what is left of the server's read timeout would end it.
			r, _ := h.reusing(t, request{turn: "silent", message: script(`{"sleep":"1200ms"}`, `{"text":"x"}`)})
			if text := r.completed(t); text != "x" {
				t.Errorf("after a silence: the text is %q", text)
			}
			if w := log.warnings(t); len(w) != 1 || !strings.Contains(fmt.Sprint(w[0]["msg"]), "WriteTimeout") {
				t.Errorf("warnings: %v, want one about the server's WriteTimeout", w)
			}
		})
	}
}

func TestFaultB2APauseLongerThanOurWriteTimeout(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const timeout = 200 * time.Millisecond
			p := newPlugin(t, plugin.Config{Adapter: scripted.New(scripted.Config{}), WriteTimeout: timeout, BodyTimeout: timeout})
			mux := http.NewServeMux()
			mux.Handle("/lowkey/turn", p)
			mux.HandleFunc("/other", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("x"), 10_000)) })
			h := mount(t, mux, bothVersions).speak(t, version)
			for i, message := range []string{"one", script(`{"sleep":"500ms"}`, `{"text":"two"}`), "three"} {
				r, reused := h.reusing(t, request{turn: numbered("t", i), message: message})
				r.completed(t)
				if reused != (i > 0) {
					t.Errorf("turn %d: on a connection used before: %v", i, reused)
				}
				time.Sleep(2 * timeout) // the pause that the fault prescribes
				res, err := h.client.Get("http://" + h.addr + "/other")
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				if res.Body.Close(); err != nil || len(body) != 10_000 {
					t.Errorf("after turn %d another handler's answer has %d bytes, %v", i, len(body), err)
				}
				time.Sleep(2 * timeout)
			}
		})
	}
}

func TestFaultB2HalfABody(t *testing.T) {
	t.Parallel()
	var calls called
	p := newPlugin(t, plugin.Config{Adapter: calls.by(echo), BodyTimeout: 500 * time.Millisecond})
	_, own := start(t, plugin.Config{Adapter: calls.by(echo), BodyTimeout: 500 * time.Millisecond})
	for name, h := range map[string]*host{
		"Serve":                 own,
		"no timeouts":           mount(t, p, nil),
		"a longer read timeout": mount(t, p, func(s *http.Server) { s.ReadTimeout = time.Hour }),
		"a shorter one":         mount(t, p, func(s *http.Server) { s.ReadTimeout = 250 * time.Millisecond }),
	} {
		for framing, body := range map[string]string{"Content-Length: 1000\r\n": `{"protocolVersion":1`, "Transfer-Encoding: chunked\r\n": "14\r\n{\"protocolVersion\":1\r\n"} {
			t.Run(name+" "+framing[:9], func(t *testing.T) {
				t.Parallel()
				r, err := rawPost(h, framing, body)
				if err != nil {
					t.Fatal(err)
				}
				defer r.close()
				r.refused(t, http.StatusRequestTimeout)
				if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("after the refusal the connection gives %v, want its end", err)
				}
			})
		}
	}
	t.Cleanup(func() {
		if n := calls.times(); n != 0 {
			t.Errorf("%d adapter calls", n)
		}
	})
}

// A body may take longer than the read timeout of the server around, as long as it is within ours.
func TestFaultB2ASlowBodyWithinOurLimit(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, plugin.Config{Adapter: echo})
	h := mount(t, p, func(s *http.Server) { s.ReadTimeout = 200 * time.Millisecond })
	read, write := io.Pipe()
	go func() {
		body := request{message: "slow"}.body()
		_, _ = write.Write(body[:20])
		time.Sleep(400 * time.Millisecond) // the slowness itself
		_, _ = write.Write(body[20:])
		_ = write.Close()
	}()
	r, err := h.send(read)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if text := r.completed(t); text != "slow" {
		t.Errorf("the text is %q", text)
	}
}

// Fault B8: silence on the wire.
func TestFaultB8Heartbeats(t *testing.T) {
	t.Parallel()
	const chunks, runs, every = 10_000, 20, 50 * time.Millisecond
	// What the script would do: {"sleep":"500ms"}, {"text":".","repeat":10000}, {"sleep":"200ms"}. How long it
	// slept is measured, for on a busy machine that is longer.
	type slept struct{ before, after time.Duration }
	var naps sync.Map
	p := newPlugin(t, plugin.Config{Heartbeat: every, Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		began := time.Now()
		time.Sleep(500 * time.Millisecond)
		before := time.Since(began)
		for range chunks {
			if err := w.Text("."); err != nil {
				return err
			}
		}
		began = time.Now()
		time.Sleep(200 * time.Millisecond)
		naps.Store(strings.Clone(turn.ID), slept{before, time.Since(began)})
		return nil
	})})
	fast, small := mount(t, p, nil), mountSmall(t, p)
	var beats atomic.Int64
	t.Cleanup(func() {
		if n := beats.Load(); n < 3*runs {
			t.Errorf("%d heartbeats in %d runs, want about twelve in each", n, runs)
		}
	})
	for i := range runs {
		for _, slow := range []bool{false, true} {
			if slow && i%10 != 0 {
				continue // two of them: each takes several seconds
			}
			t.Run(fmt.Sprint(i, slow), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprint(i, slow)
				h := fast
				if slow {
					h = small
				}
				r := h.post(t, request{session: name, turn: name})
				if slow {
					r.slowly(1<<10, 10*time.Millisecond)
				}
				r.completed(t)
				if r.text() != strings.Repeat(".", chunks) {
					t.Errorf("the text has %d bytes, want %d", len(r.text()), chunks)
				}
				if err := streamHeaders(r.Header); err != nil {
					t.Error(err)
				}
				if r.ContentLength != -1 || !slices.Equal(r.TransferEncoding, []string{"chunked"}) {
					t.Errorf("Content-Length %d, Transfer-Encoding %v", r.ContentLength, r.TransferEncoding)
				}
				isText := func(e wire.Event) bool { return e.Type == wire.EventText }
				before := slices.IndexFunc(r.events, isText) - 1
				after := 0
				for n := len(r.events) - 2; !isText(r.events[n]); n-- {
					after++
				}
				// About nine and three. A busy machine may leave some out; there is never one too many.
				v, _ := naps.Load(name)
				nap, _ := v.(slept)
				beats.Add(int64(before + after))
				if before > int(nap.before/every)+1 {
					t.Errorf("%d heartbeats in %v, want about nine", before, nap.before)
				}
				if after > int(nap.after/every)+1 {
					t.Errorf("%d heartbeats in %v, want about three", after, nap.after)
				}
			})
		}
	}
}

func TestFaultB8StartedComesBeforeTheAdapterIsCalled(t *testing.T) {
	t.Parallel()
	seen := newGate(t)
	_, h := start(t, plugin.Config{Heartbeat: plugin.NoLimit, Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		select {
		case <-seen.C:
			return w.Text("seen")
		case <-ctx.Done():
			return ctx.Err()
		}
	})})
	r := h.post(t, request{}).started(t)
	seen.open()
	if text := r.completed(t); text != "seen" || r.count(wire.StatusWorking) != 0 {
		t.Errorf("the stream is %q", r.raw)
	}
}

// mountSmall runs h in a server whose sockets hold little, so that a slow reader is felt at once.
func mountSmall(t testing.TB, h http.Handler) *host {
	t.Helper()
	other := mount(t, h, func(s *http.Server) {
		s.ConnState = func(c net.Conn, state http.ConnState) {
			if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
				_ = tcp.SetWriteBuffer(16 << 10)
			}
		}
	})
	other.client = smallClient(t)
	return other
}

func smallClient(t testing.TB) *http.Client {
	t.Helper()
	var d net.Dialer
	tr := &http.Transport{DisableCompression: true, ReadBufferSize: 1 << 10, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(32 << 10)
		}
		return c, err
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Text of all kinds arrives as it was written, byte for byte.
func TestTextArrivesByteForByte(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for i := range len(turn.Message) { // every character of more than one byte is split
			if _, err := w.Write([]byte{turn.Message[i]}); err != nil {
				return err
			}
			if i%7 == 0 {
				if err := errors.Join(w.Status("working on it"), w.Text("")); err != nil {
					return err
				}
			}
		}
		if turn.ID == "cut" {
			return w.Text("\xf0\x9f\x98")
		}
		return nil
	})})
	for i, text := range []string{"naïve 渐渐 👩🏽‍🚀 — fin", "<b>&amp;</b> \u2028\u2029\u0085", "\x00\x01\x1f\x7f\"\\/\b\f\n\r\t", "\uFFFD\uFEFF"} {
		r := h.post(t, request{turn: numbered("t", i), message: text})
		if got := r.completed(t); got != text {
			t.Errorf("the text is %q, want %q", got, text)
		}
		if bytes.ContainsAny(r.raw, "\u2028\u2029") {
			t.Errorf("%q holds U+2028 or U+2029 as they are", r.raw)
		}
	}
	r := h.post(t, request{turn: "cut", message: "é"})
	if got := r.completed(t); got != "é\uFFFD\uFFFD\uFFFD" {
		t.Errorf("what was cut off at the end is %q", got)
	}
}

func TestAVeryLongChunk(t *testing.T) {
	t.Parallel()
	const size = 9 << 20 // more than any reader of lines may refuse
	_, h := start(t, plugin.Config{Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		return errors.Join(w.Text("a"), w.Text(strings.Repeat("é", size/2)), w.Text("z"))
	})})
	r := h.post(t, request{})
	if text := r.completed(t); len(text) != size+2 || text[0] != 'a' || text[size+1] != 'z' {
		t.Errorf("the text has %d bytes", len(text))
	}
	if len(r.events) != 5 {
		t.Errorf("%d events, want five", len(r.events))
	}
}

// A writer may be used from several goroutines: what one call wrote stays together.
func TestSeveralGoroutinesMayWrite(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 200
	_, h := start(t, plugin.Config{Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					if err := errors.Join(w.Text(fmt.Sprintf("%d:%d;", i, n)), w.Status("busy"), w.Usage(adapters.Usage{Steps: adapters.Count(1)})); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return nil
	})})
	r := h.post(t, request{})
	next := [writers]int{}
	for word := range strings.SplitSeq(strings.TrimSuffix(r.completed(t), ";"), ";") {
		var i, n int
		if _, err := fmt.Sscanf(word, "%d:%d", &i, &n); err != nil || next[i] != n {
			t.Fatalf("%q comes after %d of its writer's chunks", word, next[i])
		}
		next[i]++
	}
	if got := r.count(wire.StatusWorking); got != writers*each {
		t.Errorf("%d status events, want %d", got, writers*each)
	}
}

// A host that asks whether it may send its body is told so only when it may.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo, Tokens: map[string]plugin.Secret{"a": secretToken}})
	for name, tt := range map[string]struct {
		header string
		first  string
	}{
		"may":      {"Authorization: Bearer " + secretToken + "\r\n", "HTTP/1.1 100 Continue\r\n"},
		"no token": {"", "HTTP/1.1 401 Unauthorized\r\n"},
		"no JSON":  {"Authorization: Bearer " + secretToken + "\r\nContent-Type: text/plain\r\n", "HTTP/1.1 415 Unsupported Media Type\r\n"},
	} {
		c, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		body := request{message: "x"}.body()
		if _, err := fmt.Fprintf(c, "POST /lowkey/turn HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n%sContent-Length: %d\r\n\r\n", tt.header, len(body)); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(c)
		if first, err := lines.ReadString('\n'); first != tt.first {
			t.Errorf("%s: the first line is %q, %v, want %q", name, first, err, tt.first)
		} else if name == "may" {
			_, _ = lines.ReadString('\n')
			if _, err := c.Write(body); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(lines, nil) //nolint:bodyclose // the connection is closed below
			if err != nil {
				t.Fatal(err)
			}
			if text := newReply(res, func() {}).completed(t); text != "x" {
				t.Errorf("the text is %q", text)
			}
		}
		_ = c.Close()
	}
}
