package adapters

import (
	"encoding/json"
	"fmt"
)

// A Session is a conversation's identity and the values stored with it. Its methods may be called
// from several goroutines while the turn runs; afterwards Store and Delete return [ErrTurnOver].
//
// A stored value is taken as it is at that moment (as JSON) and holds from then on, also if the turn
// then fails. What was not stored is not kept. No session sees another's values. Values live in a
// bounded cache and may be evicted between turns; [ContinuityEvicted] tells.
type Session struct {
	id     string
	values Values
}

// Values is where a [Session] keeps its values. The engine and adaptertest implement it.
type Values interface {
	// Load returns the JSON stored under key, or false. The caller does not change it.
	Load(key string) (json.RawMessage, bool)
	// Store keeps raw, which it may not change or be given again, under key.
	Store(key string, raw json.RawMessage) error
	// Delete forgets key.
	Delete(key string) error
	// Keys returns the keys in use, sorted.
	Keys() []string
}

// NewSession returns a session of this id over values. Adapters get theirs from a [Turn].
func NewSession(id string, values Values) *Session { return &Session{id: id, values: values} }

// ID is the key under which the host identifies the conversation (Lowkey's sessionHandle.id).
func (s *Session) ID() string { return s.id }

// Load puts the value stored under key into v, a pointer, as json.Unmarshal does. It returns false
// and leaves v alone where nothing is stored.
func (s *Session) Load(key string, v any) (bool, error) {
	raw, ok := s.values.Load(key)
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("session value %q: %w", key, err)
	}
	return true, nil
}

// Store keeps v, anything that json.Marshal takes, under key. A json.RawMessage keeps its bytes.
func (s *Session) Store(key string, v any) error {
	raw, ok := v.(json.RawMessage)
	if ok && json.Valid(raw) {
		return s.values.Store(key, append(json.RawMessage(nil), raw...))
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("session value %q: %w", key, err)
	}
	return s.values.Store(key, raw)
}

// Delete forgets key. Forgetting what is not there is no error.
func (s *Session) Delete(key string) error { return s.values.Delete(key) }

// Clear forgets all values of the session.
func (s *Session) Clear() error {
	for _, k := range s.values.Keys() {
		if err := s.values.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// A Value is a typed name for one of a session's values:
//
//	var draft = adapters.NewValue[Draft]("draft")
type Value[T any] struct{ key string }

// NewValue returns the typed name for the value stored under key.
func NewValue[T any](key string) Value[T] { return Value[T]{key} }

// Load returns the stored value, or T's zero value and false where there is none.
func (v Value[T]) Load(s *Session) (value T, ok bool, err error) {
	ok, err = s.Load(v.key, &value)
	return value, ok, err
}

// Store keeps value.
func (v Value[T]) Store(s *Session, value T) error { return s.Store(v.key, value) }

// Delete forgets the value.
func (v Value[T]) Delete(s *Session) error { return s.Delete(v.key) }
