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
	adaptertest.Exercise(t, func() adapters.Adapter { return adapters.Func(memory) })
}

// TestEvicted shows what cannot be brought about over a socket: the cache has dropped the session.
func TestEvicted(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn("notes")
	turn.Continuity = adapters.ContinuityEvicted
	res := adaptertest.Run(t.Context(), adapters.Func(memory), turn)
	want := "I had to drop what I remembered of this conversation. There are no notes."
	if res.Err != nil || res.Text() != want {
		t.Errorf("text %q, error %v; want %q", res.Text(), res.Err, want)
	}
}

// TestProgram builds the program, runs it, and talks to it as Lowkey does, with a window that is so
// short that only the server can remember the conversation.
func TestProgram(t *testing.T) {
	t.Parallel()
	url := start(t)
	t.Cleanup(testhost.CloseIdleConnections)
	host := &testhost.Lowkey{URL: url + "/lowkey/turn", PluginID: "memory"}
	c := testhost.NewConversation(host)
	c.Window = 2
	for _, turn := range []struct{ message, want string }{
		{"The sky was green today", "You have not said that before."},
		{"note buy milk", "Kept as note 1."},
		{"note call Ada", "Kept as note 2."},
		{"green", "6 messages ago you said: The sky was green today"},
		{"notes", "- buy milk\n- call Ada"},
	} {
		if got := say(t, c, turn.message); got != turn.want {
			t.Errorf("%q is answered with %q, want %q", turn.message, got, turn.want)
		}
	}

	// The user takes back all but the first exchange: the window is the truth, and notes are kept.
	c.Transcript = c.Transcript[:2]
	if got, want := say(t, c, "milk"), "You have not said that before."; got != want {
		t.Errorf("after the rewind %q, want %q", got, want)
	}
	if got, want := say(t, c, "notes"), "- buy milk\n- call Ada"; got != want {
		t.Errorf("the notes after the rewind are %q, want %q", got, want)
	}
	c.Transcript = nil
	if got, want := say(t, c, "notes"), "There are no notes."; got != want {
		t.Errorf("the notes after clearing are %q, want %q", got, want)
	}

	if got, want := say(t, testhost.NewConversation(host), "notes"), "There are no notes."; got != want {
		t.Errorf("another session's notes are %q, want %q", got, want)
	}
}

func say(t *testing.T, c *testhost.Conversation, message string) string {
	t.Helper()
	s, err := c.Say(t.Context(), message)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Answer()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Completed() {
		t.Fatalf("%q ended with %+v", message, a.End)
	}
	return a.Text
}

// start builds the program and runs it on a free port until the test ends; then it is told to end, and
// must do so without an error. It returns the address that the program prints.
func start(t *testing.T) (url string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "memory")
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
