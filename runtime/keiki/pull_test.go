package keiki_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime/keiki"
)

// TestAnswersToPulls: what ends the turn, and what leaves the gap as it is.
func TestAnswersToPulls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault testhost.KeikiFault
		ends  adapters.Cause
	}{
		"404 html":      {testhost.KeikiFault{Status: 404, Body: "<html>"}, ""},
		"404 not found": {testhost.KeikiFault{Status: 404, Body: errorBody("not_found")}, ""},
		"410":           {testhost.KeikiFault{Status: 410, Body: `{}`}, ""},
		"405":           {testhost.KeikiFault{Status: 405, Body: `{}`}, ""},
		"400":           {testhost.KeikiFault{Status: 400, Body: errorBody("invalid_request")}, ""},
		"409":           {testhost.KeikiFault{Status: 409, Body: errorBody("busy")}, ""},
		"500":           {testhost.KeikiFault{Status: 500, Body: "<html>"}, ""},
		"429":           {testhost.KeikiFault{Status: 429, RetryAfter: "3600"}, ""},
		"dropped":       {testhost.KeikiFault{Drop: true}, ""},
		"redirect":      {testhost.KeikiFault{Redirect: "http://127.0.0.1:1/"}, ""},
		"html":          {testhost.KeikiFault{Body: "<html>"}, ""},
		"null":          {testhost.KeikiFault{Body: "null"}, ""},
		"an empty page": {testhost.KeikiFault{Body: `{"arrivals":[]}`}, ""},
		"sequence 0":    {testhost.KeikiFault{Body: `{"arrivals":[{"sequence":0,"messages":[]}]}`}, ""},
		"another gap":   {testhost.KeikiFault{Body: `{"arrivals":[{"sequence":3,"messages":[]},{"sequence":2,"messages":[]}]}`}, ""},
		"turn_closed":   {testhost.KeikiFault{Status: 409, Body: errorBody("turn_closed")}, adapters.CauseStopped},
		"404 closed":    {testhost.KeikiFault{Status: 404, Body: errorBody("turn_closed")}, adapters.CauseStopped},
		"401":           {testhost.KeikiFault{Status: 401, Body: errorBody("invalid_token")}, adapters.CauseHostGone},
		"403":           {testhost.KeikiFault{Status: 403, Body: errorBody("invalid_token")}, adapters.CauseHostGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended, goOn := make(chan adapters.Cause, 1), make(chan struct{})
			g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
				select {
				case <-goOn:
					return w.Text("done")
				case a := <-in:
					t.Errorf("the adapter was given arrival %d", a.Sequence)
					return nil
				case <-ctx.Done():
					ended <- adapters.CauseOf(ctx)
					return ctx.Err()
				}
			}}, plays("arrivals", slices.Repeat([]testhost.KeikiFault{test.fault}, 1000)...))
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			g.arrive(d.ID, 2, http.StatusAccepted, "")
			if test.ends != "" {
				if cause := receive(t, "the end", ended); cause != test.ends {
					t.Errorf("the adapter was cancelled because of %v, want %v", cause, test.ends)
				}
				g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
				if n := len(g.tries(d.ID, "messages")) + len(g.tries(d.ID, "complete")); n > 0 {
					t.Errorf("%d messages or completions", n)
				}
				return
			}
			g.until("it is pulled again", func() bool { return len(g.tries(d.ID, "arrivals")) > 2 })
			close(goOn)
			o := g.outcome(d.ID)
			if o.Status != "completed" || o.Consumed != nil {
				t.Errorf("outcome %+v", o)
			}
			if diff := cmp.Diff([]string{"done"}, g.platform.Texts(d.ID)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			for _, r := range g.tries(d.ID, "arrivals") {
				if r.Path != "/api/v1/turns/"+d.ID+"/arrivals?after=0" || r.Auth != "turn_token" {
					t.Errorf("a pull of %s with a bearer of kind %q", r.Path, r.Auth)
				}
			}
		})
	}
}

// TestArrivalsInAnyOrder: pushed by several at once, twice, in any order, and some not at all, while pulls
// fail: the adapter has each once, in order, and there is one pull at a time.
func TestArrivalsInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			const last = 150
			var got []int64
			var pulling, most atomic.Int64
			faults := testhost.RandomFaults(seed, 10, 10, 10)
			g := newRig(t, counter(last, &got), func(c *rigConfig) {
				c.platform.Fault = func(r *http.Request, n int) testhost.KeikiFault {
					if r.Method != http.MethodGet {
						return testhost.KeikiFault{}
					}
					most.Store(max(most.Load(), pulling.Add(1)))
					return faults(r, n)
				}
				c.platform.OnRequest = func(r testhost.KeikiRequest) {
					if r.Route == "arrivals" {
						pulling.Add(-1)
					}
				}
			})
			keiki.SetGapPatience(g.handler, time.Minute) // on a machine that is busy the pushes take a while
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			random := rand.New(rand.NewPCG(seed, 1))
			var pushed []int64
			for _, seq := range upTo(last) {
				switch n := random.IntN(10); {
				case n == 0 && seq != last: // accepted once, and forgotten
					if err := g.platform.StoreArrival(d.ID, seq, testhost.KeikiMessage{Text: "stored"}); err != nil {
						t.Fatal(err)
					}
				case n < 4:
					pushed = append(pushed, seq, seq)
				default:
					pushed = append(pushed, seq)
				}
			}
			random.Shuffle(len(pushed), func(i, j int) { pushed[i], pushed[j] = pushed[j], pushed[i] })
			var all sync.WaitGroup
			for part := range slices.Chunk(pushed, len(pushed)/4+1) {
				all.Go(func() {
					for _, seq := range part {
						a, err := g.platform.PushArrival(t.Context(), d.ID, seq, testhost.KeikiMessage{Text: fmt.Sprint(seq)})
						if err != nil || a.Status/100 != 2 && a.Status != http.StatusConflict { // it may have ended with the last one
							t.Errorf("arrival %d: %v %d %s", seq, err, a.Status, a.Body)
						}
					}
				})
			}
			all.Wait()
			o := g.outcome(d.ID)
			if diff := cmp.Diff(upTo(last), got); diff != "" {
				t.Errorf("the adapter got (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(upTo(last), o.Consumed); diff != "" {
				t.Errorf("consumed (-want +got):\n%s", diff)
			}
			if n := most.Load(); n > 1 {
				t.Errorf("%d pulls at once", n)
			}
		})
	}
}

// TestPullsIntoAFullQueue: what is pulled while nobody takes any more is pulled again when there is room.
func TestPullsIntoAFullQueue(t *testing.T) {
	t.Parallel()
	const last = 400
	goOn := make(chan struct{})
	var got []int64
	g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		<-goOn
		return counter(last, &got).(taker).run(ctx, in, w)
	}})
	keiki.SetGapPatience(g.handler, time.Minute)
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	for _, seq := range upTo(last - 1) {
		if err := g.platform.StoreArrival(d.ID, seq, testhost.KeikiMessage{Text: "stored"}); err != nil {
			t.Fatal(err)
		}
	}
	g.arrive(d.ID, last, http.StatusAccepted, "")
	g.until("the queue is full", func() bool {
		pulls := g.tries(d.ID, "arrivals")
		return len(pulls) > 7 && pulls[len(pulls)-1].Path == pulls[len(pulls)-2].Path
	})
	g.arrive(d.ID, last+1, http.StatusServiceUnavailable, "too_many_arrivals")
	close(goOn)
	o := g.outcome(d.ID)
	if diff := cmp.Diff(upTo(last), got); diff != "" {
		t.Errorf("the adapter got (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(upTo(last), o.Consumed); diff != "" {
		t.Errorf("consumed (-want +got):\n%s", diff)
	}
}

// TestATurnTakesSoManyArrivals: and then no more, however fast the adapter is.
func TestATurnTakesSoManyArrivals(t *testing.T) {
	t.Parallel()
	const most = 10_000
	goOn := make(chan struct{})
	var got atomic.Int64
	g := newRig(t, taker{func(_ context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		for {
			select {
			case <-in:
				got.Add(1)
			case <-goOn:
				return w.Text("done")
			}
		}
	}})
	keiki.SetGapPatience(g.handler, 3*time.Second)
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	for _, seq := range upTo(most + 50) {
		if err := g.platform.StoreArrival(d.ID, seq, testhost.KeikiMessage{Text: "stored"}); err != nil {
			t.Fatal(err)
		}
	}
	g.arrive(d.ID, most+51, http.StatusAccepted, "")
	g.until("it has taken all that it takes", func() bool { return got.Load() > most })
	g.arrive(d.ID, most+52, http.StatusServiceUnavailable, "too_many_arrivals")
	close(goOn)
	// The one that was accepted first is the one beyond.
	if o := g.outcome(d.ID); o.Status != "completed" || len(o.Consumed) != most+1 || o.Consumed[most] != most+51 {
		t.Errorf("%s, %d consumed", o.Status, len(o.Consumed))
	}
}

// TestATurnThatEndsWhileItPulls ends at once.
func TestATurnThatEndsWhileItPulls(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testhost.KeikiFault{
		"in a pull":         {Delay: time.Minute},
		"between two pulls": {Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			g := newRig(t, taker{func(context.Context, <-chan adapters.Arrival, adapters.Writer) error {
				<-goOn
				return nil
			}}, plays("arrivals", slices.Repeat([]testhost.KeikiFault{fault}, 1000)...))
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			g.arrive(d.ID, 2, http.StatusAccepted, "")
			g.until("it pulls", func() bool { return len(g.tries(d.ID, "arrivals")) > 0 })
			began := time.Now()
			close(goOn)
			if o := g.outcome(d.ID); o.Status != "completed" || o.Consumed != nil {
				t.Errorf("outcome %+v", o)
			}
			g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("it ended after %v", took)
			}
			pulls := len(g.tries(d.ID, "arrivals"))
			g.handler.Wait()
			if n := len(g.tries(d.ID, "arrivals")); n > pulls {
				t.Errorf("%d pulls after the end", n-pulls)
			}
		})
	}
}
