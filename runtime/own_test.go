package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// A turn has its session from Start on, or once those before it are over.
func TestHeld(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		first, err := g.Start(t.Context(), spec("first", never(t)))
		if err != nil {
			t.Fatal(err)
		}
		second, err := g.Start(t.Context(), spec("second", say("x")))
		if err != nil {
			t.Fatal(err)
		}
		if !first.Held() || second.Held() {
			t.Errorf("the first one has the session: %v, the second one: %v", first.Held(), second.Held())
		}
		first.Discard()
		if !second.Held() {
			t.Error("the session went to nobody")
		}
		second.Run()
		g.discarded++
		(<-g.drain(time.Hour)).want(t, nil, 0)
	})
}

// A protocol that ends a turn over what its adapter asked may say what was wrong with it.
func TestAMediatorsOwnWords(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		stream := make(chan runtime.Stream, 1)
		s := spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_, err := w.Tool(ctx, adapters.ToolRequest{})
			if !errors.Is(err, adapters.ErrTurnOver) || !strings.Contains(err.Error(), "the tool has no name") {
				t.Errorf("Tool = %v", err)
			}
			return err
		}))
		s.Sink = mediatedSink{answer: func(context.Context) (adapters.Observation, error) {
			(<-stream).Stop(adapters.CauseStopped)
			return adapters.Observation{}, fmt.Errorf("%w: the tool has no name", adapters.ErrTurnOver)
		}}
		started, err := g.Start(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		stream <- started
		started.Run()
		(<-g.drain(time.Hour)).want(t, nil, 0)
	})
}

// A refusing protocol gives the turn's end its own word.
type refusing struct{ lineSink }

func (refusing) Settle(o *runtime.Outcome) {
	o.Status, o.Reason = runtime.Failed, "refused/tool-not-admitted"
}

func TestAProtocolsReasonIsLogged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		s := spec("t", say("x"))
		s.Sink = refusing{}
		_ = g.send(s).wait()
		if line := g.log.turn(t, "t"); line["reason"] != "refused/tool-not-admitted" || line["status"] != "failed" {
			t.Errorf("the log has %v", line)
		}
	})
}
