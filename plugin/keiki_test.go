package plugin_test

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	echoadapter "github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

const keikiSecret = "whsec_bm90LWEtcmVhbC1zZWNyZXQtZm9yLXRlc3Rz"

// A keikiPlatform is a platform that dispatches to a server, or whose inbox is polled. At its end it must have
// nothing to complain of.
type keikiPlatform struct {
	*testhost.Keiki
	t *testing.T
}

func newKeikiPlatform(t *testing.T, edit ...func(*testhost.KeikiConfig)) *keikiPlatform {
	t.Helper()
	conf := testhost.KeikiConfig{Secrets: map[string][]string{"agent-1": {keikiSecret}}, InFlight: time.Second}
	for _, e := range edit {
		e(&conf)
	}
	k, err := testhost.NewKeiki(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Close()
		for _, v := range k.Violations() {
			t.Errorf("Keiki complains: %v", v)
		}
	})
	if _, err := k.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	return &keikiPlatform{k, t}
}

func (k *keikiPlatform) dispatch(turn testhost.KeikiTurn) *testhost.KeikiDispatch {
	k.t.Helper()
	d, err := k.Dispatch(k.t.Context(), turn)
	if err != nil {
		k.t.Fatal(err)
	}
	return d
}

// accepted dispatches a turn, which must be accepted, and returns its id.
func (k *keikiPlatform) accepted(turn testhost.KeikiTurn) string {
	k.t.Helper()
	d := k.dispatch(turn)
	if d.Answer.Status != http.StatusAccepted {
		k.t.Fatalf("a turn is answered %d %s, want 202", d.Answer.Status, d.Answer.Body)
	}
	return d.ID
}

func (k *keikiPlatform) outcome(id string) testhost.KeikiOutcome {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	o, err := k.Outcome(ctx, id)
	if err != nil {
		k.t.Fatalf("the turn %s has no outcome: %v", id, err)
	}
	return o
}

func (k *keikiPlatform) completed(id string, texts ...string) {
	k.t.Helper()
	if o := k.outcome(id); o.Status != "completed" {
		k.t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff(texts, k.Texts(id)); diff != "" {
		k.t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func (k *keikiPlatform) requests(id, route string) (n int) {
	for _, r := range k.Requests(id) {
		if r.Route == route {
			n++
		}
	}
	return n
}

func signedBy(secrets ...plugin.Secret) *plugin.Keiki {
	return &plugin.Keiki{Secrets: plugin.KeikiSecrets{Any: secrets}}
}

// startKeiki runs a plugin that a platform dispatches to.
func startKeiki(t *testing.T, conf plugin.Config, edit ...func(*testhost.KeikiConfig)) (*plugin.Plugin, *host, *keikiPlatform) {
	t.Helper()
	k := newKeikiPlatform(t, edit...)
	if conf.Keiki == nil {
		conf.Keiki = signedBy(keikiSecret)
	}
	if conf.Adapter == nil && conf.Adapters == nil {
		conf.Adapter = scripted.New(scripted.Config{})
	}
	if conf.Drain == 0 { // a short one cuts completions off, which are then tried once more
		conf.Drain = patience
	}
	p, h := start(t, conf)
	if err := k.SetDispatchURL(p.KeikiURL(h.addr)); err != nil {
		t.Fatal(err)
	}
	return p, h, k
}

// TestThreeProtocols: one adapter and one server, whichever platform asks, at any mount.
func TestThreeProtocols(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ prefix, path, url string }{
		"plain":           {"", "", "/keiki/turn"},
		"prefix":          {"/agents", "", "/agents/keiki/turn"},
		"root":            {"", "/", ""},
		"path":            {"", "/hooks/keiki/", "/hooks/keiki"},
		"prefix and path": {"/agents/", "/k", "/agents/k"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			protocols := make(chan adapters.Protocol, 3)
			keiki := signedBy(keikiSecret)
			keiki.Path = tt.path
			var passed atomic.Int64
			p, h, k := startKeiki(t, plugin.Config{
				Prefix: tt.prefix, Keiki: keiki, External: &plugin.External{OperatorToken: operatorToken},
				Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					protocols <- turn.Protocol
					return echoadapter.New().Run(ctx, turn, w)
				}),
				Middleware: []func(http.Handler) http.Handler{func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { passed.Add(1); next.ServeHTTP(w, r) })
				}},
			})
			if url := p.KeikiURL(h.addr); url != "http://"+h.addr+tt.url {
				t.Errorf("KeikiURL is %q", url)
			}
			k.completed(k.accepted(testhost.KeikiTurn{Text: "over Keiki"}), "over Keiki")
			if passed.Load() == 0 {
				t.Error("the middleware saw nothing")
			}
			h.path = strings.TrimRight(tt.prefix, "/") + plugin.DefaultTurnPath
			if text := h.post(t, request{message: "over Lowkey"}).completed(t); text != "over Lowkey" {
				t.Errorf("over Lowkey: %q", text)
			}
			x := h.orbiplex(strings.TrimRight(tt.prefix, "/"))
			if err := x.Setup(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := sent(t, x, x.Request("over Orbiplex")); a.Content != "over Orbiplex" {
				t.Errorf("over Orbiplex: %q", a.Content)
			}
			want := []adapters.Protocol{adapters.Keiki, adapters.Lowkey, adapters.ExternalRuntime}
			if got := []adapters.Protocol{<-protocols, <-protocols, <-protocols}; !slices.Equal(got, want) {
				t.Errorf("the adapter saw %v", got)
			}
			if n := p.Stats().Turns.Total; n != 3 {
				t.Errorf("%d turns", n)
			}
			// A slash at the end is no other path, and only POST is a request.
			if err := k.SetDispatchURL(p.KeikiURL(h.addr) + "/"); err != nil {
				t.Fatal(err)
			}
			k.completed(k.accepted(testhost.KeikiTurn{Text: "again"}), "again")
			if status, body := h.fetch(t, stdcmp.Or(tt.url, "/")); status != http.StatusMethodNotAllowed || !strings.Contains(body, "method_not_allowed") {
				t.Errorf("GET is answered %d %s", status, body)
			}
		})
	}
}

// TestWithoutKeiki: nothing of it is there.
func TestWithoutKeiki(t *testing.T) {
	t.Parallel()
	p, h := start(t, plugin.Config{Adapter: echo})
	res, err := h.client.Post("http://"+h.addr+plugin.DefaultKeikiPath, "application/json", strings.NewReader(`{"type":"keiki.turn"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close() // nothing in it matters
	if res.StatusCode != http.StatusNotFound || p.KeikiURL(h.addr) != "" {
		t.Errorf("a push is answered %d, and KeikiURL is %q", res.StatusCode, p.KeikiURL(h.addr))
	}
}

// TestNewNamesWhatIsWrongWithKeiki: every wrong field, and no secret.
func TestNewNamesWhatIsWrongWithKeiki(t *testing.T) {
	t.Parallel()
	const hidden = "hidden-value-0123456789"
	good := func() plugin.Config {
		return plugin.Config{ID: "muse", Adapter: echo, Keiki: &plugin.Keiki{
			Secrets: plugin.KeikiSecrets{Any: []plugin.Secret{keikiSecret}}, APIBase: "https://keiki.example/api/v1",
			Agents: map[string]string{"agent-1": "muse"}, Inbox: &plugin.KeikiInbox{APIKey: "sk_test_key"},
		}}
	}
	if _, err := plugin.New(good()); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		break_ func(*plugin.Config)
		says   []string
	}{
		"path without a slash": {func(c *plugin.Config) { c.Keiki.Path = "keiki" }, []string{"Keiki.Path"}},
		"path with a variable": {func(c *plugin.Config) { c.Keiki.Path = "/keiki/{id}" }, []string{"Keiki.Path"}},
		"path of Lowkey":       {func(c *plugin.Config) { c.Keiki.Path = "/lowkey/turn/" }, []string{"Keiki.Path", "TurnPath"}},
		"path of readiness":    {func(c *plugin.Config) { c.Keiki.Path = "/readyz" }, []string{"Keiki.Path", "/readyz"}},
		"path of a schema":     {func(c *plugin.Config) { c.Keiki.Path = "/schemas/keiki/x" }, []string{"Keiki.Path", "/schemas/"}},
		"path of External": {func(c *plugin.Config) {
			c.External = &plugin.External{}
			c.Keiki.Path = plugin.ExternalPath + "/keiki"
		}, []string{"Keiki.Path", plugin.ExternalPath}},
		"unknown plugin":     {func(c *plugin.Config) { c.Keiki.Agents["agent-2"] = "other" }, []string{"Keiki.Agents", "agent-2", "other"}},
		"short secret":       {func(c *plugin.Config) { c.Keiki.Secrets.Any = []plugin.Secret{plugin.Secret(hidden[:12])} }, []string{"Secrets"}},
		"empty secret":       {func(c *plugin.Config) { c.Keiki.Secrets.Any = []plugin.Secret{""} }, []string{"Secrets"}},
		"base with a user":   {func(c *plugin.Config) { c.Keiki.APIBase = "https://" + hidden + "@keiki.example" }, []string{"APIBase"}},
		"delivery":           {func(c *plugin.Config) { c.Keiki.Delivery = "pigeon" }, []string{"Delivery", "pigeon"}},
		"stream path":        {func(c *plugin.Config) { c.Keiki.StreamPath = "../../x" }, []string{"StreamPath"}},
		"tolerance":          {func(c *plugin.Config) { c.Keiki.Tolerance = -1 }, []string{"Tolerance"}},
		"message size":       {func(c *plugin.Config) { c.Keiki.MaxMessage = 3 }, []string{"MaxMessage"}},
		"inbox without base": {func(c *plugin.Config) { c.Keiki.APIBase = "" }, []string{"APIBase is empty"}},
		"inbox without key":  {func(c *plugin.Config) { c.Keiki.Inbox.APIKey = "" }, []string{"APIKey is empty"}},
		"key with a break":   {func(c *plugin.Config) { c.Keiki.Inbox.APIKey = hidden + "\n" }, []string{"APIKey"}},
		"wait":               {func(c *plugin.Config) { c.Keiki.Inbox.Wait = time.Hour }, []string{"Wait"}},
		"concurrency":        {func(c *plugin.Config) { c.Keiki.Inbox.Concurrency = -1 }, []string{"Concurrency"}},
		"a token's name":     {func(c *plugin.Config) { c.Tokens = map[string]plugin.Secret{"keiki:x": hidden} }, []string{"Tokens", "keiki:x"}},
		"several": {func(c *plugin.Config) {
			c.Keiki.Delivery, c.Keiki.MaxMessage, c.Keiki.Secrets.Any = "pigeon", 3, []plugin.Secret{plugin.Secret(hidden[:12])}
		}, []string{"Delivery", "MaxMessage", "Secrets"}},
	} {
		conf := good()
		tt.break_(&conf)
		_, err := plugin.New(conf)
		var wrong *plugin.ConfigError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: New = %v, want a ConfigError", name, err)
			continue
		}
		for _, want := range tt.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), hidden[:12]) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error shows a secret, or has several lines: %v", name, err)
		}
	}

	// What is not a mistake of the configuration.
	store := ledger.NewMemory(ledger.MemoryConfig{})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	conf := good()
	conf.Keiki.Store = store
	var wrong *plugin.ConfigError
	if _, err := plugin.New(conf); !errors.Is(err, ledger.ErrClosed) || errors.As(err, &wrong) {
		t.Errorf("New with a closed store = %v", err)
	}
	conf = good()
	conf.Keiki.Inbox = nil
	if err := plugin.PollInbox(t.Context(), conf); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "Keiki.Inbox") {
		t.Errorf("PollInbox without an inbox = %v", err)
	}
	conf.Keiki = nil
	if err := plugin.PollInbox(t.Context(), conf); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "Keiki.Inbox") {
		t.Errorf("PollInbox without Keiki = %v", err)
	}
	if err := plugin.PollInbox(t.Context(), plugin.Config{}); !errors.As(err, &wrong) {
		t.Errorf("PollInbox of nothing = %v", err)
	}
}

// TestKeikiWithoutASecret: every request is refused, and readiness is not harmed.
func TestKeikiWithoutASecret(t *testing.T) {
	t.Parallel()
	_, h, k := startKeiki(t, plugin.Config{Keiki: &plugin.Keiki{}})
	if d := k.dispatch(testhost.KeikiTurn{Text: "hello"}); d.Answer.Status != http.StatusServiceUnavailable || !bytes.Contains(d.Answer.Body, []byte("signing_secret_missing")) {
		t.Errorf("a turn is answered %d %s", d.Answer.Status, d.Answer.Body)
	}
	if status, _ := h.fetch(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz is %d", status)
	}
}

// TestWhoAnswersForAnAgent: the plugin that is named, else that of its id, else Adapter, else the only one, else
// nobody.
func TestWhoAnswersForAnAgent(t *testing.T) {
	t.Parallel()
	saying := func(text string) adapters.Adapter {
		return adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error { return w.Text(text) })
	}
	two := map[string]adapters.Adapter{"oracle": saying("oracle"), "agent-2": saying("agent-2")}
	for name, tt := range map[string]struct {
		conf plugin.Config
		want map[string]string // by agent; empty for nobody
	}{
		"Adapter and others": {plugin.Config{ID: "muse", Adapter: saying("muse"), Adapters: two}, map[string]string{"agent-1": "oracle", "agent-2": "agent-2", "agent-3": "muse"}},
		"others alone":       {plugin.Config{Adapters: two}, map[string]string{"agent-1": "oracle", "agent-2": "agent-2", "agent-3": ""}},
		"the only one":       {plugin.Config{Adapters: map[string]adapters.Adapter{"oracle": saying("oracle")}}, map[string]string{"agent-1": "oracle", "agent-2": "oracle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.conf.Keiki = signedBy(keikiSecret)
			tt.conf.Keiki.Agents = map[string]string{"agent-1": "oracle"}
			_, _, k := startKeiki(t, tt.conf)
			for agent, want := range tt.want {
				k.SetSecrets(agent, keikiSecret)
				d := k.dispatch(testhost.KeikiTurn{AgentID: agent, Text: "hello"})
				if want == "" {
					if d.Answer.Status != http.StatusNotFound || !bytes.Contains(d.Answer.Body, []byte("no_adapter")) {
						t.Errorf("%s: %d %s, want nobody", agent, d.Answer.Status, d.Answer.Body)
					}
					continue
				}
				k.completed(d.ID, want)
			}
		})
	}
}

// TestOneCapacityForAllProtocols: a turn of Lowkey takes the place of one of Keiki.
func TestOneCapacityForAllProtocols(t *testing.T) {
	t.Parallel()
	release := newGate(t)
	_, h, k := startKeiki(t, plugin.Config{MaxTurns: 1, Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		<-release.C
		return w.Text("done")
	})})
	r := h.post(t, request{}).started(t)
	if d := k.dispatch(testhost.KeikiTurn{Text: "hello"}); d.Answer.Status != http.StatusServiceUnavailable || d.Answer.Header.Get("Retry-After") == "" {
		t.Errorf("a turn above the limit is answered %d %s", d.Answer.Status, d.Answer.Body)
	}
	release.open()
	r.completed(t)
	id := k.accepted(testhost.KeikiTurn{Text: "hello"})
	k.completed(id, "done")
}

// TestOneStoreForTwoProtocols: without a store of its own, Keiki remembers its turns in External's.
func TestOneStoreForTwoProtocols(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"External's": false, "its own": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			external, kept := &watchedStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}, &watchedStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}
			used := external
			open := func() plugin.Config {
				c := plugin.Config{External: &plugin.External{Store: external}, Keiki: signedBy(keikiSecret)}
				if own {
					c.Keiki.Store = kept
					used = kept
				}
				return c
			}
			p, h, k := startKeiki(t, open())
			k.completed(k.accepted(testhost.KeikiTurn{ID: "turn-1", Text: "hello"}), "hello")
			if n, other := used.claims.Load(), external.claims.Load()+kept.claims.Load(); n != 1 || other != 1 {
				t.Errorf("%d claims in the store, %d in both", n, other)
			}
			if n := used.recoveries.Load(); n != 1 {
				t.Errorf("the store was recovered %d times", n)
			}
			eventually(t, "the server's first sweep", func() bool { return used.sweeps.Load() == 1 && (!own || external.sweeps.Load() == 1) })
			if err := p.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if n, other := used.sweeps.Load(), external.sweeps.Load(); n != 2 || other != 2 {
				t.Errorf("the stores were swept %d and %d times, want twice", n, other)
			}
			used.down.Store(true)
			if status, body := h.fetch(t, "/readyz"); status != http.StatusServiceUnavailable || strings.Contains(body, "hidden") {
				t.Errorf("with a store that is down /readyz is %d %s", status, body)
			}
			if d := k.dispatch(testhost.KeikiTurn{ID: "turn-2", Text: "hello"}); d.Answer.Status != http.StatusServiceUnavailable || bytes.Contains(d.Answer.Body, []byte("hidden")) {
				t.Errorf("with a store that is down a turn is answered %d %s", d.Answer.Status, d.Answer.Body)
			}
			used.down.Store(false)
			if status, _ := h.fetch(t, "/readyz"); status != http.StatusOK {
				t.Errorf("with a store that is up again /readyz is %d", status)
			}

			// Another server on the same store remembers the turn.
			q, g := start(t, func() plugin.Config { c := open(); c.Adapter, c.Drain = echo, patience; return c }())
			if err := k.SetDispatchURL(q.KeikiURL(g.addr)); err != nil {
				t.Fatal(err)
			}
			a, err := k.Redispatch(t.Context(), "turn-1")
			if err != nil || a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte(`"duplicate":true`)) {
				t.Errorf("a repeated turn is answered %d %s, %v", a.Status, a.Body, err)
			}
		})
	}
}

// A watchedStore counts what is asked of it, and may be down.
type watchedStore struct {
	ledger.Store
	claims, sweeps, recoveries atomic.Int64
	down                       atomic.Bool
}

var errHidden = errors.New("hidden path: input/output error")

func (s *watchedStore) Claim(ctx context.Context, r ledger.ClaimRequest) (ledger.Claimed, error) {
	if s.down.Load() {
		return ledger.Claimed{}, errHidden
	}
	s.claims.Add(1)
	return s.Store.Claim(ctx, r)
}

func (s *watchedStore) Sweep(ctx context.Context, at time.Time, limit int) (ledger.Sweeping, error) {
	s.sweeps.Add(1)
	return s.Store.Sweep(ctx, at, limit)
}

func (s *watchedStore) Recover(ctx context.Context, at time.Time, end func(ledger.Turn, *ledger.Part) (*ledger.Ending, error)) (ledger.Recovery, error) {
	s.recoveries.Add(1)
	return s.Store.Recover(ctx, at, end)
}

func (s *watchedStore) Ping(ctx context.Context) error {
	if s.down.Load() {
		return errHidden
	}
	return s.Store.Ping(ctx)
}

// TestKeikiRecovers: what a process that died was running is told, and does not run again.
func TestKeikiRecovers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "turns.db")
	open := func() ledger.Store {
		s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	store := open()
	now := time.Now()
	if _, err := store.Claim(t.Context(), ledger.ClaimRequest{Agent: "agent-1", Turn: "turn-1", At: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil { // without an end of the turn
		t.Fatal(err)
	}
	store = open()
	t.Cleanup(func() { _ = store.Close() }) // after the server
	log := &logBuffer{}
	keiki := signedBy(keikiSecret)
	keiki.Store = store
	_, _, k := startKeiki(t, plugin.Config{Keiki: keiki, Logger: log.logger()})
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "turns=1") {
		t.Errorf("the log says\n%s", text)
	}
	if d := k.dispatch(testhost.KeikiTurn{ID: "turn-1", Text: "hello"}); d.Answer.Status != http.StatusOK {
		t.Errorf("a turn that was lost is answered %d %s, want 200", d.Answer.Status, d.Answer.Body)
	}
}

// TestFaultK3DrainOfKeiki: turns of Keiki that run on after their 202, beside one of Lowkey.
func TestFaultK3DrainOfKeiki(t *testing.T) {
	t.Parallel()
	c := startChild(t)
	k := newKeikiPlatform(t)
	if err := k.SetDispatchURL("http://" + c.addr + plugin.DefaultKeikiPath); err != nil {
		t.Fatal(err)
	}
	lowkey := c.post(t, request{session: "s", message: script(`{"text":"x"}`, `{"sleep":"60s"}`)}).started(t)
	short := k.accepted(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"sleep":"1s"}`, `{"paragraph":"two"}`)})
	long := k.accepted(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"sleep":"60s"}`, `{"paragraph":"two"}`)})
	stalled := k.accepted(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"stall":"60s"}`, `{"paragraph":"two"}`)})
	for _, id := range []string{short, long, stalled} {
		eventually(t, "the first message", func() bool { return len(k.Texts(id)) == 1 })
	}
	signalled := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drain", func() bool { return getStatus(t, c.host, "/readyz") == http.StatusServiceUnavailable })
	d := k.dispatch(testhost.KeikiTurn{Text: "new"})
	if d.Answer.Status != http.StatusServiceUnavailable || !bytes.Contains(d.Answer.Body, []byte(`"code":"draining"`)) || d.Answer.Header.Get("Retry-After") == "" {
		t.Errorf("a new turn is answered %d %s", d.Answer.Status, d.Answer.Body)
	}
	if a, err := k.Redispatch(t.Context(), long); err != nil || a.Status != http.StatusOK {
		t.Errorf("a repeat while draining is answered %d %s, %v", a.Status, a.Body, err)
	}
	k.completed(short, "one", "two")
	for id, from := range map[string]time.Duration{long: childDrain, stalled: childDrain + grace} {
		o := k.outcome(id)
		if o.Status != "failed" || o.Error != "server is shutting down" {
			t.Errorf("outcome %+v", o)
		}
		if after := o.At.Sub(signalled); after < from-100*time.Millisecond || after > from+2*time.Second {
			t.Errorf("it came %v after the signal, want %v", after, from)
		}
		if diff := cmp.Diff([]string{"one"}, k.Texts(id)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	}
	if err := lowkey.read(); err != nil || lowkey.last().Status != wire.StatusCancelled {
		t.Errorf("Lowkey's turn ended with %+v, %v", lowkey.last(), err)
	}
	if code := receive(t, "the exit", c.exit); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if after := time.Since(signalled); after > childDrain+grace+2*time.Second {
		t.Errorf("the exit came %v after the signal", after)
	}
}

// pollingChild polls an inbox: exit code 0 after a drain, 3 after a second signal, 4 where the key is refused, 1
// otherwise. kind is the API base, a space and the key.
func pollingChild(kind string) int {
	base, key, _ := strings.Cut(kind, " ")
	err := plugin.PollInbox(context.Background(), pollingConfig(base, key))
	switch {
	case err == nil:
		return 0
	case errors.Is(err, plugin.ErrKilled):
		return 3
	case errors.Is(err, plugin.ErrKeyRefused):
		return 4
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func pollingConfig(base, key string) plugin.Config {
	return plugin.Config{
		ID: "muse", Adapter: scripted.New(scripted.Config{}), Drain: childDrain,
		Keiki: &plugin.Keiki{APIBase: base, Inbox: &plugin.KeikiInbox{APIKey: plugin.Secret(key)}},
	}
}

// A poller is a process that polls.
type poller struct {
	cmd  *exec.Cmd
	exit chan int
}

func startPoller(t *testing.T, k *keikiPlatform) *poller {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveChild+"="+k.APIBase()+" "+k.APIKey(""), "GORACE=atexit_sleep_ms=0")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exit := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		exit <- cmd.ProcessState.ExitCode()
		close(exit)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range exit {
		}
		if t.Failed() {
			t.Logf("the poller's log:\n%s", log.Bytes())
		}
	})
	return &poller{cmd, exit}
}

func (p *poller) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func inbox(c *testhost.KeikiConfig) { c.Mode = testhost.KeikiInboxMode }

// TestPollInboxDrains: a signal ends the polling, turns have the drain's time, and what is left is left to its
// lease for another process.
func TestPollInboxDrains(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			k := newKeikiPlatform(t, inbox, func(c *testhost.KeikiConfig) { c.Lease = 3 * time.Second })
			short := k.dispatch(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"sleep":"1s"}`, `{"paragraph":"two"}`)}).ID
			// Its end comes when the other process has begun it anew.
			long := k.dispatch(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"sleep":"4s"}`, `{"paragraph":"two"}`)}).ID
			p := startPoller(t, k)
			for _, id := range []string{short, long} {
				eventually(t, "the first message", func() bool { return len(k.Texts(id)) == 1 })
			}
			signalled := time.Now()
			p.signal(t, sig)
			k.completed(short, "one", "two")
			if code := receive(t, "the exit", p.exit); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if after := time.Since(signalled); after < childDrain-100*time.Millisecond || after > childDrain+2*time.Second {
				t.Errorf("the exit came %v after the signal", after)
			}
			if n := k.requests(long, "complete"); n > 0 {
				t.Errorf("a turn that is left to its lease was completed %d times", n)
			}

			// Another one finishes it, here in this process and until its context ends.
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			conf := pollingConfig(k.APIBase(), k.APIKey(""))
			conf.Logger = slog.New(slog.DiscardHandler)
			go func() { ended <- plugin.PollInbox(ctx, conf) }()
			k.completed(long, "one", "two")
			if n := len(k.Sends(long)); n != 2 {
				t.Errorf("%d keys for two messages", n)
			}
			cancel()
			if err := receive(t, "the end", ended); err != nil {
				t.Errorf("PollInbox = %v", err)
			}
		})
	}
}

// TestPollInboxEndsDuringAPoll: without waiting for it.
func TestPollInboxEndsDuringAPoll(t *testing.T) {
	t.Parallel()
	k := newKeikiPlatform(t, inbox)
	p := startPoller(t, k)
	eventually(t, "a poll", func() bool { return k.requests("", "inbox") > 0 })
	began := time.Now()
	p.signal(t, syscall.SIGTERM)
	if code := receive(t, "the exit", p.exit); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if after := time.Since(began); after > childDrain*3/4 {
		t.Errorf("the exit came %v after the signal", after)
	}
}

// TestPollInboxEndsAtASecondSignal: at once.
func TestPollInboxEndsAtASecondSignal(t *testing.T) {
	t.Parallel()
	k := newKeikiPlatform(t, inbox)
	id := k.dispatch(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, `{"stall":"60s"}`)}).ID
	p := startPoller(t, k)
	eventually(t, "the first message", func() bool { return len(k.Texts(id)) == 1 })
	p.signal(t, syscall.SIGTERM)
	time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
	began := time.Now()
	p.signal(t, syscall.SIGTERM)
	if code := receive(t, "the exit", p.exit); code != 3 {
		t.Errorf("exit code %d, want that of ErrKilled", code)
	}
	if after := time.Since(began); after > time.Second {
		t.Errorf("the exit came %v after the second signal", after)
	}
	if n := k.requests(id, "complete"); n > 0 {
		t.Errorf("%d completions", n)
	}
}

// TestPollInboxOfARefusedKey: the turns in hand are finished, however long they take; a signal gives them the
// drain's time meanwhile.
func TestPollInboxOfARefusedKey(t *testing.T) {
	t.Parallel()
	for name, signalled := range map[string]bool{"left alone": false, "with a signal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			revoked := make(chan struct{})
			var polls atomic.Int64
			k := newKeikiPlatform(t, inbox, func(c *testhost.KeikiConfig) {
				c.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, "/inbox/next") && polls.Add(1) > 1 {
						<-revoked
						return testhost.KeikiFault{Status: http.StatusUnauthorized}
					}
					return testhost.KeikiFault{}
				}
			})
			sleep := `{"sleep":"3s"}` // longer than the drain
			if signalled {
				sleep = `{"sleep":"60s"}`
			}
			id := k.dispatch(testhost.KeikiTurn{Text: script(`{"paragraph":"one"}`, sleep, `{"paragraph":"two"}`)}).ID
			p := startPoller(t, k)
			eventually(t, "the first message", func() bool { return len(k.Texts(id)) == 1 })
			close(revoked)
			began := time.Now()
			if signalled {
				eventually(t, "the refusal", func() bool {
					return slices.ContainsFunc(k.Requests(""), func(r testhost.KeikiRequest) bool { return r.Status == http.StatusUnauthorized })
				})
				time.Sleep(100 * time.Millisecond) // for the poller to hear of it
				p.signal(t, syscall.SIGTERM)
			} else {
				k.completed(id, "one", "two")
			}
			if code := receive(t, "the exit", p.exit); code != 4 {
				t.Errorf("exit code %d, want that of ErrKeyRefused", code)
			}
			if after := time.Since(began); signalled && (after < childDrain || after > childDrain+3*time.Second) {
				t.Errorf("the exit came after %v, want %v", after, childDrain)
			}
			if signalled && k.requests(id, "complete") > 0 {
				t.Error("a turn that is left to its lease was completed")
			}
		})
	}
}

// TestServeDoesNotPoll: a server with an inbox in its configuration leaves it to PollInbox.
func TestServeDoesNotPoll(t *testing.T) {
	t.Parallel()
	k := newKeikiPlatform(t)
	keiki := signedBy(keikiSecret)
	keiki.APIBase, keiki.Inbox = k.APIBase(), &plugin.KeikiInbox{APIKey: plugin.Secret(k.APIKey(""))}
	p, h := start(t, plugin.Config{Adapter: echo, Keiki: keiki, Drain: patience})
	if err := k.SetDispatchURL(p.KeikiURL(h.addr)); err != nil {
		t.Fatal(err)
	}
	k.completed(k.accepted(testhost.KeikiTurn{Text: "hello"}), "hello")
	if n := k.requests("", "inbox"); n > 0 {
		t.Errorf("%d polls", n)
	}
}

// TestDrainOfAPluginWaitsForKeiki: Drain returns when the completion is sent, and says why it was cut short.
func TestDrainOfAPluginWaitsForKeiki(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"in time": false, "cut short": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := newGate(t)
			k := newKeikiPlatform(t, func(c *testhost.KeikiConfig) {
				c.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, "/complete") {
						return testhost.KeikiFault{Delay: 200 * time.Millisecond}
					}
					return testhost.KeikiFault{}
				}
			})
			p := newPlugin(t, plugin.Config{Keiki: signedBy(keikiSecret), Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				select {
				case <-release.C:
					return w.Text("done")
				case <-ctx.Done():
					return ctx.Err()
				}
			})})
			h := mount(t, p, nil)
			if err := k.SetDispatchURL(p.KeikiURL(h.addr)); err != nil {
				t.Fatal(err)
			}
			id := k.accepted(testhost.KeikiTurn{Text: "hello"})
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			drained := make(chan error, 1)
			go func() { drained <- p.Drain(ctx) }()
			eventually(t, "the drain", func() bool { return getStatus(t, h, "/readyz") == http.StatusServiceUnavailable })
			if cut {
				cancel(why)
			} else {
				release.open()
			}
			err := receive(t, "the end of Drain", drained)
			if cut != errors.Is(err, why) || !cut && err != nil {
				t.Errorf("Drain = %v", err)
			}
			o := k.outcome(id) // it has one already
			if late := time.Since(o.At); late < 0 {
				t.Errorf("the outcome came %v after Drain", -late)
			}
			if want := map[bool]string{false: "completed", true: "failed"}[cut]; o.Status != want {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}
