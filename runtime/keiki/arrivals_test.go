package keiki_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime/keiki"
)

// Messages that come in while a turn runs, and what the platform is told of them.

// arrive pushes an arrival, whose answer must be of this status and code.
func (g *rig) arrive(id string, sequence int64, status int, code string) {
	g.t.Helper()
	a, err := g.platform.PushArrival(g.t.Context(), id, sequence, testhost.KeikiMessage{Text: fmt.Sprintf("arrival %d", sequence)})
	if err != nil || a.Status != status || g.refusal(a) != code {
		g.t.Errorf("arrival %d: %v %d %s, want %d %s", sequence, err, a.Status, a.Body, status, code)
	}
}

func texts(messages []testhost.KeikiMessage) (list []string) {
	for _, m := range messages {
		list = append(list, m.Text)
	}
	return list
}

// TestAccountOfArrivals: of four arrivals the first is answered, the second processed, the third never taken,
// the fourth comes after the adapter's end.
func TestAccountOfArrivals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ending   string
		consumed []int64
		requeued []string
	}{
		{"completed", []int64{1, 2}, []string{"arrival 3"}},
		{"failed", []int64{1}, []string{"arrival 2", "arrival 3"}},
		{"cancelled", nil, []string{"arrival 1", "arrival 2", "arrival 3"}},
	} {
		t.Run(test.ending, func(t *testing.T) {
			t.Parallel()
			taken, end := make(chan int64), make(chan struct{})
			completing, complete := make(chan struct{}), make(chan struct{})
			g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
				for range 2 {
					a := <-in
					if a.Sequence == 1 {
						if err := w.Text("an answer\n\n"); err != nil {
							return err
						}
					}
					taken <- a.Sequence
				}
				select {
				case <-end:
				case <-ctx.Done():
					return ctx.Err()
				}
				if test.ending == "failed" {
					return errors.New("on purpose")
				}
				return nil
			}}, func(c *rigConfig) {
				c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, "/complete") {
						close(completing)
						<-complete
					}
					return testhost.KeikiFault{}
				}
			})
			d := g.dispatch(testhost.KeikiTurn{Text: "hi", ConversationID: "c"})
			for seq := int64(1); seq <= 2; seq++ {
				g.arrive(d.ID, seq, http.StatusAccepted, "")
				if got := <-taken; got != seq {
					t.Errorf("the adapter took %d, want %d", got, seq)
				}
			}
			g.arrive(d.ID, 2, http.StatusOK, "")
			g.arrive(d.ID, 3, http.StatusAccepted, "")
			g.until("the first is answered", func() bool { return len(g.platform.Texts(d.ID)) == 1 })
			if test.ending == "cancelled" {
				g.cancel(d.ID)
			} else {
				close(end)
				<-completing
			}
			g.arrive(d.ID, 4, http.StatusConflict, "turn_not_running")
			g.arrive(d.ID, 2, http.StatusConflict, "turn_not_running")
			close(complete)
			o := g.outcome(d.ID)
			if o.Status != test.ending {
				t.Errorf("outcome %+v", o)
			}
			if diff := cmp.Diff(test.consumed, o.Consumed); diff != "" {
				t.Errorf("consumed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(append(test.requeued, "arrival 4"), texts(g.platform.Pending("", "c"))); diff != "" {
				t.Errorf("back in the queue (-want +got):\n%s", diff)
			}
			g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
			g.arrive(d.ID, 5, http.StatusConflict, "turn_not_running")
		})
	}
}

// TestWhatAnswersAnArrival: of a turn that fails, an arrival counts once a message was delivered that was
// written after it was taken.
func TestWhatAnswersAnArrival(t *testing.T) {
	t.Parallel()
	final := testhost.KeikiFault{Status: 502, Body: `{"error":{"code":"delivery_failed","retryable":false}}`}
	for _, test := range []struct {
		name          string
		before, after string // the arrival is taken
		delivery      keiki.Delivery
		faults        []testhost.KeikiFault
		consumed      []int64
	}{
		{"a message", "", "answer\n\n", "", nil, []int64{1}},
		{"nothing", "", "", "", nil, nil},
		{"what was written before", "before\n\n", "", "", nil, nil},
		{"half a message", "before\n\n", "half", "", nil, nil},
		{"the other half", "half ", "of it\n\n", "", nil, []int64{1}},
		{"a blank line", "a message", "\n\n", "", nil, nil},
		{"a lost answer", "", "answer\n\n", "", []testhost.KeikiFault{{Drop: true, After: true}}, []int64{1}},
		{"a message of which nobody knows", "", "answer\n\n", "", []testhost.KeikiFault{final}, nil},
		{"the message after that", "", "answer\n\nanother\n\n", "", []testhost.KeikiFault{final}, []int64{1}},
		{"a message that is refused", "", "answer\n\n", "", []testhost.KeikiFault{{Status: 400}}, nil},
		{"one message in all", "", "answer\n\n", keiki.WholeMessage, nil, nil},
		{"a stream", "", "answer", keiki.Streamed, nil, []int64{1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &script{steps: map[string][]testhost.KeikiFault{"messages": test.faults}}
			taken := make(chan struct{})
			g := newRig(t, taker{func(_ context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
				if test.before != "" {
					_ = w.Text(test.before)
				}
				<-in
				if test.after != "" {
					_ = w.Text(test.after)
				}
				close(taken)
				return errors.New("on purpose")
			}}, func(c *rigConfig) {
				c.push.Delivery = test.delivery
				c.platform.Fault = s.fault
			})
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			g.arrive(d.ID, 1, http.StatusAccepted, "")
			<-taken
			o := g.outcome(d.ID)
			if o.Status != "failed" {
				t.Errorf("outcome %+v", o)
			}
			if diff := cmp.Diff(test.consumed, o.Consumed); diff != "" {
				t.Errorf("consumed (-want +got):\n%s\nmessages %q", diff, g.platform.Texts(d.ID))
			}
		})
	}
}

// TestEarlyArrivals: what comes before the adapter asks is kept in order, also while the turn waits for its
// conversation; what it never asks for goes back.
func TestEarlyArrivals(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{true, false} {
		var mu sync.Mutex
		var got []string
		ask, first := make(chan struct{}), make(chan struct{})
		g := newRig(t, asksLate{func(turn *adapters.Turn, w adapters.Writer) error {
			if turn.Message == "first" {
				<-first
				return nil
			}
			<-ask
			if !asks {
				return nil
			}
			in, err := w.Arrivals()
			if err != nil {
				return err
			}
			for range 3 {
				a := <-in
				mu.Lock()
				got = append(got, fmt.Sprintf("%d %+v", a.Sequence, a.Messages))
				mu.Unlock()
			}
			return nil
		}})
		g.dispatch(testhost.KeikiTurn{Text: "first", ConversationID: "c"})
		d := g.dispatch(testhost.KeikiTurn{Text: "second", ConversationID: "c"})
		for seq := int64(1); seq <= 3; seq++ {
			a, err := g.platform.Arrive(t.Context(), d.ID, testhost.KeikiMessage{Text: "a", ID: "m", Silent: seq == 2}, testhost.KeikiMessage{Text: "b", ID: "n", Flagged: seq == 3})
			if err != nil || a.Sequence != seq || a.Answer.Status != http.StatusAccepted || string(a.Answer.Body) != fmt.Sprintf(`{"accepted":true,"turnId":%q,"sequence":%d}`, d.ID, seq) {
				t.Errorf("%v %+v %s", err, a, a.Answer.Body)
			}
		}
		close(first)
		close(ask)
		o := g.outcome(d.ID)
		want, consumed := []string{
			"1 [{ID:m Text:a Silent:false Flagged:false} {ID:n Text:b Silent:false Flagged:false}]",
			"2 [{ID:m Text:a Silent:true Flagged:false} {ID:n Text:b Silent:false Flagged:false}]",
			"3 [{ID:m Text:a Silent:false Flagged:false} {ID:n Text:b Silent:false Flagged:true}]",
		}, []int64{1, 2, 3}
		if !asks {
			want, consumed = nil, nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the adapter got (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(consumed, o.Consumed); diff != "" || o.Status != "completed" {
			t.Errorf("%+v: consumed (-want +got):\n%s", o, diff)
		}
		if back := len(g.platform.Pending("", "c")); back != map[bool]int{true: 0, false: 6}[asks] {
			t.Errorf("%d messages went back", back)
		}
	}
}

// asksLate takes arrivals, but asks for them when it likes.
type asksLate struct {
	run func(turn *adapters.Turn, w adapters.Writer) error
}

func (asksLate) TakesArrivals(*adapters.Turn) bool { return true }
func (a asksLate) Run(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	return a.run(turn, w)
}

// choosy takes arrivals in some turns.
type choosy struct{ t *testing.T }

func (choosy) TakesArrivals(turn *adapters.Turn) bool { return turn.Message == "yes" }
func (c choosy) Run(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
	in, err := w.Arrivals()
	if err != nil {
		return err
	}
	select {
	case a, open := <-in:
		if open {
			return w.Text(a.Messages[0].Text)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ctx.Done() // there are none
	return ctx.Err()
}

// TestAdaptersThatTakeNoArrivals: 409, and a channel that is closed; whether an adapter takes any it may
// decide by the turn.
func TestAdaptersThatTakeNoArrivals(t *testing.T) {
	t.Parallel()
	for name, adapter := range map[string]adapters.Adapter{
		"of its kind": adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return choosy{t}.Run(ctx, turn, w)
		}),
		"by the turn": choosy{t},
	} {
		g := newRig(t, adapter)
		d := g.dispatch(testhost.KeikiTurn{Text: "no", ConversationID: "c"})
		g.arrive(d.ID, 1, http.StatusConflict, "arrivals_not_taken")
		g.cancel(d.ID)
		g.outcome(d.ID)
		if back := texts(g.platform.Pending("", "c")); len(back) != 1 {
			t.Errorf("%s: back in the queue: %q", name, back)
		}
		if name == "of its kind" {
			continue
		}
		d = g.dispatch(testhost.KeikiTurn{Text: "yes", ConversationID: "d"})
		g.arrive(d.ID, 1, http.StatusAccepted, "")
		if o := g.outcome(d.ID); o.Status != "completed" || !slices.Equal(o.Consumed, []int64{1}) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestSequences: integers from 1, whatever the turn.
func TestSequences(t *testing.T) {
	t.Parallel()
	g := newRig(t, says())
	for _, sequence := range []string{"0", "-1", "1.5", `"1"`, "null", "9223372036854775808", "1e-1", ""} {
		q := newRequest(g, "turn-1")
		q.kind = "keiki.turn.arrival"
		body := strings.Replace(string(q.body()), `"sequence":1`, `"sequence":`+sequence, 1)
		if sequence == "" {
			body = strings.Replace(string(q.body()), `,"sequence":1`, ``, 1)
		}
		a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-1", Body: []byte(body)})
		if err != nil || a.Status != http.StatusBadRequest || g.refusal(a) != "invalid_request" {
			t.Errorf("sequence %s: %v %d %s", sequence, err, a.Status, a.Body)
		}
	}
}

// counter is an adapter that takes arrivals until the last one.
func counter(last int64, got *[]int64) adapters.Adapter {
	return taker{func(ctx context.Context, in <-chan adapters.Arrival, _ adapters.Writer) error {
		for {
			select {
			case a, open := <-in:
				if !open {
					return errors.New("there are no more")
				}
				if *got = append(*got, a.Sequence); a.Sequence == last {
					return nil
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
}

func upTo(last int64) (list []int64) {
	for i := range last {
		list = append(list, i+1)
	}
	return list
}

// TestFaultF3Pages: a gap of many is pulled page by page, and a pull that fails is repeated.
func TestFaultF3Pages(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]testhost.KeikiFault{
		"well":            nil,
		"failing twice":   {{Status: 500}, {Drop: true}},
		"with HTML":       {{Status: 200, Body: "<html>"}},
		"failing between": {{}, {Status: 503}, {}, {Status: 429}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []int64
			g := newRig(t, counter(121, &got), plays("arrivals", faults...))
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			for seq := int64(2); seq <= 120; seq++ {
				if err := g.platform.StoreArrival(d.ID, seq, testhost.KeikiMessage{Text: "stored"}); err != nil {
					t.Fatal(err)
				}
			}
			g.arrive(d.ID, 1, http.StatusAccepted, "")
			g.arrive(d.ID, 121, http.StatusAccepted, "")
			o := g.outcome(d.ID)
			if diff := cmp.Diff(upTo(121), got); diff != "" {
				t.Errorf("the adapter got (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(upTo(121), o.Consumed); diff != "" {
				t.Errorf("consumed (-want +got):\n%s", diff)
			}
			var pulls []string
			for _, r := range g.tries(d.ID, "arrivals") {
				_, query, _ := strings.Cut(r.Path, "?")
				pulls = append(pulls, query)
			}
			if name == "well" {
				if diff := cmp.Diff([]string{"after=1", "after=51", "after=101"}, pulls); diff != "" {
					t.Errorf("pulls (-want +got):\n%s", diff)
				}
			} else if want := 3 + len(slices.DeleteFunc(slices.Clone(faults), func(f testhost.KeikiFault) bool { return f == testhost.KeikiFault{} })); len(pulls) != want {
				t.Errorf("pulls %q, want %d", pulls, want)
			}
		})
	}
}

// TestFaultF3LostForGood: a gap that pulling does not fill is passed over after five seconds.
func TestFaultF3LostForGood(t *testing.T) {
	t.Parallel()
	var got []int64
	g := newRig(t, counter(4, &got))
	const patience = 1500 * time.Millisecond
	if keiki.GapPatience != 5*time.Second {
		t.Errorf("a gap is waited for for %v", keiki.GapPatience)
	}
	keiki.SetGapPatience(g.handler, patience)
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	began := time.Now()
	g.arrive(d.ID, 2, http.StatusAccepted, "")
	g.arrive(d.ID, 1, http.StatusAccepted, "") // in time
	g.arrive(d.ID, 4, http.StatusAccepted, "")
	g.arrive(d.ID, 4, http.StatusOK, "")
	o := g.outcome(d.ID)
	if took := time.Since(began); took < patience-10*time.Millisecond || took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
	if diff := cmp.Diff([]int64{1, 2, 4}, got); diff != "" {
		t.Errorf("the adapter got (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{1, 2, 4}, o.Consumed); diff != "" {
		t.Errorf("consumed (-want +got):\n%s", diff)
	}
}

// TestTooManyArrivals: those that nobody takes are bounded, and the platform is told to come again.
func TestTooManyArrivals(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	g := newRig(t, asksLate{func(*adapters.Turn, adapters.Writer) error { <-end; return nil }})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	taken := 0
	for seq := int64(1); seq <= 300; seq++ {
		a, err := g.platform.PushArrival(t.Context(), d.ID, seq, testhost.KeikiMessage{Text: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if a.Status == http.StatusServiceUnavailable {
			if g.refusal(a) != "too_many_arrivals" || a.Header.Get("Retry-After") == "" {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			break
		}
		taken++
	}
	if taken != 256 {
		t.Errorf("%d were taken", taken)
	}
	close(end)
	if o := g.outcome(d.ID); o.Status != "completed" || o.Consumed != nil || len(o.Requeued) < 256 {
		t.Errorf("%s, %d consumed, %d back", o.Status, len(o.Consumed), len(o.Requeued))
	}
}

// TestArrivalsAtTheEnd: arrivals that come at any moment around a turn's end are reported as consumed only
// if the adapter had them, and none is lost: the platform checks both.
func TestArrivalsAtTheEnd(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	had := map[string][]string{}
	g := newRig(t, turnTaker{func(ctx context.Context, turn *adapters.Turn, in <-chan adapters.Arrival, w adapters.Writer) error {
		for range 3 {
			select {
			case a := <-in:
				mu.Lock()
				had[turn.ID] = append(had[turn.ID], a.Messages[0].Text)
				mu.Unlock()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return w.Text("three are enough")
	}})
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			var pushes sync.WaitGroup
			for i := range 6 {
				pushes.Go(func() {
					if _, err := g.platform.Arrive(t.Context(), d.ID, testhost.KeikiMessage{Text: fmt.Sprintf("message %d", i)}); err != nil {
						t.Error(err)
					}
				})
			}
			pushes.Wait()
			o := g.outcome(d.ID)
			if o.Status != "completed" || len(o.Consumed) != 3 {
				t.Errorf("outcome %+v", o)
			}
			mu.Lock()
			defer mu.Unlock()
			everything := append(texts(g.platform.Pending("", d.ConversationID)), had[d.ID]...)
			slices.Sort(everything)
			if want := []string{"message 0", "message 1", "message 2", "message 3", "message 4", "message 5"}; !slices.Equal(everything, want) {
				t.Errorf("the adapter had %q, and back in the queue are %q", had[d.ID], texts(g.platform.Pending("", d.ConversationID)))
			}
		})
	}
	all.Wait()
}

// turnTaker is taker with the turn.
type turnTaker struct {
	run func(ctx context.Context, turn *adapters.Turn, in <-chan adapters.Arrival, w adapters.Writer) error
}

func (turnTaker) TakesArrivals(*adapters.Turn) bool { return true }

func (a turnTaker) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	in, err := w.Arrivals()
	if err != nil {
		return err
	}
	return a.run(ctx, turn, in, w)
}
