package adaptertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	wire "github.com/backline-dev/backline/schema/external"
)

// CheckExternal holds a turn to what agent.external-runtime asks of adapters, and marks the test as failed
// for each thing that would end the turn as failed there, with the reason code that its host would see:
//
//   - what the host was asked, and what it was offered, are valid events;
//   - the reports of one axis agree, and are whole numbers in range;
//   - a turn that completed has a text, and has reported tokens and cost.
//
// It takes the profile for one whose usage/fidelity is authoritative or host-measured, unless the adapter itself
// says of its reports that they are neither. What a profile or a binding may limit besides (the number of
// events, their size, the budget) is not looked at.
func (r *Result) CheckExternal(t testing.TB) {
	t.Helper()
	for _, problem := range r.externalProblems() {
		t.Error(problem)
	}
}

// The bounds of agent.external-runtime.
const (
	maxAmount       = 1<<53 - 1
	maxSteps        = 1<<32 - 1
	maxProductBytes = 1 << 20
)

func (r *Result) externalProblems() []string {
	var found []string
	problem := func(reason wire.ReasonCode, format string, args ...any) {
		found = append(found, string(reason)+": "+fmt.Sprintf(format, args...))
	}
	turnRef := wire.TurnRef("turn:1")
	if r.writer != nil && wire.ValidRef(r.writer.turn.ID) {
		turnRef = wire.TurnRef(r.writer.turn.ID)
	}
	for i, tool := range r.Tools {
		if err := checkEvent(&wire.Event{
			Kind: wire.EventToolRequest, ToolRef: wire.ToolRef(tool.Ref), InputSchemaRef: wire.SchemaRef(tool.Schema), Input: tool.Input,
		}); err != nil {
			problem(wire.ReasonEventMalformed, "tool request %d: %v", i+1, err)
		}
	}
	for i, q := range r.Questions {
		if err := checkEvent(&wire.Event{
			Kind: wire.EventOperatorQuestion, QuestionSchemaRef: wire.SchemaRef(q.Schema), Question: q.Question,
		}); err != nil {
			problem(wire.ReasonEventMalformed, "question %d: %v", i+1, err)
		}
	}
	refs := map[wire.EventRef]bool{}
	for i, c := range r.Candidates {
		e, given, err := candidate(c, turnRef)
		switch {
		case err != nil:
			problem(wire.ReasonEventMalformed, "candidate %d: %v", i+1, err)
			continue
		case e.TurnRef != turnRef:
			problem(wire.ReasonEventUnauthorized, "candidate %d: /turn~1ref is %q, and the turn is %q", i+1, e.TurnRef, turnRef)
		case e.Kind != wire.EventActionCandidate:
			problem(wire.ReasonEventUnauthorized, "candidate %d: /kind is %q, and an adapter's candidate is an %s", i+1, e.Kind, wire.EventActionCandidate)
		case given && refs[e.EventRef]:
			problem(wire.ReasonEventDuplicate, "candidate %d: /event~1ref is that of an earlier one", i+1)
		}
		refs[e.EventRef] = given
	}
	found = append(found, r.usageProblems()...)
	if text := r.Text(); r.Err == nil && text == "" {
		problem(wire.ReasonEventMalformed, "the turn completed without any text, and a product has at least one character")
	} else if len(text) > maxProductBytes {
		problem(wire.ReasonEventOversized, "the text has %d bytes, and no profile allows more than %d", len(text), maxProductBytes)
	}
	return found
}

// usageProblems compares the reports with each other, as the settlement of a turn does.
func (r *Result) usageProblems() []string {
	var found []string
	disclaimed := false
	for _, axis := range []struct {
		name     string
		of       func(*adapters.Usage) adapters.Measure
		most     int64
		required bool
	}{
		{"Tokens", func(u *adapters.Usage) adapters.Measure { return u.Tokens }, maxAmount, true},
		{"CostMicros", func(u *adapters.Usage) adapters.Measure { return u.CostMicros }, maxAmount, true},
		{"WallTimeMS", func(u *adapters.Usage) adapters.Measure { return u.WallTimeMS }, maxAmount, false},
		{"Steps", func(u *adapters.Usage) adapters.Measure { return u.Steps }, maxSteps, false},
	} {
		var last adapters.Measure
		for i := range r.UsageReports {
			u := &r.UsageReports[i]
			if u.Fidelity == adapters.Estimated || u.Fidelity == adapters.Unmeasurable {
				disclaimed = true // under such a profile the reservation is charged, whatever was reported
				continue
			}
			m := axis.of(u)
			if !m.Known() {
				continue
			}
			n, wrong := amount(m, axis.most)
			switch {
			case wrong == wire.ReasonUsageOverflow:
				found = append(found, fmt.Sprintf("%s: %s is %s, and at most %d can be reported", wrong, axis.name, m, axis.most))
			case wrong != "":
				found = append(found, fmt.Sprintf("%s: %s is %s, want a whole number that is not negative", wrong, axis.name, m))
			case last.Known() && last != adapters.Count(n):
				found = append(found, fmt.Sprintf("%s: %s was reported as %s and as %s: report it once, when it is final", wire.ReasonUsageConflict, axis.name, last, m))
			}
			if wrong == "" {
				m = adapters.Count(n) // 7.0 is 7
			}
			last = m
		}
		if axis.required && !last.Known() && !disclaimed && r.Err == nil {
			found = append(found, fmt.Sprintf("%s: %s was not reported; adapters.Count(0) says that nothing was used", wire.ReasonUsageMissing, axis.name))
		}
	}
	return found
}

// amount reads a measured value, or tells what is wrong with it.
func amount(m adapters.Measure, most int64) (int64, wire.ReasonCode) {
	text := m.String()
	number := strings.Contains("-0123456789", text[:1]) && json.Valid([]byte(text))
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case !number, f < 0, err == nil && f != math.Trunc(f):
		return 0, wire.ReasonUsageMalformed
	case err != nil, f > float64(most): // a number beyond what a double holds
		return 0, wire.ReasonUsageOverflow
	}
	return int64(f), ""
}

// checkEvent completes what an adapter asks to the event that asks it, and tells what is wrong with that.
func checkEvent(e *wire.Event) error {
	body := e.Input
	if e.Kind == wire.EventOperatorQuestion {
		body = e.Question
	}
	digest, err := wire.CanonicalDigest(body)
	if err != nil {
		return fmt.Errorf("what it says is no JSON: %w", err)
	}
	now := wire.DateTimeOf(time.Now())
	e.EventRef, e.TurnRef, e.SeqNo, e.At = "event:1", "turn:1", 1, now
	e.RequestRef, e.DeadlineAt = "request:1", now
	e.InputDigest, e.QuestionDigest = digest, digest
	e.Classification = &wire.Classification{
		Schema: wire.ClassificationV1, SourceTier: wire.TierCommunity, EffectiveTier: wire.TierCommunity,
		Provenance:      wire.Origin{Kind: wire.OriginLocalSpace, Space: wire.SpaceCommunity},
		BoundSubjects:   wire.BoundSubjects{PersonalOrCommunity: []wire.Subject{}},
		DeclassifyTrail: []wire.Declassify{},
	}
	_, err = wire.ParseEvent(e.Append(nil))
	return err
}

// candidate reads a candidate event, after completing it as the runtime does. given tells whether the
// adapter named it.
func candidate(event json.RawMessage, turn wire.TurnRef) (e *wire.Event, given bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(event, &fields); err != nil {
		return nil, false, fmt.Errorf("it is no JSON object: %w", err)
	}
	_, given = fields["event/ref"]
	line := []byte{'{'}
	for name, value := range map[string]any{"seq/no": 1, "event/ref": "event:1", "at": wire.DateTimeOf(time.Now())} {
		if _, has := fields[name]; has {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, given, err
		}
		line = fmt.Appendf(line, "%q:%s,", name, text)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, event); err != nil {
		return nil, given, err
	}
	if len(fields) == 0 {
		line = bytes.TrimSuffix(line, []byte(","))
	}
	e, err = wire.ParseEvent(append(line, compact.Bytes()[1:]...))
	return e, given, err
}

// externalTurn is a turn as a host of agent.external-runtime sends it, which answers what it is asked.
func (e *exercise) externalTurn(answer func(context.Context) (adapters.Observation, error)) *Turn {
	turn := NewSession("binding:muse").Turn(e.message)
	turn.Protocol = adapters.ExternalRuntime
	turn.ID, turn.AgentID, turn.ConversationID = "turn:1", "agent:muse", "passage:1"
	turn.PluginID, turn.ProjectPath = "", ""
	turn.OnTool = func(ctx context.Context, _ adapters.ToolRequest) (adapters.Observation, error) { return answer(ctx) }
	turn.OnAsk = func(ctx context.Context, _ adapters.Question) (adapters.Observation, error) { return answer(ctx) }
	turn.OnCandidate = func(json.RawMessage) error { return nil }
	return turn
}

// runExternal runs one turn and holds it to the protocol.
func (e *exercise) runExternal(ctx context.Context, a adapters.Adapter, turn *Turn) *Result {
	res := e.run(ctx, a, turn)
	for _, problem := range res.externalProblems() {
		e.problem("%s", problem)
	}
	return res
}

func (e *exercise) externalAdmits(a adapters.Adapter) {
	turn := e.externalTurn(func(context.Context) (adapters.Observation, error) {
		return adapters.Observation{Admitted: true, Reason: string(wire.ReasonCompleted), Receipt: "receipt:1"}, nil
	})
	if res := e.runExternal(context.Background(), a, turn); res.Err != nil && !isA[*PanicError](res.Err) {
		e.problem("a turn whose requests were all admitted failed: %v", res.Err)
	}
}

// externalRefuses: an adapter that cannot go on without what was refused fails the turn, which is an end too.
func (e *exercise) externalRefuses(a adapters.Adapter) {
	e.runExternal(context.Background(), a, e.externalTurn(func(context.Context) (adapters.Observation, error) {
		return adapters.Observation{Reason: string(wire.ReasonPolicyDenied)}, nil
	}))
}

// externalWaits: nobody answers, and the turn is cancelled. An adapter that asks nothing is cancelled a little
// later, unless it has ended.
func (e *exercise) externalWaits(a adapters.Adapter) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer time.AfterFunc(e.silence, func() { cancel(adapters.CauseStopped) }).Stop()
	e.runExternal(ctx, a, e.externalTurn(func(ctx context.Context) (adapters.Observation, error) {
		cancel(adapters.CauseStopped)
		<-ctx.Done()
		return adapters.Observation{}, context.Cause(ctx)
	}))
}
