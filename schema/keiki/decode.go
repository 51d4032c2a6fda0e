package keiki

import (
	"math/bits"
	"sync"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// The decoder reads a body in one pass, straight into the struct, and stops at the first thing that is
// wrong. It only ever says "no", and for a field where and what it wanted: which of several faults is
// told, and in which words, is worked out afterwards from the body (refuse), where time does not matter.
//
// What an object may hold is a table of its fields (parse.go, answer.go, claim.go, relay.go). What the
// decoder accepts is what the published schemas and [schema.Check] accept; tests hold it to that.

// What is expected of the fields, in the words that package schema finds for the published schemas.
const (
	anObject   = "an object"
	anArray    = "an array"
	aString    = "a string"
	anID       = "a string that is not empty"
	aBoolean   = "true or false"
	aSequence  = "an integer of at least 1 and of at most 9007199254740991"
	theVersion = "the number 1"
	theTypes   = `"keiki.turn", "keiki.turn.arrival" or "keiki.turn.cancelled"`
	aChannel   = "a string, an object" // or null
	theContent = "a string, an array"  // or null
	orNull     = " or null"
)

type decoder struct {
	scan.Cursor
	// depth is how many arrays and objects are open, and level how many objects that have a table.
	depth, level int
	// extra is what fields that are not known need; nil until there is one.
	extra *extra
	// stale has bit i where extra.keys[i] must be emptied before its next use.
	stale uint
	// entry is what an entry of the history is read into.
	entry entry

	// The first wrong field: the offset of its value, or that of the object that lacks it; what was
	// expected (empty: the text is malformed); and the name of a field that is missing.
	at      int
	want    string
	missing string
}

// levels is how many objects with a table are open at most: a claim, the turn in it, one more in that, a
// message, its screening.
const levels = 5

// extra is the memory that fields need which are not known, or may hold anything.
type extra struct {
	scanner scan.Scanner
	keys    [levels]scan.Keys // the keys that are not known of the objects that are open
}

var extras = sync.Pool{New: func() any { return new(extra) }}

func (d *decoder) memory() *extra {
	if d.extra == nil {
		d.extra = extras.Get().(*extra)
	}
	return d.extra
}

func (d *decoder) release() {
	if d.extra == nil {
		return
	}
	d.extra.scanner.Trim()
	for i := range d.extra.keys {
		d.extra.keys[i].Trim()
	}
	extras.Put(d.extra)
	d.extra = nil
}

// whole reads a whole text, which is one object with this table.
func whole[T any](body []byte, v *T, table []field[T]) (d *decoder, ok bool) {
	d = &decoder{Cursor: scan.Cursor{Doc: body, At: scan.Space(body, 0)}}
	ok = uint64(len(body)) <= scan.MaxLen && object(d, v, table) && d.End()
	d.release()
	return d, ok
}

// wrong notes that the value at offset at is not what is wanted.
func (d *decoder) wrong(at int, want string) bool {
	d.at, d.want = at, want
	return false
}

// A field is what a table says of one field of a T.
type field[T any] struct {
	name string
	need need
	// want is what is expected of a field that must be there.
	want string
	// read reads the value at the decoder's offset.
	read func(d *decoder, v *T) bool
}

// A need tells whether a field must be there.
type need uint8

const (
	optional need = iota // may be missing, and null is the same
	required
	anything // may be missing, and read takes null too
)

// object reads an object.
func object[T any](d *decoder, v *T, table []field[T]) bool {
	at := d.At
	if d.Peek() != '{' {
		return d.wrong(at, anObject)
	}
	d.At++
	d.depth++
	d.stale |= 1 << d.level
	d.level++
	var seen uint64
	next := 0 // as a rule, fields come in the order of the table
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if next >= len(table) || table[next].name != name {
			next = 0
			for next < len(table) && table[next].name != name {
				next++
			}
			if next == len(table) {
				if !d.unknown() {
					return false
				}
				continue
			}
		}
		if seen&(1<<next) != 0 {
			return false // a key twice
		}
		seen |= 1 << next
		f := &table[next]
		next++
		if f.need == optional && d.Peek() == 'n' {
			end, fault := scan.Literal(d.Doc, d.At)
			if d.At = end; fault != scan.OK {
				return false
			}
			continue
		}
		value := d.At
		if !f.read(d, v) {
			if f.need == optional && d.want != "" && d.at == value && d.missing == "" {
				d.want += orNull
			}
			return false
		}
	}
	for missing := ^seen & (1<<len(table) - 1); missing != 0; missing &= missing - 1 {
		if f := &table[bits.TrailingZeros64(missing)]; f.need == required {
			d.at, d.missing, d.want = at, f.name, f.want
			return false
		}
	}
	d.depth--
	d.level--
	return true
}

// unknown reads past the value of a field that is not known.
func (d *decoder) unknown() bool {
	level := d.level - 1
	keys := &d.memory().keys[level]
	if d.stale&(1<<level) != 0 {
		keys.Reset()
		d.stale &^= 1 << level
	}
	return keys.Add(d.Doc, d.KeyOpen, d.KeyEnd, d.KeyEscaped) && d.skip()
}

// skip reads past a value, which may be anything.
func (d *decoder) skip() bool {
	end, f := d.memory().scanner.Value(d.Doc, d.At, d.depth, schema.DefaultDepth)
	d.At = end
	return f == scan.OK
}

// raw reads a value, which may be anything, and keeps its bytes.
func (d *decoder) raw(to *[]byte) bool {
	from := d.At
	if !d.skip() {
		return false
	}
	*to = d.Doc[from:d.At:d.At]
	return true
}

// list reads an array. room is how many elements memory is taken for at first.
func list[T any](d *decoder, to *[]T, room int, read func(d *decoder, v *T) bool) bool {
	if d.Peek() != '[' {
		return d.wrong(d.At, anArray)
	}
	d.At++
	d.depth++
	for first := true; ; first = false {
		more, ok := d.Element(first)
		if !ok {
			return false
		}
		if !more {
			d.depth--
			return true
		}
		if *to == nil {
			*to = make([]T, 0, room)
		}
		var zero T
		*to = append(*to, zero)
		if !read(d, &(*to)[len(*to)-1]) {
			return false
		}
	}
}

// text reads a string.
func (d *decoder) text(to *string) bool {
	if d.Peek() != '"' {
		return d.wrong(d.At, aString)
	}
	s, ok := d.Text()
	if ok {
		*to = s
	}
	return ok
}

// id reads a string that is not empty.
func (d *decoder) id(to *string) bool {
	at := d.At
	if d.Peek() != '"' {
		return d.wrong(at, anID)
	}
	s, ok := d.Text()
	if ok && s == "" {
		return d.wrong(at, anID)
	}
	*to = s
	return ok
}

// boolean reads true or false.
func (d *decoder) boolean(to *bool) bool {
	c := d.Peek()
	if c != 't' && c != 'f' {
		return d.wrong(d.At, aBoolean)
	}
	end, f := scan.Literal(d.Doc, d.At)
	d.At = end
	*to = c == 't'
	return f == scan.OK
}

// number reads a number's text.
func (d *decoder) number(want string) (text []byte, ok bool) {
	at := d.At
	if c := d.Peek(); c != '-' && c-'0' > 9 {
		return nil, d.wrong(at, want)
	}
	end, f := scan.Number(d.Doc, at)
	if f != scan.OK {
		return nil, false
	}
	d.At = end
	return d.Doc[at:end], true
}

// maxSafe is the largest integer that a double and all its neighbours hold exactly.
const maxSafe = 1<<53 - 1

// sequence reads an integer from 1, however it is spelled.
func (d *decoder) sequence(to *int64) bool {
	at := d.At
	text, ok := d.number(aSequence)
	if !ok {
		return false
	}
	n, whole := scan.Integer(text)
	if !whole || n < 1 || n > maxSafe {
		return d.wrong(at, aSequence)
	}
	*to = n
	return true
}

// version reads the contract's version, which is the number 1.
func (d *decoder) version() bool {
	at := d.At
	text, ok := d.number(theVersion)
	if !ok {
		return false
	}
	if n, whole := scan.Integer(text); !whole || n != Version {
		return d.wrong(at, theVersion)
	}
	return true
}

// kind reads the type of a body that is known to be of this kind.
func (d *decoder) kind(only Kind) bool {
	at := d.At
	if d.Peek() == '"' {
		s, ok := d.Text()
		if !ok || s == string(only) {
			return ok
		}
	}
	return d.wrong(at, theKind(only))
}

func theKind(only Kind) string { return `the string "` + string(only) + `"` }
