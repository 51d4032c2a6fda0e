package adaptertest

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// DefaultGrace is how long an adapter may take to return once its context is cancelled: the same
// two seconds that the engine gives it.
const DefaultGrace = 2 * time.Second

// A Turn is one turn to be run, and the host's part in it. Make one with [NewTurn] or
// [Session.Turn], set what the test needs, and pass it to [Run]. The zero value is a turn with an
// empty message in a session of its own.
//
// Running a Turn does not change it, and the adapter gets a copy, so that one Turn can be run
// several times, also at once. (Its Session is shared by these runs.)
type Turn struct {
	// Turn is what the adapter is told. Its Session may be used before the run to store values, and
	// after it to read them; it is never over. A Deadline cuts the turn off as the engine does. An
	// empty Protocol means Lowkey.
	adapters.Turn

	// OnTool answers [adapters.Writer.Tool]. Nil: tools are not supported. ctx ends with the
	// adapter's own context and with the turn.
	OnTool func(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error)

	// OnAsk answers [adapters.Writer.Ask] in the same way.
	OnAsk func(ctx context.Context, q adapters.Question) (adapters.Observation, error)

	// OnCandidate answers [adapters.Writer.Candidate]. Nil: candidate events are not supported.
	OnCandidate func(event json.RawMessage) error

	// OnText is called after each text chunk was taken, with the text as a host would see it, on the
	// goroutine that wrote it and with no lock held. Cancel the run's context here to play a host that goes
	// away; block to play one that is slow. May be nil.
	OnText func(text string)

	// Arrivals feeds the messages that come in while the turn runs; close it when there are no
	// more, or see [Arrive]. Nil: arrivals are not supported. An adapter that is no
	// [adapters.ArrivalTaker], or answers false, gets a channel that is closed and empty.
	Arrivals <-chan adapters.Arrival

	// Grace is how long the adapter may take to return after the context is cancelled, before [Run]
	// goes on without it. Zero means [DefaultGrace].
	Grace time.Duration

	session *Session
}

// NewTurn returns the first turn of a new session, as Lowkey would send it: all ids are set, there
// is no history, no deadline and no user name.
func NewTurn(message string) *Turn { return NewSession("session-1").Turn(message) }

// Arrive returns a channel that holds one arrival for each text, numbered from 1, and is closed
// behind them: for [Turn.Arrivals].
func Arrive(texts ...string) <-chan adapters.Arrival {
	feed := make(chan adapters.Arrival, len(texts))
	for i, text := range texts {
		feed <- adapters.Arrival{Sequence: int64(i + 1), Messages: []adapters.Inbound{{Text: text}}}
	}
	close(feed)
	return feed
}

// given returns the copy of the turn that the adapter gets. Nothing that it points to is shared,
// except the values of the session.
func (t *Turn) given(w *Writer) *adapters.Turn {
	g := t.Turn
	if g.Protocol == "" {
		g.Protocol = adapters.Lowkey
	}
	if g.Continuity == "" {
		g.Continuity = adapters.ContinuityNew
	}
	switch {
	case g.Session == nil:
		s := NewSession("session-1")
		g.Session = adapters.NewSession(s.id, &turnValues{s.values, w})
	case t.session != nil && g.Session == t.session.outside:
		g.Session = adapters.NewSession(t.session.id, &turnValues{t.session.values, w})
	}
	g.History = slices.Clone(g.History)
	g.Messages = slices.Clone(g.Messages)
	g.Attachments = slices.Clone(g.Attachments)
	g.Context = slices.Clone(g.Context)
	g.Channel = slices.Clone(g.Channel)
	if until, ok := w.ctx.Deadline(); ok {
		g.Deadline = until
	}
	return &g
}
