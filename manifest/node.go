package manifest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A node is a value and its place in the document.
type node struct {
	kind       jsontext.Kind // { [ " 0 t f n
	start, end int
	pointer    string
	members    []member // of an object, in their order
	elements   []*node  // of an array
}

type member struct {
	name               string
	nameStart, nameEnd int // with the quotes
	value              *node
}

// index finds the places of all values. doc must have passed schema.Check, whose limits also bound the
// depth of the recursion here.
func index(doc []byte) *node {
	// What these options allow has been judged already. Escaped lone surrogates remain, which Check
	// accepts; jsontext would refuse them as invalid UTF-8 and call two of them the same name.
	dec := jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	return indexValue(dec, "")
}

func indexValue(dec *jsontext.Decoder, pointer string) *node {
	n := &node{kind: dec.PeekKind(), pointer: pointer}
	if n.kind != '{' && n.kind != '[' {
		n.start, n.end, _ = raw(dec)
		return n
	}
	must(dec.ReadToken())
	n.start = int(dec.InputOffset()) - 1
	for dec.PeekKind() != n.kind+2 { // } and ] are two after their openings in ASCII
		if n.kind == '[' {
			n.elements = append(n.elements, indexValue(dec, pointer+"/"+strconv.Itoa(len(n.elements))))
			continue
		}
		start, end, quoted := raw(dec)
		name := unquote(quoted)
		n.members = append(n.members, member{name, start, end, indexValue(dec, pointer+"/"+escapeToken(name))})
	}
	must(dec.ReadToken())
	n.end = int(dec.InputOffset())
	return n
}

// raw reads a scalar and tells where it stands.
func raw(dec *jsontext.Decoder) (start, end int, text []byte) {
	text = must(dec.ReadValue())
	end = int(dec.InputOffset())
	return end - len(text), end, text
}

// must is for a document that schema.Check has accepted. Every such document is read by jsontext with
// the options above; the fuzz test holds the two together.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("manifest: checked JSON was refused: %v", err))
	}
	return v
}

// unquote decodes a JSON string. A lone surrogate becomes U+FFFD, for which AppendUnquote also returns
// an error.
func unquote(quoted []byte) string {
	text, _ := jsontext.AppendUnquote(nil, quoted)
	return string(text)
}

// member finds a member by its exact name; nil if n is no object or has none.
func (n *node) member(name string) *node {
	if n == nil {
		return nil
	}
	for i := range n.members {
		if n.members[i].name == name {
			return n.members[i].value
		}
	}
	return nil
}

// text is a string's value, empty for everything else.
func (n *node) text(doc []byte) string {
	if n == nil || n.kind != '"' {
		return ""
	}
	return unquote(doc[n.start:n.end])
}

// find follows a JSON pointer. Where only the last step leads nowhere, the value is nil and parent is
// the object or array that lacks it; where an earlier one does, that is an error.
func (m *Manifest) find(pointer string) (value, parent *node, err error) {
	value = m.root
	if pointer == "" {
		return value, nil, nil
	}
	if pointer[0] != '/' {
		return nil, nil, fmt.Errorf("manifest: %q is not a JSON pointer: it does not begin with a slash", pointer)
	}
	for _, token := range strings.Split(pointer[1:], "/") {
		if value == nil {
			return nil, nil, fmt.Errorf("manifest: nothing can stand at %q: there is no object or array to hold it", pointer)
		}
		parent = value
		value = parent.step(unescapeToken(token))
	}
	return value, parent, nil
}

func (n *node) step(token string) *node {
	if n.kind != '[' {
		return n.member(token)
	}
	i, err := strconv.Atoi(token)
	if err != nil || i < 0 || i >= len(n.elements) || token != strconv.Itoa(i) {
		return nil
	}
	return n.elements[i]
}

func escapeToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func unescapeToken(token string) string {
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
}
