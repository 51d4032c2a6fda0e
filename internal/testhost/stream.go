package testhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// linger is how long a server may keep the connection open after the event that ends the turn. A host
// does not wait for more; this waits that long, to see that nothing follows.
var linger = 2 * time.Second

// A Stream is a server's answer to one turn. It is for one goroutine.
type Stream struct {
	// Status is the HTTP status: 200 for a turn that was taken.
	Status int
	// Header is the response's header.
	Header http.Header
	// Sent is when the request was sent; arrival times count from it.
	Sent time.Time

	body   io.ReadCloser
	limit  int
	cancel context.CancelFunc
	walked bool
	text   strings.Builder   // so far
	onEnd  func(text string) // for the conversation; nil when done
}

// An Event is one line of the response.
type Event struct {
	wire.Event
	// Line is the line's number, from 1; empty lines count.
	Line int
	// Raw is the line as it came, without its end. It belongs to the receiver.
	Raw []byte
	// At is when it was read, counted from [Stream.Sent].
	At time.Duration
	// Err is a [*ProtocolError] if the line is no event, or an event in a wrong place; reading goes on.
	Err error
}

// A ProtocolError says how a server's answer breaks the protocol.
type ProtocolError struct {
	// Line is the number of the line; for an end that is missing, one more than the last line's.
	Line int
	// Err says what is wrong: a [*wire.Error], or a sentence about the order of events.
	Err error
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("line %d of the answer: %v", e.Line, e.Err)
}

func (e *ProtocolError) Unwrap() error { return e.Err }

// Close ends the stream: a host that goes away. Closing again, or after the end, does nothing. From
// another goroutine cancel the turn's context instead.
func (s *Stream) Close() error {
	s.cancel()
	err := s.body.Close()
	if s.onEnd != nil && s.Status == http.StatusOK {
		s.onEnd(s.text.String())
		s.onEnd = nil
	}
	return err
}

// Events walks the events as they arrive; any packing of lines into packets is fine. An event that
// breaks the protocol is handed out with its Err, and reading goes on. The last pair may be an error: of
// the connection, a [*ndjson.LineTooLongError], or a [*ProtocolError] if the answer ended too early.
// The sequence can be walked once, and closes the stream when it ends or is left.
//
// The answer to a refused turn (a status other than 200) is not held to the order of a turn's events.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if s.walked {
			yield(Event{}, errors.New("testhost: a stream can be walked once"))
			return
		}
		s.walked = true
		defer func() { _ = s.Close() }() // read to its end, or given up

		var grammar wire.Grammar
		taken := s.Status == http.StatusOK
		var patience *time.Timer
		last := 0
		for line, err := range ndjson.Lines(s.body, s.limit) {
			if err != nil {
				if patience != nil && !patience.Stop() {
					return // it kept the connection open, and nothing followed
				}
				yield(Event{}, fmt.Errorf("read the answer: %w", err))
				return
			}
			last = line.Number
			e := Event{Line: line.Number, Raw: append([]byte(nil), line.Data...), At: time.Since(s.Sent)}
			var parseErr error
			over := grammar.Ended()
			if e.Event, parseErr = wire.ParseEvent(e.Raw); parseErr != nil {
				e.Err = &ProtocolError{line.Number, parseErr}
			} else if taken {
				for _, v := range grammar.Next(e.Event) {
					e.Err = &ProtocolError{line.Number, fmt.Errorf("%s, expected %s", v.Found, v.Expected)}
				}
				if e.Type == wire.EventText && !over {
					s.text.WriteString(e.Content)
				}
				if grammar.Ended() && patience == nil {
					patience = time.AfterFunc(linger, s.cancel)
					defer patience.Stop()
				}
			}
			if !yield(e, nil) {
				return
			}
		}
		if !taken {
			return
		}
		if missing := grammar.End(); len(missing) > 0 {
			yield(Event{}, &ProtocolError{last + 1, fmt.Errorf("the answer ended early: expected %s", missing[0].Expected)})
		}
	}
}

// An Answer is a whole stream.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Events are all events, in their order.
	Events []Event
	// Text is what the agent said: its text chunks joined, as far as they came.
	Text string
	// End is the event that ended the turn or refused it; the zero event if none came.
	End wire.Event
}

// Completed tells whether the turn ended well.
func (a *Answer) Completed() bool {
	return a.End.Type == wire.EventStatus && a.End.Status == wire.StatusComplete
}

// Answer walks the stream to its end. The error is the first thing that was wrong: with the protocol,
// or with the connection. A turn that failed or was refused as the protocol has it is none. The answer
// holds what came, also with an error.
func (s *Stream) Answer() (*Answer, error) {
	a := &Answer{Status: s.Status}
	var firstErr error
	for e, err := range s.Events() {
		if err == nil {
			a.Events = append(a.Events, e)
			if e.Err == nil && e.Terminal() {
				a.End = e.Event
			}
			err = e.Err
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	a.Text = s.text.String()
	return a, firstErr
}
