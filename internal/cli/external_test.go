package cli_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/schema/external"
)

const operatorToken = "operator-0123456789abcdef"

// steps is a message for the scripted adapter.
func steps(lines ...string) string { return "script:\n" + strings.Join(lines, "\n") }

// goodUsage is a step whose usage every budget of these tests allows.
const goodUsage = `{"usage":{"max_tokens":3,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1}}`

// writeDoc writes a document into a folder.
func writeDoc(t *testing.T, dir, name string, doc any) string {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// admissions makes a folder with a profile and a binding to it.
func admissions(t *testing.T) (dir string, p *external.Profile, b *external.Binding) {
	t.Helper()
	dir = t.TempDir()
	p = testhost.NewProfile("profile:1")
	b = testhost.NewBinding("binding:1", "agent:muse", p)
	writeDoc(t, dir, "profile.json", p)
	writeDoc(t, dir, "binding.json", b)
	return dir, p, b
}

// orbiplex is a host of the server that speaks agent.external-runtime.
func (s *server) orbiplex(p *external.Profile, b *external.Binding) *testhost.External {
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &testhost.External{
		URL: s.base + "/external-runtime", OperatorToken: operatorToken, Profile: p, Binding: b,
		Client: &http.Client{Transport: transport},
	}
}

func runTurn(t *testing.T, x *testhost.External, r *external.TurnRequest) *testhost.ExternalAnswer {
	t.Helper()
	a, err := x.Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestServeKeepsTheLedger kills a server in the middle of a turn. The next one on the same file repeats
// what has ended byte for byte, tells of the other that nobody knows its end, and calls no adapter.
func TestServeKeepsTheLedger(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	file := filepath.Join(t.TempDir(), "turns.db")
	args := []string{"--adapter", "scripted", "--admissions", dir, "--store", "sqlite:" + file}
	s := serve(t, []string{"BACKLINE_OPERATOR_TOKEN=" + operatorToken}, args...)

	// One binding from the directory, one over HTTP.
	x := s.orbiplex(profile, binding)
	second := testhost.NewBinding("binding:2", "agent:muse", profile)
	y := s.orbiplex(profile, second)
	if err := y.AdmitBinding(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	done := x.Request(steps(`{"text":"to be kept"}`, goodUsage))
	first := runTurn(t, x, done)
	if first.Ended() != "completed/completed" || first.Content != "to be kept" {
		t.Fatalf("the first turn: %s, %q", first.Ended(), first.Content)
	}
	refused := y.Request("x")
	refused.PromptPolicyRef = "prompt-policy:other"
	if a := runTurn(t, y, refused); a.Ended() != "refused/policy-denied" {
		t.Fatalf("a turn with a policy of its own: %s", a.Ended())
	}

	// A second server cannot have the file, and the ledger can be read meanwhile.
	if r := run(t, "", nil, "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:"+file); r.code != 1 || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "in use by another process") {
		t.Errorf("a second server: exit code %d, %q; want 1 and one line", r.code, r.err)
	}
	lost := y.Request(steps(`{"text":"lost"}`, `{"block":true}`))
	stream, err := y.Turn(t.Context(), lost)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range stream.Events() {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		if e.ProgressCode == external.ProgressRunning {
			list := run(t, "", nil, "ledger", "list", "sqlite:"+file, "--state", "dispatched")
			if list.code != 0 || !strings.Contains(list.out, string(lost.TurnRef)) || strings.Count(list.out, "\n") != 1 {
				t.Errorf("ledger list while a turn runs: %d, %s%s", list.code, list.out, list.err)
			}
			s.signal(syscall.SIGKILL)
			break
		}
	}
	s.exit()

	// Without the operator's token this time: what was admitted with it is remembered all the same.
	s = serve(t, nil, args...)
	s.err.await(t, `level=WARN.*`+string(lost.TurnRef))
	x, y = s.orbiplex(profile, binding), s.orbiplex(profile, second)
	if again := runTurn(t, x, done); again.Raw != first.Raw {
		t.Errorf("the first turn is repeated as\n%s, want\n%s", again.Raw, first.Raw)
	}
	if a := runTurn(t, y, lost); a.Ended() != "unknown/unknown" {
		t.Errorf("the lost turn ends %s, want unknown", a.Ended())
	}
	outcome, _, err := y.Inspect(t.Context(), lost.TurnRef)
	if err != nil || outcome == nil || outcome.Retryability != external.ReconciliationRequired || outcome.BudgetCharged != external.Usage(lost.BudgetReservation) {
		t.Errorf("its outcome is %+v, %v", outcome, err)
	}
	if a := runTurn(t, y, y.Request(steps(`{"text":"more"}`, goodUsage))); a.Ended() != "completed/completed" {
		t.Errorf("a new turn under the binding of the operator: %s", a.Ended())
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if log := s.err.String(); strings.Count(log, "msg=turn ") != 1 {
		t.Errorf("want one turn that was run by the second server:\n%s", log)
	}
	checkLedger(t, file, done, refused, lost)
}

// checkLedger looks at the ledger of TestServeKeepsTheLedger.
func checkLedger(t *testing.T, file string, done, refused, lost *external.TurnRequest) {
	t.Helper()
	r := run(t, "", nil, "ledger", "list", file)
	when := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
	ref := regexp.MustCompile(`turn-\w+`)
	got := ref.ReplaceAllString(when.ReplaceAllString(r.out, "TIME"), "TURN")
	want := `     1  completed  completed              TIME  TURN  binding:1  tokens=3 cost_micros=2 wall_time_ms=5 steps=1
     2  refused    policy-denied          TIME  TURN  binding:2  tokens=0 cost_micros=0 wall_time_ms=0 steps=0
     3  unknown    unknown                TIME  TURN  binding:2  tokens=50000 cost_micros=500000 wall_time_ms=30000 steps=500
     4  completed  completed              TIME  TURN  binding:2  tokens=3 cost_micros=2 wall_time_ms=5 steps=1
`
	if r.code != 0 || got != want {
		t.Errorf("ledger list: %d %s\n%s, want\n%s", r.code, r.err, got, want)
	}

	// Pages, order and filters.
	var page struct {
		Turns []ledger.Turn
		Next  int64
	}
	list := func(args ...string) (refs []string) {
		t.Helper()
		r := run(t, "", nil, append([]string{"ledger", "list", file, "--json"}, args...)...)
		page.Turns, page.Next = nil, 0
		if err := json.Unmarshal([]byte(r.out), &page); err != nil || r.code != 0 {
			t.Fatalf("ledger list %q: %d, %s, %v", args, r.code, r.err, err)
		}
		for _, t := range page.Turns {
			refs = append(refs, string(t.Ref))
		}
		return refs
	}
	if refs := list("--limit", "2"); len(refs) != 2 || refs[0] != string(done.TurnRef) || refs[1] != string(refused.TurnRef) || page.Next != 2 {
		t.Errorf("the first page: %q, next %d", refs, page.Next)
	}
	if refs := list("--limit", "2", "--after", "2"); len(refs) != 2 || refs[0] != string(lost.TurnRef) || page.Next != 0 {
		t.Errorf("the second page: %q, next %d", refs, page.Next)
	}
	if refs := list("--newest", "--limit", "2"); len(refs) != 2 || refs[1] != string(lost.TurnRef) || page.Next != 3 {
		t.Errorf("the newest: %q, next %d", refs, page.Next)
	}
	for _, tc := range []struct {
		args []string
		want int
	}{
		{[]string{"--status", "unknown"}, 1},
		{[]string{"--state", "settled"}, 4},
		{[]string{"--binding", "binding:2"}, 3},
		{[]string{"--binding", "binding:2", "--status", "completed"}, 1},
		{[]string{"--agent", "agent:nobody"}, 0},
	} {
		if refs := list(tc.args...); len(refs) != tc.want {
			t.Errorf("ledger list %q: %d turns, want %d", tc.args, len(refs), tc.want)
		}
	}
	if r := run(t, "", nil, "ledger", "list", file, "--limit", "1"); !strings.HasSuffix(r.out, "… more with --after 1\n") {
		t.Errorf("a list that is cut: %s", r.out)
	}

	// One turn.
	show := run(t, "", nil, "ledger", "show", file, string(done.TurnRef))
	for _, line := range []string{
		`turn +` + string(done.TurnRef), `state +settled`, `agent +agent:muse`, `binding +binding:1 sha256:\S+`, `profile +profile:1 generation 1`,
		`budget +tokens=50000 .*`, `outcome +completed / completed, terminal, .*`, `charged +tokens=3 cost_micros=2 wall_time_ms=5 steps=1 \(authoritative\)`,
		`product +\S+, 10 bytes, kept until .*`, `request +start ` + string(done.IdempotencyKey) + `: \S+, completed / completed, events to \d+, \d+ bytes, kept until .*`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(show.out) {
			t.Errorf("ledger show has no line %q:\n%s%s", line, show.out, show.err)
		}
	}
	one := run(t, "", nil, "ledger", "show", file, string(lost.TurnRef), "--json")
	var shown struct {
		Turn    ledger.Turn
		Parts   []ledger.Part
		Product *ledger.Product
	}
	if err := json.Unmarshal([]byte(one.out), &shown); err != nil || shown.Turn.Outcome == nil || shown.Turn.Outcome.Status != ledger.Unknown || len(shown.Parts) != 1 || shown.Product != nil {
		t.Errorf("ledger show --json: %v\n%s", err, one.out)
	}
	if r := run(t, "", nil, "ledger", "show", file, "turn:none"); r.code != 1 || r.err != "backline: the ledger knows no turn \"turn:none\"\n" {
		t.Errorf("a turn that is not there: %d, %q", r.code, r.err)
	}

	// Everything, and nothing of what was said.
	export := run(t, "", nil, "ledger", "export", file)
	counts := map[string]int{}
	for line := range strings.Lines(export.out) {
		var record map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &record); err != nil || len(record) != 1 {
			t.Fatalf("a line of the export: %v\n%s", err, line)
		}
		for kind := range record {
			counts[kind]++
		}
	}
	wantCounts := map[string]int{"admission": 3, "session": 2, "turn": 4, "part": 4, "product": 2}
	for kind, n := range wantCounts {
		if counts[kind] != n {
			t.Errorf("the export has %d of %s, want %d", counts[kind], kind, n)
		}
	}
	if export.code != 0 || len(counts) != len(wantCounts) {
		t.Errorf("exit code %d, %v", export.code, counts)
	}
	for _, r := range []result{export, show, one} {
		if strings.Contains(r.out, "to be kept") || strings.Contains(r.out, "lost\"") {
			t.Errorf("content is shown:\n%s", r.out)
		}
	}
}

// TestServeReadsAdmissionsAgain: SIGHUP, also with a mistake in one file.
func TestServeReadsAdmissionsAgain(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	s := serve(t, nil, "--admissions", dir)
	x := s.orbiplex(profile, binding)
	if a := runTurn(t, x, x.Request("hello")); a.Content != "hello" {
		t.Errorf("%s %q", a.Ended(), a.Content)
	}
	third := testhost.NewBinding("binding:3", "agent:muse", profile)
	z := s.orbiplex(profile, third)
	if a := runTurn(t, z, z.Request("hello")); a.Ended() != "refused/binding-missing" {
		t.Errorf("before its binding is there: %s", a.Ended())
	}
	writeDoc(t, dir, "third.json", third)
	if err := os.WriteFile(filepath.Join(dir, "bad.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGHUP)
	s.err.await(t, `level=ERROR msg="read the admissions again, .*files=4 mistaken=1 .*bad\.json.*backline validate`)
	s.err.await(t, `bindings=2 usable=2`)
	if strings.Contains(s.err.String(), `msg="read the admissions again" files`) {
		t.Errorf("the log says that all is well:\n%s", s.err)
	}
	if a := runTurn(t, z, z.Request("hello")); a.Ended() != "completed/completed" {
		t.Errorf("when its binding is there: %s", a.Ended())
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestServeDrainsTheLedger: a turn that awaits an observation ends as cancelled, and what it cost is known.
func TestServeDrainsTheLedger(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	file := filepath.Join(t.TempDir(), "turns.db")
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir, "--store", "sqlite:"+file)
	x := s.orbiplex(profile, binding)
	r := x.Request(steps(`{"question":{"schema":"s","question":{"a":1}}}`))
	if a := runTurn(t, x, r); len(a.Asked) != 1 {
		t.Fatalf("nothing was asked: %s", a.Raw)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if left, err := filepath.Glob(file + "-[ws]*"); err != nil || len(left) != 0 {
		t.Errorf("the ledger was not closed: %q is left (%v)", left, err)
	}
	out := run(t, "", nil, "ledger", "list", file)
	if !regexp.MustCompile(`^ +1  cancelled  cancelled +\S+  ` + string(r.TurnRef)).MatchString(out.out) {
		t.Errorf("ledger list: %s%s", out.out, out.err)
	}
}

// TestServeForgetsContent: what turns said and produced is there for as long as the flags say, each for
// itself, and a turn's facts stay.
func TestServeForgetsContent(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	for name, tc := range map[string]struct {
		args            []string
		product, stream bool // are kept
		shown           string
	}{
		"by default":  {nil, true, true, `kept until \d{4}-`},
		"no products": {[]string{"--product-retention", "1ns"}, false, true, `kept until \d{4}-`},
		"no streams":  {[]string{"--stream-retention", "1ns"}, true, false, `kept until \d{4}-`},
		"for ever":    {[]string{"--product-retention", "0", "--stream-retention", "0"}, true, true, `(?m), kept$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "turns.db")
			s := serve(t, nil, append(tc.args, "--admissions", dir, "--store", "sqlite:"+file)...)
			x := s.orbiplex(profile, binding)
			r := x.Request("hello")
			first := runTurn(t, x, r)
			if first.Content != "hello" {
				t.Fatalf("the turn: %s %q", first.Ended(), first.Content)
			}
			gone := func(err error) bool {
				var problem *testhost.Problem
				return errors.As(err, &problem) && problem.Status == http.StatusGone
			}
			again, err := x.Run(t.Context(), r)
			if tc.stream && (err != nil || again.Raw != first.Raw) || !tc.stream && !gone(err) {
				t.Errorf("the request again: %v\n%s", err, again.Raw)
			}
			outcome, _, err := x.Inspect(t.Context(), r.TurnRef)
			if err != nil || outcome == nil {
				t.Fatalf("the outcome is %v, %v", outcome, err)
			}
			_, content, err := x.Product(t.Context(), outcome.ProductRef)
			if tc.product && (err != nil || content != "hello") || !tc.product && !gone(err) {
				t.Errorf("the product: %q, %v", content, err)
			}
			show := run(t, "", nil, "ledger", "show", file, string(r.TurnRef))
			if got := regexp.MustCompile(tc.shown).FindAllString(show.out, -1); len(got) != 2 {
				t.Errorf("ledger show has %d times %q, want the product's and the stream's:\n%s%s", len(got), tc.shown, show.out, show.err)
			}
		})
	}
}

// TestServeAddresses: what serve says of agent.external-runtime.
func TestServeAddresses(t *testing.T) {
	t.Parallel()
	const hint = "refused, since nothing is admitted"
	s := serve(t, nil)
	s.out.await(t, hint)
	s.out.await(t, `external +http://127\.0\.0\.1:\d+/external-runtime/turns\n`)
	dir, _, _ := admissions(t)
	old := testhost.NewBinding("binding:old", "agent:muse", testhost.NewProfile("profile:1"))
	old.ExpiresAt = "2026-01-01T00:00:00Z"
	if err := testhost.Seal(old); err != nil {
		t.Fatal(err)
	}
	writeDoc(t, dir, "a-old.json", old)
	for _, tokens := range [][]string{nil, {"BACKLINE_AUTH_TOKEN=0123456789abcdef"}} {
		s = serve(t, tokens, "--admissions", dir)
		s.err.await(t, `every turn of a binding is refused.*binding=binding:old reason=binding-expired`)
		s.out.await(t, "backline chat http://")
		if strings.Contains(s.out.String(), hint) {
			t.Errorf("with admissions it says\n%s", s.out)
		}
		// The line for a turn under a binding works, and names one that is of use.
		chat := s.out.await(t, `(?m)^  (.*backline chat .* --protocol external-runtime .*)$`)[1]
		if out := shell(t, tokens, chat+" --message 'hello there'"); out != "hello there\n" || !strings.Contains(chat, filepath.Join(dir, "binding.json")) {
			t.Errorf("%s\nanswers %q", chat, out)
		}
	}
	dir = t.TempDir()
	s = serve(t, nil, "--admissions", dir)
	s.err.await(t, `no binding can be used.*directory=`+regexp.QuoteMeta(dir))
	if strings.Contains(s.out.String(), "--binding") {
		t.Errorf("without a binding it says\n%s", s.out)
	}
	s = start(t, nil, "--listen", "127.0.0.1:0", "--json")
	s.out.await(t, `"external":"http://127\.0\.0\.1:\d+/external-runtime/turns","store":"memory"`)
}

// TestServeSessionWait: a turn whose binding another one holds gives up after that time, and costs nothing.
func TestServeSessionWait(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir, "--session-wait", "100ms")
	x := s.orbiplex(profile, binding)
	first := x.Request(steps(`{"question":{"schema":"s","question":{"a":1}}}`))
	if a := runTurn(t, x, first); len(a.Asked) != 1 {
		t.Fatalf("nothing was asked: %s", a.Raw)
	}
	second := x.Request("hello")
	if a := runTurn(t, x, second); a.Ended() != "failed/event-timeout" {
		t.Errorf("the turn that waits: %s", a.Ended())
	}
	if o, raw, err := x.Inspect(t.Context(), second.TurnRef); err != nil || o == nil || o.BudgetCharged != (external.Usage{}) {
		t.Errorf("its outcome: %s, %v; want one that charges nothing", raw, err)
	}
	if _, raw, err := x.Inspect(t.Context(), first.TurnRef); err != nil || !strings.Contains(string(raw), `"suspended"`) {
		t.Errorf("the turn that it waited for: %s, %v", raw, err)
	}
}

// TestServeSaysHowToMendAdmissions: one line, which points to what tells more.
func TestServeSaysHowToMendAdmissions(t *testing.T) {
	t.Parallel()
	dir, _, b := admissions(t)
	b.MaxPassages++
	writeDoc(t, dir, "binding.json", b)
	r := run(t, "", nil, "serve", "--listen", "127.0.0.1:0", "--admissions", dir)
	const want = "backline: admissions: binding.json: "
	if r.code != 2 || !strings.HasPrefix(r.err, want) || !strings.HasSuffix(r.err, "(backline validate FILE says what to mend, and where)\n") || strings.Count(r.err, "\n") != 1 {
		t.Errorf("exit code %d and %q, want 2 and one line that begins with %q and names validate", r.code, r.err, want)
	}
}

// TestOperatorTokenStaysInside looks for the operator's token in all that a server writes.
func TestOperatorTokenStaysInside(t *testing.T) {
	t.Parallel()
	_, profile, binding := admissions(t)
	s := serve(t, nil, "--operator-token", operatorToken, "--log-level", "debug")
	x := s.orbiplex(profile, binding)
	for _, token := range []string{operatorToken, "wrong-0123456789abcdef"} {
		x.OperatorToken = token
		if err := x.Setup(t.Context()); (err == nil) != (token == operatorToken) {
			t.Errorf("with the token %q: %v", token, err)
		}
	}
	s.signal(syscall.SIGTERM)
	s.exit()
	if log := s.out.String() + s.err.String(); strings.Contains(log, "0123456789abcdef") || !strings.Contains(log, "a secret on the command line can be read") {
		t.Errorf("it writes\n%s", log)
	}
}
