package adapters_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"unicode/utf8"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// counting is an adapter around another one that tells how much was written.
type counting struct {
	inner adapters.Adapter
	tell  func(characters int64)
}

func (c counting) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	cw := &countingWriter{Writer: w}
	err := c.inner.Run(ctx, turn, cw)
	c.tell(cw.characters.Load())
	return err
}

// TakesArrivals passes on what the inner adapter can do beside Run.
func (c counting) TakesArrivals(turn *adapters.Turn) bool {
	taker, ok := c.inner.(adapters.ArrivalTaker)
	return ok && taker.TakesArrivals(turn)
}

// countingWriter embeds the Writer, so that it stays one when Writer grows, and replaces both methods
// by which text is written. Writers are used from several goroutines.
type countingWriter struct {
	adapters.Writer
	characters atomic.Int64
}

func (w *countingWriter) Text(s string) error {
	w.characters.Add(int64(utf8.RuneCountInString(s)))
	return w.Writer.Text(s)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.characters.Add(int64(utf8.RuneCount(p)))
	return w.Writer.Write(p)
}

// Middleware is an adapter that wraps another one, and a Writer that embeds one.
func Example_middleware() {
	inner := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if err := w.Status("thinking"); err != nil { // goes through untouched
			return err
		}
		if err := w.Text("Bonjour, "); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "%s.", turn.User.Name)
		return err
	})
	wrapped := counting{inner, func(n int64) { fmt.Println(n, "characters") }}

	turn := adaptertest.NewTurn("salut")
	turn.User.Name = "René"
	res := adaptertest.Run(context.Background(), wrapped, turn)
	fmt.Println(res.Text())
	// Output:
	// 14 characters
	// Bonjour, René.
}
