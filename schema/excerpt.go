package schema

import (
	"strconv"
	"unicode/utf8"
)

// PointerName is a JSON pointer as a sentence names it: "the document" for the empty one, and
// otherwise the pointer itself, with control characters escaped and cut to some 100 characters.
func PointerName(pointer string) string {
	if pointer == "" {
		return "the document"
	}
	return clip(pointer, 100)
}

// excerpt quotes s, cut to n characters.
func excerpt(s string, n int) string { return `"` + clip(s, n) + `"` }

// clip cuts s to n characters, the last three being dots where something was left out, and escapes
// what does not print, as Go does. An escape counts with its length, so the result has at most n
// characters.
func clip(s string, n int) string {
	out := make([]byte, 0, min(len(s), 4*n))
	used := 0
	fits := 0 // length of out that leaves room for the dots
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		var piece string
		switch {
		case r == utf8.RuneError && size <= 1:
			piece = `\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:]
		case r == '"' || strconv.IsPrint(r):
			piece = s[i : i+size]
		default:
			quoted := strconv.QuoteRune(r)
			piece = quoted[1 : len(quoted)-1]
		}
		width := utf8.RuneCountInString(piece)
		if used+width > n {
			return string(out[:fits]) + "..."
		}
		out = append(out, piece...)
		used += width
		if used <= n-3 {
			fits = len(out)
		}
		i += size
	}
	return string(out)
}
