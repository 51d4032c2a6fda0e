package external_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// An admissionAnswer is what an operator is told.
type admissionAnswer struct {
	Profile     json.RawMessage `json:"profile"`
	Binding     json.RawMessage `json:"binding"`
	State       string          `json:"state"`
	Change      ledger.Change   `json:"change"`
	AdmittedAt  time.Time       `json:"admitted/at"`
	WithdrawnAt *time.Time      `json:"withdrawn/at"`
}

func (r reply) admission(status int, state string, change ledger.Change) admissionAnswer {
	r.t.Helper()
	var a admissionAnswer
	if err := json.Unmarshal([]byte(r.body), &a); err != nil || r.status != status || a.State != state || a.Change != change || (a.WithdrawnAt != nil) != (state != "admitted") {
		r.t.Errorf("the answer is %d %v %s, want %d, %s, %q", r.status, err, r.body, status, state, change)
	}
	return a
}

func TestOperatorEndpoints(t *testing.T) {
	t.Parallel()
	g := newRig(t, unadmitted)
	profile, binding := aProfile(), aBinding().sealed()
	p, b := "profiles/"+profileRef, "bindings/"+bindingRef
	g.operate("GET", p, nil).problem(404)
	g.operate("DELETE", b, nil).problem(404)

	// A binding may name a profile that is not there yet, and may have expired.
	g.operate("PUT", b, binding.json()).admission(201, "admitted", ledger.Admitted)
	g.operate("PUT", p, profile.json()).admission(201, "admitted", ledger.Admitted)
	g.operate("PUT", p, profile.json()).admission(200, "admitted", ledger.Unchanged)
	if a := g.operate("GET", b, nil).admission(200, "admitted", ""); string(a.Binding) != string(binding.json()) {
		t.Errorf("GET has %s", a.Binding)
	}
	g.post(aRequest("turn:1", goodScript)).ends("completed/completed")

	g.operate("DELETE", p, nil).admission(200, "disabled", "")
	g.operate("GET", p, nil).admission(200, "disabled", "")
	g.post(aRequest("turn:2", goodScript)).ends("refused/profile-disabled")
	g.operate("PUT", p, profile.json()).admission(200, "admitted", ledger.Restored)
	g.post(aRequest("turn:3", goodScript)).ends("completed/completed")
	g.operate("DELETE", b, nil).admission(200, "revoked", "")
	g.post(aRequest("turn:4", goodScript)).ends("refused/binding-revoked")
	g.operate("PUT", b, binding.json()).admission(200, "admitted", ledger.Restored)
	g.post(aRequest("turn:5", goodScript)).ends("completed/completed")

	expired := binding.with("expires/at", "2000-01-01T00:00:00Z").sealed()
	g.operate("PUT", b, expired.json()).admission(200, "admitted", ledger.Replaced)
	g.post(aRequest("turn:6", goodScript)).ends("refused/binding-expired")

	// What is refused changes nothing.
	stale := g.operate("PUT", b, binding.with("created/by", "other").json())
	stale.problem(422)
	right, err := wire.DigestWithout(binding.with("created/by", "other").json(), "binding/digest")
	if err != nil || !strings.Contains(string(stale.body), string(right)) {
		t.Errorf("the answer does not name the right digest, %s (%v): %s", right, err, stale.body)
	}
	g.operate("PUT", "bindings/binding:other", binding.json()).problem(400)
	g.operate("PUT", p, binding.json()).problem(400)
	g.operate("PUT", p, profile.with("profile/generation", 0).json()).problem(400)
	if a := g.operate("GET", b, nil).admission(200, "admitted", ""); string(a.Binding) != string(expired.json()) {
		t.Errorf("GET has %s", a.Binding)
	}
}

func TestLoadAdmissions(t *testing.T) {
	t.Parallel()
	g := newRig(t, unadmitted)
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a-binding.json", aBinding().sealed().json())
	write("profile.json", append([]byte("\n"), aProfile().json()...))
	write("readme.txt", []byte("not read"))
	write("bad-digest.json", aBinding().with("binding/ref", "binding:bad").sealed().with("created/by", "x").json())
	write("broken.json", []byte(`{"schema":`))
	write("other.json", aRequest("turn:1", "x").json())
	write("twice.json", aBinding().with("created/by", "x").sealed().json())
	write("wrong.json", aProfile().with("tool/mode", "all").json())
	write("key.json", []byte(strings.Replace(string(aProfile().json()), `"tool/mode"`, `"tool/mode":"mediated","tool/mode"`, 1)))

	results, err := g.h.LoadAdmissions(t.Context(), dir)
	if len(results) != 8 {
		t.Errorf("%d results: %+v", len(results), results)
	}
	for file, text := range map[string]string{
		"bad-digest.json": "binding/digest", "broken.json": "malformed JSON", "other.json": "its schema is neither",
		"twice.json": "also in a-binding.json", "wrong.json": "tool~1mode", "key.json": "duplicate key",
	} {
		ok := false
		for _, r := range results {
			ok = ok || r.File == file && r.Err != nil && strings.Contains(r.Err.Error(), file) && strings.Contains(r.Err.Error(), text)
		}
		if !ok || err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: no error that says %q in %v", file, text, err)
		}
	}
	for _, r := range results {
		if r.Err == nil && r.Change != ledger.Admitted {
			t.Errorf("%s: %s", r.File, r.Change)
		}
	}
	g.post(aRequest("turn:1", goodScript)).ends("completed/completed")

	// Reading again lifts no revocation, and a file that is gone revokes nothing.
	g.operate("DELETE", "bindings/"+bindingRef, nil)
	for _, name := range []string{"bad-digest.json", "broken.json", "other.json", "twice.json", "wrong.json", "key.json", "profile.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	results, err = g.h.LoadAdmissions(t.Context(), dir)
	if err != nil || len(results) != 1 || results[0].Change != ledger.StillWithdrawn {
		t.Errorf("LoadAdmissions = %+v, %v", results, err)
	}
	g.post(aRequest("turn:2", goodScript)).ends("refused/binding-revoked")
	g.admit("bindings", aBinding().sealed())
	g.post(aRequest("turn:3", goodScript)).ends("completed/completed")

	if _, err := g.h.LoadAdmissions(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there gives no error")
	}
}
