package adaptertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/backline-dev/backline/adapters"
)

// A Result is what an adapter did in one turn. It does not change any more and belongs to the test.
type Result struct {
	// Err is what the adapter returned, a [*PanicError] or [ErrAbandoned]. Nil: it completed the turn.
	Err error

	// Chunks are the text chunks as a host would see them: valid UTF-8, none empty. [Result.Text] is
	// the whole.
	Chunks []string
	// Statuses are the working statuses.
	Statuses []string
	// Usage is what all reports come to: for each axis the last that measured it.
	Usage adapters.Usage
	// UsageReports are the reports one by one.
	UsageReports []adapters.Usage
	// Tools and Questions are what the host was asked and could answer.
	Tools     []adapters.ToolRequest
	Questions []adapters.Question
	// Arrivals are those that the adapter received.
	Arrivals []adapters.Arrival
	// Candidates are the candidate events that the host could take.
	Candidates []json.RawMessage
	// Events are all of these in their order.
	Events []Event

	writer *Writer
}

// A Kind tells what an [Event] is.
type Kind string

// The kinds.
const (
	KindText      Kind = "text"
	KindStatus    Kind = "status"
	KindUsage     Kind = "usage"
	KindTool      Kind = "tool"
	KindQuestion  Kind = "question"
	KindArrival   Kind = "arrival"
	KindCandidate Kind = "candidate"
)

// An Event is one thing that an adapter wrote, asked or received.
type Event struct {
	Kind Kind
	// Content is the text, the status, the numbers of the usage in words, the tool's ref, the
	// question's schema, the arrival's sequence number, or the candidate's JSON.
	Content string
}

// String gives the event as one line, such as
//
//	text "hello"
func (e Event) String() string { return fmt.Sprintf("%s %q", e.Kind, e.Content) }

// Text is the whole answer: all chunks, one after the other.
func (r *Result) Text() string { return strings.Join(r.Chunks, "") }

// Late counts the calls of the writer, and changes of session values, that came after the adapter had
// returned. It is counted up to the moment of asking, and should stay 0: see
// [adapters.Adapter].
func (r *Result) Late() int {
	if r.writer == nil {
		return 0
	}
	r.writer.mu.Lock()
	defer r.writer.mu.Unlock()
	return r.writer.late
}

// clone copies the lists, so that an abandoned adapter cannot change what a test reads.
func (r *Result) clone() *Result {
	c := *r
	c.Chunks = slices.Clone(r.Chunks)
	c.Statuses = slices.Clone(r.Statuses)
	c.UsageReports = slices.Clone(r.UsageReports)
	c.Tools = slices.Clone(r.Tools)
	c.Questions = slices.Clone(r.Questions)
	c.Arrivals = slices.Clone(r.Arrivals)
	c.Candidates = slices.Clone(r.Candidates)
	c.Events = slices.Clone(r.Events)
	return &c
}

// ErrAbandoned is the error of a turn whose adapter did not return within the grace time after its
// context was cancelled. Its goroutine may still be running.
var ErrAbandoned = errors.New("adaptertest: the adapter did not return after it was cancelled")

// A PanicError is the error of a turn whose adapter panicked or ended its goroutine.
type PanicError struct {
	// Value is what the adapter panicked with; nil where it called runtime.Goexit.
	Value any
	// Stack is where.
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "the adapter ended its goroutine"
	}
	return fmt.Sprintf("the adapter panicked: %v", e.Value)
}

// Unwrap gives the value that the adapter panicked with, where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
