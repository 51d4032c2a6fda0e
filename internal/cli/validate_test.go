package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/schema"
)

type verdict struct {
	Schema     string
	Valid      bool
	Digest     string
	Sealed     bool
	Violations []struct {
		Line, Column             int
		Pointer, Found, Expected string
	}
}

// judge validates what r holds, as --json tells it.
func judge(t *testing.T, r io.Reader, args ...string) (verdict, int) {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Run(t.Context(), append([]string{"validate", "--json"}, args...), cli.Streams{In: r, Out: &out, Err: &errs})
	var v verdict
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	if v.Valid != (code == 0) || v.Valid != (len(v.Violations) == 0) {
		t.Errorf("exit code %d for %+v", code, v)
	}
	return v, code
}

func lines(v verdict) []int {
	var list []int
	for _, f := range v.Violations {
		list = append(list, f.Line)
	}
	return list
}

// Fault A2: line ends, and line numbers as an editor counts.
func TestFaultA2ValidateCountsLines(t *testing.T) {
	t.Parallel()
	stream := "\n\r\n" + `{"protocolVersion":1,"type":"status","status":"started"}` + "\r\n" +
		"{\"protocolVersion\":1,\"type\":\"text\",\"content\":\"\u2028a\u2029\u0085\"}\n\n" +
		`{"protocolVersion":1,"type":"status","status":"complete"}`
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(stream), "with an end": strings.NewReader(stream + "\n"),
		"byte by byte": iotest.OneByteReader(strings.NewReader(stream)), "in halves": iotest.HalfReader(strings.NewReader(stream)),
	} {
		if v, _ := judge(t, r); !v.Valid || v.Schema != "lowkey-events" {
			t.Errorf("%s: %+v", name, v)
		}
	}
	v, _ := judge(t, strings.NewReader(stream+"\r\n\r\nlate\n"))
	if got := lines(v); !slices.Equal(got, []int{8}) {
		t.Errorf("a bad line in line 8 is found at %v", got)
	}
}

// Fault A3: each bad line once, with its number, and on to the end.
func TestFaultA3ValidateGoesOn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "jsonl-bad-line.txt"))
	if err != nil {
		t.Fatal(err)
	}
	v, code := judge(t, bytes.NewReader(text))
	if code != 1 || v.Schema != "lowkey-events" {
		t.Errorf("exit code %d, taken for %s", code, v.Schema)
	}
	// None of its lines is an event: line 4 is empty, and what is missing at the end is at line 9.
	if got := slices.Compact(lines(v)); !slices.Equal(got, []int{1, 2, 3, 5, 6, 7, 8, 9}) {
		t.Errorf("violations in lines %v", got)
	}
	malformed := 0
	for _, f := range v.Violations {
		if f.Found == "malformed" {
			malformed++
		}
	}
	if malformed != 2 {
		t.Errorf("%d lines are malformed, want 2: %+v", malformed, v.Violations)
	}

	// The same lines after a good one.
	start := `{"protocolVersion":1,"type":"status","status":"started"}` + "\n"
	v, _ = judge(t, strings.NewReader(start+string(text)))
	if got := slices.Compact(lines(v)); !slices.Equal(got, []int{2, 3, 4, 6, 7, 8, 9, 10}) {
		t.Errorf("violations in lines %v", got)
	}
}

// Fault A5: the same key twice, another case, a second value.
func TestFaultA5Validate(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"lowkey-duplicate-key.json": `duplicate key "pluginId"`,
		"lowkey-second-value.json":  "nothing may follow it",
		"lowkey-case-variant.json":  "",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		v, _ := judge(t, bytes.NewReader(text))
		if v.Schema != "lowkey-request" || v.Valid != (want == "") {
			t.Errorf("%s: %+v", name, v)
		}
		if want != "" && (len(v.Violations) != 1 || !strings.Contains(v.Violations[0].Expected, want)) {
			t.Errorf("%s: %+v, want one violation with %q", name, v.Violations, want)
		}
	}
}

// Fault A1: a line over the limit is a violation that names it, and an endless one is no endless read.
func TestFaultA1ValidateLimitsLines(t *testing.T) {
	t.Parallel()
	start := `{"protocolVersion":1,"type":"status","status":"started"}` + "\n"
	long := `{"protocolVersion":1,"type":"text","content":"` + strings.Repeat("x", 8<<20-50) + `"}` + "\n"
	end := `{"protocolVersion":1,"type":"status","status":"complete"}` + "\n"
	if v, _ := judge(t, strings.NewReader(start+long+end)); !v.Valid {
		t.Errorf("a line of nearly 8 MiB: %+v", v.Violations)
	}
	endless := io.MultiReader(strings.NewReader(start), &endlessReader{})
	v, _ := judge(t, endless, "--schema", "lowkey-events", "--line-limit", "1MiB")
	if len(v.Violations) != 1 || v.Violations[0].Line != 2 || !strings.Contains(v.Violations[0].Expected, "1048576 bytes") {
		t.Errorf("an endless line: %+v", v.Violations)
	}
	r := run(t, strings.Repeat(" ", 64<<20)+"{}", nil, "validate", "--schema", "manifest")
	if r.code != 1 || !strings.Contains(r.err, "longer than the limit of 64MiB") {
		t.Errorf("a document over the limit: exit code %d, %q", r.code, r.err)
	}
}

type endlessReader struct{}

func (*endlessReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestGuess(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ doc, want string }{
		{`{"protocolVersion":1,"pluginId":"x","turn":{}}`, "lowkey-request"},
		{"{\n  \"pluginId\": \"x\",\n  \"transcriptWindow\": [\n    {\"role\":\"user\",\"content\":\"x\"}\n  ]\n}", "lowkey-request"},
		{`{"pluginId":"x"`, "lowkey-request"},
		{`{"turn":`, "lowkey-request"},
		{`{"id":"muse","agent":{}}`, "manifest"},
		{"\ufeff{\"id\":\"muse\",\"agents\":[", "manifest"},
		{`{"id":"muse"}`, "manifest"},
		{`{"type":"plugin","agent":{}}`, "manifest"},
		{`{"protocolVersion":1,"type":"status","status":"started"}`, "lowkey-events"},
		{"junk\n\n{\"type\":\"text\"}\n", "lowkey-events"},
		{"[1]\n{\"odd\":1}\n{\"type\":\"text\"}\n", "lowkey-events"},
		{`{"type":"te`, "lowkey-events"},
		{`{"status":"started"}`, "lowkey-events"},
		{"", ""}, {"junk", ""}, {"{", ""}, {"{}", ""}, {"[]", ""}, {"{\"a\":1}\n", ""}, {"null", ""}, {`{"a`, ""},
	} {
		if got := cli.Guess([]byte(tc.doc)); got != tc.want {
			t.Errorf("guess(%q) = %q, want %q", tc.doc, got, tc.want)
		}
	}
}

// TestPlaces: where violations are said to be.
func TestPlaces(t *testing.T) {
	t.Parallel()
	doc := "{\n\t\"a\" : [ 1,\n \"\\\"x\", {\"b~/c\":{}} ],\r\n\"é\": {\"z\":\n null},\"\":true}"
	for _, tc := range []struct {
		pointer string
		want    string
	}{
		{"", "1:1"}, {"/a", "2:8"}, {"/a/0", "2:10"}, {"/a/1", "3:2"}, {"/a/2", "3:9"}, {"/a/2/b~0~1c", "3:17"},
		{"/é", "4:6"}, {"/é/z", "5:2"}, {"/", "5:11"},
		{"/none", "1:1"}, {"/é/none", "4:6"}, {"/a/7", "2:8"}, {"/a/2/none/at/all", "3:9"},
	} {
		got := cli.Places([]byte(doc), schema.Violation{Pointer: tc.pointer})
		if want := []string{tc.want}; !slices.Equal(got, want) {
			t.Errorf("%q is at %v, want %v", tc.pointer, got, want)
		}
	}
}

// FuzzValidate: no document brings it down, and each violation lies within the document.
func FuzzValidate(f *testing.F) {
	for _, name := range []string{"jsonl-bad-line.txt", "lowkey-duplicate-key.json", "lowkey-second-value.json", "manifest.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"turn":{"turnId":1},"a\u0000\ud800":[{},[]]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, kind := range []string{"manifest", "lowkey-request", "lowkey-events"} {
			v, _ := judge(t, bytes.NewReader(doc), "--schema", kind)
			most := bytes.Count(doc, []byte("\n")) + 2
			for _, found := range v.Violations {
				if found.Line < 1 || found.Line > most {
					t.Errorf("%s: %s", kind, fmt.Sprintf("%+v is outside of the %d lines", found, most))
				}
			}
		}
		run(t, string(doc), nil, "validate")
	})
}
