package external_test

import (
	"encoding/json"
	"strings"
	"testing"

	wire "github.com/backline-dev/backline/schema/external"
)

// The log names the turn's agent, and no plugin: there are none here.
func TestLogsNameTheAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	g.post(aRequest("turn:1", goodScript)).ends("completed/completed")
	named := func() bool {
		return strings.Contains(g.logs.String(), `"msg":"turn","protocol":"external-runtime","agent":"`+agentID+`"`)
	}
	eventually(t, "the turn's line in the log", named)
	if strings.Contains(g.logs.String(), `"plugin"`) {
		t.Errorf("the log names a plugin:\n%s", g.logs.String())
	}
}

// The scripted adapter's message is the first text part.
func TestAScriptInTheFirstOfSeveralParts(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	r := g.post(aRequest("turn:1", "x").with(input(script(`{"text":"a"}`, goodUsage), "more")...)).ends("completed/completed")
	if e := r.events()[2]; e.Content != "a" {
		t.Errorf("the product is %q", e.Content)
	}
}

func TestATurnFromStartToReplay(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	q := aRequest("turn:1", script(`{"text":"The proposal "}`, `{"text":"is fine."}`, goodUsage))
	first := g.post(q)
	first.ends("completed/completed")
	if got, want := first.kinds(), "accepted running product-candidate usage turn-outcome"; got != want {
		t.Errorf("the events are %s, want %s", got, want)
	}
	for i, e := range first.events() {
		if e.SeqNo != int64(i+1) || e.TurnRef != "turn:1" {
			t.Errorf("event %d: seq/no %d, turn/ref %s", i, e.SeqNo, e.TurnRef)
		}
	}
	if c := first.events()[2].Content; c != "The proposal is fine." {
		t.Errorf("content %q", c)
	}

	o := g.outcome("turn:1")
	if o.Retryability != wire.Terminal || o.BudgetCharged != (wire.Usage{MaxTokens: 3, MaxCostMicros: 2, MaxWallTimeMS: 5, MaxSteps: 1}) ||
		o.UsageFidelity != wire.FidelityAuthoritative || o.BudgetReserved.MaxTokens != 512 {
		t.Errorf("outcome %+v", o)
	}

	r := g.do("GET", "products/"+string(o.ProductRef), nil)
	var p struct {
		Product json.RawMessage `json:"product"`
		Content string          `json:"content"`
	}
	if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 200 {
		t.Fatalf("product: %d %v %s", r.status, err, r.body)
	}
	product, err := wire.ParseProduct(p.Product)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := wire.DigestWithout(p.Product, "product/digest")
	if err != nil || digest != product.ProductDigest || digest != o.ProductDigest {
		t.Errorf("product digest %s, want %s and %s: %v", product.ProductDigest, digest, o.ProductDigest, err)
	}
	if p.Content != "The proposal is fine." || product.ContentDigest != wire.ContentDigest([]byte(p.Content)) || product.ContentSizeBytes != 21 {
		t.Errorf("content %q of %+v", p.Content, product)
	}

	again := g.post(q)
	if again.body != first.body {
		t.Errorf("the replay differs:\n%s\n%s", first.body, again.body)
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("the adapter was called %d times", n)
	}
}

func TestASuspendedTurnGoesOn(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	q := aRequest("turn:1", script(`{"tool":{"ref":"tool:search","schema":"search.v1","input":{"q": 1.10}}}`, `{"question":{"schema":"q.v1","question":{"ask":"sure?"}}}`, goodUsage))
	start := g.post(q)
	if got, want := start.kinds(), "accepted running tool-request awaiting-observation"; got != want {
		t.Fatalf("the start's events are %s, want %s", got, want)
	}
	one := q.answering("key:c1", start.asked())
	first := g.post(one)
	if got, want := first.kinds(), "running operator-question awaiting-observation"; got != want {
		t.Fatalf("the first continue's events are %s, want %s", got, want)
	}
	two := q.answering("key:c2", first.asked(), "disposition", "refused", "reason/code", "approval-not-admitted")
	second := g.post(two)
	second.ends("completed/completed")
	if c := second.events()[1].Content; c != "admitted:receipt:1refused:approval-not-admitted" {
		t.Errorf("content %q", c)
	}
	seq := int64(0)
	for _, r := range []reply{start, first, second} {
		for _, e := range r.events() {
			if seq++; e.SeqNo != seq {
				t.Errorf("seq/no %d, want %d", e.SeqNo, seq)
			}
		}
	}
	for _, p := range []struct {
		q doc
		r reply
	}{{q, start}, {one, first}, {two, second}} {
		if again := g.post(p.q); again.body != p.r.body {
			t.Errorf("the replay of %s differs:\n%s\n%s", p.q.ref("idempotency/key"), p.r.body, again.body)
		}
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("the adapter was called %d times", n)
	}
}
