package external

import (
	"fmt"
	"strconv"
	"time"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// A Grammar holds the events of one stream to the order and the limits that they must keep
// (external-runtime.md, Running): they are all of one turn, numbered without gaps, each with a name of
// its own, none earlier than the one before; the last is the turn's outcome, and it is the only one. A
// stream may also end where the turn waits for an observation of what it has asked for and was not answered
// yet. The zero value is ready for a turn's first stream; it may be given several streams of one turn, one
// after the other, as if they were one.
type Grammar struct {
	// After is the number of the last event before the stream: 0 for a turn's first. A turn that goes on
	// may await what it asked for in a stream that the grammar has not seen.
	After int64
	// TurnRef is the turn whose stream it is; empty for that of the first event.
	TurnRef TurnRef
	// Profile has the limits that the events must keep, and tells whether the turn may ask for anything;
	// nil for no limits.
	Profile *Profile

	n         int
	refs      map[EventRef]bool
	at        time.Time
	unseen    bool  // there was a stream before
	open      int64 // requests that were not answered yet
	suspended bool
	ended     bool
}

// Next takes the next event, which must be one that [ParseEvent] accepts, and the number of bytes of
// its line without the line end. It returns what is wrong with the event here, as a rule nothing. The
// pointer of a violation is that of the event's field in the stream taken as an array: /0/at is when
// the first came about.
func (g *Grammar) Next(e *Event, size int) []schema.Violation {
	var violations []schema.Violation
	wrong := func(field, found, expected string) {
		pointer := "/" + strconv.Itoa(g.n)
		if field != "" {
			pointer += "/" + scan.EscapePointer(field)
		}
		violations = append(violations, schema.Violation{Pointer: pointer, Found: found, Expected: expected})
	}
	if g.ended {
		wrong("", "an event", "nothing after the turn's outcome")
	}
	if g.TurnRef == "" {
		g.TurnRef = e.TurnRef
	}
	if e.TurnRef != g.TurnRef {
		wrong("turn/ref", excerpt(e.TurnRef), excerpt(g.TurnRef)+", the turn of the stream")
	}
	if g.n == 0 {
		g.unseen = g.After > 0
	}
	g.After++
	if e.SeqNo != g.After {
		wrong("seq/no", strconv.FormatInt(e.SeqNo, 10), strconv.FormatInt(g.After, 10))
		g.After = max(g.After, e.SeqNo)
	}
	if g.refs[e.EventRef] {
		wrong("event/ref", excerpt(e.EventRef), "a name that no earlier event has")
	}
	if g.refs == nil {
		g.refs = map[EventRef]bool{}
	}
	g.refs[e.EventRef] = true
	if at, err := e.At.Time(); err == nil {
		if at.Before(g.at) {
			wrong("at", excerpt(e.At), "a time not before "+string(DateTimeOf(g.at))+", when the event before came about")
		} else {
			g.at = at
		}
	}
	if p := g.Profile; p != nil {
		g.limits(p, e, size, wrong)
	}

	if g.suspended { // one answer has it go on
		g.suspended = false
		g.open = max(0, g.open-1)
	}
	switch e.Kind {
	case EventToolRequest, EventOperatorQuestion:
		g.open++
	case EventProgress:
		if e.ProgressCode == ProgressAwaitingObservation {
			if g.open == 0 && !g.unseen {
				wrong("progress/code", excerpt(e.ProgressCode), "a tool request or an operator question before it that is not answered")
			}
			g.suspended = true
		}
	case EventTurnOutcome:
		g.ended = true
	}
	g.n++
	return violations
}

func (g *Grammar) limits(p *Profile, e *Event, size int, wrong func(field, found, expected string)) {
	l := p.Limits
	// The outcome always goes (external-runtime.md, Settled readings).
	if e.Kind != EventTurnOutcome {
		if g.After > l.MaxEvents {
			wrong("", fmt.Sprintf("event %d of the turn", g.After), fmt.Sprintf("at most %d events", l.MaxEvents))
		}
		if int64(size) > l.MaxEventBytes {
			wrong("", fmt.Sprintf("a line of %d bytes", size), fmt.Sprintf("at most %d bytes", l.MaxEventBytes))
		}
	}
	if n := int64(len(e.Content)); n > l.MaxProductBytes {
		wrong("content", fmt.Sprintf("a text of %d bytes", n), fmt.Sprintf("at most %d bytes", l.MaxProductBytes))
	}
	if p.ToolMode == ToolsDenyAll && (e.Kind == EventToolRequest || e.Kind == EventOperatorQuestion) {
		wrong("kind", excerpt(e.Kind), "a kind that the profile allows: its tool/mode is deny-all")
	}
}

// Ended tells whether the turn's outcome has come.
func (g *Grammar) Ended() bool { return g.ended }

// Suspended tells whether the last event said that the turn waits for an observation.
func (g *Grammar) Suspended() bool { return g.suspended }

// End takes the end of the stream and returns what is missing.
func (g *Grammar) End() []schema.Violation {
	if g.ended || g.suspended {
		return nil
	}
	return []schema.Violation{{
		Pointer:  "/" + strconv.Itoa(g.n),
		Found:    schema.Missing,
		Expected: "the turn's outcome",
	}}
}

// excerpt quotes a ref or a code, cut to some 80 characters.
func excerpt[S ~string](s S) string { return fmt.Sprintf("%.80q", string(s)) }
