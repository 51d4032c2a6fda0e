package external_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// A doc is a JSON object that a test changes before it is sent.
type doc map[string]any

// with returns a copy with some fields changed: name, value, name, value. A nil value takes a field away.
func (d doc) with(changes ...any) doc {
	c := doc{}
	for k, v := range d {
		c[k] = v
	}
	for i := 0; i < len(changes); i += 2 {
		if k := changes[i].(string); changes[i+1] == nil {
			delete(c, k)
		} else {
			c[k] = changes[i+1]
		}
	}
	return c
}

func (d doc) json() []byte {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// sealed is a binding with its digest.
func (d doc) sealed() doc {
	d = d.with("binding/digest", "")
	digest, err := wire.DigestWithout(d.json(), "binding/digest")
	if err != nil {
		panic(err)
	}
	return d.with("binding/digest", digest)
}

func (d doc) ref(name string) string { s, _ := d[name].(string); return s }

const (
	bindingRef    = "binding:reviewer"
	profileRef    = "profile:fake"
	agentID       = "agent:reviewer"
	operatorToken = "operator-token"
)

func budget(tokens, cost, wall, steps int64) doc {
	return doc{"max_tokens": tokens, "max_cost_micros": cost, "max_wall_time_ms": wall, "max_steps": steps}
}

func aProfile() doc {
	return doc{
		"schema": "agent.external-runtime.profile.v1", "profile/ref": profileRef, "profile/generation": 1,
		"driver/variant": "driver:fake", "driver/version": "driver:1", "transport/class": "in-process",
		"auth/class": "none", "session/scope": "agent-runtime-binding", "session/persistence": "ephemeral",
		"retention/class": "none", "egress/classes": []string{"none"}, "tool/mode": "mediated",
		"usage/fidelity": "authoritative", "event/ordering": "strict-sequence",
		"supports": doc{"exact-resume": true, "request-idempotency": true, "cancellation": true, "inspection": true, "session-close": true},
		"limits":   limits(64, 65536, 65536, 60000), "created/at": "2026-09-01T00:00:00Z", "created/by": "local-control",
	}
}

func limits(events, eventBytes, productBytes, timeout int64) doc {
	return doc{"max-events": events, "max-event-bytes": eventBytes, "max-product-bytes": productBytes, "turn-timeout-ms": timeout}
}

func aBinding() doc {
	return doc{
		"schema": "agent.external-runtime.binding.v1", "binding/ref": bindingRef, "binding/digest": "",
		"agent/id": agentID, "agent-binding/ref": "agent-binding:reviewer", "profile/ref": profileRef, "profile/generation": 1,
		"adapter-instance/epoch": "epoch:1", "max/passages": 8, "prompt-policy/refs": []string{"prompt-policy:review"},
		"output-schema/refs": []string{"review.v1"}, "visibility/ceiling": "operator", "classification/ceiling": "Personal",
		"budget/turn-ceiling": budget(1000, 1000, 60000, 100), "expires/at": "2999-09-01T01:00:00Z",
		"created/at": "2026-09-01T00:00:00Z", "created/by": "local-control",
	}
}

func label(tier string) doc {
	subjects := doc{"personal_or_community": []doc{{"kind": "person", "id": "participant:reviewer"}}}
	if tier == "Public" {
		subjects = doc{"public_projection": doc{"subject_set_hash": strings.Repeat("a", 64), "count": 1}}
	}
	return doc{
		"schema": "classification.v1", "source_tier": tier, "effective_tier": tier,
		"provenance": doc{"kind": "local-space", "space": tier}, "bound_subjects": subjects, "declassify_trail": []doc{},
	}
}

// input is the fields of a request that say something.
func input(texts ...string) []any {
	var parts []doc
	for _, t := range texts {
		parts = append(parts, doc{"kind": "text", "text": t})
	}
	b, err := json.Marshal(parts)
	if err != nil {
		panic(err)
	}
	digest, err := wire.CanonicalDigest(b)
	if err != nil {
		panic(err)
	}
	return []any{"input/parts", parts, "input/digest", digest}
}

// aRequest starts a turn under aBinding.
func aRequest(turn, text string) doc {
	return doc{
		"schema": "agent.external-runtime.turn-request.v1", "turn/ref": turn, "mode": "start",
		"binding/ref": bindingRef, "binding/digest": aBinding().sealed()["binding/digest"], "agent/id": agentID,
		"passage/ref": "passage:1", "passage/no": 1, "kind": "draft", "parent-product/refs": []string{},
		"instruction/hash": "sha256:" + strings.Repeat("C", 43), "prompt-policy/ref": "prompt-policy:review",
		"output-schema/ref": "review.v1", "visibility": "operator", "classification": label("Personal"),
		"budget/reservation": budget(512, 1000, 30000, 10), "idempotency/key": "key:" + turn,
		"deadline/at": "2999-01-01T00:00:00Z", "admitted/at": "2026-09-01T00:00:00Z", "admitted/by": "local-control",
	}.with(input(text)...)
}

// answering is the request that continues d with an observation.
func (d doc) answering(key, request string, changes ...any) doc {
	o := doc{"request/ref": request, "disposition": "admitted", "reason/code": "completed", "receipt/ref": "receipt:1", "evidence/refs": []string{}}
	return d.with("mode", "continue", "idempotency/key", key, "observation", o.with(changes...))
}

func script(lines ...string) string { return "script:\n" + strings.Join(lines, "\n") }

// goodUsage is a step that reports usage within every reservation of these tests.
const goodUsage = `{"usage":{"max_tokens":3,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1}}`

// A counter counts the calls of an adapter.
type counter struct {
	adapters.Adapter
	calls atomic.Int64
	gate  chan struct{} // if not nil, an adapter that was called waits until it is closed
}

func (c *counter) Run(ctx context.Context, t *adapters.Turn, w adapters.Writer) error {
	c.calls.Add(1)
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.Adapter.Run(ctx, t, w)
}

// A rig is a handler on a socket, with a profile and a binding admitted.
type rig struct {
	t       testing.TB
	h       *external.Handler
	server  *httptest.Server
	engine  *runtime.Engine
	store   ledger.Store
	adapter *counter
	profile doc
	logs    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A setup changes what a rig is made of.
type setup struct {
	conf    external.Config
	engine  runtime.Config
	profile doc
	binding doc // its digest is set
	adapter adapters.Adapter
	gated   bool
	around  func(http.Handler) http.Handler // middleware
	server  func(*httptest.Server)          // before it is started
}

// gated has adapters wait, once they are called, until open is called.
func gated(s *setup) { s.gated = true }

func (g *rig) open() { close(g.adapter.gate) }

func newRig(t testing.TB, change func(*setup)) *rig {
	t.Helper()
	g := &rig{t: t, logs: &lockedBuffer{}}
	log := slog.New(slog.NewJSONHandler(g.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := setup{profile: aProfile(), binding: aBinding(), adapter: scripted.New(scripted.Config{})}
	s.conf = external.Config{OperatorToken: operatorToken, Logger: log}
	s.engine.Logger = log
	if change != nil {
		change(&s)
	}
	g.profile = s.profile
	g.adapter = &counter{Adapter: s.adapter}
	if s.gated {
		g.adapter.gate = make(chan struct{})
	}
	if s.conf.Store == nil {
		s.conf.Store = ledger.NewMemory(ledger.MemoryConfig{})
	}
	g.store = s.conf.Store
	var err error
	if g.engine, err = runtime.New(s.engine); err != nil {
		t.Fatal(err)
	}
	s.conf.Engine, s.conf.Adapter = g.engine, g.adapter
	if g.h, err = external.New(s.conf); err != nil {
		t.Fatal(err)
	}
	if _, err := g.h.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	var h http.Handler = g.h
	if s.around != nil {
		h = s.around(h)
	}
	g.server = httptest.NewUnstartedServer(h)
	g.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	if s.server != nil {
		s.server(g.server)
	}
	if g.server.EnableHTTP2 {
		g.server.StartTLS()
	} else {
		g.server.Start()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.h.Drain(ctx)
		g.server.Close()
		g.engine.WaitAdapters()
		g.client().CloseIdleConnections()
	})
	if s.conf.OperatorToken != "" {
		if s.profile != nil {
			g.admit("profiles", s.profile)
		}
		if s.binding != nil {
			g.admit("bindings", s.binding.sealed())
		}
	}
	return g
}

func (g *rig) client() *http.Client { return g.server.Client() }

// A reply is a whole answer.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (g *rig) do(method, path string, body []byte, header ...string) reply {
	g.t.Helper()
	r, err := g.send(context.Background(), method, path, body, header...)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.read(r)
}

func (g *rig) send(ctx context.Context, method, path string, body []byte, header ...string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, g.server.URL+"/external-runtime/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	return g.client().Do(q)
}

func (g *rig) read(r *http.Response) reply {
	b, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	answer := reply{g.t, r.StatusCode, r.Header, string(b), err}
	if err == nil && r.StatusCode == 200 && r.Header.Get("Content-Type") == "application/x-ndjson" {
		answer.grammatical(g.profile)
	}
	return answer
}

// grammatical holds every stream that a test reads to the contract's order and limits.
func (r reply) grammatical(profile doc) {
	r.t.Helper()
	all := r.events()
	if len(all) == 0 {
		r.t.Error("the stream is empty")
		return
	}
	g := wire.Grammar{After: all[0].SeqNo - 1}
	if profile != nil {
		var err error
		if g.Profile, err = wire.ParseProfile(profile.json()); err != nil {
			r.t.Fatal(err)
		}
	}
	wrong := func(vs []schema.Violation) {
		for _, v := range vs {
			r.t.Errorf("the stream is not grammatical: %s\n%s", v, r.body)
		}
	}
	lines := strings.SplitAfter(r.body, "\n")
	for i, e := range all {
		wrong(g.Next(e, len(lines[i])-1))
	}
	wrong(g.End())
}

func (g *rig) operate(method, path string, body []byte) reply {
	g.t.Helper()
	return g.do(method, path, body, "Authorization", "Bearer "+operatorToken)
}

func (g *rig) admit(kind string, d doc) {
	g.t.Helper()
	ref := d.ref(strings.TrimSuffix(kind, "s") + "/ref")
	if r := g.operate("PUT", kind+"/"+url.PathEscape(ref), d.json()); r.status != 200 && r.status != 201 {
		g.t.Fatalf("PUT %s: %d %s", ref, r.status, r.body)
	}
}

// post sends a turn request and reads its stream, which must be one.
func (g *rig) post(d doc) reply {
	g.t.Helper()
	r := g.do("POST", "turns", d.json())
	if r.status != 200 || r.header.Get("Content-Type") != "application/x-ndjson" || r.err != nil {
		g.t.Fatalf("POST %s: %d %s %v\n%s", d.ref("turn/ref"), r.status, r.header.Get("Content-Type"), r.err, r.body)
	}
	return r
}

// events are the lines of a stream, each of which must be an event.
func (r reply) events() []*wire.Event {
	r.t.Helper()
	var all []*wire.Event
	for line := range strings.Lines(r.body) {
		if !strings.HasSuffix(line, "\n") {
			r.t.Errorf("the stream's last line has no end: %q", line)
		}
		e, err := wire.ParseEvent([]byte(line))
		if err != nil {
			r.t.Fatalf("%v in the line %s", err, line)
		}
		all = append(all, e)
	}
	return all
}

// last is the stream's last event.
func (r reply) last() *wire.Event {
	r.t.Helper()
	all := r.events()
	if len(all) == 0 {
		r.t.Fatal("the stream is empty")
	}
	return all[len(all)-1]
}

// ends checks how a stream ends: "completed/completed".
func (r reply) ends(want string) reply {
	r.t.Helper()
	if e := r.last(); e.Kind != wire.EventTurnOutcome || string(e.Status)+"/"+string(e.ReasonCode) != want {
		r.t.Errorf("the stream ends with %s %s/%s, want %s\n%s", e.Kind, e.Status, e.ReasonCode, want, r.body)
	}
	return r
}

// kinds are the kinds of a stream's events, progress with its code.
func (r reply) kinds() string {
	var all []string
	for _, e := range r.events() {
		k := string(e.Kind)
		if e.Kind == wire.EventProgress {
			k = string(e.ProgressCode)
		}
		all = append(all, k)
	}
	return strings.Join(all, " ")
}

// asked is the ref of the request that a stream ends with.
func (r reply) asked() string {
	r.t.Helper()
	ref := ""
	for _, e := range r.events() {
		if e.RequestRef != "" {
			ref = string(e.RequestRef)
		}
	}
	if ref == "" {
		r.t.Fatalf("the stream asks for nothing:\n%s", r.body)
	}
	return ref
}

// outcome is the outcome document of a turn.
func (g *rig) outcome(turn string) *wire.Outcome {
	g.t.Helper()
	r := g.do("GET", "turns/"+url.PathEscape(turn), nil)
	o, err := wire.ParseOutcome([]byte(r.body))
	if r.status != 200 || err != nil {
		g.t.Fatalf("GET %s: %d %v %s", turn, r.status, err, r.body)
	}
	return o
}

// eventually waits for what another goroutine does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func ledgerRef(q doc) ledger.TurnRef { return ledger.TurnRef(q.ref("turn/ref")) }

// serveIn serves one request without a socket, for tests with time of their own.
func serveIn(t testing.TB, h http.Handler, method, path string, d doc) reply {
	t.Helper()
	var body io.Reader
	if d != nil {
		body = bytes.NewReader(d.json())
	}
	w := httptest.NewRecorder()
	q := httptest.NewRequestWithContext(context.Background(), method, "/external-runtime/"+path, body)
	q.Header.Set("Authorization", "Bearer "+operatorToken)
	h.ServeHTTP(w, q)
	return reply{t, w.Code, w.Header(), w.Body.String(), nil}
}

var quiet = slog.New(slog.DiscardHandler)
