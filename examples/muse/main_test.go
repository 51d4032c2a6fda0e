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
	adaptertest.Exercise(t, func() adapters.Adapter { return adapters.Func(muse) })
}

// TestProgram builds the program, runs it, and talks to it as Lowkey does.
func TestProgram(t *testing.T) {
	t.Parallel()
	p := exampletest.Start(t, nil)
	t.Cleanup(testhost.CloseIdleConnections)
	c := testhost.NewConversation(&testhost.Lowkey{URL: p.URL + "/lowkey/turn", PluginID: "muse"})
	for i, message := range []string{"A song about rivers", "The one behind our house"} {
		if a := exampletest.Say(t, c, message); !a.Completed() || a.Text != questions[i] {
			t.Errorf("answer %d is %q, ended by %+v; want %q", i+1, a.Text, a.End, questions[i])
		}
	}
	if a := exampletest.Say(t, c, " "); a.Completed() || a.End.Content != "Tell me what you are working on." {
		t.Errorf("an empty message ended with %+v, want the adapter's own sentence", a.End)
	}
}
