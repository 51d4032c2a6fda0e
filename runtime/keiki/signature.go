package keiki

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
)

// A SignatureCode says why the signature of a request was refused. It is the code of the 401 that the
// platform gets (keiki.md, Push).
type SignatureCode string

// The codes of a [SignatureError].
const (
	// SignatureMissing: there is no Keiki-Signature header, or it is blank.
	SignatureMissing SignatureCode = "signature_missing"
	// SignatureMalformed: the header has not exactly one t of decimal digits, or no v1 of 64 hex digits.
	SignatureMalformed SignatureCode = "signature_malformed"
	// SignatureExpired: t is further from this server's clock than the tolerance, before or after it.
	SignatureExpired SignatureCode = "signature_expired"
	// SignatureMismatch: no v1 is the signature of the body under any of the secrets.
	SignatureMismatch SignatureCode = "signature_mismatch"
)

// A SignatureError is what [Verify] returns. Its text is written for the platform: it holds nothing of the
// header, the body or a secret.
type SignatureError struct {
	Code SignatureCode
}

// Error is one sentence.
func (e *SignatureError) Error() string {
	switch e.Code {
	case SignatureMissing:
		return "The Keiki-Signature header is missing."
	case SignatureMalformed:
		return "The Keiki-Signature header is not of the form t=<unix seconds>,v1=<64 hex digits>."
	case SignatureExpired:
		return "The time in the Keiki-Signature header is too far from this server's clock."
	case SignatureMismatch:
		return "The Keiki-Signature header has no signature of this body by a secret that is known here."
	}
	return "The Keiki-Signature header is not accepted."
}

// Verify tells whether header, the value of Keiki-Signature, signs body with one of the secrets. What is
// signed is the text of t as it stands in the header, a dot, and the bytes of body; the key is a secret as
// it was issued, prefix included. The error is a *[SignatureError] (keiki.md, Push; faults E1 to E4).
//
// The elements of the header are separated by commas and may come in any order, with spaces and tabs around
// names and values. Unknown elements and empty ones are ignored. There must be exactly one t, of 1 to 18
// decimal digits. Several v1 are allowed, in upper or lower case; one that is not 64 hex digits matches
// nothing, and where no v1 is better than that, the header is malformed.
//
// What is wrong is looked for in the order missing, malformed, expired, mismatch: a header that is too old
// and signed with the wrong key has expired. So nothing is hashed for a request whose time alone refuses it.
// The time is compared in whole seconds, and a difference of exactly tolerance is inside.
//
// Blank secrets match nothing, and so does an empty list. Every secret is tried against every v1, in a time
// that does not depend on which of them match, or how far. Verify keeps nothing, allocates nothing that
// grows with body or header, and may be called from several goroutines.
func Verify(header string, body []byte, secrets []secret.Text, now time.Time, tolerance time.Duration) error {
	if strings.Trim(header, listSpace) == "" {
		return &SignatureError{SignatureMissing}
	}
	stamp, stamps, signatures := "", 0, 0
	for rest := header; rest != ""; {
		var name, value string
		switch name, value, rest = nextElement(rest); name {
		case "t":
			stamp = value
			stamps++
		case "v1":
			if _, ok := decodeSignature(value); ok {
				signatures++
			}
		}
	}
	at, ok := unixSeconds(stamp)
	if stamps != 1 || !ok || signatures == 0 {
		return &SignatureError{SignatureMalformed}
	}
	off := now.Unix() - at // at is below 1e18: no overflow
	if off < 0 {
		off = -off
	}
	if off > int64(tolerance/time.Second) {
		return &SignatureError{SignatureExpired}
	}
	match := 0
	for _, key := range secrets {
		if !key.IsSet() {
			continue // anybody can sign with the empty key
		}
		want := signature(key, stamp, body)
		for rest := header; rest != ""; {
			var name, value string
			name, value, rest = nextElement(rest)
			if name != "v1" {
				continue
			}
			if got, ok := decodeSignature(value); ok {
				match |= subtle.ConstantTimeCompare(want[:], got[:])
			}
		}
	}
	if match != 1 {
		return &SignatureError{SignatureMismatch}
	}
	return nil
}

// Sign returns the value of a Keiki-Signature header for body, signed with key at the given time, as the
// platform sends it. A time before 1970 gives a header that [Verify] takes for malformed.
func Sign(key secret.Text, body []byte, at time.Time) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	sum := signature(key, stamp, body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(sum[:])
}

// signature is HMAC-SHA256(key, stamp + "." + body).
func signature(key secret.Text, stamp string, body []byte) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write(append([]byte(stamp), '.'))
	mac.Write(body)
	mac.Sum(sum[:0])
	return sum
}

const listSpace = " \t" // what HTTP allows around the elements of a list

// nextElement takes the first element off a list. A name without "=" has the empty value.
func nextElement(list string) (name, value, rest string) {
	element, rest, _ := strings.Cut(list, ",")
	name, value, _ = strings.Cut(element, "=")
	return strings.Trim(name, listSpace), strings.Trim(value, listSpace), rest
}

func decodeSignature(text string) (sum [sha256.Size]byte, ok bool) {
	if len(text) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	var digits [2 * sha256.Size]byte
	copy(digits[:], text)
	_, err := hex.Decode(sum[:], digits[:])
	return sum, err == nil
}

// unixSeconds reads decimal digits, and nothing else that strconv would take. Eighteen of them fit into
// an int64 with room for a difference.
func unixSeconds(text string) (int64, bool) {
	if text == "" || len(text) > 18 {
		return 0, false
	}
	var n int64
	for i := range len(text) {
		c := text[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
