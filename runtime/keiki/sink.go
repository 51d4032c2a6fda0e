package keiki

import (
	"context"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// A sink puts what the adapter says into the turn's log: the text as it is, and nothing else. Its methods
// are called under the log's lock.
type sink struct {
	t       *turn
	written int64 // how much text there is
}

var (
	_ runtime.Sink          = (*sink)(nil)
	_ runtime.ArrivalSource = (*sink)(nil)
	_ runtime.Settler       = (*sink)(nil)
)

func (*sink) Started(dst []byte) []byte                 { return dst }
func (*sink) Status(dst []byte, _ string) []byte        { return dst } // the platform has no word for it
func (*sink) Heartbeat(dst []byte) []byte               { return dst }
func (*sink) End(dst []byte, _ *runtime.Outcome) []byte { return dst }

func (k *sink) Text(dst []byte, s string) []byte {
	t := k.t
	if !t.sender.started { // a turn that stays silent needs none
		t.sender.started = true
		t.r.tasks.Go(t.sender.run)
	}
	if t.arrivals.takes {
		t.arrivals.writing(k.written)
	}
	k.written += int64(len(s))
	return append(dst, s...)
}

func (k *sink) Arrivals() (<-chan adapters.Arrival, error) { return k.t.arrivals.channel(), nil }

// shutdownText is what the platform is told of a turn that the drain has ended.
const shutdownText = "server is shutting down"

const (
	lastHalf    = 500 * time.Millisecond // of the second before the deadline: no message is sent then
	lastTry     = 5 * time.Second        // for the completion of a turn whose deadline has passed
	shutdownTry = 900 * time.Millisecond // for one that the drain has ended: the process is about to end
)

// Settle is called when the adapter has ended: this is the completion boundary. It sees the messages out
// and completes the turn, once (keiki.md, "Answering" and "Settled readings").
func (k *sink) Settle(o *runtime.Outcome) {
	t := k.t
	defer t.close()
	t.arrivals.close()

	draining := o.Cause == adapters.CauseDrain
	late := o.Cause == adapters.CauseTurnTimeout && t.cutByPlatform()
	if t.ended() != notEnded || draining {
		t.stopCalls(errEnded)
	} else {
		// The last of what is left to the deadline is for the completion.
		left := max(0, time.Until(t.deadline))
		defer time.AfterFunc(left-min(left/2, lastHalf), func() { t.stopCalls(errEnded) }).Stop()
	}
	k.deliver(o)

	why := t.ended()
	if why != notEnded {
		why.mark(o)
	}
	c := wire.Completion{Status: wire.StatusCompleted}
	if o.Status != runtime.Completed {
		c.Status = wire.StatusFailed
		switch {
		case draining, t.hurried():
			c.Error = shutdownText
		case why != notEnded:
			c.Error = why.text()
		case late:
			c.Error = "The turn's deadline passed before the agent had ended."
		default:
			c.Error = o.PublicText()
		}
	}
	switch {
	case !why.completes():
		return
	case (draining || t.hurried()) && t.leave:
		return // to its lease
	}
	c.ConsumedArrivals = t.arrivals.consumed(o.Status == runtime.Completed)
	t.complete(o, c, late)
	if e := t.ended(); e != why { // it was cancelled or closed before it was completed
		e.mark(o)
	}
}

// deliver sees out the messages that were made, and under a good end what is left.
func (k *sink) deliver(o *runtime.Outcome) {
	t := k.t
	if !t.sender.started {
		return
	}
	all := t.sender.caughtUp(t.calls, k.written)
	if o.Status != runtime.Completed {
		return
	}
	if all {
		all = t.sender.finish() == nil
	}
	if all || t.ended() != notEnded {
		return // t knows why, if anything went wrong
	}
	// The end of the drain, or the platform's deadline, came before the last message.
	if t.hurried() {
		o.Status, o.Cause = runtime.Cancelled, adapters.CauseDrain
		return
	}
	t.end(endUnreachable, nil)
}

// complete tells the platform how the turn ended.
func (t *turn) complete(o *runtime.Outcome, c wire.Completion, late bool) {
	body := wire.AppendComplete(nil, c)
	if late || t.time.Err() != nil || o.Cause == adapters.CauseDrain {
		limit := lastTry
		if o.Cause == adapters.CauseDrain || t.hurried() {
			limit = shutdownTry
		}
		t.completed(t.try(body, limit))
		return
	}
	a, v := t.insist(t.time, "/complete", body)
	if v == again && t.hurried() { // the drain's end has cut this short
		a, v = t.try(body, shutdownTry)
	}
	t.completed(a, v)
}

// try tries once to complete the turn, whatever the deadline.
func (t *turn) try(body []byte, limit time.Duration) (answer, verdict) {
	ctx, cancel := context.WithTimeout(t.life, limit)
	defer cancel()
	a := t.tell(ctx, "/complete", body)
	return a, a.judge()
}

// completed says what became of a completion that is more than a formality.
func (t *turn) completed(a answer, v verdict) {
	switch {
	case v == settled:
	case t.life.Err() != nil: // cancelled at this moment
	case v == closed:
		t.end(endClosed, &a)
	default:
		t.log.Error("the turn could not be completed: the platform will count it as failed", "answer", a.word())
	}
}
