package keiki

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/backline-dev/backline/runtime/secret"
)

// CredentialLifetime is how long the platform takes a credential of [SignCredential].
const CredentialLifetime = 5 * time.Minute

// signAgain is the age at which a credential is replaced: a call may be on its way for a while.
const signAgain = 4 * time.Minute

// SignCredential returns a bearer for the turn API of one turn, signed with the agent's signing secret: for
// turns that came without a turn token. It holds from now for [CredentialLifetime]. It is
//
//	kts1.<base64url of {"a":agentID,"t":turnID,"ts":unix seconds}>.<hex of HMAC-SHA256>
//
// without padding, and what is signed is "keiki-turn-auth.v1." and the middle part (the contract, "Turn
// request"). The JSON is as JavaScript's JSON.stringify writes it; bytes of an id that are not UTF-8 become
// U+FFFD.
func SignCredential(key secret.Text, agentID, turnID string, now time.Time) secret.Text {
	b := append(make([]byte, 0, 64+len(agentID)+len(turnID)), `{"a":`...)
	b = appendStringified(b, agentID)
	b = appendStringified(append(b, `,"t":`...), turnID)
	b = strconv.AppendInt(append(b, `,"ts":`...), now.Unix(), 10)
	payload := base64.RawURLEncoding.EncodeToString(append(b, '}'))

	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte("keiki-turn-auth.v1." + payload))
	return secret.Text("kts1." + payload + "." + hex.EncodeToString(mac.Sum(nil)))
}

// appendStringified writes a string as JSON.stringify does: it escapes quotes, backslashes and control
// characters, and nothing else. encoding/json escapes more, and there is no option for U+2028.
func appendStringified(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range s {
		switch {
		case c == '"', c == '\\':
			b = append(b, '\\', byte(c))
		case c == '\b':
			b = append(b, `\b`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ':
			b = append(b, `\u00`...)
			b = append(b, digits[c>>4], digits[c&0xf])
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return append(b, '"')
}

// A bearer hands out credentials for one turn and signs a new one when the last has become old. Its method
// may be called from several goroutines.
type bearer struct {
	key           secret.Text
	agentID, turn string

	mu     sync.Mutex
	signed secret.Text
	at     time.Time // of signed, on the wall clock
}

// newBearer returns a bearer for a turn. It keeps the ids.
func newBearer(key secret.Text, agentID, turnID string) *bearer {
	return &bearer{key: key, agentID: agentID, turn: turnID}
}

// current returns a credential that is less than four minutes old at the time now. One that is from the
// future, because the clock was put back, is replaced too.
func (b *bearer) current(now time.Time) secret.Text {
	now = now.Round(0) // the platform counts on the wall clock, which also runs while a computer sleeps
	b.mu.Lock()
	defer b.mu.Unlock()
	if age := now.Sub(b.at); b.signed == "" || age < 0 || age >= signAgain {
		b.signed, b.at = SignCredential(b.key, b.agentID, b.turn, now), now
	}
	return b.signed
}
