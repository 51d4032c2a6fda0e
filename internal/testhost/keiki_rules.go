package testhost

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A KeikiRule names something that an app may not do. What is held against it is what it can have known:
// an answer that a fault has taken from it was not given.
type KeikiRule string

// The rules.
const (
	// About any request.
	RulePath      KeikiRule = "path"         // neither a route nor a turn's
	RuleMethod    KeikiRule = "method"       // of another route
	RuleURLSecret KeikiRule = "url_secret"   // a bearer in the URL
	RuleType      KeikiRule = "content_type" // a body that is not application/json
	RuleBody      KeikiRule = "body"         // not what the route takes
	RuleField     KeikiRule = "unknown_field"
	RuleQuery     KeikiRule = "query" // a wait or cursor out of range

	// About bearers.
	RuleBearer       KeikiRule = "bearer"             // none, or none that is known
	RuleForeign      KeikiRule = "foreign_bearer"     // another turn's
	RuleExpired      KeikiRule = "expired_credential" // of more than five minutes
	RuleUnauthorized KeikiRule = "after_unauthorized" // again after a 401 or 403 with it

	// About messages.
	RuleOverlap      KeikiRule = "message_before_settled"     // the next one before the one before had settled
	RuleKeyText      KeikiRule = "key_with_other_text"        // within one claim
	RuleRetryUnknown KeikiRule = "retry_after_unknown"        // the same key after an unknown outcome
	RuleResend       KeikiRule = "resent_under_new_key"       // the same text after an unknown outcome
	RuleAfterEnd     KeikiRule = "message_after_complete"     // anything sent after a completion
	RuleAfterClosed  KeikiRule = "after_turn_closed"          // anything sent after 409 turn_closed
	RuleAfterCancel  KeikiRule = "after_cancel"               // anything but reads after a cancellation was acknowledged
	RuleDeadline     KeikiRule = "after_deadline"             // more than five seconds after it
	RuleLease        KeikiRule = "after_lease_lost"           // anything but reads after 404 or 409 to a refresh
	RuleUnsettled    KeikiRule = "complete_before_settled"    // completed with a message unsettled, or any with one under way
	RuleCompleted    KeikiRule = "complete_again"             // after it was acknowledged
	RuleOther        KeikiRule = "complete_with_other_body"   // a retry that differs
	RuleConsumed     KeikiRule = "consumed_not_accepted"      // an arrival that was not accepted
	RuleConsumedList KeikiRule = "consumed_list"              // empty, not ascending, or with one twice
	RuleUnanswered   KeikiRule = "consumed_without_an_answer" // by a failed turn that answered nothing since
	RuleReason       KeikiRule = "completion_error"           // failed without an error, or completed with one
	RuleResult       KeikiRule = "result"                     // reported for what was not forwarded
)

// deadlineSlack is how late something may still come that was sent before the deadline, on a machine that
// has much to do.
const deadlineSlack = 5 * time.Second

// A keikiView is what an app has been told of a turn, since it claimed it.
type keikiView struct {
	epoch      int // counts claims
	current    *keikiSend
	closed     bool
	completion []byte // that it has sent; nil for none
	completed  bool   // and was acknowledged
	refused    []refusal
	leaseLost  time.Time
	cancelTold time.Time
	answers    int // messages that settled as ok or turn_closed
}

// A refusal is a 401 or 403. Refreshes and pulls go on beside what is sent: they are held apart.
type refusal struct {
	bearer digest
	sends  bool
}

// sendRules is what an app has been told of a message.
type sendRules struct {
	epoch    int
	text     string
	underWay int
	settled  bool
	unknown  bool
	suspects []KeikiViolation // violations if the attempt under way is not one that the app gave up
}

// A keikiBearer is what a request brought to prove itself.
type keikiBearer struct {
	kind  string // as in [KeikiRequest.Auth]
	token digest
	agent *keikiAgent // of an API key
	code  string      // why it is refused; empty for good ones
	rule  KeikiRule   // broken by that; empty for none
	why   string
}

// authenticate looks at a request's bearer. Nothing that it returns tells a secret.
func (k *Keiki) authenticate(route keikiRoute, turnID string, header []string) keikiBearer {
	if route == routeNone {
		return keikiBearer{kind: kindOf(header)}
	}
	if len(header) == 0 {
		return keikiBearer{code: "missing_token", rule: RuleBearer, why: "no Authorization"}
	}
	scheme, token, _ := strings.Cut(header[0], " ")
	who := keikiBearer{kind: kindOf(header), token: digestOf(token), code: "invalid_token", rule: RuleBearer}
	if len(header) > 1 || !strings.EqualFold(scheme, "Bearer") {
		who.why = "Authorization is not one Bearer"
		return who
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case route == routeMCP:
		who.code, who.rule = "", ""
	case !route.ofTurn() && who.kind == "api_key":
		if who.agent = k.apiKeys[who.token]; who.agent != nil {
			who.code, who.rule = "", ""
		} else {
			who.code, who.why = "invalid_api_key", "an API key of nobody"
		}
	case route.ofTurn() && who.kind == "turn_token":
		k.turnToken(&who, turnID)
	case route.ofTurn() && who.kind == "credential":
		k.credential(&who, turnID, token)
	default:
		who.why = fmt.Sprintf("a bearer of kind %q on route %s", who.kind, keikiRouteNames[route])
	}
	return who
}

func kindOf(header []string) string {
	if len(header) == 0 {
		return ""
	}
	_, token, _ := strings.Cut(header[0], " ")
	switch {
	case strings.HasPrefix(token, "ht_"):
		return "turn_token"
	case strings.HasPrefix(token, "kts1."):
		return "credential"
	case strings.HasPrefix(token, "sk_"):
		return "api_key"
	default:
		return "other"
	}
}

func (k *Keiki) turnToken(who *keikiBearer, turnID string) {
	owner := k.tokens[who.token]
	switch {
	case owner == nil:
		who.why = "a turn token that was not given out, or long ago"
	case owner.id != turnID:
		who.code, who.rule, who.why = "wrong_turn", RuleForeign, "the token of another turn"
	case !digestOf(owner.token).equal(who.token):
		who.code, who.rule = "token_rotated", "" // it may not have known
	default:
		who.code, who.rule = "", ""
	}
}

func (k *Keiki) credential(who *keikiBearer, turnID, token string) {
	who.code = "invalid_credential"
	c, payload, sig, err := readCredential(token)
	if err != nil {
		who.why = "a credential that is none: " + err.Error()
		return
	}
	agent := k.agents[c.AgentID]
	if agent == nil || !verifyCredential(payload, sig, agent.secrets) {
		who.why = "a credential that no secret of its agent has signed"
		return
	}
	if t := k.turns[turnID]; c.TurnID != turnID || (t != nil && t.agent != c.AgentID) {
		who.code, who.rule, who.why = "wrong_turn", RuleForeign, "the credential of another turn or agent"
		return
	}
	if age := k.cfg.Now().Sub(time.Unix(c.Seconds, 0)); age.Abs() > credentialAge+time.Second {
		who.code, who.rule, who.why = "expired_credential", RuleExpired, fmt.Sprintf("a credential that is %v old", age)
		return
	}
	who.code, who.rule = "", ""
}

func (c *keikiCall) broken(rule KeikiRule, format string, args ...any) KeikiViolation {
	return KeikiViolation{
		At: c.rec.At, TurnID: c.id, Request: c.rec.N, Rule: rule,
		Detail: c.rec.Method + " " + keikiRouteNames[c.route] + ": " + fmt.Sprintf(format, args...),
	}
}

func (c *keikiCall) violate(rule KeikiRule, format string, args ...any) {
	c.k.violate(c.broken(rule, format, args...))
}

// begin finds the turn of a request and holds the rules against it, before anything can go wrong on
// purpose. k.mu is held.
func (c *keikiCall) begin() {
	k := c.k
	c.checkForm()
	if !c.route.ofTurn() {
		return
	}
	t := k.turns[c.id]
	if t == nil {
		return
	}
	c.turn, c.epoch = t, t.view.epoch
	for _, refused := range t.view.refused {
		if refused.sends == c.route.sends() && (refused.bearer == c.who.token || c.who.kind == "credential") {
			c.violate(RuleUnauthorized, "it was refused with this bearer before")
			break
		}
	}
	if c.who.code != "" || c.r.Method != c.route.method() {
		return
	}
	c.checkTime()
	if c.bad == nil && (c.route == routeMessages || c.route == routeStream) && c.message.key != "" {
		c.beginMessage()
	}
	if c.bad == nil && c.route == routeComplete {
		c.beginComplete()
	}
}

// checkForm holds what can be seen from the request alone. k.mu is held.
func (c *keikiCall) checkForm() {
	if c.who.rule != "" {
		c.violate(c.who.rule, "%s", c.who.why)
	}
	for _, prefix := range []string{"ht_", "sk_", "kts1.", "whsec_"} {
		if strings.Contains(c.r.URL.RawQuery, prefix) {
			c.violate(RuleURLSecret, "the query has something like a secret")
		}
	}
	switch {
	case c.route == routeNone:
		c.violate(RulePath, "%s is no route", c.r.URL.Path)
		return
	case c.r.Method != c.route.method():
		c.violate(RuleMethod, "expected %s", c.route.method())
		return
	}
	if len(c.body) > 0 && c.route != routeMCP && !jsonType(c.r.Header) {
		c.violate(RuleType, "Content-Type is %q, expected application/json", c.r.Header.Get("Content-Type"))
	}
	if c.bad != nil {
		c.violate(RuleBody, "%v", c.bad)
		return
	}
	known := map[keikiRoute][]string{
		routeMessages: {"text", "idempotencyKey"}, routeStream: {"text", "idempotencyKey"},
		routeComplete: {"status", "error", "consumedArrivals"}, routeLease: {}, routeResult: {"status", "body"},
	}[c.route]
	if known != nil && len(c.body) > 0 {
		fields, err := strictObject(c.body)
		if err != nil {
			c.violate(RuleBody, "the body %v", err)
		}
		for _, f := range fields {
			if !slices.Contains(known, f.name) {
				c.violate(RuleField, "%q is not known", f.name)
			}
		}
	}
	limit := map[keikiRoute]string{routeInbox: "wait", routeNext: "wait", routeArrivals: "after"}[c.route]
	for name, values := range c.r.URL.Query() {
		if name != limit || len(values) > 1 {
			c.violate(RuleQuery, "%q is not known, or there twice", name)
		} else if _, err := c.number(name); err != nil {
			c.violate(RuleQuery, "%v", err)
		}
	}
}

// number reads a number of the query; 0 where there is none.
func (c *keikiCall) number(name string) (int64, error) {
	query := c.r.URL.Query()
	if !query.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseInt(query.Get(name), 10, 64)
	if err != nil || n < 0 || (name == "wait" && n > 30) {
		return 0, fmt.Errorf("%s is %.20q, out of its range", name, query.Get(name))
	}
	return n, nil
}

// checkTime holds that nothing is sent once there is nothing left to send. k.mu is held.
func (c *keikiCall) checkTime() {
	v, now := &c.turn.view, time.Now()
	if c.route == routeArrivals {
		return // reads harm nobody
	}
	if !v.cancelTold.IsZero() && now.Sub(v.cancelTold) > c.k.cfg.InFlight {
		c.violate(RuleAfterCancel, "%v after it was acknowledged", now.Sub(v.cancelTold))
	}
	if !v.leaseLost.IsZero() && now.Sub(v.leaseLost) > c.k.cfg.InFlight {
		c.violate(RuleLease, "%v after it was told", now.Sub(v.leaseLost))
	}
	if !c.route.sends() {
		return
	}
	if v.closed {
		c.violate(RuleAfterClosed, "the turn is closed, and it knows")
	}
	if v.completion != nil && c.route != routeComplete {
		c.violate(RuleAfterEnd, "it had sent its completion")
	}
	if d, now := c.turn.deadline, c.k.cfg.Now(); !d.IsZero() && now.Sub(d) > deadlineSlack && now.Sub(c.turn.made) > deadlineSlack {
		c.violate(RuleDeadline, "%v after it", now.Sub(d))
	}
}

// beginMessage counts a try of a key, and holds the order of messages. k.mu is held.
func (c *keikiCall) beginMessage() {
	t := c.turn
	s := t.sends[c.message.key]
	if s == nil {
		s = &keikiSend{KeikiDelivery: KeikiDelivery{TurnID: t.id, Key: c.message.key, Text: c.message.text, HeldBack: t.in.HeldBack, Streamed: c.route == routeStream}}
		if len(t.tried) < maxKeikiMessages {
			if t.sends == nil {
				t.sends = map[string]*keikiSend{}
			}
			t.sends[c.message.key] = s
			t.tried = append(t.tried, s)
		}
	}
	c.send = s
	s.Tries++
	if s.state == sendTried {
		s.At = c.rec.At
	}
	r := &s.rules
	if r.epoch != c.epoch {
		*r = sendRules{epoch: c.epoch}
	}
	switch {
	case r.text == "":
		r.text = c.message.text
		for _, other := range t.tried {
			if other != s && c.route == routeMessages && other.rules.unknown && other.rules.epoch == c.epoch && other.rules.text == r.text {
				c.violate(RuleResend, "key %q has the text of key %q, whose outcome is unknown", s.Key, other.Key)
			}
		}
	case r.text != c.message.text:
		c.violate(RuleKeyText, "key %q came with another text before", s.Key)
	}
	if r.unknown {
		c.violate(RuleRetryUnknown, "the outcome of key %q is unknown, and it knows", s.Key)
	}
	if last := t.view.current; last != nil && last != s && !last.rules.settled {
		c.unsettled(last, RuleOverlap)
	}
	t.view.current = s
	r.underWay++
	r.settled = false
}

// unsettled holds against a request that a message has not settled, unless its attempt under way turns
// out to be one that the app no longer waits for. k.mu is held.
func (c *keikiCall) unsettled(s *keikiSend, rule KeikiRule) {
	v := c.broken(rule, "key %q had not settled", s.Key)
	if s.rules.underWay > 0 {
		s.rules.suspects = append(s.rules.suspects, v)
		return
	}
	c.k.violate(v)
}

// beginComplete holds what a completion says. k.mu is held.
func (c *keikiCall) beginComplete() {
	t := c.turn
	v := &t.view
	switch {
	case v.completed:
		c.violate(RuleCompleted, "it had been acknowledged")
	case v.completion != nil && !bytes.Equal(v.completion, c.body):
		c.violate(RuleOther, "it was %s before", v.completion)
	}
	first := v.completion == nil
	v.completion = c.body
	if !first {
		return
	}
	for _, s := range t.tried {
		// A failed turn may give a message up, but not while it is under way.
		if r := s.rules; r.epoch == c.epoch && !r.settled && (r.underWay > 0 || c.completion.status == "completed") {
			c.unsettled(s, RuleUnsettled)
		}
	}
	switch done := c.completion; {
	case done.status == "failed" && strings.TrimSpace(done.err) == "":
		c.violate(RuleReason, "failed without an error")
	case done.status == "completed" && done.err != "":
		c.violate(RuleReason, "completed with an error")
	}
	list := c.completion.consumed
	if list != nil && len(list) == 0 {
		c.violate(RuleConsumedList, "an empty list, expected none")
	}
	for i := 1; i < len(list); i++ {
		if list[i] <= list[i-1] {
			c.violate(RuleConsumedList, "%d after %d", list[i], list[i-1])
		}
	}
}

// checkConsumed holds what a completion that counts says of arrivals. One whose push is under way may
// have been taken. k.mu is held.
func (c *keikiCall) checkConsumed() {
	for _, sequence := range c.completion.consumed {
		i := slices.IndexFunc(c.turn.arrivals, func(b *keikiBatch) bool { return b.sequence == sequence })
		switch {
		case i < 0 || c.turn.arrivals[i].state == batchReturned:
			c.violate(RuleConsumed, "arrival %d was not accepted", sequence)
		case c.completion.status == "failed" && c.turn.view.answers == c.turn.arrivals[i].answers:
			c.violate(RuleUnanswered, "arrival %d, after which no message settled", sequence)
		}
	}
}

// end notes what the app is told. k.mu is held.
func (c *keikiCall) end(reply keikiReply, dropped bool) {
	t, s := c.turn, c.send
	if t == nil || c.epoch != t.view.epoch {
		return // it has been claimed anew
	}
	v := &t.view
	if s != nil && s.rules.epoch == c.epoch {
		s.rules.underWay--
		if c.r.Context().Err() == nil {
			for _, suspect := range s.rules.suspects {
				c.k.violate(suspect)
			}
		}
		s.rules.suspects = nil
	}
	if dropped {
		return
	}
	status, good := reply.status, reply.status >= 200 && reply.status < 300
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		v.refused = append(v.refused, refusal{c.who.token, c.route.sends()})
		if len(v.refused) > maxTokens {
			v.refused = v.refused[1:]
		}
	}
	if c.route.sends() && status == http.StatusConflict && reply.code == "turn_closed" {
		v.closed = true
	}
	switch c.route {
	case routeMessages, routeStream:
		if good || v.closed {
			v.answers++
		}
		if s == nil || s.rules.epoch != c.epoch {
			return
		}
		unknown := status == http.StatusBadGateway && reply.final() || reply.code == "previous_attempt_failed"
		s.rules.unknown = s.rules.unknown || unknown
		// What asks for another attempt settles nothing.
		again := status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500
		if good || unknown || !again {
			s.rules.settled = true
		}
	case routeComplete:
		v.completed = v.completed || good
	case routeLease:
		if t.mode == KeikiInboxMode && (status == http.StatusConflict || status == http.StatusNotFound) {
			v.leaseLost = time.Now()
		}
	}
}

// final tells whether an error says that it cannot be retried.
func (r keikiReply) final() bool {
	return bytes.Contains(bytes.ReplaceAll(r.body, []byte(" "), nil), []byte(`"retryable":false`))
}
