package testhost_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/external"
)

const operatorToken = "operator-0123456789abcdef"

func ExampleExternal() {
	p, err := plugin.New(plugin.Config{
		ID: "muse", Adapter: echo.New(),
		External: &plugin.External{OperatorToken: operatorToken},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(p)
	defer server.Close()

	profile := testhost.NewProfile("profile:1")
	h := &testhost.External{
		URL: server.URL + plugin.ExternalPath, OperatorToken: operatorToken, Client: server.Client(),
		Profile: profile, Binding: testhost.NewBinding("binding:1", "agent:muse", profile),
	}
	ctx := context.Background()
	if err := h.Setup(ctx); err != nil {
		fmt.Println(err)
		return
	}
	request := h.Request("hello")
	for range 2 {
		answer, err := h.Run(ctx, request)
		fmt.Println(answer.Content, answer.Ended(), err) // the second time it is repeated
	}
	outcome, _, err := h.Inspect(ctx, request.TurnRef)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, content, err := h.Product(ctx, outcome.ProductRef)
	fmt.Println(content, outcome.BudgetCharged.MaxTokens, err)
	// Output:
	// hello completed/completed <nil>
	// hello completed/completed <nil>
	// hello 1 <nil>
}

// orbiplex is a host of a server with a scripted adapter, and has what it needs admitted.
func orbiplex(t *testing.T) *testhost.External {
	t.Helper()
	p, err := plugin.New(plugin.Config{
		ID: "muse", Adapter: scripted.New(scripted.Config{}), Logger: slog.New(slog.DiscardHandler),
		External: &plugin.External{OperatorToken: operatorToken},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := external(t, p)
	if err := h.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

func external(t *testing.T, handler http.Handler) *testhost.External {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	profile := testhost.NewProfile("profile:1")
	return &testhost.External{
		URL: server.URL + plugin.ExternalPath, OperatorToken: operatorToken, Client: server.Client(),
		Profile: profile, Binding: testhost.NewBinding("binding:1/ü?", "agent:muse", profile),
	}
}

func steps(lines ...string) string { return "script:\n" + strings.Join(lines, "\n") }

const usage = `{"usage":{"max_tokens":3,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1}}`

// TestExternalDocuments: what the host makes is what the contract wants, digests included.
func TestExternalDocuments(t *testing.T) {
	t.Parallel()
	h := external(t, http.NotFoundHandler())
	r := h.Request("one <&>", "two")
	next := testhost.Observe(r, "request:1", wire.ReasonToolNotAdmitted)
	if next.IdempotencyKey == r.IdempotencyKey || next.TurnRef != r.TurnRef || r.Observation != nil {
		t.Errorf("a continuation %+v of %+v", next, r)
	}
	var none testhost.External
	for name, r := range map[string]*wire.TurnRequest{"start": r, "continue": next, "without a binding": none.Request("x")} {
		body, err := r.AppendCanonical(nil)
		if err != nil {
			t.Fatal(err)
		}
		if vs := wire.Explain(wire.TurnRequestV1, body); len(vs) > 0 {
			t.Errorf("%s: %v", name, vs)
		}
		if digest, err := wire.InputDigest(body); err != nil || digest != r.InputDigest {
			t.Errorf("%s: input/digest %s, %v; want %s", name, r.InputDigest, err, digest)
		}
	}
}

func TestExternalObserves(t *testing.T) {
	t.Parallel()
	h := orbiplex(t)
	ctx := t.Context()
	start := h.Request(steps(
		`{"tool":{"ref":"tool:search","schema":"schema:query","input":{"q":1}}}`,
		`{"question":{"schema":"schema:question","question":{"ask":"?"}}}`, usage))
	a, err := h.Run(ctx, start)
	if err != nil || a.Outcome != nil || a.Ended() != "" || len(a.Asked) != 1 || a.Asked[0].Kind != wire.EventToolRequest {
		t.Fatalf("the start gives %+v, %v; want one tool request", a, err)
	}
	if outcome, raw, err := h.Inspect(ctx, start.TurnRef); err != nil || outcome != nil || !strings.Contains(string(raw), `"suspended"`) {
		t.Errorf("Inspect = %v, %s, %v; want a suspended turn", outcome, raw, err)
	}
	second := testhost.Observe(start, a.Asked[0].RequestRef, wire.ReasonCompleted)
	b, err := h.Run(ctx, second)
	if err != nil || len(b.Asked) != 1 || b.Asked[0].Kind != wire.EventOperatorQuestion {
		t.Fatalf("the first answer gives %+v, %v; want a question", b, err)
	}
	c, err := h.Run(ctx, testhost.Observe(start, b.Asked[0].RequestRef, wire.ReasonApprovalNotAdmitted))
	if err != nil || c.Ended() != "completed/completed" || !strings.HasPrefix(c.Content, "admitted:receipt-") || !strings.HasSuffix(c.Content, "refused:approval-not-admitted") {
		t.Errorf("the second answer gives %+v, %v", c, err)
	}
	// Each part again, as it was.
	for _, again := range []struct {
		r    *wire.TurnRequest
		want string
	}{{start, a.Raw}, {second, b.Raw}} {
		if got, err := h.Run(ctx, again.r); err != nil || got.Raw != again.want || got.Raw == "" {
			t.Errorf("a repeat gives %v\n%s, want\n%s", err, got.Raw, again.want)
		}
	}
}

func TestExternalCancels(t *testing.T) {
	t.Parallel()
	h := orbiplex(t)
	r := h.Request(steps(`{"text":"begun"}`, `{"block":true}`))
	s, err := h.Turn(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var end string
	for e, err := range s.Events() {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		switch {
		case e.ProgressCode == wire.ProgressRunning && end == "":
			if word, err := h.Cancel(t.Context(), r.TurnRef); err != nil || word != "acknowledged" {
				t.Errorf("Cancel = %q, %v", word, err)
			}
			end = "-"
		case e.Kind == wire.EventTurnOutcome:
			end = string(e.Status)
		}
	}
	if end != "cancelled" {
		t.Errorf("the turn ends %s, want cancelled", end)
	}
	if word, err := h.CloseSession(t.Context(), h.Binding.BindingRef); err != nil || word != "closed" {
		t.Errorf("CloseSession = %q, %v", word, err)
	}
	for name, call := range map[string]func() (string, error){
		"cancel":  func() (string, error) { return h.Cancel(t.Context(), "turn:none") },
		"session": func() (string, error) { return h.CloseSession(t.Context(), "binding:none") },
	} {
		word, err := call()
		var problem *testhost.Problem
		if word != "unknown" || !errors.As(err, &problem) || problem.Status != 404 {
			t.Errorf("%s of what is not known: %q, %v", name, word, err)
		}
	}
}

func TestExternalWithdraws(t *testing.T) {
	t.Parallel()
	h := orbiplex(t)
	if err := h.DisableProfile(t.Context(), h.Profile.ProfileRef); err != nil {
		t.Fatal(err)
	}
	if a, err := h.Run(t.Context(), h.Request("x")); err != nil || a.Ended() != "refused/profile-disabled" {
		t.Errorf("under a disabled profile: %+v, %v", a, err)
	}
	if err := h.RevokeBinding(t.Context(), h.Binding.BindingRef); err != nil {
		t.Fatal(err)
	}
	if a, err := h.Run(t.Context(), h.Request("x")); err != nil || a.Ended() != "refused/binding-revoked" {
		t.Errorf("under a revoked binding: %+v, %v", a, err)
	}
	// A binding whose digest is that of another.
	b := *h.Binding
	b.MaxPassages = 1
	var problem *testhost.Problem
	if err := h.AdmitBinding(t.Context(), &b); !errors.As(err, &problem) || problem.Status != 422 {
		t.Errorf("a binding that is not sealed: %v, want 422", err)
	}
}

// TestExternalProblem: what is refused at the door is told with what is wrong.
func TestExternalProblem(t *testing.T) {
	t.Parallel()
	h := orbiplex(t)
	s, err := h.Post(t.Context(), []byte(`{"schema":"x"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Answer()
	var problem *testhost.Problem
	if a.Status != 400 || !errors.As(err, &problem) || len(problem.Violations) == 0 || len(a.Events) != 0 {
		t.Errorf("%+v, %v; want 400 with violations", a, err)
	}
	r := h.Request("x")
	r.InputDigest = wire.ContentDigest([]byte("something else"))
	if _, err := h.Run(t.Context(), r); !errors.As(err, &problem) || problem.Status != 422 || !strings.Contains(err.Error(), "input/digest") {
		t.Errorf("a wrong digest: %v, want 422", err)
	}
}

// TestExternalProtocolErrors: a server that breaks the protocol is told of, line by line.
func TestExternalProtocolErrors(t *testing.T) {
	t.Parallel()
	line := func(seq int, ref, rest string) string {
		return fmt.Sprintf(`{"schema":"agent.external-runtime.event.v1","event/ref":%q,"turn/ref":"turn:1","seq/no":%d,%s,"at":"2030-01-01T00:00:00Z"}`+"\n", ref, seq, rest)
	}
	const accepted = `"kind":"progress","progress/code":"accepted","progress/current":0`
	const outcome = `"kind":"turn-outcome","status":"refused","reason/code":"policy-denied"`
	for _, tc := range []struct {
		name, body, want string
		limit            int
	}{
		{"good", line(1, "e1", accepted) + line(2, "e2", outcome), "", 0},
		{"no event", "hello\n" + line(1, "e1", outcome), "line 1 of the answer: malformed JSON", 0},
		{"gap", line(1, "e1", accepted) + line(3, "e2", outcome), "line 2 of the answer: /1/seq~1no is 3, expected 2", 0},
		{"twice", line(1, "e1", accepted) + line(2, "e1", outcome), "/1/event~1ref", 0},
		{"no end", line(1, "e1", accepted), "ended early: expected the turn's outcome", 0},
		{"nothing", "", "ended early", 0},
		{"after the end", line(1, "e1", outcome) + line(2, "e2", outcome), "expected nothing after", 0},
		{"nothing asked", line(1, "e1", strings.Replace(accepted, "accepted", "awaiting-observation", 1)), "a tool request or an operator question before it", 0},
		{"continued", line(7, "e1", strings.Replace(accepted, "accepted", "awaiting-observation", 1)), "", 0},
		{"long", line(1, "e1", outcome), "longer than", 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := external(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tc.body)) }))
			h.LineLimit = tc.limit
			_, err := h.Run(t.Context(), h.Request("x"))
			switch {
			case tc.want == "" && err != nil, tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that says %q", err, tc.want)
			}
			var long *ndjson.LineTooLongError
			if tc.limit > 0 && !errors.As(err, &long) {
				t.Errorf("%v is no LineTooLongError", err)
			}
		})
	}
}
