package keiki_test

import (
	"bytes"
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

const testSecret = "whsec_bm90LWEtcmVhbC1zZWNyZXQtZm9yLXRlc3Rz"

// A journal is a log that is read by the test.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) { j.mu.Lock(); defer j.mu.Unlock(); return j.b.Write(p) }
func (j *journal) String() string              { j.mu.Lock(); defer j.mu.Unlock(); return j.b.String() }

// A rig is a handler behind a real server, and the platform that dispatches to it. At its end all must be
// at rest, the platform must have nothing to complain of, and no secret may stand in the log.
type rig struct {
	t        *testing.T
	engine   *runtime.Engine
	handler  *keiki.Handler
	app      *httptest.Server
	idle     func() // closes idle connections to the platform
	conf     rigConfig
	platform *testhost.Keiki
	log      *journal
	// complaints are rules that this test breaks on purpose.
	complaints map[testhost.KeikiRule]bool
}

type rigConfig struct {
	runtime  runtime.Config
	push     keiki.PushConfig
	platform testhost.KeikiConfig
	wrap     func(http.Handler) http.Handler
}

func newRig(t *testing.T, adapter adapters.Adapter, edit ...func(*rigConfig)) *rig {
	t.Helper()
	g := &rig{t: t, log: &journal{}, complaints: map[testhost.KeikiRule]bool{}}
	var c rigConfig
	c.push.Adapter = adapter
	c.push.Secrets.Any = []secret.Text{testSecret}
	c.platform.Secrets = map[string][]string{"agent-1": {testSecret}}
	for _, e := range edit {
		e(&c)
	}
	g.conf = c
	g.serve()
	c.platform.DispatchURL = g.app.URL + "/keiki/turn"
	var err error
	if g.platform, err = testhost.NewKeiki(c.platform); err != nil {
		t.Fatal(err)
	}
	if _, err := g.platform.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		g.stop(ctx)
		g.platform.Close()
		for _, v := range g.platform.Violations() {
			if !g.complaints[v.Rule] {
				t.Errorf("the platform complains: %+v", v)
			}
		}
		if n := g.engine.Stats().Active; n != 0 {
			t.Errorf("%d turns are active at the end", n)
		}
		g.noSecret(g.log.String())
	})
	return g
}

// serve makes a server of the rig's configuration.
func (g *rig) serve() {
	g.t.Helper()
	c := g.conf
	logger := slog.New(slog.NewJSONHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.runtime.Logger = logger
	var err error
	if g.engine, err = runtime.New(c.runtime); err != nil {
		g.t.Fatal(err)
	}
	c.push.Engine = g.engine
	c.push.Logger = logger
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	g.idle = transport.CloseIdleConnections
	if c.push.Transport == nil {
		c.push.Transport = transport
	}
	if g.handler, err = keiki.New(c.push); err != nil {
		g.t.Fatal(err)
	}
	keiki.SetBackoff(g.handler, 5*time.Millisecond, 50*time.Millisecond)
	h := http.Handler(g.handler)
	if c.wrap != nil {
		h = c.wrap(h)
	}
	g.app = httptest.NewServer(h)
}

// stop ends the server; nothing of it is left, or ctx is done.
func (g *rig) stop(ctx context.Context) {
	_ = g.handler.Drain(ctx)
	g.engine.WaitAdapters()
	g.handler.Wait()
	g.app.Close()
	g.idle()
}

// restart puts another server in the place of the rig's own.
func (g *rig) restart(edit ...func(*rigConfig)) {
	g.t.Helper()
	g.stop(g.t.Context())
	for _, e := range edit {
		e(&g.conf)
	}
	g.serve()
	if err := g.platform.SetDispatchURL(g.app.URL + "/keiki/turn"); err != nil {
		g.t.Fatal(err)
	}
}

// noSecret looks for secrets and tokens, whole and without their prefix.
func (g *rig) noSecret(text string) {
	g.t.Helper()
	hidden := []string{testSecret, strings.TrimPrefix(testSecret, "whsec_"), "kts1."}
	for _, r := range g.platform.Requests("") {
		for _, token := range g.platform.Tokens(r.TurnID) {
			hidden = append(hidden, token, strings.TrimPrefix(token, "ht_"))
		}
	}
	for _, h := range hidden {
		if h != "" && strings.Contains(text, h) {
			g.t.Errorf("a secret (%.8s…) stands in: %.2000s", h, text)
			return
		}
	}
}

// dispatch sends a turn, which must be accepted.
func (g *rig) dispatch(turn testhost.KeikiTurn) *testhost.KeikiDispatch {
	g.t.Helper()
	d, err := g.platform.Dispatch(g.t.Context(), turn)
	if err != nil {
		g.t.Fatal(err)
	}
	if d.Answer.Status != http.StatusAccepted {
		g.t.Fatalf("the turn was answered %d %s, want 202", d.Answer.Status, d.Answer.Body)
	}
	return d
}

// outcome waits for the end of a turn.
func (g *rig) outcome(id string) testhost.KeikiOutcome {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	o, err := g.platform.Outcome(ctx, id)
	if err != nil {
		g.t.Fatalf("the turn %s has no outcome: %v\nlog:\n%s", id, err, g.log)
	}
	return o
}

// until waits for something to become true.
func (g *rig) until(what string, cond func() bool) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			g.t.Fatalf("it never came to pass that %s\nlog:\n%s", what, g.log)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// says is an adapter that writes these pieces.
func says(pieces ...string) adapters.Adapter {
	return adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for _, p := range pieces {
			if err := w.Text(p); err != nil {
				return err
			}
		}
		return nil
	})
}
