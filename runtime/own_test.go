package runtime_test

import (
	"context"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// What a protocol uses that keeps a memory of its own; more of it is in next_test.go.

func sayHello(_ context.Context, _ *adapters.Turn, w adapters.Writer) error { return w.Text("hello") }

func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		for range 2 {
			s := spec("t1", adapters.Func(sayHello))
			s.Forget = true
			h := g.send(s)
			if h.Repeat != runtime.First {
				t.Errorf("the turn is remembered: %v", h.Repeat)
			}
			if err := h.wait(); err != nil {
				t.Error(err)
			}
		}
		if s := g.Stats(); s.Replayable != 0 || s.ReplayBytes != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// usageSink notes each report.
type usageSink struct {
	lineSink
	reports *[]adapters.Usage
}

func (s usageSink) Usage(u adapters.Usage) { *s.reports = append(*s.reports, u) }

func TestUsageSinkSeesEachReport(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, runtime.Config{})
		var reports []adapters.Usage
		s := spec("t1", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for i := range int64(2) {
				if err := w.Usage(adapters.Usage{Tokens: adapters.Count(i)}); err != nil {
					return err
				}
			}
			return nil
		}))
		s.Sink = usageSink{reports: &reports}
		if err := g.send(s).wait(); err != nil {
			t.Error(err)
		}
		if len(reports) != 2 || reports[0].Tokens != adapters.Count(0) || reports[1].Tokens != adapters.Count(1) {
			t.Errorf("the sink saw %v", reports)
		}
		if e := g.end("t1"); e.Usage.Tokens != adapters.Count(1) {
			t.Errorf("the outcome has %v", e.Usage)
		}
	})
}
