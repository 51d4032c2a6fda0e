package ledger

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"
)

// MemoryConfig tunes a [Memory]. The zero value is ready to use. A negative number means no limit.
type MemoryConfig struct {
	Limits Limits
	// MaxTurns is how many settled turns are kept; default 100,000. The turn that was settled first
	// is forgotten first, with its requests: the same request would run again.
	MaxTurns int
	// MaxBytes bounds what settled turns take, roughly, in bytes; default 256 MiB. The turn that was
	// settled last is kept in any case.
	MaxBytes int64
}

// Memory is a [Store] in the memory of one process, which forgets all with it, and the oldest turns
// before: see [MemoryConfig]. Make one with [NewMemory].
type Memory struct {
	conf MemoryConfig

	mu      sync.Mutex
	closed  bool
	turns   map[TurnRef]*memTurn
	parts   map[Key]*memPart
	product map[ProductRef]*memTurn
	order   sequence[*memTurn]
	settled sequence[*memTurn] // in the order in which they were settled
	bytes   int64              // of settled turns
	partSeq int64

	sessions   map[BindingRef]Session
	admissions map[admissionKey]Admission
	superseded map[admissionKey]map[Digest]Superseded

	claims map[claimKey]*memClaim
	taken  sequence[*memClaim] // in the order in which they were claimed
}

var _ Store = (*Memory)(nil)

type (
	memTurn struct {
		turn    Turn
		parts   []*memPart
		product *Product
		bytes   int64
		at      int64 // its place in settled
	}
	memPart struct {
		part Part
		of   *memTurn
	}
	memClaim struct {
		claim Claim
		at    int64 // its place in taken
	}
	admissionKey struct {
		kind Kind
		ref  string
	}
	claimKey struct {
		agent AgentID
		turn  TurnRef
	}
)

// A sequence is an ordered list from which anything may be taken: places are numbered from 1 and are
// never used again.
type sequence[T any] struct {
	items []placed[T]
	last  int64
	live  int
}

type placed[T any] struct {
	at   int64
	item T
	gone bool
}

func (s *sequence[T]) add(item T) int64 {
	s.last++
	s.live++
	s.items = append(s.items, placed[T]{at: s.last, item: item})
	return s.last
}

// search is the index of the first item at or behind a place.
func (s *sequence[T]) search(at int64) int {
	return sort.Search(len(s.items), func(i int) bool { return s.items[i].at >= at })
}

func (s *sequence[T]) remove(at int64) {
	i := s.search(at)
	if i == len(s.items) || s.items[i].at != at || s.items[i].gone {
		return
	}
	s.items[i] = placed[T]{at: at, gone: true}
	s.live--
	for len(s.items) > 0 && s.items[0].gone {
		s.items = s.items[1:]
	}
	if s.live < len(s.items)/2 {
		// A new slice, since the old one may be walked while its items are taken out.
		kept := make([]placed[T], 0, s.live)
		for _, p := range s.items {
			if !p.gone {
				kept = append(kept, p)
			}
		}
		s.items = kept
	}
}

// all walks the items behind a place.
func (s *sequence[T]) all(after int64) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, p := range s.items[s.search(after+1):] {
			if !p.gone && !yield(p.item) {
				return
			}
		}
	}
}

// backward walks the items before a place, from the last; 0 means from the end.
func (s *sequence[T]) backward(before int64) iter.Seq[T] {
	end := len(s.items)
	if before > 0 {
		end = s.search(before)
	}
	return func(yield func(T) bool) {
		for _, p := range slices.Backward(s.items[:end]) {
			if !p.gone && !yield(p.item) {
				return
			}
		}
	}
}

// NewMemory returns an empty store.
func NewMemory(conf MemoryConfig) *Memory {
	conf.Limits = conf.Limits.WithDefaults()
	if conf.MaxTurns == 0 {
		conf.MaxTurns = 100_000
	}
	if conf.MaxBytes == 0 {
		conf.MaxBytes = 256 << 20
	}
	return &Memory{
		conf:       conf,
		turns:      map[TurnRef]*memTurn{},
		parts:      map[Key]*memPart{},
		product:    map[ProductRef]*memTurn{},
		sessions:   map[BindingRef]Session{},
		admissions: map[admissionKey]Admission{},
		superseded: map[admissionKey]map[Digest]Superseded{},
		claims:     map[claimKey]*memClaim{},
	}
}

// begin takes the lock, unless the store is closed or the context is over.
func (m *Memory) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// What leaves the store, and what enters it, is a copy as far as it could be changed.

func copyTurn(t Turn) Turn {
	t.Awaiting = slices.Clone(t.Awaiting)
	if t.Outcome != nil {
		o := *t.Outcome
		o.Document = bytes.Clone(o.Document)
		t.Outcome = &o
	}
	return t
}

func copyPart(p Part) Part {
	p.Lines = bytes.Clone(p.Lines)
	return p
}

func copyProduct(p Product) Product {
	p.Document = bytes.Clone(p.Document)
	p.Content = bytes.Clone(p.Content)
	return p
}

func copySession(s Session) Session {
	s.Values = bytes.Clone(s.Values)
	return s
}

func copyAdmission(a Admission) Admission {
	a.Document = bytes.Clone(a.Document)
	return a
}

func (p *memPart) row() Part { return copyPart(p.part) }

// running is the part of a turn whose stream is being made.
func (t *memTurn) running() *memPart {
	for _, p := range slices.Backward(t.parts) {
		if p.part.Running() {
			return p
		}
	}
	return nil
}

// judge is the verdict about a request whose key is known; false where it is not.
func (m *Memory) judge(r *Request) (Verdict, error, bool) {
	p := m.parts[r.Key]
	if p == nil {
		return Verdict{}, nil, false
	}
	v, err := Judge(r, copyTurn(p.of.turn), p.row())
	return v, err, true
}

// nextSession is what a session becomes; ok tells whether there is a change of it.
func (m *Memory) nextSession(s *Session, at time.Time) (next Session, ok bool, err error) {
	if s == nil {
		return Session{}, false, nil
	}
	var prev *Session
	if known, ok := m.sessions[s.Binding]; ok {
		prev = &known
	}
	next, err = NextSession(prev, *s, at)
	return copySession(next), err == nil, err
}

func (m *Memory) putSession(s Session, ok bool) {
	if ok {
		m.sessions[s.Binding] = s
	}
}

// addTurn records a turn that is not known, with its first part.
func (m *Memory) addTurn(t Turn, p Part) (Turn, Part) {
	e := &memTurn{}
	t.Seq = m.order.add(e)
	e.turn = copyTurn(t)
	m.turns[t.Ref] = e
	p = m.addPart(e, p)
	m.change(e, t)
	return copyTurn(t), p
}

func (m *Memory) addPart(e *memTurn, p Part) Part {
	m.partSeq++
	p.Seq = m.partSeq
	mp := &memPart{part: copyPart(p), of: e}
	e.parts = append(e.parts, mp)
	m.parts[p.Key] = mp
	return copyPart(p)
}

// change gives a turn its new row, and forgets others where that makes the settled ones too many.
func (m *Memory) change(e *memTurn, t Turn) {
	e.turn = copyTurn(t)
	if t.State == Settled && e.at == 0 {
		e.at = m.settled.add(e)
	}
	m.measure(e)
	for e := range m.settled.all(0) {
		over := m.conf.MaxTurns >= 0 && m.settled.live > m.conf.MaxTurns || m.conf.MaxBytes >= 0 && m.bytes > m.conf.MaxBytes
		if !over || m.settled.live == 1 {
			break
		}
		m.forget(e)
	}
}

// measure counts what a settled turn takes.
func (m *Memory) measure(e *memTurn) {
	if e.at == 0 {
		return
	}
	n := int64(1<<10 + len(e.turn.Outcome.Document))
	for _, p := range e.parts {
		n += int64(512 + len(p.part.Lines))
	}
	if e.product != nil {
		n += int64(512 + len(e.product.Document) + len(e.product.Content))
	}
	m.bytes += n - e.bytes
	e.bytes = n
}

func (m *Memory) forget(e *memTurn) {
	delete(m.turns, e.turn.Ref)
	for _, p := range e.parts {
		delete(m.parts, p.part.Key)
	}
	if e.product != nil {
		delete(m.product, e.product.Ref)
	}
	m.order.remove(e.turn.Seq)
	m.settled.remove(e.at)
	m.bytes -= e.bytes
}

// Reserve implements [Turns].
func (m *Memory) Reserve(ctx context.Context, r Reservation) (Verdict, error) {
	if err := r.Check(m.conf.Limits); err != nil {
		return Verdict{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Verdict{}, err
	}
	defer m.mu.Unlock()
	if v, err, known := m.judge(&r.Request); known {
		return v, err
	}
	if m.turns[r.Turn] != nil {
		return Verdict{}, Mismatch(&r.Request, false)
	}
	session, changed, err := m.nextSession(r.Session, r.At)
	if err != nil {
		return Verdict{}, err
	}
	t, p := m.addTurn(NewTurn(&r))
	m.putSession(session, changed)
	return Verdict{Fresh, t, p}, nil
}

func (m *Memory) turn(ref TurnRef) (*memTurn, error) {
	e := m.turns[ref]
	if e == nil {
		return nil, notFound("turn", ref)
	}
	return e, nil
}

func notFound[T ~string](what string, name T) error {
	return fmt.Errorf("%w: %s %q", ErrNotFound, what, name)
}

// Dispatch implements [Turns].
func (m *Memory) Dispatch(ctx context.Context, turn TurnRef, version int64, at time.Time) (Turn, error) {
	if at.IsZero() {
		return Turn{}, fmt.Errorf("%w: At is not set", ErrInvalid)
	}
	if err := m.begin(ctx); err != nil {
		return Turn{}, err
	}
	defer m.mu.Unlock()
	e, err := m.turn(turn)
	if err != nil {
		return Turn{}, err
	}
	t, err := e.turn.AfterDispatch(version, at)
	if err != nil {
		return Turn{}, err
	}
	m.change(e, t)
	return copyTurn(t), nil
}

// Release implements [Turns].
func (m *Memory) Release(ctx context.Context, turn TurnRef, version int64) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	e, err := m.turn(turn)
	if err != nil {
		return err
	}
	if err := e.turn.MayRelease(version); err != nil {
		return err
	}
	m.forget(e)
	return nil
}

// Suspend implements [Turns].
func (m *Memory) Suspend(ctx context.Context, s Suspension) (Turn, error) {
	if err := s.Check(m.conf.Limits); err != nil {
		return Turn{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Turn{}, err
	}
	defer m.mu.Unlock()
	e, err := m.turn(s.Turn)
	if err != nil {
		return Turn{}, err
	}
	running := e.running()
	t, p, err := e.turn.AfterSuspend(running.orNil(), &s)
	if err != nil {
		return Turn{}, err
	}
	session, changed, err := m.nextSession(s.Session, s.At)
	if err != nil {
		return Turn{}, err
	}
	running.part = copyPart(p)
	m.change(e, t)
	m.putSession(session, changed)
	return copyTurn(t), nil
}

func (p *memPart) orNil() *Part {
	if p == nil {
		return nil
	}
	return &p.part
}

// Continue implements [Turns].
func (m *Memory) Continue(ctx context.Context, c Continuation) (Verdict, error) {
	if err := c.Check(m.conf.Limits); err != nil {
		return Verdict{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Verdict{}, err
	}
	defer m.mu.Unlock()
	if v, err, known := m.judge(&c.Request); known {
		return v, err
	}
	e, err := m.turn(c.Turn)
	if err != nil {
		return Verdict{}, err
	}
	t, p, err := e.turn.AfterContinue(&c)
	if err != nil {
		return Verdict{}, err
	}
	session, changed, err := m.nextSession(c.Session, c.At)
	if err != nil {
		return Verdict{}, err
	}
	p = m.addPart(e, p)
	m.change(e, t)
	m.putSession(session, changed)
	return Verdict{Fresh, copyTurn(t), p}, nil
}

// Settle implements [Turns].
func (m *Memory) Settle(ctx context.Context, s Settlement) (Turn, error) {
	if err := s.Check(m.conf.Limits); err != nil {
		return Turn{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Turn{}, err
	}
	defer m.mu.Unlock()
	e, err := m.turn(s.Turn)
	if err != nil {
		return Turn{}, err
	}
	running := e.running()
	t, p, product, err := e.turn.AfterSettle(running.orNil(), &s)
	if err != nil {
		return Turn{}, err
	}
	if product != nil && m.product[product.Ref] != nil {
		return Turn{}, fmt.Errorf("%w: product %q is another turn's", ErrInvalid, product.Ref)
	}
	session, changed, err := m.nextSession(s.Session, s.At)
	if err != nil {
		return Turn{}, err
	}
	if p != nil {
		running.part = copyPart(*p)
	}
	if product != nil {
		kept := copyProduct(*product)
		e.product = &kept
		m.product[kept.Ref] = e
	}
	m.change(e, t)
	m.putSession(session, changed)
	return copyTurn(t), nil
}

// Refuse implements [Turns].
func (m *Memory) Refuse(ctx context.Context, r Refusal) (Verdict, error) {
	if err := r.Check(m.conf.Limits); err != nil {
		return Verdict{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Verdict{}, err
	}
	defer m.mu.Unlock()
	if v, err, known := m.judge(&r.Request); known {
		return v, err
	}
	e := m.turns[r.Turn]
	if e == nil {
		t, p := m.addTurn(NewRefusedTurn(&r))
		return Verdict{Fresh, t, p}, nil
	}
	p, err := NewRefusedPart(&r, &e.turn)
	if err != nil {
		return Verdict{}, err
	}
	p = m.addPart(e, p)
	t := copyTurn(e.turn)
	m.change(e, e.turn) // it takes more room
	return Verdict{Fresh, t, p}, nil
}

// PutSession implements [Sessions].
func (m *Memory) PutSession(ctx context.Context, s Session, at time.Time) (Session, error) {
	if err := s.Check(at, m.conf.Limits); err != nil {
		return Session{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Session{}, err
	}
	defer m.mu.Unlock()
	next, changed, err := m.nextSession(&s, at)
	if err != nil {
		return Session{}, err
	}
	m.putSession(next, changed)
	return copySession(next), nil
}

// Admit implements [Admissions].
func (m *Memory) Admit(ctx context.Context, a Admission, at time.Time) (Admission, Change, error) {
	if err := a.Check(at, m.conf.Limits); err != nil {
		return Admission{}, "", err
	}
	if err := m.begin(ctx); err != nil {
		return Admission{}, "", err
	}
	defer m.mu.Unlock()
	k := admissionKey{a.Kind, a.Ref}
	var prev *Admission
	if known, ok := m.admissions[k]; ok {
		prev = &known
	}
	_, superseded := m.superseded[k][a.Digest]
	next, change := NextAdmission(prev, superseded, copyAdmission(a), at)
	if prev != nil && prev.Digest != next.Digest {
		if m.superseded[k] == nil {
			m.superseded[k] = map[Digest]Superseded{}
		}
		m.superseded[k][prev.Digest] = Superseded{Kind: a.Kind, Ref: a.Ref, Generation: prev.Generation, Digest: prev.Digest, At: Instant(at)}
		delete(m.superseded[k], next.Digest)
	}
	m.admissions[k] = next
	return copyAdmission(next), change, nil
}

// Withdraw implements [Admissions].
func (m *Memory) Withdraw(ctx context.Context, kind Kind, ref string, at time.Time) (Admission, error) {
	if at.IsZero() {
		return Admission{}, fmt.Errorf("%w: At is not set", ErrInvalid)
	}
	if err := m.begin(ctx); err != nil {
		return Admission{}, err
	}
	defer m.mu.Unlock()
	k := admissionKey{kind, ref}
	a, ok := m.admissions[k]
	if !ok {
		return Admission{}, notFound(string(kind), ref)
	}
	a = a.AfterWithdrawal(at)
	m.admissions[k] = a
	return copyAdmission(a), nil
}

// Claim implements [Claims].
func (m *Memory) Claim(ctx context.Context, r ClaimRequest) (Claimed, error) {
	if err := r.Check(); err != nil {
		return Claimed{}, err
	}
	if err := m.begin(ctx); err != nil {
		return Claimed{}, err
	}
	defer m.mu.Unlock()
	k := claimKey{r.Agent, r.Turn}
	known := m.claims[k]
	var was *Claim
	if known != nil {
		was = &known.claim
	}
	c := AfterClaim(was, &r)
	if c.Decision != Fresh {
		return c, nil
	}
	if known == nil && m.conf.Limits.Claims >= 0 && len(m.claims) >= m.conf.Limits.Claims {
		if !m.makeRoom() {
			return Claimed{}, ErrFull
		}
	}
	if known != nil {
		m.unclaim(k)
	}
	mc := &memClaim{claim: c.Claim}
	mc.at = m.taken.add(mc)
	m.claims[k] = mc
	return c, nil
}

// makeRoom forgets the oldest claim that does not run.
func (m *Memory) makeRoom() bool {
	for c := range m.taken.all(0) {
		if c.claim.State != ClaimRunning {
			m.unclaim(claimKey{c.claim.Agent, c.claim.Turn})
			return true
		}
	}
	return false
}

func (m *Memory) unclaim(k claimKey) {
	if c := m.claims[k]; c != nil {
		m.taken.remove(c.at)
		delete(m.claims, k)
	}
}

// EndClaim implements [Claims].
func (m *Memory) EndClaim(ctx context.Context, agent AgentID, turn TurnRef, at time.Time) error {
	if at.IsZero() {
		return fmt.Errorf("%w: At is not set", ErrInvalid)
	}
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c := m.claims[claimKey{agent, turn}]
	if c == nil {
		return notFound("claim", turn)
	}
	c.claim = c.claim.AfterEnd(ClaimEnded, at)
	return nil
}

// Unclaim implements [Claims].
func (m *Memory) Unclaim(ctx context.Context, agent AgentID, turn TurnRef) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.unclaim(claimKey{agent, turn})
	return nil
}

// Turn implements [Reader].
func (m *Memory) Turn(ctx context.Context, ref TurnRef) (Turn, error) {
	if err := m.begin(ctx); err != nil {
		return Turn{}, err
	}
	defer m.mu.Unlock()
	e, err := m.turn(ref)
	if err != nil {
		return Turn{}, err
	}
	return copyTurn(e.turn), nil
}

// Part implements [Reader].
func (m *Memory) Part(ctx context.Context, key Key) (Part, error) {
	if err := m.begin(ctx); err != nil {
		return Part{}, err
	}
	defer m.mu.Unlock()
	p := m.parts[key]
	if p == nil {
		return Part{}, notFound("request", key)
	}
	return p.row(), nil
}

// Parts implements [Reader].
func (m *Memory) Parts(ctx context.Context, turn TurnRef) ([]Part, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	e := m.turns[turn]
	if e == nil {
		return nil, nil
	}
	parts := make([]Part, len(e.parts))
	for i, p := range e.parts {
		parts[i] = p.row()
	}
	return parts, nil
}

// Product implements [Reader].
func (m *Memory) Product(ctx context.Context, ref ProductRef) (Product, error) {
	if err := m.begin(ctx); err != nil {
		return Product{}, err
	}
	defer m.mu.Unlock()
	e := m.product[ref]
	if e == nil {
		return Product{}, notFound("product", ref)
	}
	return copyProduct(*e.product), nil
}

// Session implements [Reader].
func (m *Memory) Session(ctx context.Context, binding BindingRef) (Session, error) {
	if err := m.begin(ctx); err != nil {
		return Session{}, err
	}
	defer m.mu.Unlock()
	s, ok := m.sessions[binding]
	if !ok {
		return Session{}, notFound("session of", binding)
	}
	return copySession(s), nil
}

// Admission implements [Reader].
func (m *Memory) Admission(ctx context.Context, kind Kind, ref string) (Admission, error) {
	if err := m.begin(ctx); err != nil {
		return Admission{}, err
	}
	defer m.mu.Unlock()
	a, ok := m.admissions[admissionKey{kind, ref}]
	if !ok {
		return Admission{}, notFound(string(kind), ref)
	}
	return copyAdmission(a), nil
}

// Admissions implements [Reader].
func (m *Memory) Admissions(ctx context.Context, kind Kind) ([]Admission, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var all []Admission
	for k, a := range m.admissions {
		if k.kind == kind {
			all = append(all, copyAdmission(a))
		}
	}
	slices.SortFunc(all, func(a, b Admission) int { return cmp.Compare(a.Ref, b.Ref) })
	return all, nil
}

// Superseded implements [Reader].
func (m *Memory) Superseded(ctx context.Context, kind Kind, ref string, digest Digest) (bool, error) {
	if err := m.begin(ctx); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	_, ok := m.superseded[admissionKey{kind, ref}][digest]
	return ok, nil
}

// ListTurns implements [Reader].
func (m *Memory) ListTurns(ctx context.Context, q TurnQuery) (TurnPage, error) {
	q, err := q.Defaults()
	if err != nil {
		return TurnPage{}, err
	}
	if err := m.begin(ctx); err != nil {
		return TurnPage{}, err
	}
	defer m.mu.Unlock()
	walk := m.order.all(q.After)
	if q.Newest {
		walk = m.order.backward(q.After)
	}
	var page TurnPage
	for e := range walk {
		if !q.Selects(&e.turn) {
			continue
		}
		if len(page.Turns) == q.Limit {
			page.Next = page.Turns[q.Limit-1].Seq
			break
		}
		page.Turns = append(page.Turns, copyTurn(e.turn))
	}
	return page, nil
}

// Export implements [Reader].
func (m *Memory) Export(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		records, err := m.exportHead(ctx)
		for after := int64(0); err == nil; {
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
			if after < 0 {
				return
			}
			records, after, err = m.exportTurns(ctx, after)
		}
		yield(Record{}, err)
	}
}

// exportHead are the records before the turns.
func (m *Memory) exportHead(ctx context.Context) ([]Record, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var records []Record
	keys := slices.SortedFunc(maps.Keys(m.admissions), func(a, b admissionKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.ref, b.ref))
	})
	for _, k := range keys {
		a := copyAdmission(m.admissions[k])
		records = append(records, Record{Admission: &a})
	}
	for _, k := range keys {
		for _, d := range slices.Sorted(maps.Keys(m.superseded[k])) {
			s := m.superseded[k][d]
			records = append(records, Record{Superseded: &s})
		}
	}
	for _, b := range slices.Sorted(maps.Keys(m.sessions)) {
		s := m.sessions[b]
		s.Values = nil
		records = append(records, Record{Session: &s})
	}
	return records, nil
}

// exportTurns are some turns behind a place, and where they end. The last ones come with the claims,
// and with the place -1.
func (m *Memory) exportTurns(ctx context.Context, after int64) ([]Record, int64, error) {
	if err := m.begin(ctx); err != nil {
		return nil, 0, err
	}
	defer m.mu.Unlock()
	var records []Record
	n := 0
	for e := range m.order.all(after) {
		t := copyTurn(e.turn)
		records = append(records, Record{Turn: &t})
		for _, mp := range e.parts {
			p := mp.part
			p.Lines = nil
			records = append(records, Record{Part: &p})
		}
		if e.product != nil {
			p := *e.product
			p.Content = nil
			p.Document = bytes.Clone(p.Document)
			records = append(records, Record{Product: &p})
		}
		if n++; n == 100 {
			return records, t.Seq, nil
		}
	}
	for c := range m.taken.all(0) {
		claim := c.claim
		records = append(records, Record{Claim: &claim})
	}
	return records, -1, nil
}

// Recover implements [Store].
func (m *Memory) Recover(ctx context.Context, at time.Time, end func(Turn, *Part) (*Ending, error)) (Recovery, error) {
	var did Recovery
	if at.IsZero() {
		return did, fmt.Errorf("%w: At is not set", ErrInvalid)
	}
	if err := m.begin(ctx); err != nil {
		return did, err
	}
	var open []*memTurn
	for e := range m.order.all(0) {
		if e.turn.State != Settled {
			open = append(open, e)
		}
	}
	m.mu.Unlock()
	for _, e := range open {
		if err := m.recoverTurn(ctx, e, at, end, &did); err != nil {
			return did, err
		}
	}
	if err := m.begin(ctx); err != nil {
		return did, err
	}
	defer m.mu.Unlock()
	for c := range m.taken.all(0) {
		if c.claim.State == ClaimRunning {
			c.claim = c.claim.AfterEnd(ClaimLost, at)
			did.Lost++
		}
	}
	return did, nil
}

func (m *Memory) recoverTurn(ctx context.Context, e *memTurn, at time.Time, end func(Turn, *Part) (*Ending, error), did *Recovery) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	if m.turns[e.turn.Ref] != e || e.turn.State == Settled {
		m.mu.Unlock()
		return nil
	}
	if e.turn.State == Reserved {
		m.forget(e)
		did.Released = append(did.Released, e.turn.Ref)
		m.mu.Unlock()
		return nil
	}
	t, running := copyTurn(e.turn), e.running()
	var seen *Part
	if running != nil {
		row := running.row()
		seen = &row
	}
	m.mu.Unlock()
	var ending *Ending
	if end != nil {
		var err error
		if ending, err = end(t, seen); err != nil {
			return err
		}
	}
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if e.turn.Version != t.Version {
		return fmt.Errorf("%w: turn %q, while it was recovered", ErrConflict, t.Ref)
	}
	t, p, err := e.turn.AfterLoss(running.orNil(), ending, at, m.conf.Limits)
	if err != nil {
		return err
	}
	if p != nil {
		running.part = copyPart(*p)
	}
	m.change(e, t)
	did.Unknown = append(did.Unknown, copyTurn(t))
	return nil
}

// Sweep implements [Store].
func (m *Memory) Sweep(ctx context.Context, at time.Time, limit int) (Sweeping, error) {
	var did Sweeping
	if at.IsZero() || limit < 0 {
		return did, fmt.Errorf("%w: At is not set, or the limit is negative", ErrInvalid)
	}
	if limit == 0 {
		limit = 1000
	}
	if err := m.begin(ctx); err != nil {
		return did, err
	}
	defer m.mu.Unlock()
	at = Instant(at)
	// room counts down, and tells when there is more.
	room := func() bool {
		if limit--; limit < 0 {
			did.More = true
			return false
		}
		return true
	}
	due := func(k Keeping, expires time.Time) bool {
		return k == Kept && !expires.IsZero() && !expires.After(at)
	}
	for e := range m.order.all(0) {
		if p := e.product; p != nil && due(p.Keeping, p.Expires) {
			if !room() {
				return did, nil
			}
			p.Content, p.Keeping = nil, Swept
			did.Products++
			m.measure(e)
		}
	}
	for e := range m.order.all(0) {
		for _, p := range e.parts {
			if due(p.part.Keeping, p.part.Expires) {
				if !room() {
					return did, nil
				}
				p.part.Lines, p.part.Keeping = nil, Swept
				did.Parts++
				m.measure(e)
			}
		}
	}
	var over []claimKey
	for c := range m.taken.all(0) {
		if !c.claim.Expires.After(at) {
			if !room() {
				break
			}
			over = append(over, claimKey{c.claim.Agent, c.claim.Turn})
		}
	}
	for _, k := range over {
		m.unclaim(k)
	}
	did.Claims = len(over)
	return did, nil
}

// Ping implements [Store].
func (m *Memory) Ping(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// Close implements [Store].
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
