package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema"
)

func parse(t *testing.T, doc string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return m
}

func testdata(t *testing.T, name string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

func TestParseKeepsEveryByte(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		testdata(t, "full.json"), testdata(t, "case-variant.json"), testdata(t, "big-numbers.json"),
		"{}", " \t\r\n{ \n } \n\n", strings.ReplaceAll(testdata(t, "full.json"), "\n", "\r\n"),
	} {
		if got := string(parse(t, doc).Bytes()); got != doc {
			t.Errorf("Bytes differs (-want +got):\n%s", cmp.Diff(doc, got))
		}
	}
}

func TestParseCopies(t *testing.T) {
	t.Parallel()
	doc := []byte(`{"id":"muse"}`)
	m, err := manifest.Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	doc[7] = 'X'
	m.Bytes()[7] = 'X'
	if raw, ok := m.Raw("/id"); ok {
		raw[1] = 'X'
	}
	if got := string(m.Bytes()); got != `{"id":"muse"}` || m.ID() != "muse" {
		t.Errorf("the manifest changed with its caller's bytes: %s", got)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, doc    string
		line, column int
		pointer      string
		message      string
	}{
		{"empty", "", 1, 1, "", "empty"},
		{"byte order mark", "\ufeff{}", 1, 1, "", "byte order mark"},
		{"invalid UTF-8", "{\n \"id\": \"m\xffse\"}", 2, 10, "/id", "0xFF"},
		{"duplicate key deep inside", "{\"x\":[{\"é\":1,\n  \"é\":2}]}", 2, 3, "/x/0/é", "duplicate key"},
		{"second value", "{} {}", 1, 4, "", "after the value"},
		{"trailing comma", "{\"id\":\"muse\",}", 1, 14, "", "key in double quotes"},
		{"a comment", "{ // no\n}", 1, 3, "", "key in double quotes"},
	} {
		_, err := manifest.Parse([]byte(test.doc))
		syntax, ok := errors.AsType[*schema.SyntaxError](err)
		if !ok {
			t.Errorf("%s: Parse = %v, want a *schema.SyntaxError", test.name, err)
			continue
		}
		if syntax.Line != test.line || syntax.Column != test.column || syntax.Pointer != test.pointer || !strings.Contains(syntax.Message, test.message) {
			t.Errorf("%s: %+v, want line %d, column %d, pointer %q and %q", test.name, *syntax, test.line, test.column, test.pointer, test.message)
		}
	}
	for doc, found := range map[string]string{"[]": "an array", "\n null": "null", `"muse"`: `"muse"`, "12": "12"} {
		_, err := manifest.Parse([]byte(doc))
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || len(e.Violations) != 1 || e.Violations[0].Found != found || e.Violations[0].Pointer != "" {
			t.Errorf("Parse(%s) = %v, want an *Error that finds %s", doc, err, found)
		}
	}
}

func TestAccessors(t *testing.T) {
	t.Parallel()
	m := parse(t, testdata(t, "full.json"))
	if err := m.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	if m.ID() != "muse" {
		t.Errorf("ID = %q", m.ID())
	}
	want := []manifest.Agent{{Pointer: "/agent", Runtime: "external:muse", Endpoint: "http://127.0.0.1:8787/lowkey/turn"}}
	if diff := cmp.Diff(want, m.Agents()); diff != "" {
		t.Errorf("Agents (-want +got):\n%s", diff)
	}
	for pointer, want := range map[string]string{
		"/orderId":              "9007199254740993",
		"/big":                  "123456789012345678901234567890",
		"/rate":                 "1.10",
		"/exp":                  "[ 1E+2,1e2 ,  -0.0 ]",
		"/exp/1":                "1e2",
		"/exp/2":                "-0.0",
		"/capabilities/net":     `[ "a",   "b" ]`,
		"/capabilities/empty":   "{ }",
		"/capabilities/none":    "[]",
		"/name":                 `"Muse \u00e9\/"`,
		"/agent/icon":           `"\ud83d"`,
		"/agent/limits/tokens":  "1E+2",
		"/PLUGINID":             `"other"`,
		"/":                     "null",
		"/$schema":              `"https://example.test/plugin.schema.json"`,
		"/exp/3":                "",
		"/exp/-":                "",
		"/exp/01":               "",
		"/exp/+1":               "",
		"/pluginid":             "",
		"/agent/limits/tokens/": "",
		"/agent/x/y":            "",
		"agent":                 "",
	} {
		got, ok := m.Raw(pointer)
		if string(got) != want || ok != (want != "") {
			t.Errorf("Raw(%q) = %s, %t, want %s", pointer, got, ok, want)
		}
	}
	if whole, ok := m.Raw(""); !ok || string(whole) != strings.TrimSpace(testdata(t, "full.json")) {
		t.Errorf("Raw(\"\") = %s, %t", whole, ok)
	}
	escaped := parse(t, `{"a/b":{"m~n":1},"":{"":2}}`)
	for pointer, want := range map[string]string{"/a~1b/m~0n": "1", "//": "2"} {
		if got, _ := escaped.Raw(pointer); string(got) != want {
			t.Errorf("Raw(%q) = %s, want %s", pointer, got, want)
		}
	}
}

func TestAgentsInAnArray(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"agents":[
  {"id":"one","runtime":"external:muse","endpoint":"https://a.example/1"},
  {"id":2,"runtime":"external:muse","endpoint":"https://a.example/2"}
],"agent":{"runtime":"external:muse","endpoint":"https://a.example"},"id":"muse"}`)
	if err := m.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	want := []manifest.Agent{
		{Pointer: "/agent", Runtime: "external:muse", Endpoint: "https://a.example"},
		{Pointer: "/agents/0", ID: "one", Runtime: "external:muse", Endpoint: "https://a.example/1"},
		{Pointer: "/agents/1", Runtime: "external:muse", Endpoint: "https://a.example/2"},
	}
	if diff := cmp.Diff(want, m.Agents()); diff != "" {
		t.Errorf("Agents (-want +got):\n%s", diff)
	}
	if err := m.SetEndpoint("https://b.example"); err == nil || !strings.Contains(err.Error(), "3 agent blocks") {
		t.Errorf("SetEndpoint with three blocks: %v", err)
	}
	if err := m.Set("/agents/1/endpoint", "https://b.example"); err != nil {
		t.Fatal(err)
	}
	if got := m.Agents()[2].Endpoint; got != "https://b.example" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestCheckListsAllViolations(t *testing.T) {
	t.Parallel()
	const block = "an agent block, an object with runtime and endpoint"
	const url = "an absolute http or https URL"
	for _, test := range []struct {
		name, doc string
		want      []string
	}{
		{"nothing", "{}", []string{
			"/id is missing, expected the plugin id, a non-empty string (line 1, column 1)",
			"/agent is missing, expected the agent block, an object with runtime and endpoint (line 1, column 1)",
		}},
		{"types", "{\n \"id\": 7,\n \"é\": 0, \"agent\": [],\n \"agents\": {}\n}", []string{
			"/id is 7, expected the plugin id, a non-empty string (line 2, column 8)",
			"/agent is an array, expected " + block + " (line 3, column 19)",
			"/agents is an object, expected an array of agent blocks (line 4, column 12)",
		}},
		{"empty array", `{"id":"muse","agents":[]}`, []string{
			"/agents is an empty array, expected at least one agent block (line 1, column 23)",
		}},
		{"elements", `{"id":"muse","agents":[null, {"runtime":null,"endpoint":1}, {}]}`, []string{
			"/agents/0 is null, expected " + block + " (line 1, column 24)",
			`/agents/1/runtime is null, expected "external:" and the manifest's own id, "muse" (line 1, column 41)`,
			"/agents/1/endpoint is 1, expected " + url + " (line 1, column 57)",
			`/agents/2/runtime is missing, expected "external:" and the manifest's own id, "muse" (line 1, column 61)`,
			"/agents/2/endpoint is missing, expected " + url + " (line 1, column 61)",
		}},
		{"order of the document", `{"agent":{"endpoint":"/turn","runtime":"external:Muse"},"id":"muse"}`, []string{
			`/agent/endpoint is "/turn", expected ` + url + " (line 1, column 22)",
			`/agent/runtime is "external:Muse", expected "external:" and the manifest's own id, "muse" (line 1, column 40)`,
		}},
		{"runtime without an id to name", `{"agent":{"runtime":"external:","endpoint":"http://h"}}`, []string{
			"/id is missing, expected the plugin id, a non-empty string (line 1, column 1)",
			`/agent/runtime is "external:", expected "external:" and the plugin id (line 1, column 21)`,
		}},
		{"empty id", `{"id":"","agent":{"runtime":"external:x","endpoint":"http://h"}}`, []string{
			`/id is "", expected the plugin id, a non-empty string (line 1, column 7)`,
		}},
		{"one agent and an empty array", `{"id":"a b","agents":[],"agent":{"runtime":"external:a b","endpoint":"http://h"}}`, nil},
		{"names that are only alike", `{"Id":"x","id":"m","Agents":1,"agent":{"runtime":"external:m","endpoint":"http://h","id":[]}}`, nil},
	} {
		err := parse(t, test.doc).Check()
		if len(test.want) == 0 {
			if err != nil {
				t.Errorf("%s: Check = %v, want nil", test.name, err)
			}
			continue
		}
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok {
			t.Errorf("%s: Check = %v, want an *Error", test.name, err)
			continue
		}
		var got []string
		for _, v := range e.Violations {
			got = append(got, v.String())
			before := test.doc[:v.Offset]
			if line := 1 + strings.Count(before, "\n"); line != v.Line {
				t.Errorf("%s: %s: offset %d is in line %d", test.name, v, v.Offset, line)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: violations (-want +got):\n%s", test.name, diff)
		}
		if !strings.HasPrefix(err.Error(), "the manifest is not valid: "+test.want[0]) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: Error() = %q, want one line that begins with the first violation", test.name, err)
		}
	}
}

func TestCheckEndpoint(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"http://127.0.0.1:8787/lowkey/turn", "https://muse.example", "https://muse.example/", "HTTPS://Muse.Example/x",
		"http://[::1]:8787/", "http://localhost/a/../b", "https://h/@muse", "https://h/x?token=1&a=%20", "http://h:1",
		"http://h:65535/", "https://müse.example/turn", "http://h//turn/",
	} {
		if err := parse(t, `{"id":"muse","agent":{"runtime":"external:muse","endpoint":"`+good+`"}}`).Check(); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                         `is "", expected an absolute http or https URL`,
		"/lowkey/turn":             `is "/lowkey/turn", expected an absolute http or https URL`,
		"muse.example/turn":        "expected an absolute http or https URL",
		"//muse.example/turn":      "expected an absolute http or https URL",
		"localhost:8787":           "expected an absolute http or https URL",
		"ftp://muse.example/":      "expected an absolute http or https URL",
		"file:///etc/hosts":        "expected an absolute http or https URL",
		"https:muse.example":       "with a host",
		"http:/muse.example":       "with a host",
		"http://":                  "with a host",
		"http:///turn":             "with a host",
		"http://:8787/turn":        "with a host",
		"http://h#":                "without a fragment",
		"http://h/#top":            "without a fragment",
		"http://u@h/":              "is a URL with user info, expected an absolute http or https URL without user info",
		"http://@h/":               "without user info",
		"http://h:/":               "with a port from 1 to 65535",
		"http://h:0/":              "with a port from 1 to 65535",
		"http://h:65536/":          "with a port from 1 to 65535",
		"http://h:port/":           "expected an absolute http or https URL",
		"http://h/%zz":             "expected an absolute http or https URL",
		"http://h/a b":             "without white space",
		" http://h/":               "without white space",
		`http://h/\n`:              "without white space",
		`http://h\\\\evil.example`: "without white space",
		`http://h/\ud800`:          "without white space",
		"http://[::1/":             "expected an absolute http or https URL",
	} {
		err := parse(t, `{"id":"muse","agent":{"runtime":"external:muse","endpoint":"`+bad+`"}}`).Check()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", bad, err, want)
		}
	}
}

// No message may show what a URL often hides: a password, or a token in the query.
func TestErrorsShowNoSecrets(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{
		"https://user:hunter2@muse.example/turn",
		"user:hunter2@muse.example",
		"http://user:hunter2@muse.example:99999/",
		"http://user:hunter2@muse.example/ x",
		"ftp://muse.example/?token=hunter2",
		"https://muse.example/?token=hunter2#top",
		"http://muse.example:hunter2@/%zz",
	} {
		m := parse(t, `{"id":"muse","agent":{"runtime":"external:muse","endpoint":"http://h/"}}`)
		err := m.SetEndpoint(endpoint)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("SetEndpoint(%s) = %v", endpoint, err)
		}
		if err := m.Set("/agent/endpoint", endpoint); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Check with %s = %v", endpoint, err)
		}
	}
}

// However long what is wrong is, a message stays short.
func TestErrorsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	m := parse(t, `{"id":"`+long+`","agent":{"runtime":"`+long+`","endpoint":"`+long+`"}}`)
	e, ok := errors.AsType[*manifest.Error](m.Check())
	if !ok || len(e.Violations) != 2 {
		t.Fatalf("Check = %v, want two violations", e)
	}
	for _, v := range e.Violations {
		if n := strings.Count(v.String(), "x"); n > 210 {
			t.Errorf("a message holds %d characters of the document: %s", n, v)
		}
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	type block struct {
		Runtime string   `json:"runtime"`
		List    []string `json:"list"`
		Empty   struct{} `json:"empty"`
	}
	value := block{Runtime: "external:<muse>", List: []string{"a", "b"}}
	for _, test := range []struct {
		name, doc, pointer string
		value              any
		want               string
	}{
		{"replace a string", `{ "id" : "muse" , "x":1E+2 }`, "/id", "new<&>", `{ "id" : "new<&>" , "x":1E+2 }`},
		{"replace by another kind", `{"a":[1 , {"b" :2}],"c":3}`, "/a/1/b", true, `{"a":[1 , {"b" :true}],"c":3}`},
		{"replace an element", `{"a":[1 , 2 ,3]}`, "/a/1", "x", `{"a":[1 , "x" ,3]}`},
		{"replace by a block", "{\n  \"a\": 1,\n  \"b\": 2\n}\n", "/a", value,
			"{\n  \"a\": {\n    \"runtime\": \"external:<muse>\",\n    \"list\": [\n      \"a\",\n      \"b\"\n    ],\n    \"empty\": {}\n  },\n  \"b\": 2\n}\n"},
		{"add to two members", "{\n  \"a\" : 1,\n  \"b\" : 2\n}\n", "/c", 3, "{\n  \"a\" : 1,\n  \"b\" : 2,\n  \"c\" : 3\n}\n"},
		{"add to one member", "{\n\t\"a\": 1\n}", "/b", "x", "{\n\t\"a\": 1,\n\t\"b\": \"x\"\n}"},
		{"add with a comma in front", "{ \"a\": 1\n, \"b\": 2\n}", "/c", 3, "{ \"a\": 1\n, \"b\": 2\n, \"c\": 3\n}"},
		{"add on one line, tight", `{"a":1,"b":{"c":2}}`, "/d", map[string]int{"y": 1, "x": 2}, `{"a":1,"b":{"c":2},"d":{"x":2,"y":1}}`},
		{"add on one line, spaced", `{"a": 1}`, "/b", value, `{"a": 1, "b": {"runtime": "external:<muse>", "list": ["a", "b"], "empty": {}}}`},
		{"add on one line, with room", `{ "a": 1 }`, "/b", 2, `{ "a": 1, "b": 2 }`},
		{"add to an object on one line of many", "{\n  \"a\": {\"b\": 1},\n  \"z\": 0\n}", "/a/c", []int{1}, "{\n  \"a\": {\"b\": 1, \"c\": [1]},\n  \"z\": 0\n}"},
		{"add deep inside", "{\n    \"a\": {\n        \"b\": 1\n    }\n}", "/a/c", []int{1}, "{\n    \"a\": {\n        \"b\": 1,\n        \"c\": [\n            1\n        ]\n    }\n}"},
		{"add to an empty object of many lines", "{\n  \"a\": {}\n}", "/a/b", []int{}, "{\n  \"a\": {\n    \"b\": []\n  }\n}"},
		{"add to a spaced empty object", "{\n  \"a\": {  }\n}", "/a/b", 1, "{\n  \"a\": {\n    \"b\": 1\n  }\n}"},
		{"add to an empty document", "{}", "/a", 1, `{"a":1}`},
		{"add to an empty document of two lines", "{\n}\n", "/a", 1, "{\n  \"a\": 1\n}\n"},
		{"Windows line ends", "{\r\n  \"a\": 1\r\n}\r\n", "/b", []int{1, 2}, "{\r\n  \"a\": 1,\r\n  \"b\": [\r\n    1,\r\n    2\r\n  ]\r\n}\r\n"},
		{"a name to be escaped", `{"a":1}`, "/b~1c~0\"", 1, `{"a":1,"b/c~\"":1}`},
		{"the empty name", `{"a":1}`, "/", 1, `{"a":1,"":1}`},
		{"a raw value keeps its spelling", "{\n  \"a\": 0\n}", "/a", json.RawMessage(" [1E+2,\n 1.10 ] "), "{\n  \"a\": [1E+2,\n 1.10 ]\n}"},
		{"a raw value is added as it is", "{\n  \"a\": 0\n}", "/b", json.RawMessage(`{"x":1E+2}`), "{\n  \"a\": 0,\n  \"b\": {\"x\":1E+2}\n}"},
		{"numbers keep their spelling", "{\n  \"a\": 0\n}", "/b", []json.Number{"1E+2", "123456789012345678901234567890"}, "{\n  \"a\": 0,\n  \"b\": [\n    1E+2,\n    123456789012345678901234567890\n  ]\n}"},
		{"an unknown spelling is no match", `{"ID":1}`, "/id", "muse", `{"ID":1,"id":"muse"}`},
	} {
		m := parse(t, test.doc)
		if err := m.Set(test.pointer, test.value); err != nil {
			t.Errorf("%s: Set: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, string(m.Bytes())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		got, ok := m.Raw(test.pointer)
		want, err := json.Marshal(test.value)
		if err != nil || !ok || !sameJSON(t, got, want) {
			t.Errorf("%s: the value set is read as %s, want %s", test.name, got, want)
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return cmp.Equal(x, y)
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	deep := json.RawMessage(strings.Repeat("[", 63) + strings.Repeat("]", 63))
	const doc = `{"id":"muse","list":[1],"a":{"b":2},"s":"x"}`
	for _, test := range []struct {
		pointer string
		value   any
		want    string
	}{
		{"", 1, "whole document"},
		{"id", 1, "does not begin with a slash"},
		{"/list/1", 1, "not an object"},
		{"/list/-", 1, "not an object"},
		{"/s/x", 1, "not an object"},
		{"/no/x", 1, "no object or array"},
		{"/a", func() {}, "unsupported type"},
		{"/a", json.RawMessage("1, \"x\": 2"), "nothing may follow"},
		{"/a", json.RawMessage(""), "empty"},
		{"/a", json.RawMessage(`{"x":1,"x":2}`), "duplicate key"},
		{"/a", json.RawMessage("\"\xff\""), "UTF-8"},
		{"/a/b", deep, "more than 64 deep"},
		{"/a/c", deep, "more than 64 deep"},
		{"/a\xff", 1, "UTF-8"},
	} {
		m := parse(t, doc)
		err := m.Set(test.pointer, test.value)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Set(%q, %v) = %v, want an error with %q", test.pointer, test.value, err, test.want)
		}
		if got := string(m.Bytes()); got != doc {
			t.Errorf("Set(%q, %v) failed and changed the document to %s", test.pointer, test.value, got)
		}
	}
}

// Setting a value leaves every other byte of a document with odd spacing, numbers and fields alone.
func TestSetEndpointChangesNothingElse(t *testing.T) {
	t.Parallel()
	doc := testdata(t, "full.json")
	m := parse(t, doc)
	const old, endpoint = "http://127.0.0.1:8787/lowkey/turn", "https://muse.example/turn?a=1&b=2"
	if err := m.SetEndpoint(endpoint); err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(doc, old, endpoint, 1); string(m.Bytes()) != want {
		t.Errorf("SetEndpoint (-want +got):\n%s", cmp.Diff(want, string(m.Bytes())))
	}
	if err := m.SetEndpoint(old); err != nil {
		t.Fatal(err)
	}
	if string(m.Bytes()) != doc {
		t.Errorf("back again (-want +got):\n%s", cmp.Diff(doc, string(m.Bytes())))
	}
}

func TestSetEndpointMends(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ doc, want string }{
		{"{\n  \"id\": \"muse\"\n}\n", "{\n  \"id\": \"muse\",\n  \"agent\": {\n    \"runtime\": \"external:muse\",\n    \"endpoint\": \"http://h/\"\n  }\n}\n"},
		{`{"id":"muse","agents":[]}`, `{"id":"muse","agents":[],"agent":{"runtime":"external:muse","endpoint":"http://h/"}}`},
		{`{"id":"muse","agent":{"runtime":"external:muse"}}`, `{"id":"muse","agent":{"runtime":"external:muse","endpoint":"http://h/"}}`},
		{`{"id":"muse","agents":[{"endpoint":7,"runtime":"external:muse"}]}`, `{"id":"muse","agents":[{"endpoint":"http://h/","runtime":"external:muse"}]}`},
	} {
		m := parse(t, test.doc)
		if err := m.SetEndpoint("http://h/"); err != nil {
			t.Errorf("%s: %v", test.doc, err)
			continue
		}
		if diff := cmp.Diff(test.want, string(m.Bytes())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.doc, diff)
		}
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", test.doc, err)
		}
	}
	if err := parse(t, `{"id":"muse","agent":"x"}`).SetEndpoint("http://h/"); err == nil {
		t.Error("SetEndpoint put an endpoint into a string")
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	m, err := manifest.New("my \"muse\" <3", "https://muse.example/turn")
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"id\": \"my \\\"muse\\\" <3\",\n  \"agent\": {\n    \"runtime\": \"external:my \\\"muse\\\" <3\",\n    \"endpoint\": \"https://muse.example/turn\"\n  }\n}\n"
	if diff := cmp.Diff(want, string(m.Bytes())); diff != "" {
		t.Errorf("New (-want +got):\n%s", diff)
	}
	if err := m.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	for _, test := range []struct{ id, endpoint, pointer string }{
		{"", "http://h/", "/id"},
		{"m\xff", "http://h/", "/id"},
		{"muse", "h/turn", "/agent/endpoint"},
	} {
		_, err := manifest.New(test.id, test.endpoint)
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || len(e.Violations) != 1 || e.Violations[0].Pointer != test.pointer || e.Violations[0].Line != 0 {
			t.Errorf("New(%q, %q) = %v, want an *Error about %s without a place", test.id, test.endpoint, err, test.pointer)
		}
	}
}

func TestErrorOfNothing(t *testing.T) {
	t.Parallel()
	if got := new(manifest.Error).Error(); got != "the manifest is not valid" {
		t.Errorf("Error() = %q", got)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	m, err := manifest.Load(filepath.Join("testdata", "full.json"))
	if err != nil || m.ID() != "muse" {
		t.Fatalf("Load = %v, %v", m, err)
	}
	dir := t.TempDir()
	if _, err := manifest.Load(filepath.Join(dir, "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of no file: %v", err)
	}
	for name, doc := range map[string]string{"syntax.json": "{", "check.json": "{}"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := manifest.Load(path)
		_, syntax := errors.AsType[*schema.SyntaxError](err)
		_, invalid := errors.AsType[*manifest.Error](err)
		if m != nil || syntax == invalid || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("Load(%s) = %v, %v", name, m, err)
		}
	}
}

func TestManyViolationsAreQuick(t *testing.T) {
	t.Parallel()
	// Every element is wrong twice, all on one line: finding the places must not read it again each time.
	doc := []byte(`{"id":"muse","agents":[` + strings.Repeat("{},", 50_000) + `{}]}`)
	m, err := manifest.Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := errors.AsType[*manifest.Error](m.Check())
	if !ok || len(e.Violations) != 100_002 {
		t.Fatalf("Check lists %d violations", len(e.Violations))
	}
	last := e.Violations[len(e.Violations)-1]
	if want := bytes.LastIndex(doc, []byte("{}")) + 1; last.Column != want || last.Line != 1 {
		t.Errorf("the last violation is at line %d, column %d, want 1, %d", last.Line, last.Column, want)
	}
}
