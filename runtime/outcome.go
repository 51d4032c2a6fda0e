package runtime

import (
	"context"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// A Status is how a turn ended.
type Status string

// The statuses of an [Outcome].
const (
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// statusOf is the one place where a cause becomes a status.
func statusOf(c adapters.Cause) Status {
	switch c {
	case adapters.CauseCompleted:
		return Completed
	case adapters.CauseHostGone, adapters.CauseHostStalled, adapters.CauseStopped, adapters.CauseDrain:
		return Cancelled
	default:
		return Failed
	}
}

// An Outcome is the end of a turn: exactly one per turn.
type Outcome struct {
	Status Status
	Cause  adapters.Cause
	// Err is what the adapter returned, nil where it returned nil or did not return. It is not for
	// the other side: the protocol decides which texts leave the process.
	Err error
	// CorrelationID is in the log and may be told to the other side, so that a general sentence can be
	// traced. Empty for completed turns.
	CorrelationID string
	// Reason is the protocol's own word for the end, set by its [Settler] and told by the log: a code, never
	// content. Empty where it has none.
	Reason string
	// Limit is the limit of time that was passed, for the causes that are one.
	Limit time.Duration
	// Abandoned: the adapter ignored its end and was left behind.
	Abandoned bool

	// Usage is the adapter's last report on each axis; UsageReported tells if there was any.
	Usage         adapters.Usage
	UsageReported bool

	Continuity adapters.Continuity
	// History counts the messages that the adapter was shown.
	History int
	// Chunks and Bytes count the answer's text; Heartbeats the signs of life that were added.
	Chunks, Bytes, Heartbeats int64

	// Accepted is when the turn was accepted; Waited how long it then waited for its session;
	// FirstOutput how long after Accepted the adapter's first output came (0: none); Total how long the
	// turn took.
	Accepted                   time.Time
	Waited, FirstOutput, Total time.Duration

	crash *crash
}

// TurnInfo says which turn it is, for hooks. It never holds content.
type TurnInfo struct {
	Protocol  adapters.Protocol
	PluginID  string
	AgentID   string
	SessionID string
	TurnID    string
	Principal string
	Headless  bool
}

// Hooks lets logs, metrics and traces see turns. Any field may be nil. Hooks are called on the turn's
// goroutines and should not block; a panic in one is recovered and logged. Strings may share memory
// with the request: clone what is kept.
type Hooks struct {
	// TurnStart runs once before the adapter (or the wait for the session); the context it returns,
	// derived from ctx, is the adapter's. nil means ctx.
	TurnStart func(ctx context.Context, t TurnInfo) context.Context
	// TurnEnd runs once for every end of every turn, whatever the cause. ctx carries the values of
	// TurnStart's and is not cancelled.
	TurnEnd func(ctx context.Context, t TurnInfo, o *Outcome)
	// Refuse runs when a turn is refused before it starts, or repeated; reason is a short fixed word.
	Refuse func(ctx context.Context, p adapters.Protocol, reason string)
}
