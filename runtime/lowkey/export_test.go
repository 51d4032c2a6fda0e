package lowkey

import (
	"net/http"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// What tests look at from inside: the texts that leave the process, and the history that a window
// becomes.
var (
	PublicText   = (*runtime.Outcome).PublicText
	AppendWindow = appendWindow
)

// Sink is the protocol's.
var Sink runtime.Sink = sink{}

// StartRefusal is what an engine's refusal becomes: status, reason, text and Retry-After.
func StartRefusal(err error, turnID string) (status int, reason, text string, retryAfter int) {
	f := startRefusal(err, turnID)
	return f.Status, f.Reason, f.Text, f.RetryAfter
}

// ExplainBody is the text of the refusal of a body, empty for one that is fine.
func ExplainBody(body []byte) string {
	var q wire.Request
	if err := wire.Parse(body, &q); err != nil {
		return explain(err, body).Text
	}
	return ""
}

// Recycled lends a window as a request does, and gives it back.
func Recycled(messages []adapters.Message) (cleared []adapters.Message) {
	w := &window{messages}
	w.Recycle()
	return messages
}

var _ http.Handler = (*Handler)(nil)
