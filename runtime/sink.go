package runtime

import (
	"context"
	"encoding/json"

	"github.com/backline-dev/backline/adapters"
)

// A Sink is what the engine writes a turn to: one per turn, made by the protocol. Each method appends
// zero or more whole lines to dst and returns the longer slice. The engine calls them one at a time,
// under the lock of the turn's log: they do not block and do not call back.
type Sink interface {
	// Started is the turn's first line, before the adapter is called.
	Started(dst []byte) []byte
	// Text is a chunk of the adapter's answer: valid UTF-8, not empty.
	Text(dst []byte, s string) []byte
	// Status is what the adapter says that it does: valid UTF-8.
	Status(dst []byte, s string) []byte
	// Heartbeat is a sign of life while the adapter is silent.
	Heartbeat(dst []byte) []byte
	// End is the turn's last line. Nothing is asked for afterwards.
	End(dst []byte, o *Outcome) []byte
}

// A Mediator is a [Sink] whose protocol carries tool requests and questions. Its methods are called
// on the adapter's goroutines, without a lock, and may block until ctx is done; the turn's first-output
// and idle clocks stand meanwhile.
type Mediator interface {
	Tool(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error)
	Ask(ctx context.Context, q adapters.Question) (adapters.Observation, error)
}

// An ArrivalSource is a [Sink] whose protocol brings messages while a turn runs.
type ArrivalSource interface {
	Arrivals() (<-chan adapters.Arrival, error)
}

// A CandidateSink is a [Sink] whose protocol lets an adapter emit events of its own. Candidate is
// called like Text; after an error nothing is appended.
type CandidateSink interface {
	Candidate(dst []byte, event json.RawMessage) ([]byte, error)
}

// A UsageSink is a [Sink] that looks at each report of usage, where [Outcome.Usage] has them merged.
// Usage is called like Text, and appends nothing.
type UsageSink interface{ Usage(u adapters.Usage) }

// A Settler is a [Sink] whose protocol has something lasting to do between the adapter's end and the
// turn's last line, such as committing a charge. Settle is called once, without a lock and whatever the
// outcome, and may change o's Status and Cause; the turn's session stays taken until it returns. It
// must come to an end by itself: the turn's own context is over by then.
type Settler interface{ Settle(o *Outcome) }
