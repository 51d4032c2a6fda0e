package keiki_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
)

// TestClaimsInEveryForm: claims flat and nested, with times as text or numbers.
func TestClaimsInEveryForm(t *testing.T) {
	t.Parallel()
	leases := map[string]func(http.Header, []byte) []byte{
		"text":         func(_ http.Header, b []byte) []byte { return b },
		"seconds":      leaseAs(func(at time.Time) string { return fmt.Sprint(at.Unix()) }),
		"milliseconds": leaseAs(func(at time.Time) string { return fmt.Sprint(at.UnixMilli()) }),
		"null":         leaseAs(func(time.Time) string { return "null" }),
	}
	deadlines := []testhost.KeikiDeadlineForm{testhost.KeikiDeadlineText, testhost.KeikiDeadlineSeconds, testhost.KeikiDeadlineMillis, testhost.KeikiDeadlineNone}
	for _, nested := range []bool{false, true} {
		for lease, change := range leases {
			t.Run(fmt.Sprintf("nested=%v/lease=%s", nested, lease), func(t *testing.T) {
				t.Parallel()
				d := newDesk(t, func(c *deskConfig) {
					c.platform.NestedClaims = nested
					c.wrap = rewrite("/inbox/next", change)
				})
				seen := make(chan *adapters.Turn, len(deadlines))
				d.work(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					own := *turn
					seen <- &own
					return w.Text("You said: " + turn.Message)
				}))
				for _, form := range deadlines {
					id := d.queue(testhost.KeikiTurn{Text: "hello", ConversationID: "c-" + string(form), Instructions: "be kind", Deadline: form, Timeout: 100 * time.Second, Context: []byte(`{"a": 1}`)})
					if o := d.outcome(id); o.Status != "completed" || string(o.Completion) != `{"status":"completed"}` {
						t.Errorf("deadline %q: outcome %+v, completion %s", form, o, o.Completion)
					}
					if diff := cmp.Diff([]string{"You said: hello"}, d.platform.Texts(id)); diff != "" {
						t.Errorf("deadline %q: messages (-want +got):\n%s", form, diff)
					}
					turn := receive(t, "the turn", seen)
					if turn.ID != id || turn.AgentID != "agent-1" || turn.ConversationID != "c-"+string(form) || turn.Instructions != "be kind" || string(turn.Context) != `{"a": 1}` || turn.Protocol != adapters.Keiki {
						t.Errorf("deadline %q: the adapter got %+v", form, turn)
					}
					if left := time.Until(turn.Deadline); form != testhost.KeikiDeadlineNone && (left > 102*time.Second || left < 40*time.Second) {
						t.Errorf("deadline %q: the adapter's is in %v", form, left)
					}
					for _, token := range d.platform.Tokens(id) {
						if strings.Contains(turn.Raw, token) || !strings.Contains(turn.Raw, "[redacted]") {
							t.Errorf("deadline %q: the adapter was given the token, or not the claim: %s", form, turn.Raw)
						}
					}
					for _, r := range d.all(id, "messages", "complete") {
						if r.Auth != "turn_token" {
							t.Errorf("a call was made with a bearer of kind %q", r.Auth)
						}
					}
				}
				if n := len(d.lines(`"level":"WARN"`)) + len(d.lines(`"level":"ERROR"`)); n > 0 {
					t.Errorf("the log complains %d times", n)
				}
			})
		}
	}
}

var leaseExpires = regexp.MustCompile(`"leaseExpiresAt":"([^"]*)"`)

// leaseAs writes the end of a claim's lease in another way.
func leaseAs(write func(time.Time) string) func(http.Header, []byte) []byte {
	return func(_ http.Header, body []byte) []byte {
		return leaseExpires.ReplaceAllFunc(body, func(b []byte) []byte {
			at, err := time.Parse(time.RFC3339, string(leaseExpires.FindSubmatch(b)[1]))
			if err != nil {
				return b
			}
			return []byte(`"leaseExpiresAt":` + write(at))
		})
	}
}

// TestAnswersThatAreNoClaim: each is an error with a pause, nothing runs, no credential goes anywhere, and the
// next good answer is taken.
func TestAnswersThatAreNoClaim(t *testing.T) {
	t.Parallel()
	foreign := newEavesdropper(t)
	for name, change := range map[string]func(h http.Header, claim []byte) []byte{
		"html":           func(http.Header, []byte) []byte { return []byte("<html>It works!</html>") },
		"nothing":        func(http.Header, []byte) []byte { return nil },
		"null":           func(http.Header, []byte) []byte { return []byte(`null`) },
		"list":           func(http.Header, []byte) []byte { return []byte(`[]`) },
		"no turn":        func(http.Header, []byte) []byte { return []byte(`{}`) },
		"turn of a list": func(http.Header, []byte) []byte { return []byte(`{"turn":[]}`) },
		"empty turn":     func(http.Header, []byte) []byte { return []byte(`{"turn":{}}`) },
		"two values":     func(_ http.Header, b []byte) []byte { return append(b, `{"turn":null}`...) },
		"cut":            func(_ http.Header, b []byte) []byte { return b[:len(b)/2] },
		"no token":       func(_ http.Header, b []byte) []byte { return replace(b, `"turnToken"`, `"turnTolken"`) },
		"number token":   func(_ http.Header, b []byte) []byte { return replace(b, `"turnToken":"`, `"turnToken":5,"x":"`) },
		"foreign turn": func(_ http.Header, b []byte) []byte {
			return regexp.MustCompile(`"turnUrl":"http://[^/]*`).ReplaceAll(b, []byte(`"turnUrl":"`+foreign.URL))
		},
		"foreign everything": func(_ http.Header, b []byte) []byte {
			return regexp.MustCompile(`"http://[^/"]*`).ReplaceAll(b, []byte(`"`+foreign.URL))
		},
		"user info": func(_ http.Header, b []byte) []byte { return replace(b, `"turnUrl":"http://`, `"turnUrl":"http://a@`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bad atomic.Int64
			d := newDesk(t, func(c *deskConfig) {
				c.wrap = rewrite("/inbox/next", func(h http.Header, body []byte) []byte {
					if bytes.Contains(body, []byte(`"turnToken"`)) && bad.Add(1) <= 2 {
						return change(h, body)
					}
					return body
				})
			})
			var calls atomic.Int64
			d.work(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				calls.Add(1)
				return w.Text("at last")
			}))
			var id string
			for range 3 { // two are spoilt, and left to a lease of a minute
				id = d.queue(testhost.KeikiTurn{Text: "hello"})
			}
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if n := calls.Load(); n != 1 {
				t.Errorf("the adapter was called %d times", n)
			}
			if n := len(d.lines("polling failed")); n != 2 {
				t.Errorf("%d polls are said to have failed, want 2", n)
			}
		})
	}
	t.Cleanup(func() {
		if heard := foreign.heard(); len(heard) > 0 {
			t.Errorf("the foreign server was sent %q", heard)
		}
	})
}

func replace(b []byte, old, with string) []byte {
	return bytes.Replace(b, []byte(old), []byte(with), 1)
}

// TestConcurrencyIsBounded: as many turns run at once as may, no more are claimed, and each that ends makes
// room for another.
func TestConcurrencyIsBounded(t *testing.T) {
	t.Parallel()
	const turns, limit = 12, 3
	d := newDesk(t)
	var running, most atomic.Int64
	free := make(chan struct{})
	var ids []string
	for i := range turns {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: fmt.Sprint(i)}))
	}
	w := d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select {
		case <-free:
			return w.Text("done")
		case <-ctx.Done():
			return ctx.Err()
		}
	}), func(c *workerConfig) { c.inbox.Concurrency = limit })
	d.until("the limit is reached", func() bool { return running.Load() == limit })
	claimed := func() (n int) {
		for _, id := range ids {
			if len(d.platform.Tokens(id)) > 0 {
				n++
			}
		}
		return n
	}
	if n, polls := claimed(), len(d.polls("inbox")); n != limit || polls != limit {
		t.Errorf("%d turns are claimed by %d polls, want %d of each", n, polls, limit)
	}
	for i := range turns {
		free <- struct{}{}
		d.until("another one runs", func() bool { return running.Load() == int64(min(limit, turns-i-1)) })
	}
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
	}
	if m := most.Load(); m != limit {
		t.Errorf("%d turns ran at once, want %d", m, limit)
	}
	d.until("all is over", func() bool { return w.engine.Stats().Active == 0 })
}

// TestOneTurnOfAConversationAtATime: whatever the platform gives out.
func TestOneTurnOfAConversationAtATime(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var mu sync.Mutex
	running := map[string]int{}
	var order []string
	var ids []string
	for i := range 8 {
		ids = append(ids, d.queue(testhost.KeikiTurn{
			Text: fmt.Sprint(i), ConversationID: fmt.Sprintf("platform-%d", i), // for the platform they are eight
			Edit: func(body []byte) []byte {
				return replace(body, fmt.Sprintf(`"platform-%d"`, i), fmt.Sprintf(`"conversation-%d"`, i%2))
			},
		}))
	}
	d.work(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		mu.Lock()
		running[turn.ConversationID]++
		if n := running[turn.ConversationID]; n > 1 {
			t.Errorf("%d turns of %s run at once", n, turn.ConversationID)
		}
		order = append(order, turn.Message)
		mu.Unlock()
		time.Sleep(20 * time.Millisecond) // the others have time to do wrong
		err := w.Text("done")
		mu.Lock()
		running[turn.ConversationID]--
		mu.Unlock()
		return err
	}), func(c *workerConfig) { c.inbox.Concurrency = 8 })
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(running) != 2 {
		t.Errorf("conversations %v, want two", running)
	}
	for parity := range 2 {
		var got []string
		for _, m := range order {
			if (m[0]-'0')%2 == byte(parity) {
				got = append(got, m)
			}
		}
		if !slices.IsSorted(got) {
			t.Errorf("the turns of conversation-%d ran in the order %v", parity, got)
		}
	}
}

// TestOfferedAgainWhileItRuns: the turn takes over the new token and the new lease, and goes on.
func TestOfferedAgainWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprintf("nested=%v", nested), func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, func(c *deskConfig) { c.platform.NestedClaims = nested })
			var calls atomic.Int64
			said, goOn := make(chan struct{}, 4), make(chan struct{})
			d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				calls.Add(1)
				for i := range 3 {
					if err := w.Text(fmt.Sprintf("message %d\n\n", i)); err != nil {
						return err
					}
					said <- struct{}{}
					select {
					case <-goOn:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}))
			id := d.queue(testhost.KeikiTurn{Text: "hello"})
			for i := range 3 {
				receive(t, "a message", said)
				d.until("the message is delivered", func() bool { return len(d.platform.Texts(id)) == i+1 })
				d.platform.LoseLease(id)
				d.until("the turn is claimed again", func() bool { return len(d.lines("offered again")) == i+1 })
				goOn <- struct{}{}
			}
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if n, tokens := calls.Load(), len(d.platform.Tokens(id)); n != 1 || tokens != 4 {
				t.Errorf("the adapter was called %d times under %d tokens, want once under 4", n, tokens)
			}
			if diff := cmp.Diff([]string{"message 0", "message 1", "message 2"}, d.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			for _, r := range d.all(id, "messages", "complete") {
				if r.Done && r.Status != http.StatusOK {
					t.Errorf("%s is answered %d %s", r.Path, r.Status, r.Code)
				}
			}
		})
	}
}

// TestOfferedAgainWhenItHadLostItsClaim: the claim is lost, and the adapter still at its end when the turn is
// offered here again. It begins anew under the new claim, at once, and says nothing twice.
func TestOfferedAgainWhenItHadLostItsClaim(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"refresh", "message"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			lost, offered := make(chan struct{}), make(chan struct{})
			var edits []func(*deskConfig)
			if how == "refresh" {
				edits = append(edits, func(c *deskConfig) { c.platform.Lease = time.Second },
					onRoute("/inbox/next", func(n int) testhost.KeikiFault {
						if n > 1 {
							<-lost // the others poll when the refresh has been refused
						}
						return testhost.KeikiFault{}
					}))
			} else {
				edits = append(edits, onRoute("/inbox/next", func(n int) testhost.KeikiFault {
					if n == 2 { // it has the turn, and nobody knows yet
						return testhost.KeikiFault{After: true, Delay: 300 * time.Millisecond}
					}
					return testhost.KeikiFault{}
				}))
			}
			d := newDesk(t, edits...)
			var calls atomic.Int64
			d.work(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				first := calls.Add(1) == 1
				if err := w.Text("one\n\n"); err != nil {
					return err
				}
				if !first {
					return w.Text("two\n\nthree")
				}
				<-offered
				_ = w.Text("two\n\n") // which may meet a token that holds no more
				<-ctx.Done()
				if how == "refresh" {
					close(lost)
				}
				// An adapter that takes its time to end.
				d.until("the turn is claimed again", func() bool { return len(d.platform.Tokens(d.platform.Active("", "c"))) == 2 })
				time.Sleep(400 * time.Millisecond)
				return ctx.Err()
			}), func(c *workerConfig) { c.inbox.Concurrency = 2 })
			id := d.queue(testhost.KeikiTurn{Text: "hello", ConversationID: "c"})
			d.until("the first message is delivered", func() bool { return len(d.platform.Texts(id)) == 1 })
			if how == "message" {
				d.until("the next poll waits", func() bool { return len(d.polls("inbox")) == 2 })
			}
			d.platform.LoseLease(id)
			if how == "message" {
				d.until("the turn is claimed again", func() bool { return len(d.platform.Tokens(id)) == 2 })
			}
			close(offered)
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if n, tokens := calls.Load(), len(d.platform.Tokens(id)); n != 2 || tokens != 2 {
				t.Errorf("the adapter was called %d times under %d tokens, want twice under two", n, tokens)
			}
			if diff := cmp.Diff([]string{"one", "two", "three"}, d.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDrainLeavesTurnsToTheirLease: what the drain has no time for is not completed, another poller takes it
// up, and no message has another key there.
func TestDrainLeavesTurnsToTheirLease(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 2 * time.Second })
	var second atomic.Bool
	adapter := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if turn.Message == "quick" {
			return w.Text("done")
		}
		for i := range 3 {
			if err := w.Text(fmt.Sprintf("%s %d\n\n", turn.Message, i)); err != nil {
				return err
			}
			if i == 0 && !second.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return nil
	})
	var ids []string
	for i := range 3 {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: fmt.Sprintf("turn %d", i)}))
	}
	first := d.work(adapter, func(c *workerConfig) { c.inbox.Concurrency = len(ids) })
	for _, id := range ids {
		d.until("the first message is delivered", func() bool { return len(d.platform.Texts(id)) == 1 })
	}
	first.stopPolling()
	if first.err != nil {
		t.Errorf("Run returned %v", first.err)
	}
	late := d.queue(testhost.KeikiTurn{Text: "quick"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := first.inbox.Drain(ctx); err == nil {
		t.Error("Drain returned nil, although it had to leave turns")
	}
	first.stop(expired())
	for _, id := range ids {
		if c := d.all(id, "complete"); len(c) > 0 {
			t.Errorf("a turn that is left to its lease was completed: %s", c[0].Body)
		}
	}
	if len(d.platform.Tokens(late)) > 0 {
		t.Error("a turn was claimed after the end of polling")
	}

	second.Store(true)
	d.work(adapter, func(c *workerConfig) { c.inbox.Concurrency = 8 })
	for i, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
		want := []string{fmt.Sprintf("turn %d 0", i), fmt.Sprintf("turn %d 1", i), fmt.Sprintf("turn %d 2", i)}
		if diff := cmp.Diff(want, d.platform.Texts(id)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		if sends := d.platform.Sends(id); len(sends) != 3 {
			t.Errorf("%d keys were used for three messages", len(sends))
		}
	}
	if o := d.outcome(late); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestDrainFinishesWhatItHasTimeFor: and completes it.
func TestDrainFinishesWhatItHasTimeFor(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	running, goOn := make(chan struct{}), make(chan struct{})
	w := d.work(adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		close(running)
		<-goOn
		return w.Text("done")
	}))
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	receive(t, "the turn", running)
	w.cancel()
	<-w.ended
	drained := make(chan error, 1)
	go func() { drained <- w.inbox.Drain(t.Context()) }()
	close(goOn)
	if err := receive(t, "the drain", drained); err != nil {
		t.Errorf("Drain returned %v", err)
	}
	if o := d.outcome(id); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestTheKeyIsRefused: polling ends with ErrKeyRefused, and the turns in hand are finished.
func TestTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			revoked := make(chan struct{})
			d := newDesk(t, onRoute("/inbox/next", func(n int) testhost.KeikiFault {
				if n > 1 {
					<-revoked
					return testhost.KeikiFault{Status: status, Body: errorBody("invalid_api_key")}
				}
				return testhost.KeikiFault{}
			}))
			goOn := make(chan struct{})
			w := d.work(adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				close(revoked)
				<-goOn
				return w.Text("done")
			}))
			id := d.queue(testhost.KeikiTurn{Text: "hello"})
			receive(t, "the end of polling", w.ended)
			if w.err != keiki.ErrKeyRefused { //nolint:errorlint // as it is documented
				t.Errorf("Run returned %v", w.err)
			}
			if n := len(d.polls("inbox")); n != 2 {
				t.Errorf("%d polls, want 2", n)
			}
			close(goOn)
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if err := w.inbox.Drain(t.Context()); err != nil {
				t.Errorf("Drain returned %v", err)
			}
		})
	}
}

// TestFaultE6PollsAreNotRedirected: the API key goes to the API base alone.
func TestFaultE6PollsAreNotRedirected(t *testing.T) {
	t.Parallel()
	foreign := newEavesdropper(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, onRoute("/inbox/next", func(n int) testhost.KeikiFault {
				if n == 1 {
					return testhost.KeikiFault{Status: status, Redirect: foreign.URL + "/api/v1/harness/inbox/next?wait=25"}
				}
				return testhost.KeikiFault{}
			}))
			d.work(says("hello"))
			if o := d.outcome(d.queue(testhost.KeikiTurn{Text: "hello"})); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if n := len(d.lines("polling failed", fmt.Sprint(status))); n != 1 {
				t.Errorf("%d polls are said to have failed", n)
			}
		})
	}
	t.Cleanup(func() {
		if heard := foreign.heard(); len(heard) > 0 {
			t.Errorf("the redirect was followed: %q", heard)
		}
	})
}

// TestClaimsThatCannotBeStarted are left, with a word in the log, and taken when they are offered again.
func TestClaimsThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 3 * time.Second })
	running, goOn := make(chan struct{}, 100), make(chan struct{})
	d.work(adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		running <- struct{}{}
		<-goOn
		return w.Text("done")
	}), func(c *workerConfig) { c.runtime.RefuseBusy = true })
	var ids []string
	for _, conversation := range []string{"one", "two"} { // which are the same for the worker
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello", ConversationID: conversation, Edit: func(b []byte) []byte {
			return replace(b, `"conversationId":"`+conversation, `"conversationId":"c`)
		}}))
	}
	receive(t, "the first turn", running)
	d.until("the second one is left", func() bool { return len(d.lines("could not be started", "and is left")) > 0 })
	close(goOn)
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestAClaimWaitsForRoomAMoment: the turn before it is about to end.
func TestAClaimWaitsForRoomAMoment(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.work(chatty(4, 50*time.Millisecond), func(c *workerConfig) { c.runtime.RefuseBusy = true })
	var ids []string
	for _, conversation := range []string{"one", "two"} { // which are the same for the worker
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello", ConversationID: conversation, Edit: func(b []byte) []byte {
			return replace(b, `"conversationId":"`+conversation, `"conversationId":"c`)
		}}))
	}
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" || len(d.platform.Tokens(id)) != 1 {
			t.Errorf("outcome %+v under %d claims", o, len(d.platform.Tokens(id)))
		}
	}
}

// TestNoMoreAreClaimedThanTheEngineRuns: what is claimed beyond that would have to wait for its lease.
func TestNoMoreAreClaimedThanTheEngineRuns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.work(chatty(2, 20*time.Millisecond), func(c *workerConfig) { c.runtime.MaxTurns, c.inbox.Concurrency = 2, 8 })
	var ids []string
	for range 10 {
		ids = append(ids, d.queue(testhost.KeikiTurn{Text: "hello"}))
	}
	for _, id := range ids {
		if o := d.outcome(id); o.Status != "completed" || len(d.platform.Tokens(id)) != 1 {
			t.Errorf("outcome %+v under %d claims", o, len(d.platform.Tokens(id)))
		}
	}
	if n := len(d.lines("could not be started")); n > 0 {
		t.Errorf("%d claims were left", n)
	}
}

// TestTurnsOfAnotherAgent: an inbox answers with the adapter of the turn's agent, or leaves the turn.
func TestTurnsOfAnotherAgent(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *deskConfig) { c.platform.Lease = 300 * time.Millisecond })
	d.work(nil, func(c *workerConfig) {
		c.inbox.Adapters = map[string]adapters.Adapter{"agent-1": says("one"), "agent-2": says("two")}
	})
	as := func(agent string) func([]byte) []byte {
		return func(b []byte) []byte {
			return replace(b, `"agentId":"agent-1"`, `"agentId":`+string(must(json.Marshal(agent))))
		}
	}
	nobody := d.queue(testhost.KeikiTurn{Text: "hello", Edit: as("agent-3")})
	d.until("it is left", func() bool { return len(d.lines("no adapter answers", nobody)) > 1 })
	for agent, want := range map[string]string{"agent-1": "one", "agent-2": "two"} {
		id := d.queue(testhost.KeikiTurn{Text: "hello", Edit: as(agent)})
		if o := d.outcome(id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
		if diff := cmp.Diff([]string{want}, d.platform.Texts(id)); diff != "" {
			t.Errorf("messages of %s (-want +got):\n%s", agent, diff)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestMergedTurns: what waited in a conversation comes as one turn.
func TestMergedTurns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var ids []string
	for i := range 3 {
		ids = append(ids, d.queue(testhost.KeikiTurn{ConversationID: "c", Text: fmt.Sprintf("message %d", i)}))
	}
	d.work(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		return w.Text(fmt.Sprintf("%d messages: %q", len(turn.Messages), turn.Message))
	}))
	if o := d.outcome(ids[0]); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff([]string{`3 messages: "message 0\n\nmessage 1\n\nmessage 2"`}, d.platform.Texts(ids[0])); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestNewInboxNamesEveryWrongField of its configuration.
func TestNewInboxNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := keiki.NewInbox(keiki.InboxConfig{Config: keiki.Config{Delivery: "pigeon"}, Wait: time.Minute, Concurrency: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Engine is nil", "no adapter", "Delivery", "APIBase is empty", "APIKey is empty", "Wait is 1m0s", "Concurrency is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	engine, err := runtime.New(runtime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]func(*keiki.InboxConfig){
		"base with user info": func(c *keiki.InboxConfig) { c.APIBase = "https://a:b@keiki.example/api/v1" },
		"base with a query":   func(c *keiki.InboxConfig) { c.APIBase = "https://keiki.example/api/v1?x=1" },
		"base of a file":      func(c *keiki.InboxConfig) { c.APIBase = "file:///etc" },
		"key with a newline":  func(c *keiki.InboxConfig) { c.APIKey = "sk_test_hidden-key\n" },
		"key with a break":    func(c *keiki.InboxConfig) { c.APIKey = "sk_test_hidden-key\r\nX-Y: z" },
	} {
		c := keiki.InboxConfig{Config: keiki.Config{Engine: engine, Adapter: says("x"), APIBase: "https://keiki.example/api/v1"}, APIKey: "sk_test_key"}
		if _, err := keiki.NewInbox(c); err != nil {
			t.Fatalf("a good configuration: %v", err)
		}
		bad(&c)
		if _, err := keiki.NewInbox(c); err == nil || strings.Contains(err.Error(), "hidden-key") || strings.Contains(err.Error(), "a:b") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
