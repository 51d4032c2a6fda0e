package main

import (
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/internal/exampletest"
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
	p := exampletest.Start(t, nil)
	t.Cleanup(testhost.CloseIdleConnections)
	host := &testhost.Lowkey{URL: p.URL + "/lowkey/turn", PluginID: "memory"}
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
	a := exampletest.Say(t, c, message)
	if !a.Completed() {
		t.Fatalf("%q ended with %+v", message, a.End)
	}
	return a.Text
}
