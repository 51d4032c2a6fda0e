package schema_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/schema"
)

const testID = "https://example.com/test.schema.json"

func compile(t *testing.T, doc string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(testID, []byte(doc))
	if err != nil {
		t.Fatalf("Compile(%s) = %v", doc, err)
	}
	return s
}

func sentences(violations []schema.Violation) []string {
	var list []string
	for _, v := range violations {
		list = append(list, v.String())
	}
	return list
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, schema, doc string
		want              []string
	}{
		{"fine", `{"type":"object"}`, `{"a":1}`, nil},
		{"root", `{"type":"object"}`, ` []`, []string{`the document is an array, expected an object`}},
		{"several types", `{"type":["string","null","integer"]}`, `1.5`, []string{`the document is 1.5, expected a string, null or an integer`}},
		{"order of the document", `{"properties":{"a":{"type":"string"},"b":{"type":"boolean"},"c":{"type":"null"}}}`, `{"c":1,"b":{},"a":"x\ny","a2":0}`, []string{
			`/c is 1, expected null`, `/b is an object, expected true or false`,
		}},
		{"missing, where the object ends", `{"required":["z","a"],"properties":{"a":{"type":"string","minLength":1},"b":{"type":"integer"}}}`, `{"b":"é\n"}`, []string{
			`/b is "é\n", expected an integer`,
			`/z is missing, expected a value`, `/a is missing, expected a string that is not empty`,
		}},
		{"inside", `{"properties":{"a/b~c":{"items":{"$ref":"#/$defs/e"}}},"$defs":{"e":{"type":"object","required":["x"],"properties":{"x":{"enum":["u","v",3]}}}}}`,
			`{"a/b~c":[{"x":"u"},{"x":"w"},{},7]}`, []string{
				`/a~1b~0c/1/x is "w", expected "u", "v" or 3`,
				`/a~1b~0c/2/x is missing, expected "u", "v" or 3`,
				`/a~1b~0c/3 is 7, expected an object`,
			}},
		{"odd keys", `{"additionalProperties":{"type":"string"}}`, `{"a b%20c":2,"\u0000\ud83d":3}`, []string{
			`/a b%20c is 2, expected a string`, `/\x00` + "\ufffd" + ` is 3, expected a string`,
		}},
		{"one phrase for several keywords", `{"type":"string","minLength":3,"maxLength":5,"pattern":"^a"}`, `"b"`, []string{
			`the document is "b", expected a string of 3 to 5 characters matching ^a`,
		}},
		{"numbers", `{"properties":{"a":{"type":"integer","minimum":0},"b":{"type":"number","exclusiveMinimum":0,"maximum":10,"multipleOf":2},"c":{"const":1}}}`,
			`{"a":-1,"b":11,"c":1.00000000000000000000000000000000000001}`, []string{
				`/a is -1, expected an integer of at least 0`,
				`/b is 11, expected a number greater than 0 and of at most 10 and divisible by 2`,
				`/c is 1.00000000000000000000000000000000000001, expected the number 1`,
			}},
		{"spellings of one number", `{"properties":{"a":{"type":"integer","const":40}}}`, `{"a":0.4E+2}`, nil},
		{"unknown fields", `{"properties":{"a":true},"patternProperties":{"^x":true},"additionalProperties":false}`, `{"z":"1","a":2,"x1":3,"b":[]}`, []string{
			`/z is "1", expected no field of this name`, `/b is an array, expected no field of this name`,
		}},
		{"unevaluated fields", `{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}`, `{"a":1,"b":2}`, []string{`/b is 2, expected no field of this name`}},
		{"forbidden field", `{"properties":{"a":false}}`, `{"a":1}`, []string{`/a is 1, expected no field of this name`}},
		{"keys", `{"propertyNames":{"maxLength":2}}`, `{"ab":1,"abc":{}}`, []string{`/abc is an object, expected under a key that is a string of at most 2 characters`}},
		{"alternatives", `{"properties":{"a":{"anyOf":[{"type":"string"},{"const":true},{"$ref":"#/$defs/n"}]}},"$defs":{"n":{"type":"array","maxItems":2}}}`, `{"a":null}`, []string{
			`/a is null, expected a string, true or an array of at most 2 elements`,
		}},
		{"conditions", `{"if":{"properties":{"t":{"const":"x"}}},"then":{"required":["c"],"properties":{"c":{"type":"string"}}}}`, `{"t":"x"}`, []string{`/c is missing, expected a string`}},
		{"conditions of a property", `{"properties":{"t":{"enum":["x","y"]},"c":{"type":"string"}},"allOf":[{"if":{"properties":{"t":{"const":"x"}}},"then":{"required":["c"]},"else":{"required":["d"]}}]}`, `{"t":"x"}`, []string{`/c is missing, expected a string`}},
		{"dependent", `{"properties":{"b":{"type":"null"}},"dependentRequired":{"a":["b","c"]}}`, `{"a":1}`, []string{`/b is missing, expected null`, `/c is missing, expected a value`}},
		{"equal elements", `{"uniqueItems":true,"type":"array"}`, `[1,1.0]`, []string{`the document is an array, expected an array without equal elements`}},
		{"not", `{"not":{"type":"string"}}`, `"x"`, []string{`the document is "x", expected another value`}},
		{"no type", `{"properties":{"a":{"minimum":2},"b":{"minLength":2},"c":{"minItems":1},"d":{"maxProperties":0}}}`, `{"a":1,"b":"","c":[],"d":{"x":1}}`, []string{
			`/a is 1, expected a number of at least 2`, `/b is "", expected a string of at least 2 characters`,
			`/c is an array, expected an array that is not empty`, `/d is an object, expected an object of at most 0 members`,
		}},
		{"format", `{"type":"string","format":"uri"}`, `"x"`, []string{`the document is "x", expected a string that is an absolute URI`}},
		{"malformed", `{}`, `{"a":1,"a":2}`, []string{`/a is malformed, expected JSON, but duplicate key "a" (line 1, column 8)`}},
		{"not JSON", `{}`, ``, []string{`the document is malformed, expected JSON, but the text is empty, and one JSON value is expected (line 1, column 1)`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := compile(t, tc.schema)
			first := s.Validate([]byte(tc.doc))
			if diff := cmp.Diff(tc.want, sentences(first)); diff != "" {
				t.Errorf("Validate(%s) (-want +got):\n%s", tc.doc, diff)
			}
			for range 20 { // the validator walks maps
				if diff := cmp.Diff(first, s.Validate([]byte(tc.doc))); diff != "" {
					t.Fatalf("Validate(%s) varies:\n%s", tc.doc, diff)
				}
			}
		})
	}
}

func TestValidateListsAtMostTwenty(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"items":{"type":"string"}}`)
	got := s.Validate([]byte("[" + strings.Repeat("0,", 999) + "0]"))
	if len(got) != schema.MaxViolations {
		t.Fatalf("%d violations, want %d", len(got), schema.MaxViolations)
	}
	for i, v := range got {
		if want := fmt.Sprintf("/%d", i); v.Pointer != want {
			t.Errorf("violation %d is at %s, want %s", i, v.Pointer, want)
		}
	}
}

// A number whose exponent exact arithmetic cannot hold must not end the process or take long.
func TestValidateHugeNumbers(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"items":{"type":"integer","minimum":0}}`)
	start := time.Now()
	doc := `[1e999999999,-1e999999999,1e-999999999,1` + strings.Repeat("0", 1<<20) + `,1.` + strings.Repeat("9", 1<<20) + `]`
	want := []string{"/1", "/2", "/4"}
	var got []string
	for _, v := range s.Validate([]byte(doc)) {
		got = append(got, v.Pointer)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	if took := time.Since(start); took > 20*time.Second { // quadratic would be hours
		t.Errorf("took %v", took)
	}
}

func TestSentencesAreShort(t *testing.T) {
	t.Parallel()
	// What a sentence says by itself is far below 200 characters, and none of it is a 😀 or a NUL.
	long := strings.Repeat(`😀`, 10_000)
	nul := strings.Repeat(`\u0000`, 10_000)
	s := compile(t, `{"additionalProperties":{"type":"integer"}}`)
	for _, text := range []string{long, nul, long + nul, nul + long, strings.Repeat("9", 10_000) + ".5"} {
		value := `"` + text + `"`
		if text[0] == '9' {
			value = text
		}
		for _, doc := range []string{`{"k":` + value + `}`, `{"` + text + `":` + value + `}`} {
			got := s.Validate([]byte(doc))
			if len(got) != 1 {
				t.Fatalf("%d violations, want 1", len(got))
			}
			sentence := got[0].String()
			if n := utf8.RuneCountInString(sentence); n > 200+50 || !utf8.ValidString(sentence) || strings.ContainsRune(sentence, 0) {
				t.Errorf("%d characters: %q", n, sentence)
			}
			if !strings.Contains(sentence, "...") {
				t.Errorf("cut without a sign: %q", sentence)
			}
		}
		for _, doc := range []string{`{"` + text + `":1,"` + text + `":2}`, `{"` + text + `":x}`, `{"` + text + `"}`} {
			err := schema.Check([]byte(doc), 0)
			if err == nil {
				t.Fatal("accepted")
			}
			if n := utf8.RuneCountInString(err.Error()); n > 200+100 || strings.ContainsRune(err.Error(), 0) {
				t.Errorf("%d characters: %q", n, err)
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, id, doc, message string }{
		{"remote reference", testID, `{"$ref":"https://example.com/other.json"}`, "nothing is loaded"},
		{"file reference", testID, `{"$ref":"file:///etc/passwd"}`, "nothing is loaded"},
		{"remote dialect", testID, `{"$schema":"https://example.com/dialect"}`, "only https://json-schema.org/draft/2020-12/schema"},
		{"old dialect", testID, `{"$schema":"http://json-schema.org/draft-07/schema#"}`, "only"},
		{"another id", testID, `{"$id":"https://example.com/x"}`, "its $id is"},
		{"relative id", "test.json", `{}`, "absolute URI"},
		{"id with a fragment", testID + "#/a", `{}`, "absolute URI"},
		{"duplicate key", testID, `{"type":"string","type":"number"}`, "duplicate key"},
		{"not a schema", testID, `{"type":"text"}`, "type"},
		{"not JSON", testID, `{`, "text ends"},
		{"dangling reference", testID, `{"$ref":"#/$defs/none"}`, "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := schema.Compile(tc.id, []byte(tc.doc))
			if err == nil || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("Compile(%s) = %v, want %q in it", tc.doc, err, tc.message)
			}
		})
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	var set schema.Set
	for id, doc := range map[string]string{
		"https://example.com/a.json": `{"$id":"https://example.com/a.json","properties":{"b":{"$ref":"b.json#/$defs/name"},"c":{"$ref":"https://example.com/b.json"}},"required":["b"]}`,
		"https://example.com/b.json": `{"$defs":{"name":{"type":"string","maxLength":2}},"type":"array"}`,
	} {
		if err := set.Add(id, []byte(doc)); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Add("https://example.com/b.json", []byte(`{}`)); err == nil {
		t.Error("an id was added twice")
	}
	a, err := set.Compile("https://example.com/a.json")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`/c is 1, expected an array`,
		`/b is "xyz", expected a string of at most 2 characters`,
	}
	if diff := cmp.Diff(want, sentences(a.Validate([]byte(`{"c":1,"b":"xyz"}`)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`/b is missing, expected a string of at most 2 characters`}, sentences(a.Validate([]byte(`{}`)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	name, err := set.Compile("https://example.com/b.json#/$defs/name")
	if err != nil {
		t.Fatal(err)
	}
	if got := name.Validate([]byte(`"xy"`)); got != nil {
		t.Errorf("violations %v", got)
	}
	if _, err := set.Compile("https://example.com/none.json"); err == nil {
		t.Error("compiled what was not added")
	}
}

// Fault J1: date-times are checked, as RFC 3339 has them.
func TestFaultJ1(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/date-times.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Accepted []string `json:"accepted"`
		Refused  []string `json:"refused with 400"`
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases.Accepted) == 0 || len(cases.Refused) == 0 {
		t.Fatal("no cases")
	}
	for _, doc := range []string{
		`{"type":"string","format":"date-time"}`,
		`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"string","format":"date-time"}`,
	} {
		s := compile(t, doc)
		for _, v := range cases.Accepted {
			if got := s.Validate([]byte(`"` + v + `"`)); got != nil {
				t.Errorf("%s: %v", v, got)
			}
		}
		for _, v := range cases.Refused {
			got := s.Validate([]byte(`"` + v + `"`))
			if len(got) != 1 || got[0].Expected != "a string that is a date and time as in RFC 3339" {
				t.Errorf("%s: %v", v, got)
			}
		}
	}
}

// Fault J3: a length counts code points.
func TestFaultJ3(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"type":"string","maxLength":512}`)
	for _, c := range []string{"x", "😀", "é", `\ud83d\ude00`} {
		if got := s.Validate([]byte(`"` + strings.Repeat(c, 512) + `"`)); got != nil {
			t.Errorf("512 of %s: %v", c, got)
		}
		if got := s.Validate([]byte(`"` + strings.Repeat(c, 513) + `"`)); len(got) != 1 {
			t.Errorf("513 of %s: %v", c, got)
		}
	}
}

// Fault A5: a key twice, keys in another case, a second value.
func TestFaultA5(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"type":"object","required":["pluginId"],"properties":{"pluginId":{"const":"muse"}}}`)
	for doc, want := range map[string]string{
		`{"pluginId":"muse","pluginId":"other"}`:              "/pluginId",
		`{"pluginId":"muse","plugin\u0049d":"muse"}`:          "/pluginId",
		`{"pluginId":"muse","x":[{"y":{"z":1,"z":1}}]}`:       "/x/0/y/z",
		`{"pluginId":"muse"}{"pluginId":"muse"}`:              "",
		`{"pluginId":"muse"} x`:                               "",
		`{"PLUGINID":"muse"}`:                                 "/pluginId",
		`{"PLUGINID":"other","pluginId":"muse","PluginId":1}`: "-",
	} {
		got := s.Validate([]byte(doc))
		if want == "-" {
			if got != nil {
				t.Errorf("%s: %v", doc, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Pointer != want {
			t.Errorf("%s: %v, want a violation at %q", doc, got, want)
		}
	}
}

// Fault A6: deep nesting is refused while scanning, and quickly.
func TestFaultA6(t *testing.T) { // not parallel: it looks at the clock
	nest := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	if err := schema.Check([]byte(nest(64)), 0); err != nil {
		t.Error(err)
	}
	if err := schema.Check([]byte(nest(65)), 0); err == nil || !strings.Contains(err.Error(), "more than 64 deep") {
		t.Errorf("65 levels: %v", err)
	}
	if err := schema.Check([]byte(strings.Repeat(`{"a":`, 64)+"1"+strings.Repeat("}", 64)), 64); err != nil {
		t.Error(err)
	}
	if err := schema.Check([]byte(strings.Repeat(`{"a":`, 65)+"1"+strings.Repeat("}", 65)), 64); err == nil {
		t.Error("65 objects were accepted")
	}
	if err := schema.Check([]byte("[[1]]"), 1); err == nil {
		t.Error("2 levels of 1 were accepted")
	}
	if err := schema.Check([]byte(nest(100_000)), 100_000); err != nil {
		t.Error(err)
	}
	s := compile(t, `{}`)
	for _, n := range []int{100_000, 4_000_000} {
		doc := []byte(strings.Repeat("[", n))
		start := time.Now()
		if got := s.Validate(doc); len(got) != 1 {
			t.Errorf("%d brackets: %v", n, got)
		}
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("%d brackets took %v", n, took)
		}
	}
}

// A hostile object with very many keys must not take more than linear time.
func TestCheckManyKeys(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteByte('{')
	for i := range 600_000 {
		fmt.Fprintf(&b, `"%x":0,`, i)
	}
	start := time.Now()
	if err := schema.Check([]byte(b.String()+`"z":0}`), 0); err != nil {
		t.Error(err)
	}
	err := schema.Check([]byte(b.String()+`"fffe":0}`), 0)
	if err == nil || !strings.Contains(err.Error(), `duplicate key "fffe"`) {
		t.Errorf("the last key is a duplicate, and Check = %v", err)
	}
	if took := time.Since(start); took > 20*time.Second { // quadratic would be hours
		t.Errorf("took %v", took)
	}
}
