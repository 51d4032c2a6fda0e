package external

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// The decoder reads a document in one pass, straight into the struct, and stops at the first thing that
// is wrong. It only ever says "no", and for a field where and what it wanted: which of several faults
// is told, and in which words, is worked out afterwards from the bytes (refuse), where time does not
// matter.
//
// What an object may hold is a table of its fields (parse.go, parse_label.go), and where that depends on
// a field of it, sets of them (only). What the decoder accepts is what the schemas, the rules for JSON
// in the package comment and [schema.Check] accept; tests hold it to that.

type decoder struct {
	doc []byte
	i   int
	// depth is how many arrays and objects are open.
	depth int

	// side is what is left of the current chunk of memory for strings with escape sequences.
	side []byte

	// scanner reads past values that may be anything; nil until there is one.
	scanner *scan.Scanner

	// The first wrong field: the offset of its value, or that of the object that lacks it; what was
	// expected (nil: the text is malformed); and the name of a field that is missing.
	at      int
	want    phrase
	missing string
}

// A phrase says what is expected, in the words that package schema finds for the published schema. It
// is put together only when it is needed.
type phrase func() string

func words(s string) phrase { return func() string { return s } }

var (
	anObject    = words("an object")
	anArray     = words("an array")
	aString     = words("a string that is not empty")
	aBoolean    = words("true or false")
	aRef        = words(`a string of 1 to 512 characters matching ` + refPattern)
	aDigest     = words(`a string matching ` + digestPattern)
	aHash       = words(`a string matching ` + subjectSetHashPattern)
	aDateTime   = words("a string that is a date and time as in RFC 3339")
	noField     = words("no field of this name")
	wholePairs  = words("text without half of a surrogate pair")
	inDouble    = words("a number that a double can hold")
	inSafeRange = words("an integer within ±9007199254740991")
)

// The patterns of the contract; the hand-written checks are ValidRef, ValidDigest and
// validSubjectSetHash.
const (
	refPattern            = `^[^\s\u0000-\u001f\u007f]+$`
	digestPattern         = `^sha256:[A-Za-z0-9_-]{43}$`
	subjectSetHashPattern = `^[A-Fa-f0-9]{64}$`
)

// maxSafe is the largest integer that a double and all its neighbours hold exactly.
const maxSafe = 1<<53 - 1

// document reads a whole text, which is one value.
func document(doc []byte, read func(d *decoder) bool) *Error {
	d := decoder{doc: doc, i: scan.Space(doc, 0)}
	ok := uint64(len(doc)) <= scan.MaxLen && read(&d) && d.end()
	if d.scanner != nil {
		d.scanner.Put()
		d.scanner = nil
	}
	if !ok {
		return refuse(&d)
	}
	return nil
}

// end tells whether nothing but white space follows.
func (d *decoder) end() bool {
	d.i = scan.Space(d.doc, d.i)
	return d.i == len(d.doc)
}

// wrong notes that the value at offset at is not what is wanted.
func (d *decoder) wrong(at int, want phrase) bool {
	d.at, d.want = at, want
	return false
}

// lacks notes that the object at offset at has no field of this name.
func (d *decoder) lacks(at int, name string, want phrase) bool {
	d.at, d.missing, d.want = at, name, want
	return false
}

// A field is what a table says of one field of a T.
type field[T any] struct {
	name string
	// want is what is expected.
	want phrase
	// optional: the field may be missing, as far as the table can tell.
	optional bool
	// read reads the value at the decoder's offset.
	read func(d *decoder, v *T) bool
}

// A fieldSet has bit i for the field i of a table.
type fieldSet uint64

// object reads an object. It returns the fields that were there.
func object[T any](d *decoder, v *T, table []field[T]) (seen fieldSet, ok bool) {
	at := d.i
	if at >= len(d.doc) || d.doc[at] != '{' {
		return 0, d.wrong(at, anObject)
	}
	if d.depth++; d.depth > schema.DefaultDepth {
		return 0, false
	}
	d.i++
	next := 0 // as a rule, fields come in the order of the table
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return 0, false
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
				return 0, d.wrong(d.i, noField)
			}
		}
		bit := fieldSet(1) << next
		if seen&bit != 0 {
			return 0, false // a key twice
		}
		if !table[next].read(d, v) {
			return 0, false
		}
		seen |= bit
		next++
	}
	for i := range table {
		if seen&(1<<i) == 0 && !table[i].optional {
			return 0, d.lacks(at, table[i].name, table[i].want)
		}
	}
	d.depth--
	return seen, true
}

// fields is the set of the fields with these names in a table.
func fields[T any](table []field[T], names ...string) (set fieldSet) {
	for _, name := range names {
		set |= 1 << slices.IndexFunc(table, func(f field[T]) bool { return f.name == name })
	}
	return set
}

// only tells whether the object at offset at, which had the fields seen, has all that it must have and
// no others than it may have.
func only[T any](d *decoder, at int, table []field[T], seen, must, may fieldSet) bool {
	if missing := must &^ seen; missing != 0 {
		f := table[bits.TrailingZeros64(uint64(missing))]
		return d.lacks(at, f.name, f.want)
	}
	if extra := seen &^ (must | may); extra != 0 {
		return d.wrong(d.find(at, table[bits.TrailingZeros64(uint64(extra))].name), noField)
	}
	return true
}

// find returns the offset of the value of a field of the object at offset at, which has been read.
func (d *decoder) find(at int, name string) int {
	e := decoder{doc: d.doc, i: at + 1}
	s := scan.Get()
	defer s.Put()
	for first := true; ; first = false {
		key, more, ok := e.member(first)
		if !ok || !more || key == name {
			return e.i
		}
		e.i, _ = s.Value(e.doc, e.i, 0, schema.DefaultDepth)
	}
}

// member reads the next key of an object, up to the value. more is false at the object's end, which is
// read too.
func (d *decoder) member(first bool) (name string, more, ok bool) {
	doc, i := d.doc, scan.Space(d.doc, d.i)
	if i >= len(doc) {
		return "", false, false
	}
	switch {
	case doc[i] == '}':
		d.i = i + 1
		return "", false, true
	case first:
	case doc[i] == ',':
		i = scan.Space(doc, i+1)
	default:
		return "", false, false
	}
	if i >= len(doc) || doc[i] != '"' {
		return "", false, false
	}
	end, escaped, f := scan.String(doc, i+1)
	if f != scan.OK {
		return "", false, false
	}
	raw := doc[i+1 : end]
	name = alias(raw)
	if escaped {
		name = string(scan.AppendUnescaped(nil, raw))
	}
	i = scan.Space(doc, end+1)
	if i >= len(doc) || doc[i] != ':' {
		return "", false, false
	}
	d.i = scan.Space(doc, i+1)
	return name, true, true
}

// list reads an array of min to max elements.
func list[T any](d *decoder, to *[]T, least, most int, want phrase, read func(d *decoder, v *T) bool) bool {
	at := d.i
	if at >= len(d.doc) || d.doc[at] != '[' {
		return d.wrong(at, want)
	}
	if d.depth++; d.depth > schema.DefaultDepth {
		return false
	}
	*to = []T{}
	d.i = scan.Space(d.doc, at+1)
	if d.i < len(d.doc) && d.doc[d.i] == ']' {
		d.i++
	} else {
		for more := true; more; {
			if len(*to) == most {
				return d.wrong(at, want)
			}
			var v T
			*to = append(*to, v)
			if !read(d, &(*to)[len(*to)-1]) {
				return false
			}
			d.i = scan.Space(d.doc, d.i)
			if d.i >= len(d.doc) {
				return false
			}
			switch d.doc[d.i] {
			case ',':
				d.i = scan.Space(d.doc, d.i+1)
			case ']':
				d.i++
				more = false
			default:
				return false
			}
		}
	}
	if len(*to) < least {
		return d.wrong(at, want)
	}
	d.depth--
	return true
}

// unbounded is the greatest length of an array for which the contract names none.
const unbounded = int(^uint(0) >> 1)

// set reads an array without equal elements.
func set[T comparable](d *decoder, to *[]T, least, most int, want phrase, read func(d *decoder, v *T) bool) bool {
	at := d.i
	if !list(d, to, least, most, want, read) {
		return false
	}
	// The lists are short.
	for i, v := range *to {
		for _, before := range (*to)[:i] {
			if before == v {
				return d.wrong(at, want)
			}
		}
	}
	return true
}

// alias makes bytes a string without a copy.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// A found tells what text found.
type found uint8

const (
	noText  found = iota // another kind of value
	badText              // a string that is malformed, or has half of a surrogate pair, which is noted
	isText
)

// text reads a string, which shares memory with the document if there is no escape sequence in it. The
// caller says what it wanted where there is none: put together here, that would cost every call.
func (d *decoder) text() (s string, is found) {
	doc, i := d.doc, d.i
	if i >= len(doc) || doc[i] != '"' {
		return "", noText
	}
	end, escaped, f := scan.String(doc, i+1)
	if f != scan.OK {
		return "", badText
	}
	raw := doc[i+1 : end]
	d.i = end + 1
	if !escaped {
		return alias(raw), isText
	}
	if scan.LoneSurrogate(raw) >= 0 {
		d.wrong(i, wholePairs)
		return "", badText
	}
	return d.unescape(raw), isText
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

// valid reads a string that a check takes.
func valid[S ~string](d *decoder, to *S, want phrase, check func(string) bool) bool {
	at := d.i
	s, is := d.text()
	if is == isText && check(s) {
		*to = S(s)
		return true
	}
	return is != badText && d.wrong(at, want)
}

func ref[S ~string](d *decoder, to *S) bool { return valid(d, to, aRef, ValidRef) }

func (d *decoder) digest(to *Digest) bool { return valid(d, to, aDigest, ValidDigest) }

func (d *decoder) dateTime(to *DateTime) bool {
	return valid(d, to, aDateTime, func(s string) bool {
		_, ok := schema.ParseDateTime(s)
		return ok
	})
}

// name reads a string that is not empty.
func (d *decoder) name(to *string) bool {
	return valid(d, to, aString, func(s string) bool { return s != "" })
}

// bounded reads a string of 1 to most characters.
func (d *decoder) bounded(to *string, most int, want phrase) bool {
	at := d.i
	s, is := d.text()
	if is == isText && s != "" && (len(s) <= most || utf8.RuneCountInString(s) <= most) {
		*to = s
		return true
	}
	return is != badText && d.wrong(at, want)
}

// code reads one of a code's values.
func code[C Code[C]](d *decoder, to *C) bool {
	at := d.i
	s, is := d.text()
	if is == isText {
		var ok bool
		if *to, ok = known[C](s); ok {
			return true
		}
	}
	return is != badText && d.wrong(at, oneOf[C])
}

// oneOf words a code's values.
func oneOf[C Code[C]]() string {
	var c C
	var quoted []string
	for _, v := range c.values() {
		quoted = append(quoted, strconv.Quote(string(v)))
	}
	const most = 12 // as in package schema
	if n := len(quoted) - most; n > 0 {
		quoted = append(quoted[:most], "one of "+strconv.Itoa(n)+" more")
	}
	last := len(quoted) - 1 // each code that is read so has several values
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// constant reads a string that can only be one.
func constant[S ~string](d *decoder, to *S, only S) bool {
	at := d.i
	s, is := d.text()
	if is == isText && s == string(only) {
		*to = only
		return true
	}
	return is != badText && d.wrong(at, theString(only))
}

func theString[S ~string](only S) phrase {
	return func() string { return "the string " + strconv.Quote(string(only)) }
}

// boolean reads true or false.
func (d *decoder) boolean(to *bool) bool {
	if d.i >= len(d.doc) || d.doc[d.i] != 't' && d.doc[d.i] != 'f' {
		return d.wrong(d.i, aBoolean)
	}
	*to = d.doc[d.i] == 't'
	end, f := scan.Literal(d.doc, d.i)
	d.i = end
	return f == scan.OK
}

// An interval is what an integer may be.
type interval struct{ least, most int64 }

// noMost is the most where the contract names none; the rules for JSON do.
const noMost = math.MaxInt64

func (r interval) words() string {
	s := "an integer of at least " + strconv.FormatInt(r.least, 10)
	if r.most != noMost {
		s += " and of at most " + strconv.FormatInt(r.most, 10)
	}
	return s
}

// integer reads an integer, however it is spelled.
func (d *decoder) integer(to *int64, r interval) bool {
	doc, at := d.doc, d.i
	// A few digits, as they come.
	var n int64
	i := at
	for end := min(len(doc), at+16); i < end && doc[i]-'0' <= 9; i++ {
		n = n*10 + int64(doc[i]-'0')
	}
	if i > at && i < len(doc) && (doc[i] == ',' || doc[i] == '}' || doc[i] <= ' ') && (doc[at] != '0' || i == at+1) {
		d.i = i
	} else {
		if at >= len(doc) || doc[at] != '-' && doc[at]-'0' > 9 {
			return d.wrong(at, r.words)
		}
		end, f := scan.Number(doc, at)
		if f != scan.OK {
			return false
		}
		d.i = end
		var whole bool
		if n, whole = scan.Integer(doc[at:end]); !whole {
			return d.wrong(at, r.words)
		}
	}
	switch {
	case n < r.least || n > r.most:
		return d.wrong(at, r.words)
	case n > maxSafe:
		return d.wrong(at, inSafeRange)
	}
	*to = n
	return true
}

// free reads past a value that may be anything which can have a digest: no lone surrogates, no number
// that overflows. It returns the value's bytes.
func (d *decoder) free() (value []byte, ok bool) {
	if d.scanner == nil {
		d.scanner = scan.Get()
	}
	at := d.i
	end, f := d.scanner.Value(d.doc, at, d.depth, schema.DefaultDepth)
	if f != scan.OK {
		return nil, false
	}
	d.i = end
	value = d.doc[at:end]
	if i, want := unfit(value, false); i >= 0 {
		return nil, d.wrong(at+i, want)
	}
	return value, true
}

// unfit returns the offset in text, of which values are well-formed, of the first string or number that
// breaks the rules for JSON of this package, and which; -1 if there is none. integers tells whether
// integers are held to what a double holds exactly.
func unfit(text []byte, integers bool) (at int, want phrase) {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			end, escaped, _ := scan.String(text, i+1)
			if escaped && scan.LoneSurrogate(text[i+1:end]) >= 0 {
				return i, wholePairs
			}
			i = end + 1
		case c == '-' || c-'0' <= 9:
			end, _ := scan.Number(text, i)
			if want := unfitNumber(text[i:end], integers); want != nil {
				return i, want
			}
			i = end
		default:
			i++
		}
	}
	return -1, nil
}

func unfitNumber(number []byte, integers bool) phrase {
	if len(number) < 16 && bytes.IndexByte(number, 'e') < 0 && bytes.IndexByte(number, 'E') < 0 {
		return nil
	}
	if n, whole := scan.Integer(number); integers && whole && (n > maxSafe || n < -maxSafe) {
		return inSafeRange
	}
	if _, err := strconv.ParseFloat(alias(number), 64); err != nil {
		return inDouble
	}
	return nil
}

// members counts the members of an object, which is well-formed and begins with its brace.
func members(object []byte) int {
	n, depth := 0, 0
	for i := 0; i < len(object); i++ {
		switch object[i] {
		case '"':
			if n == 0 {
				n = 1
			}
			i, _, _ = scan.String(object, i+1)
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 1 {
				n++
			}
		}
	}
	return n
}
