package schema

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// phrases words what a schema expects, from the documents of a [Set].
type phrases struct {
	docs map[string]any
}

// maxPhrase is how far phrases follow references and alternatives.
const maxPhrase = 4

// A location is where in which document a schema is.
type location struct {
	doc  string
	path []string
}

func (p phrases) at(l location) any { return lookup(p.docs[l.doc], l.path) }

// node finds the schema, an object, true or false, that an error's absolute keyword location lies in,
// and the keyword.
func (p phrases) node(absolute string) (where location, keyword string) {
	base, fragment, _ := strings.Cut(absolute, "#")
	path := instancePath(strings.TrimSuffix(fragment, "/"))
	n := len(path) - 1
	if n >= 2 && path[n-2] == "dependentRequired" {
		n -= 2 // dependentRequired/a/0
	}
	named := n > 0 && slices.Contains([]string{"properties", "patternProperties", "dependentSchemas", "$defs"}, path[n-1])
	if _, ok := lookup(p.docs[base], path).(bool); ok {
		// Either a schema, or the value of a keyword that takes true and false.
		if n < 0 || named || path[n] != "additionalProperties" && path[n] != "uniqueItems" {
			return location{base, path}, ""
		}
	}
	if n < 0 {
		return location{base, nil}, ""
	}
	return location{base, path[:n]}, path[n]
}

// property words what is expected of the property that the schema at where requires. The schema may be
// a condition or an alternative (then, allOf/0) of the one that tells more of the property.
func (p phrases) property(where location, name string) string {
	for path := where.path; ; path = path[:len(path)-1] {
		schema, _ := lookup(p.docs[where.doc], path).(map[string]any)
		properties, _ := schema["properties"].(map[string]any)
		if property, ok := properties[name]; ok {
			return p.phrase(property, where.doc, 0)
		}
		if len(path) == 0 {
			return "a value"
		}
		switch last := path[len(path)-1]; last {
		case "then", "else", "allOf", "anyOf", "oneOf":
		default:
			if _, err := strconv.Atoi(last); err != nil {
				return "a value"
			}
		}
	}
}

// phrase words what a schema in the document where expects.
func (p phrases) phrase(node any, where string, depth int) string {
	schema, ok := node.(map[string]any)
	if !ok || depth > maxPhrase {
		return "a value"
	}
	if v, ok := schema["const"]; ok {
		return constant(v)
	}
	if list, ok := schema["enum"].([]any); ok {
		return alternatives(list, literal)
	}
	kinds := kindsOf(schema)
	if len(kinds) > 0 {
		return alternatives(kinds, func(kind any) string { return kindPhrase(kind, schema) })
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if list, ok := schema[keyword].([]any); ok {
			return alternatives(list, func(v any) string { return p.phrase(v, where, depth+1) })
		}
	}
	if ref, ok := schema["$ref"].(string); ok {
		target, in := p.follow(ref, where)
		return p.phrase(target, in, depth+1)
	}
	// A schema without a type says something of values of some type only.
	switch {
	case stringBounds(schema) != "":
		return kindPhrase("string", schema)
	case valueBounds(schema) != "":
		return kindPhrase("number", schema)
	case countBounds(schema, "Items", "") != "":
		return kindPhrase("array", schema)
	case countBounds(schema, "Properties", "") != "":
		return kindPhrase("object", schema)
	}
	return "another value"
}

// follow returns what a reference in the document where leads to, or nil.
func (p phrases) follow(ref, where string) (node any, in string) {
	base, err := url.Parse(where)
	if err != nil {
		return nil, where
	}
	target, err := base.Parse(ref)
	if err != nil {
		return nil, where
	}
	id, fragment, _ := strings.Cut(target.String(), "#")
	if fragment != "" && fragment[0] != '/' {
		return nil, id // an anchor
	}
	return lookup(p.docs[id], instancePath(fragment)), id
}

// kindsOf lists the types that a schema allows.
func kindsOf(schema map[string]any) []any {
	switch v := schema["type"].(type) {
	case string:
		return []any{v}
	case []any:
		return v
	}
	return nil
}

// kindPhrase words one type with the bounds that the schema sets to it.
func kindPhrase(kind any, schema map[string]any) string {
	switch kind {
	case "object":
		return "an object" + countBounds(schema, "Properties", "members")
	case "array":
		words := "an array" + countBounds(schema, "Items", "elements")
		if schema["uniqueItems"] == true {
			words += " without equal elements"
		}
		return words
	case "string":
		return "a string" + stringBounds(schema)
	case "integer":
		return "an integer" + valueBounds(schema)
	case "number":
		return "a number" + valueBounds(schema)
	case "boolean":
		return "true or false"
	case "null":
		return "null"
	}
	return "a value"
}

func stringBounds(schema map[string]any) string {
	words := countBounds(schema, "Length", "characters")
	joint := " that is "
	if words != "" {
		joint = " and is "
	}
	switch format, _ := schema["format"].(string); format {
	case "":
	case "date-time":
		words += joint + "a date and time as in RFC 3339"
	case "uri":
		words += joint + "an absolute URI"
	default:
		words += joint + "a valid " + format
	}
	if pattern, ok := schema["pattern"].(string); ok {
		words += " matching " + clip(pattern, 100)
	}
	return words
}

// countBounds words minX and maxX of what is counted in a unit.
func countBounds(schema map[string]any, x, unit string) string {
	low, hasLow := schema["min"+x].(json.Number)
	high, hasHigh := schema["max"+x].(json.Number)
	switch {
	case hasLow && hasHigh && low == high:
		return fmt.Sprintf(" of %s %s", low, unit)
	case hasLow && hasHigh:
		return fmt.Sprintf(" of %s to %s %s", low, high, unit)
	case low == "1":
		return " that is not empty"
	case hasLow && low != "0":
		return fmt.Sprintf(" of at least %s %s", low, unit)
	case hasHigh:
		return fmt.Sprintf(" of at most %s %s", high, unit)
	}
	return ""
}

// valueBounds words the bounds of a number.
func valueBounds(schema map[string]any) string {
	var words []string
	for _, bound := range []struct{ keyword, words string }{
		{"minimum", "of at least"},
		{"exclusiveMinimum", "greater than"},
		{"maximum", "of at most"},
		{"exclusiveMaximum", "less than"},
		{"multipleOf", "divisible by"},
	} {
		if n, ok := schema[bound.keyword].(json.Number); ok {
			words = append(words, bound.words+" "+n.String())
		}
	}
	if len(words) == 0 {
		return ""
	}
	return " " + strings.Join(words, " and ")
}

// constant words a value that is the only one.
func constant(v any) string {
	switch v.(type) {
	case json.Number:
		return "the number " + literal(v)
	case string:
		return "the string " + literal(v)
	}
	return literal(v)
}

// literal writes a value of a schema as JSON.
func literal(v any) string {
	if s, ok := v.(string); ok {
		return excerpt(s, 100)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "a value"
	}
	return clip(string(b), 100)
}

// alternatives joins what the elements of a list are worded as: a, b or c.
func alternatives(list []any, word func(any) string) string {
	var words []string
	for _, v := range list {
		if w := word(v); !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	const most = 12
	if len(words) > most {
		words = append(words[:most], fmt.Sprintf("one of %d more", len(words)-most))
	}
	if len(words) <= 1 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
