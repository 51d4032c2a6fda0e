package testhost

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// enqueue lets a turn be claimed. k.mu is held.
func (k *Keiki) enqueue(t *keikiTurn) {
	k.queue = append(k.queue, t)
	k.wake()
}

// wake lets held polls look again. k.mu is held.
func (k *Keiki) wake() {
	close(k.queued)
	k.queued = make(chan struct{})
}

// LoseLease takes a turn of the inbox from who has claimed it: its next refresh is answered 409, and
// another poll gets the turn.
func (k *Keiki) LoseLease(turnID string) {
	k.lock()
	defer k.unlock()
	if t := k.turns[turnID]; t != nil && t.leased {
		t.lease = time.Time{}
		k.wake()
	}
}

// Leased tells how long the claim of an inbox turn still holds: 0 where it does not.
func (k *Keiki) Leased(turnID string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.turns[turnID]; t != nil && t.leased {
		return max(0, t.lease.Sub(k.cfg.Now()))
	}
	return 0
}

// getInbox claims a turn of the inbox, or waits for one.
func (c *keikiCall) getInbox() keikiReply {
	return c.held(func(agent *keikiAgent) (*keikiReply, time.Time) {
		t, until := c.k.claim(agent)
		if t == nil {
			return nil, until
		}
		c.rec.TurnID = t.id
		reply := keikiReply{status: http.StatusOK, body: c.k.envelope(t)}
		return &reply, until
	})
}

// claim finds the first turn of an agent that may be worked on, and leases it; otherwise it tells when a
// lease will run out. A conversation has one turn at a time. k.mu is held.
func (k *Keiki) claim(agent *keikiAgent) (found *keikiTurn, until time.Time) {
	now := k.cfg.Now()
	for _, t := range k.queue {
		if t.mode != KeikiInboxMode || t.agent != agent.id {
			continue
		}
		if t.leased && now.Before(t.lease) {
			if until.IsZero() || t.lease.Before(until) {
				until = t.lease
			}
			continue
		}
		conv := k.conv(t.agent, t.conversation)
		if conv.active != nil && conv.active != t {
			continue
		}
		conv.active = t
		if !t.claimed {
			k.merge(t)
			timeout := t.in.Timeout
			setDefault(&timeout, k.cfg.Timeout)
			t.deadline = now.Add(timeout)
			body, err := t.write()
			if err != nil {
				panic(err) // strings, and JSON that begin has checked
			}
			t.body, t.claimed = body, true
			k.watch(t)
		} else {
			t.view = keikiView{epoch: t.view.epoch + 1} // of another worker, perhaps
		}
		k.giveToken(t)
		t.leased, t.lease = true, now.Add(k.cfg.Lease)
		return t, time.Time{}
	}
	return nil, until
}

// merge gives a turn the messages of those behind it in its conversation, which end. Turns with a body of
// their own, or held back where this one is not, stay as they are. k.mu is held.
func (k *Keiki) merge(t *keikiTurn) {
	if t.in.Body != nil {
		return
	}
	for _, other := range slices.Clone(k.queue) {
		if other == t || other.agent != t.agent || other.conversation != t.conversation || other.mode != t.mode ||
			other.claimed || other.in.Body != nil || other.in.HeldBack != t.in.HeldBack {
			continue
		}
		t.in.Messages = append(t.in.Messages, other.in.Messages...)
		k.end(other, KeikiOutcome{Status: "merged", MergedInto: t.id})
	}
}

// envelope is what a poll of the inbox is given: the turn, with what a claim adds. k.mu is held.
func (k *Keiki) envelope(t *keikiTurn) []byte {
	lease, _ := json.Marshal(stamp(t.lease)) //nolint:errchkjson // a string
	token, _ := json.Marshal(t.token)        //nolint:errchkjson // a string
	claim := slices.Concat([]byte(`"turnToken":`), token, []byte(`,"leaseExpiresAt":`), lease)
	if !k.cfg.NestedClaims {
		end := bytes.LastIndexByte(t.body, '}')
		if end < 0 { // a body that is meant to be bad
			return slices.Concat([]byte(`{"turn":`), t.body, []byte(`}`))
		}
		return slices.Concat([]byte(`{"turn":`), t.body[:end], []byte(`,`), claim, []byte(`}}`))
	}
	links, _ := json.Marshal(t.links) //nolint:errchkjson // strings
	deadline := t.in.Deadline.write(t.deadline)
	if deadline == nil {
		deadline = []byte("null")
	}
	return slices.Concat([]byte(`{"turn":{"turn":`), t.body, []byte(`,"deadline":`), deadline, []byte(`,`), claim,
		[]byte(`,"keiki":`), links, []byte(`}}`))
}

// stamp is a time as the platform writes it.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// postLease keeps a claim, and gives its token another value where the configuration says so.
func (c *keikiCall) postLease() keikiReply {
	k, t := c.k, c.turn
	k.lock()
	defer k.unlock()
	now := k.cfg.Now()
	switch {
	case t.outcome != nil:
		return k.refuse(http.StatusConflict, "turn_closed")
	case t.mode != KeikiInboxMode:
		return k.refuse(http.StatusNotFound, "no_lease")
	case !t.leased || !now.Before(t.lease):
		return k.refuse(http.StatusConflict, "lease_lost")
	}
	t.lease = now.Add(k.cfg.Lease)
	answer := struct {
		LeaseExpiresAt string `json:"leaseExpiresAt"`
		TurnToken      string `json:"turnToken,omitempty"`
	}{LeaseExpiresAt: stamp(t.lease)}
	if k.cfg.RotateOnRefresh {
		k.giveToken(t)
		answer.TurnToken = t.token
	}
	return k.ok(answer)
}

// getNext gives a relay the next turn to forward, signed now. One that was not reported on is given again
// once its lease has run out.
func (c *keikiCall) getNext() keikiReply {
	type forward struct {
		ID      string            `json:"id"`
		Body    string            `json:"body"`
		Headers map[string]string `json:"headers"`
	}
	k := c.k
	return c.held(func(agent *keikiAgent) (*keikiReply, time.Time) {
		now, until := k.cfg.Now(), time.Time{}
		for _, t := range k.queue {
			if t.mode != KeikiRelayMode || t.agent != agent.id || t.result != 0 {
				continue
			}
			if t.claimed && now.Before(t.lease) {
				if until.IsZero() || t.lease.Before(until) {
					until = t.lease
				}
				continue
			}
			secrets := agent.signers
			if len(secrets) == 0 {
				secrets = agent.secrets[:min(1, len(agent.secrets))]
			}
			if len(secrets) == 0 {
				k.end(t, KeikiOutcome{Status: "failed", Code: "signing_secret_missing"})
				return nil, now // look again
			}
			t.claimed, t.lease = true, now.Add(k.cfg.Lease)
			k.conv(t.agent, t.conversation).active = t
			headers := signedHeader(KeikiPush{TurnID: t.id, Token: t.token, Body: t.body, Secrets: secrets, At: now})
			for name, values := range t.in.Header {
				if delete(headers, name); len(values) > 0 {
					headers[name] = values[0]
				}
			}
			c.rec.TurnID = t.id
			reply := k.ok(map[string]forward{"turn": {t.id, string(t.body), headers}})
			return &reply, until
		}
		return nil, until
	})
}

// postResult takes a relay's report of what the app answered.
func (c *keikiCall) postResult() keikiReply {
	k := c.k
	status, err := parseKeikiResult(c.body)
	k.lock()
	t := k.turns[c.id]
	switch {
	case err != nil:
		c.violate(RuleBody, "%v", err)
		k.unlock()
		return k.refuse(http.StatusBadRequest, "invalid_request")
	case t == nil || t.mode != KeikiRelayMode || t.agent != c.who.agent.id:
		c.violate(RuleResult, "no such turn")
		k.unlock()
		return k.refuse(http.StatusNotFound, "turn_not_found")
	case !t.claimed:
		c.violate(RuleResult, "the turn was not forwarded")
		k.unlock()
		return k.refuse(http.StatusConflict, "not_claimed")
	case t.result != 0:
		k.unlock()
		return k.ok(keikiAck{OK: true, Duplicate: true})
	}
	t.result = status
	k.queue = slices.DeleteFunc(k.queue, func(other *keikiTurn) bool { return other == t })
	k.unlock()
	var unreachable error
	if status == http.StatusBadGateway {
		unreachable = errors.New("the relay could not reach the app")
	}
	k.dispatched(t, KeikiAnswer{Status: status}, unreachable)
	return k.ok(keikiAck{OK: true})
}

func parseKeikiResult(body []byte) (int, error) {
	fields, err := strictObject(body)
	if err != nil {
		return 0, err
	}
	for _, f := range fields {
		if f.name != "status" {
			continue
		}
		if status, err := strconv.Atoi(string(f.value)); err == nil && status >= 100 && status <= 599 {
			return status, nil
		}
	}
	return 0, errors.New(`"status" is no HTTP status`)
}
