package testhost

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A KeikiTurn is a turn to be dispatched. Only its Text or Messages are needed.
type KeikiTurn struct {
	// ID, AgentID and ConversationID are made up where they are empty: the agent is the configured one,
	// each turn has a conversation of its own.
	ID, AgentID, ConversationID string
	// Mode is how the turn reaches the app; empty means the configured mode.
	Mode KeikiMode
	// Text is a message, after Messages.
	Text     string
	Messages []KeikiMessage
	// Channel is any JSON: a name or an envelope; nil means "sms".
	Channel json.RawMessage
	// History is sent as it is; nil means what is remembered of the conversation.
	History []KeikiEntry
	// Context is any JSON, and its bytes are kept; nil means {}.
	Context      json.RawMessage
	Instructions string
	// HeldBack, Silent and QuietLoop are the flags of that name.
	HeldBack, Silent, QuietLoop bool
	// Timeout is the turn's time; 0 means the configured one, less than 0 that its deadline has passed.
	// A turn of the inbox has it from its first claim on.
	Timeout time.Duration
	// Deadline is the form in which the deadline is sent.
	Deadline KeikiDeadlineForm
	// Links replace the platform's own URLs, such as with foreign ones.
	Links *KeikiLinks
	// Body, where it is set, is sent instead of all that; ids that are empty above are looked for in it.
	// Edit, where it is set, changes the body before it is signed.
	Body []byte
	Edit func(body []byte) []byte
	// Header replaces header fields of the dispatch; a nil value leaves one out.
	Header http.Header
}

// A KeikiMessage is an inbound message. An empty ID is made up.
type KeikiMessage struct {
	Text, ID        string
	Silent, Flagged bool
}

// MarshalJSON writes the message as the platform sends it.
func (m KeikiMessage) MarshalJSON() ([]byte, error) {
	type screening struct {
		Flagged bool `json:"flagged"`
	}
	wire := struct {
		Text      string     `json:"text"`
		MessageID string     `json:"messageId,omitempty"`
		Silent    bool       `json:"silent,omitempty"`
		Screening *screening `json:"screening,omitempty"`
	}{Text: m.Text, MessageID: m.ID, Silent: m.Silent}
	if m.Flagged {
		wire.Screening = &screening{true}
	}
	return encode(wire)
}

// A KeikiEntry is an entry of a conversation's history. Role is user or assistant.
type KeikiEntry struct {
	Role string    `json:"role"`
	Text string    `json:"text"`
	Time time.Time `json:"createdAt,omitzero"`
}

// A KeikiDeadlineForm is how a deadline is written.
type KeikiDeadlineForm string

// The forms of a deadline.
const (
	KeikiDeadlineText    KeikiDeadlineForm = ""        // RFC 3339, with milliseconds
	KeikiDeadlineSeconds KeikiDeadlineForm = "seconds" // a number, rounded up
	KeikiDeadlineMillis  KeikiDeadlineForm = "milliseconds"
	KeikiDeadlineNone    KeikiDeadlineForm = "none" // not sent; it holds nevertheless
)

func (f KeikiDeadlineForm) write(at time.Time) json.RawMessage {
	switch f {
	case KeikiDeadlineSeconds:
		return fmt.Appendf(nil, "%d", at.Add(time.Second-1).Unix())
	case KeikiDeadlineMillis:
		return fmt.Appendf(nil, "%d", at.UnixMilli())
	case KeikiDeadlineNone:
		return nil
	default:
		return at.UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000Z07:00"`)
	}
}

// A KeikiDispatch is a turn that was dispatched, under the ids that it was given.
type KeikiDispatch struct {
	ID, AgentID, ConversationID string
	// Token is the turn token, Body what was signed, and Answer the app's. Of turns that were queued they
	// are empty; see [Keiki.Tokens].
	Token  string
	Body   []byte
	Answer KeikiAnswer
}

// A KeikiAnswer is what the app answered to a push.
type KeikiAnswer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Accepted tells whether the status is a 2xx.
func (a KeikiAnswer) Accepted() bool { return a.Status >= 200 && a.Status < 300 }

// A KeikiOutcome is how a turn ended.
type KeikiOutcome struct {
	TurnID, AgentID, ConversationID string
	// Status is completed or failed as the app reported it; cancelled; failed as well where it never came
	// to the app or had no time left; merged for a turn of the inbox whose messages another one took.
	Status string
	// Code is what the trace would show: app_error, cancelled, turn_timeout, signing_secret_missing,
	// no_dispatch_url, unreachable, signature_rejected, app_rejected, relay_offline or inbox_offline.
	// It is empty for turns that completed or were merged.
	Code string
	// Error is the app's own text, and Completion its whole completion.
	Error      string
	Completion []byte
	// Consumed are the arrivals that the app reported; nil where it reported none.
	Consumed []int64
	// Requeued are the messages of arrivals that went back to the conversation.
	Requeued []KeikiMessage
	// MergedInto is the turn that took the messages.
	MergedInto string
	At         time.Time
}

// A KeikiDelivery is a message that an app sent.
type KeikiDelivery struct {
	TurnID string
	// Key is the idempotency key. A paragraph from the stream has that of the piece which ended
	// it, if there is one.
	Key, Text string
	// Tries is how often the key arrived, answered or not; those that a fault kept from being processed count.
	Tries int
	// State tells what became of it.
	State KeikiDeliveryState
	// HeldBack is set where the text was captured and goes to no contact; Streamed where it came by the stream.
	HeldBack, Streamed bool
	// At is when it was delivered, or tried last.
	At time.Time
}

// A KeikiDeliveryState is what became of a message.
type KeikiDeliveryState string

// The states of a message.
const (
	KeikiTried     KeikiDeliveryState = "tried"     // and not processed
	KeikiDelivered KeikiDeliveryState = "delivered" // once
	KeikiUnknown   KeikiDeliveryState = "unknown"   // after a delivery error
)

// A keikiTurn is a turn. Its fields belong to k.mu but for those that never change.
type keikiTurn struct {
	id, agent, conversation string // never change
	in                      KeikiTurn
	mode                    KeikiMode
	made                    time.Time
	links                   KeikiLinks

	body     []byte
	token    string
	tokens   []string // all that were ever given out
	deadline time.Time
	timer    *time.Timer

	claimed bool // or forwarded, or pushed
	lease   time.Time
	leased  bool // a claim holds, or has run out unnoticed
	result  int  // what the relay reported; 0 before

	sends     map[string]*keikiSend
	tried     []*keikiSend
	delivered []*keikiSend
	arrivals  []*keikiBatch // in order of sequence
	streamed  string        // not yet a paragraph

	outcome *KeikiOutcome
	weight  int           // once it has ended
	done    chan struct{} // closed when outcome is set
	view    keikiView     // what the app has been told
}

type keikiSend struct {
	KeikiDelivery
	state sendState
	done  chan struct{} // while it is being delivered
	rules sendRules
}

type sendState int

const (
	sendTried sendState = iota
	sendUnderWay
	sendDelivered
	sendUnknown
)

func (s *keikiSend) delivery() KeikiDelivery {
	d := s.KeikiDelivery
	switch s.state {
	case sendDelivered:
		d.State = KeikiDelivered
	case sendUnknown:
		d.State = KeikiUnknown
	default:
		d.State = KeikiTried
	}
	return d
}

// wireTurn is the body of a dispatch.
type wireTurn struct {
	Type           string          `json:"type"`
	Version        int             `json:"version"`
	TurnID         string          `json:"turnId"`
	AgentID        string          `json:"agentId"`
	ConversationID string          `json:"conversationId"`
	Channel        json.RawMessage `json:"channel"`
	Messages       []KeikiMessage  `json:"messages"`
	History        []KeikiEntry    `json:"history"`
	Context        json.RawMessage `json:"context"`
	Instructions   string          `json:"instructions"`
	HeldBack       bool            `json:"heldBack"`
	Silent         bool            `json:"silent"`
	QuietLoop      bool            `json:"quietLoop"`
	Deadline       json.RawMessage `json:"deadline,omitempty"`
	Links          KeikiLinks      `json:"keiki"`
}

// write makes the turn's body. Context and channel keep their bytes.
func (t *keikiTurn) write() ([]byte, error) {
	in := &t.in
	body := in.Body
	if body == nil {
		w := wireTurn{
			Type: "keiki.turn", Version: 1, TurnID: t.id, AgentID: t.agent, ConversationID: t.conversation,
			Channel: []byte("0"), Messages: in.Messages, History: in.History, Context: []byte("1"),
			Instructions: in.Instructions, HeldBack: in.HeldBack, Silent: in.Silent, QuietLoop: in.QuietLoop,
			Deadline: in.Deadline.write(t.deadline), Links: t.links,
		}
		if w.History == nil {
			w.History = []KeikiEntry{}
		}
		encoded, err := encode(w)
		if err != nil {
			return nil, err
		}
		// An encoder would compact them. In strings of the body quotes are escaped, so that both are found.
		head, tail, _ := bytes.Cut(encoded, []byte(`"context":1,"instructions"`))
		head = bytes.Replace(head, []byte(`"channel":0`), append([]byte(`"channel":`), in.Channel...), 1)
		body = slices.Concat(head, []byte(`"context":`), in.Context, []byte(`,"instructions"`), tail)
	}
	if in.Edit != nil {
		body = in.Edit(slices.Clone(body))
	}
	return body, nil
}

// Dispatch makes a turn and brings it to the app as its mode says. In push mode it returns once the app
// has answered; the error is one of the connection, and the dispatch is there nevertheless: the turn has
// failed as unreachable. A refusal is no error. Otherwise the turn is queued, and ctx is not used.
//
// Messages that went back to the conversation's queue from an earlier turn come before the turn's own,
// unless it brings a Body.
func (k *Keiki) Dispatch(ctx context.Context, in KeikiTurn) (*KeikiDispatch, error) {
	t, err := k.begin(in)
	if err != nil {
		return nil, err
	}
	d := &KeikiDispatch{ID: t.id, AgentID: t.agent, ConversationID: t.conversation}
	if t.mode != KeikiPushMode {
		return d, nil
	}
	d.Token, d.Body = t.token, t.body
	d.Answer, err = k.Push(ctx, KeikiPush{AgentID: t.agent, TurnID: t.id, Token: t.token, Body: t.body, Header: t.in.Header})
	k.dispatched(t, d.Answer, err)
	return d, err
}

// Redispatch pushes a turn's body again, signed anew: a platform that did not get the first answer.
// Nothing of the turn changes.
func (k *Keiki) Redispatch(ctx context.Context, turnID string) (KeikiAnswer, error) {
	k.mu.Lock()
	t := k.turns[turnID]
	if t == nil || t.body == nil {
		k.mu.Unlock()
		return KeikiAnswer{}, fmt.Errorf("testhost: no turn %q was pushed", turnID)
	}
	p := KeikiPush{AgentID: t.agent, TurnID: t.id, Token: t.token, Body: t.body, Header: t.in.Header}
	k.mu.Unlock()
	return k.Push(ctx, p)
}

// dispatched notes what came of a dispatch.
func (k *Keiki) dispatched(t *keikiTurn, a KeikiAnswer, err error) {
	code := ""
	switch {
	case errors.Is(err, errNoSecret):
		code = "signing_secret_missing"
	case errors.Is(err, errNoDispatchURL):
		code = "no_dispatch_url"
	case err != nil:
		code = "unreachable"
	case a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden:
		code = "signature_rejected"
	case !a.Accepted():
		code = "app_rejected"
	}
	if code == "" {
		return
	}
	k.lock()
	defer k.unlock()
	k.end(t, KeikiOutcome{Status: "failed", Code: code})
}

// begin makes a turn, and queues it where it is not pushed.
func (k *Keiki) begin(in KeikiTurn) (*keikiTurn, error) {
	if in.Body != nil {
		in.adopt()
	}
	in.AgentID = k.orDefault(in.AgentID)
	in.ID = cmp.Or(in.ID, newID("turn"))
	in.ConversationID = cmp.Or(in.ConversationID, newID("conversation"))
	in.Mode = cmp.Or(in.Mode, k.cfg.Mode)
	if !in.Mode.valid() {
		return nil, fmt.Errorf("testhost: %q is no mode", in.Mode)
	}
	if in.Channel == nil {
		in.Channel = []byte(`"sms"`)
	}
	if in.Context == nil {
		in.Context = []byte(`{}`)
	}
	if in.Text != "" {
		in.Messages = append(slices.Clone(in.Messages), KeikiMessage{Text: in.Text})
	}
	if in.Body == nil && (!json.Valid(in.Channel) || !json.Valid(in.Context)) {
		return nil, errors.New("testhost: the channel or the context is no JSON: use Body for that")
	}
	links := k.Links(in.ID)
	if links.APIBase == "" {
		return nil, errors.New("testhost: where the platform is served is not known: SetURL or Listen first")
	}
	if in.Links != nil {
		links = *in.Links
	}
	timeout := cmp.Or(in.Timeout, k.cfg.Timeout)

	k.lock()
	defer k.unlock()
	switch {
	case k.closed:
		return nil, errKeikiClosed
	case k.turns[in.ID] != nil:
		return nil, fmt.Errorf("testhost: there is a turn %q", in.ID)
	case len(k.turns)-len(k.ended) >= maxKeikiOpen:
		return nil, fmt.Errorf("testhost: %d turns have not ended", maxKeikiOpen)
	}
	t := &keikiTurn{
		id: in.ID, agent: in.AgentID, conversation: in.ConversationID, in: in, mode: in.Mode,
		made: k.cfg.Now(), links: links, done: make(chan struct{}),
	}
	agent, conv := k.agent(t.agent), k.conv(t.agent, t.conversation)
	if in.Body == nil {
		if in.History == nil {
			t.in.History = slices.Clone(conv.history)
		}
		t.in.Messages = slices.Concat(conv.pending, in.Messages)
		conv.pending = nil
		k.name(t.in.Messages)
	}
	if t.mode != KeikiInboxMode {
		t.deadline = t.made.Add(timeout)
		body, err := t.write()
		if err != nil {
			return nil, err
		}
		t.body = body
		k.giveToken(t)
	}
	k.turns[t.id] = t
	switch t.mode {
	case KeikiPushMode:
		t.claimed = true
		conv.active = t
	case KeikiInboxMode:
		if t.in.HeldBack && k.cfg.Now().Sub(agent.polled) > k.cfg.Recent {
			k.end(t, KeikiOutcome{Status: "failed", Code: "inbox_offline"})
			return t, nil
		}
		k.enqueue(t)
		return t, nil
	case KeikiRelayMode:
		k.enqueue(t)
	}
	k.watch(t)
	return t, nil
}

// adopt takes ids that are not given from a body that is.
func (in *KeikiTurn) adopt() {
	var ids struct {
		TurnID         string `json:"turnId"`
		AgentID        string `json:"agentId"`
		ConversationID string `json:"conversationId"`
	}
	if json.Unmarshal(in.Body, &ids) != nil {
		return // a body that is meant to be bad
	}
	in.ID = cmp.Or(in.ID, ids.TurnID)
	in.AgentID = cmp.Or(in.AgentID, ids.AgentID)
	in.ConversationID = cmp.Or(in.ConversationID, ids.ConversationID)
}

// name gives ids to messages that have none. k.mu is held.
func (k *Keiki) name(messages []KeikiMessage) {
	for i := range messages {
		if messages[i].ID == "" {
			k.messageNo++
			messages[i].ID = fmt.Sprintf("message-%d", k.messageNo)
		}
	}
}

// giveToken gives a turn its token, or another one; those before are refused from then on. k.mu is held.
func (k *Keiki) giveToken(t *keikiTurn) {
	t.token = "ht_" + rand.Text()
	t.tokens = append(t.tokens, t.token)
	if len(t.tokens) > maxTokens {
		delete(k.tokens, digestOf(t.tokens[0]))
		t.tokens = slices.Delete(t.tokens, 0, 1)
	}
	k.tokens[digestOf(t.token)] = t
}

const maxTokens = 1000 // of one turn that are remembered

// watch ends a turn at its deadline. k.mu is held.
func (k *Keiki) watch(t *keikiTurn) {
	t.timer = time.AfterFunc(max(0, t.deadline.Sub(k.cfg.Now())), func() {
		k.lock()
		defer k.unlock()
		if k.closed {
			return
		}
		code := "turn_timeout"
		if !t.claimed {
			code = "relay_offline"
		}
		k.end(t, KeikiOutcome{Status: "failed", Code: code})
	})
}

// end ends a turn, once. What it did not consume goes back to the conversation. k.mu is held.
func (k *Keiki) end(t *keikiTurn, o KeikiOutcome) {
	if t.outcome != nil {
		return
	}
	o.TurnID, o.AgentID, o.ConversationID, o.At = t.id, t.agent, t.conversation, k.cfg.Now()
	t.outcome = &o
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.leased {
		k.wake() // the conversation is free
	}
	t.leased = false
	k.queue = slices.DeleteFunc(k.queue, func(other *keikiTurn) bool { return other == t })
	conv := k.conv(t.agent, t.conversation)
	for _, b := range t.arrivals {
		if b.state == batchAccepted && !slices.Contains(o.Consumed, b.sequence) {
			o.Requeued = append(o.Requeued, b.messages...)
			b.state = batchReturned
		}
	}
	conv.pending = slices.Concat(o.Requeued, conv.pending)
	k.remember(conv, t)
	if conv.active == t {
		conv.active = nil
	}
	k.rest(t.agent, t.conversation)
	close(t.done)
	k.ended = append(k.ended, t)
	k.endedSize += t.weigh()
	for len(k.ended) > 1 && (len(k.ended) > k.cfg.Keep || k.endedSize > maxKeikiEnded) {
		old := k.ended[0]
		k.ended[0] = nil
		k.ended = k.ended[1:]
		k.endedSize -= old.weight
		delete(k.turns, old.id)
		for _, token := range old.tokens {
			delete(k.tokens, digestOf(token))
		}
	}
	if tell := k.cfg.OnOutcome; tell != nil {
		k.later = append(k.later, func() { tell(o) })
	}
}

// weigh counts what a turn that has ended holds. k.mu is held.
func (t *keikiTurn) weigh() int {
	t.weight = len(t.body) + len(t.in.Body) + len(t.in.Context)
	messages := slices.Clone(t.in.Messages)
	for _, b := range t.arrivals {
		messages = append(messages, b.messages...)
	}
	for _, m := range messages {
		t.weight += len(m.Text)
	}
	for _, s := range slices.Concat(t.tried, t.delivered) {
		t.weight += len(s.Text)
	}
	return t.weight
}

// remember adds a turn to its conversation's history: what came in, arrivals that were taken, and what
// went out. k.mu is held.
func (k *Keiki) remember(conv *keikiConv, t *keikiTurn) {
	if k.cfg.History == 0 || t.in.HeldBack || !t.claimed {
		return
	}
	add := func(role string, at time.Time, messages []KeikiMessage) {
		for _, m := range messages {
			if !m.Silent {
				conv.history = append(conv.history, KeikiEntry{Role: role, Text: m.Text, Time: at.UTC().Truncate(time.Millisecond)})
			}
		}
	}
	add("user", t.made, t.in.Messages)
	for _, b := range t.arrivals {
		if b.state == batchAccepted {
			add("user", b.at, b.messages)
		}
	}
	for _, s := range t.delivered {
		add("assistant", s.At, []KeikiMessage{{Text: s.Text}})
	}
	slices.SortStableFunc(conv.history, func(a, b KeikiEntry) int { return a.Time.Compare(b.Time) })
	if n := len(conv.history) - k.cfg.History; n > 0 {
		conv.history = slices.Delete(conv.history, 0, n)
	}
}

// Outcome waits for a turn's end.
func (k *Keiki) Outcome(ctx context.Context, turnID string) (KeikiOutcome, error) {
	k.mu.Lock()
	t := k.turns[turnID]
	k.mu.Unlock()
	if t == nil {
		return KeikiOutcome{}, fmt.Errorf("testhost: no turn %q", turnID)
	}
	select {
	case <-t.done:
		k.mu.Lock()
		defer k.mu.Unlock()
		return *t.outcome, nil
	case <-ctx.Done():
		return KeikiOutcome{}, fmt.Errorf("wait for turn %s: %w", turnID, ctx.Err())
	case <-k.ctx.Done():
		return KeikiOutcome{}, errKeikiClosed
	}
}

// Active is the turn of a conversation that was begun last and has not ended; empty where there is none.
func (k *Keiki) Active(agentID, conversationID string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.convs[convKey{k.orDefault(agentID), conversationID}]; c != nil && c.active != nil {
		return c.active.id
	}
	return ""
}

// Pending are the messages that went back to a conversation's queue, for its next turn to take.
func (k *Keiki) Pending(agentID, conversationID string) []KeikiMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.convs[convKey{k.orDefault(agentID), conversationID}]; c != nil {
		return slices.Clone(c.pending)
	}
	return nil
}

// Tokens are all turn tokens that were given out for a turn, oldest first.
func (k *Keiki) Tokens(turnID string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.turns[turnID]; t != nil {
		return slices.Clone(t.tokens)
	}
	return nil
}

// Deliveries are the messages of a turn that were delivered, each once, in their order.
func (k *Keiki) Deliveries(turnID string) []KeikiDelivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []KeikiDelivery
	if t := k.turns[turnID]; t != nil {
		for _, s := range t.delivered {
			all = append(all, s.delivery())
		}
	}
	return all
}

// Texts are the texts of [Keiki.Deliveries].
func (k *Keiki) Texts(turnID string) []string {
	var all []string
	for _, d := range k.Deliveries(turnID) {
		all = append(all, d.Text)
	}
	return all
}

// Sends are all messages of a turn that arrived with a key, delivered or not, in the order of their first try.
func (k *Keiki) Sends(turnID string) []KeikiDelivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []KeikiDelivery
	if t := k.turns[turnID]; t != nil {
		for _, s := range t.tried {
			all = append(all, s.delivery())
		}
	}
	return all
}
