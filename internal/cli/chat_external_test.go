package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/schema/external"
)

func TestChatExternal(t *testing.T) {
	t.Parallel()
	dir, _, _ := admissions(t)
	binding := filepath.Join(dir, "binding.json")
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	chat := func(code int, message string, args ...string) result {
		t.Helper()
		r := run(t, message, nil, append([]string{"chat", s.base, "--protocol", "external-runtime", "--binding", binding, "-m", "-"}, args...)...)
		if r.code != code || code == 1 && strings.Count(r.err, "\n") != 1 || code == 0 && r.err != "" {
			t.Errorf("%q: exit code %d, want %d\n%s%s", message, r.code, code, r.out, r.err)
		}
		return r
	}
	if r := chat(0, "hello"); r.out != "hello\n" {
		t.Errorf("%q", r.out)
	}
	tool := steps(`{"tool":{"ref":"tool:search","schema":"s","input":{"q":1}}}`, `{"question":{"schema":"s","question":{"q":1}}}`, goodUsage)
	if r := chat(0, tool); r.out != "refused:tool-not-admittedrefused:approval-not-admitted\n" {
		t.Errorf("refusing: %q", r.out)
	}
	if r := chat(0, tool, "--observe", "admit"); !strings.HasPrefix(r.out, "admitted:receipt-") {
		t.Errorf("admitting: %q", r.out)
	}
	if r := chat(1, steps(`{"text":"half"}`, `{"unavailable":"x","temporary":true}`)); !strings.Contains(r.err, "the turn failed: provider-unavailable") {
		t.Errorf("failing: %q", r.err)
	}
	r := chat(0, "hello", "--json", "--events")
	var report struct {
		HTTP    int `json:"httpStatus"`
		Status  string
		Text    string
		Product string `json:"product/ref"`
		Events  []struct{ Line string }
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.HTTP != 200 || report.Status != "completed" || report.Text != "hello" || report.Product == "" || len(report.Events) < 4 {
		t.Errorf("--json: %v\n%s", err, r.out)
	}
	if r := chat(0, "hello", "--events"); !regexp.MustCompile(`(?m)^ +[\d.]+ ms  \{"schema":"agent\.external-runtime\.event\.v1".*"kind":"turn-outcome".*\}$`).MatchString(r.out) {
		t.Errorf("--events:\n%s", r.out)
	}
	// The stream that chat shows is one that validate accepts.
	var stream bytes.Buffer
	for _, e := range report.Events {
		stream.WriteString(e.Line + "\n")
	}
	if v, _ := judge(t, &stream, "--profile", filepath.Join(dir, "profile.json")); !v.Valid || v.Schema != "external-events" {
		t.Errorf("its events: %+v", v)
	}
	// A binding that the server does not know.
	binding = writeDoc(t, t.TempDir(), "other.json", testhost.NewBinding("binding:other", "agent:muse", testhost.NewProfile("profile:1")))
	if r := chat(1, "hello"); r.err != "backline: the turn was refused: binding-missing (have the operator admit it)\n" {
		t.Errorf("an unknown binding: %q", r.err)
	}
	if r := chat(1, "hello", "--json"); !strings.Contains(r.out, `"status":"refused","reason/code":"binding-missing"`) {
		t.Errorf("an unknown binding: %s", r.out)
	}
	// A server without the protocol.
	if r := run(t, "", nil, "chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "--binding", binding, "-m", "x"); r.code != 1 || !strings.Contains(r.err, "is the server running?") {
		t.Errorf("nobody: %d, %q", r.code, r.err)
	}
	s.base += "/elsewhere"
	if r := chat(1, "hello"); !strings.Contains(r.err, "HTTP status 404") {
		t.Errorf("another page: %q", r.err)
	}
}

// TestChatExternalCancels: an interrupt ends the turn, not just the program.
func TestChatExternalCancels(t *testing.T) {
	t.Parallel()
	dir, _, _ := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	tm := onTerminal(t, nil, "chat", s.base, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"), "--events",
		"-m", steps(`{"text":"begun"}`, `{"block":true}`))
	tm.sees(`"progress/code":"running"`)
	tm.press(ctrlC)
	tm.sees(`"cancelled"`)
	tm.sees(`the turn was cancelled: cancelled`)
	tm.exits(1)
	s.err.await(t, `status=cancelled`)
}

// spawn starts a program without a terminal.
func spawn(t *testing.T, name string, args ...string) (cmd *exec.Cmd, out, errs *transcript) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), name, args...)
	out, errs = newTranscript(), newTranscript()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out, errs
}

// TestChatExternalIsEnded: whatever ends the program ends its turn, which would have the binding for as long as
// it may.
func TestChatExternalIsEnded(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir, _, _ := admissions(t)
			s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
			cmd, out, errs := spawn(t, program(t), "chat", s.base, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"),
				"--events", "-m", steps(`{"text":"begun"}`, `{"block":true}`))
			out.await(t, `"progress/code":"running"`)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its exit code is looked at
			if code := cmd.ProcessState.ExitCode(); code != 1 || errs.String() != "backline: the turn was cancelled: cancelled\n" {
				t.Errorf("exit code %d, and %q", code, errs)
			}
			s.err.await(t, `status=cancelled`)
		})
	}
	// One that it was told to ignore, as by nohup, ends nothing.
	dir, _, _ := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	cmd, out, errs := spawn(t, "sh", "-c", `trap '' HUP; exec "$0" "$@"`, program(t), "chat", s.base, "--protocol", "external-runtime",
		"--binding", filepath.Join(dir, "binding.json"), "--events", "-m", steps(`{"text":"begun"}`, `{"sleep":"300ms"}`, goodUsage))
	out.await(t, `"progress/code":"running"`)
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("with SIGHUP ignored: %v\n%s%s", err, out, errs)
	}
}

// TestChatExternalIsBusy: a turn that waits for another one of its binding says which, and how to end that.
func TestChatExternalIsBusy(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	x := s.orbiplex(profile, binding)
	first := x.Request(steps(questionStep))
	first.TurnRef = "turn://a/1"
	if a := runTurn(t, x, first); len(a.Asked) != 1 {
		t.Fatalf("nothing was asked: %s", a.Raw)
	}
	cmd, out, errs := spawn(t, program(t), "chat", s.base, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"), "-m", "hello")
	end := errs.await(t, `^backline: the binding is busy: this turn waits, until \S+Z at most, for turn://a/1, which runs or awaits an answer; to end that one: (curl .*)\n$`)[1]
	if answer := shell(t, nil, end); !strings.Contains(answer, `"acknowledged"`) {
		t.Errorf("%s answers %s", end, answer)
	}
	if err := cmd.Wait(); err != nil || out.String() != "hello\n" {
		t.Errorf("when the binding is free: %v, %q, %s", err, out, errs)
	}

	// One that runs and is silent is not said to wait.
	if r := run(t, steps(`{"sleep":"1500ms"}`, `{"text":"late"}`, goodUsage), nil, "chat", s.base, "--protocol", "external-runtime",
		"--binding", filepath.Join(dir, "binding.json"), "-m", "-"); r.code != 0 || r.out != "late\n" || r.err != "" {
		t.Errorf("a slow turn: exit code %d, %q, %q", r.code, r.out, r.err)
	}

	// Nor is one of a server that does not tell what a turn waits for.
	first = x.Request(steps(questionStep))
	if a := runTurn(t, x, first); len(a.Asked) != 1 {
		t.Fatalf("nothing was asked: %s", a.Raw)
	}
	_, other := relayTo(t, s.base, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/turns/") {
			return false
		}
		if cancelled, err := x.Cancel(r.Context(), first.TurnRef); err != nil {
			t.Error(cancelled, err)
		}
		_, _ = io.WriteString(w, `{"state":"dispatched"}`)
		return true
	})
	cmd, out, errs = spawn(t, program(t), "chat", other, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"), "-m", "hello")
	_ = cmd.Wait() // the outcome is hidden from it too
	if out.String() != "hello\n" || strings.Contains(errs.String(), "busy") {
		t.Errorf("at a server that does not tell: %q, %q", out, errs)
	}
}

// TestChatPrintsRequests: what is printed is what a turn sends, and nothing is sent.
func TestChatPrintsRequests(t *testing.T) {
	t.Parallel()
	dir, profile, binding := admissions(t)
	file := filepath.Join(dir, "binding.json")
	r := run(t, "", nil, "chat", "--protocol", "external-runtime", "--binding", file, "--message", "say <this>", "--print-request")
	if r.code != 0 || r.err != "" || !strings.Contains(r.out, "\n  \"turn/ref\": ") || !strings.Contains(r.out, "say <this>") {
		t.Fatalf("exit code %d, %s%s", r.code, r.out, r.err)
	}
	if v, _ := judge(t, strings.NewReader(r.out)); !v.Valid || v.Schema != "external-request" {
		t.Errorf("it is judged %+v", v)
	}
	s := serve(t, nil, "--admissions", dir)
	x := s.orbiplex(profile, binding)
	stream, err := x.Post(t.Context(), []byte(r.out), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := stream.Answer(); err != nil || a.Ended() != "completed/completed" || a.Content != "say <this>" {
		t.Errorf("sent by hand: %s %q, %v", a.Ended(), a.Content, err)
	}

	r = run(t, "", nil, "chat", "-m", "hello", "--print-request", "--plugin-id", "oracle", "--session", "s-1", "--headless")
	if v, _ := judge(t, strings.NewReader(r.out)); r.code != 0 || !v.Valid || v.Schema != "lowkey-request" ||
		!strings.Contains(r.out, `"pluginId": "oracle"`) || !strings.Contains(r.out, `"headless": true`) {
		t.Errorf("Lowkey's: exit code %d, %+v\n%s%s", r.code, v, r.out, r.err)
	}
	if r = run(t, "", nil, "chat", "-m", "hello", "--print-request"); r.code != 0 || !strings.Contains(r.out, `"pluginId": "muse"`) {
		t.Errorf("Lowkey's, of no server: exit code %d, %s%s", r.code, r.out, r.err)
	}
	// With a server's URL the plugin is the server's.
	other := serve(t, nil, "--plugin-id", "sibyl")
	if r = run(t, "", nil, "chat", other.base, "-m", "hello", "--print-request"); r.code != 0 || !strings.Contains(r.out, `"pluginId": "sibyl"`) {
		t.Errorf("Lowkey's, of a server: exit code %d, %s%s", r.code, r.out, r.err)
	}
	for _, server := range []*server{s, other} {
		if n := strings.Count(server.err.String(), "msg=turn "); server == other && n != 0 || server == s && n != 1 {
			t.Errorf("%d turns ran:\n%s", n, server.err)
		}
	}
}

const (
	toolStep     = `{"tool":{"ref":"tool:search","schema":"search.v1","input":{"q":1}}}`
	questionStep = `{"question":{"schema":"yes-no.v1","question":{"sure":true}}}`
	toolPrompt   = `admit\? y, n or a reason` + prompt
	askPrompt    = `[^ ]y, n or a reason` + prompt
)

// externalChat starts a conversation on a terminal under what a new server has admitted.
func externalChat(t *testing.T, change func(p *external.Profile), args ...string) (*server, *testhost.External, *terminal) {
	t.Helper()
	dir, profile, binding := admissions(t)
	if change != nil {
		change(profile)
		writeDoc(t, dir, "profile.json", profile)
	}
	s := serve(t, []string{"BACKLINE_OPERATOR_TOKEN=" + operatorToken}, "--adapter", "scripted", "--admissions", dir)
	tm := onTerminal(t, nil, append([]string{"chat", s.base, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json")}, args...)...)
	return s, s.orbiplex(profile, binding), tm
}

// times is what has been seen so often.
func times(n int, pattern string) string { return fmt.Sprintf(`(?s)(?:%s.*){%d}`, pattern, n) }

// script is a message for the scripted adapter, as it is pasted.
func script(lines ...string) string { return paste(append([]string{"script:"}, lines...)...) }

// TestChatExternalOnATerminal: a conversation in the binding's session, whose turns ask and are answered.
func TestChatExternalOnATerminal(t *testing.T) {
	t.Parallel()
	s, _, tm := externalChat(t, nil)
	tm.sees(`Binding binding:1 with agent:muse\. Ctrl-C stops a turn`)
	tm.sees(prompt)
	tm.press("hello" + enter)
	tm.sees(`hello\r\n(?:\x1b\[\?2004[hl])*hello\r\n`) // what was typed, and the answer
	tm.sees(prompt)
	tm.press(script(`{"remember":{"key":"k","value":"the weir"}}`, `{"text":"noted"}`, goodUsage))
	tm.sees(`[\nl]noted\r\n`)
	tm.sees(prompt)
	tm.press(script(`{"recall":"k"}`, goodUsage))
	tm.sees(`[\nl]"?the weir"?\r\n`)
	tm.sees(prompt)

	// A tool request is admitted, after what is no answer; a question is refused with a reason.
	tm.press(script(toolStep, questionStep, goodUsage))
	tm.sees(`The agent asks for the tool tool:search, with search\.v1:\r\n  \{\r\n    "q": 1\r\n  \}\r\n`)
	tm.sees(toolPrompt)
	tm.press("perhaps" + enter)
	tm.sees(`y admits it, n refuses it \(tool-not-admitted\), and so does one of the reasons policy-denied, .* or unknown\.`)
	tm.sees(toolPrompt)
	tm.press("Y" + enter)
	tm.sees(`The agent asks, with yes-no\.v1:\r\n  \{\r\n    "sure": true\r\n  \}\r\n`)
	tm.sees(askPrompt)
	tm.press("policy-denied" + enter)
	tm.sees(`admitted:receipt-\w+refused:policy-denied\r\n`)
	tm.sees(prompt)

	// An answer is no message: the history has the message before it.
	tm.press("\x1b[A" + "\x1b[A" + "\x1b[A" + enter)
	tm.sees(`\n(?:\x1b\[[^\n]*)?hello\r\n`)
	tm.sees(prompt)

	tm.press(script(questionStep, goodUsage))
	tm.sees(askPrompt)
	tm.press("n" + enter)
	tm.sees(`refused:approval-not-admitted\r\n`)
	tm.sees(prompt)

	// A turn that fails does not end it.
	tm.press(script(`{"error":"out of luck"}`))
	tm.sees(`backline: the turn failed: provider-unavailable \(again if retryable; .*\)\r\n`)
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
	s.err.await(t, `(?s)(?:msg=turn.*){7}`)
	if strings.Contains(s.err.String(), "status=cancelled") {
		t.Errorf("a turn was cancelled:\n%s", s.err)
	}
}

// TestChatExternalStops: Ctrl-C has the server cancel the turn, while it runs and while it asks, and the
// conversation goes on.
func TestChatExternalStops(t *testing.T) {
	t.Parallel()
	s, x, tm := externalChat(t, nil, "--events")
	tm.sees(prompt)
	tm.press(script(`{"text":"begun"}`, `{"block":true}`))
	tm.sees(`"progress/code":"running"`)
	tm.press(ctrlC)
	tm.sees(`"progress/code":"cancelling"`)
	tm.sees(`backline: the turn was cancelled: cancelled\r\n`)
	tm.sees(prompt)
	s.err.await(t, `status=cancelled`)
	for i, end := range []string{ctrlC, ctrlD} {
		tm.press(script(questionStep))
		tm.sees(times(2+2*i, `"sure": ?true`) + askPrompt) // in the event, and in the question
		tm.press(end)
		tm.sees(times(2+i, `the turn was cancelled: cancelled\r\n`) + prompt)
	}
	// The session is free: nothing of them is left behind.
	if a := runTurn(t, x, x.Request("hello")); a.Ended() != "completed/completed" {
		t.Errorf("another host's turn: %s", a.Ended())
	}
	tm.press(ctrlC)
	tm.exits(0)
}

// TestChatExternalTooLate: a question whose turn has run out of time is withdrawn, and what is typed then
// is the next message.
func TestChatExternalTooLate(t *testing.T) {
	t.Parallel()
	_, _, tm := externalChat(t, func(p *external.Profile) { p.Limits.TurnTimeoutMS = 1500 })
	tm.sees(prompt)
	tm.press(script(questionStep))
	tm.sees(askPrompt)
	tm.sees(`\r\nbackline: the turn failed: event-timeout \(again: it is retryable\)\r\n`)
	tm.sees(prompt)
	tm.press("hello" + enter)
	tm.sees(`hello\r\n(?:\x1b\[\?2004[hl])*hello\r\n`)
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
}

// TestChatExternalAnswerIsRefused: the binding is revoked while a question waits. The turn is not left
// suspended.
func TestChatExternalAnswerIsRefused(t *testing.T) {
	t.Parallel()
	s, x, tm := externalChat(t, nil)
	tm.sees(prompt)
	tm.press(script(questionStep))
	tm.sees(askPrompt)
	if err := x.RevokeBinding(t.Context(), x.Binding.BindingRef); err != nil {
		t.Fatal(err)
	}
	tm.press("y" + enter)
	tm.sees(`backline: the answer was refused, and the turn cancelled: binding-revoked \(stop using it; .*\)\r\n`)
	s.err.await(t, `status=cancelled`)
	tm.sees(prompt)
	tm.press("hello" + enter)
	tm.sees(`backline: the turn was refused: binding-revoked \(stop using it; .*\)\r\n`)
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
}

// TestChatExternalIsLeft: whoever leaves in the middle of a turn has it cancelled.
func TestChatExternalIsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ step, sees string }{
		"while it runs":  {`{"block":true}`, `"progress/code":"running"`},
		"while it asks":  {questionStep, askPrompt},
		"while it waits": {`{"sleep":"1m"}`, `"progress/code":"running"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, tm := externalChat(t, nil, "--events")
			tm.sees(prompt)
			tm.press(script(tc.step))
			tm.sees(tc.sees)
			if err := tm.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			tm.exits(0)
			s.err.await(t, `status=cancelled`)
		})
	}
}

// TestChatExternalSignalWhileItAsks: an interrupt that is no key stops the turn; the terminal is still
// the conversation's.
func TestChatExternalSignalWhileItAsks(t *testing.T) {
	t.Parallel()
	_, _, tm := externalChat(t, nil)
	tm.sees(prompt)
	tm.press(script(questionStep))
	tm.sees(askPrompt)
	if err := tm.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	tm.sees(`backline: the turn was cancelled: cancelled\r\n`)
	tm.sees(prompt)
	tm.press("hello" + enter + "world" + enter) // the second one is typed ahead
	tm.sees(`hello\r\n(?:\x1b\[\?2004[hl])*hello\r\n`)
	tm.sees(`world\r\n(?:\x1b\[\?2004[hl])*world\r\n`)
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
}

// TestChatExternalOneTurnAsks: also with --message there is somebody at the terminal, unless the flag
// says what the answer is.
func TestChatExternalOneTurnAsks(t *testing.T) {
	t.Parallel()
	message := steps(toolStep, goodUsage)
	_, _, tm := externalChat(t, nil, "-m", message)
	tm.sees(toolPrompt)
	tm.press("y" + enter)
	tm.sees(`admitted:receipt-\w+\r\n`)
	tm.exits(0)
	_, _, tm = externalChat(t, nil, "-m", message)
	tm.sees(toolPrompt)
	tm.press(ctrlC)
	tm.sees(`backline: the turn was cancelled: cancelled\r\n`)
	tm.exits(1)
	_, _, tm = externalChat(t, nil, "-m", message, "--observe", "refuse=policy-denied")
	tm.sees(`\(the agent asks for the tool tool:search: refused\)`)
	tm.sees(`refused:policy-denied\r\n`)
	tm.exits(0)
}

// A relay passes requests on to a server, and notes those that begin or continue turns.
type relay struct {
	mu    sync.Mutex
	turns []external.TurnRequest
}

// relayTo starts a relay. Where before, which may be nil, answers a request, it is not passed on.
func relayTo(t *testing.T, base string, before func(w http.ResponseWriter, r *http.Request) (answered bool)) (*relay, string) {
	t.Helper()
	to, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	seen := &relay{}
	return seen, standIn(t, func(w http.ResponseWriter, r *http.Request) {
		if before != nil && before(w, r) {
			return
		}
		if strings.HasSuffix(r.URL.Path, "/turns") {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			var q external.TurnRequest
			if err := json.Unmarshal(body, &q); err != nil {
				t.Error(err)
			}
			seen.mu.Lock()
			seen.turns = append(seen.turns, q)
			seen.mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	})
}

// TestChatExternalOfLines: each line is a turn of one passage, which names the product before it.
func TestChatExternalOfLines(t *testing.T) {
	t.Parallel()
	dir, _, binding := admissions(t)
	s := serve(t, nil, "--admissions", dir)
	seen, url := relayTo(t, s.base, nil)
	chat := func(code int, lines string, args ...string) result {
		t.Helper()
		r := run(t, lines, nil, append([]string{"chat", url, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json")}, args...)...)
		if r.code != code {
			t.Fatalf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
		}
		return r
	}
	r := chat(0, "one\n\ntwo\nthree\n", "--json")
	var products []external.ProductRef
	for line := range strings.Lines(r.out) {
		var report struct {
			Text    string
			Product external.ProductRef `json:"product/ref"`
		}
		if err := json.Unmarshal([]byte(line), &report); err != nil {
			t.Fatal(err)
		}
		products = append(products, report.Product)
	}
	if len(products) != 3 || len(seen.turns) != 3 || slices.Contains(products, "") {
		t.Fatalf("%d reports of %d turns with the products %q, want 3", len(products), len(seen.turns), products)
	}
	for i, q := range seen.turns {
		var parents []external.ProductRef
		if i > 0 {
			parents = products[i-1 : i]
		}
		if q.PassageRef != seen.turns[0].PassageRef || q.PassageNo != 1 || !slices.Equal(q.ParentProductRefs, parents) || q.BudgetReservation != binding.BudgetTurnCeiling {
			t.Errorf("request %d is of passage %s number %d with the parents %q and the budget %+v", i+1, q.PassageRef, q.PassageNo, q.ParentProductRefs, q.BudgetReservation)
		}
		if i > 0 && q.TurnRef == seen.turns[i-1].TurnRef {
			t.Errorf("request %d is of the turn before it", i+1)
		}
	}
	if r := chat(0, "one\ntwo\n"); r.out != "one\ntwo\n" || r.err != "" {
		t.Errorf("%q, %q", r.out, r.err)
	}
	// Each turn that does not complete is told.
	long := strings.Repeat("x", 70_000)
	if r := chat(1, "one\n"+long+"\nthree\n"); r.out != "one\nthree\n" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "the request was refused with HTTP status 400") {
		t.Errorf("%q, %q", r.out, r.err)
	}
}

// TestChatExternalCancelComesFirst: the server does not know the turn yet that it is to cancel.
func TestChatExternalCancelComesFirst(t *testing.T) {
	t.Parallel()
	dir, _, _ := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	var asked atomic.Int32
	_, url := relayTo(t, s.base, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/cancel") || asked.Add(1) > 2 {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"turn/ref":"turn:1","cancellation":"unknown"}`)
		return true
	})
	tm := onTerminal(t, nil, "chat", url, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"), "--events", "-m", steps(`{"block":true}`))
	tm.sees(`"progress/code":"running"`)
	tm.press(ctrlC)
	tm.sees(`the turn was cancelled: cancelled`)
	if code := tm.exit(); code != 1 || asked.Load() != 3 {
		t.Errorf("exit code %d after %d calls of cancel, want 1 after 3", code, asked.Load())
	}
}

// TestChatExternalCannotCancel: a server that does not cancel holds nobody.
func TestChatExternalCannotCancel(t *testing.T) {
	t.Parallel()
	dir, _, _ := admissions(t)
	s := serve(t, nil, "--adapter", "scripted", "--admissions", dir)
	_, url := relayTo(t, s.base, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/cancel") {
			http.Error(w, "not today", http.StatusInternalServerError)
			return true
		}
		return false
	})
	tm := onTerminal(t, nil, "chat", url, "--protocol", "external-runtime", "--binding", filepath.Join(dir, "binding.json"), "--events")
	tm.sees(prompt)
	tm.press(script(`{"text":"begun"}`, `{"block":true}`))
	tm.sees(`"progress/code":"running"`)
	tm.press(ctrlC)
	tm.sees(`warning: the turn could not be cancelled: HTTP status 500`)
	tm.sees(`backline: stopped\r\n`)
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
}
