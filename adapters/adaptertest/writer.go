package adaptertest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/backline-dev/backline/adapters"
)

// A Writer is an [adapters.Writer] that records. [Run] makes one for each turn; make one with
// [NewWriter] to test a function that takes a Writer and is no whole adapter. It may be used from
// several goroutines.
type Writer struct {
	turn *Turn
	// ctx is the turn's own: it tells whether, and why, the turn is over. Run gives it to the adapter.
	ctx    context.Context
	cancel context.CancelCauseFunc
	takes  bool // the adapter takes arrivals

	mu       sync.Mutex
	result   Result
	pending  string // the first bytes of a character whose rest has not come yet
	ended    bool
	returned bool // by the adapter's own return: a call after that is late
	late     int

	arrivals  chan adapters.Arrival // nil until the adapter asks
	forwarder sync.WaitGroup
}

var _ adapters.Writer = (*Writer)(nil)

// NewWriter returns the writer of a turn that runs until ctx is cancelled, the turn's deadline passes
// or [Writer.End] is called. turn says how the host answers; nil means the zero Turn. Call End, also
// after ctx is cancelled.
func NewWriter(ctx context.Context, turn *Turn) *Writer {
	if turn == nil {
		turn = &Turn{}
	}
	w := &Writer{turn: turn, takes: true}
	stop := context.CancelFunc(func() {})
	if !turn.Deadline.IsZero() {
		ctx, stop = context.WithDeadlineCause(ctx, turn.Deadline, adapters.CauseTurnTimeout)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w.ctx, w.cancel = ctx, func(cause error) { cancel(cause); stop() }
	return w
}

// End ends the turn with err, as if an adapter had returned it, and returns what was written. Ended
// again it gives the same record with another error.
func (w *Writer) End(err error) *Result {
	w.adapterReturned()
	return w.end(err)
}

func (w *Writer) adapterReturned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.returned = true
}

func (w *Writer) takesArrivals(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takes = yes
}

// end ends the turn, whether the adapter has returned or is abandoned.
func (w *Writer) end(err error) *Result {
	w.mu.Lock()
	if !w.ended {
		w.ended = true
		if w.pending != "" {
			w.record(KindText, strings.Repeat("\uFFFD", len(w.pending)))
		}
		w.pending = ""
	}
	w.mu.Unlock()
	w.cancel(causeOf(err))
	w.forwarder.Wait()

	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.result.clone()
	r.Err, r.writer = err, w
	return r
}

func causeOf(err error) adapters.Cause {
	switch {
	case err == nil:
		return adapters.CauseCompleted
	case isA[*adapters.Unavailable](err):
		return adapters.CauseProvider
	case isA[*PanicError](err):
		return adapters.CausePanic
	default:
		return adapters.CauseAdapter
	}
}

// over returns the error of a call that comes too late, or nil. w.mu is held.
func (w *Writer) over() error {
	if w.returned {
		w.late++
	}
	if w.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", adapters.ErrTurnOver, context.Cause(w.ctx))
	}
	if w.ended {
		return adapters.ErrTurnOver
	}
	return nil
}

// record adds one event. w.mu is held.
func (w *Writer) record(kind Kind, content string) {
	w.result.Events = append(w.result.Events, Event{kind, content})
	switch kind {
	case KindText:
		w.result.Chunks = append(w.result.Chunks, content)
	case KindStatus:
		w.result.Statuses = append(w.result.Statuses, content)
	}
}

// Write implements [adapters.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.Text(string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Text implements [adapters.Writer].
func (w *Writer) Text(s string) error {
	w.mu.Lock()
	err := w.over()
	var chunk string
	if err == nil {
		if chunk = w.join(s); chunk != "" {
			w.record(KindText, chunk)
		}
	}
	w.mu.Unlock()
	if chunk != "" && w.turn.OnText != nil {
		w.turn.OnText(chunk)
	}
	return err
}

// join returns what can be shown of the pending bytes and s, and keeps the start of a character that
// s ends with. Each byte that can never be part of one is a U+FFFD by itself.
func (w *Writer) join(s string) string {
	if w.pending == "" && utf8.ValidString(s) {
		return s
	}
	s = w.pending + s
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 && !utf8.FullRuneInString(s) {
			break
		}
		b.WriteRune(r)
		s = s[n:]
	}
	w.pending = s
	return b.String()
}

// Status implements [adapters.Writer].
func (w *Writer) Status(s string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.over(); err != nil {
		return err
	}
	w.record(KindStatus, strings.ToValidUTF8(s, "\uFFFD"))
	return nil
}

// Usage implements [adapters.Writer].
func (w *Writer) Usage(u adapters.Usage) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.over(); err != nil {
		return err
	}
	w.result.Usage = w.result.Usage.Merge(u)
	w.result.UsageReports = append(w.result.UsageReports, u)
	w.record(KindUsage, fmt.Sprintf("tokens %s, cost %s, wall time %s, steps %s", u.Tokens, u.CostMicros, u.WallTimeMS, u.Steps))
	return nil
}

// Tool implements [adapters.Writer]: the answer is [Turn.OnTool]'s.
func (w *Writer) Tool(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
	r.Input = slices.Clone(r.Input)
	return w.ask(ctx, "tool", w.turn.OnTool != nil, func() {
		w.result.Tools = append(w.result.Tools, r)
		w.record(KindTool, r.Ref)
	}, func(ctx context.Context) (adapters.Observation, error) { return w.turn.OnTool(ctx, r) })
}

// Ask implements [adapters.Writer]: the answer is [Turn.OnAsk]'s.
func (w *Writer) Ask(ctx context.Context, q adapters.Question) (adapters.Observation, error) {
	q.Question = slices.Clone(q.Question)
	return w.ask(ctx, "ask", w.turn.OnAsk != nil, func() {
		w.result.Questions = append(w.result.Questions, q)
		w.record(KindQuestion, q.Schema)
	}, func(ctx context.Context) (adapters.Observation, error) { return w.turn.OnAsk(ctx, q) })
}

// ask records a request to the host and waits for its answer, as long as ctx and the turn last.
func (w *Writer) ask(ctx context.Context, feature string, supported bool, record func(),
	answer func(context.Context) (adapters.Observation, error),
) (adapters.Observation, error) {
	w.mu.Lock()
	err := w.over()
	switch {
	case err != nil:
	case !supported:
		err = w.unsupported(feature)
	default:
		record()
	}
	w.mu.Unlock()
	if err != nil {
		return adapters.Observation{}, err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.ctx, func() { cancel(context.Cause(w.ctx)) })()
	o, err := answer(ctx)

	w.mu.Lock()
	defer w.mu.Unlock()
	if over := w.over(); over != nil {
		return adapters.Observation{}, over
	}
	return o, err
}

func (w *Writer) unsupported(feature string) error {
	p := w.turn.Protocol
	if p == "" {
		p = adapters.Lowkey
	}
	return &adapters.UnsupportedError{Feature: feature, Protocol: p}
}

// Arrivals implements [adapters.Writer]: they are those of [Turn.Arrivals].
func (w *Writer) Arrivals() (<-chan adapters.Arrival, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.over(); err != nil {
		return nil, err
	}
	if w.turn.Arrivals == nil {
		return nil, w.unsupported("arrivals")
	}
	if w.arrivals == nil {
		w.arrivals = make(chan adapters.Arrival)
		if w.takes {
			w.forwarder.Go(w.forward)
		} else {
			close(w.arrivals)
		}
	}
	return w.arrivals, nil
}

// forward hands on what arrives. The channel has no buffer, so what went into it has been received.
func (w *Writer) forward() {
	defer close(w.arrivals)
	for {
		var a adapters.Arrival
		var ok bool
		select {
		case <-w.ctx.Done():
			return
		case a, ok = <-w.turn.Arrivals:
		}
		if !ok {
			return
		}
		select {
		case <-w.ctx.Done():
			return
		case w.arrivals <- a:
			w.mu.Lock()
			w.result.Arrivals = append(w.result.Arrivals, a)
			w.record(KindArrival, fmt.Sprint(a.Sequence))
			w.mu.Unlock()
		}
	}
}

// Candidate implements [adapters.Writer]: the answer is [Turn.OnCandidate]'s.
func (w *Writer) Candidate(event json.RawMessage) error {
	event = slices.Clone(event)
	_, err := w.ask(context.Background(), "candidate", w.turn.OnCandidate != nil, func() {
		w.result.Candidates = append(w.result.Candidates, event)
		w.record(KindCandidate, string(event))
	}, func(context.Context) (adapters.Observation, error) {
		return adapters.Observation{}, w.turn.OnCandidate(event)
	})
	return err
}
