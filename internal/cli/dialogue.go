package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
)

// A talk runs the turns of one conversation over its protocol, one after another, and shows them.
type talk interface {
	// with says who talks with whom, in the beginning of a sentence.
	with() string
	// next is the request that a turn would send.
	next(message string) (any, error)
	// turn runs one turn and shows it. The end of ctx stops the turn, in the protocol's way. The error says
	// in one line why the turn did not complete.
	turn(ctx context.Context, message string) error
}

// How a turn can end in a report, besides what the protocol says itself.
const (
	turnComplete  = "complete"
	turnFailed    = "error"
	turnCancelled = "cancelled"
	turnRefused   = "refused"
	turnStopped   = "stopped" // by us
	turnBroken    = "broken"  // the connection or the protocol
)

// errStopped is the error of a turn that was stopped from here, and whose end nobody told.
var errStopped = errors.New("stopped")

// errUnreachable is in the error of a turn that never got to a server.
var errUnreachable = errors.New("is the server running?")

// A dialogue takes the messages of a talk from where they come from.
type dialogue struct {
	a       *app
	talk    talk
	console *console // nil where nobody sits at a terminal

	stopped time.Time // when Ctrl-C last stopped a turn
}

// stoppable runs one turn, which a signal stops. It returns the signal, if one came before the turn's
// end, and why the turn did not complete. What more signals do while the turn stops is up to whoever
// listens for them: first, which may be nil, is called after the first.
func (d *dialogue) stoppable(ctx context.Context, message string, signals <-chan os.Signal, first func()) (by os.Signal, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended, watched := make(chan struct{}), make(chan os.Signal, 1)
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			if first != nil {
				first()
			}
			watched <- s
			stop()
		case <-ended:
		}
	}()
	err = d.talk.turn(ctx, message)
	close(ended)
	return <-watched, err
}

// stopSignals are those that end the program, and the turn that runs with it, besides those that whoever started
// it has it ignore, as nohup does: to listen for those would be to obey them.
func stopSignals() []os.Signal {
	return slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, signal.Ignored)
}

// untilInterrupted runs one turn, which a signal to end the program stops: the end of a connection would not
// end a turn in every protocol. Outside of it, and while the turn stops, such a signal ends the program, as
// usual; one that comes at the turn's very end is told too.
func (d *dialogue) untilInterrupted(ctx context.Context, message string) (interrupted bool, err error) {
	signals := make(chan os.Signal, 1)
	if list := stopSignals(); len(list) > 0 { // with none it would be all
		signal.Notify(signals, list...)
	}
	by, err := d.stoppable(ctx, message, signals, func() { signal.Stop(signals) })
	signal.Stop(signals)
	return by != nil || len(signals) > 0, err
}

// lines takes each line of standard input as a message.
func (d *dialogue) lines(ctx context.Context) error {
	failed := 0
	for line, err := range ndjson.Lines(d.a.in, 0) {
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		interrupted, err := d.untilInterrupted(ctx, string(line.Data))
		switch {
		case errors.Is(err, errStopped) || errors.Is(err, errUnreachable):
			return err // the next turn would fare no better
		case interrupted:
			return cmp.Or(err, errStopped)
		case err == nil:
			continue
		}
		d.a.complain("%s", err)
		failed++
	}
	if failed > 0 {
		return errReported
	}
	return nil
}
