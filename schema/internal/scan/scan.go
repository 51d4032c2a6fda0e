package scan

import (
	"bytes"
	"math"
	"sync"
)

// MaxLen is the length in bytes of the longest text that is taken: offsets are kept in 32 bits.
const MaxLen = math.MaxUint32

// A Scanner holds the memory that [Scanner.Value] needs. The zero value is ready; it may be used
// again and again, by one goroutine at a time.
type Scanner struct {
	// Values counts the values that were scanned, those inside others included.
	Values int
	frames []frame
}

// A frame is an open object or array.
type frame struct {
	object bool
	keys   Keys
}

var scanners = sync.Pool{New: func() any { return new(Scanner) }}

// Get returns a scanner for the caller's own use until [Scanner.Put].
func Get() *Scanner {
	s := scanners.Get().(*Scanner)
	s.Values = 0
	return s
}

// Put gives a scanner back.
func (s *Scanner) Put() {
	s.Trim()
	scanners.Put(s)
}

// Trim drops memory beyond what ordinary texts need, so that a hostile one does not leave its behind.
func (s *Scanner) Trim() {
	if len(s.frames) > 256 {
		s.frames = nil
	}
	for i := range s.frames {
		s.frames[i].keys.Trim()
	}
}

// Doc scans a whole text. maxDepth is the number of arrays and objects that may be open at once.
func (s *Scanner) Doc(doc []byte, maxDepth int) (at int, f Fault) {
	i, f := Begin(doc)
	if f != OK {
		return i, f
	}
	if i, f = s.Value(doc, i, 0, maxDepth); f != OK {
		return i, f
	}
	if i = Space(doc, i); i < len(doc) {
		return i, Trailing
	}
	return i, OK
}

// Begin returns the offset of a text's value, or what is wrong with the text before it.
func Begin(doc []byte) (at int, f Fault) {
	if uint64(len(doc)) > MaxLen {
		return 0, TooLong
	}
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"} {
		if bytes.HasPrefix(doc, []byte(mark)) {
			return 0, BOM
		}
	}
	i := Space(doc, 0)
	if i == len(doc) {
		return i, Empty
	}
	return i, OK
}

// Value scans one value, with white space before it, from i and returns its end. depth is the number
// of arrays and objects that are open around it, maxDepth how many may be.
func (s *Scanner) Value(doc []byte, i, depth, maxDepth int) (end int, f Fault) {
	open := 0 // frames in use
	room := maxDepth - depth
	var top *frame

value:
	s.Values++
	i = Space(doc, i)
	if i >= len(doc) {
		return i, WantValue
	}
	switch c := doc[i]; {
	case c == '"':
		if i, _, f = String(doc, i+1); f != OK {
			return i, f
		}
		i++
	case c == '{' || c == '[':
		if open >= room {
			return i, TooDeep
		}
		if open == len(s.frames) {
			s.frames = append(s.frames, frame{})
		}
		top = &s.frames[open]
		open++
		i = Space(doc, i+1)
		top.object = c == '{'
		if c == '[' {
			if i < len(doc) && doc[i] == ']' {
				goto pop
			}
			goto value
		}
		top.keys.Reset()
		if i < len(doc) && doc[i] == '}' {
			goto pop
		}
		goto member
	case c == '-' || isDigit(c):
		if i, f = Number(doc, i); f != OK {
			return i, f
		}
	case c == 't' || c == 'f' || c == 'n':
		if i, f = Literal(doc, i); f != OK {
			return i, f
		}
	default:
		return i, WantValue
	}

next: // a value has ended at i
	if open == 0 {
		return i, OK
	}
	i = Space(doc, i)
	if top.object {
		if i >= len(doc) || doc[i] != ',' && doc[i] != '}' {
			return i, WantMember
		}
		if doc[i] == '}' {
			goto pop
		}
		i = Space(doc, i+1)
		goto member
	}
	if i >= len(doc) || doc[i] != ',' && doc[i] != ']' {
		return i, WantElement
	}
	if doc[i] == ']' {
		goto pop
	}
	i++
	goto value

member: // a key begins at i
	{
		if i >= len(doc) || doc[i] != '"' {
			return i, WantKey
		}
		end, escaped, f := String(doc, i+1)
		if f != OK {
			return end, f
		}
		if !top.keys.Add(doc, i, end, escaped) {
			return i, DuplicateKey
		}
		i = Space(doc, end+1)
		if i >= len(doc) || doc[i] != ':' {
			return i, WantColon
		}
		i++
		goto value
	}

pop: // the top frame ends with the byte at i
	i++
	open--
	if open > 0 {
		top = &s.frames[open-1]
	}
	goto next
}
