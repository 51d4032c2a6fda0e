package cli

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
)

// A place is a line and a column, both from 1; columns count characters.
type place struct{ line, column int }

// locate finds where the values are that violations name, in a document that schema.Check accepts: for
// what is missing, where the nearest object or array begins that is there.
func locate(doc []byte, violations []schema.Violation) []place {
	// The offset of each pointer of interest: those named, and all above them.
	offsets := map[string]int{}
	for _, v := range violations {
		for p := v.Pointer; ; p = p[:strings.LastIndexByte(p, '/')] {
			offsets[p] = -1
			if !strings.Contains(p, "/") {
				break
			}
		}
	}
	// The options let everything pass that was judged already.
	dec := jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	for {
		start := int(dec.InputOffset())
		start += len(doc[start:]) - len(bytes.TrimLeft(doc[start:], " \t\r\n,:"))
		token, err := dec.ReadToken()
		if err != nil {
			break
		}
		kind := token.Kind()
		if kind == '}' || kind == ']' {
			continue
		}
		parent, count := dec.StackIndex(dec.StackDepth())
		if kind == '{' || kind == '[' {
			parent, count = dec.StackIndex(dec.StackDepth() - 1)
		}
		if parent == '{' && count%2 == 1 {
			continue // a name
		}
		pointer := string(dec.StackPointer())
		if at, ok := offsets[pointer]; ok && at < 0 {
			offsets[pointer] = start
		}
	}
	places := make([]place, len(violations))
	for i, v := range violations {
		p := v.Pointer
		for offsets[p] < 0 && p != "" {
			p = p[:max(strings.LastIndexByte(p, '/'), 0)]
		}
		places[i] = placeOf(doc, max(offsets[p], 0))
	}
	return places
}

func placeOf(doc []byte, offset int) place {
	before := doc[:offset]
	lineStart := bytes.LastIndexByte(before, '\n') + 1
	return place{1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[lineStart:])}
}
