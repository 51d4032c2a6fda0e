package scan

import "unsafe"

// A Cursor reads a text from front to back for a decoder that knows what it wants. Its methods check
// the syntax of what they read and nothing else; where they fail, [Scanner.Doc] tells why. The strings
// they return share memory with the text where they can.
type Cursor struct {
	Doc []byte
	// At is the offset of what is read next.
	At int

	// The last member's key: the offsets of its quotes, and whether there are escape sequences in it.
	KeyOpen, KeyEnd int
	KeyEscaped      bool

	// side is what is left of the current chunk of memory for strings with escape sequences.
	side []byte
}

// Peek returns the next byte, or 0 at the end.
func (c *Cursor) Peek() byte {
	if c.At < len(c.Doc) {
		return c.Doc[c.At]
	}
	return 0
}

// Member reads the next key of an object, up to the value. first tells whether the opening brace was
// read last. more is false at the object's end, which is read too.
func (c *Cursor) Member(first bool) (name string, more, ok bool) {
	doc, i := c.Doc, Space(c.Doc, c.At)
	if i >= len(doc) {
		return "", false, false
	}
	switch {
	case doc[i] == '}':
		c.At = i + 1
		return "", false, true
	case first:
	case doc[i] == ',':
		i = Space(doc, i+1)
	default:
		return "", false, false
	}
	if i >= len(doc) || doc[i] != '"' {
		return "", false, false
	}
	end, escaped, f := String(doc, i+1)
	if f != OK {
		return "", false, false
	}
	c.KeyOpen, c.KeyEnd, c.KeyEscaped = i, end, escaped
	raw := doc[i+1 : end]
	if escaped {
		name = string(AppendUnescaped(nil, raw))
	} else {
		name = alias(raw)
	}
	i = Space(doc, end+1)
	if i >= len(doc) || doc[i] != ':' {
		return "", false, false
	}
	c.At = Space(doc, i+1)
	return name, true, true
}

// Element goes to the next element of an array. first tells whether the opening bracket was read last.
// more is false at the array's end, which is read too.
func (c *Cursor) Element(first bool) (more, ok bool) {
	doc, i := c.Doc, Space(c.Doc, c.At)
	if i >= len(doc) {
		return false, false
	}
	switch {
	case doc[i] == ']':
		c.At = i + 1
		return false, true
	case first:
	case doc[i] == ',':
		// A bracket here is no element, and whoever reads one finds that out.
		i = Space(doc, i+1)
	default:
		return false, false
	}
	c.At = i
	return true, true
}

// Text reads a string, whose opening quote is next.
func (c *Cursor) Text() (s string, ok bool) {
	end, escaped, f := String(c.Doc, c.At+1)
	if f != OK {
		return "", false
	}
	raw := c.Doc[c.At+1 : end]
	c.At = end + 1
	if escaped {
		return c.unescape(raw), true
	}
	return alias(raw), true
}

// unescape puts what raw stands for into side memory, which is taken in few large chunks. Chunks are
// never reused: strings point into them.
func (c *Cursor) unescape(raw []byte) string {
	if cap(c.side)-len(c.side) < len(raw) {
		rest := len(c.Doc) - c.At + len(raw) // no more can ever be needed
		c.side = make([]byte, 0, max(len(raw), min(rest, max(4096, 4*cap(c.side)))))
	}
	from := len(c.side)
	c.side = AppendUnescaped(c.side, raw)
	return alias(c.side[from:])
}

// End tells whether nothing but white space follows.
func (c *Cursor) End() bool {
	c.At = Space(c.Doc, c.At)
	return c.At == len(c.Doc)
}

// alias makes bytes a string without a copy.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
