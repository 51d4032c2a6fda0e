package lowkey

import (
	"encoding/json"
	"strings"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// An Event is one line of a response (the contract's ExternalAgentTurnEvent). This type is for
// reading, and for tests; the hot path writes its lines by itself.
type Event struct {
	ProtocolVersion int       `json:"protocolVersion" jsonschema_description:"The version of the protocol."`
	Type            EventType `json:"type" jsonschema:"enum=status,enum=text,enum=error" jsonschema_description:"What the event is: a sign of life, a chunk of the answer, or a failure that ends the turn."`
	// Status is for events of type status; empty where there was none.
	Status Status `json:"status,omitempty" jsonschema:"enum=started,enum=working,enum=complete,enum=error,enum=cancelled" jsonschema_description:"Where the turn stands. Events of type status have it."`
	// Content is always there in events of type text and error, though it may be empty.
	Content string `json:"content,omitempty" jsonschema_description:"The chunk of text, or what failed. Required for text and error."`
}

// MarshalJSON writes the members that an event of this type must have, and the others if they are not
// empty.
func (e Event) MarshalJSON() ([]byte, error) {
	type members Event
	if e.Type == EventStatus {
		return json.Marshal(members(e))
	}
	return json.Marshal(struct {
		members
		Content string `json:"content"`
	}{members(e), e.Content})
}

// Terminal tells whether the event ends a turn: an error, or the status complete, cancelled or error.
func (e Event) Terminal() bool {
	if e.Type == EventError {
		return true
	}
	return e.Type == EventStatus && (e.Status == StatusComplete || e.Status == StatusCancelled || e.Status == StatusError)
}

// An EventType tells what an [Event] is.
type EventType string

// The types of events.
const (
	EventStatus EventType = "status"
	EventText   EventType = "text"
	EventError  EventType = "error"
)

// A Status tells where a turn stands.
type Status string

// The statuses. StatusError is in the contract, but a failed turn ends with an event of type error;
// readers take it for an end all the same (lowkey.md, Event grammar).
const (
	StatusStarted   Status = "started"
	StatusWorking   Status = "working"
	StatusComplete  Status = "complete"
	StatusError     Status = "error"
	StatusCancelled Status = "cancelled"
)

// ParseEvent reads one line of a response, with or without its line end. It is as strict as [Parse]:
// one object, protocolVersion 1, a type and a status of the contract's, content where the type needs
// it; unknown fields are accepted. The error is an [*Error]. Nothing of line is kept. What the order of
// events must be is [Grammar]'s to say.
func ParseEvent(line []byte) (Event, error) {
	var e Event
	d := decoder{doc: line, i: scan.Space(line, 0)}
	ok := uint64(len(line)) <= scan.MaxLen && d.event(&e)
	d.release()
	if !ok {
		return Event{}, refuse(line, &d)
	}
	e.Content = strings.Clone(e.Content)
	return e, nil
}

func (d *decoder) event(e *Event) bool {
	const (
		version = 1 << iota
		kind
		status
		content
	)
	at := d.i
	if !d.open() {
		return false
	}
	seen := 0
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		field := 0
		switch name {
		case "protocolVersion":
			field, ok = version, d.version(&e.ProtocolVersion)
		case "type":
			field, ok = kind, d.eventType(&e.Type)
		case "status":
			field, ok = status, d.status(&e.Status)
		case "content":
			field, ok = content, d.text(&e.Content, aString)
		default:
			ok = d.unknown(0, 1)
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	switch missing := ^seen; {
	case missing&version != 0:
		return d.lacks(at, "protocolVersion", theOnly)
	case missing&kind != 0:
		return d.lacks(at, "type", theTypes)
	case missing&content != 0 && e.Type != EventStatus:
		return d.lacks(at, "content", aString)
	}
	return d.end()
}

func (d *decoder) eventType(t *EventType) bool {
	i := d.i
	var s string
	if !d.text(&s, theTypes) {
		return false
	}
	for _, known := range []EventType{EventStatus, EventText, EventError} {
		if string(known) == s {
			*t = known
			return true
		}
	}
	d.i = i
	return d.wrong(theTypes)
}

func (d *decoder) status(to *Status) bool {
	i := d.i
	var s string
	if !d.text(&s, theStatus) {
		return false
	}
	for _, known := range []Status{StatusStarted, StatusWorking, StatusComplete, StatusError, StatusCancelled} {
		if string(known) == s {
			*to = known
			return true
		}
	}
	d.i = i
	return d.wrong(theStatus)
}
