package keiki

import (
	"math"
	"math/big"
	"strconv"
	"time"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/internal/scan"
)

// The platform tells a time as a date and time, or as a number since 1970 (keiki.md, Push and "Settled
// readings").
const (
	// inMilliseconds is the least number that is one of milliseconds; those below are of seconds.
	inMilliseconds = 1e11
	// lastInstant is the greatest number: the end of the year 9999 in milliseconds.
	lastInstant = 253402300799999

	// Or null, wherever there is one.
	anInstant = "a string that is a date and time as in RFC 3339, a number of at least 0 and of at most 253402300799999"
)

// instant reads a time.
func (d *decoder) instant(to *time.Time) bool {
	at := d.At
	if d.Peek() == '"' {
		s, ok := d.Text()
		if !ok {
			return false
		}
		if *to, ok = textInstant(s); !ok {
			return d.wrong(at, anInstant)
		}
		return true
	}
	number, ok := d.number(anInstant)
	if !ok {
		return false
	}
	if *to, ok = numberInstant(number); !ok {
		return d.wrong(at, anInstant)
	}
	return true
}

// guessInstant reads a time if there is one, and whatever else there is too.
func (d *decoder) guessInstant(to *time.Time) bool {
	from := d.At
	if !d.skip() {
		return false
	}
	if !to.IsZero() {
		return true // another field told it
	}
	guess := decoder{Cursor: scan.Cursor{Doc: d.Doc, At: from}}
	var t time.Time
	if guess.instant(&t) {
		*to = t
	}
	return true
}

func textInstant(s string) (t time.Time, ok bool) {
	t, ok = schema.ParseDateTime(s)
	if ok && t.IsZero() {
		t = t.Add(1) // which is as long past, and is not taken for none
	}
	return t, ok
}

// numberInstant reads the text of a JSON number.
func numberInstant(text []byte) (t time.Time, ok bool) {
	n, whole := scan.Integer(text)
	switch {
	case whole && (n < 0 || n > lastInstant):
		return time.Time{}, false
	case whole && n < inMilliseconds:
		return time.Unix(n, 0).UTC(), true
	case whole:
		return time.UnixMilli(n).UTC(), true
	case text[0] == '-':
		return time.Time{}, false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f > lastInstant {
		return time.Time{}, false
	}
	if f == lastInstant { // on which side of it?
		exact, ok := new(big.Rat).SetString(scan.Plain(text))
		if !ok || exact.Cmp(new(big.Rat).SetInt64(lastInstant)) > 0 {
			return time.Time{}, false
		}
	}
	units, fraction := math.Modf(f)
	if f < inMilliseconds {
		return time.Unix(int64(units), int64(fraction*1e9)).UTC(), true
	}
	return time.UnixMilli(int64(units)).Add(time.Duration(fraction * 1e6)).UTC(), true
}
