package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A logLine is a line of the log.
type logLine map[string]any

func (g *rig) logged(msg string) (all []logLine) {
	g.t.Helper()
	for line := range strings.Lines(g.logs.String()) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			g.t.Fatal(err)
		}
		if l["msg"] == msg {
			all = append(all, l)
		}
	}
	return all
}

// Why a turn is refused is in the log: the field that fails, what it is, and what it had to be.
func TestWhyATurnIsRefused(t *testing.T) {
	t.Parallel()
	remote := func(w *world) {
		w.profile = w.profile.with("transport/class", "remote", "egress/classes", []string{"artifact"})
	}
	for name, c := range map[string]struct {
		make                           func(w *world)
		reason, field, found, expected string
	}{
		"binding":    {func(w *world) { w.request = w.request.with("binding/ref", "binding:none") }, "binding-missing", "binding/ref", "binding:none", "admitted"},
		"revoked":    {func(w *world) { w.revoked = true }, "binding-revoked", "binding/ref", bindingRef, "not revoked"},
		"expired":    {func(w *world) { w.binding = w.binding.with("expires/at", "2026-01-01T00:00:00Z") }, "binding-expired", "expires/at", "2026-01-01T00:00:00Z", "after "},
		"stale":      {func(w *world) { w.stale = true }, "binding-stale", "binding/digest", "sha256:", "sha256:"},
		"digest":     {func(w *world) { w.request = w.request.with("binding/digest", wire.ContentDigest(nil)) }, "binding-mismatch", "binding/digest", string(wire.ContentDigest(nil)), "sha256:"},
		"agent":      {func(w *world) { w.request = w.request.with("agent/id", "agent:other") }, "binding-mismatch", "agent/id", "agent:other", agentID},
		"generation": {func(w *world) { w.binding = w.binding.with("profile/generation", 2) }, "profile-mismatch", "profile/generation", "2", "1"},
		"profile":    {func(w *world) { w.binding = w.binding.with("profile/ref", "profile:none") }, "profile-mismatch", "profile/ref", "profile:none", "admitted"},
		"disabled":   {func(w *world) { w.disabled = true }, "profile-disabled", "profile/ref", profileRef, "not disabled"},
		"policy":     {func(w *world) { w.request = w.request.with("prompt-policy/ref", "prompt-policy:x") }, "policy-denied", "prompt-policy/ref", "prompt-policy:x", "prompt-policy:review"},
		"schema":     {func(w *world) { w.request = w.request.with("output-schema/ref", "x.v1") }, "policy-denied", "output-schema/ref", "x.v1", "review.v1"},
		"visibility": {func(w *world) { w.request = w.request.with("visibility", "shared") }, "policy-denied", "visibility", "shared", "operator at most"},
		"label":      {func(w *world) { w.binding = w.binding.with("classification/ceiling", "Public") }, "policy-denied", "classification/source_tier", "Personal", "Public at most"},
		"passage":    {func(w *world) { w.request = w.request.with("passage/no", 9) }, "policy-denied", "passage/no", "9", "8 at most"},
		"egress":     {remote, "policy-denied", "input/parts/0", "text", "artifact"},
		"deadline":   {func(w *world) { w.request = w.request.with("deadline/at", "2026-01-01T00:00:00Z") }, "event-timeout", "deadline/at", "2026-01-01T00:00:00Z", "after "},
		"lost":       {func(w *world) { w.request = w.request.answering("key:c", "request:none") }, "session-lost", "binding/ref", bindingRef, "open session"},
		"fence":      {func(w *world) { w.request = w.request.answering("key:c", "request:none"); w.session = "differs" }, "session-fence-mismatch", "adapter-instance/epoch", "epoch:0", "epoch:1"},
		"unasked":    {func(w *world) { w.request = w.request.answering("key:c", "request:none"); w.session = "fits" }, "event-unauthorized", "observation/request/ref", "request:none", "outstanding"},
		"budget":     {func(w *world) { w.request = w.request.with("budget/reservation", budget(512, 1000, 30000, 101)) }, "budget-exhausted", "budget/reservation/max_steps", "101", "100 at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, unadmitted)
			w := newWorld()
			c.make(w)
			w.send(t, g).ends("refused/" + c.reason)
			lines := g.logged("turn refused")
			if len(lines) != 1 {
				t.Fatalf("%d lines say that a turn was refused", len(lines))
			}
			l := lines[0]
			is, _ := l["found"].(string)
			must, _ := l["expected"].(string)
			if l["level"] != "INFO" || l["reason"] != c.reason || l["field"] != c.field || !strings.Contains(is, c.found) || !strings.Contains(must, c.expected) {
				t.Errorf("the log has %v", l)
			}
			g.post(w.request) // a repeat is none
			if n := len(g.logged("turn refused")); n != 1 {
				t.Errorf("a repeat makes it %d lines", n)
			}
		})
	}
}

// An adapter whose output ends its turn is told what is wrong with it.
func TestTheAdapterIsToldWhatIsWrong(t *testing.T) {
	t.Parallel()
	tool := func(ref, input string) func(context.Context, adapters.Writer) error {
		return func(ctx context.Context, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: ref, Schema: "s", Input: json.RawMessage(input)})
			return err
		}
	}
	candidate := func(text string) func(context.Context, adapters.Writer) error {
		return func(_ context.Context, w adapters.Writer) error { return w.Candidate(json.RawMessage(text)) }
	}
	event := func(changes ...any) func(context.Context, adapters.Writer) error {
		var step struct{ Event json.RawMessage }
		if err := json.Unmarshal([]byte(action(changes...)), &step); err != nil {
			t.Fatal(err)
		}
		return candidate(string(step.Event))
	}
	for name, c := range map[string]struct {
		say      func(context.Context, adapters.Writer) error
		want     []string
		denyAll  bool
		sentinel error
	}{
		"a tool's ref":   {tool("has space", `{"a":1}`), []string{"event-malformed", "/tool~1ref", `"has space"`}, false, nil},
		"a tool's input": {tool("t", `{"a":`), []string{"event-malformed", "the tool's input"}, false, nil},
		"a question": {func(ctx context.Context, w adapters.Writer) error {
			_, err := w.Ask(ctx, adapters.Question{Schema: "q", Question: json.RawMessage(`[1`)})
			return err
		}, []string{"event-malformed", "the question"}, false, nil},
		"a tool, denied":    {tool("t", `{"a":1}`), []string{"tool-not-admitted", "deny-all"}, true, adapters.ErrToolNotAdmitted},
		"no JSON":           {candidate(`{"kind":`), []string{"event-malformed", "no JSON object"}, false, nil},
		"an unknown field":  {event("more", 1), []string{"event-malformed", "/more"}, false, nil},
		"a number":          {event("seq/no", 9), []string{"event-reordered", "/seq~1no is 9, expected 3"}, false, nil},
		"a number again":    {event("seq/no", 1), []string{"event-duplicate", "/seq~1no is 1, expected 3"}, false, nil},
		"a time to come":    {event("at", "2998-01-01T00:00:00Z"), []string{"event-malformed", "/at is 2998-01-01T00:00:00Z"}, false, nil},
		"a time that was":   {event("at", "2001-01-01T00:00:00Z"), []string{"event-reordered", "/at is 2001-01-01T00:00:00Z"}, false, nil},
		"another turn's":    {event("turn/ref", "turn:2"), []string{"event-unauthorized", "/turn~1ref"}, false, nil},
		"a kind of ours":    {event("kind", "progress", "action/schema", nil, "action/digest", nil, "progress/code", "running", "progress/current", 1), []string{"event-unauthorized", "/kind is progress"}, false, nil},
		"a large candidate": {event("action/schema", strings.Repeat("x", 512)), []string{"event-oversized", "500 bytes"}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan error, 1)
			g := newRig(t, func(s *setup) {
				if s.profile = s.profile.with("limits", limits(64, 500, 500, 60000)); c.denyAll {
					s.profile = s.profile.with("tool/mode", "deny-all")
				}
				s.adapter = adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
					err := c.say(ctx, w)
					told <- err
					return err
				})
			})
			r := g.post(aRequest("turn:1", "x"))
			err := <-told
			if !errors.Is(err, adapters.ErrTurnOver) || c.sentinel != nil && !errors.Is(err, c.sentinel) {
				t.Errorf("the adapter was told %v", err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the adapter was told %v, which does not say %s", err, want)
				}
			}
			if !strings.Contains(r.body, `"`+c.want[0]+`"`) {
				t.Errorf("the stream ends otherwise\n%s", r.body)
			}
		})
	}
}

// The two lines that a turn's end leaves in the log agree.
func TestTheLogAgreesWithItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setup  func(*setup)
		script []string
		cause  string
	}{
		"refused/tool-not-admitted":   {withProfile("tool/mode", "deny-all"), []string{toolStep}, "adapter-error"},
		"failed/usage-missing":        {nil, []string{`{"text":"x"}`, `{"usage":{}}`}, "adapter-error"},
		"failed/event-oversized":      {withProfile("limits", limits(64, 65536, 3, 60000)), []string{`{"text":"four"}`, `{"block":true}`}, "adapter-error"},
		"cancelled/cancelled":         {nil, nil, "host-stopped"},
		"failed/event-malformed":      {nil, []string{action("more", 1), `{"block":true}`}, "adapter-error"},
		"failed/provider-unavailable": {nil, []string{`{"error":"no"}`}, "adapter-error"},
		"completed/completed":         {nil, []string{`{"text":"x"}`, goodUsage}, "completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, c.setup)
			if c.script == nil {
				done := g.running(aRequest("turn:1", script(`{"block":true}`)))
				g.cancel("turn:1")
				(<-done).ends(name)
			} else {
				g.post(aRequest("turn:1", script(c.script...))).ends(name)
			}
			eventually(t, "both lines are there", func() bool { return len(g.logged("turn")) == 1 && len(g.logged("turn settled")) == 1 })
			turn, settled := g.logged("turn")[0], g.logged("turn settled")[0]
			if turn["reason"] != name || turn["cause"] != c.cause || settled["status"].(string)+"/"+settled["reason"].(string) != name {
				t.Errorf("the log has %v and %v", turn, settled)
			}
		})
	}
}

// A conflict says what the host can do.
func TestAConflictSaysWhatToDo(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	q := aRequest("turn:1", goodScript)
	g.post(q)
	for _, d := range []doc{q.with("kind", "final"), q.with("idempotency/key", "key:other")} {
		if p := g.do("POST", "turns", d.json()).problem(409); !strings.Contains(p.Detail, "new idempotency/key and a new turn/ref") {
			t.Errorf("the conflict says %s", p.Detail)
		}
	}
}

// Times are to the microsecond, and deadline/at is when the turn is cut off.
func TestWhenATurnIsCutOff(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	before := time.Now()
	r := g.post(aRequest("turn:1", script(toolStep)).with("deadline/at", wire.DateTimeOf(before.Add(time.Hour).Add(123*time.Nanosecond))))
	said := g.look("turn:1").Deadline
	for _, e := range r.events() {
		if e.RequestRef != "" && string(e.DeadlineAt) != said {
			t.Errorf("the request says %s, the turn %s", e.DeadlineAt, said)
		}
	}
	at, err := wire.DateTime(said).Time()
	if left := at.Sub(before); err != nil || left < 29*time.Second || left > 31*time.Second+time.Minute || at.Nanosecond()%1000 != 0 {
		t.Errorf("deadline/at is %s, %v", said, err)
	}
}

// An operator sees what is admitted, what each binding refuses, and who has its session.
func TestListsOfAdmissions(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for name, changes := range map[string][]any{
		"expired": {"expires/at", "2026-01-01T00:00:00Z"}, "revoked": {}, "unprofiled": {"profile/ref", "profile:none"},
		"of another generation": {"profile/generation", 2}, "unused": {}, "closed": {},
	} {
		g.admit("bindings", aBinding().with(append([]any{"binding/ref", "binding:" + strings.ReplaceAll(name, " ", "-")}, changes...)...).sealed())
	}
	g.operate("DELETE", "bindings/binding:revoked", nil)
	g.post(aRequest("turn:0", goodScript).with("binding/ref", "binding:closed", "binding/digest", aBinding().with("binding/ref", "binding:closed").sealed()["binding/digest"])).ends("completed/completed")
	g.do("DELETE", "bindings/binding:closed/session", nil)
	_, waiting := g.behind(aRequest("turn:2", goodScript))

	var list struct {
		Bindings []struct {
			Ref     string `json:"binding/ref"`
			State   string `json:"state"`
			Refuses string `json:"refuses"`
			Session string `json:"session"`
			Turn    string `json:"turn/ref"`
			Waiting int    `json:"waiting"`
		} `json:"bindings"`
	}
	r := g.operate("GET", "bindings", nil)
	if err := json.Unmarshal([]byte(r.body), &list); err != nil || r.status != 200 {
		t.Fatalf("%d %v %s", r.status, err, r.body)
	}
	want := map[string][5]any{
		"binding:closed":                {"admitted", "", "closed", "", 0},
		"binding:expired":               {"admitted", "binding-expired", "none", "", 0},
		"binding:of-another-generation": {"admitted", "profile-mismatch", "none", "", 0},
		"binding:reviewer":              {"admitted", "", "open", "turn:1", 1},
		"binding:revoked":               {"revoked", "binding-revoked", "none", "", 0},
		"binding:unprofiled":            {"admitted", "profile-mismatch", "none", "", 0},
		"binding:unused":                {"admitted", "", "none", "", 0},
	}
	if len(list.Bindings) != len(want) {
		t.Errorf("%d bindings: %s", len(list.Bindings), r.body)
	}
	for _, b := range list.Bindings {
		if got := [5]any{b.State, b.Refuses, b.Session, b.Turn, b.Waiting}; got != want[b.Ref] {
			t.Errorf("%s is %v, want %v", b.Ref, got, want[b.Ref])
		}
	}
	g.operate("DELETE", "profiles/"+profileRef, nil)
	if r := g.operate("GET", "bindings", nil); !strings.Contains(r.body, "profile-disabled") {
		t.Errorf("with a disabled profile: %s", r.body)
	}
	if r := g.operate("GET", "profiles", nil); r.status != 200 || !strings.Contains(r.body, `{"profiles":[{"profile/ref":"profile:fake","profile/generation":1,"state":"disabled","admitted/at":`) {
		t.Errorf("profiles: %d %s", r.status, r.body)
	}
	g.do("GET", "bindings", nil).problem(401)
	g.do("GET", "profiles", nil).problem(401)
	g.cancel("turn:1")
	<-waiting.done
}

// What is no regular file is a mistake like another: nothing waits for it, or reads it for ever.
func TestAdmissionsThatAreNoFiles(t *testing.T) {
	t.Parallel()
	g := newRig(t, unadmitted)
	dir := t.TempDir()
	put := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("profile.json", aProfile().json())
	elsewhere := filepath.Join(t.TempDir(), "binding")
	if err := os.WriteFile(elsewhere, aBinding().sealed().json(), 0o600); err != nil {
		t.Fatal(err)
	}
	put("large.json", make([]byte, 2<<20))
	if err := errors.Join(
		os.Symlink(elsewhere, filepath.Join(dir, "link.json")),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero.json")),
		os.Symlink("nowhere", filepath.Join(dir, "dangling.json")),
		os.Symlink(dir, filepath.Join(dir, "folder.json")),
		syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if results, err := g.h.OpenAdmissions(t.Context(), dir); err == nil || len(results) != 7 {
		t.Errorf("OpenAdmissions = %+v, %v", results, err)
	}
	if all, err := g.store.Admissions(t.Context(), ledger.Profile); err != nil || len(all) > 0 {
		t.Errorf("with mistakes a start admits %+v, %v", all, err)
	}
	results, err := g.h.LoadAdmissions(t.Context(), dir)
	for name, text := range map[string]string{
		"zero.json": "but a device", "pipe.json": "but a pipe", "folder.json": "but a folder",
		"dangling.json": "no such file", "large.json": "more than 1048576 bytes",
	} {
		if err == nil || !strings.Contains(err.Error(), name+": ") || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(results) != 7 {
		t.Errorf("%d results", len(results))
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("that took %v", took)
	}
	g.post(aRequest("turn:1", goodScript)).ends("completed/completed")
}

// A ledger or a disk that hangs does not hold up who gives up on it.
func TestAdmissionsThatAreGivenUp(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { unadmitted(s); s.conf.Store = store })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "profile.json"), aProfile().json(), 0o600); err != nil {
		t.Fatal(err)
	}
	store.shut("admit")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.h.LoadAdmissions(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("LoadAdmissions = %v", err)
	}
}
