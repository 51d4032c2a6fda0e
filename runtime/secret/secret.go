// Package secret has the one type in which tokens, keys and signing secrets travel through Backline.
// Whatever prints, formats, logs or encodes a [Text] shows that there is a secret, and not which.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// A Text is a secret: a bearer token, an API key, a signing secret. A string constant can be assigned to
// it as it is, a string is converted. fmt, slog, encoding/json and everything else that asks a value for
// its text get "[redacted]", or "" for the empty secret. Only [Text.Reveal] and a conversion to string
// give it away; and fmt itself, which asks no value where it is told %p or where the secret is in an
// unexported field of a struct that is printed as a whole.
type Text string

const redacted = "[redacted]"

// Reveal returns the secret, for the header or the hash that it was made for.
func (t Text) Reveal() string { return string(t) }

// IsSet tells whether there is anything but white space.
func (t Text) IsSet() bool { return strings.TrimSpace(string(t)) != "" }

// Equal tells whether other is the same secret. How long it takes tells nothing of either.
func (t Text) Equal(other string) bool {
	a, b := sha256.Sum256([]byte(t)), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String is "[redacted]".
func (t Text) String() string {
	if t == "" {
		return ""
	}
	return redacted
}

// GoString is what %#v shows.
func (t Text) GoString() string { return fmt.Sprintf("secret.Text(%q)", t.String()) }

// Format makes every verb of fmt show [Text.String]; without it, verbs that are wrong for a string would
// show the secret in their complaint.
func (t Text) Format(f fmt.State, verb rune) {
	text := t.String()
	if verb == 'v' && f.Flag('#') {
		text = t.GoString()
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText is what encoders show.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// LogValue is what slog shows.
func (t Text) LogValue() slog.Value { return slog.StringValue(t.String()) }
