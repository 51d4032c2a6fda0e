package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// This file is for who writes a [Store]: what a call may hold (Check), and what becomes of the rows
// (the functions whose names begin with After, and the New ones). They are pure; a store brings
// atomicity, order and memory. With one set of rules two stores cannot disagree about a transition.

// Instant is t as a row holds it: in UTC, to the microsecond, without a monotonic clock.
func Instant(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0).Truncate(time.Microsecond)
}

// A checker collects the first thing that is wrong.
type checker struct{ err error }

func (c *checker) fail(base error, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", base, fmt.Sprintf(format, args...))
	}
}

func checkName[T ~string](c *checker, field string, v T, optional bool) {
	switch {
	case v == "" && optional:
	case v == "":
		c.fail(ErrInvalid, "%s is empty", field)
	case len(v) > MaxName:
		c.fail(ErrInvalid, "%s has %d bytes, at most %d are kept", field, len(v), MaxName)
	default:
		ascii := true
		for i := range len(v) {
			if v[i] == 0 {
				c.fail(ErrInvalid, "%s has a NUL", field)
			}
			ascii = ascii && v[i] < utf8.RuneSelf
		}
		if !ascii && !utf8.ValidString(string(v)) {
			c.fail(ErrInvalid, "%s is not UTF-8", field)
		}
	}
}

func checkOneOf[T ~string](c *checker, field string, v T, all []T) {
	if !slices.Contains(all, v) {
		c.fail(ErrInvalid, "%s is %q, want one of %v", field, v, all)
	}
}

func (c *checker) amount(field string, n int64) {
	if n < 0 || n > MaxAmount {
		c.fail(ErrInvalid, "%s is %d, want 0 to 2^53-1", field, n)
	}
}

func (c *checker) budget(field string, b Budget) {
	c.amount(field+".Tokens", b.Tokens)
	c.amount(field+".CostMicros", b.CostMicros)
	c.amount(field+".WallTimeMS", b.WallTimeMS)
	c.amount(field+".Steps", b.Steps)
}

func (c *checker) at(field string, t time.Time) {
	if t.IsZero() {
		c.fail(ErrInvalid, "%s is not set", field)
	}
}

func (c *checker) version(n int64) {
	if n < 1 {
		c.fail(ErrInvalid, "Version is %d, want the one that was seen", n)
	}
}

func (c *checker) size(field string, n, limit int) {
	if limit > 0 && n > limit {
		c.fail(ErrTooLarge, "%s has %d bytes, the limit is %d", field, n, limit)
	}
}

func (c *checker) document(field string, d json.RawMessage, optional bool, l Limits) {
	c.size(field, len(d), l.Documents)
	if c.err == nil && (len(d) > 0 || !optional) && !json.Valid(d) {
		c.fail(ErrInvalid, "%s is not JSON", field)
	}
}

func (c *checker) request(r *Request, mode Mode) {
	if mode == "" {
		checkOneOf(c, "Mode", r.Mode, Modes())
	} else if r.Mode != mode {
		c.fail(ErrInvalid, "Mode is %q, want %q", r.Mode, mode)
	}
	checkName(c, "Key", r.Key, false)
	checkName(c, "Digest", r.Digest, false)
	checkName(c, "Answers", r.Answers, r.Mode == Start)
	if r.Mode == Start && r.Answers != "" {
		c.fail(ErrInvalid, "a start answers %q", r.Answers)
	}
	checkName(c, "Turn", r.Turn, false)
	checkName(c, "Identity", r.Identity, false)
	checkName(c, "Agent", r.Agent, false)
	checkName(c, "Binding", r.Binding, false)
	checkName(c, "BindingDigest", r.BindingDigest, true)
	checkName(c, "Profile", r.Profile, true)
	c.amount("ProfileGeneration", r.ProfileGeneration)
	c.budget("Reserved", r.Reserved)
}

func (c *checker) recording(r *Recording, l Limits) {
	switch {
	case r.Oversized && (r.Lines != nil || r.Size <= 0):
		c.fail(ErrInvalid, "an oversized recording has a size and no lines")
	case !r.Oversized && len(r.Lines) == 0:
		c.fail(ErrInvalid, "a recording has no lines")
	}
	c.amount("Recording.LastSeq", r.LastSeq)
	c.size("Recording.Lines", len(r.Lines), l.Lines)
}

func (c *checker) outcome(o *Outcome, l Limits) {
	checkName(c, "Outcome.Ref", o.Ref, false)
	checkOneOf(c, "Outcome.Status", o.Status, Statuses())
	checkName(c, "Outcome.Reason", o.Reason, false)
	checkOneOf(c, "Outcome.Retryability", o.Retryability, Retryabilities())
	checkOneOf(c, "Outcome.Fidelity", o.Fidelity, Fidelities())
	c.budget("Outcome.Charged", o.Charged)
	checkName(c, "Outcome.Product", o.Product, o.Status != Completed)
	checkName(c, "Outcome.ProductDigest", o.ProductDigest, o.Status != Completed)
	if o.Status != Completed && (o.Product != "" || o.ProductDigest != "") {
		c.fail(ErrInvalid, "a %s turn has a product", o.Status)
	}
	if o.Status == Unknown {
		c.fail(ErrInvalid, "only Recover settles as unknown")
	} else if o.Retryability == ReconciliationRequired {
		c.fail(ErrInvalid, "a %s turn requires no reconciliation", o.Status)
	}
	c.document("Outcome.Document", o.Document, false, l)
}

func (c *checker) session(s *Session, l Limits) {
	checkName(c, "Session.Binding", s.Binding, false)
	if s.Version < 0 {
		c.fail(ErrInvalid, "Session.Version is %d", s.Version)
	}
	checkName(c, "Session.Fence.Agent", s.Fence.Agent, false)
	checkName(c, "Session.Fence.AgentBinding", s.Fence.AgentBinding, false)
	checkName(c, "Session.Fence.BindingDigest", s.Fence.BindingDigest, false)
	c.amount("Session.Fence.ProfileGeneration", s.Fence.ProfileGeneration)
	checkName(c, "Session.Fence.Epoch", s.Fence.Epoch, false)
	c.size("Session.Values", len(s.Values), l.Values)
	if c.err == nil && s.Open && len(s.Values) > 0 && !json.Valid(s.Values) {
		c.fail(ErrInvalid, "Session.Values is not JSON")
	}
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (r *Reservation) Check(l Limits) error {
	var c checker
	c.request(&r.Request, Start)
	c.at("At", r.At)
	if r.Session != nil {
		c.session(r.Session, l)
	}
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (s *Suspension) Check(l Limits) error {
	var c checker
	checkName(&c, "Turn", s.Turn, false)
	c.version(s.Version)
	checkName(&c, "Key", s.Key, false)
	if len(s.Awaiting) == 0 {
		c.fail(ErrInvalid, "nothing is awaited")
	}
	for i, ref := range s.Awaiting {
		checkName(&c, "Awaiting", ref, false)
		if slices.Contains(s.Awaiting[:i], ref) {
			c.fail(ErrInvalid, "Awaiting has %q twice", ref)
		}
	}
	c.recording(&s.Recording, l)
	c.at("At", s.At)
	if s.Session != nil {
		c.session(s.Session, l)
	}
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (r *Continuation) Check(l Limits) error {
	var c checker
	c.request(&r.Request, Continue)
	c.version(r.Version)
	c.at("At", r.At)
	if r.Session != nil {
		c.session(r.Session, l)
	}
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (s *Settlement) Check(l Limits) error {
	var c checker
	checkName(&c, "Turn", s.Turn, false)
	c.version(s.Version)
	c.outcome(&s.Outcome, l)
	if s.Key != "" {
		checkName(&c, "Key", s.Key, false)
		c.recording(&s.Recording, l)
	}
	c.at("At", s.At)
	switch p := s.Product; {
	case (p != nil) != (s.Outcome.Status == Completed):
		c.fail(ErrInvalid, "a completed turn has a product, and no other")
	case p == nil:
	case p.Ref != s.Outcome.Product || p.Digest != s.Outcome.ProductDigest:
		c.fail(ErrInvalid, "the product is not the outcome's")
	default:
		c.document("Product.Document", p.Document, false, l)
		checkName(&c, "Product.ContentDigest", p.ContentDigest, true)
		c.size("Product.Content", len(p.Content), l.Content)
		if len(p.Content) == 0 {
			c.fail(ErrInvalid, "Product.Content is empty")
		}
	}
	if s.Session != nil {
		c.session(s.Session, l)
	}
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (r *Refusal) Check(l Limits) error {
	var c checker
	c.request(&r.Request, "")
	c.outcome(&r.Outcome, l)
	if r.Outcome.Status != Refused {
		c.fail(ErrInvalid, "a refusal's outcome is %s", r.Outcome.Status)
	}
	if r.Outcome.Charged != (Budget{}) {
		c.fail(ErrInvalid, "a refusal charges")
	}
	c.recording(&r.Recording, l)
	c.at("At", r.At)
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (s *Session) Check(at time.Time, l Limits) error {
	var c checker
	c.session(s, l)
	c.at("At", at)
	return c.err
}

// Check returns [ErrInvalid] or [ErrTooLarge] for what no row can hold.
func (a *Admission) Check(at time.Time, l Limits) error {
	var c checker
	checkOneOf(&c, "Kind", a.Kind, Kinds())
	checkName(&c, "Ref", a.Ref, false)
	checkName(&c, "Digest", a.Digest, false)
	checkOneOf(&c, "Source", a.Source, Sources())
	c.amount("Generation", a.Generation)
	if a.Kind == Binding && a.Generation != 0 {
		c.fail(ErrInvalid, "a binding has no generation")
	}
	c.document("Document", a.Document, false, l)
	c.at("At", at)
	return c.err
}

// Check returns [ErrInvalid] for what no row can hold.
func (r *ClaimRequest) Check() error {
	var c checker
	checkName(&c, "Agent", r.Agent, false)
	checkName(&c, "Turn", r.Turn, false)
	c.at("At", r.At)
	if !Instant(r.Expires).After(Instant(r.At)) {
		c.fail(ErrInvalid, "the claim expires before it is made")
	}
	return c.err
}

// Defaults returns the query with its limit set, or [ErrInvalid].
func (q TurnQuery) Defaults() (TurnQuery, error) {
	if q.Limit == 0 {
		q.Limit = 100
	}
	var c checker
	if q.Limit < 1 || q.Limit > 1000 {
		c.fail(ErrInvalid, "Limit is %d, want 1 to 1000", q.Limit)
	}
	if q.After < 0 {
		c.fail(ErrInvalid, "After is %d", q.After)
	}
	if q.State != "" {
		checkOneOf(&c, "State", q.State, States())
	}
	if q.Status != "" {
		checkOneOf(&c, "Status", q.Status, Statuses())
	}
	return q, c.err
}

// Selects tells whether a turn is one that the query asks for, wherever its page begins.
func (q *TurnQuery) Selects(t *Turn) bool {
	return (q.State == "" || q.State == t.State) &&
		(q.Status == "" || t.Outcome != nil && t.Outcome.Status == q.Status) &&
		(q.Agent == "" || q.Agent == t.Agent) &&
		(q.Binding == "" || q.Binding == t.Binding)
}

// Mismatch says in what a request differs from the known one, wrapping [ErrMismatch].
func Mismatch(r *Request, key bool) error {
	if key {
		return fmt.Errorf("%w: idempotency key %q", ErrMismatch, r.Key)
	}
	return fmt.Errorf("%w: turn %q", ErrMismatch, r.Turn)
}

// Judge is the verdict about a request whose key is known, as part of turn.
func Judge(r *Request, turn Turn, part Part) (Verdict, error) {
	if part.Digest != r.Digest || part.Turn != r.Turn {
		return Verdict{}, Mismatch(r, true)
	}
	v := Verdict{Decision: Ended, Turn: turn, Part: part}
	if part.Running() {
		v.Decision = Running
	}
	return v, nil
}

// NewTurn is the turn and the part that a reservation makes where its key and its turn are unknown.
func NewTurn(r *Reservation) (Turn, Part) {
	t, p := newTurn(&r.Request, Instant(r.At))
	if r.Dispatch {
		t.State = Dispatched
		t.DispatchedAt = t.ReservedAt
	}
	return t, p
}

func newTurn(r *Request, at time.Time) (Turn, Part) {
	return Turn{
		Ref:               r.Turn,
		Identity:          r.Identity,
		Agent:             r.Agent,
		Binding:           r.Binding,
		BindingDigest:     r.BindingDigest,
		Profile:           r.Profile,
		ProfileGeneration: r.ProfileGeneration,
		State:             Reserved,
		Version:           1,
		Reserved:          r.Reserved,
		Deadline:          Instant(r.Deadline),
		ReservedAt:        at,
		UpdatedAt:         at,
	}, newPart(r, at)
}

func newPart(r *Request, at time.Time) Part {
	return Part{
		Key:       r.Key,
		Turn:      r.Turn,
		Digest:    r.Digest,
		Mode:      r.Mode,
		Answers:   r.Answers,
		StartedAt: at,
		Keeping:   KeptNot,
	}
}

// NewRefusedTurn is the turn and the part that a refusal makes where its key and its turn are unknown.
func NewRefusedTurn(r *Refusal) (Turn, Part) {
	at := Instant(r.At)
	t, p := newTurn(&r.Request, at)
	t.State = Settled
	t.LastSeq = r.Recording.LastSeq
	o := r.Outcome
	o.At = at
	t.Outcome = &o
	p.end(&r.Recording, &o, at)
	return t, p
}

// NewRefusedPart is the part that a refusal makes where its key is unknown and its turn is t, which
// stays as it is. It returns [ErrMismatch] where the request is none of that turn's.
func NewRefusedPart(r *Refusal, t *Turn) (Part, error) {
	if r.Mode == Start || r.Identity != t.Identity {
		return Part{}, Mismatch(&r.Request, false)
	}
	at := Instant(r.At)
	p := newPart(&r.Request, at)
	p.end(&r.Recording, &r.Outcome, at)
	return p, nil
}

func (p *Part) end(r *Recording, o *Outcome, at time.Time) {
	p.EndedAt = at
	p.LastSeq = r.LastSeq
	if o != nil {
		p.Status, p.Reason = o.Status, o.Reason
	}
	p.Lines, p.Size, p.Keeping = r.Lines, int64(len(r.Lines)), Kept
	switch {
	case r.Oversized:
		p.Lines, p.Size, p.Keeping = nil, r.Size, Oversized
	case len(r.Lines) == 0:
		p.Lines, p.Keeping = nil, KeptNot
	}
	if p.Keeping == Kept {
		p.Expires = Instant(r.Expires)
	}
}

// change checks that a turn is as its changer saw it, and is the beginning of every change.
func (t *Turn) change(version int64, at time.Time, states ...State) error {
	if !slices.Contains(states, t.State) {
		return fmt.Errorf("%w: turn %q is %s", ErrConflict, t.Ref, t.State)
	}
	if t.Version != version {
		return fmt.Errorf("%w: turn %q is at version %d, not %d", ErrConflict, t.Ref, t.Version, version)
	}
	t.Version++
	t.UpdatedAt = Instant(at)
	return nil
}

// AfterDispatch is the turn once its adapter is about to be called, or [ErrConflict].
func (t Turn) AfterDispatch(version int64, at time.Time) (Turn, error) {
	if err := t.change(version, at, Reserved); err != nil {
		return Turn{}, err
	}
	t.State = Dispatched
	t.DispatchedAt = t.UpdatedAt
	return t, nil
}

// MayRelease returns [ErrConflict] for a turn that is not reserved, or has another version.
func (t Turn) MayRelease(version int64) error { return t.change(version, t.UpdatedAt, Reserved) }

// ended checks what a stream said when it paused or ended, against what is known.
func (t *Turn) ended(running *Part, key Key, lastSeq int64) error {
	switch {
	case running == nil && key != "":
		return fmt.Errorf("%w: no request of turn %q runs, not %q", ErrConflict, t.Ref, key)
	case running != nil && running.Key != key:
		return fmt.Errorf("%w: the request of turn %q that runs is not %q", ErrConflict, t.Ref, key)
	case lastSeq < t.LastSeq && (lastSeq != 0 || running != nil):
		return fmt.Errorf("%w: Recording.LastSeq is %d, and %d is committed", ErrInvalid, lastSeq, t.LastSeq)
	}
	t.LastSeq = max(t.LastSeq, lastSeq)
	return nil
}

// AfterSuspend is the turn, and the part of it that runs, once it awaits observations.
func (t Turn) AfterSuspend(running *Part, s *Suspension) (Turn, Part, error) {
	if err := t.change(s.Version, s.At, Dispatched); err != nil {
		return Turn{}, Part{}, err
	}
	if err := t.ended(running, s.Key, s.Recording.LastSeq); err != nil {
		return Turn{}, Part{}, err
	}
	t.State = Suspended
	t.Awaiting = slices.Clone(s.Awaiting)
	p := *running
	p.end(&s.Recording, nil, t.UpdatedAt)
	return t, p, nil
}

// AfterContinue is the turn and its new part once it goes on with an answer.
func (t Turn) AfterContinue(c *Continuation) (Turn, Part, error) {
	if c.Identity != t.Identity {
		return Turn{}, Part{}, Mismatch(&c.Request, false)
	}
	if err := t.change(c.Version, c.At, Suspended); err != nil {
		return Turn{}, Part{}, err
	}
	i := slices.Index(t.Awaiting, c.Answers)
	if i < 0 {
		return Turn{}, Part{}, fmt.Errorf("%w: turn %q does not await %q", ErrConflict, t.Ref, c.Answers)
	}
	t.State = Dispatched
	t.Awaiting = slices.Delete(slices.Clone(t.Awaiting), i, i+1)
	if len(t.Awaiting) == 0 {
		t.Awaiting = nil
	}
	return t, newPart(&c.Request, t.UpdatedAt), nil
}

// AfterSettle is the turn, the part of it that runs (nil for none) and its product (nil for none) once
// it has ended.
func (t Turn) AfterSettle(running *Part, s *Settlement) (Turn, *Part, *Product, error) {
	from := t.State
	if err := t.change(s.Version, s.At, Reserved, Dispatched, Suspended); err != nil {
		return Turn{}, nil, nil, err
	}
	if from == Reserved && (s.Outcome.Charged != (Budget{}) || s.Outcome.Status == Completed) {
		return Turn{}, nil, nil, fmt.Errorf("%w: turn %q was never dispatched, and is neither charged nor completed", ErrInvalid, t.Ref)
	}
	if err := t.ended(running, s.Key, s.Recording.LastSeq); err != nil {
		return Turn{}, nil, nil, err
	}
	t.State = Settled
	t.Awaiting = nil
	o := s.Outcome
	o.At = t.UpdatedAt
	t.Outcome = &o
	var part *Part
	if running != nil {
		p := *running
		p.end(&s.Recording, &o, t.UpdatedAt)
		part = &p
	}
	var product *Product
	if s.Product != nil {
		p := *s.Product
		p.Turn, p.At, p.Expires = t.Ref, t.UpdatedAt, Instant(p.Expires)
		p.Size, p.Keeping = int64(len(p.Content)), Kept
		product = &p
	}
	return t, part, product, nil
}

// AfterLoss is an open turn that was dispatched, and the part of it that ran (nil for none), once it is
// known that nobody saw its end. The ending may be nil; it is checked.
func (t Turn) AfterLoss(running *Part, e *Ending, at time.Time, l Limits) (Turn, *Part, error) {
	if err := t.change(t.Version, at, Dispatched, Suspended); err != nil {
		return Turn{}, nil, err
	}
	o := Outcome{
		Status:       Unknown,
		Reason:       "unknown",
		Retryability: ReconciliationRequired,
		Charged:      t.Reserved,
		Fidelity:     Unavailable,
		At:           t.UpdatedAt,
	}
	var rec Recording
	if e != nil {
		var c checker
		checkName(&c, "Ending.Ref", e.Ref, true)
		c.document("Ending.Document", e.Document, true, l)
		if running != nil && (e.Recording.Lines != nil || e.Recording.Oversized) {
			c.recording(&e.Recording, l)
		}
		c.amount("Ending.Recording.LastSeq", e.Recording.LastSeq)
		if c.err != nil {
			return Turn{}, nil, c.err
		}
		o.Ref, o.Document = e.Ref, e.Document
		rec = e.Recording
	}
	t.State = Settled
	t.Awaiting = nil
	t.Outcome = &o
	t.LastSeq = max(t.LastSeq, rec.LastSeq)
	if running == nil {
		return t, nil, nil
	}
	p := *running
	p.end(&rec, &o, t.UpdatedAt)
	return t, &p, nil
}

// NextSession is a binding's session after a change, where prev is the known one or nil. It returns
// [ErrConflict] for another version, and [ErrNotFound] for closing what is not there.
func NextSession(prev *Session, s Session, at time.Time) (Session, error) {
	at = Instant(at)
	var known Session
	if prev != nil {
		known = *prev
	}
	if known.Version != s.Version {
		return Session{}, fmt.Errorf("%w: the session of %q is at version %d, not %d", ErrConflict, s.Binding, known.Version, s.Version)
	}
	if prev == nil && !s.Open {
		return Session{}, fmt.Errorf("%w: session of %q", ErrNotFound, s.Binding)
	}
	next := Session{
		Binding:   s.Binding,
		Version:   s.Version + 1,
		Fence:     s.Fence,
		Open:      s.Open,
		OpenedAt:  known.OpenedAt,
		UpdatedAt: at,
	}
	switch {
	case s.Open:
		if !known.Open || known.Fence != s.Fence {
			next.OpenedAt = at
		}
		if len(s.Values) > 0 {
			next.Values = s.Values
		}
	case known.Open:
		next.ClosedAt = at
	default:
		next.ClosedAt = known.ClosedAt
	}
	return next, nil
}

// NextAdmission is what is admitted after a document was offered, where prev is what is known of its
// ref or nil, and superseded tells whether its digest is remembered as replaced. With [Unchanged],
// [StillWithdrawn] and [Stale] it is prev. Where the digest changes, prev's is to be remembered.
func NextAdmission(prev *Admission, superseded bool, a Admission, at time.Time) (Admission, Change) {
	next := Admission{
		Kind:       a.Kind,
		Ref:        a.Ref,
		Generation: a.Generation,
		Digest:     a.Digest,
		Document:   a.Document,
		Source:     a.Source,
		Version:    1,
		AdmittedAt: Instant(at),
	}
	if prev == nil {
		return next, Admitted
	}
	next.Version = prev.Version + 1
	switch {
	case !prev.InForce() && a.Source != Operator:
		return *prev, StillWithdrawn
	case !prev.InForce():
		return next, Restored
	case prev.Digest == a.Digest:
		return *prev, Unchanged
	case a.Source != Operator && (superseded || a.Generation < prev.Generation):
		return *prev, Stale
	default:
		return next, Replaced
	}
}

// AfterWithdrawal is an admission once it is withdrawn; one that is already stays as it is.
func (a Admission) AfterWithdrawal(at time.Time) Admission {
	if a.InForce() {
		a.Version++
		a.WithdrawnAt = Instant(at)
	}
	return a
}

// AfterClaim is what becomes of a claim, nil for none, that is asked for: where the decision is
// [Fresh] it is a new one, otherwise the known one. A claim that has expired counts as forgotten.
func AfterClaim(known *Claim, r *ClaimRequest) Claimed {
	at := Instant(r.At)
	if known != nil && known.Expires.After(at) {
		switch {
		case known.State == ClaimRunning:
			return Claimed{Running, *known}
		case !r.Again:
			return Claimed{Ended, *known}
		}
	}
	return Claimed{Fresh, Claim{Agent: r.Agent, Turn: r.Turn, State: ClaimRunning, At: at, Expires: Instant(r.Expires)}}
}

// AfterEnd is a claim once its turn ended; one that does not run stays as it is.
func (c Claim) AfterEnd(state ClaimState, at time.Time) Claim {
	if c.State == ClaimRunning {
		c.State, c.EndedAt = state, Instant(at)
	}
	return c
}
