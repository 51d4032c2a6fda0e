package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

// A Run is one turn while it runs. What is guarded by the engine's lock decides the turn's fate; what
// is guarded by the log's lock belongs to its output.
type Run struct {
	engine  *Engine
	rec     *record
	sink    Sink
	adapter adapters.Adapter
	lease   *session.Lease
	window  []adapters.Message
	owner   Recycler
	ctx     turnContext
	cancel  context.CancelCauseFunc
	timer   *time.Timer // watch

	hostGone    time.Duration
	publicTexts bool
	headless    bool
	forget      bool
	noWindow    bool
	values      adapters.Values // the protocol's own; nil means the lease

	accepted time.Time
	begun    int64 // accepted, on ndjson's clock
	deadline int64

	// Guarded by engine.mu.
	prev, next *Run
	readers    int
	firstLeft  bool  // the host that sent the turn is none of them any more
	left       int64 // when the last reader went
	graceEnd   int64
	launched   bool
	ending     bool
	ended      bool

	first *ndjson.Tail  // the connection of the host that sent the turn, if it came with one
	over  chan struct{} // closed at the turn's end, where the host waits for it on a goroutine of its own

	// Written by the adapter's goroutine, read by watch.
	clock     atomic.Int64 // since when the first-output or idle clock runs
	lastLine  atomic.Int64 // when a line was last appended
	observing atomic.Int32 // for answers to Tool and Ask
	waiting   atomic.Bool  // for the session
	outputs   atomic.Bool  // there was some output

	// Guarded by the log's lock.
	closed     bool // the adapter's output goes nowhere
	runes      joiner
	text       *[]byte         // the answer so far, nil where there is none or it is too long to be remembered
	usage      *adapters.Usage // nil while none is reported
	chunks     int64
	bytes      int64
	heartbeats int64
	firstOut   int64

	// The adapter's goroutine's own until finish.
	hookCtx context.Context
	err     error
	crash   *crash
	// Written before called is set, and not changed afterwards.
	waited     time.Duration
	continuity adapters.Continuity
	history    int
	called     atomic.Bool
	inside     bool // launch has not come to its end

	// The engine's own copies, whatever the adapter does to its turn.
	agentID string
	message string
	turn    adapters.Turn // the adapter's
}

// A crash is a panic of an adapter, or the end of its goroutine (value nil).
type crash struct {
	value any
	stack []byte
}

// A turnContext is a context with a deadline that the engine's watch keeps: the turn needs no second
// timer, and the cause of its cancellation is found by [context.Cause] as ever.
type turnContext struct {
	context.Context
	run *Run
}

// Deadline tells when the turn is cut off.
func (c turnContext) Deadline() (time.Time, bool) {
	d := c.run.turnDeadline()
	return d, !d.IsZero()
}

// Err is DeadlineExceeded after a limit of time, as with the context package's own deadlines.
func (c turnContext) Err() error {
	err := c.Context.Err()
	if err != nil && errors.Is(context.Cause(c.Context), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

func (r *Run) turnDeadline() time.Time {
	if r.deadline == int64(forever) {
		return time.Time{}
	}
	return r.accepted.Add(time.Duration(r.deadline - r.begun))
}

// maxRemembered is the longest answer that enters the conversation.
const maxRemembered = 8 << 20

// Buffers for answers: nearly all are short, and a few are long.
const (
	shortText = 1 << 10
	longText  = 64 << 10
)

var (
	shortTexts = sync.Pool{New: func() any { b := make([]byte, 0, shortText); return &b }}
	longTexts  = sync.Pool{New: func() any { b := make([]byte, 0, 4*longText); return &b }}
)

// freeText gives back the buffer of an answer.
func freeText(b *[]byte) {
	switch c := cap(*b); {
	case c > 2<<20:
	case c >= longText:
		*b = (*b)[:0]
		longTexts.Put(b)
	default:
		*b = (*b)[:0]
		shortTexts.Put(b)
	}
}

// longest is as far away as a deadline is looked at: a sum of later ones overflows.
const longest = 100 * 365 * 24 * time.Hour

// newRun makes a run that nobody knows yet.
func newRun(ctx context.Context, e *Engine, rec *record, spec *Spec) *Run {
	r := &Run{
		engine:      e,
		rec:         rec,
		sink:        spec.Sink,
		adapter:     spec.Adapter,
		window:      spec.Window,
		owner:       spec.Owner,
		hostGone:    spec.HostGone,
		publicTexts: spec.PublicTexts,
		headless:    spec.Turn.Flags.Headless,
		forget:      spec.Forget,
		noWindow:    spec.NoWindow,
		values:      spec.Values,
		readers:     1,
		begun:       ndjson.Now(),
		accepted:    time.Now(),
		deadline:    int64(forever),
		agentID:     spec.Turn.AgentID,
		message:     spec.Turn.Message,
		turn:        spec.Turn,
	}
	if r.hostGone == 0 {
		r.hostGone = e.conf.HostGone
	}
	switch {
	case !spec.Deadline.IsZero():
		r.deadline = r.begun + int64(min(spec.Deadline.Sub(r.accepted), longest))
	case e.conf.TurnTimeout != forever:
		r.deadline = r.begun + int64(min(e.conf.TurnTimeout, longest))
	}
	r.turn.Deadline = r.turnDeadline()
	r.ctx.run = r
	r.ctx.Context, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	r.clock.Store(r.begun)
	r.lastLine.Store(r.begun)
	rec.run = r
	rec.log.Init(e.stream(r.hostGone > 0))
	_ = rec.log.Begin() // a new log is not sealed
	rec.log.Commit(r.sink.Started(nil), false)
	return r
}

// discard gives up a run that was never admitted.
func (r *Run) discard() {
	r.cancel(adapters.CauseCompleted)
	if r.owner != nil {
		r.owner.Recycle()
	}
}

// serve runs the turn for the host that sent it, on that host's goroutine.
func (r *Run) serve(ctx context.Context, conn ndjson.Conn) (err error) {
	// A new log has all its lines.
	tail, _ := r.rec.log.Feed(conn, 0, r.firstGone)
	r.first = tail
	if err := tail.Flush(); err != nil {
		r.firstGone(err) // the turn is cancelled before its adapter is called
	}
	stop := context.AfterFunc(ctx, func() { r.firstGone(ndjson.ErrGone) })
	if _, ok := conn.(ndjson.HangUper); !ok {
		// If the adapter never gave this goroutine back, nobody could end the response.
		r.over = make(chan struct{})
		go r.launch()
		<-r.over
		stop()
		err = tail.Close()
		r.leaveOnce(err)
		return err
	}
	returned := false
	defer func() {
		stop()
		if returned {
			err = tail.Close()
		} else { // the adapter has ended this goroutine, and with it the usual end of the response
			err = tail.HangUp()
		}
		r.leaveOnce(err)
	}()
	r.launch()
	returned = true
	return nil
}

// firstGone is called when the host that sent the turn is gone, or its connection fails.
func (r *Run) firstGone(err error) {
	if why := r.first.Drop(); !errors.Is(err, os.ErrDeadlineExceeded) {
		err = why // net/http ends the request's context before a write that passed its limit returns
	}
	r.leaveOnce(err)
}

// leaveOnce is leave for the host that sent the turn, whose going may be noticed in several places.
func (r *Run) leaveOnce(err error) {
	e := r.engine
	e.mu.Lock()
	left := r.firstLeft
	r.firstLeft = true
	e.mu.Unlock()
	if !left {
		r.leave(err)
	}
}

// launch runs the turn, once.
func (r *Run) launch() {
	e := r.engine
	e.mu.Lock()
	if r.launched {
		e.mu.Unlock()
		return
	}
	r.launched = true
	held := r.lease.Held()
	r.waiting.Store(!held)
	r.timer = time.AfterFunc(r.firstLook(), r.watch)
	e.mu.Unlock()
	defer r.exit() // whatever ends this goroutine from here on

	r.inside = true
	r.hookCtx = &r.ctx
	for i := range e.conf.Hooks {
		if h := e.conf.Hooks[i].TurnStart; h != nil {
			r.startHook(h)
		}
	}
	if held {
		r.join()
	}
	r.main()
	r.inside = false
}

func (r *Run) startHook(h func(context.Context, TurnInfo) context.Context) {
	r.engine.guard("TurnStart", func() {
		if ctx := h(r.hookCtx, r.info()); ctx != nil {
			r.hookCtx = ctx
		}
	})
}

// firstLook is how long watch has nothing to do.
func (r *Run) firstLook() time.Duration {
	c := &r.engine.conf
	d := min(c.Heartbeat, c.FirstOutput, c.Idle, time.Duration(r.deadline-r.begun))
	if r.waiting.Load() {
		d = min(d, c.SessionWait)
	}
	if r.ending {
		d = min(d, c.Grace)
	}
	return max(d, 0)
}

// main calls the adapter.
func (r *Run) main() {
	if r.waiting.Load() && !r.await() || r.ctx.Context.Err() != nil {
		return // a turn that was cancelled while it waited never runs
	}
	r.called.Store(true)
	r.err = r.adapter.Run(r.hookCtx, &r.turn, (*writer)(r))
}

// await waits for the session.
func (r *Run) await() bool {
	if r.lease.Wait(&r.ctx) != nil {
		return false
	}
	now := ndjson.Now()
	r.waited = time.Duration(now - r.begun)
	r.clock.Store(now)
	r.waiting.Store(false)
	r.join()
	return true
}

// join gives the adapter's turn its session.
func (r *Run) join() {
	t := &r.turn
	if r.values != nil {
		t.Session = adapters.NewSession(r.rec.key.session.Handle, r.values)
		r.continuity = t.Continuity
		return
	}
	if r.noWindow {
		t.History, t.Continuity = r.lease.Recall()
	} else {
		t.History, t.Continuity = r.lease.Join(r.window)
	}
	t.Session = adapters.NewSession(r.rec.key.session.Handle, r.lease)
	r.continuity, r.history = t.Continuity, len(t.History)
}

// exit comes after the adapter however that ended: by returning, by a panic, by runtime.Goexit.
func (r *Run) exit() {
	e := r.engine
	defer e.goroutines.Done()
	if v := recover(); v != nil || r.inside {
		r.crash = &crash{v, debug.Stack()}
	}
	if r.err != nil {
		r.inspect()
	}
	if !r.finish(false) { // it was abandoned, and is back now
		e.abandoned.Add(-1)
		<-r.rec.log.Sealed() // if only just, the last line is still to come
	}
}

// inspect looks at the adapter's error where it harms nobody if that panics, as a typed nil does when it
// is asked for its cause. Such an error counts as a panic.
func (r *Run) inspect() {
	defer func() {
		if v := recover(); v != nil {
			r.err, r.crash = nil, &crash{v, debug.Stack()}
		}
	}()
	var other *overError
	_ = r.err.Error()
	_ = errors.As(r.err, &other)
	_ = errors.Is(r.err, errNoOther)
}

// errNoOther is no error's cause.
var errNoOther = errors.New("no other error")

// stop has the turn end for this cause, unless it is ending already. The adapter is told, and has the
// grace to return.
func (r *Run) stop(cause adapters.Cause) {
	r.engine.mu.Lock()
	r.order(cause)
}

// order is stop with the engine locked, which it unlocks.
func (r *Run) order(cause adapters.Cause) {
	e := r.engine
	if r.ended || r.ending {
		e.mu.Unlock()
		return
	}
	r.ending = true
	r.graceEnd = ndjson.Now() + int64(e.conf.Grace)
	if r.timer != nil {
		r.timer.Reset(e.conf.Grace)
	}
	e.mu.Unlock()
	r.cancel(cause)
}

// leave is called when a reader of the turn is gone, or has all of it (err nil).
func (r *Run) leave(err error) {
	e := r.engine
	e.mu.Lock()
	r.readers--
	if r.readers > 0 || r.ended || r.hostGone == Detach {
		e.mu.Unlock()
		return
	}
	if r.hostGone > 0 && !r.rec.log.Trimmed() && !r.ending {
		r.left = ndjson.Now()
		if r.timer != nil {
			r.timer.Reset(0)
		}
		e.mu.Unlock()
		return
	}
	// Without unlocking in between, or a repeat might attach to a turn that is lost.
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.order(adapters.CauseHostStalled)
	} else {
		r.order(adapters.CauseHostGone)
	}
}

// watch is all that limits a turn's time: it looks at every clock of the turn and sets the timer for
// the next one that may pass. Events only store the time, so they cost no timer.
func (r *Run) watch() {
	e, c, now := r.engine, &r.engine.conf, ndjson.Now()
	e.mu.Lock()
	if r.ended {
		e.mu.Unlock()
		return
	}
	if !r.ending && r.ctx.Err() != nil { // the context's own deadline was faster
		r.ending = true
		r.graceEnd = now + int64(c.Grace)
	}
	ending, graceEnd := r.ending, r.graceEnd
	alone := r.readers == 0 && r.hostGone > 0
	left := r.left
	e.mu.Unlock()
	if ending {
		if now >= graceEnd {
			r.finish(true)
		} else {
			r.look(graceEnd)
		}
		return
	}

	next := int64(forever)
	var taken int64 // when the readers took the adapter's last line
	observing := r.observing.Load() > 0
	var over adapters.Cause
	check := func(from int64, limit time.Duration, cause adapters.Cause) {
		if limit == forever {
			return
		}
		if at := from + int64(limit); at > now {
			next = min(next, at)
		} else if over == "" {
			over = cause
		}
	}
	check(r.deadline, 0, adapters.CauseTurnTimeout)
	if alone {
		check(left, r.hostGone, adapters.CauseHostGone)
	}
	if r.waiting.Load() {
		check(r.begun, c.SessionWait, adapters.CauseSessionBusy)
		if d := min(c.FirstOutput, c.Idle); d != forever { // these may begin before the next look
			next = min(next, now+int64(d))
		}
	} else {
		since, all := r.rec.log.Taken()
		taken = since
		if !all || observing {
			r.clock.Store(now) // the clock stands
		}
		if since > r.clock.Load() {
			r.clock.Store(since)
		}
		if r.outputs.Load() {
			check(r.clock.Load(), c.Idle, adapters.CauseIdle)
		} else {
			check(r.clock.Load(), c.FirstOutput, adapters.CauseFirstOutput)
		}
	}
	if over != "" {
		e.mu.Lock()
		if over == adapters.CauseHostGone && r.readers > 0 { // somebody came back at this moment
			e.mu.Unlock()
			r.look(now)
			return
		}
		r.order(over)
		return
	}
	if c.Heartbeat != forever {
		at := max(r.lastLine.Load(), taken) + int64(c.Heartbeat)
		if at <= now {
			if !observing {
				r.heartbeat(now)
			}
			at = now + int64(c.Heartbeat)
		}
		next = min(next, at)
	}
	r.look(next)
}

// look sets the timer, unless the turn has come to its end meanwhile.
func (r *Run) look(at int64) {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.ended {
		return
	}
	switch { // what came up since watch looked
	case r.ending:
		at = min(at, r.graceEnd)
	case r.readers == 0 && r.hostGone > 0:
		at = min(at, r.left+int64(r.hostGone))
	}
	r.timer.Reset(time.Duration(max(at-ndjson.Now(), 0)))
}

// heartbeat says that the turn is alive, unless a reader is behind and has lines to come.
func (r *Run) heartbeat(now int64) {
	log := &r.rec.log
	if log.Behind() || log.Begin() != nil {
		return
	}
	if r.closed {
		log.Abort()
		return
	}
	r.heartbeats++
	r.lastLine.Store(now)
	log.Commit(r.sink.Heartbeat(log.Room(128)), false)
}

// finish ends the turn, exactly once; it reports whether this call did.
func (r *Run) finish(abandoned bool) bool {
	e, log := r.engine, &r.rec.log
	o := &Outcome{
		Abandoned: abandoned,
		Accepted:  r.accepted,
	}
	r.judge(o)

	e.mu.Lock()
	if r.ended {
		e.mu.Unlock()
		return false
	}
	// A turn that completes is still joined; one that does not is not, from here at the latest.
	r.ended, r.ending = true, o.Status != Completed
	if abandoned {
		e.abandoned.Add(1)
	}
	e.mu.Unlock()
	r.timer.Stop()

	called := r.called.Load()
	if called {
		o.Continuity, o.History, o.Waited = r.continuity, r.history, r.waited
	} else {
		o.Waited = time.Duration(ndjson.Now() - r.begun)
	}

	// From here on the adapter's output goes nowhere. What was split stays incomplete.
	_ = log.Begin() // only this function seals the log
	r.closed = true
	if rest := r.runes.rest(); rest != "" {
		r.keep(rest)
		log.Commit(r.sink.Text(log.Room(64), rest), false)
	} else {
		log.Abort()
	}
	o.Chunks, o.Bytes, o.Heartbeats = r.chunks, r.bytes, r.heartbeats
	if r.usage != nil {
		o.Usage, o.UsageReported = *r.usage, true
	}
	if r.firstOut != 0 {
		o.FirstOutput = time.Duration(r.firstOut - r.begun)
	}

	if s, ok := r.sink.(Settler); ok {
		s.Settle(o)
		o.correlate()
	}

	// Whoever has read the last line may send the next turn at once: session and slot are free then.
	if o.Status == Completed && r.values == nil && r.bytes <= maxRemembered {
		var answer string
		id := r.rec.key.turn
		if r.text != nil {
			answer = unsafe.String(unsafe.SliceData(*r.text), len(*r.text)) // Commit copies it
		}
		r.lease.Commit(
			adapters.Message{Role: adapters.RoleUser, Content: r.message, TurnID: id},
			adapters.Message{Role: adapters.RoleAgent, Content: answer, TurnID: id, AgentID: r.agentID},
		)
	}
	r.lease.Release()
	if r.text != nil {
		freeText(r.text)
		r.text = nil
	}
	if r.owner != nil && (called || !abandoned) {
		r.owner.Recycle()
	}
	e.settle(r, o.Status == Completed)
	o.Total = time.Duration(ndjson.Now() - r.begun)
	_ = log.Begin()
	log.Seal(r.sink.End(log.Room(256), o), abandoned && r.over == nil)

	r.cancel(o.Cause)
	defer func() { // also where a hook ends this goroutine
		e.closed(r)
		if r.over != nil {
			close(r.over)
		}
	}()
	r.report(o)
	return true
}

// judge finds out why and how the turn ended. The context's cause comes first: an error that looks like
// a cancellation proves nothing.
func (r *Run) judge(o *Outcome) {
	if !o.Abandoned { // else they are still the adapter's
		o.Err, o.crash = r.err, r.crash
	}
	var unavailable *adapters.Unavailable
	switch cause := r.cause(); {
	case o.crash != nil:
		o.Cause = adapters.CausePanic
	case cause != "":
		o.Cause = cause
	case o.Err == nil:
		o.Cause = adapters.CauseCompleted
	case errors.As(o.Err, &unavailable):
		o.Cause = adapters.CauseProvider
	default:
		o.Cause = adapters.CauseAdapter
	}
	o.Status = statusOf(o.Cause)
	o.correlate()
	c := &r.engine.conf
	switch o.Cause {
	case adapters.CauseTurnTimeout:
		o.Limit = time.Duration(r.deadline - r.begun)
	case adapters.CauseFirstOutput:
		o.Limit = c.FirstOutput
	case adapters.CauseIdle:
		o.Limit = c.Idle
	case adapters.CauseSessionBusy:
		o.Limit = c.SessionWait
	}
}

// correlate gives an outcome its correlation id, if it is one that has it.
func (o *Outcome) correlate() {
	switch {
	case o.Status == Completed:
		o.CorrelationID = ""
	case o.CorrelationID == "":
		o.CorrelationID = fmt.Sprintf("%016x", rand.Uint64())
	}
}

// cause is why the turn is ending, empty while it is not.
func (r *Run) cause() adapters.Cause {
	if r.ctx.Context.Err() == nil {
		return ""
	}
	return adapters.CauseOf(r.ctx.Context)
}

func (r *Run) info() TurnInfo {
	k := &r.rec.key
	return TurnInfo{
		Protocol:  k.protocol,
		PluginID:  k.session.Plugin,
		AgentID:   r.agentID,
		SessionID: k.session.Handle,
		TurnID:    k.turn,
		Principal: k.session.Principal,
		Headless:  r.headless,
	}
}
