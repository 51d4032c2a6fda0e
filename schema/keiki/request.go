package keiki

import (
	"encoding/json"
	"time"
)

// Version is the version of the contract that is spoken here, and the only one.
const Version = 1

// A Kind tells what a signed request is about; it is the type of its body.
type Kind string

// The kinds (keiki.md, Push).
const (
	KindTurn      Kind = "keiki.turn"
	KindArrival   Kind = "keiki.turn.arrival"
	KindCancelled Kind = "keiki.turn.cancelled"
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{KindTurn, KindArrival, KindCancelled} }

// A Request is one signed request. Of the pointers exactly one is not nil, that of its kind.
type Request struct {
	Kind      Kind
	Turn      *Turn
	Arrival   *Arrival
	Cancelled *Cancelled
}

// TurnID is the id of the turn that the request is about.
func (r *Request) TurnID() string {
	switch {
	case r.Turn != nil:
		return r.Turn.TurnID
	case r.Arrival != nil:
		return r.Arrival.TurnID
	case r.Cancelled != nil:
		return r.Cancelled.TurnID
	}
	return ""
}

// A Turn is what the platform asks an agent to answer (keiki.turn). What it did not send is zero.
type Turn struct {
	// TurnID and AgentID are not empty in a pushed turn; in a claimed one AgentID may be.
	TurnID         string `json:"turnId" jsonschema:"minLength=1" jsonschema_description:"The platform's id of the turn."`
	AgentID        string `json:"agentId" jsonschema:"minLength=1" jsonschema_description:"The agent that the turn is for."`
	ConversationID string `json:"conversationId,omitempty" jsonschema_description:"The conversation that the turn belongs to."`
	// Channel is a string or an object, byte for byte; nil where there is none.
	Channel json.RawMessage `json:"channel,omitempty" jsonschema_description:"The channel that the messages came by: its name, or its envelope."`
	// Messages may be empty, and is not nil.
	Messages []Message `json:"messages" jsonschema_description:"Every inbound message of the turn."`
	// History is oldest first. It is nil where there is none, and where it is empty; HasHistory tells the
	// two apart.
	History    []Entry `json:"history,omitempty" jsonschema_description:"The recent history of the conversation, oldest first."`
	HasHistory bool    `json:"-"`
	// Context is any JSON, byte for byte; nil where there is none.
	Context      json.RawMessage `json:"context,omitempty" jsonschema_description:"Structured context. It is passed on byte for byte."`
	Instructions string          `json:"instructions,omitempty" jsonschema_description:"Instructions for the prompt."`
	HeldBack     bool            `json:"heldBack,omitempty" jsonschema_description:"Whether what is sent is captured as the turn's answer, and not delivered to the contact."`
	Silent       bool            `json:"silent,omitempty" jsonschema_description:"Whether the turn is to be answered silently."`
	QuietLoop    bool            `json:"quietLoop,omitempty" jsonschema_description:"Whether the turn is of a quiet loop."`
	// Deadline is when the platform gives the turn up, in UTC; the zero time if it does not say. One that
	// was sent is never the zero time, however long past.
	Deadline time.Time `json:"deadline,omitzero" jsonschema_description:"When the platform gives the turn up: a date and time (RFC 3339), or a number of seconds since 1970-01-01T00:00:00Z below 100000000000, of milliseconds from there on."`
	Links    Links     `json:"keiki" jsonschema_description:"Where the platform is."`
}

// A Message is an inbound message.
type Message struct {
	Text string `json:"text" jsonschema_description:"What was said. May be empty."`
	// ID is the wire's messageId; empty where there is none.
	ID     string `json:"messageId,omitempty" jsonschema_description:"The platform's id of the message."`
	Silent bool   `json:"silent,omitempty" jsonschema_description:"Whether the message is kept out of prompt guarding and of the inbound record."`
	// Flagged is the wire's screening.flagged: prompt guarding found the message suspicious.
	Flagged bool `json:"-"`
}

// An Entry is one message of a turn's history. The contract says little of it, so that little is asked
// of it: what cannot be read is zero.
type Entry struct {
	// Role is as the platform wrote it: user, assistant, or another word.
	Role string `json:"role,omitempty" jsonschema_description:"Who said it."`
	// Text is the wire's text or, without one, its content: a string, or the texts of its parts.
	Text string `json:"text,omitempty" jsonschema_description:"What was said."`
	// Time is when it was said, in UTC, as the first of createdAt, at, time and timestamp tells it that
	// comes and can be read; the zero time if none does.
	Time time.Time `json:"-"`
}

// Links say where the platform is. Nothing has been checked of them but that they are strings: which
// origins a credential may go to is for the caller to decide.
type Links struct {
	// APIBase and TurnURL are not empty in a request; in a claim APIBase may be.
	APIBase string `json:"apiBase" jsonschema:"minLength=1" jsonschema_description:"The base URL of the platform's API."`
	TurnURL string `json:"turnUrl" jsonschema:"minLength=1" jsonschema_description:"The URL of the turn, below which its API is."`
	MCPURL  string `json:"mcpUrl,omitempty" jsonschema_description:"The URL of the platform's MCP server."`
}

// An Arrival is what came in while a turn ran (keiki.turn.arrival).
type Arrival struct {
	TurnID         string `json:"turnId" jsonschema:"minLength=1" jsonschema_description:"The running turn."`
	AgentID        string `json:"agentId" jsonschema:"minLength=1" jsonschema_description:"The agent of the turn."`
	ConversationID string `json:"conversationId,omitempty" jsonschema_description:"The conversation of the turn."`
	HeldBack       bool   `json:"heldBack,omitempty" jsonschema_description:"Whether the turn is held back."`
	// Links are zero where there are none.
	Links Links `json:"keiki,omitzero" jsonschema_description:"Where the platform is."`
	// Sequence numbers the arrivals of a turn from 1.
	Sequence int64 `json:"sequence" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"The number of the arrival within the turn."`
	// Messages may be empty, and is not nil.
	Messages []Message `json:"messages" jsonschema_description:"The messages, in order."`
}

// Cancelled says that a turn was cancelled (keiki.turn.cancelled).
type Cancelled struct {
	TurnID         string `json:"turnId" jsonschema:"minLength=1" jsonschema_description:"The turn that was cancelled."`
	AgentID        string `json:"agentId" jsonschema:"minLength=1" jsonschema_description:"The agent of the turn."`
	ConversationID string `json:"conversationId,omitempty" jsonschema_description:"The conversation of the turn."`
}
