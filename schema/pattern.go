package schema

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
)

// JSON Schema's patterns are ECMAScript's, with code points for characters (draft 2020-12, section
// 6.4). The validator gives them to package regexp, where some of them are errors (\u0000) and, worse,
// others mean something else (\s). So a schema's patterns are translated before the validator sees
// them, and those that have no translation make the schema an error.

// white are the characters of ECMAScript's \s, as the inside of a character class of package regexp:
// WhiteSpace and LineTerminator (ECMA-262, sections 12.2 and 12.3).
const white = `\t-\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}`

// notWhite are all others.
const notWhite = `\x00-\x08\x0E-\x1F!-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{FEFE}\x{FF00}-\x{10FFFF}`

// IsSpace tells whether r is one of ECMAScript's white space characters and line ends, which \s stands
// for in patterns: U+00A0, U+FEFF and U+2028 are, U+0085 and U+200B are not.
func IsSpace(r rune) bool {
	switch {
	case r <= ' ':
		return '\t' <= r && r <= '\r' || r == ' '
	case r < 0x1680:
		return r == 0xA0
	case r <= 0x200A:
		return r == 0x1680 || r >= 0x2000
	}
	switch r {
	case 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF:
		return true
	}
	return false
}

// pattern translates one of ECMAScript's patterns into one of package regexp that matches the same
// strings.
func pattern(p string) (string, error) {
	var out strings.Builder
	no := func(what string) (string, error) {
		return "", fmt.Errorf("pattern %s: %s", excerpt(p, 100), what)
	}
	class := false // inside [...]
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case c == '\\':
			piece, n := escape(p[i+1:], class)
			if n == 0 {
				return no("an escape sequence that has no translation")
			}
			out.WriteString(piece)
			i += n
		case class && c == ']':
			class = false
			out.WriteByte(c)
		case class && c == '[':
			out.WriteString(`\[`) // package regexp reads [: as the beginning of a class of POSIX's
		case class:
			out.WriteByte(c)
		case c == '[':
			class = true
			out.WriteByte(c)
			if strings.HasPrefix(p[i+1:], "^") {
				i++
				out.WriteByte('^')
			}
			if strings.HasPrefix(p[i+1:], "]") {
				return no("an empty character class")
			}
		case c == '.':
			out.WriteString(`[^\n\r\x{2028}\x{2029}]`)
		case c == '(' && strings.HasPrefix(p[i+1:], "?") && !strings.HasPrefix(p[i+1:], "?:"):
			return no("groups that begin with (? have no translation, other than (?:")
		default:
			out.WriteByte(c)
		}
	}
	if _, err := regexp.Compile(out.String()); err != nil {
		return no("it is no regular expression: " + clip(err.Error(), 100))
	}
	return out.String(), nil
}

// escape translates the escape sequence whose backslash stands before s. n is the length of what it
// takes of s, 0 if there is no translation.
func escape(s string, class bool) (piece string, n int) {
	if s == "" {
		return "", 0
	}
	switch c := s[0]; c {
	case 's', 'S':
		switch {
		case class && c == 's':
			return white, 1
		case class:
			return notWhite, 1
		case c == 's':
			return "[" + white + "]", 1
		}
		return "[^" + white + "]", 1
	case 'd', 'D', 'w', 'W', 't', 'n', 'r', 'f', 'v':
		return `\` + s[:1], 1
	case 'b', 'B':
		if class {
			if c == 'b' {
				return `\x08`, 1
			}
			return "", 0
		}
		return `\` + s[:1], 1
	case '0':
		if len(s) > 1 && s[1]-'0' <= 9 {
			return "", 0
		}
		return `\x00`, 1
	case 'x':
		if r, ok := hexDigits(s[1:], 2); ok {
			return character16(r), 3
		}
	case 'u':
		if strings.HasPrefix(s[1:], "{") {
			end := strings.IndexByte(s, '}')
			if end < 3 || end > 8 {
				return "", 0
			}
			if r, ok := hexDigits(s[2:], end-2); ok && r <= 0x10FFFF {
				return character16(r), end + 1
			}
			return "", 0
		}
		r, ok := hexDigits(s[1:], 4)
		if !ok {
			return "", 0
		}
		if r >= 0xD800 && r <= 0xDBFF && len(s) >= 11 && s[5:7] == `\u` {
			if low, ok := hexDigits(s[7:], 4); ok && low >= 0xDC00 && low <= 0xDFFF {
				return character16((r-0xD800)<<10 + (low - 0xDC00) + 0x10000), 11
			}
		}
		if r >= 0xD800 && r <= 0xDFFF {
			return "", 0 // half a pair: no string that can be valid holds it
		}
		return character16(r), 5
	default:
		if strings.IndexByte(`^$\.*+?()[]{}|/-`, c) >= 0 {
			return `\` + s[:1], 1
		}
	}
	return "", 0
}

// character16 writes a character by its number, with or without a class around it.
func character16(r uint32) string { return `\x{` + strconv.FormatUint(uint64(r), 16) + `}` }

// hexDigits reads the n hexadecimal digits that s begins with.
func hexDigits(s string, n int) (v uint32, ok bool) {
	if n < 1 || len(s) < n {
		return 0, false
	}
	u, err := strconv.ParseUint(s[:n], 16, 32)
	if err != nil || strings.ContainsAny(s[:n], "+-_") {
		return 0, false
	}
	return uint32(u), true
}

// withPatterns returns a copy of a schema, its patterns translated. changed tells whether there were
// any that had to be.
func withPatterns(node any) (translated any, changed bool, err error) {
	switch node := node.(type) {
	case []any:
		out := make([]any, len(node))
		for i, v := range node {
			part, ch, err := withPatterns(v)
			if err != nil {
				return nil, false, err
			}
			out[i], changed = part, changed || ch
		}
		return out, changed, nil
	case map[string]any:
		out := maps.Clone(node)
		for key, v := range node {
			var ch bool
			switch key {
			case "const", "enum", "default", "examples":
				continue // data, not schemas
			case "pattern":
				s, ok := v.(string)
				if !ok {
					continue // not a schema; the validator says so
				}
				t, err := pattern(s)
				if err != nil {
					return nil, false, err
				}
				out[key], ch = t, t != s
			case "properties", "$defs", "definitions", "dependentSchemas", "patternProperties":
				named, ok := v.(map[string]any)
				if !ok {
					continue
				}
				to := make(map[string]any, len(named))
				for name, v := range named {
					part, c, err := withPatterns(v)
					if err != nil {
						return nil, false, err
					}
					if key == "patternProperties" {
						t, err := pattern(name)
						if err != nil {
							return nil, false, err
						}
						if _, twice := to[t]; twice {
							return nil, false, fmt.Errorf("pattern %s: another one means the same", excerpt(name, 100))
						}
						c, name = c || t != name, t
					}
					to[name], ch = part, ch || c
				}
				out[key] = to
			default:
				out[key], ch, err = withPatterns(v)
				if err != nil {
					return nil, false, err
				}
			}
			changed = changed || ch
		}
		return out, changed, nil
	}
	return node, false, nil
}
