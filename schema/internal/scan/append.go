package scan

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string with the escapes that ECMAScript's JSON.stringify uses. Bytes
// that are not UTF-8 become U+FFFD. In lines U+2028 and U+2029 are escaped too, since some readers of
// lines split there.
func AppendString(dst []byte, s string, lines bool) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size <= 1:
				dst = append(dst, s[from:i]...)
				dst = append(dst, "\ufffd"...)
				from = i + size
			case lines && (r == '\u2028' || r == '\u2029'):
				dst = append(dst, s[from:i]...)
				dst = append(dst, `\u202`...)
				dst = append(dst, hexDigits[r&15])
				from = i + size
			}
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
