package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// A concierge thinks about what it is asked for a while.
type concierge struct{ think time.Duration }

var _ adapters.ArrivalTaker = concierge{}

// TakesArrivals says that messages which come in while a turn runs are wanted. Without this method the
// platform keeps them for the next turn.
func (concierge) TakesArrivals(*adapters.Turn) bool { return true }

// Run answers a turn. Each blank line ends a message, which is sent at once.
func (c concierge) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if turn.Flags.Silent || turn.Flags.QuietLoop {
		return nil // nobody waits for an answer, and none is a good end
	}
	asked := []string{turn.Message}
	if err := w.Text("One moment, please.\n\n"); err != nil {
		return err
	}

	arrivals, err := w.Arrivals()
	if err != nil && !errors.Is(err, adapters.ErrNotSupported) {
		return err
	}
	thought := time.NewTimer(c.think)
	defer thought.Stop()
	for thinking := true; thinking; {
		select {
		case a, open := <-arrivals:
			if !open {
				arrivals = nil
				continue
			}
			for _, m := range a.Messages {
				asked = append(asked, m.Text)
			}
			if err := w.Text("I have noted that as well.\n\n"); err != nil {
				return err
			}
		case <-thought.C:
			thinking = false
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return w.Text(answer(asked))
}

func answer(asked []string) string {
	if len(asked) == 1 {
		return fmt.Sprintf("I will see to it: %s", asked[0])
	}
	return "I will see to all of it:\n- " + strings.Join(asked, "\n- ")
}
