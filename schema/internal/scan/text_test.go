package scan

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// Every byte, at every place of the eight that are looked at together, ends the scan or does not.
func TestStringEveryByte(t *testing.T) {
	t.Parallel()
	for before := range 18 {
		for after := range 18 {
			for c := range 256 {
				text := strings.Repeat("a", before) + string([]byte{byte(c)}) + strings.Repeat("z", after) + `"`
				end, escaped, f := String([]byte(text), 0)
				wantEnd, wantEscaped, want := len(text)-1, false, OK
				switch {
				case c == '"':
					wantEnd = before
				case c < ' ':
					wantEnd, want = before, BadControl
				case c == '\\' && after == 0: // escapes the closing quote
					wantEnd, wantEscaped, want = len(text), true, Unterminated
				case c == '\\':
					wantEnd, wantEscaped, want = before, true, BadEscape
				case c >= utf8.RuneSelf:
					wantEnd, want = before, BadUTF8
				}
				if end != wantEnd || escaped != wantEscaped || f != want {
					t.Fatalf("String(%q) = %d, %v, %d, want %d, %v, %d", text, end, escaped, f, wantEnd, wantEscaped, want)
				}
			}
		}
	}
}

// Every UTF-16 code unit as an escape, alone and before each kind of other half.
func TestAppendUnescapedEveryUnit(t *testing.T) {
	t.Parallel()
	for unit := rune(0); unit <= 0xffff; unit++ {
		for _, next := range []rune{-1, 'x', 0xd800, 0xdbff, 0xdc00, 0xdfff, 0xe000} {
			raw := fmt.Sprintf(`\u%04x`, unit)
			units := []uint16{uint16(unit)}
			if next >= 0 {
				raw += fmt.Sprintf(`\u%04X`, next)
				units = append(units, uint16(next))
			}
			want := string(utf16.Decode(units))
			if got := string(AppendUnescaped(nil, []byte(raw))); got != want {
				t.Fatalf("%s is %q, want %q", raw, got, want)
			}
			if end, escaped, f := String([]byte(raw+`"`), 0); end != len(raw) || !escaped || f != OK {
				t.Fatalf("String(%s) = %d, %v, %d", raw, end, escaped, f)
			}
		}
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "abc", `a\n\u00e9é😀\ud83d\ude00\"x`, strings.Repeat(`\ud83d\ude00`, 50), strings.Repeat("渐", 50)} {
		whole := string(AppendUnescaped(nil, []byte(raw)))
		for n := range 60 {
			got := string(AppendUnescaped(nil, Prefix([]byte(raw), 2*n)))
			least := min(n, utf8.RuneCountInString(whole))
			if utf8.RuneCountInString(got) < least {
				t.Errorf("Prefix(%q, %d) has %d characters", raw, 2*n, utf8.RuneCountInString(got))
			}
			if len(got) > 4*(2*n+1) {
				t.Errorf("Prefix(%q, %d) has %d bytes", raw, 2*n, len(got))
			}
		}
	}
}

func TestLoneSurrogate(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]int{
		``: -1, `abc`: -1, `\\ud83d`: -1, `\u0041\n\"`: -1, `\ud83d\ude00`: -1, `x\uD83D\uDE00y\uDBFF\uDFFF`: -1, `\ufffd`: -1, `\ue000`: -1, `\ud7ff`: -1,
		`\ud83d`: 0, `\ude00`: 0, `ab\ud83dx`: 2, `\ud83d\u0041`: 0, `\ud83d\ud83d\ude00`: 0, `\ude00\ud83d`: 0, `\ud83d\ude00\ude00`: 12,
		`\ud83d\\ude00`: 0, `\ud83d\n`: 0, `\\\ud83d`: 2, `\ud83d\ude00x\udbff`: 13,
	} {
		if end, escaped, f := String([]byte(raw+`"`), 0); f != OK || end != len(raw) || escaped != strings.Contains(raw, `\`) {
			t.Fatalf("%s: %d, %v, %v", raw, end, escaped, f)
		}
		if got := LoneSurrogate([]byte(raw)); got != want {
			t.Errorf("LoneSurrogate(%s) = %d, want %d", raw, got, want)
		}
	}
}
