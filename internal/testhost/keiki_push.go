package testhost

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// A KeikiPush is one signed request to the app, of any content.
type KeikiPush struct {
	// URL is where it goes; empty means the dispatch URL.
	URL string
	// AgentID says whose secrets sign, where Secrets are nil; empty means the configured agent.
	AgentID string
	// TurnID and Token go into Keiki-Turn-Id and Keiki-Turn-Token; empty ones are left out.
	TurnID, Token string
	Body          []byte
	// Header replaces header fields, the signature included; a nil value leaves one out.
	Header http.Header
	// Secrets give a v1 each; nil means those that sign for the agent.
	Secrets []string
	// At is the signature's time; zero means now.
	At time.Time
}

var (
	errNoSecret      = errors.New("testhost: the agent has no signing secret")
	errNoDispatchURL = errors.New("testhost: there is no dispatch URL: SetDispatchURL first")
)

// Push sends a signed request to the app. The error is one of the connection; any status is an answer.
func (k *Keiki) Push(ctx context.Context, p KeikiPush) (KeikiAnswer, error) {
	k.mu.Lock()
	target, closed := cmp.Or(p.URL, k.dispatch), k.closed
	if !closed {
		k.wg.Add(1) // Close waits for it
		defer k.wg.Done()
	}
	k.mu.Unlock()
	if closed {
		return KeikiAnswer{}, errKeikiClosed
	}
	if target == "" {
		return KeikiAnswer{}, errNoDispatchURL
	}
	if p.Secrets == nil {
		p.Secrets = k.signers(k.orDefault(p.AgentID))
	}
	if len(p.Secrets) == 0 && p.Header["Keiki-Signature"] == nil {
		return KeikiAnswer{}, errNoSecret
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.PushTimeout)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(p.Body))
	if err != nil {
		return KeikiAnswer{}, err
	}
	if p.At.IsZero() {
		p.At = k.cfg.Now()
	}
	for name, value := range signedHeader(p) {
		req.Header.Set(name, value)
	}
	for name, values := range p.Header {
		if req.Header[name] = values; values == nil {
			delete(req.Header, name)
		}
	}
	resp, err := k.cfg.Client.Do(req)
	if err != nil {
		return KeikiAnswer{}, fmt.Errorf("push: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it has been read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeikiBody))
	if err != nil {
		return KeikiAnswer{}, fmt.Errorf("push: read the answer: %w", err)
	}
	return KeikiAnswer{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// signedHeader is the header of a push; a relay is given the same one.
func signedHeader(p KeikiPush) map[string]string {
	h := map[string]string{
		"Content-Type":    "application/json",
		"Keiki-Signature": KeikiSignature(p.At, p.Body, p.Secrets...),
	}
	if p.TurnID != "" {
		h["Keiki-Turn-Id"] = p.TurnID
	}
	if p.Token != "" {
		h["Keiki-Turn-Token"] = p.Token
	}
	return h
}

// A keikiBatch is an arrival.
type keikiBatch struct {
	sequence int64
	messages []KeikiMessage
	at       time.Time // when it was pushed first
	state    batchState
	answers  int // that the app had been given when it was pushed first
}

type batchState int

const (
	batchPushing  batchState = iota
	batchAccepted            // and can be pulled
	batchReturned            // to the conversation
)

// A KeikiArrival is what came of an arrival.
type KeikiArrival struct {
	Sequence int64
	// Answer is the app's last one; Status is 0 where it was not reached.
	Answer KeikiAnswer
	// Attempts is how often it was pushed.
	Attempts int
}

type wireArrival struct {
	Type           string         `json:"type"`
	Version        int            `json:"version"`
	TurnID         string         `json:"turnId"`
	AgentID        string         `json:"agentId"`
	ConversationID string         `json:"conversationId"`
	HeldBack       bool           `json:"heldBack"`
	Channel        rawJSON        `json:"channel"`
	Links          KeikiLinks     `json:"keiki"`
	Sequence       int64          `json:"sequence"`
	Messages       []KeikiMessage `json:"messages"`
}

type rawJSON []byte

// MarshalJSON gives the bytes.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// Arrive sends messages to a turn that runs, as its next arrival: pushed as often as the configuration
// says where the app cannot be reached or answers 429 or 5xx, and pulled from then on if it was accepted.
// Messages that were not accepted go back to the conversation, and so do those for a turn that has ended,
// without a push. The error is that there is no such turn, or that it takes no arrivals for its mode.
func (k *Keiki) Arrive(ctx context.Context, turnID string, messages ...KeikiMessage) (KeikiArrival, error) {
	k.lock()
	t, err := k.pushedTurn(turnID)
	if err != nil {
		k.unlock()
		return KeikiArrival{}, err
	}
	messages = slices.Clone(messages)
	k.name(messages)
	if t.outcome != nil {
		conv := k.conv(t.agent, t.conversation)
		conv.pending = append(conv.pending, messages...)
		k.unlock()
		return KeikiArrival{}, nil
	}
	b := &keikiBatch{sequence: 1, messages: messages, at: k.cfg.Now(), answers: t.view.answers}
	if n := len(t.arrivals); n > 0 {
		b.sequence = t.arrivals[n-1].sequence + 1
	}
	t.arrivals = append(t.arrivals, b)
	k.unlock()

	a := KeikiArrival{Sequence: b.sequence}
	for pause := k.cfg.Backoff; ; pause *= 2 {
		a.Attempts++
		a.Answer, err = k.pushArrival(ctx, t, b.sequence, messages)
		status := a.Answer.Status
		again := err != nil || status == http.StatusTooManyRequests || status >= 500
		if !again || a.Attempts >= k.cfg.Attempts || ctx.Err() != nil || errors.Is(err, errKeikiClosed) {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		case <-k.ctx.Done():
		}
	}
	k.lock()
	defer k.unlock()
	k.settle(t, b, a.Answer.Accepted())
	return a, nil
}

// settle notes whether a batch was accepted. If its turn has ended meanwhile, what the app did not report
// as consumed goes back. k.mu is held.
func (k *Keiki) settle(t *keikiTurn, b *keikiBatch, accepted bool) {
	if b.state != batchPushing {
		return
	}
	consumed := t.outcome != nil && slices.Contains(t.outcome.Consumed, b.sequence)
	if consumed || accepted && t.outcome == nil {
		b.state = batchAccepted
		return
	}
	b.state = batchReturned
	conv := k.conv(t.agent, t.conversation)
	conv.pending = append(conv.pending, b.messages...)
	if t.outcome != nil {
		t.outcome.Requeued = append(t.outcome.Requeued, b.messages...)
	}
}

// PushArrival pushes an arrival once, with any sequence, out of order or again, to any turn that was
// pushed, also one that has ended. What the app accepts can be pulled from then on; a sequence that is
// there already keeps its messages.
func (k *Keiki) PushArrival(ctx context.Context, turnID string, sequence int64, messages ...KeikiMessage) (KeikiAnswer, error) {
	k.lock()
	t, err := k.pushedTurn(turnID)
	if err != nil {
		k.unlock()
		return KeikiAnswer{}, err
	}
	messages = slices.Clone(messages)
	k.name(messages)
	b, added := t.batch(sequence, messages, k.cfg.Now())
	k.unlock()

	answer, err := k.pushArrival(ctx, t, sequence, messages)
	k.lock()
	defer k.unlock()
	switch {
	case t.outcome == nil && answer.Accepted():
		b.state = batchAccepted
	case added:
		k.settle(t, b, false)
	}
	return answer, err
}

// StoreArrival makes messages pullable without a push, as if the app had accepted one and forgotten it.
func (k *Keiki) StoreArrival(turnID string, sequence int64, messages ...KeikiMessage) error {
	k.lock()
	defer k.unlock()
	t, err := k.pushedTurn(turnID)
	if err != nil {
		return err
	}
	messages = slices.Clone(messages)
	k.name(messages)
	b, _ := t.batch(sequence, messages, k.cfg.Now())
	b.state = batchAccepted
	return nil
}

// batch finds or makes a batch. k.mu is held.
func (t *keikiTurn) batch(sequence int64, messages []KeikiMessage, now time.Time) (b *keikiBatch, added bool) {
	i, found := slices.BinarySearchFunc(t.arrivals, sequence, func(b *keikiBatch, s int64) int { return cmp.Compare(b.sequence, s) })
	if found {
		return t.arrivals[i], false
	}
	b = &keikiBatch{sequence: sequence, messages: messages, at: now, answers: t.view.answers}
	t.arrivals = slices.Insert(t.arrivals, i, b)
	return b, true
}

// pushedTurn finds a turn that takes arrivals. k.mu is held.
func (k *Keiki) pushedTurn(turnID string) (*keikiTurn, error) {
	t := k.turns[turnID]
	if t == nil {
		return nil, fmt.Errorf("testhost: no turn %q", turnID)
	}
	if t.mode != KeikiPushMode {
		return nil, fmt.Errorf("testhost: a turn in %s mode takes no arrivals", t.mode)
	}
	return t, nil
}

func (k *Keiki) pushArrival(ctx context.Context, t *keikiTurn, sequence int64, messages []KeikiMessage) (KeikiAnswer, error) {
	body, err := encode(wireArrival{
		Type: "keiki.turn.arrival", Version: 1, TurnID: t.id, AgentID: t.agent, ConversationID: t.conversation,
		HeldBack: t.in.HeldBack, Channel: rawJSON(t.in.Channel), Links: t.links, Sequence: sequence, Messages: messages,
	})
	if err != nil {
		return KeikiAnswer{}, err
	}
	return k.Push(ctx, KeikiPush{AgentID: t.agent, TurnID: t.id, Token: t.token, Body: body})
}

type wireCancelled struct {
	Type           string `json:"type"`
	TurnID         string `json:"turnId"`
	AgentID        string `json:"agentId"`
	ConversationID string `json:"conversationId"`
}

// Cancel ends a turn as cancelled and tells the app, in push mode; in the other ones the answer is empty,
// and the app learns it from what the turn API says. Cancelling again tells the app again, whatever the
// turn's outcome is.
func (k *Keiki) Cancel(ctx context.Context, turnID string) (KeikiAnswer, error) {
	k.lock()
	t := k.turns[turnID]
	if t == nil {
		k.unlock()
		return KeikiAnswer{}, fmt.Errorf("testhost: no turn %q", turnID)
	}
	k.end(t, KeikiOutcome{Status: "cancelled", Code: "cancelled"})
	cancelled := t.outcome.Status == "cancelled"
	k.unlock()
	if t.mode != KeikiPushMode {
		return KeikiAnswer{}, nil
	}
	body, err := encode(wireCancelled{"keiki.turn.cancelled", t.id, t.agent, t.conversation})
	if err != nil {
		return KeikiAnswer{}, err
	}
	answer, err := k.Push(ctx, KeikiPush{AgentID: t.agent, TurnID: t.id, Token: t.token, Body: body})
	if cancelled && answer.Accepted() {
		k.lock()
		t.view.cancelTold = time.Now()
		k.unlock()
	}
	return answer, err
}
