package keiki

import (
	"strconv"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// The contract gives neither the shape of what a relay claims nor that of its report. This file holds what
// keiki.md, Relay, takes for them, to be corrected in one place.

// A Forward is a signed request that a relay is to bring to the app.
type Forward struct {
	ID string
	// Body is what was signed.
	Body string
	// Headers are the request's, the signature and the turn token among them; nil where there are none.
	Headers map[string]string
}

// ParseForward reads the answer of GET /harness/turns/next: {"turn":{"id":…,"body":…,"headers":{…}}}. It
// is nil, without an error, for {"turn":null}: nothing is waiting. The error is an [*Error]. Memory is
// shared as with [ParseRequest].
func ParseForward(body []byte) (*Forward, error) {
	var f *Forward
	if d, ok := whole(body, &f, forwardRoot); !ok {
		return nil, refuse(d)
	}
	return f, nil
}

var (
	forwardRoot = []field[*Forward]{
		{"turn", required, anObject + orNull, func(d *decoder, f **Forward) bool {
			switch d.Peek() {
			case '{':
				*f = new(Forward)
				return object(d, *f, forwardFields)
			case 'n':
				return d.skip()
			}
			return d.wrong(d.At, anObject+orNull)
		}},
	}
	forwardFields = []field[Forward]{
		{"id", required, anID, func(d *decoder, f *Forward) bool { return d.id(&f.ID) }},
		{"body", required, aString, func(d *decoder, f *Forward) bool { return d.text(&f.Body) }},
		{"headers", optional, "", func(d *decoder, f *Forward) bool { return d.headers(f) }},
	}
)

func (d *decoder) headers(f *Forward) bool {
	if d.Peek() != '{' {
		return d.wrong(d.At, anObject)
	}
	d.At++
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok || !more {
			return ok
		}
		var value string
		if _, twice := f.Headers[name]; twice || !d.text(&value) {
			return false
		}
		if f.Headers == nil {
			f.Headers = map[string]string{}
		}
		f.Headers[name] = value
	}
}

// A Result is what the app answered to a [Forward].
type Result struct {
	// Status is the HTTP status.
	Status int
	Body   string
}

// AppendResult appends a relay's report and returns the longer slice. It is {"status":…,"body":…}, in which
// the body's bytes that are not UTF-8 are U+FFFD.
func AppendResult(dst []byte, r Result) []byte {
	dst = strconv.AppendInt(append(dst, `{"status":`...), int64(r.Status), 10)
	dst = scan.AppendString(append(dst, `,"body":`...), r.Body, true)
	return append(dst, '}')
}
