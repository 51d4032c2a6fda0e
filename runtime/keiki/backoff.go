package keiki

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// A backoff says how long to wait before something is tried again. Its methods may be called from several
// goroutines.
type backoff struct {
	least, most time.Duration
	random      func() float64 // from [0, 1)
}

// newBackoff returns a backoff whose first pause is at least least, and none longer than most unless the
// other side asks for it. Both are positive, and most is at least twice least.
func newBackoff(least, most time.Duration) *backoff {
	return &backoff{least, most, rand.Float64}
}

// next is the pause after a failed attempt, which are counted from 0 since the last success. The pause is
// somewhere between least·2^attempt and twice that, so that those who failed together do not come back
// together; the last step is between half of most and most. A positive after, from [retryAfter], is what the
// other side asked for: the pause is then that and up to least more.
func (b *backoff) next(attempt int, after time.Duration) time.Duration {
	if after > 0 {
		return after + b.some(b.least)
	}
	pause := b.least
	for range attempt {
		if pause >= b.most/2 {
			break
		}
		pause *= 2
	}
	pause = min(pause, b.most/2)
	return pause + b.some(pause)
}

// some is a random part of d.
func (b *backoff) some(d time.Duration) time.Duration { return time.Duration(b.random() * float64(d)) }

// longestRetryAfter is the longest that another side can ask for.
const longestRetryAfter = 24 * time.Hour

// retryAfter reads a Retry-After header (RFC 9110, 10.2.3): seconds, or a date, which is compared with now. A
// time that has passed is 0; more than a day is a day. ok is false where there is no header or it is
// neither.
func retryAfter(header string, now time.Time) (after time.Duration, ok bool) {
	header = strings.TrimSpace(header)
	if header == "" {
		return 0, false
	}
	if number, minus := strings.CutPrefix(header, "-"); number != "" && strings.Trim(number, "0123456789") == "" {
		seconds := int64(0)
		for _, c := range number {
			seconds = min(seconds*10+int64(c-'0'), int64(longestRetryAfter/time.Second))
		}
		if minus {
			seconds = 0
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), longestRetryAfter), true
}
