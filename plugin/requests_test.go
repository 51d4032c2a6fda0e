package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/session"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Fault A5: the same key twice, keys in another case, a second value.
func TestFaultA5KeysAndValuesThatParsersReadDifferently(t *testing.T) {
	t.Parallel()
	var calls called
	got := make(chan adapters.Turn, 8)
	_, h := start(t, plugin.Config{Adapter: calls.by(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		got <- *turn
		return w.Text("ok")
	}))})

	for _, name := range []string{"lowkey-duplicate-key.json", "lowkey-second-value.json"} {
		h.postBody(t, testdata(t, name)).refused(t, http.StatusBadRequest)
	}
	whole := string(request{window: []entry{{Role: "user", Content: "x"}}}.body())
	for _, doubled := range []string{
		strings.Replace(whole, `"protocolVersion":1`, `"protocolVersion":2,"protocolVersion":1`, 1),
		strings.Replace(whole, `"message":`, `"messag\u0065":"other","message":`, 1),
		strings.Replace(whole, `"role":`, `"role":"agent","role":`, 1),
		strings.Replace(whole, `"role":`, `"x":{"y":[{"z":1,"z":1}]},"role":`, 1),
		whole + `{}`,
		whole + `,`,
		whole + "\x00",
	} {
		if doubled == whole {
			t.Fatal("nothing was replaced")
		}
		h.postBody(t, []byte(doubled)).refused(t, http.StatusBadRequest)
	}
	if n := calls.times(); n != 0 {
		t.Errorf("%d adapter calls for refused requests", n)
	}

	body := testdata(t, "lowkey-case-variant.json")
	if text := h.postBody(t, body).completed(t); text != "ok" {
		t.Errorf("text is %q", text)
	}
	if turn := <-got; turn.PluginID != "muse" || turn.Raw != string(body) {
		t.Errorf("the adapter ran as plugin %q, with the request %q", turn.PluginID, turn.Raw)
	}
}

// Fault A6: deep nesting.
func TestFaultA6DeepNesting(t *testing.T) {
	t.Parallel()
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	if text := h.postBody(t, testdata(t, "lowkey-nest-64.json")).completed(t); text != "hello" {
		t.Errorf("text is %q", text)
	}
	if why := h.postBody(t, testdata(t, "lowkey-nest-65.json")).refused(t, http.StatusBadRequest); !strings.Contains(why, "64") {
		t.Errorf("the refusal %q does not name the limit", why)
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls, want one", n)
	}
}

// Not parallel: it measures time and memory.
func TestFaultA6BracketsTakeNeitherTimeNorMemory(t *testing.T) {
	_, h := start(t, plugin.Config{Adapter: echo})
	h.post(t, request{turn: "warm"}).completed(t)
	for _, n := range []int{100_000, 4_000_000} {
		for _, open := range []string{"[", `{"a":`} {
			body := bytes.Repeat([]byte(open), n/len(open))
			best := time.Hour
			for range 3 { // the machine may be busy with something else
				goruntime.GC()
				var before, after goruntime.MemStats
				goruntime.ReadMemStats(&before)
				began := time.Now()
				h.postBody(t, body).refused(t, http.StatusBadRequest)
				best = min(best, time.Since(began))
				goruntime.ReadMemStats(&after)
				// All that was allocated, whether or not it was freed: the body and what it grew through.
				if took := int64(after.TotalAlloc - before.TotalAlloc); took > 4*int64(n)+2<<20 {
					t.Errorf("%d of %q took %d bytes", n, open, took)
				}
			}
			if best > 100*time.Millisecond*slowness {
				t.Errorf("%d of %q were refused after %v", n, open, best)
			}
		}
	}
	if text := h.post(t, request{turn: "after", message: "still here"}).completed(t); text != "still here" {
		t.Errorf("afterwards the text is %q", text)
	}
}

// Fault A8: one bad character poisons a session.
func TestFaultA8LoneSurrogate(t *testing.T) {
	t.Parallel()
	seen := make(chan adapters.Turn, 2)
	_, h := start(t, plugin.Config{Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		seen <- *turn
		return w.Text("half \xf0\x9f of one")
	})})
	body := testdata(t, "lowkey-lone-surrogate.json")
	if text := h.postBody(t, body).completed(t); text != "half \uFFFD\uFFFD of one" {
		t.Errorf("text is %q", text)
	}
	turn := <-seen
	if got := turn.History[len(turn.History)-1].Content; got != "page title: café \uFFFD and more" {
		t.Errorf("the adapter sees %q", got)
	}
	next := h.post(t, request{turn: "t-10", message: "plain", window: []entry{
		{Role: "user", Content: "and now?"}, {Role: "agent", Content: "half \uFFFD\uFFFD of one"},
	}})
	next.completed(t)
	turn = <-seen
	if turn.Continuity != adapters.ContinuityExtended || len(turn.History) != 4 {
		t.Errorf("the next turn's history is %s, of %d messages, want 4 and extended", turn.Continuity, len(turn.History))
	}
	for _, m := range turn.History {
		if !utf8.ValidString(m.Content) {
			t.Errorf("history has %q", m.Content)
		}
	}
}

// A misuse is one thing that is wrong with a request, in the order in which refusals are made.
type misuse struct {
	name   string
	status int
	says   string
	apply  func(*attempt)
}

// An attempt is a request before it is sent.
type attempt struct {
	method  string
	header  http.Header
	request request
	body    func([]byte) []byte
}

const secretToken = "a-token-that-nobody-should-ever-see"

// misuses that need no state of the server.
var misuses = []misuse{
	{"method", 405, "POST", func(a *attempt) { a.method = http.MethodPut }},
	{"token", 401, "bearer", func(a *attempt) { a.header.Set("Authorization", "Bearer "+secretToken+"-not") }},
	{"type", 415, "text/plain", func(a *attempt) { a.header.Set("Content-Type", "text/plain") }},
	{"encoding", 415, "br", func(a *attempt) { a.header.Set("Content-Encoding", "br") }},
	{"size", 413, "limit", func(a *attempt) {
		a.body = func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), 64<<10)...) }
	}},
	{"content", 400, "/turn/turnId", func(a *attempt) {
		inner := a.body
		a.body = func(b []byte) []byte {
			b = bytes.Replace(b, []byte(`"turnId":`), []byte(`"turnID":`), 1)
			if inner != nil {
				b = inner(b)
			}
			return b
		}
	}},
	{"plugin", 404, "nobody", func(a *attempt) { a.request.plugin = "nobody" }},
}

// states of a server that refuse every new turn, in the order in which they are told. running is a
// turn that runs, of session s-run.
var states = []misuse{
	{"conflict", 409, "new turn id", func(a *attempt) { a.request.session, a.request.turn, a.request.message = "s-run", "running", "other" }},
	{"draining", 503, "shutting down", nil},
	{"busy", 503, "session is busy", func(a *attempt) { a.request.session = "s-run" }},
	{"capacity", 503, "as many turns", nil},
}

func TestRefusalsComeInTheirOrder(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	var log logs
	began, hold := make(chan struct{}), newGate(t)
	var calls called
	p, h := start(t, plugin.Config{
		Adapter: calls.by(adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			close(began)
			<-hold.C
			return nil
		})),
		Tokens:     map[string]plugin.Secret{"platform": secretToken},
		MaxBody:    32 << 10,
		MaxTurns:   1,
		RefuseBusy: true,
		Logger:     log.logger(),
		Drain:      patience,
	})
	h = h.with("Authorization", "Bearer "+secretToken)
	running := h.post(t, request{session: "s-run", turn: "running", message: "first"}).started(t)
	receive(t, "the first turn", began)

	attemptWith := func(name string, faults ...misuse) {
		t.Helper()
		a := attempt{method: http.MethodPost, header: http.Header{}, request: request{session: "s-new", turn: "new"}}
		for _, f := range faults {
			if f.apply != nil {
				f.apply(&a)
			}
		}
		body := a.request.body()
		if a.body != nil {
			body = a.body(body)
		}
		host := *h
		host.header = h.header.Clone()
		for k, v := range a.header {
			host.header[k] = v
		}
		r, err := host.do(a.method, host.path, bytes.NewReader(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer r.close()
		why, err := r.refusal(faults[0].status)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(why, faults[0].says) {
			t.Errorf("%s: the refusal is %q, want it to speak of %q", name, why, faults[0].says)
		}
	}
	pairs := func(list []misuse) {
		t.Helper()
		for i, first := range list {
			attemptWith(first.name, first)
			for _, second := range list[i+1:] {
				attemptWith(first.name+" and "+second.name, first, second)
			}
		}
	}
	all := slices.Concat(misuses, []misuse{states[0], states[2], states[3]})
	pairs(all)

	drained := make(chan error)
	go func() { drained <- p.Drain(context.Background()) }()
	eventually(t, "the drain", func() bool { return getStatus(t, h, "/readyz") == http.StatusServiceUnavailable })
	pairs(slices.Concat(misuses, states[:2]))
	attemptWith("draining and busy", states[1], states[2])
	attemptWith("draining and capacity", states[1], states[3])

	hold.open()
	running.completed(t)
	if err := receive(t, "the end of the drain", drained); err != nil {
		t.Error(err)
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls, want the first alone", n)
	}
	if strings.Contains(log.String(), secretToken) {
		t.Error("the log holds the token")
	}
	if log.String() == "" {
		t.Error("nothing was logged, so nothing was tested")
	}
}

func getStatus(t testing.TB, h *host, path string) int {
	t.Helper()
	r, err := h.do(http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.close()
	return r.StatusCode
}

func TestRefusalsEchoLittleOfTheInput(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	_, h := start(t, plugin.Config{Adapter: echo})
	const long = 5000
	for _, mark := range []string{"§", "😀", `\u00a7`, `\u0000`, `\"`} {
		flood := strings.Repeat(mark, long)
		char := mark
		if err := json.Unmarshal([]byte(`"`+mark+`"`), &char); err != nil {
			t.Fatal(err)
		}
		whole := string(request{window: []entry{{Role: "user", Content: "x"}}}.body())
		for name, body := range map[string]string{
			"version":     strings.Replace(whole, `"protocolVersion":1`, `"protocolVersion":"`+flood+`"`, 1),
			"plugin":      strings.Replace(whole, `"pluginId":"muse"`, `"pluginId":"`+flood+`"`, 1),
			"role":        strings.Replace(whole, `"role":"user"`, `"role":"`+flood+`"`, 1),
			"headless":    strings.Replace(whole, `"headless":false`, `"headless":"`+flood+`"`, 1),
			"key twice":   strings.Replace(whole, `"turn":`, `"`+flood+`":1,"`+flood+`":2,"turn":`, 1),
			"deep key":    strings.Replace(whole, `"turn":`, `"x":{"`+flood+`":{"a":1,"a":1}},"turn":`, 1),
			"no value":    strings.Replace(whole, `"message":""`, `"message":"`+flood, 1),
			"many fields": strings.Replace(strings.Replace(whole, `"role":"user"`, `"role":"`+flood+`"`, 1), `"content":"x"`, `"content":["`+flood+`"]`, 1),
			"second":      whole + `"` + flood + `"`,
			"no JSON":     flood,
		} {
			r := h.postBody(t, []byte(body))
			why := r.refused(t, r.StatusCode)
			if r.StatusCode != http.StatusBadRequest && r.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s", name, r.Status)
			}
			echoed := strings.Count(why, char)
			if quoted := strings.Count(string(r.raw), mark); char != mark {
				echoed = max(echoed, quoted)
			}
			if echoed > 200 {
				t.Errorf("%s of %q: %d characters of the input are echoed: %.300q", name, mark, echoed, why)
			}
		}
	}
	flood := strings.Repeat("x", long)
	for name, key := range map[string]string{"a media type": "Content-Type", "an encoding": "Content-Encoding"} {
		r := h.with(key, flood).post(t, request{})
		if why := r.refused(t, http.StatusUnsupportedMediaType); strings.Count(why, "x") > 210 {
			t.Errorf("%s is echoed: %q", name, why)
		}
	}
	r := hostDo(t, h, strings.Repeat("X", long), nil)
	if why := r.refused(t, http.StatusMethodNotAllowed); strings.Count(why, "X") > 200 {
		t.Errorf("a method is echoed: %q", why)
	}
}

func hostDo(t testing.TB, h *host, method string, body []byte) *reply {
	t.Helper()
	r, err := h.do(method, h.path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func TestARefusalNamesTheFieldWhatItWasAndWhatIsExpected(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo})
	whole := string(request{window: []entry{{Role: "user", Content: "x"}}}.body())
	for _, tt := range []struct {
		replace, by string
		says        []string
	}{
		{`"protocolVersion":1`, `"protocolVersion":7`, []string{"/protocolVersion", "7", "1"}},
		{`"protocolVersion":1`, `"protocolVersion":"1"`, []string{"/protocolVersion"}},
		{`"role":"user"`, `"role":"oracle"`, []string{"/transcriptWindow/0/role", "oracle", "user", "agent", "system"}},
		{`"headless":false`, `"headless":null`, []string{"/turn/headless", "null", "true or false"}},
		{`"transcriptWindowMessages":40`, `"transcriptWindowMessages":-1`, []string{"/limits/transcriptWindowMessages", "-1"}},
		{`"turnId":"t-1"`, `"turnId":""`, []string{"/turn/turnId"}},
	} {
		body := strings.Replace(whole, tt.replace, tt.by, 1)
		why := h.postBody(t, []byte(body)).refused(t, http.StatusBadRequest)
		for _, s := range tt.says {
			if !strings.Contains(why, s) {
				t.Errorf("%s: the refusal %q does not say %q", tt.by, why, s)
			}
		}
	}
	two := strings.Replace(strings.Replace(whole, `"role":"user"`, `"role":"oracle"`, 1), `"headless":false`, `"headless":0`, 1)
	why := h.postBody(t, []byte(two)).refused(t, http.StatusBadRequest)
	for _, s := range []string{"/turn/headless", "/transcriptWindow/0/role"} {
		if !strings.Contains(why, s) {
			t.Errorf("of two wrong fields, the refusal %q does not name %s", why, s)
		}
	}
}

func TestWhatTheAdapterIsTold(t *testing.T) {
	t.Parallel()
	got := make(chan adapters.Turn, 1)
	_, h := start(t, plugin.Config{
		Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
			got <- *turn
			return nil
		}),
		Tokens: map[string]plugin.Secret{"platform": secretToken},
	})
	body := []byte(`{"future":[1.10],"protocolVersion":1.0,"pluginId":"muse",
		"sessionHandle":{"id":"key","projectPath":"/srv/p","sessionId":"conv","agentId":"oracle"},
		"turn":{"turnId":"t-7","message":"hello","headless":true,"userName":"Ada"},
		"transcriptWindow":[{"role":"system","content":"zero"},{"role":"user","content":"one","timestamp":1719000000123},
			{"role":"agent","content":"two","agentId":"a","agentName":"Oracle","turnId":"t-6"},{"role":"user","content":"hello","turnId":"t-7"}],
		"limits":{"transcriptWindowMessages":2}}`)
	h.with("Authorization", "bearer "+secretToken).postBody(t, body).completed(t)
	turn := <-got
	if turn.Protocol != adapters.Lowkey || turn.ID != "t-7" || turn.PluginID != "muse" || turn.AgentID != "oracle" ||
		turn.ConversationID != "conv" || turn.ProjectPath != "/srv/p" || turn.Principal != "platform" || turn.Session.ID() != "key" ||
		turn.Message != "hello" || turn.User.Name != "Ada" || !turn.Flags.Headless || turn.Raw != string(body) {
		t.Errorf("the adapter was told %+v", turn)
	}
	if until := time.Until(turn.Deadline); until < 9*time.Minute || until > 10*time.Minute {
		t.Errorf("the deadline is in %v, want 10 minutes", until)
	}
	want := []adapters.Message{
		{Role: adapters.RoleUser, Content: "one", Time: time.UnixMilli(1719000000123).UTC()},
		{Role: adapters.RoleAgent, Content: "two", AgentID: "a", AgentName: "Oracle", TurnID: "t-6"},
	}
	if !slices.EqualFunc(turn.History, want, func(a, b adapters.Message) bool {
		same := a.Time.Equal(b.Time)
		a.Time, b.Time = time.Time{}, time.Time{}
		return same && a == b
	}) {
		t.Errorf("the history is %+v, want %+v", turn.History, want)
	}
}

// What the session cache and the log of repeats keep must not keep whole requests alive.
func TestRequestsAreNotKeptAlive(t *testing.T) {
	const n, size = 64, 1 << 20
	p, h := start(t, plugin.Config{Adapter: echo})
	heap := func() int64 {
		for range 3 { // pools give up what they hold over two collections
			goruntime.GC()
		}
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range n {
		body := request{session: numbered("s", i), turn: numbered("t", i), message: "hello"}.body()
		body = append(body, bytes.Repeat([]byte(" "), size)...)
		r, err := h.send(bytes.NewReader(body)) // a reply that was kept would keep its request
		if err != nil {
			t.Fatal(err)
		}
		r.completed(t)
		r.close()
	}
	if s := p.Stats(); s.Sessions.Entries != n || s.Turns.Replayable != n {
		t.Errorf("%+v, want %d sessions and repeats", s, n)
	}
	if grown := heap() - before; grown > n*size/8 {
		t.Errorf("%d bytes are kept of %d requests of %d bytes", grown, n, size)
	}
	quiet(t, p)
	if s := (p.Stats().Sessions); s == (session.Stats{}) {
		t.Error("the sessions are gone")
	}
}
