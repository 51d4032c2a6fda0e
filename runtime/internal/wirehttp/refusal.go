package wirehttp

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// A Refusal is a request that is declined before anything comes of it. What its body looks like is its
// protocol's business.
type Refusal struct {
	// Status is the response's.
	Status int
	// Reason is a short fixed word in lower case with hyphens, for hooks and logs.
	Reason string
	// Text is a sentence for the other side. It quotes the request with [Excerpt] only.
	Text string
	// RetryAfter is in seconds; 0 for none.
	RetryAfter int
	// Allow lists the methods that are answered here; empty for none.
	Allow string
	// Closing: the connection is of no use any more, since the request's body was not read to its end. Never
	// with HTTP/2, whose connections have other requests too: they would be turned away with this one.
	Closing bool
}

// Refuse returns a refusal with a text as of fmt.Sprintf.
func Refuse(status int, reason, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// Unread says that r is refused before its body is read, and returns the refusal.
func (f *Refusal) Unread(r *http.Request) *Refusal {
	f.Closing = r.ContentLength != 0 && r.ProtoMajor < 2
	return f
}

// Write answers with the refusal. The body, and its Content-Type in w's header, are the caller's; the other
// members of the header are set here.
func (f *Refusal) Write(w http.ResponseWriter, body []byte) {
	h := w.Header()
	if f.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="backline"`)
	}
	if f.Allow != "" {
		h.Set("Allow", f.Allow)
	}
	if f.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	if f.Closing {
		h.Set("Connection", "close")
	}
	Answer(w, f.Status, body)
}

// answerTimeout is how long a reader may take nothing of an answer.
const answerTimeout = 30 * time.Second

// Answer answers with a whole body; its Content-Type in w's header is the caller's. A reader who takes
// nothing for 30 seconds does not get the rest. Whether the answer arrived is not known.
func Answer(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Cache-Control"] = noStore
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	// Before the header, as a server's own limit may be over already.
	p := pieces{rc: *http.NewResponseController(w), limit: answerTimeout}
	p.arm()
	w.WriteHeader(status)
	_, _ = p.write(w, body) // the other side is told, or it is gone
}

// StreamHeader sets in a header what streams have in common, and what refuses them where a protocol wants
// it alike. contentType is shared by all responses: nobody changes it.
func StreamHeader(h http.Header, contentType []string) {
	h["Content-Type"] = contentType
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = noBuffering
}

var (
	noStore     = []string{"no-store"}
	noBuffering = []string{"no"}
)

// Excerpt quotes a piece of a request for a text, cut to 100 characters.
func Excerpt(s string) string {
	n := 0
	for i := range s {
		if n == 100 {
			return strconv.Quote(s[:i] + "…")
		}
		n++
	}
	return strconv.Quote(s)
}
