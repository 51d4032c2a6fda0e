package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/external"
)

// An externalKind is a kind of document of agent.external-runtime, as the command line names it.
type externalKind struct {
	name  string
	kind  external.Document
	about string // for the list of schemas
}

const kindExternalEvents = "external-events"

// externalKinds are all of them.
var externalKinds = []externalKind{
	{"external-request", external.TurnRequestV1, "agent.external-runtime v1: a turn request"},
	{kindExternalEvents, external.EventV1, "agent.external-runtime v1: one line of a turn's stream"},
	{"external-outcome", external.TurnOutcomeV1, "agent.external-runtime v1: a turn's outcome"},
	{"external-profile", external.ProfileV1, "agent.external-runtime v1: a profile"},
	{"external-binding", external.BindingV1, "agent.external-runtime v1: a binding"},
	{"external-product", external.ProductV1, "agent.external-runtime v1: a product"},
	{"classification", external.ClassificationV1, "the classification label in requests, products and tool requests"},
}

// externalNamed finds a kind by its name here, or by the document's own; nil if there is none.
func externalNamed(name string) *externalKind {
	i := slices.IndexFunc(externalKinds, func(e externalKind) bool { return e.name == name || string(e.kind) == name })
	if i < 0 {
		return nil
	}
	return &externalKinds[i]
}

// guessExternal tells a document of agent.external-runtime by what it says that it is, and where it does
// not say, by the names of its members. It is empty for others.
func guessExternal(names map[string]bool, says string) string {
	if e := externalNamed(says); e != nil {
		return e.name
	}
	for _, t := range []struct{ kind, has string }{
		{"external-request", "idempotency/key"},
		{"external-request", "input/parts"},
		{kindExternalEvents, "seq/no"},
		{kindExternalEvents, "event/ref"},
		{"external-outcome", "outcome/ref"},
		{"external-outcome", "retryability"},
		{"external-product", "product/digest"},
		{"external-binding", "agent-binding/ref"},
		{"external-profile", "driver/variant"},
		{"external-profile", "usage/fidelity"},
		{"external-binding", "binding/digest"},
		{"classification", "source_tier"},
	} {
		if names[t.has] {
			return t.kind
		}
	}
	return ""
}

// severalLines tells whether what start begins with is one object that goes over several lines, and so
// not a line of a stream.
func severalLines(start []byte) bool {
	start = bytes.TrimLeft(start, " \t\r\n")
	dec := jsontext.NewDecoder(bytes.NewReader(start), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	_ = dec.SkipValue() // as far as it can be read
	return bytes.IndexByte(start[:dec.InputOffset()], '\n') >= 0
}

func readProfile(file string) (*external.Profile, error) {
	doc, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	p, err := external.ParseProfile(doc)
	if err != nil {
		return nil, fmt.Errorf("--profile: %s: %w", file, err)
	}
	return p, nil
}

// checkExternal checks a whole document, and the digests that it carries.
func (v *verdict) checkExternal(kind external.Document, doc []byte) {
	v.oneEvent = true
	var list []schema.Violation
	if err := external.Check(kind, doc); err != nil {
		var wrong *external.Error
		if errors.As(err, &wrong) && wrong.Syntax != nil {
			v.malformed(wrong.Syntax)
			return
		}
		list = external.Explain(kind, doc)
	}
	switch s := sealOf(kind); {
	case s != nil:
		v.checkSeal(s, doc, list)
	case len(list) == 0 && kind == external.EventV1:
		e, _ := external.ParseEvent(doc)
		v.add(doc, eventDigest(e))
	default:
		v.add(doc, list)
	}
}

// eventDigest checks the digest of what an event asks.
func eventDigest(e *external.Event) []schema.Violation {
	switch e.Kind {
	case external.EventToolRequest:
		digest, err := external.CanonicalDigest(e.Input)
		return digestOf("input/digest", "input", e.InputDigest, digest, err)
	case external.EventOperatorQuestion:
		digest, err := external.CanonicalDigest(e.Question)
		return digestOf("question/digest", "question", e.QuestionDigest, digest, err)
	}
	return nil
}

// digestOf compares a digest that a document carries in a field with that of the value of another field,
// or, where of is empty, of the document itself.
func digestOf(field, of string, said, digest external.Digest, err error) []schema.Violation {
	if err == nil && said == digest {
		return nil
	}
	expected := fmt.Sprintf("%q, the digest of this document with the field set to an empty string", string(digest))
	if of != "" {
		expected = fmt.Sprintf("%q, the digest of the value of %s", string(digest), of)
	}
	if err != nil {
		expected = "a digest, but there is none: " + err.Error()
	}
	return []schema.Violation{{Pointer: "/" + strings.ReplaceAll(field, "/", "~1"), Found: fmt.Sprintf("%q", string(said)), Expected: expected}}
}

// checkExternalEvents checks each line, and holds those that are events to the grammar. The error is one
// of reading.
func (v *verdict) checkExternalEvents(r io.Reader, grammar *external.Grammar, lineLimit int) error {
	last := 0
	for line, err := range ndjson.Lines(r, lineLimit) {
		var long *ndjson.LineTooLongError
		if errors.As(err, &long) {
			v.tooLong(long)
			return nil
		}
		if err != nil {
			return err
		}
		last = line.Number
		data := bytes.Clone(line.Data) // events share its memory, and the grammar keeps some of it
		e, err := external.ParseEvent(data)
		if err != nil {
			var wrong *external.Error
			if errors.As(err, &wrong) && wrong.Syntax != nil {
				v.malformedLine(line.Number, wrong.Syntax)
			} else {
				v.addLine(line.Number, data, external.Explain(external.EventV1, data))
			}
			continue
		}
		v.addLine(line.Number, data, eventDigest(e))
		for _, violation := range grammar.Next(e, len(data)) {
			violation.Pointer = withinLine(violation.Pointer)
			v.addLine(line.Number, data, []schema.Violation{violation})
		}
	}
	for _, violation := range grammar.End() {
		v.Violations = append(v.Violations, finding{last + 1, 0, "", violation.Found, violation.Expected})
	}
	return nil
}

// withinLine takes the event's own number off a pointer into a stream.
func withinLine(pointer string) string {
	if i := strings.IndexByte(pointer[1:], '/'); i >= 0 {
		return pointer[1+i:]
	}
	return ""
}
