package runtime

import (
	"errors"

	"github.com/backline-dev/backline/adapters"
)

// Why [Engine.Start] refuses a turn.
var (
	// ErrConflict: the turn's id was used for another turn.
	ErrConflict = errors.New("the turn id was used for another turn")
	// ErrOutgrown: the turn runs already and its output has outgrown what can be repeated.
	ErrOutgrown = errors.New("the turn is running and its output has outgrown what can be repeated")
	// ErrDraining: the engine shuts down.
	ErrDraining = errors.New("the server is shutting down")
	// ErrSessionBusy: another turn of the session is running, and turns do not wait.
	ErrSessionBusy = errors.New("another turn of this session is running")
	// ErrAtCapacity: as many turns run as may.
	ErrAtCapacity = errors.New("as many turns are running as may")
)

// ErrNoPart reports that a turn has no such part yet.
var ErrNoPart = errors.New("the turn has no such part")

// overError is what a Writer returns after the end.
type overError struct{ cause adapters.Cause }

func (e *overError) Error() string {
	if e.cause == "" {
		return adapters.ErrTurnOver.Error()
	}
	return adapters.ErrTurnOver.Error() + ": " + string(e.cause)
}

func (e *overError) Is(target error) bool { return target == adapters.ErrTurnOver }

func (e *overError) Unwrap() error {
	if e.cause == "" {
		return nil
	}
	return e.cause
}
