package ndjson

import (
	"encoding/binary"
	"unicode/utf8"
	"unsafe"
)

const hex = "0123456789abcdef"

// AppendString appends s to dst as a JSON string with its quotes and returns the longer slice.
// Bytes that are not UTF-8 become U+FFFD, one for each byte. U+2028 and U+2029 are escaped, because
// some readers of lines split at them; '<', '>' and '&' are not. It does not allocate beyond growing
// dst.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		if n := plainPrefix(s[i:]); n > 0 {
			i += n
			continue
		}
		c := s[i]
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\uFFFD"...)
			i++
			start = i
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, s[start:i]...)
			dst = append(dst, '\\', 'u', '2', '0', '2', hex[r&15])
			i += size
			start = i
		default:
			i += size
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// plainPrefix counts the leading bytes of s that stand in a JSON string as they are: ASCII, no
// control character, no quote, no backslash. Eight bytes are looked at in one step.
func plainPrefix(s string) int {
	const (
		lsb = 0x0101010101010101
		msb = 0x8080808080808080
	)
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	i := 0
	for ; len(b)-i >= 8; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote := w ^ (lsb * '"')
		slash := w ^ (lsb * '\\')
		// For bytes below 0x80 each term sets the top bit where the byte is a control character, a
		// quote or a backslash; w itself has it where the byte is not ASCII. A borrow can only mark a
		// byte too much, never one too few, and only above a marked one.
		if (w|(w-lsb*0x20)|(quote-lsb)|(slash-lsb))&msb != 0 {
			break
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
