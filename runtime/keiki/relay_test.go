package keiki_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

// An app is a server that requests are forwarded to, and what it got.
type app struct {
	*httptest.Server
	mu   sync.Mutex
	got  []*http.Request
	body [][]byte
}

// newApp serves an app. answer may be nil for 202.
func newApp(t *testing.T, answer http.HandlerFunc) *app {
	t.Helper()
	a := &app{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the app could not read a request: %v", err)
		}
		a.mu.Lock()
		a.got = append(a.got, r)
		a.body = append(a.body, body)
		a.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if answer != nil {
			answer(w, r)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *app) count() int { a.mu.Lock(); defer a.mu.Unlock(); return len(a.got) }

// A handOn is a relay that works for a desk.
type handOn struct {
	d      *desk
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned err
	err    error
}

// relay has a relay hand on the desk's turns to an app.
func (d *desk) relay(appURL string, edit ...func(*keiki.RelayConfig)) *handOn {
	d.t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	c := keiki.RelayConfig{
		APIBase: d.url, APIKey: secret.Text(d.platform.APIKey("")), AppURL: appURL, Transport: transport,
		Logger: slog.New(slog.NewJSONHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, e := range edit {
		e(&c)
	}
	r, err := keiki.NewRelay(c)
	if err != nil {
		d.t.Fatal(err)
	}
	r.Hurry(10*time.Millisecond, 5*time.Millisecond, 50*time.Millisecond)
	ctx, cancel := context.WithCancel(d.t.Context())
	h := &handOn{d: d, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		h.err = r.Run(ctx)
	}()
	d.t.Cleanup(func() {
		cancel()
		<-h.ended
		transport.CloseIdleConnections()
	})
	return h
}

func relayed(c *deskConfig) { c.platform.Mode = testhost.KeikiRelayMode }

// A report is what a relay told the platform.
type report struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
}

// reported waits for the report on a turn that the platform has acknowledged.
func (d *desk) reported(id string) report {
	d.t.Helper()
	var r report
	d.until("the result is reported", func() bool {
		for _, q := range d.all(id, "result") {
			if q.Done && q.Status == http.StatusOK {
				if err := json.Unmarshal(q.Body, &r); err != nil {
					d.t.Errorf("a report that is no JSON: %s", q.Body)
				}
				return true
			}
		}
		return false
	})
	return r
}

// TestRelayToAHandler: the signature holds behind the relay, and the turn is answered through the turn API.
func TestRelayToAHandler(t *testing.T) {
	t.Parallel()
	d := newDesk(t, relayed)
	logger := slog.New(slog.NewJSONHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	engine, err := runtime.New(runtime.Config{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	handler, err := keiki.New(keiki.PushConfig{
		Config: keiki.Config{
			Engine: engine, Logger: logger, Transport: transport, APIBase: d.url,
			Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				return w.Text("You said: " + turn.Message)
			}),
		},
		Secrets: keiki.Secrets{Any: []secret.Text{testSecret}},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := newApp(t, handler.ServeHTTP)
	t.Cleanup(func() {
		_ = handler.Drain(context.Background())
		handler.Wait()
		transport.CloseIdleConnections()
	})
	d.relay(a.URL + "/keiki/turn?tenant=1")
	var ids []string
	for i := range 20 {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: fmt.Sprintf("<héllo>  %d\u2028\U0001F600 \"\\", i), Context: []byte(`{ "spaces" :  [1,  2] }`)}))
	}
	for i, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
		want := fmt.Sprintf("You said: <héllo>  %d\u2028\U0001F600 \"\\", i)
		if diff := cmp.Diff([]string{want}, d.platform.Texts(id)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		if r := d.reported(id); r.Status != http.StatusAccepted || r.Body != `{"accepted":true,"turnId":"`+id+`"}` {
			t.Errorf("report %+v", r)
		}
		for _, r := range d.all(id, "messages", "complete") {
			if r.Auth != "turn_token" {
				t.Errorf("%s with a bearer of kind %q", r.Path, r.Auth)
			}
		}
		for _, r := range d.all(id, "result") {
			if r.Auth != "api_key" {
				t.Errorf("%s with a bearer of kind %q", r.Path, r.Auth)
			}
		}
	}
}

// TestWhatIsForwarded: the body byte for byte and the headers of the signature; no API key, and nothing else of
// what the platform says.
func TestWhatIsForwarded(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	d := newDesk(t, relayed)
	d.relay(a.URL + "/hooks/keiki?tenant=1")
	body := []byte("{ \"type\":\"keiki.turn\",\n\t\"turnId\" : \"turn-9\", \"agentId\":\"agent-1\",\"x\":\"\\u00e9\\/\", \"version\":1 }\n")
	id := d.queue(testhost.KeikiTurn{Body: body, Header: http.Header{
		"Authorization": {"Bearer of-the-platform"}, "Cookie": {"a=b"}, "Host": {"elsewhere"}, "Content-Length": {"5"}, "Keiki-Other": {"kept"}, "X-Forwarded-For": {"1.2.3.4"},
	}})
	r := d.reported(id)
	if r.Status != http.StatusAccepted || r.Body != "" {
		t.Errorf("report %+v", r)
	}
	got := a.got[0]
	if !bytes.Equal(a.body[0], body) {
		t.Errorf("the body is\n%q, want\n%q", a.body[0], body)
	}
	if got.Method != http.MethodPost || got.URL.RequestURI() != "/hooks/keiki?tenant=1" || "http://"+got.Host != a.URL {
		t.Errorf("%s %s on %s", got.Method, got.URL.RequestURI(), got.Host)
	}
	want := map[string]string{"Keiki-Turn-Id": "turn-9", "Keiki-Turn-Token": d.platform.Tokens(id)[0], "Keiki-Other": "kept", "Content-Type": "application/json"}
	for name, value := range want {
		if v := got.Header.Get(name); v != value {
			t.Errorf("%s is %q, want %q", name, v, value)
		}
	}
	if err := keiki.Verify(got.Header.Get(keiki.SignatureHeader), a.body[0], []secret.Text{testSecret}, time.Now(), time.Minute); err != nil {
		t.Errorf("the signature: %v", err)
	}
	for name := range got.Header {
		if _, ok := want[name]; !ok && !slices.Contains([]string{"Keiki-Signature", "Content-Length", "Accept-Encoding", "User-Agent"}, name) {
			t.Errorf("the app got a header %s: %q", name, got.Header[name])
		}
	}
}

// TestReports: what the app answers is reported, whatever it is.
func TestReports(t *testing.T) {
	t.Parallel()
	foreign := newEavesdropper(t)
	const page = "<html>\x00\xff\u2028 \"quoted\" \\ </html>"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   report
	}{
		"200": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":true}`) }, report{200, `{"ok":true}`}},
		"204": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, report{204, ""}},
		"401": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(401)
			_, _ = io.WriteString(w, errorBody("signature_mismatch"))
		}, report{401, errorBody("signature_mismatch")}},
		"500 html": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.WriteString(w, page)
		}, report{500, strings.ToValidUTF8(page, "\uFFFD")}},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, foreign.URL, http.StatusTemporaryRedirect)
		}, report{307, ""}},
		"see other": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, foreign.URL, http.StatusSeeOther) }, report{303, ""}},
		"dropped":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, report{502, `{"error":{"code":"unreachable","message":"the relay could not reach the app"}}`}},
		"long": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("é", 1<<20))
		}, report{200, strings.Repeat("é", 32<<10)}},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		}, report{200, "half"}},
	} {
		a, d := newApp(t, c.answer), newDesk(t, relayed)
		d.relay(a.URL)
		id := d.queue(testhost.KeikiTurn{Text: name})
		got := d.reported(id)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: report (-want +got):\n%.2000s", name, diff)
		}
		if n := a.count(); n != 1 {
			t.Errorf("%s: the app got %d requests", name, n)
		}
	}
	if heard := foreign.heard(); len(heard) > 0 {
		t.Errorf("the app's redirect was followed: %q", heard)
	}
}

// TestAnAppThatIsNotThere: 502 is reported.
func TestAnAppThatIsNotThere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, relayed)
	d.relay(nowhere)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	if r := d.reported(id); r.Status != http.StatusBadGateway || !strings.Contains(r.Body, "unreachable") {
		t.Errorf("report %+v", r)
	}
	if o := d.outcome(id); o.Status != "failed" || o.Code != "unreachable" {
		t.Errorf("outcome %+v", o)
	}
	if len(d.lines("the app could not be reached", id)) != 1 {
		t.Error("the log does not tell of it")
	}
}

// TestReportsAreRepeated until the platform has them, and the app gets the request once.
func TestReportsAreRepeated(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	faults := []testhost.KeikiFault{
		{Status: 500, Body: "<html>"}, {Drop: true}, {Status: 429, RetryAfter: "0"}, {Drop: true, After: true}, {Status: 502, After: true},
	}
	d := newDesk(t, relayed, onRoute("/result", func(n int) testhost.KeikiFault {
		if n <= len(faults) {
			return faults[n-1]
		}
		return testhost.KeikiFault{}
	}))
	d.relay(a.URL)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	if r := d.reported(id); r.Status != http.StatusAccepted {
		t.Errorf("report %+v", r)
	}
	list := d.all(id, "result")
	if len(list) != len(faults)+1 || a.count() != 1 {
		t.Errorf("%d reports and %d forwards", len(list), a.count())
	}
	for _, r := range list {
		if !bytes.Equal(r.Body, list[0].Body) {
			t.Errorf("a report is %s, and was %s", r.Body, list[0].Body)
		}
	}
}

// TestReportsThatNeverArrive are given up after two minutes, and sooner where the relay is to end.
func TestReportsThatNeverArrive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ end, least, most time.Duration }{
		"in service":          {0, 100 * time.Second, 130 * time.Second},
		"at the end":          {20 * time.Second, 30 * time.Second, 31 * time.Second},
		"shortly before":      {time.Millisecond, 30 * time.Second, 45 * time.Second}, // the app takes its time
		"late, when it is up": {110 * time.Second, 110 * time.Second, 130 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				var last time.Time
				polls := 0
				platform := roundTripper(func(r *http.Request) (*http.Response, error) {
					switch {
					case r.URL.Host == "app.example":
						if name == "shortly before" {
							time.Sleep(29 * time.Second)
						}
						return answering(202, "")
					case r.Method == http.MethodPost:
						last = time.Now()
						return answering(503, "<html>")
					}
					if polls++; polls == 1 {
						return answering(200, `{"turn":{"id":"one","body":"x"}}`)
					}
					if polls == 200 {
						cancel() // long after the report was given up
					}
					return answering(200, `{"turn":null}`)
				})
				var log journal
				relay, err := keiki.NewRelay(keiki.RelayConfig{
					APIBase: "https://keiki.example/api/v1", APIKey: "sk_test_key", AppURL: "https://app.example/", Transport: platform,
					Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				if c.end > 0 {
					time.AfterFunc(c.end, cancel)
				}
				if err := relay.Run(ctx); err != nil {
					t.Errorf("Run returned %v", err)
				}
				took := time.Since(began)
				if c.end == 0 {
					took = last.Sub(began)
				}
				if took < c.least || took > c.most {
					t.Errorf("the report was given up after %v, want %v to %v", took, c.least, c.most)
				}
				if !strings.Contains(log.String(), "could not be reported") {
					t.Errorf("the log does not tell of it:\n%s", log.String())
				}
			})
		})
	}
}

// TestReportsThatAreRefused are not repeated, and the relay goes on.
func TestReportsThatAreRefused(t *testing.T) {
	t.Parallel()
	foreign := newEavesdropper(t)
	for name, fault := range map[string]testhost.KeikiFault{
		"400":      {Status: 400, Body: errorBody("invalid")},
		"404":      {Status: 404, Body: "<html>"},
		"409":      {Status: 409, Body: errorBody("turn_closed")},
		"401":      {Status: 401, Body: errorBody("invalid_api_key")},
		"redirect": {Redirect: foreign.URL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, nil)
			d := newDesk(t, relayed, onRoute("/result", func(n int) testhost.KeikiFault {
				if n == 1 {
					return fault
				}
				return testhost.KeikiFault{}
			}))
			d.relay(a.URL, func(c *keiki.RelayConfig) { c.Concurrency = 1 })
			first := d.queue(testhost.KeikiTurn{Text: "one"})
			d.until("the log tells of it", func() bool { return len(d.lines("could not be reported", first)) > 0 })
			d.reported(d.queue(testhost.KeikiTurn{Text: "two"}))
			if n := len(d.all(first, "result")); n != 1 {
				t.Errorf("the report was sent %d times", n)
			}
			if n := len(d.lines("could not be reported", first, `"level":"ERROR"`)); n != 1 {
				t.Errorf("the log tells of it %d times", n)
			}
		})
	}
	t.Cleanup(func() {
		if heard := foreign.heard(); len(heard) > 0 {
			t.Errorf("the redirect was followed: %q", heard)
		}
	})
}

// TestForwardsAreFinished: the end of the polling does not cut off what is in hand, and its report is sent.
func TestForwardsAreFinished(t *testing.T) {
	t.Parallel()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	a := newApp(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-goOn
		w.WriteHeader(http.StatusAccepted)
	})
	d := newDesk(t, relayed, onRoute("/result", func(n int) testhost.KeikiFault {
		if n == 1 {
			return testhost.KeikiFault{Status: 503}
		}
		return testhost.KeikiFault{}
	}))
	h := d.relay(a.URL)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	receive(t, "the forward", arrived)
	h.cancel()
	select {
	case <-h.ended:
		t.Error("Run returned with a forward in hand")
	case <-time.After(100 * time.Millisecond):
	}
	polls := len(d.polls("next"))
	close(goOn)
	receive(t, "the end", h.ended)
	if h.err != nil {
		t.Errorf("Run returned %v", h.err)
	}
	if r := d.reported(id); r.Status != http.StatusAccepted {
		t.Errorf("report %+v", r)
	}
	if n := len(d.polls("next")); n > polls+1 {
		t.Errorf("it polled %d times more after its end", n-polls)
	}
}

// TestTheEndOfARelayAtRest is at once, in a poll that is held too.
func TestTheEndOfARelayAtRest(t *testing.T) {
	t.Parallel()
	d := newDesk(t, relayed, onRoute("/turns/next", func(int) testhost.KeikiFault { return testhost.KeikiFault{Delay: time.Minute} }))
	h := d.relay("http://127.0.0.1:1/")
	d.until("it polls", func() bool { return len(d.polls("next")) > 0 })
	h.cancel()
	receive(t, "the end", h.ended)
	if h.err != nil {
		t.Errorf("Run returned %v", h.err)
	}
}

// TestTheRelaysKeyIsRefused: Run ends with ErrKeyRefused once what is in hand is reported.
func TestTheRelaysKeyIsRefused(t *testing.T) {
	t.Parallel()
	revoked, goOn := make(chan struct{}), make(chan struct{})
	a := newApp(t, func(w http.ResponseWriter, _ *http.Request) {
		close(revoked)
		<-goOn
		w.WriteHeader(http.StatusAccepted)
	})
	refused := make(chan struct{})
	d := newDesk(t, relayed, onRoute("/turns/next", func(n int) testhost.KeikiFault {
		if n > 1 {
			<-revoked
			close(refused)
			return testhost.KeikiFault{Status: http.StatusForbidden, Body: "<html>"}
		}
		return testhost.KeikiFault{}
	}))
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	h := d.relay(a.URL)
	receive(t, "the refusal", refused)
	close(goOn)
	receive(t, "the end", h.ended)
	if h.err != keiki.ErrKeyRefused { //nolint:errorlint // as it is documented
		t.Errorf("Run returned %v", h.err)
	}
	if r := d.reported(id); r.Status != http.StatusAccepted {
		t.Errorf("report %+v", r)
	}
}

// oddIDs are ids that a path must not be led astray by.
var oddIDs = []string{
	"a/b", "a%2Fb", "a b", "ünï/çødé", "?x=1", "#f", "a;b", "..", ".", "../..", "...", "a\\b", "a:b", "%", "%2e%2e", "+", "{id}", "//", `"`, "a\tb",
}

// TestOddIDs: each is one segment of the path on which its result is reported.
func TestOddIDs(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	d := newDesk(t, relayed)
	d.relay(a.URL)
	for _, id := range oddIDs {
		d.queue(testhost.KeikiTurn{ID: id, Text: "hello"})
		if r := d.reported(id); r.Status != http.StatusAccepted {
			t.Errorf("%q: report %+v", id, r)
		}
	}
	for _, r := range d.platform.Requests("") {
		if rest, ok := strings.CutPrefix(r.Path, "/api/v1/harness/turns/"); !ok || strings.Count(rest, "/") > 1 {
			t.Errorf("a request to %s", r.Path)
		}
		for part := range strings.SplitSeq(r.Path, "/") {
			if part == "." || part == ".." {
				t.Errorf("the path %s leads elsewhere", r.Path)
			}
		}
	}
}

// TestAnotherResultPath is configured.
func TestAnotherResultPath(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	d := newDesk(t, relayed, func(c *deskConfig) { c.platform.ResultPath = "harness/dispatches/{id}/complete" })
	d.relay(a.URL, func(c *keiki.RelayConfig) { c.ResultPath = "/harness/dispatches/{id}/complete/" })
	id := d.queue(testhost.KeikiTurn{ID: "a/b", Text: "hello"})
	if r := d.reported(id); r.Status != http.StatusAccepted {
		t.Errorf("report %+v", r)
	}
}

// A queueOf hands out given answers to polls of a relay, and takes every report.
type queueOf struct {
	mu      sync.Mutex
	answers []string
	reports []string // paths and bodies
}

func (q *queueOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		q.reports = append(q.reports, r.URL.EscapedPath()+" "+string(body))
		_, _ = io.WriteString(w, "{}")
		return
	}
	if len(q.answers) == 0 {
		_, _ = io.WriteString(w, `{"turn":null}`)
		return
	}
	_, _ = io.WriteString(w, q.answers[0])
	q.answers = q.answers[1:]
}

func (q *queueOf) reported() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.reports)
}

func (d *desk) relayOf(q *queueOf, app string) *handOn {
	server := httptest.NewServer(q)
	d.t.Cleanup(server.Close)
	return d.relay(app, func(c *keiki.RelayConfig) { c.APIBase = server.URL + "/api/v1" })
}

// TestOrderWithinOneID: a cancellation does not overtake its turn, while others do.
func TestOrderWithinOneID(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	running := map[string]int{}
	first, other := make(chan struct{}), make(chan struct{})
	a := newApp(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, _, _ := strings.Cut(string(body), " ")
		mu.Lock()
		if running[id]++; running[id] > 1 {
			t.Errorf("two requests of %s at once", id)
		}
		mu.Unlock()
		switch string(body) {
		case "t1 turn":
			<-first
		case "t2 turn":
			close(other)
		}
		mu.Lock()
		order = append(order, string(body))
		running[id]--
		mu.Unlock()
	})
	q := &queueOf{answers: []string{
		`{"turn":{"id":"t1","body":"t1 turn","headers":{}}}`,
		`{"turn":{"id":"t1","body":"t1 arrival"}}`,
		`{"turn":{"id":"t1","body":"t1 cancelled"}}`,
		`{"turn":{"id":"t2","body":"t2 turn"}}`,
	}}
	d := newDesk(t, relayed)
	d.relayOf(q, a.URL)
	receive(t, "the other turn", other)
	close(first)
	d.until("all is reported", func() bool { return len(q.reported()) == 4 })
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"t2 turn", "t1 turn", "t1 arrival", "t1 cancelled"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestForwardsAreBounded: no more at once than may, and no more are claimed.
func TestForwardsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 3
	var running, most atomic.Int64
	goOn := make(chan struct{})
	a := newApp(t, func(http.ResponseWriter, *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-goOn
	})
	d := newDesk(t, relayed)
	var ids []string
	for range 10 {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello"}))
	}
	d.relay(a.URL, func(c *keiki.RelayConfig) { c.Concurrency = limit })
	d.until("the limit is reached", func() bool { return running.Load() == limit })
	if n := len(d.polls("next")); n != limit {
		t.Errorf("%d polls", n)
	}
	close(goOn)
	for _, id := range ids {
		d.reported(id)
	}
	if n := most.Load(); n != limit {
		t.Errorf("%d at once", n)
	}
}

// TestAnswersThatAreNothingToRelay: each is an error with a pause, and the next good answer is taken.
func TestAnswersThatAreNothingToRelay(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	bad := []string{
		"<html>", "", "null", "[]", "{}", `{"turn":7}`, `{"turn":{}}`, `{"turn":{"id":"","body":"x"}}`, `{"turn":{"id":"a"}}`, `{"turn":{"id":"a","body":{}}}`,
		`{"turn":{"id":"a","body":"x","headers":[]}}`, `{"turn":{"id":"a","body":"x","headers":{"a":1}}}`, `{"turn":{"id":"a","id":"b","body":"x"}}`,
	}
	q := &queueOf{answers: append(slices.Clone(bad), `{"turn":null}`, `{"turn":{"id":"good","body":"x","more":[1],"headers":null}}`, `{"turn":{"id":"better","body":"x"},"more":{}}`)}
	d := newDesk(t, relayed)
	d.relayOf(q, a.URL)
	d.until("the good ones are reported", func() bool {
		return len(q.reported()) >= 1 && strings.Contains(strings.Join(q.reported(), " "), "better")
	})
	if n := len(d.lines("polling failed")); n < len(bad) || n > len(bad)+1 { // headers may or may not be null
		t.Errorf("%d polls are said to have failed, want %d", n, len(bad))
	}
	for _, r := range q.reported() {
		if !strings.HasPrefix(r, "/api/v1/harness/turns/good/result ") && !strings.HasPrefix(r, "/api/v1/harness/turns/better/result ") {
			t.Errorf("a report: %s", r)
		}
	}
}

// TestHeadersThatNoRequestCanHave do not end the relay.
func TestHeadersThatNoRequestCanHave(t *testing.T) {
	t.Parallel()
	a := newApp(t, nil)
	q := &queueOf{answers: []string{
		`{"turn":{"id":"one","body":"x","headers":{"Keiki-Signature":"a\r\nX-Other: b"}}}`,
		`{"turn":{"id":"two","body":"x","headers":{"Keiki-\r\nX":"a"}}}`,
		`{"turn":{"id":"three","body":"x","headers":{"keiki-signature":"small"}}}`,
	}}
	d := newDesk(t, relayed)
	d.relayOf(q, a.URL)
	d.until("all is reported", func() bool { return len(q.reported()) == 3 })
	for _, r := range a.got {
		if len(r.Header["X-Other"]) > 0 || r.Header.Get("Keiki-Signature") != "small" {
			t.Errorf("the app got %v", r.Header)
		}
	}
}

// TestNewRelayNamesEveryWrongField of its configuration.
func TestNewRelayNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := keiki.NewRelay(keiki.RelayConfig{ResultPath: "result", Concurrency: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"APIBase is empty", "APIKey is empty", "AppURL is empty", "ResultPath is", "Concurrency is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	good := keiki.RelayConfig{APIBase: "https://keiki.example/api/v1", APIKey: "sk_test_key", AppURL: "http://127.0.0.1:8787/keiki/turn?x=1"}
	if _, err := keiki.NewRelay(good); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]func(*keiki.RelayConfig){
		"app of a file":        func(c *keiki.RelayConfig) { c.AppURL = "file:///etc" },
		"app with a user":      func(c *keiki.RelayConfig) { c.AppURL = "http://hidden:x@app.example/" },
		"base with a fragment": func(c *keiki.RelayConfig) { c.APIBase += "#x" },
		"key with a newline":   func(c *keiki.RelayConfig) { c.APIKey = "hidden\n" },
	} {
		c := good
		bad(&c)
		if _, err := keiki.NewRelay(c); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTwoRelays share a queue: each request is forwarded once, by faulty roads too.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	const turns = 60
	var mu sync.Mutex
	got := map[string]int{}
	a := newApp(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got[r.Header.Get("Keiki-Turn-Id")]++
		mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	})
	// A claim whose answer is lost would be given again when its lease has run out; here reports are lost alone.
	faults := testhost.RandomFaults(7, 10, 10, 5)
	d := newDesk(t, relayed, func(c *deskConfig) {
		c.platform.Fault = func(r *http.Request, n int) testhost.KeikiFault {
			if strings.HasSuffix(r.URL.Path, "/result") {
				return faults(r, n)
			}
			return testhost.KeikiFault{}
		}
	})
	var ids []string
	for range turns {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello"}))
	}
	d.relay(a.URL)
	d.relay(a.URL)
	for _, id := range ids {
		d.until("the result is reported", func() bool {
			return slices.ContainsFunc(d.all(id, "result"), func(r testhost.KeikiRequest) bool { return r.Done && r.Status == http.StatusOK })
		})
		mu.Lock()
		if got[id] != 1 {
			t.Errorf("the app got %s %d times", id, got[id])
		}
		mu.Unlock()
	}
}
