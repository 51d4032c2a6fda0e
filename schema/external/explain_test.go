package external_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// All violations are listed, each with its pointer.
func TestExplain(t *testing.T) {
	t.Parallel()
	doc := string(validDocuments(t)[wire.TurnRequestV1][0])
	body := strings.NewReplacer(
		`"agent-external-runtime-turn:reviewer:1"`, `"a b"`,
		`"start"`, `"start","observation":{}`,
		`"passage/no": 1`, `"passage/no": 1e16,"Passage/no":2`,
		`"agent/id": "agent:reviewer",`, ``,
		`"text": "Review the bounded proposal."`, `"text": "\ud83d","artifact/ref":"x"`,
		`"classification.v1"`, `"classification.v2"`,
		`"max_steps": 1`, `"max_steps": 4294967296`,
		`2026-09-01T00:05:00Z`, `2026-09-31T00:05:00Z`,
	).Replace(doc)
	var got []string
	for _, v := range wire.Explain(wire.TurnRequestV1, []byte(body)) {
		got = append(got, v.String())
	}
	want := []string{
		`/passage~1no is 1e16, expected an integer within ±9007199254740991`,
		"/input~1parts/0/text is \"\ufffd\", expected text without half of a surrogate pair",
		`/turn~1ref is "a b", expected a string of 1 to 512 characters matching ^[^\s\u0000-\u001f\u007f]+$`,
		`/observation is an object, expected no field of this name`,
		`/observation/request~1ref is missing, expected a string of 1 to 512 characters matching ^[^\s\u0000-\u001f\u007f]+$`,
		`/observation/disposition is missing, expected "admitted" or "refused"`,
		`/observation/reason~1code is missing, expected "completed", "policy-denied", "binding-missing", "binding-stale", "binding-mismatch", "binding-expired", "binding-revoked", "profile-disabled", "profile-mismatch", "budget-exhausted", "usage-missing", "usage-malformed" or one of 16 more`,
		`/observation/evidence~1refs is missing, expected an array of at most 16 elements without equal elements`,
		`/passage~1no is 1e16, expected an integer of at least 1 and of at most 256`,
		`/Passage~1no is 2, expected no field of this name`,
		`/input~1parts/0/artifact~1ref is "x", expected no field of this name`,
		`/classification/schema is "classification.v2", expected the string "classification.v1"`,
		`/budget~1reservation/max_steps is 4294967296, expected an integer of at least 1 and of at most 4294967295`,
		`/deadline~1at is "2026-09-31T00:05:00Z", expected a string that is a date and time as in RFC 3339`,
		`/agent~1id is missing, expected a string of 1 to 512 characters matching ^[^\s\u0000-\u001f\u007f]+$`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Explain (-want +got):\n%s", diff)
	}
}

// At most twenty, and in bounded time whatever comes.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	doc := validDocuments(t)[wire.TurnRequestV1][0]
	for name, value := range map[string]string{
		"lone surrogates": `[` + strings.Repeat(`"\ud83d",`, 1000) + `0]`,
		"numbers":         `[` + strings.Repeat(`1e999,`, 1000) + `0]`,
		"parts":           `[` + strings.Repeat(`{"kind":"x"},`, 1000) + `0]`,
		"many parts":      `[` + strings.Repeat(`{"kind":"x"},`, 100_000) + `0]`,
	} {
		body := put(t, doc, "input/parts", value)
		start := time.Now()
		list := wire.Explain(wire.TurnRequestV1, body)
		if n := len(list); n < 1 || n > schema.MaxViolations || n == 1 != (name == "many parts") {
			t.Errorf("%s: %d violations", name, n)
		}
		if took := time.Since(start); took > 2*time.Second && !raceEnabled {
			t.Errorf("%s: took %v", name, took)
		}
	}
	// A key with half a pair is told at its object.
	tool := event + `"kind":"operator-question","request/ref":"q:2","question/schema-ref":"s","question/digest":"` + digestD + `","question":{"a":{"\ud83d":1}},"deadline/at":"2026-09-01T00:05:00Z"}`
	judge(t, wire.EventV1, []byte(tool), false, "/question/a")
}

// An event's violations are those of its kind, not of all kinds.
func TestExplainEvents(t *testing.T) {
	t.Parallel()
	for members, want := range map[string][]string{
		`"kind":"usage","usage":{"max_tokens":-1},"content":"x"}`: {
			`/usage/max_tokens is -1, expected an integer of at least 0 and of at most 9007199254740991`,
			`/usage/max_cost_micros is missing, expected an integer of at least 0 and of at most 9007199254740991`,
			`/usage/max_wall_time_ms is missing, expected an integer of at least 0 and of at most 9007199254740991`,
			`/usage/max_steps is missing, expected an integer of at least 0 and of at most 4294967295`,
			`/content is "x", expected no field of this name`,
			`/usage~1fidelity is missing, expected "authoritative", "host-measured", "estimated" or "unavailable"`,
		},
		`"kind":"chunk"}`: {`/kind is "chunk", expected "progress", "action-candidate", "product-candidate", "tool-request", "operator-question", "usage" or "turn-outcome"`},
		`"x":1}`:          {`/kind is missing, expected "progress", "action-candidate", "product-candidate", "tool-request", "operator-question", "usage" or "turn-outcome"`},
	} {
		var got []string
		for _, v := range wire.Explain(wire.EventV1, []byte(event+members)) {
			got = append(got, v.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", members, diff)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{"schema":1}`:      `/schema is 1, expected the string "agent.external-runtime.profile.v1"`,
		`{"schema":1`:       `malformed JSON: the text ends where a comma or } is expected (line 1, column 12, byte 11, in /schema)`,
		`[]`:                `the document is an array, expected an object`,
		`{"":{}}`:           `/ is an object, expected no field of this name`,
		`{"a~/b":{}}`:       `/a~0~1b is an object, expected no field of this name`,
		` {} `:              `/schema is missing, expected the string "agent.external-runtime.profile.v1"`,
		"\ufeff{}":          `malformed JSON: the text begins with a byte order mark, and plain UTF-8 without one is expected (line 1, column 1, byte 0, in the document)`,
		`{"schema":"\ud8"}`: `malformed JSON: a string holds a backslash that begins no escape sequence of JSON (line 1, column 12, byte 11, in /schema)`,
	} {
		p, err := wire.ParseProfile([]byte(doc))
		var syntax *schema.SyntaxError
		if errors.As(err, &syntax) != strings.HasPrefix(want, "malformed") {
			t.Errorf("ParseProfile(%s) = %v, which wraps %v", doc, err, syntax)
		}
		if err == nil || err.Error() != want || p != nil {
			t.Errorf("ParseProfile(%s) = %v, %v, want %s", doc, p, err, want)
		}
	}
	for i := range 100 {
		doc := []byte(fmt.Sprintf(`{"schema":"agent.external-runtime.profile.v1","profile/ref":%q,`, strings.Repeat("x", i*20)))
		if err := wire.Check(wire.ProfileV1, doc); err == nil {
			t.Errorf("%s is accepted", doc)
		}
	}
}
