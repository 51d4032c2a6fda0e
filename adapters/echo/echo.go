// Package echo is an adapter that answers with the message itself: for trying out a host, and as
// the smallest adapter there is to read.
package echo

import (
	"context"

	"github.com/backline-dev/backline/adapters"
)

// Adapter echoes each turn's message as one text chunk. An empty message completes the turn without
// any text. Usage is what can be counted honestly: one step, as many tokens as chunks, no cost; its
// fidelity is the protocol's default. The zero value is ready, keeps nothing and can run any number of
// turns at once.
type Adapter struct{}

var _ adapters.Adapter = Adapter{}

// New returns the adapter.
func New() Adapter { return Adapter{} }

// Run implements [adapters.Adapter]. Its only error is that of a failed write.
func (Adapter) Run(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	var chunks int64
	if turn.Message != "" {
		if err := w.Text(turn.Message); err != nil {
			return err
		}
		chunks = 1
	}
	return w.Usage(adapters.Usage{
		Tokens:     adapters.Count(chunks),
		CostMicros: adapters.Count(0),
		Steps:      adapters.Count(1),
	})
}
