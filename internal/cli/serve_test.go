package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/internal/testhost"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A server is a backline serve in a process of its own.
type server struct {
	t     *testing.T
	cmd   *exec.Cmd
	base  string // http://127.0.0.1:port
	out   *transcript
	err   *transcript
	ended chan struct{}
	state error // of the process, when it has ended
}

// A transcript is what a process has written so far.
type transcript struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed and replaced by each write
}

func newTranscript() *transcript { return &transcript{grown: make(chan struct{})} }

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	close(tr.grown)
	tr.grown = make(chan struct{})
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	s, _ := tr.now()
	return s
}

func (tr *transcript) now() (text string, grown <-chan struct{}) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String(), tr.grown
}

// await waits until the text matches, and fails the test if that takes too long.
func (tr *transcript) await(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.NewTimer(20 * time.Second)
	defer timeout.Stop()
	for {
		text, grown := tr.now()
		if m := re.FindStringSubmatch(text); m != nil {
			return m
		}
		select {
		case <-grown:
		case <-timeout.C:
			t.Fatalf("%q was not written; what was:\n%s", pattern, text)
		}
	}
}

// serve starts a server on a free port and waits until it listens.
func serve(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	s := start(t, env, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	s.base = s.out.await(t, `turns +(http://127\.0\.0\.1:\d+)/lowkey/turn`)[1]
	return s
}

// start starts backline serve.
func start(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	return launch(t, nil, env, append([]string{"serve"}, args...)...)
}

// launch starts any command that goes on for a while.
func launch(t *testing.T, stdin io.Reader, env []string, args ...string) *server {
	t.Helper()
	return launchCommand(t, stdin, env, exec.Command(program(t), args...))
}

func launchCommand(t *testing.T, stdin io.Reader, env []string, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{t: t, cmd: cmd, out: newTranscript(), err: newTranscript(), ended: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = stdin, s.out, s.err
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.state = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // if it runs still
		<-s.ended
		if t.Failed() {
			t.Logf("the log of %s:\n%s", strings.Join(cmd.Args[1:min(3, len(cmd.Args))], " "), s.err)
		}
	})
	return s
}

func (s *server) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code.
func (s *server) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("the server does not end:\n%s", s.err)
	}
	var exit *exec.ExitError
	if s.state != nil && !errors.As(s.state, &exit) {
		s.t.Fatal(s.state)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *server) host() *testhost.Lowkey {
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &testhost.Lowkey{URL: s.base + "/lowkey/turn", PluginID: "muse", Client: &http.Client{Transport: transport}}
}

// say runs one turn.
func (s *server) say(message string) *testhost.Answer {
	s.t.Helper()
	h := s.host()
	stream, err := h.Turn(s.t.Context(), h.Request(message))
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := stream.Answer()
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// running starts a turn and returns when its first text is there.
func (s *server) running(message string) (rest func() (*testhost.Answer, error)) {
	s.t.Helper()
	h := s.host()
	stream, err := h.Turn(s.t.Context(), h.Request(message))
	if err != nil {
		s.t.Fatal(err)
	}
	type end struct {
		answer *testhost.Answer
		err    error
	}
	first, ended := make(chan struct{}), make(chan end, 1)
	go func() {
		a := &testhost.Answer{Status: stream.Status}
		var failure error
		for e, err := range stream.Events() {
			switch {
			case err != nil:
				failure = err
			case e.Type == wire.EventText:
				if a.Text == "" {
					close(first)
				}
				a.Text += e.Content
			case e.Terminal():
				a.End = e.Event
			}
		}
		ended <- end{a, failure}
	}()
	<-first
	return func() (*testhost.Answer, error) {
		e := <-ended
		return e.answer, e.err
	}
}

func (s *server) get(path string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.base+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			s := serve(t, nil, "--adapter", "scripted")
			for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/manifest.json": 200, "/schemas/plugins/external-turn-protocol.schema.json": 200} {
				if got := s.get(path); got != want {
					t.Errorf("GET %s = %d, want %d", path, got, want)
				}
			}
			rest := s.running("script:\n{\"text\":\"begun, \"}\n{\"sleep\":\"700ms\"}\n{\"text\":\"done\"}")
			s.signal(sig)
			s.err.await(t, "draining; a second signal ends at once")
			for s.get("/readyz") != http.StatusServiceUnavailable { // the drain begins right behind that line
				continue
			}
			if got := s.get("/healthz"); got != http.StatusOK {
				t.Errorf("/healthz while draining is %d, want 200", got)
			}
			if a := s.say("hello"); a.Status != http.StatusServiceUnavailable || a.End.Type != wire.EventError {
				t.Errorf("a new turn while draining: %+v, want 503 and an error event", a)
			}
			if a, err := rest(); err != nil || a.Text != "begun, done" || a.End.Status != wire.StatusComplete {
				t.Errorf("the running turn: %+v, %v; want it completed", a, err)
			}
			if code := s.exit(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}

func TestServeDrainZero(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted", "--drain", "0")
	rest := s.running("script:\n{\"text\":\"begun\"}\n{\"block\":true}")
	s.signal(syscall.SIGTERM)
	if a, err := rest(); err != nil || a.End.Status != wire.StatusCancelled {
		t.Errorf("the running turn: %+v, %v; want it cancelled", a, err)
	}
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestServeSecondSignal(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted", "--drain", "10m")
	rest := s.running("script:\n{\"text\":\"begun\"}\n{\"stall\":\"10m\"}")
	s.signal(syscall.SIGTERM)
	s.err.await(t, "draining")
	time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(s.err.String(), "backline: ended by a second signal") {
		t.Errorf("standard error does not say why:\n%s", s.err)
	}
	if _, err := rest(); err == nil {
		t.Error("the running turn has a clean end")
	}
}

func TestServePortInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	r := run(t, "", nil, "serve", "--listen", ln.Addr().String())
	if r.code != 1 || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, ln.Addr().String()+" is in use") {
		t.Errorf("exit code %d, %q, %q; want 1 and one line about the port", r.code, r.out, r.err)
	}
}

// TestServeEndsWithItsContext: a program that embeds the command can end it.
func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := newTranscript(), newTranscript()
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(ctx, []string{"serve", "--listen", "127.0.0.1:0"}, cli.Streams{In: strings.NewReader(""), Out: out, Err: errs})
	}()
	out.await(t, "backline chat http://")
	cancel()
	if got := <-code; got != 0 || errs.String() != "" {
		t.Errorf("exit code %d, %q; want 0 and nothing", got, errs)
	}
}

// shell runs a command line as it would be pasted, or skips the test where curl is missing.
func shell(t *testing.T, env []string, line string) string {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("curl is missing, and CI has to have it")
		}
		t.Skip("curl is missing: the printed command line is not tried")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", line, err, errs.String())
	}
	return string(out)
}

// TestPrintedCurlLine pastes it into a shell, twice: two turns, and both complete.
func TestPrintedCurlLine(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef-a-secret"
	dir := filepath.Join(t.TempDir(), "it's a folder")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token.txt")
	if err := os.WriteFile(file, []byte("\n"+token+" \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name     string
		env      []string // of the server
		args     []string
		shellEnv []string
	}{
		{"plain", nil, nil, nil},
		{"scripted", nil, []string{"--adapter", "scripted"}, nil},
		{"odd plugin id", nil, []string{"--plugin-id", `it's $(touch pwned) "mu\se" !1 `}, nil},
		{"token in the environment", []string{"BACKLINE_AUTH_TOKEN=" + token}, nil, []string{"BACKLINE_AUTH_TOKEN=" + token}},
		{"token on the command line", nil, []string{"--auth-token", token}, []string{"BACKLINE_AUTH_TOKEN=" + token}},
		{"token in a file", nil, []string{"--auth-token-file", file}, nil},
		{"all interfaces", nil, []string{"--listen", "0.0.0.0:0", "--insecure"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.env, tc.args...)
			line := s.out.await(t, `(?m)^  (curl .*)$`)[1]
			if strings.Contains(s.out.String(), token) {
				t.Errorf("the token is printed:\n%s", s.out)
			}
			for range 2 {
				out := shell(t, tc.shellEnv, line)
				events := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
				if len(events) != 3 || !strings.Contains(events[1], "Hello from curl") || !strings.Contains(events[2], `"complete"`) {
					t.Errorf("the turn's events are\n%s", out)
				}
			}
			s.err.await(t, `(?s)msg=turn.*msg=turn`)
			ids := regexp.MustCompile(`turn=(\S+)`).FindAllStringSubmatch(s.err.String(), -1)
			if len(ids) != 2 || ids[0][1] == ids[1][1] {
				t.Errorf("the turns that ran are %q, want two of different ids", ids)
			}

			// The line for chat works as well.
			chat := s.out.await(t, `(?m)^  (.*backline chat .*)$`)[1]
			if out := shell(t, tc.shellEnv, chat+" --message 'hello there'"); out != "hello there\n" {
				t.Errorf("%s\nanswers %q", chat, out)
			}
		})
	}
}

// TestServeJSON: the addresses for a program that starts the server.
func TestServeJSON(t *testing.T) {
	t.Parallel()
	s := start(t, nil, "--listen", "127.0.0.1:0", "--json")
	line := s.out.await(t, `(?m)^(\{.*\})$`)[1]
	var at map[string]string
	if err := json.Unmarshal([]byte(line), &at); err != nil {
		t.Fatal(err)
	}
	if at["plugin"] != "muse" || at["adapter"] != "echo" || !strings.HasSuffix(at["turns"], "/lowkey/turn") ||
		!strings.HasSuffix(at["keiki"], "/keiki/turn") || at["keikiSecret"] != "none" || at["keikiPlatform"] == "" {
		t.Errorf("the addresses are %v", at)
	}
	for _, name := range []string{"healthz", "readyz", "manifest", "schema"} {
		s.base = at[name]
		if got := s.get(""); got != http.StatusOK {
			t.Errorf("GET %s = %d", at[name], got)
		}
	}
	if out := shell(t, nil, at["curl"]); !strings.Contains(out, `"complete"`) {
		t.Errorf("%s\n%s", at["curl"], out)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestSecretsStayInside looks for tokens in all that a server writes at its most talkative.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	const token, wrong = "right-0123456789abcdef", "wrong-0123456789abcdef"
	for _, format := range []string{"text", "json"} {
		s := serve(t, nil, "--auth-token", token, "--log-level", "debug", "--log-format", format, "--adapter", "scripted")
		h := s.host()
		for _, tok := range []string{token, wrong, ""} {
			h.Token = tok
			for _, message := range []string{"hello", "script:\n{\"panic\":\"x\"}", "script:\n{\"error\":\"x\"}"} {
				stream, err := h.Turn(t.Context(), h.Request(message))
				if err != nil {
					t.Fatal(err)
				}
				a, err := stream.Answer()
				if err != nil {
					t.Fatal(err)
				}
				if want := map[bool]int{true: 200, false: 401}[tok == token]; a.Status != want {
					t.Errorf("status %d with the token %q, want %d", a.Status, tok, want)
				}
				for _, e := range a.Events {
					if strings.Contains(string(e.Raw), "0123456789abcdef") {
						t.Errorf("the token is on the wire: %s", e.Raw)
					}
				}
			}
			stream, err := h.Post(t.Context(), []byte("junk"), http.Header{"Content-Encoding": {"gzip"}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Answer(); err != nil {
				t.Fatal(err)
			}
		}
		s.signal(syscall.SIGTERM)
		if code := s.exit(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		log := s.out.String() + s.err.String()
		if strings.Contains(log, "0123456789abcdef") {
			t.Errorf("a token is in what the server writes:\n%s", log)
		}
		if !strings.Contains(log, "turn request refused") || !strings.Contains(log, "backline: warning: a secret on the command line") {
			t.Errorf("the log is not at debug level, or lacks the warning:\n%s", log)
		}
		if format == "json" {
			for line := range strings.Lines(s.err.String()) {
				if !strings.HasPrefix(line, "backline: ") && !json.Valid([]byte(line)) {
					t.Errorf("a line of the log is not JSON: %s", line)
				}
			}
		}
	}
}

func TestScriptExit(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	if a := s.say("script:\n{\"exit\":3}"); a.Completed() || !strings.Contains(a.End.Content, "BACKLINE_SCRIPT_EXIT=1") {
		t.Errorf("without the variable: %+v, want a refusal that names it", a.End)
	}
	s = serve(t, []string{"BACKLINE_SCRIPT_EXIT=1"}, "--adapter", "scripted")
	h := s.host()
	if stream, err := h.Turn(t.Context(), h.Request("script:\n{\"exit\":3}")); err == nil {
		_, _ = stream.Answer()
	}
	if code := s.exit(); code != 3 {
		t.Errorf("exit code %d, want the script's 3", code)
	}
}

// TestServeFlagsReachTheServer tries those whose effect is seen on the wire in one turn; the others are
// in TestConfig.
func TestServeFlagsReachTheServer(t *testing.T) {
	t.Parallel()
	manifest := filepath.Join(t.TempDir(), "manifest.json")
	if err := os.WriteFile(manifest, []byte(`{"id":"orpheus","mine":1,"agent":{"runtime":"external:orpheus","endpoint":"https://o.example/t"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, []string{"BACKLINE_ADAPTER=scripted", "BACKLINE_MAX_BODY=2KiB", "BACKLINE_HEARTBEAT="},
		"--manifest", manifest, "--heartbeat", "20ms", "--turn-timeout", "300ms", "--replicas", "2")
	h := s.host()
	h.PluginID = "orpheus"
	stream, err := h.Turn(t.Context(), h.Request("script:\n{\"block\":true}"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := stream.Answer()
	if err != nil || !strings.Contains(a.End.Content, "turn timeout, 300ms") {
		t.Errorf("the end is %+v, %v; want the limit of 300ms", a.End, err)
	}
	if beats := len(slices.DeleteFunc(slices.Clone(a.Events), func(e testhost.Event) bool { return e.Status != wire.StatusWorking })); beats < 2 {
		t.Errorf("%d heartbeats in 300ms, want some", beats)
	}
	stream, err = h.Turn(t.Context(), h.Request(strings.Repeat("x", 3<<10)))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := stream.Answer(); err != nil || a.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("a large request: %d, %v; want 413", a.Status, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/manifest.json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if doc, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(doc, []byte(`"mine":1`)) {
		t.Errorf("/manifest.json is %s, %v; want the file", doc, err)
	}
	s.err.await(t, "replicas=2")
}
