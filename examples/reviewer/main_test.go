package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backline-dev/backline/internal/exampletest"
	"github.com/backline-dev/backline/internal/testhost"
	wire "github.com/backline-dev/backline/schema/external"
)

const operatorToken = "a token of the operator's"

// TestProgram builds the program, runs it, and plays its hosts.
func TestProgram(t *testing.T) {
	t.Parallel()
	p := exampletest.Start(t, []string{"REVIEWER_OPERATOR_TOKEN=" + operatorToken}, "-admissions", "admitted")
	t.Cleanup(testhost.CloseIdleConnections)
	for name, test := range map[string]func(*testing.T, string){"orbiplex": orbiplex, "operator": operator, "lowkey": lowkey} {
		t.Run(name, func(t *testing.T) { test(t, p.URL) })
	}
}

// orbiplex runs what is admitted from the directory, from its start over two answers to its end, and has
// it replayed.
func orbiplex(t *testing.T, url string) {
	h := &testhost.External{
		URL:     url + "/external-runtime",
		Profile: read(t, "admitted/profile.json", &wire.Profile{}),
		Binding: read(t, "admitted/binding.json", &wire.Binding{}),
	}
	q := read(t, "request.json", &wire.TurnRequest{})
	if draft := q.InputParts[0].Text; draft != aDraft {
		t.Errorf("request.json has another draft: %s", draft)
	}

	asked := run(t, h, q, "accepted running tool-request awaiting-observation")
	if e := asked.Asked[0]; e.ToolRef != "tool:check-facts" || string(e.Input) != `{"claims":["Our river is 346 km long."]}` {
		t.Errorf("the tool request is %+v", e)
	}
	if o, raw, err := h.Inspect(t.Context(), q.TurnRef); o != nil || err != nil || !strings.Contains(string(raw), `"state":"suspended"`) {
		t.Errorf("the suspended turn: %v %s", err, raw)
	}
	checked := testhost.Observe(q, asked.Asked[0].RequestRef, wire.ReasonCompleted)
	checked.Observation.ReceiptRef, checked.Observation.EvidenceRefs = "receipt:7", []wire.Ref{"evidence:a"}
	question := run(t, h, checked, "running operator-question awaiting-observation")
	refused := testhost.Observe(q, question.Asked[0].RequestRef, wire.ReasonPolicyDenied)
	end := run(t, h, refused, "running product-candidate usage turn-outcome")
	const want = "Critique of a draft of 37 words in 3 sentences.\n\nFacts: checked (receipt:7); see evidence:a.\nReaders: the team (policy-denied).\n"
	if end.Ended() != "completed/completed" || end.Content != want {
		t.Errorf("%s with\n%s\nwant\n%s", end.Ended(), end.Content, want)
	}

	seq := int64(0) // counts over all streams of the turn
	for _, e := range append(append(asked.Events, question.Events...), end.Events...) {
		if seq++; e.SeqNo != seq {
			t.Errorf("seq/no %d, want %d", e.SeqNo, seq)
		}
	}
	for _, again := range []struct {
		q     *wire.TurnRequest
		first *testhost.ExternalAnswer
	}{{q, asked}, {checked, question}, {refused, end}} {
		if a, err := h.Run(t.Context(), again.q); err != nil || a.Raw != again.first.Raw {
			t.Errorf("the replay of %s differs, %v:\n%s\n%s", again.q.IdempotencyKey, err, again.first.Raw, a.Raw)
		}
	}

	o := outcome(t, h, q)
	if u := o.BudgetCharged; o.Retryability != wire.Terminal || u.MaxTokens == 0 || u.MaxCostMicros != 0 || u.MaxSteps != 3 {
		t.Errorf("the outcome is %+v", o)
	}
	if _, content, err := h.Product(t.Context(), o.ProductRef); err != nil || content != want {
		t.Errorf("the product is %q, %v", content, err)
	}
}

// operator admits over HTTP what lends no tools, and revokes it.
func operator(t *testing.T, url string) {
	h := &testhost.External{URL: url + "/external-runtime", OperatorToken: operatorToken, Profile: testhost.NewProfile("profile:none")}
	h.Profile.ToolMode = wire.ToolsDenyAll
	h.Binding = testhost.NewBinding("binding:none", "agent:reviewer", h.Profile)
	if err := h.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := h.Request(aDraft)
	if a := run(t, h, q, "accepted running turn-outcome"); a.Ended() != "refused/tool-not-admitted" {
		t.Errorf("without tools the turn ends %s", a.Ended())
	}
	if u := outcome(t, h, q).BudgetCharged; u != wire.Usage(q.BudgetReservation) {
		t.Errorf("without usage %+v is charged", u)
	}
	if err := h.RevokeBinding(t.Context(), h.Binding.BindingRef); err != nil {
		t.Fatal(err)
	}
	if a := run(t, h, h.Request(aDraft), "turn-outcome"); a.Ended() != "refused/binding-revoked" {
		t.Errorf("revoked, the turn ends %s", a.Ended())
	}
}

// lowkey has the same adapter answer without what is not there.
func lowkey(t *testing.T, url string) {
	a := exampletest.Say(t, testhost.NewConversation(&testhost.Lowkey{URL: url + "/lowkey/turn", PluginID: "reviewer"}), aDraft)
	if !a.Completed() || !strings.Contains(a.Text, "this host lends no tools") || !strings.Contains(a.Text, "nobody could be asked") {
		t.Errorf("text %q, ended by %+v", a.Text, a.End)
	}
}

// run sends a request and holds its stream to its kinds of events, of progress the codes.
func run(t *testing.T, h *testhost.External, q *wire.TurnRequest, want string) *testhost.ExternalAnswer {
	t.Helper()
	a, err := h.Run(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range a.Events {
		if e.Kind == wire.EventProgress {
			kinds = append(kinds, string(e.ProgressCode))
		} else {
			kinds = append(kinds, string(e.Kind))
		}
	}
	if got := strings.Join(kinds, " "); got != want {
		t.Fatalf("the stream has %s, want %s\n%s", got, want, a.Raw)
	}
	return a
}

func outcome(t *testing.T, h *testhost.External, q *wire.TurnRequest) *wire.Outcome {
	t.Helper()
	o, raw, err := h.Inspect(t.Context(), q.TurnRef)
	if err != nil || o == nil {
		t.Fatalf("the outcome: %v %s", err, raw)
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
