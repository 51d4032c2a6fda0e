package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// plainText is the smallest protocol: an answer is what the adapter writes, and how it ended.
type plainText struct{}

func (plainText) Started(dst []byte) []byte          { return append(dst, "started\n"...) }
func (plainText) Text(dst []byte, s string) []byte   { return append(append(dst, s...), '\n') }
func (plainText) Status(dst []byte, _ string) []byte { return dst }
func (plainText) Heartbeat(dst []byte) []byte        { return append(dst, '\n') }
func (plainText) End(dst []byte, o *runtime.Outcome) []byte {
	return fmt.Appendf(dst, "%s\n", o.Status)
}

// terminal is a connection to whoever looks at it.
type terminal struct{ io.Writer }

func (terminal) Flush() error                     { return nil }
func (terminal) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

var quiet = slog.New(slog.DiscardHandler)

func greet(id string) *runtime.Spec {
	return &runtime.Spec{
		Turn: adapters.Turn{Protocol: adapters.Lowkey, ID: id, Message: "Ada"},
		Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return w.Text("Hello, " + turn.Message + ".")
		}),
		Sink:        plainText{},
		Session:     session.Key{Plugin: "greeter", Handle: "s-1"},
		Fingerprint: runtime.Fingerprint("Ada"),
	}
}

// A protocol starts a turn and serves it to the host's connection.
func ExampleNew() {
	engine, err := runtime.New(runtime.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := engine.Start(context.Background(), greet("t-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := stream.Serve(context.Background(), terminal{os.Stdout}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// started
	// Hello, Ada.
	// completed
}

// A turn that is sent again is not run again: what it wrote is repeated.
func ExampleEngine_Start() {
	engine, err := runtime.New(runtime.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		stream, err := engine.Start(context.Background(), greet("t-1"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("replayed:", stream.Repeat == runtime.Replayed)
		if err := stream.Serve(context.Background(), terminal{os.Stdout}); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("turns:", engine.Stats().Total)
	// Output:
	// replayed: false
	// started
	// Hello, Ada.
	// completed
	// replayed: true
	// started
	// Hello, Ada.
	// completed
	// turns: 1
}

// While an engine drains, turns that run go on and new ones are refused.
func ExampleEngine_Drain() {
	engine, err := runtime.New(runtime.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := engine.Drain(ctx); err != nil {
		fmt.Println("some turns had to be cancelled:", err)
	}
	_, err = engine.Start(context.Background(), greet("t-2"))
	fmt.Println(err)
	fmt.Println(errors.Is(err, runtime.ErrDraining))
	// Output:
	// the server is shutting down
	// true
}

// A fingerprint tells whether a turn that is sent again is the same one.
func ExampleFingerprint() {
	a := runtime.Fingerprint("Hello.", "ada")
	fmt.Println(a == runtime.Fingerprint("Hello.", "ada"))
	fmt.Println(a == runtime.Fingerprint("Hello.ada"))
	// Output:
	// true
	// false
}
