package adapters

import (
	"context"
	"encoding/json"
	"io"
)

// A Writer takes what an adapter says during one turn. It may be used from several goroutines; calls
// are put in an order, and what one call wrote stays together. Every method returns [ErrTurnOver]
// once the turn has ended or is ending (errors.Is; the error also wraps the [Cause]).
//
// Only the engine and adaptertest implement Writer, and it may grow; a wrapper embeds one.
type Writer interface {
	// Write is Text for a slice of bytes. It does not keep p. A character that is split between two
	// calls is joined; a byte that can never become part of one is written as U+FFFD.
	io.Writer

	// Text writes a chunk of the answer. The answer is the concatenation of its chunks, byte for
	// byte. An empty chunk writes nothing. Text returns when the chunk is taken, which is at once
	// while the host keeps up, and later when it does not.
	Text(s string) error

	// Status tells the host what the adapter is doing, where the protocol can show it; elsewhere it
	// counts as a sign of life and is dropped.
	Status(s string) error

	// Usage reports what the turn has used so far. Reports are cumulative: for each axis the last
	// one that measures it counts. Report each axis once, at the end, where a host charges for it:
	// under agent.external-runtime two reports of one axis that differ are a conflict.
	Usage(u Usage) error

	// Tool asks the host to run a tool and waits for its answer; the turn's idle clock stands
	// meanwhile. A refusal is an [Observation] with Admitted false and no error. Where the protocol
	// has no tools the error is [ErrNotSupported].
	Tool(ctx context.Context, r ToolRequest) (Observation, error)

	// Ask asks the operator a question and waits like Tool.
	Ask(ctx context.Context, q Question) (Observation, error)

	// Arrivals are messages that come in while the turn runs, in order, each once; what has been
	// received counts as processed. The channel is the same at every call and is closed when no more
	// can come. Where the protocol has none the error is [ErrNotSupported].
	Arrivals() (<-chan Arrival, error)

	// Candidate emits an event of the protocol's own, as it is (agent.external-runtime). Elsewhere
	// the error is [ErrNotSupported].
	Candidate(event json.RawMessage) error
}

// A ToolRequest asks the host to run one of its tools.
type ToolRequest struct {
	// Ref names the tool.
	Ref string
	// Schema names the schema of Input.
	Schema string
	// Input is a JSON object; its bytes are kept.
	Input json.RawMessage
}

// A Question asks the operator something.
type Question struct {
	// Schema names the schema of Question.
	Schema string
	// Question is a JSON object; its bytes are kept.
	Question json.RawMessage
}

// An Observation is the host's answer to a [ToolRequest] or a [Question].
type Observation struct {
	// Admitted tells whether the host did what was asked.
	Admitted bool
	// Reason is the host's reason code; with Admitted false it says why not.
	Reason string
	// Receipt names the record of what was done; empty where there is none.
	Receipt string
	// Evidence names further records.
	Evidence []string
}
