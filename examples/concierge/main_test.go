package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/exampletest"
	"github.com/backline-dev/backline/internal/testhost"
)

const signingSecret = "whsec_of_the_concierges_test"

// TestProgram builds the program, runs it, and plays the platform.
func TestProgram(t *testing.T) {
	t.Parallel()
	platform, err := testhost.NewKeiki(testhost.KeikiConfig{Secrets: map[string][]string{"agent-1": {signingSecret}}})
	if err != nil {
		t.Fatal(err)
	}
	defer platform.Close()
	if _, err := platform.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	p := exampletest.Start(t, []string{"CONCIERGE_SECRET=" + signingSecret, "CONCIERGE_PLATFORM=" + platform.APIBase()}, "-think", "700ms")
	t.Cleanup(testhost.CloseIdleConnections)
	if err := platform.SetDispatchURL(p.URL + "/keiki/turn"); err != nil {
		t.Fatal(err)
	}

	plain := dispatch(t, platform, testhost.KeikiTurn{Text: "A table for two."})
	check(t, platform, plain, nil, "One moment, please.", "I will see to it: A table for two.")

	added := dispatch(t, platform, testhost.KeikiTurn{Text: "A table for two."})
	if err := platform.Until(t.Context(), func() bool { return len(platform.Texts(added)) == 1 }); err != nil {
		t.Fatal(err)
	}
	a, err := platform.Arrive(t.Context(), added, testhost.KeikiMessage{Text: "By the window."})
	if err != nil || !a.Answer.Accepted() {
		t.Fatalf("the arrival: %+v, %v", a, err)
	}
	check(t, platform, added, []int64{1}, "One moment, please.", "I have noted that as well.",
		"I will see to all of it:\n- A table for two.\n- By the window.")

	silent := dispatch(t, platform, testhost.KeikiTurn{Text: "FYI", QuietLoop: true})
	check(t, platform, silent, nil)

	for _, v := range platform.Violations() {
		t.Errorf("the platform complains: %+v", v)
	}
}

func dispatch(t *testing.T, platform *testhost.Keiki, turn testhost.KeikiTurn) (id string) {
	t.Helper()
	d, err := platform.Dispatch(t.Context(), turn)
	if err != nil || d.Answer.Status != 202 {
		t.Fatalf("the turn: %+v, %v", d, err)
	}
	return d.ID
}

// check waits for a turn's end, which must be a good one, with these messages and arrivals.
func check(t *testing.T, platform *testhost.Keiki, id string, consumed []int64, messages ...string) {
	t.Helper()
	o, err := platform.Outcome(t.Context(), id)
	if err != nil || o.Status != "completed" {
		t.Errorf("the turn ended %+v, %v", o, err)
	}
	if diff := cmp.Diff(messages, platform.Texts(id)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(consumed, o.Consumed); diff != "" {
		t.Errorf("arrivals (-want +got):\n%s", diff)
	}
}

// TestLowkey: where nothing can be added, it answers just the same.
func TestLowkey(t *testing.T) {
	t.Parallel()
	p := exampletest.Start(t, nil, "-think", "1ms")
	t.Cleanup(testhost.CloseIdleConnections)
	a := exampletest.Say(t, testhost.NewConversation(&testhost.Lowkey{URL: p.URL + "/lowkey/turn", PluginID: "concierge"}), "A taxi at nine.")
	if want := "One moment, please.\n\nI will see to it: A taxi at nine."; !a.Completed() || a.Text != want {
		t.Errorf("text %q, ended by %+v", a.Text, a.End)
	}
}
