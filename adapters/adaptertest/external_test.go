package adaptertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// reviews asks for a tool and a question, offers an action, answers and reports, all as it should.
func reviews(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if turn.Message == "" {
		return adapters.Public("Say something.", nil)
	}
	if err := w.Text("Well: "); err != nil {
		return err
	}
	o, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:check", Schema: "check.v1", Input: json.RawMessage(`{"claim":"x"}`)})
	if errors.Is(err, adapters.ErrNotSupported) {
		return w.Text("I cannot check that.")
	}
	if err != nil {
		return err
	}
	if !o.Admitted {
		return errors.Join(adapters.ErrToolNotAdmitted, w.Usage(adapters.Usage{Tokens: adapters.Count(1)}))
	}
	if _, err := w.Ask(ctx, adapters.Question{Schema: "sure.v1", Question: json.RawMessage(`{"sure":true}`)}); err != nil {
		return err
	}
	err = w.Candidate(json.RawMessage(fmt.Sprintf(`{"schema":"agent.external-runtime.event.v1","turn/ref":%q,"kind":"action-candidate",
		"action/schema":"action.v1","action/digest":"sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"}`, turn.ID)))
	if err != nil {
		return err
	}
	return errors.Join(w.Text("it is so."),
		w.Usage(adapters.Usage{Tokens: adapters.Count(7), CostMicros: adapters.RawMeasure("3.0")}),
		w.Usage(adapters.Usage{CostMicros: adapters.Count(3), Steps: adapters.Count(2)}))
}

func TestExercisePassesAnExternalAdapter(t *testing.T) {
	adaptertest.Suite{External: true}.Exercise(t, static(reviews))
}

// TestExternalCasesAreRun: three more, and only where they are asked for.
func TestExternalCasesAreRun(t *testing.T) {
	t.Parallel()
	count := func(s adaptertest.Suite) (cases int) {
		t.Run("suite", func(t *testing.T) {
			s.Exercise(t, func() adapters.Adapter {
				cases++
				return adapters.Func(reviews)
			})
		})
		return cases
	}
	if plain, external := count(adaptertest.Suite{}), count(adaptertest.Suite{External: true}); external != plain+3 {
		t.Errorf("%d cases run, and %d with those of agent.external-runtime, want 3 more", plain, external)
	}
}

// good enough, and then what the case at hand breaks.
func after(f adapters.Func) func() adapters.Adapter {
	return static(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if err := f(ctx, turn, w); err != nil {
			return err
		}
		return errors.Join(w.Text("done"), w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)}))
	})
}

func reports(all ...adapters.Usage) func() adapters.Adapter {
	return static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for _, u := range all {
			if err := w.Usage(u); err != nil {
				return err
			}
		}
		return w.Text("done")
	})
}

// Each of these adapters passes the ordinary cases, or nearly so, and is failed by the protocol.
func TestExternalFindsBadAdapters(t *testing.T) {
	t.Parallel()
	usage := func(tokens adapters.Measure) adapters.Usage {
		return adapters.Usage{Tokens: tokens, CostMicros: adapters.Count(0)}
	}
	offers := func(event string) func() adapters.Adapter {
		return after(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Candidate(json.RawMessage(event))
		})
	}
	const action = `"schema":"agent.external-runtime.event.v1","kind":"action-candidate","action/schema":"a.v1","action/digest":"sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"`
	for name, tt := range map[string]struct {
		newAdapter func() adapters.Adapter
		fails      adaptertest.Case
		want       []string // all that is found, in order; empty: nothing
	}{
		"two usages that differ": {reports(usage(adapters.Count(5)), usage(adapters.Count(9))), adaptertest.ExternalAdmits,
			[]string{"usage-conflict: Tokens was reported as 5 and as 9: report it once, when it is final"}},
		"no usage": {reports(), adaptertest.ExternalAdmits,
			[]string{"usage-missing: Tokens was not reported; adapters.Count(0) says that nothing was used", "usage-missing: CostMicros was not reported"}},
		"no cost": {reports(adapters.Usage{Tokens: adapters.Count(1)}), adaptertest.ExternalAdmits,
			[]string{"usage-missing: CostMicros was not reported"}},
		"estimates, and says so": {reports(adapters.Usage{Tokens: adapters.Count(1), Fidelity: adapters.Estimated}, adapters.Usage{Tokens: adapters.Count(2), Fidelity: adapters.Estimated}),
			adaptertest.ExternalAdmits, nil},
		"a negative usage": {reports(usage(adapters.Count(-1))), adaptertest.ExternalAdmits, []string{"usage-malformed: Tokens is -1"}},
		"half a token":     {reports(usage(adapters.RawMeasure("1.5"))), adaptertest.ExternalAdmits, []string{"usage-malformed: Tokens is 1.5"}},
		"words for usage":  {reports(usage(adapters.RawMeasure(`"many"`))), adaptertest.ExternalAdmits, []string{`usage-malformed: Tokens is "many"`}},
		"infinite tokens":  {reports(usage(adapters.RawMeasure("Infinity"))), adaptertest.ExternalAdmits, []string{"usage-malformed: Tokens is Infinity"}},
		"too many tokens":  {reports(usage(adapters.Count(1 << 53))), adaptertest.ExternalAdmits, []string{"usage-overflow: Tokens is 9007199254740992"}},
		"tokens no double holds": {reports(usage(adapters.RawMeasure("1e999"))), adaptertest.ExternalAdmits,
			[]string{"usage-overflow: Tokens is 1e999"}},
		"too many steps": {reports(adapters.Usage{Tokens: adapters.Count(0), CostMicros: adapters.Count(0), Steps: adapters.Count(1 << 32)}), adaptertest.ExternalAdmits,
			[]string{"usage-overflow: Steps is 4294967296"}},
		"no text": {static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Usage(usage(adapters.Count(1)))
		}), adaptertest.ExternalAdmits,
			[]string{"event-malformed: the turn completed without any text"}},
		"too much text": {after(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Text(strings.Repeat("x", 1<<20))
		}), adaptertest.ExternalAdmits,
			[]string{"event-oversized: the text has 1048580 bytes"}},
		"a tool by a name that is none": {after(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "has space", Schema: "s.v1", Input: json.RawMessage(`{"a":1}`)})
			return err
		}), adaptertest.ExternalAdmits, []string{`event-malformed: tool request 1: /tool~1ref is "has space"`}},
		"a tool with half an input": {after(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:a", Schema: "s.v1", Input: json.RawMessage("[1")})
			return err
		}), adaptertest.ExternalRefuses, []string{"event-malformed: tool request 1: what it says is no JSON"}},
		"a tool with an empty input": {after(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:a", Schema: "s.v1", Input: json.RawMessage("{}")})
			return err
		}), adaptertest.ExternalAdmits, []string{"event-malformed: tool request 1: /input "}},
		"a question without a schema": {after(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Ask(ctx, adapters.Question{Question: json.RawMessage(`{"a":1}`)})
			return err
		}), adaptertest.ExternalAdmits, []string{"event-malformed: question 1: /question~1schema-ref "}},
		"a candidate that is no event":      {offers(`[]`), adaptertest.ExternalAdmits, []string{"event-malformed: candidate 1: it is no JSON object"}},
		"an empty candidate":                {offers(`{}`), adaptertest.ExternalAdmits, []string{"event-malformed: candidate 1: "}},
		"a candidate of another turn":       {offers(`{` + action + `,"turn/ref":"turn:2"}`), adaptertest.ExternalAdmits, []string{`event-unauthorized: candidate 1: /turn~1ref is "turn:2"`}},
		"a candidate as it has to be":       {offers(`{` + action + `,"turn/ref":"turn:1"}`), adaptertest.ExternalAdmits, nil},
		"a candidate that is the runtime's": {offers(`{"schema":"agent.external-runtime.event.v1","kind":"progress","progress/code":"running","progress/current":1,"turn/ref":"turn:1"}`), adaptertest.ExternalAdmits, []string{`event-unauthorized: candidate 1: /kind is "progress"`}},
		"a candidate twice": {after(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			c := json.RawMessage(`{` + action + `,"turn/ref":"turn:1","event/ref":"event:mine"}`)
			return errors.Join(w.Candidate(c), w.Candidate(c))
		}), adaptertest.ExternalAdmits, []string{"event-duplicate: candidate 2: "}},
		"fails although all was admitted": {static(func(context.Context, *adapters.Turn, adapters.Writer) error { return errors.New("no") }), adaptertest.ExternalAdmits,
			[]string{"a turn whose requests were all admitted failed: no"}},
		"fails as it was refused": {static(reviews), adaptertest.ExternalRefuses, nil},
		"waits for ever": {static(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:a", Schema: "s.v1", Input: json.RawMessage(`{"a":1}`)})
			return errors.Join(err, slow(ctx, turn, w))
		}), adaptertest.ExternalWaits, []string{"the adapter did not return within 500ms"}},
		"is answered": {static(reviews), adaptertest.ExternalWaits, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := adaptertest.Problems(tt.fails, adaptertest.Suite{External: true}, tt.newAdapter)
			ok := len(found) == len(tt.want)
			for i := range found {
				ok = ok && strings.HasPrefix(found[i], tt.want[i])
			}
			if !ok {
				t.Errorf("%s found %q, want %q", tt.fails, found, tt.want)
			}
		})
	}
}

// A recordingTB notes what a test was failed for.
type recordingTB struct {
	testing.TB
	errs []string
}

func (r *recordingTB) Helper() {}

func (r *recordingTB) Error(args ...any) { r.errs = append(r.errs, fmt.Sprint(args...)) }

func TestCheckExternal(t *testing.T) {
	t.Parallel()
	res := adaptertest.Run(t.Context(), adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		return w.Text("hello")
	}), adaptertest.NewTurn("hi"))
	var tb recordingTB
	res.CheckExternal(&tb)
	if len(tb.errs) != 2 || !strings.HasPrefix(tb.errs[0], "usage-missing: Tokens ") || !strings.HasPrefix(tb.errs[1], "usage-missing: CostMicros ") {
		t.Errorf("it found %q, want two usages that are missing", tb.errs)
	}
	good := adaptertest.Run(t.Context(), adapters.Func(reviews), adaptertest.NewTurn("hi"))
	good.UsageReports = append(good.UsageReports, adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)})
	good.CheckExternal(t)
}
