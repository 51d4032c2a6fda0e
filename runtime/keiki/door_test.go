package keiki_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

// What is taken at the door, and what is not.

const otherSecret = "whsec_YW5vdGhlci1vbmUtZm9yLXRlc3Rz"

// A request is a signed one, with all that can be wrong with it. newRequest's is right.
type request struct {
	method, encoding string
	header           string // Keiki-Turn-Id; empty for none
	kind, version    string
	agent, turn      string
	messages, more   string // JSON
	apiBase, turnURL string
	mcpURL           string
	after            string // of the body
	signature        *string
	at               time.Time
	secret           string
	chunked          bool
}

func newRequest(g *rig, turn string) request {
	l := g.platform.Links(turn)
	return request{
		method: http.MethodPost, header: turn, kind: "keiki.turn", version: "1", agent: "agent-1", turn: turn,
		messages: `[{"text":"hi","messageId":"m-1"}]`, apiBase: l.APIBase, turnURL: l.TurnURL, mcpURL: l.MCPURL,
		at: time.Now(), secret: testSecret,
	}
}

func (q request) body() []byte {
	switch q.kind {
	case "keiki.turn.cancelled":
		return fmt.Appendf(nil, `{"type":%q,"turnId":%q,"agentId":%q,"conversationId":"conv"%s}%s`, q.kind, q.turn, q.agent, q.more, q.after)
	case "keiki.turn.arrival":
		q.more += `,"sequence":1`
	}
	return fmt.Appendf(nil, `{"type":%q,"version":%s,"turnId":%q,"agentId":%q,"conversationId":"conv-%s","messages":%s,"keiki":{"apiBase":%q,"turnUrl":%q,"mcpUrl":%q}%s}%s`,
		q.kind, q.version, q.turn, q.agent, q.turn, q.messages, q.apiBase, q.turnURL, q.mcpURL, q.more, q.after)
}

// send sends the request to the app.
func (g *rig) send(q request) testhost.KeikiAnswer {
	g.t.Helper()
	body := q.body()
	sent := io.Reader(bytes.NewReader(body))
	if q.chunked {
		sent = io.MultiReader(sent) // of unknown length
	}
	r, err := http.NewRequestWithContext(g.t.Context(), q.method, g.app.URL+"/keiki/turn", sent)
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Keiki-Turn-Token", "ht_of-a-turn-made-by-hand")
	signature := testhost.KeikiSignature(q.at, body, q.secret)
	if q.signature != nil {
		signature = *q.signature
	}
	for name, value := range map[string]string{"Keiki-Turn-Id": q.header, "Content-Encoding": q.encoding, "Keiki-Signature": signature} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return g.do(r)
}

func (g *rig) do(r *http.Request) testhost.KeikiAnswer {
	g.t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return testhost.KeikiAnswer{Status: resp.StatusCode, Header: resp.Header, Body: answer}
}

// refusal is the code of a refusal; empty where something is taken. What every refusal must look like is
// checked here.
func (g *rig) refusal(a testhost.KeikiAnswer) string {
	g.t.Helper()
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		g.t.Errorf("%d with Content-Type %q", a.Status, got)
	}
	if a.Status/100 == 2 {
		return ""
	}
	if a.Status/100 == 3 {
		g.t.Errorf("%d: nobody is sent elsewhere", a.Status)
	}
	var body struct {
		Error struct{ Code, Message string }
	}
	d := json.NewDecoder(bytes.NewReader(a.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Error.Code == "" || body.Error.Message == "" {
		g.t.Errorf("%d %s is no error with a code and a message (%v)", a.Status, a.Body, err)
	}
	g.noSecret(string(a.Body))
	return body.Error.Code
}

// A fault is one thing that is wrong with a request, and what is said of it.
type fault struct {
	status int
	code   string
	make   func(*request)
}

// faults are in the order in which they are told.
func faults() []fault {
	malformed := "t=now,v1=what"
	elsewhere := "https://elsewhere.example/api/v1"
	return []fault{
		{405, "method_not_allowed", func(q *request) { q.method = http.MethodPut }},
		{415, "unsupported_encoding", func(q *request) { q.encoding = "gzip" }},
		{413, "too_large", func(q *request) { q.after += strings.Repeat(" ", 32<<10) }},
		{401, "unknown_agent", func(q *request) { q.agent = "agent-nobody-knows" }},
		{401, "signature_missing", func(q *request) { q.signature = new(string) }},
		{401, "signature_malformed", func(q *request) { q.signature = &malformed }},
		{401, "signature_expired", func(q *request) { q.at = q.at.Add(-time.Hour) }},
		{401, "signature_mismatch", func(q *request) { q.secret = otherSecret }},
		{400, "invalid_json", func(q *request) { q.after += "]" }},
		{400, "unknown_type", func(q *request) { q.kind = "keiki.message" }},
		{400, "unsupported_version", func(q *request) { q.version = `"1"` }},
		{400, "invalid_request", func(q *request) { q.messages = "null" }},
		{400, "turn_id_missing", func(q *request) { q.header = "" }},
		{400, "turn_id_mismatch", func(q *request) { q.header = "turn-of-somebody-else" }},
		{400, "foreign_api_base", func(q *request) { q.apiBase, q.turnURL, q.mcpURL = elsewhere, elsewhere+"/turns/t", elsewhere+"/mcp" }},
		{400, "foreign_turn_url", func(q *request) { q.turnURL = elsewhere }},
		{404, "no_adapter", func(q *request) { q.agent = "agent-2" }},
	}
}

// doorRig has an agent without an adapter, a limit of 32 KiB, and a pin. reasons are what hooks are told.
func doorRig(t *testing.T, calls *atomic.Int64, reasons *reasons) *rig {
	t.Helper()
	answers := adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error { calls.Add(1); return nil })
	return newRig(t, answers, func(c *rigConfig) {
		c.push.Adapters, c.push.Adapter = map[string]adapters.Adapter{"agent-1": answers}, nil
		c.push.Secrets = keiki.Secrets{Agents: map[string][]secret.Text{"agent-1": {testSecret}, "agent-2": {testSecret}}}
		c.push.MaxBody = 32 << 10
		c.runtime.Hooks = []runtime.Hooks{{Refuse: reasons.refuse}}
		// The platform's address is known only later: the pin is set to what it will be.
		c.platform.URL = "http://keiki.example:8080"
		c.push.APIBase = "http://keiki.example:8080/api/v1"
		c.push.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"ok":true}`)), Header: http.Header{}, Request: r}, nil
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	return f(r)
}

// reasons are the words that hooks are told of refused requests.
type reasons struct {
	mu   sync.Mutex
	list []string
}

func (l *reasons) refuse(_ context.Context, p adapters.Protocol, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, string(p)+" "+reason)
}

func (l *reasons) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return ""
	}
	return l.list[len(l.list)-1]
}

// TestOrderOfRefusals: each fault has its status and code, each pair of faults those of the one that is
// looked for first, and none of it is remembered.
func TestOrderOfRefusals(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	var told reasons
	g := doorRig(t, &calls, &told)
	all := faults()
	for i, first := range all {
		for j := i; j < len(all); j++ {
			q := newRequest(g, "turn-1")
			if j > i {
				all[j].make(&q)
			}
			first.make(&q)
			a := g.send(q)
			if code := g.refusal(a); a.Status != first.status || code != first.code {
				t.Errorf("%s with %s: %d %s", first.code, all[j].code, a.Status, a.Body)
			}
			if want := "keiki " + first.code; told.last() != want {
				t.Errorf("hooks are told %q, want %q", told.last(), want)
			}
		}
	}
	if calls.Load() != 0 {
		t.Error("the adapter was called")
	}
	if a := g.send(newRequest(g, "turn-1")); a.Status != http.StatusAccepted || string(a.Body) != `{"accepted":true,"turnId":"turn-1"}` {
		t.Errorf("the right request is answered %d %s", a.Status, a.Body)
	}
	if a := g.send(newRequest(g, "turn-1")); a.Status != http.StatusOK || string(a.Body) != `{"accepted":true,"turnId":"turn-1","duplicate":true}` || told.last() != "keiki duplicate" {
		t.Errorf("its repeat is answered %d %s", a.Status, a.Body)
	}
	g.until("the adapter was called once", func() bool { return calls.Load() == 1 })
}

// TestFaultE4NoSecret: without a secret nothing is taken, however it is signed.
func TestFaultE4NoSecret(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t), func(c *rigConfig) { c.push.Secrets = keiki.Secrets{} })
	for _, key := range []string{"", testSecret} {
		q := newRequest(g, "turn-1")
		q.secret = key
		if a := g.send(q); a.Status != http.StatusServiceUnavailable || g.refusal(a) != "signing_secret_missing" {
			t.Errorf("signed with %q: %d %s", key, a.Status, a.Body)
		}
		q.signature = new(string)
		if a := g.send(q); a.Status != http.StatusServiceUnavailable || g.refusal(a) != "signing_secret_missing" {
			t.Errorf("not signed: %d %s", a.Status, a.Body)
		}
	}
}

// TestFaultE4EmptyKey: with a secret the empty key signs nothing.
func TestFaultE4EmptyKey(t *testing.T) {
	t.Parallel()
	for _, secrets := range []keiki.Secrets{
		{Any: []secret.Text{testSecret}},
		{Agents: map[string][]secret.Text{"agent-1": {testSecret}}},
	} {
		g := newRig(t, neverCalled(t), func(c *rigConfig) { c.push.Secrets = secrets })
		q := newRequest(g, "turn-1")
		q.secret = ""
		if a := g.send(q); a.Status != http.StatusUnauthorized || g.refusal(a) != "signature_mismatch" {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}

func neverCalled(t *testing.T) adapters.Adapter {
	return adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
		t.Error("the adapter was called")
		return nil
	})
}

// TestSecretsByAgent: each agent's requests are signed with a secret of its own, several while one replaces
// the other; a turn belongs to its agent.
func TestSecretsByAgent(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	g := newRig(t, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		select {
		case <-hold:
			return w.Text("from " + turn.AgentID)
		case <-ctx.Done():
			return ctx.Err()
		}
	}), func(c *rigConfig) {
		c.push.Secrets = keiki.Secrets{Agents: map[string][]secret.Text{"agent-1": {testSecret}, "agent-2": {otherSecret, "whsec_b2xkLW5vdC1hLXJlYWwtc2VjcmV0"}}}
		c.platform.Secrets["agent-2"] = []string{"whsec_b2xkLW5vdC1hLXJlYWwtc2VjcmV0", otherSecret}
	})
	for _, test := range []struct {
		agent, secret string
		code          string
	}{
		{"agent-1", testSecret, ""},
		{"agent-1", otherSecret, "signature_mismatch"},
		{"agent-2", testSecret, "signature_mismatch"},
		{"agent-3", testSecret, "unknown_agent"},
		{"agent-3", otherSecret, "unknown_agent"},
		{"", testSecret, "unknown_agent"},
	} {
		q := newRequest(g, "turn-of-"+test.agent+test.secret[6:9])
		q.agent, q.secret, q.kind = test.agent, test.secret, "keiki.turn.cancelled"
		a := g.send(q)
		if code := g.refusal(a); code != test.code || code != "" && a.Status != http.StatusUnauthorized {
			t.Errorf("%q signed with %.10s…: %d %s", test.agent, test.secret, a.Status, a.Body)
		}
	}

	d := g.dispatch(testhost.KeikiTurn{Text: "hi", AgentID: "agent-2"})
	for _, kind := range []string{"keiki.turn.cancelled", "keiki.turn.arrival"} {
		q := newRequest(g, d.ID)
		q.kind = kind // by agent-1, with its own good signature
		switch a := g.send(q); {
		case kind == "keiki.turn.cancelled" && (a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"cancelled":false`)):
			t.Errorf("another agent's cancellation is answered %d %s", a.Status, a.Body)
		case kind == "keiki.turn.arrival" && (a.Status != http.StatusConflict || g.refusal(a) != "turn_not_running"):
			t.Errorf("another agent's arrival is answered %d %s", a.Status, a.Body)
		}
	}
	close(hold)
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff([]string{"from agent-2"}, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestTurnIDsOfTwoAgents: the same turn id of two agents is two turns.
func TestTurnIDsOfTwoAgents(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	g := doorRig(t, &calls, &reasons{})
	// agent-2 has no adapter here, so both are told apart by what they get.
	if a := g.send(newRequest(g, "turn-1")); a.Status != http.StatusAccepted {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	q := newRequest(g, "turn-1")
	q.agent = "agent-2"
	if a := g.send(q); g.refusal(a) != "no_adapter" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// TestTurnIDHeader: it is there and names the body's turn, for every kind of request.
func TestTurnIDHeader(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t))
	for _, kind := range []string{"keiki.turn", "keiki.turn.arrival", "keiki.turn.cancelled"} {
		for header, code := range map[string]string{"": "turn_id_missing", "turn-2": "turn_id_mismatch", "TURN-1": "turn_id_mismatch", "turn-1 turn-1": "turn_id_mismatch"} {
			q := newRequest(g, "turn-1")
			q.kind, q.header = kind, header
			if a := g.send(q); a.Status != http.StatusBadRequest || g.refusal(a) != code {
				t.Errorf("%s with Keiki-Turn-Id %q: %d %s", kind, header, a.Status, a.Body)
			}
		}
	}
}

// TestBodies: what is signed and yet no request.
func TestBodies(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t))
	agents := newRig(t, neverCalled(t), func(c *rigConfig) {
		c.push.Secrets = keiki.Secrets{Agents: map[string][]secret.Text{"agent-1": {testSecret}}}
	})
	deep := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	turn := newRequest(g, "turn-1")
	right := string(turn.body())
	with := func(old, new string) string { return strings.Replace(right, old, new, 1) }
	for _, test := range []struct {
		name, body, code string
		unknown          bool // under secrets by agent there is no agent to be found in it
	}{
		{"nothing", "", "invalid_json", true},
		{"text", "hello", "invalid_json", true},
		{"an array", "[]", "invalid_request", true},
		{"null", "null", "invalid_request", true},
		{"a byte order mark", "\xef\xbb\xbf" + right, "invalid_json", false},
		{"another encoding", "\xff\xfe{\x00}\x00", "invalid_json", true},
		{"invalid UTF-8", with(`"hi"`, "\"\xff\""), "invalid_json", false},
		{"invalid UTF-8 where nobody looks", with(`"messages"`, "\"x\":\"\xc3\",\"messages\""), "invalid_json", false},
		{"half", right[:len(right)/2], "invalid_json", false},
		{"a second value", right + "{}", "invalid_json", false},
		{"a key twice", with(`"messages"`, `"turnId":"turn-1","messages"`), "invalid_json", false},
		{"a key twice, deep", with(`"text":"hi"`, `"text":"hi","text":"ho"`), "invalid_json", false},
		{"a key twice, unknown", with(`"messages"`, `"x":1,"x":1,"messages"`), "invalid_json", false},
		{"two agents", with(`"messages"`, `"agentId":"agent-2","messages"`), "invalid_json", true},
		{"65 levels", with(`"messages"`, `"context":`+deep(64)+`,"messages"`), "invalid_json", false},
		{"keys in other letters", strings.ReplaceAll(right, `"turnId"`, `"TURNID"`), "invalid_request", false},
		{"no type", with(`"type":"keiki.turn",`, ``), "unknown_type", false},
		{"no version", with(`"version":1,`, ``), "unsupported_version", false},
		{"version 2", with(`"version":1`, `"version":2`), "unsupported_version", false},
		{"version 1.0", with(`"version":1`, `"version":"1"`), "unsupported_version", false},
		{"no messages", with(`"messages":[{"text":"hi","messageId":"m-1"}],`, ``), "invalid_request", false},
		{"no links", right[:strings.Index(right, `,"keiki"`)] + "}", "invalid_request", false},
		{"no agent", with(`"agentId":"agent-1",`, ``), "invalid_request", true},
		{"no turn id", with(`"turnId":"turn-1",`, ``), "invalid_request", false},
		{"a bad deadline", with(`"messages"`, `"deadline":"soon","messages"`), "invalid_request", false},
	} {
		for _, g := range []*rig{g, agents} {
			want, status := test.code, http.StatusBadRequest
			if test.unknown && g == agents {
				want, status = "unknown_agent", http.StatusUnauthorized
			}
			a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-1", Body: []byte(test.body)})
			if err != nil {
				t.Fatal(err)
			}
			if code := g.refusal(a); code != want || a.Status != status {
				t.Errorf("%s: %d %s, want %d %s", test.name, a.Status, a.Body, status, want)
			}
		}
	}
}

// TestFaultA6DeepNesting: brackets by the million are refused at once, and the deepest that is allowed is taken.
func TestFaultA6DeepNesting(t *testing.T) {
	t.Parallel()
	g := newRig(t, says())
	for _, n := range []int{100_000, 4_000_000} {
		for _, body := range []string{strings.Repeat("[", n), strings.Repeat(`{"a":`, n/5), `{"agentId":"agent-1","x":` + strings.Repeat("[", n)} {
			began := time.Now()
			a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-1", Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != http.StatusBadRequest || g.refusal(a) == "" {
				t.Errorf("%.30s…: %d %s", body, a.Status, a.Body)
			}
			if took := time.Since(began); took > 3*time.Second { // 100 ms on a machine at rest
				t.Errorf("%.30s…: it took %v", body, took)
			}
		}
	}
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", Context: []byte(strings.Repeat("[", 63) + strings.Repeat("]", 63))})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestFaultB6Methods: other methods get 405, any Content-Type and path are taken, and nobody is sent elsewhere.
func TestFaultB6Methods(t *testing.T) {
	t.Parallel()
	g := newRig(t, says())
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		q := newRequest(g, "turn-1")
		q.method = method
		a := g.send(q)
		if a.Status != http.StatusMethodNotAllowed || a.Header.Get("Allow") != http.MethodPost {
			t.Errorf("%s: %d, Allow %q", method, a.Status, a.Header.Get("Allow"))
		}
		if method == http.MethodHead && len(a.Body) > 0 {
			t.Errorf("HEAD has a body: %q", a.Body)
		}
	}
	for i, contentType := range []string{"", "application/json", "Application/JSON", "application/json; charset=utf-8", "text/plain", "application/octet-stream", "no type"} {
		// What counts is the signature.
		header := http.Header{"Content-Type": {contentType}}
		if contentType == "" {
			header = http.Header{"Content-Type": nil}
		}
		d := g.dispatch(testhost.KeikiTurn{ID: fmt.Sprintf("turn-%d", i), Text: "hi", Header: header})
		if o := g.outcome(d.ID); o.Status != "completed" {
			t.Errorf("%q: outcome %+v", contentType, o)
		}
	}
}

// TestFaultB7BodyLimits: the limit counts what is read, whatever the framing says.
func TestFaultB7BodyLimits(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	var got atomic.Int64
	g := newRig(t, adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
		got.Store(int64(len(turn.Raw)))
		return nil
	}))
	g.complaints[testhost.RuleBearer] = true // these turns are made by hand
	for _, chunked := range []bool{false, true} {
		for _, over := range []int{0, 1} {
			q := newRequest(g, fmt.Sprintf("turn-%v", chunked))
			q.chunked = chunked
			q.more = fmt.Sprintf(`,"context":%q`, strings.Repeat("x", limit-len(q.body())-len(`,"context":""`)+over))
			if n := len(q.body()); n != limit+over {
				t.Fatal(n)
			}
			a := g.send(q)
			switch code := g.refusal(a); {
			case over == 0 && a.Status != http.StatusAccepted:
				t.Errorf("8 MiB, chunked %v: %d %s", chunked, a.Status, a.Body)
			case over == 1 && (a.Status != http.StatusRequestEntityTooLarge || code != "too_large"):
				t.Errorf("8 MiB and a byte, chunked %v: %d %s", chunked, a.Status, a.Body)
			}
			if over == 0 {
				g.until("the adapter has it all", func() bool { return got.Swap(0) == limit })
			}
		}
	}
	for encoding, ok := range map[string]bool{"": true, "identity": true, "Identity": true, "gzip": false, "GZIP": false, "br": false, "gzip, gzip": false, "identity, gzip": false} {
		q := newRequest(g, "turn-"+strings.ReplaceAll(encoding, ", ", "-"))
		q.encoding = encoding
		a := g.send(q)
		if code := g.refusal(a); (a.Status == http.StatusAccepted) != ok || !ok && (a.Status != http.StatusUnsupportedMediaType || code != "unsupported_encoding") {
			t.Errorf("Content-Encoding %q: %d %s", encoding, a.Status, a.Body)
		}
	}
}

// TestFaultB7EndlessBodies: bodies without end are refused at the limit, 20 at once, in little memory.
func TestFaultB7EndlessBodies(t *testing.T) {
	g := newRig(t, neverCalled(t), func(c *rigConfig) { c.push.MaxBody = 1 << 20 })
	var before, now goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			conn, err := net.Dial("tcp", g.app.Listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = fmt.Fprintf(conn, "POST /keiki/turn HTTP/1.1\r\nHost: x\r\nKeiki-Signature: t=1,v1=00\r\nTransfer-Encoding: chunked\r\n\r\n")
			go func() {
				chunk := fmt.Appendf(nil, "10000\r\n%s\r\n", strings.Repeat("[", 0x10000))
				for {
					if _, err := conn.Write(chunk); err != nil {
						return // the server has closed it
					}
				}
			}()
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
				t.Errorf("%d, closing: %v", resp.StatusCode, resp.Close)
			}
		})
	}
	all.Wait()
	goruntime.ReadMemStats(&now)
	if grown := int64(now.HeapAlloc) - int64(before.HeapAlloc); grown > 150<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
}

// TestBodiesThatDoNotCome: a body that stops half-way is given up, and one that is cut off is refused.
func TestBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t), func(c *rigConfig) { c.push.BodyTimeout = 500 * time.Millisecond })
	for cut, want := range map[bool]int{false: http.StatusRequestTimeout, true: http.StatusBadRequest} {
		conn, err := net.Dial("tcp", g.app.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, "POST /keiki/turn HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		if cut {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("cut %v: %d, want %d", cut, resp.StatusCode, want)
		}
	}
}

// TestLimitsOfOthers: a limit that a middleware has put on the body is a limit; one that a server has put on
// the time of its answers does not cut off the answer to a body that comes slowly.
func TestLimitsOfOthers(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t), func(c *rigConfig) {
		c.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = http.MaxBytesReader(w, r.Body, 100)
				h.ServeHTTP(w, r)
			})
		}
	})
	if a := g.send(newRequest(g, "turn-1")); a.Status != http.StatusRequestEntityTooLarge || g.refusal(a) != "too_large" {
		t.Errorf("%d %s", a.Status, a.Body)
	}

	g = newRig(t, says(), func(c *rigConfig) { c.push.Transport = yes })
	server := httptest.NewUnstartedServer(g.handler)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	server.Start()
	defer server.Close()
	q := newRequest(g, "turn-1")
	body := q.body()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "POST /keiki/turn HTTP/1.1\r\nHost: x\r\nKeiki-Turn-Id: turn-1\r\nKeiki-Signature: %s\r\nContent-Length: %d\r\n\r\n", testhost.KeikiSignature(q.at, body, testSecret), len(body))
	pause := time.NewTicker(250 * time.Millisecond) // a sender that takes its time
	defer pause.Stop()
	for part := range slices.Chunk(body, len(body)/4) {
		<-pause.C
		if _, err := conn.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestHTTP2: turns are taken there too, and a refusal does not end the connection of other requests.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	g := newRig(t, says(), func(c *rigConfig) { c.push.Transport = yes })
	server := httptest.NewUnstartedServer(g.handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	for i, method := range []string{http.MethodPut, http.MethodPost} {
		q := newRequest(g, "turn-1")
		body := q.body()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Keiki-Turn-Id", "turn-1")
		r.Header.Set("Keiki-Signature", testhost.KeikiSignature(q.at, body, testSecret))
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if want := []int{http.StatusMethodNotAllowed, http.StatusAccepted}[i]; resp.StatusCode != want || resp.ProtoMajor != 2 || resp.Header.Get("Connection") != "" {
			t.Errorf("%s: %d over HTTP/%d, Connection %q", method, resp.StatusCode, resp.ProtoMajor, resp.Header.Get("Connection"))
		}
	}
}

// TestCapacity: at capacity a new turn gets 503 and is not remembered; repeats, arrivals and cancellations pass.
func TestCapacity(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		select {
		case <-hold:
			return w.Text("done")
		case <-ctx.Done():
			return ctx.Err()
		}
	}}, func(c *rigConfig) { c.runtime.MaxTurns = 2 })
	one := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	two := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	three := testhost.KeikiTurn{ID: "turn-3", Text: "hi"}
	d, err := g.platform.Dispatch(t.Context(), three)
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Answer; a.Status != http.StatusServiceUnavailable || g.refusal(a) != "at_capacity" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s, Retry-After %q", a.Status, a.Body, a.Header.Get("Retry-After"))
	}
	if a, err := g.platform.Redispatch(t.Context(), one.ID); err != nil || a.Status != http.StatusOK {
		t.Errorf("the repeat: %v %d %s", err, a.Status, a.Body)
	}
	if a, err := g.platform.Arrive(t.Context(), one.ID, testhost.KeikiMessage{Text: "more"}); err != nil || a.Answer.Status != http.StatusAccepted {
		t.Errorf("the arrival: %v %+v", err, a)
	}
	if a, err := g.platform.Cancel(t.Context(), two.ID); err != nil || a.Status != http.StatusOK {
		t.Errorf("the cancellation: %v %d %s", err, a.Status, a.Body)
	}
	g.until("there is room again", func() bool { return g.engine.Stats().Active == 1 })
	a, err := g.platform.Redispatch(t.Context(), d.ID)
	if err != nil || a.Status != http.StatusAccepted {
		t.Errorf("the turn that was refused, again: %v %d %s", err, a.Status, a.Body)
	}
	close(hold)
	if o := g.outcome(one.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestBusyConversations: with RefuseBusy a second turn of a conversation is refused, and not remembered.
func TestBusyConversations(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	g := newRig(t, adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error { <-hold; return nil }),
		func(c *rigConfig) { c.runtime.RefuseBusy = true })
	one := g.dispatch(testhost.KeikiTurn{ConversationID: "c", Text: "hi"})
	d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{ConversationID: "c", Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Answer; a.Status != http.StatusServiceUnavailable || g.refusal(a) != "conversation_busy" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	close(hold)
	g.outcome(one.ID)
	g.until("the conversation is free", func() bool { return g.engine.Stats().Active == 0 })
	if a, err := g.platform.Redispatch(t.Context(), d.ID); err != nil || a.Status != http.StatusAccepted {
		t.Errorf("the turn that was refused, again: %v %d %s", err, a.Status, a.Body)
	}
}

// TestTurnsOfAConversationWait: without it turns of one conversation run one after the other.
func TestTurnsOfAConversationWait(t *testing.T) {
	t.Parallel()
	var running atomic.Int64
	g := newRig(t, adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if running.Add(1) > 1 {
			t.Error("two turns of a conversation at once")
		}
		defer running.Add(-1)
		return w.Text("answer to " + turn.Message)
	}))
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			d := g.dispatch(testhost.KeikiTurn{ConversationID: "c", Text: fmt.Sprint(i)})
			if o := g.outcome(d.ID); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
		})
	}
	all.Wait()
}

// TestIDsThatCannotBeKept: ids that no store takes are the platform's mistake, not the server's.
func TestIDsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	g := newRig(t, neverCalled(t))
	for _, id := range []string{strings.Repeat("i", 3000), "a\u0000b"} {
		for _, agent := range []bool{false, true} {
			q := newRequest(g, "turn-1")
			body := string(q.body())
			if agent {
				body = strings.Replace(body, `"agent-1"`, fmt.Sprintf("%q", id), 1)
			} else if strings.Contains(id, "\x00") {
				continue // no header can have it
			} else {
				body = strings.Replace(body, `"turn-1"`, fmt.Sprintf("%q", id), 1)
				q.header = id
			}
			body = strings.ReplaceAll(body, `\x00`, `\u0000`)
			a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: q.header, Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != http.StatusBadRequest || g.refusal(a) != "invalid_request" {
				t.Errorf("%.20q: %d %s", id, a.Status, a.Body)
			}
		}
	}
}

// TestNewNamesEveryWrongField: a configuration is refused as a whole, without a secret in the text.
func TestNewNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := keiki.New(keiki.PushConfig{
		Config: keiki.Config{
			Adapters:   map[string]adapters.Adapter{"": nil},
			APIBase:    "ftp://user:whsec_hidden@keiki.example",
			Delivery:   "letters",
			StreamPath: "../x?y",
			MaxMessage: 7,
		},
		Secrets:   keiki.Secrets{Any: []secret.Text{"short"}},
		Tolerance: -1,
	})
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, word := range []string{"Engine", "Adapters", "APIBase", "Delivery", "StreamPath", "MaxMessage", "Secrets", "Tolerance"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s is not named in: %v", word, err)
		}
	}
	if strings.Contains(err.Error(), "whsec_hidden") || strings.Contains(err.Error(), "short\"") {
		t.Errorf("a secret stands in: %v", err)
	}
}

// TestFaultE6ForeignURLs: a turn or an arrival with URLs that lead elsewhere is refused, and no call is made.
func TestFaultE6ForeignURLs(t *testing.T) {
	t.Parallel()
	elsewhere := newEavesdropper(t)
	hold := make(chan struct{})
	g := newRig(t, taker{func(ctx context.Context, _ <-chan adapters.Arrival, w adapters.Writer) error {
		<-hold
		return w.Text("hi")
	}})
	base := g.platform.APIBase()
	host := strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/api/v1")
	foreign := elsewhere.URL + "/api/v1"
	running := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	for _, test := range []struct {
		name, code      string
		api, turn, tool string
	}{
		{"another port", "foreign_turn_url", base, foreign + "/turns/turn-1", ""},
		{"another host", "foreign_turn_url", base, "http://elsewhere.example/turns/turn-1", ""},
		{"another scheme", "foreign_turn_url", base, strings.Replace(base, "http:", "https:", 1) + "/turns/turn-1", ""},
		{"the host as user", "foreign_turn_url", base, "http://" + host + "@elsewhere.example/turns/turn-1", ""},
		{"a longer host", "foreign_turn_url", base, strings.Replace(base, "127.0.0.1", "127.0.0.1.elsewhere.example", 1), ""},
		{"the tools elsewhere", "foreign_turn_url", base, base + "/turns/turn-1", foreign + "/mcp"},
		{"user info", "invalid_url", base, "http://user:pass@" + host + "/turns/turn-1", ""},
		{"user info in the base", "invalid_url", "http://user:pass@" + host + "/api/v1", base + "/turns/turn-1", ""},
		{"no scheme of the web", "invalid_url", "file:///etc/passwd", "file:///etc/passwd", ""},
		{"gopher", "invalid_url", "gopher://" + host, "gopher://" + host + "/x", ""},
		{"a path alone", "invalid_url", base, "/turns/turn-1", ""},
		{"a query", "invalid_url", base, base + "/turns/turn-1?x=", ""},
		{"a line break", "invalid_url", base, base + "/turns/turn-1\r\nX: y", ""},
		{"a backslash", "invalid_url", base, strings.Replace(base, "http://", `http:\\`, 1), ""},
	} {
		for _, kind := range []string{"keiki.turn", "keiki.turn.arrival"} {
			q := newRequest(g, "turn-1")
			if kind == "keiki.turn.arrival" {
				q = newRequest(g, running.ID)
			}
			q.kind, q.apiBase, q.turnURL, q.mcpURL = kind, test.api, test.turn, test.tool
			want := test.code
			if kind == "keiki.turn.arrival" && !strings.HasPrefix(test.api, "http:") {
				want = "foreign_api_base" // it is not its turn's
			}
			if a := g.send(q); a.Status != http.StatusBadRequest || g.refusal(a) != want {
				t.Errorf("%s, %s: %d %s, want %s", kind, test.name, a.Status, a.Body, want)
			}
		}
	}
	// Where both are elsewhere, an arrival is none of its turn's platform.
	q := newRequest(g, running.ID)
	q.kind, q.apiBase, q.turnURL, q.mcpURL = "keiki.turn.arrival", foreign, foreign+"/turns/x", ""
	if a := g.send(q); a.Status != http.StatusBadRequest || g.refusal(a) != "foreign_api_base" {
		t.Errorf("an arrival from elsewhere: %d %s", a.Status, a.Body)
	}
	close(hold)
	if o := g.outcome(running.ID); o.Status != "completed" || o.Consumed != nil {
		t.Errorf("outcome %+v", o)
	}
	if got := elsewhere.heard(); len(got) > 0 {
		t.Errorf("it was called elsewhere: %v", got)
	}
}

// TestFaultE6Pin: with a pin no other platform is answered to, however well it signs.
func TestFaultE6Pin(t *testing.T) {
	t.Parallel()
	elsewhere := newEavesdropper(t)
	g := newRig(t, neverCalled(t), func(c *rigConfig) { c.push.APIBase = "https://keiki.example/api/v1" })
	q := newRequest(g, "turn-1")
	q.apiBase, q.turnURL, q.mcpURL = elsewhere.URL, elsewhere.URL+"/turns/turn-1", ""
	if a := g.send(q); a.Status != http.StatusBadRequest || g.refusal(a) != "foreign_api_base" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if got := elsewhere.heard(); len(got) > 0 {
		t.Errorf("it was called elsewhere: %v", got)
	}
}

// An eavesdropper is a server that nobody should give a credential.
type eavesdropper struct {
	*httptest.Server
	mu  sync.Mutex
	got []string
}

func newEavesdropper(t *testing.T) *eavesdropper {
	e := &eavesdropper{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.got = append(e.got, fmt.Sprintf("%s %s %v %s", r.Method, r.URL, r.Header, body))
	}))
	t.Cleanup(e.Close)
	return e
}

// heard are the requests that came, all that they had in them.
func (e *eavesdropper) heard() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}
