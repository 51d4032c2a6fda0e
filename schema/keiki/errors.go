package keiki

import (
	"fmt"
	"slices"
	"sync"

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

	violation schema.Violation // which may quote a string
}

// Error is the place and the message.
func (e *Error) Error() string { return schema.PointerName(e.Pointer) + ": " + e.Message }

// refuse words what the decoder stopped at. A malformed text is told first, wherever that was.
func refuse(d *decoder) *Error {
	if err := schema.Check(d.Doc, schema.DefaultDepth); err != nil {
		e := err.(*schema.SyntaxError) //nolint:errorlint // Check's own
		return &Error{CodeInvalidJSON, e.Pointer,
			fmt.Sprintf("not JSON: %s (line %d, column %d, byte %d)", e.Message, e.Line, e.Column, e.Offset), schema.Malformed(e)}
	}
	pointer, _, _ := scan.Where(d.Doc, d.at, scan.OK)
	if d.missing != "" {
		return lacking(CodeInvalidRequest, pointer+"/"+d.missing, d.want)
	}
	return wrongValue(CodeInvalidRequest, pointer, d.Doc, d.at, d.want)
}

// lacking is the error of a field that is not there.
func lacking(code Code, pointer, want string) *Error {
	return &Error{code, pointer, "missing, expected " + want, schema.Violation{Pointer: pointer, Found: schema.Missing, Expected: want}}
}

// wrongValue is the error of the value at offset at of a well-formed text.
func wrongValue(code Code, pointer string, doc []byte, at int, want string) *Error {
	quoted := schema.Found(doc, at)
	found := quoted
	if doc[at] == '"' && code != CodeUnknownType {
		found = "a string"
		if doc[at+1] == '"' {
			found = "an empty string"
		}
	}
	return &Error{code, pointer, "found " + found + ", expected " + want, schema.Violation{Pointer: pointer, Found: quoted, Expected: want}}
}

// refuseRequest is refuse for a request, of which the type is told next, and then the version.
func refuseRequest(d *decoder, kind Kind) *Error {
	e := refuse(d)
	if e.Code == CodeInvalidJSON {
		return e
	}
	if d.want == theTypes {
		if d.missing != "" {
			return lacking(CodeUnknownType, "/type", theTypes)
		}
		return wrongValue(CodeUnknownType, "/type", d.Doc, d.at, theTypes)
	}
	c := scan.Cursor{Doc: d.Doc, At: scan.Space(d.Doc, 0)}
	there := find(&c, "version")
	v := decoder{Cursor: c}
	want := theVersion
	switch {
	case kind == "":
		return e // no object
	case kind == KindCancelled:
		if !there || c.Peek() == 'n' {
			return e
		}
		want += orNull
	case !there:
		return lacking(CodeUnsupportedVersion, "/version", want)
	}
	if v.version() {
		return e
	}
	return wrongValue(CodeUnsupportedVersion, "/version", d.Doc, c.At, want)
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

// explainLimit is the number of values that a body may have for the schema validator to see it. Each
// wrong one costs the validator far more than it costs to send.
const explainLimit = 5000

// Explain lists all that is wrong with a body as a request of this kind, at most [schema.MaxViolations],
// in the order of the body, by the published schema; nothing for one that [ParseRequest] reads as such.
// It is slow, and a violation may quote some of the body: it is for tools, not for answers. Where a body
// is malformed, or has more than 5,000 values, the first that is wrong is the only violation. It panics
// for a kind that is none.
func Explain(kind Kind, body []byte) []schema.Violation {
	s := schemaOf(kind)
	_, d, ok := read(kind, body)
	if ok {
		return nil
	}
	return explain(s, body, refuse(d))
}

// ExplainClaim is [Explain] for an answer of the inbox: nothing for one that [ParseClaim] reads. Where a
// token should be, or might be, a violation may quote it.
func ExplainClaim(body []byte) []schema.Violation {
	_, first := parseClaim(body)
	if first == nil {
		return nil
	}
	// What must be there is told before what it may be, and a wrong value is both.
	return slices.CompactFunc(explain(claimSchema(), body, first), func(a, b schema.Violation) bool { return a.Pointer == b.Pointer })
}

// explain lists what the schema says of a body, of which the decoder says first.
func explain(s *schema.Schema, body []byte, first *Error) []schema.Violation {
	if first.Code != CodeInvalidJSON && !tooMany(body) {
		if list := s.Validate(body); len(list) > 0 {
			return list
		}
	}
	return []schema.Violation{first.violation}
}

// tooMany tells whether a well-formed body has more than explainLimit values.
func tooMany(body []byte) bool {
	s := scan.Get()
	defer s.Put()
	s.Value(body, 0, 0, schema.DefaultDepth)
	return s.Values > explainLimit
}

// schemaOf returns the compiled schema of a kind of request.
func schemaOf(kind Kind) *schema.Schema {
	s, ok := compiled()[kind]
	if !ok {
		panic(fmt.Sprintf("keiki: %q is no kind of request", string(kind)))
	}
	return s
}

var compiled = sync.OnceValue(func() map[Kind]*schema.Schema {
	all := map[Kind]*schema.Schema{}
	for _, kind := range Kinds() {
		all[kind] = compile(SchemaID(kind), Schema(kind))
	}
	return all
})

var claimSchema = sync.OnceValue(func() *schema.Schema { return compile(ClaimSchemaID, ClaimSchema()) })

func compile(id string, doc []byte) *schema.Schema {
	s, err := schema.Compile(id, doc)
	if err != nil {
		panic(err) // a mistake in this package, which its tests find
	}
	return s
}
