package lowkey

import (
	"strconv"

	"github.com/backline-dev/backline/schema"
)

// A Grammar holds the events of one response to the order that they must have (lowkey.md, Event
// grammar): status started, then text and status working, then one event that ends the turn, and
// nothing after it. The zero value is ready for a response's first event. It is for the answer to a
// turn that was taken; a refusal is a single error event without a start.
type Grammar struct {
	n     int
	ended bool
}

// What the grammar expects.
const (
	theStart  = `status "started"`
	theMiddle = `text, status "working", or an end`
	theEnd    = `an end: status "complete", status "cancelled", or an error`
	nothing   = "nothing after the end"
)

// Next takes the next event and returns what is wrong with it here, as a rule nothing. The pointer of
// a violation is that of the event in the response taken as an array: /0 is the first.
func (g *Grammar) Next(e Event) []schema.Violation {
	at := "/" + strconv.Itoa(g.n)
	start := e.Type == EventStatus && e.Status == StatusStarted
	var expected string
	switch {
	case g.ended:
		expected = nothing
	case g.n == 0 && !start:
		expected = theStart
	case g.n > 0 && start:
		expected = theMiddle
	}
	g.n++
	g.ended = g.ended || e.Terminal()
	if expected == "" {
		return nil
	}
	return []schema.Violation{{Pointer: at, Found: describe(e), Expected: expected}}
}

// Ended tells whether an event has ended the turn.
func (g *Grammar) Ended() bool { return g.ended }

// End takes the end of the response and returns what is missing.
func (g *Grammar) End() []schema.Violation {
	missing := schema.Violation{Pointer: "/" + strconv.Itoa(g.n), Found: schema.Missing}
	switch {
	case g.n == 0:
		missing.Expected = theStart
	case !g.ended:
		missing.Expected = theEnd
	default:
		return nil
	}
	return []schema.Violation{missing}
}

// describe names an event without its content.
func describe(e Event) string {
	switch {
	case e.Type != EventStatus:
		return string(e.Type)
	case e.Status == "":
		return "status without a status"
	}
	return "status " + strconv.Quote(string(e.Status))
}
