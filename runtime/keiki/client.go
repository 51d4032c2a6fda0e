package keiki

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// How a call of the platform's API went. What a verdict means for the turn is the caller's to decide;
// what an answer means is decided here alone (keiki.md, "Answering" and "Settled readings").
type verdict int

const (
	settled      verdict = iota // 2xx: done, or done before
	again                       // it may succeed later, under the same key
	unknown                     // delivered or not, nobody knows: never again under a new key
	closed                      // the turn is over for the platform
	unauthorised                // the bearer is not taken
	refused                     // the platform will never take it as it is
)

// attemptTimeout limits one call; the turn's deadline limits all.
const attemptTimeout = 30 * time.Second

const (
	// maxAnswer is how much is read of an answer that brings something, in bytes. A page of arrivals is the
	// longest.
	maxAnswer = 8 << 20
	// maxWord is how much is read of any other, and wordTimeout for how long: its status has said it all, and
	// the rest is read to use the connection again, or for a code.
	maxWord     = 64 << 10
	wordTimeout = time.Second
)

// An answer is what a call came back with.
type answer struct {
	status int // 0 where there was no answer
	body   []byte
	fault  wire.Fault
	after  time.Duration // of Retry-After; -1 where there is none
	date   time.Time     // on the platform's clock, to the second; zero where it does not say
	err    error         // why there was no answer; names no secret
}

// word says for the log how a call went, without anything that the platform wrote but its code.
func (a *answer) word() string {
	switch {
	case a.status == 0 && a.err != nil:
		return a.err.Error()
	case a.fault.Code != "":
		return strconv.Itoa(a.status) + " " + a.fault.Code
	}
	return strconv.Itoa(a.status)
}

// clockSlack is how far a Date may be from now without telling anything: it counts seconds, and was on its way.
const clockSlack = 5 * time.Second

// ahead is how far the platform's clock is ahead of ours, as far as an answer that has just come can tell.
func (a *answer) ahead() time.Duration {
	if a.date.IsZero() {
		return 0
	}
	d := time.Until(a.date)
	if d.Abs() <= clockSlack {
		return 0
	}
	return d
}

// judge says what an answer to a message or a completion means.
func (a *answer) judge() verdict {
	switch s := a.status; {
	case s == 0:
		return again
	case s >= 200 && s < 300:
		return settled
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return unauthorised
	case s == http.StatusConflict && a.fault.Code == "turn_closed", s == http.StatusNotFound, s == http.StatusGone:
		return closed
	case s == http.StatusConflict:
		return unknown // previous_attempt_failed, and whatever else was tried before
	case s == http.StatusBadGateway && a.fault.Retryable != nil && !*a.fault.Retryable:
		return unknown
	case s == http.StatusRequestTimeout, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s >= 500:
		return again
	}
	return refused // other 4xx, and redirects, which no bearer follows
}

// A caller makes calls to one platform.
type caller struct {
	client *http.Client
}

func newCaller(rt http.RoundTripper) *caller {
	return &caller{&http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// tell makes one call whose answer is its status. body may be nil.
func (c *caller) tell(ctx context.Context, method, url string, bearer secret.Text, body []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return c.do(ctx, method, url, bearer, body, false)
}

// fetch makes one call whose answer brings something.
func (c *caller) fetch(ctx context.Context, method, url string, bearer secret.Text) answer {
	return c.do(ctx, method, url, bearer, nil, true)
}

func (c *caller) do(ctx context.Context, method, url string, bearer secret.Text, body []byte, wanted bool) answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return answer{err: errors.New("the platform's URL cannot be called"), after: -1}
	}
	req.Header.Set("Authorization", "Bearer "+bearer.Reveal())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return answer{err: plainError(ctx, err), after: -1}
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, after: -1}
	a.date, _ = http.ParseTime(res.Header.Get("Date"))
	switch {
	case a.status < 200: // 101: the connection is another protocol's now, which no context ends
		return answer{err: errors.New("the platform answered " + strconv.Itoa(a.status)), after: -1}
	case a.status < 300 && wanted:
		if a.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer)); err != nil {
			return answer{err: plainError(ctx, err), after: -1} // what was asked for did not come
		}
		return a
	}
	defer time.AfterFunc(wordTimeout, cancel).Stop()
	said, _ := io.ReadAll(io.LimitReader(res.Body, maxWord)) // what does not come says nothing
	if a.status >= 300 {
		a.fault = wire.ParseFault(said) // and nothing else of it leaves: a platform might repeat a token in it
		if d, ok := retryAfter(res.Header.Get("Retry-After"), time.Now()); ok {
			a.after = d
		}
	}
	return a
}

// fetchTimeout is fetch within the limit of one call.
func (c *caller) fetchTimeout(ctx context.Context, limit time.Duration, method, url string, bearer secret.Text) answer {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	return c.fetch(ctx, method, url, bearer)
}

var errLate = errors.New("no answer in time")

// plainError is why a call failed, in words of ours: net/http's own hold the URL.
func plainError(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errLate
	}
	return fmt.Errorf("no answer (%T)", errors.Unwrap(err))
}

// Credentials of one turn: the token that it came with, or one that is signed here. They may be replaced
// while the turn runs.
type credentials struct {
	mu    sync.Mutex
	token secret.Text
	gen   int           // counts the tokens
	sign  *bearer       // where there is no token; may be nil
	asked chan struct{} // closed when an answer is there that may have another token in it; nil where none is due
}

// current returns the bearer to use now, and its generation.
func (c *credentials) current(now time.Time) (secret.Text, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == "" && c.sign != nil {
		return c.sign.current(now), c.gen
	}
	return c.token, c.gen
}

// rotate replaces the token for all calls from now on.
func (c *credentials) rotate(token secret.Text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(token)
}

// set replaces the token. Called with c locked.
func (c *credentials) set(token secret.Text) {
	if token != "" && token != c.token {
		c.token = token
		c.gen++
	}
}

// replace is rotate, but where the token has been replaced since gen it stays: what came of a call with an
// older one is older too.
func (c *credentials) replace(gen int, token secret.Text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen == gen {
		c.set(token)
	}
}

// newer tells whether the token has been replaced since gen.
func (c *credentials) newer(gen int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen != gen
}

// renewing notes that a call is made whose answer may replace the token: from the moment in which the platform
// takes it, others made with the token fail. Done ends that. One goroutine at a time does this.
func (c *credentials) renewing() (done func()) {
	asked := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = asked
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked = nil
		close(asked)
	}
}

// replaced is newer once no call is under way that may replace the token; false where ctx is done before.
func (c *credentials) replaced(ctx context.Context, gen int) bool {
	c.mu.Lock()
	asked := c.asked
	if c.gen != gen {
		asked = nil
	}
	c.mu.Unlock()
	if asked != nil {
		select {
		case <-asked:
		case <-ctx.Done():
			return false
		}
	}
	return c.newer(gen)
}

// tell posts something to a turn's API, once.
func (t *turn) tell(ctx context.Context, path string, body []byte) answer {
	return t.ask(ctx, func(token secret.Text) answer {
		return t.r.caller.tell(ctx, http.MethodPost, t.links.TurnURL+path, token, body)
	})
}

// fetch gets something from a turn's API.
func (t *turn) fetch(ctx context.Context, path string) answer {
	return t.ask(ctx, func(token secret.Text) answer {
		return t.r.caller.fetchTimeout(ctx, attemptTimeout, http.MethodGet, t.links.TurnURL+path, token)
	})
}

// ask makes one call. One with a bearer that has been replaced meanwhile is made once more with the new one.
func (t *turn) ask(ctx context.Context, call func(secret.Text) answer) answer {
	for {
		token, gen := t.creds.current(t.r.conf.Now())
		a := call(token)
		if a.status != http.StatusUnauthorized || !t.creds.replaced(ctx, gen) {
			return a
		}
	}
}

// lastMoment is how long before the deadline a call is made once more, whatever pause the platform asked for.
const lastMoment = 2 * time.Second

// insist posts something again and again, under the same key, until it has a verdict other than again, or ctx
// is done. It returns the last answer, and again where ctx was faster. A pause that would end after ctx's
// deadline is cut short, so that there is another try.
func (t *turn) insist(ctx context.Context, path string, body []byte) (answer, verdict) {
	for attempt := 0; ; attempt++ {
		a := t.tell(ctx, path, body)
		v := a.judge()
		if v != again || ctx.Err() != nil {
			return a, v
		}
		d := t.r.backoff.next(attempt, a.after)
		if at, ok := ctx.Deadline(); ok {
			switch left := time.Until(at); {
			case d < left:
			case left < 2*t.r.backoff.least:
				return a, again // there is no time for another one
			default:
				d = left - min(left/2, lastMoment)
			}
		}
		t.log.DebugContext(ctx, "a call of the turn API is made again", "path", path, "answer", a.word(), "in", d)
		if !sleep(ctx, d) {
			return a, again
		}
	}
}

// sleep waits; false where ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
