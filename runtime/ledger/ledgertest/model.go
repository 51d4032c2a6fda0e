package ledgertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/runtime/ledger"
)

// A model is a ledger written down as naively as possible, from docs/ledger.md and not from the rules
// that the stores share. It predicts for each call the error, the decision and the rows.
type model struct {
	turns    map[ledger.TurnRef]*modelTurn
	order    []ledger.TurnRef
	keys     map[ledger.Key]*modelTurn
	session  *ledger.Session
	claims   map[ledger.TurnRef]*ledger.Claim
	admitted *ledger.Admission
	replaced map[ledger.Digest]bool
}

type modelTurn struct {
	row     ledger.Turn
	parts   []*ledger.Part
	product *ledger.Product
}

func newModel() *model {
	return &model{
		turns: map[ledger.TurnRef]*modelTurn{}, keys: map[ledger.Key]*modelTurn{},
		claims: map[ledger.TurnRef]*ledger.Claim{}, replaced: map[ledger.Digest]bool{},
	}
}

func (t *modelTurn) part(key ledger.Key) *ledger.Part {
	for _, p := range t.parts {
		if p.Key == key {
			return p
		}
	}
	return nil
}

func (t *modelTurn) running() *ledger.Part {
	for _, p := range t.parts {
		if p.EndedAt.IsZero() {
			return p
		}
	}
	return nil
}

// known is what every request is asked first.
func (m *model) known(r *ledger.Request) (decision ledger.Decision, err error, ok bool) {
	t := m.keys[r.Key]
	if t == nil {
		return "", nil, false
	}
	p := t.part(r.Key)
	if p.Digest != r.Digest {
		return "", ledger.ErrMismatch, true
	}
	if p.EndedAt.IsZero() {
		return ledger.Running, nil, true
	}
	return ledger.Ended, nil, true
}

// sessionChange applies a change of the session, unless dry.
func (m *model) sessionChange(s *ledger.Session, at time.Time, dry bool) error {
	if s == nil {
		return nil
	}
	seen := int64(0)
	if m.session != nil {
		seen = m.session.Version
	}
	if s.Version != seen {
		return ledger.ErrConflict
	}
	if seen == 0 && !s.Open {
		return ledger.ErrNotFound
	}
	if dry {
		return nil
	}
	next := *s
	next.Version++
	next.UpdatedAt = at
	if s.Open {
		if m.session == nil || !m.session.Open || m.session.Fence != s.Fence {
			next.OpenedAt = at
		} else {
			next.OpenedAt = m.session.OpenedAt
		}
	} else {
		next.Values = nil
		next.OpenedAt = m.session.OpenedAt
		next.ClosedAt = m.session.ClosedAt
		if m.session.Open {
			next.ClosedAt = at
		}
	}
	m.session = &next
	return nil
}

func (m *model) newPart(t *modelTurn, r *ledger.Request, at time.Time) *ledger.Part {
	p := &ledger.Part{Key: r.Key, Turn: r.Turn, Digest: r.Digest, Mode: r.Mode, Answers: r.Answers, StartedAt: at, Keeping: ledger.KeptNot}
	t.parts = append(t.parts, p)
	m.keys[r.Key] = t
	return p
}

func endPart(p *ledger.Part, r ledger.Recording, at time.Time, status ledger.Status, reason ledger.ReasonCode) {
	p.EndedAt, p.Status, p.Reason, p.LastSeq = at, status, reason, r.LastSeq
	switch {
	case r.Oversized:
		p.Size, p.Keeping = r.Size, ledger.Oversized
	case r.Lines != nil:
		p.Lines, p.Size, p.Keeping, p.Expires = r.Lines, int64(len(r.Lines)), ledger.Kept, r.Expires
	}
}

func (m *model) newTurn(r *ledger.Request, at time.Time) *modelTurn {
	t := &modelTurn{row: ledger.Turn{
		Ref: r.Turn, Identity: r.Identity, Agent: r.Agent, Binding: r.Binding, BindingDigest: r.BindingDigest,
		Profile: r.Profile, ProfileGeneration: r.ProfileGeneration, Version: 1, Reserved: r.Reserved, Deadline: r.Deadline,
		ReservedAt: at, UpdatedAt: at, State: ledger.Reserved,
	}}
	m.turns[r.Turn] = t
	m.order = append(m.order, r.Turn)
	return t
}

func (m *model) reserve(r ledger.Reservation) (ledger.Decision, error) {
	if d, err, ok := m.known(&r.Request); ok {
		return d, err
	}
	if m.turns[r.Turn] != nil {
		return "", ledger.ErrMismatch
	}
	if err := m.sessionChange(r.Session, r.At, false); err != nil {
		return "", err
	}
	t := m.newTurn(&r.Request, r.At)
	if r.Dispatch {
		t.row.State, t.row.DispatchedAt = ledger.Dispatched, r.At
	}
	m.newPart(t, &r.Request, r.At)
	return ledger.Fresh, nil
}

// change is the beginning of a change of a turn that names a version.
func (m *model) change(ref ledger.TurnRef, version int64, states ...ledger.State) (*modelTurn, error) {
	t := m.turns[ref]
	if t == nil {
		return nil, ledger.ErrNotFound
	}
	if t.row.Version != version || !slices.Contains(states, t.row.State) {
		return nil, ledger.ErrConflict
	}
	return t, nil
}

func (t *modelTurn) changed(at time.Time) {
	t.row.Version++
	t.row.UpdatedAt = at
}

func (m *model) dispatch(ref ledger.TurnRef, version int64, at time.Time) error {
	t, err := m.change(ref, version, ledger.Reserved)
	if err != nil {
		return err
	}
	t.changed(at)
	t.row.State, t.row.DispatchedAt = ledger.Dispatched, at
	return nil
}

func (m *model) forget(ref ledger.TurnRef) {
	for _, p := range m.turns[ref].parts {
		delete(m.keys, p.Key)
	}
	delete(m.turns, ref)
	m.order = slices.DeleteFunc(m.order, func(r ledger.TurnRef) bool { return r == ref })
}

func (m *model) release(ref ledger.TurnRef, version int64) error {
	if _, err := m.change(ref, version, ledger.Reserved); err != nil {
		return err
	}
	m.forget(ref)
	return nil
}

func (m *model) suspend(s ledger.Suspension) error {
	t, err := m.change(s.Turn, s.Version, ledger.Dispatched)
	if err != nil {
		return err
	}
	p := t.running()
	if p.Key != s.Key {
		return ledger.ErrConflict
	}
	if s.Recording.LastSeq < t.row.LastSeq {
		return ledger.ErrInvalid
	}
	if err := m.sessionChange(s.Session, s.At, false); err != nil {
		return err
	}
	t.changed(s.At)
	t.row.State, t.row.Awaiting, t.row.LastSeq = ledger.Suspended, s.Awaiting, s.Recording.LastSeq
	endPart(p, s.Recording, s.At, "", "")
	return nil
}

func (m *model) proceed(c ledger.Continuation) (ledger.Decision, error) {
	if d, err, ok := m.known(&c.Request); ok {
		return d, err
	}
	if t := m.turns[c.Turn]; t != nil && t.row.Identity != c.Identity {
		return "", ledger.ErrMismatch
	}
	t, err := m.change(c.Turn, c.Version, ledger.Suspended)
	if err != nil {
		return "", err
	}
	if !slices.Contains(t.row.Awaiting, c.Answers) {
		return "", ledger.ErrConflict
	}
	if err := m.sessionChange(c.Session, c.At, false); err != nil {
		return "", err
	}
	t.changed(c.At)
	t.row.State = ledger.Dispatched
	t.row.Awaiting = slices.DeleteFunc(slices.Clone(t.row.Awaiting), func(r ledger.ObservationRef) bool { return r == c.Answers })
	m.newPart(t, &c.Request, c.At)
	return ledger.Fresh, nil
}

func (m *model) settle(s ledger.Settlement) error {
	t, err := m.change(s.Turn, s.Version, ledger.Reserved, ledger.Dispatched, ledger.Suspended)
	if err != nil {
		return err
	}
	if t.row.State == ledger.Reserved && (s.Outcome.Charged != ledger.Budget{} || s.Outcome.Status == ledger.Completed) {
		return ledger.ErrInvalid
	}
	p := t.running()
	switch {
	case p == nil && s.Key != "", p != nil && p.Key != s.Key:
		return ledger.ErrConflict
	case s.Recording.LastSeq < t.row.LastSeq:
		return ledger.ErrInvalid
	}
	for _, other := range m.turns {
		if s.Product != nil && other.product != nil && other.product.Ref == s.Product.Ref {
			return ledger.ErrInvalid
		}
	}
	if err := m.sessionChange(s.Session, s.At, false); err != nil {
		return err
	}
	t.changed(s.At)
	t.row.State, t.row.Awaiting, t.row.LastSeq = ledger.Settled, nil, s.Recording.LastSeq
	o := s.Outcome
	o.At = s.At
	t.row.Outcome = &o
	if p != nil {
		endPart(p, s.Recording, s.At, o.Status, o.Reason)
	}
	if s.Product != nil {
		product := *s.Product
		product.Turn, product.At, product.Keeping, product.Size = s.Turn, s.At, ledger.Kept, int64(len(product.Content))
		t.product = &product
	}
	return nil
}

func (m *model) refuse(r ledger.Refusal) (ledger.Decision, error) {
	if d, err, ok := m.known(&r.Request); ok {
		return d, err
	}
	t := m.turns[r.Turn]
	if t != nil {
		if r.Mode == ledger.Start || t.row.Identity != r.Identity {
			return "", ledger.ErrMismatch
		}
	} else {
		t = m.newTurn(&r.Request, r.At)
		o := r.Outcome
		o.At = r.At
		t.row.State, t.row.Outcome, t.row.LastSeq = ledger.Settled, &o, r.Recording.LastSeq
	}
	endPart(m.newPart(t, &r.Request, r.At), r.Recording, r.At, r.Outcome.Status, r.Outcome.Reason)
	return ledger.Fresh, nil
}

func (m *model) recover(at time.Time) (unknown, released []ledger.TurnRef, lost int) {
	for _, ref := range slices.Clone(m.order) {
		t := m.turns[ref]
		switch t.row.State {
		case ledger.Reserved:
			m.forget(ref)
			released = append(released, ref)
		case ledger.Dispatched, ledger.Suspended:
			if p := t.running(); p != nil {
				endPart(p, ledger.Recording{}, at, ledger.Unknown, "unknown")
			}
			t.changed(at)
			t.row.State, t.row.Awaiting = ledger.Settled, nil
			t.row.Outcome = &ledger.Outcome{Status: ledger.Unknown, Reason: "unknown", Retryability: ledger.ReconciliationRequired, Charged: t.row.Reserved, Fidelity: ledger.Unavailable, At: at}
			unknown = append(unknown, ref)
		}
	}
	for _, c := range m.claims {
		if c.State == ledger.ClaimRunning {
			c.State, c.EndedAt = ledger.ClaimLost, at
			lost++
		}
	}
	return unknown, released, lost
}

func (m *model) sweep(at time.Time) (did ledger.Sweeping) {
	for _, t := range m.turns {
		if p := t.product; p != nil && p.Keeping == ledger.Kept && !p.Expires.After(at) {
			p.Content, p.Keeping = nil, ledger.Swept
			did.Products++
		}
		for _, p := range t.parts {
			if p.Keeping == ledger.Kept && !p.Expires.After(at) {
				p.Lines, p.Keeping = nil, ledger.Swept
				did.Parts++
			}
		}
	}
	for ref, c := range m.claims {
		if !c.Expires.After(at) {
			delete(m.claims, ref)
			did.Claims++
		}
	}
	return did
}

func (m *model) claim(r ledger.ClaimRequest) ledger.Decision {
	if c := m.claims[r.Turn]; c != nil && c.Expires.After(r.At) {
		if c.State == ledger.ClaimRunning {
			return ledger.Running
		}
		if !r.Again {
			return ledger.Ended
		}
	}
	m.claims[r.Turn] = &ledger.Claim{Agent: r.Agent, Turn: r.Turn, State: ledger.ClaimRunning, At: r.At, Expires: r.Expires}
	return ledger.Fresh
}

func (m *model) admit(a ledger.Admission, at time.Time) ledger.Change {
	now := m.admitted
	change := ledger.Replaced
	switch {
	case now == nil:
		change = ledger.Admitted
	case !now.WithdrawnAt.IsZero() && a.Source == ledger.Directory:
		return ledger.StillWithdrawn
	case !now.WithdrawnAt.IsZero():
		change = ledger.Restored
	case now.Digest == a.Digest:
		return ledger.Unchanged
	case a.Source == ledger.Directory && (m.replaced[a.Digest] || a.Generation < now.Generation):
		return ledger.Stale
	}
	a.Version, a.AdmittedAt = 1, at
	if now != nil {
		a.Version = now.Version + 1
		m.replaced[now.Digest] = true
	}
	delete(m.replaced, a.Digest)
	m.admitted = &a
	return change
}

// testModel compares random sequences of calls with the model.
func testModel(t *testing.T, open Open, o Options) {
	s := open(t, ledger.Limits{})
	var sequence atomic.Int64
	for done := 0; done < o.Sequences && !t.Failed(); done += 100 { // rapid's own number of checks
		rapid.Check(t, func(rt *rapid.T) {
			// Names of their own for each sequence: they share a store. What a failed one left open,
			// while rapid looks for a shorter one, is nobody's concern.
			if _, err := s.Recover(t.Context(), clock(0), nil); err != nil {
				rt.Fatal(err)
			}
			if _, err := s.Sweep(t.Context(), clock(1_000_000), 0); err != nil {
				rt.Fatal(err)
			}
			w := &walk{T: t, rt: rt, s: s, m: newModel(), name: fmt.Sprintf("s%d", sequence.Add(1))}
			rt.Repeat(map[string]func(*rapid.T){
				"reserve":  w.reserve,
				"dispatch": w.dispatch,
				"release":  w.release,
				"suspend":  w.suspend,
				"continue": w.proceed,
				"settle":   w.settle,
				"settle2":  w.settle, // twice as often
				"refuse":   w.refuse,
				"session":  w.session,
				"claim":    w.claim,
				"admit":    w.admit,
				"recover":  w.recover,
				"sweep":    w.sweep,
				"":         w.glance,
			})
			w.finish()
		})
	}
}

// A walk is one sequence.
type walk struct {
	*testing.T
	rt   *rapid.T
	s    ledger.Store
	m    *model
	name string
	now  int

	glances int
}

func (w *walk) at() time.Time {
	w.now += rapid.IntRange(0, 3).Draw(w.rt, "seconds")
	return clock(w.now)
}

func pick[T any](rt *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(rt, label)
}

func (w *walk) binding() ledger.BindingRef { return ledger.BindingRef("binding:" + w.name) }

func (w *walk) ref() ledger.TurnRef {
	return ledger.TurnRef(w.name + ":" + pick(w.rt, "turn", "A", "B", "C"))
}

// request is a request about a turn: mostly the same bytes for the same key, mostly of the same turn.
func (w *walk) request(mode ledger.Mode) ledger.Request {
	ref := w.ref()
	r := start("")
	r.Turn, r.Mode, r.Binding = ref, mode, w.binding()
	r.Identity = ledger.Digest("identity:" + ref)
	if rapid.IntRange(0, 9).Draw(w.rt, "other identity") == 0 {
		r.Identity = "identity:other"
	}
	n := pick(w.rt, "key", "1", "1", "1", "2", "3")
	r.Key = ledger.Key(fmt.Sprintf("%s:%s:%s", ref, mode, n))
	r.Digest = ledger.Digest(fmt.Sprintf("digest:%s:%s", r.Key, r.Identity))
	if mode == ledger.Continue {
		r.Answers = ledger.ObservationRef(pick(w.rt, "answers", "r1", "r1", "r2"))
		r.Key += ledger.Key(":" + r.Answers)
	}
	return r
}

func (w *walk) version(ref ledger.TurnRef) int64 {
	v := int64(1)
	if t := w.m.turns[ref]; t != nil {
		v = t.row.Version
	}
	if rapid.IntRange(0, 7).Draw(w.rt, "stale") == 0 {
		v += rapid.Int64Range(1, 2).Draw(w.rt, "off")
	}
	return v
}

func (w *walk) runningKey(ref ledger.TurnRef) ledger.Key {
	if t := w.m.turns[ref]; t != nil {
		if p := t.running(); p != nil {
			if rapid.IntRange(0, 9).Draw(w.rt, "other key") == 0 {
				return p.Key + "!"
			}
			return p.Key
		}
	}
	return ""
}

func (w *walk) recording(ref ledger.TurnRef) ledger.Recording {
	r := ledger.Recording{
		Lines:   []byte(rapid.StringN(1, 20, 40).Draw(w.rt, "lines")),
		Expires: clock(w.now + rapid.IntRange(0, 20).Draw(w.rt, "keep")),
		LastSeq: rapid.Int64Range(0, 2).Draw(w.rt, "events"),
	}
	if t := w.m.turns[ref]; t != nil {
		r.LastSeq += t.row.LastSeq - rapid.Int64Range(0, 1).Draw(w.rt, "back")
	}
	r.LastSeq = max(r.LastSeq, 1)
	if rapid.IntRange(0, 9).Draw(w.rt, "oversized") == 0 {
		r.Lines, r.Oversized, r.Size = nil, true, 1<<40
	}
	return r
}

func (w *walk) maybeSession() *ledger.Session {
	if rapid.IntRange(0, 2).Draw(w.rt, "with session") > 0 {
		return nil
	}
	s := session(0)
	s.Binding = w.binding()
	if w.m.session != nil {
		s.Version = w.m.session.Version
	}
	if rapid.IntRange(0, 5).Draw(w.rt, "stale session") == 0 {
		s.Version++
	}
	s.Fence.Epoch = pick[ledger.Epoch](w.rt, "epoch", "1", "1", "2")
	s.Open = rapid.IntRange(0, 3).Draw(w.rt, "open") > 0
	s.Values = []byte(pick(w.rt, "values", `1`, `{"a":[2]}`, `""`))
	return &s
}

// said compares an error with the one that the model predicts.
func (w *walk) said(call string, got, want error) {
	w.rt.Helper()
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		w.rt.Fatalf("%s: %v, the model says %v", call, got, want)
	}
}

// verdict compares a verdict with the rows of the model.
func (w *walk) verdict(call string, r *ledger.Request, v ledger.Verdict, err error, decision ledger.Decision, want error) {
	w.rt.Helper()
	w.said(call, err, want)
	if want != nil {
		return
	}
	t := w.m.turns[r.Turn]
	w.same(call+": turn", v.Turn, t.row)
	w.same(call+": part", v.Part, *t.part(r.Key))
	if v.Decision != decision {
		w.rt.Fatalf("%s: %s, the model says %s", call, v.Decision, decision)
	}
}

// same compares rows. The model knows no Seq, and no difference between an empty slice and none.
func (w *walk) same(what string, got, want any) {
	w.rt.Helper()
	switch g := got.(type) {
	case ledger.Turn:
		m := want.(ledger.Turn)
		m.Seq = g.Seq
		if len(m.Awaiting) == 0 {
			m.Awaiting = nil
		}
		want = m
	case ledger.Part:
		m := want.(ledger.Part)
		m.Seq = g.Seq
		want = m
	}
	if reflect.DeepEqual(got, want) {
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.rt.Fatalf("%s (-model +store):\n%s", what, diff)
	}
}

func (w *walk) reserve(rt *rapid.T) {
	w.rt = rt
	r := ledger.Reservation{Request: w.request(ledger.Start), Dispatch: rapid.IntRange(0, 3).Draw(rt, "dispatch") > 0, Session: w.maybeSession(), At: w.at()}
	decision, want := w.m.reserve(r)
	v, err := w.s.Reserve(w.Context(), r)
	w.verdict("Reserve", &r.Request, v, err, decision, want)
}

func (w *walk) dispatch(rt *rapid.T) {
	w.rt = rt
	ref := w.ref()
	version, at := w.version(ref), w.at()
	want := w.m.dispatch(ref, version, at)
	got, err := w.s.Dispatch(w.Context(), ref, version, at)
	w.said("Dispatch", err, want)
	if err == nil {
		w.same("Dispatch", got, w.m.turns[ref].row)
	}
}

func (w *walk) release(rt *rapid.T) {
	w.rt = rt
	ref := w.ref()
	version := w.version(ref)
	want := w.m.release(ref, version)
	w.said("Release", w.s.Release(w.Context(), ref, version), want)
}

func (w *walk) suspend(rt *rapid.T) {
	w.rt = rt
	ref := w.ref()
	key := w.runningKey(ref)
	if key == "" {
		key = "key:none"
	}
	awaiting := pick(rt, "awaiting", []ledger.ObservationRef{"r1"}, []ledger.ObservationRef{"r1", "r2"}, []ledger.ObservationRef{"r2"})
	s := ledger.Suspension{Turn: ref, Version: w.version(ref), Key: key, Awaiting: awaiting, Recording: w.recording(ref), Session: w.maybeSession(), At: w.at()}
	want := w.m.suspend(s)
	got, err := w.s.Suspend(w.Context(), s)
	w.said("Suspend", err, want)
	if err == nil {
		w.same("Suspend", got, w.m.turns[ref].row)
	}
}

func (w *walk) proceed(rt *rapid.T) {
	w.rt = rt
	r := w.request(ledger.Continue)
	c := ledger.Continuation{Request: r, Version: w.version(r.Turn), Session: w.maybeSession(), At: w.at()}
	decision, want := w.m.proceed(c)
	v, err := w.s.Continue(w.Context(), c)
	w.verdict("Continue", &c.Request, v, err, decision, want)
}

func (w *walk) settle(rt *rapid.T) {
	w.rt = rt
	ref := w.ref()
	key := w.runningKey(ref)
	name := string(ref)
	s := ledger.Settlement{Turn: ref, Version: w.version(ref), Key: key, Recording: w.recording(ref), Session: w.maybeSession(), At: w.at()}
	s.Outcome = outcome(name, pick(rt, "status", ledger.Completed, ledger.Completed, ledger.Failed, ledger.Cancelled, ledger.Refused), "reason")
	if rapid.Bool().Draw(rt, "free") {
		s.Outcome.Charged = ledger.Budget{}
	}
	if s.Outcome.Status == ledger.Completed {
		s.Product = product(name)
		if rapid.IntRange(0, 9).Draw(rt, "shared product") == 0 {
			s.Product.Ref = ledger.ProductRef("product:" + w.name)
			s.Outcome.Product = s.Product.Ref
		}
		s.Product.Expires = clock(w.now + rapid.IntRange(0, 20).Draw(rt, "keep product"))
	}
	want := w.m.settle(s)
	got, err := w.s.Settle(w.Context(), s)
	w.said("Settle", err, want)
	if err == nil {
		w.same("Settle", got, w.m.turns[ref].row)
	}
}

func (w *walk) refuse(rt *rapid.T) {
	w.rt = rt
	req := w.request(pick(rt, "mode", ledger.Modes()...))
	r := ledger.Refusal{Request: req, Outcome: outcome(string(req.Key), ledger.Refused, "policy-denied"), Recording: w.recording(req.Turn), At: w.at()}
	decision, want := w.m.refuse(r)
	v, err := w.s.Refuse(w.Context(), r)
	w.verdict("Refuse", &r.Request, v, err, decision, want)
}

func (w *walk) session(rt *rapid.T) {
	w.rt = rt
	s := w.maybeSession()
	if s == nil {
		return
	}
	at := w.at()
	want := w.m.sessionChange(s, at, false)
	got, err := w.s.PutSession(w.Context(), *s, at)
	w.said("PutSession", err, want)
	if err == nil {
		w.same("PutSession", got, *w.m.session)
	}
}

func (w *walk) claim(rt *rapid.T) {
	w.rt = rt
	agent, turn := ledger.AgentID(w.name), w.ref()
	switch pick(rt, "what", "claim", "claim", "end", "forget") {
	case "claim":
		at := w.at()
		r := ledger.ClaimRequest{Agent: agent, Turn: turn, Again: rapid.Bool().Draw(rt, "again"), At: at, Expires: at.Add(time.Duration(rapid.IntRange(1, 15).Draw(rt, "expires")) * time.Second)}
		decision := w.m.claim(r)
		got, err := w.s.Claim(w.Context(), r)
		w.said("Claim", err, nil)
		w.same("Claim", got, ledger.Claimed{Decision: decision, Claim: *w.m.claims[turn]})
	case "end":
		at := w.at()
		var want error
		switch c := w.m.claims[turn]; {
		case c == nil:
			want = ledger.ErrNotFound
		case c.State == ledger.ClaimRunning:
			c.State, c.EndedAt = ledger.ClaimEnded, at
		}
		w.said("EndClaim", w.s.EndClaim(w.Context(), agent, turn, at), want)
	case "forget":
		delete(w.m.claims, turn)
		w.said("Unclaim", w.s.Unclaim(w.Context(), agent, turn), nil)
	}
}

func (w *walk) admit(rt *rapid.T) {
	w.rt = rt
	at := w.at()
	if rapid.IntRange(0, 3).Draw(rt, "withdraw") == 0 {
		got, err := w.s.Withdraw(w.Context(), ledger.Profile, w.name, at)
		if w.m.admitted == nil {
			w.said("Withdraw", err, ledger.ErrNotFound)
			return
		}
		w.said("Withdraw", err, nil)
		if w.m.admitted.WithdrawnAt.IsZero() {
			w.m.admitted.Version++
			w.m.admitted.WithdrawnAt = at
		}
		w.same("Withdraw", got, *w.m.admitted)
		return
	}
	n := rapid.Int64Range(1, 4).Draw(rt, "generation")
	a := admission(ledger.Profile, w.name, n, ledger.Digest(fmt.Sprintf("%d:%s", n, pick(rt, "edition", "a", "b"))), pick(rt, "source", ledger.Sources()...))
	want := w.m.admit(a, at)
	got, change, err := w.s.Admit(w.Context(), a, at)
	w.said("Admit", err, nil)
	w.same("Admit", got, *w.m.admitted)
	if change != want {
		w.rt.Fatalf("Admit: %s, the model says %s", change, want)
	}
}

func (w *walk) recover(rt *rapid.T) {
	w.rt = rt
	if rapid.IntRange(0, 3).Draw(rt, "rarely") > 0 {
		return
	}
	w.recoverAt(w.at())
}

func (w *walk) recoverAt(at time.Time) {
	unknown, released, lost := w.m.recover(at)
	did, err := w.s.Recover(w.Context(), at, nil)
	w.said("Recover", err, nil)
	var got []ledger.TurnRef
	for _, t := range did.Unknown {
		got = append(got, t.Ref)
		w.same("recovered", t, w.m.turns[t.Ref].row)
	}
	w.same("unknown", got, unknown)
	w.same("released", did.Released, released)
	w.same("lost", did.Lost, lost)
}

func (w *walk) sweep(rt *rapid.T) {
	w.rt = rt
	w.sweepAt(w.at())
}

func (w *walk) sweepAt(at time.Time) {
	want := w.m.sweep(at)
	got, err := w.s.Sweep(w.Context(), at, 0)
	w.said("Sweep", err, nil)
	w.same("Sweep", got, want)
}

// glance looks at one turn after each call, whichever the call was about.
func (w *walk) glance(rt *rapid.T) {
	w.rt = rt
	w.glances++
	w.compareTurn("ABC"[w.glances%3])
}

func (w *walk) compareTurn(letter byte) {
	ctx := w.Context()
	ref := ledger.TurnRef(w.name + ":" + string(letter))
	got, err := w.s.Turn(ctx, ref)
	t := w.m.turns[ref]
	parts, perr := w.s.Parts(ctx, ref)
	w.said("Parts", perr, nil)
	if t == nil {
		w.said("Turn", err, ledger.ErrNotFound)
		w.same("parts of nothing", parts, []ledger.Part(nil))
		return
	}
	w.said("Turn", err, nil)
	w.same("turn", got, t.row)
	w.same("number of parts", len(parts), len(t.parts))
	for i, p := range t.parts {
		w.same("part", parts[i], *p)
	}
	if t.product != nil {
		product, err := w.s.Product(ctx, t.product.Ref)
		w.said("Product", err, nil)
		w.same("product", product, *t.product)
	}
}

// compare looks at everything.
func (w *walk) compare() {
	ctx := w.Context()
	for _, letter := range []byte("ABC") {
		w.compareTurn(letter)
	}
	got, err := w.s.Session(ctx, w.binding())
	if w.m.session == nil {
		w.said("Session", err, ledger.ErrNotFound)
	} else {
		w.said("Session", err, nil)
		w.same("session", got, *w.m.session)
	}
	a, err := w.s.Admission(ctx, ledger.Profile, w.name)
	if w.m.admitted == nil {
		w.said("Admission", err, ledger.ErrNotFound)
	} else {
		w.said("Admission", err, nil)
		w.same("admission", a, *w.m.admitted)
	}
	for n := range 8 {
		d := ledger.Digest(fmt.Sprintf("%d:%c", n/2+1, 'a'+n%2))
		replaced, err := w.s.Superseded(ctx, ledger.Profile, w.name, d)
		w.said("Superseded", err, nil)
		w.same("superseded "+string(d), replaced, w.m.replaced[d])
	}
	page, err := w.s.ListTurns(ctx, ledger.TurnQuery{Binding: w.binding()})
	w.said("ListTurns", err, nil)
	var refs []ledger.TurnRef
	for _, t := range page.Turns {
		refs = append(refs, t.Ref)
	}
	w.same("list", refs, w.m.order)
}

// finish looks at everything, and leaves nothing that the next sequence would come across.
func (w *walk) finish() {
	w.compare()
	w.recoverAt(clock(w.now))
	w.sweepAt(clock(w.now + 100_000))
	w.compare()
}
