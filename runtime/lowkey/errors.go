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

// publicText is what the host is told of a turn that failed. It is the one place that decides which
// texts leave the process: a sentence that an adapter wrote on purpose, or a general one of ours with
// the correlation id that the log has too.
func publicText(o *runtime.Outcome) string {
	switch o.Cause {
	case adapters.CauseTurnTimeout:
		if o.Waited > 0 && o.History == 0 && o.Continuity == "" {
			return fmt.Sprintf("The turn waited for another turn of its session until it passed the limit for a whole turn (turn timeout, %v).", o.Limit)
		}
		return fmt.Sprintf("The turn passed the limit for a whole turn (turn timeout, %v).", o.Limit)
	case adapters.CauseFirstOutput:
		return fmt.Sprintf("The agent wrote nothing within the limit for its first output (%v).", o.Limit)
	case adapters.CauseIdle:
		return fmt.Sprintf("The agent fell silent for longer than the limit between two outputs (idle, %v).", o.Limit)
	case adapters.CauseSessionBusy:
		return fmt.Sprintf("The session is busy: another turn of it ran for longer than this one may wait (%v). Try again.", o.Limit)
	}
	var public *adapters.PublicError
	if errors.As(o.Err, &public) && public.Message != "" {
		return public.Message
	}
	var unavailable *adapters.Unavailable
	if errors.As(o.Err, &unavailable) {
		if unavailable.Message != "" {
			return unavailable.Message
		}
		return "The service behind the agent is unavailable (reference " + o.CorrelationID + ")."
	}
	var unsupported *adapters.UnsupportedError
	if errors.As(o.Err, &unsupported) && unsupported != nil { // a text of ours, which helps whoever wrote the adapter
		return "The agent needs what this protocol does not have: " + unsupported.Error() + "."
	}
	return "The agent failed (reference " + o.CorrelationID + ")."
}

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
