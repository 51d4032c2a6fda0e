package external_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	wire "github.com/backline-dev/backline/schema/external"
)

// What is written, byte for byte: the order of fields is the contract's.
func TestAppendEvent(t *testing.T) {
	t.Parallel()
	head := func(kind string) string {
		return `{"schema":"agent.external-runtime.event.v1","event/ref":"e:1","turn/ref":"t:1","seq/no":7,"kind":"` + kind + `",`
	}
	const tail = `,"at":"2026-09-01T00:00:01Z"}`
	full := wire.Event{
		Schema: "x", EventRef: "e:1", TurnRef: "t:1", SeqNo: 7, ProgressCode: wire.ProgressRunning, ProgressCurrent: 3,
		ActionSchema: "s", ActionDigest: digestD, Content: "one\n\"two\"\\ \u2028é\x00\xff😀<&>", OutputSchemaRef: "o",
		RequestRef: "q", ToolRef: "tool", InputSchemaRef: "is", InputDigest: digestD, Input: json.RawMessage("{\"a\":\r\n 1.0}"),
		Classification: read(t, label), QuestionSchemaRef: "qs", QuestionDigest: digestD, Question: json.RawMessage(`{"b":1E+2}`),
		DeadlineAt: "2026-09-01T00:05:00Z", UsageFidelity: wire.FidelityEstimated, Usage: wire.Usage{1, 2, 3, 4},
		Status: wire.StatusRefused, ReasonCode: wire.ReasonPolicyDenied, At: "2026-09-01T00:00:01Z",
	}
	for kind, want := range map[wire.EventKind]string{
		wire.EventProgress:         `"progress/code":"running","progress/current":3`,
		wire.EventActionCandidate:  `"action/schema":"s","action/digest":"` + digestD + `"`,
		wire.EventProductCandidate: `"content":"one\n\"two\"\\ \u2028é\u0000` + "\ufffd" + `😀<&>","output-schema/ref":"o"`,
		wire.EventToolRequest: `"request/ref":"q","tool/ref":"tool","input/schema-ref":"is","input/digest":"` + digestD + `","input":{"a":   1.0},"classification":` + label +
			`,"deadline/at":"2026-09-01T00:05:00Z"`,
		wire.EventOperatorQuestion: `"request/ref":"q","question/schema-ref":"qs","question/digest":"` + digestD + `","question":{"b":1E+2},"deadline/at":"2026-09-01T00:05:00Z"`,
		wire.EventUsage:            `"usage/fidelity":"estimated","usage":{"max_tokens":1,"max_cost_micros":2,"max_wall_time_ms":3,"max_steps":4}`,
		wire.EventTurnOutcome:      `"status":"refused","reason/code":"policy-denied"`,
	} {
		e := full
		e.Kind = kind
		if diff := cmp.Diff("x"+head(string(kind))+want+tail, string(e.Append([]byte("x")))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
		if err := wire.Check(wire.EventV1, e.Append(nil)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	full.Kind, full.ProgressTotal = wire.EventProgress, 9
	if line := string(full.Append(nil)); !strings.Contains(line, `"progress/current":3,"progress/total":9,"at"`) {
		t.Errorf("progress with a total is %s", line)
	}
	// What is missing makes an event that is refused, not a line that is no JSON.
	for _, kind := range append(wire.Values[wire.EventKind](), "", "x") {
		line := (&wire.Event{Kind: kind}).Append(nil)
		if !json.Valid(line) || wire.Check(wire.EventV1, line) == nil {
			t.Errorf("an empty %s is %s", kind, line)
		}
	}
}

func TestAppendOutcome(t *testing.T) {
	t.Parallel()
	o := wire.Outcome{
		OutcomeRef: "o:1", TurnRef: "t:1", BindingRef: "b:1", AgentID: "a:1", Status: wire.StatusCompleted, ReasonCode: wire.ReasonCompleted,
		Retryability: wire.Terminal, ProductRef: "p:1", ProductDigest: digestD, BudgetReserved: wire.Budget{1, 2, 3, 4}, BudgetCharged: wire.Usage{0, 1, 2, 3},
		UsageFidelity: wire.FidelityAuthoritative, SessionCheckpointRef: "s:1", SelectedAt: "2026-09-01T00:00:02Z", SelectedBy: "backline",
	}
	want := `x{"schema":"agent.external-runtime.turn-outcome.v1","outcome/ref":"o:1","turn/ref":"t:1","binding/ref":"b:1","agent/id":"a:1","status":"completed",` +
		`"reason/code":"completed","retryability":"terminal","product/ref":"p:1","product/digest":"` + digestD + `",` +
		`"budget/reserved":{"max_tokens":1,"max_cost_micros":2,"max_wall_time_ms":3,"max_steps":4},"budget/charged":{"max_tokens":0,"max_cost_micros":1,"max_wall_time_ms":2,"max_steps":3},` +
		`"usage/fidelity":"authoritative","session/checkpoint-ref":"s:1","selected/at":"2026-09-01T00:00:02Z","selected/by":"backline"}`
	if diff := cmp.Diff(want, string(o.Append([]byte("x")))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := wire.Check(wire.TurnOutcomeV1, o.Append(nil)); err != nil {
		t.Error(err)
	}
	o.Status, o.ReasonCode, o.ProductRef, o.ProductDigest, o.SessionCheckpointRef = wire.StatusFailed, wire.ReasonEventTimeout, "", "", ""
	if err := wire.Check(wire.TurnOutcomeV1, o.Append(nil)); err != nil {
		t.Error(err)
	}
}

// Strings come out as encoding/json reads them, whatever they are.
func TestAppendStrings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.StringMatching(`[\x00-\x7f\x{2020}-\x{2030}"\\]*`)).Draw(t, "s")
		e := wire.Event{Kind: wire.EventProductCandidate, Content: s}
		line := e.Append(nil)
		var got struct {
			Content string `json:"content"`
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		var want strings.Builder
		for _, r := range s { // one U+FFFD for each byte that is not UTF-8
			want.WriteRune(r)
		}
		if got.Content != want.String() || !utf8.Valid(line) || bytes.ContainsAny(line, "\n\r\u2028\u2029") {
			t.Errorf("%q is written as %q", s, line)
		}
	})
}

// Nothing of a document is kept, but for turn requests, whose strings are parts of the body.
func TestParsersKeepNothing(t *testing.T) {
	t.Parallel()
	for kind, list := range validDocuments(t) {
		for _, doc := range list {
			body := []byte(doc)
			v, err := parse(kind, body)
			if err != nil {
				t.Fatal(err)
			}
			before, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			clear(body)
			after, err := json.Marshal(v)
			if err != nil && kind != wire.TurnRequestV1 {
				t.Fatal(err)
			}
			if kept := !bytes.Equal(before, after); kept != (kind == wire.TurnRequestV1) {
				t.Errorf("%s: %v\n%s\n%s", kind, kept, before, after)
			}
		}
	}
}

func TestDateTimeOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		at   time.Time
		want wire.DateTime
	}{
		{time.Date(2026, 9, 1, 2, 0, 0, 0, time.FixedZone("", 7200)), "2026-09-01T00:00:00Z"},
		{time.Date(2026, 9, 1, 0, 0, 0, 120_000_000, time.UTC), "2026-09-01T00:00:00.12Z"},
		{time.Date(-1, 12, 31, 23, 0, 0, 0, time.UTC), "0000-01-01T00:00:00Z"},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "9999-12-31T23:59:59.999999999Z"},
		{time.Date(9999, 12, 31, 23, 59, 0, 0, time.FixedZone("", -7200)), "9999-12-31T23:59:59.999999999Z"},
		{time.Time{}, "0001-01-01T00:00:00Z"},
	} {
		got := wire.DateTimeOf(tc.at)
		if got != tc.want {
			t.Errorf("DateTimeOf(%v) = %s, want %s", tc.at, got, tc.want)
		}
		if _, err := got.Time(); err != nil {
			t.Error(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-62_135_596_800, 253_402_300_799).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds"))
		if back, err := wire.DateTimeOf(at).Time(); err != nil || !back.Equal(at) {
			t.Errorf("%v becomes %v, %v", at, back, err)
		}
	})
	if at, err := wire.DateTime("tomorrow").Time(); err == nil {
		t.Errorf("tomorrow is %v", at)
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	cases := caseLists(t, "refs.json")
	for _, s := range append(cases.Accepted, strings.Repeat("é", 512), strings.Repeat("x", 511)+"é", "\u0085", "\u200b") {
		if !wire.ValidRef(s) {
			t.Errorf("%.80q is no ref", s)
		}
	}
	for _, s := range append(cases.Refused, strings.Repeat("é", 513), strings.Repeat("x", 512)+"é", "a\xffb", "\ufeff", "é\x7f", "é\x1f", "é b", strings.Repeat("x", 5000)) {
		if wire.ValidRef(s) {
			t.Errorf("%.80q is a ref", s)
		}
	}
	if !wire.ValidDigest(digestD) || wire.ValidDigest(digestD+"D") || wire.ValidDigest("") {
		t.Error("ValidDigest")
	}
}
