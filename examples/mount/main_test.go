package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
)

const token = "a token for this test alone"

// TestProgram builds the program, runs it on a free port, reads a turn through its middleware, and ends
// it in the middle of another one, which comes to its end.
func TestProgram(t *testing.T) {
	t.Parallel()
	p := start(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	host := &testhost.Lowkey{URL: p.url + "/agents/lowkey/turn", PluginID: "muse", Token: token, Client: client}

	if status, body := get(t, client, p.url+"/"); status != http.StatusOK || body != "nothing to see here\n" {
		t.Errorf("the server's own page: %d %q", status, body)
	}
	if status, _ := get(t, client, p.url+"/agents/readyz"); status != http.StatusOK {
		t.Errorf("readiness: %d", status)
	}
	stranger := &testhost.Lowkey{URL: host.URL, PluginID: "muse", Client: client}
	if a := turn(t, stranger, "hello"); a.Status != http.StatusUnauthorized {
		t.Errorf("a turn without the token: status %d, want 401", a.Status)
	}
	a := turn(t, host, "one after another")
	if !a.Completed() || a.Text != "one after another " {
		t.Errorf("text %q, ended by %+v", a.Text, a.End)
	}

	// Each word arrives while the turn runs: after the first one there is time to end the program.
	const words = 20
	s, err := host.Turn(t.Context(), host.Request(strings.Repeat("word ", words)))
	if err != nil {
		t.Fatal(err)
	}
	got, draining := 0, false
	for e, err := range s.Events() {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		switch {
		case e.Terminal() && e.Status != "complete":
			t.Errorf("the turn that was running ended with %+v", e.Event)
		case e.Type == "text":
			if got++; got == 1 {
				if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			} else if !draining {
				status, _ := get(t, client, p.url+"/agents/readyz")
				draining = status == http.StatusServiceUnavailable
			}
		}
	}
	if got != words || !draining {
		t.Errorf("%d words came, want %d; readiness said 503 meanwhile: %t", got, words, draining)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	// What the middleware saw of both turns. Wait has waited for the end of standard error.
	if want := "POST /agents/lowkey/turn: 200, "; strings.Count(p.stderr.String(), want) != 2 {
		t.Errorf("the access log does not have %q twice", want)
	}
}

// TestTokenIsNeeded: without one the program does not serve.
func TestTokenIsNeeded(t *testing.T) {
	t.Setenv("MUSE_TOKEN", "")
	if err := run("127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "Tokens") {
		t.Errorf("without a token: %v", err)
	}
}

func turn(t *testing.T, host *testhost.Lowkey, message string) *testhost.Answer {
	t.Helper()
	s, err := host.Turn(t.Context(), host.Request(message))
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Answer()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

type program struct {
	url    string
	cmd    *exec.Cmd
	stderr *bytes.Buffer // to be read once the program has ended
}

// start builds the program and runs it on a free port. It is killed at the end of a test that has not
// ended it.
func start(t *testing.T) program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "mount")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	cmd := exec.CommandContext(ctx, binary, "-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "MUSE_TOKEN="+token)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // an error where the test has waited already
		if t.Failed() {
			t.Logf("the program's standard error:\n%s", &stderr)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the program printed %q (%v), want its address", line, err)
	}
	return program{url, cmd, &stderr}
}
