package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
	wire "github.com/backline-dev/backline/schema/external"
)

const operatorToken = "a token of the operator's"

// TestProgram builds the program, runs it, and plays its hosts.
func TestProgram(t *testing.T) {
	t.Parallel()
	url := start(t)
	for name, test := range map[string]func(*testing.T, *host){"orbiplex": orbiplex, "operator": operator, "lowkey": lowkey} {
		t.Run(name, func(t *testing.T) {
			h := &host{t: t, url: url}
			t.Cleanup(h.client.CloseIdleConnections)
			test(t, h)
		})
	}
}

// orbiplex runs what is admitted from the directory, from its start over two answers to its end, and has
// it replayed.
func orbiplex(t *testing.T, h *host) {
	q := read(t, "request.json", &wire.TurnRequest{})
	if draft := q.InputParts[0].Text; draft != aDraft {
		t.Errorf("request.json has another draft: %s", draft)
	}

	asked := h.turn(q, 0)
	asked.is(t, "accepted running tool-request awaiting-observation")
	if e := asked.events[2]; e.ToolRef != "tool:check-facts" || string(e.Input) != `{"claims":["Our river is 346 km long."]}` {
		t.Errorf("the tool request is %+v", e)
	}
	if status, body := h.do("GET", "turns/"+url.PathEscape(string(q.TurnRef)), nil); status != 200 || !bytes.Contains(body, []byte(`"state":"suspended"`)) {
		t.Errorf("the suspended turn: %d %s", status, body)
	}
	checked := asked.answer(q, "key:2", wire.Observation{Disposition: wire.Admitted, ReasonCode: wire.ReasonCompleted, ReceiptRef: "receipt:7", EvidenceRefs: []wire.Ref{"evidence:a"}})
	question := h.turn(checked, asked.last())
	question.is(t, "running operator-question awaiting-observation")
	refused := question.answer(q, "key:3", wire.Observation{Disposition: wire.Refused, ReasonCode: wire.ReasonPolicyDenied})
	end := h.turn(refused, question.last())
	end.is(t, "running product-candidate usage turn-outcome completed/completed")

	for _, again := range []struct {
		q     *wire.TurnRequest
		first stream
	}{{q, asked}, {checked, question}, {refused, end}} {
		if _, body := h.do("POST", "turns", again.q); string(body) != again.first.text {
			t.Errorf("the replay of %s differs:\n%s\n%s", again.q.IdempotencyKey, again.first.text, body)
		}
	}

	o := h.outcome(q)
	if u := o.BudgetCharged; o.Retryability != wire.Terminal || u.MaxTokens == 0 || u.MaxCostMicros != 0 || u.MaxSteps != 3 {
		t.Errorf("the outcome is %+v", o)
	}
	var product struct{ Content string }
	if status, body := h.do("GET", "products/"+url.PathEscape(string(o.ProductRef)), nil); status != 200 || json.Unmarshal(body, &product) != nil {
		t.Fatalf("the product: %d %s", status, body)
	}
	const want = "Critique of a draft of 37 words in 3 sentences.\n\nFacts: checked (receipt:7); see evidence:a.\nReaders: the team (policy-denied).\n"
	if product.Content != want {
		t.Errorf("the critique is\n%s\nwant\n%s", product.Content, want)
	}
}

// operator admits over HTTP what lends no tools, and revokes it.
func operator(t *testing.T, h *host) {
	p := read(t, "admitted/profile.json", &wire.Profile{})
	p.ProfileRef, p.ToolMode = "profile:none", wire.ToolsDenyAll
	b := read(t, "admitted/binding.json", &wire.Binding{})
	b.BindingRef, b.ProfileRef = "binding:none", p.ProfileRef
	var err error
	if b.BindingDigest, err = wire.DigestWithout(marshal(t, b), "binding/digest"); err != nil {
		t.Fatal(err)
	}
	for path, doc := range map[string]any{"profiles/profile:none": p, "bindings/binding:none": b} {
		if status, body := h.do("PUT", path, doc); status != http.StatusCreated {
			t.Fatalf("PUT of %s: %d %s", path, status, body)
		}
	}
	request := func(turn wire.TurnRef) *wire.TurnRequest {
		q := read(t, "request.json", &wire.TurnRequest{})
		q.TurnRef, q.IdempotencyKey, q.BindingRef, q.BindingDigest = turn, wire.IdempotencyKey(turn), b.BindingRef, b.BindingDigest
		return q
	}
	q := request("turn:none")
	h.turn(q, 0).is(t, "accepted running turn-outcome refused/tool-not-admitted")
	if u := h.outcome(q).BudgetCharged; u != wire.Usage(q.BudgetReservation) {
		t.Errorf("without usage %+v is charged", u)
	}
	if status, body := h.do("DELETE", "bindings/binding:none", nil); status != 200 {
		t.Fatalf("DELETE: %d %s", status, body)
	}
	h.turn(request("turn:revoked"), 0).is(t, "turn-outcome refused/binding-revoked")
}

// lowkey has the same adapter answer without what is not there.
func lowkey(t *testing.T, h *host) {
	t.Cleanup(testhost.CloseIdleConnections)
	s, err := testhost.NewConversation(&testhost.Lowkey{URL: h.url + "/lowkey/turn", PluginID: "reviewer"}).Say(t.Context(), aDraft)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Answer()
	if err != nil || !a.Completed() || !strings.Contains(a.Text, "this host lends no tools") || !strings.Contains(a.Text, "nobody could be asked") {
		t.Errorf("%v: %+v", err, a)
	}
}

// A host plays Orbiplex and its operator.
type host struct {
	t      *testing.T
	url    string
	client http.Client
}

// do sends a request to a path below /external-runtime/, and returns the whole answer. The operator's
// token goes with what is the operator's.
func (h *host) do(method, path string, doc any) (status int, body []byte) {
	h.t.Helper()
	var sent io.Reader
	if doc != nil {
		sent = bytes.NewReader(marshal(h.t, doc))
	}
	q, err := http.NewRequestWithContext(h.t.Context(), method, h.url+"/external-runtime/"+path, sent)
	if err != nil {
		h.t.Fatal(err)
	}
	if strings.HasPrefix(path, "profiles/") || strings.HasPrefix(path, "bindings/") {
		q.Header.Set("Authorization", "Bearer "+operatorToken)
	}
	r, err := h.client.Do(q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if body, err = io.ReadAll(r.Body); err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, body
}

// A stream is the answer to a turn request.
type stream struct {
	events []*wire.Event
	text   string
}

// turn sends a turn request. Its stream must keep the grammar, as the part of a turn whose last event so
// far had the number after.
func (h *host) turn(q *wire.TurnRequest, after int64) stream {
	h.t.Helper()
	status, body := h.do("POST", "turns", q)
	if status != http.StatusOK {
		h.t.Fatalf("POST of %s: %d %s", q.IdempotencyKey, status, body)
	}
	s := stream{text: string(body)}
	grammar := wire.Grammar{After: after, TurnRef: q.TurnRef}
	for line := range bytes.Lines(body) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		e, err := wire.ParseEvent(line)
		if err != nil {
			h.t.Fatalf("%v in the line %s", err, line)
		}
		for _, v := range grammar.Next(e, len(line)) {
			h.t.Errorf("%s in the line %s", v, line)
		}
		s.events = append(s.events, e)
	}
	for _, v := range grammar.End() {
		h.t.Errorf("%s in the stream\n%s", v, body)
	}
	return s
}

// is holds a stream to its kinds of events, of progress the codes, and to its outcome.
func (s stream) is(t *testing.T, want string) {
	t.Helper()
	var all []string
	for _, e := range s.events {
		kind := string(e.Kind)
		if e.Kind == wire.EventProgress {
			kind = string(e.ProgressCode)
		}
		all = append(all, kind)
		if e.Kind == wire.EventTurnOutcome {
			all = append(all, string(e.Status)+"/"+string(e.ReasonCode))
		}
	}
	if got := strings.Join(all, " "); got != want {
		t.Fatalf("the stream has %s, want %s\n%s", got, want, s.text)
	}
}

func (s stream) last() int64 { return s.events[len(s.events)-1].SeqNo }

// answer continues the turn of q with an observation of what the stream asked.
func (s stream) answer(q *wire.TurnRequest, key wire.IdempotencyKey, o wire.Observation) *wire.TurnRequest {
	for _, e := range s.events {
		if e.RequestRef != "" {
			o.RequestRef = e.RequestRef
		}
	}
	if o.EvidenceRefs == nil {
		o.EvidenceRefs = []wire.Ref{} // the contract has it as an array
	}
	c := *q
	c.Mode, c.Observation, c.IdempotencyKey = wire.ModeContinue, &o, key
	return &c
}

func (h *host) outcome(q *wire.TurnRequest) *wire.Outcome {
	h.t.Helper()
	status, body := h.do("GET", "turns/"+url.PathEscape(string(q.TurnRef)), nil)
	o, err := wire.ParseOutcome(body)
	if status != http.StatusOK || err != nil {
		h.t.Fatalf("the outcome: %d %v %s", status, err, body)
	}
	return o
}

// read reads a document of the example's into v.
func read[D any](t *testing.T, file string, v *D) *D {
	t.Helper()
	doc, err := os.ReadFile(filepath.FromSlash(file))
	if err == nil {
		err = json.Unmarshal(doc, v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func marshal(t *testing.T, doc any) []byte {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// start builds the program and runs it on a free port until the test ends; then it is told to end, and
// must do so without an error. It returns the address that the program prints.
func start(t *testing.T) (url string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "reviewer")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	cmd := exec.CommandContext(ctx, binary, "-listen", "127.0.0.1:0", "-admissions", "admitted")
	cmd.Env = append(os.Environ(), "REVIEWER_OPERATOR_TOKEN="+operatorToken)
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGINT: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the program printed %q (%v), want its address", line, err)
	}
	return url
}
