package external_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A world is what a request meets, with the faults that were put into it.
type world struct {
	profile, binding, request doc
	stale                     bool // the binding is put again, changed
	revoked, disabled         bool
	session                   string // "", "fits", "differs"
}

// A fault is one reason to refuse a request, in the order of the checks.
type fault struct {
	name   string
	reason wire.ReasonCode
	make   func(w *world)
	group  string // faults of one group exclude one another
}

func faults() []fault {
	goesOn := func(w *world) { w.request = w.request.answering("key:c", "request:none") }
	return []fault{
		{"missing", wire.ReasonBindingMissing, func(w *world) { w.request = w.request.with("binding/ref", "binding:none") }, ""},
		{"revoked", wire.ReasonBindingRevoked, func(w *world) { w.revoked = true }, ""},
		{"expired", wire.ReasonBindingExpired, func(w *world) { w.binding = w.binding.with("expires/at", "2026-01-01T00:00:00Z") }, ""},
		{"stale", wire.ReasonBindingStale, func(w *world) { w.stale = true }, "digest"},
		{"digest", wire.ReasonBindingMismatch, func(w *world) { w.request = w.request.with("binding/digest", wire.ContentDigest(nil)) }, "digest"},
		{"agent", wire.ReasonBindingMismatch, func(w *world) { w.request = w.request.with("agent/id", "agent:other") }, ""},
		{"generation", wire.ReasonProfileMismatch, func(w *world) { w.binding = w.binding.with("profile/generation", 2) }, ""},
		{"disabled", wire.ReasonProfileDisabled, func(w *world) { w.disabled = true }, ""},
		{"policy", wire.ReasonPolicyDenied, func(w *world) { w.request = w.request.with("visibility", "shared") }, ""},
		{"deadline", wire.ReasonEventTimeout, func(w *world) { w.request = w.request.with("deadline/at", "2026-01-01T00:00:00Z") }, ""},
		{"lost", wire.ReasonSessionLost, goesOn, "session"},
		{"fence", wire.ReasonSessionFenceMismatch, func(w *world) { goesOn(w); w.session = "differs" }, "session"},
		{"unasked", wire.ReasonEventUnauthorized, func(w *world) { goesOn(w); w.session = "fits" }, "session"},
		{"budget", wire.ReasonBudgetExhausted, func(w *world) { w.request = w.request.with("budget/reservation", budget(512, 1001, 30000, 10)) }, ""},
	}
}

// refusal sends a request into a world.
func (w *world) send(t *testing.T, g *rig) reply {
	t.Helper()
	g.admit("profiles", w.profile)
	b := w.binding.sealed()
	if w.stale {
		g.admit("bindings", b.with("created/by", "someone").sealed())
		old := b
		g.admit("bindings", old)
		b = b.with("created/at", "2026-09-02T00:00:00Z").sealed()
		g.admit("bindings", b)
		w.request = w.request.with("binding/digest", old["binding/digest"])
	} else {
		g.admit("bindings", b)
		if w.request["binding/digest"] == aBinding().sealed()["binding/digest"] {
			w.request = w.request.with("binding/digest", b["binding/digest"])
		}
	}
	if w.session != "" {
		f := ledger.Fence{
			Agent: agentID, AgentBinding: "agent-binding:reviewer", BindingDigest: ledger.Digest(fmt.Sprint(b["binding/digest"])),
			ProfileGeneration: 1, Epoch: "epoch:1",
		}
		if n, ok := b["profile/generation"].(int); ok {
			f.ProfileGeneration = int64(n)
		}
		if w.session == "differs" {
			f.Epoch = "epoch:0"
		}
		if _, err := g.store.PutSession(context.Background(), ledger.Session{Binding: bindingRef, Open: true, Fence: f}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if w.revoked {
		g.operate("DELETE", "bindings/"+bindingRef, nil)
	}
	if w.disabled {
		g.operate("DELETE", "profiles/"+profileRef, nil)
	}
	return g.post(w.request)
}

func newWorld() *world {
	return &world{profile: aProfile(), binding: aBinding(), request: aRequest("turn:1", goodScript)}
}

var goodScript = script(`{"text":"fine"}`, goodUsage)

func unadmitted(s *setup) { s.profile, s.binding = nil, nil }

// Each check refuses; where two would, it is the earlier one; the adapter is not called, nothing is
// charged, and the refusal is recorded.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	all := faults()
	for i, first := range all {
		for j, second := range all {
			if j < i || i != j && first.group != "" && first.group == second.group {
				continue
			}
			t.Run(first.name+"+"+second.name, func(t *testing.T) {
				t.Parallel()
				g := newRig(t, unadmitted)
				w := newWorld()
				first.make(w)
				if i != j {
					second.make(w)
				}
				r := w.send(t, g).ends("refused/" + string(first.reason))
				if e := r.events(); len(e) != 1 || e[0].SeqNo != 1 {
					t.Errorf("the refusal is not one line with seq/no 1:\n%s", r.body)
				}
				if again := g.post(w.request); again.body != r.body {
					t.Errorf("the refusal's replay differs:\n%s\n%s", r.body, again.body)
				}
				o := g.outcome("turn:1")
				if o.Status != wire.StatusRefused || o.ReasonCode != first.reason || o.Retryability != wire.Terminal ||
					o.BudgetCharged != (wire.Usage{}) || o.UsageFidelity != wire.FidelityUnavailable {
					t.Errorf("outcome %+v", o)
				}
				if g.adapter.calls.Load() != 0 {
					t.Error("the adapter was called")
				}
			})
		}
	}
}

func TestNoFaultIsNoRefusal(t *testing.T) {
	t.Parallel()
	newWorld().send(t, newRig(t, unadmitted)).ends("completed/completed")
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	quarantined := label("Personal").with("provenance", doc{"kind": "ingress", "surface": "import"},
		"quarantine", doc{"reason": "operator-hold", "entered_at": "2026-09-01T00:00:00Z"})
	artifact := func(w *world) {
		parts := []doc{{"kind": "text", "text": goodScript}, {"kind": "artifact", "artifact/ref": "artifact:1", "artifact/digest": wire.ContentDigest(nil), "artifact/size-bytes": 1}}
		digest, err := wire.CanonicalDigest(doc{"x": parts}.json()[5 : len(doc{"x": parts}.json())-1])
		if err != nil {
			panic(err)
		}
		w.request = w.request.with("input/parts", parts, "input/digest", digest)
	}
	remote := func(w *world, classes ...string) {
		w.profile = w.profile.with("transport/class", "remote", "egress/classes", classes)
	}
	for _, c := range []struct {
		name string
		ok   bool
		make func(w *world)
	}{
		{"prompt policy", false, func(w *world) { w.request = w.request.with("prompt-policy/ref", "prompt-policy:other") }},
		{"output schema", false, func(w *world) { w.request = w.request.with("output-schema/ref", "other.v1") }},
		{"visibility over the ceiling", false, func(w *world) { w.request = w.request.with("visibility", "shared") }},
		{"visibility under it", true, func(w *world) { w.request = w.request.with("visibility", "private") }},
		{"classification over the ceiling", false, func(w *world) { w.binding = w.binding.with("classification/ceiling", "Community") }},
		{"classification under it", true, func(w *world) { w.request = w.request.with("classification", label("Public")) }},
		{"quarantined", false, func(w *world) { w.request = w.request.with("classification", quarantined) }},
		{"passage over", false, func(w *world) { w.request = w.request.with("passage/no", 9) }},
		{"passage at most", true, func(w *world) { w.request = w.request.with("passage/no", 8) }},
		{"remote without text", false, func(w *world) { remote(w, "artifact") }},
		{"remote with text", true, func(w *world) { remote(w, "text") }},
		{"remote without artifacts", false, func(w *world) { remote(w, "text"); artifact(w) }},
		{"remote with both", true, func(w *world) { remote(w, "text", "artifact"); artifact(w) }},
		{"artifact at home", true, artifact},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			c.make(w)
			want := "refused/policy-denied"
			if c.ok {
				want = "completed/completed"
			}
			w.send(t, newRig(t, unadmitted)).ends(want)
		})
	}
}

// An agent that is admitted here but answered by no adapter is one of another runtime's.
func TestAnAgentWithoutAnAdapter(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	h, err := external.New(external.Config{
		Engine: g.engine, Store: g.store, Logger: quiet,
		Adapters: map[string]adapters.Adapter{"agent:other": g.adapter},
	})
	if err != nil {
		t.Fatal(err)
	}
	g.server.Config.Handler = h
	g.post(aRequest("turn:1", "x")).ends("refused/binding-mismatch")
}

func TestDeadlineEqualToNowHasPassed(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	g.post(aRequest("turn:1", "x").with("deadline/at", time.Now().UTC().Format(time.RFC3339Nano))).ends("refused/event-timeout")
}

// Refs in paths are percent-encoded, and anything that a ref may be.
func TestRefsInPaths(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for _, ref := range []string{"cancel", "a/b//c/../d", "100%", "ä?#&+;=", "%2F", ".", "..", "session"} {
		q := aRequest(ref, goodScript)
		g.post(q).ends("completed/completed")
		if o := g.outcome(ref); o.TurnRef != wire.TurnRef(ref) {
			t.Errorf("GET %s: %s", ref, o.TurnRef)
		}
		r := g.do("POST", "turns/"+url.PathEscape(ref)+"/cancel", nil)
		if r.status != 200 || r.body != fmt.Sprintf(`{"turn/ref":%q,"cancellation":"unknown"}`+"\n", ref) {
			t.Errorf("cancel %s: %d %s", ref, r.status, r.body)
		}
	}
	if r := g.do("POST", "turns/cancel", nil); r.status != 405 || r.header.Get("Allow") != "GET" {
		t.Errorf("POST turns/cancel: %d, Allow %q", r.status, r.header.Get("Allow"))
	}
}
