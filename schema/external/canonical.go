package external

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/gowebpki/jcs"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// Canonical JSON (RFC 8785) of the bytes that came, never of a struct that is written anew: members in
// the order of their keys' UTF-16 units, no white space, strings with the escapes that ECMAScript's
// JSON.stringify uses and no others, numbers as ECMAScript writes doubles, and no other change.
//
// Package jcs does all of this, and tests hold the code here to it. It takes some hundred small pieces
// of memory and most of a short turn's time for one request, though; so the text is written here, over
// the scanner that has read it already, and jcs writes the numbers that are not plain integers.

// AppendCanonical appends the canonical form of a JSON text. It refuses what has none: a text that does
// not pass [schema.Check], half of a surrogate pair, and a number that overflows a double. The error
// then is a [*schema.SyntaxError] or another one that names the place, and dst is returned as it was.
// Integers beyond ±(2^53-1) become the nearest double.
func AppendCanonical(dst, doc []byte) ([]byte, error) {
	if err := schema.Check(doc, 0); err != nil {
		return dst, err
	}
	if at, want := unfit(doc, false); at >= 0 {
		v := violationAt(doc, at, want)
		return dst, errors.New(v.String())
	}
	return appendCanonical(dst, doc), nil
}

// appendCanonical is for a text that has a canonical form.
func appendCanonical(dst, doc []byte) []byte {
	c := canonizers.Get().(*canonizer)
	dst, _ = c.value(dst, doc, scan.Space(doc, 0))
	c.release()
	return dst
}

// CanonicalDigest is the digest of a JSON text's canonical form. It refuses what [AppendCanonical] does.
func CanonicalDigest(doc []byte) (Digest, error) {
	return digestOf(func(dst []byte) ([]byte, error) { return AppendCanonical(dst, doc) })
}

// ContentDigest is the digest of the bytes themselves: what content/digest of a [Product] says of the
// content's UTF-8.
func ContentDigest(content []byte) Digest {
	sum := sha256.Sum256(content)
	var text [digestLen]byte
	copy(text[:], digestPrefix)
	base64.RawURLEncoding.Encode(text[len(digestPrefix):], sum[:])
	return Digest(text[:])
}

// buffers hold canonical texts while they are digested.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func digestOf(write func(dst []byte) ([]byte, error)) (Digest, error) {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	text, err := write((*buffer)[:0])
	if err != nil {
		return "", err
	}
	digest := ContentDigest(text)
	if cap(text) <= 1<<16 {
		*buffer = text
	}
	return digest, nil
}

// DigestWithout is the digest of a document, an object, with one field of its own set to the empty
// string: what that field says of a document that carries its own digest, as binding/digest and
// product/digest do (external-runtime.md, Digests). It is an error where the field is missing; else it
// refuses what [CanonicalDigest] does.
func DigestWithout(doc []byte, field string) (Digest, error) {
	if err := schema.Check(doc, 0); err != nil {
		return "", err
	}
	at := scan.Space(doc, 0)
	if doc[at] != '{' {
		return "", fmt.Errorf("%s is no object", schema.Found(doc, at))
	}
	d := decoder{doc: doc}
	from := d.find(at, field)
	if doc[from-1] == '}' {
		return "", fmt.Errorf("the document has no field %.64q", field)
	}
	s := scan.Get()
	to, _ := s.Value(doc, from, 0, schema.DefaultDepth)
	s.Put()
	without := make([]byte, 0, len(doc))
	without = append(without, doc[:from]...)
	without = append(without, `""`...)
	return CanonicalDigest(append(without, doc[to:]...))
}

// AppendCanonical appends the canonical form of the request: of the bytes that came where r was parsed,
// of what it would be marshalled to where it was not. Two requests with the same canonical form are the
// same request. It does not check the text again, as the function of this name does.
func (r *TurnRequest) AppendCanonical(dst []byte) ([]byte, error) {
	if r.body != nil {
		return appendCanonical(dst, r.body), nil // it was parsed, so it has one
	}
	body, err := json.Marshal(r)
	if err != nil {
		return dst, err
	}
	return AppendCanonical(dst, body)
}

// DigestInput is the digest of the value of input/parts: as it came where r was parsed, as it would be
// marshalled where it was not. input/digest must say the same.
func (r *TurnRequest) DigestInput() (Digest, error) {
	if r.input != nil {
		// It was parsed, so it has a canonical form.
		return digestOf(func(dst []byte) ([]byte, error) { return appendCanonical(dst, r.input), nil })
	}
	input, err := json.Marshal(r.InputParts)
	if err != nil {
		return "", err
	}
	return CanonicalDigest(input)
}

// InputDigest is the digest of the value of input/parts in a turn request, as it came. The request may
// be one that [ParseTurnRequest] refuses; without input/parts it is an error, and else it refuses what
// [CanonicalDigest] does.
func InputDigest(request []byte) (Digest, error) {
	if err := schema.Check(request, 0); err != nil {
		return "", err
	}
	at := scan.Space(request, 0)
	d := decoder{doc: request}
	if request[at] == '{' {
		if from := d.find(at, "input/parts"); request[from-1] != '}' {
			s := scan.Get()
			to, _ := s.Value(request, from, 0, schema.DefaultDepth)
			s.Put()
			return CanonicalDigest(request[from:to])
		}
	}
	return "", errors.New("the request has no input/parts")
}

// A canonizer writes canonical JSON. It writes each member of an object as it comes, and puts them into
// their order at the object's end, if they are not in it: one pass over the text, and at most one copy
// of it for each level of nesting, which is bounded.
type canonizer struct {
	// members are those of the objects that are open, the innermost last.
	members []member
	// scratch holds an object's members while they are put in order, or a string without its escapes.
	scratch []byte
}

// A member is one of an object: its key, without escapes, and where in the canonical text it is.
type member struct {
	key      string
	from, to int
}

var canonizers = sync.Pool{New: func() any { return new(canonizer) }}

func (c *canonizer) release() {
	const most = 1 << 16 // bytes that are worth keeping, more or less
	clear(c.members[:cap(c.members)])
	if cap(c.members) > most/32 {
		c.members = nil
	}
	if cap(c.scratch) > most {
		c.scratch = nil
	}
	canonizers.Put(c)
}

// value writes the value at i, and returns where it ends.
func (c *canonizer) value(dst, doc []byte, i int) (written []byte, end int) {
	switch doc[i] {
	case '{':
		return c.object(dst, doc, i)
	case '[':
		dst = append(dst, '[')
		i = scan.Space(doc, i+1)
		for first := true; doc[i] != ']'; first = false {
			if !first {
				dst = append(dst, ',')
				i = scan.Space(doc, i+1)
			}
			dst, i = c.value(dst, doc, i)
			i = scan.Space(doc, i)
		}
		return append(dst, ']'), i + 1
	case '"':
		end, escaped, _ := scan.String(doc, i+1)
		if !escaped {
			return append(dst, doc[i:end+1]...), end + 1
		}
		c.scratch = scan.AppendUnescaped(c.scratch[:0], doc[i+1:end])
		return scan.AppendString(dst, alias(c.scratch), false), end + 1
	case 't', 'f', 'n':
		end, _ = scan.Literal(doc, i)
		return append(dst, doc[i:end]...), end
	}
	end, _ = scan.Number(doc, i)
	return appendCanonicalNumber(dst, doc[i:end]), end
}

func (c *canonizer) object(dst, doc []byte, i int) (written []byte, end int) {
	dst = append(dst, '{')
	first := len(c.members)
	sorted := true
	for i = scan.Space(doc, i+1); doc[i] != '}'; {
		if len(c.members) > first {
			dst = append(dst, ',')
		}
		m := member{from: len(dst)}
		end, escaped, _ := scan.String(doc, i+1)
		if escaped {
			m.key = string(scan.AppendUnescaped(nil, doc[i+1:end]))
			dst = scan.AppendString(dst, m.key, false)
		} else {
			m.key = alias(doc[i+1 : end])
			dst = append(dst, doc[i:end+1]...)
		}
		dst = append(dst, ':')
		i = scan.Space(doc, scan.Space(doc, end+1)+1) // the colon is in between
		dst, i = c.value(dst, doc, i)
		m.to = len(dst)
		sorted = sorted && (len(c.members) == first || compareUTF16(c.members[len(c.members)-1].key, m.key) < 0)
		c.members = append(c.members, m)
		if i = scan.Space(doc, i); doc[i] == ',' {
			i = scan.Space(doc, i+1)
		}
	}
	if !sorted {
		own := c.members[first:]
		start := own[0].from
		c.scratch = append(c.scratch[:0], dst[start:]...)
		dst = dst[:start]
		slices.SortFunc(own, func(a, b member) int { return compareUTF16(a.key, b.key) })
		for n, m := range own {
			if n > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, c.scratch[m.from-start:m.to-start]...)
		}
	}
	c.members = c.members[:first]
	return append(dst, '}'), i + 1
}

// compareUTF16 compares valid UTF-8 as UTF-16 compares: bytes do, save that what UTF-16 writes as a
// surrogate pair comes before U+E000 to U+FFFF there.
func compareUTF16(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	if i == n {
		return cmp.Compare(len(a), len(b))
	}
	// The first bytes of both characters that differ: of three bytes from U+E000 on, of four.
	for i > 0 && !utf8.RuneStart(a[i]) {
		i--
	}
	if x, y := a[i], b[i]; x != y {
		pairX, pairY := x >= 0xF0, y >= 0xF0
		if pairX && y >= 0xEE && !pairY {
			return -1
		}
		if pairY && x >= 0xEE && !pairX {
			return 1
		}
	}
	return cmp.Compare(a[i:], b[i:])
}

// appendCanonicalNumber writes a number that a double can hold as ECMAScript does.
func appendCanonicalNumber(dst, number []byte) []byte {
	plain := len(number) <= 15 && number[0] != '-'
	for _, c := range number {
		plain = plain && c-'0' <= 9
	}
	if plain {
		return append(dst, number...)
	}
	// The only error is one of range, which has been refused; a number too small is zero.
	f, _ := strconv.ParseFloat(alias(number), 64)
	text, err := jcs.NumberToJSON(f)
	if err != nil {
		panic("external: " + err.Error()) // f is finite
	}
	return append(dst, text...)
}
