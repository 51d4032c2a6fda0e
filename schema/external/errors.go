package external

import (
	"fmt"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// An Error says why a document was refused.
type Error struct {
	// Document is what the text was read as.
	Document Document
	// Syntax is where and why the text is not JSON by the rules of [schema.Check]; nil where it is.
	Syntax *schema.SyntaxError
	// Violations is never empty. What parses a document stops at the first; [Explain] lists all.
	Violations []schema.Violation
}

// Error is a sentence for the other side: which field it is (its JSON pointer), what it was, what is
// expected. It holds at most 200 characters of the text.
func (e *Error) Error() string {
	if e.Syntax != nil {
		return "malformed JSON: " + e.Syntax.Error()
	}
	return e.Violations[0].String()
}

// Unwrap returns e.Syntax, if there is one.
func (e *Error) Unwrap() error {
	if e.Syntax == nil {
		return nil
	}
	return e.Syntax
}

// refuse words what the decoder stopped at. A malformed text is told first, wherever the decoder
// stopped.
func refuse(d *decoder) *Error {
	if err := schema.Check(d.doc, schema.DefaultDepth); err != nil {
		syntax := err.(*schema.SyntaxError) //nolint:errorlint // Check's own
		return &Error{Syntax: syntax, Violations: []schema.Violation{schema.Malformed(syntax)}}
	}
	violation := violationAt(d.doc, d.at, d.want)
	if d.missing != "" {
		violation.Pointer += "/" + scan.EscapePointer(d.missing)
		violation.Found = schema.Missing
	}
	return &Error{Violations: []schema.Violation{violation}}
}

func violationAt(doc []byte, at int, want phrase) schema.Violation {
	pointer, _, _ := scan.Where(doc, at, scan.OK)
	return schema.Violation{Pointer: pointer, Found: schema.Found(doc, at), Expected: want()}
}

// parsers has, for each document, what reads it, without the value.
var parsers = map[Document]func(doc []byte) error{
	TurnRequestV1:    func(doc []byte) error { _, err := ParseTurnRequest(doc); return err },
	EventV1:          func(doc []byte) error { _, err := ParseEvent(doc); return err },
	TurnOutcomeV1:    func(doc []byte) error { _, err := ParseOutcome(doc); return err },
	ProfileV1:        func(doc []byte) error { _, err := ParseProfile(doc); return err },
	BindingV1:        func(doc []byte) error { _, err := ParseBinding(doc); return err },
	ProductV1:        func(doc []byte) error { _, err := ParseProduct(doc); return err },
	ClassificationV1: func(doc []byte) error { _, err := ParseClassification(doc); return err },
}

// Check reads doc as a document of this kind and drops what it read; the error is an [*Error]. It
// panics for a kind that is none.
func Check(kind Document, doc []byte) error {
	parse, ok := parsers[kind]
	if !ok {
		panic(fmt.Sprintf("external: %q is no kind of document", string(kind)))
	}
	return parse(doc)
}

// DocumentOf tells what doc says that it is, in its field "schema". ok is false where that is none of
// the kinds, or doc is no JSON object by the rules of [schema.Check].
func DocumentOf(doc []byte) (kind Document, ok bool) {
	if schema.Check(doc, 0) != nil {
		return "", false
	}
	d := decoder{doc: doc, i: scan.Space(doc, 0)}
	if doc[d.i] != '{' {
		return "", false
	}
	d.i = d.find(d.i, "schema")
	s, is := d.text()
	if is != isText {
		return "", false
	}
	return known[Document](s)
}

// explainLimit is the number of values that a document may have for the schema validator to see it.
// Each wrong one costs the validator far more than it costs to send.
const explainLimit = 5000

// Explain lists all that is wrong with doc as a document of this kind, at most [schema.MaxViolations]:
// what breaks the rules for JSON of this package, in the order of the text, then what the schema says,
// in that order too. It is nil for a document that is fine. It is slow, and meant for refused documents
// only. Where the text is malformed, or has more than 5,000 values, what [Check] found is the only
// violation. It panics for a kind that is none.
func Explain(kind Document, doc []byte) []schema.Violation {
	err := Check(kind, doc)
	if err == nil {
		return nil
	}
	refusal := err.(*Error) //nolint:errorlint // Check's own
	if refusal.Syntax != nil || tooMany(doc) {
		return refusal.Violations
	}
	violations := append(allUnfit(kind, doc), schemaOf(kind).Validate(doc)...)
	if len(violations) == 0 {
		return refusal.Violations
	}
	return violations[:min(len(violations), schema.MaxViolations)]
}

// tooMany tells whether a well-formed document has more than explainLimit values.
func tooMany(doc []byte) bool {
	s := scan.Get()
	defer s.Put()
	s.Value(doc, 0, 0, schema.DefaultDepth)
	return s.Values > explainLimit
}

// allUnfit lists the strings and numbers of a well-formed document that break the rules for JSON of
// this package.
func allUnfit(kind Document, doc []byte) []schema.Violation {
	var violations []schema.Violation
	look := func(from, to int, integers bool) {
		for len(violations) < schema.MaxViolations {
			i, want := unfit(doc[from:to], integers)
			if i < 0 {
				return
			}
			at := from + i
			violations = append(violations, violationAt(doc, at, want))
			s := scan.Get()
			from, _ = s.Value(doc, at, 0, schema.DefaultDepth)
			s.Put()
		}
	}
	d := decoder{doc: doc, i: scan.Space(doc, 0)}
	if kind != EventV1 || doc[d.i] != '{' {
		look(0, len(doc), true)
		return violations
	}
	d.i++
	s := scan.Get()
	defer s.Put()
	for first := true; ; first = false {
		from := d.i
		name, more, ok := d.member(first)
		if !ok || !more {
			return violations
		}
		look(from, d.i, true) // the key
		end, _ := s.Value(doc, d.i, 0, schema.DefaultDepth)
		look(d.i, end, name != "input" && name != "question")
		d.i = end
	}
}
