package lowkey

import (
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// The lines of a stream. Events have no members but the contract's, so most of each line is constant.
const (
	head          = `{"protocolVersion":1,"type":`
	textHead      = head + `"text","content":`
	errorHead     = head + `"error","content":`
	startedLine   = head + `"status","status":"started"}` + "\n"
	workingLine   = head + `"status","status":"working"}` + "\n"
	workingHead   = head + `"status","status":"working","content":`
	completeLine  = head + `"status","status":"complete"}` + "\n"
	cancelledLine = head + `"status","status":"cancelled"}` + "\n"
	tail          = "}\n"
)

// started is shared by all turns: its capacity is its length, so nobody appends to it.
var started = []byte(startedLine)[:len(startedLine):len(startedLine)]

// sink encodes a turn's events. It has no state, so one serves all turns.
type sink struct{}

var _ runtime.Sink = sink{}

func (sink) Started(dst []byte) []byte {
	if dst == nil {
		return started
	}
	return append(dst, startedLine...)
}

func (sink) Text(dst []byte, s string) []byte {
	return append(ndjson.AppendString(append(dst, textHead...), s), tail...)
}

func (sink) Status(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, workingLine...)
	}
	return append(ndjson.AppendString(append(dst, workingHead...), s), tail...)
}

func (sink) Heartbeat(dst []byte) []byte { return append(dst, workingLine...) }

func (sink) End(dst []byte, o *runtime.Outcome) []byte {
	switch o.Status {
	case runtime.Completed:
		return append(dst, completeLine...)
	case runtime.Cancelled:
		return append(dst, cancelledLine...)
	}
	return appendError(dst, o.PublicText())
}

func appendError(dst []byte, content string) []byte {
	return append(ndjson.AppendString(append(dst, errorHead...), content), tail...)
}
