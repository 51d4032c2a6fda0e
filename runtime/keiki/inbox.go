package keiki

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// What a zero field of [InboxConfig] means.
const (
	DefaultWait        = 25 * time.Second
	DefaultConcurrency = 4

	maxWait = 30 * time.Second
	// assumedLease is for claims that name no end of their lease.
	assumedLease = time.Minute
	// leastRefresh is how long a refresh waits at least, whatever the lease says.
	leastRefresh = 100 * time.Millisecond
)

// InboxConfig tunes an [Inbox].
type InboxConfig struct {
	// Config says who answers. Its APIBase is the platform that is polled, and required.
	Config
	// APIKey is the harness API key. Required.
	APIKey secret.Text
	// Wait is how long the platform is to hold a poll, up to 30 seconds. Zero means 25 seconds, negative
	// not at all.
	Wait time.Duration
	// Concurrency is how many turns run at once. Zero means 4.
	Concurrency int
}

// An Inbox claims turns by polling, and runs them here. Make one with [NewInbox].
type Inbox struct {
	conf InboxConfig
	run  *runner
	poll *poller

	mu     sync.Mutex
	leases map[turnKey]*lease
}

// NewInbox returns an inbox, or an error that names every wrong field of conf.
func NewInbox(conf InboxConfig) (*Inbox, error) {
	var errs []error
	wrong := collect(&errs)
	conf.Config.check(wrong)
	checkAPI(conf.APIBase, conf.APIKey, wrong)
	switch {
	case conf.Wait == 0:
		conf.Wait = DefaultWait
	case conf.Wait < 0:
		conf.Wait = 0
	case conf.Wait > maxWait:
		wrong("Wait is %v, want at most %v", conf.Wait, maxWait)
	}
	switch {
	case conf.Concurrency == 0:
		conf.Concurrency = DefaultConcurrency
	case conf.Concurrency < 0:
		wrong("Concurrency is %d, want at least 1", conf.Concurrency)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	conf.APIBase = strings.TrimRight(conf.APIBase, "/")
	run := newRunner(conf.Config)
	url := conf.APIBase + "/harness/inbox/next?wait=" + strconv.Itoa(int(conf.Wait/time.Second))
	return &Inbox{
		conf: conf, run: run, leases: map[turnKey]*lease{},
		poll: newPoller(run.caller, url, conf.APIKey, conf.Wait, conf.Concurrency, conf.Logger),
	}, nil
}

// Run polls until ctx is done, and returns nil then, or until the platform refuses the key:
// [ErrKeyRefused]. Turns in hand run on: call [Inbox.Drain] next. To be called once.
func (i *Inbox) Run(ctx context.Context) error {
	return i.poll.run(ctx, func(body []byte) (bool, error) { return i.take(ctx, body) })
}

// Drain waits for the turns in hand. When ctx is done, what is left is cancelled and left to its lease, so
// that another poller takes it up, and Drain returns why ctx was done. It drains the engine.
func (i *Inbox) Drain(ctx context.Context) error { return i.run.drain(ctx) }

// Wait waits until every goroutine of the inbox has ended, after Run and Drain.
func (i *Inbox) Wait() { i.run.tasks.Wait() }

// take takes up what a poll brought.
func (i *Inbox) take(ctx context.Context, body []byte) (work bool, err error) {
	claim, err := wire.ParseClaim(body)
	if err != nil {
		return false, errors.New("the answer is no claim of a turn")
	}
	if claim == nil {
		return false, nil
	}
	w := &claim.Turn
	if w.Links.APIBase == "" {
		w.Links.APIBase = i.conf.APIBase
	}
	if err := checkLinks(w.Links.APIBase, w.Links.TurnURL, w.Links.MCPURL, i.run.pin); err != nil {
		return false, errors.New("a claimed turn names another origin than --api-base, and is left")
	}
	if claim.Token == "" {
		return false, errors.New("a claimed turn has no turnToken, and is left")
	}
	token := secret.Text(claim.Token)
	creds := &credentials{token: token}
	t, err := i.run.begin(ctx, assignment{turn: w, raw: claim.Raw, creds: creds, leave: true})
	switch {
	case err == nil:
		l := i.lease(t, claim.LeaseExpiresAt)
		i.run.tasks.Go(func() {
			defer i.poll.done()
			l.keep()
			i.drop(t)
		})
		return true, nil
	case errors.Is(err, errDuplicate) && t != nil:
		// It runs here, and was offered again: the platform took its lease for lost.
		t.creds.rotate(token)
		i.renew(t, claim.LeaseExpiresAt)
		t.log.Info("a turn that runs here was offered again: it goes on under its new token")
		return false, nil
	case errors.Is(err, errDuplicate): // another process on this store runs it
		return false, errors.New("a claimed turn runs in another process, and is left")
	}
	return false, errors.New("a claimed turn could not be started, and is left: " + err.Error())
}

// A lease is what keeps a claimed turn ours.
type lease struct {
	t     *turn
	fresh chan time.Time // a later claim of the same turn
	until time.Time
}

func (i *Inbox) lease(t *turn, until time.Time) *lease {
	l := &lease{t: t, fresh: make(chan time.Time, 1), until: until}
	i.mu.Lock()
	i.leases[t.key] = l
	i.mu.Unlock()
	return l
}

func (i *Inbox) drop(t *turn) {
	i.mu.Lock()
	delete(i.leases, t.key)
	i.mu.Unlock()
}

func (i *Inbox) renew(t *turn, until time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if l := i.leases[t.key]; l != nil {
		select {
		case l.fresh <- until:
		default:
		}
	}
}

// keep refreshes the lease until the turn is over or the lease is lost.
func (l *lease) keep() {
	t := l.t
	if l.until.IsZero() {
		l.until = time.Now().Add(assumedLease)
	}
	failures := 0
	d := l.half()
	for {
		timer := time.NewTimer(d)
		select {
		case <-t.done:
			timer.Stop()
			return
		case until := <-l.fresh:
			timer.Stop()
			if !until.IsZero() {
				l.until = until
			}
			failures, d = 0, l.half()
			continue
		case <-timer.C:
		}
		if !t.ended().completes() {
			<-t.done
			return
		}
		a := t.ask(t.life, http.MethodPost, "/lease", nil)
		switch v := a.judge(); {
		case t.life.Err() != nil:
			<-t.done
			return
		case v == settled:
			failures = 0
			l.refreshed(a.body)
			d = l.half()
		case v == again, v == refused:
			failures++
			if d = t.r.backoff.next(failures-1, a.after); time.Now().After(l.until) && failures > 2 {
				t.end(endLost, &a)
			} else {
				t.log.Warn("the lease could not be refreshed", "answer", a.word(), "again_in", d.Round(time.Millisecond))
			}
		case v == unauthorised:
			t.end(endUnauthorised, &a)
		default:
			t.end(endLost, &a)
		}
	}
}

// refreshed reads the answer to a refresh.
func (l *lease) refreshed(body []byte) {
	got, err := wire.ParseLease(body)
	if err != nil {
		l.t.log.Warn("the answer to a refresh of the lease cannot be read", "error", err)
	}
	if got.Token != "" {
		l.t.creds.rotate(secret.Text(got.Token))
	}
	if l.until = got.ExpiresAt; l.until.IsZero() {
		l.until = time.Now().Add(assumedLease)
	}
}

// half is half of the time that the lease has left.
func (l *lease) half() time.Duration { return max(time.Until(l.until)/2, leastRefresh) }
