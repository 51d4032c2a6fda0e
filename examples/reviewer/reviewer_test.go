package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

const aDraft = "Our river is 346 km long. It is the longest of all. Nobody has ever measured it on foot, " +
	"because the path beside it ends at the weir and begins again behind the mill, as we know."

func TestExercise(t *testing.T) {
	t.Parallel()
	adaptertest.Suite{Message: aDraft, External: true}.Exercise(t, func() adapters.Adapter { return adapters.Func(review) })
}

// TestAnswers plays the host's part: what it admits, refuses and does not have is in the critique, and
// ends no turn.
func TestAnswers(t *testing.T) {
	t.Parallel()
	admit := adapters.Observation{Admitted: true, Reason: "completed", Receipt: "receipt:7", Evidence: []string{"evidence:a", "evidence:b"}}
	refuse := adapters.Observation{Reason: "policy-denied"}
	bare := adapters.Observation{Admitted: true, Reason: "completed", Receipt: "receipt:7"}
	for name, c := range map[string]struct {
		tool, ask *adapters.Observation
		want      []string
		long      int
	}{
		"both admitted": {&admit, &admit, []string{"Facts: checked (receipt:7); see evidence:a, evidence:b.", "Readers: outside the team."}, 1},
		"no evidence":   {&bare, &admit, []string{"Facts: checked (receipt:7).", "Readers: outside the team."}, 1},
		"both refused":  {&refuse, &refuse, []string{"not checked, since the host refused (policy-denied)", "Readers: the team (policy-denied)."}, 0},
		"neither there": {nil, nil, []string{"this host lends no tools", "nobody could be asked"}, 1},
	} {
		turn := adaptertest.NewTurn(aDraft)
		if c.tool != nil {
			turn.OnTool = func(_ context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
				if r.Ref != "tool:check-facts" || r.Schema != "check-facts.v1" || string(r.Input) != `{"claims":["Our river is 346 km long."]}` {
					t.Errorf("%s: the request is %+v", name, r)
				}
				return *c.tool, nil
			}
			turn.OnAsk = func(context.Context, adapters.Question) (adapters.Observation, error) { return *c.ask, nil }
		}
		res := adaptertest.Run(t.Context(), adapters.Func(review), turn)
		if res.Err != nil {
			t.Errorf("%s: %v", name, res.Err)
		}
		for _, want := range append(c.want, "Critique of a draft of 37 words in 3 sentences.") {
			if !strings.Contains(res.Text(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, res.Text())
			}
		}
		if n := strings.Count(res.Text(), "Style: "); n != c.long {
			t.Errorf("%s: %d sentences are too long, want %d\n%s", name, n, c.long, res.Text())
		}
		if len(res.UsageReports) != 1 || res.Usage.Steps != adapters.Count(3) || res.Usage.CostMicros != adapters.Count(0) {
			t.Errorf("%s: usage %+v in %d reports", name, res.Usage, len(res.UsageReports))
		}
	}
}

// TestTurnsThatEndWhileItWaits: an end of the turn is no refusal.
func TestTurnsThatEndWhileItWaits(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn(aDraft)
	ctx, cancel := context.WithCancelCause(t.Context())
	turn.OnTool = func(ctx context.Context, _ adapters.ToolRequest) (adapters.Observation, error) {
		cancel(adapters.CauseStopped)
		<-ctx.Done()
		return adapters.Observation{}, context.Cause(ctx)
	}
	res := adaptertest.Run(ctx, adapters.Func(review), turn)
	if res.Err == nil || res.Text() != "" || len(res.Questions) != 0 {
		t.Errorf("error %v, text %q, %d questions", res.Err, res.Text(), len(res.Questions))
	}
}

func TestNothingToReview(t *testing.T) {
	t.Parallel()
	var public *adapters.PublicError
	if res := adaptertest.Run(t.Context(), adapters.Func(review), adaptertest.NewTurn(" \n")); !errors.As(res.Err, &public) {
		t.Errorf("error %v", res.Err)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn("Wer war Zoë?\r\nNobody, v1.2 says!  And")
	turn.Attachments = []adapters.Attachment{{Ref: "artifact:1"}}
	res := adaptertest.Run(t.Context(), adapters.Func(review), turn)
	for _, want := range []string{"of 7 words in 3 sentences", "Facts: not checked", "Not read: artifact:1."} {
		if !strings.Contains(res.Text(), want) {
			t.Errorf("%q is not in\n%s", want, res.Text())
		}
	}
}
