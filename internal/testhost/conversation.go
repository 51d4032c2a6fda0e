package testhost

import (
	"context"
	"slices"
	"time"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// DefaultWindow is the window of a new [Conversation], in messages: the number in the contract's
// example.
const DefaultWindow = 40

// A Conversation is one session with one agent, as the platform keeps it: a session handle that stays,
// a fresh id for each turn, and a transcript, of which each turn carries the newest entries. It is for
// one goroutine. Its fields may be changed between two turns.
type Conversation struct {
	// Host sends the turns.
	Host *Lowkey
	// Handle identifies the session.
	Handle wire.SessionHandle
	// Window is the most entries that a turn carries (limits.transcriptWindowMessages); 0 sends none.
	Window int
	// UserName and AgentName are sent where they are not empty.
	UserName, AgentName string
	// Headless says that nobody watches.
	Headless bool
	// Transcript is all that was said, oldest first. Cut it or change it to play a user who rewinds or
	// edits the session.
	Transcript []wire.WindowEntry
}

// NewConversation starts a session with a fresh handle, whose agent has the plugin's id.
func NewConversation(h *Lowkey) *Conversation {
	id := newID("session")
	return &Conversation{
		Host:   h,
		Handle: wire.SessionHandle{ID: id, ProjectPath: "/project", SessionID: id, AgentID: h.PluginID},
		Window: DefaultWindow,
	}
}

// Request makes the request for the session's next turn: what [Conversation.Say] sends.
func (c *Conversation) Request(message string) wire.Request {
	window, most := c.Transcript, max(c.Window, 0)
	if over := len(window) - most; over > 0 {
		window = window[over:]
	}
	return wire.Request{
		ProtocolVersion:  wire.ProtocolVersion,
		PluginID:         c.Host.PluginID,
		SessionHandle:    c.Handle,
		Turn:             wire.Turn{TurnID: newID("turn"), Message: message, Headless: c.Headless, UserName: c.UserName},
		TranscriptWindow: append([]wire.WindowEntry{}, window...),
		Limits:           wire.Limits{TranscriptWindowMessages: most},
	}
}

// Say sends a message. When the stream has been walked or closed, the message and the
// text that came, however the turn ended, are in the transcript, as far as they are not empty. A turn
// that was refused leaves none. The next turn must wait for that.
func (c *Conversation) Say(ctx context.Context, message string) (*Stream, error) {
	return c.Send(ctx, c.Request(message))
}

// Send is Say for a request that was made by [Conversation.Request], and may have been changed since.
func (c *Conversation) Send(ctx context.Context, r wire.Request) (*Stream, error) {
	s, err := c.Host.Turn(ctx, r)
	if err != nil {
		return nil, err
	}
	said := wire.WindowEntry{
		Role:      wire.RoleUser,
		Content:   r.Turn.Message,
		Timestamp: wire.TimestampAt(s.Sent),
		TurnID:    r.Turn.TurnID,
	}
	s.onEnd = func(text string) {
		answer := wire.WindowEntry{
			Role:      wire.RoleAgent,
			Content:   text,
			Timestamp: wire.TimestampAt(time.Now()),
			AgentID:   r.SessionHandle.AgentID,
			AgentName: c.AgentName,
			TurnID:    r.Turn.TurnID,
		}
		for _, e := range []wire.WindowEntry{said, answer} {
			if e.Content != "" {
				c.Transcript = append(slices.Clip(c.Transcript), e)
			}
		}
	}
	return s, nil
}
