package schema

import (
	"encoding/json"
	"strconv"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// tree reads the value at i of a text that the scanner has accepted, as the validator wants it, and
// returns its end. Numbers stay text; those that exact arithmetic would choke on are replaced
// (scan.Plain). The nesting is bounded, since the scanner has counted it.
func tree(doc []byte, i int) (v any, end int) {
	i = scan.Space(doc, i)
	switch doc[i] {
	case '{':
		object := map[string]any{}
		for i = scan.Space(doc, i+1); doc[i] != '}'; {
			key, next := text(doc, i)
			i = scan.Space(doc, next) + 1 // the colon
			object[key], i = tree(doc, i)
			if i = scan.Space(doc, i); doc[i] == ',' {
				i = scan.Space(doc, i+1)
			}
		}
		return object, i + 1
	case '[':
		array := []any{}
		for i = scan.Space(doc, i+1); doc[i] != ']'; {
			v, i = tree(doc, i)
			array = append(array, v)
			if i = scan.Space(doc, i); doc[i] == ',' {
				i++
			}
		}
		return array, i + 1
	case '"':
		return text(doc, i)
	case 't':
		return true, i + len("true")
	case 'f':
		return false, i + len("false")
	case 'n':
		return nil, i + len("null")
	}
	end, _ = scan.Number(doc, i)
	return json.Number(scan.Plain(doc[i:end])), end
}

// text reads the string at i.
func text(doc []byte, i int) (s string, end int) {
	end, escaped, _ := scan.String(doc, i+1)
	raw := doc[i+1 : end]
	if escaped {
		raw = scan.AppendUnescaped(make([]byte, 0, len(raw)), raw)
	}
	return string(raw), end + 1
}

// A place is where in a document something was sought, and what is there.
type place struct {
	inside     map[string]*place
	wanted     bool
	start, end int // of the value; both 0 where there is none
}

// want marks the value at path, and returns its place.
func (p *place) want(path []string) *place {
	for _, part := range path {
		next := p.inside[part]
		if next == nil {
			next = new(place)
			if p.inside == nil {
				p.inside = map[string]*place{}
			}
			p.inside[part] = next
		}
		p = next
	}
	p.wanted = true
	return p
}

// find fills in where the value at i of a text that the scanner has accepted, and all that is marked
// inside it, start and end. It returns the value's end.
func (p *place) find(s *scan.Scanner, doc []byte, i int) int {
	i = scan.Space(doc, i)
	p.start = i
	if doc[i] != '{' && doc[i] != '[' || len(p.inside) == 0 {
		p.end, _ = s.Value(doc, i, 0, len(doc))
		return p.end
	}
	object := doc[i] == '{'
	index := 0
	for i = scan.Space(doc, i+1); doc[i] != '}' && doc[i] != ']'; {
		key := ""
		if object {
			key, i = text(doc, i)
			i = scan.Space(doc, i) + 1 // the colon
		} else {
			key = strconv.Itoa(index)
			index++
		}
		if next := p.inside[key]; next != nil {
			i = next.find(s, doc, i)
		} else {
			i, _ = s.Value(doc, i, 0, len(doc))
		}
		if i = scan.Space(doc, i); doc[i] == ',' {
			i = scan.Space(doc, i+1)
		}
	}
	p.end = i + 1
	return p.end
}
