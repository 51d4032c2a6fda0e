package keiki_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

// A desk is a platform whose turns are fetched, by inboxes or relays. At its end the platform must have nothing
// to complain of, and no secret may stand in the log of who fetched.
type desk struct {
	*rig
	url string // where it is reached; through wrap, if there is one
}

type deskConfig struct {
	platform testhost.KeikiConfig
	// wrap is around the platform, as a proxy would be.
	wrap func(http.Handler) http.Handler
}

func newDesk(t *testing.T, edit ...func(*deskConfig)) *desk {
	t.Helper()
	d := &desk{rig: &rig{t: t, log: &journal{}, complaints: map[testhost.KeikiRule]bool{}}}
	c := deskConfig{platform: testhost.KeikiConfig{Mode: testhost.KeikiInboxMode, InFlight: time.Second}}
	c.platform.Secrets = map[string][]string{"agent-1": {testSecret}}
	for _, e := range edit {
		e(&c)
	}
	var err error
	if d.platform, err = testhost.NewKeiki(c.platform); err != nil {
		t.Fatal(err)
	}
	h := http.Handler(d.platform)
	if c.wrap != nil {
		h = c.wrap(h)
	}
	server := httptest.NewServer(h)
	d.url = server.URL + "/api/v1"
	if err := d.platform.SetURL(server.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after those of the workers
		server.CloseClientConnections()
		d.platform.Close()
		server.Close()
		for _, v := range d.platform.Violations() {
			if !d.complaints[v.Rule] {
				t.Errorf("the platform complains: %v", v)
			}
		}
		d.noSecret(d.log.String())
		if key := d.platform.APIKey(""); strings.Contains(d.log.String(), strings.TrimPrefix(key, "sk_")) {
			t.Errorf("the API key stands in the log:\n%s", d.log)
		}
		if t.Failed() {
			t.Logf("log:\n%.20000s", d.log)
		}
	})
	return d
}

// queue gives the platform a turn, and returns its id.
func (d *desk) queue(turn testhost.KeikiTurn) string {
	d.t.Helper()
	q, err := d.platform.Dispatch(d.t.Context(), turn)
	if err != nil {
		d.t.Fatal(err)
	}
	return q.ID
}

// polls are the requests for work so far.
func (d *desk) polls(route string) (list []testhost.KeikiRequest) {
	for _, r := range d.platform.Requests("") {
		if r.Route == route {
			list = append(list, r)
		}
	}
	return list
}

// all are the requests so far, those for work too, that were about a turn.
func (d *desk) all(id string, routes ...string) (list []testhost.KeikiRequest) {
	for _, r := range d.platform.Requests(id) {
		for _, route := range routes {
			if r.Route == route {
				list = append(list, r)
			}
		}
	}
	return list
}

// A worker is an inbox that polls a desk.
type worker struct {
	d      *desk
	engine *runtime.Engine
	inbox  *keiki.Inbox
	cancel context.CancelFunc // ends the polling
	ended  chan struct{}      // closed when Run has returned err
	err    error
	once   sync.Once
	idle   func()
}

type workerConfig struct {
	runtime runtime.Config
	inbox   keiki.InboxConfig
	// every, least and most are the pauses; see Hurry.
	every, least, most time.Duration
}

// work has an inbox poll the desk.
func (d *desk) work(adapter adapters.Adapter, edit ...func(*workerConfig)) *worker {
	d.t.Helper()
	logger := slog.New(slog.NewJSONHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	c := workerConfig{every: 20 * time.Millisecond, least: 5 * time.Millisecond, most: 50 * time.Millisecond}
	c.runtime.Logger = logger
	c.inbox = keiki.InboxConfig{
		Config: keiki.Config{Adapter: adapter, APIBase: d.url, Logger: logger, Transport: transport},
		APIKey: secret.Text(d.platform.APIKey("")),
	}
	for _, e := range edit {
		e(&c)
	}
	var err error
	w := &worker{d: d, ended: make(chan struct{}), idle: transport.CloseIdleConnections}
	if w.engine, err = runtime.New(c.runtime); err != nil {
		d.t.Fatal(err)
	}
	c.inbox.Engine = w.engine
	if w.inbox, err = keiki.NewInbox(c.inbox); err != nil {
		d.t.Fatal(err)
	}
	w.inbox.Hurry(c.every, c.least, c.most)
	ctx, cancel := context.WithCancel(d.t.Context())
	w.cancel = cancel
	go func() {
		defer close(w.ended)
		w.err = w.inbox.Run(ctx)
	}()
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		w.stop(ctx)
	})
	return w
}

// alone has a worker run one turn at a time. As long as it does that, it does not poll, so that nobody claims
// its turn again.
func alone(c *workerConfig) { c.inbox.Concurrency = 1 }

// stopPolling ends the polling of a worker that has no room for another turn. (A poll that is given up may still
// be given a turn by the platform.)
func (w *worker) stopPolling() {
	w.cancel()
	<-w.ended
}

// stop ends the worker: the polling at once, the turns by ctx. Nothing of it is left.
func (w *worker) stop(ctx context.Context) {
	w.d.t.Helper()
	w.once.Do(func() {
		w.cancel()
		<-w.ended
		_ = w.inbox.Drain(ctx)
		w.engine.WaitAdapters()
		w.inbox.Wait()
		w.idle()
		if n := w.engine.Stats().Active; n != 0 {
			w.d.t.Errorf("%d turns are active at the end of a worker", n)
		}
	})
}

// expired is a context that is over.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// rewrite changes the answers to requests whose path ends so.
func rewrite(suffix string, change func(h http.Header, body []byte) []byte) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, suffix) {
				next.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for name, values := range rec.Header() {
				w.Header()[name] = values
			}
			body := change(w.Header(), rec.Body.Bytes())
			w.WriteHeader(rec.Code)
			_, _ = w.Write(body)
		})
	}
}

// lines are the lines of the log that have all of these in them.
func (d *desk) lines(parts ...string) (list []string) {
	for line := range strings.Lines(d.log.String()) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			list = append(list, line)
		}
	}
	return list
}

// onRoute makes faults of the requests to one route, which are counted from 1.
func onRoute(route string, fault func(n int) testhost.KeikiFault) func(*deskConfig) {
	var mu sync.Mutex
	n := 0
	return func(c *deskConfig) {
		before := c.platform.Fault
		c.platform.Fault = func(r *http.Request, i int) testhost.KeikiFault {
			if strings.HasSuffix(r.URL.Path, route) {
				mu.Lock()
				n++
				k := n
				mu.Unlock()
				return fault(k)
			}
			if before != nil {
				return before(r, i)
			}
			return testhost.KeikiFault{}
		}
	}
}

// receive waits for something of a channel.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}
