package adapters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// The smallest adapter is a function.
func ExampleFunc() {
	greet := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		return w.Text("You said: " + turn.Message)
	})

	res := adaptertest.Run(context.Background(), greet, adaptertest.NewTurn("hello"))
	fmt.Println(res.Text())
	// Output: You said: hello
}

// A model's library that gives its answer as a sequence needs no loop of yours.
func ExampleFromSeq() {
	words := adapters.FromSeq(func(_ context.Context, turn *adapters.Turn) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for word := range strings.FieldsSeq(turn.Message) {
				if word == "stop" {
					yield("", errors.New("I was told to stop"))
					return
				}
				if !yield(strings.ToUpper(word)+" ", nil) {
					return
				}
			}
		}
	})

	res := adaptertest.Run(context.Background(), words, adaptertest.NewTurn("to be or stop"))
	fmt.Printf("%q, error: %v\n", res.Text(), res.Err)
	// Output: "TO BE OR ", error: I was told to stop
}

// A typed session value is remembered from turn to turn.
func ExampleNewValue() {
	type notebook struct{ Items []string }
	var notes = adapters.NewValue[notebook]("notebook")

	keep := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		n, _, err := notes.Load(turn.Session) // the zero value in the first turn
		if err != nil {
			return err
		}
		n.Items = append(n.Items, turn.Message)
		if err := notes.Store(turn.Session, n); err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%d noted: %s", len(n.Items), strings.Join(n.Items, ", "))
		return err
	})

	s := adaptertest.NewSession("session-1")
	for _, message := range []string{"milk", "bread"} {
		fmt.Println(adaptertest.Run(context.Background(), keep, s.Turn(message)).Text())
	}
	// Output:
	// 1 noted: milk
	// 2 noted: milk, bread
}

// Only what is said on purpose reaches the host.
func ExamplePublic() {
	cause := errors.New("dial tcp 10.1.2.3:5432: connection refused")
	err := adapters.Public("The library is closed at the moment.", cause)

	if public, ok := errors.AsType[*adapters.PublicError](err); ok {
		fmt.Println("the host reads:", public.Message)
	}
	fmt.Println("the log has:", err)
	fmt.Println("the cause is there:", errors.Is(err, cause))
	// Output:
	// the host reads: The library is closed at the moment.
	// the log has: The library is closed at the moment.: dial tcp 10.1.2.3:5432: connection refused
	// the cause is there: true
}

// A failure of the service behind the adapter, which may pass.
func ExampleUnavailable() {
	ask := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		status := 529 // what the model's server answered
		if status >= 500 {
			return &adapters.Unavailable{
				Message:   "The model is overloaded; please try again in a minute.",
				Temporary: true,
				Err:       fmt.Errorf("model server: status %d", status),
			}
		}
		return w.Text("…")
	})

	res := adaptertest.Run(context.Background(), ask, adaptertest.NewTurn("hello"))
	if u, ok := errors.AsType[*adapters.Unavailable](res.Err); ok {
		fmt.Println(u.Message, "Temporary:", u.Temporary)
	}
	// Output: The model is overloaded; please try again in a minute. Temporary: true
}

// Why did the turn end? A provider's reset may look like a cancellation, so ask the context.
func ExampleCauseOf() {
	wait := adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
		<-ctx.Done()
		switch cause := adapters.CauseOf(ctx); cause {
		case adapters.CauseHostGone, adapters.CauseStopped:
			fmt.Println("nobody waits for the answer any more:", string(cause))
		default:
			fmt.Println("out of time:", string(cause))
		}
		return context.Cause(ctx)
	})

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(adapters.CauseHostGone)
	adaptertest.Run(ctx, wait, adaptertest.NewTurn("hello"))
	// Output: nobody waits for the answer any more: host-gone
}

// What a protocol cannot do is an error that an adapter can tell from others.
func ExampleUnsupportedError() {
	lookUp := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		o, err := w.Tool(ctx, adapters.ToolRequest{
			Ref:    "weather",
			Schema: "weather.v1",
			Input:  json.RawMessage(`{"city":"Ghent"}`),
		})
		switch {
		case errors.Is(err, adapters.ErrNotSupported):
			return w.Text("I have no tools here, but it often rains in Ghent.")
		case err != nil:
			return err
		case !o.Admitted:
			return w.Text("I may not look it up: " + o.Reason)
		}
		return w.Text("Looked up: " + o.Receipt)
	})

	turn := adaptertest.NewTurn("weather?")
	fmt.Println(adaptertest.Run(context.Background(), lookUp, turn).Text())

	turn.OnTool = func(context.Context, adapters.ToolRequest) (adapters.Observation, error) {
		return adapters.Observation{Reason: "policy-denied"}, nil
	}
	fmt.Println(adaptertest.Run(context.Background(), lookUp, turn).Text())
	// Output:
	// I have no tools here, but it often rains in Ghent.
	// I may not look it up: policy-denied
}

// Usage reports are cumulative, and what was not measured is not zero.
func ExampleUsage_Merge() {
	early := adapters.Usage{Tokens: adapters.Count(25), Steps: adapters.Count(1)}
	late := adapters.Usage{Tokens: adapters.Count(47)}
	u := early.Merge(late)
	fmt.Println("tokens:", u.Tokens)
	fmt.Println("steps:", u.Steps)
	fmt.Println("cost:", u.CostMicros)
	// Output:
	// tokens: 47
	// steps: 1
	// cost: unmeasured
}

func ExampleCount() {
	m := adapters.Count(42)
	n, ok := m.Int()
	fmt.Println(m, m.Known(), n, ok)
	fmt.Println(adapters.Measure{}.Known())
	// Output:
	// 42 true 42 true
	// false
}

// What a provider reported is passed on, also where it makes no sense.
func ExampleRawMeasure() {
	m := adapters.RawMeasure("1.5")
	_, ok := m.Int()
	fmt.Println(m, m.Known(), ok)
	// Output: 1.5 true false
}

// NewSession is for engines and test kits; an adapter finds its session in the Turn.
func ExampleNewSession() {
	s := adapters.NewSession("session-1", memory{})
	if err := s.Store("mood", "fine"); err != nil {
		fmt.Println(err)
	}
	var mood string
	found, err := s.Load("mood", &mood)
	fmt.Println(s.ID(), mood, found, err)
	// Output: session-1 fine true <nil>
}

// memory is the simplest place for values. It is not safe for several goroutines.
type memory map[string]json.RawMessage

func (m memory) Load(key string) (json.RawMessage, bool) { raw, ok := m[key]; return raw, ok }

func (m memory) Store(key string, raw json.RawMessage) error { m[key] = raw; return nil }

func (m memory) Delete(key string) error { delete(m, key); return nil }

func (m memory) Keys() []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
