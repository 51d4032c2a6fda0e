package cli

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"strings"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// freshID is shell text for 16 hexadecimal digits that are new each time it is run. POSIX has od and
// tr; date has no part of a second there.
const freshID = `$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')`

// curlLine is a command line for any POSIX shell that runs a new turn each time. auth, if not empty, is
// shell text for an Authorization header.
func curlLine(turnURL, pluginID, auth string) string {
	turnID := rand.Text() // stands for it until the body is quoted
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	// Nothing in a request fails to encode; TestCurlLine holds it.
	_ = enc.Encode(wire.Request{
		ProtocolVersion:  wire.ProtocolVersion,
		PluginID:         pluginID,
		SessionHandle:    wire.SessionHandle{ID: "curl", ProjectPath: "/", SessionID: "curl", AgentID: pluginID},
		Turn:             wire.Turn{TurnID: turnID, Message: "Hello from curl"},
		TranscriptWindow: []wire.WindowEntry{},
	})
	before, after, _ := strings.Cut(strings.TrimSpace(body.String()), turnID)

	line := "curl -sSN " + shellQuote(turnURL) + " -H 'Content-Type: application/json'"
	if auth != "" {
		line += " -H " + auth
	}
	return line + " -d " + shellQuote(before+"curl-") + `"` + freshID + `"` + shellQuote(after)
}

// shellQuote quotes s for a POSIX shell, unless every character of it is plain.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
