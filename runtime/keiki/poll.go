package keiki

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
)

// ErrKeyRefused reports that the platform does not take the harness API key.
var ErrKeyRefused = errors.New("the platform does not take the harness API key")

const (
	// pollSlack is how much longer a poll may take than the platform was asked to wait.
	pollSlack = 15 * time.Second
	// pollEvery is how far apart quiet polls are at least, for a platform that does not wait.
	pollEvery = time.Second
)

// A poller asks for work again and again, as long as there is room for more.
type poller struct {
	caller  *caller
	url     string
	key     secret.Text
	wait    time.Duration
	every   time.Duration // how far apart quiet polls are at least
	backoff *backoff
	room    chan struct{} // one element for each piece of work in hand
	log     *slog.Logger
}

func newPoller(c *caller, url string, key secret.Text, wait time.Duration, room int, log *slog.Logger) *poller {
	return &poller{
		caller: c, url: url, key: key, wait: wait, every: pollEvery, log: log,
		backoff: newBackoff(time.Second, time.Minute), room: make(chan struct{}, room),
	}
}

// done gives back the room of a piece of work.
func (p *poller) done() { <-p.room }

// run polls until ctx is done, which is nil, or the key is refused. take is given what came. It returns
// whether there was work, whose room is then taken until done is called.
func (p *poller) run(ctx context.Context, take func(*answer) (work bool, err error)) error {
	failures := 0
	for ctx.Err() == nil {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		work, after, err := p.once(ctx, take)
		if !work {
			p.done()
		}
		switch {
		case ctx.Err() != nil: // whatever became of the poll
			continue
		case errors.Is(err, ErrKeyRefused):
			return err
		case err != nil:
			d := p.backoff.next(failures, after)
			failures++
			p.log.Warn("polling failed", "error", err, "again_in", d.Round(time.Millisecond))
			sleep(ctx, d)
			continue
		}
		failures = 0
		if d := p.every - time.Since(began); !work && d > 0 {
			sleep(ctx, d)
		}
	}
	return nil
}

func (p *poller) once(ctx context.Context, take func(*answer) (bool, error)) (work bool, after time.Duration, err error) {
	a := p.caller.fetchTimeout(ctx, p.wait+pollSlack, http.MethodGet, p.url, p.key)
	switch {
	case a.status == http.StatusNoContent:
		return false, -1, nil
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return false, -1, ErrKeyRefused
	case a.status != http.StatusOK:
		return false, a.after, errors.New(a.word())
	}
	work, err = take(&a)
	return work, -1, err
}
