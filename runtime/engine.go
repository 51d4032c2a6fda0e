package runtime

import (
	"context"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

// A Spec is a turn as a protocol hands it to [Engine.Start].
type Spec struct {
	// Turn is what the adapter will see. The engine fills in Session, History, Continuity and
	// Deadline.
	Turn adapters.Turn
	// Adapter answers the turn.
	Adapter adapters.Adapter
	// Sink encodes what happens.
	Sink Sink
	// Session is the key of the conversation. Its strings may share memory with the request.
	Session session.Key
	// Window is the history as the host sent it, oldest first, without the current message. It and
	// its strings belong to the engine until the turn has ended; Owner gets it back.
	Window []adapters.Message
	// Owner, if not nil, is told once the engine no longer needs Window.
	Owner Recycler
	// Fingerprint tells turns of one id apart that are not the same. A repeat has the same id and the
	// same fingerprint.
	Fingerprint uint64
	// Deadline cuts the turn off; zero means Config.TurnTimeout from now.
	Deadline time.Time
	// HostGone overrides Config.HostGone where it is not 0.
	HostGone time.Duration
	// Values, if not nil, are the session's values, which the protocol keeps. The turn then has its place
	// in the session's queue and nothing else of it: no history is joined or remembered, and the turn's
	// Continuity is what the protocol says in Turn.
	Values adapters.Values
	// NoWindow: the host sent no transcript at all, which is not an empty one. The history is then what is
	// remembered of the session, and nothing is dropped.
	NoWindow bool
	// Forget: the turn is not kept for repeats once it has ended, because the protocol has a memory of
	// its own.
	Forget bool
	// PublicTexts: the protocol lets an adapter's error texts and panic values into the log.
	PublicTexts bool
}

// A Recycler gets back what it lent to a turn. Recycle is called once, or never where the adapter was
// abandoned and may still read it.
type Recycler interface{ Recycle() }

// A turnKey names a turn among all of the engine's.
type turnKey struct {
	protocol adapters.Protocol
	session  session.Key
	turn     string
}

// A record is what the registry knows of a turn: its log, and the run while there is one.
type record struct {
	log         ndjson.Log
	key         turnKey
	fingerprint uint64
	run         *Run  // nil once the turn has ended
	expires     int64 // when an ended turn is forgotten
	size        int64 // memory held by an ended turn
}

// recordOverhead is about what an ended turn costs in memory besides its lines.
const recordOverhead = 768

// An Engine runs turns. Its methods may be called from several goroutines.
type Engine struct {
	conf Config
	held ndjson.LogConfig // conf.Stream for turns whose host may come back

	mu       sync.Mutex
	turns    map[turnKey]*record
	ended    fifo // ended turns that can be repeated, oldest first
	runs     *Run // those that are not over, hooks and all, as a list
	active   int  // turns that hold one of MaxTurns slots
	draining bool
	quiet    chan struct{} // closed when no run is left; nil unless somebody waits

	goroutines sync.WaitGroup // adapters that have not returned
	abandoned  atomic.Int64
	total      atomic.Int64
}

// fifo holds ended turns in the order of their expiry, bounded in bytes.
type fifo struct {
	list  []*record
	head  int
	bytes int64
}

// New returns an engine, or an error that names every wrong field of conf.
func New(conf Config) (*Engine, error) {
	c, err := conf.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{conf: c, held: c.Stream, turns: map[turnKey]*record{}}
	e.held.HoldUnread = true
	return e, nil
}

// stream returns how a turn's log is bounded. Where its host may come back, the adapter waits for it.
func (e *Engine) stream(hold bool) *ndjson.LogConfig {
	if hold {
		return &e.held
	}
	return &e.conf.Stream
}

// Config returns the engine's configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.conf }

// A Repeat tells whether [Engine.Start] found the turn already there.
type Repeat int

// The kinds of repeat.
const (
	First    Repeat = iota // the turn is new
	Joined                 // the turn runs; the stream is attached to it
	Replayed               // the turn has completed; the stream is its record
)

// A Stream is one host's connection to a turn. Serve must be called exactly once.
type Stream struct {
	engine *Engine
	rec    *record
	run    *Run
	// Repeat tells whether the turn was already there.
	Repeat Repeat
}

// Start begins a turn, or finds that it has begun: one atomic step. The errors are [ErrConflict],
// [ErrOutgrown], [ErrDraining], [ErrSessionBusy] and [ErrAtCapacity], checked in this order. The turn's
// context keeps ctx's values, not its cancellation. spec is copied.
func (e *Engine) Start(ctx context.Context, spec *Spec) (Stream, error) {
	// Made before the lock is taken, as nearly every turn is a new one.
	rec := newRecord(spec)
	r := newRun(ctx, e, rec, spec)

	s, err := e.admit(r)
	if s.run != r {
		r.discard()
	}
	return s, err
}

// admit registers a run that nobody knows yet, or finds the one that is there.
func (e *Engine) admit(r *Run) (Stream, error) {
	rec := r.rec
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.turns[rec.key]; known != nil {
		if s, err := e.repeat(known, rec.fingerprint); err != nil || s.rec != nil {
			return s, err
		}
	}
	if e.draining {
		return Stream{}, ErrDraining
	}
	if e.conf.RefuseBusy {
		lease, free := e.conf.Sessions.TryAcquire(rec.key.session)
		if !free {
			return Stream{}, ErrSessionBusy
		}
		r.lease = lease
	}
	if e.conf.MaxTurns > 0 && e.active >= e.conf.MaxTurns {
		if r.lease != nil {
			r.lease.Release()
		}
		return Stream{}, ErrAtCapacity
	}
	if r.lease == nil {
		r.lease = e.conf.Sessions.Enqueue(rec.key.session)
	}
	e.turns[rec.key] = rec
	if r.next = e.runs; r.next != nil {
		r.next.prev = r
	}
	e.runs = r
	e.active++
	e.total.Add(1)
	e.goroutines.Add(1)
	return Stream{engine: e, rec: rec, run: r}, nil
}

// newRecord makes a turn's record. What outlives the turn must not keep the request's memory, so its
// key is copied.
func newRecord(spec *Spec) *record {
	k, id := spec.Session, spec.Turn.ID
	n := len(k.Handle)
	own := k.Handle + id
	if id == "" {
		own = strings.Clone(own)
	}
	k.Handle = own[:n]
	return &record{key: turnKey{spec.Turn.Protocol, k, own[n:]}, fingerprint: spec.Fingerprint}
}

// repeat finds out what a turn whose id is known means. A zero Stream and no error mean that it is to
// be run.
func (e *Engine) repeat(rec *record, fingerprint uint64) (Stream, error) {
	run := rec.run
	switch {
	case run == nil && ndjson.Now() >= rec.expires:
		return Stream{}, nil
	case run != nil && !rec.joinable():
		return Stream{}, nil // it is ending: the repeat queues behind it and runs afresh
	case rec.fingerprint != fingerprint:
		return Stream{}, ErrConflict
	case run == nil:
		return Stream{engine: e, rec: rec, Repeat: Replayed}, nil
	case rec.log.Trimmed():
		return Stream{}, ErrOutgrown
	}
	run.readers++
	return Stream{engine: e, rec: rec, run: run, Repeat: Joined}, nil
}

// joinable tells whether a repeat may attach to the running turn. One whose context is over, but not by its
// own completion, is ending.
func (r *record) joinable() bool {
	return !r.run.ending && (r.run.ended || r.run.ctx.Err() == nil)
}

// Serve attaches conn to the turn and sees it to its end: it flushes the first line, has the adapter
// called, on this goroutine if the turn is new, and lets lines out as they come; the last one may be
// left in conn's buffer, to leave with the end of the response. When ctx is done the host counts as
// gone. It returns nil after the turn's last line, and otherwise why conn got no further:
// [ndjson.ErrGone], [ErrOutgrown] before anything was written, or the error of a write. When it has
// returned, nobody touches conn any more.
func (s Stream) Serve(ctx context.Context, conn ndjson.Conn) error {
	if s.Repeat == First {
		return s.run.serve(ctx, conn)
	}
	return s.Follow(ctx, conn, 0)
}

// Follow attaches conn to part n of a turn that is run elsewhere, and returns when that part, or the
// turn, has ended; otherwise it is like Serve. Parts are counted from 0; only [Output.Cut] makes more
// than one. It takes the place of Serve, for a Stream that Run serves too.
func (s Stream) Follow(ctx context.Context, conn ndjson.Conn, part int) error {
	a, err := s.Attach(conn, part)
	if err != nil {
		return err
	}
	return a.Follow(ctx)
}

// Attach is the first half of Follow: from now on the adapter waits for conn where it is too far ahead of
// it. A protocol that must not miss anything attaches before it calls Run. After nil, Follow must be
// called exactly once on what it returns; the errors are those of [Stream.Follow] before anything was
// written.
func (s Stream) Attach(conn ndjson.Conn, part int) (Attached, error) {
	from, ok := s.rec.log.Part(part)
	if !ok {
		s.leave(ErrNoPart)
		return Attached{}, ErrNoPart
	}
	tail, err := s.rec.log.Attach(conn, from)
	if err != nil {
		s.leave(ErrOutgrown)
		return Attached{}, ErrOutgrown
	}
	return Attached{s, tail}, nil
}

func (s Stream) leave(err error) {
	if s.run != nil {
		s.run.leave(err)
	}
}

// An Attached is a connection that [Stream.Attach] has attached to a turn.
type Attached struct {
	stream Stream
	tail   *ndjson.Tail
}

// Follow lets lines out to the connection as they come, and returns as [Stream.Follow] does. When it has
// returned, nobody touches the connection any more.
func (a Attached) Follow(ctx context.Context) error {
	err := a.tail.Follow(ctx.Done())
	a.tail.Detach()
	a.stream.leave(err)
	return err
}

// Run runs the turn on this goroutine without a connection, and returns when its adapter has. It is for
// protocols whose turns outlive the request that brought them: they call it on a goroutine of their
// own, and attach connections, or a sender, with Follow.
func (s Stream) Run() {
	if s.Repeat == First {
		s.run.launch()
	}
}

// Output returns the turn's output, for lines that the protocol writes by itself.
func (s Stream) Output() Output { return Output{&s.rec.log} }

// An Output takes lines that a protocol writes into a turn's log between those that its [Sink] makes:
// an answer to a cancellation, a tool request. It may be used from several goroutines.
type Output struct{ log *ndjson.Log }

// Append appends whole lines; encode is called like a method of [Sink]. After the turn's last line it
// returns [ndjson.ErrSealed] and does not call encode.
func (o Output) Append(encode func(dst []byte) []byte) error {
	if err := o.log.Begin(); err != nil {
		return err
	}
	o.log.Commit(encode(o.log.Room(256)), false)
	return nil
}

// Cut ends a part of the turn: connections that follow it end here, while the turn goes on and what
// comes next is the next part.
func (o Output) Cut() { o.log.Cut() }

// settle takes a turn that has ended out of the registry, or keeps its log for repeats.
func (e *Engine) settle(r *Run, completed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rec := r.rec
	e.active--
	rec.run = nil
	mine := e.turns[rec.key] == rec // a repeat may have taken its place
	if !mine {
		return
	}
	if !completed || r.forget || e.conf.Replay == 0 || rec.log.Trimmed() {
		delete(e.turns, rec.key)
		return
	}
	rec.expires = ndjson.Now() + int64(e.conf.Replay)
	rec.size = recordOverhead + rec.log.Held() + int64(len(rec.key.turn)+len(rec.key.session.Handle))
	e.ended.list = append(e.ended.list, rec)
	e.ended.bytes += rec.size
	e.expire()
}

// expire forgets ended turns that are too old or too many. Called with the engine locked.
func (e *Engine) expire() {
	f, now := &e.ended, ndjson.Now()
	for f.head < len(f.list) {
		rec := f.list[f.head]
		if f.bytes <= e.conf.ReplayBytes && now < rec.expires {
			break
		}
		f.list[f.head] = nil
		f.head++
		f.bytes -= rec.size
		if e.turns[rec.key] == rec {
			delete(e.turns, rec.key)
		}
	}
	if f.head > 64 && f.head > len(f.list)/2 {
		n := copy(f.list, f.list[f.head:])
		clear(f.list[n:])
		f.list, f.head = f.list[:n], 0
	}
}

// closed takes a run that is over, hooks and all, off the engine's list.
func (e *Engine) closed(r *Run) {
	e.mu.Lock()
	if r.next != nil {
		r.next.prev = r.prev
	}
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		e.runs = r.next
	}
	r.prev, r.next = nil, nil // an adapter that was abandoned may keep r for long
	if e.runs == nil && e.quiet != nil {
		close(e.quiet)
		e.quiet = nil
	}
	e.mu.Unlock()
}

// Drain refuses new turns from now on and waits for the running ones. When ctx is done it cancels what
// is left with [adapters.CauseDrain], waits for it to end (at most the grace and a little), and returns
// context.Cause(ctx); otherwise nil. It may be called several times.
func (e *Engine) Drain(ctx context.Context) error {
	quiet := e.startDrain()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		select {
		case <-quiet: // nothing was left, whatever the time
			return nil
		default:
		}
	}
	e.CancelAll()
	t := time.NewTimer(e.conf.Grace + 5*time.Second)
	defer t.Stop()
	select {
	case <-quiet:
	case <-t.C:
	}
	return context.Cause(ctx)
}

// CancelAll has every turn that runs end with [adapters.CauseDrain], and does not wait for that.
func (e *Engine) CancelAll() {
	e.mu.Lock()
	var runs []*Run
	for r := e.runs; r != nil; r = r.next {
		runs = append(runs, r)
	}
	e.mu.Unlock()
	for _, r := range runs {
		r.stop(adapters.CauseDrain)
	}
}

func (e *Engine) startDrain() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draining = true
	if e.runs == nil {
		c := make(chan struct{})
		close(c)
		return c
	}
	if e.quiet == nil {
		e.quiet = make(chan struct{})
	}
	return e.quiet
}

// Draining tells whether Drain has been called.
func (e *Engine) Draining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.draining
}

// WaitAdapters waits until every adapter has returned, those that were abandoned too. It is for tests
// and for programs that end only when all is gone.
func (e *Engine) WaitAdapters() { e.goroutines.Wait() }

// Stop ends the turn with this id as asked for by the host, and tells whether there was one.
func (e *Engine) Stop(protocol adapters.Protocol, key session.Key, turn string) bool {
	e.mu.Lock()
	rec := e.turns[turnKey{protocol, key, turn}]
	var r *Run
	if rec != nil {
		r = rec.run
	}
	e.mu.Unlock()
	if r == nil {
		return false
	}
	r.stop(adapters.CauseStopped)
	return true
}

// Stats are an engine's counts at one moment.
type Stats struct {
	// Active turns run or wait for their session; Total were started since the engine was made.
	Active, Total int64
	// Abandoned adapters ignored the end of their turn and have not returned yet.
	Abandoned int64
	// Replayable turns have ended and can be repeated; ReplayBytes is the memory they take.
	Replayable, ReplayBytes int64
}

// Stats returns the engine's counts.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire()
	return Stats{
		Active:      int64(e.active),
		Total:       e.total.Load(),
		Abandoned:   e.abandoned.Load(),
		Replayable:  int64(len(e.ended.list) - e.ended.head),
		ReplayBytes: e.ended.bytes,
	}
}

// Refuse tells the hooks that a turn was refused or repeated.
func (e *Engine) Refuse(ctx context.Context, p adapters.Protocol, reason string) {
	for i := range e.conf.Hooks {
		if h := e.conf.Hooks[i].Refuse; h != nil {
			e.guard("Refuse", func() { h(ctx, p, reason) })
		}
	}
}

// guard calls a hook and survives its panic.
func (e *Engine) guard(name string, call func()) {
	defer func() {
		if v := recover(); v != nil {
			e.conf.Logger.Error("a hook panicked", slog.String("hook", name), slog.String("panic", typeOf(v)))
		}
	}()
	call()
}

var fingerprintSeed = maphash.MakeSeed()

// Fingerprint makes a [Spec]'s Fingerprint of the parts that tell turns of one id apart. It differs
// from process to process.
func Fingerprint(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(fingerprintSeed)
	for _, p := range parts {
		var n [8]byte
		for i := range n {
			n[i] = byte(len(p) >> (8 * i))
		}
		_, _ = h.Write(n[:])
		_, _ = h.WriteString(p)
	}
	return h.Sum64()
}
