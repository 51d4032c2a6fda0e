package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/internal/testhost"
)

// An event is a line of keiki platform --json.
type event struct {
	Event, TurnID, ConversationID, Mode, APIBase, AppURL string

	Secret     string `json:"signingSecret"`
	SecretFile string `json:"signingSecretFile"`
	APIKey     string
	APIKeyFile string
	Commands   []string

	HTTPStatus                int
	Code, Status, State, Text string
	Error, Key, Rule, Detail  string
}

func events(t *testing.T, out string) (all []event) {
	t.Helper()
	for line := range strings.Lines(out) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q is no event: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// app is a server of another make, for the turns of a platform in another process.
func app(t *testing.T, answer func(w http.ResponseWriter, turn pushedTurn)) string {
	t.Helper()
	return standIn(t, func(w http.ResponseWriter, r *http.Request) {
		turn := pushedTurn{t: t, token: r.Header.Get("Keiki-Turn-Token")}
		if err := json.NewDecoder(r.Body).Decode(&turn.body); err != nil {
			t.Error(err)
		}
		answer(w, turn)
	})
}

type pushedTurn struct {
	t     *testing.T
	token string
	body  struct {
		Type  string
		Keiki struct{ TurnURL string }
	}
}

// post calls the turn API, and returns the status.
func (p pushedTurn) post(path, body string) int {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.body.Keiki.TurnURL+path, strings.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+p.token)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		p.t.Error(err)
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// once runs one turn of a platform's.
func once(t *testing.T, url, text string, args ...string) result {
	t.Helper()
	return run(t, "", nil, append([]string{"keiki", "platform", "--listen", "127.0.0.1:0", "--secret-file", writeSecret(t, whsec), "--app-url", url, "--once", text, "--json"}, args...)...)
}

// TestPlatformTellsWhatIsWrong: an app that breaks the contract is told of, and its secrets are not.
func TestPlatformTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	const signed = "kts1.eyJhIjoiYiJ9.0123456789abcdef"
	url := app(t, func(w http.ResponseWriter, turn pushedTurn) {
		turn.post("/messages", fmt.Sprintf(`{"text":"token %s, %s, %s","idempotencyKey":"k"}`, turn.token, signed, whsec))
		turn.post("/messages", `{"text":"another","idempotencyKey":"k"}`)
		turn.post("/messages?token="+turn.token, `{"text":"in the URL","idempotencyKey":"k2"}`)
		turn.post("/complete", fmt.Sprintf(`{"status":"failed","error":"with %s"}`, turn.token))
		turn.post("/messages", `{"text":"late","idempotencyKey":"k3"}`)
		w.WriteHeader(http.StatusNoContent)
	})
	for _, human := range []bool{false, true} {
		args := []string{}
		if human {
			args = append(args, "--json=false")
		}
		r := once(t, url, "hello", args...)
		if r.code != 1 || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "failed: app_error: with [redacted]; the app broke the contract: ") {
			t.Errorf("exit code %d, %q; want 1 and one line", r.code, r.err)
		}
		if m := regexp.MustCompile(`ht_[A-Z0-9]{5}|kts1|whsec_0`).FindString(r.out + r.err); m != "" {
			t.Errorf("a secret (%s) is shown:\n%s%s", m, r.out, r.err)
		}
		if !strings.Contains(r.out, "token [redacted], [redacted], [redacted]") {
			t.Errorf("the message is missing:\n%s", r.out)
		}
		if human {
			continue
		}
		rules := map[string]bool{}
		for _, e := range events(t, r.out) {
			if e.Event == "violation" {
				rules[e.Rule] = true
			}
		}
		for _, rule := range []testhost.KeikiRule{testhost.RuleKeyText, testhost.RuleURLSecret, testhost.RuleAfterEnd} {
			if !rules[string(rule)] {
				t.Errorf("%s is not among the violations %v", rule, rules)
			}
		}
	}
}

// TestPlatformWaitsForTheAcknowledgement: the platform does not leave before the app knows that its
// completion came.
func TestPlatformWaitsForTheAcknowledgement(t *testing.T) {
	t.Parallel()
	for seed := range 4 {
		acknowledged := make(chan bool, 1)
		url := app(t, func(w http.ResponseWriter, turn pushedTurn) {
			w.WriteHeader(http.StatusAccepted)
			go func() {
				for range 100 {
					if turn.post("/complete", `{"status":"completed"}`) == http.StatusOK {
						acknowledged <- true
						return
					}
				}
				acknowledged <- false
			}()
		})
		if r := once(t, url, "hello", "--errors", "90", "--seed", fmt.Sprint(seed)); r.code != 0 {
			t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
		}
		if !<-acknowledged {
			t.Error("the app's completion was not acknowledged")
		}
	}
}

// TestPlatformFaults: what goes wrong on purpose is shown, and the server delivers each message once.
func TestPlatformFaults(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	var in strings.Builder
	for i := range 12 {
		fmt.Fprintf(&in, `{"conversationId":"c%d","text":"one\n\ntwo\n\nthree"}`+"\n", i)
	}
	out := func(args ...string) []event {
		r := run(t, in.String(), nil, append([]string{"keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", s.base, "--secret-file", writeSecret(t, whsec),
			"--json", "--concurrency", "12"}, args...)...)
		if r.code != 0 || r.err != "" {
			t.Errorf("exit code %d, %q; want every turn completed and no rule broken\n%s", r.code, r.err, r.out)
		}
		return events(t, r.out)
	}
	faults, got := 0, map[string][]string{}
	for _, e := range out("--drop", "5", "--errors", "5", "--throttle", "2") {
		switch e.Event {
		case "fault":
			faults++
		case "message":
			got[e.ConversationID+e.TurnID] = append(got[e.ConversationID+e.TurnID], e.Text)
		}
	}
	if faults == 0 || len(got) != 12 {
		t.Errorf("%d faults, %d turns with messages", faults, len(got))
	}
	for turn, texts := range got {
		if !slices.Equal(texts, []string{"one", "two", "three"}) {
			t.Errorf("%s has the messages %q", turn, texts)
		}
	}
	unknown := 0
	for _, e := range out("--unknown", "50") {
		if e.Event == "message" && e.State == "unknown" {
			unknown++
		}
	}
	if unknown == 0 || unknown == 36 {
		t.Errorf("%d of 36 messages had a delivery error, want about half", unknown)
	}
}

// TestPlatformMints: what it mints goes into the file that was named, for its owner alone, and is printed
// only where there is no file. A file that is there is taken.
func TestPlatformMints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secretFile, keyFile := filepath.Join(dir, "secret.txt"), filepath.Join(dir, "key.txt")
	platform := func(args ...string) event {
		r := run(t, "", nil, append([]string{"keiki", "platform", "--listen", "127.0.0.1:0", "--json"}, args...)...)
		all := events(t, r.out)
		if r.code != 0 || r.err != "" || len(all) != 1 {
			t.Fatalf("exit code %d, %q, %s", r.code, r.err, r.out)
		}
		return all[0]
	}
	var first string
	for range 2 {
		e := platform("--mode", "relay", "--secret-file", secretFile, "--api-key-file", keyFile)
		if e.Secret != "" || e.APIKey != "" || e.SecretFile != secretFile || e.APIKeyFile != keyFile {
			t.Errorf("with files it says %+v", e)
		}
		var both string
		for file, pattern := range map[string]string{secretFile: `^whsec_\S{40,}\n$`, keyFile: `^sk_\S{20,}\n$`} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(pattern).Match(text) {
				t.Errorf("%s holds %q", file, text)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has the mode %v, %v; want 0600", file, info.Mode(), err)
			}
			if file == secretFile {
				both = string(text)
			}
		}
		if first != "" && both != first {
			t.Error("a secret that was there has been replaced")
		}
		first = both
	}
	if e := platform("--mode", "relay"); !strings.HasPrefix(e.Secret, "whsec_") || !strings.HasPrefix(e.APIKey, "sk_") {
		t.Errorf("without files it says %+v", e)
	}
	if e := platform(); !strings.HasPrefix(e.Secret, "whsec_") || e.APIKey != "" {
		t.Errorf("in push mode it says %+v", e)
	}
	if e := platform("--mode", "inbox", "--api-key-file", filepath.Join(dir, "other.txt")); e.Secret != "" || e.APIKey != "" {
		t.Errorf("in inbox mode it says %+v", e)
	}
	if r := run(t, "", nil, "keiki", "platform", "--listen", "127.0.0.1:0", "--secret-file", filepath.Join(dir, "none", "x")); r.code != 1 || !strings.Contains(r.err, "what was minted cannot be kept") {
		t.Errorf("a file in no folder: exit code %d, %q", r.code, r.err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if r := run(t, "", nil, "keiki", "platform", "--listen", ln.Addr().String(), "--secret-file", filepath.Join(dir, "x")); r.code != 1 || !strings.Contains(r.err, ln.Addr().String()+" is in use") || r.out != "" {
		t.Errorf("a port in use: exit code %d, %q, %q", r.code, r.err, r.out)
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
		t.Error("a platform that did not come to be left a secret behind")
	}
}

// freePort is an address that nobody listens on. It is not among those that the system gives out.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000)))
		if err == nil {
			_ = ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// inShell starts a command line as it would be pasted.
func inShell(t *testing.T, env []string, line string) *server {
	t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s := launchCommand(t, nil, env, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // what the shell has started
	return s
}

// TestPlatformsCommands runs what the platform prints to be run beside it.
func TestPlatformsCommands(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's a folder")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	secrets := writeDoc(t, dir, "secrets.json", map[string]any{"agent-7": whsec})
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, tc := range map[string]struct{ env, args []string }{
		"push, printed":                  {nil, nil},
		"push, file":                     {nil, []string{"--secret-file", file("push.txt")}},
		"push, by agent":                 {nil, []string{"--secrets", secrets}},
		"push, environment":              {[]string{"BACKLINE_SECRET=" + whsec}, nil},
		"relay, printed":                 {nil, []string{"--mode", "relay"}},
		"relay, files":                   {nil, []string{"--mode", "relay", "--secret-file", file("relay.txt"), "--api-key-file", file("relay-key.txt")}},
		"relay, environment":             {[]string{"BACKLINE_SECRET=" + whsec, "BACKLINE_API_KEY=sk_0123456789abcdef"}, []string{"--mode", "relay"}},
		"inbox, printed":                 {nil, []string{"--mode", "inbox"}},
		"inbox, file":                    {nil, []string{"--mode", "inbox", "--api-key-file", file("inbox-key.txt")}},
		"inbox, key on the command line": {[]string{"BACKLINE_API_KEY=sk_0123456789abcdef"}, []string{"--mode", "inbox", "--api-key", "sk_0123456789abcdef"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := "http://" + freePort(t) + "/keiki/turn"
			in, lines, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = in.Close(), lines.Close() }()
			p := launch(t, in, tc.env, append([]string{"keiki", "platform", "--json", "--listen", "127.0.0.1:0", "--app-url", endpoint}, tc.args...)...)
			at := events(t, p.out.await(t, `(?m)^\{"event":"listening".*\}\n`)[0])[0]
			env := tc.env
			for _, line := range at.Commands {
				if assignment, ok := strings.CutPrefix(line, "export "); ok {
					env = append(slices.Clone(env), shell(t, env, "eval "+cli.ShellQuote(line)+"; printf %s "+cli.ShellQuote(assignment[:strings.Index(assignment, "=")]+"=")+`"$`+assignment[:strings.Index(assignment, "=")]+`"`))
					continue
				}
				inShell(t, env, line).out.await(t, `alive +http|^Relaying|^Polling`)
			}
			_, _ = io.WriteString(lines, "hello there\n")
			p.out.await(t, `"event":"message".*"text":"hello there"`)
			p.out.await(t, `"event":"outcome".*"status":"completed"`)
			_ = lines.Close()
			if code := p.exit(); code != 0 || p.err.String() != "" && !strings.HasPrefix(p.err.String(), "backline: warning: ") {
				t.Errorf("exit code %d, %q", code, p.err)
			}
		})
	}
}

// TestPrintedPlatformLine runs what serve prints to play Keiki with.
func TestPrintedPlatformLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tc := range []struct {
		name     string
		env      []string
		args     []string
		shellEnv []string
	}{
		{"file", nil, []string{"--keiki-secret-file", writeSecret(t, whsec)}, nil},
		{"by agent", nil, []string{"--keiki-secrets", writeDoc(t, dir, "secrets.json", map[string]any{"agent's": []string{whsec}})}, nil},
		{"environment", []string{"BACKLINE_KEIKI_SECRET=" + whsec}, nil, []string{"BACKLINE_KEIKI_SECRET=" + whsec}},
		{"command line", nil, []string{"--keiki-secret", whsec}, []string{"BACKLINE_KEIKI_SECRET=" + whsec}},
		{"pinned", []string{"BACKLINE_KEIKI_SECRET=" + whsec}, []string{"--keiki-api-base", "http://" + freePort(t) + "/api/v1"}, []string{"BACKLINE_KEIKI_SECRET=" + whsec}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.env, tc.args...)
			line := s.out.await(t, `(?m)^  (.*backline keiki platform .*)$`)[1]
			if strings.Contains(s.out.String(), whsec) {
				t.Errorf("the secret is printed:\n%s", s.out)
			}
			if tc.name != "pinned" {
				line += " --listen 127.0.0.1:0"
			}
			if out := shell(t, tc.shellEnv, line+" --once 'hello there'"); !strings.Contains(out, "delivered  hello there\n") {
				t.Errorf("%s\n%s", line, out)
			}
		})
	}
	s := serve(t, nil)
	if line := s.out.await(t, `(?m)^  (.*backline keiki platform .*)$`)[1]; !strings.HasPrefix(line, "backline keiki platform --secret-file keiki-secret.txt --app-url ") {
		t.Errorf("without a secret it says %s", line)
	}
}

// TestPlatformOnATerminal: turns, what arrives while one runs, and commands.
func TestPlatformOnATerminal(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	tm := onTerminal(t, nil, "keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", s.base, "--secret-file", writeSecret(t, whsec))
	tm.sees(`Playing Keiki at http://127\.0\.0\.1:\d+/api/v1 for agent-1, in push mode`)
	tm.sees(`\x1b\[2mA line is a turn`) // dim
	tm.sees(prompt)
	tm.press("hello" + enter)
	tm.sees(`-1  delivered\x1b\[0m  hello\r\n`)
	tm.sees(`-1  completed`)

	// A line while a turn runs is an arrival.
	tm.press(paste("script:", `{"paragraph":"begun"}`, `{"arrivals":"1s"}`))
	tm.sees(`-2  delivered\x1b\[0m  begun\r\n`)
	tm.press("more" + enter)
	tm.sees(`-2  arrival\x1b\[0m  1, 202\r\n`)
	tm.sees(`-2  delivered\x1b\[0m  arrival:more\r\n`)
	tm.sees(`-2  completed\x1b\[0m  arrivals consumed: 1\r\n`)

	// What the agent writes does not act on the terminal.
	tm.press(paste("script:", `{"text":"\u001b]0;owned\u0007"}`))
	tm.sees("-3  delivered\x1b\\[0m  ␛]0;owned␇")
	if strings.Contains(tm.screen.String(), "\x1b]0;") {
		t.Error("an escape sequence of the agent reached the terminal")
	}
	tm.press(paste("script:", `{"paragraph":"begun"}`, `{"block":true}`))
	tm.sees(`-4  delivered\x1b\[0m  begun\r\n`)
	tm.press("/cancel" + enter)
	tm.sees(`-4  cancelled`)
	tm.press("/cancel" + enter)
	tm.sees(`no turn runs in this conversation`)
	tm.press("/new other" + enter)
	tm.sees(`conversation other`)
	tm.press("/silent script:" + enter)
	tm.sees(`-5  dispatched\x1b\[0m  1 message in other`)
	tm.sees(`-5  completed`)
	tm.press("/bogus" + enter)
	tm.sees(`backline: there is no command /bogus`)
	tm.press("/help" + enter)
	tm.sees(`/arrive TEXT +a message for the turn that runs`)

	// A turn that runs is cancelled when somebody leaves.
	tm.press(paste("script:", `{"paragraph":"begun"}`, `{"block":true}`))
	tm.sees(`-6  delivered\x1b\[0m  begun\r\n`)
	tm.press(ctrlC)
	tm.sees(`-6  cancelled`)
	tm.exits(0)
	s.err.await(t, `-6 status=cancelled`)
	if strings.Contains(tm.screen.String(), whsec) {
		t.Error("the secret is on the screen")
	}
}

func TestPlatformIsLeft(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	for _, tc := range []struct {
		name  string
		leave func(tm *terminal)
	}{
		{"Ctrl-D", func(tm *terminal) { tm.press(ctrlD) }},
		{"/quit", func(tm *terminal) { tm.press("/quit" + enter) }},
		{"SIGTERM", func(tm *terminal) { _ = tm.cmd.Process.Signal(syscall.SIGTERM) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tm := onTerminal(t, []string{"NO_COLOR=1"}, "keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", s.base, "--secret-file", writeSecret(t, whsec))
			tm.sees(prompt)
			tm.press(paste("script:", `{"paragraph":"begun"}`, `{"block":true}`))
			tm.sees(`-1  delivered  begun\r\n`)
			tm.sees(prompt)
			tc.leave(tm)
			tm.sees(`-1  cancelled`)
			tm.exits(0)
			if m := regexp.MustCompile(`\x1b\[[0-9;]*m`).FindString(tm.screen.String()); m != "" {
				t.Errorf("a colour (%q) in spite of NO_COLOR", m)
			}
		})
	}
}

// TestPlatformIsStopped: a signal stops turns from a file, which have then failed.
func TestPlatformIsStopped(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	p := launch(t, nil, nil, "keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", s.base, "--secret-file", writeSecret(t, whsec),
		"--once", steps(`{"paragraph":"begun"}`, `{"block":true}`))
	p.out.await(t, `delivered  begun`)
	p.signal(os.Interrupt)
	if code := p.exit(); code != 1 || p.err.String() != "backline: stopped\n" || !strings.Contains(p.out.String(), "  cancelled") {
		t.Errorf("exit code %d, %q\n%s", code, p.err, p.out)
	}
	s.err.await(t, `status=cancelled`)

	// An app that keeps its acknowledgement waiting does not keep a second signal waiting.
	done := make(chan struct{})
	url := app(t, func(w http.ResponseWriter, turn pushedTurn) {
		if turn.body.Type == "keiki.turn.cancelled" {
			<-done
		}
		w.WriteHeader(http.StatusAccepted)
	})
	p = launch(t, nil, nil, "keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", url, "--secret-file", writeSecret(t, whsec), "--once", "hello", "--json")
	p.out.await(t, `"answered"`)
	defer close(done)
	began := time.Now()
	p.signal(syscall.SIGTERM)
	p.out.await(t, `"cancelled"`)
	time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 1 || time.Since(began) > 4*time.Second || !strings.Contains(p.err.String(), "ended by a second signal") {
		t.Errorf("exit code %d after %v, %q", code, time.Since(began), p.err)
	}
}

// TestPlatformModes: what is said in one mode or another.
func TestPlatformModes(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(key, []byte("sk_0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	// At a terminal, in relay mode: a message waits for the next turn.
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	tm := onTerminal(t, []string{"NO_COLOR=1"}, "keiki", "platform", "--mode", "relay", "--listen", "127.0.0.1:0", "--app-url", s.base, "--secret-file", writeSecret(t, whsec), "--api-key-file", key)
	at := tm.screen.await(t, `Playing Keiki at (http://\S+) for`)[1]
	launch(t, nil, nil, "keiki", "relay", "--api-base", at, "--api-key-file", key, "--app-url", s.base)
	tm.sees(`the relay is polled`)
	tm.sees(prompt)
	tm.press(paste("script:", `{"paragraph":"begun"}`, `{"sleep":"800ms"}`))
	tm.sees(`-1  delivered  begun`)
	tm.press("more" + enter)
	tm.sees(`-1  arrival  not taken`)
	tm.sees(`-2  delivered  more`)
	tm.press(ctrlD)
	tm.exits(0)

	// From a file, for a poller that loses its lease: another claim, and every message once.
	turns := filepath.Join(t.TempDir(), "turns.txt")
	text, err := json.Marshal(map[string]string{"text": steps(`{"paragraph":"begun"}`, `{"sleep":"900ms"}`, `{"text":"done"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(turns, append(text, "\n/sleep 200ms\n/lose\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, nil, nil, "keiki", "platform", turns, "--mode", "inbox", "--json", "--listen", "127.0.0.1:0", "--api-key-file", key, "--lease", "1s")
	at = events(t, p.out.await(t, `(?m)^\{"event":"listening".*\}\n`)[0])[0].APIBase
	launch(t, nil, nil, "keiki", "inbox", "--api-base", at, "--api-key-file", key, "--adapter", "scripted")
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d, %s%s", code, p.out, p.err)
	}
	var texts []string
	for _, e := range events(t, p.out.String()) {
		if e.Event == "message" {
			texts = append(texts, e.Text)
		}
	}
	if !slices.Equal(texts, []string{"begun", "done"}) {
		t.Errorf("the messages are %q", texts)
	}
}

func TestParsePlatformLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line string
		want testhost.KeikiTurn
	}{
		{"hello", testhost.KeikiTurn{Text: "hello"}},
		{" hello ", testhost.KeikiTurn{Text: " hello "}},
		{"//hello", testhost.KeikiTurn{Text: "/hello"}},
		{"/silent a b", testhost.KeikiTurn{Text: "a b", Silent: true}},
		{"/quiet a", testhost.KeikiTurn{Text: "a", QuietLoop: true}},
		{"/held a", testhost.KeikiTurn{Text: "a", HeldBack: true}},
		{"/flagged a", testhost.KeikiTurn{Messages: []testhost.KeikiMessage{{Text: "a", Flagged: true}}}},
		{`{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","conversationId":"c","channel":{"x": 1},"text":"z",
"messages":[{"text":"m","messageId":"1","silent":true,"screening":{"flagged":true}}],"history":[{"role":"user","text":"h"}],
"context":[ 1 ],"instructions":"i","heldBack":true,"silent":true,"quietLoop":true,"timeout":"3s","deadline":"x","keiki":{}}`, testhost.KeikiTurn{
			ID: "t", AgentID: "a", ConversationID: "c", Channel: []byte(`{"x": 1}`), Text: "z",
			Messages: []testhost.KeikiMessage{{Text: "m", ID: "1", Silent: true, Flagged: true}}, History: []testhost.KeikiEntry{{Role: "user", Text: "h"}},
			Context: []byte(`[ 1 ]`), Instructions: "i", HeldBack: true, Silent: true, QuietLoop: true, Timeout: 3 * time.Second,
		}},
	} {
		got, err := cli.ParsePlatformTurn(tc.line)
		if err != nil {
			t.Errorf("%s: %v", tc.line, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.line, diff)
		}
	}
	for line, want := range map[string]string{
		"/":                              "there is no command /:",
		"/bogus x":                       "there is no command /bogus",
		"/silent":                        "/silent needs TEXT after it",
		"/sleep soon":                    "/sleep: want a time",
		"/cancel it":                     "/cancel: it takes nothing after it",
		"{":                              "this is no turn in JSON: unexpected EOF",
		"{}":                             "it has neither text nor messages",
		`{"text":"x"} {}`:                "something follows the object",
		`{"text":"x","txt":1}`:           `unknown field "txt"`,
		`{"text":1}`:                     "cannot unmarshal number",
		`{"text":"x","type":"keiki"}`:    `its type is not "keiki.turn"`,
		`{"text":"x","timeout":"never"}`: "timeout: want a time",
		`{"text":"x","timeout":"0s"}`:    "timeout: want a time",
	} {
		if turn, err := cli.ParsePlatformTurn(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %+v, %v; want an error with %q", line, turn, err, want)
		}
	}
}

// TestPlatformsInput: a line that is too long, and an agent that has no secret here.
func TestPlatformsInput(t *testing.T) {
	t.Parallel()
	secrets := writeDoc(t, t.TempDir(), "secrets.json", map[string]any{"agent-1": whsec, "agent-2": "whsec_0123456789-second"})
	s := serve(t, nil, "--keiki-secrets", secrets)
	for _, tc := range []struct {
		in, args, err string
		code          int
	}{
		{`{"agentId":"agent-2","text":"hello"}`, "--secrets " + secrets, "", 0},
		{`{"agentId":"agent-3","text":"hello"}`, "--secrets " + secrets, `there is no secret for the agent "agent-3"`, 1},
		{`{"agentId":"agent-2","text":"hello"}`, "--mode inbox", "in inbox mode turns are those of agent-1", 1},
		{`{"turnId":"a","text":"hello"}` + "\n" + `{"turnId":"a","text":"hello"}`, "--secrets " + secrets, `line 2 of the input: there was a turn "a" already`, 1},
		{"/arrive x", "--secrets " + secrets, "there is no turn for it to arrive at", 1},
		{"/again", "--secrets " + secrets, "no turn was pushed", 1},
		{"/lose", "--secrets " + secrets, "no turn of the inbox runs", 1},
		{strings.Repeat("x", 9<<20), "--secrets " + secrets, "line 1 is longer than the limit", 1},
	} {
		r := run(t, tc.in+"\n", nil, append([]string{"keiki", "platform", "--listen", "127.0.0.1:0", "--app-url", s.base}, strings.Fields(tc.args)...)...)
		if r.code != tc.code || !strings.Contains(r.err, tc.err) || bytes.Count([]byte(r.err), []byte("\n")) != tc.code {
			t.Errorf("%.60s %s: exit code %d, %q; want %d and %q", tc.in, tc.args, r.code, r.err, tc.code, tc.err)
		}
	}
}
