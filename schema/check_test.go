package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/backline-dev/backline/schema"
)

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, doc string
		offset    int64
		line, col int
		pointer   string
		message   string // a part of it
	}{
		{"empty", "", 0, 1, 1, "", "empty"},
		{"white space", " \n\t ", 4, 2, 3, "", "empty"},
		{"utf-8 bom", "\ufeff{}", 0, 1, 1, "", "byte order mark"},
		{"utf-16 bom", "\xff\xfe{\x00", 0, 1, 1, "", "byte order mark"},
		{"duplicate", `{"a":1,"b":2,"a":3}`, 13, 1, 14, "/a", `duplicate key "a"`},
		{"duplicate after unescaping", `{"a":1,"\u0061":3}`, 7, 1, 8, "/a", `duplicate key "a"`},
		{"duplicate empty key", `{"":1,"":3}`, 6, 1, 7, "/", `duplicate key ""`},
		{"duplicate inside", "{\"a\":[0,{\n  \"b/c\":[], \"b/c\":1}]}", 22, 2, 13, "/a/1/b~1c", "duplicate"},
		{"second value", "{}\n {}", 4, 2, 2, "", "after the value"},
		{"second value without space", "1\"x\"", 1, 1, 2, "", "a double quote after the value"},
		{"junk", "nullx", 4, 1, 5, "", "after the value"},
		{"invalid utf-8", "{\"a\":\"x\xffy\"}", 7, 1, 8, "/a", "0xFF"},
		{"invalid utf-8 in a key", "{\"a\":{\"x\xffy\":1}}", 8, 1, 9, "/a", "0xFF"},
		{"surrogate in utf-8", "\"\xed\xa0\x80\"", 1, 1, 2, "", "0xED"},
		{"overlong", "\"\xc0\x80\"", 1, 1, 2, "", "0xC0"},
		{"utf-8 cut off by the quote", "\"abcdefgh\xe2\x82\"", 9, 1, 10, "", "0xE2"},
		{"utf-8 cut off by the end", "\"\xe2\x82", 1, 1, 2, "", "0xE2"},
		{"control character", "\"a\nb\"", 2, 1, 3, "", "control"},
		{"nul", "\"abcdefghijk\x00\"", 12, 1, 13, "", "control"},
		{"unknown escape", `"a\x41"`, 2, 1, 3, "", "escape"},
		{"short escape", `"\u00e"`, 1, 1, 2, "", "escape"},
		{"bad hex digit", `"\u00g0"`, 1, 1, 2, "", "escape"},
		{"ends in an escape", `"\`, 1, 1, 2, "", "escape"},
		{"ends in a string", `{"a":"é`, 8, 1, 8, "/a", "middle of a string"},
		{"ends in an object", `{"a":1`, 6, 1, 7, "/a", "text ends where a comma or }"},
		{"ends in an array", `{"a":[1`, 7, 1, 8, "/a/0", "text ends where a comma or ]"},
		{"ends before a value", `{"a":`, 5, 1, 6, "/a", "text ends where a value"},
		{"ends before a colon", `{"a"`, 4, 1, 5, "/a", "text ends where a colon"},
		{"trailing comma in an object", `{"a":1,}`, 7, 1, 8, "", "'}' where a key"},
		{"trailing comma in an array", `[1,]`, 3, 1, 4, "/1", "']' where a value"},
		{"comma first", `[,1]`, 1, 1, 2, "/0", "',' where a value"},
		{"missing comma", `[1 2]`, 3, 1, 4, "/0", "'2' where a comma or ]"},
		{"wrong bracket", `[1}`, 2, 1, 3, "/0", "'}' where a comma or ]"},
		{"wrong brace", `{"a":1]`, 6, 1, 7, "/a", "']' where a comma or }"},
		{"bare key", `{a:1}`, 1, 1, 2, "", "'a' where a key"},
		{"single quotes", `['a']`, 1, 1, 2, "/0", "a single quote where a value"},
		{"comment", `[/* */1]`, 1, 1, 2, "/0", "'/' where a value"},
		{"literal", `[True]`, 1, 1, 2, "/0", "'T' where a value"},
		{"short literal", `[tru]`, 1, 1, 2, "/0", "true, false or null"},
		{"cut literal", `nul`, 0, 1, 1, "", "true, false or null"},
		{"leading zero", `[01]`, 2, 1, 3, "/0", "'1' in a number"},
		{"minus alone", `-`, 1, 1, 2, "", "text ends in a number"},
		{"plus", `+1`, 0, 1, 1, "", "'+' where a value"},
		{"no digits after the point", `1.e3`, 2, 1, 3, "", "'e' in a number"},
		{"no digits before the point", `.5`, 0, 1, 1, "", "'.' where a value"},
		{"no exponent", `1e`, 2, 1, 3, "", "text ends in a number"},
		{"no exponent digits", `1e+`, 3, 1, 4, "", "text ends in a number"},
		{"hexadecimal", `0x10`, 1, 1, 2, "", "'x' after the value"},
		{"NaN", `NaN`, 0, 1, 1, "", "'N' where a value"},
		{"no-break space", "\u00a01", 0, 1, 1, "", "where a value"},
		{"form feed", "\f1", 0, 1, 1, "", "where a value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := schema.Check([]byte(tc.doc), 0)
			var e *schema.SyntaxError
			if !errors.As(err, &e) {
				t.Fatalf("Check(%q) = %v, want a *SyntaxError", tc.doc, err)
			}
			if e.Offset != tc.offset || e.Line != tc.line || e.Column != tc.col {
				t.Errorf("Check(%q) at byte %d, line %d, column %d, want %d, %d, %d",
					tc.doc, e.Offset, e.Line, e.Column, tc.offset, tc.line, tc.col)
			}
			if e.Pointer != tc.pointer {
				t.Errorf("Check(%q) at %q, want %q", tc.doc, e.Pointer, tc.pointer)
			}
			if !strings.Contains(e.Message, tc.message) {
				t.Errorf("Check(%q) says %q, want %q in it", tc.doc, e.Message, tc.message)
			}
		})
	}
}

func TestCheckAccepts(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		`0`, `-0`, `-0.0e-0`, `1E+400`, `123456789012345678901234567890`, `true`, `false`, `null`, `""`,
		` [ ] `, "\r\n\t{ }\n", `[[],{},"",0]`, `{"a":{"a":{"a":[{"a":1},{"a":1}]}}}`,
		`{"A":1,"a":2}`, "{\"\u00e9\":1,\"e\u0301\":2}", `{"":0," ":1}`,
		`"\ud83d"`, `"\ude00\ud83d"`, `"\ud83d\ude00"`, `"\"\\\/\b\f\n\r\t\u00e9"`,
		"\"\u2028\u2029\x7f\ufeff\U0010ffff\"", `"a quote \" after more than eight bytes"`,
		`"\u0000"`, "[1\n,\t2 ,3]",
	} {
		if err := schema.Check([]byte(doc), 0); err != nil {
			t.Errorf("Check(%q) = %v, want nil", doc, err)
		}
	}
}
