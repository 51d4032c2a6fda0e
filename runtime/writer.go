package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// writer is the [adapters.Writer] of a run.
type writer Run

var _ adapters.Writer = (*writer)(nil)

// begin starts an output of the adapter: after nil the log is locked.
func (w *writer) begin() error {
	r := (*Run)(w)
	if r.ctx.Context.Err() != nil {
		return &overError{r.cause()}
	}
	if r.rec.log.Begin() != nil {
		return &overError{}
	}
	if r.closed {
		r.rec.log.Abort()
		return &overError{}
	}
	return nil
}

// emitted notes, between begin and the log's Commit, that the adapter has put something out; line tells
// whether it is seen on the wire. A report of usage or an empty chunk is no output.
func (r *Run) emitted(line bool) {
	if r.rec.log.Bursting() {
		return // the time that counts is when the burst is taken
	}
	now := ndjson.Now()
	r.clock.Store(now)
	if line {
		r.lastLine.Store(now)
	}
	if r.firstOut == 0 {
		r.firstOut = now
		r.outputs.Store(true)
	}
}

// commit ends an output: the lines leave, and the adapter waits where it is too far ahead.
func (w *writer) commit(lines []byte) error {
	r := (*Run)(w)
	r.emitted(len(lines) > 0)
	if r.rec.log.Commit(lines, true) {
		r.rec.log.WaitRoom(r.ctx.Done())
		r.clock.Store(ndjson.Now())
	}
	return nil
}

func (w *writer) Text(s string) error {
	if err := w.begin(); err != nil {
		return err
	}
	r := (*Run)(w)
	s = r.runes.feed(s)
	if s == "" {
		r.rec.log.Abort()
		return nil
	}
	r.keep(s)
	return w.commit(r.sink.Text(r.rec.log.Room(len(s)+64), s))
}

// keep counts a chunk and remembers it. Called with the log locked.
func (r *Run) keep(s string) {
	r.chunks++
	r.bytes += int64(len(s))
	if r.bytes > maxRemembered || r.values != nil {
		r.text = nil // an answer of this length does not enter the conversation
		return
	}
	if r.text == nil {
		r.text = shortTexts.Get().(*[]byte)
	}
	if len(*r.text)+len(s) > cap(*r.text) && cap(*r.text) >= shortText<<4 && cap(*r.text) < longText {
		long := longTexts.Get().(*[]byte)
		*long = append(*long, *r.text...)
		freeText(r.text)
		r.text = long
	}
	*r.text = append(*r.text, s...)
}

func (w *writer) Write(p []byte) (int, error) {
	// Sinks copy, so the bytes are only borrowed.
	if err := w.Text(unsafe.String(unsafe.SliceData(p), len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *writer) Status(s string) error {
	if err := w.begin(); err != nil {
		return err
	}
	r := (*Run)(w)
	s = sanitise(s)
	return w.commit(r.sink.Status(r.rec.log.Room(len(s)+96), s))
}

func (w *writer) Usage(u adapters.Usage) error {
	if err := w.begin(); err != nil {
		return err
	}
	r := (*Run)(w)
	if r.usage == nil {
		r.usage = new(adapters.Usage)
	}
	*r.usage = r.usage.Merge(u)
	if s, ok := r.sink.(UsageSink); ok {
		s.Usage(u)
	}
	r.rec.log.Abort()
	return nil
}

func (w *writer) Tool(ctx context.Context, q adapters.ToolRequest) (adapters.Observation, error) {
	m, ok := w.sink.(Mediator)
	if !ok {
		return adapters.Observation{}, w.unsupported("tool")
	}
	return w.observe(ctx, func(ctx context.Context) (adapters.Observation, error) { return m.Tool(ctx, q) })
}

func (w *writer) Ask(ctx context.Context, q adapters.Question) (adapters.Observation, error) {
	m, ok := w.sink.(Mediator)
	if !ok {
		return adapters.Observation{}, w.unsupported("ask")
	}
	return w.observe(ctx, func(ctx context.Context) (adapters.Observation, error) { return m.Ask(ctx, q) })
}

// observe waits for the host's answer while the turn's clocks stand. It ends with the turn, whatever
// context the adapter has passed.
func (w *writer) observe(ctx context.Context, ask func(context.Context) (adapters.Observation, error)) (adapters.Observation, error) {
	r := (*Run)(w)
	if err := w.begin(); err != nil {
		return adapters.Observation{}, err
	}
	r.emitted(false)
	r.rec.log.Abort()
	r.observing.Add(1)
	defer func() {
		r.clock.Store(ndjson.Now())
		r.observing.Add(-1)
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(&r.ctx, func() { cancel(r.cause()) })()
	o, err := ask(ctx)
	if err != nil && !errors.Is(err, adapters.ErrTurnOver) { // else it says more than the cause would
		if cause := r.cause(); cause != "" {
			err = &overError{cause}
		}
	}
	return o, err
}

func (w *writer) Arrivals() (<-chan adapters.Arrival, error) {
	s, ok := w.sink.(ArrivalSource)
	if !ok {
		return nil, w.unsupported("arrivals")
	}
	if w.ctx.Context.Err() != nil {
		return nil, &overError{(*Run)(w).cause()}
	}
	return s.Arrivals()
}

func (w *writer) Candidate(event json.RawMessage) error {
	s, ok := w.sink.(CandidateSink)
	if !ok {
		return w.unsupported("candidate")
	}
	if err := w.begin(); err != nil {
		return err
	}
	r := (*Run)(w)
	lines, err := s.Candidate(r.rec.log.Room(len(event)+64), event)
	if err != nil {
		r.rec.log.Abort()
		return err
	}
	return w.commit(lines)
}

func (w *writer) unsupported(feature string) error {
	if w.ctx.Context.Err() != nil {
		return &overError{(*Run)(w).cause()}
	}
	return &adapters.UnsupportedError{Feature: feature, Protocol: w.rec.key.protocol}
}
