package schema_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
)

// FuzzCheck holds the scanner to another strict reader, and the places of its errors to sense.
func FuzzCheck(f *testing.F) {
	for _, doc := range []string{
		``, ` `, `{}`, `[[],{"a":[1,-0.5e+7]},"x\u00e9\n",true,false,null]`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"\ud800":1,"\udc00":2}`,
		`"\ud83d\ude00"`, `"\ud83d"`, "\"\xff\"", "\ufeff{}", `{}{}`, `[1,]`, `{"a":1,}`, `01`, `1.`, `-`, `"` + "\n" + `"`,
		strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 65) + strings.Repeat("]", 65),
		`{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0,"j":0,"k":0,"c":0}`,
		`{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0,"j":0,"k":0,"\u0063":0}`,
	} {
		f.Add([]byte(doc))
	}
	anything, err := schema.Compile(testID, []byte(`{"additionalProperties":{"type":"integer"},"items":{"maxLength":1}}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := schema.Check(doc, 0)
		if want := wellFormed(doc); want != (err == nil) {
			t.Fatalf("Check(%q) = %v, but the other reader accepts: %v", doc, err, want)
		}
		first := anything.Validate(doc)
		for _, v := range first {
			if !utf8.ValidString(v.String()) || v.Expected == "" || v.Found == "" {
				t.Errorf("Validate(%q) says %q", doc, v)
			}
		}
		if err == nil {
			return
		}
		var e *schema.SyntaxError
		if !errors.As(err, &e) {
			t.Fatalf("Check(%q) = %T", doc, err)
		}
		if e.Offset < 0 || e.Offset > int64(len(doc)) {
			t.Fatalf("Check(%q) at %d", doc, e.Offset)
		}
		before := doc[:e.Offset]
		if lines := bytes.Count(before, []byte("\n")); e.Line != lines+1 {
			t.Errorf("Check(%q) at byte %d, line %d", doc, e.Offset, e.Line)
		}
		if e.Pointer != "" && e.Pointer[0] != '/' {
			t.Errorf("Check(%q) at %q", doc, e.Pointer)
		}
		if len(first) != 1 || first[0].Pointer != e.Pointer {
			t.Errorf("Validate(%q) = %v, Check says %v", doc, first, err)
		}
	})
}

// wellFormed is Check's verdict, by another reader.
func wellFormed(doc []byte) bool {
	if !utf8.Valid(doc) {
		return false
	}
	// The option is for lone surrogates.
	d := jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowInvalidUTF8(true))
	depth := 0
	for first := true; ; first = false {
		token, err := d.ReadToken()
		if err != nil {
			return errors.Is(err, io.EOF) && !first
		}
		switch token.Kind() {
		case '{', '[':
			depth++
			if depth > schema.DefaultDepth {
				return false
			}
		case '}', ']':
			depth--
		}
		if depth == 0 && d.StackDepth() == 0 {
			// Only white space may follow: the decoder itself would read another value.
			_, err := d.ReadToken()
			return errors.Is(err, io.EOF)
		}
	}
}
