package keiki_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
)

// How turns end: cancelled, by their deadline, by a limit of this server, by its shutdown.

// cancel cancels a turn, which must be acknowledged.
func (g *rig) cancel(id string) {
	g.t.Helper()
	if a, err := g.platform.Cancel(g.t.Context(), id); err != nil || a.Status != http.StatusOK {
		g.t.Errorf("the cancellation: %v %d %s", err, a.Status, a.Body)
	}
}

// TestCancellationAtEachMoment: at whatever moment a turn is cancelled, nothing is sent afterwards, and no
// completion ever. (That nothing is sent after the acknowledgement the platform sees by itself.)
func TestCancellationAtEachMoment(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		texts    []string // delivered
		complete int      // completions that were on their way
	}{
		{"before the first message", nil, 0},
		{"while a message is made", nil, 0},
		{"while a message is delivered", []string{"one"}, 0},
		{"between two tries", nil, 0},
		{"between two messages", []string{"one"}, 0},
		{"while the last message is delivered", []string{"one", "two"}, 0},
		{"during the completion", []string{"one", "two"}, 1},
		{"between two completions", []string{"one", "two"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			now := make(chan struct{}) // the moment has come
			done := make(chan struct{})
			moment := func() {
				once.Do(func() { close(now); <-done })
			}
			var id string
			g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				wait := func() error {
					once.Do(func() { close(now) })
					<-ctx.Done()
					if cause := adapters.CauseOf(ctx); cause != adapters.CauseStopped {
						t.Errorf("the adapter was cancelled because of %s", cause)
					}
					return ctx.Err()
				}
				if test.name == "before the first message" {
					return wait()
				}
				if err := w.Text("one"); err != nil {
					return err
				}
				if test.name == "while a message is made" {
					return wait()
				}
				if err := w.Text("\n\n"); err != nil {
					return err
				}
				if test.name == "between two messages" {
					<-now
					return wait()
				}
				return w.Text("two")
			}), func(c *rigConfig) {
				c.platform.Deliver = func(d testhost.KeikiDelivery) error {
					switch {
					case test.name == "while a message is delivered" && d.Text == "one", test.name == "while the last message is delivered" && d.Text == "two":
						moment()
					}
					return nil
				}
				c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					switch {
					case test.name == "between two tries" && strings.HasSuffix(r.URL.Path, "/messages"),
						test.name == "between two completions" && strings.HasSuffix(r.URL.Path, "/complete"):
						return testhost.KeikiFault{Status: 503, RetryAfter: "5"}
					case test.name == "during the completion" && strings.HasSuffix(r.URL.Path, "/complete"):
						moment()
					}
					return testhost.KeikiFault{}
				}
				c.platform.OnRequest = func(r testhost.KeikiRequest) {
					switch {
					case test.name == "between two messages" && r.Route == "messages",
						test.name == "between two tries" && r.Route == "messages",
						test.name == "between two completions" && r.Route == "complete":
						once.Do(func() { close(now) })
					}
				}
				c.platform.InFlight = 20 * time.Second // what is on its way is let go on purpose
			})
			id = g.dispatch(testhost.KeikiTurn{Text: "hi", ConversationID: "c"}).ID
			<-now
			g.cancel(id)
			sent := len(g.platform.Requests(id))
			close(done)
			g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
			if o := g.outcome(id); o.Status != "cancelled" {
				t.Errorf("outcome %+v", o)
			}
			g.until("what was on its way is delivered", func() bool { return len(g.platform.Texts(id)) >= len(test.texts) })
			if diff := cmp.Diff(test.texts, g.platform.Texts(id)); diff != "" {
				t.Errorf("delivered (-want +got):\n%s", diff)
			}
			if n := g.count(id, "complete"); n != test.complete {
				t.Errorf("%d completions, want %d", n, test.complete)
			}
			if n := len(g.platform.Requests(id)); n != sent {
				t.Errorf("%d requests after the cancellation", n-sent)
			}
			// Again, and as a new turn, it is nothing but a repeat.
			g.cancel(id)
			if a, err := g.platform.Redispatch(t.Context(), id); err != nil || a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"duplicate":true`) {
				t.Errorf("the turn again: %v %d %s", err, a.Status, a.Body)
			}
			g.until("the log says that it was cancelled", func() bool {
				return strings.Contains(g.log.String(), `"status":"cancelled","cause":"host-stopped"`)
			})
		})
	}
}

// TestCancellationOfAWaitingTurn: a turn that waits for its conversation never runs.
func TestCancellationOfAWaitingTurn(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	hold := make(chan struct{})
	g := newRig(t, adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
		runs.Add(1)
		<-hold
		return nil
	}))
	first := g.dispatch(testhost.KeikiTurn{Text: "hi", ConversationID: "c"}).ID
	second := g.dispatch(testhost.KeikiTurn{Text: "hi", ConversationID: "c"}).ID
	g.cancel(second)
	g.until("one is left", func() bool { return g.engine.Stats().Active == 1 })
	close(hold)
	if o := g.outcome(first); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	g.until("none is left", func() bool { return g.engine.Stats().Active == 0 })
	if runs.Load() != 1 || len(g.platform.Requests(second)) != 0 {
		t.Errorf("%d runs, and %d requests of the cancelled turn", runs.Load(), len(g.platform.Requests(second)))
	}
}

// TestCancellationOfUnknownTurns is acknowledged, whatever the order in which things come.
func TestCancellationOfUnknownTurns(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("hi"))
	q := newRequest(g, "turn-1")
	q.kind = "keiki.turn.cancelled"
	for range 2 {
		if a := g.send(q); a.Status != http.StatusOK || string(a.Body) != `{"cancelled":false,"turnId":"turn-1"}` {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	g.outcome(d.ID)
	g.until("it has ended", func() bool { return g.engine.Stats().Active == 0 })
	if a, err := g.platform.Cancel(t.Context(), d.ID); err != nil || a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"cancelled":false`) {
		t.Errorf("%v %d %s", err, a.Status, a.Body)
	}
}

// TestCancellationsAtRandom: many turns, each cancelled at some moment.
func TestCancellationsAtRandom(t *testing.T) {
	const turns = 150
	g := newRig(t, says("one\n\n", "two\n\n", "three"), func(c *rigConfig) {
		c.platform.InFlight = 10 * time.Second // one call may have left just before
		c.platform.Fault = testhost.RandomFaults(3, 10, 10, 5)
	})
	var all sync.WaitGroup
	for i := range turns {
		all.Go(func() {
			d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hi"})
			if err != nil || !d.Answer.Accepted() {
				t.Error(err, d.Answer)
				return
			}
			spin := rand.New(rand.NewPCG(7, uint64(i))).IntN(30)
			timer := time.NewTimer(time.Duration(spin) * time.Millisecond) // a random moment, not a wait for anything
			<-timer.C
			g.cancel(d.ID)
			before := g.count(d.ID, "complete")
			o := g.outcome(d.ID)
			if o.Status != "cancelled" && o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if o.Status == "cancelled" && before > 0 && o.Completion != nil {
				t.Errorf("completed and cancelled: %+v", o)
			}
		})
	}
	all.Wait()
	g.until("all turns are over", func() bool { return g.engine.Stats().Active == 0 })
}

// TestTheAdapterIsCutBeforeTheDeadline: a second before it, or at half of what is left; what was said is
// delivered, and one failed completion arrives before the deadline.
func TestTheAdapterIsCutBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		timeout, cut time.Duration
		form         testhost.KeikiDeadlineForm
	}{
		{3 * time.Second, 2 * time.Second, testhost.KeikiDeadlineText},
		{1600 * time.Millisecond, 800 * time.Millisecond, testhost.KeikiDeadlineMillis},
	} {
		t.Run(fmt.Sprint(test.timeout), func(t *testing.T) {
			t.Parallel()
			cut := make(chan time.Time, 1)
			g := newRig(t, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("one\n\nhalf of two")
				if at, ok := ctx.Deadline(); !ok || !at.Equal(turn.Deadline) {
					t.Errorf("deadlines %v and %v", at, turn.Deadline)
				}
				<-ctx.Done()
				cut <- time.Now()
				if adapters.CauseOf(ctx) != adapters.CauseTurnTimeout || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
					t.Errorf("cause %s, error %v", adapters.CauseOf(ctx), ctx.Err())
				}
				return ctx.Err()
			}))
			began := time.Now()
			d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: test.timeout, Deadline: test.form})
			o := g.outcome(d.ID)
			if o.Status != "failed" || o.Code != "app_error" || o.Error != "The turn's deadline passed before the agent had ended." {
				t.Errorf("outcome %+v", o)
			}
			// Half of the time that the request took to come here is lost too.
			if at := (<-cut).Sub(began); at < test.cut-50*time.Millisecond || at > test.timeout {
				t.Errorf("the adapter was cut after %v, want %v", at, test.cut)
			}
			if diff := cmp.Diff([]string{"one"}, g.platform.Texts(d.ID)); diff != "" {
				t.Errorf("delivered (-want +got):\n%s", diff)
			}
			if n := g.count(d.ID, "complete"); n != 1 {
				t.Errorf("%d completions", n)
			}
		})
	}
}

// TestAMessageThatHangsAtTheDeadline is given up in time for the completion, which arrives before the
// deadline, whether the adapter has ended or not.
func TestAMessageThatHangsAtTheDeadline(t *testing.T) {
	t.Parallel()
	for waits, want := range map[bool]string{
		true:  "The turn's deadline passed before the agent had ended.",
		false: "A message of the agent could not be delivered in time.",
	} {
		t.Run(fmt.Sprint(waits), func(t *testing.T) {
			t.Parallel()
			g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				err := w.Text("one\n\ntwo\n\n")
				if waits {
					<-ctx.Done()
				}
				return err
			}), func(c *rigConfig) {
				c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, "/messages") {
						return testhost.KeikiFault{Delay: time.Minute}
					}
					return testhost.KeikiFault{}
				}
			})
			for attempt := 1; ; attempt++ { // on a busy machine a completion may take longer than it has
				d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: 1800 * time.Millisecond})
				o := g.outcome(d.ID)
				g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
				if n := g.count(d.ID, "messages"); n != 1 {
					t.Errorf("%d messages", n)
				}
				if o.Status == "failed" && o.Code == "app_error" && o.Error == want {
					return
				}
				if attempt == 5 {
					t.Fatalf("outcome %+v", o)
				}
			}
		})
	}
}

// TestOneTryAtTheDeadline: the completion of a turn that its deadline has cut is tried once.
func TestOneTryAtTheDeadline(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		timeout time.Duration
		adapter adapters.Adapter
	}{
		{"cut", time.Second, adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error { <-ctx.Done(); return ctx.Err() })},
		{"passed", -time.Second, neverCalled(t)},
	} {
		g := newRig(t, test.adapter, plays("complete", testhost.KeikiFault{Status: 503}))
		d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hi", Timeout: test.timeout})
		if err != nil || d.Answer.Status != http.StatusAccepted {
			t.Fatal(err, d.Answer)
		}
		g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 && g.count(d.ID, "complete") > 0 })
		list := g.tries(d.ID, "complete")
		if len(list) != 1 || string(list[0].Body) != `{"status":"failed","error":"The turn's deadline passed before the agent had ended."}` {
			t.Errorf("%s: %d completions, %s", test.name, len(list), list[0].Body)
		}
		if !strings.Contains(g.log.String(), "the turn could not be completed") {
			t.Errorf("%s: the log does not say so:\n%s", test.name, g.log)
		}
	}
}

// TestAnAdapterThatIgnoresItsDeadline is left behind, and the turn completed without it.
func TestAnAdapterThatIgnoresItsDeadline(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	late := make(chan error, 1)
	g := newRig(t, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		_ = w.Text("one\n\n")
		<-hold
		late <- w.Text("too late\n\n")
		return nil
	}), func(c *rigConfig) { c.runtime.Grace = 100 * time.Millisecond })
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: time.Second})
	g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
	if list := g.tries(d.ID, "complete"); len(list) != 1 || !strings.HasPrefix(string(list[0].Body), `{"status":"failed"`) {
		t.Errorf("completions %+v", list)
	}
	close(hold)
	if err := <-late; !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("writing after the end: %v", err)
	}
	if diff := cmp.Diff([]string{"one"}, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
}

// TestTurnsWithoutADeadline have the server's own limit.
func TestTurnsWithoutADeadline(t *testing.T) {
	t.Parallel()
	g := newRig(t, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if left := time.Until(turn.Deadline); left < 9*time.Minute || left > 10*time.Minute {
			t.Errorf("the deadline is in %v", left)
		}
		return w.Text("hi")
	}))
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", Deadline: testhost.KeikiDeadlineNone})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestTurnTimeout: the server's own limit fails the turn, whose completion is repeated until it arrives.
func TestTurnTimeout(t *testing.T) {
	t.Parallel()
	for _, form := range []testhost.KeikiDeadlineForm{testhost.KeikiDeadlineText, testhost.KeikiDeadlineNone} {
		g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("one\n\nhalf")
			<-ctx.Done()
			if adapters.CauseOf(ctx) != adapters.CauseTurnTimeout {
				t.Errorf("cause %s", adapters.CauseOf(ctx))
			}
			return ctx.Err()
		}), func(c *rigConfig) { c.runtime.TurnTimeout = 500 * time.Millisecond }, plays("complete", testhost.KeikiFault{Status: 500}, testhost.KeikiFault{Drop: true}))
		d := g.dispatch(testhost.KeikiTurn{Text: "hi", Deadline: form})
		if o := g.outcome(d.ID); o.Status != "failed" || o.Error != "The turn passed the limit for a whole turn (turn timeout, 500ms)." {
			t.Errorf("outcome %+v", o)
		}
		if diff := cmp.Diff([]string{"one"}, g.platform.Texts(d.ID)); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		if n := g.count(d.ID, "complete"); n != 3 {
			t.Errorf("%d completions", n)
		}
	}
}

// TestOtherLimits: first output and idle.
func TestOtherLimits(t *testing.T) {
	t.Parallel()
	waits := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if turn.Message == "speak" {
			_ = w.Text("one\n\n")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for text, want := range map[string]string{"hush": "The agent wrote nothing within the limit for its first output (100ms).", "speak": "The agent fell silent for longer than the limit between two outputs (idle, 150ms)."} {
		g := newRig(t, waits, func(c *rigConfig) {
			if c.runtime.Idle = 150 * time.Millisecond; text == "hush" {
				c.runtime.FirstOutput = 100 * time.Millisecond
			}
		})
		d := g.dispatch(testhost.KeikiTurn{Text: text})
		if o := g.outcome(d.ID); o.Status != "failed" || o.Error != want {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestSlowDeliveryIsNoSilence: the time that a message takes to be delivered is not the adapter's.
func TestSlowDeliveryIsNoSilence(t *testing.T) {
	t.Parallel()
	delivered := make(chan struct{}, 3)
	g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := range 2 {
			if err := w.Text(fmt.Sprintf("message %d\n\n", i)); err != nil {
				return err
			}
			select {
			case <-delivered:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}), func(c *rigConfig) {
		c.runtime.Idle = 400 * time.Millisecond
		c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
			if strings.HasSuffix(r.URL.Path, "/messages") {
				return testhost.KeikiFault{Delay: 700 * time.Millisecond}
			}
			return testhost.KeikiFault{}
		}
		c.platform.Deliver = func(testhost.KeikiDelivery) error { delivered <- struct{}{}; return nil }
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" || len(g.platform.Texts(d.ID)) != 2 {
		t.Errorf("outcome %+v, messages %q", o, g.platform.Texts(d.ID))
	}
}

// TestFaultK3Drain: running turns have their time, new ones are refused, repeats, arrivals and cancellations
// are not; what is left at the end fails with a word about it.
func TestFaultK3Drain(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		a, open := <-in
		if !open {
			return ctx.Err()
		}
		switch a.Messages[0].Text {
		case "end":
			return w.Text("in time")
		case "wait":
			_ = w.Text("half of a message")
			<-ctx.Done()
			if cause := adapters.CauseOf(ctx); cause != adapters.CauseDrain && cause != adapters.CauseStopped {
				t.Errorf("cause %s", cause)
			}
			return ctx.Err()
		default:
			<-release // whatever its context says
			return nil
		}
	}}, func(c *rigConfig) { c.runtime.Grace = 200 * time.Millisecond })
	send := func(text string) string {
		d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
		if a, err := g.platform.Arrive(t.Context(), d.ID, testhost.KeikiMessage{Text: text}); err != nil || !a.Answer.Accepted() {
			t.Errorf("%v %+v", err, a)
		}
		return d.ID
	}
	slow, cancelled, stubborn := send("wait"), send("wait"), send("ignore")
	quick := g.dispatch(testhost.KeikiTurn{Text: "hi"}).ID

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	drained := make(chan error, 1)
	go func() { drained <- g.handler.Drain(ctx) }()
	g.until("it drains", g.engine.Draining)
	d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Answer; a.Status != http.StatusServiceUnavailable || g.refusal(a) != "draining" || a.Header.Get("Retry-After") == "" {
		t.Errorf("a new turn: %d %s", a.Status, a.Body)
	}
	if a, err := g.platform.Redispatch(t.Context(), slow); err != nil || a.Status != http.StatusOK {
		t.Errorf("a repeat: %v %d %s", err, a.Status, a.Body)
	}
	g.cancel(cancelled)
	if a, err := g.platform.Arrive(t.Context(), quick, testhost.KeikiMessage{Text: "end"}); err != nil || !a.Answer.Accepted() {
		t.Errorf("an arrival: %v %+v", err, a)
	}
	if o := g.outcome(quick); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	g.until("two are left", func() bool { return g.engine.Stats().Active == 2 })

	out := errors.New("the time is over")
	began := time.Now()
	cancel(out)
	if err := <-drained; !errors.Is(err, out) {
		t.Errorf("the drain returned %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, id := range []string{slow, stubborn} {
		if o := g.outcome(id); o.Status != "failed" || o.Error != "server is shutting down" || o.Consumed != nil {
			t.Errorf("outcome %+v", o)
		}
		if n := g.count(id, "complete"); n != 1 {
			t.Errorf("%d completions", n)
		}
	}
	if texts := g.platform.Texts(slow); len(texts) > 0 {
		t.Errorf("delivered %q", texts)
	}
	close(release)
	if o := g.outcome(cancelled); o.Status != "cancelled" {
		t.Errorf("outcome %+v", o)
	}
	if err := g.handler.Drain(t.Context()); err != nil {
		t.Errorf("draining again: %v", err)
	}
}

// TestDrainDuringTheCompletion: when the drain runs out while a completion, or a message, is repeated,
// there is one last try.
func TestDrainDuringTheCompletion(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"complete", "messages"} {
		for _, works := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the last one works: %v", route, works), func(t *testing.T) {
				t.Parallel()
				var over atomic.Bool
				g := newRig(t, says("one"), func(c *rigConfig) {
					c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
						switch {
						case over.Load() && works:
						case strings.HasSuffix(r.URL.Path, route):
							return testhost.KeikiFault{Status: 503, RetryAfter: "60"}
						case over.Load():
							return testhost.KeikiFault{Delay: 30 * time.Second, Status: 500}
						}
						return testhost.KeikiFault{}
					}
				})
				d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
				g.until("it is tried", func() bool { return g.count(d.ID, route) == 1 })
				ctx, cancel := context.WithCancel(t.Context())
				drained := make(chan error, 1)
				go func() { drained <- g.handler.Drain(ctx) }()
				g.until("it drains", g.engine.Draining)
				over.Store(true)
				began := time.Now()
				cancel()
				if err := <-drained; !errors.Is(err, context.Canceled) {
					t.Errorf("the drain returned %v", err)
				}
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("it took %v", took)
				}
				g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
				want := map[string]int{"complete": 2, "messages": 1}[route]
				list := g.tries(d.ID, "complete")
				if len(list) != want {
					t.Errorf("%d completions, want %d", len(list), want)
				}
				body := `{"status":"completed"}`
				if route == "messages" {
					body = `{"status":"failed","error":"server is shutting down"}`
				}
				for _, r := range list {
					if string(r.Body) != body {
						t.Errorf("completion %s", r.Body)
					}
				}
				if works {
					g.outcome(d.ID)
				}
			})
		}
	}
}

// TestErrorTexts: what the platform is told of a failure was written on purpose, or is a general sentence
// with a reference that the log has too.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	hidden := errors.New("password=hunter2")
	g := newRig(t, adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		switch turn.Message {
		case "plain":
			return hidden
		case "public":
			return adapters.Public("The calendar is closed.", hidden)
		case "wrapped":
			return fmt.Errorf("outer: %w", adapters.Public("It is late.", hidden))
		case "unavailable":
			return &adapters.Unavailable{Message: "The model is overloaded.", Err: hidden}
		case "unavailable without a word":
			return &adapters.Unavailable{Err: hidden}
		case "unsupported":
			_, err := w.Tool(context.Background(), adapters.ToolRequest{Ref: "tool"})
			if !errors.Is(err, adapters.ErrNotSupported) {
				t.Errorf("a tool request: %v", err)
			}
			return err
		}
		return nil
	}))
	for text, want := range map[string]string{
		"plain":                      "The agent failed (reference ",
		"public":                     "The calendar is closed.",
		"wrapped":                    "It is late.",
		"unavailable":                "The model is overloaded.",
		"unavailable without a word": "The service behind the agent is unavailable (reference ",
		"unsupported":                "The agent needs what this protocol does not have: ",
	} {
		d := g.dispatch(testhost.KeikiTurn{Text: text})
		o := g.outcome(d.ID)
		if o.Status != "failed" || !strings.HasPrefix(o.Error, want) || strings.Contains(string(o.Completion), "hunter2") {
			t.Errorf("%s: %+v", text, o)
		}
		if _, after, ok := strings.Cut(o.Error, "(reference "); ok {
			reference := strings.TrimSuffix(after, ").")
			g.until("the log has the reference", func() bool { return strings.Contains(g.log.String(), reference) })
		}
	}
	if strings.Contains(g.log.String(), "hunter2") {
		t.Error("the log has an adapter's error text")
	}
}

// TestOutcomesForHooks: hooks see how each turn ended for the platform.
func TestOutcomesForHooks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]string{}
	g := newRig(t, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if turn.Message != "complete" {
			_ = w.Text("one\n\n")
			<-ctx.Done()
		}
		return ctx.Err()
	}), func(c *rigConfig) {
		c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
			if !strings.HasSuffix(r.URL.Path, "/messages") {
				return testhost.KeikiFault{}
			}
			for part, status := range map[string]int{"/turn-401/": 401, "/turn-409/": 404, "/turn-400/": 400} {
				if strings.Contains(r.URL.Path, part) {
					return testhost.KeikiFault{Status: status}
				}
			}
			return testhost.KeikiFault{}
		}
		c.runtime.Hooks = []runtime.Hooks{{TurnEnd: func(_ context.Context, info runtime.TurnInfo, o *runtime.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			got[info.TurnID] = fmt.Sprintf("%s %s, agent %s, session %s", o.Status, string(o.Cause), info.AgentID, info.SessionID)
		}}}
	})
	for _, id := range []string{"complete", "turn-401", "turn-409", "turn-400", "turn-cancelled"} {
		text := id
		g.dispatch(testhost.KeikiTurn{ID: id, Text: text, ConversationID: "c-" + id})
	}
	g.until("the message is delivered", func() bool { return len(g.platform.Texts("turn-cancelled")) == 1 })
	g.cancel("turn-cancelled")
	g.until("all are over", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 5 })
	want := map[string]string{
		"complete":       "completed completed, agent agent-1, session c-complete",
		"turn-401":       "failed host-gone, agent agent-1, session c-turn-401",
		"turn-409":       "cancelled host-stopped, agent agent-1, session c-turn-409",
		"turn-400":       "failed host-stopped, agent agent-1, session c-turn-400",
		"turn-cancelled": "cancelled host-stopped, agent agent-1, session c-turn-cancelled",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}
