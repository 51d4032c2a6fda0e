package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A request is a turn request that was read, with what tells it apart from others.
type request struct {
	*wire.TurnRequest // shares memory with body
	body              string
	at                time.Time // when it came
	deadline          time.Time
	label             []byte // the canonical classification

	// Copies, since they outlive the body.
	turn    wire.TurnRef
	key     ledger.Key
	binding wire.BindingRef
	agent   wire.AgentID

	digest   ledger.Digest // of the whole request
	identity ledger.Digest // of what all requests of a turn agree in
}

// parse reads a body: 400 where it is no turn request, 422 where input/digest is wrong.
func parse(body []byte, now time.Time) (*request, *problem) {
	q := &request{body: unsafe.String(unsafe.SliceData(body), len(body)), at: now}
	var err error
	if q.TurnRequest, err = wire.ParseTurnRequest(body); err != nil {
		return nil, malformed(err, wire.TurnRequestV1, body)
	}
	// Neither of the two errors can be: the request was parsed.
	if q.deadline, err = q.DeadlineAt.Time(); err != nil {
		return nil, problemf(http.StatusBadRequest, "invalid", "The deadline/at is no date and time.")
	}
	buf := canonicals.Get().(*[]byte)
	defer canonicals.Put(buf)
	canonical, err := q.AppendCanonical((*buf)[:0])
	if cap(canonical) <= maxPooledCanonical {
		*buf = canonical
	}
	if err != nil {
		return nil, problemf(http.StatusBadRequest, "invalid", "The request has no canonical form: %s.", err)
	}
	q.digest = ledger.Digest(wire.ContentDigest(canonical))
	parts := q.identify(canonical)
	if wire.ContentDigest(parts) != q.InputDigest {
		return nil, problemf(http.StatusUnprocessableEntity, "input-digest", "The input/digest is not that of the value of input/parts: expected the SHA-256 of its canonical JSON (RFC 8785).")
	}
	own := string(q.TurnRef) + string(q.IdempotencyKey) + string(q.BindingRef) + string(q.AgentID) // none is empty, so it is new
	cut := func(n int) (s string) { s, own = own[:n], own[n:]; return s }
	q.turn = wire.TurnRef(cut(len(q.TurnRef)))
	q.key = ledger.Key(cut(len(q.IdempotencyKey)))
	q.binding = wire.BindingRef(cut(len(q.BindingRef)))
	q.agent = wire.AgentID(cut(len(q.AgentID)))
	return q, nil
}

// canonicals are buffers for the canonical form of requests, up to a size.
var canonicals = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

const maxPooledCanonical = 256 << 10

// identify finds out the request's identity, the digest of its canonical form without the fields in which
// the requests of one turn may differ (external-runtime.md, Settled readings), and without input/parts,
// which input/digest stands for once that is checked. Canonical JSON has no spaces, and the digest is only
// ever compared with others made here. It returns the canonical value of input/parts.
func (q *request) identify(canonical []byte) (parts []byte) {
	var room [4 << 10]byte
	same := room[:0]
	for i := 1; i < len(canonical)-1; {
		value := skipString(canonical, i) + 1 // behind the colon
		end := skipValue(canonical, value)
		switch string(canonical[i+1 : value-2]) {
		case "binding/digest", "idempotency/key", "mode", "observation":
		case "input/parts":
			parts = canonical[value:end]
		case "classification":
			q.label = bytes.Clone(canonical[value:end])
			same = append(same, canonical[i:end+1]...)
		default:
			same = append(same, canonical[i:end+1]...)
		}
		i = end + 1 // behind the comma
	}
	q.identity = ledger.Digest(wire.ContentDigest(same))
	return parts
}

// skipString returns where the string that begins at i ends.
func skipString(doc []byte, i int) int {
	for i++; doc[i] != '"'; i++ {
		if doc[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns where the value at i ends, in canonical JSON.
func skipValue(doc []byte, i int) int {
	for depth := 0; ; {
		switch doc[i] {
		case '"':
			i = skipString(doc, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
		}
		if depth == 0 && (doc[i] == ',' || doc[i] == '}' || doc[i] == ']') {
			return i
		}
	}
}

func (q *request) mode() ledger.Mode {
	if q.Mode == wire.ModeContinue {
		return ledger.Continue
	}
	return ledger.Start
}

// record is the request as the ledger keeps it. b and p may be nil.
func (q *request) record(b *wire.Binding) ledger.Request {
	r := ledger.Request{
		Key:           q.key,
		Digest:        q.digest,
		Mode:          q.mode(),
		Turn:          ledger.TurnRef(q.turn),
		Identity:      q.identity,
		Agent:         ledger.AgentID(q.agent),
		Binding:       ledger.BindingRef(q.binding),
		BindingDigest: ledger.Digest(strings.Clone(string(q.BindingDigest))),
		Reserved:      budgetRow(q.BudgetReservation),
		Deadline:      q.deadline,
	}
	if q.Observation != nil {
		r.Answers = ledger.ObservationRef(strings.Clone(string(q.Observation.RequestRef)))
	}
	if b != nil {
		r.Profile = ledger.ProfileRef(b.ProfileRef)
		r.ProfileGeneration = b.ProfileGeneration
	}
	return r
}

func budgetRow(b wire.Budget) ledger.Budget {
	return ledger.Budget{Tokens: b.MaxTokens, CostMicros: b.MaxCostMicros, WallTimeMS: b.MaxWallTimeMS, Steps: b.MaxSteps}
}

func usageRow(u wire.Usage) ledger.Budget { return budgetRow(wire.Budget(u)) }

func budgetOf(b ledger.Budget) wire.Budget {
	return wire.Budget{MaxTokens: b.Tokens, MaxCostMicros: b.CostMicros, MaxWallTimeMS: b.WallTimeMS, MaxSteps: b.Steps}
}

// A grant is what a request that passed the checks runs under.
type grant struct {
	binding *wire.Binding
	profile *wire.Profile
	adapter adapters.Adapter
	fence   ledger.Fence
	session ledger.Session // as it was seen; its zero value where there is none
}

// A finding is why a request is refused: the reason, and for the log the field in which it fails, what that is
// and what it had to be. Refs, digests, numbers and words of the contract, never content.
type finding struct {
	reason          wire.ReasonCode
	field           string
	found, expected string
}

func found(reason wire.ReasonCode, field string, is, expected any) *finding {
	return &finding{reason, field, fmt.Sprint(is), fmt.Sprint(expected)}
}

// check makes the checks of external-runtime.md, "Order of checks", up to the budget. The finding is the
// first one, nil for none; the grant then holds what was found so far.
func (h *Handler) check(ctx context.Context, q *request) (g grant, f *finding, err error) {
	// 1. The binding.
	ba, err := h.store.Admission(ctx, ledger.Binding, string(q.binding))
	if errors.Is(err, ledger.ErrNotFound) {
		return g, found(wire.ReasonBindingMissing, "binding/ref", q.binding, "one that is admitted"), nil
	}
	if err != nil {
		return g, nil, err
	}
	if g.binding, err = h.admitted.binding(&ba); err != nil {
		return g, nil, err
	}
	b := g.binding
	expires, err := b.ExpiresAt.Time()
	if err != nil {
		return g, nil, err
	}
	switch {
	case !ba.InForce():
		return g, found(wire.ReasonBindingRevoked, "binding/ref", q.binding, "one that was not revoked at "+string(wire.DateTimeOf(ba.WithdrawnAt))), nil
	case !expires.After(q.at):
		return g, found(wire.ReasonBindingExpired, "expires/at", b.ExpiresAt, "after "+string(instant(q.at))), nil
	case q.BindingDigest != b.BindingDigest:
		stale, err := h.store.Superseded(ctx, ledger.Binding, string(q.binding), ledger.Digest(q.BindingDigest))
		if err != nil {
			return g, nil, err
		}
		reason := wire.ReasonBindingMismatch
		if stale {
			reason = wire.ReasonBindingStale
		}
		return g, found(reason, "binding/digest", q.BindingDigest, b.BindingDigest), nil
	case q.agent != b.AgentID:
		return g, found(wire.ReasonBindingMismatch, "agent/id", q.agent, b.AgentID), nil
	}
	if g.adapter = h.adapterOf(b.AgentID); g.adapter == nil {
		return g, found(wire.ReasonBindingMismatch, "agent/id", b.AgentID, "one that an adapter answers for here"), nil
	}

	// 2. The profile.
	pa, err := h.store.Admission(ctx, ledger.Profile, string(b.ProfileRef))
	if errors.Is(err, ledger.ErrNotFound) {
		return g, found(wire.ReasonProfileMismatch, "profile/ref", b.ProfileRef, "one that is admitted"), nil
	}
	if err != nil {
		return g, nil, err
	}
	if g.profile, err = h.admitted.profile(&pa); err != nil {
		return g, nil, err
	}
	switch {
	case g.profile.ProfileGeneration != b.ProfileGeneration:
		return g, found(wire.ReasonProfileMismatch, "profile/generation", b.ProfileGeneration, g.profile.ProfileGeneration), nil
	case !pa.InForce():
		return g, found(wire.ReasonProfileDisabled, "profile/ref", b.ProfileRef, "one that was not disabled at "+string(wire.DateTimeOf(pa.WithdrawnAt))), nil
	}

	// 3. Policy.
	if f := permitted(q.TurnRequest, b, g.profile); f != nil {
		return g, f, nil
	}

	// 4. The deadline.
	if !q.deadline.After(q.at) {
		return g, found(wire.ReasonEventTimeout, "deadline/at", q.DeadlineAt, "after "+string(instant(q.at))), nil
	}

	// 5. The session. Whether an observation is outstanding is seen last of it, by who asks.
	g.fence = h.fence(b)
	g.session, err = h.store.Session(ctx, ledger.BindingRef(q.binding))
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return g, nil, err
	}
	if q.Mode == wire.ModeContinue {
		switch {
		case !g.session.Open:
			return g, found(wire.ReasonSessionLost, "binding/ref", q.binding, "one with an open session"), nil
		case g.session.Fence != g.fence:
			return g, differing(g.session.Fence, g.fence), nil
		case !h.awaits(q):
			return g, found(wire.ReasonEventUnauthorized, "observation/request/ref", q.Observation.RequestRef, "one that is outstanding"), nil
		}
	}

	// 6. The budget.
	if f := affordable(q.BudgetReservation, b.BudgetTurnCeiling); f != nil {
		return g, f, nil
	}
	return g, nil, nil
}

// permitted is check 3, policy.
func permitted(q *wire.TurnRequest, b *wire.Binding, p *wire.Profile) *finding {
	denied := func(field string, is, expected any) *finding {
		return found(wire.ReasonPolicyDenied, field, is, expected)
	}
	switch {
	case !slices.Contains(b.PromptPolicyRefs, q.PromptPolicyRef):
		return denied("prompt-policy/ref", q.PromptPolicyRef, b.PromptPolicyRefs)
	case !slices.Contains(b.OutputSchemaRefs, q.OutputSchemaRef):
		return denied("output-schema/ref", q.OutputSchemaRef, b.OutputSchemaRefs)
	case q.Visibility.Over(b.VisibilityCeiling):
		return denied("visibility", q.Visibility, b.VisibilityCeiling+" at most")
	case q.Classification.Over(b.ClassificationCeiling):
		return denied("classification/source_tier", q.Classification.SourceTier, b.ClassificationCeiling+" at most")
	case q.Classification.Quarantined():
		return denied("classification/quarantine", "there", "none")
	case q.PassageNo > b.MaxPassages:
		return denied("passage/no", q.PassageNo, fmt.Sprint(b.MaxPassages, " at most"))
	case p.TransportClass == wire.TransportRemote:
		for i := range q.InputParts {
			class := wire.EgressText
			if q.InputParts[i].Kind == wire.PartArtifact {
				class = wire.EgressArtifact
			}
			if !slices.Contains(p.EgressClasses, class) {
				return denied(fmt.Sprintf("input/parts/%d", i), class, p.EgressClasses)
			}
		}
	}
	return nil
}

// affordable is check 6, the budget.
func affordable(b, ceiling wire.Budget) *finding {
	if b.Within(ceiling) {
		return nil
	}
	for _, axis := range []struct {
		name     string
		is, most int64
	}{
		{"max_tokens", b.MaxTokens, ceiling.MaxTokens},
		{"max_cost_micros", b.MaxCostMicros, ceiling.MaxCostMicros},
		{"max_wall_time_ms", b.MaxWallTimeMS, ceiling.MaxWallTimeMS},
		{"max_steps", b.MaxSteps, ceiling.MaxSteps},
	} {
		if axis.is > axis.most {
			return found(wire.ReasonBudgetExhausted, "budget/reservation/"+axis.name, axis.is, fmt.Sprint(axis.most, " at most"))
		}
	}
	return found(wire.ReasonBudgetExhausted, "budget/reservation", b, ceiling)
}

// differing says in what the session's fence differs from the one that must hold.
func differing(is, must ledger.Fence) *finding {
	for _, part := range []struct {
		field    string
		is, must any
	}{
		{"agent/id", is.Agent, must.Agent},
		{"agent-binding/ref", is.AgentBinding, must.AgentBinding},
		{"binding/digest", is.BindingDigest, must.BindingDigest},
		{"profile/generation", is.ProfileGeneration, must.ProfileGeneration},
		{"adapter-instance/epoch", is.Epoch, must.Epoch},
	} {
		if part.is != part.must {
			return found(wire.ReasonSessionFenceMismatch, part.field, part.is, part.must)
		}
	}
	return found(wire.ReasonSessionFenceMismatch, "session", "", "")
}

// instant is a time as this package writes it, to the microsecond.
func instant(t time.Time) wire.DateTime { return wire.DateTimeOf(t.Truncate(time.Microsecond)) }

func (h *Handler) adapterOf(agent wire.AgentID) adapters.Adapter {
	if a, ok := h.conf.Adapters[string(agent)]; ok {
		return a
	}
	return h.conf.Adapter
}

// fence is what must still hold before a session of this binding continues.
func (h *Handler) fence(b *wire.Binding) ledger.Fence {
	f := ledger.Fence{
		Agent:             ledger.AgentID(b.AgentID),
		AgentBinding:      ledger.AgentBindingRef(b.AgentBindingRef),
		BindingDigest:     ledger.Digest(b.BindingDigest),
		ProfileGeneration: b.ProfileGeneration,
		Epoch:             ledger.Epoch(b.AdapterInstanceEpoch),
	}
	if h.conf.Epoch != "" {
		f.Epoch = ledger.Epoch(h.conf.Epoch)
	}
	return f
}

// adapterTurn is the turn as its adapter sees it.
func (q *request) adapterTurn(deadline time.Time) adapters.Turn {
	b := q.BudgetReservation
	t := adapters.Turn{
		Protocol:       adapters.ExternalRuntime,
		ID:             string(q.turn),
		AgentID:        string(q.agent),
		ConversationID: string(q.PassageRef),
		Deadline:       deadline,
		Budget:         adapters.Budget{Tokens: b.MaxTokens, CostMicros: b.MaxCostMicros, WallTime: b.WallTime(), Steps: b.MaxSteps},
		Raw:            q.body,
	}
	texts := 0
	for i := range q.InputParts {
		if q.InputParts[i].Kind == wire.PartText {
			texts++
		}
	}
	for i := range q.InputParts {
		p := &q.InputParts[i]
		switch {
		case p.Kind == wire.PartArtifact:
			t.Attachments = append(t.Attachments, adapters.Attachment{Ref: string(p.ArtifactRef), Digest: string(p.ArtifactDigest), Size: p.ArtifactSizeBytes})
		case texts == 1:
			t.Message = p.Text
		default:
			t.Messages = append(t.Messages, adapters.Inbound{Text: p.Text})
			if t.Message != "" {
				t.Message += "\n\n"
			}
			t.Message += p.Text
		}
	}
	return t
}
