package keiki

import (
	"strconv"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// What is sent is valid JSON, UTF-8 and one line, whatever the values hold: bytes that are not UTF-8
// become U+FFFD.

// AppendString appends s as a JSON string with its quotes and returns the longer slice.
func AppendString(dst []byte, s string) []byte { return scan.AppendString(dst, s, true) }

// AppendSend appends the body of POST {turnUrl}/messages and returns the longer slice. The platform sends
// nothing twice under one key, which is up to the caller.
func AppendSend(dst []byte, text, key string) []byte {
	dst = AppendString(append(dst, `{"text":`...), text)
	dst = AppendString(append(dst, `,"idempotencyKey":`...), key)
	return append(dst, '}')
}

// A Status is how a turn ended, as the platform is told.
type Status string

// The statuses.
const (
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
)

// A Completion reports the end of a turn.
type Completion struct {
	// Status is completed where it is empty.
	Status Status
	// Error says why a turn failed. The platform may show it. It is left out where it is empty.
	Error string
	// ConsumedArrivals are the sequences of the arrivals that were processed. Without any the field is left
	// out, which means the same.
	ConsumedArrivals []int64
}

// AppendComplete appends the body of POST {turnUrl}/complete and returns the longer slice. The plainest
// is {"status":"completed"}.
func AppendComplete(dst []byte, c Completion) []byte {
	if c.Status == "" {
		c.Status = StatusCompleted
	}
	dst = AppendString(append(dst, `{"status":`...), string(c.Status))
	if c.Error != "" {
		dst = AppendString(append(dst, `,"error":`...), c.Error)
	}
	for i, n := range c.ConsumedArrivals {
		if i == 0 {
			dst = append(dst, `,"consumedArrivals":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, n, 10)
	}
	if len(c.ConsumedArrivals) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
