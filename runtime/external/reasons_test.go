package external_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	wire "github.com/backline-dev/backline/schema/external"
)

// A provocation makes a turn end with a reason. It returns the stream that says so, and what the outcome
// must say besides.
type provocation struct {
	ends string // status/reason
	// retry is the outcome's retryability; empty means terminal.
	retry wire.Retryability
	// setup is for the rig; send makes the turn "turn:1" and returns its last stream. By default it is a
	// start with the script.
	setup  func(*setup)
	script []string
	send   func(t *testing.T, g *rig) reply
	// kinds are the events of the stream, where they are worth a look.
	kinds string
}

func withProfile(changes ...any) func(*setup) {
	return func(s *setup) { s.profile = s.profile.with(changes...) }
}

// action is a candidate step.
func action(changes ...any) string {
	e := doc{"schema": "agent.external-runtime.event.v1", "turn/ref": "turn:1", "kind": "action-candidate", "action/schema": "act.v1", "action/digest": wire.ContentDigest(nil)}
	return string(doc{"event": e.with(changes...)}.json())
}

func candidateTool(changes ...any) string {
	return action(append([]any{
		"kind", "tool-request", "action/schema", nil, "action/digest", nil, "request/ref", "request:1", "tool/ref", "tool:x",
		"input/schema-ref", "x.v1", "input/digest", wire.ContentDigest(nil), "input", doc{"a": 1}, "classification", label("Personal"), "deadline/at", "2999-01-01T00:00:00Z",
	}, changes...)...)
}

func candidateQuestion() string {
	return action("kind", "operator-question", "action/schema", nil, "action/digest", nil, "request/ref", "request:1",
		"question/schema-ref", "x.v1", "question/digest", wire.ContentDigest(nil), "question", doc{"a": 1}, "deadline/at", "2999-01-01T00:00:00Z")
}

const (
	toolStep = `{"tool":{"ref":"tool:search","schema":"search.v1","input":{"q":"x"}}}`
	askStep  = `{"question":{"schema":"q.v1","question":{"ask":"sure?"}}}`
)

// running starts a turn on its own goroutine and waits until its adapter has been called.
func (g *rig) running(q doc) <-chan reply {
	g.t.Helper()
	calls := g.adapter.calls.Load()
	done := make(chan reply, 1)
	go func() {
		r, err := g.send(context.Background(), "POST", "turns", q.json())
		if err != nil {
			done <- reply{t: g.t, err: err}
			return
		}
		done <- g.read(r)
	}()
	eventually(g.t, "the adapter is called", func() bool { return g.adapter.calls.Load() > calls })
	return done
}

// reached waits until a turn that runs has emitted so many events.
func (g *rig) reached(turn string, events int64) {
	g.t.Helper()
	eventually(g.t, "the turn gets that far", func() bool {
		var m struct {
			Seq int64 `json:"seq/no"`
		}
		return json.Unmarshal([]byte(g.do("GET", "turns/"+turn, nil).body), &m) == nil && m.Seq >= events
	})
}

func (g *rig) cancel(turn string) string {
	g.t.Helper()
	r := g.do("POST", "turns/"+url.PathEscape(turn)+"/cancel", nil)
	for _, w := range []string{"acknowledged", "pending", "unknown"} {
		if r.body == fmt.Sprintf("{\"turn/ref\":%q,\"cancellation\":%q}\n", turn, w) {
			return w
		}
	}
	g.t.Fatalf("cancel: %d %s", r.status, r.body)
	return ""
}

func (g *rig) closeSession() string {
	g.t.Helper()
	r := g.do("DELETE", "bindings/"+bindingRef+"/session", nil)
	for _, w := range []string{"closed", "pending", "unknown"} {
		if r.body == fmt.Sprintf("{\"session\":%q}\n", w) {
			return w
		}
	}
	g.t.Fatalf("close session: %d %s", r.status, r.body)
	return ""
}

func provocations() map[string]provocation {
	denied := withProfile("tool/mode", "deny-all")
	return map[string]provocation{
		"completed":                           {ends: "completed/completed", script: []string{`{"text":"x"}`, goodUsage}},
		"completed with an action":            {ends: "completed/completed", script: []string{action(), action("seq/no", 4, "event/ref", "mine"), `{"text":"x"}`, goodUsage}, kinds: "accepted running action-candidate action-candidate product-candidate usage turn-outcome"},
		"budget: usage over the reservation":  {ends: "failed/budget-exhausted", script: []string{`{"text":"x"}`, `{"usage":{"max_tokens":513,"max_cost_micros":1}}`}, kinds: "accepted running usage turn-outcome"},
		"budget: the wall time":               {ends: "failed/budget-exhausted", send: timed(50, 60000, "")},
		"timeout: the profile's":              {ends: "failed/event-timeout", retry: wire.Retryable, setup: withProfile("limits", limits(64, 65536, 65536, 50)), script: []string{`{"block":true}`}},
		"timeout: profile and wall are equal": {ends: "failed/event-timeout", retry: wire.Retryable, setup: withProfile("limits", limits(64, 65536, 65536, 50)), send: timed(50, 60000, "")},
		"timeout: the request's deadline":     {ends: "failed/event-timeout", retry: wire.Retryable, send: timed(30000, 50, "")},
		"timeout: first output": {ends: "failed/event-timeout", retry: wire.Retryable, script: []string{`{"block":true}`},
			setup: func(s *setup) { s.engine.FirstOutput = 50 * time.Millisecond }},
		"timeout: idle": {ends: "failed/event-timeout", retry: wire.Retryable, script: []string{`{"text":"x"}`, `{"block":true}`},
			setup: func(s *setup) { s.engine.Idle = 50 * time.Millisecond }},
		"usage missing":             {ends: "failed/usage-missing", script: []string{`{"text":"x"}`, `{"usage":{"max_steps":1}}`}, kinds: "accepted running turn-outcome"},
		"usage of another fidelity": {ends: "failed/usage-missing", script: []string{`{"text":"x"}`, `{"usage":{"max_tokens":1,"max_cost_micros":1},"fidelity":"estimated"}`}},
		"usage malformed":           {ends: "failed/usage-malformed", script: []string{`{"text":"x"}`, `{"usage":{"max_tokens":"3","max_cost_micros":1}}`}},
		"usage overflow":            {ends: "failed/usage-overflow", script: []string{`{"text":"x"}`, `{"usage":{"max_tokens":9007199254740992,"max_cost_micros":1}}`}},
		"usage conflict":            {ends: "failed/usage-conflict", script: []string{`{"text":"x"}`, goodUsage, `{"usage":{"max_tokens":4}}`}},
		"nothing said":              {ends: "failed/event-malformed", script: []string{goodUsage}},
		"candidate: malformed":      {ends: "failed/event-malformed", script: []string{action("action/digest", "none"), `{"block":true}`}},
		"candidate: no kind":        {ends: "failed/event-malformed", script: []string{action("kind", nil), `{"block":true}`}},
		"candidate: unknown field":  {ends: "failed/event-malformed", script: []string{action("more", 1), `{"block":true}`}},
		"candidate: seq/no seen":    {ends: "failed/event-duplicate", script: []string{action("seq/no", 2), `{"block":true}`}},
		"candidate: own ref seen":   {ends: "failed/event-duplicate", script: []string{action("event/ref", "a"), action("event/ref", "a"), `{"block":true}`}},
		"candidate: seq/no ahead":   {ends: "failed/event-reordered", script: []string{action("seq/no", 4), `{"block":true}`}},
		"candidate: time goes back": {ends: "failed/event-reordered", script: []string{action("at", "2000-01-01T00:00:00Z"), `{"block":true}`}},
		"candidate: time far ahead": {ends: "failed/event-malformed", script: []string{action("at", "2998-01-01T00:00:00Z"), `{"block":true}`}},
		"candidate: time a little ahead": {ends: "completed/completed", send: func(_ *testing.T, g *rig) reply {
			return g.post(aRequest("turn:1", script(action("at", wire.DateTimeOf(time.Now().Add(700*time.Millisecond))), `{"text":"x"}`, goodUsage)))
		}},
		"candidate: too large":              {ends: "failed/event-oversized", setup: withProfile("limits", limits(64, 400, 400, 60000)), script: []string{action("action/schema", strings.Repeat("x", 400)), `{"block":true}`}},
		"candidates: too many":              {ends: "failed/event-oversized", setup: withProfile("limits", limits(4, 65536, 65536, 60000)), script: []string{action(), action(), action(), `{"block":true}`}},
		"candidate: another turn's":         {ends: "failed/event-unauthorized", script: []string{action("turn/ref", "turn:2"), `{"block":true}`}},
		"candidate: a kind of ours":         {ends: "failed/event-unauthorized", script: []string{action("kind", "progress", "action/schema", nil, "action/digest", nil, "progress/code", "running", "progress/current", 1), `{"block":true}`}},
		"candidate: an outcome":             {ends: "failed/event-unauthorized", script: []string{action("kind", "turn-outcome", "action/schema", nil, "action/digest", nil, "status", "completed", "reason/code", "completed"), `{"block":true}`}},
		"candidate: tool request, mediated": {ends: "failed/event-unauthorized", script: []string{candidateTool(), `{"block":true}`}},
		"candidate: tool request, denied":   {ends: "refused/tool-not-admitted", setup: denied, script: []string{candidateTool(), `{"block":true}`}},
		"candidate: question, denied":       {ends: "refused/approval-not-admitted", setup: denied, script: []string{candidateQuestion(), `{"block":true}`}},
		"tool, denied":                      {ends: "refused/tool-not-admitted", setup: denied, script: []string{`{"text":"x"}`, toolStep, goodUsage}},
		"question, denied":                  {ends: "refused/approval-not-admitted", setup: denied, script: []string{askStep}},
		"tool: no ref":                      {ends: "failed/event-malformed", script: []string{`{"tool":{"ref":"a b","schema":"s","input":{"q":1}}}`}},
		"tool: empty input":                 {ends: "failed/event-malformed", script: []string{`{"tool":{"ref":"t","schema":"s","input":{}}}`}},
		"tool: too large":                   {ends: "failed/event-oversized", setup: withProfile("limits", limits(64, 900, 400, 60000)), script: []string{`{"tool":{"ref":"t","schema":"s","input":{"q":"` + strings.Repeat("x", 900) + `"}}}`}},
		"product: too long":                 {ends: "failed/event-oversized", setup: withProfile("limits", limits(64, 65536, 10, 60000)), script: []string{`{"text":"0123456789"}`, `{"text":"0"}`, `{"block":true}`}},
		"product: its event too long":       {ends: "failed/event-oversized", setup: withProfile("limits", limits(64, 300, 65536, 60000)), script: []string{`{"text":"` + strings.Repeat("x", 300) + `"}`, goodUsage}},
		"product: no room":                  {ends: "failed/event-oversized", setup: withProfile("limits", limits(1, 65536, 65536, 60000)), script: []string{`{"text":"x"}`, goodUsage}, kinds: "turn-outcome"},
		"provider":                          {ends: "failed/provider-unavailable", script: []string{`{"text":"x"}`, `{"unavailable":"down"}`}},
		"provider, for a time":              {ends: "failed/provider-unavailable", retry: wire.Retryable, script: []string{`{"unavailable":"busy","temporary":true}`}},
		"an error of the adapter":           {ends: "failed/provider-unavailable", script: []string{`{"error":"no"}`}},
		"a panic":                           {ends: "failed/provider-unavailable", script: []string{`{"panic":"no"}`}},
		"what this protocol does not have":  {ends: "failed/provider-unavailable", script: []string{`{"arrivals":"1s"}`}},
		"cancelled": {ends: "cancelled/cancelled", kinds: "accepted running action-candidate cancelling usage turn-outcome", send: func(t *testing.T, g *rig) reply {
			done := g.running(aRequest("turn:1", script(goodUsage, action(), `{"block":true}`)))
			g.reached("turn:1", 3)
			if w := g.cancel("turn:1"); w != "acknowledged" {
				t.Errorf("cancellation %s", w)
			}
			return <-done
		}},
		"cancelled, and the adapter does not care": {ends: "cancelled/cancelled", setup: func(s *setup) { s.engine.Grace = 400 * time.Millisecond }, send: func(t *testing.T, g *rig) reply {
			done := g.running(aRequest("turn:1", script(`{"stall":"1s"}`, action(), `{"text":"late"}`, goodUsage)))
			if w := g.cancel("turn:1"); w != "pending" {
				t.Errorf("cancellation %s", w)
			}
			r := <-done
			g.engine.WaitAdapters()
			return r
		}},
		"session closed, and it goes on": {ends: "failed/event-stale", setup: gated, send: func(t *testing.T, g *rig) reply {
			done := g.running(aRequest("turn:1", script(`{"text":"x"}`, `{"block":true}`)))
			if w := g.closeSession(); w != "pending" {
				t.Errorf("session %s", w)
			}
			g.open()
			return <-done
		}},
		"session closed, then a candidate": {ends: "failed/event-stale", setup: gated, send: func(t *testing.T, g *rig) reply {
			done := g.running(aRequest("turn:1", script(action(), `{"block":true}`)))
			g.closeSession()
			g.open()
			return <-done
		}},
		"session closed, then a tool": {ends: "failed/event-stale", setup: gated, send: func(t *testing.T, g *rig) reply {
			done := g.running(aRequest("turn:1", script(toolStep)))
			g.closeSession()
			g.open()
			return <-done
		}},
		"session closed while suspended": {ends: "refused/session-lost", send: func(t *testing.T, g *rig) reply {
			q := aRequest("turn:1", script(toolStep, `{"text":"x"}`))
			start := g.post(q)
			if w := g.closeSession(); w != "closed" {
				t.Errorf("session %s", w)
			}
			if o := g.outcome("turn:1"); o.Status != wire.StatusFailed || o.ReasonCode != wire.ReasonSessionLost {
				t.Errorf("outcome %s/%s", o.Status, o.ReasonCode)
			}
			if w := g.closeSession(); w != "unknown" {
				t.Errorf("session closed again: %s", w)
			}
			return g.post(q.answering("key:c", start.asked()))
		}},
		"a fence": {ends: "refused/session-fence-mismatch", send: func(t *testing.T, g *rig) reply {
			q := aRequest("turn:1", script(toolStep, `{"text":"x"}`))
			start := g.post(q)
			changed := aBinding().with("created/by", "someone").sealed()
			g.admit("bindings", changed)
			r := g.post(q.answering("key:c", start.asked()).with("binding/digest", changed["binding/digest"]))
			if n := r.events()[0].SeqNo; n != start.last().SeqNo+1 {
				t.Errorf("the refusal's seq/no is %d", n)
			}
			g.post(q.answering("key:c2", start.asked())).ends("refused/binding-stale")
			return r
		}},
	}
}

// timed is a start with a wall time and a deadline in milliseconds, whose adapter blocks.
func timed(wall, deadline int, _ string) func(*testing.T, *rig) reply {
	return func(t *testing.T, g *rig) reply {
		return g.post(aRequest("turn:1", script(`{"block":true}`)).with(
			"budget/reservation", budget(512, 1000, int64(wall), 10),
			"deadline/at", time.Now().Add(time.Duration(deadline)*time.Millisecond).UTC().Format(time.RFC3339Nano)))
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	for name, p := range provocations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, p.setup)
			var r reply
			if p.send != nil {
				r = p.send(t, g)
			} else {
				r = g.post(aRequest("turn:1", script(p.script...)))
			}
			r.ends(p.ends)
			if p.kinds != "" && r.kinds() != p.kinds {
				t.Errorf("the events are %s, want %s", r.kinds(), p.kinds)
			}
			if strings.HasPrefix(p.ends, "refused/session") {
				return // of a continue: the turn's own outcome is another, if it has one
			}
			o := g.outcome("turn:1")
			if p.retry == "" {
				p.retry = wire.Terminal
			}
			if got := string(o.Status) + "/" + string(o.ReasonCode); got != p.ends || o.Retryability != p.retry {
				t.Errorf("the outcome is %s, %s, want %s, %s", got, o.Retryability, p.ends, p.retry)
			}
			if (o.ProductRef != "") != (o.Status == wire.StatusCompleted) {
				t.Errorf("product %q of a turn that is %s", o.ProductRef, o.Status)
			}
		})
	}
}

// Every reason code is provoked over HTTP, by TestReasons, TestOrderOfChecks or the test named here.
func TestEveryReasonCodeIsProvoked(t *testing.T) {
	t.Parallel()
	provoked := map[wire.ReasonCode]bool{wire.ReasonUnknown: true} // TestATurnWhoseEndNobodySaw
	for _, p := range provocations() {
		_, reason, _ := strings.Cut(p.ends, "/")
		provoked[wire.ReasonCode(reason)] = true
	}
	for _, f := range faults() {
		provoked[f.reason] = true
	}
	for _, c := range wire.Values[wire.ReasonCode]() {
		if !provoked[c] {
			t.Errorf("nothing provokes %s", c)
		}
	}
}

// A turn that was running when its process died becomes unknown at the next start: charged in full, and
// never run again. What the old process still has to say of it changes nothing.
func TestATurnWhoseEndNobodySaw(t *testing.T) {
	t.Parallel()
	old := newRig(t, gated)
	q := aRequest("turn:1", script(`{"text":"x"}`, goodUsage))
	done := old.running(q)
	g := newRig(t, func(s *setup) { s.conf.Store = old.store }) // recovers
	r := g.post(q).ends("unknown/unknown")
	o := g.outcome("turn:1")
	if o.Retryability != wire.ReconciliationRequired || o.BudgetCharged != wire.Usage(o.BudgetReserved) {
		t.Errorf("outcome %+v", o)
	}
	old.open()
	// The old process has no outcome to tell, and what it told has other refs.
	if r0 := <-done; r0.err == nil || strings.Contains(r0.body, "turn-outcome") || strings.Contains(r0.body, string(r.last().EventRef)) {
		t.Errorf("the old stream, which ended with %v, is\n%s\nand the new one\n%s", r0.err, r0.body, r.body)
	}
	if again := g.post(q); again.body != r.body {
		t.Errorf("the replay differs:\n%s\n%s", r.body, again.body)
	}
	if after := g.outcome("turn:1"); *after != *o {
		t.Errorf("outcome %+v, was %+v", after, o)
	}
	if g.adapter.calls.Load() != 0 {
		t.Error("the turn was run again")
	}
}
