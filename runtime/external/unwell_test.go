package external_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// A moody store does not settle turns while it is unwell. Then each call takes a second, and fails.
type moodyStore struct {
	ledger.Store
	unwell chan struct{} // closed once it is well
	tries  int           // of one turn
}

func (s *moodyStore) Settle(ctx context.Context, r ledger.Settlement) (ledger.Turn, error) {
	select {
	case <-s.unwell:
		return s.Store.Settle(ctx, r)
	default:
	}
	s.tries++
	select {
	case <-time.After(time.Second):
		return ledger.Turn{}, errors.New("the disk is full")
	case <-ctx.Done():
		return ledger.Turn{}, ctx.Err()
	}
}

// An outcome that the ledger does not take waits until it does, however long that is, and what is told of the
// turn meanwhile is true.
func TestAnOutcomeWaitsForTheLedger(t *testing.T) {
	t.Parallel()
	store := newGatedStore(nil)
	g := newRig(t, func(s *setup) { s.conf.Store = &retried{gatedStore: store, failing: make(chan struct{})} })
	failing := g.store.(*retried)
	q := aRequest("turn:1", goodScript)
	first := g.watch(q)
	eventually(t, "the outcome waits", func() bool { return strings.Contains(g.logs.String(), "waits for the ledger") })
	joiner := g.watch(q)
	if s := g.look("turn:1"); s.State != "settling" || s.Status != "" {
		t.Errorf("the turn is %+v", s)
	}
	if w := g.cancel("turn:1"); w != "pending" {
		t.Errorf("cancellation %s", w)
	}
	behind := g.watch(aRequest("turn:2", goodScript))
	for _, s := range []*seen{first, joiner} {
		if text := s.String(); strings.Contains(text, "turn-outcome") {
			t.Errorf("an outcome has left that is not committed\n%s", text)
		}
	}
	close(failing.failing)
	r := (<-first.done).ends("completed/completed")
	if other := <-joiner.done; other.body != r.body {
		t.Errorf("who joined has\n%s\nand not\n%s", other.body, r.body)
	}
	(<-behind.done).ends("completed/completed")
	if again := g.post(q); again.body != r.body {
		t.Errorf("the replay is\n%s\nand not\n%s", again.body, r.body)
	}
	if o := g.outcome("turn:1"); o.Status != wire.StatusCompleted || o.BudgetCharged.MaxTokens != 3 {
		t.Errorf("outcome %+v", o)
	}
	if !strings.Contains(g.logs.String(), "after all") {
		t.Error("the log does not say that it was committed after all")
	}
}

// A retried store fails to settle until failing is closed.
type retried struct {
	*gatedStore
	failing chan struct{}
}

func (s *retried) Settle(ctx context.Context, r ledger.Settlement) (ledger.Turn, error) {
	select {
	case <-s.failing:
		return s.gatedStore.Settle(ctx, r)
	default:
		return ledger.Turn{}, errors.New("the disk is full")
	}
}

// It waits for minutes, less and less often, but not beyond the end of a drain. Then its end was not seen.
func TestHowLongAnOutcomeWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		well  time.Duration // when the ledger is well again, 0 for never
		drain time.Duration // when the drain ends
		ends  string
	}{
		"well after a while":     {10 * time.Minute, time.Hour, "completed/completed"},
		"well before the drain":  {30 * time.Second, time.Minute, "completed/completed"},
		"not before the drain":   {0, time.Minute, ""},
		"drained without a wait": {0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &moodyStore{Store: ledger.NewMemory(ledger.MemoryConfig{}), unwell: make(chan struct{})}
				engine, err := runtime.New(runtime.Config{Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				h, err := external.New(external.Config{Engine: engine, Store: store, OperatorToken: operatorToken, Logger: quiet, Adapter: echo.New()})
				if err != nil {
					t.Fatal(err)
				}
				serveIn(t, h, "PUT", "profiles/"+profileRef, aProfile())
				serveIn(t, h, "PUT", "bindings/"+bindingRef, aBinding().with("expires/at", "9000-01-01T00:00:00Z").sealed())
				q := aRequest("turn:1", "x").with("binding/digest", aBinding().with("expires/at", "9000-01-01T00:00:00Z").sealed()["binding/digest"])
				answered := make(chan reply, 1)
				go func() {
					defer func() { // a stream that breaks off
						if recover() != nil {
							answered <- reply{t: t}
						}
					}()
					answered <- serveIn(t, h, "POST", "turns", q)
				}()
				synctest.Wait()
				if c.well > 0 {
					time.AfterFunc(c.well, func() { close(store.unwell) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.drain)
				defer cancel()
				began := time.Now()
				_ = h.Drain(ctx)
				if took := time.Since(began); took > c.drain+10*time.Second {
					t.Errorf("the drain took %v", took)
				}
				r := <-answered
				if c.ends != "" {
					r.ends(c.ends)
				} else if r.body != "" {
					t.Errorf("the stream is\n%s", r.body)
				}
				if most := int((c.well + c.drain) / time.Second); c.ends != "" && (store.tries < 3 || store.tries > most) {
					t.Errorf("the ledger was asked %d times", store.tries)
				}
				if c.ends == "" {
					// Another process finds out; who asks is told so.
					serveIn(t, h, "POST", "turns", q).problem(503)
					serveIn(t, h, "POST", "turns/turn:1/cancel", nil).problem(503)
				}
				engine.WaitAdapters()
			})
		})
	}
}
