package external

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/external"
)

// An output is the state of a turn's stream. It belongs to whoever holds the lock of the turn's log.
type output struct {
	t      *turn
	limits wire.Limits
	prefix string // of the event refs that we give

	seq    int64
	lastAt time.Time
	refs   map[wire.EventRef]bool // those that the adapter gave

	// rec is what the part that runs has said so far, or what was said since the last one; size is its
	// length also where it is too long to be kept.
	rec  []byte
	size int64
	// frozen: the suspension that ends the part is being committed. Its last lines are pending: they leave
	// once it is. What is emitted meanwhile is held, as the beginning of the next part.
	frozen  bool
	pending []byte
	held    []byte
	before  mark  // where the output was before what is pending
	ends    int64 // the number of the last line that is pending
	// suspended: no part runs.
	suspended bool
	// owed is how many awaiting-observation events are still to come, for requests that are outstanding
	// besides the one that the host answers next. Nothing else takes their room.
	owed int64

	product  []byte
	measured measured
	called   bool  // the adapter was called
	runs     int64 // running events sent
	nextRun  int64 // when the next one may be, on ndjson's clock
	spacing  int64 // between two of them
	moreRuns int64 // how many there may be

	sessionClosed bool
	cancelling    bool // the host was told so
	closed        bool // settlement has begun: nothing is emitted any more

	// What ends the turn before its adapter does, empty while nothing does.
	status wire.Status
	reason wire.ReasonCode

	final []byte // the last lines, once they are committed
}

// maxRecorded is the longest part that is kept for replays, in bytes.
const maxRecorded = 8 << 20

// Events that must still find room behind another one, at least: what is dropped first has to leave the
// most room.
const (
	behindProgress = 3 // product, usage, outcome
	behindOther    = 2 // product, outcome
	behindProduct  = 1 // outcome
	behindUsage    = 1
	behindOutcome  = 0
)

func (o *output) init(t *turn) {
	o.t = t
	o.limits = t.profile.Limits
	o.prefix = "event:" + t.names.run(t.accepted) + ":"
	// Running events are at most a quarter of all, evenly over the time that the turn may take, so that
	// they can never use up the rest.
	o.moreRuns = max(1, o.limits.MaxEvents/4)
	o.within(t.cutoff().Sub(t.accepted))
	o.measured.fidelity = t.profile.UsageFidelity
}

// within spreads running events over the time that the turn may take.
func (o *output) within(d time.Duration) { o.spacing = int64(d) / o.moreRuns }

// over tells that nothing more is taken from the adapter.
func (o *output) over() bool { return o.closed || o.reason != "" }

// fail has the turn end with a reason of its own. The first one counts.
func (o *output) fail(status wire.Status, reason wire.ReasonCode) {
	if o.over() {
		return
	}
	o.status, o.reason = status, reason
	t := o.t
	t.h.tasks.Go(func() { t.stream.Stop(adapters.CauseStopped) })
}

// now is the time of the next event, which never goes back.
func (o *output) now() time.Time {
	now := time.Now().UTC().Truncate(time.Microsecond)
	if now.Before(o.lastAt) {
		return o.lastAt
	}
	return now
}

func (o *output) ref() wire.EventRef {
	ref := wire.EventRef(o.prefix + strconv.FormatInt(o.seq+1, 10))
	for o.refs[ref] { // an adapter that guessed it
		ref += "x"
	}
	return ref
}

// room tells whether another event leaves room for so many behind it, and for those that are owed.
func (o *output) room(behind int64) bool { return o.seq+1 <= o.limits.MaxEvents-behind-o.owed }

// emit appends an event, with its number, its ref and its time; false where it is over the turn's
// limits, which do not hold for the outcome.
func (o *output) emit(dst []byte, e *wire.Event, behind int64) ([]byte, bool) {
	if behind != behindOutcome && !o.room(behind) {
		return dst, false
	}
	at := o.now()
	e.SeqNo, e.EventRef, e.TurnRef, e.At = o.seq+1, o.ref(), o.t.ref, wire.DateTimeOf(at)
	start := len(dst)
	dst = e.Append(dst)
	if behind != behindOutcome && int64(len(dst)-start) > o.limits.MaxEventBytes {
		return dst[:start], false
	}
	return o.said(append(dst, '\n'), start, at), true
}

// said counts a line that was appended at start.
func (o *output) said(dst []byte, start int, at time.Time) []byte {
	o.seq++
	o.lastAt = at
	if o.frozen {
		o.held = append(o.held, dst[start:]...)
		return dst[:start]
	}
	o.keep(dst[start:])
	return dst
}

func (o *output) keep(line []byte) {
	o.size += int64(len(line))
	if o.size <= maxRecorded {
		if o.rec == nil {
			o.rec = make([]byte, 0, max(1024, 2*len(line)))
		}
		o.rec = append(o.rec, line...)
	} else {
		o.rec = nil
	}
}

// A mark is a place in the output to which it can go back while nothing behind it has left.
type mark struct {
	seq    int64
	lastAt time.Time
	size   int64
}

func (o *output) mark() mark { return mark{o.seq, o.lastAt, o.size} }

// reset takes back what was emitted since the mark.
func (o *output) reset(m mark) {
	o.seq, o.lastAt = m.seq, m.lastAt
	if o.size <= maxRecorded { // else it stays too long to be kept
		o.rec, o.size = o.rec[:m.size], m.size
	}
}

// freeze holds back the last lines of the part that runs, which are in the recording already, and all
// that is emitted behind them, until thaw.
func (o *output) freeze(from mark, lines []byte) {
	o.frozen, o.before, o.pending, o.ends = true, from, lines, o.seq
}

// last lets the last lines of the part out, whose suspension is committed.
func (o *output) last(dst []byte) []byte {
	dst = append(dst, o.pending...)
	o.pending = nil
	return dst
}

// thaw begins the next part, with what was held back.
func (o *output) thaw(dst []byte) []byte {
	o.frozen, o.suspended = false, true
	o.rec, o.size = nil, 0
	held := o.held
	o.held = nil
	if len(held) > 0 {
		o.keep(held)
	}
	return append(dst, held...)
}

// unfreeze takes back all that was held: the suspension could not be committed, and ends the turn.
func (o *output) unfreeze() {
	o.reset(o.before)
	o.frozen, o.pending, o.held = false, nil, nil
}

// recording is what the part that runs has said. The output is frozen, or over.
func (o *output) recording(keep time.Duration) ledger.Recording {
	r := ledger.Recording{LastSeq: o.seq, Expires: expiry(time.Now(), keep)}
	if o.frozen {
		r.LastSeq = o.ends
	}
	if o.size > maxRecorded {
		r.Oversized, r.Size = true, o.size
	} else {
		r.Lines = o.rec
	}
	return r
}

// progress appends a progress event, if there is room for one.
func (o *output) progress(dst []byte, code wire.ProgressCode) []byte {
	if o.over() {
		return dst
	}
	switch code {
	case wire.ProgressRunning:
		if o.cancelling {
			return dst
		}
		o.runs++
		o.nextRun = ndjson.Now() + o.spacing
	case wire.ProgressCancelling:
		if o.cancelling {
			return dst
		}
		o.cancelling = true
	}
	dst, _ = o.emit(dst, o.at(code), behindProgress)
	return dst
}

// at is a progress event.
func (o *output) at(code wire.ProgressCode) *wire.Event {
	return &wire.Event{Kind: wire.EventProgress, ProgressCode: code, ProgressCurrent: int64(len(o.product))}
}

// running says that the adapter is at work, now and then.
func (o *output) running(dst []byte) []byte {
	if !o.called || o.frozen || o.suspended || o.runs >= o.moreRuns || ndjson.Now() < o.nextRun {
		return dst
	}
	return o.progress(dst, wire.ProgressRunning)
}

// goesOn says that the adapter is at work again, unless too much was said of that already.
func (o *output) goesOn(dst []byte) []byte {
	if o.runs >= o.moreRuns {
		return dst
	}
	return o.progress(dst, wire.ProgressRunning)
}

// awaits appends the event that ends a part; false where it is too large, as there always is room.
func (o *output) awaits(dst []byte) ([]byte, bool) {
	return o.emit(dst, o.at(wire.ProgressAwaitingObservation), behindOther)
}

// stale fails a turn whose adapter goes on although its session was closed.
func (o *output) stale() bool {
	if o.sessionClosed {
		o.fail(wire.StatusFailed, wire.ReasonEventStale)
	}
	return o.sessionClosed
}

// asking appends a tool request or a question, with room behind it for an awaiting-observation event, or
// tells how the turn ends because of it.
func (o *output) asking(dst []byte, e *wire.Event) ([]byte, *fault) {
	e.SeqNo, e.EventRef, e.TurnRef, e.At = 1, o.ref(), o.t.ref, wire.DateTimeOf(o.now())
	if _, err := wire.ParseEvent(e.Append(nil)); err != nil {
		return dst, failed(wire.ReasonEventMalformed, "%w", err)
	}
	lines, ok := o.emit(dst, e, behindOther+1)
	if !ok {
		return dst, o.oversized("the request")
	}
	return lines, nil
}

// suspending holds back a request and the awaiting-observation event behind it, as the end of the part that
// runs, until it is committed that the turn is suspended.
func (o *output) suspending(e *wire.Event) *fault {
	from := o.mark()
	lines, f := o.asking(nil, e)
	if f != nil {
		return f
	}
	lines, ok := o.awaits(lines)
	if !ok {
		o.reset(from)
		return o.oversized("the event behind the request")
	}
	o.freeze(from, lines)
	return nil
}

// awaiting is suspending for a part that has nothing new to ask.
func (o *output) awaiting() *fault {
	from := o.mark()
	lines, ok := o.awaits(nil)
	if !ok {
		return o.oversized("what says that an observation is awaited")
	}
	o.freeze(from, lines)
	return nil
}

// oversized is the fault of what is over the limits.
func (o *output) oversized(what string) *fault {
	return failed(wire.ReasonEventOversized, "%s has no room: the turn has %d events, at most %d, and an event %d bytes", what, o.seq, o.limits.MaxEvents, o.limits.MaxEventBytes)
}

// A fault is how a turn ends over what its adapter said.
type fault struct {
	status wire.Status
	reason wire.ReasonCode
	why    error // for the adapter
}

func failed(reason wire.ReasonCode, format string, args ...any) *fault {
	return &fault{wire.StatusFailed, reason, fmt.Errorf(format, args...)}
}

// err tells the adapter.
func (f *fault) err() error { return fmt.Errorf("%w: %s: %w", adapters.ErrTurnOver, f.reason, f.why) }

// Started implements [runtime.Sink].
func (t *turn) Started(dst []byte) []byte { return t.out.progress(dst, wire.ProgressAccepted) }

// Text implements [runtime.Sink]: chunks are gathered.
func (t *turn) Text(dst []byte, s string) []byte {
	o := &t.out
	if o.over() || o.stale() {
		return dst
	}
	if int64(len(o.product)+len(s)) > o.limits.MaxProductBytes {
		o.fail(wire.StatusFailed, wire.ReasonEventOversized)
		return dst
	}
	o.product = append(o.product, s...)
	return o.running(dst)
}

// Status implements [runtime.Sink]. What it says is prose and goes nowhere.
func (t *turn) Status(dst []byte, _ string) []byte {
	if t.out.over() || t.out.stale() {
		return dst
	}
	return t.out.running(dst)
}

// Heartbeat implements [runtime.Sink].
func (t *turn) Heartbeat(dst []byte) []byte { return t.out.running(dst) }

// Usage implements [runtime.UsageSink]. What comes once the turn is ended by the adapter's own output does
// not count: whether it still can come is a matter of luck, and the charge is not.
func (t *turn) Usage(u adapters.Usage) {
	if !t.out.over() {
		t.out.measured.add(u)
	}
}

// End implements [runtime.Sink].
func (t *turn) End(dst []byte, _ *runtime.Outcome) []byte { return append(dst, t.out.final...) }

// Candidate implements [runtime.CandidateSink].
func (t *turn) Candidate(dst []byte, event json.RawMessage) ([]byte, error) {
	o := &t.out
	if o.over() {
		return dst, adapters.ErrTurnOver
	}
	lines, f := o.candidate(dst, event)
	if f != nil {
		o.fail(f.status, f.reason)
		return dst, f.err()
	}
	return lines, nil
}

// maxSkew is how far ahead of this process's clock the time of a candidate may be: it becomes the time of
// whatever follows it.
const maxSkew = time.Second

// candidate appends an event of the adapter's, or tells how the turn ends because of it.
func (o *output) candidate(dst []byte, event json.RawMessage) ([]byte, *fault) {
	line, given, err := o.complete(event)
	if err != nil {
		return dst, failed(wire.ReasonEventMalformed, "%w", err)
	}
	e, err := wire.ParseEvent(line)
	if err != nil {
		return dst, failed(wire.ReasonEventMalformed, "%w", err)
	}
	at, err := e.At.Time()
	if err != nil {
		return dst, failed(wire.ReasonEventMalformed, "%w", err)
	}
	now := o.now()
	switch {
	case at.Sub(now) > maxSkew:
		return dst, failed(wire.ReasonEventMalformed, "/at is %s, which is more than %v ahead of %s", e.At, maxSkew, wire.DateTimeOf(now))
	case e.SeqNo <= o.seq:
		return dst, failed(wire.ReasonEventDuplicate, "/seq~1no is %d, expected %d", e.SeqNo, o.seq+1)
	case given && o.known(e.EventRef):
		return dst, failed(wire.ReasonEventDuplicate, "/event~1ref is that of an earlier event")
	case e.SeqNo > o.seq+1:
		return dst, failed(wire.ReasonEventReordered, "/seq~1no is %d, expected %d", e.SeqNo, o.seq+1)
	case at.Before(o.lastAt):
		return dst, failed(wire.ReasonEventReordered, "/at is %s, which is before %s, that of the last event", e.At, wire.DateTimeOf(o.lastAt))
	case int64(len(line)) > o.limits.MaxEventBytes, !o.room(behindOther):
		return dst, o.oversized(fmt.Sprintf("the candidate of %d bytes", len(line)))
	case e.TurnRef != o.t.ref:
		return dst, failed(wire.ReasonEventUnauthorized, "/turn~1ref is another turn's")
	}
	mediated := o.t.profile.ToolMode == wire.ToolsMediated
	switch {
	case e.Kind == wire.EventToolRequest && !mediated:
		return dst, denied(wire.ReasonToolNotAdmitted)
	case e.Kind == wire.EventOperatorQuestion && !mediated:
		return dst, denied(wire.ReasonApprovalNotAdmitted)
	case e.Kind != wire.EventActionCandidate:
		return dst, failed(wire.ReasonEventUnauthorized, "/kind is %s, and a candidate's is %s", e.Kind, wire.EventActionCandidate)
	case o.sessionClosed:
		return dst, failed(wire.ReasonEventStale, "the session was closed")
	}
	if given {
		if o.refs == nil {
			o.refs = map[wire.EventRef]bool{}
		}
		o.refs[e.EventRef] = true
	}
	start := len(dst)
	dst = append(append(dst, line...), '\n')
	return o.said(dst, start, at), nil
}

// denied is the fault of asking where the profile's tool/mode is deny-all.
func denied(reason wire.ReasonCode) *fault {
	return &fault{wire.StatusRefused, reason, fmt.Errorf("%w: the profile's tool/mode is %s", adapters.ErrToolNotAdmitted, wire.ToolsDenyAll)}
}

// complete makes one line of a candidate and gives it the number, the ref and the time that it lacks.
// given tells whether the ref is the adapter's.
func (o *output) complete(event json.RawMessage) (line []byte, given bool, err error) {
	var fields map[string]json.RawMessage
	var compact bytes.Buffer
	if err := json.Unmarshal(event, &fields); err != nil {
		return nil, false, fmt.Errorf("it is no JSON object: %w", err)
	}
	if len(fields) == 0 {
		return nil, false, errors.New("it is an empty object")
	}
	if err := json.Compact(&compact, event); err != nil {
		return nil, false, err
	}
	line = append(line, '{')
	if _, has := fields["seq/no"]; !has {
		line = append(strconv.AppendInt(append(line, `"seq/no":`...), o.seq+1, 10), ',')
	}
	if _, given = fields["event/ref"]; !given {
		line = append(ndjson.AppendString(append(line, `"event/ref":`...), string(o.ref())), ',')
	}
	if _, has := fields["at"]; !has {
		line = append(ndjson.AppendString(append(line, `"at":`...), string(wire.DateTimeOf(o.now()))), ',')
	}
	return append(line, compact.Bytes()[1:]...), given, nil
}

// known tells whether an event of this ref was emitted.
func (o *output) known(ref wire.EventRef) bool {
	if o.refs[ref] {
		return true
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(string(ref), o.prefix), 10, 64)
	return err == nil && strings.HasPrefix(string(ref), o.prefix) && n <= o.seq
}
