package testhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A KeikiErrorShape is the shape of error bodies: the contract leaves it open.
type KeikiErrorShape string

// The shapes of an error body.
const (
	KeikiErrorNested KeikiErrorShape = "nested" // {"error":{"code":"turn_closed","retryable":false}}
	KeikiErrorFlat   KeikiErrorShape = "flat"   // {"code":"turn_closed","retryable":false}
	KeikiErrorText   KeikiErrorShape = "text"   // {"error":"turn_closed","retryable":false}
)

// A keikiReply is what a request is answered.
type keikiReply struct {
	status int
	body   []byte
	header http.Header // nil for none
	code   string      // of an error
}

func (k *Keiki) ok(v any) keikiReply {
	body, err := encode(v)
	if err != nil {
		return k.refuse(http.StatusInternalServerError, "encode")
	}
	return keikiReply{status: http.StatusOK, body: body}
}

type keikiAck struct {
	OK        bool `json:"ok"`
	Duplicate bool `json:"duplicate,omitempty"`
}

// refuse is an error. Delivery errors alone say that they cannot be retried.
func (k *Keiki) refuse(status int, code string) keikiReply {
	type problem struct {
		Error     any    `json:"error,omitempty"`
		Code      string `json:"code,omitempty"`
		Retryable *bool  `json:"retryable,omitempty"`
	}
	var no *bool
	if code == "delivery_failed" || code == "previous_attempt_failed" {
		no = new(bool)
	}
	p := problem{Code: code, Retryable: no}
	switch k.cfg.Errors {
	case KeikiErrorFlat:
	case KeikiErrorText:
		p = problem{Error: code, Retryable: no}
	default:
		p = problem{Error: p}
	}
	reply := k.ok(p)
	reply.status, reply.code = status, code
	return reply
}

type keikiRoute int

const (
	routeNone keikiRoute = iota
	routeMessages
	routeComplete
	routeLease
	routeArrivals
	routeStream
	routeInbox
	routeNext
	routeResult
	routeMCP
)

var keikiRouteNames = [...]string{"", "messages", "complete", "lease", "arrivals", "stream", "inbox", "next", "result", "mcp"}

func (r keikiRoute) ofTurn() bool { return r >= routeMessages && r <= routeStream }
func (r keikiRoute) sends() bool  { return r == routeMessages || r == routeComplete || r == routeStream }
func (r keikiRoute) method() string {
	switch r {
	case routeArrivals, routeInbox, routeNext:
		return http.MethodGet
	default:
		return http.MethodPost
	}
}

// route finds what a path means, and whose it is.
func (k *Keiki) route(u *url.URL) (keikiRoute, string) {
	path, below := strings.CutPrefix(u.EscapedPath(), k.cfg.BasePath+"/")
	if !below {
		return routeNone, ""
	}
	switch path {
	case "harness/inbox/next":
		return routeInbox, ""
	case "harness/turns/next":
		return routeNext, ""
	case "harness/mcp":
		return routeMCP, ""
	}
	before, after, _ := strings.Cut(k.cfg.ResultPath, "{id}")
	if id, ok := strings.CutPrefix(path, before); ok {
		if id, ok = strings.CutSuffix(id, after); ok && id != "" && !strings.Contains(id, "/") {
			return routeResult, unescape(id)
		}
	}
	id, rest, _ := strings.Cut(strings.TrimPrefix(path, "turns/"), "/")
	if !strings.HasPrefix(path, "turns/") || id == "" {
		return routeNone, ""
	}
	switch rest {
	case "messages":
		return routeMessages, unescape(id)
	case "complete":
		return routeComplete, unescape(id)
	case "lease":
		return routeLease, unescape(id)
	case "arrivals":
		return routeArrivals, unescape(id)
	case k.cfg.StreamPath:
		return routeStream, unescape(id)
	}
	return routeNone, unescape(id)
}

func unescape(segment string) string {
	if id, err := url.PathUnescape(segment); err == nil {
		return id
	}
	return segment
}

// A keikiCall is a request while it is served.
type keikiCall struct {
	k     *Keiki
	r     *http.Request
	rec   *keikiLogged
	route keikiRoute
	id    string // of the turn, from the path
	body  []byte
	who   keikiBearer

	message    keikiMessage // of messages and stream
	completion keikiCompletion
	bad        error // why the body is not one of these

	turn  *keikiTurn // if there is one
	send  *keikiSend // of messages, and of pieces of the stream that have a key
	epoch int        // of the turn's claim
}

type keikiMessage struct{ text, key string }

type keikiCompletion struct {
	status, err string
	consumed    []int64
}

// ServeHTTP serves the platform's API below the base path. A fault that drops the connection is a panic
// with http.ErrAbortHandler, as an http.Server understands it.
func (k *Keiki) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &keikiCall{k: k, r: r, rec: newKeikiRequest(r, k.cfg.Now())}
	c.route, c.id = k.route(r.URL)
	c.rec.Route, c.rec.TurnID = keikiRouteNames[c.route], c.id
	began := time.Now()
	var readErr error
	c.body, readErr = io.ReadAll(http.MaxBytesReader(w, r.Body, maxKeikiBody))
	r.Body = io.NopCloser(bytes.NewReader(c.body)) // for the fault
	c.who = k.authenticate(c.route, c.id, r.Header.Values("Authorization"))
	c.rec.Auth, c.rec.Body = c.who.kind, c.body
	c.parse()

	k.lock()
	if k.closed {
		k.unlock()
		c.write(w, k.refuse(http.StatusServiceUnavailable, "shutting_down"))
		return
	}
	k.wg.Add(1)
	defer k.wg.Done()
	k.record(c.rec)
	c.begin()
	k.unlock()

	var fault KeikiFault
	if k.cfg.Fault != nil {
		fault = k.cfg.Fault(r, c.rec.N)
		r.Body = io.NopCloser(bytes.NewReader(c.body))
	}
	reply := c.answer(fault, readErr)
	c.doubt()
	dropped := fault.Drop
	if r.Context().Err() != nil {
		dropped = true // it has gone, and sees nothing of this
	}
	k.lock()
	c.end(reply, dropped)
	c.rec.Took = time.Since(began)
	if c.rec.Dropped = dropped; !dropped {
		c.rec.Status, c.rec.Code, c.rec.Answer = reply.status, reply.code, reply.body
	}
	c.rec.Fault, c.rec.Done = fault.String(), true
	k.weigh(c.rec)
	if tell := k.cfg.OnRequest; tell != nil {
		rec := c.rec.KeikiRequest
		k.later = append(k.later, func() { tell(rec) })
	}
	k.unlock()
	if fault.Drop {
		panic(http.ErrAbortHandler)
	}
	c.write(w, reply)
}

// doubt waits a moment where something else was sent while this message was under way: it breaks a rule
// unless the app has given this attempt up, and that is seen only once its connection's end is.
func (c *keikiCall) doubt() {
	c.k.lock()
	suspect := c.send != nil && len(c.send.rules.suspects) > 0
	c.k.unlock()
	if suspect {
		c.wait(goneWithin)
	}
}

const goneWithin = 100 * time.Millisecond

// answer processes the request, with what is to go wrong.
func (c *keikiCall) answer(f KeikiFault, readErr error) keikiReply {
	if !f.After {
		c.wait(f.Delay)
		if f.replaces() {
			return f.reply()
		}
	}
	reply := c.process(readErr)
	if f.After {
		c.wait(f.Delay)
		if f.replaces() {
			return f.reply()
		}
	}
	return reply
}

// wait waits, unless the request or the platform ends before.
func (c *keikiCall) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.r.Context().Done():
	case <-c.k.ctx.Done():
	}
}

func (c *keikiCall) write(w http.ResponseWriter, reply keikiReply) {
	w.Header().Set("Content-Type", "application/json")
	for name, values := range reply.header {
		w.Header()[name] = values
	}
	w.WriteHeader(reply.status)
	_, _ = w.Write(reply.body) // the app has gone: its request will say so
}

func (c *keikiCall) process(readErr error) keikiReply {
	k := c.k
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(readErr, &tooLarge):
		return k.refuse(http.StatusRequestEntityTooLarge, "too_large")
	case readErr != nil:
		return k.refuse(http.StatusBadRequest, "incomplete")
	case c.route == routeNone:
		return k.refuse(http.StatusNotFound, "not_found")
	case c.r.Method != c.route.method():
		return k.refuse(http.StatusMethodNotAllowed, "method_not_allowed")
	case c.who.code != "":
		return k.refuse(http.StatusUnauthorized, c.who.code)
	case c.route == routeMCP:
		return k.refuse(http.StatusNotFound, "not_found") // no tools here
	case c.bad != nil:
		return k.refuse(http.StatusBadRequest, "invalid_request")
	case c.route.ofTurn() && c.turn == nil:
		return k.refuse(http.StatusNotFound, "turn_not_found")
	}
	switch c.route {
	case routeMessages:
		return c.postMessage()
	case routeStream:
		return c.postStream()
	case routeComplete:
		return c.postComplete()
	case routeArrivals:
		return c.getArrivals()
	case routeLease:
		return c.postLease()
	case routeInbox:
		return c.getInbox()
	case routeNext:
		return c.getNext()
	case routeResult:
		return c.postResult()
	default:
		return k.refuse(http.StatusNotFound, "not_found")
	}
}

// parse reads the body of the routes that have one. What is wrong with it, but not enough to refuse it,
// is left to the rules.
func (c *keikiCall) parse() {
	switch c.route {
	case routeMessages, routeStream:
		c.message, c.bad = parseKeikiMessage(c.body, c.route == routeStream)
	case routeComplete:
		c.completion, c.bad = parseKeikiCompletion(c.body)
	}
}

func parseKeikiMessage(body []byte, stream bool) (m keikiMessage, err error) {
	fields, err := strictObject(body)
	if err != nil {
		return m, err
	}
	hasText, hasKey := false, false
	for _, f := range fields {
		switch f.name {
		case "text":
			hasText, err = true, readString(f.value, &m.text)
		case "idempotencyKey":
			hasKey, err = true, readString(f.value, &m.key)
		}
		if err != nil {
			return m, fmt.Errorf("%q %w", f.name, err)
		}
	}
	switch {
	case !hasText:
		return m, errors.New(`has no "text"`)
	case stream && !hasKey:
	case !hasKey:
		return m, errors.New(`has no "idempotencyKey"`)
	case m.key == "" || len(m.key) > 255 || strings.ContainsFunc(m.key, func(r rune) bool { return r < ' ' || r > '~' }):
		return m, errors.New(`"idempotencyKey" is not 1 to 255 printable ASCII characters`)
	}
	if !stream && strings.TrimSpace(m.text) == "" {
		return m, errors.New(`"text" is empty`)
	}
	return m, nil
}

func parseKeikiCompletion(body []byte) (c keikiCompletion, err error) {
	fields, err := strictObject(body)
	if err != nil {
		return c, err
	}
	for _, f := range fields {
		switch f.name {
		case "status":
			err = readString(f.value, &c.status)
		case "error":
			err = readString(f.value, &c.err)
		case "consumedArrivals":
			c.consumed, err = readIntegers(f.value)
		}
		if err != nil {
			return c, fmt.Errorf("%q %w", f.name, err)
		}
	}
	if c.status != "completed" && c.status != "failed" {
		return c, errors.New(`"status" is neither completed nor failed`)
	}
	return c, nil
}

func readIntegers(raw json.RawMessage) ([]int64, error) {
	var items []json.RawMessage
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
		return nil, errors.New("is no array")
	}
	all := make([]int64, 0, len(items))
	for _, item := range items {
		n, err := readInteger(item)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// postMessage delivers a message, once for its key.
func (c *keikiCall) postMessage() keikiReply {
	k, t, s := c.k, c.turn, c.send
	k.lock()
	for s.state == sendUnderWay {
		done := s.done
		k.unlock()
		select {
		case <-done:
		case <-c.r.Context().Done():
			return k.refuse(http.StatusServiceUnavailable, "gone")
		case <-k.ctx.Done():
			return k.refuse(http.StatusServiceUnavailable, "shutting_down")
		}
		k.lock()
	}
	switch {
	case t.outcome != nil:
		k.unlock()
		return k.refuse(http.StatusConflict, "turn_closed")
	case s.state == sendDelivered:
		k.unlock()
		return k.ok(keikiAck{OK: true, Duplicate: true})
	case s.state == sendUnknown:
		k.unlock()
		return k.refuse(http.StatusConflict, "previous_attempt_failed")
	case len(t.delivered) >= maxKeikiMessages:
		k.unlock()
		return k.refuse(http.StatusTooManyRequests, "too_many_messages")
	}
	s.state, s.done, s.Text = sendUnderWay, make(chan struct{}), c.message.text
	k.unlock()
	if err := k.deliver(t, s); err != nil {
		return k.refuse(http.StatusBadGateway, "delivery_failed")
	}
	return k.ok(keikiAck{OK: true})
}

// deliver hands a message out, and notes what came of it.
func (k *Keiki) deliver(t *keikiTurn, s *keikiSend) error {
	k.lock()
	s.At = k.cfg.Now()
	d := s.delivery()
	k.unlock()
	d.State = KeikiDelivered
	var err error
	if k.cfg.Deliver != nil {
		err = k.cfg.Deliver(d)
	}
	k.lock()
	defer k.unlock()
	if err != nil {
		s.state = sendUnknown
	} else {
		s.state = sendDelivered
		t.delivered = append(t.delivered, s)
	}
	if s.done != nil {
		close(s.done)
	}
	return err
}

// postStream appends to the turn's text, once for its key where it has one, and delivers what has become
// a paragraph.
func (c *keikiCall) postStream() keikiReply {
	k, t := c.k, c.turn
	k.lock()
	switch {
	case t.outcome != nil:
		k.unlock()
		return k.refuse(http.StatusConflict, "turn_closed")
	case c.send != nil && c.send.state == sendUnknown:
		k.unlock()
		return k.refuse(http.StatusConflict, "previous_attempt_failed")
	case c.send != nil && c.send.state != sendTried:
		k.unlock()
		return k.ok(keikiAck{OK: true, Duplicate: true})
	case len(t.streamed)+len(c.message.text) > maxKeikiBody || len(t.delivered) >= maxKeikiMessages:
		k.unlock()
		return k.refuse(http.StatusTooManyRequests, "too_much_text")
	}
	if c.send != nil {
		c.send.state = sendDelivered
	}
	t.streamed += c.message.text
	var paragraphs []*keikiSend
	for {
		paragraph, rest, cut := strings.Cut(t.streamed, "\n\n")
		if !cut {
			break
		}
		t.streamed = rest
		paragraphs = t.paragraph(paragraphs, paragraph, c.message.key)
	}
	k.unlock()
	if c.flush(paragraphs) {
		return k.ok(keikiAck{OK: true})
	}
	if c.send != nil {
		k.lock()
		c.send.state = sendUnknown
		k.unlock()
	}
	return k.refuse(http.StatusBadGateway, "delivery_failed")
}

func (t *keikiTurn) paragraph(to []*keikiSend, text, key string) []*keikiSend {
	if text = strings.TrimSpace(text); text == "" {
		return to
	}
	return append(to, &keikiSend{
		KeikiDelivery: KeikiDelivery{TurnID: t.id, Key: key, Text: text, Tries: 1, HeldBack: t.in.HeldBack, Streamed: true},
		state:         sendUnderWay,
	})
}

// flush delivers paragraphs. All are tried; it tells whether none has failed.
func (c *keikiCall) flush(paragraphs []*keikiSend) bool {
	good := true
	for _, s := range paragraphs {
		good = c.k.deliver(c.turn, s) == nil && good
	}
	return good
}

// postComplete ends the turn as the app says, once.
func (c *keikiCall) postComplete() keikiReply {
	k, t := c.k, c.turn
	k.lock()
	var rest []*keikiSend
	if t.outcome == nil {
		rest = t.paragraph(nil, t.streamed, "")
		t.streamed = ""
	}
	k.unlock()
	c.flush(rest) // what fails is nobody's to know any more

	k.lock()
	defer k.unlock()
	if o := t.outcome; o != nil {
		if o.Completion != nil {
			return k.ok(keikiAck{OK: true, Duplicate: true})
		}
		return k.refuse(http.StatusConflict, "turn_closed")
	}
	o := KeikiOutcome{Status: c.completion.status, Error: c.completion.err, Consumed: c.completion.consumed, Completion: c.body}
	if o.Status == "failed" {
		o.Code = "app_error"
	}
	c.checkConsumed()
	k.end(t, o)
	return k.ok(keikiAck{OK: true})
}

// arrivalsPage is how many batches are pulled at once.
const arrivalsPage = 50

func (c *keikiCall) getArrivals() keikiReply {
	k, t := c.k, c.turn
	after, err := c.number("after")
	if err != nil {
		return k.refuse(http.StatusBadRequest, "invalid_request")
	}
	type batch struct {
		Sequence int64          `json:"sequence"`
		Messages []KeikiMessage `json:"messages"`
	}
	page := struct {
		Arrivals []batch `json:"arrivals"`
	}{[]batch{}}
	k.lock()
	defer k.unlock()
	if t.outcome != nil {
		return k.refuse(http.StatusConflict, "turn_closed")
	}
	for _, b := range t.arrivals {
		if b.sequence > after && b.state == batchAccepted && len(page.Arrivals) < arrivalsPage {
			page.Arrivals = append(page.Arrivals, batch{b.sequence, slices.Clone(b.messages)})
		}
	}
	return k.ok(page)
}

// jsonType tells whether a body is declared to be what it is.
func jsonType(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// held waits for what next finds, at most as long as the request says. Until is when next may find
// something although nothing was queued; zero for never.
func (c *keikiCall) held(next func(agent *keikiAgent) (reply *keikiReply, until time.Time)) keikiReply {
	k := c.k
	wait, err := c.number("wait")
	if err != nil {
		return k.refuse(http.StatusBadRequest, "invalid_request")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), time.Duration(wait)*time.Second)
	defer cancel()
	for {
		if c.r.Context().Err() != nil {
			return k.refuse(http.StatusServiceUnavailable, "gone") // nobody would have the turn
		}
		k.lock()
		c.who.agent.polled = k.cfg.Now()
		queued := k.queued
		reply, until := next(c.who.agent)
		k.unlock()
		if reply != nil {
			return *reply
		}
		again := time.NewTimer(time.Hour) // longer than any wait
		if !until.IsZero() {
			again.Reset(max(0, until.Sub(k.cfg.Now())) + time.Millisecond)
		}
		ended := false
		select {
		case <-queued:
		case <-again.C:
		case <-ctx.Done():
			ended = c.r.Context().Err() == nil
		case <-k.ctx.Done():
			ended = true
		}
		again.Stop()
		if ended {
			return k.ok(map[string]any{"turn": nil})
		}
	}
}
