package external

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/session"
	wire "github.com/backline-dev/backline/schema/external"
)

// A turn is one that runs, or waits for the host. It is the engine's sink and adapter, and what the
// handler knows of the turn until it is settled.
type turn struct {
	h        *Handler
	ref      wire.TurnRef
	names    names
	identity ledger.Digest
	request  *wire.TurnRequest // the start's; shares memory with its body
	label    []byte            // the request's classification, in canonical JSON
	reserved wire.Budget
	binding  *wire.Binding
	profile  *wire.Profile
	adapter  adapters.Adapter
	fence    ledger.Fence
	accepted time.Time
	due      time.Time    // the request's deadline/at
	deadline atomic.Int64 // when the turn is cut off, or gives up waiting, in microseconds since 1970
	record   ledger.Request
	spec     adapters.Turn
	values   values

	// ready is closed when it is decided whether the turn runs, which admitted tells then.
	ready    chan struct{}
	admitted bool
	stream   runtime.Stream // set before ready is closed
	done     chan struct{}  // closed when the outcome is committed, or lost
	lost     atomic.Bool    // the ledger did not take the outcome; the stream has no end
	status   wire.Status    // the outcome's, set before done is closed; empty where it is lost

	holds     atomic.Bool // it has its binding's session
	cancelled atomic.Bool // the host asked for it to end
	settling  atomic.Bool // the adapter is done, and the outcome is being committed

	// mu orders what changes the turn in the ledger.
	mu sync.Mutex
	// waits: the turn is reserved and waits for its binding's session. Its adapter was not called, and it
	// is charged nothing. A turn that need not wait is dispatched with its reservation.
	waits bool
	began time.Time // since when its time counts
	// wallFirst: it is the reserved wall time that ends the turn, and nothing else at that moment.
	wallFirst bool
	timer     *time.Timer // for what the engine's deadline is not, in a turn that had to wait
	version   int64
	parts     []*part
	running   *part // nil while the turn is suspended
	cuts      int
	asked     []*asked // not answered yet, in order
	asks      int      // counts requests to the host
	over      bool
	detached  bool // the turn's session is not the binding's any more
	session   ledger.Session
	closed    bool // the session was closed while the turn ran

	out output // guarded by the log's lock
}

// A part is one request of a turn, with its place in the turn's log.
type part struct {
	key    ledger.Key
	digest ledger.Digest
	index  int
	ended  chan struct{} // closed when its record is committed, or lost
	// shut: it is not committed that the turn awaits what this part asks for, and will not be. The part is
	// shown once the turn's end is committed.
	shut bool
}

// asked is a tool request or a question that awaits its observation.
type asked struct {
	ref     wire.RequestRef
	visible bool                      // in a part that a host has been given
	answer  chan adapters.Observation // of one
}

// names are the refs that a turn gives to what it makes: its own ref's digest in them keeps them apart
// from other turns', and of one length however long that is.
type names struct{ id string }

func namesOf(parts ...string) names {
	sum := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s,", len(p), p)
	}
	return names{base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:18])}
}

// run names this run of the turn, in its events' refs: a request that comes again because the process died
// before its adapter was called has events of its own.
func (n names) run(at time.Time) string {
	var micros [8]byte
	binary.BigEndian.PutUint64(micros[:], uint64(at.UnixMicro())) //nolint:gosec // a time of our own
	return n.id[:16] + base64.RawURLEncoding.EncodeToString(micros[2:])
}

func (n names) outcome() wire.OutcomeRef { return wire.OutcomeRef("outcome:" + n.id) }
func (n names) product() wire.ProductRef { return wire.ProductRef("product:" + n.id) }
func (n names) request(i int) wire.RequestRef {
	return wire.RequestRef(fmt.Sprintf("request:%s:%d", n.id, i))
}

// selectedBy is who settles outcomes and commits products here.
const selectedBy wire.PrincipalRef = "backline"

func (h *Handler) newTurn(q *request, g *grant) *turn {
	t := &turn{
		h:        h,
		ref:      q.turn,
		names:    namesOf(string(q.turn)),
		identity: q.identity,
		request:  q.TurnRequest,
		label:    q.label,
		reserved: q.BudgetReservation,
		binding:  g.binding,
		profile:  g.profile,
		adapter:  g.adapter,
		fence:    g.fence,
		accepted: q.at,
		due:      q.deadline,
		record:   q.record(g.binding),
		ready:    make(chan struct{}),
		done:     make(chan struct{}),
	}
	t.countFrom(q.at)
	t.spec = q.adapterTurn(t.cutoff())
	t.spec.Continuity = adapters.ContinuityNew
	if g.session.Open && g.session.Fence == g.fence {
		t.spec.Continuity = adapters.ContinuitySame
	}
	t.out.init(t)
	return t
}

// countFrom sets when the turn is cut off, if its adapter is called at this time: the earliest of three. Where
// two are equal it is not the wall time that counts.
func (t *turn) countFrom(at time.Time) {
	t.began = at
	deadline := t.waitsUntil(at)
	t.wallFirst = false
	if wall := t.reserved.WallTime(); wall < deadline.Sub(at) {
		deadline, t.wallFirst = at.Add(wall), true
	}
	t.deadline.Store(deadline.UnixMicro())
}

// waitsUntil is how long a turn that came at this time waits for its binding's session at most. The reserved
// wall time does not count meanwhile.
func (t *turn) waitsUntil(at time.Time) time.Time {
	if d := at.Add(t.profile.Limits.TurnTimeout()); d.Before(t.due) {
		return d
	}
	return t.due
}

// cutoff is when the turn is cut off.
func (t *turn) cutoff() time.Time { return time.UnixMicro(t.deadline.Load()) }

// reserve takes the turn's place in the engine and commits the reservation, and with it the dispatch of a
// turn that has its session at once. Where it returns no part the turn does not run: because of p, or
// because somebody else was faster.
func (t *turn) reserve(ctx context.Context, g *grant) (first *part, again bool, p *problem) {
	h := t.h
	spec := runtime.Spec{
		Turn:        t.spec,
		Adapter:     t,
		Sink:        t,
		Session:     session.Key{Handle: string(t.binding.BindingRef)},
		Fingerprint: runtime.Fingerprint(string(t.identity)),
		Deadline:    t.cutoff(),
		HostGone:    runtime.Detach,
		Values:      &t.values,
		Forget:      true,
	}
	stream, err := h.engine.Start(ctx, &spec)
	if err == nil && stream.Repeat == runtime.First && !stream.Held() {
		// Once more as a turn that waits: its time counts from when it has its session.
		stream.Discard()
		t.waits, t.wallFirst = true, false
		t.deadline.Store(t.waitsUntil(t.accepted).UnixMicro())
		t.out = output{}
		t.out.init(t)
		spec.Deadline = t.due
		if d := t.accepted.Add(3*t.profile.Limits.TurnTimeout() + time.Minute); d.Before(t.due) {
			spec.Deadline = d // later than any that it can get
		}
		stream, err = h.engine.Start(ctx, &spec)
	}
	if err != nil {
		return nil, false, startProblem(err)
	}
	if stream.Repeat != runtime.First {
		// A turn of this ref that the ledger has forgotten is still ending.
		return nil, false, startProblem(runtime.ErrSessionBusy)
	}
	t.stream = stream
	ctx, cancel := lasting(ctx)
	defer cancel()
	for range 10 {
		r := ledger.Reservation{Request: t.record, Dispatch: !t.waits, At: time.Now()}
		if r.Dispatch && (!g.session.Open || g.session.Fence != g.fence) {
			r.Session = &ledger.Session{Binding: ledger.BindingRef(t.binding.BindingRef), Version: g.session.Version, Fence: g.fence, Open: true}
		}
		stopPoint("reserving")
		v, err := h.store.Reserve(ctx, r)
		if errors.Is(err, ledger.ErrConflict) { // another turn of the binding has changed the session
			if g.session, err = h.store.Session(ctx, r.Session.Binding); err == nil || errors.Is(err, ledger.ErrNotFound) {
				continue
			}
		}
		switch {
		case err != nil:
			stream.Discard()
			return nil, false, h.storeProblem(ctx, "reserve", err)
		case v.Decision != ledger.Fresh:
			stream.Discard()
			return nil, v.Decision == ledger.Ended, elsewhereIf(v.Decision == ledger.Running)
		}
		stopPoint("reserved")
		t.version = v.Turn.Version
		if r.Dispatch {
			t.holds.Store(true)
			if t.session = g.session; r.Session != nil {
				t.session = *r.Session
				t.session.Version++
			}
		} else {
			t.timer = time.AfterFunc(time.Until(t.cutoff()), func() { t.stream.Stop(adapters.CauseSessionBusy) })
			t.logWait(ctx)
		}
		t.running = &part{key: t.record.Key, digest: t.record.Digest, ended: make(chan struct{})}
		t.parts = append(t.parts, t.running)
		return t.running, false, nil
	}
	stream.Discard()
	return nil, false, h.storeProblem(ctx, "reserve", ledger.ErrConflict)
}

// logWait says that the turn waits, and for which other.
func (t *turn) logWait(ctx context.Context) {
	if t.stream.Held() {
		return
	}
	attrs := []any{"turn", string(t.ref), "binding", string(t.binding.BindingRef), "until", t.cutoff().UTC().Format(time.RFC3339)}
	if other := t.h.holder(t.binding.BindingRef); other != nil {
		attrs = append(attrs, "behind", string(other.ref))
	}
	t.h.log.InfoContext(ctx, "turn waits for its binding", attrs...)
}

func elsewhereIf(yes bool) *problem {
	if yes {
		return elsewhere()
	}
	return nil
}

// part is the part that was made for a key, nil if it is none of this turn's.
func (t *turn) part(key ledger.Key) *part {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		if p.key == key {
			return p
		}
	}
	return nil
}

// wait waits for the turn's end, but no longer than d, and tells whether it has come.
func (t *turn) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// awaits tells whether a request's observation is outstanding.
func (h *Handler) awaits(q *request) bool {
	h.mu.Lock()
	t := h.live[q.turn]
	h.mu.Unlock()
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outstanding(q.Observation.RequestRef) >= 0
}

// outstanding is the place of a request that may be answered, -1 for none. Called with t.mu held.
func (t *turn) outstanding(ref wire.RequestRef) int {
	if t.over || t.cancelled.Load() {
		return -1
	}
	return slices.IndexFunc(t.asked, func(a *asked) bool { return a.visible && a.ref == ref })
}

// Run implements [adapters.Adapter]: it is the adapter that the engine calls, once the turn has its
// session.
func (t *turn) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if t.waits { // nobody else changes it
		same, err := t.dispatch(ctx)
		if err != nil {
			return err
		}
		turn.Continuity = adapters.ContinuityNew
		if same {
			turn.Continuity = adapters.ContinuitySame
		}
		turn.Deadline = t.cutoff()
		ctx = cutOff{ctx, turn.Deadline}
	} else if err := t.openSession(ctx); err != nil {
		return err
	} else if t.detached {
		turn.Continuity = adapters.ContinuityNew
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		t.out.called = true
		return t.out.progress(dst, wire.ProgressRunning)
	})
	stopPoint("calling")
	return t.adapter.Run(ctx, turn, w)
}

// cutOff is the context of a turn that had to wait, with the deadline that it got then. It ends with the
// turn, as the one that it is made of.
type cutOff struct {
	context.Context
	at time.Time
}

func (c cutOff) Deadline() (time.Time, bool) { return c.at, true }

// dispatch commits that the adapter is about to be called for a turn that had to wait for its session, and
// opens that where it was closed meanwhile or has another fence. same tells whether it was there.
func (t *turn) dispatch(ctx context.Context) (same bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || ctx.Err() != nil {
		return false, errors.Join(adapters.ErrTurnOver, context.Cause(ctx))
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	stopPoint("dispatching")
	s, same, err := t.takeSession(ctx)
	var row ledger.Turn
	if err == nil {
		row, err = t.h.store.Dispatch(ctx, ledger.TurnRef(t.ref), t.version, time.Now())
	}
	if err == nil {
		err = t.values.load(s.Values)
	}
	if err != nil {
		t.h.log.ErrorContext(ctx, "the ledger failed", "doing", "dispatch", "turn", string(t.ref), "error", err.Error())
		return false, fmt.Errorf("the turn could not be dispatched: %w", err)
	}
	t.timer.Stop()
	t.version, t.session, t.waits = row.Version, s, false
	t.holds.Store(true)
	now := time.Now()
	t.countFrom(now)
	t.timer = time.AfterFunc(t.cutoff().Sub(now), func() { t.stream.Stop(adapters.CauseTurnTimeout) })
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		t.out.within(t.cutoff().Sub(now))
		return dst
	})
	return same, nil
}

// Tool implements [runtime.Mediator].
func (t *turn) Tool(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
	if t.profile.ToolMode != wire.ToolsMediated {
		return adapters.Observation{}, t.endOver(denied(wire.ReasonToolNotAdmitted))
	}
	digest, err := wire.CanonicalDigest(r.Input)
	if err != nil {
		return adapters.Observation{}, t.endOver(failed(wire.ReasonEventMalformed, "the tool's input: %w", err))
	}
	return t.ask(ctx, &wire.Event{
		Kind:           wire.EventToolRequest,
		ToolRef:        wire.ToolRef(r.Ref),
		InputSchemaRef: wire.SchemaRef(r.Schema),
		InputDigest:    digest,
		Input:          r.Input,
		Classification: &t.request.Classification,
	})
}

// Ask implements [runtime.Mediator].
func (t *turn) Ask(ctx context.Context, q adapters.Question) (adapters.Observation, error) {
	if t.profile.ToolMode != wire.ToolsMediated {
		return adapters.Observation{}, t.endOver(denied(wire.ReasonApprovalNotAdmitted))
	}
	digest, err := wire.CanonicalDigest(q.Question)
	if err != nil {
		return adapters.Observation{}, t.endOver(failed(wire.ReasonEventMalformed, "the question: %w", err))
	}
	return t.ask(ctx, &wire.Event{
		Kind:              wire.EventOperatorQuestion,
		QuestionSchemaRef: wire.SchemaRef(q.Schema),
		QuestionDigest:    digest,
		Question:          q.Question,
	})
}

// ask emits what is asked, suspends the turn and waits for the observation.
func (t *turn) ask(ctx context.Context, e *wire.Event) (adapters.Observation, error) {
	a, err := t.suspend(ctx, e)
	if err != nil {
		return adapters.Observation{}, err
	}
	select {
	case o := <-a.answer:
		return o, nil
	case <-ctx.Done():
		// The request stays outstanding: where the turn goes on without it, the host's answer still
		// gets what comes next.
		return adapters.Observation{}, context.Cause(ctx)
	}
}

// suspend emits a request to the host and commits that it is awaited. Nothing of the request leaves before
// that: a host acts on nothing that the ledger does not know.
func (t *turn) suspend(ctx context.Context, e *wire.Event) (*asked, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || ctx.Err() != nil {
		return nil, errors.Join(adapters.ErrTurnOver, context.Cause(ctx))
	}
	if t.closed {
		return nil, t.endOver(failed(wire.ReasonEventStale, "the session was closed"))
	}
	t.asks++
	a := &asked{ref: t.names.request(t.asks), answer: make(chan adapters.Observation, 1)}
	e.RequestRef, e.DeadlineAt = a.ref, wire.DateTimeOf(t.cutoff())
	var f *fault
	ended := adapters.ErrTurnOver
	suspending := t.running != nil
	err := t.stream.Output().Append(func(dst []byte) []byte {
		o := &t.out
		if o.over() || o.cancelling {
			if o.reason != "" {
				ended = fmt.Errorf("%w: %s", adapters.ErrTurnOver, o.reason)
			}
			return dst
		}
		ended = nil
		if !suspending { // it is shown in a part to come
			if dst, f = o.asking(dst, e); f == nil {
				o.owed++
			}
		} else {
			f = o.suspending(e)
		}
		if f != nil {
			o.fail(f.status, f.reason)
		}
		return dst
	})
	switch {
	case err != nil:
		return nil, adapters.ErrTurnOver
	case ended != nil:
		return nil, ended
	case f != nil:
		return nil, f.err()
	}
	t.asked = append(t.asked, a)
	if suspending {
		a.visible = true
		if err := t.cut(ctx); err != nil {
			t.asked = t.asked[:len(t.asked)-1]
			return nil, err
		}
	}
	if t.h.isDraining() {
		t.h.tasks.Go(func() { t.stream.Stop(adapters.CauseDrain) })
	}
	return a, nil
}

// cut commits that the turn is suspended, lets the last lines of the part that runs out, and ends it. Called
// with t.mu held and the output frozen.
func (t *turn) cut(ctx context.Context) error {
	ctx, cancel := lasting(ctx)
	defer cancel()
	s := ledger.Suspension{
		Turn:    ledger.TurnRef(t.ref),
		Version: t.version,
		Key:     t.running.key,
		Session: t.changedSession(false),
		At:      time.Now(),
	}
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		s.Recording = t.out.recording(t.h.conf.StreamRetention)
		return dst
	})
	for _, a := range t.asked {
		if a.visible {
			s.Awaiting = append(s.Awaiting, ledger.ObservationRef(a.ref))
		}
	}
	stopPoint("suspending")
	row, err := t.h.store.Suspend(ctx, s)
	if errors.Is(err, ledger.ErrConflict) && s.Session != nil { // the session is another's by now
		t.detached, s.Session = true, nil
		row, err = t.h.store.Suspend(ctx, s)
	}
	if errors.Is(err, ledger.ErrTooLarge) && !s.Recording.Oversized {
		s.Recording.Oversized, s.Recording.Size, s.Recording.Lines = true, int64(len(s.Recording.Lines)), nil
		row, err = t.h.store.Suspend(ctx, s)
	}
	if err != nil {
		t.h.log.ErrorContext(ctx, "the ledger failed", "doing", "suspend", "turn", string(t.ref), "error", err.Error())
		_ = t.stream.Output().Append(func(dst []byte) []byte {
			t.out.unfreeze()
			t.out.fail(wire.StatusFailed, wire.ReasonProviderUnavailable)
			return dst
		})
		return fmt.Errorf("the turn could not be suspended: %w", err)
	}
	stopPoint("suspended")
	if s.Session != nil {
		t.session.Version++
		t.values.saved()
	}
	t.version = row.Version
	close(t.running.ended)
	t.running = nil
	t.cuts++
	out := t.stream.Output()
	_ = out.Append(t.out.last)
	out.Cut()
	_ = out.Append(t.out.thaw)
	return nil
}

// errNotAwaited reports an observation that nothing awaits.
var errNotAwaited = errors.New("the observation is not awaited")

// answer commits that the turn goes on with an observation, and hands that over.
func (t *turn) answer(ctx context.Context, q *request) (*part, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.outstanding(q.Observation.RequestRef)
	if i < 0 || t.running != nil {
		return nil, errNotAwaited
	}
	stopPoint("continuing")
	v, err := t.h.store.Continue(ctx, ledger.Continuation{Request: q.record(t.binding), Version: t.version, At: q.at})
	switch {
	case err != nil:
		return nil, err
	case v.Decision != ledger.Fresh: // the key is another request's
		return nil, errNotAwaited
	}
	stopPoint("continued")
	t.version = v.Turn.Version
	p := &part{key: q.key, digest: q.digest, index: t.cuts, ended: make(chan struct{})}
	t.parts, t.running = append(t.parts, p), p
	a := t.asked[i]
	t.asked = slices.Delete(t.asked, i, i+1)
	for _, other := range t.asked {
		other.visible = true // its line is in this part, if it was in none before
	}
	waiting := len(t.asked) > 0
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		o := &t.out
		o.suspended = false
		if waiting {
			o.owed-- // by the event below
		}
		switch {
		case o.over(), o.cancelling:
			p.shut = waiting
		case !waiting:
			dst = o.goesOn(dst)
		default:
			if f := o.awaiting(); f != nil {
				o.fail(f.status, f.reason)
				p.shut = true
			}
		}
		return dst
	})
	if waiting && !p.shut {
		p.shut = t.cut(ctx) != nil // then the turn has been ended
	}
	a.answer <- observationOf(q.Observation)
	return p, nil
}

func observationOf(o *wire.Observation) adapters.Observation {
	// Copies, as the adapter may keep them beyond this request.
	obs := adapters.Observation{
		Admitted: o.Disposition == wire.Admitted,
		Reason:   strings.Clone(string(o.ReasonCode)),
		Receipt:  strings.Clone(string(o.ReceiptRef)),
	}
	for _, e := range o.EvidenceRefs {
		obs.Evidence = append(obs.Evidence, strings.Clone(string(e)))
	}
	return obs
}

// stopIfSuspended ends a turn that awaits an observation.
func (t *turn) stopIfSuspended(cause adapters.Cause) {
	<-t.ready
	t.mu.Lock()
	suspended := t.admitted && !t.over && t.running == nil
	t.mu.Unlock()
	if suspended {
		t.stream.Stop(cause)
	}
}

// sessionClosed tells the turn that the session of its binding was closed, which made this version of it. A
// turn that awaits an observation is ended by that; another fails with the next thing that its adapter
// emits. ending tells whether the turn is ending, or is none of that session's: one that waits opens a new
// one, and one that came later has.
func (t *turn) sessionClosed(version int64) (concerned, ending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits || t.session.Version >= version {
		return false, true
	}
	t.detached, t.closed = true, true
	if t.over {
		return true, true
	}
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		t.out.sessionClosed = true
		return dst
	})
	if t.running != nil {
		return true, false
	}
	t.end(wire.StatusFailed, wire.ReasonSessionLost)
	return true, true
}

// end ends the turn with a reason of its own. Not to be called with the log's lock held.
func (t *turn) end(status wire.Status, reason wire.ReasonCode) {
	_ = t.stream.Output().Append(func(dst []byte) []byte {
		t.out.fail(status, reason)
		return dst
	})
}

// endOver ends the turn over what its adapter said, and returns what that is told.
func (t *turn) endOver(f *fault) error {
	t.end(f.status, f.reason)
	return f.err()
}

// progress emits a progress event by itself.
func (t *turn) progress(code wire.ProgressCode) {
	_ = t.stream.Output().Append(func(dst []byte) []byte { return t.out.progress(dst, code) })
}

// sequence is the number of the last event.
func (t *turn) sequence() (seq int64) {
	if t.stream.Output().Append(func(dst []byte) []byte { seq = t.out.seq; return dst }) != nil {
		t.mu.Lock() // it is sealed: nobody writes any more
		defer t.mu.Unlock()
		seq = t.out.seq
	}
	return seq
}

var (
	_ adapters.Adapter      = (*turn)(nil)
	_ runtime.Sink          = (*turn)(nil)
	_ runtime.Mediator      = (*turn)(nil)
	_ runtime.CandidateSink = (*turn)(nil)
	_ runtime.UsageSink     = (*turn)(nil)
	_ runtime.Settler       = (*turn)(nil)
)
