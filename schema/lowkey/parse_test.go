package lowkey_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// base has all fields, required and optional. Tests replace parts of it.
const base = `{"protocolVersion":1,"pluginId":"muse",` +
	`"sessionHandle":{"id":"s-1","projectPath":"/srv/p","sessionId":"s","agentId":"a"},` +
	`"turn":{"turnId":"t-1","message":"hello","headless":false,"userName":"alvin"},` +
	`"transcriptWindow":[{"role":"user","content":"hi","timestamp":1719000000000,"agentId":"b","agentName":"B","turnId":"t-0"},{"role":"agent","content":"yes?"}],` +
	`"limits":{"transcriptWindowMessages":40}}`

func baseRequest() wire.Request {
	return wire.Request{
		ProtocolVersion: 1,
		PluginID:        "muse",
		SessionHandle:   wire.SessionHandle{ID: "s-1", ProjectPath: "/srv/p", SessionID: "s", AgentID: "a"},
		Turn:            wire.Turn{TurnID: "t-1", Message: "hello", UserName: "alvin"},
		TranscriptWindow: []wire.WindowEntry{
			{Role: wire.RoleUser, Content: "hi", Timestamp: wire.TimestampOf(1719000000000), AgentID: "b", AgentName: "B", TurnID: "t-0"},
			{Role: wire.RoleAgent, Content: "yes?"},
		},
		Limits: wire.Limits{TranscriptWindowMessages: 40},
	}
}

var compareTimestamps = cmp.Comparer(func(a, b wire.Timestamp) bool { return a == b })

// with replaces parts of base; each must be there exactly once.
func with(t testing.TB, pairs ...string) string {
	t.Helper()
	doc := base
	for i := 0; i < len(pairs); i += 2 {
		if strings.Count(doc, pairs[i]) != 1 {
			t.Fatalf("%q is not in the request exactly once", pairs[i])
		}
		doc = strings.Replace(doc, pairs[i], pairs[i+1], 1)
	}
	return doc
}

// parse parses a copy of doc, so that nothing else is changed by mistake.
func parse(doc string) (wire.Request, error) {
	var r wire.Request
	err := wire.Parse([]byte(doc), &r)
	return r, err
}

func TestParse(t *testing.T) {
	t.Parallel()
	set := func(f func(r *wire.Request)) wire.Request {
		r := baseRequest()
		f(&r)
		return r
	}
	for _, tc := range []struct {
		name string
		edit []string
		want wire.Request
	}{
		{"all fields", nil, baseRequest()},
		{"white space everywhere", []string{
			`{"protocolVersion":1,`, "\r\n\t {\n \"protocolVersion\"\t:\r1 ,\n",
			`"transcriptWindow":[{`, `"transcriptWindow": [ { `, `},{`, "}\n,\t{", `"yes?"}],`, `"yes?" } ] , `,
			`40}}`, "40 } }\n\n ",
		}, baseRequest()},
		{"only what is required", []string{
			`,"userName":"alvin"`, ``, `,"timestamp":1719000000000,"agentId":"b","agentName":"B","turnId":"t-0"`, ``,
		}, set(func(r *wire.Request) {
			r.Turn.UserName = ""
			r.TranscriptWindow[0] = wire.WindowEntry{Role: wire.RoleUser, Content: "hi"}
		})},
		{"empty window", []string{base[strings.Index(base, `[{`) : strings.Index(base, `}],`)+2], `[ ]`}, set(func(r *wire.Request) { r.TranscriptWindow = []wire.WindowEntry{} })},
		{"empty strings where they may be", []string{
			`"/srv/p"`, `""`, `"hello"`, `""`, `"alvin"`, `""`, `"hi"`, `""`, `"b"`, `""`, `"B"`, `""`, `"t-0"`, `""`,
		}, set(func(r *wire.Request) {
			r.SessionHandle.ProjectPath, r.Turn.Message, r.Turn.UserName = "", "", ""
			r.TranscriptWindow[0].Content, r.TranscriptWindow[0].AgentID, r.TranscriptWindow[0].AgentName, r.TranscriptWindow[0].TurnID = "", "", "", ""
		})},
		{"roles", []string{`"user"`, `"system"`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Role = wire.RoleSystem })},
		{"role with an escape", []string{`"user"`, `"\u0075ser"`}, baseRequest()},
		{"headless", []string{`false`, `true`}, set(func(r *wire.Request) { r.Turn.Headless = true })},
		{"spellings of 1", []string{`"protocolVersion":1`, `"protocolVersion":10.0E-1`}, baseRequest()},
		{"1.0", []string{`"protocolVersion":1`, `"protocolVersion":1.0`}, baseRequest()},
		{"1e0", []string{`"protocolVersion":1`, `"protocolVersion":1e0`}, baseRequest()},
		{"40.0", []string{`:40}`, `:40.0}`}, baseRequest()},
		{"4e1", []string{`:40}`, `:4e1}`}, baseRequest()},
		{"no messages", []string{`:40}`, `:-0}`}, set(func(r *wire.Request) { r.Limits.TranscriptWindowMessages = 0 })},
		{"no upper bound", []string{`:40}`, `:1e400}`}, set(func(r *wire.Request) { r.Limits.TranscriptWindowMessages = math.MaxInt })},
		{"beyond any exponent", []string{`:40}`, `:1e99999999999}`}, set(func(r *wire.Request) { r.Limits.TranscriptWindowMessages = math.MaxInt })},
		{"smaller limit than the window", []string{`:40}`, `:1}`}, set(func(r *wire.Request) { r.Limits.TranscriptWindowMessages = 1 })},
		{"timestamp with a fraction", []string{`1719000000000`, `1719000000000.25`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Timestamp = wire.TimestampOf(1719000000000.25) })},
		{"negative timestamp", []string{`1719000000000`, `-1.5e3`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Timestamp = wire.TimestampOf(-1500) })},
		{"timestamp zero is one", []string{`1719000000000`, `0`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Timestamp = wire.TimestampOf(0) })},
		{"long timestamp", []string{`1719000000000`, `17190000000001719000000000`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Timestamp = wire.TimestampOf(1.7190000000001719e25) })},
		{"timestamp beyond a float", []string{`1719000000000`, `1e999`}, set(func(r *wire.Request) { r.TranscriptWindow[0].Timestamp = wire.TimestampOf(math.Inf(1)) })},
		{"escapes", []string{`"hello"`, `"\"\\\/\b\f\n\r\t\u00e9\u6e10\ud83d\ude00\u0000 tail"`, `"hi"`, `"a\nb"`, `"yes?"`, `"\u0041"`}, set(func(r *wire.Request) {
			r.Turn.Message = "\"\\/\b\f\n\r\té渐😀\x00 tail"
			r.TranscriptWindow[0].Content, r.TranscriptWindow[1].Content = "a\nb", "A"
		})},
		{"text beyond ASCII", []string{`"hello"`, `"é渐😀 U+2028: ` + "\u2028\u007f" + `"`}, set(func(r *wire.Request) { r.Turn.Message = "é渐😀 U+2028: \u2028\u007f" })},
		{"lone surrogates", []string{`"hello"`, `"\ud83d"`, `"hi"`, `"a\ude00b\ud83d\ud83d\ude00\ud83d\u0041"`}, set(func(r *wire.Request) {
			r.Turn.Message, r.TranscriptWindow[0].Content = "\ufffd", "a\ufffdb\ufffd😀\ufffdA"
		})},
		{"key with an escape", []string{`"pluginId"`, `"plugin\u0049d"`}, baseRequest()},
		{"unknown fields", []string{
			`{"protocolVersion"`, `{"x":{"a":[1,{"a":null}],"b":"\ud800"},"protocolVersion"`,
			`"id":"s-1"`, `"id":"s-1","x":true`, `"turnId":"t-1"`, `"x":1e5,"turnId":"t-1"`, `"role":"user"`, `"x":[],"y":{},"role":"user"`,
			`40}}`, `40,"x":"y"},"y":[[[]]]}`,
		}, baseRequest()},
		{"case variants are unknown fields", []string{`{"protocolVersion"`, `{"PLUGINID":"other","ProtocolVersion":2,"protocolVersion"`, `"role":"user"`, `"Role":7,"role":"user"`}, baseRequest()},
		{"the same unknown key in different objects", []string{`"role":"user"`, `"x":1,"role":"user"`, `"role":"agent"`, `"x":1,"role":"agent"`, `"id":"s-1"`, `"x":1,"id":"s-1"`, `40}}`, `40,"x":1},"x":1}`}, baseRequest()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			doc := with(t, tc.edit...)
			got, err := parse(doc)
			if err != nil {
				t.Fatalf("Parse(%s) = %v", doc, err)
			}
			if diff := cmp.Diff(tc.want, got, compareTimestamps); diff != "" {
				t.Errorf("Parse(%s) (-want +got):\n%s", doc, diff)
			}
			if list := wire.Explain([]byte(doc)); list != nil {
				t.Errorf("Explain(%s) = %v", doc, list)
			}
			if list := published(t).Validate([]byte(doc)); list != nil {
				t.Errorf("the schema refuses %s: %v", doc, list)
			}
		})
	}
}

func published(t testing.TB) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(wire.SchemaID, wire.Schema())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseRefusesFields(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		edit []string
		want string
		kind wire.Kind
	}{
		// The version.
		{[]string{`"protocolVersion":1`, `"protocolVersion":2`}, `/protocolVersion is 2, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":"1"`}, `/protocolVersion is "1", expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":1.5`}, `/protocolVersion is 1.5, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":-1`}, `/protocolVersion is -1, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":0`}, `/protocolVersion is 0, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":null`}, `/protocolVersion is null, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":[1]`}, `/protocolVersion is an array, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1`, `"protocolVersion":1e999999999`}, `/protocolVersion is 1e999999999, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1,`, ``}, `/protocolVersion is missing, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1,`, `"pluginid":7,`, `"pluginId":"muse"`, `"pluginId":7`, `40}}`, `-1},"protocolVersion":3}`}, `/protocolVersion is 3, expected the number 1, the only version that is served`, wire.KindVersion},
		{[]string{`"protocolVersion":1,"pluginId":"muse",`, ``, `40}}`, `-1},"protocol\u0056ersion":3}`}, `/protocolVersion is 3, expected the number 1, the only version that is served`, wire.KindVersion},

		// What is required.
		{[]string{`"pluginId":"muse",`, ``}, `/pluginId is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`"pluginId":`, `"PLUGINID":`}, `/pluginId is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`"sessionHandle":`, `"x":`}, `/sessionHandle is missing, expected an object`, wire.KindField},
		{[]string{`"id":"s-1",`, ``}, `/sessionHandle/id is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`"projectPath":"/srv/p",`, ``}, `/sessionHandle/projectPath is missing, expected a string`, wire.KindField},
		{[]string{`"sessionId":"s",`, ``}, `/sessionHandle/sessionId is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`,"agentId":"a"`, ``}, `/sessionHandle/agentId is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`"turn":`, `"x":`}, `/turn is missing, expected an object`, wire.KindField},
		{[]string{`"turnId":"t-1",`, ``}, `/turn/turnId is missing, expected a string that is not empty`, wire.KindField},
		{[]string{`"message":"hello",`, ``}, `/turn/message is missing, expected a string`, wire.KindField},
		{[]string{`"headless":false,`, ``}, `/turn/headless is missing, expected true or false`, wire.KindField},
		{[]string{`"transcriptWindow":`, `"x":`}, `/transcriptWindow is missing, expected an array`, wire.KindField},
		{[]string{`"role":"user",`, ``}, `/transcriptWindow/0/role is missing, expected "user", "agent" or "system"`, wire.KindField},
		{[]string{`,"content":"yes?"`, ``}, `/transcriptWindow/1/content is missing, expected a string`, wire.KindField},
		{[]string{`"limits":`, `"x":`}, `/limits is missing, expected an object`, wire.KindField},
		{[]string{`"transcriptWindowMessages":40`, `"x":40`}, `/limits/transcriptWindowMessages is missing, expected an integer of at least 0`, wire.KindField},

		// Types, null, bounds.
		{[]string{`"muse"`, `""`}, `/pluginId is "", expected a string that is not empty`, wire.KindField},
		{[]string{`"muse"`, `null`}, `/pluginId is null, expected a string that is not empty`, wire.KindField},
		{[]string{`"muse"`, `true`}, `/pluginId is true, expected a string that is not empty`, wire.KindField},
		{[]string{`"s-1"`, `""`}, `/sessionHandle/id is "", expected a string that is not empty`, wire.KindField},
		{[]string{`"/srv/p"`, `null`}, `/sessionHandle/projectPath is null, expected a string`, wire.KindField},
		{[]string{`"sessionId":"s"`, `"sessionId":""`}, `/sessionHandle/sessionId is "", expected a string that is not empty`, wire.KindField},
		{[]string{`"agentId":"a"`, `"agentId":""`}, `/sessionHandle/agentId is "", expected a string that is not empty`, wire.KindField},
		{[]string{`"sessionHandle":{`, `"sessionHandle":"s","x":{`}, `/sessionHandle is "s", expected an object`, wire.KindField},
		{[]string{`"t-1"`, `""`}, `/turn/turnId is "", expected a string that is not empty`, wire.KindField},
		{[]string{`"hello"`, `null`}, `/turn/message is null, expected a string`, wire.KindField},
		{[]string{`"hello"`, `["hello"]`}, `/turn/message is an array, expected a string`, wire.KindField},
		{[]string{`false`, `"false"`}, `/turn/headless is "false", expected true or false`, wire.KindField},
		{[]string{`false`, `0`}, `/turn/headless is 0, expected true or false`, wire.KindField},
		{[]string{`false`, `null`}, `/turn/headless is null, expected true or false`, wire.KindField},
		{[]string{`"alvin"`, `null`}, `/turn/userName is null, expected a string`, wire.KindField},
		{[]string{`"turn":{`, `"turn":[],"x":{`}, `/turn is an array, expected an object`, wire.KindField},
		{[]string{`"transcriptWindow":[`, `"transcriptWindow":{},"x":[`}, `/transcriptWindow is an object, expected an array`, wire.KindField},
		{[]string{`"transcriptWindow":[`, `"transcriptWindow":null,"x":[`}, `/transcriptWindow is null, expected an array`, wire.KindField},
		{[]string{`{"role":"agent","content":"yes?"}`, `"hi"`}, `/transcriptWindow/1 is "hi", expected an object`, wire.KindField},
		{[]string{`"user"`, `"assistant"`}, `/transcriptWindow/0/role is "assistant", expected "user", "agent" or "system"`, wire.KindField},
		{[]string{`"user"`, `"User"`}, `/transcriptWindow/0/role is "User", expected "user", "agent" or "system"`, wire.KindField},
		{[]string{`"user"`, `1`}, `/transcriptWindow/0/role is 1, expected "user", "agent" or "system"`, wire.KindField},
		{[]string{`"yes?"`, `null`}, `/transcriptWindow/1/content is null, expected a string`, wire.KindField},
		{[]string{`1719000000000`, `"2030-01-01"`}, `/transcriptWindow/0/timestamp is "2030-01-01", expected a number`, wire.KindField},
		{[]string{`1719000000000`, `null`}, `/transcriptWindow/0/timestamp is null, expected a number`, wire.KindField},
		{[]string{`"b"`, `null`}, `/transcriptWindow/0/agentId is null, expected a string`, wire.KindField},
		{[]string{`"B"`, `{}`}, `/transcriptWindow/0/agentName is an object, expected a string`, wire.KindField},
		{[]string{`"t-0"`, `7`}, `/transcriptWindow/0/turnId is 7, expected a string`, wire.KindField},
		{[]string{`"limits":{`, `"limits":null,"x":{`}, `/limits is null, expected an object`, wire.KindField},
		{[]string{`:40}`, `:-1}`}, `/limits/transcriptWindowMessages is -1, expected an integer of at least 0`, wire.KindField},
		{[]string{`:40}`, `:40.5}`}, `/limits/transcriptWindowMessages is 40.5, expected an integer of at least 0`, wire.KindField},
		{[]string{`:40}`, `:1e-1}`}, `/limits/transcriptWindowMessages is 1e-1, expected an integer of at least 0`, wire.KindField},
		{[]string{`:40}`, `:-1e400}`}, `/limits/transcriptWindowMessages is -1e400, expected an integer of at least 0`, wire.KindField},
		{[]string{`:40}`, `:"40"}`}, `/limits/transcriptWindowMessages is "40", expected an integer of at least 0`, wire.KindField},
		{[]string{base, `[]`}, `the document is an array, expected an object`, wire.KindField},
		{[]string{base, `"x"`}, `the document is "x", expected an object`, wire.KindField},
		{[]string{base, ` null `}, `the document is null, expected an object`, wire.KindField},
	} {
		t.Run(tc.want, func(t *testing.T) {
			t.Parallel()
			doc := with(t, tc.edit...)
			_, err := parse(doc)
			var e *wire.Error
			if !errors.As(err, &e) {
				t.Fatalf("Parse(%s) = %v, want an *Error", doc, err)
			}
			if e.Error() != tc.want || e.Kind != tc.kind {
				t.Errorf("Parse(%s) = %q (%v), want %q (%v)", doc, e.Error(), e.Kind, tc.want, tc.kind)
			}
			if e.Syntax != nil || e.Unwrap() != nil {
				t.Errorf("Parse(%s) has a syntax error", doc)
			}
			list := published(t).Validate([]byte(doc))
			if !slices.Contains(list, e.Violations[0]) {
				t.Errorf("Parse(%s) = %v, which the schema does not say: %v", doc, e.Violations[0], list)
			}
			if diff := cmp.Diff(list, wire.Explain([]byte(doc))); diff != "" {
				t.Errorf("Explain(%s) is not what the schema says (-schema +Explain):\n%s", doc, diff)
			}
		})
	}
}

func TestParseRefusesMalformed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		edit    []string
		pointer string
		message string
	}{
		{"empty", []string{base, ``}, "", "empty"},
		{"white space", []string{base, "\n "}, "", "empty"},
		{"byte order mark", []string{`{"protocolVersion"`, "\ufeff" + `{"protocolVersion"`}, "", "byte order mark"},
		{"second value", []string{`40}}`, `40}}{}`}, "", "after the value"},
		{"junk behind", []string{`40}}`, `40}}x`}, "", "after the value"},
		{"bracket behind", []string{`40}}`, `40}}}`}, "", "after the value"},
		{"cut", []string{`40}}`, `40}`}, "/limits", "text ends"},
		{"duplicate known key", []string{`"pluginId":"muse"`, `"pluginId":"muse","pluginId":"muse"`}, "/pluginId", `duplicate key "pluginId"`},
		{"duplicate known object", []string{`"limits":{`, `"limits":{"transcriptWindowMessages":1},"limits":{`}, "/limits", `duplicate key "limits"`},
		{"duplicate after unescaping", []string{`"pluginId":"muse"`, `"pluginId":"muse","\u0070luginId":"muse"`}, "/pluginId", `duplicate key`},
		{"duplicate in the session handle", []string{`"id":"s-1"`, `"id":"s-1","id":"s-2"`}, "/sessionHandle/id", `duplicate key "id"`},
		{"duplicate in the turn", []string{`"headless":false`, `"headless":false,"headless":false`}, "/turn/headless", `duplicate key "headless"`},
		{"duplicate in an entry", []string{`"role":"user"`, `"role":"user","role":"user"`}, "/transcriptWindow/0/role", `duplicate key "role"`},
		{"duplicate in the limits", []string{`:40}`, `:40,"transcriptWindowMessages":40}`}, "/limits/transcriptWindowMessages", `duplicate key`},
		{"duplicate unknown key", []string{`"pluginId"`, `"x":1,"x":1,"pluginId"`}, "/x", `duplicate key "x"`},
		{"duplicate unknown key in an entry", []string{`"role":"agent"`, `"x":1,"role":"agent","x":1`}, "/transcriptWindow/1/x", `duplicate key "x"`},
		{"duplicate deep in an unknown field", []string{`"pluginId"`, `"x":[0,{"y":{"z":1,"a":2,"z":3}}],"pluginId"`}, "/x/1/y/z", `duplicate key "z"`},
		{"malformed before a wrong version", []string{`"protocolVersion":1`, `"protocolVersion":2`, `40}}`, `40}`}, "/limits", "text ends"},
		{"malformed behind a wrong field", []string{`"muse"`, `7`, `40}}`, `40,}}`}, "/limits", "where a key"},
		{"invalid UTF-8", []string{`"hello"`, "\"he\xffllo\""}, "/turn/message", "0xFF"},
		{"invalid UTF-8 in an unknown field", []string{`"pluginId"`, "\"x\":\"\xc3\",\"pluginId\""}, "/x", "0xC3"},
		{"invalid UTF-8 in a key", []string{`"pluginId"`, "\"x\xc3\":1,\"pluginId\""}, "", "0xC3"},
		{"surrogate in UTF-8", []string{`"hello"`, "\"\xed\xa0\xbd\""}, "/turn/message", "0xED"},
		{"control character", []string{`"hello"`, "\"he\nllo\""}, "/turn/message", "control"},
		{"bad escape", []string{`"hello"`, `"\x"`}, "/turn/message", "escape"},
		{"leading zero", []string{`1719000000000`, `01719000000000`}, "/transcriptWindow/0/timestamp", "number"},
		{"zero zero", []string{`1719000000000`, `00`}, "/transcriptWindow/0/timestamp", "number"},
		{"leading zero of the version", []string{`"protocolVersion":1`, `"protocolVersion":01`}, "/protocolVersion", "number"},
		{"half a number", []string{`:40}`, `:4.}`}, "/limits/transcriptWindowMessages", "number"},
		{"number with a plus", []string{`:40}`, `:+40}`}, "/limits/transcriptWindowMessages", "where a value"},
		{"bad literal", []string{`false`, `falsey`}, "/turn/headless", "comma"},
		{"half a literal", []string{`false`, `fals`}, "/turn/headless", "false"},
		{"capital", []string{`false`, `False`}, "/turn/headless", "'F'"},
		{"trailing comma", []string{`"yes?"}]`, `"yes?"},]`}, "/transcriptWindow/2", "where a value"},
		{"comma first", []string{`[{"role":"user"`, `[,{"role":"user"`}, "/transcriptWindow/0", "where a value"},
		{"no comma", []string{`},{`, `}{`}, "/transcriptWindow/0", "comma"},
		{"no colon", []string{`"pluginId":`, `"pluginId"`}, "/pluginId", "colon"},
		{"comment", []string{`"pluginId"`, `/* */"pluginId"`}, "", "where a key"},
		{"NaN", []string{`1719000000000`, `NaN`}, "/transcriptWindow/0/timestamp", "where a value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			doc := with(t, tc.edit...)
			_, err := parse(doc)
			var e *wire.Error
			var syntax *schema.SyntaxError
			if !errors.As(err, &e) || e.Kind != wire.KindMalformed || !errors.As(err, &syntax) {
				t.Fatalf("Parse(%s) = %v, want a malformed text", doc, err)
			}
			if diff := cmp.Diff(schema.Check([]byte(doc), 0), error(syntax)); diff != "" {
				t.Errorf("Parse(%s) is not what Check says (-Check +Parse):\n%s", doc, diff)
			}
			if syntax.Pointer != tc.pointer || !strings.Contains(e.Error(), tc.message) {
				t.Errorf("Parse(%s) = %v at %q, want %q at %q", doc, e, syntax.Pointer, tc.message, tc.pointer)
			}
			if diff := cmp.Diff(e.Violations, wire.Explain([]byte(doc))); diff != "" || len(e.Violations) != 1 {
				t.Errorf("Explain(%s) (-Parse +Explain):\n%s", doc, diff)
			}
		})
	}
}

// Fault A5: the same key twice, keys in another case, a second value.
func TestFaultA5(t *testing.T) {
	t.Parallel()
	for name, pointer := range map[string]string{"duplicate-key": "/pluginId", "second-value": ""} {
		var r wire.Request
		err := wire.Parse(file(t, "lowkey-"+name+".json"), &r)
		var e *wire.Error
		if !errors.As(err, &e) || e.Kind != wire.KindMalformed || e.Syntax.Pointer != pointer {
			t.Errorf("%s: %v", name, err)
		}
	}
	var r wire.Request
	if err := wire.Parse(file(t, "lowkey-case-variant.json"), &r); err != nil {
		t.Fatal(err)
	}
	if r.PluginID != "muse" || r.ProtocolVersion != 1 {
		t.Errorf("the case variants were taken for fields: plugin %q, version %d", r.PluginID, r.ProtocolVersion)
	}
}

// Fault A6: deep nesting is refused while scanning.
func TestFaultA6(t *testing.T) { // not parallel: it looks at the clock
	var r wire.Request
	if err := wire.Parse(file(t, "lowkey-nest-64.json"), &r); err != nil {
		t.Errorf("64 levels: %v", err)
	}
	err := wire.Parse(file(t, "lowkey-nest-65.json"), &r)
	var e *wire.Error
	if !errors.As(err, &e) || e.Kind != wire.KindMalformed || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("65 levels: %v", err)
	}
	// The limit counts from the root wherever the unknown field is.
	for place, open := range map[string]int{`"pluginId"`: 1, `"sessionId"`: 2, `"message"`: 2, `"transcriptWindowMessages"`: 2, `"content":"hi"`: 3} {
		for depth, fine := range map[int]bool{64: true, 65: false} {
			nest := strings.Repeat(`[`, depth-open) + strings.Repeat(`]`, depth-open)
			if _, err := parse(with(t, place, `"x":`+nest+`,`+place)); (err == nil) != fine {
				t.Errorf("%d levels before %s: %v", depth, place, err)
			}
		}
	}
	for _, n := range []int{100_000, 4_000_000} {
		for _, bracket := range []string{"[", `{"a":`} {
			body := []byte(strings.Repeat(bracket, n/len(bracket)))
			start := time.Now()
			if err := wire.Parse(body, &r); err == nil {
				t.Errorf("%d × %s was accepted", n, bracket)
			}
			wire.Explain(body)
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("%d × %s took %v", n, bracket, took)
			}
		}
	}
}

// Fault A7: what is read as a number keeps its value, and what is only passed on is not read.
func TestFaultA7(t *testing.T) {
	t.Parallel()
	r, err := parse(with(t, `:40}`, `:9007199254740993}`, `"pluginId"`, `"x":[123456789012345678901234567890,1.10,1E+2,9007199254740993],"pluginId"`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Limits.TranscriptWindowMessages != 9007199254740993 {
		t.Errorf("9007199254740993 became %d", r.Limits.TranscriptWindowMessages)
	}
	for spelled, want := range map[string]int{
		"9223372036854775807": math.MaxInt64, "9223372036854775808": math.MaxInt64, "123456789012345678901234567890": math.MaxInt64,
		"9007199254740993.0": 9007199254740993, "9007199254740993000e-3": 9007199254740993,
	} {
		if r, err := parse(with(t, `:40}`, `:`+spelled+`}`)); err != nil || r.Limits.TranscriptWindowMessages != want {
			t.Errorf("%s became %d, %v", spelled, r.Limits.TranscriptWindowMessages, err)
		}
	}
	for _, spelled := range []string{"1.00000000000000000000000000000000001", "1e-400", "0.99999999999999999999999999999"} {
		if _, err := parse(with(t, `"protocolVersion":1`, `"protocolVersion":`+spelled)); err == nil {
			t.Errorf("%s was taken for 1", spelled)
		}
		if _, err := parse(with(t, `:40}`, `:`+spelled+`}`)); err == nil {
			t.Errorf("%s was taken for an integer", spelled)
		}
	}
}

// Fault A8: half a surrogate pair in a transcript does not poison the session.
func TestFaultA8(t *testing.T) {
	t.Parallel()
	var r wire.Request
	if err := wire.Parse(file(t, "lowkey-lone-surrogate.json"), &r); err != nil {
		t.Fatal(err)
	}
	if got, want := r.TranscriptWindow[1].Content, "page title: café \ufffd and more"; got != want {
		t.Errorf("content %q, want %q", got, want)
	}
}

// Fault J3: no string of a request has a limit in characters, and what a refusal quotes is cut by
// characters.
func TestFaultJ3(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("😀", 100_000)
	r, err := parse(with(t, `"muse"`, `"`+long+`"`))
	if err != nil || r.PluginID != long {
		t.Fatalf("100,000 characters: %v", err)
	}
	for _, text := range []string{long, strings.Repeat(`\ud83d\ude00`, 1000), strings.Repeat(`\u0000`, 1000), strings.Repeat(`\n`, 1000)} {
		for _, edit := range [][]string{
			{`"user"`, `"` + text + `"`},
			{`"protocolVersion":1`, `"protocolVersion":"` + text + `"`},
			{`"pluginId"`, `"` + text + `":1,"` + text + `":2,"pluginId"`},
			{`"pluginId"`, `"` + text + `":x,"pluginId"`},
		} {
			_, err := parse(with(t, edit...))
			if err == nil {
				t.Fatal("accepted")
			}
			sentence := err.Error()
			if n := utf8.RuneCountInString(sentence); n > 350 || strings.Count(sentence, "😀") > 200 || !utf8.ValidString(sentence) {
				t.Errorf("%d characters: %q", n, sentence)
			}
			if strings.ContainsAny(sentence, "\n\x00") {
				t.Errorf("a control character: %q", sentence)
			}
		}
	}
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseEveryCut(t *testing.T) {
	t.Parallel()
	for i := range len(base) {
		_, err := parse(base[:i])
		var e *wire.Error
		if !errors.As(err, &e) || e.Kind != wire.KindMalformed || e.Syntax.Offset > int64(i) {
			t.Errorf("the first %d bytes: %v", i, err)
		}
	}
}

func TestParseReusesTheWindow(t *testing.T) {
	t.Parallel()
	var r wire.Request
	if err := wire.Parse([]byte(base), &r); err != nil {
		t.Fatal(err)
	}
	first := &r.TranscriptWindow[0]
	sparse := []byte(with(t, `,"timestamp":1719000000000,"agentId":"b","agentName":"B","turnId":"t-0"`, ``, `,"userName":"alvin"`, ``))
	if err := wire.Parse(sparse, &r); err != nil {
		t.Fatal(err)
	}
	if &r.TranscriptWindow[0] != first {
		t.Error("the window's memory was not used again")
	}
	want := baseRequest()
	want.Turn.UserName = ""
	want.TranscriptWindow[0] = wire.WindowEntry{Role: wire.RoleUser, Content: "hi"}
	if diff := cmp.Diff(want, r, compareTimestamps); diff != "" {
		t.Errorf("something of the last request is left (-want +got):\n%s", diff)
	}

	r.Reset()
	if len(r.TranscriptWindow) != 0 || cap(r.TranscriptWindow) == 0 {
		t.Errorf("after Reset the window has length %d, capacity %d", len(r.TranscriptWindow), cap(r.TranscriptWindow))
	}
	if kept := r.TranscriptWindow[:cap(r.TranscriptWindow)]; slices.ContainsFunc(kept, func(e wire.WindowEntry) bool { return e != wire.WindowEntry{} }) {
		t.Error("Reset keeps entries alive")
	}
	r.TranscriptWindow = make([]wire.WindowEntry, 1<<20)
	r.Reset()
	if cap(r.TranscriptWindow) != 0 {
		t.Error("Reset keeps a huge window")
	}
}

func TestParseConcurrently(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var r wire.Request
			for i := range 200 {
				// Unknown fields and escapes use memory that is shared between calls.
				message := fmt.Sprintf("%d\n%d", g, i)
				body := strings.Replace(strings.Replace(base, `"hello"`, fmt.Sprintf("%q", message), 1), `"pluginId"`, fmt.Sprintf(`"x%d":[{"y":%d,"z":{}}],"pluginId"`, g, i), 1)
				if err := wire.Parse([]byte(body), &r); err != nil || r.Turn.Message != message {
					t.Errorf("Parse = %v, message %q, want %q", err, r.Turn.Message, message)
					return
				}
				if list := wire.Explain([]byte(strings.Replace(body, `"user"`, `"x"`, 1))); len(list) != 1 {
					t.Errorf("Explain = %v", list)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestParseAllocations(t *testing.T) {
	body, err := json.Marshal(request(40, prose[:75]))
	if err != nil {
		t.Fatal(err)
	}
	escapes, err := json.Marshal(request(40, prose[:60]+"\n\"quoted\""))
	if err != nil {
		t.Fatal(err)
	}
	unknown := []byte(strings.Replace(string(body), `"pluginId"`, `"new":{"a":[1,2,{"b":null}],"c":"d"},"pluginId"`, 1))
	var pooled wire.Request
	for _, tc := range []struct {
		name  string
		body  []byte
		fresh bool
		most  float64
	}{
		{"pooled request", body, false, 0},
		{"fresh request", body, true, 1},
		{"escapes, pooled request", escapes, false, 2},
		{"escapes, fresh request", escapes, true, 3},
		{"unknown fields", unknown, false, 0},
	} {
		got := testing.AllocsPerRun(100, func() {
			r := &pooled
			if tc.fresh {
				r = new(wire.Request)
			}
			if err := wire.Parse(tc.body, r); err != nil {
				t.Fatal(err)
			}
		})
		if tc.name == "unknown fields" && raceEnabled {
			continue // sync.Pool drops things at random under the race detector
		}
		if got > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", tc.name, got, tc.most)
		}
	}
}

// Bodies made to be slow must take linear time and not much memory.
func TestParseHostileBodies(t *testing.T) {
	t.Parallel()
	size := 2 << 20
	if raceEnabled {
		size /= 8 // still far beyond what a quadratic algorithm does in the time
	}
	fill := func(edit string, unit func(i int) string) []byte {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(unit(i))
		}
		return []byte(with(t, `"pluginId"`, fmt.Sprintf(edit, strings.TrimSuffix(b.String(), ","))+`,"pluginId"`))
	}
	for _, tc := range []struct {
		name string
		body []byte
	}{
		{"keys in one object", fill(`"x":{%s}`, func(i int) string { return fmt.Sprintf(`"%x":0,`, i) })},
		{"keys in the root", fill(`%s`, func(i int) string { return fmt.Sprintf(`"%x":0,`, i) })},
		{"escaped keys", fill(`"x":{%s}`, func(i int) string { return fmt.Sprintf(`"\u0041%x":0,`, i) })},
		{"objects of nine keys", fill(`"x":[%s]`, func(int) string { return `{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0},` })},
		{"one large object, then many small", fill(`"x":[%s]`, func(i int) string {
			if i == 0 {
				var b strings.Builder
				for i := range 100_000 {
					fmt.Fprintf(&b, `"%x":0,`, i)
				}
				return `{` + strings.TrimSuffix(b.String(), ",") + `},`
			}
			return `{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0},`
		})},
		{"a number", fill(`"x":%s`, func(int) string { return "9" })},
		{"escapes", fill(`"x":"%s"`, func(int) string { return `\ud800` })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			var r wire.Request
			if err := wire.Parse(tc.body, &r); err != nil {
				t.Errorf("Parse = %.200v", err)
			}
			wrong := []byte(strings.Replace(string(tc.body), `"t-1"`, `0`, 1))
			if list := wire.Explain(wrong); len(list) != 1 || list[0].Pointer != "/turn/turnId" {
				t.Errorf("Explain = %.200v", list)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// A window of nothing but wrong entries must not cost the validator's time for each of them.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	body := []byte(with(t, `[{"role":"user"`, `[`+strings.Repeat("0,", 4<<20)+`{"role":"user"`))
	start := time.Now()
	list := wire.Explain(body)
	if len(list) != 1 || list[0].Pointer != "/transcriptWindow/0" {
		t.Errorf("Explain = %v", list)
	}
	if took := time.Since(start); took > 5*time.Second && !raceEnabled {
		t.Errorf("took %v", took)
	}

	body = []byte(with(t, `[{"role":"user"`, `[`+strings.Repeat("0,", 4000)+`{"role":"user"`))
	if list := wire.Explain(body); len(list) != schema.MaxViolations || list[19].Pointer != "/transcriptWindow/19" {
		t.Errorf("Explain = %v", list)
	}
}

func TestExplainListsAll(t *testing.T) {
	t.Parallel()
	doc := with(t, `"protocolVersion":1`, `"protocolVersion":2`, `"s-1"`, `""`, `"message":"hello",`, ``, `"user"`, `"you"`, `:40}`, `:1e999999999.5}`)
	if got := wire.Explain([]byte(doc)); len(got) != 1 || got[0].Found != "malformed" {
		t.Errorf("Explain = %v", got)
	}
	doc = strings.Replace(doc, `:1e999999999.5}`, `:-1e999999999}`, 1)
	want := []schema.Violation{
		{Pointer: "/protocolVersion", Found: "2", Expected: "the number 1"},
		{Pointer: "/sessionHandle/id", Found: `""`, Expected: "a string that is not empty"},
		{Pointer: "/turn/message", Found: schema.Missing, Expected: "a string"},
		{Pointer: "/transcriptWindow/0/role", Found: `"you"`, Expected: `"user", "agent" or "system"`},
		{Pointer: "/limits/transcriptWindowMessages", Found: "-1e999999999", Expected: "an integer of at least 0"},
	}
	if diff := cmp.Diff(want, wire.Explain([]byte(doc))); diff != "" {
		t.Errorf("Explain (-want +got):\n%s", diff)
	}
}

func TestTimestamp(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"1719000000000":     "2024-06-21T20:00:00Z",
		"1719000000000.125": "2024-06-21T20:00:00.000125Z",
		"0":                 "1970-01-01T00:00:00Z",
		"-0.5":              "1969-12-31T23:59:59.9995Z",
		"-1e3":              "1969-12-31T23:59:59Z",
	} {
		r, err := parse(with(t, "1719000000000", number))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.TranscriptWindow[0].Timestamp.Time().Format(time.RFC3339Nano); got != want {
			t.Errorf("%s is %s, want %s", number, got, want)
		}
	}
	if got := (wire.Timestamp{}).Time(); !got.IsZero() {
		t.Errorf("no timestamp is %v", got)
	}
	now := time.Now()
	if got := wire.TimestampAt(now).Time(); !got.Equal(now.Truncate(time.Millisecond)) {
		t.Errorf("%v became %v", now, got)
	}
	if !wire.TimestampAt(time.Time{}).IsZero() {
		t.Error("the zero time became a timestamp")
	}
	for _, huge := range []float64{math.Inf(1), math.Inf(-1), 1e300, -1e300} {
		if year := wire.TimestampOf(huge).Time().Year(); year > -280_000 && year < 280_000 {
			t.Errorf("%v ms is the year %d", huge, year)
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, ms := range []float64{0, -1, 1719000000000, 1719000000000.5, 1 << 53, 1e300, math.MaxFloat64} {
		want := request(3, "text <&> \u2028 \x00 😀")
		want.TranscriptWindow[1].Timestamp = wire.TimestampOf(ms)
		want.TranscriptWindow[2].Timestamp = wire.Timestamp{}
		body, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got, again wire.Request
		if err := wire.Parse(body, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, compareTimestamps); diff != "" {
			t.Errorf("Parse (-want +got):\n%s", diff)
		}
		if err := json.Unmarshal(body, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, again, compareTimestamps); diff != "" {
			t.Errorf("json.Unmarshal (-want +got):\n%s", diff)
		}
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range wire.Kinds() {
		if s := k.String(); s == "unknown" || seen[s] {
			t.Errorf("kind %d is called %q", k, s)
		} else {
			seen[s] = true
		}
	}
	if len(seen) != 3 || wire.Kind(0).String() != "unknown" {
		t.Error("the list of kinds is not complete")
	}
}
