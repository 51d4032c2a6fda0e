package keiki

import (
	"strings"
	"time"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// What the turn API answers.

// ArrivalsPage is how many batches one answer of GET {turnUrl}/arrivals holds at most: after a full page
// there may be more.
const ArrivalsPage = 50

// A Batch is one arrival as it is pulled.
type Batch struct {
	// Sequence is as in [Arrival].
	Sequence int64
	// Messages may be empty, and is not nil.
	Messages []Message
}

// ParseArrivals reads the answer of GET {turnUrl}/arrivals: the batches in the platform's order. The error
// is an [*Error]. Memory is shared as with [ParseRequest].
func ParseArrivals(body []byte) ([]Batch, error) {
	var batches []Batch
	if d, ok := whole(body, &batches, arrivalsFields); !ok {
		return nil, refuse(d)
	}
	return batches, nil
}

var (
	arrivalsFields = []field[[]Batch]{
		{"arrivals", required, anArray, func(d *decoder, to *[]Batch) bool {
			return list(d, to, 8, func(d *decoder, b *Batch) bool { return object(d, b, batchFields) })
		}},
	}
	batchFields = []field[Batch]{
		{"sequence", required, aSequence, func(d *decoder, b *Batch) bool { return d.sequence(&b.Sequence) }},
		{"messages", required, anArray, func(d *decoder, b *Batch) bool { return d.messages(&b.Messages) }},
	}
)

// A Fault is why the platform did not do what was asked.
type Fault struct {
	// Code is the platform's code; empty where it gave none, and where what it gave is not a word of a to z,
	// 0 to 9 and _, or could be a credential: a platform might repeat one in its answer.
	Code string
	// Retryable is nil where the platform did not say.
	Retryable *bool
}

// ParseFault reads the body of an answer that is an error: {"error":{"code":…}}, {"code":…} or
// {"error":…} (keiki.md, Settled readings), with retryable on either level. Where a body has several
// codes, that is the order. What cannot be read is not there: ParseFault never fails, and the body may be
// a proxy's page. Nothing is shared with body.
func ParseFault(body []byte) Fault {
	var f fault
	if _, ok := whole(body, &f, faultFields); !ok {
		return Fault{}
	}
	r := Fault{Retryable: f.inner.retryable}
	if r.Retryable == nil {
		r.Retryable = f.retryable
	}
	for _, code := range []string{f.inner.code, f.code, f.text} {
		if isCode(code) {
			r.Code = strings.Clone(code)
			break
		}
	}
	return r
}

// A fault is the body of an error that is being read.
type fault struct {
	faultLevel
	text  string
	inner faultLevel
}

type faultLevel struct {
	code      string
	retryable *bool
}

var (
	faultFields = []field[fault]{
		{"error", anything, "", func(d *decoder, f *fault) bool {
			if d.Peek() == '{' {
				return object(d, &f.inner, faultLevelFields)
			}
			return d.guessText(&f.text)
		}},
		{"code", anything, "", func(d *decoder, f *fault) bool { return d.guessText(&f.code) }},
		{"retryable", anything, "", func(d *decoder, f *fault) bool { return d.guessBoolean(&f.retryable) }},
	}
	faultLevelFields = []field[faultLevel]{
		{"code", anything, "", func(d *decoder, l *faultLevel) bool { return d.guessText(&l.code) }},
		{"retryable", anything, "", func(d *decoder, l *faultLevel) bool { return d.guessBoolean(&l.retryable) }},
	}
)

// guessBoolean reads true or false if it is there, and whatever else there is too.
func (d *decoder) guessBoolean(to **bool) bool {
	if c := d.Peek(); c != 't' && c != 'f' {
		return d.skip()
	}
	*to = new(bool)
	return d.boolean(*to)
}

// isCode tells whether a string is a code, and no credential as far as that can be told: those of the
// platform have a prefix, and any other would have digits all over.
func isCode(s string) bool {
	const (
		longest    = 64
		mostDigits = 3
	)
	if s == "" || len(s) > longest {
		return false
	}
	digits := 0
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9':
			digits++
		case c != '_' && (c < 'a' || c > 'z'):
			return false
		}
	}
	for _, prefix := range []string{"ht_", "sk_", "whsec_", "kts1"} {
		if strings.HasPrefix(s, prefix) {
			return false
		}
	}
	return digits <= mostDigits
}

// A Lease is what the platform says when a claim is refreshed.
type Lease struct {
	// ExpiresAt is when the claim runs out, in UTC; the zero time if that was not told.
	ExpiresAt time.Time
	// Token replaces the turn token; empty where that stays. It is a credential.
	Token string
}

// ParseLease reads the answer of POST {turnUrl}/lease. The error is an [*Error], which holds nothing of
// the token; where the body is JSON, the lease is what could be read of it all the same, since a token that
// was missed is a turn lost. Nothing is shared with body.
func ParseLease(body []byte) (Lease, error) {
	var l lease
	d, ok := whole(body, &l, leaseFields)
	if !ok {
		return Lease{}, refuse(d)
	}
	l.Token = strings.Clone(l.Token)
	if l.want != "" {
		d.wrong(l.at, l.want)
		return l.Lease, refuse(d)
	}
	return l.Lease, nil
}

// A lease is a [Lease] that is being read.
type lease struct {
	Lease
	at   int // of what is wrong
	want string
}

// attempt reads a value that may be wrong, which is noted.
func (l *lease) attempt(d *decoder, read func(d *decoder) bool) bool {
	try := decoder{Cursor: scan.Cursor{Doc: d.Doc, At: d.At}}
	if !d.skip() {
		return false
	}
	if !read(&try) && l.want == "" {
		l.at, l.want = try.at, try.want+orNull
	}
	return true
}

var leaseFields = []field[lease]{
	{"leaseExpiresAt", optional, "", func(d *decoder, l *lease) bool {
		return l.attempt(d, func(try *decoder) bool { return try.instant(&l.ExpiresAt) })
	}},
	{"turnToken", optional, "", func(d *decoder, l *lease) bool {
		return l.attempt(d, func(try *decoder) bool { return try.id(&l.Token) })
	}},
}
