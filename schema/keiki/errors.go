package keiki

import (
	"fmt"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// A Code tells in which way a body is wrong, and is what the platform is told.
type Code string

// The codes, in the order in which they are told: a text that is malformed may have any type, and one
// of an unknown type any version.
const (
	// CodeInvalidJSON: the text is not JSON by the strict rules of [schema.Check].
	CodeInvalidJSON Code = "invalid_json"
	// CodeUnknownType: type is missing or not one of [Kinds].
	CodeUnknownType Code = "unknown_type"
	// CodeUnsupportedVersion: version is missing where it must be there, or not the number 1.
	CodeUnsupportedVersion Code = "unsupported_version"
	// CodeInvalidRequest: another field is missing or wrong, or the text is no object.
	CodeInvalidRequest Code = "invalid_request"
)

// Codes are all codes.
func Codes() []Code {
	return []Code{CodeInvalidJSON, CodeUnknownType, CodeUnsupportedVersion, CodeInvalidRequest}
}

// An Error says why a body was refused. Of the body it holds keys, numbers, an unknown type, and of a
// malformed text the character at which it went wrong; no other strings, which may be anybody's words or
// a token.
type Error struct {
	Code Code
	// Pointer is the JSON pointer (RFC 6901) of the value that is wrong, missing or being read; empty for
	// the whole body.
	Pointer string
	// Message says what was found there and what is expected, or why it is not JSON and where.
	Message string
}

// Error is the place and the message.
func (e *Error) Error() string { return schema.PointerName(e.Pointer) + ": " + e.Message }

// refuse words what the decoder stopped at. A malformed text is told first, wherever that was.
func refuse(d *decoder) *Error {
	if err := schema.Check(d.Doc, schema.DefaultDepth); err != nil {
		e := err.(*schema.SyntaxError) //nolint:errorlint // Check's own
		return &Error{CodeInvalidJSON, e.Pointer,
			fmt.Sprintf("not JSON: %s (line %d, column %d, byte %d)", e.Message, e.Line, e.Column, e.Offset)}
	}
	pointer, _, _ := scan.Where(d.Doc, d.at, scan.OK)
	e := &Error{CodeInvalidRequest, pointer, "found " + found(d.Doc, d.at) + ", expected " + d.want}
	if d.missing != "" {
		e.Pointer += "/" + d.missing
		e.Message = "missing, expected " + d.want
	}
	return e
}

// refuseRequest is refuse for a request, of which the type is told next, and then the version.
func refuseRequest(d *decoder, kind Kind) *Error {
	e := refuse(d)
	if e.Code == CodeInvalidJSON {
		return e
	}
	if kind == "" && d.want == theTypes {
		e.Code = CodeUnknownType
		if d.missing == "" {
			e.Message = "found " + schema.Found(d.Doc, d.at) + ", expected " + d.want
		}
		return e
	}
	c := scan.Cursor{Doc: d.Doc, At: scan.Space(d.Doc, 0)}
	there := find(&c, "version")
	v := decoder{Cursor: c}
	want := theVersion
	switch {
	case kind == "":
		return e
	case kind == KindCancelled:
		if !there || c.Peek() == 'n' {
			return e
		}
		want += orNull
	case !there:
		return &Error{CodeUnsupportedVersion, "/version", "missing, expected " + want}
	}
	if v.version() {
		return e
	}
	return &Error{CodeUnsupportedVersion, "/version", "found " + found(d.Doc, c.At) + ", expected " + want}
}

// found says what the value at offset i of a well-formed text is, without the words of a string.
func found(doc []byte, i int) string {
	if doc[i] != '"' {
		return schema.Found(doc, i)
	}
	if doc[i+1] == '"' {
		return "an empty string"
	}
	return "a string"
}

// find goes to the value of a field of the object at the cursor's offset, and tells whether there is one
// before the object ends or is malformed.
func find(c *scan.Cursor, name string) bool {
	if c.Peek() != '{' {
		return false
	}
	c.At++
	s := scan.Get()
	defer s.Put()
	for first := true; ; first = false {
		key, more, ok := c.Member(first)
		if !ok || !more {
			return false
		}
		if key == name {
			return true
		}
		var f scan.Fault
		if c.At, f = s.Value(c.Doc, c.At, 1, schema.DefaultDepth); f != scan.OK {
			return false
		}
	}
}
