package external

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// A problem is an answer that is no turn: a document as in RFC 9457.
type problem struct {
	wirehttp.Refusal
	violations []schema.Violation
}

func problemf(status int, reason, format string, args ...any) *problem {
	return &problem{Refusal: *wirehttp.Refuse(status, reason, format, args...)}
}

// problemType is the media type of RFC 9457.
const problemType = "application/problem+json"

type problemDocument struct {
	Type       string              `json:"type"`
	Title      string              `json:"title"`
	Status     int                 `json:"status"`
	Detail     string              `json:"detail"`
	Violations []violationDocument `json:"violations,omitempty"`
}

type violationDocument struct {
	Pointer  string `json:"pointer"`
	Found    string `json:"found"`
	Expected string `json:"expected"`
}

func (p *problem) write(w http.ResponseWriter) {
	d := problemDocument{Type: "about:blank", Title: http.StatusText(p.Status), Status: p.Status, Detail: p.Text}
	for _, v := range p.violations {
		d.Violations = append(d.Violations, violationDocument(v))
	}
	body, err := json.Marshal(d)
	if err != nil {
		body = []byte("{}") // strings and numbers do not fail
	}
	w.Header().Set("Content-Type", problemType)
	p.Write(w, append(body, '\n'))
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	ctx := r.Context()
	h.engine.Refuse(ctx, adapters.ExternalRuntime, p.Reason)
	h.log.DebugContext(ctx, "request refused", "protocol", string(adapters.ExternalRuntime), "status", p.Status, "reason", p.Reason)
	p.write(w)
}

// malformed says what is wrong with a document.
func malformed(err error, kind wire.Document, body []byte) *problem {
	p := problemf(http.StatusBadRequest, "invalid", "The document is not a valid %s: %s.", kind, err)
	var bad *wire.Error
	if !errors.As(err, &bad) {
		return p
	}
	p.violations = bad.Violations
	if bad.Syntax == nil {
		if all := wire.Explain(kind, body); len(all) > 0 {
			p.violations = all
		}
	}
	if len(p.violations) > schema.MaxViolations {
		p.violations = p.violations[:schema.MaxViolations]
	}
	return p
}

// startProblem says what an engine's refusal means in HTTP.
func startProblem(err error) *problem {
	var p *problem
	switch {
	case errors.Is(err, runtime.ErrDraining):
		p = problemf(http.StatusServiceUnavailable, "draining", "The server is shutting down: send the request again in a moment.")
		p.RetryAfter = 5
	case errors.Is(err, runtime.ErrSessionBusy):
		p = problemf(http.StatusServiceUnavailable, "busy", "Another turn of this binding is running: send the request again when it has ended.")
		p.RetryAfter = 1
	case errors.Is(err, runtime.ErrAtCapacity):
		p = problemf(http.StatusServiceUnavailable, "capacity", "The server runs as many turns as it may: send the request again in a moment.")
		p.RetryAfter = 1
	default:
		p = problemf(http.StatusInternalServerError, "internal", "The server could not start the turn.")
	}
	return p
}

// conflict is the answer to a key or a turn that is known from another request.
func conflict(what string) *problem {
	return problemf(http.StatusConflict, "conflict", "The %s is known from a request with other content, and the first one stands: "+
		"send a new idempotency/key and a new turn/ref for other work, or the first request as it was to join or repeat it.", what)
}

// storeProblem is the answer where the ledger does not do what it must.
func (h *Handler) storeProblem(ctx context.Context, doing string, err error) *problem {
	if errors.Is(err, ledger.ErrMismatch) {
		return conflict("idempotency key, or the turn")
	}
	if ctx.Err() == nil {
		h.log.ErrorContext(ctx, "the ledger failed", slog.String("doing", doing), slog.String("error", err.Error()))
	}
	p := problemf(http.StatusServiceUnavailable, "ledger", "The server's ledger does not answer: send the request again in a moment.")
	p.RetryAfter = 1
	return p
}
