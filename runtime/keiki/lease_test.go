package keiki_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
)

// afterLoss are the requests about a turn that came after the refresh whose answer had this status.
func (d *desk) afterLoss(id string, status int) (list []testhost.KeikiRequest) {
	lost := false
	for _, r := range d.platform.Requests(id) {
		if lost && r.Route != "inbox" {
			list = append(list, r)
		}
		lost = lost || r.Route == "lease" && r.Status == status
	}
	return list
}

// TestFaultF1LostWhileTheAdapterSleeps: a refresh is answered 409, and the run is cancelled at once. Nothing is
// sent any more, whatever the adapter does.
func TestFaultF1LostWhileTheAdapterSleeps(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = lease })
	started, ended := make(chan struct{}), make(chan adapters.Cause, 1)
	w := d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		close(started)
		<-ctx.Done()
		ended <- adapters.CauseOf(ctx)
		if err := w.Text("I am late\n\n"); err == nil {
			t.Error("a turn that has lost its lease took text")
		}
		return nil
	}), alone)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	receive(t, "the turn", started)
	w.stopPolling()
	d.platform.LoseLease(id)
	if cause := receive(t, "the end of the adapter", ended); cause != adapters.CauseHostGone {
		t.Errorf("the adapter was cancelled because of %v", cause)
	}
	w.stop(expired())
	if list := d.afterLoss(id, http.StatusConflict); len(list) > 0 || len(d.all(id, "lease")) != 1 {
		t.Errorf("after the loss: %+v", list)
	}
	if n := len(d.all(id, "messages", "complete")); n > 0 {
		t.Errorf("%d messages or completions", n)
	}
	if n := len(d.lines("the lease on the turn is lost", "409 lease_lost")); n != 1 {
		t.Errorf("the log tells it %d times", n)
	}
}

// TestFaultF1LostBetweenTwoParagraphs: by 404 here, and by other answers that say as much.
func TestFaultF1LostBetweenTwoParagraphs(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testhost.KeikiFault{
		"404":             {Status: http.StatusNotFound, Body: errorBody("turn_not_found")},
		"404 html":        {Status: http.StatusNotFound, Body: "<html>gone</html>"},
		"409":             {Status: http.StatusConflict, Body: errorBody("lease_lost")},
		"409 without":     {Status: http.StatusConflict, Body: `{}`},
		"409 turn_closed": {Status: http.StatusConflict, Body: errorBody("turn_closed")},
		"410":             {Status: http.StatusGone, Body: `{}`},
		"401":             {Status: http.StatusUnauthorized, Body: errorBody("invalid_token")},
		"403":             {Status: http.StatusForbidden, Body: errorBody("invalid_token")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 2 * time.Second },
				onRoute("/lease", func(n int) testhost.KeikiFault {
					if n == 2 {
						return fault
					}
					return testhost.KeikiFault{}
				}))
			ended := make(chan error, 1)
			w := d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				if err := w.Text("one\n\ntwo, which has not"); err != nil {
					return err
				}
				<-ctx.Done()
				ended <- w.Text(" ended\n\nthree\n\n")
				return nil // as if nothing had been
			}), alone)
			id := d.queue(testhost.KeikiTurn{Text: "hello"})
			d.until("the first message is delivered", func() bool { return len(d.platform.Texts(id)) == 1 })
			w.stopPolling()
			if err := receive(t, "the end of the adapter", ended); err == nil {
				t.Error("a turn that has lost its lease took text")
			}
			w.stop(expired())
			if list := d.afterLoss(id, fault.Status); len(list) > 0 {
				t.Errorf("after the loss: %+v", list)
			}
			if diff := cmp.Diff([]string{"one"}, d.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if n := len(d.all(id, "lease")); n != 2 {
				t.Errorf("%d refreshes, want 2", n)
			}
			if n := len(d.all(id, "complete")); n != 0 {
				t.Errorf("%d completions", n)
			}
		})
	}
}

// TestFaultF1LostWhileAMessageIsRepeated: a message that does not get through is not tried again either.
func TestFaultF1LostWhileAMessageIsRepeated(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 2 * time.Second },
		onRoute("/messages", func(int) testhost.KeikiFault {
			return testhost.KeikiFault{Status: http.StatusServiceUnavailable}
		}))
	w := d.work(says("one\n\n", "two\n\n"), alone)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	d.until("the message is tried again", func() bool { return len(d.all(id, "messages")) > 2 })
	w.stopPolling()
	d.platform.LoseLease(id)
	d.until("the refresh is refused", func() bool { return len(d.lines("the lease on the turn is lost")) == 1 })
	d.until("the turn is over", func() bool { return w.engine.Stats().Active == 0 })
	w.stop(expired())
	for _, r := range d.afterLoss(id, http.StatusConflict) {
		if r.At.Sub(d.all(id, "lease")[len(d.all(id, "lease"))-1].At) > time.Second {
			t.Errorf("long after the loss: %s", r.Path)
		}
	}
	if n := len(d.all(id, "complete")); n != 0 {
		t.Errorf("%d completions", n)
	}
}

// chatty says n paragraphs, with so much time between two of them.
func chatty(n int, pause time.Duration) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := range n {
			if err := w.Text(fmt.Sprintf("message %d\n\n", i)); err != nil {
				return err
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
}

func paragraphsTo(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("message %d", i))
	}
	return list
}

// TestFaultF1RotatingTokens: each refresh gives another token, and the old one is answered 401 from then on,
// also to what is said before the answer to the refresh has come. Refreshes come at about half the time.
func TestFaultF1RotatingTokens(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]time.Duration{"at once": 0, "late": 60 * time.Millisecond} {
		for _, delivery := range []string{"paragraphs", "stream"} {
			t.Run(name+"/"+delivery, func(t *testing.T) {
				t.Parallel()
				const lease, messages = 2 * time.Second, 150
				d := newDesk(t, func(c *deskConfig) {
					c.platform.Lease = lease
					c.platform.RotateOnRefresh = true
				}, onRoute("/lease", func(int) testhost.KeikiFault { return testhost.KeikiFault{After: true, Delay: late} }))
				d.work(chatty(messages, 20*time.Millisecond), func(c *workerConfig) {
					if delivery == "stream" {
						c.inbox.Delivery = "stream"
					}
				})
				id := d.queue(testhost.KeikiTurn{Text: "hello"})
				if o := d.outcome(id); o.Status != "completed" {
					t.Errorf("outcome %+v", o)
				}
				if diff := cmp.Diff(paragraphsTo(messages), d.platform.Texts(id)); diff != "" {
					t.Errorf("messages (-want +got):\n%s", diff)
				}
				refreshes := d.all(id, "lease")
				if len(refreshes) < 2 || len(d.platform.Tokens(id)) != len(refreshes)+1 {
					t.Errorf("%d refreshes and %d tokens in three seconds", len(refreshes), len(d.platform.Tokens(id)))
				}
				var claimed time.Time
				for _, r := range d.all(id, "inbox") {
					claimed = r.At.Add(r.Took)
				}
				for _, r := range refreshes {
					if gap := r.At.Sub(claimed); gap < lease*45/100 || gap > lease*9/10 {
						t.Errorf("a refresh came after %v of %v, want about half", gap, lease)
					}
					claimed = r.At.Add(r.Took)
				}
				retried := 0
				for _, r := range d.all(id, "messages", "stream", "complete") {
					if r.Status == http.StatusUnauthorized {
						retried++
					}
				}
				if late > 0 && retried == 0 {
					t.Error("no message met a token that had been replaced: this tests nothing")
				}
			})
		}
	}
}

// TestRefreshesThatFail: are made again while the lease holds, and the turn goes on.
func TestRefreshesThatFail(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testhost.KeikiFault{
		"500":          {Status: http.StatusInternalServerError, Body: "<html>"},
		"429":          {Status: http.StatusTooManyRequests, RetryAfter: "0"},
		"429 for ages": {Status: http.StatusTooManyRequests, RetryAfter: "3600"},
		"503 html":     {Status: http.StatusServiceUnavailable, Body: "<html>back soon</html>"},
		"dropped":      {Drop: true},
		"lost answer":  {Drop: true, After: true},
		"400":          {Status: http.StatusBadRequest, Body: errorBody("what")},
		"302":          {Redirect: "http://127.0.0.1:1/", Status: http.StatusFound},
		"html":         {Body: "<html>It works!</html>"},
		"no time":      {Body: `{}`},
		"a bad time":   {Body: `{"leaseExpiresAt":"tomorrow"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 2 * time.Second },
				onRoute("/lease", func(n int) testhost.KeikiFault {
					if n == 1 {
						return fault
					}
					return testhost.KeikiFault{}
				}))
			d.work(chatty(20, 80*time.Millisecond), alone)
			id := d.queue(testhost.KeikiTurn{Text: "hello"})
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if diff := cmp.Diff(paragraphsTo(20), d.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			told := fault.Status == 0 && fault.Body != "" // by a 200, after which the lease is taken to hold
			if n := len(d.all(id, "lease")); !told && n < 2 {
				t.Errorf("%d refreshes, want the first one made again", n)
			}
			if n := len(d.platform.Tokens(id)); n != 1 {
				t.Errorf("%d tokens: the turn was claimed again", n)
			}
		})
	}
}

// TestALeaseThatCannotBeRefreshed is taken for lost when its time is over.
func TestALeaseThatCannotBeRefreshed(t *testing.T) {
	t.Parallel()
	const lease = 700 * time.Millisecond
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = lease },
		onRoute("/lease", func(int) testhost.KeikiFault { return testhost.KeikiFault{Drop: true} }))
	started := make(chan time.Time, 1)
	ended := make(chan time.Time, 1)
	w := d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
		started <- time.Now()
		<-ctx.Done()
		ended <- time.Now()
		return ctx.Err()
	}), alone)
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	began := receive(t, "the turn", started)
	w.stopPolling()
	took := receive(t, "its end", ended).Sub(began)
	if took < lease*8/10 || took > 5*time.Second {
		t.Errorf("the turn ended after %v, with a lease of %v", took, lease)
	}
	w.stop(expired())
	if n := len(d.all(id, "messages", "complete")); n != 0 {
		t.Errorf("%d messages or completions", n)
	}
}

// TestARefreshThatCrossesAClaim: the refresh is refused, but the turn has been claimed here again before that
// is known. It goes on.
func TestARefreshThatCrossesAClaim(t *testing.T) {
	t.Parallel()
	refreshing := make(chan struct{})
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease, c.platform.InFlight = 2*time.Second, 5*time.Second },
		onRoute("/lease", func(n int) testhost.KeikiFault {
			if n == 1 {
				close(refreshing)
				return testhost.KeikiFault{After: true, Delay: 500 * time.Millisecond}
			}
			return testhost.KeikiFault{}
		}),
		onRoute("/inbox/next", func(n int) testhost.KeikiFault {
			if n == 2 { // claims when the refresh has been refused, and is answered before that
				<-refreshing
				return testhost.KeikiFault{Delay: 100 * time.Millisecond}
			}
			return testhost.KeikiFault{}
		}))
	var calls atomic.Int64
	d.work(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		calls.Add(1)
		return chatty(30, 80*time.Millisecond).Run(ctx, turn, w)
	}), func(c *workerConfig) { c.inbox.Concurrency = 2 })
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	d.until("a message is delivered", func() bool { return len(d.platform.Texts(id)) > 1 })
	d.platform.LoseLease(id)
	if o := d.outcome(id); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the adapter was called %d times", n)
	}
	if diff := cmp.Diff(paragraphsTo(30), d.platform.Texts(id)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	refused := false
	for _, r := range d.all(id, "lease") {
		refused = refused || r.Status == http.StatusConflict || r.Status == http.StatusUnauthorized
	}
	if !refused {
		t.Error("no refresh was refused: this tests nothing")
	}
}

// TestATurnThatCompletedIsNotBegunAnew: the turn is claimed here again while a refresh is under way, and
// completes before that is answered.
func TestATurnThatCompletedIsNotBegunAnew(t *testing.T) {
	t.Parallel()
	const turns = 8 // since which of the two is seen first is chance
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 2 * time.Second },
		onRoute("/lease", func(n int) testhost.KeikiFault {
			return testhost.KeikiFault{After: true, Delay: 600 * time.Millisecond}
		}))
	d.work(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if d.platform.Active("", turn.ConversationID) == "" {
			t.Errorf("%s has ended, and was begun anew", turn.ID)
		}
		d.until("the lease is being refreshed", func() bool { return len(d.all(turn.ID, "lease")) > 0 })
		d.platform.LoseLease(turn.ID)
		d.until("it is claimed again", func() bool { return len(d.platform.Tokens(turn.ID)) > 1 })
		return w.Text("done")
	}), func(c *workerConfig) { c.inbox.Concurrency = 2 * turns })
	var ids []string
	for range turns {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello"}))
	}
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
	}
	d.until("the refreshes are answered", func() bool {
		for _, id := range ids {
			for _, r := range d.all(id, "lease") {
				if !r.Done {
					return false
				}
			}
		}
		return true
	})
	time.Sleep(50 * time.Millisecond) // for what must not happen
}

// TestClocksThatDisagree: the platform's clock is ten minutes ahead, or behind. Leases and deadlines mean what
// they mean there.
func TestClocksThatDisagree(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			now := func() time.Time { return time.Now().Add(ahead) }
			d := newDesk(t, func(c *deskConfig) {
				c.platform.Lease = 4 * time.Second
				c.platform.Now = now
				c.wrap = func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						next.ServeHTTP(dating{w, now}, r)
					})
				}
			})
			left := make(chan time.Duration, 2)
			d.work(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				left <- time.Until(turn.Deadline)
				return chatty(30, 100*time.Millisecond).Run(ctx, turn, w)
			}), alone)
			id := d.queue(testhost.KeikiTurn{Text: "hello", Timeout: 100 * time.Second})
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if got := receive(t, "the turn", left); got < 60*time.Second || got > 105*time.Second {
				t.Errorf("the adapter's deadline is in %v, want 99 seconds or so", got)
			}
			// A Date counts whole seconds, so half of the time may be half a second more or less.
			if n := len(d.all(id, "lease")); n < 1 || n > 10 {
				t.Errorf("%d refreshes in three seconds", n)
			}
			if n := len(d.platform.Tokens(id)); n != 1 {
				t.Errorf("%d tokens: the turn was claimed again", n)
			}
		})
	}
}

// dating puts a Date of another clock on answers.
type dating struct {
	http.ResponseWriter
	now func() time.Time
}

func (d dating) WriteHeader(status int) {
	d.Header().Set("Date", d.now().UTC().Format(http.TimeFormat))
	d.ResponseWriter.WriteHeader(status)
}

// TestTwoWorkers: what one has lost the other has, and not both at once.
func TestTwoWorkers(t *testing.T) {
	t.Parallel()
	const turns = 6
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = time.Second })
	var mu sync.Mutex
	running := map[string]int{}
	adapter := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		mu.Lock()
		running[turn.ID]++
		mu.Unlock()
		defer func() {
			mu.Lock()
			running[turn.ID]--
			mu.Unlock()
		}()
		return chatty(10, 60*time.Millisecond).Run(ctx, turn, w)
	})
	var ids []string
	for i := range turns {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: fmt.Sprint(i)}))
	}
	for range 2 {
		d.work(adapter, func(c *workerConfig) { c.inbox.Concurrency = turns })
	}
	for _, id := range ids {
		d.until("a message is delivered", func() bool { return len(d.platform.Texts(id)) > 1 })
		d.platform.LoseLease(id)
	}
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
		if diff := cmp.Diff(paragraphsTo(10), d.platform.Texts(id)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	}
	d.until("each adapter has ended", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range running {
			if n != 0 {
				return false
			}
		}
		return true
	})
}
