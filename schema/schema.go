package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// draft is the only dialect that is taken.
const draft = "https://json-schema.org/draft/2020-12/schema"

// A Set holds schema documents that may refer to each other by their $id. The zero value is empty.
// Add and Compile are not for several goroutines at once.
type Set struct {
	compiler *jsonschema.Compiler
	docs     map[string]any
}

// Add adds a document, draft 2020-12, whose $id is id; a document without a $id gets this one. doc is
// read as [Check] has it and not kept. Adding an id twice is an error.
func (s *Set) Add(id string, doc []byte) error {
	if err := Check(doc, 0); err != nil {
		return fmt.Errorf("schema %s: %w", id, err)
	}
	if u, err := url.Parse(id); err != nil || !u.IsAbs() || strings.Contains(id, "#") {
		return fmt.Errorf("schema %q: the id must be an absolute URI without a fragment", id)
	}
	if _, ok := s.docs[id]; ok {
		return fmt.Errorf("schema %s: this id is there already", id)
	}
	root, _ := tree(doc, 0)
	if object, ok := root.(map[string]any); ok {
		if own, ok := object["$id"]; ok && own != id {
			return fmt.Errorf("schema %s: its $id is %v", id, own)
		}
		if dialect, ok := object["$schema"]; ok && dialect != draft {
			return fmt.Errorf("schema %s: its $schema is %v, and only %s is understood", id, dialect, draft)
		}
	}
	translated, changed, err := withPatterns(root)
	if err != nil {
		return fmt.Errorf("schema %s: %w", id, err)
	}
	if changed {
		if doc, err = json.Marshal(translated); err != nil {
			return fmt.Errorf("schema %s: %w", id, err)
		}
	}
	if s.compiler == nil {
		s.compiler = jsonschema.NewCompiler()
		s.compiler.Draft = jsonschema.Draft2020
		s.compiler.AssertFormat = true
		s.compiler.LoadURL = refuse
		// The validator's own takes a sign for a digit.
		s.compiler.Formats["date-time"] = func(v any) bool {
			text, ok := v.(string)
			if ok {
				_, ok = dateTimeOf(text)
				return ok
			}
			return true // a format says something of strings alone
		}
		s.docs = map[string]any{}
	}
	if err := s.compiler.AddResource(id, bytes.NewReader(doc)); err != nil {
		return fmt.Errorf("schema %s: %w", id, err)
	}
	s.docs[id] = root
	return nil
}

// refuse is the loader of every [Set]: what was not added is not there.
func refuse(uri string) (io.ReadCloser, error) {
	return nil, fmt.Errorf("%s was not added, and nothing is loaded", uri)
}

// Compile compiles the document with this id, or a part of it if a fragment follows
// (…#/$defs/Event). All documents it refers to must have been added, if not with a name of JSON
// Schema's own.
func (s *Set) Compile(id string) (*Schema, error) {
	base, _, _ := strings.Cut(id, "#")
	if _, ok := s.docs[base]; !ok {
		return nil, fmt.Errorf("schema %s: not added", id)
	}
	compiled, err := s.compiler.Compile(id)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", id, err)
	}
	docs := make(map[string]any, len(s.docs))
	for k, v := range s.docs {
		docs[k] = v
	}
	return &Schema{compiled, phrases{docs}}, nil
}

// Compile makes a [Schema] of one document, draft 2020-12, whose $id is id. A $ref to another document
// is an error: see [Set]. Formats are checked, not only noted.
func Compile(id string, doc []byte) (*Schema, error) {
	var s Set
	if err := s.Add(id, doc); err != nil {
		return nil, err
	}
	return s.Compile(id)
}

// A Schema tells whether documents are as it has it. It may be used from several goroutines.
type Schema struct {
	compiled *jsonschema.Schema
	phrases  phrases
}

// Validate lists what is wrong with doc: nothing, or at most [MaxViolations] violations in the order
// of the document. A field that is missing stands where its object ends. The list is the same each
// time. A doc that does not pass [Check] has that as its only violation. A field whose name is empty
// is reported at its object, since the validator below cannot name it.
//
// Numbers are compared exactly, up to some hundred digits. Time and memory grow with doc and with the
// number of violations, listed or not, some hundred bytes each: bound the length of what strangers
// send.
func (s *Schema) Validate(doc []byte) []Violation {
	if err := Check(doc, 0); err != nil {
		var e *SyntaxError
		errors.As(err, &e)
		return []Violation{Malformed(e)}
	}
	root, _ := tree(doc, 0)
	err := s.compiled.Validate(root)
	if err == nil {
		return nil
	}
	var refusal *jsonschema.ValidationError
	if !errors.As(err, &refusal) {
		// A schema that refers to itself without end: no document is as it has it.
		return []Violation{{"", Found(doc, 0), "a document that the schema can judge: " + err.Error()}}
	}
	return s.translate(doc, root, leaves(nil, refusal))
}

// Malformed words a syntax error as a violation.
func Malformed(e *SyntaxError) Violation {
	return Violation{
		Pointer:  e.Pointer,
		Found:    "malformed",
		Expected: fmt.Sprintf("JSON, but %s (line %d, column %d)", e.Message, e.Line, e.Column),
	}
}

// leaves appends to list the errors in e that have no cause of their own, and those whose causes would
// only confuse, since one of several alternatives was enough.
func leaves(list []*jsonschema.ValidationError, e *jsonschema.ValidationError) []*jsonschema.ValidationError {
	keyword := e.KeywordLocation[strings.LastIndexByte(e.KeywordLocation, '/')+1:]
	switch {
	case len(e.Causes) == 0, keyword == "anyOf", keyword == "oneOf", keyword == "minContains":
		return append(list, e)
	}
	for _, cause := range e.Causes {
		list = leaves(list, cause)
	}
	return list
}

// translate words the validator's errors, and puts them into the order of the document.
func (s *Schema) translate(doc []byte, root any, leaves []*jsonschema.ValidationError) []Violation {
	// Where the fields lie is found for all of them in one walk through the document.
	var places place
	type request struct {
		name     string // of a missing or unknown field, else empty
		missing  bool
		path     []string
		at       *place
		expected string
	}
	var list []request
	for _, leaf := range leaves {
		path := instancePath(leaf.InstanceLocation)
		where, keyword := s.phrases.node(leaf.AbsoluteKeywordLocation)
		node := s.phrases.at(where)
		schema, _ := node.(map[string]any)
		instance, _ := lookup(root, path).(map[string]any)
		switch {
		case judgesKey(leaf.KeywordLocation):
			list = append(list, request{
				path: path, at: places.want(path),
				expected: "under a key that is " + s.phrases.phrase(node, where.doc, 0),
			})
		case keyword == "required" || keyword == "dependentRequired":
			for _, name := range requires(schema, keyword, instance) {
				if _, ok := instance[name]; !ok {
					list = append(list, request{
						name: name, missing: true, path: path, at: places.want(path),
						expected: s.phrases.property(where, name),
					})
				}
			}
		case keyword == "additionalProperties" && schema[keyword] == false:
			for _, name := range unknown(schema, instance) {
				member := append(slices.Clip(path), name)
				list = append(list, request{path: member, at: places.want(member), expected: "no field of this name"})
			}
		case node == false:
			list = append(list, request{path: path, at: places.want(path), expected: "no field of this name"})
		default:
			list = append(list, request{path: path, at: places.want(path), expected: s.phrases.phrase(node, where.doc, 0)})
		}
	}
	scanner := scan.Get()
	places.find(scanner, doc, 0)
	scanner.Put()

	type finding struct {
		at int
		Violation
	}
	found := make([]finding, 0, len(list))
	for _, r := range list {
		f := finding{r.at.start, Violation{Pointer: pointerOf(r.path), Expected: r.expected}}
		if r.missing {
			f.at = r.at.end - 1
			f.Pointer += "/" + scan.EscapePointer(r.name)
			f.Found = Missing
		}
		found = append(found, f)
	}
	// Stable, so that what is missing from one object stays in the schema's order.
	slices.SortStableFunc(found, func(a, b finding) int { return a.at - b.at })

	var violations []Violation
	for _, f := range found {
		if f.Found == "" {
			f.Found = Found(doc, f.at)
		}
		if slices.Contains(violations, f.Violation) {
			continue // a field breaks several keywords of one schema, which one phrase covers
		}
		if violations = append(violations, f.Violation); len(violations) == MaxViolations {
			break
		}
	}
	return violations
}

// judgesKey tells whether an error is about a key, not about the value under it.
func judgesKey(keywordLocation string) bool {
	parts := strings.Split(keywordLocation, "/")
	for i, part := range parts {
		if part != "propertyNames" {
			continue
		}
		switch parts[i-1] {
		case "properties", "patternProperties", "dependentSchemas", "$defs":
		default:
			return true
		}
	}
	return false
}

// requires lists the names that a keyword requires of instance.
func requires(schema map[string]any, keyword string, instance map[string]any) []string {
	var names []string
	add := func(v any) {
		list, _ := v.([]any)
		for _, name := range list {
			if s, ok := name.(string); ok && !slices.Contains(names, s) {
				names = append(names, s)
			}
		}
	}
	if keyword == "required" {
		add(schema[keyword])
		return names
	}
	dependent, _ := schema[keyword].(map[string]any)
	for _, trigger := range slices.Sorted(maps.Keys(dependent)) {
		if _, ok := instance[trigger]; ok {
			add(dependent[trigger])
		}
	}
	return names
}

// unknown lists, sorted, the names in instance that schema, which has additionalProperties false, does
// not know.
func unknown(schema, instance map[string]any) []string {
	properties, _ := schema["properties"].(map[string]any)
	patterns, _ := schema["patternProperties"].(map[string]any)
	var names []string
	for name := range instance {
		_, known := properties[name]
		for p := range patterns {
			// It has been translated and compiled before.
			translated, err := pattern(p)
			known = known || err == nil && regexp.MustCompile(translated).MatchString(name)
		}
		if !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// instancePath splits the validator's own form of a JSON pointer, whose parts are escaped for a URL
// after they are for a pointer.
func instancePath(location string) []string {
	if location == "" {
		return nil
	}
	parts := strings.Split(location[1:], "/")
	for i, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain
		}
		parts[i] = unescapePointer(part)
	}
	return parts
}

func unescapePointer(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
}

func pointerOf(path []string) string {
	var b strings.Builder
	for _, part := range path {
		b.WriteByte('/')
		b.WriteString(scan.EscapePointer(part))
	}
	return b.String()
}

// lookup returns what lies at path in a tree, or nil.
func lookup(v any, path []string) any {
	for _, part := range path {
		switch at := v.(type) {
		case map[string]any:
			v = at[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}
