package scripted_test

import (
	"context"
	"strings"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
)

// BenchmarkAhead is one turn of 20,000 chunks, into a writer that costs nothing.
func BenchmarkAhead(b *testing.B) {
	benchmark(b, script(`{"text":"twenty bytes of text","repeat":20000}`), 20_000)
}

// BenchmarkLines is one turn of 1,000 steps.
func BenchmarkLines(b *testing.B) {
	benchmark(b, script(strings.Repeat(`{"text":"twenty bytes of text"}`+"\n", 1000)), 1000)
}

func benchmark(b *testing.B, message string, chunks int) {
	a := scripted.New(scripted.Config{})
	turn := &adapters.Turn{Message: message}
	b.ReportAllocs()
	for b.Loop() {
		w := new(discard)
		if err := a.Run(context.Background(), turn, w); err != nil || w.chunks != chunks {
			b.Fatalf("%d chunks, error %v", w.chunks, err)
		}
	}
}
