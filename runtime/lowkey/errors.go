package lowkey

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A refusal is a turn request that is declined before it becomes a turn.
type refusal struct {
	status     int
	reason     string // a short fixed word, for hooks and logs
	text       string // for the host
	retryAfter int    // seconds; 0 for none
	closing    bool   // the connection is of no use any more
}

func refuse(status int, reason, format string, args ...any) *refusal {
	return &refusal{status: status, reason: reason, text: fmt.Sprintf(format, args...)}
}

// startRefusal says what an engine's refusal means in HTTP.
func startRefusal(err error, turnID string) *refusal {
	id := excerpt(turnID)
	switch {
	case errors.Is(err, runtime.ErrConflict):
		return refuse(http.StatusConflict, "conflict", "The turn id %s was already used for a turn with another message, user or flags: send a new turn id.", id)
	case errors.Is(err, runtime.ErrOutgrown):
		return refuse(http.StatusConflict, "outgrown", "The turn %s is running and its output has outgrown what can be repeated: wait for its end, then send it again.", id)
	case errors.Is(err, runtime.ErrDraining):
		r := refuse(http.StatusServiceUnavailable, "draining", "The server is shutting down: send the turn again in a moment.")
		r.retryAfter = 5
		return r
	case errors.Is(err, runtime.ErrSessionBusy):
		r := refuse(http.StatusServiceUnavailable, "busy", "The session is busy: another turn of it is running. Send the turn again when that has ended.")
		r.retryAfter = 1
		return r
	case errors.Is(err, runtime.ErrAtCapacity):
		r := refuse(http.StatusServiceUnavailable, "capacity", "The server runs as many turns as it may: send the turn again in a moment.")
		r.retryAfter = 1
		return r
	}
	return refuse(http.StatusInternalServerError, "internal", "The server could not start the turn.")
}

// excerpt quotes a piece of input for an error text, cut to 100 characters.
func excerpt(s string) string {
	n := 0
	for i := range s {
		if n == 100 {
			return strconv.Quote(s[:i] + "…")
		}
		n++
	}
	return strconv.Quote(s)
}

// write answers with the refusal: one error event, whatever the status.
func (f *refusal) write(w http.ResponseWriter) {
	h := w.Header()
	streamHeader(h)
	switch f.status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="backline"`)
	case http.StatusMethodNotAllowed:
		h.Set("Allow", http.MethodPost)
	}
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	if f.closing {
		h.Set("Connection", "close")
	}
	body := appendError(nil, f.text)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // the host is told, or it is gone
}

// Refuse answers a request with one error event, as the handler refuses turns. It is for servers that get a
// turn at an address where none are taken.
func Refuse(w http.ResponseWriter, status int, text string) {
	(&refusal{status: status, text: text}).write(w)
}

// explain says what is wrong with a body: first what the check on the way in found, then whatever else
// the published schema has to say.
func explain(err error, body []byte) *refusal {
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
	return refuse(http.StatusBadRequest, reason, "%s", text)
}

func (h *Handler) refuse(ctx context.Context, w http.ResponseWriter, f *refusal) {
	h.engine.Refuse(ctx, adapters.Lowkey, f.reason)
	h.log.DebugContext(ctx, "turn request refused", "protocol", string(adapters.Lowkey), "status", f.status, "reason", f.reason)
	f.write(w)
}
