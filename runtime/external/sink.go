package external

import (
	"bytes"
	"encoding/json"
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
	// frozen: what the part that runs has said is being committed. Lines are held back until it is cut.
	frozen bool
	held   []byte
	// suspended: no part runs.
	suspended bool

	product  []byte
	measured measured
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
	o.prefix = "event:" + t.names.id + ":"
	// Running events are at most a quarter of all, evenly over the time that the turn may take, so that
	// they can never use up the rest.
	o.moreRuns = max(1, o.limits.MaxEvents/4)
	o.spacing = int64(t.deadline.Sub(t.accepted)) / o.moreRuns
	o.measured.fidelity = t.profile.UsageFidelity
}

// over tells that nothing more is taken from the adapter.
func (o *output) over() bool { return o.closed || o.reason != "" }

func (o *output) isOver(t *turn) (over bool) {
	if t.stream.Output().Append(func(dst []byte) []byte { over = o.over(); return dst }) != nil {
		return true
	}
	return over
}

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

// room tells whether another event leaves room for so many behind it.
func (o *output) room(behind int64) bool { return o.seq+1 <= o.limits.MaxEvents-behind }

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

func (o *output) empty() bool { return o.size == 0 }

// freeze holds back what is emitted until thaw.
func (o *output) freeze() { o.frozen = true }

// thaw lets out what was held back, as the beginning of the next part where this one was cut.
func (o *output) thaw(cut bool) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		o.frozen = false
		if cut {
			o.suspended = true
			o.rec, o.size = nil, 0
		}
		held := o.held
		o.held = nil
		if len(held) > 0 {
			o.keep(held)
		}
		return append(dst, held...)
	}
}

// recording is what the part that runs has said. The output is frozen, or over.
func (o *output) recording(keep time.Duration) ledger.Recording {
	r := ledger.Recording{LastSeq: o.seq, Expires: expiry(time.Now(), keep)}
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
		o.runs++
		o.nextRun = ndjson.Now() + o.spacing
	case wire.ProgressCancelling:
		if o.cancelling {
			return dst
		}
		o.cancelling = true
	}
	dst, _ = o.emit(dst, &wire.Event{Kind: wire.EventProgress, ProgressCode: code, ProgressCurrent: int64(len(o.product))}, behindProgress)
	return dst
}

// running says that the adapter is at work, now and then.
func (o *output) running(dst []byte) []byte {
	if o.frozen || o.suspended || o.runs >= o.moreRuns || ndjson.Now() < o.nextRun {
		return dst
	}
	return o.progress(dst, wire.ProgressRunning)
}

// stale fails a turn whose adapter goes on although its session was closed.
func (o *output) stale() bool {
	if o.sessionClosed {
		o.fail(wire.StatusFailed, wire.ReasonEventStale)
	}
	return o.sessionClosed
}

// asking appends a tool request or a question, or tells why it may not be.
func (o *output) asking(dst []byte, e *wire.Event) ([]byte, wire.ReasonCode) {
	e.SeqNo, e.EventRef, e.TurnRef, e.At = 1, o.ref(), o.t.ref, wire.DateTimeOf(o.now())
	if _, err := wire.ParseEvent(e.Append(nil)); err != nil {
		return dst, wire.ReasonEventMalformed
	}
	dst, ok := o.emit(dst, e, behindOther)
	if !ok {
		return dst, wire.ReasonEventOversized
	}
	return dst, ""
}

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

// Usage implements [runtime.UsageSink].
func (t *turn) Usage(u adapters.Usage) { t.out.measured.add(u) }

// End implements [runtime.Sink].
func (t *turn) End(dst []byte, _ *runtime.Outcome) []byte { return append(dst, t.out.final...) }

// Candidate implements [runtime.CandidateSink].
func (t *turn) Candidate(dst []byte, event json.RawMessage) ([]byte, error) {
	o := &t.out
	if o.over() {
		return dst, adapters.ErrTurnOver
	}
	dst, status, reason := o.candidate(dst, event)
	if reason != "" {
		o.fail(status, reason)
		return dst, fmt.Errorf("the candidate event ends the turn: %s", reason)
	}
	return dst, nil
}

// candidate appends an event of the adapter's, or tells how the turn ends because of it.
func (o *output) candidate(dst []byte, event json.RawMessage) ([]byte, wire.Status, wire.ReasonCode) {
	failed := func(reason wire.ReasonCode) ([]byte, wire.Status, wire.ReasonCode) {
		return dst, wire.StatusFailed, reason
	}
	line, given, ok := o.complete(event)
	if !ok {
		return failed(wire.ReasonEventMalformed)
	}
	e, err := wire.ParseEvent(line)
	if err != nil {
		return failed(wire.ReasonEventMalformed)
	}
	at, err := e.At.Time()
	if err != nil {
		return failed(wire.ReasonEventMalformed)
	}
	switch {
	case e.SeqNo <= o.seq, given && o.known(e.EventRef):
		return failed(wire.ReasonEventDuplicate)
	case e.SeqNo > o.seq+1, at.Before(o.lastAt):
		return failed(wire.ReasonEventReordered)
	case int64(len(line)) > o.limits.MaxEventBytes, !o.room(behindOther):
		return failed(wire.ReasonEventOversized)
	case e.TurnRef != o.t.ref:
		return failed(wire.ReasonEventUnauthorized)
	}
	mediated := o.t.profile.ToolMode == wire.ToolsMediated
	switch {
	case e.Kind == wire.EventToolRequest && !mediated:
		return dst, wire.StatusRefused, wire.ReasonToolNotAdmitted
	case e.Kind == wire.EventOperatorQuestion && !mediated:
		return dst, wire.StatusRefused, wire.ReasonApprovalNotAdmitted
	case e.Kind != wire.EventActionCandidate:
		return failed(wire.ReasonEventUnauthorized)
	case o.sessionClosed:
		return failed(wire.ReasonEventStale)
	}
	if given {
		if o.refs == nil {
			o.refs = map[wire.EventRef]bool{}
		}
		o.refs[e.EventRef] = true
	}
	start := len(dst)
	dst = append(append(dst, line...), '\n')
	return o.said(dst, start, at), "", ""
}

// complete makes one line of a candidate and gives it the number, the ref and the time that it lacks.
// given tells whether the ref is the adapter's.
func (o *output) complete(event json.RawMessage) (line []byte, given, ok bool) {
	var fields map[string]json.RawMessage
	var compact bytes.Buffer
	if json.Unmarshal(event, &fields) != nil || len(fields) == 0 || json.Compact(&compact, event) != nil {
		return nil, false, false
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
	return append(line, compact.Bytes()[1:]...), given, true
}

// known tells whether an event of this ref was emitted.
func (o *output) known(ref wire.EventRef) bool {
	if o.refs[ref] {
		return true
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(string(ref), o.prefix), 10, 64)
	return err == nil && strings.HasPrefix(string(ref), o.prefix) && n <= o.seq
}
