package keiki_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	wire "github.com/backline-dev/backline/schema/keiki"
)

const (
	turnBody = `{"type":"keiki.turn","version":1,"turnId":"t-1","agentId":"a-1","conversationId":"c-1","channel":"sms",` +
		`"messages":[{"text":"hello","messageId":"m-1"}],"history":[],"context":{},"instructions":"be kind","heldBack":false,` +
		`"silent":false,"quietLoop":false,"deadline":"2030-01-01T00:00:00Z",` +
		`"keiki":{"apiBase":"https://k.example/api/v1","turnUrl":"https://k.example/api/v1/turns/t-1","mcpUrl":"https://k.example/mcp"}}`
	arrivalBody = `{"type":"keiki.turn.arrival","version":1,"turnId":"t-1","agentId":"a-1","conversationId":"c-1","heldBack":true,"channel":"sms",` +
		`"keiki":{"apiBase":"https://k.example/api/v1","turnUrl":"https://k.example/api/v1/turns/t-1","mcpUrl":"https://k.example/mcp"},` +
		`"sequence":1,"messages":[{"text":"one more detail","messageId":"m-2"}]}`
	cancelledBody = `{"type":"keiki.turn.cancelled","turnId":"t-1","agentId":"a-1","conversationId":"c-1"}`
)

var linksOfBodies = wire.Links{APIBase: "https://k.example/api/v1", TurnURL: "https://k.example/api/v1/turns/t-1", MCPURL: "https://k.example/mcp"}

// with is a text with parts of it replaced, given as old, new, old, new.
func with(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s is not in %s", pairs[i], text)
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

func file(t *testing.T, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func TestParseRequest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		want       wire.Request
	}{
		{"turn", turnBody, wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{
			TurnID: "t-1", AgentID: "a-1", ConversationID: "c-1", Channel: []byte(`"sms"`), Messages: []wire.Message{{Text: "hello", ID: "m-1"}},
			HasHistory: true, Context: []byte(`{}`), Instructions: "be kind", Deadline: at("2030-01-01T00:00:00Z"), Links: linksOfBodies,
		}}},
		{"the least of a turn", `{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","messages":[],"keiki":{"apiBase":"b","turnUrl":"u"}}`,
			wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{TurnID: "t", AgentID: "a", Messages: []wire.Message{}, Links: wire.Links{APIBase: "b", TurnURL: "u"}}}},
		{"null is as good as absent", `{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","conversationId":null,"channel":null,"messages":[{"text":"x","messageId":null,"silent":null,"screening":null},{"text":"y","screening":{"flagged":null}}],"history":null,"instructions":null,"heldBack":null,"silent":null,"quietLoop":null,"deadline":null,"keiki":{"apiBase":"b","turnUrl":"u","mcpUrl":null}}`,
			wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{TurnID: "t", AgentID: "a", Messages: []wire.Message{{Text: "x"}, {Text: "y"}}, Links: wire.Links{APIBase: "b", TurnURL: "u"}}}},
		{"a context of null is one", with(t, turnBody, `"context":{}`, `"context": null `), wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{
			TurnID: "t-1", AgentID: "a-1", ConversationID: "c-1", Channel: []byte(`"sms"`), Messages: []wire.Message{{Text: "hello", ID: "m-1"}},
			HasHistory: true, Context: []byte(`null`), Instructions: "be kind", Deadline: at("2030-01-01T00:00:00Z"), Links: linksOfBodies,
		}}},
		{"flags", `{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","channel":{"type":"sms", "to": "+1"},"messages":[{"text":"","silent":true},{"screening":{"flagged":true,"rule":"r"},"text":"x"},{"text":"z","screening":{}}],"heldBack":true,"silent":true,"quietLoop":true,"keiki":{"apiBase":"b","turnUrl":"u"}}`,
			wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{TurnID: "t", AgentID: "a", Channel: []byte(`{"type":"sms", "to": "+1"}`), Messages: []wire.Message{{Silent: true}, {Text: "x", Flagged: true}, {Text: "z"}}, HeldBack: true, Silent: true, QuietLoop: true, Links: wire.Links{APIBase: "b", TurnURL: "u"}}}},
		{"history", `{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","messages":[],"keiki":{"apiBase":"b","turnUrl":"u"},"history":[` +
			`{"role":"user","text":"a","createdAt":"2029-12-31T23:00:00+01:00"},{"role":"assistant","content":"b","timestamp":1893456000123},` +
			`{"text":"c","content":"not this","at":"soon","time":1893456000},{"role":"assistant","content":[{"type":"text","text":"d"},{"type":"image","url":"x"},"e",null,{"text":7}],"createdAt":"yesterday","time":true},` +
			`{"text":null,"content":"f","at":"2030-01-01T00:00:00Z"},{"content":[]},{"role":null,"content":null,"createdAt":{"a":[]}},{"time":"2030-01-01T00:00:00Z","createdAt":7}]}`,
			wire.Request{Kind: wire.KindTurn, Turn: &wire.Turn{TurnID: "t", AgentID: "a", Messages: []wire.Message{}, Links: wire.Links{APIBase: "b", TurnURL: "u"}, HasHistory: true, History: []wire.Entry{
				{Role: "user", Text: "a", Time: at("2029-12-31T22:00:00Z")}, {Role: "assistant", Text: "b", Time: at("2030-01-01T00:00:00.123Z")},
				{Text: "c", Time: at("2030-01-01T00:00:00Z")}, {Role: "assistant", Text: "de"}, {Text: "f", Time: at("2030-01-01T00:00:00Z")}, {}, {}, {Time: at("2030-01-01T00:00:00Z")},
			}}}},
		{"arrival", arrivalBody, wire.Request{Kind: wire.KindArrival, Arrival: &wire.Arrival{
			TurnID: "t-1", AgentID: "a-1", ConversationID: "c-1", HeldBack: true, Links: linksOfBodies, Sequence: 1, Messages: []wire.Message{{Text: "one more detail", ID: "m-2"}},
		}}},
		{"the least of an arrival", `{"sequence":9007199254740991,"version":1e0,"turnId":"t","agentId":"a","messages":[],"type":"keiki.turn.arrival","keiki":null,"channel":7}`,
			wire.Request{Kind: wire.KindArrival, Arrival: &wire.Arrival{TurnID: "t", AgentID: "a", Sequence: 9007199254740991, Messages: []wire.Message{}}}},
		{"cancelled", cancelledBody, wire.Request{Kind: wire.KindCancelled, Cancelled: &wire.Cancelled{TurnID: "t-1", AgentID: "a-1", ConversationID: "c-1"}}},
		{"a cancellation with a version, and what is a turn's", `{"version":1,"messages":7,"keiki":[],"agentId":"a","turnId":"t","type":"keiki.turn.cancelled"}`,
			wire.Request{Kind: wire.KindCancelled, Cancelled: &wire.Cancelled{TurnID: "t", AgentID: "a"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := wire.ParseRequest([]byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Each refusal has its code, its place, and what was expected. No words of the body are in it.
func TestParseRequestRefuses(t *testing.T) {
	t.Parallel()
	turn := func(pairs ...string) string { return with(t, turnBody, pairs...) }
	arrival := func(pairs ...string) string { return with(t, arrivalBody, pairs...) }
	cancelled := func(pairs ...string) string { return with(t, cancelledBody, pairs...) }
	const (
		id       = "expected a string that is not empty"
		version  = "expected the number 1"
		sequence = "expected an integer of at least 1 and of at most 9007199254740991"
		types    = `expected "keiki.turn", "keiki.turn.arrival" or "keiki.turn.cancelled"`
		deadline = "expected a string that is a date and time as in RFC 3339, a number of at least 0 and of at most 253402300799999 or null"
	)
	for _, tc := range []struct {
		body    string
		code    wire.Code
		pointer string
		message string
	}{
		// Not JSON.
		{"", wire.CodeInvalidJSON, "", "not JSON: the text is empty, and one JSON value is expected (line 1, column 1, byte 0)"},
		{"hello", wire.CodeInvalidJSON, "", "not JSON: there is 'h' where a value is expected (line 1, column 1, byte 0)"},
		{"\ufeff" + turnBody, wire.CodeInvalidJSON, "", "not JSON: the text begins with a byte order mark, and plain UTF-8 without one is expected (line 1, column 1, byte 0)"},
		{turnBody + "x", wire.CodeInvalidJSON, "", "not JSON: there is 'x' after the value, and nothing may follow it (line 1, column 414, byte 413)"},
		{turn(`"hello"`, "\"hel\xfflo\""), wire.CodeInvalidJSON, "/messages/0/text", "not JSON: there is the byte 0xFF, which is not part of UTF-8 (line 1, column 128, byte 127)"},
		{turn(`"context":{}`, `"context":"`+"\xed\xa0\x80"+`"`), wire.CodeInvalidJSON, "/context", "not JSON: there is the byte 0xED, which is not part of UTF-8 (line 1, column 176, byte 175)"},
		{turnBody[:40], wire.CodeInvalidJSON, "", "not JSON: the text ends in the middle of a string (line 1, column 41, byte 40)"},

		// No object.
		{"null", wire.CodeInvalidRequest, "", "found null, expected an object"},
		{` [` + turnBody + `]`, wire.CodeInvalidRequest, "", "found an array, expected an object"},
		{`"keiki.turn"`, wire.CodeInvalidRequest, "", "found a string, expected an object"},

		// The type, before all else.
		{`{}`, wire.CodeUnknownType, "/type", "missing, " + types},
		{turn(`"keiki.turn"`, `"keiki.turns"`, `"version":1`, `"version":2`), wire.CodeUnknownType, "/type", `found "keiki.turns", ` + types},
		{turn(`"keiki.turn"`, `"Keiki.Turn"`), wire.CodeUnknownType, "/type", `found "Keiki.Turn", ` + types},
		{turn(`"keiki.turn"`, `null`), wire.CodeUnknownType, "/type", "found null, " + types},
		{turn(`"keiki.turn"`, `["keiki.turn"]`), wire.CodeUnknownType, "/type", "found an array, " + types},
		{turn(`"type":`, `"Type":`), wire.CodeUnknownType, "/type", "missing, " + types},

		// The version, before the other fields.
		{turn(`"version":1,`, ``), wire.CodeUnsupportedVersion, "/version", "missing, " + version},
		{turn(`"version":1,"turnId":"t-1"`, `"turnId":7,"version":2`), wire.CodeUnsupportedVersion, "/version", "found 2, " + version},
		{turn(`"version":1`, `"version":"1"`), wire.CodeUnsupportedVersion, "/version", "found a string, " + version},
		{turn(`"version":1`, `"version":null`), wire.CodeUnsupportedVersion, "/version", "found null, " + version},
		{turn(`"version":1`, `"version":true`), wire.CodeUnsupportedVersion, "/version", "found true, " + version},
		{turn(`"version":1`, `"version":1.5`), wire.CodeUnsupportedVersion, "/version", "found 1.5, " + version},
		{turn(`"version":1`, `"version":1.00000000000000000000000001`), wire.CodeUnsupportedVersion, "/version", "found 1.00000000000000000000000001, " + version},
		{arrival(`"version":1,`, ``), wire.CodeUnsupportedVersion, "/version", "missing, " + version},
		{arrival(`"version":1`, `"version":0`), wire.CodeUnsupportedVersion, "/version", "found 0, " + version},
		{cancelled(`"turnId"`, `"version":2,"turnId"`), wire.CodeUnsupportedVersion, "/version", "found 2, " + version + " or null"},

		// Fields that are missing.
		{turn(`"turnId":"t-1",`, ``), wire.CodeInvalidRequest, "/turnId", "missing, " + id},
		{turn(`"agentId":"a-1",`, ``), wire.CodeInvalidRequest, "/agentId", "missing, " + id},
		{turn(`"messages":`, `"Messages":`), wire.CodeInvalidRequest, "/messages", "missing, expected an array"},
		{turn(`"keiki":`, `"x":`), wire.CodeInvalidRequest, "/keiki", "missing, expected an object"},
		{turn(`"apiBase":`, `"x":`), wire.CodeInvalidRequest, "/keiki/apiBase", "missing, " + id},
		{turn(`"turnUrl":`, `"x":`), wire.CodeInvalidRequest, "/keiki/turnUrl", "missing, " + id},
		{turn(`"text":`, `"x":`), wire.CodeInvalidRequest, "/messages/0/text", "missing, expected a string"},
		{arrival(`"turnId":`, `"x":`), wire.CodeInvalidRequest, "/turnId", "missing, " + id},
		{arrival(`"agentId":`, `"x":`), wire.CodeInvalidRequest, "/agentId", "missing, " + id},
		{arrival(`"sequence":`, `"x":`), wire.CodeInvalidRequest, "/sequence", "missing, " + sequence},
		{arrival(`"messages":`, `"x":`), wire.CodeInvalidRequest, "/messages", "missing, expected an array"},
		{arrival(`"apiBase":`, `"x":`), wire.CodeInvalidRequest, "/keiki/apiBase", "missing, " + id},
		{cancelled(`"turnId":`, `"x":`), wire.CodeInvalidRequest, "/turnId", "missing, " + id},
		{cancelled(`"agentId":`, `"x":`), wire.CodeInvalidRequest, "/agentId", "missing, " + id},

		// Fields of another type, or out of bounds.
		{turn(`"t-1"`, `""`), wire.CodeInvalidRequest, "/turnId", "found an empty string, " + id},
		{turn(`"a-1"`, `7`), wire.CodeInvalidRequest, "/agentId", "found 7, " + id},
		{turn(`"a-1"`, `null`), wire.CodeInvalidRequest, "/agentId", "found null, " + id},
		{turn(`"c-1"`, `[]`), wire.CodeInvalidRequest, "/conversationId", "found an array, expected a string or null"},
		{turn(`"sms"`, `["secret words"]`), wire.CodeInvalidRequest, "/channel", "found an array, expected a string, an object or null"},
		{turn(`"messages":[`, `"messages":"secret words","x":[`), wire.CodeInvalidRequest, "/messages", "found a string, expected an array"},
		{turn(`"messages":[`, `"messages":null,"x":[`), wire.CodeInvalidRequest, "/messages", "found null, expected an array"},
		{turn(`"messages":[`, `"messages":["secret words",`), wire.CodeInvalidRequest, "/messages/0", "found a string, expected an object"},
		{turn(`"messages":[`, `"messages":[null,`), wire.CodeInvalidRequest, "/messages/0", "found null, expected an object"},
		{turn(`"hello"`, `["secret words"]`), wire.CodeInvalidRequest, "/messages/0/text", "found an array, expected a string"},
		{turn(`"m-1"`, `12`), wire.CodeInvalidRequest, "/messages/0/messageId", "found 12, expected a string or null"},
		{turn(`"m-1"`, `"m-1","silent":"true"`), wire.CodeInvalidRequest, "/messages/0/silent", "found a string, expected true or false or null"},
		{turn(`"m-1"`, `"m-1","screening":true`), wire.CodeInvalidRequest, "/messages/0/screening", "found true, expected an object or null"},
		{turn(`"m-1"`, `"m-1","screening":{"flagged":1}`), wire.CodeInvalidRequest, "/messages/0/screening/flagged", "found 1, expected true or false or null"},
		{turn(`"history":[`, `"history":"secret words","x":[`), wire.CodeInvalidRequest, "/history", "found a string, expected an array or null"},
		{turn(`"history":[`, `"history":["secret words"`), wire.CodeInvalidRequest, "/history/0", "found a string, expected an object"},
		{turn(`"history":[`, `"history":[{"role":1}`), wire.CodeInvalidRequest, "/history/0/role", "found 1, expected a string or null"},
		{turn(`"history":[`, `"history":[{"text":{}}`), wire.CodeInvalidRequest, "/history/0/text", "found an object, expected a string or null"},
		{turn(`"history":[`, `"history":[{"content":{"text":"secret words"}}`), wire.CodeInvalidRequest, "/history/0/content", "found an object, expected a string, an array or null"},
		{turn(`"be kind"`, `{"secret":"words"}`), wire.CodeInvalidRequest, "/instructions", "found an object, expected a string or null"},
		{turn(`"heldBack":false`, `"heldBack":0`), wire.CodeInvalidRequest, "/heldBack", "found 0, expected true or false or null"},
		{turn(`"silent":false`, `"silent":"no"`), wire.CodeInvalidRequest, "/silent", "found a string, expected true or false or null"},
		{turn(`"quietLoop":false`, `"quietLoop":{}`), wire.CodeInvalidRequest, "/quietLoop", "found an object, expected true or false or null"},
		{turn(`"2030-01-01T00:00:00Z"`, `"tomorrow"`), wire.CodeInvalidRequest, "/deadline", "found a string, " + deadline},
		{turn(`"2030-01-01T00:00:00Z"`, `"1893456000"`), wire.CodeInvalidRequest, "/deadline", "found a string, " + deadline},
		{turn(`"2030-01-01T00:00:00Z"`, `-1`), wire.CodeInvalidRequest, "/deadline", "found -1, " + deadline},
		{turn(`"2030-01-01T00:00:00Z"`, `253402300800000`), wire.CodeInvalidRequest, "/deadline", "found 253402300800000, " + deadline},
		{turn(`"2030-01-01T00:00:00Z"`, `1e400`), wire.CodeInvalidRequest, "/deadline", "found 1e400, " + deadline},
		{turn(`"2030-01-01T00:00:00Z"`, `true`), wire.CodeInvalidRequest, "/deadline", "found true, " + deadline},
		{turn(`"keiki":{`, `"keiki":null,"x":{`), wire.CodeInvalidRequest, "/keiki", "found null, expected an object"},
		{turn(`"https://k.example/api/v1"`, `""`), wire.CodeInvalidRequest, "/keiki/apiBase", "found an empty string, " + id},
		{turn(`"https://k.example/mcp"`, `7`), wire.CodeInvalidRequest, "/keiki/mcpUrl", "found 7, expected a string or null"},
		{arrival(`"sequence":1`, `"sequence":0`), wire.CodeInvalidRequest, "/sequence", "found 0, " + sequence},
		{arrival(`"sequence":1`, `"sequence":-1`), wire.CodeInvalidRequest, "/sequence", "found -1, " + sequence},
		{arrival(`"sequence":1`, `"sequence":1.5`), wire.CodeInvalidRequest, "/sequence", "found 1.5, " + sequence},
		{arrival(`"sequence":1`, `"sequence":"1"`), wire.CodeInvalidRequest, "/sequence", "found a string, " + sequence},
		{arrival(`"sequence":1`, `"sequence":9007199254740992`), wire.CodeInvalidRequest, "/sequence", "found 9007199254740992, " + sequence},
		{arrival(`"keiki":{`, `"keiki":7,"x":{`), wire.CodeInvalidRequest, "/keiki", "found 7, expected an object or null"},
		{arrival(`"heldBack":true`, `"heldBack":"yes"`), wire.CodeInvalidRequest, "/heldBack", "found a string, expected true or false or null"},
		{cancelled(`"t-1"`, `["t-1"]`), wire.CodeInvalidRequest, "/turnId", "found an array, " + id},
		{cancelled(`"c-1"`, `7`), wire.CodeInvalidRequest, "/conversationId", "found 7, expected a string or null"},
	} {
		r, err := wire.ParseRequest([]byte(tc.body))
		var e *wire.Error
		if !errors.As(err, &e) {
			t.Errorf("ParseRequest(%s) = %+v, %v", tc.body, r, err)
			continue
		}
		if e.Code != tc.code || e.Pointer != tc.pointer || e.Message != tc.message || r != nil {
			t.Errorf("ParseRequest(%s) = %s at %q: %s; want %s at %q: %s", tc.body, e.Code, e.Pointer, e.Message, tc.code, tc.pointer, tc.message)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseRequest(%s) repeats words of the body: %v", tc.body, err)
		}
		hold(t, []byte(tc.body))
	}
}

// A deadline is a date and time, or a number of seconds below 1e11 and of milliseconds from there on.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	for spelled, want := range map[string]string{
		`"2030-01-01T00:00:00Z"`:               "2030-01-01T00:00:00Z",
		`"2030-01-01T02:00:00.125+02:00"`:      "2030-01-01T00:00:00.125Z",
		`"2030-01-01t00:00:00.123456789012z"`:  "2030-01-01T00:00:00.123456789Z",
		`"\u0032030-01-01T00:00:00Z"`:          "2030-01-01T00:00:00Z",
		`1893456000`:                           "2030-01-01T00:00:00Z",
		`1893456000000`:                        "2030-01-01T00:00:00Z",
		`1893456000123`:                        "2030-01-01T00:00:00.123Z",
		`1893456000.5`:                         "2030-01-01T00:00:00.5Z",
		`1893456000000.0`:                      "2030-01-01T00:00:00Z",
		`1.893456e9`:                           "2030-01-01T00:00:00Z",
		`99999999999`:                          "5138-11-16T09:46:39Z",
		`100000000000`:                         "1973-03-03T09:46:40Z",
		`0`:                                    "1970-01-01T00:00:00Z",
		`-0`:                                   "1970-01-01T00:00:00Z",
		`1e-400`:                               "1970-01-01T00:00:00Z",
		`253402300799999`:                      "9999-12-31T23:59:59.999Z",
		`"0001-01-01T00:00:00Z"`:               "0001-01-01T00:00:00.000000001Z", // past, and not none
		`"2016-12-31T23:59:60Z"`:               "2017-01-01T00:00:00Z",
		`253402300799998.99999999999999999999`: "9999-12-31T23:59:59.999Z",
	} {
		r, err := wire.ParseRequest([]byte(with(t, turnBody, `"2030-01-01T00:00:00Z"`, spelled)))
		if err != nil {
			t.Errorf("%s: %v", spelled, err)
			continue
		}
		if got := r.Turn.Deadline; got.Sub(at(want)).Abs() > time.Microsecond || got.IsZero() || got.Location() != time.UTC {
			t.Errorf("%s was read as %v, want %s", spelled, got, want)
		}
	}
}

func TestEveryCutIsRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{turnBody, arrivalBody, cancelledBody} {
		for i := range body {
			var e *wire.Error
			if _, err := wire.ParseRequest([]byte(body[:i])); !errors.As(err, &e) || e.Code != wire.CodeInvalidJSON {
				t.Errorf("ParseRequest(%s) = %v", body[:i], err)
			}
			wire.AgentID([]byte(body[:i])) // reads as far as there is something
		}
	}
}

// Fault A5: a key twice at any depth is refused; keys match exactly; nothing may follow the value.
func TestFaultA5(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		with(t, turnBody, `"turnId":"t-1"`, `"turnId":"t-1","turnId":"t-1"`),
		with(t, turnBody, `"turnId":"t-1"`, `"turnId":"t-1","turn\u0049d":"t-2"`),
		with(t, turnBody, `"type":"keiki.turn"`, `"type":"keiki.turn","type":"keiki.turn.cancelled"`),
		with(t, turnBody, `"text":"hello"`, `"text":"hello","text":"bye"`),
		with(t, turnBody, `"messageId"`, `"screening":{"flagged":false,"flagged":true},"messageId"`),
		with(t, turnBody, `"apiBase"`, `"turnUrl":"https://other.example","apiBase"`),
		with(t, turnBody, `"context":{}`, `"context":{"a":[{"b":1,"b":1}]}`),
		with(t, turnBody, `"history":[]`, `"history":[{"x":1,"y":2,"x":3}]`),
		with(t, turnBody, `"history":[]`, `"history":[{"content":[{"text":"a","text":"b"}]}]`),
		with(t, turnBody, `"version":1`, `"x":1,"version":1,"x":2`),
		with(t, arrivalBody, `"sequence":1`, `"sequence":1,"sequence":2`),
		with(t, arrivalBody, `"text":`, `"x":1,"x":1,"text":`),
		with(t, cancelledBody, `"turnId"`, `"turnId":"t-2","turnId"`),
		turnBody + " {}", turnBody + cancelledBody, cancelledBody + "\n\x00", arrivalBody + ",",
	} {
		var e *wire.Error
		if r, err := wire.ParseRequest([]byte(body)); !errors.As(err, &e) || e.Code != wire.CodeInvalidJSON {
			t.Errorf("ParseRequest(%s) = %+v, %v", body, r, err)
		}
	}
	body := with(t, turnBody, `"turnId"`, `"TURNID":"other","turnid":7,"AgentId":[],"agentid":"other","turnId"`, `"text"`, `"Text":1,"TEXT":2,"text"`, `"apiBase"`, `"TURNURL":"https://other.example","apiBase"`)
	r, err := wire.ParseRequest([]byte(body + " \r\n\t"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Turn.TurnID != "t-1" || r.Turn.AgentID != "a-1" || r.Turn.Messages[0].Text != "hello" || r.Turn.Links != linksOfBodies {
		t.Errorf("keys in other letters were read: %+v", r.Turn)
	}
	if id, ok := wire.AgentID([]byte(body)); id != "a-1" || !ok {
		t.Errorf("AgentID = %q, %v", id, ok)
	}
	// A known key of one object is free in the next one.
	if _, err := wire.ParseRequest([]byte(with(t, turnBody, `[{"text"`, `[{"text":"a","x":1},{"x":2,"text":"b","screening":{"x":3}},{"text"`))); err != nil {
		t.Error(err)
	}
}

// Fault A6: the limit is 64 levels, counted from the root wherever they are; brackets cost nothing but
// their length.
func TestFaultA6(t *testing.T) { // not parallel: it looks at the clock and at the heap
	for place, open := range map[string]int{`"turnId"`: 1, `"apiBase"`: 2, `"text"`: 3} {
		for depth, fine := range map[int]bool{64: true, 65: false} {
			nest := strings.Repeat(`[`, depth-open) + strings.Repeat(`]`, depth-open)
			body := []byte(with(t, turnBody, place, `"x":`+nest+`,`+place))
			if _, err := wire.ParseRequest(body); (err == nil) != fine {
				t.Errorf("%d levels before %s: %v", depth, place, err)
			}
			if id, ok := wire.AgentID(body); id != "a-1" || !ok { // before the signature is checked
				t.Errorf("%d levels before %s: AgentID = %q, %v", depth, place, id, ok)
			}
		}
	}
	for depth, fine := range map[int]bool{64: true, 65: false} {
		nest := strings.Repeat(`{"a":`, depth-1) + `0` + strings.Repeat(`}`, depth-1)
		if r, err := wire.ParseRequest([]byte(with(t, turnBody, `"context":{}`, `"context":`+nest))); (err == nil) != fine || fine && string(r.Turn.Context) != nest {
			t.Errorf("a context of %d levels: %v", depth, err)
		}
	}
	for _, n := range []int{100_000, 4_000_000} {
		for _, format := range []string{"%s", `{"agentId":"a-1","context":%s`, `{"context":%s`, `{"type":"keiki.turn","agentId":"a-1","messages":[{"x":%s`} {
			for _, bracket := range []string{"[", `{"a":`} {
				body := fmt.Appendf(nil, format, strings.Repeat(bracket, n/len(bracket)))
				var before, after goruntime.MemStats
				goruntime.ReadMemStats(&before)
				_, known := wire.AgentID(body)
				_, err := wire.ParseRequest(body)
				_, claim := wire.ParseClaim(body)
				goruntime.ReadMemStats(&after)
				if err == nil || claim == nil {
					t.Errorf("%d × %s in %s was accepted", n, bracket, format)
				}
				if want := strings.Contains(format, "agentId"); known != want {
					t.Errorf("%d × %s in %s: AgentID says %v", n, bracket, format, known)
				}
				if grew := after.TotalAlloc - before.TotalAlloc; grew > uint64(len(body)+1<<20) {
					t.Errorf("%d × %s in %s took %d bytes", n, bracket, format, grew)
				}
				best := time.Hour // the machine may be busy with something else
				for range 5 {
					start := time.Now()
					wire.AgentID(body)
					_, _ = wire.ParseRequest(body)
					if best = min(best, time.Since(start)); best < 100*time.Millisecond {
						break
					}
				}
				if best > 100*time.Millisecond && !raceEnabled {
					t.Errorf("%d × %s in %s took %v", n, bracket, format, best)
				}
			}
		}
	}
}

// Fault A7: what is only passed on keeps its bytes.
func TestFaultA7(t *testing.T) {
	t.Parallel()
	body := file(t, "keiki-big-numbers.json")
	r, err := wire.ParseRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"orderId":9007199254740993,"big":123456789012345678901234567890,"rate":1.10,"exp":1E+2}`
	if got := string(r.Turn.Context); got != want {
		t.Errorf("context is %s, want %s", got, want)
	}
	claimed := fmt.Sprintf(`{"turn":%s}`, body)
	claimed = strings.Replace(claimed, `"heldBack"`, `"turnToken":"ht_0123456789","heldBack"`, 1)
	c, err := wire.ParseClaim([]byte(claimed))
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Turn.Context) != want || !strings.Contains(c.Raw, `"context":`+want) {
		t.Errorf("of a claim the context is %s, in %s", c.Turn.Context, c.Raw)
	}
	for _, spelled := range []string{"1.00000000000000000000000000000000001", "1e-400", "0.99999999999999999999999999999"} {
		if _, err := wire.ParseRequest([]byte(with(t, turnBody, `"version":1`, `"version":`+spelled))); err == nil {
			t.Errorf("%s was taken for 1", spelled)
		}
		if _, err := wire.ParseRequest([]byte(with(t, arrivalBody, `"sequence":1`, `"sequence":`+spelled))); err == nil {
			t.Errorf("%s was taken for an integer", spelled)
		}
	}
}

// What is signed is the bytes; spacing, escapes and the order of keys are the platform's own.
func TestOddBody(t *testing.T) {
	t.Parallel()
	body := file(t, "keiki-odd-body.json")
	r, err := wire.ParseRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	want := &wire.Turn{
		TurnID: "turn-1", AgentID: "agent-1", ConversationID: "+15555550100", Channel: []byte(`"sms"`),
		Messages:   []wire.Message{{Text: "café <b>/</b> 😀", ID: "m-1"}},
		HasHistory: true, Context: []byte(`{"rate":1.0, "z":1,"a":[ ]}`), Deadline: at("2030-01-01T00:00:00Z"),
		Links: wire.Links{APIBase: "https://keiki.example/api/v1", TurnURL: "https://keiki.example/api/v1/turns/turn-1", MCPURL: "https://keiki.example/api/v1/harness/mcp"},
	}
	if diff := cmp.Diff(want, r.Turn); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if id, ok := wire.AgentID(body); id != "agent-1" || !ok {
		t.Errorf("AgentID = %q, %v", id, ok)
	}
}

func TestAgentID(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body, want string // no agent if empty
	}{
		{turnBody, "a-1"},
		{cancelledBody, "a-1"},
		{`{"agentId":"a"}`, "a"},
		{" \n{ \"x\" : {\"agentId\":\"b\"} , \"agentId\" : \"a\" }", "a"},
		{`{"x":"agentId","y":["agentId",{"agentId":"b"}],"agentId":"a"}`, "a"},
		{`{"x":"\"agentId\":\"b\"","agentId":"a"}`, "a"},
		{`{"\u0061gentId":"\u0061\n\ud83d\ude00"}`, "a\n😀"},
		// What ParseRequest refuses, once the signature holds.
		{"\ufeff" + turnBody, "a-1"},
		{turnBody + "x", "a-1"},
		{with(t, turnBody, `"hello"`, "\"hel\xff\\lo\n\""), "a-1"},
		{with(t, turnBody, `"turnId":"t-1"`, `"turnId":"t-1","turnId":"t-2"`), "a-1"},
		{`{"agentId":"a","agentId":"a"}`, "a"},
		{`{"agentId":"a",`, "a"},
		{`{"agentId":"a"]`, "a"},
		{`{"x":"unterminated\`, ""},
		{`{"x" "agentId":"a"`, ""},
		// No agent, or two.
		{``, ""},
		{`{}`, ""},
		{`[]`, ""},
		{`[{"agentId":"a"}]`, ""},
		{`["agentId","a"]`, ""},
		{`"agentId"`, ""},
		{`{"agentId":""}`, ""},
		{`{"agentId":null}`, ""},
		{`{"agentId":7}`, ""},
		{`{"agentId":["a"]}`, ""},
		{`{"agentId":{"agentId":"a"}}`, ""},
		{`{"AGENTID":"a"}`, ""},
		{`{"agentId"}`, ""},
		{`{"agentId"`, ""},
		{`{"agentId":`, ""},
		{`{"agentId":"a`, ""},
		{"{\"agentId\":\"a\xff\"}", ""},
		{`{"agentId":"a","agentId":"b"}`, ""},
		{`{"agentId":"a","agent\u0049d":"b"}`, ""},
		{`{"agentId":"a","agentId":7}`, ""},
		{`{"x":{"agentId":"a"}}`, ""},
		{`{}{"agentId":"a"}`, ""},
	} {
		if got, ok := wire.AgentID([]byte(tc.body)); got != tc.want || ok != (tc.want != "") {
			t.Errorf("AgentID(%s) = %q, %v, want %q", tc.body, got, ok, tc.want)
		}
	}
}

// Bodies that are made to be slow, before anybody knows whom they are from.
func TestHostileBodies(t *testing.T) { // not parallel: it looks at the clock
	size := 2 << 20
	if raceEnabled {
		size /= 8 // still far beyond what a quadratic algorithm does in the time
	}
	fill := func(format string, unit func(i int) string) []byte {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(unit(i))
		}
		return fmt.Appendf(nil, format, strings.TrimSuffix(b.String(), ","))
	}
	tail := turnBody[1:]
	for name, body := range map[string][]byte{
		"keys in one object": fill(`{"x":{%s},`+tail, func(i int) string { return fmt.Sprintf(`"%x":0,`, i) }),
		"keys in the root":   fill(`{%s,`+tail, func(i int) string { return fmt.Sprintf(`"%x":0,`, i) }),
		"escaped keys":       fill(`{%s,`+tail, func(i int) string { return fmt.Sprintf(`"\u0041%x":0,`, i) }),
		"quotes":             fill(`{"x":"%s",`+tail, func(int) string { return `\"` }),
		"bad strings":        fill(`{"x":[%s],`+tail, func(int) string { return "\"\xff\"," }),
		"bad keys":           fill(`{%s,`+tail, func(int) string { return "\"\\x\":0," }),
		"agents":             fill(`{%s}`, func(int) string { return `"agentId":"a",` }),
		"messages":           fill(`{"messages":[%s],"type":"keiki.turn"}`, func(int) string { return `{"text":"","x":0,"y":0},` }),
		"a number":           fill(`{"x":%s,`+tail, func(int) string { return "9" }),
		"deadline":           fill(`{"type":"keiki.turn","deadline":0.%s}`, func(int) string { return "9" }),
		"sequence":           fill(`{"type":"keiki.turn.arrival","sequence":%s}`, func(int) string { return "9" }),
		"unterminated":       fill(`{"agentId":"a","x":"%s`, func(int) string { return `\\` }),
		"one long key":       fill(`{"%s":1,`+tail, func(int) string { return `é` }),
	} {
		start := time.Now()
		wire.AgentID(body)
		asked := time.Since(start)
		_, _ = wire.ParseRequest(body)
		for _, kind := range wire.Kinds() {
			wire.Explain(kind, body)
		}
		_, _ = wire.ParseClaim(body)
		wire.ParseFault(body)
		if took := time.Since(start); took > 10*time.Second || asked > time.Second {
			t.Errorf("%s: AgentID took %v, all took %v", name, asked, took)
		}
	}
}

func TestParseAllocations(t *testing.T) {
	turn, escapes := []byte(turnBody), []byte(with(t, turnBody, `hello`, `hello\n`))
	unknown := []byte(with(t, turnBody, `"turnId"`, `"new":{"a":[1,2,{"b":null}],"c":"d"},"turnId"`))
	for _, tc := range []struct {
		name string
		body []byte
		most float64
	}{
		{"turn", turn, 4}, // request, turn, messages, decoder
		{"escapes", escapes, 5},
		{"unknown fields", unknown, 4},
	} {
		got := testing.AllocsPerRun(100, func() {
			if _, err := wire.ParseRequest(tc.body); err != nil {
				t.Fatal(err)
			}
		})
		if raceEnabled {
			continue // sync.Pool drops things at random under the race detector
		}
		if got > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", tc.name, got, tc.most)
		}
		if got := testing.AllocsPerRun(100, func() { wire.AgentID(tc.body) }); got > 0 {
			t.Errorf("%s: AgentID makes %v allocations", tc.name, got)
		}
	}
}

func TestKindsAndCodes(t *testing.T) {
	t.Parallel()
	if got := fmt.Sprint(wire.Kinds(), wire.Codes()); got != "[keiki.turn keiki.turn.arrival keiki.turn.cancelled] [invalid_json unknown_type unsupported_version invalid_request]" {
		t.Error(got)
	}
	if id := new(wire.Request).TurnID(); id != "" {
		t.Errorf("an empty request is about %q", id)
	}
	body := []byte(cancelledBody)
	r, err := wire.ParseRequest(body)
	clear(body)
	if err != nil || r.Kind != wire.KindCancelled { // it keeps no body alive
		t.Errorf("the kind is %q, %v", r.Kind, err)
	}
	for name, call := range map[string]func(){
		"Schema":   func() { wire.Schema("keiki") },
		"SchemaID": func() { wire.SchemaID("keiki") },
		"Explain":  func() { wire.Explain("keiki", nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s takes a kind that is none", name)
				}
			}()
			call()
		}()
	}
}
