package scan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// Space returns the offset of the first byte at or after i that is not white space.
func Space(doc []byte, i int) int {
	for i < len(doc) && doc[i] <= ' ' && (doc[i] == ' ' || doc[i] == '\n' || doc[i] == '\r' || doc[i] == '\t') {
		i++
	}
	return i
}

// String scans a string from i, the offset behind its opening quote. It returns the offset of the
// closing quote, and whether there are escape sequences in between.
func String(doc []byte, i int) (end int, escaped bool, f Fault) {
	start := i
	var seen uint64 // the bytes so far, or'ed: a high bit means that UTF-8 must be checked
	for {
		// Eight bytes at a time. A byte's high bit is set in m where the byte is a control character,
		// a quote or a backslash. A borrow can make bytes above such a byte look like one too, so
		// only the lowest is sure.
		for i+8 <= len(doc) {
			x := binary.LittleEndian.Uint64(doc[i:])
			m := ((x - ones*0x20) | ((x ^ ones*'"') - ones) | ((x ^ ones*'\\') - ones)) &^ x & highs
			seen |= x
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				goto special
			}
			i += 8
		}
		for i < len(doc) && doc[i] >= ' ' && doc[i] != '"' && doc[i] != '\\' {
			seen |= uint64(doc[i])
			i++
		}
		if i == len(doc) {
			if at := invalid(doc[start:i]); at >= 0 {
				return start + at, escaped, BadUTF8
			}
			return i, escaped, Unterminated
		}
	special:
		switch doc[i] {
		case '"':
			if seen&highs != 0 && !utf8.Valid(doc[start:i]) {
				return start + invalid(doc[start:i]), escaped, BadUTF8
			}
			return i, escaped, OK
		case '\\':
			escaped = true
			n := escapeLen(doc[i:])
			if n == 0 {
				return i, escaped, BadEscape
			}
			i += n
		default:
			return i, escaped, BadControl
		}
	}
}

// invalid returns the offset of the first byte of b that is not valid UTF-8, or -1.
func invalid(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return -1
}

// escapeLen returns the length of the escape sequence that b begins with, or 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if hex4(b[2:]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 is the value of the four hexadecimal digits that b begins with, or -1.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// AppendUnescaped appends to dst what raw, the inside of a string that [String] has accepted, stands
// for. A surrogate that is not half of a pair becomes U+FFFD. The result is never longer than raw.
func AppendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			n := bytes.IndexByte(raw[i:], '\\')
			if n < 0 {
				return append(dst, raw[i:]...)
			}
			dst = append(dst, raw[i:i+n]...)
			i += n
		}
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				// AppendRune writes U+FFFD for a surrogate; a low half that does not pair with this one
				// is left to be read by itself.
				if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
					if both := utf16.DecodeRune(r, hex4(raw[i+2:])); both != utf8.RuneError {
						r = both
						i += 6
					}
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// LoneSurrogate returns the offset in raw, the inside of a string that [String] has accepted, of the
// first escape sequence that is half of a surrogate pair without the other half; -1 if there is none.
func LoneSurrogate(raw []byte) int {
	for i := 0; i < len(raw); {
		n := bytes.IndexByte(raw[i:], '\\')
		if n < 0 {
			break
		}
		i += n
		if raw[i+1] != 'u' {
			i += 2
			continue
		}
		r := hex4(raw[i+2:])
		if utf16.IsSurrogate(r) {
			if i+12 > len(raw) || raw[i+6] != '\\' || raw[i+7] != 'u' || utf16.DecodeRune(r, hex4(raw[i+8:])) == utf8.RuneError {
				return i
			}
			i += 6
		}
		i += 6
	}
	return -1
}

// Prefix returns the beginning of raw, the inside of a string that [String] has accepted, with at least
// n characters if there are so many; half of a surrogate pair counts as one.
func Prefix(raw []byte, n int) []byte {
	i := 0
	for ; n >= 0 && i < len(raw); n-- { // one more, so that no pair is cut in the middle of the n
		if raw[i] == '\\' {
			i += escapeLen(raw[i:])
			continue
		}
		_, size := utf8.DecodeRune(raw[i:])
		i += size
	}
	return raw[:i]
}

// Number scans a number from i, the offset of a digit or a minus sign, and returns its end.
func Number(doc []byte, i int) (end int, f Fault) {
	if i < len(doc) && doc[i] == '-' {
		i++
	}
	switch {
	case i < len(doc) && doc[i] == '0':
		i++
		if i < len(doc) && isDigit(doc[i]) {
			return i, BadNumber
		}
	default:
		n := digits(doc, i)
		if n == i {
			return i, BadNumber
		}
		i = n
	}
	if i < len(doc) && doc[i] == '.' {
		n := digits(doc, i+1)
		if n == i+1 {
			return n, BadNumber
		}
		i = n
	}
	if i < len(doc) && doc[i]|0x20 == 'e' {
		i++
		if i < len(doc) && (doc[i] == '+' || doc[i] == '-') {
			i++
		}
		n := digits(doc, i)
		if n == i {
			return i, BadNumber
		}
		i = n
	}
	return i, OK
}

func digits(doc []byte, i int) int {
	for i < len(doc) && isDigit(doc[i]) {
		i++
	}
	return i
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// Literal scans true, false or null from i, the offset of its first letter, and returns its end.
func Literal(doc []byte, i int) (end int, f Fault) {
	word := "null"
	switch doc[i] {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	}
	if end = i + len(word); end <= len(doc) && string(doc[i:end]) == word {
		return end, OK
	}
	return i, BadLiteral
}
