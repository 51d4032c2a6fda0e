package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/internal/testhost"
)

func TestExercise(t *testing.T) {
	t.Parallel()
	adaptertest.Exercise(t, func() adapters.Adapter { return adapters.Func(muse) })
}

// TestProgram builds the program, runs it, and talks to it as Lowkey does.
func TestProgram(t *testing.T) {
	t.Parallel()
	url := start(t)
	t.Cleanup(testhost.CloseIdleConnections)
	c := testhost.NewConversation(&testhost.Lowkey{URL: url + "/lowkey/turn", PluginID: "muse"})
	for i, message := range []string{"A song about rivers", "The one behind our house"} {
		if a := say(t, c, message); !a.Completed() || a.Text != questions[i] {
			t.Errorf("answer %d is %q, ended by %+v; want %q", i+1, a.Text, a.End, questions[i])
		}
	}
	if a := say(t, c, " "); a.Completed() || a.End.Content != "Tell me what you are working on." {
		t.Errorf("an empty message ended with %+v, want the adapter's own sentence", a.End)
	}
}

func say(t *testing.T, c *testhost.Conversation, message string) *testhost.Answer {
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

// start builds the program and runs it on a free port until the test ends; then it is told to end, and
// must do so without an error. It returns the address that the program prints.
func start(t *testing.T) (url string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "muse")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	cmd := exec.CommandContext(ctx, binary, "-listen", "127.0.0.1:0")
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGINT: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the program printed %q (%v), want its address", line, err)
	}
	return url
}
