package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/schema/external"
)

// TestValidateFixtures: each document of the contract gets the verdict of its folder, and is taken for
// what it is.
func TestValidateFixtures(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{
		"binding": "external-binding", "event-product-candidate": "external-events", "product": "external-product",
		"profile": "external-profile", "turn-outcome": "external-outcome", "turn-request": "external-request",
	}
	n := 0
	for _, verdict := range []string{"valid", "invalid"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "schema", "external", "testdata", verdict, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			doc, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := kinds[strings.TrimSuffix(filepath.Base(file), ".json")]
			if strings.HasSuffix(file, "classification.json") {
				want = "classification"
			}
			for _, args := range [][]string{nil, {"--schema", want}} {
				if v, _ := judge(t, bytes.NewReader(doc), args...); v.Valid != (verdict == "valid") || v.Schema != want {
					t.Errorf("%s %q: %+v, want a %s %s", file, args, v, verdict, want)
				}
			}
			n++
		}
	}
	if n < 14 {
		t.Errorf("only %d fixtures were found", n)
	}
}

// object is v as a JSON object whose fields a test changes.
func object(t *testing.T, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestValidateExternalDocuments: what is wrong, and where.
func TestValidateExternalDocuments(t *testing.T) {
	t.Parallel()
	profile := testhost.NewProfile("profile:1")
	binding := testhost.NewBinding("binding:1", "agent:muse", profile)
	request := (&testhost.External{Binding: binding}).Request("hello")
	product, err := os.ReadFile(filepath.Join("..", "..", "schema", "external", "testdata", "valid", "product.json"))
	if err != nil {
		t.Fatal(err)
	}
	var made map[string]any
	if err := json.Unmarshal(product, &made); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		doc    map[string]any
		change func(o map[string]any)
		kind   string
		want   []string // "pointer: found"; one each
	}{
		{"profile", object(t, profile), func(map[string]any) {}, "external-profile", nil},
		{"binding", object(t, binding), func(map[string]any) {}, "external-binding", nil},
		{"request", object(t, request), func(map[string]any) {}, "external-request", nil},
		{"binding's digest", object(t, binding), func(o map[string]any) { o["max/passages"] = 3 }, "external-binding",
			[]string{fmt.Sprintf("/binding~1digest: %q", binding.BindingDigest)}},
		{"input's digest", object(t, request), func(o map[string]any) { o["input/parts"] = []any{map[string]any{"kind": "text", "text": "other"}} }, "external-request",
			[]string{fmt.Sprintf("/input~1digest: %q", request.InputDigest)}},
		{"product's digest", made, func(o map[string]any) { o["turn/ref"] = "turn:other" }, "external-product",
			[]string{fmt.Sprintf("/product~1digest: %q", made["product/digest"])}},
		{"several", object(t, profile), func(o map[string]any) {
			o["tool/mode"], o["profile/generation"] = "allow-all", 0
			delete(o, "created/by")
		}, "external-profile", []string{"/created~1by: missing", "/profile~1generation: 0", `/tool~1mode: "allow-all"`}},
		{"unknown member", object(t, binding), func(o map[string]any) { o["extra"] = 1 }, "external-binding", []string{"/extra: 1"}},
		{"no schema", object(t, binding), func(o map[string]any) { delete(o, "schema") }, "external-binding", []string{"/schema: missing"}},
		{"another schema", object(t, profile), func(o map[string]any) { o["schema"] = "agent.external-runtime.profile.v2" }, "external-profile",
			[]string{`/schema: "agent.external-runtime.profile.v2"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := map[string]any{}
			for k, v := range tc.doc {
				o[k] = v
			}
			tc.change(o)
			text, err := json.MarshalIndent(o, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			v, _ := judge(t, bytes.NewReader(text))
			var got []string
			for _, f := range v.Violations {
				got = append(got, f.Pointer+": "+f.Found)
				name := `"` + strings.ReplaceAll(strings.TrimPrefix(f.Pointer, "/"), "~1", "/") + `"`
				if line := strings.Split(string(text), "\n")[f.Line-1]; f.Found != "missing" && !strings.Contains(line, name) {
					t.Errorf("%s is said to be in line %d: %s", f.Pointer, f.Line, line)
				}
			}
			slices.Sort(got)
			if v.Schema != tc.kind || !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %s: %q", v.Schema, got, tc.kind, tc.want)
			}
		})
	}
	// The digest that is right is told, so that it can be pasted.
	o := object(t, binding)
	o["max/passages"] = 3
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	right, err := external.DigestWithout(text, "binding/digest")
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := judge(t, bytes.NewReader(text)); len(v.Violations) != 1 || !strings.Contains(v.Violations[0].Expected, string(right)) {
		t.Errorf("%+v does not tell %s", v.Violations, right)
	}
	// By its own name too, and as something else.
	if v, _ := judge(t, bytes.NewReader(text), "--schema", "agent.external-runtime.binding.v1"); v.Schema != "external-binding" {
		t.Errorf("taken for %s", v.Schema)
	}
	if v, _ := judge(t, bytes.NewReader(text), "--schema", "external-outcome"); v.Valid {
		t.Error("a binding is a valid outcome")
	}
}

// anEvent is a line of a stream.
func anEvent(seq int, rest string, args ...any) string {
	return fmt.Sprintf(`{"schema":"agent.external-runtime.event.v1","event/ref":"event:%d","turn/ref":"turn:1","seq/no":%d,"at":"2030-01-01T00:00:0%dZ",%s}`+"\n",
		seq, seq, seq%10, fmt.Sprintf(rest, args...))
}

const (
	progressEvent = `"kind":"progress","progress/code":"%s","progress/current":0`
	productEvent  = `"kind":"product-candidate","content":"%s","output-schema/ref":"s"`
	outcomeEvent  = `"kind":"turn-outcome","status":"completed","reason/code":"completed"`
)

// toolEvent asks for a tool with this input.
func toolEvent(t *testing.T, input string, digest external.Digest) string {
	t.Helper()
	label := (&testhost.External{}).Request("x").Classification
	text, err := json.Marshal(label)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`"kind":"tool-request","request/ref":"request:1","tool/ref":"tool:1","input/schema-ref":"s","input":%s,"input/digest":%q,"classification":%s,"deadline/at":"2030-01-01T00:01:00Z"`, input, digest, text)
}

func TestValidateExternalStreams(t *testing.T) {
	t.Parallel()
	profile := testhost.NewProfile("profile:1")
	profile.Limits.MaxProductBytes, profile.Limits.MaxEvents = 5, 4
	limits := writeDoc(t, t.TempDir(), "profile.json", profile)
	digest, err := external.CanonicalDigest([]byte(`{"q":1}`))
	if err != nil {
		t.Fatal(err)
	}
	good := anEvent(1, progressEvent, "accepted") + anEvent(2, progressEvent, "running") + anEvent(3, productEvent, "hello") + anEvent(4, outcomeEvent)
	asking := anEvent(1, progressEvent, "accepted") + anEvent(2, "%s", toolEvent(t, `{"q":1}`, digest)) + anEvent(3, progressEvent, "awaiting-observation")
	for _, tc := range []struct {
		name, stream string
		args         []string
		want         []string // "line pointer: found"
	}{
		{"good", good, []string{"--profile", limits}, nil},
		{"suspended", asking, nil, nil},
		{"both streams of a turn", asking + anEvent(4, progressEvent, "running") + anEvent(5, outcomeEvent), nil, nil},
		{"a refusal", anEvent(1, `"kind":"turn-outcome","status":"refused","reason/code":"policy-denied"`), nil, nil},
		{"goes on", anEvent(4, progressEvent, "awaiting-observation") + anEvent(5, outcomeEvent), []string{"--after", "3"}, nil},
		{"goes on, and nobody said so", anEvent(4, progressEvent, "running") + anEvent(5, outcomeEvent), nil, []string{"1 /seq~1no: 4"}},
		{"a gap", strings.ReplaceAll(good, `"seq/no":3`, `"seq/no":7`), nil, []string{"3 /seq~1no: 7", "4 /seq~1no: 4"}},
		{"the same ref", strings.ReplaceAll(good, "event:3", "event:2"), nil, []string{`3 /event~1ref: "event:2"`}},
		{"another turn", strings.Replace(good, `"turn:1","seq/no":2`, `"turn:2","seq/no":2`, 1), nil, []string{`2 /turn~1ref: "turn:2"`}},
		{"back in time", strings.ReplaceAll(good, "00:00:03Z", "00:00:00Z"), nil, []string{`3 /at: "2030-01-01T00:00:00Z"`}},
		{"no outcome", strings.TrimSuffix(good, anEvent(4, outcomeEvent)), nil, []string{"4 : missing"}},
		{"more after it", good + anEvent(5, progressEvent, "running"), nil, []string{"5 : an event"}},
		{"awaits nothing", anEvent(1, progressEvent, "awaiting-observation"), nil, []string{`1 /progress~1code: "awaiting-observation"`}},
		{"a tool's digest", strings.Replace(asking, `{"q":1}`, `{"q":2}`, 1), nil, []string{fmt.Sprintf(`2 /input~1digest: %q`, digest)}},
		{"a bad field", strings.Replace(good, `"running"`, `"walking"`, 1), nil, []string{`2 /progress~1code: "walking"`, "3 /seq~1no: 3"}},
		{"no JSON, and on", "Loading...\n" + good, nil, []string{"1 : malformed"}},
		{"over the limits", strings.Replace(good, "hello", "hello!", 1), []string{"--profile", limits}, []string{"3 /content: a text of 6 bytes"}},
		{"too many", anEvent(1, progressEvent, "accepted") + anEvent(2, progressEvent, "running") + anEvent(3, progressEvent, "running") + anEvent(4, progressEvent, "running") +
			anEvent(5, progressEvent, "running") + anEvent(6, outcomeEvent), []string{"--profile", limits}, []string{"5 : event 5 of the turn"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v, _ := judge(t, strings.NewReader(tc.stream), tc.args...)
			var got []string
			for _, f := range v.Violations {
				got = append(got, fmt.Sprintf("%d %s: %s", f.Line, f.Pointer, f.Found))
			}
			if v.Schema != "external-events" || !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %q", v.Schema, got, tc.want)
			}
		})
	}
	r := run(t, good+anEvent(5, progressEvent, "running"), nil, "validate")
	if want := "standard input:5:1: the line is an event, expected nothing after the turn's outcome\n"; r.out != want {
		t.Errorf("%q, want %q", r.out, want)
	}
}

// TestGuessExternal: documents that are wrong, told by what they have.
func TestGuessExternal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"schema":"classification.v1"}`:                                        "classification",
		`{"x":1,"schema":"agent.external-runtime.binding.v1"`:                   "external-binding",
		`{"schema":5,"outcome/ref":"o"}`:                                        "external-outcome",
		`{"schema":"other","type":"status"}`:                                    "lowkey-events",
		`{"schema":"other"}`:                                                    "",
		"noise\n" + `{"schema":"agent.external-runtime.event.v1"}`:              "external-events",
		`{"turn/ref":"t","idempotency/key":"k"}`:                                "external-request",
		"{\n" + `"schema":"agent.external-runtime.turn-request.v1","mode":nope`: "external-request",
	} {
		if got := cli.Guess([]byte(text)); got != want {
			t.Errorf("%s is taken for %q, want %q", text, got, want)
		}
	}
}

// TestExternalSchemas: the published ones, byte for byte, by both names.
func TestExternalSchemas(t *testing.T) {
	t.Parallel()
	list := run(t, "", nil, "schema")
	for _, kind := range external.Values[external.Document]() {
		if r := run(t, "", nil, "schema", string(kind)); r.code != 0 || r.out != string(external.Schema(kind)) {
			t.Errorf("schema %s: exit code %d, %q", kind, r.code, r.err)
		}
		if !strings.Contains(list.out, "("+external.SchemaID(kind)+")\n") {
			t.Errorf("the list lacks %s:\n%s", external.SchemaID(kind), list.out)
		}
	}
	if r := run(t, "", nil, "schema", "external-binding"); r.out != string(external.Schema(external.BindingV1)) {
		t.Errorf("schema external-binding: %q", r.err)
	}
}
