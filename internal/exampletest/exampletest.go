// Package exampletest runs the programs in examples/ for their tests: as a user would, built by the go
// command and talked to over a socket.
package exampletest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
)

// patience is how long a program may run.
const patience = time.Minute

// A Program is an example that runs.
type Program struct {
	// URL is the address that it printed: "http://127.0.0.1:12345".
	URL string

	t      testing.TB
	cmd    *exec.Cmd
	stderr *bytes.Buffer // to be read once it has ended
	ended  bool
}

// Start builds the program in the folder of the test and runs it on a free port, with these arguments
// besides and env ("NAME=value") on top of the test's environment. At the end of the test it is told to
// end, if it has not been waited for, and must do so without an error.
func Start(t testing.TB, env []string, args ...string) *Program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "example")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// Cleanup functions still need it when the test's own context is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	p := &Program{t: t, cmd: exec.CommandContext(ctx, binary, append([]string{"-listen", "127.0.0.1:0"}, args...)...), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = io.MultiWriter(t.Output(), p.stderr)
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.ended {
			p.Signal(os.Interrupt)
			p.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the program printed %q (%v), want its address", line, err)
	}
	p.URL = url
	return p
}

// Signal sends the program a signal.
func (p *Program) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Error(err)
	}
}

// Wait waits for the end of a program that was told to end, which must be without an error, and returns
// all that it wrote to standard error. It is called once.
func (p *Program) Wait() (stderr string) {
	p.t.Helper()
	p.ended = true
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the program ended with %v", err)
	}
	return p.stderr.String()
}

// Say says something to an agent behind Lowkey and returns the whole answer, also that of a turn which was
// refused or has failed.
func Say(t testing.TB, c *testhost.Conversation, message string) *testhost.Answer {
	t.Helper()
	s, err := c.Say(t.Context(), message)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Answer()
	if err != nil {
		t.Fatal(err)
	}
	return a
}
