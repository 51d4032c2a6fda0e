package external

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A standing is what an operator is told of an admission in a list.
type standing struct {
	ProfileRef        wire.ProfileRef `json:"profile/ref"`
	ProfileGeneration int64           `json:"profile/generation"`
	State             string          `json:"state"`
	AdmittedAt        time.Time       `json:"admitted/at"`
	WithdrawnAt       *time.Time      `json:"withdrawn/at,omitempty"`
}

// A bindingStanding is a standing of a binding.
type bindingStanding struct {
	BindingRef    wire.BindingRef `json:"binding/ref"`
	BindingDigest wire.Digest     `json:"binding/digest"`
	AgentID       wire.AgentID    `json:"agent/id"`
	standing
	ExpiresAt wire.DateTime `json:"expires/at"`
	// Refuses is the reason for which every turn is refused now, empty where none is.
	Refuses wire.ReasonCode `json:"refuses,omitempty"`
	// Session is open, closed, or none where there never was one.
	Session string `json:"session"`
	// TurnRef is the turn that has the session, and Waiting how many wait for it.
	TurnRef wire.TurnRef `json:"turn/ref,omitempty"`
	Waiting int          `json:"waiting"`
}

func standingOf(a *ledger.Admission, ref wire.ProfileRef, generation int64) standing {
	d := admissionOf(a, "")
	return standing{ref, generation, d.State, d.AdmittedAt, d.WithdrawnAt}
}

// listProfiles tells an operator of all profiles.
func (h *Handler) listProfiles(w http.ResponseWriter, r *http.Request) *problem {
	all, err := h.store.Admissions(r.Context(), ledger.Profile)
	if err != nil {
		return h.storeProblem(r.Context(), "read", err)
	}
	list := make([]standing, 0, len(all))
	for i := range all {
		list = append(list, standingOf(&all[i], wire.ProfileRef(all[i].Ref), all[i].Generation))
	}
	writeJSON(w, http.StatusOK, struct {
		Profiles []standing `json:"profiles"`
	}{list})
	return nil
}

// listBindings tells an operator of all bindings, with their sessions.
func (h *Handler) listBindings(w http.ResponseWriter, r *http.Request) *problem {
	ctx := r.Context()
	all, err := h.store.Admissions(ctx, ledger.Binding)
	if err != nil {
		return h.storeProblem(ctx, "read", err)
	}
	holders, waiting := h.queues()
	list := make([]bindingStanding, 0, len(all))
	for i := range all {
		a := &all[i]
		b, err := h.admitted.binding(a)
		if err != nil {
			return h.storeProblem(ctx, "read", err)
		}
		d := bindingStanding{
			BindingRef: b.BindingRef, BindingDigest: b.BindingDigest, AgentID: b.AgentID, ExpiresAt: b.ExpiresAt,
			standing: standingOf(a, b.ProfileRef, b.ProfileGeneration),
			Session:  "none", TurnRef: holders[b.BindingRef], Waiting: waiting[b.BindingRef],
		}
		if d.Refuses, err = h.refuses(ctx, a, b); err != nil {
			return h.storeProblem(ctx, "read", err)
		}
		switch s, err := h.store.Session(ctx, ledger.BindingRef(a.Ref)); {
		case errors.Is(err, ledger.ErrNotFound):
		case err != nil:
			return h.storeProblem(ctx, "read", err)
		case s.Open:
			d.Session = "open"
		default:
			d.Session = "closed"
		}
		list = append(list, d)
	}
	writeJSON(w, http.StatusOK, struct {
		Bindings []bindingStanding `json:"bindings"`
	}{list})
	return nil
}

// refuses is why every turn of a binding is refused now, empty where none is.
func (h *Handler) refuses(ctx context.Context, a *ledger.Admission, b *wire.Binding) (wire.ReasonCode, error) {
	expires, err := b.ExpiresAt.Time()
	switch {
	case err != nil:
		return "", err
	case !a.InForce():
		return wire.ReasonBindingRevoked, nil
	case !expires.After(time.Now()):
		return wire.ReasonBindingExpired, nil
	case h.adapterOf(b.AgentID) == nil:
		return wire.ReasonBindingMismatch, nil
	}
	p, err := h.store.Admission(ctx, ledger.Profile, string(b.ProfileRef))
	switch {
	case errors.Is(err, ledger.ErrNotFound), err == nil && p.Generation != b.ProfileGeneration:
		return wire.ReasonProfileMismatch, nil
	case err != nil:
		return "", err
	case !p.InForce():
		return wire.ReasonProfileDisabled, nil
	}
	return "", nil
}

// queues tells which turn has each binding's session, and how many wait for it.
func (h *Handler) queues() (holders map[wire.BindingRef]wire.TurnRef, waiting map[wire.BindingRef]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	holders, waiting = map[wire.BindingRef]wire.TurnRef{}, map[wire.BindingRef]int{}
	for _, t := range h.live {
		if t.holds.Load() {
			holders[t.binding.BindingRef] = t.ref
		} else {
			waiting[t.binding.BindingRef]++
		}
	}
	return holders, waiting
}
