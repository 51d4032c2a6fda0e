package lowkey

import (
	"sync"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// A Kind tells in which way a request or an event is wrong.
type Kind int

// The kinds, in the order in which they are told: a text that is malformed may have any version.
const (
	// KindMalformed: the text is not JSON by the strict rules of [schema.Check].
	KindMalformed Kind = iota + 1
	// KindVersion: protocolVersion is missing or not the number 1.
	KindVersion
	// KindField: another field is missing or wrong.
	KindField
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{KindMalformed, KindVersion, KindField} }

// String is one word.
func (k Kind) String() string {
	switch k {
	case KindMalformed:
		return "malformed"
	case KindVersion:
		return "version"
	case KindField:
		return "field"
	}
	return "unknown"
}

// An Error says why a request or an event was refused.
type Error struct {
	Kind Kind
	// Syntax is where and why the text is malformed; nil for the other kinds.
	Syntax *schema.SyntaxError
	// Violations is never empty. [Parse] stops at the first; [Explain] lists all.
	Violations []schema.Violation
}

// Error is a sentence for the other side: which field it is (its JSON pointer), what it was, what is
// expected; for a version, the one that was sent and the one that is served. It holds at most 200
// characters of the text.
func (e *Error) Error() string {
	if e.Kind == KindMalformed {
		return "malformed JSON: " + e.Syntax.Error()
	}
	sentence := e.Violations[0].String()
	if e.Kind == KindVersion {
		sentence += ", the only version that is served"
	}
	return sentence
}

// Unwrap returns e.Syntax, if there is one.
func (e *Error) Unwrap() error {
	if e.Syntax == nil {
		return nil
	}
	return e.Syntax
}

// refuse words what the decoder stopped at. A malformed text is told first, wherever the decoder
// stopped; then the version.
func refuse(doc []byte, d *decoder) *Error {
	if err := schema.Check(doc, schema.DefaultDepth); err != nil {
		syntax := err.(*schema.SyntaxError) //nolint:errorlint // Check's own
		return &Error{KindMalformed, syntax, []schema.Violation{schema.Malformed(syntax)}}
	}
	if at, found, ok := sentVersion(doc); ok {
		var n int
		v := decoder{doc: doc, i: at}
		if !found || !v.version(&n) {
			violation := schema.Violation{Pointer: "/protocolVersion", Found: schema.Missing, Expected: theOnly}
			if found {
				violation.Found = schema.Found(doc, at)
			}
			return &Error{KindVersion, nil, []schema.Violation{violation}}
		}
	}
	pointer, _, _ := scan.Where(doc, d.at, scan.OK)
	violation := schema.Violation{Pointer: pointer, Expected: d.want}
	if d.missing != "" {
		violation.Pointer += "/" + d.missing
		violation.Found = schema.Missing
	} else {
		violation.Found = schema.Found(doc, d.at)
	}
	return &Error{KindField, nil, []schema.Violation{violation}}
}

// sentVersion finds the value of protocolVersion in a text that is well-formed. ok is false if the
// text is no object, and found is false if the object has none.
func sentVersion(doc []byte) (at int, found, ok bool) {
	d := decoder{doc: doc, i: scan.Space(doc, 0)}
	defer d.release()
	if !d.open() {
		return 0, false, false
	}
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok || !more {
			return 0, false, ok
		}
		if name == "protocolVersion" {
			return d.i, true, true
		}
		if !d.unknown(0, 1) {
			return 0, false, false
		}
	}
}

// explainLimit is the number of values that a body may have for the schema validator to see it. Each
// wrong one costs the validator far more than it costs to send.
const explainLimit = 5000

// Explain lists all that is wrong with a body that [Parse] has refused, at most
// [schema.MaxViolations], in the order of the body, by the published schema. It is nil for a request that is fine. It
// is slow, and meant for refused requests only. Where a body is malformed, or has more than 5,000
// values, what [Parse] found is the only violation.
func Explain(body []byte) []schema.Violation {
	var r Request
	err := Parse(body, &r)
	if err == nil {
		return nil
	}
	refusal := err.(*Error) //nolint:errorlint // Parse's own
	if refusal.Kind == KindMalformed || tooMany(body) {
		return refusal.Violations
	}
	if list := requestSchema().Validate(body); len(list) > 0 {
		return list
	}
	return refusal.Violations
}

// tooMany tells whether a well-formed body has more than explainLimit values.
func tooMany(body []byte) bool {
	s := scan.Get()
	defer s.Put()
	s.Value(body, 0, 0, schema.DefaultDepth)
	return s.Values > explainLimit
}

var requestSchema = sync.OnceValue(func() *schema.Schema {
	s, err := schema.Compile(SchemaID, []byte(published))
	if err != nil {
		panic(err) // a mistake in this package, which its tests find
	}
	return s
})
