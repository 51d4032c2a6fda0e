package scan

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Where tells where in a text an offset lies that [Scanner.Doc] returned with f: the JSON pointer of
// the value being read there (empty for the whole text), and line and column, both from 1; columns
// count characters.
func Where(doc []byte, at int, f Fault) (pointer string, line, column int) {
	at = min(at, len(doc))
	before := doc[:at]
	line = 1 + bytes.Count(before, []byte{'\n'})
	column = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return pointerAt(doc, at, f), line, column
}

// pointerAt walks the text, which is right as far as at, and keeps the path.
func pointerAt(doc []byte, at int, f Fault) string {
	type level struct {
		object    bool
		open, end int // the quotes of the current member's key; 0 while there is none
		index     int
	}
	var path []level
	wantKey := false
	if f == Trailing || f == BOM || f == TooLong {
		return ""
	}
	for i := 0; i < at; {
		switch c := doc[i]; c {
		case '{', '[':
			path = append(path, level{object: c == '{'})
			wantKey = c == '{'
		case '}', ']':
			path = path[:len(path)-1]
			wantKey = false
		case ',':
			top := &path[len(path)-1]
			top.index++
			top.open = 0
			wantKey = top.object
		case '"':
			end, _, fault := String(doc, i+1)
			if fault != OK || end >= at {
				i = at // at lies in this string
				continue
			}
			if wantKey {
				top := &path[len(path)-1]
				top.open, top.end = i, end
				wantKey = false
			}
			i = end
		}
		i++
	}
	if f == DuplicateKey {
		if end, _, fault := String(doc, at+1); fault == OK {
			top := &path[len(path)-1]
			top.open, top.end = at, end
		}
	}
	var b strings.Builder
	for _, l := range path {
		switch {
		case l.object && l.open == 0:
			return b.String()
		case l.object:
			b.WriteByte('/')
			b.WriteString(EscapePointer(string(AppendUnescaped(nil, doc[l.open+1:l.end]))))
		default:
			b.WriteByte('/')
			b.WriteString(strconv.Itoa(l.index))
		}
	}
	return b.String()
}

// EscapePointer writes a key as one part of a JSON pointer (RFC 6901).
func EscapePointer(key string) string {
	if !strings.ContainsAny(key, "~/") {
		return key
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
