package keiki

import (
	"time"

	"github.com/backline-dev/backline/runtime/secret"
)

// SetBackoff shortens the pauses between the attempts of a call, for tests. Before the first request.
func SetBackoff(h *Handler, least, most time.Duration) { h.run.backoff = newBackoff(least, most) }

// GapPatience is how long a missing arrival is pulled for.
const GapPatience = gapPatience

// SetGapPatience changes that, for tests. Before the first request.
func SetGapPatience(h *Handler, d time.Duration) { h.run.patience = d }

// Rotate replaces the token of a turn that runs, as the refresh of a lease does.
func Rotate(h *Handler, agent, turn, token string) bool {
	t := h.run.find(agent, turn)
	if t != nil {
		t.creds.rotate(secret.Text(token))
	}
	return t != nil
}
