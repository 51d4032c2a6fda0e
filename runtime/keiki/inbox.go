package keiki

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/backline-dev/backline/runtime"
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
	// roomPatience is how long a claimed turn waits for the engine to have room for it, and roomPause how long
	// until it is tried again.
	roomPatience = 2 * time.Second
	roomPause    = 50 * time.Millisecond
	// leastPatience is how long a refresh may take at least.
	leastPatience = time.Second
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
	// Concurrency is how many turns run at once. Zero means 4. It is never more than the engine's MaxTurns: what
	// is claimed and cannot be started has to wait for the end of its lease.
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
	if most := conf.Engine.Config().MaxTurns; most > 0 {
		conf.Concurrency = min(conf.Concurrency, most)
	}
	conf.APIBase = strings.TrimRight(conf.APIBase, "/")
	run := newRunner(conf.Config)
	url := conf.APIBase + "/harness/inbox/next?wait=" + strconv.Itoa(int((conf.Wait+time.Second-1)/time.Second))
	return &Inbox{
		conf: conf, run: run, leases: map[turnKey]*lease{},
		poll: newPoller(run.caller, url, conf.APIKey, conf.Wait, conf.Concurrency, conf.Logger),
	}, nil
}

// Run polls until ctx is done, and returns nil then, or until the platform refuses the key:
// [ErrKeyRefused]. Turns in hand run on: call [Inbox.Drain] next. To be called once.
func (i *Inbox) Run(ctx context.Context) error {
	return i.poll.run(ctx, func(a *answer) (bool, error) { return i.take(ctx, a) })
}

// Drain waits for the turns in hand. When ctx is done, what is left is cancelled and left to its lease, so
// that another poller takes it up, and Drain returns why ctx was done. It drains the engine.
func (i *Inbox) Drain(ctx context.Context) error { return i.run.drain(ctx) }

// Wait waits until every goroutine of the inbox has ended, after Run. Without a Drain it waits as long as the
// turns in hand take.
func (i *Inbox) Wait() { i.run.tasks.Wait() }

// take takes up what a poll brought.
func (i *Inbox) take(ctx context.Context, a *answer) (work bool, err error) {
	claim, err := wire.ParseClaim(a.body)
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
		return false, fmt.Errorf("the claimed turn %.80q names another origin than that of the API base, and is left", w.TurnID)
	}
	if claim.Token == "" {
		return false, fmt.Errorf("the claimed turn %.80q has no turnToken, and is left", w.TurnID)
	}
	hide(w, claim.Token)
	w.Deadline = here(w.Deadline, a.ahead())
	claim.LeaseExpiresAt = here(claim.LeaseExpiresAt, a.ahead())
	for began := time.Now(); ; {
		t, err := i.begin(ctx, claim)
		switch {
		case (errors.Is(err, runtime.ErrAtCapacity) || errors.Is(err, runtime.ErrSessionBusy)) && time.Since(began) < roomPatience && sleep(ctx, roomPause):
			continue // as when the turn before is completed, and about to be over
		case err == nil:
			l := i.lease(t, claim.LeaseExpiresAt)
			i.run.tasks.Go(func() { i.hold(ctx, l) })
			return true, nil
		case errors.Is(err, errDuplicate) && t == nil:
			return false, fmt.Errorf("the claimed turn %.80q runs in another process, and is left", w.TurnID)
		case !errors.Is(err, errDuplicate):
			return false, fmt.Errorf("the claimed turn %.80q could not be started, and is left: %w", w.TurnID, err)
		}
		// It runs here, and was offered again: the platform took its lease for lost.
		if i.renew(t, claim) {
			return false, nil
		}
		// It is about to be over, or has only just begun anew.
		if !sleep(ctx, roomPause) {
			return false, ctx.Err()
		}
	}
}

// hide takes the token out of what a model may be told, should the platform repeat it there. Raw is without it
// already.
func hide(w *wire.Turn, token string) {
	const least = 8 // a shorter one might be a word
	if len(token) < least {
		return
	}
	const hidden = "[redacted]"
	w.Instructions = strings.ReplaceAll(w.Instructions, token, hidden)
	w.Context = bytes.ReplaceAll(w.Context, []byte(token), []byte(hidden))
	w.Channel = bytes.ReplaceAll(w.Channel, []byte(token), []byte(hidden))
}

// here is a time on the platform's clock, which is so far ahead, on ours. The zero time stays.
func here(at time.Time, ahead time.Duration) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(-ahead)
}

func (i *Inbox) begin(ctx context.Context, claim *wire.Claim) (*turn, error) {
	creds := &credentials{token: secret.Text(claim.Token)}
	return i.run.begin(ctx, assignment{turn: &claim.Turn, raw: claim.Raw, creds: creds, leave: true})
}

// hold holds a claimed turn until it is over, and the room of it. Where the turn has lost its claim and it
// turns out that the new one was made here too, it runs once more: other claims would come only when the
// lease of that has run out.
func (i *Inbox) hold(ctx context.Context, l *lease) {
	defer i.poll.done()
	for l != nil {
		l.keep()
		claim := i.drop(l)
		if claim == nil {
			return
		}
		t, err := i.begin(ctx, claim)
		if err != nil { // a duplicate has a claim that is newer still
			l.t.log.Debug("the turn is not begun anew", "error", err)
			return
		}
		t.log.Info("a turn that had lost its lease was claimed here again: it begins anew")
		l = i.lease(t, claim.LeaseExpiresAt)
	}
}

// A lease is what keeps a claimed turn ours.
type lease struct {
	t     *turn
	until time.Time
	vain  int              // refreshes in a row that left no time
	fresh chan *wire.Claim // a later claim of the same turn; the last one counts
	spare *wire.Claim      // one that came when the turn had lost its claim
}

func (i *Inbox) lease(t *turn, until time.Time) *lease {
	l := &lease{t: t, fresh: make(chan *wire.Claim, 1), until: until}
	i.mu.Lock()
	i.leases[t.key] = l
	i.mu.Unlock()
	return l
}

// drop forgets a lease whose turn is over, and returns a later claim that the turn has made no use of.
func (i *Inbox) drop(l *lease) *wire.Claim {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.leases, l.t.key)
	if e := l.t.ended(); e != endLost && e != endUnauthorised {
		return nil // a claim that the turn was completed under, or that was closed with it
	}
	select {
	case l.spare = <-l.fresh:
	default:
	}
	return l.spare
}

// renew gives a turn that runs here the token and the lease of a later claim; false where it is over.
func (i *Inbox) renew(t *turn, claim *wire.Claim) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	l := i.leases[t.key]
	if l == nil || l.t != t {
		return false
	}
	t.creds.rotate(secret.Text(claim.Token))
	select {
	case <-l.fresh: // of a claim before this one
	default:
	}
	l.fresh <- claim // there is room, since nobody else puts one in
	return true
}

// keep refreshes the lease until the turn is over, which a lease that is lost makes it.
func (l *lease) keep() {
	t := l.t
	l.extend(l.until)
	failures := 0
	d := l.half()
	for {
		timer := time.NewTimer(d)
		select {
		case <-t.done:
			timer.Stop()
			return
		case claim := <-l.fresh:
			timer.Stop()
			failures, d = 0, l.renewed(claim)
			continue
		case <-timer.C:
		}
		if !t.ended().completes() {
			l.wait()
			return
		}
		a, gen := l.refresh()
		switch v := a.judge(); {
		case t.life.Err() != nil:
			l.wait()
			return
		case v == settled:
			failures, d = 0, l.half()
		case t.creds.newer(gen):
			d = 0 // that was about a claim which has been followed by another one
		case v == again, v == refused:
			failures++
			left := time.Until(l.until)
			if left <= 0 && failures > 2 {
				t.end(endLost, &a)
			}
			// Whatever pause the platform asks for, without a lease there is nothing to wait for.
			d = min(t.r.backoff.next(failures-1, a.after), max(left/2, t.r.backoff.least))
			t.log.Warn("the lease could not be refreshed", "answer", a.word(), "again_in", d.Round(time.Millisecond))
		case v == unauthorised:
			t.end(endUnauthorised, &a)
		default:
			t.end(endLost, &a)
		}
	}
}

// wait waits for the end of a turn that has lost its claim.
func (l *lease) wait() {
	for {
		select {
		case <-l.t.done:
			return
		case l.spare = <-l.fresh:
		}
	}
}

// renewed takes over a later claim, and returns when it is to be refreshed.
func (l *lease) renewed(claim *wire.Claim) time.Duration {
	if !l.t.ended().completes() {
		l.spare = claim
		return 0
	}
	l.t.log.Info("a turn that runs here was offered again: it goes on under its new token")
	l.extend(claim.LeaseExpiresAt)
	return l.half()
}

// refresh asks for more time. It returns the generation of the token that it used.
func (l *lease) refresh() (answer, int) {
	t := l.t
	defer t.creds.renewing()()
	token, gen := t.creds.current(t.r.conf.Now())
	a := t.r.caller.fetchTimeout(t.life, l.patience(), http.MethodPost, t.links.TurnURL+"/lease", token)
	if a.judge() != settled {
		return a, gen
	}
	got, err := wire.ParseLease(a.body)
	if err != nil {
		t.log.Warn("the answer to a refresh of the lease cannot be read") // its own words might hold a token
	}
	if got.Token != "" {
		t.creds.replace(gen, secret.Text(got.Token))
	}
	l.extend(here(got.ExpiresAt, a.ahead()))
	if time.Until(l.until) > 0 {
		l.vain = 0
	} else { // clocks that differ
		l.vain++
	}
	return a, gen
}

// patience is how long a refresh may take: a third of what is left, so that one which hangs leaves time for
// others.
func (l *lease) patience() time.Duration {
	return min(max(time.Until(l.until)/3, leastPatience), attemptTimeout)
}

// extend notes until when the lease holds, which the platform may not have told.
func (l *lease) extend(until time.Time) {
	if until.IsZero() {
		until = time.Now().Add(assumedLease)
	}
	l.until = until
}

// half is half of the time that the lease has left. Refreshes that leave none come ever more slowly.
func (l *lease) half() time.Duration {
	return max(time.Until(l.until)/2, leastRefresh<<min(l.vain, 8))
}
