package adaptertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// greeter is the adapter under test: it learns the user's name, and looks up the time with a tool.
var greeter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	name := adapters.NewValue[string]("name")
	if turn.User.Name != "" {
		if err := name.Store(turn.Session, turn.User.Name); err != nil {
			return err
		}
	}
	who, known, err := name.Load(turn.Session)
	if err != nil {
		return err
	}
	if !known {
		who = "stranger"
	}
	greeting := "Hello"
	switch o, err := w.Tool(ctx, adapters.ToolRequest{Ref: "clock", Input: []byte(`{}`)}); {
	case errors.Is(err, adapters.ErrNotSupported): // go on without
	case err != nil:
		return err
	case o.Admitted:
		greeting = "Good morning"
	}
	return w.Text(greeting + ", " + who + ".")
})

func ExampleRun() {
	res := adaptertest.Run(context.Background(), greeter, adaptertest.NewTurn("hi"))
	fmt.Println(res.Text(), res.Err)
	// Output: Hello, stranger. <nil>
}

func ExampleNewTurn() {
	turn := adaptertest.NewTurn("hi")
	turn.User.Name = "Ada"
	turn.Protocol = adapters.ExternalRuntime
	turn.OnTool = func(_ context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
		fmt.Println("asked for", r.Ref)
		return adapters.Observation{Admitted: true, Receipt: "receipt-1"}, nil
	}
	res := adaptertest.Run(context.Background(), greeter, turn)
	fmt.Println(res.Text())
	// Output:
	// asked for clock
	// Good morning, Ada.
}

// A turn that Lowkey completes and agent.external-runtime fails: it says what it used twice, and differently.
func ExampleResult_CheckExternal() {
	careless := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		return errors.Join(
			w.Text("done"),
			w.Usage(adapters.Usage{Tokens: adapters.Count(5), CostMicros: adapters.Count(0)}),
			w.Usage(adapters.Usage{Tokens: adapters.Count(9), CostMicros: adapters.Count(0)}),
		)
	})
	res := adaptertest.Run(context.Background(), careless, adaptertest.NewTurn("hi"))
	res.CheckExternal(printed{}) // in a test: t
	// Output: usage-conflict: Tokens was reported as 5 and as 9: report it once, when it is final
}

// printed stands in for a test.
type printed struct{ testing.TB }

func (printed) Helper() {}

func (printed) Error(args ...any) { fmt.Println(args...) }

func ExampleNewSession() {
	s := adaptertest.NewSession("session-1")
	first := s.Turn("hi, I am Ada")
	first.User.Name = "Ada"
	adaptertest.Run(context.Background(), greeter, first)

	second := s.Turn("who am I?")
	fmt.Println(second.Continuity, "after", len(second.History), "messages")
	fmt.Println(adaptertest.Run(context.Background(), greeter, second).Text())
	for _, m := range s.History() {
		fmt.Printf("%s: %s\n", m.Role, m.Content)
	}
	// Output:
	// same after 2 messages
	// Hello, Ada.
	// user: hi, I am Ada
	// agent: Hello, Ada.
	// user: who am I?
	// agent: Hello, Ada.
}

// A host that goes away in the middle of an answer.
func ExampleTurn_hostGone() {
	ctx, cancel := context.WithCancelCause(context.Background())
	turn := adaptertest.NewTurn("count")
	turn.OnText = func(text string) {
		if text == "3," {
			cancel(adapters.CauseHostGone)
		}
	}
	res := adaptertest.Run(ctx, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := 1; ; i++ {
			if _, err := fmt.Fprintf(w, "%d,", i); err != nil {
				return err
			}
		}
	}), turn)
	fmt.Println(res.Text())
	fmt.Println(errors.Is(res.Err, adapters.ErrTurnOver), errors.Is(res.Err, adapters.CauseHostGone))
	// Output:
	// 1,2,3,
	// true true
}

// listener answers each message that arrives while its turn runs.
type listener struct{}

func (listener) TakesArrivals(*adapters.Turn) bool { return true }

func (listener) Run(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
	arrivals, err := w.Arrivals()
	if err != nil {
		return err
	}
	for a := range arrivals {
		for _, m := range a.Messages {
			if err := w.Text("heard " + m.Text + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

func ExampleArrive() {
	turn := adaptertest.NewTurn("I am listening")
	turn.Arrivals = adaptertest.Arrive("one thing", "another")
	res := adaptertest.Run(context.Background(), listener{}, turn)
	fmt.Print(res.Text())
	fmt.Println(len(res.Arrivals), "arrivals")
	// Output:
	// heard one thing
	// heard another
	// 2 arrivals
}

// For a function that takes a Writer and is no adapter.
func ExampleNewWriter() {
	list := func(w adapters.Writer, items ...string) error {
		for _, item := range items {
			if _, err := fmt.Fprintf(w, "- %s\n", item); err != nil {
				return err
			}
		}
		return w.Status("listed")
	}
	w := adaptertest.NewWriter(context.Background(), nil)
	res := w.End(list(w, "apples", "pears"))
	for _, e := range res.Events {
		fmt.Println(e)
	}
	// Output:
	// text "- apples\n"
	// text "- pears\n"
	// status "listed"
}
