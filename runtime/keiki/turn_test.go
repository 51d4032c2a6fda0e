package keiki_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
)

func TestATurnIsAnsweredParagraphByParagraph(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("Hello ", "there.\n", "\nSecond", " paragraph.\n\n\n", "```go\na\n\nb\n```\n"))
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	o := g.outcome(d.ID)
	if o.Status != "completed" || string(o.Completion) != `{"status":"completed"}` {
		t.Errorf("outcome %s, completion %s", o.Status, o.Completion)
	}
	want := []string{"Hello there.", "Second paragraph.", "```go\na\n\nb\n```"}
	if diff := cmp.Diff(want, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestSilentTurnsComplete(t *testing.T) {
	t.Parallel()
	g := newRig(t, says())
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", QuietLoop: true})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

func TestFailureSendsNoHalfParagraph(t *testing.T) {
	t.Parallel()
	g := newRig(t, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		_ = w.Text("whole.\n\nhal")
		return adapters.Public("The calendar is closed.", errors.New("inner"))
	}))
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	o := g.outcome(d.ID)
	if o.Status != "failed" || o.Error != "The calendar is closed." {
		t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff([]string{"whole."}, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		close(started)
		<-ctx.Done()
		_ = w.Text("too late.\n\n")
		return ctx.Err()
	}))
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	<-started
	if a, err := g.platform.Cancel(t.Context(), d.ID); err != nil || a.Status != 200 {
		t.Fatalf("cancelling: %v %+v", err, a)
	}
	if o := g.outcome(d.ID); o.Status != "cancelled" {
		t.Errorf("outcome %+v", o)
	}
	g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
	if got := g.platform.Texts(d.ID); len(got) != 0 {
		t.Errorf("messages %q", got)
	}
}

// taker is an adapter that takes arrivals.
type taker struct {
	run func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error
}

func (taker) TakesArrivals(*adapters.Turn) bool { return true }

func (a taker) Run(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
	in, err := w.Arrivals()
	if err != nil {
		return err
	}
	return a.run(ctx, in, w)
}

// TestFaultF3Arrivals: in order, once each, and a failed turn reports only what it has answered.
func TestFaultF3Arrivals(t *testing.T) {
	t.Parallel()
	got := make(chan int64, 10)
	g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		for range 3 {
			select {
			case a := <-in:
				got <- a.Sequence
				if a.Sequence == 2 {
					if err := w.Text("two are answered\n\n"); err != nil {
						return err
					}
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return errors.New("now it fails")
	}})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	for _, seq := range []int64{1, 3, 2, 2, 3} {
		a, err := g.platform.PushArrival(t.Context(), d.ID, seq, testhost.KeikiMessage{Text: "more"})
		if err != nil {
			t.Fatal(err)
		}
		if a.Status/100 != 2 && a.Status != 409 {
			t.Errorf("arrival %d is answered %d %s", seq, a.Status, a.Body)
		}
	}
	o := g.outcome(d.ID)
	if o.Status != "failed" {
		t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff([]int64{1, 2}, o.Consumed); diff != "" {
		t.Errorf("consumed (-want +got):\n%s", diff)
	}
	for want := int64(1); want <= 3; want++ {
		if seq := <-got; seq != want {
			t.Errorf("the adapter got %d, want %d", seq, want)
		}
	}
}

func TestDeadlineThatHasPassed(t *testing.T) {
	t.Parallel()
	g := newRig(t, adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
		t.Error("the adapter was called")
		return nil
	}))
	d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hi", Timeout: -time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if d.Answer.Status != 202 {
		t.Errorf("answer %+v", d.Answer)
	}
	g.until("a completion was tried", func() bool {
		for _, r := range g.platform.Requests(d.ID) {
			if r.Route == "complete" {
				return true
			}
		}
		return false
	})
}
