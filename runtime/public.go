package runtime

import (
	"errors"
	"fmt"

	"github.com/backline-dev/backline/adapters"
)

// PublicText is what the other side may be told of a turn that failed: a sentence that an adapter wrote on
// purpose, or a general one of ours with the correlation id that the log has too. It is for protocols
// whose hosts read sentences, and the one place where those decide which texts leave the process.
func (o *Outcome) PublicText() string {
	switch o.Cause {
	case adapters.CauseTurnTimeout:
		if o.Waited > 0 && o.History == 0 && o.Continuity == "" {
			return fmt.Sprintf("The turn waited for another turn of its session until it passed the limit for a whole turn (turn timeout, %v).", o.Limit)
		}
		return fmt.Sprintf("The turn passed the limit for a whole turn (turn timeout, %v).", o.Limit)
	case adapters.CauseFirstOutput:
		return fmt.Sprintf("The agent wrote nothing within the limit for its first output (%v).", o.Limit)
	case adapters.CauseIdle:
		return fmt.Sprintf("The agent fell silent for longer than the limit between two outputs (idle, %v).", o.Limit)
	case adapters.CauseSessionBusy:
		return fmt.Sprintf("The session is busy: another turn of it ran for longer than this one may wait (%v). Try again.", o.Limit)
	}
	var public *adapters.PublicError
	if errors.As(o.Err, &public) && public.Message != "" {
		return public.Message
	}
	var unavailable *adapters.Unavailable
	if errors.As(o.Err, &unavailable) {
		if unavailable.Message != "" {
			return unavailable.Message
		}
		return "The service behind the agent is unavailable (reference " + o.CorrelationID + ")."
	}
	var unsupported *adapters.UnsupportedError
	if errors.As(o.Err, &unsupported) && unsupported != nil { // a text of ours, which helps whoever wrote the adapter
		return "The agent needs what this protocol does not have: " + unsupported.Error() + "."
	}
	return "The agent failed (reference " + o.CorrelationID + ")."
}
