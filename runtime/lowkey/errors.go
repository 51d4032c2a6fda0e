package lowkey

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// startRefusal says what an engine's refusal means in HTTP.
func startRefusal(err error, turnID string) *wirehttp.Refusal {
	id := wirehttp.Excerpt(turnID)
	switch {
	case errors.Is(err, runtime.ErrConflict):
		return wirehttp.Refuse(http.StatusConflict, "conflict", "The turn id %s was already used for a turn with another message, user or flags: send a new turn id.", id)
	case errors.Is(err, runtime.ErrOutgrown):
		return wirehttp.Refuse(http.StatusConflict, "outgrown", "The turn %s is running and its output has outgrown what can be repeated: wait for its end, then send it again.", id)
	case errors.Is(err, runtime.ErrDraining):
		r := wirehttp.Refuse(http.StatusServiceUnavailable, "draining", "The server is shutting down: send the turn again in a moment.")
		r.RetryAfter = 5
		return r
	case errors.Is(err, runtime.ErrSessionBusy):
		r := wirehttp.Refuse(http.StatusServiceUnavailable, "busy", "The session is busy: another turn of it is running. Send the turn again when that has ended.")
		r.RetryAfter = 1
		return r
	case errors.Is(err, runtime.ErrAtCapacity):
		r := wirehttp.Refuse(http.StatusServiceUnavailable, "capacity", "The server runs as many turns as it may: send the turn again in a moment.")
		r.RetryAfter = 1
		return r
	}
	return wirehttp.Refuse(http.StatusInternalServerError, "internal", "The server could not start the turn.")
}

// write answers with a refusal: one error event, whatever the status.
func write(w http.ResponseWriter, f *wirehttp.Refusal) {
	wirehttp.StreamHeader(w.Header(), contentType)
	f.Write(w, appendError(nil, f.Text))
}

// Refuse answers a request with one error event, as the handler refuses turns. It is for servers that get a
// turn at an address where none are taken.
func Refuse(w http.ResponseWriter, status int, text string) {
	write(w, &wirehttp.Refusal{Status: status, Text: text})
}

// explain says what is wrong with a body: first what the check on the way in found, then whatever else
// the published schema has to say.
func explain(err error, body []byte) *wirehttp.Refusal {
	text := err.Error()
	reason := "invalid"
	var bad *wire.Error
	if errors.As(err, &bad) && len(bad.Violations) > 0 {
		known := bad.Violations[0].Pointer
		for _, v := range wire.Explain(body) {
			if v.Pointer != known {
				text += fmt.Sprintf("; also %s: expected %s", v.Pointer, v.Expected)
			}
		}
	}
	return wirehttp.Refuse(http.StatusBadRequest, reason, "%s", text)
}

func (h *Handler) refuse(ctx context.Context, w http.ResponseWriter, f *wirehttp.Refusal) {
	h.engine.Refuse(ctx, adapters.Lowkey, f.Reason)
	h.log.DebugContext(ctx, "turn request refused", "protocol", string(adapters.Lowkey), "status", f.Status, "reason", f.Reason)
	write(w, f)
}
