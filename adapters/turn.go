package adapters

import (
	"encoding/json"
	"time"
)

// A Protocol names the wire that a turn came in by. Adapters rarely need it; what differs between
// protocols is a field of [Turn] or a method of [Writer] that answers [ErrNotSupported].
type Protocol string

// The protocols.
const (
	Lowkey          Protocol = "lowkey"
	ExternalRuntime Protocol = "external-runtime"
	Keiki           Protocol = "keiki"
)

// A Role tells who said a [Message].
type Role string

// The roles of a conversation. Agent is any agent of the session, not only this one.
const (
	RoleUser   Role = "user"
	RoleAgent  Role = "agent"
	RoleSystem Role = "system"
)

// A Message is one entry of a conversation.
type Message struct {
	Role    Role
	Content string
	// Time is when it was said; zero where the host did not tell.
	Time time.Time
	// AgentID and AgentName say which agent spoke; empty where the host did not tell.
	AgentID, AgentName string
	// TurnID is the turn in which it was said; empty where the host did not tell.
	TurnID string
}

// A Continuity tells how a turn's history came about: how the window that the host sent was joined
// with the conversation that Backline remembered.
type Continuity string

// The kinds of continuity (lowkey.md, "Settled readings").
const (
	// ContinuityNew: the session was not known; the history is the window.
	ContinuityNew Continuity = "new"
	// ContinuitySame: the window covers all that was remembered.
	ContinuitySame Continuity = "same"
	// ContinuityExtended: the remembered conversation reaches further back than the window, and the
	// history holds both.
	ContinuityExtended Continuity = "extended"
	// ContinuityReplaced: the window contradicts what was remembered (the user edited, rewound or
	// forked the session); the history is the window alone.
	ContinuityReplaced Continuity = "replaced"
	// ContinuityCleared: the window is empty although something was remembered; the history is empty.
	ContinuityCleared Continuity = "cleared"
	// ContinuityEvicted: the session was known once, but has been dropped to save memory; the history
	// is the window, and stored values are gone.
	ContinuityEvicted Continuity = "evicted"
)

// A Turn is one piece of work from a host. It belongs to the adapter that was given it. Strings may
// share memory with the request: keeping one beyond the turn keeps the whole request alive, so clone
// what is kept (strings.Clone).
//
// Fields that a protocol does not have are zero.
type Turn struct {
	// Protocol is the wire the turn came in by.
	Protocol Protocol
	// ID is the host's id of the turn: turnId, or turn/ref.
	ID string
	// PluginID names the plugin that was addressed (Lowkey).
	PluginID string
	// AgentID is the agent the turn is for, as the host names it.
	AgentID string
	// ConversationID is the host's own id of the conversation: Lowkey's sessionId, Keiki's
	// conversationId. The key under which Backline remembers things is Session.ID.
	ConversationID string
	// ProjectPath is the absolute path of the project on the host's machine (Lowkey).
	ProjectPath string
	// Principal is the name of the token that the host authenticated with; empty without tokens.
	Principal string

	// Session is the conversation's identity and its stored values. Never nil in a turn that the
	// engine runs.
	Session *Session
	// Message is what the user said; it may be empty. Where a turn carries several messages, they
	// are joined by a blank line here and stand one by one in Messages.
	Message string
	// Messages are the turn's messages one by one. Nil where the protocol has exactly one.
	Messages []Inbound
	// History is the conversation before this turn, oldest first, without the current message.
	History []Message
	// Continuity tells how History was joined.
	Continuity Continuity

	// User is who wrote the message, as far as the host tells.
	User User
	// Flags are the turn's switches.
	Flags Flags
	// Instructions are the platform's own, for the model (Keiki).
	Instructions string
	// Context is structured context from the platform, its bytes as sent (Keiki).
	Context json.RawMessage
	// Channel tells by which channel the message came, its bytes as sent (Keiki).
	Channel json.RawMessage
	// Attachments are artifacts that the host refers to (agent.external-runtime).
	Attachments []Attachment

	// Deadline is when the turn is cut off; zero means never. The context of Run carries it too.
	Deadline time.Time
	// Budget is what the host set aside for the turn; an axis of zero means no limit was named.
	Budget Budget

	// Raw is the request as it came, byte for byte, unknown fields included.
	Raw string
}

// User is who wrote a turn's message.
type User struct {
	// Name is the name that the host shows; empty where it told none.
	Name string
}

// Flags are a turn's switches, false where the protocol does not have them.
type Flags struct {
	// Headless: nobody watches the turn (Lowkey).
	Headless bool
	// Silent: the platform does not expect an answer; ending without text is fine (Keiki).
	Silent bool
	// QuietLoop: a turn that the platform started by itself; ending without text is fine (Keiki).
	QuietLoop bool
	// HeldBack: what is written is captured and not delivered to the contact (Keiki).
	HeldBack bool
}

// An Inbound is one of several messages that a turn or an [Arrival] carries.
type Inbound struct {
	ID   string
	Text string
	// Silent: the platform keeps this message out of its own records.
	Silent bool
	// Flagged: the platform's screening was suspicious of it.
	Flagged bool
}

// An Attachment is an artifact that the host refers to and keeps.
type Attachment struct {
	Ref, Digest string
	// Size is in bytes.
	Size int64
}

// A Budget is what a host set aside for one turn. Zero on an axis means that no limit was named.
type Budget struct {
	Tokens     int64
	CostMicros int64
	WallTime   time.Duration
	Steps      int64
}

// An Arrival is a batch of messages that came in while the turn ran.
type Arrival struct {
	// Sequence counts a turn's arrivals from 1.
	Sequence int64
	Messages []Inbound
}
