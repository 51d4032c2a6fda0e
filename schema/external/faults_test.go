package external_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// put sets the field at path, names joined by dots with * for the first element, of a document.
func put(t testing.TB, doc string, path string, value string) []byte {
	t.Helper()
	root := parseNode(t, doc)
	n := root
	for _, name := range strings.Split(path, ".") {
		if n.kind == '[' {
			n = n.elements[0]
			continue
		}
		i := slices.IndexFunc(n.members, func(m member) bool { return m.key == name })
		if i < 0 {
			t.Fatalf("no field %s on the way to %s", name, path)
		}
		n = n.members[i].value
	}
	*n = node{scalar: value}
	return []byte(root.text())
}

// text writes a node in the shortest way.
func (n *node) text() string {
	var list []string
	switch n.kind {
	case '{':
		for _, m := range n.members {
			key, err := json.Marshal(m.key)
			if err != nil {
				panic(err)
			}
			list = append(list, string(key)+":"+m.value.text())
		}
		return "{" + strings.Join(list, ",") + "}"
	case '[':
		for _, e := range n.elements {
			list = append(list, e.text())
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	return n.scalar
}

// judge holds a document to a verdict, from the parser and from the schema, and a refusal to the field.
func judge(t *testing.T, kind wire.Document, doc []byte, accept bool, pointer string) {
	t.Helper()
	_, err := parse(kind, doc)
	list := wire.Explain(kind, doc)
	if (err == nil) != accept || (list == nil) != accept {
		t.Errorf("%s: %.300s: %v, %v", kind, doc, err, list)
		return
	}
	if accept {
		all, err := schemas()
		if err != nil {
			t.Fatal(err)
		}
		if list := all[kind].Validate(doc); list != nil {
			t.Errorf("%s: %.300s: %v", kind, doc, list)
		}
		return
	}
	var refusal *wire.Error
	if !errors.As(err, &refusal) || refusal.Violations[0].Pointer != pointer {
		t.Errorf("%s: %.300s: %v, want a violation of %s", kind, doc, err, pointer)
	}
	if !slices.ContainsFunc(list, func(v schema.Violation) bool { return v.Pointer == pointer }) {
		t.Errorf("%s: %.300s: Explain does not name %s", kind, doc, pointer)
	}
}

type lists struct {
	Accepted []string `json:"accepted"`
	Refused  []string `json:"refused with 400"`
}

func caseLists(t *testing.T, name string) lists {
	t.Helper()
	var l lists
	if err := json.Unmarshal(file(t, name), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Accepted) == 0 || len(l.Refused) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return l
}

func jsonText(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// place is a field of a document.
type place struct {
	kind wire.Document
	doc  string
	path string
}

// places finds the fields of the valid documents, elements of lists included, whose value satisfies
// what; each field once for each kind of document.
func places(t *testing.T, what func(kind wire.Document, path, value string) bool) []place {
	t.Helper()
	var found []place
	seen := map[string]bool{}
	for _, kind := range wire.Values[wire.Document]() {
		for _, doc := range validDocuments(t)[kind] {
			var walk func(path string, n *node)
			walk = func(path string, n *node) {
				for _, m := range n.members {
					walk(strings.TrimPrefix(path+"."+m.key, "."), m.value)
				}
				if len(n.elements) > 0 {
					walk(path+".*", n.elements[0])
				}
				if n.kind == 0 && !seen[string(kind)+path] && what(kind, path, n.scalar) {
					seen[string(kind)+path] = true
					found = append(found, place{kind, doc, path})
				}
			}
			walk("", parseNode(t, doc))
		}
	}
	return found
}

func pointerOf(path string) string {
	path = strings.NewReplacer("~", "~0", "/", "~1", "*", "0").Replace(path)
	return "/" + strings.ReplaceAll(path, ".", "/")
}

// Fault A5: the same key twice, keys in another case, a second value.
func TestFaultA5(t *testing.T) {
	t.Parallel()
	for _, kind := range wire.Values[wire.Document]() {
		doc := parseNode(t, validDocuments(t)[kind][0]).text()
		twice := strings.Replace(doc, `{"schema":`, `{"schema":"x","schema":`, 1)
		judge(t, kind, []byte(twice), false, "/schema")
		escaped := strings.Replace(doc, `{"schema":`, `{"sch\u0065ma":"x","schema":`, 1)
		judge(t, kind, []byte(escaped), false, "/schema")
		judge(t, kind, []byte(strings.Replace(doc, `{"schema":`, `{"SCHEMA":"x","schema":`, 1)), false, "/SCHEMA")
		judge(t, kind, []byte(strings.Replace(doc, `"schema":`, `"Schema":`, 1)), false, "/Schema")
		judge(t, kind, []byte(doc+doc), false, "")
		judge(t, kind, []byte(doc+" null"), false, "")
		judge(t, kind, []byte(doc+" \r\n\t"), true, "")
	}
	// At any depth, in the free parts too.
	tool := slices.IndexFunc(validDocuments(t)[wire.EventV1], func(doc string) bool { return strings.Contains(doc, "tool-request") })
	doc := validDocuments(t)[wire.EventV1][tool]
	judge(t, wire.EventV1, put(t, doc, "input", `{"a":[{"b":1,"\u0062":2}]}`), false, "/input/a/0/b")
	judge(t, wire.EventV1, put(t, doc, "input", `{"a":[{"b":1,"B":2}]}`), true, "")
}

// Fault A6: deep nesting is refused while scanning, and quickly.
func TestFaultA6(t *testing.T) { // not parallel: it looks at the clock
	docs := validDocuments(t)
	tool := slices.IndexFunc(docs[wire.EventV1], func(doc string) bool { return strings.Contains(doc, "tool-request") })
	nested := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	// The event and the input are two levels.
	judge(t, wire.EventV1, put(t, docs[wire.EventV1][tool], "input", nested(62)), true, "")
	deep := put(t, docs[wire.EventV1][tool], "input", nested(63))
	if err := wire.Check(wire.EventV1, deep); err == nil || !strings.Contains(err.Error(), "more than 64 deep") {
		t.Errorf("65 levels: %v", err)
	}
	// The label is one level, each derivation two, the last origin one.
	origin := func(n int) string {
		leaf := `{"kind":"local-space","space":"Public"}`
		return strings.Repeat(`{"kind":"derived","parents":[`+leaf+`,`, n) + leaf + strings.Repeat(`]}`, n)
	}
	judge(t, wire.ClassificationV1, put(t, label, "provenance.space", `"Public"`), true, "")
	judge(t, wire.ClassificationV1, []byte(strings.Replace(label, `{"kind":"local-space","space":"Crisis"}`, origin(31), 1)), true, "")
	deep = []byte(strings.Replace(label, `{"kind":"local-space","space":"Crisis"}`, origin(32), 1))
	if err := wire.Check(wire.ClassificationV1, deep); err == nil || !strings.Contains(err.Error(), "more than 64 deep") {
		t.Errorf("66 levels: %v", err)
	}
	for _, n := range []int{100_000, 4_000_000} {
		for _, open := range []string{"[", `{"schema":`, `{"provenance":{"kind":"derived","parents":[`} {
			doc := []byte(strings.Repeat(open, n/len(open)))
			for _, kind := range []wire.Document{wire.TurnRequestV1, wire.ProfileV1, wire.BindingV1, wire.ClassificationV1} {
				took := time.Hour
				for range 3 { // the machine may be busy
					start := time.Now()
					if err := wire.Check(kind, doc); err == nil {
						t.Errorf("%d × %s is accepted", n, open)
					}
					took = min(took, time.Since(start))
				}
				if took > 100*time.Millisecond && !raceEnabled {
					t.Errorf("%d bytes of %s took %v", len(doc), open, took)
				}
				if list := wire.Explain(kind, doc); len(list) != 1 {
					t.Errorf("%d × %s: %v", n, open, list)
				}
			}
		}
	}
}

// Fault A7: numbers keep their bytes where they are passed on, and their range is checked where they
// are read.
func TestFaultA7(t *testing.T) {
	t.Parallel()
	docs := validDocuments(t)
	for i, path := range map[int]string{4: "input", 5: "question"} {
		input := `{"a":9007199254740993,"b":123456789012345678901234567890,"c":[1.10,1E+2],"d":-1e-400}`
		doc := docs[wire.EventV1][i-1]
		if !strings.Contains(doc, `"`+path+`":{`) {
			t.Fatalf("no %s in %s", path, doc)
		}
		body := put(t, doc, path, input)
		judge(t, wire.EventV1, body, true, "")
		e, err := wire.ParseEvent(body)
		if err != nil {
			t.Fatal(err)
		}
		if kept := string(e.Input) + string(e.Question); kept != input {
			t.Errorf("the %s %s is kept as %s", path, input, kept)
		}
		if line := string(e.Append(nil)); !strings.Contains(line, input) {
			t.Errorf("the %s %s is written as %s", path, input, line)
		}
		judge(t, wire.EventV1, put(t, doc, path, `{"a":[0,1e309]}`), false, "/"+path+"/a/1")
		judge(t, wire.EventV1, put(t, doc, path, `{"a":{"b":"\udc00"}}`), false, "/"+path+"/a/b")
	}
	isInteger := func(_ wire.Document, path, value string) bool {
		return strings.IndexAny(value[:1], "0123456789") == 0 && !strings.HasPrefix(path, "input.")
	}
	integers := places(t, isInteger)
	if len(integers) < 30 {
		t.Errorf("%d integers only", len(integers))
	}
	for _, p := range integers {
		for _, value := range []string{"1", "1.0", "1e0", "10E-1"} {
			judge(t, p.kind, put(t, p.doc, p.path, value), true, "")
		}
		for _, value := range []string{"9007199254740992", "9007199254740993", "-9007199254740992", "1e300", "1e999", "1.5", `"1"`, "-1", "null"} {
			judge(t, p.kind, put(t, p.doc, p.path, value), false, pointerOf(p.path))
		}
	}
}

// An escaped surrogate without its other half is refused wherever it stands.
func TestLoneSurrogates(t *testing.T) {
	t.Parallel()
	texts := places(t, func(_ wire.Document, _, value string) bool { return value[0] == '"' })
	if len(texts) < 100 {
		t.Errorf("%d texts only", len(texts))
	}
	for _, p := range texts {
		for _, value := range []string{`"\ud83d"`, `"a\ude00\ud83db"`, `"\ud83d\u0041"`} {
			judge(t, p.kind, put(t, p.doc, p.path, value), false, pointerOf(p.path))
		}
	}
	doc := validDocuments(t)[wire.TurnRequestV1][0]
	judge(t, wire.TurnRequestV1, put(t, doc, "input/parts.*.text", `"\ud83d\ude00\\ud83d \ud83d\uDE00"`), true, "")
	r, err := wire.ParseTurnRequest(put(t, doc, "input/parts.*.text", `"\ud83d\ude00\\ud83d\u00e9"`))
	if err != nil || r.InputParts[0].Text != "😀\\ud83dé" {
		t.Errorf("the text is %q, %v", r.InputParts[0].Text, err)
	}
}

// Fault J1: date-times are checked, as RFC 3339 has them.
func TestFaultJ1(t *testing.T) {
	t.Parallel()
	cases := caseLists(t, "date-times.json")
	cases.Accepted = append(cases.Accepted, "2016-12-31T23:59:60Z", "2017-01-01T05:29:60.5+05:30")
	cases.Refused = append(cases.Refused, "2016-12-31T23:58:60Z", "2016-12-31T23:59:60+01:00", "2030-09-01T+1:05:00Z")
	dates := places(t, func(_ wire.Document, path, value string) bool {
		return strings.HasSuffix(path, "/at") || strings.HasSuffix(path, "_at") || path == "at"
	})
	if len(dates) != 13 {
		t.Errorf("%d dates only", len(dates))
	}
	for _, p := range dates {
		for _, v := range cases.Accepted {
			judge(t, p.kind, put(t, p.doc, p.path, jsonText(t, v)), true, "")
		}
		for _, v := range cases.Refused {
			judge(t, p.kind, put(t, p.doc, p.path, jsonText(t, v)), false, pointerOf(p.path))
		}
	}
}

// Fault J2: patterns mean what ECMAScript says. Fault J3: lengths count code points.
func TestFaultsJ2J3(t *testing.T) {
	t.Parallel()
	cases := caseLists(t, "refs.json")
	// All refs are told by what the schema says of them: no white space.
	var refs []place
	for _, p := range places(t, func(_ wire.Document, _, value string) bool { return value[0] == '"' }) {
		var refusal *wire.Error
		_, err := parse(p.kind, put(t, p.doc, p.path, `"a b"`))
		if errors.As(err, &refusal) && strings.Contains(refusal.Violations[0].Expected, "512") {
			refs = append(refs, p)
		}
	}
	perKind := map[wire.Document]int{}
	for _, p := range refs {
		perKind[p.kind]++
		for _, v := range cases.Accepted {
			judge(t, p.kind, put(t, p.doc, p.path, jsonText(t, v)), true, "")
		}
		for _, v := range cases.Refused {
			judge(t, p.kind, put(t, p.doc, p.path, jsonText(t, v)), false, pointerOf(p.path))
		}
	}
	want := map[wire.Document]int{ // as many as the contract has
		wire.TurnRequestV1: 13, wire.EventV1: 8, wire.TurnOutcomeV1: 7, wire.ProfileV1: 5, wire.BindingV1: 8, wire.ProductV1: 10,
	}
	if diff := cmp.Diff(want, perKind); diff != "" {
		t.Errorf("how many refs were found (-want +got):\n%s", diff)
	}
	doc := validDocuments(t)[wire.TurnRequestV1][0]
	for _, c := range []string{"x", "é", "😀", `\ud83d\ude00`, `\n`} {
		judge(t, wire.TurnRequestV1, put(t, doc, "input/parts.*.text", `"`+strings.Repeat(c, 65536)+`"`), true, "")
		judge(t, wire.TurnRequestV1, put(t, doc, "input/parts.*.text", `"`+strings.Repeat(c, 65537)+`"`), false, "/input~1parts/0/text")
	}
}

// Each digest is held to its form.
func TestDigests(t *testing.T) {
	t.Parallel()
	digests := places(t, func(_ wire.Document, path, _ string) bool {
		return strings.HasSuffix(path, "digest") || strings.HasSuffix(path, "/hash")
	})
	if len(digests) < 10 {
		t.Errorf("%d digests only", len(digests))
	}
	for _, p := range digests {
		judge(t, p.kind, put(t, p.doc, p.path, `"sha256:AZaz09-_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"`), true, "")
		for _, v := range []string{digestD + "D", digestD[:49], digestD[:49] + "+", digestD[:49] + "é", digestD + "\n", "SHA256:" + digestD[7:], "sha512:" + digestD[7:], ""} {
			judge(t, p.kind, put(t, p.doc, p.path, jsonText(t, v)), false, pointerOf(p.path))
		}
	}
}

// Each code is held to its values: what is right for another is not for it.
func TestCodes(t *testing.T) {
	t.Parallel()
	if n := len(wire.Values[wire.ReasonCode]()); n != 28 {
		t.Errorf("%d reason codes, want 28", n)
	}
	codes := places(t, func(_ wire.Document, path, _ string) bool {
		name := path[strings.LastIndexByte(path, '.')+1:]
		return slices.Contains([]string{"mode", "kind", "visibility", "disposition", "status", "reason/code", "retryability", "role", "reason", "space",
			"surface", "to", "from", "source_tier", "effective_tier"}, name) || strings.HasSuffix(name, "/class") || strings.HasSuffix(name, "/ceiling") && !strings.Contains(path, "budget")
	})
	if len(codes) < 30 {
		t.Errorf("%d codes only", len(codes))
	}
	for _, p := range codes {
		if strings.HasSuffix(p.path, "declassify_trail.*.mode") {
			continue
		}
		for _, v := range []string{`"x"`, `""`, `null`, `1`, `"COMPLETED"`, `["start"]`} {
			judge(t, p.kind, put(t, p.doc, p.path, v), false, pointerOf(p.path))
		}
	}
	for _, c := range wire.Values[wire.ReasonCode]() {
		text, err := c.MarshalText()
		var back wire.ReasonCode
		if err != nil || string(text) != c.String() || back.UnmarshalText(text) != nil || back != c {
			t.Errorf("%s: %s, %v, %s", c, text, err, back)
		}
		body := put(t, validDocuments(t)[wire.TurnRequestV1][1], "observation.reason/code", fmt.Sprintf("%q", c))
		judge(t, wire.TurnRequestV1, body, true, "")
	}
	back := wire.ReasonUnknown
	if err := back.UnmarshalText([]byte("Unknown")); err == nil || back != wire.ReasonUnknown {
		t.Errorf("UnmarshalText = %v, and the code is %s", err, back)
	}
	if text, err := wire.ReasonCode("x").MarshalText(); err == nil {
		t.Errorf("MarshalText = %s", text)
	}
}
