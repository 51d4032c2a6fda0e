package keiki

import (
	"time"

	"github.com/backline-dev/backline/runtime/secret"
)

// SetBackoff shortens the pauses between the attempts of a call, for tests. Before the first request.
func SetBackoff(h *Handler, least, most time.Duration) { h.run.backoff = newBackoff(least, most) }

// Rotate replaces the token of a turn that runs, as the refresh of a lease does.
func Rotate(h *Handler, agent, turn, token string) bool {
	t := h.run.find(agent, turn)
	if t != nil {
		t.creds.rotate(secret.Text(token))
	}
	return t != nil
}
