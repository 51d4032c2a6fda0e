package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
)

// SetEndpoint sets the endpoint of the manifest's agent block. A manifest without a block gets one,
// under "agent", with the runtime that belongs to its id. With several blocks it is an error: name the
// one meant, as in Set("/agents/1/endpoint", endpoint).
//
// An endpoint that [Manifest.Check] would refuse is refused here with an [*Error]; the manifest stays as
// it was after any error.
func (m *Manifest) SetEndpoint(endpoint string) error {
	blocks := m.blocks()
	if len(blocks) > 1 {
		return fmt.Errorf("manifest: there are %d agent blocks: name the one whose endpoint is meant, as in %q", len(blocks), blocks[0].pointer+"/endpoint")
	}
	pointer := "/agent/endpoint"
	if len(blocks) == 1 {
		pointer = blocks[0].pointer + "/endpoint"
	}
	if found, expected, ok := checkEndpoint(endpoint); !ok {
		return refused(pointer, found, expected)
	}
	if len(blocks) == 1 {
		return m.Set(pointer, endpoint)
	}
	return m.Set("/agent", struct {
		Runtime  string `json:"runtime"`
		Endpoint string `json:"endpoint"`
	}{runtimePrefix + m.ID(), endpoint})
}

// Set puts a value at a JSON pointer (RFC 6901). A value that is there is replaced, and no other byte of
// the document changes. A member that an object lacks is added as its last, spaced as the one before it,
// or indented as the document is as far as can be told. Elements cannot be added to an array.
//
// value is encoded by encoding/json without its HTML escapes; a [json.RawMessage] is taken as it is.
// Nothing is judged by the contract here: see [Manifest.Check]. The manifest stays as it was after any
// error.
func (m *Manifest) Set(pointer string, value any) error {
	old, parent, err := m.find(pointer)
	switch {
	case err != nil:
		return err
	case parent == nil:
		return errors.New("manifest: the whole document cannot be set; parse another")
	case old == nil && parent.kind != '{':
		return fmt.Errorf("manifest: nothing can be added at %q: what would hold it is not an object", pointer)
	}
	text, err := encode(value)
	if err == nil {
		err = schema.Check(text, schema.DefaultDepth) // one value, and not a value and a member after it
	}
	if err != nil {
		return fmt.Errorf("manifest: value for %q: %w", pointer, err)
	}
	style := m.style()
	_, style.literal = value.(json.RawMessage)
	var doc []byte
	if old != nil {
		doc = slices.Concat(m.doc[:old.start], style.format(text, lineIndent(m.doc, old.start)), m.doc[old.end:])
	} else {
		name := unescapeToken(pointer[strings.LastIndexByte(pointer, '/')+1:])
		doc, err = m.add(parent, name, text, style)
		if err != nil {
			return err
		}
	}
	if err := m.take(doc); err != nil {
		return fmt.Errorf("manifest: value for %q: %w", pointer, err)
	}
	return nil
}

func encode(value any) ([]byte, error) {
	if text, ok := value.(json.RawMessage); ok {
		return bytes.TrimSpace(text), nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// add returns the document with one more member at the end of an object.
func (m *Manifest) add(object *node, name string, text []byte, style style) ([]byte, error) {
	quoted, err := jsontext.AppendQuote(nil, name)
	if err != nil {
		return nil, fmt.Errorf("manifest: the name of a member: %w", err)
	}
	if len(object.members) == 0 {
		var open, inner, shut string
		if style.unit != "" {
			outer := lineIndent(m.doc, object.start)
			inner = outer + style.unit
			open, shut = style.newline+inner, style.newline+outer
		}
		return slices.Concat(m.doc[:object.start+1], []byte(open), quoted, []byte(style.colon),
			style.format(text, inner), []byte(shut), m.doc[object.end-1:]), nil
	}
	last := object.members[len(object.members)-1]
	var between []byte // the last value and the new name, comma included
	if n := len(object.members); n > 1 {
		between = m.doc[object.members[n-2].value.end:last.nameStart]
	} else {
		between = append([]byte(","), m.doc[object.start+1:last.nameStart]...)
		if len(between) == 1 && strings.HasSuffix(style.colon, " ") {
			between = append(between, ' ')
		}
	}
	inner := ""
	if i := bytes.LastIndexByte(between, '\n'); i >= 0 {
		inner = leadingSpace(between[i+1:])
	} else {
		style.unit = "" // this object is written on one line
	}
	colon := m.doc[last.nameEnd:last.value.start]
	return slices.Concat(m.doc[:last.value.end], between, quoted, colon,
		style.format(text, inner), m.doc[last.value.end:]), nil
}

// A style is how a document is spaced, as far as can be told from its first members.
type style struct {
	newline string
	unit    string // of indentation; empty for a document on one line
	colon   string // with what surrounds it
	literal bool   // values are taken as they are
}

func (m *Manifest) style() style {
	s := style{newline: "\n", colon: ":"}
	if bytes.Contains(m.doc, []byte("\r\n")) {
		s.newline = "\r\n"
	}
	inRoot := m.doc[m.root.start:m.root.end]
	if len(m.root.members) > 0 {
		first := m.root.members[0]
		s.colon = string(m.doc[first.nameEnd:first.value.start])
		inRoot = m.doc[m.root.start:first.nameStart]
	}
	if i := bytes.LastIndexByte(inRoot, '\n'); i >= 0 {
		s.unit = strings.TrimPrefix(lineIndent(m.doc, m.root.start+i+1), lineIndent(m.doc, m.root.start))
		if s.unit == "" && len(m.root.members) == 0 {
			s.unit, s.colon = "  ", ": " // {, a new line, }: nothing more can be told
		}
	}
	return s
}

// format spaces a value for a line that is indented by prefix. Only white space changes: numbers and
// strings keep their spelling.
func (s style) format(text []byte, prefix string) []byte {
	if s.literal || (text[0] != '{' && text[0] != '[') {
		return text
	}
	options := []jsontext.Options{
		jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true),
	}
	if s.unit != "" {
		options = append(options, jsontext.WithIndentPrefix(prefix), jsontext.WithIndent(s.unit))
	} else {
		spaced := strings.HasSuffix(s.colon, " ")
		options = append(options, jsontext.SpaceAfterColon(spaced), jsontext.SpaceAfterComma(spaced))
	}
	text = must(jsontext.AppendFormat(nil, text, options...))
	if s.newline != "\n" {
		text = bytes.ReplaceAll(text, []byte("\n"), []byte(s.newline))
	}
	return text
}

// lineIndent is the white space that begins the line in which an offset lies.
func lineIndent(doc []byte, at int) string {
	return leadingSpace(doc[bytes.LastIndexByte(doc[:at], '\n')+1:])
}

func leadingSpace(line []byte) string {
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}
