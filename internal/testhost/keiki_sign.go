package testhost

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// KeikiSignature is the value of a Keiki-Signature header: the time in seconds, and one v1 for each secret
// over the time, a dot and the body. The key is the secret's whole text, whsec_ included.
func KeikiSignature(at time.Time, body []byte, secrets ...string) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	var b strings.Builder
	b.WriteString("t=" + stamp)
	for _, secret := range secrets {
		b.WriteString(",v1=" + hex.EncodeToString(hmacOf(secret, []byte(stamp+"."), body)))
	}
	return b.String()
}

func hmacOf(secret string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// KeikiCredential is a turn credential (kts1) that is signed at a time: what an app that has no turn token
// sends as its bearer.
func KeikiCredential(secret, agentID, turnID string, at time.Time) string {
	payload, err := json.Marshal(credential{AgentID: agentID, TurnID: turnID, Seconds: at.Unix()})
	if err != nil {
		panic(err) // strings and a number
	}
	return signCredential(secret, payload)
}

func signCredential(secret string, payload []byte) string {
	text := base64.RawURLEncoding.EncodeToString(payload)
	return "kts1." + text + "." + hex.EncodeToString(hmacOf(secret, []byte("keiki-turn-auth.v1."+text)))
}

type credential struct {
	AgentID string `json:"a"`
	TurnID  string `json:"t"`
	Seconds int64  `json:"ts"`
}

// credentialAge is how old a credential may be, and how far ahead.
const credentialAge = 5 * time.Minute

// readCredential reads a kts1 credential that is not verified yet. Its form is the contract's and nothing else.
func readCredential(bearer string) (c credential, payload, sig string, err error) {
	parts := strings.Split(bearer, ".")
	if len(parts) != 3 || parts[0] != "kts1" {
		return c, "", "", errors.New("expected kts1.<payload>.<signature>")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(parts[1])
	if err != nil {
		return c, "", "", errors.New("the payload is no base64url without padding")
	}
	fields, err := strictObject(raw)
	if err != nil {
		return c, "", "", fmt.Errorf("the payload: %w", err)
	}
	for _, f := range fields {
		switch f.name {
		case "a":
			err = readString(f.value, &c.AgentID)
		case "t":
			err = readString(f.value, &c.TurnID)
		case "ts":
			c.Seconds, err = readInteger(f.value)
		default:
			err = errors.New("a field that is not known")
		}
		if err != nil {
			return c, "", "", fmt.Errorf("the payload's %q: %w", f.name, err)
		}
	}
	if len(fields) != 3 {
		return c, "", "", errors.New("the payload has not a, t and ts")
	}
	return c, parts[1], parts[2], nil
}

// verifyCredential tells whether one of the secrets has signed the credential.
func verifyCredential(payload, sig string, secrets []string) bool {
	good := false
	for _, secret := range secrets {
		want := hex.EncodeToString(hmacOf(secret, []byte("keiki-turn-auth.v1."+payload)))
		if subtle.ConstantTimeCompare([]byte(want), []byte(sig)) == 1 {
			good = true
		}
	}
	return good
}

// A digest stands for a token, so that finding it takes no time that tells of it.
type digest [sha256.Size]byte

func digestOf(token string) digest { return sha256.Sum256([]byte(token)) }

func (d digest) equal(other digest) bool { return subtle.ConstantTimeCompare(d[:], other[:]) == 1 }

// soundText says what is wrong with bytes that should be JSON text: they are UTF-8, without a byte order mark.
func soundText(body []byte) error {
	if bytes.HasPrefix(body, []byte("\ufeff")) {
		return errors.New("begins with a byte order mark")
	}
	if !utf8.Valid(body) {
		return errors.New("is not UTF-8")
	}
	return nil
}

// strictObject reads one JSON object and nothing behind it: valid UTF-8 without a byte order mark, each
// name once. Values are not looked into, but for being JSON.
func strictObject(body []byte) ([]jsonField, error) {
	if err := soundText(body); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.New("is no JSON object")
	}
	var fields []jsonField
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("is no JSON: %w", err)
		}
		name, _ := tok.(string) // a decoder gives nothing else before a value
		f := jsonField{name: name}
		for _, other := range fields {
			if other.name == f.name {
				return nil, fmt.Errorf("has %q twice", f.name)
			}
		}
		if err := dec.Decode(&f.value); err != nil {
			return nil, fmt.Errorf("is no JSON: %w", err)
		}
		fields = append(fields, f)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("is no JSON: %w", err)
	}
	if rest := bytes.TrimLeft(body[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return nil, errors.New("has something behind its value")
	}
	return fields, nil
}

type jsonField struct {
	name  string
	value json.RawMessage
}

func readString(raw json.RawMessage, into *string) error {
	if len(raw) == 0 || raw[0] != '"' {
		return errors.New("is no string")
	}
	return json.Unmarshal(raw, into)
}

func readInteger(raw json.RawMessage) (int64, error) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n > math.MaxInt64/2 {
		return 0, errors.New("is no integer")
	}
	return n, nil
}
