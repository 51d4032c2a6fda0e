package wirehttp

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/backline-dev/backline/runtime/secret"
)

// Tokens are the bearer tokens that a handler knows. It keeps their digests alone. The zero value knows
// none.
type Tokens struct{ list []token }

type token struct {
	name string
	sum  [sha256.Size]byte
}

// Add adds a token under a name.
func (t *Tokens) Add(name string, value secret.Text) {
	t.list = append(t.list, token{name, sha256.Sum256([]byte(value.Reveal()))})
}

// Any tells whether there is a token at all.
func (t *Tokens) Any() bool { return len(t.list) > 0 }

// Knows tells whether value is one of the tokens.
func (t *Tokens) Knows(value secret.Text) bool {
	_, ok := t.find(value.Reveal())
	return ok
}

// Find finds the token that a request's header has, and returns its name.
func (t *Tokens) Find(header http.Header) (name string, ok bool) {
	scheme, value, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return t.find(strings.TrimSpace(value))
}

// find compares with all tokens, in constant time.
func (t *Tokens) find(value string) (name string, ok bool) {
	sum := sha256.Sum256([]byte(value))
	for i := range t.list {
		if subtle.ConstantTimeCompare(sum[:], t.list[i].sum[:]) == 1 {
			name, ok = t.list[i].name, true
		}
	}
	return name, ok
}
