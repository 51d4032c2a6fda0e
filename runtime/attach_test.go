package runtime_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// A gate is a connection that counts what it takes once it is opened.
type gate struct {
	open  chan struct{}
	taken int
}

func (g *gate) Write(p []byte) (int, error)      { <-g.open; g.taken += len(p); return len(p), nil }
func (g *gate) Flush() error                     { return nil }
func (g *gate) SetWriteDeadline(time.Time) error { return context.Canceled }

// TestAttachedBeforeRunMissesNothing: an adapter that writes far more than is kept waits for who was
// attached before it ran, however late that follows.
func TestAttachedBeforeRunMissesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		const pieces, size = 400, 10_000 // 4 MB, where 1 MiB is kept
		stream, err := g.Start(t.Context(), &runtime.Spec{
			Turn: adapters.Turn{ID: "t1"}, Sink: lineSink{}, Session: session.Key{Handle: "s"}, HostGone: runtime.Detach,
			Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for range pieces {
					if err := w.Text(strings.Repeat("x", size)); err != nil {
						return err
					}
				}
				return nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		conn := &gate{open: make(chan struct{})}
		attached, err := stream.Attach(conn, 0)
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan struct{})
		go func() { stream.Run(); close(ran) }()
		time.Sleep(time.Minute) // the adapter runs ahead as far as it may
		close(conn.open)
		if err := attached.Follow(t.Context()); err != nil {
			t.Errorf("Follow = %v", err)
		}
		<-ran
		if conn.taken < pieces*size {
			t.Errorf("the connection took %d bytes, want at least %d", conn.taken, pieces*size)
		}
	})
}

func TestAttachToAPartThatIsNotThere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		stream, err := g.Start(t.Context(), &runtime.Spec{
			Turn: adapters.Turn{ID: "t1"}, Sink: lineSink{}, HostGone: runtime.Detach,
			Adapter: adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error { return nil }),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Attach(&gate{}, 1); !errors.Is(err, runtime.ErrNoPart) {
			t.Errorf("Attach = %v, want ErrNoPart", err)
		}
		stream.Run()
	})
}

// TestNoWindow: the history of a host that sends none is what is remembered.
func TestNoWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		var seen []adapters.Message
		for i, message := range []string{"first", "second"} {
			stream, err := g.Start(t.Context(), &runtime.Spec{
				Turn: adapters.Turn{ID: message, Message: message}, Sink: lineSink{}, HostGone: runtime.Detach, NoWindow: true,
				Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					seen = turn.History
					return w.Text("answer")
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			stream.Run()
			if len(seen) != 2*i {
				t.Errorf("turn %d saw %d messages, want %d", i, len(seen), 2*i)
			}
		}
	})
}

// TestDeadlinesInAFarFuture are no deadlines in the past.
func TestDeadlinesInAFarFuture(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		for _, year := range []int{2300, 9999} {
			called := false
			stream, err := g.Start(t.Context(), &runtime.Spec{
				Turn: adapters.Turn{ID: "t"}, Sink: lineSink{}, HostGone: runtime.Detach, Forget: true,
				Deadline: time.Date(year, 12, 31, 23, 59, 59, 0, time.UTC),
				Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
					called = true
					time.Sleep(time.Second)
					return ctx.Err()
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			stream.Run()
			if !called {
				t.Errorf("in the year %d: the adapter was not called", year)
			}
		}
		for _, e := range g.ends {
			if e.Status != runtime.Completed {
				t.Errorf("%+v", e)
			}
		}
	})
}
