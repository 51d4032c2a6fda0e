package external

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/backline-dev/backline/schema"
)

// A ref names something that the host or the runtime keeps: 1 to 512 characters, none of them white
// space or a control character; see [ValidRef]. Refs are compared byte for byte and mean nothing else
// here. Each kind of ref has a type, so that one is not taken for another; [Ref] is for those that the
// contract uses in one place only.
type (
	// A TurnRef names a turn.
	TurnRef string
	// A BindingRef names a [Binding], whatever its generation.
	BindingRef string
	// A ProfileRef names a [Profile], whatever its generation.
	ProfileRef string
	// An AgentID names an agent of the host.
	AgentID string
	// A PassageRef names a passage: what the host has a turn do one step of.
	PassageRef string
	// A ProductRef names a [Product].
	ProductRef string
	// An ArtifactRef names an artifact that the host keeps.
	ArtifactRef string
	// An EventRef names an [Event].
	EventRef string
	// An OutcomeRef names an [Outcome] document.
	OutcomeRef string
	// A RequestRef names what a turn asks of the host: a tool request or an operator question.
	RequestRef string
	// An IdempotencyKey is the host's name for one request, whatever becomes of it.
	IdempotencyKey string
	// A PromptPolicyRef names a prompt policy of the host.
	PromptPolicyRef string
	// A SchemaRef names a schema of the host.
	SchemaRef string
	// A ToolRef names a tool of the host.
	ToolRef string
	// A PrincipalRef names who admitted, created, committed or selected something.
	PrincipalRef string
	// A Ref is any other ref.
	Ref string
)

// maxRef is how many characters a ref has at most.
const maxRef = 512

// ValidRef tells whether s is a ref: 1 to 512 characters (code points), none of them white space as
// ECMAScript has it ([schema.IsSpace]), below U+0020, or U+007F. Text that is not UTF-8 is none.
func ValidRef(s string) bool {
	if s == "" || len(s) > maxRef*utf8.UTFMax {
		return false
	}
	i := 0
	for i < len(s) && s[i] > ' ' && s[i] < 0x7F {
		i++
	}
	if i == len(s) {
		return len(s) <= maxRef
	}
	n := i
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size <= 1 || r <= ' ' || r == 0x7F || schema.IsSpace(r) {
			return false
		}
		i += size
		n++
	}
	return n <= maxRef
}

// A Digest is "sha256:" and a SHA-256 in base64url without padding (external-runtime.md, Digests).
// Digests are compared byte for byte; see [CanonicalDigest], [DigestWithout] and [ContentDigest].
type Digest string

const (
	digestPrefix = "sha256:"
	digestLen    = len(digestPrefix) + 43
)

// ValidDigest tells whether s has the form of a [Digest].
func ValidDigest(s string) bool {
	if len(s) != digestLen || s[:len(digestPrefix)] != digestPrefix {
		return false
	}
	for _, c := range []byte(s[len(digestPrefix):]) {
		if !base64url[c] {
			return false
		}
	}
	return true
}

var base64url, hexDigit = digits("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), digits("0123456789ABCDEFabcdef")

func digits(all string) (is [256]bool) {
	for _, c := range []byte(all) {
		is[c] = true
	}
	return is
}

// A SubjectSetHash is 32 bytes in hexadecimal digits of either case.
type SubjectSetHash string

func validSubjectSetHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range []byte(s) {
		if !hexDigit[c] {
			return false
		}
	}
	return true
}

// A DateTime is a point in time as the wire has it: RFC 3339, with an offset. It keeps its text, so
// "2030-09-01T02:00:00+02:00" and "2030-09-01T00:00:00Z" are one time and two values.
type DateTime string

// DateTimeOf is t in UTC, to the nanosecond, without trailing zeros. A year that four digits cannot
// hold becomes the nearest that they can.
func DateTimeOf(t time.Time) DateTime {
	t = t.UTC()
	switch year := t.Year(); {
	case year < 0:
		t = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	case year > 9999:
		t = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	}
	return DateTime(t.Format(time.RFC3339Nano))
}

// Time is the time in UTC, as [schema.ParseDateTime] reads it; an error for other text. In a document
// that was parsed there is none.
func (d DateTime) Time() (time.Time, error) {
	t, ok := schema.ParseDateTime(string(d))
	if !ok {
		return time.Time{}, fmt.Errorf("%.64q is no date and time as in RFC 3339", string(d))
	}
	return t, nil
}
