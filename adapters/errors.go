package adapters

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotSupported reports that the turn's protocol cannot do what a [Writer] method asked. The
// concrete error is an [*UnsupportedError].
var ErrNotSupported = errors.New("not supported here")

// ErrTurnOver reports that the turn has ended or is ending, so that nothing more can be written.
var ErrTurnOver = errors.New("the turn is over")

// ErrToolNotAdmitted is for adapters that cannot go on without a tool which the host refused: return
// it (wrapped or not) to end the turn.
var ErrToolNotAdmitted = errors.New("the tool was not admitted")

// An UnsupportedError tells what could not be done under which protocol. It matches [ErrNotSupported].
type UnsupportedError struct {
	// Feature is the Writer method that was called, in lower case.
	Feature  string
	Protocol Protocol
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported under %s", e.Feature, e.Protocol)
}

// Is matches [ErrNotSupported].
func (e *UnsupportedError) Is(target error) bool { return target == ErrNotSupported }

// A PublicError is an error whose message was written for the user on the other side. All other
// errors reach the host as a general sentence with a correlation id; the log has them in full.
type PublicError struct {
	// Message is sent to the host as it is. Write a sentence, and no secrets.
	Message string
	// Err is the cause; it stays in the process. May be nil.
	Err error
}

// Public returns a [*PublicError] with this message and cause. cause may be nil.
func Public(message string, cause error) error { return &PublicError{Message: message, Err: cause} }

func (e *PublicError) Error() string { return withCause(e.Message, e.Err) }

func (e *PublicError) Unwrap() error { return e.Err }

// An Unavailable error says that the service behind the adapter (the provider) failed, as opposed to
// the adapter itself. Message reaches the host.
type Unavailable struct {
	// Message says what the provider said; it is sent to the host, so no secrets. Empty means a
	// general sentence.
	Message string
	// Temporary tells that the same turn may well succeed later.
	Temporary bool
	// Err is the cause; it stays in the process. May be nil.
	Err error
}

func (e *Unavailable) Error() string {
	m := e.Message
	if m == "" {
		m = "provider unavailable"
	}
	return withCause(m, e.Err)
}

func (e *Unavailable) Unwrap() error { return e.Err }

func withCause(m string, err error) string {
	if err == nil {
		return m
	}
	return m + ": " + err.Error()
}

// A Cause tells why a turn ended, or is ending. The context that an adapter is given is cancelled
// with one: see [CauseOf]. Logs, hooks and metrics use the same words.
type Cause string

// The causes.
const (
	CauseCompleted   Cause = "completed"     // the adapter returned nil
	CauseAdapter     Cause = "adapter-error" // the adapter returned an error
	CauseProvider    Cause = "provider"      // the adapter returned an [Unavailable] error
	CausePanic       Cause = "panic"         // the adapter panicked, or ended its goroutine
	CauseHostGone    Cause = "host-gone"     // the host closed its last connection
	CauseHostStalled Cause = "host-stalled"  // the host took nothing for the write timeout
	CauseStopped     Cause = "host-stopped"  // the host asked for it
	CauseTurnTimeout Cause = "turn-timeout"  // the whole turn took too long
	CauseFirstOutput Cause = "first-output"  // no output in time
	CauseIdle        Cause = "idle"          // silence between two outputs
	CauseDrain       Cause = "drain"         // the server shuts down
	CauseTurnLimit   Cause = "turn-limit"    // as many turns run as may
	CauseSessionBusy Cause = "session-busy"  // another turn of the session took too long
)

// Error makes a Cause an error, so that it can be a context's cause.
func (c Cause) Error() string { return "turn ended: " + string(c) }

// Is makes the causes that are limits of time match [context.DeadlineExceeded], and the others that
// come from outside the adapter [context.Canceled], because libraries return a context's cause where
// they used to return its error.
func (c Cause) Is(target error) bool {
	switch c {
	case CauseTurnTimeout, CauseFirstOutput, CauseIdle:
		return target == context.DeadlineExceeded
	case CauseHostGone, CauseHostStalled, CauseStopped, CauseDrain, CauseSessionBusy:
		return target == context.Canceled
	}
	return false
}

// CauseOf tells why ctx, or one derived from it, was cancelled. It is empty while ctx is live, and
// where the cancellation was not the engine's. After a limit of time ctx.Err() is
// context.DeadlineExceeded; a context derived from it says context.Canceled, with the same cause.
func CauseOf(ctx context.Context) Cause {
	var c Cause
	if errors.As(context.Cause(ctx), &c) {
		return c
	}
	return ""
}
