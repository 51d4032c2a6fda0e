package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/backline-dev/backline/schema"
)

// Fault J2: a pattern means what ECMAScript says.
func TestFaultJ2(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern       string
		match, refuse []string
	}{
		{`^[^\s\u0000-\u001f\u007f]+$`,
			[]string{"a", "é渐😀", "a\u0085b", "a\u200bb", "a\u180eb", "\u2010", "\u0080", "\ufffd"},
			[]string{"", "a b", "a\tb", "a\vb", "a\x00", "\x1f", "\x7f", "a\u00a0", "\ufeff", "\u2028", "\u2029", "\u1680", "\u2000", "\u200a", "\u202f", "\u205f", "\u3000", "a\n", "\na"}},
		{`^\s$`, []string{" ", "\n", "\v", "\f", "\r", "\u00a0", "\ufeff", "\u2029", "\u3000"}, []string{"", "a", "\u0085", "\u200b", "\x1c", "\x00"}},
		{`^\S\S$`, []string{"ab", "\u0085\u200b", "\x00\x1f"}, []string{"a ", "\u00a0a", "a\ufeff"}},
		{`^[\S]$`, []string{"a", "\u0085", "\U0010ffff", "\x00", "\x0e", "!", "\x9f"}, []string{" ", "\u3000", "\t"}},
		{`^[^\S]$`, []string{" ", "\u2003"}, []string{"a", "\u200b"}},
		{`^.$`, []string{"a", "😀", "\u0085", "\x0b"}, []string{"\n", "\r", "\u2028", "\u2029", ""}},
		{`^\d\w$`, []string{"1_"}, []string{"٣a", "1é"}},
		{`^a$`, []string{"a"}, []string{"a\n", "b"}},
		{`\u{1F600}|\ud83d\ude01|\x41\u0042|\0`, []string{"😀", "😁", "AB", "\x00"}, []string{"A", "u{1F600}"}},
		{`^[[:alpha:]]+$`, []string{"[]", ":]", "a]"}, []string{"b", "[", "ab"}},
		{`^[\b\-\/]{1,2}$`, []string{"\b-", "/"}, []string{"b", ""}},
		{`\ba\b`, []string{"a", "x a y"}, []string{"ba"}},
		{`^(?:a|(b))\.\/$`, []string{"a./", "b./"}, []string{"ax/"}},
		{`[.$^]`, []string{"x.", "$", "^"}, []string{"a"}},
	} {
		text, err := json.Marshal(tc.pattern)
		if err != nil {
			t.Fatal(err)
		}
		s := compile(t, `{"type":"string","pattern":`+string(text)+`}`)
		names := compile(t, `{"patternProperties":{`+string(text)+`:true},"additionalProperties":false}`)
		for i, values := range [][]string{tc.match, tc.refuse} {
			for _, v := range values {
				value, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				list := s.Validate(value)
				if (len(list) > 0) != (i == 1) {
					t.Errorf("pattern %s, value %q: %v", tc.pattern, v, list)
				}
				if i == 1 && len(list) > 0 && !strings.HasSuffix(list[0].Expected, "matching "+tc.pattern) {
					t.Errorf("pattern %s, value %q: expected is %s", tc.pattern, v, list[0].Expected)
				}
				list = names.Validate([]byte(`{` + string(value) + `:1}`))
				if (len(list) > 0) != (i == 1) {
					t.Errorf("pattern %s, key %q: %v", tc.pattern, v, list)
				}
			}
		}
	}
}

func TestPatternsWithoutTranslation(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		`(?=a)`, `(?!a)`, `(?<n>a)`, `(?i)a`, `(a)\1`, `[]`, `[^]`, `\p{L}`, `\cA`, `\k<n>`, `\ud83d`, `\u12`, `\u{110000}`, `\u{}`, `\x4`, `\01`, `a\`, `(`, `[\B]`, `\-\e`, `\u+123`,
	} {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range []string{`{"pattern":` + string(text) + `}`, `{"allOf":[{"$defs":{"pattern":{"pattern":` + string(text) + `}}}]}`, `{"patternProperties":{` + string(text) + `:{}}}`} {
			if _, err := schema.Compile(testID, []byte(doc)); err == nil || !strings.Contains(err.Error(), "pattern ") {
				t.Errorf("Compile(%s) = %v", doc, err)
			}
		}
	}
	// What only looks like a pattern is none.
	compile(t, `{"properties":{"pattern":{"const":{"pattern":"("}}},"enum":[{"pattern":"("}],"examples":[{"pattern":"("}]}`)
}

func TestDateTimes(t *testing.T) {
	t.Parallel()
	s := compile(t, `{"format":"date-time"}`)
	for value, want := range map[string]string{
		"2030-09-01T00:05:00Z":                 "2030-09-01T00:05:00Z",
		"2030-09-01t02:05:00.1234567899+02:00": "2030-09-01T00:05:00.123456789Z",
		"2030-08-31T23:35:00-00:30":            "2030-09-01T00:05:00Z",
		"2016-12-31T23:59:60Z":                 "2017-01-01T00:00:00Z",
		"2016-12-31T23:59:60.5z":               "2017-01-01T00:00:00.5Z",
		"2017-01-01T05:29:60+05:30":            "2017-01-01T00:00:00Z",
		"2016-12-31T15:59:60-08:00":            "2017-01-01T00:00:00Z",
		"2030-05-05T23:59:60-00:00":            "2030-05-06T00:00:00Z",
		"2028-02-29T00:00:00Z":                 "2028-02-29T00:00:00Z",
		"2000-02-29T00:00:00Z":                 "2000-02-29T00:00:00Z",
		"0000-01-01T00:00:00Z":                 "0000-01-01T00:00:00Z",
		"0000-01-01T00:00:00+23:59":            "-0001-12-31T00:01:00Z",
		"9999-12-31T23:59:59.9Z":               "9999-12-31T23:59:59.9Z",
		"2030-09-01T00:05:00.Z":                "",
		"2030-09-01T00:05:00.1":                "",
		"2030-09-01T00:05:00":                  "",
		"2030-09-01T00:05:00 Z":                "",
		"2030-09-01T00:05:00ZZ":                "",
		"2030-09-01T00:05:00\u0130":            "",
		"2030-09-01 00:05:00Z":                 "",
		"2030-09-01_00:05:00Z":                 "",
		"2030-09-01\x5400:05:00\x1a":           "",
		"2030-09-01T00:05:60Z":                 "",
		"2030-09-01T23:59:61Z":                 "",
		"2030-09-01T23:59:60+00:01":            "",
		"2030-09-01T22:59:60+01:00":            "",
		"2030-09-01T24:00:00Z":                 "",
		"2030-09-01T00:60:00Z":                 "",
		"2030-09-01T+5:05:00Z":                 "",
		"2030-09-01T00:-5:00Z":                 "",
		"2030-09-01T00:05:00+24:00":            "",
		"2030-09-01T00:05:00+00:60":            "",
		"2030-09-01T00:05:00+0000":             "",
		"2030-09-01T00:05:00+00":               "",
		"2030-09-01T00:05:00*00:00":            "",
		"2030-09-01T00:05:00,5Z":               "",
		"2030-00-01T00:05:00Z":                 "",
		"2030-13-01T00:05:00Z":                 "",
		"2030-09-00T00:05:00Z":                 "",
		"2030-09-31T00:05:00Z":                 "",
		"2030-02-29T00:05:00Z":                 "",
		"2100-02-29T00:05:00Z":                 "",
		"20300-09-01T00:05:00Z":                "",
		"٢٠30-09-01T00:05Z":                    "",
		"":                                     "",
	} {
		got, ok := schema.ParseDateTime(value)
		if ok != (want != "") || ok && got.Format("2006-01-02T15:04:05.999999999Z07:00") != want {
			t.Errorf("ParseDateTime(%q) = %v, %v, want %q", value, got, ok, want)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if list := s.Validate(text); (list == nil) != (want != "") {
			t.Errorf("the schema says of %q: %v", value, list)
		}
	}
	if list := s.Validate([]byte("12")); list != nil {
		t.Errorf("a number is held to the format: %v", list)
	}
}
