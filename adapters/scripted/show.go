package scripted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/backline-dev/backline/adapters"
)

func showStep(o object) (step, error) {
	what, err := o.str("show")
	if err != nil {
		return nil, err
	}
	var show func(*adapters.Turn) any
	switch what {
	case "history":
		show = history
	case "turn":
		show = told
	default:
		return nil, fmt.Errorf(`"show" must be "history" or "turn", not %s`, quote(what))
	}
	return func(_ context.Context, p *player) error {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // people read it
		if err := e.Encode(show(p.turn)); err != nil {
			return fmt.Errorf("show %s: %w", what, err)
		}
		return p.text(string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))))
	}, nil
}

type shownEntry struct {
	Role    adapters.Role `json:"role"`
	Content string        `json:"content"`
}

func history(turn *adapters.Turn) any {
	entries := make([]shownEntry, len(turn.History))
	for i, m := range turn.History {
		entries[i] = shownEntry{m.Role, m.Content}
	}
	return entries
}

// shownTurn is what {"show":"turn"} writes. Ids, flags and how the history came about are always
// there; what only some protocols have is left out where it was not told.
type shownTurn struct {
	Protocol       adapters.Protocol   `json:"protocol"`
	TurnID         string              `json:"turnId"`
	SessionID      string              `json:"sessionId"`
	ConversationID string              `json:"conversationId"`
	PluginID       string              `json:"pluginId"`
	AgentID        string              `json:"agentId"`
	ProjectPath    string              `json:"projectPath,omitempty"`
	Principal      string              `json:"principal,omitempty"`
	User           shownUser           `json:"user"`
	Flags          shownFlags          `json:"flags"`
	Continuity     adapters.Continuity `json:"continuity"`
	Deadline       *time.Time          `json:"deadline"` // null: none
	Budget         *shownBudget        `json:"budget,omitempty"`
	Instructions   string              `json:"instructions,omitempty"`
	Context        json.RawMessage     `json:"context,omitempty"`
	Channel        json.RawMessage     `json:"channel,omitempty"`
	Messages       []shownMessage      `json:"messages,omitempty"`
	Attachments    []shownAttachment   `json:"attachments,omitempty"`
}

type shownUser struct {
	Name string `json:"name"`
}

type shownFlags struct {
	Headless  bool `json:"headless"`
	Silent    bool `json:"silent"`
	QuietLoop bool `json:"quietLoop"`
	HeldBack  bool `json:"heldBack"`
}

type shownBudget struct {
	Tokens     int64 `json:"tokens"`
	CostMicros int64 `json:"costMicros"`
	WallTimeMS int64 `json:"wallTimeMs"`
	Steps      int64 `json:"steps"`
}

type shownMessage struct {
	ID      string `json:"id"`
	Text    string `json:"text"`
	Silent  bool   `json:"silent"`
	Flagged bool   `json:"flagged"`
}

type shownAttachment struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

func told(t *adapters.Turn) any {
	s := shownTurn{
		Protocol:       t.Protocol,
		TurnID:         t.ID,
		SessionID:      t.Session.ID(),
		ConversationID: t.ConversationID,
		PluginID:       t.PluginID,
		AgentID:        t.AgentID,
		ProjectPath:    t.ProjectPath,
		Principal:      t.Principal,
		User:           shownUser(t.User),
		Flags:          shownFlags(t.Flags),
		Continuity:     t.Continuity,
		Instructions:   t.Instructions,
		Context:        t.Context,
		Channel:        t.Channel,
	}
	if !t.Deadline.IsZero() {
		s.Deadline = &t.Deadline
	}
	if b := t.Budget; b != (adapters.Budget{}) {
		s.Budget = &shownBudget{b.Tokens, b.CostMicros, b.WallTime.Milliseconds(), b.Steps}
	}
	for _, m := range t.Messages {
		s.Messages = append(s.Messages, shownMessage(m))
	}
	for _, a := range t.Attachments {
		s.Attachments = append(s.Attachments, shownAttachment(a))
	}
	return s
}
