package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// A platformEvent is something that happened on the stand-in's platform, as --json prints it.
type platformEvent struct {
	Event          string    `json:"event"`
	At             time.Time `json:"at"`
	TurnID         string    `json:"turnId,omitempty"`
	ConversationID string    `json:"conversationId,omitempty"`
	AgentID        string    `json:"agentId,omitempty"`
	Mode           string    `json:"mode,omitempty"`

	// listening
	APIBase    string   `json:"apiBase,omitempty"`
	AppURL     string   `json:"appUrl,omitempty"`
	Secret     string   `json:"signingSecret,omitempty"` // only where it was minted, and into no file
	SecretFile string   `json:"signingSecretFile,omitempty"`
	APIKey     string   `json:"apiKey,omitempty"` // likewise
	APIKeyFile string   `json:"apiKeyFile,omitempty"`
	Commands   []string `json:"commands,omitempty"`

	// dispatched; answered, arrival, cancel, again: what the app answered; refused, fault: what the platform did
	Messages int    `json:"messages,omitempty"`
	Returned int    `json:"returned,omitempty"` // messages that went back to the conversation, or come from there
	Sequence int64  `json:"sequence,omitempty"`
	HTTP     int    `json:"httpStatus,omitempty"`
	Code     string `json:"code,omitempty"`
	Request  string `json:"request,omitempty"`
	Fault    string `json:"fault,omitempty"`

	// message
	Text     string `json:"text,omitempty"`
	Key      string `json:"key,omitempty"`
	State    string `json:"state,omitempty"` // delivered, captured or unknown
	Streamed bool   `json:"streamed,omitempty"`

	// outcome
	Status   string  `json:"status,omitempty"`
	Error    string  `json:"error,omitempty"`
	Consumed []int64 `json:"consumedArrivals,omitempty"`
	Into     string  `json:"mergedInto,omitempty"`

	// violation
	Rule   string `json:"rule,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// The kinds of events.
const (
	eventListening  = "listening"
	eventPoller     = "poller"
	eventDispatched = "dispatched"
	eventAnswered   = "answered"
	eventAgain      = "again"
	eventArrival    = "arrival"
	eventCancel     = "cancel"
	eventMessage    = "message"
	eventOutcome    = "outcome"
	eventRefused    = "refused"
	eventFault      = "fault"
	eventViolation  = "violation"
)

// The states of a message in a platformEvent.
const (
	stateDelivered = "delivered"
	stateCaptured  = "captured"
	stateUnknown   = "unknown"
)

// platformOutput shows events, one at a time. Its methods may be called from several goroutines.
type platformOutput struct {
	a       *app
	console *console // nil where nobody types
	json    bool
	redact  func(turnID, text string) string

	mu sync.Mutex
}

// print writes lines to standard output, above what is being typed if that is the same terminal.
func (o *platformOutput) print(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.console != nil && o.a.outIsTTY {
		o.console.show(strings.TrimSuffix(text, "\n"))
		return
	}
	_, _ = fmt.Fprintln(o.a.out, strings.TrimSuffix(text, "\n")) // finish looks at the output's error
}

// note tells whoever types something that is no result.
func (o *platformOutput) note(text string) {
	if o.console != nil {
		o.console.show(o.a.dim(text))
	}
}

func (o *platformOutput) event(e platformEvent) {
	e.At = time.Now().UTC().Truncate(time.Millisecond)
	e.Text, e.Error, e.Detail = o.redact(e.TurnID, e.Text), o.redact(e.TurnID, e.Error), o.redact(e.TurnID, e.Detail)
	if o.json {
		var line bytes.Buffer
		enc := json.NewEncoder(&line)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(e) // nothing in it fails to encode
		o.print(line.String())
		return
	}
	label, text := e.label(), e.text()
	head := e.TurnID
	if head != "" {
		head += "  "
	}
	if o.a.outIsTTY {
		head, text = visible(head), visible(text)
	}
	indent := strings.Repeat(" ", len(head)+len(label)+2)
	text = strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+indent)
	style := o.a.dim
	if e.Event == eventViolation {
		style = o.a.bold
	}
	o.print(strings.TrimRight(style(head+label)+"  "+text, " "))
}

// answer shows what the app answered to a push.
func (o *platformOutput) answer(kind, turnID string, a testhost.KeikiAnswer, err error) {
	e := platformEvent{Event: kind, TurnID: turnID}
	if err != nil {
		a = testhost.KeikiAnswer{}
	}
	e.HTTP, e.Code = said(a)
	if kind == eventAnswered && a.Accepted() && e.Code == "" && !o.json {
		return // what follows tells more
	}
	o.event(e)
}

// said is what the app answered, of which the code is empty or a word: no_answer where there was none, and
// duplicate where the app has had that before, and runs no turn for it.
func said(a testhost.KeikiAnswer) (status int, code string) {
	switch {
	case a.Status == 0:
		code = "no_answer"
	case a.Status >= 300:
		code = wire.ParseFault(a.Body).Code
	default:
		var ack struct {
			Duplicate bool `json:"duplicate"`
		}
		if json.Unmarshal(a.Body, &ack) == nil && ack.Duplicate { // the contract asks for no body at all
			code = "duplicate"
		}
	}
	return a.Status, code
}

// label is the word that a line begins with, behind the turn's id.
func (e *platformEvent) label() string {
	switch e.Event {
	case eventMessage:
		return e.State
	case eventOutcome:
		return e.Status
	}
	return e.Event
}

// text is what a line says behind its label.
func (e *platformEvent) text() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch e.Event {
	case eventMessage:
		return e.Text
	case eventViolation:
		return e.Rule + ": " + e.Detail
	case eventPoller:
		return "the " + e.Mode + " is polled"
	case eventDispatched:
		add("%s in %s", counted(e.Messages, "message"), e.ConversationID)
		if e.Returned > 0 {
			add("%d of them came back from before", e.Returned)
		}
	case eventArrival:
		if e.Sequence > 0 {
			add("%d", e.Sequence)
		}
		if e.Returned > 0 {
			add("not taken")
		}
	case eventRefused, eventFault:
		add("%s", e.Request)
	}
	if e.HTTP > 0 {
		add("%d", e.HTTP)
	}
	if e.Code != "" {
		add("%s", e.Code)
	}
	if e.Fault != "" {
		add("%s", e.Fault)
	}
	if e.Event == eventOutcome {
		if e.Error != "" {
			add("%s", e.Error)
		}
		if len(e.Consumed) > 0 {
			list := make([]string, len(e.Consumed))
			for i, n := range e.Consumed {
				list[i] = strconv.FormatInt(n, 10)
			}
			add("arrivals consumed: %s", strings.Join(list, " "))
		}
		if e.Returned > 0 {
			add("%s back to the conversation", counted(e.Returned, "message"))
		}
		if e.Into != "" {
			add("into %s", e.Into)
		}
	}
	return strings.Join(parts, ", ")
}

// counted is a number with what is counted.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// signedCredential is a credential of a turn that the app has signed.
var signedCredential = regexp.MustCompile(`kts1\.[A-Za-z0-9_=-]+\.[0-9A-Fa-f]+`)

// redactor takes out of what an app says the secrets that it was given.
func redactor(k *testhost.Keiki, agents []string) func(turnID, text string) string {
	return func(turnID, text string) string {
		if text == "" {
			return ""
		}
		var known []string
		for _, id := range agents {
			known = append(append(known, k.Secrets(id)...), k.APIKey(id))
		}
		if turnID != "" {
			known = append(known, k.Tokens(turnID)...)
		}
		for _, s := range known {
			if s != "" {
				text = strings.ReplaceAll(text, s, "[redacted]")
			}
		}
		return signedCredential.ReplaceAllString(text, "[redacted]")
	}
}
