package lowkey

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// ProtocolVersion is the version of the protocol that is spoken here, and the only one.
const ProtocolVersion = 1

// A Request is one turn, as the host sends it (the contract's ExternalAgentTurnRequest).
//
// Unknown fields are accepted everywhere and are not kept: a later version of the protocol is additive,
// and who wants them reads the body.
type Request struct {
	ProtocolVersion int           `json:"protocolVersion" jsonschema_description:"The version of the protocol."`
	PluginID        string        `json:"pluginId" jsonschema:"minLength=1" jsonschema_description:"The plugin that the turn is for."`
	SessionHandle   SessionHandle `json:"sessionHandle" jsonschema_description:"The session that the turn belongs to."`
	Turn            Turn          `json:"turn" jsonschema_description:"The turn itself."`
	// TranscriptWindow must not be nil in a request that is marshalled: null is no window.
	TranscriptWindow []WindowEntry `json:"transcriptWindow" jsonschema_description:"The recent history of the session, oldest first. May be empty. The host keeps it to limits.transcriptWindowMessages."`
	Limits           Limits        `json:"limits" jsonschema_description:"The limits that the host keeps to."`
}

// A SessionHandle identifies a session for one agent.
type SessionHandle struct {
	ID          string `json:"id" jsonschema:"minLength=1" jsonschema_description:"Stable key of this pairing of session and agent: the key to resume or cache by."`
	ProjectPath string `json:"projectPath" jsonschema_description:"Absolute path of the project on the host. May be empty."`
	SessionID   string `json:"sessionId" jsonschema:"minLength=1" jsonschema_description:"The host's id of the session."`
	AgentID     string `json:"agentId" jsonschema:"minLength=1" jsonschema_description:"The agent that the turn is for."`
}

// A Turn is what the user said, and how.
type Turn struct {
	TurnID   string `json:"turnId" jsonschema:"minLength=1" jsonschema_description:"The host's id of the turn."`
	Message  string `json:"message" jsonschema_description:"The user's message. May be empty."`
	Headless bool   `json:"headless" jsonschema_description:"Whether nobody watches the turn."`
	// UserName is empty too where the host told none.
	UserName string `json:"userName,omitempty" jsonschema_description:"The name of the user. May be empty."`
}

// A Role tells who said a window entry.
type Role string

// The roles.
const (
	RoleUser   Role = "user"
	RoleAgent  Role = "agent"
	RoleSystem Role = "system"
)

// A WindowEntry is one message of the transcript window. The optional fields are zero where the host
// did not send them.
type WindowEntry struct {
	Role      Role      `json:"role" jsonschema:"enum=user,enum=agent,enum=system" jsonschema_description:"Who said it."`
	Content   string    `json:"content" jsonschema_description:"What was said. May be empty."`
	Timestamp Timestamp `json:"timestamp,omitzero" jsonschema_description:"When it was said, in milliseconds since 1970-01-01T00:00:00Z."`
	AgentID   string    `json:"agentId,omitempty" jsonschema_description:"The agent that said it. May be empty."`
	AgentName string    `json:"agentName,omitempty" jsonschema_description:"The name of that agent. May be empty."`
	TurnID    string    `json:"turnId,omitempty" jsonschema_description:"The turn in which it was said. May be empty."`
}

// Limits are what the host keeps to.
type Limits struct {
	// TranscriptWindowMessages has no upper bound on the wire; a number too large for an int is the
	// largest int.
	TranscriptWindowMessages int `json:"transcriptWindowMessages" jsonschema:"minimum=0" jsonschema_description:"The most messages that a transcript window has."`
}

// maxKeptWindow is how many window entries Reset keeps room for.
const maxKeptWindow = 1024

// Reset makes r empty and keeps the memory of its transcript window for the next [Parse], if that is
// not much. It is for callers that pool requests: nothing of the last body stays reachable.
func (r *Request) Reset() {
	window := r.TranscriptWindow
	if cap(window) > maxKeptWindow {
		window = nil
	}
	clear(window[:cap(window)])
	*r = Request{TranscriptWindow: window[:0]}
}

// A Timestamp is a time as the wire has it, any JSON number of milliseconds since 1970-01-01 UTC, or
// none, which is the zero value. It has the precision of a float64. Timestamps can be compared with ==.
type Timestamp struct {
	ms    float64
	known bool
}

// TimestampOf is the [Timestamp] of so many milliseconds since 1970-01-01 UTC.
func TimestampOf(ms float64) Timestamp { return Timestamp{ms, true} }

// TimestampAt is the [Timestamp] of a time, to the millisecond; none for the zero time.
func TimestampAt(t time.Time) Timestamp {
	if t.IsZero() {
		return Timestamp{}
	}
	return TimestampOf(float64(t.UnixMilli()))
}

// IsZero tells whether there is none.
func (t Timestamp) IsZero() bool { return !t.known }

// Milliseconds is the number that was sent, and whether one was. One that a float64 cannot hold is an
// infinity.
func (t Timestamp) Milliseconds() (ms float64, known bool) { return t.ms, t.known }

// Time is the time in UTC, to the microsecond; the zero time if there is none. A number of more than
// some 285,000 years, in either direction, counts as that.
func (t Timestamp) Time() time.Time {
	if !t.known {
		return time.Time{}
	}
	const most = 1 << 53
	ms := min(max(t.ms, -most), most)
	whole := math.Floor(ms)
	micros := int64((ms - whole) * 1000)
	return time.UnixMilli(int64(whole)).Add(time.Duration(micros) * time.Microsecond).UTC()
}

// MarshalJSON writes the number; null if there is none, which the protocol does not allow: leave such
// a field out (omitzero).
func (t Timestamp) MarshalJSON() ([]byte, error) {
	if !t.known {
		return []byte("null"), nil
	}
	ms := min(max(t.ms, -math.MaxFloat64), math.MaxFloat64)
	if ms == math.Trunc(ms) && math.Abs(ms) < 1<<53 {
		return strconv.AppendInt(nil, int64(ms), 10), nil
	}
	return json.Marshal(ms)
}

// UnmarshalJSON reads a number.
func (t *Timestamp) UnmarshalJSON(b []byte) error {
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if n == "" {
		*t = Timestamp{}
		return nil
	}
	*t = timestamp(n.String())
	return nil
}

// timestamp reads the text of a JSON number.
func timestamp(number string) Timestamp {
	ms, _ := strconv.ParseFloat(number, 64) // the only error is one of range, and then it is infinite
	return Timestamp{ms, true}
}
