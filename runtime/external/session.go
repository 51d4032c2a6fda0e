package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/external"
)

// maxValues is how much the values of one session take at most, in bytes of JSON.
const maxValues = 4 << 20

// values are the stored values of a binding's session, for one turn. They are read from the ledger when
// the turn's place in the session's queue has come, and written with the facts that the turn commits.
type values struct {
	mu    sync.Mutex
	known map[string]json.RawMessage
	size  int
	dirty bool
	over  bool
}

var _ adapters.Values = (*values)(nil)

// Load implements [adapters.Values].
func (v *values) Load(key string) (json.RawMessage, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	raw, ok := v.known[key]
	return bytes.Clone(raw), ok
}

// Store implements [adapters.Values].
func (v *values) Store(key string, raw json.RawMessage) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return adapters.ErrTurnOver
	}
	size := v.size + len(raw) - len(v.known[key])
	if _, ok := v.known[key]; !ok {
		size += len(key) + 8
	}
	if size > maxValues {
		return fmt.Errorf("the session's values would take %d bytes, at most %d are kept", size, maxValues)
	}
	if v.known == nil {
		v.known = map[string]json.RawMessage{}
	}
	v.known[key], v.size, v.dirty = bytes.Clone(raw), size, true
	return nil
}

// Delete implements [adapters.Values].
func (v *values) Delete(key string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return adapters.ErrTurnOver
	}
	if raw, ok := v.known[key]; ok {
		delete(v.known, key)
		v.size -= len(raw) + len(key) + 8
		v.dirty = true
	}
	return nil
}

// Keys implements [adapters.Values].
func (v *values) Keys() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.known))
}

// load takes the values of a ledger's row.
func (v *values) load(row json.RawMessage) error {
	if len(row) == 0 {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := json.Unmarshal(row, &v.known); err != nil {
		return fmt.Errorf("the session's values: %w", err)
	}
	for key, raw := range v.known {
		v.size += len(key) + len(raw) + 8
	}
	return nil
}

// take returns the values as a row has them, where they have changed. last ends their use.
func (v *values) take(last bool) (row json.RawMessage, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = v.over || last
	if !v.dirty {
		return nil, false
	}
	// By hand, since encoding/json would write the values anew and they keep their bytes.
	row = append(row, '{')
	for i, key := range slices.Sorted(maps.Keys(v.known)) {
		if i > 0 {
			row = append(row, ',')
		}
		row = append(ndjson.AppendString(row, key), ':')
		row = append(row, v.known[key]...)
	}
	return append(row, '}'), true
}

func (v *values) saved() {
	v.mu.Lock()
	v.dirty = false
	v.mu.Unlock()
}

// openSession gives a turn that was dispatched at once what is remembered of its session.
func (t *turn) openSession(ctx context.Context) error {
	s, err := t.h.store.Session(ctx, ledger.BindingRef(t.binding.BindingRef))
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.Open || s.Fence != t.fence {
		t.detached = true // closed meanwhile
		return nil
	}
	t.session = s
	return t.values.load(s.Values)
}

// takeSession is the binding's session, for a turn whose turn it is to have it: opened, where it is not. same
// tells that it was there.
func (t *turn) takeSession(ctx context.Context) (s ledger.Session, same bool, err error) {
	ref := ledger.BindingRef(t.binding.BindingRef)
	for {
		s, err = t.h.store.Session(ctx, ref)
		switch {
		case err != nil && !errors.Is(err, ledger.ErrNotFound):
			return s, false, err
		case s.Open && s.Fence == t.fence:
			return s, true, nil
		}
		s, err = t.h.store.PutSession(ctx, ledger.Session{Binding: ref, Version: s.Version, Fence: t.fence, Open: true}, time.Now())
		if !errors.Is(err, ledger.ErrConflict) { // else a host has just closed it
			return s, false, err
		}
	}
}

// changedSession is the session as this turn leaves it, nil where that changes nothing. Called with t.mu
// held.
func (t *turn) changedSession(last bool) *ledger.Session {
	row, changed := t.values.take(last)
	if !changed || t.detached {
		return nil
	}
	s := t.session
	s.Values = row
	return &s
}

// closeSession ends the session of a binding.
func (h *Handler) closeSession(w http.ResponseWriter, r *http.Request) *problem {
	ref, p := refOf(r)
	if p != nil {
		return p
	}
	ctx, cancel := lasting(r.Context())
	defer cancel()
	answer := func(status int, word string) *problem {
		writeJSON(w, status, struct {
			Session string `json:"session"`
		}{word})
		return nil
	}
	var closed int64 // the version that the closing made
	for {
		s, err := h.store.Session(ctx, ledger.BindingRef(ref))
		switch {
		case errors.Is(err, ledger.ErrNotFound):
			return answer(http.StatusNotFound, "unknown")
		case err != nil:
			return h.storeProblem(ctx, "read", err)
		case !s.Open:
			return answer(http.StatusOK, "unknown")
		}
		s.Open, s.Values = false, nil
		if s, err = h.store.PutSession(ctx, s, time.Now()); err == nil {
			closed = s.Version
			break
		} else if !errors.Is(err, ledger.ErrConflict) {
			return h.storeProblem(ctx, "close", err)
		}
	}
	word := "closed"
	h.mu.Lock()
	var turns []*turn
	for _, t := range h.live {
		if t.binding.BindingRef == wire.BindingRef(ref) {
			turns = append(turns, t)
		}
	}
	h.mu.Unlock()
	for _, t := range turns {
		<-t.ready
		if !t.admitted {
			continue
		}
		concerned, ending := t.sessionClosed(closed)
		if concerned && (!ending || !t.wait(ctx, promptly)) {
			word = "pending"
		}
	}
	return answer(http.StatusOK, word)
}
