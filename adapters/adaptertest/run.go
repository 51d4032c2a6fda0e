package adaptertest

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// Run runs one turn and returns what the adapter did. It returns when the adapter has returned, or
// has not done so within the turn's grace time after ctx was cancelled (then Err is
// [ErrAbandoned]). A panic of the adapter is an error, not a panic of the test. turn may be nil,
// which is the zero Turn.
//
// Turns of one session wait for one another. A turn that is cancelled while it waits never runs;
// its Err is the context's cause.
func Run(ctx context.Context, a adapters.Adapter, turn *Turn) *Result {
	if turn == nil {
		turn = &Turn{}
	}
	w := NewWriter(ctx, turn)
	if s := turn.session; s != nil {
		if !s.lock(w.ctx) {
			return w.End(context.Cause(w.ctx))
		}
		defer s.unlock()
	}

	done := start(w, a, turn.given(w))
	var err error
	select {
	case err = <-done:
	case <-w.ctx.Done():
		grace := turn.Grace
		if grace == 0 {
			grace = DefaultGrace
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case err = <-done:
		case <-timer.C:
			return w.end(fmt.Errorf("%w within %v", ErrAbandoned, grace))
		}
	}
	cancelled := w.ctx.Err() != nil
	res := w.End(err)
	if turn.session != nil && err == nil && !cancelled {
		turn.session.completed(turn, res.Text())
	}
	return res
}

// start runs the adapter on a goroutine of its own, so that neither a panic nor runtime.Goexit gets
// past it, and gives its error when it has returned.
func start(w *Writer, a adapters.Adapter, turn *adapters.Turn) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := error(&PanicError{}) // what stays if the goroutine ends without a panic or a return
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			w.adapterReturned()
			done <- err
		}()
		taker, ok := a.(adapters.ArrivalTaker)
		w.takesArrivals(ok && taker.TakesArrivals(turn))
		err = a.Run(w.ctx, turn, w)
	}()
	return done
}
