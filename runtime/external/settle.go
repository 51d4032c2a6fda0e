package external

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/external"
)

// Amounts that an axis can have at most.
const (
	maxAmount = 1<<53 - 1
	maxSteps  = 1<<32 - 1
)

// measured is what an adapter reported. Reports of another fidelity than the profile's do not count
// (external-runtime.md, Settled readings).
type measured struct {
	fidelity wire.Fidelity // the profile's
	usage    adapters.Usage
	conflict bool // two reports of an axis differ
}

func (m *measured) add(u adapters.Usage) {
	if u.Fidelity != "" && wire.Fidelity(u.Fidelity) != m.fidelity {
		return
	}
	differ := func(a, b adapters.Measure) bool {
		if !a.Known() || !b.Known() || a.String() == b.String() {
			return false
		}
		x, xWhy := amount(a, maxAmount)
		y, yWhy := amount(b, maxAmount)
		return xWhy != "" || yWhy != "" || x != y
	}
	k := &m.usage
	m.conflict = m.conflict || differ(k.Tokens, u.Tokens) || differ(k.CostMicros, u.CostMicros) ||
		differ(k.WallTimeMS, u.WallTimeMS) || differ(k.Steps, u.Steps)
	*k = k.Merge(u)
}

// amount reads a measured value, which is any JSON: the amount, or what is wrong with it.
func amount(m adapters.Measure, most int64) (int64, wire.ReasonCode) {
	if !m.Known() {
		return 0, wire.ReasonUsageMissing
	}
	text := m.String()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && json.Valid([]byte(text)) {
		switch {
		case n < 0:
			return 0, wire.ReasonUsageMalformed
		case n > most:
			return 0, wire.ReasonUsageOverflow
		}
		return n, ""
	}
	if c := text[0]; c != '-' && (c < '0' || c > '9') || !json.Valid([]byte(text)) {
		return 0, wire.ReasonUsageMalformed
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case f < 0, err == nil && f != math.Trunc(f):
		return 0, wire.ReasonUsageMalformed
	case err != nil, f > float64(most): // the only error left is one of range
		return 0, wire.ReasonUsageOverflow
	}
	return int64(f), ""
}

// A bill is what a turn used and is charged.
type bill struct {
	usage   wire.Usage
	valid   bool            // all four axes are measured well
	fault   wire.ReasonCode // what is wrong with the report where the profile asks for a good one
	charged wire.Usage
	// fidelity is who measured what is charged; unavailable where nobody did.
	fidelity wire.Fidelity
	over     bool // the charge is over the reservation
}

// settle compares what was measured with what was reserved (external-runtime.md, Settlement). wall is
// how long the turn took.
func (m *measured) settle(reserved wire.Budget, wall time.Duration) bill {
	u := m.usage
	// What is measured here where the adapter gives none. Tokens and cost may not be.
	if !u.WallTimeMS.Known() {
		u.WallTimeMS = adapters.Count(max(0, wall.Milliseconds()))
	}
	if !u.Steps.Known() {
		u.Steps = adapters.Count(1)
	}
	var b bill
	var faults [4]wire.ReasonCode
	b.usage.MaxTokens, faults[0] = amount(u.Tokens, maxAmount)
	b.usage.MaxCostMicros, faults[1] = amount(u.CostMicros, maxAmount)
	b.usage.MaxWallTimeMS, faults[2] = amount(u.WallTimeMS, maxAmount)
	b.usage.MaxSteps, faults[3] = amount(u.Steps, maxSteps)
	fault := wire.ReasonCode("")
	for _, r := range []wire.ReasonCode{wire.ReasonUsageMissing, wire.ReasonUsageConflict, wire.ReasonUsageOverflow, wire.ReasonUsageMalformed} {
		for _, f := range faults {
			if f == r {
				fault = r // the last one of this order that there is
			}
		}
		if r == wire.ReasonUsageConflict && m.conflict {
			fault = r
		}
	}
	b.valid = fault == ""
	b.charged, b.fidelity = wire.Usage(reserved), m.fidelity
	if m.fidelity != wire.FidelityAuthoritative && m.fidelity != wire.FidelityHostMeasured {
		return b
	}
	if b.fault = fault; fault != "" {
		b.fidelity = wire.FidelityUnavailable
		return b
	}
	b.charged = b.usage
	b.over = !b.usage.Within(reserved)
	return b
}

// verdict is how a turn ended, before its usage and its product are looked at.
func (t *turn) verdict(o *runtime.Outcome) (wire.Status, wire.ReasonCode) {
	if t.out.reason != "" {
		return t.out.status, t.out.reason
	}
	switch o.Cause {
	case adapters.CauseCompleted:
		return wire.StatusCompleted, wire.ReasonCompleted
	case adapters.CauseStopped, adapters.CauseDrain, adapters.CauseHostGone, adapters.CauseHostStalled:
		return wire.StatusCancelled, wire.ReasonCancelled
	case adapters.CauseTurnTimeout:
		if t.wallFirst {
			return wire.StatusFailed, wire.ReasonBudgetExhausted
		}
		return wire.StatusFailed, wire.ReasonEventTimeout
	case adapters.CauseFirstOutput, adapters.CauseIdle, adapters.CauseSessionBusy, adapters.CauseTurnLimit:
		return wire.StatusFailed, wire.ReasonEventTimeout
	case adapters.CauseAdapter:
		if errors.Is(o.Err, adapters.ErrToolNotAdmitted) { // it cannot go on without the tool
			return wire.StatusRefused, wire.ReasonToolNotAdmitted
		}
	}
	return wire.StatusFailed, wire.ReasonProviderUnavailable
}

// retryability is what the host may do after an outcome.
func retryability(status wire.Status, reason wire.ReasonCode, o *runtime.Outcome) wire.Retryability {
	if status == wire.StatusUnknown {
		return wire.ReconciliationRequired
	}
	if status == wire.StatusFailed {
		if reason == wire.ReasonEventTimeout {
			return wire.Retryable
		}
		var u *adapters.Unavailable
		if reason == wire.ReasonProviderUnavailable && o.Cause == adapters.CauseProvider && errors.As(o.Err, &u) && u.Temporary {
			return wire.Retryable
		}
	}
	return wire.Terminal
}

// Settle implements [runtime.Settler]: it finds out how the turn ended and what it costs, and commits
// both before the last line leaves.
func (t *turn) Settle(o *runtime.Outcome) {
	t.mu.Lock()
	t.over = true // from here on nobody else changes the turn in the ledger
	if t.timer != nil {
		t.timer.Stop()
	}
	var s ledger.Settlement
	var outcome wire.Outcome
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		s, outcome = t.conclude(o)
		return dst
	})
	t.report(o, &outcome)
	s.Turn, s.Version, s.At = ledger.TurnRef(t.ref), t.version, time.Now()
	if t.running != nil {
		s.Key = t.running.key
	}
	if !t.waits {
		s.Session = t.changedSession(true)
	}
	t.mu.Unlock()

	// Not under the lock: it may take as long as the ledger is out of order, and the turn is looked at
	// meanwhile.
	t.settling.Store(true)
	stopPoint("settling")
	if err := t.commit(&s); err != nil {
		t.h.log.Error("a turn's outcome could not be committed", "turn", string(t.ref), "reason", string(outcome.ReasonCode), "error", err.Error())
		t.lost.Store(true)
		t.out.final = nil
	} else {
		t.status = outcome.Status
		level := slog.LevelDebug
		if outcome.Status != wire.StatusCompleted {
			level = slog.LevelInfo
		}
		t.h.log.Log(context.Background(), level, "turn settled",
			"turn", string(t.ref), "binding", string(t.binding.BindingRef), "status", string(outcome.Status),
			"reason", string(outcome.ReasonCode), "events", s.Recording.LastSeq,
			"tokens", outcome.BudgetCharged.MaxTokens, "cost_micros", outcome.BudgetCharged.MaxCostMicros)
	}
	stopPoint("settled")
	t.h.remove(t)
	if t.running != nil {
		close(t.running.ended)
	}
	close(t.done)
}

// report tells the engine, which tells hooks and log, how the turn ended.
func (t *turn) report(o *runtime.Outcome, outcome *wire.Outcome) {
	o.Reason = string(outcome.Status) + "/" + string(outcome.ReasonCode)
	switch outcome.Status {
	case wire.StatusCompleted:
	case wire.StatusCancelled:
		o.Status = runtime.Cancelled
	default:
		o.Status = runtime.Failed
		if o.Cause == adapters.CauseCompleted || o.Cause == adapters.CauseStopped && outcome.ReasonCode != wire.ReasonSessionLost {
			o.Cause = adapters.CauseAdapter // over what it said, or did not say
		}
	}
	if o.Cause == adapters.CauseTurnTimeout {
		o.Limit = t.cutoff().Sub(t.began)
	}
}

// How often a ledger that fails is asked to take an outcome, and how long it is still asked once the server
// has no more time.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 2 * time.Second
	lastChance = 4 * time.Second
)

// commit commits the outcome. Where the ledger cannot do that it tries again until it can, or a drain is over:
// the turn has ended, and nobody else can tell how. What waits for it is bounded, as no turn begins
// meanwhile. What is committed twice is refused by the ledger.
func (t *turn) commit(s *ledger.Settlement) error {
	h := t.h
	err := h.attempt(context.Background(), s)
	if err == nil || hopeless(err) {
		return err
	}
	h.log.Error("a turn's outcome waits for the ledger", "turn", string(t.ref), "error", err.Error())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(h.hurry, func() {
		timer := time.AfterFunc(lastChance, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	})()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		again := h.attempt(ctx, s)
		switch {
		case again == nil:
			h.log.Info("a turn's outcome was committed after all", "turn", string(t.ref))
			return nil
		case ctx.Err() != nil:
			return err // which says more than that there is no time
		case hopeless(again):
			return again
		}
		err = again
	}
}

// hopeless tells whether the ledger will never take a settlement.
func hopeless(err error) bool {
	for _, e := range []error{ledger.ErrConflict, ledger.ErrInvalid, ledger.ErrTooLarge, ledger.ErrNotFound, ledger.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// attempt commits a settlement, if need be with less than all: the outcome counts for more than the
// session's values or its own replay.
func (h *Handler) attempt(ctx context.Context, s *ledger.Settlement) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	for {
		_, err := h.store.Settle(ctx, *s)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ledger.ErrConflict) && s.Session != nil: // the session is another's by now
			s.Session = nil
		case errors.Is(err, ledger.ErrTooLarge) && s.Session != nil:
			h.log.Error("a session's values are too large to be kept", "turn", string(s.Turn), "error", err.Error())
			s.Session = nil
		case errors.Is(err, ledger.ErrTooLarge) && s.Key != "" && !s.Recording.Oversized:
			s.Recording.Oversized, s.Recording.Size, s.Recording.Lines = true, int64(len(s.Recording.Lines)), nil
		default:
			return err
		}
	}
}

// conclude writes the turn's last lines and what is to be committed of it. Called with the log's lock and
// t.mu held, once.
func (t *turn) conclude(o *runtime.Outcome) (s ledger.Settlement, outcome wire.Outcome) {
	out := &t.out
	out.owed = 0
	status, reason := t.verdict(o)
	bill := out.measured.settle(t.reserved, time.Since(t.began))
	if !out.called { // nothing can have been used
		bill.charged, bill.fidelity = wire.Usage{}, wire.FidelityUnavailable
	}
	if status == wire.StatusCompleted {
		switch {
		case bill.fault != "":
			status, reason = wire.StatusFailed, bill.fault
		case bill.over:
			status, reason = wire.StatusFailed, wire.ReasonBudgetExhausted
		case len(out.product) == 0:
			status, reason = wire.StatusFailed, wire.ReasonEventMalformed
		}
	}
	// As long as it can become without escapes, so that it need not grow.
	final := make([]byte, 0, 3*512+len(out.product))
	if status == wire.StatusCompleted {
		var ok bool
		final, ok = out.emit(final, &wire.Event{
			Kind: wire.EventProductCandidate, Content: string(out.product), OutputSchemaRef: t.request.OutputSchemaRef,
		}, behindProduct)
		if !ok {
			status, reason = wire.StatusFailed, wire.ReasonEventOversized
		}
	}
	if bill.valid && !out.measured.empty() {
		final, _ = out.emit(final, &wire.Event{Kind: wire.EventUsage, UsageFidelity: out.measured.fidelity, Usage: bill.usage}, behindUsage)
	}
	final, _ = out.emit(final, &wire.Event{Kind: wire.EventTurnOutcome, Status: status, ReasonCode: reason}, behindOutcome)
	out.final = final
	out.closed = true

	at := wire.DateTimeOf(out.lastAt)
	outcome = wire.Outcome{
		OutcomeRef:     t.names.outcome(),
		TurnRef:        t.ref,
		BindingRef:     t.binding.BindingRef,
		AgentID:        t.binding.AgentID,
		Status:         status,
		ReasonCode:     reason,
		Retryability:   retryability(status, reason, o),
		BudgetReserved: t.reserved,
		BudgetCharged:  bill.charged,
		UsageFidelity:  bill.fidelity,
		SelectedAt:     at,
		SelectedBy:     selectedBy,
	}
	if status == wire.StatusCompleted {
		s.Product = t.product(bill.charged, at)
		outcome.ProductRef, outcome.ProductDigest = wire.ProductRef(s.Product.Ref), wire.Digest(s.Product.Digest)
	}
	s.Outcome = outcomeRow(&outcome)
	s.Recording = out.recording(t.h.conf.StreamRetention)
	return s, outcome
}

// empty tells whether no report counts.
func (m *measured) empty() bool {
	u := &m.usage
	return !u.Tokens.Known() && !u.CostMicros.Known() && !u.WallTimeMS.Known() && !u.Steps.Known()
}

// product describes what the turn produced. The document is written in its canonical form, with the
// fields in their order there, since its digest is that of just this text with an empty
// product/digest. Refs and dates have nothing in them that canonical JSON would escape in another way.
func (t *turn) product(used wire.Usage, at wire.DateTime) *ledger.Product {
	content := t.out.product
	q := t.request
	contentDigest := wire.ContentDigest(content)
	doc := make([]byte, 0, 1280+len(t.label)+len(t.ref)+len(q.PassageRef))
	text := func(name, value string) {
		doc = append(append(doc, name...), ':')
		doc = append(ndjson.AppendString(doc, value), ',')
	}
	number := func(name string, n int64) {
		doc = append(append(doc, name...), ':')
		doc = append(strconv.AppendInt(doc, n, 10), ',')
	}
	doc = append(doc, '{')
	text(`"agent/id"`, string(t.binding.AgentID))
	text(`"binding/ref"`, string(t.binding.BindingRef))
	doc = append(doc, `"budget/used":{`...)
	number(`"max_cost_micros"`, used.MaxCostMicros)
	number(`"max_steps"`, used.MaxSteps)
	number(`"max_tokens"`, used.MaxTokens)
	number(`"max_wall_time_ms"`, used.MaxWallTimeMS)
	doc = append(doc[:len(doc)-1], `},"classification":`...)
	doc = append(append(doc, t.label...), ',')
	text(`"committed/at"`, string(at))
	text(`"committed/by"`, string(selectedBy))
	text(`"content/digest"`, string(contentDigest))
	number(`"content/size-bytes"`, int64(len(content)))
	text(`"kind"`, string(q.Kind))
	text(`"output-schema/ref"`, string(q.OutputSchemaRef))
	doc = append(doc, `"parent-product/refs":[`...)
	for i, ref := range q.ParentProductRefs {
		if i > 0 {
			doc = append(doc, ',')
		}
		doc = ndjson.AppendString(doc, string(ref))
	}
	doc = append(doc, `],`...)
	text(`"passage/ref"`, string(q.PassageRef))
	text(`"producer/snapshot"`, string(t.fence.Epoch))
	doc = append(doc, `"product/digest":"`...)
	hole := len(doc)
	doc = append(doc, `",`...)
	text(`"product/ref"`, string(t.names.product()))
	doc = append(doc, `"retained":false,`...)
	text(`"schema"`, string(wire.ProductV1))
	text(`"turn/ref"`, string(t.ref))
	text(`"visibility"`, string(q.Visibility))
	doc[len(doc)-1] = '}'
	digest := wire.ContentDigest(doc)
	doc = slices.Insert(doc, hole, []byte(digest)...)
	return &ledger.Product{
		Ref:           ledger.ProductRef(t.names.product()),
		Digest:        ledger.Digest(digest),
		Document:      doc,
		Content:       content,
		ContentDigest: ledger.Digest(contentDigest),
		Expires:       expiry(time.Now(), t.h.conf.ProductRetention),
	}
}

// outcomeRow is an outcome as the ledger keeps it.
func outcomeRow(o *wire.Outcome) ledger.Outcome {
	return ledger.Outcome{
		Ref:           ledger.OutcomeRef(o.OutcomeRef),
		Status:        ledger.Status(o.Status),
		Reason:        ledger.ReasonCode(o.ReasonCode),
		Retryability:  ledger.Retryability(o.Retryability),
		Charged:       usageRow(o.BudgetCharged),
		Fidelity:      ledger.Fidelity(o.UsageFidelity),
		Product:       ledger.ProductRef(o.ProductRef),
		ProductDigest: ledger.Digest(o.ProductDigest),
		Document:      o.Append(make([]byte, 0, 1024)),
	}
}

// refusal is what is recorded and sent of a request that is declined: one line. Of a known turn it
// continues no sequence: its number is the last one plus 1, and is not consumed.
func (h *Handler) refusal(q *request, g *grant, reason wire.ReasonCode, known bool, lastSeq int64) ledger.Refusal {
	n := namesOf(string(q.turn))
	if known {
		n = namesOf(string(q.turn), string(q.key))
	}
	at := instant(q.at)
	outcome := wire.Outcome{
		OutcomeRef:     n.outcome(),
		TurnRef:        q.turn,
		BindingRef:     q.binding,
		AgentID:        q.agent,
		Status:         wire.StatusRefused,
		ReasonCode:     reason,
		Retryability:   wire.Terminal,
		BudgetReserved: q.BudgetReservation,
		UsageFidelity:  wire.FidelityUnavailable,
		SelectedAt:     at,
		SelectedBy:     selectedBy,
	}
	seq := int64(1)
	if known {
		seq = min(lastSeq+1, maxSeq)
	}
	return ledger.Refusal{
		Request: q.record(g.binding),
		Outcome: outcomeRow(&outcome),
		Recording: ledger.Recording{
			Lines:   outcomeLine(n, q.turn, seq, wire.StatusRefused, reason, at),
			LastSeq: seq,
			Expires: expiry(q.at, h.conf.StreamRetention),
		},
		At: q.at,
	}
}

// maxSeq is the highest seq/no that the contract has.
const maxSeq = 1024

// outcomeLine is the only line of a stream.
func outcomeLine(n names, ref wire.TurnRef, seq int64, status wire.Status, reason wire.ReasonCode, at wire.DateTime) []byte {
	e := wire.Event{
		EventRef: wire.EventRef("event:" + n.id + ":" + strconv.FormatInt(seq, 10)), TurnRef: ref, SeqNo: seq,
		Kind: wire.EventTurnOutcome, Status: status, ReasonCode: reason, At: at,
	}
	return append(e.Append(nil), '\n')
}

// Recover ends what a process that died left open: turns whose end nobody saw become unknown, with
// their full reservation charged, and are never run again; others may run. It is called once, before
// the handler serves. Nothing is run by it, and nothing logged: that is for who has the result.
func (h *Handler) Recover(ctx context.Context) (ledger.Recovery, error) {
	now := time.Now()
	r, err := h.store.Recover(ctx, now, func(t ledger.Turn, p *ledger.Part) (*ledger.Ending, error) {
		n := namesOf(string(t.Ref))
		at := instant(now)
		outcome := wire.Outcome{
			OutcomeRef:     n.outcome(),
			TurnRef:        wire.TurnRef(t.Ref),
			BindingRef:     wire.BindingRef(t.Binding),
			AgentID:        wire.AgentID(t.Agent),
			Status:         wire.StatusUnknown,
			ReasonCode:     wire.ReasonUnknown,
			Retryability:   wire.ReconciliationRequired,
			BudgetReserved: budgetOf(t.Reserved),
			BudgetCharged:  wire.Usage(budgetOf(t.Reserved)),
			UsageFidelity:  wire.FidelityUnavailable,
			SelectedAt:     at,
			SelectedBy:     selectedBy,
		}
		e := &ledger.Ending{Ref: ledger.OutcomeRef(outcome.OutcomeRef), Document: outcome.Append(nil)}
		if p != nil {
			seq := min(t.LastSeq+1, maxSeq)
			e.Recording = ledger.Recording{
				// With a ref that no event has which the host may have seen before.
				Lines:   outcomeLine(namesOf(string(t.Ref), string(p.Key), "recovered"), outcome.TurnRef, seq, outcome.Status, outcome.ReasonCode, at),
				LastSeq: seq,
				Expires: expiry(now, h.conf.StreamRetention),
			}
		}
		return e, nil
	})
	return r, err
}
