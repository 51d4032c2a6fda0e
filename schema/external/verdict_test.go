package external_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// tb is what rapid's and testing's T have in common.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// schemas are the published schemas, compiled.
var schemas = sync.OnceValues(func() (map[wire.Document]*schema.Schema, error) {
	var set schema.Set
	for _, kind := range wire.Values[wire.Document]() {
		if err := set.Add(wire.SchemaID(kind), wire.Schema(kind)); err != nil {
			return nil, err
		}
	}
	all := map[wire.Document]*schema.Schema{}
	for _, kind := range wire.Values[wire.Document]() {
		s, err := set.Compile(wire.SchemaID(kind))
		if err != nil {
			return nil, err
		}
		all[kind] = s
	}
	return all, nil
})

// parse reads a document of a kind into its type.
func parse(kind wire.Document, doc []byte) (any, error) {
	switch kind {
	case wire.TurnRequestV1:
		return keep(wire.ParseTurnRequest(doc))
	case wire.EventV1:
		return keep(wire.ParseEvent(doc))
	case wire.TurnOutcomeV1:
		return keep(wire.ParseOutcome(doc))
	case wire.ProfileV1:
		return keep(wire.ParseProfile(doc))
	case wire.BindingV1:
		return keep(wire.ParseBinding(doc))
	case wire.ProductV1:
		return keep(wire.ParseProduct(doc))
	}
	return keep(wire.ParseClassification(doc))
}

func keep[T any](v *T, err error) (any, error) { return v, err }

// empty is a document of a kind without anything in it.
func empty(kind wire.Document) any {
	return map[wire.Document]any{
		wire.TurnRequestV1: new(wire.TurnRequest), wire.EventV1: new(wire.Event), wire.TurnOutcomeV1: new(wire.Outcome),
		wire.ProfileV1: new(wire.Profile), wire.BindingV1: new(wire.Binding), wire.ProductV1: new(wire.Product),
		wire.ClassificationV1: new(wire.Classification),
	}[kind]
}

// follows tells whether doc keeps the rules for JSON of the package comment, by means of other
// libraries than the package's own.
func follows(kind wire.Document, doc []byte) bool {
	if schema.Check(doc, 0) != nil {
		return false
	}
	d := jsontext.NewDecoder(bytes.NewReader(doc)) // refuses lone surrogates
	for {
		token, err := d.ReadToken()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if token.Kind() != '0' {
			continue
		}
		if _, err := strconv.ParseFloat(token.String(), 64); err != nil {
			return false
		}
		at := d.StackPointer()
		free := kind == wire.EventV1 && (at == "/input" || strings.HasPrefix(string(at), "/input/") || at == "/question" || strings.HasPrefix(string(at), "/question/"))
		// Beyond 2^53 the nearest double of an integer that is too large is too large too, and only
		// integers are that large: what is smaller in the last places is refused by the schema.
		if f, _ := strconv.ParseFloat(token.String(), 64); !free && math.Abs(f) > 1<<53-1 {
			return false
		}
	}
}

// hold holds the parser of a kind of document to the verdict of the published schema and of the rules
// for JSON, and to the values that another decoder finds.
func hold(t tb, kind wire.Document, doc []byte) (accepted bool) {
	t.Helper()
	all, err := schemas()
	if err != nil {
		t.Fatalf("%v", err)
	}
	before := bytes.Clone(doc)
	follow := follows(kind, doc)
	list := all[kind].Validate(doc)
	value, err := parse(kind, doc)
	explained := wire.Explain(kind, doc)
	if !bytes.Equal(doc, before) {
		t.Fatalf("%q was changed to %q", before, doc)
	}
	if (wire.Check(kind, doc) == nil) != (err == nil) {
		t.Errorf("Check and the parser disagree about %q", doc)
	}
	var refusal *wire.Error
	switch {
	case err == nil:
		if !follow || list != nil {
			t.Fatalf("%s: the parser accepts %q, but the rules for JSON say %v and the schema %v", kind, doc, follow, list)
		}
		if explained != nil {
			t.Errorf("%s: the parser accepts %q, but Explain says %v", kind, doc, explained)
		}
		compareValue(t, kind, doc, value)
		return true
	case !errors.As(err, &refusal):
		t.Fatalf("%s: parsing %q gives %T", kind, doc, err)
	case follow && list == nil:
		t.Fatalf("%s: the parser says %v of %q, but the rules for JSON and the schema accept it", kind, err, doc)
	case refusal.Document != kind:
		t.Errorf("%s: the error is about %s", kind, refusal.Document)
	}
	if syntax := schema.Check(doc, 0); (syntax != nil) != (refusal.Syntax != nil) || syntax != nil && cmp.Diff(syntax, error(refusal.Syntax)) != "" {
		t.Errorf("%s: the parser says %v of %q, but Check says %v", kind, err, doc, syntax)
	}
	if n := len(explained); n == 0 || n > schema.MaxViolations {
		t.Errorf("%s: Explain(%q) lists %d violations", kind, doc, n)
	}
	// Where the kind of an object is wrong, the schema does not tell what else is wrong in it.
	untold := slices.ContainsFunc(explained, func(v schema.Violation) bool {
		return strings.HasSuffix(v.Pointer, "/kind") || strings.HasSuffix(v.Pointer, "_tier")
	})
	// And of a field that its kind does not have it tells just that.
	first := refusal.Violations[0]
	told := slices.ContainsFunc(explained, func(v schema.Violation) bool {
		return v == first || v.Pointer == first.Pointer && v.Expected == "no field of this name"
	})
	if !untold && len(explained) < schema.MaxViolations && !told {
		t.Errorf("%s: the parser says %v of %q, but Explain %v", kind, err, doc, explained)
	}
	for _, v := range append(explained, refusal.Violations...) {
		if s := v.String(); utf8.RuneCountInString(s) > 900 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x00") {
			t.Errorf("%s: %q is no sentence to send", kind, s)
		}
	}
	return false
}

// difference tells how two values differ. Package cmp takes exponential time for deeply nested origins,
// so it is asked only where there is a difference.
func difference(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	a, errA := json.MarshalIndent(want, "", " ")
	b, errB := json.MarshalIndent(got, "", " ")
	if errA == nil && errB == nil && !bytes.Equal(a, b) {
		return cmp.Diff(string(a), string(b))
	}
	return fmt.Sprintf("- %#v\n+ %#v", want, got)
}

// compareValue compares what a parser has read with what another decoder reads, and with what is read
// after it has been written again.
func compareValue(t tb, kind wire.Document, doc []byte, got any) {
	t.Helper()
	// The other decoder does not take 1.0 for an integer; in canonical form it is 1.
	canonical, err := jcs.Transform(doc)
	if err != nil {
		t.Fatalf("%s: %q is accepted, but has no canonical form: %v", kind, doc, err)
	}
	ours, err := wire.AppendCanonical([]byte("x"), doc)
	if err != nil || string(ours) != "x"+string(canonical) {
		t.Errorf("AppendCanonical(%q) = %q, %v, want x%q", doc, ours, err, canonical)
	}
	if r, ok := got.(*wire.TurnRequest); ok {
		if ours, err := r.AppendCanonical([]byte("x")); err != nil || string(ours) != "x"+string(canonical) {
			t.Errorf("the canonical form of the request %q = %q, %v, want x%q", doc, ours, err, canonical)
		}
		if ours, err := wire.WithoutBytes(r).AppendCanonical(nil); err != nil || string(ours) != string(canonical) {
			t.Errorf("the canonical form of the request %q, written anew, = %q, %v, want %q", doc, ours, err, canonical)
		}
		asItCame, err := r.DigestInput()
		anew, err2 := wire.WithoutBytes(r).DigestInput()
		found, err3 := wire.InputDigest(doc)
		if err != nil || err2 != nil || err3 != nil || asItCame != anew || asItCame != found {
			t.Errorf("the digest of the input of %q = %s, %v, and %s, %v, and %s, %v", doc, asItCame, err, anew, err2, found, err3)
		}
	}
	want := empty(kind)
	if err := jsonv2.Unmarshal(canonical, want); err != nil {
		t.Fatalf("%s: %q is accepted, but the other decoder says %v", kind, doc, err)
	}
	again, err := json.Marshal(got)
	if err != nil {
		t.Fatalf("%s: %q, read, does not marshal: %v", kind, doc, err)
	}
	reread, err := parse(kind, again)
	if err != nil {
		t.Fatalf("%s: %q, read and written as %q, is refused: %v", kind, doc, again, err)
	}
	if recanonical, err := jcs.Transform(again); err != nil || !bytes.Equal(recanonical, canonical) {
		t.Errorf("%s: %q, read and written, is %q, %v", kind, doc, again, err)
	}
	if e, ok := got.(*wire.Event); ok {
		line := e.Append([]byte("x"))
		if bytes.ContainsAny(line, "\n\r\u2028\u2029") && !bytes.ContainsAny(slices.Concat(e.Input, e.Question), "\u2028\u2029") {
			t.Errorf("an event has line ends in it: %q", line)
		}
		if e2, err := wire.ParseEvent(line[1:]); err != nil || difference(canonicalInput(t, e), canonicalInput(t, e2)) != "" {
			t.Errorf("%q, read and appended, is %q, %v", doc, line[1:], err)
		}
		got, reread = canonicalInput(t, e), canonicalInput(t, reread.(*wire.Event))
	}
	if r, ok := got.(*wire.TurnRequest); ok {
		got, reread = wire.WithoutBytes(r), wire.WithoutBytes(reread.(*wire.TurnRequest))
	}
	if diff := difference(want, got); diff != "" {
		t.Errorf("%s: %q (-other decoder +parser):\n%s", kind, doc, diff)
	}
	if diff := difference(got, reread); diff != "" {
		t.Errorf("%s: %q, read and written as %q (-before +after):\n%s", kind, doc, again, diff)
	}
}

// canonicalInput is a copy of an event whose raw values are in canonical form.
func canonicalInput(t tb, e *wire.Event) *wire.Event {
	t.Helper()
	c := *e
	for _, raw := range []*json.RawMessage{&c.Input, &c.Question} {
		if *raw == nil {
			continue
		}
		text, err := jcs.Transform(*raw)
		if err != nil {
			t.Fatalf("%v", err)
		}
		*raw = text
	}
	return &c
}

// Whatever is written, parser and schema give one verdict.
func TestParsersAndSchemasAgree(t *testing.T) {
	t.Parallel()
	m := loadMaterial(t)
	for _, kind := range wire.Values[wire.Document]() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			accepted, refused := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				w := writer{t: t, parts: m.parts, names: m.names}
				if hold(t, kind, w.draw(m.seeds[kind])) {
					accepted++
				} else {
					refused++
				}
			})
			t.Logf("%d accepted, %d refused", accepted, refused)
			if accepted < 5 || refused < 5 {
				t.Errorf("%d accepted, %d refused: the test shows nothing", accepted, refused)
			}
		})
	}
}
