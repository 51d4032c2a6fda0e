package external

import (
	"bytes"
	"encoding/json"
	"slices"
)

// The tables of the documents, in the order of the contract. A table is a variable, so that it is built
// once.

// Lists of refs.
var (
	upTo8Refs  = words("an array of at most 8 elements without equal elements")
	upTo16Refs = words("an array of at most 16 elements without equal elements")
	some16Refs = words("an array of 1 to 16 elements without equal elements")
)

// Integers.
var (
	positive    = interval{1, maxSafe}
	notNegative = interval{0, maxSafe}
	someSteps   = interval{1, 1<<32 - 1}
	anySteps    = interval{0, 1<<32 - 1}
	upTo256     = interval{1, 256}
	upTo1024    = interval{1, 1024}
	upToMiB     = interval{1, 1 << 20}
	upToAnHour  = interval{1, 3_600_000}
)

// ParseTurnRequest reads a turn request. The error is an [*Error].
//
// Strings of the request share memory with body, which must not be changed as long as any of them is in
// use; one that is kept keeps the whole body alive, so clone what is kept. It may be called from
// several goroutines, as may all functions of this package.
func ParseTurnRequest(body []byte) (*TurnRequest, error) {
	r := &TurnRequest{body: body}
	if err := document(body, func(d *decoder) bool { return d.turnRequest(r) }); err != nil {
		err.Document = TurnRequestV1
		return nil, err
	}
	return r, nil
}

var requestFields = []field[TurnRequest]{
	{"schema", theString(TurnRequestV1), false, func(d *decoder, r *TurnRequest) bool { return constant(d, &r.Schema, TurnRequestV1) }},
	{"turn/ref", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.TurnRef) }},
	{"mode", oneOf[Mode], false, func(d *decoder, r *TurnRequest) bool { return code(d, &r.Mode) }},
	{"binding/ref", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.BindingRef) }},
	{"binding/digest", aDigest, false, func(d *decoder, r *TurnRequest) bool { return d.digest(&r.BindingDigest) }},
	{"agent/id", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.AgentID) }},
	{"passage/ref", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.PassageRef) }},
	{"passage/no", upTo256.words, false, func(d *decoder, r *TurnRequest) bool { return d.integer(&r.PassageNo, upTo256) }},
	{"kind", oneOf[Kind], false, func(d *decoder, r *TurnRequest) bool { return code(d, &r.Kind) }},
	{"parent-product/refs", upTo8Refs, false, func(d *decoder, r *TurnRequest) bool {
		return set(d, &r.ParentProductRefs, 0, 8, upTo8Refs, ref[ProductRef])
	}},
	{"input/parts", someParts, false, func(d *decoder, r *TurnRequest) bool {
		at := d.i
		ok := list(d, &r.InputParts, 1, 32, someParts, (*decoder).inputPart)
		r.input = d.doc[at:d.i]
		return ok
	}},
	{"input/digest", aDigest, false, func(d *decoder, r *TurnRequest) bool { return d.digest(&r.InputDigest) }},
	{"instruction/hash", aDigest, false, func(d *decoder, r *TurnRequest) bool { return d.digest(&r.InstructionHash) }},
	{"prompt-policy/ref", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.PromptPolicyRef) }},
	{"output-schema/ref", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.OutputSchemaRef) }},
	{"visibility", oneOf[Visibility], false, func(d *decoder, r *TurnRequest) bool { return code(d, &r.Visibility) }},
	{"classification", anObject, false, func(d *decoder, r *TurnRequest) bool { return d.classification(&r.Classification) }},
	{"budget/reservation", anObject, false, func(d *decoder, r *TurnRequest) bool { return d.budget(&r.BudgetReservation) }},
	{"observation", anObject, true, func(d *decoder, r *TurnRequest) bool {
		r.Observation = new(Observation)
		_, ok := object(d, r.Observation, observationFields)
		return ok
	}},
	{"idempotency/key", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.IdempotencyKey) }},
	{"deadline/at", aDateTime, false, func(d *decoder, r *TurnRequest) bool { return d.dateTime(&r.DeadlineAt) }},
	{"admitted/at", aDateTime, false, func(d *decoder, r *TurnRequest) bool { return d.dateTime(&r.AdmittedAt) }},
	{"admitted/by", aRef, false, func(d *decoder, r *TurnRequest) bool { return ref(d, &r.AdmittedBy) }},
}

var requestObservation = fields(requestFields, "observation")

func (d *decoder) turnRequest(r *TurnRequest) bool {
	at := d.i
	seen, ok := object(d, r, requestFields)
	if !ok {
		return false
	}
	if r.Mode == ModeContinue {
		return only(d, at, requestFields, seen, requestObservation, ^fieldSet(0))
	}
	return only(d, at, requestFields, seen, 0, ^requestObservation)
}

var (
	someParts = words("an array of 1 to 32 elements")
	partText  = words("a string of 1 to 65536 characters")
)

var partFields = []field[InputPart]{
	{"kind", oneOf[PartKind], false, func(d *decoder, p *InputPart) bool { return code(d, &p.Kind) }},
	{"text", partText, true, func(d *decoder, p *InputPart) bool { return d.bounded(&p.Text, 65536, partText) }},
	{"artifact/ref", aRef, true, func(d *decoder, p *InputPart) bool { return ref(d, &p.ArtifactRef) }},
	{"artifact/digest", aDigest, true, func(d *decoder, p *InputPart) bool { return d.digest(&p.ArtifactDigest) }},
	{"artifact/size-bytes", upToMiB.words, true, func(d *decoder, p *InputPart) bool { return d.integer(&p.ArtifactSizeBytes, upToMiB) }},
}

var (
	textPart     = fields(partFields, "kind", "text")
	artifactPart = fields(partFields, "kind", "artifact/ref", "artifact/digest", "artifact/size-bytes")
)

func (d *decoder) inputPart(p *InputPart) bool {
	at := d.i
	seen, ok := object(d, p, partFields)
	if !ok {
		return false
	}
	if p.Kind == PartText {
		return only(d, at, partFields, seen, textPart, 0)
	}
	return only(d, at, partFields, seen, artifactPart, 0)
}

var observationFields = []field[Observation]{
	{"request/ref", aRef, false, func(d *decoder, o *Observation) bool { return ref(d, &o.RequestRef) }},
	{"disposition", oneOf[Disposition], false, func(d *decoder, o *Observation) bool { return code(d, &o.Disposition) }},
	{"reason/code", oneOf[ReasonCode], false, func(d *decoder, o *Observation) bool { return code(d, &o.ReasonCode) }},
	{"receipt/ref", aRef, true, func(d *decoder, o *Observation) bool { return ref(d, &o.ReceiptRef) }},
	{"evidence/refs", upTo16Refs, false, func(d *decoder, o *Observation) bool {
		return set(d, &o.EvidenceRefs, 0, 16, upTo16Refs, ref[Ref])
	}},
}

var budgetFields = []field[Budget]{
	{"max_tokens", positive.words, false, func(d *decoder, b *Budget) bool { return d.integer(&b.MaxTokens, positive) }},
	{"max_cost_micros", positive.words, false, func(d *decoder, b *Budget) bool { return d.integer(&b.MaxCostMicros, positive) }},
	{"max_wall_time_ms", positive.words, false, func(d *decoder, b *Budget) bool { return d.integer(&b.MaxWallTimeMS, positive) }},
	{"max_steps", someSteps.words, false, func(d *decoder, b *Budget) bool { return d.integer(&b.MaxSteps, someSteps) }},
}

func (d *decoder) budget(b *Budget) bool {
	_, ok := object(d, b, budgetFields)
	return ok
}

var usageFields = []field[Usage]{
	{"max_tokens", notNegative.words, false, func(d *decoder, u *Usage) bool { return d.integer(&u.MaxTokens, notNegative) }},
	{"max_cost_micros", notNegative.words, false, func(d *decoder, u *Usage) bool { return d.integer(&u.MaxCostMicros, notNegative) }},
	{"max_wall_time_ms", notNegative.words, false, func(d *decoder, u *Usage) bool { return d.integer(&u.MaxWallTimeMS, notNegative) }},
	{"max_steps", anySteps.words, false, func(d *decoder, u *Usage) bool { return d.integer(&u.MaxSteps, anySteps) }},
}

func (d *decoder) usage(u *Usage) bool {
	_, ok := object(d, u, usageFields)
	return ok
}

// ParseProfile reads a profile. The error is an [*Error]. Nothing of doc is kept.
func ParseProfile(doc []byte) (*Profile, error) {
	p := new(Profile)
	if err := document(bytes.Clone(doc), func(d *decoder) bool { _, ok := object(d, p, profileFields); return ok }); err != nil {
		err.Document = ProfileV1
		return nil, err
	}
	return p, nil
}

var egressClasses = words("an array of at most 4 elements without equal elements")

var profileFields = []field[Profile]{
	{"schema", theString(ProfileV1), false, func(d *decoder, p *Profile) bool { return constant(d, &p.Schema, ProfileV1) }},
	{"profile/ref", aRef, false, func(d *decoder, p *Profile) bool { return ref(d, &p.ProfileRef) }},
	{"profile/generation", positive.words, false, func(d *decoder, p *Profile) bool { return d.integer(&p.ProfileGeneration, positive) }},
	{"driver/variant", aRef, false, func(d *decoder, p *Profile) bool { return ref(d, &p.DriverVariant) }},
	{"driver/version", aRef, false, func(d *decoder, p *Profile) bool { return ref(d, &p.DriverVersion) }},
	{"transport/class", oneOf[TransportClass], false, func(d *decoder, p *Profile) bool { return code(d, &p.TransportClass) }},
	{"auth/class", oneOf[AuthClass], false, func(d *decoder, p *Profile) bool { return code(d, &p.AuthClass) }},
	{"principal/snapshot-ref", aRef, true, func(d *decoder, p *Profile) bool { return ref(d, &p.PrincipalSnapshotRef) }},
	{"session/scope", theString(ScopeAgentRuntimeBinding), false, func(d *decoder, p *Profile) bool { return constant(d, &p.SessionScope, ScopeAgentRuntimeBinding) }},
	{"session/persistence", oneOf[SessionPersistence], false, func(d *decoder, p *Profile) bool { return code(d, &p.SessionPersistence) }},
	{"retention/class", oneOf[RetentionClass], false, func(d *decoder, p *Profile) bool { return code(d, &p.RetentionClass) }},
	{"egress/classes", egressClasses, false, func(d *decoder, p *Profile) bool {
		return set(d, &p.EgressClasses, 0, 4, egressClasses, code[EgressClass])
	}},
	{"tool/mode", oneOf[ToolMode], false, func(d *decoder, p *Profile) bool { return code(d, &p.ToolMode) }},
	{"usage/fidelity", oneOf[Fidelity], false, func(d *decoder, p *Profile) bool { return code(d, &p.UsageFidelity) }},
	{"event/ordering", theString(StrictSequence), false, func(d *decoder, p *Profile) bool { return constant(d, &p.EventOrdering, StrictSequence) }},
	{"supports", anObject, false, func(d *decoder, p *Profile) bool {
		_, ok := object(d, &p.Supports, supportsFields)
		return ok
	}},
	{"limits", anObject, false, func(d *decoder, p *Profile) bool {
		_, ok := object(d, &p.Limits, limitsFields)
		return ok
	}},
	{"created/at", aDateTime, false, func(d *decoder, p *Profile) bool { return d.dateTime(&p.CreatedAt) }},
	{"created/by", aRef, false, func(d *decoder, p *Profile) bool { return ref(d, &p.CreatedBy) }},
}

var supportsFields = []field[Supports]{
	{"exact-resume", aBoolean, false, func(d *decoder, s *Supports) bool { return d.boolean(&s.ExactResume) }},
	{"request-idempotency", aBoolean, false, func(d *decoder, s *Supports) bool { return d.boolean(&s.RequestIdempotency) }},
	{"cancellation", aBoolean, false, func(d *decoder, s *Supports) bool { return d.boolean(&s.Cancellation) }},
	{"inspection", aBoolean, false, func(d *decoder, s *Supports) bool { return d.boolean(&s.Inspection) }},
	{"session-close", aBoolean, false, func(d *decoder, s *Supports) bool { return d.boolean(&s.SessionClose) }},
}

var limitsFields = []field[Limits]{
	{"max-events", upTo1024.words, false, func(d *decoder, l *Limits) bool { return d.integer(&l.MaxEvents, upTo1024) }},
	{"max-event-bytes", upToMiB.words, false, func(d *decoder, l *Limits) bool { return d.integer(&l.MaxEventBytes, upToMiB) }},
	{"max-product-bytes", upToMiB.words, false, func(d *decoder, l *Limits) bool { return d.integer(&l.MaxProductBytes, upToMiB) }},
	{"turn-timeout-ms", upToAnHour.words, false, func(d *decoder, l *Limits) bool { return d.integer(&l.TurnTimeoutMS, upToAnHour) }},
}

// ParseBinding reads a binding. The error is an [*Error]. Nothing of doc is kept. Whether the digest
// verifies is for the caller to see: [DigestWithout].
func ParseBinding(doc []byte) (*Binding, error) {
	b := new(Binding)
	if err := document(bytes.Clone(doc), func(d *decoder) bool { _, ok := object(d, b, bindingFields); return ok }); err != nil {
		err.Document = BindingV1
		return nil, err
	}
	return b, nil
}

var bindingFields = []field[Binding]{
	{"schema", theString(BindingV1), false, func(d *decoder, b *Binding) bool { return constant(d, &b.Schema, BindingV1) }},
	{"binding/ref", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.BindingRef) }},
	{"binding/digest", aDigest, false, func(d *decoder, b *Binding) bool { return d.digest(&b.BindingDigest) }},
	{"agent/id", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.AgentID) }},
	{"agent-binding/ref", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.AgentBindingRef) }},
	{"profile/ref", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.ProfileRef) }},
	{"profile/generation", positive.words, false, func(d *decoder, b *Binding) bool { return d.integer(&b.ProfileGeneration, positive) }},
	{"adapter-instance/epoch", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.AdapterInstanceEpoch) }},
	{"max/passages", upTo256.words, false, func(d *decoder, b *Binding) bool { return d.integer(&b.MaxPassages, upTo256) }},
	{"prompt-policy/refs", some16Refs, false, func(d *decoder, b *Binding) bool {
		return set(d, &b.PromptPolicyRefs, 1, 16, some16Refs, ref[PromptPolicyRef])
	}},
	{"output-schema/refs", some16Refs, false, func(d *decoder, b *Binding) bool {
		return set(d, &b.OutputSchemaRefs, 1, 16, some16Refs, ref[SchemaRef])
	}},
	{"visibility/ceiling", oneOf[Visibility], false, func(d *decoder, b *Binding) bool { return code(d, &b.VisibilityCeiling) }},
	{"classification/ceiling", oneOf[Tier], false, func(d *decoder, b *Binding) bool { return code(d, &b.ClassificationCeiling) }},
	{"budget/turn-ceiling", anObject, false, func(d *decoder, b *Binding) bool { return d.budget(&b.BudgetTurnCeiling) }},
	{"expires/at", aDateTime, false, func(d *decoder, b *Binding) bool { return d.dateTime(&b.ExpiresAt) }},
	{"created/at", aDateTime, false, func(d *decoder, b *Binding) bool { return d.dateTime(&b.CreatedAt) }},
	{"created/by", aRef, false, func(d *decoder, b *Binding) bool { return ref(d, &b.CreatedBy) }},
}

// ParseProduct reads a product. The error is an [*Error]. Nothing of doc is kept. Whether the digest
// verifies is for the caller to see: [DigestWithout].
func ParseProduct(doc []byte) (*Product, error) {
	p := new(Product)
	if err := document(bytes.Clone(doc), func(d *decoder) bool { return d.product(p) }); err != nil {
		err.Document = ProductV1
		return nil, err
	}
	return p, nil
}

var productFields = []field[Product]{
	{"schema", theString(ProductV1), false, func(d *decoder, p *Product) bool { return constant(d, &p.Schema, ProductV1) }},
	{"product/ref", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.ProductRef) }},
	{"product/digest", aDigest, false, func(d *decoder, p *Product) bool { return d.digest(&p.ProductDigest) }},
	{"turn/ref", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.TurnRef) }},
	{"passage/ref", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.PassageRef) }},
	{"binding/ref", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.BindingRef) }},
	{"agent/id", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.AgentID) }},
	{"kind", oneOf[Kind], false, func(d *decoder, p *Product) bool { return code(d, &p.Kind) }},
	{"parent-product/refs", upTo8Refs, false, func(d *decoder, p *Product) bool {
		return set(d, &p.ParentProductRefs, 0, 8, upTo8Refs, ref[ProductRef])
	}},
	{"content/digest", aDigest, false, func(d *decoder, p *Product) bool { return d.digest(&p.ContentDigest) }},
	{"content/size-bytes", upToMiB.words, false, func(d *decoder, p *Product) bool { return d.integer(&p.ContentSizeBytes, upToMiB) }},
	{"artifact/ref", aRef, true, func(d *decoder, p *Product) bool { return ref(d, &p.ArtifactRef) }},
	{"retained", aBoolean, false, func(d *decoder, p *Product) bool { return d.boolean(&p.Retained) }},
	{"output-schema/ref", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.OutputSchemaRef) }},
	{"producer/snapshot", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.ProducerSnapshot) }},
	{"budget/used", anObject, false, func(d *decoder, p *Product) bool { return d.usage(&p.BudgetUsed) }},
	{"visibility", oneOf[Visibility], false, func(d *decoder, p *Product) bool { return code(d, &p.Visibility) }},
	{"classification", anObject, false, func(d *decoder, p *Product) bool { return d.classification(&p.Classification) }},
	{"committed/at", aDateTime, false, func(d *decoder, p *Product) bool { return d.dateTime(&p.CommittedAt) }},
	{"committed/by", aRef, false, func(d *decoder, p *Product) bool { return ref(d, &p.CommittedBy) }},
}

var productArtifact = fields(productFields, "artifact/ref")

func (d *decoder) product(p *Product) bool {
	at := d.i
	seen, ok := object(d, p, productFields)
	if !ok {
		return false
	}
	if p.Retained {
		return only(d, at, productFields, seen, productArtifact, ^fieldSet(0))
	}
	return only(d, at, productFields, seen, 0, ^productArtifact)
}

// ParseOutcome reads a turn outcome. The error is an [*Error]. Nothing of doc is kept.
func ParseOutcome(doc []byte) (*Outcome, error) {
	o := new(Outcome)
	if err := document(bytes.Clone(doc), func(d *decoder) bool { return d.outcome(o) }); err != nil {
		err.Document = TurnOutcomeV1
		return nil, err
	}
	return o, nil
}

var outcomeFields = []field[Outcome]{
	{"schema", theString(TurnOutcomeV1), false, func(d *decoder, o *Outcome) bool { return constant(d, &o.Schema, TurnOutcomeV1) }},
	{"outcome/ref", aRef, false, func(d *decoder, o *Outcome) bool { return ref(d, &o.OutcomeRef) }},
	{"turn/ref", aRef, false, func(d *decoder, o *Outcome) bool { return ref(d, &o.TurnRef) }},
	{"binding/ref", aRef, false, func(d *decoder, o *Outcome) bool { return ref(d, &o.BindingRef) }},
	{"agent/id", aRef, false, func(d *decoder, o *Outcome) bool { return ref(d, &o.AgentID) }},
	{"status", oneOf[Status], false, func(d *decoder, o *Outcome) bool { return code(d, &o.Status) }},
	{"reason/code", oneOf[ReasonCode], false, func(d *decoder, o *Outcome) bool { return code(d, &o.ReasonCode) }},
	{"retryability", oneOf[Retryability], false, func(d *decoder, o *Outcome) bool { return code(d, &o.Retryability) }},
	{"product/ref", aRef, true, func(d *decoder, o *Outcome) bool { return ref(d, &o.ProductRef) }},
	{"product/digest", aDigest, true, func(d *decoder, o *Outcome) bool { return d.digest(&o.ProductDigest) }},
	{"budget/reserved", anObject, false, func(d *decoder, o *Outcome) bool { return d.budget(&o.BudgetReserved) }},
	{"budget/charged", anObject, false, func(d *decoder, o *Outcome) bool { return d.usage(&o.BudgetCharged) }},
	{"usage/fidelity", oneOf[Fidelity], false, func(d *decoder, o *Outcome) bool { return code(d, &o.UsageFidelity) }},
	{"session/checkpoint-ref", aRef, true, func(d *decoder, o *Outcome) bool { return ref(d, &o.SessionCheckpointRef) }},
	{"selected/at", aDateTime, false, func(d *decoder, o *Outcome) bool { return d.dateTime(&o.SelectedAt) }},
	{"selected/by", aRef, false, func(d *decoder, o *Outcome) bool { return ref(d, &o.SelectedBy) }},
}

var outcomeProduct = fields(outcomeFields, "product/ref", "product/digest")

func (d *decoder) outcome(o *Outcome) bool {
	at := d.i
	seen, ok := object(d, o, outcomeFields)
	if !ok {
		return false
	}
	if o.Status == StatusCompleted {
		return only(d, at, outcomeFields, seen, outcomeProduct, ^fieldSet(0))
	}
	if !only(d, at, outcomeFields, seen, 0, ^outcomeProduct) {
		return false
	}
	if o.Status == StatusUnknown {
		if o.Retryability != ReconciliationRequired {
			return d.wrong(d.find(at, "retryability"), theString(ReconciliationRequired))
		}
		if o.ReasonCode != ReasonUnknown {
			return d.wrong(d.find(at, "reason/code"), theString(ReasonUnknown))
		}
	}
	return true
}

// ParseEvent reads one line of a stream, with or without its line end. The error is an [*Error]. Nothing
// of line is kept. What the order of events must be is [Grammar]'s to say.
func ParseEvent(line []byte) (*Event, error) {
	e := new(Event)
	if err := document(bytes.Clone(line), func(d *decoder) bool { return d.event(e) }); err != nil {
		err.Document = EventV1
		return nil, err
	}
	return e, nil
}

var (
	eventContent = words("a string of 1 to 1048576 characters")
	freeObject   = words("an object of 1 to 64 members")
)

var eventFields = []field[Event]{
	{"schema", theString(EventV1), false, func(d *decoder, e *Event) bool { return constant(d, &e.Schema, EventV1) }},
	{"event/ref", aRef, false, func(d *decoder, e *Event) bool { return ref(d, &e.EventRef) }},
	{"turn/ref", aRef, false, func(d *decoder, e *Event) bool { return ref(d, &e.TurnRef) }},
	{"seq/no", upTo1024.words, false, func(d *decoder, e *Event) bool { return d.integer(&e.SeqNo, upTo1024) }},
	{"kind", oneOf[EventKind], false, func(d *decoder, e *Event) bool { return code(d, &e.Kind) }},
	{"progress/code", oneOf[ProgressCode], true, func(d *decoder, e *Event) bool { return code(d, &e.ProgressCode) }},
	{"progress/current", notNegative.words, true, func(d *decoder, e *Event) bool { return d.integer(&e.ProgressCurrent, notNegative) }},
	{"progress/total", positive.words, true, func(d *decoder, e *Event) bool { return d.integer(&e.ProgressTotal, positive) }},
	{"action/schema", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.ActionSchema) }},
	{"action/digest", aDigest, true, func(d *decoder, e *Event) bool { return d.digest(&e.ActionDigest) }},
	{"content", eventContent, true, func(d *decoder, e *Event) bool { return d.bounded(&e.Content, 1<<20, eventContent) }},
	{"output-schema/ref", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.OutputSchemaRef) }},
	{"request/ref", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.RequestRef) }},
	{"tool/ref", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.ToolRef) }},
	{"input/schema-ref", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.InputSchemaRef) }},
	{"input/digest", aDigest, true, func(d *decoder, e *Event) bool { return d.digest(&e.InputDigest) }},
	{"input", freeObject, true, func(d *decoder, e *Event) bool { return d.freeObject(&e.Input) }},
	{"classification", anObject, true, func(d *decoder, e *Event) bool {
		e.Classification = new(Classification)
		return d.classification(e.Classification)
	}},
	{"question/schema-ref", aRef, true, func(d *decoder, e *Event) bool { return ref(d, &e.QuestionSchemaRef) }},
	{"question/digest", aDigest, true, func(d *decoder, e *Event) bool { return d.digest(&e.QuestionDigest) }},
	{"question", freeObject, true, func(d *decoder, e *Event) bool { return d.freeObject(&e.Question) }},
	{"deadline/at", aDateTime, true, func(d *decoder, e *Event) bool { return d.dateTime(&e.DeadlineAt) }},
	{"usage/fidelity", oneOf[Fidelity], true, func(d *decoder, e *Event) bool { return code(d, &e.UsageFidelity) }},
	{"usage", anObject, true, func(d *decoder, e *Event) bool { return d.usage(&e.Usage) }},
	{"status", oneOf[Status], true, func(d *decoder, e *Event) bool { return code(d, &e.Status) }},
	{"reason/code", oneOf[ReasonCode], true, func(d *decoder, e *Event) bool { return code(d, &e.ReasonCode) }},
	{"at", aDateTime, false, func(d *decoder, e *Event) bool { return d.dateTime(&e.At) }},
}

// eventKinds has, for each kind in the order of its values, the fields that an event must have and may
// have.
var eventKinds = func() (kinds [7]struct{ must, may fieldSet }) {
	common := []string{"schema", "event/ref", "turn/ref", "seq/no", "kind", "at"}
	for i, names := range [7][]string{
		{"progress/code", "progress/current"},
		{"action/schema", "action/digest"},
		{"content", "output-schema/ref"},
		{"request/ref", "tool/ref", "input/schema-ref", "input/digest", "input", "classification", "deadline/at"},
		{"request/ref", "question/schema-ref", "question/digest", "question", "deadline/at"},
		{"usage/fidelity", "usage"},
		{"status", "reason/code"},
	} {
		kinds[i].must = fields(eventFields, append(names, common...)...)
	}
	kinds[0].may = fields(eventFields, "progress/total")
	return kinds
}()

func (d *decoder) event(e *Event) bool {
	at := d.i
	seen, ok := object(d, e, eventFields)
	if !ok {
		return false
	}
	kind := eventKinds[slices.Index(eventKindValues, e.Kind)]
	return only(d, at, eventFields, seen, kind.must, kind.may)
}

// freeObject reads an object of 1 to 64 members.
func (d *decoder) freeObject(to *json.RawMessage) bool {
	at := d.i
	if at >= len(d.doc) || d.doc[at] != '{' {
		return d.wrong(at, freeObject)
	}
	value, ok := d.free()
	if !ok {
		return false
	}
	if n := members(value); n < 1 || n > 64 {
		return d.wrong(at, freeObject)
	}
	*to = value
	return true
}
