package lowkey

import (
	"sync"
	"unsafe"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// The decoder reads a request in one pass, straight into the struct, and stops at the first thing that
// is wrong. It only ever says "no", and for a field where and what it wanted: which of several faults
// is told, and in which words, is worked out afterwards from the body (refuse), where time does not
// matter. So the pass itself has no error values, no pointers to fields and no stack of its own.
//
// What it accepts is what the published schema and [schema.Check] accept; tests hold it to that.

// What is expected of the fields, in the words that package schema finds for the published schema.
const (
	anObject  = "an object"
	anArray   = "an array"
	aString   = "a string"
	anID      = "a string that is not empty"
	aBoolean  = "true or false"
	aNumber   = "a number"
	aCount    = "an integer of at least 0"
	theRoles  = `"user", "agent" or "system"`
	theOnly   = "the number 1"
	theTypes  = `"status", "text" or "error"`
	theStatus = `"started", "working", "complete", "error" or "cancelled"`
)

type decoder struct {
	doc []byte
	i   int

	// The last member's key: the offsets of its quotes.
	keyOpen, keyEnd int
	keyEscaped      bool

	// side is what is left of the current chunk of memory for strings with escape sequences.
	side []byte

	// extra is what unknown fields need; nil until there is one.
	extra *extra
	fresh [2]bool // whether extra.keys[i] must be emptied before its next use

	// The first wrong field: the offset of its value, or that of the object that lacks it; what was
	// expected (empty: the text is malformed); and the name of a field that is missing.
	at      int
	want    string
	missing string
}

// extra is the memory that unknown fields need.
type extra struct {
	scanner scan.Scanner
	keys    [2]scan.Keys // unknown keys of the root, and of the object in it that is being read
}

var extras = sync.Pool{New: func() any { return new(extra) }}

func (d *decoder) release() {
	if d.extra == nil {
		return
	}
	d.extra.scanner.Trim()
	d.extra.keys[0].Trim()
	d.extra.keys[1].Trim()
	extras.Put(d.extra)
	d.extra = nil
}

// wrong notes that the value at the current offset is not what is wanted.
func (d *decoder) wrong(want string) bool {
	d.at, d.want = d.i, want
	return false
}

// lacks notes that the object at offset at has no field of this name.
func (d *decoder) lacks(at int, name, want string) bool {
	d.at, d.missing, d.want = at, name, want
	return false
}

// open enters the object at the current offset.
func (d *decoder) open() bool {
	if d.i >= len(d.doc) || d.doc[d.i] != '{' {
		return d.wrong(anObject)
	}
	d.i++
	return true
}

// member reads the next key of an object, up to the value. more is false at the object's end, which is
// read too.
func (d *decoder) member(first bool) (name string, more, ok bool) {
	doc, i := d.doc, d.i
	if i < len(doc) && doc[i] <= ' ' {
		i = scan.Space(doc, i)
	}
	if i >= len(doc) {
		return "", false, false
	}
	switch {
	case doc[i] == '}':
		d.i = i + 1
		return "", false, true
	case first:
	case doc[i] == ',':
		i++
		if i < len(doc) && doc[i] <= ' ' {
			i = scan.Space(doc, i)
		}
		if i >= len(doc) {
			return "", false, false
		}
	default:
		return "", false, false
	}
	if doc[i] != '"' {
		return "", false, false
	}
	end, escaped, f := scan.String(doc, i+1)
	if f != scan.OK {
		return "", false, false
	}
	d.keyOpen, d.keyEnd, d.keyEscaped = i, end, escaped
	raw := doc[i+1 : end]
	name = alias(raw)
	if escaped {
		name = string(scan.AppendUnescaped(nil, raw))
	}
	i = end + 1
	if i < len(doc) && doc[i] <= ' ' {
		i = scan.Space(doc, i)
	}
	if i >= len(doc) || doc[i] != ':' {
		return "", false, false
	}
	i++
	if i < len(doc) && doc[i] <= ' ' {
		i = scan.Space(doc, i)
	}
	d.i = i
	return name, true, true
}

// unknown reads past the value of a field that is not known. level is 0 in the root, 1 in an object
// inside it; depth is how many arrays and objects are open.
func (d *decoder) unknown(level, depth int) bool {
	if d.extra == nil {
		d.extra = extras.Get().(*extra)
		d.fresh = [2]bool{true, true}
	}
	keys := &d.extra.keys[level]
	if d.fresh[level] {
		keys.Reset()
		d.fresh[level] = false
	}
	if !keys.Add(d.doc, d.keyOpen, d.keyEnd, d.keyEscaped) {
		return false
	}
	end, f := d.extra.scanner.Value(d.doc, d.i, depth, schema.DefaultDepth)
	d.i = end
	return f == scan.OK
}

// alias makes bytes a string without a copy.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// text reads a string, which shares memory with the body if there is no escape sequence in it.
func (d *decoder) text(s *string, want string) bool {
	doc, i := d.doc, d.i
	if i >= len(doc) || doc[i] != '"' {
		return d.wrong(want)
	}
	end, escaped, f := scan.String(doc, i+1)
	if f != scan.OK {
		return false
	}
	raw := doc[i+1 : end]
	d.i = end + 1
	if escaped {
		*s = d.unescape(raw)
	} else {
		*s = alias(raw)
	}
	return true
}

// id reads a string that is not empty.
func (d *decoder) id(s *string) bool {
	i := d.i
	if !d.text(s, anID) {
		return false
	}
	if *s == "" {
		d.i = i
		return d.wrong(anID)
	}
	return true
}

// unescape puts what raw stands for into side memory, which is taken in few large chunks. Chunks are
// never reused: strings point into them.
func (d *decoder) unescape(raw []byte) string {
	if cap(d.side)-len(d.side) < len(raw) {
		rest := len(d.doc) - d.i + len(raw) // no more can ever be needed
		d.side = make([]byte, 0, max(len(raw), min(rest, max(4096, 4*cap(d.side)))))
	}
	from := len(d.side)
	d.side = scan.AppendUnescaped(d.side, raw)
	return alias(d.side[from:])
}

// boolean reads true or false.
func (d *decoder) boolean(b *bool) bool {
	if d.i >= len(d.doc) || d.doc[d.i] != 't' && d.doc[d.i] != 'f' {
		return d.wrong(aBoolean)
	}
	*b = d.doc[d.i] == 't'
	end, f := scan.Literal(d.doc, d.i)
	d.i = end
	return f == scan.OK
}

// number reads a number's text.
func (d *decoder) number(want string) (text []byte, ok bool) {
	i := d.i
	if i >= len(d.doc) || d.doc[i] != '-' && (d.doc[i] < '0' || d.doc[i] > '9') {
		return nil, d.wrong(want)
	}
	end, f := scan.Number(d.doc, i)
	if f != scan.OK {
		return nil, false
	}
	d.i = end
	return d.doc[i:end], true
}

// count reads an integer that is not negative, however it is spelled.
func (d *decoder) count(n *int, want string) bool {
	i := d.i
	text, ok := d.number(want)
	if !ok {
		return false
	}
	v, isInt := scan.Integer(text)
	if !isInt || v < 0 {
		d.i = i
		return d.wrong(want)
	}
	*n = int(min(v, maxInt))
	return true
}

const maxInt = int64(^uint(0) >> 1)

// version reads the protocol's version, which is the number 1.
func (d *decoder) version(n *int) bool {
	i := d.i
	if !d.count(n, theOnly) {
		return false
	}
	if *n != ProtocolVersion {
		d.i = i
		return d.wrong(theOnly)
	}
	return true
}

// time reads a timestamp.
func (d *decoder) time(t *Timestamp) bool {
	// A plain integer that a float64 holds exactly, as hosts send it.
	doc, i := d.doc, d.i
	var n int64
	for end := min(len(doc), i+15); i < end && doc[i]-'0' <= 9; i++ {
		n = n*10 + int64(doc[i]-'0')
	}
	if i > d.i && i < len(doc) && (doc[i] == ',' || doc[i] == '}') && (doc[d.i] != '0' || i == d.i+1) {
		*t = Timestamp{float64(n), true}
		d.i = i
		return true
	}
	text, ok := d.number(aNumber)
	if ok {
		*t = timestamp(alias(text))
	}
	return ok
}

// end tells whether nothing but white space follows.
func (d *decoder) end() bool {
	d.i = scan.Space(d.doc, d.i)
	return d.i == len(d.doc)
}
