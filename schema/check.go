package schema

import (
	"fmt"
	"unicode/utf8"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// DefaultDepth is how many arrays and objects may be open at once where nothing else is asked for.
// The root value is the first (lowkey.md, Settled readings).
const DefaultDepth = 64

// Check reports whether doc is exactly one JSON text (RFC 8259), more strictly than encoding/json:
//
//   - no object, at any depth, has a key twice; keys are compared after unescaping, byte for byte;
//   - doc is valid UTF-8 and does not begin with a byte order mark;
//   - at most maxDepth arrays and objects are open at once; zero means [DefaultDepth];
//   - only white space follows the value.
//
// An escaped surrogate without its other half is accepted; readers take it for U+FFFD. doc may be up
// to 4 GiB long. The error is a [*SyntaxError]. Time and memory are linear in the length of doc,
// whatever it holds, and nothing of doc is kept. Check may be called from several goroutines.
func Check(doc []byte, maxDepth int) error {
	if maxDepth <= 0 {
		maxDepth = DefaultDepth
	}
	s := scan.Get()
	at, f := s.Doc(doc, maxDepth)
	s.Put()
	if f == scan.OK {
		return nil
	}
	return newSyntaxError(doc, at, f, maxDepth)
}

// A SyntaxError says why bytes are not one JSON text, and where.
type SyntaxError struct {
	// Offset is the byte, from 0, at which the text went wrong: for a duplicate key its opening quote,
	// for a second value its first byte.
	Offset int64
	// Line and Column are the same place, both from 1. Columns count characters.
	Line, Column int
	// Pointer is the JSON pointer (RFC 6901) of the value that was being read, a duplicate key
	// included; it is empty for the whole document.
	Pointer string
	// Message says what is wrong, without the place. It quotes at most a few characters of the text.
	Message string
}

// Error is the message and the place. It holds at most 200 characters of the text.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s (line %d, column %d, byte %d, in %s)", e.Message, e.Line, e.Column, e.Offset, PointerName(e.Pointer))
}

func newSyntaxError(doc []byte, at int, f scan.Fault, maxDepth int) *SyntaxError {
	e := &SyntaxError{Offset: int64(at)}
	e.Pointer, e.Line, e.Column = scan.Where(doc, at, f)
	e.Message = faultMessage(doc, at, f, maxDepth)
	return e
}

// faultMessage words a fault. What it quotes of doc is at most 60 characters.
func faultMessage(doc []byte, at int, f scan.Fault, maxDepth int) string {
	found := "the text ends"
	if at < len(doc) {
		found = "there is " + character(doc[at:])
	}
	switch f {
	case scan.Empty:
		return "the text is empty, and one JSON value is expected"
	case scan.BOM:
		return "the text begins with a byte order mark, and plain UTF-8 without one is expected"
	case scan.TooLong:
		return "the text is longer than 4 GiB"
	case scan.WantValue:
		return found + " where a value is expected"
	case scan.WantKey:
		return found + " where a key in double quotes is expected"
	case scan.WantColon:
		return found + " where a colon is expected"
	case scan.WantMember:
		return found + " where a comma or } is expected"
	case scan.WantElement:
		return found + " where a comma or ] is expected"
	case scan.BadLiteral:
		return found + " where a value is expected, and it does not begin true, false or null"
	case scan.BadNumber:
		return found + " in a number where JSON allows none"
	case scan.BadEscape:
		return "a string holds a backslash that begins no escape sequence of JSON"
	case scan.BadControl:
		return found + " in a string, where a control character must be escaped"
	case scan.BadUTF8:
		return fmt.Sprintf("there is the byte 0x%02X, which is not part of UTF-8", doc[at])
	case scan.Unterminated:
		return "the text ends in the middle of a string"
	case scan.TooDeep:
		return fmt.Sprintf("arrays and objects are nested more than %d deep", maxDepth)
	case scan.DuplicateKey:
		end, _, _ := scan.String(doc, at+1)
		return "duplicate key " + excerpt(string(scan.AppendUnescaped(nil, doc[at+1:end])), 60)
	case scan.Trailing:
		return found + " after the value, and nothing may follow it"
	}
	return "the text is not JSON"
}

// character names the first character of b.
func character(b []byte) string {
	r, n := utf8.DecodeRune(b)
	switch {
	case r == utf8.RuneError && n <= 1:
		return fmt.Sprintf("the byte 0x%02X", b[0])
	case r == '\'':
		return `a single quote`
	case r == '"':
		return `a double quote`
	}
	return fmt.Sprintf("%q", r)
}
