package adapters

import (
	"context"
	"iter"
)

// An Adapter answers turns. Run is called once per turn, on the goroutine that serves it; turns of
// different sessions run at the same time, turns of one session never do.
//
// Run ends the turn by returning: nil completes it, an error fails it (see [Public] and
// [Unavailable] for what the error may say). ctx is cancelled when the turn must end; CauseOf(ctx)
// tells why. An adapter that does not return within the engine's grace (2 seconds) is abandoned:
// its turn ends without it and its later output goes nowhere.
//
// turn and everything it points to belong to the adapter; changing them affects nobody else. w may
// be used from several goroutines until Run returns; afterwards it returns [ErrTurnOver].
// A panic in Run fails that turn and harms nothing else.
type Adapter interface {
	Run(ctx context.Context, turn *Turn, w Writer) error
}

// Func makes a function an [Adapter].
type Func func(ctx context.Context, turn *Turn, w Writer) error

// Run calls f.
func (f Func) Run(ctx context.Context, turn *Turn, w Writer) error { return f(ctx, turn, w) }

// FromSeq makes an [Adapter] of a function that returns its text as a sequence of chunks. The
// first error of the sequence, or the first failed write, stops it and is returned.
func FromSeq(f func(ctx context.Context, turn *Turn) iter.Seq2[string, error]) Adapter {
	return Func(func(ctx context.Context, turn *Turn, w Writer) error {
		for chunk, err := range f(ctx, turn) {
			if err != nil {
				return err
			}
			if err := w.Text(chunk); err != nil {
				return err
			}
		}
		return nil
	})
}

// An ArrivalTaker is an [Adapter] that takes messages which come in while its turn runs (Keiki).
// A protocol that has arrivals asks once, before Run; an adapter that does not implement it, or answers
// false, gets none (its Writer's Arrivals is a closed channel), and the platform keeps them for a later
// turn.
type ArrivalTaker interface {
	TakesArrivals(turn *Turn) bool
}
