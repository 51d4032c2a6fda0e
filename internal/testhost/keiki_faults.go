package testhost

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// A KeikiFault is what goes wrong with a request to the platform. The zero value is nothing.
type KeikiFault struct {
	// After makes it go wrong once the request has been processed: its answer is lost. Otherwise the
	// request is not processed, unless there is but a Delay.
	After bool
	// Delay comes first.
	Delay time.Duration
	// Drop ends the connection without an answer.
	Drop bool
	// Status and Body are answered; a body that begins with "<" as HTML. A status of 0 is 200 where there
	// is a body.
	Status int
	Body   string
	// RetryAfter is the header of that name, on whatever is answered instead.
	RetryAfter string
	// Redirect is where the request is sent instead, by status 307 if there is no other.
	Redirect string
}

// String names the fault; it is empty for none.
func (f KeikiFault) String() string {
	var parts []string
	if f.Delay > 0 {
		parts = append(parts, "delay "+f.Delay.String())
	}
	switch {
	case f.Drop:
		parts = append(parts, "drop")
	case f.Redirect != "":
		parts = append(parts, "redirect")
	case f.replaces():
		parts = append(parts, fmt.Sprintf("status %d", f.reply().status))
	}
	if f.After && len(parts) > 0 {
		parts = append(parts, "after processing")
	}
	return strings.Join(parts, ", ")
}

// replaces tells whether there is another answer than the platform's.
func (f KeikiFault) replaces() bool {
	return f.Drop || f.Status != 0 || f.Body != "" || f.Redirect != "" || f.RetryAfter != ""
}

func (f KeikiFault) reply() keikiReply {
	r := keikiReply{status: f.Status, body: []byte(f.Body), header: http.Header{}}
	if f.RetryAfter != "" {
		r.header.Set("Retry-After", f.RetryAfter)
		setDefault(&r.status, http.StatusServiceUnavailable)
	}
	if f.Redirect != "" {
		r.header.Set("Location", f.Redirect)
		setDefault(&r.status, http.StatusTemporaryRedirect)
	}
	setDefault(&r.status, http.StatusOK)
	if strings.HasPrefix(f.Body, "<") {
		r.header.Set("Content-Type", "text/html; charset=utf-8")
	}
	r.code = codeOf(r.body)
	return r
}

// RandomFaults makes faults for so many of a hundred requests each: connections dropped, half of them
// after processing; 500, half of them after processing; and 429. Which request has which depends on seed
// and its number alone.
func RandomFaults(seed uint64, drop, internal, tooMany int) func(*http.Request, int) KeikiFault {
	return func(_ *http.Request, n int) KeikiFault {
		r := rand.New(rand.NewPCG(seed, uint64(n))) //nolint:gosec // chance, not secrecy
		after := r.IntN(2) == 1
		switch p := r.IntN(100); {
		case p < drop:
			return KeikiFault{Drop: true, After: after}
		case p < drop+internal:
			return KeikiFault{Status: http.StatusInternalServerError, Body: `{"error":{"code":"internal"}}`, After: after}
		case p < drop+internal+tooMany:
			return KeikiFault{Status: http.StatusTooManyRequests, Body: `{"error":{"code":"rate_limited"}}`}
		default:
			return KeikiFault{}
		}
	}
}
