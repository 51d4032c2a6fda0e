package runtime

import (
	"strings"
	"unicode/utf8"
)

// A joiner makes valid UTF-8 of chunks that may be split anywhere. A byte that can never become part
// of a character is U+FFFD, each by itself.
type joiner struct {
	held [utf8.UTFMax]byte
	n    int
}

// feed returns the valid text that s completes, which may be empty. It is s itself in the usual case.
func (j *joiner) feed(s string) string {
	if j.n == 0 && utf8.ValidString(s) {
		return s
	}
	in := string(j.held[:j.n]) + s
	j.n = 0
	var out strings.Builder
	out.Grow(len(in) + 8)
	for i := 0; i < len(in); {
		c, size := utf8.DecodeRuneInString(in[i:])
		if c == utf8.RuneError && size == 1 {
			if !utf8.FullRuneInString(in[i:]) {
				j.n = copy(j.held[:], in[i:])
				break
			}
			out.WriteRune(utf8.RuneError)
		} else {
			out.WriteString(in[i : i+size])
		}
		i += size
	}
	return out.String()
}

// rest is what is left of a character that was never completed.
func (j *joiner) rest() string {
	n := j.n
	j.n = 0
	return strings.Repeat("\uFFFD", n)
}

// sanitise makes valid UTF-8 of a text that stands by itself.
func sanitise(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var j joiner
	return j.feed(s) + j.rest()
}
