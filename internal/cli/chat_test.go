package cli_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// A terminal is a program on a pseudo-terminal.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	keys   *os.File // the terminal's other side
	tty    *os.File
	before *term.State
	screen *transcript
	ended  chan error
}

const (
	enter  = "\r"
	ctrlC  = "\x03"
	ctrlD  = "\x04"
	prompt = `> (?:\x1b\[0m)?(?:\x1b\[\?2004h)?$` // at the end of what is on the screen
)

// onTerminal starts backline with a terminal for all three streams.
func onTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	tm := &terminal{t: t, keys: keys, tty: tty, screen: newTranscript(), ended: make(chan error, 1)}
	if tm.before, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	tm.cmd = exec.Command(program(t), args...)
	tm.cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "NO_COLOR="}, env...)...)
	tm.cmd.Stdin, tm.cmd.Stdout, tm.cmd.Stderr = tty, tty, tty
	// Its own session with this terminal, so that Ctrl-C is its signal alone.
	tm.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := tm.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(tm.screen, keys) // ends when the terminal is closed
	}()
	go func() { tm.ended <- tm.cmd.Wait() }()
	t.Cleanup(func() {
		_ = tm.cmd.Process.Kill() // if it runs still
		_ = tty.Close()
		_ = keys.Close()
		<-read
	})
	return tm
}

func (tm *terminal) press(keys string) {
	tm.t.Helper()
	if _, err := io.WriteString(tm.keys, keys); err != nil {
		tm.t.Fatal(err)
	}
}

func (tm *terminal) sees(pattern string) { tm.t.Helper(); tm.screen.await(tm.t, pattern) }

// exit waits for the end and returns the exit code. The terminal must be as it was.
func (tm *terminal) exit() int {
	tm.t.Helper()
	var err error
	select {
	case err = <-tm.ended:
	case <-time.After(20 * time.Second):
		tm.t.Fatalf("the program does not end; on the screen is:\n%s", tm.screen)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tm.t.Fatal(err)
	}
	after, err := term.GetState(int(tm.tty.Fd()))
	if err != nil {
		tm.t.Fatal(err)
	}
	if got, want := fmt.Sprint(*after), fmt.Sprint(*tm.before); got != want {
		tm.t.Errorf("the terminal is left as %s, and was %s", got, want)
	}
	return tm.cmd.ProcessState.ExitCode()
}

// exits waits for the end, which is with this exit code.
func (tm *terminal) exits(code int) {
	tm.t.Helper()
	if got := tm.exit(); got != code {
		tm.t.Errorf("exit code %d, want %d; on the screen is:\n%s", got, code, tm.screen)
	}
}

// paste is text as a terminal sends it when it is pasted.
func paste(lines ...string) string {
	return "\x1b[200~" + strings.Join(lines, enter) + enter + "\x1b[201~" + enter
}

// TestChatOnATerminal: a conversation, in which Ctrl-C stops the turn and not the program.
func TestChatOnATerminal(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	tm := onTerminal(t, nil, "chat", s.base)
	tm.sees(`Session session-\w+ with muse\. Ctrl-C stops a turn`)
	tm.sees(prompt)
	tm.press("hello" + enter)
	tm.sees(`hello\r\n(?:\x1b\[\?2004[hl])*hello\r\n`) // what was typed, and the answer
	tm.sees(prompt)

	// Several lines that are pasted are one message.
	tm.press(paste("script:", `{"status":"thinking"}`, `{"text":"begun"}`, `{"block":true}`))
	tm.sees(`\(thinking\)`)
	tm.sees(`[\nl]begun`)
	tm.press(ctrlC)
	tm.sees(`backline: stopped\r\n`)
	tm.sees(prompt)
	s.err.await(t, `cause=host-gone`)

	// The conversation goes on, and the window holds what was said.
	tm.press(paste("script:", `{"show":"history"}`))
	tm.sees(`\[\{"role":"user","content":"hello"\},\{"role":"agent","content":"hello"\},\{"role":"user","content":"script:.*\},\{"role":"agent","content":"begun"\}\]`)

	// A turn that fails does not end it either.
	tm.press(paste("script:", `{"error":"out of luck"}`))
	tm.sees(`backline: the turn failed: out of luck\r\n`)
	tm.sees(prompt)

	// What the agent writes does not act on the terminal.
	tm.press(paste("script:", `{"text":"\u001b]0;owned\u0007\u009b31m"}`))
	tm.sees("␛]0;owned␇\ufffd31m")
	if strings.Contains(tm.screen.String(), "\x1b]0;") {
		t.Error("an escape sequence of the agent reached the terminal")
	}
	tm.sees(prompt)
	tm.press(ctrlD)
	tm.exits(0)
	// One session throughout, and a turn id for each turn.
	s.err.await(t, `(?s)(?:msg=turn.*){5}`)
	sessions, turns := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`session=(\S+) turn=(\S+)`).FindAllStringSubmatch(s.err.String(), -1) {
		sessions[m[1]], turns[m[2]] = true, true
	}
	if len(sessions) != 1 || len(turns) != 5 {
		t.Errorf("%d sessions and %d turns, want 1 and 5", len(sessions), len(turns))
	}
}

// TestChatImpatience: Ctrl-C pressed again to stop the same turn does not leave.
func TestChatImpatience(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	tm := onTerminal(t, nil, "chat", s.base)
	tm.sees(prompt)
	tm.press(paste("script:", `{"text":"begun"}`, `{"block":true}`))
	tm.sees(`[\nl]begun`)
	tm.press(ctrlC + ctrlC)
	tm.sees(prompt)
	tm.press("still here" + enter)
	tm.sees(`still here\r\n(?:\x1b\[\?2004[hl])*still here\r\n`)
	tm.sees(prompt)
	tm.press(ctrlC)
	tm.exits(0)
}

func TestChatIsLeft(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	for _, tc := range []struct {
		name  string
		leave func(tm *terminal)
	}{
		{"Ctrl-C at the prompt", func(tm *terminal) { tm.press(ctrlC) }},
		{"Ctrl-D at the prompt", func(tm *terminal) { tm.press(ctrlD) }},
		{"SIGTERM at the prompt", func(tm *terminal) { _ = tm.cmd.Process.Signal(syscall.SIGTERM) }},
		{"SIGINT at the prompt", func(tm *terminal) { _ = tm.cmd.Process.Signal(os.Interrupt) }},
		{"SIGTERM in a turn", func(tm *terminal) {
			tm.press(paste("script:", `{"text":"begun"}`, `{"block":true}`))
			tm.sees(`[\nl]begun`)
			_ = tm.cmd.Process.Signal(syscall.SIGTERM)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tm := onTerminal(t, []string{"NO_COLOR=1"}, "chat", s.base)
			tm.sees(prompt)
			tc.leave(tm)
			tm.exits(0)
			if m := regexp.MustCompile(`\x1b\[[0-9;]*m`).FindString(tm.screen.String()); m != "" {
				t.Errorf("a colour (%q) in spite of NO_COLOR", m)
			}
		})
	}
}

func TestChatColours(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	tm := onTerminal(t, nil, "chat", s.base)
	tm.sees(`\x1b\[2mSession`)
	tm.sees(prompt) // before it, Ctrl-D is an empty line of the terminal's own
	tm.press(ctrlD)
	tm.exits(0)
}

// TestChatOneTurnIsStopped: with --message there is nothing but the turn.
func TestChatOneTurnIsStopped(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	tm := onTerminal(t, nil, "chat", s.base, "--message", "script:\n{\"text\":\"begun\"}\n{\"block\":true}")
	tm.sees("begun")
	tm.press(ctrlC)
	tm.sees(`backline: stopped`)
	tm.exits(1)
	s.err.await(t, `cause=host-gone`)
}

// TestChatStreams: what has arrived is shown, though the turn goes on.
func TestChatStreams(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, "--adapter", "scripted")
	out := newTranscript()
	cmd := exec.CommandContext(t.Context(), program(t), "chat", s.base, "--message", "script:\n{\"text\":\"one \"}\n{\"block\":true}")
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "^one $")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ends with %v, want exit code 1", err)
	}
	if got := out.String(); got != "one \n" {
		t.Errorf("standard output %q, want what came and a new line", got)
	}
}

// TestChatOfLinesIsStopped: an interrupt stops a turn and what was to follow it, and also the wait for
// the next line.
func TestChatOfLinesIsStopped(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	out := newTranscript()
	cmd := exec.CommandContext(t.Context(), program(t), "chat", s.base)
	cmd.Stdout = out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "hello\n"); err != nil {
		t.Fatal(err)
	}
	out.await(t, "^hello\n$")
	if err := cmd.Process.Signal(os.Interrupt); err != nil { // while it waits for a line
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ends well, though it was interrupted")
	}
}

// standIn is a server of another make.
func standIn(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestChatWithOtherServers(t *testing.T) {
	t.Parallel()
	const (
		started  = `{"protocolVersion":1,"type":"status","status":"started"}` + "\n"
		hello    = `{"protocolVersion":1,"type":"text","content":"hello"}` + "\n"
		complete = `{"protocolVersion":1,"type":"status","status":"complete"}` + "\n"
	)
	for _, tc := range []struct {
		name   string
		status int
		body   string
		code   int
		out    string
		err    string
	}{
		{"status error", 200, started + hello + `{"protocolVersion":1,"type":"status","status":"error","content":"oh"}`, 1, "hello\n", "the turn failed: oh"},
		{"cancelled", 200, started + hello + `{"protocolVersion":1,"type":"status","status":"cancelled"}`, 1, "hello\n", "the server cancelled the turn"},
		{"no start, which the contract does not ask for", 200, hello + complete, 0, "hello\n", ""},
		{"a late start", 200, hello + started + complete, 1, "hello\n", "line 2 of the answer"},
		{"the last line is bad", 200, "<html>oops</html>\n", 1, "", "line 1 of the answer: malformed JSON"},
		{"another version", 200, `{"protocolVersion":2,"type":"text","content":"hi"}` + "\n", 1, "", "line 1 of the answer"},
		{"a bad line", 200, started + "junk\n" + hello + complete, 1, "hello\n", "line 2 of the answer: malformed JSON"},
		{"early end", 200, started + hello, 1, "hello\n", "the answer ended early"},
		{"empty", 200, "", 1, "", "the answer ended early"},
		{"a page", 502, "<html>\x1b[2Jbad gateway</html>\n<p>more</p>", 1, "", "HTTP status 502: the answer is not an error event: <html>␛[2Jbad gateway</html>"},
		{"an empty refusal", 503, "", 1, "", "HTTP status 503: the answer is not an error event: it is empty"},
		{"a refusal", 503, `{"protocolVersion":1,"type":"error","content":"Later."}`, 1, "", "HTTP status 503: Later."},
		{"all is well", 200, started + hello + complete, 0, "hello\n", ""},
		{"a line that ends", 200, started + `{"protocolVersion":1,"type":"text","content":"hello\n"}` + "\n" + complete, 0, "hello\n", ""},
		{"no text", 200, started + complete, 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			url := standIn(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					http.NotFound(w, r)
					return
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			r := run(t, "", nil, "chat", url, "-m", "hi")
			if r.code != tc.code || r.out != tc.out || !strings.Contains(r.err, tc.err) || (tc.err == "") != (r.err == "") || strings.Count(r.err, "\n") > 1 {
				t.Errorf("exit code %d, output %q, error %q; want %d, %q, one line with %q", r.code, r.out, r.err, tc.code, tc.out, tc.err)
			}
		})
	}
}

// Fault A1: chat reads lines of at least 8 MiB, and names its limit for a longer one.
func TestFaultA1ChatReadsLongLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 8<<20-100)
	url := standIn(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"protocolVersion":1,"type":"status","status":"started"}`+"\n"+
			`{"protocolVersion":1,"type":"text","content":"`+long+`"}`+"\n"+
			`{"protocolVersion":1,"type":"status","status":"complete"}`)
	})
	if r := run(t, "", nil, "chat", url, "-m", "hi"); r.code != 0 || r.out != long+"\n" {
		t.Errorf("exit code %d, %d bytes, %q", r.code, len(r.out), r.err)
	}
	if r := run(t, "", nil, "chat", url, "-m", "hi", "--line-limit", "1MiB"); r.code != 1 || !strings.Contains(r.err, "line 2 is longer than the limit of 1048576 bytes") {
		t.Errorf("exit code %d, %q; want the limit named", r.code, r.err)
	}
}

// TestChatFindsThePlugin: the id and the endpoint below a prefix come from the server's manifest.
func TestChatFindsThePlugin(t *testing.T) {
	t.Parallel()
	var asked []string
	url := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		plugin := regexp.MustCompile(`"pluginId":"(\w*)"`).FindStringSubmatch(string(body))
		asked = append(asked, r.Method+" "+r.URL.Path+strings.Join(plugin, " "))
		if r.URL.Path == "/agents/manifest.json" {
			_, _ = io.WriteString(w, `{"id":"orpheus","agent":{}}`)
			return
		}
		http.Error(w, "no", http.StatusNotFound)
	})
	for _, tc := range []struct{ url, args, want string }{
		{"/agents", "", `/agents/lowkey/turn"pluginId":"orpheus" orpheus`},
		{"/agents/lowkey/turn", "", `/agents/lowkey/turn"pluginId":"orpheus" orpheus`},
		{"/agents", "--plugin-id=x", `/agents/lowkey/turn"pluginId":"x" x`},
		{"/other", "", `/other"pluginId":"muse" muse`},
		{"", "", `/lowkey/turn"pluginId":"muse" muse`},
	} {
		asked = nil
		run(t, "", nil, append([]string{"chat", url + tc.url, "-m", "hi"}, strings.Fields(tc.args)...)...)
		if len(asked) == 0 || asked[len(asked)-1] != "POST "+tc.want {
			t.Errorf("chat %s %s asked %q, want POST %s at last", tc.url, tc.args, asked, tc.want)
		}
	}
}
