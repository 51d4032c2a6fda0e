package adaptertest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/backline-dev/backline/adapters"
)

// A Session is a conversation whose turns keep their values and history: each completed turn adds
// its message and its text, an empty one of either adds nothing. A turn that failed or was cancelled
// leaves the history as it was; values that it stored stay.
//
// Its methods may be called from several goroutines. Turns of one session never run at once: [Run]
// waits for the one before.
type Session struct {
	id      string
	values  *values
	outside *adapters.Session
	running chan struct{} // holds one element while a turn runs

	mu      sync.Mutex
	history []adapters.Message
	turns   int
	known   bool // a turn has completed
}

// NewSession returns a new conversation of this id.
func NewSession(id string) *Session {
	v := &values{kept: map[string]json.RawMessage{}}
	return &Session{id: id, values: v, outside: adapters.NewSession(id, v), running: make(chan struct{}, 1)}
}

// Turn returns the session's next turn with this message. Its History is a copy of the conversation
// so far, so make the next turn after the one before has run. The test may change the history, as a user
// who edits or rewinds does; once such a turn has completed, it is the session's history.
func (s *Session) Turn(message string) *Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns++
	t := &Turn{session: s, Turn: adapters.Turn{
		Protocol:       adapters.Lowkey,
		ID:             fmt.Sprintf("turn-%d", s.turns),
		PluginID:       "muse",
		AgentID:        "agent-1",
		ConversationID: "conversation-" + s.id,
		ProjectPath:    "/projects/demo",
		Session:        s.outside,
		Message:        message,
		History:        slices.Clone(s.history),
		Continuity:     adapters.ContinuityNew,
	}}
	if s.known {
		t.Continuity = adapters.ContinuitySame
	}
	return t
}

// History returns a copy of the conversation so far, oldest first.
func (s *Session) History() []adapters.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// Values gives access to the stored values, from outside any turn.
func (s *Session) Values() *adapters.Session { return s.outside }

// lock waits until no turn of the session runs, or ctx is cancelled; then it returns false. A session
// that is free is locked also where ctx is cancelled already, so that such turns run always and not
// by chance.
func (s *Session) lock(ctx context.Context) bool {
	select {
	case s.running <- struct{}{}:
		return true
	default:
	}
	select {
	case s.running <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Session) unlock() { <-s.running }

// completed makes the conversation that t had, with what was said in it, the session's.
func (s *Session) completed(t *Turn, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = true
	s.history = slices.Clone(t.History)
	if t.Message != "" {
		s.history = append(s.history, adapters.Message{Role: adapters.RoleUser, Content: t.Message, TurnID: t.ID})
	}
	if text != "" {
		s.history = append(s.history, adapters.Message{Role: adapters.RoleAgent, Content: text, AgentID: t.AgentID, TurnID: t.ID})
	}
}

// values keeps a session's values in memory.
type values struct {
	mu   sync.Mutex
	kept map[string]json.RawMessage
}

var _ adapters.Values = (*values)(nil)

func (v *values) Load(key string) (json.RawMessage, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	raw, ok := v.kept[key]
	return raw, ok
}

func (v *values) Store(key string, raw json.RawMessage) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept[key] = raw
	return nil
}

func (v *values) Delete(key string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.kept, key)
	return nil
}

func (v *values) Keys() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.kept))
}

// turnValues are a session's values as one turn sees them: they can be changed until it is over.
type turnValues struct {
	*values
	w *Writer
}

func (v *turnValues) Store(key string, raw json.RawMessage) error {
	// The writer's lock is held so that a turn cannot end between the check and the change.
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if err := v.w.over(); err != nil {
		return err
	}
	return v.values.Store(key, raw)
}

func (v *turnValues) Delete(key string) error {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if err := v.w.over(); err != nil {
		return err
	}
	return v.values.Delete(key)
}
