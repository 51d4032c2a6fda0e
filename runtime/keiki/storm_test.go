package keiki_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
)

// TestManyTurnsOverAFaultyPlatform: 300 turns at once, while the platform drops connections, fails and
// throttles, before or after it has done what it was asked: each message is delivered once, each turn
// completed.
func TestManyTurnsOverAFaultyPlatform(t *testing.T) {
	const turns, messages = 300, 3
	g := newRig(t, adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for i := range messages {
			if err := w.Text(fmt.Sprintf("%s says %d\n\n", turn.Message, i)); err != nil {
				return err
			}
		}
		return nil
	}), func(c *rigConfig) { c.platform.Fault = testhost.RandomFaults(1, 5, 5, 2) })
	var ids [turns]string
	var all sync.WaitGroup
	for i := range turns {
		all.Go(func() {
			ids[i] = g.dispatch(testhost.KeikiTurn{Text: fmt.Sprintf("turn %d", i)}).ID
		})
	}
	all.Wait()
	for i, id := range ids {
		if o := g.outcome(id); o.Status != "completed" {
			t.Errorf("turn %d: %+v", i, o)
		}
		texts := g.platform.Texts(id)
		if len(texts) != messages {
			t.Errorf("turn %d: messages %q", i, texts)
			continue
		}
		for m, text := range texts {
			if want := fmt.Sprintf("turn %d says %d", i, m); text != want {
				t.Errorf("turn %d: message %d is %q, want %q", i, m, text, want)
			}
		}
	}
	g.until("all turns are over", func() bool { return g.engine.Stats().Active == 0 })
}
