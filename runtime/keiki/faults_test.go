package keiki_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	goruntime "runtime"
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
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
	"github.com/backline-dev/backline/runtime/secret"
)

// yes is a platform that takes everything.
var yes = roundTripper(func(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"ok":true}`)), Header: http.Header{}, Request: r}, nil
})

// TestFaultE1E2E3Signatures: each header of testdata/keiki-signatures.json has the answer given there, from
// a server of its own, with one secret and with several; a turn runs only after a 202.
func TestFaultE1E2E3Signatures(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for name, secrets := range map[string]keiki.Secrets{
		"one":       {Any: []secret.Text{v.Secret}},
		"two":       {Any: []secret.Text{v.Secret, v.Retired}},
		"reversed":  {Any: []secret.Text{v.Retired, v.Secret}},
		"by agent":  {Agents: map[string][]secret.Text{"agent-1": {v.Secret}, "agent-2": {v.Retired}}},
		"not yours": {Agents: map[string][]secret.Text{"agent-1": {v.Retired}, "agent-2": {v.Secret}}},
	} {
		for i, c := range v.Cases {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				t.Parallel()
				g := newRig(t, says(), func(c *rigConfig) {
					c.push.Secrets = secrets
					c.push.Now = func() time.Time { return v.now }
					c.push.Transport = yes
				})
				header := http.Header{"Keiki-Signature": nil}
				if c.Header != nil {
					header.Set("Keiki-Signature", *c.Header)
				}
				a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-1", Token: "ht_x", Body: v.body, Header: header})
				if err != nil {
					t.Fatal(err)
				}
				code := g.refusal(a)
				want := c.Answer
				if name == "not yours" && strings.HasPrefix(want, "202") && !strings.Contains(want, "second v1") { // the first v1 is of the retired one
					want = "401 signature_mismatch"
				}
				if fmt.Sprint(a.Status) != want[:3] {
					t.Errorf("%d %s, want %s", a.Status, a.Body, want)
				}
				if words := strings.Fields(want); len(words) > 1 && strings.HasPrefix(words[1], "signature_") && words[1] != code {
					t.Errorf("code %q, want %s", code, want)
				}
				g.stop(t.Context())
				if ran := g.engine.Stats().Total; (ran == 1) != (a.Status == http.StatusAccepted) || ran > 1 {
					t.Errorf("%d turns ran after %d", ran, a.Status)
				}
			})
		}
	}
}

// TestFaultE2Tolerance: exactly at the tolerance is inside, before and after, whatever it is.
func TestFaultE2Tolerance(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for _, tolerance := range []time.Duration{0, 10 * time.Second, 300 * time.Second} {
		g := newRig(t, says(), func(c *rigConfig) {
			c.push.Tolerance = tolerance
			c.push.Now = func() time.Time { return now }
			c.push.Transport = yes
		})
		limit := tolerance
		if tolerance == 0 {
			limit = keiki.DefaultTolerance
		}
		for i, off := range []time.Duration{-limit - time.Second, -limit, -limit + time.Second, limit - time.Second, limit, limit + time.Second} {
			q := newRequest(g, fmt.Sprintf("turn-%d", i))
			q.at = now.Add(off)
			a := g.send(q)
			want, code := http.StatusAccepted, ""
			if off.Abs() > limit {
				want, code = http.StatusUnauthorized, "signature_expired"
			}
			if a.Status != want || g.refusal(a) != code {
				t.Errorf("tolerance %v, %v off: %d %s", tolerance, off, a.Status, a.Body)
			}
		}
	}
}

// TestFaultE3SeveralHeaders: signatures may also come in several fields of the header.
func TestFaultE3SeveralHeaders(t *testing.T) {
	t.Parallel()
	g := newRig(t, says(), func(c *rigConfig) { c.push.Transport = yes })
	q := newRequest(g, "turn-1")
	element := strings.Split(testhost.KeikiSignature(q.at, q.body(), otherSecret, testSecret), ",")
	a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-1", Body: q.body(), Header: http.Header{"Keiki-Signature": element}})
	if err != nil || a.Status != http.StatusAccepted {
		t.Errorf("%v %d %s", err, a.Status, a.Body)
	}
}

// crowd sends one turn n times at once: those who come wait until all are there. It returns the turn's id
// and how often it was answered 202; all other answers must be duplicates.
func crowd(t *testing.T, g *rig, n int) (id string, taken int) {
	t.Helper()
	id = "turn-of-a-crowd"
	var first, rest atomic.Int64
	count := func(a testhost.KeikiAnswer) {
		switch {
		case a.Status == http.StatusAccepted && string(a.Body) == `{"accepted":true,"turnId":"`+id+`"}`:
			first.Add(1)
		case a.Status == http.StatusOK && string(a.Body) == `{"accepted":true,"turnId":"`+id+`","duplicate":true}`:
			rest.Add(1)
		default:
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	var all sync.WaitGroup
	all.Go(func() {
		d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{ID: id, Text: "hi"})
		if err != nil {
			t.Error(err)
			return
		}
		count(d.Answer)
	})
	for range n - 1 {
		all.Go(func() {
			for t.Context().Err() == nil {
				a, err := g.platform.Redispatch(t.Context(), id)
				if err == nil {
					count(a)
					return
				}
				goruntime.Gosched() // the turn is not made yet
			}
		})
	}
	all.Wait()
	if first.Load()+rest.Load() != int64(n) {
		t.Errorf("%d of %d were answered", first.Load()+rest.Load(), n)
	}
	return id, int(first.Load())
}

// gate lets requests in once n are there.
func gate(n int) func(http.Handler) http.Handler {
	var here atomic.Int64
	open := make(chan struct{})
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if here.Add(1) == int64(n) {
				close(open)
			}
			<-open
			h.ServeHTTP(w, r)
		})
	}
}

// slowClaims takes its time, so that those who come at once meet.
type slowClaims struct{ ledger.Claims }

func (s slowClaims) Claim(ctx context.Context, r ledger.ClaimRequest) (ledger.Claimed, error) {
	time.Sleep(20 * time.Millisecond) // the store's, not a wait for anything
	return s.Claims.Claim(ctx, r)
}

// TestFaultE5AtOnce: one turn 50 times at once, and again after its end: one 202, one run, one set of
// messages, one completion.
func TestFaultE5AtOnce(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]ledger.Claims{
		"in memory":    nil,
		"slow":         slowClaims{ledger.NewMemory(ledger.MemoryConfig{})},
		"in a file":    openStore(t, filepath.Join(t.TempDir(), "turns.db")),
		"two handlers": ledger.NewMemory(ledger.MemoryConfig{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			adapter := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				runs.Add(1)
				return w.Text("one\n\ntwo")
			})
			var other *rig
			if name == "two handlers" {
				other = newRig(t, adapter, func(c *rigConfig) { c.push.Claims = claims })
			}
			g := newRig(t, adapter, func(c *rigConfig) {
				c.push.Claims = claims
				enter := gate(50)
				c.wrap = enter
				if other != nil {
					var n atomic.Int64
					c.wrap = func(h http.Handler) http.Handler {
						return enter(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if n.Add(1)%2 == 0 {
								other.handler.ServeHTTP(w, r)
								return
							}
							h.ServeHTTP(w, r)
						}))
					}
				}
			})
			id, taken := crowd(t, g, 50)
			if taken != 1 {
				t.Errorf("it was taken %d times", taken)
			}
			if o := g.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			for range 3 {
				if a, err := g.platform.Redispatch(t.Context(), id); err != nil || a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"duplicate":true`) {
					t.Errorf("after its end: %v %d %s", err, a.Status, a.Body)
				}
			}
			if diff := cmp.Diff([]string{"one", "two"}, g.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if n := g.count(id, "complete"); n != 1 || runs.Load() != 1 {
				t.Errorf("%d completions, %d runs", n, runs.Load())
			}
		})
	}
}

// count counts a turn's requests on a route.
func (g *rig) count(id, route string) int {
	n := 0
	for _, r := range g.platform.Requests(id) {
		if r.Route == route {
			n++
		}
	}
	return n
}

func openStore(t *testing.T, path string) ledger.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s
}

// TestFaultE5Restart: what has run before a restart does not run after it: not what ended, well or not, nor
// what was running when the process died.
func TestFaultE5Restart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "turns.db")
	store := openStore(t, path)
	var runs atomic.Int64
	g := newRig(t, adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		runs.Add(1)
		switch turn.Message {
		case "fail":
			return errors.New("on purpose")
		case "wait":
			<-ctx.Done()
			return ctx.Err()
		}
		return w.Text("done")
	}), func(c *rigConfig) { c.push.Claims = store; c.runtime.MaxTurns = 3 })
	good := g.dispatch(testhost.KeikiTurn{Text: "hi"}).ID
	bad := g.dispatch(testhost.KeikiTurn{Text: "fail"}).ID
	gone := g.dispatch(testhost.KeikiTurn{Text: "wait"}).ID
	g.outcome(good)
	g.outcome(bad)
	if a, err := g.platform.Cancel(t.Context(), gone); err != nil || a.Status != http.StatusOK {
		t.Fatal(err, a)
	}
	g.until("all have ended", func() bool { return g.engine.Stats().Active == 0 })
	// As a process leaves it that died in the middle of a turn.
	if _, err := store.Claim(t.Context(), ledger.ClaimRequest{Agent: "agent-1", Turn: "turn-lost", At: time.Now(), Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	g.stop(t.Context())
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	store = openStore(t, path)
	if found, err := store.Recover(t.Context(), time.Now(), nil); err != nil || found.Lost != 1 {
		t.Fatalf("recovered %+v, %v", found, err)
	}
	g.restart(func(c *rigConfig) { c.push.Claims = store })
	before := runs.Load()
	for _, id := range []string{good, bad, gone} {
		a, err := g.platform.Redispatch(t.Context(), id)
		if err != nil || a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"duplicate":true`) {
			t.Errorf("%s: %v %d %s", id, err, a.Status, a.Body)
		}
	}
	if a := g.send(newRequest(g, "turn-lost")); a.Status != http.StatusOK {
		t.Errorf("a turn that was running: %d %s", a.Status, a.Body)
	}
	if runs.Load() != before {
		t.Error("something ran again")
	}
	next := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(next.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// brokenClaims is a store that is out of order.
type brokenClaims struct {
	ledger.Claims
	claim, end atomic.Bool
}

var errDisk = errors.New("the disk is on fire")

func (b *brokenClaims) Claim(ctx context.Context, r ledger.ClaimRequest) (ledger.Claimed, error) {
	if b.claim.Load() {
		return ledger.Claimed{}, errDisk
	}
	return b.Claims.Claim(ctx, r)
}

func (b *brokenClaims) EndClaim(ctx context.Context, agent ledger.AgentID, turn ledger.TurnRef, at time.Time) error {
	if b.end.Load() {
		return errDisk
	}
	return b.Claims.EndClaim(ctx, agent, turn, at)
}

// TestStoreOutOfOrder: a turn that cannot be claimed is refused with 503 and not remembered; one whose end
// cannot be recorded has ended all the same.
func TestStoreOutOfOrder(t *testing.T) {
	t.Parallel()
	store := &brokenClaims{Claims: ledger.NewMemory(ledger.MemoryConfig{})}
	store.claim.Store(true)
	store.end.Store(true)
	g := newRig(t, says("hi"), func(c *rigConfig) { c.push.Claims = store })
	d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{ID: "turn-1", Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Answer; a.Status != http.StatusServiceUnavailable || g.refusal(a) != "store_unavailable" || a.Header.Get("Retry-After") == "" || strings.Contains(string(a.Body), "fire") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	store.claim.Store(false)
	d = g.dispatch(testhost.KeikiTurn{ID: "turn-2", Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	g.until("it has ended", func() bool { return g.engine.Stats().Active == 0 })
	if a, err := g.platform.Redispatch(t.Context(), "turn-1"); err != nil || a.Status != http.StatusAccepted {
		t.Errorf("the first one again: %v %d %s", err, a.Status, a.Body)
	}
	if !strings.Contains(g.log.String(), "fire") {
		t.Errorf("the log does not say what is wrong with the store:\n%s", g.log)
	}
}

// heldClaims is a store whose first answer waits, and may be an error.
type heldClaims struct {
	ledger.Claims
	asked, answer chan struct{}
	first         atomic.Bool
	err           error
	requests      chan ledger.ClaimRequest
}

func newHeldClaims(err error) *heldClaims {
	return &heldClaims{
		Claims: ledger.NewMemory(ledger.MemoryConfig{}), asked: make(chan struct{}), answer: make(chan struct{}), err: err,
		requests: make(chan ledger.ClaimRequest, 100),
	}
}

func (h *heldClaims) Claim(ctx context.Context, r ledger.ClaimRequest) (ledger.Claimed, error) {
	h.requests <- r
	if h.first.CompareAndSwap(false, true) {
		close(h.asked)
		<-h.answer
		if h.err != nil {
			return ledger.Claimed{}, h.err
		}
	}
	return h.Claims.Claim(ctx, r)
}

// TestWhileATurnIsClaimed: what comes for a turn before it is known whether it runs waits for that: a
// repeat is a duplicate or takes the turn's place, a cancellation ends it.
func TestWhileATurnIsClaimed(t *testing.T) {
	t.Parallel()
	for _, works := range []bool{true, false} {
		var fails error
		if !works {
			fails = errDisk
		}
		store := newHeldClaims(fails)
		ran := make(chan struct{}, 10)
		g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			ran <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}), func(c *rigConfig) { c.push.Claims = store })
		var all sync.WaitGroup
		all.Go(func() {
			d, err := g.platform.Dispatch(t.Context(), testhost.KeikiTurn{ID: "turn-1", Text: "hi"})
			if want := map[bool]int{true: 202, false: 503}[works]; err != nil || d.Answer.Status != want {
				t.Errorf("the first: %v %+v, want %d", err, d.Answer, want)
			}
		})
		<-store.asked
		all.Go(func() {
			a, err := g.platform.Redispatch(t.Context(), "turn-1")
			if want := map[bool]int{true: 200, false: 202}[works]; err != nil || a.Status != want {
				t.Errorf("the second: %v %+v, want %d", err, a, want)
			}
		})
		if works {
			all.Go(func() {
				if a, err := g.platform.Cancel(t.Context(), "turn-1"); err != nil || a.Status != 200 || !strings.Contains(string(a.Body), `"cancelled":true`) {
					t.Errorf("the cancellation: %v %d %s", err, a.Status, a.Body)
				}
			})
		}
		close(store.answer)
		all.Wait()
		if !works {
			<-ran
			g.cancel("turn-1")
		}
		g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
		if n := len(g.platform.Requests("turn-1")); n != 0 {
			t.Errorf("%d requests", n)
		}
	}
}

// TestHowLongATurnIsRemembered: for the longest that a turn may take and an hour, or until an hour after its
// own deadline, if that is later.
func TestHowLongATurnIsRemembered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit, timeout, longest time.Duration
	}{
		{0, time.Minute, 10 * time.Minute},
		{30 * time.Minute, time.Minute, 30 * time.Minute},
		{0, 3 * time.Hour, 3 * time.Hour},
	} {
		store := newHeldClaims(nil)
		close(store.answer)
		g := newRig(t, says(), func(c *rigConfig) { c.push.Claims = store; c.runtime.TurnTimeout = test.limit })
		d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: test.timeout})
		r := <-store.requests
		if r.Agent != "agent-1" || string(r.Turn) != d.ID || r.Again {
			t.Errorf("%+v", r)
		}
		if off := r.Expires.Sub(r.At) - test.longest - time.Hour; off.Abs() > 10*time.Second {
			t.Errorf("%+v: it is remembered for %v", test, r.Expires.Sub(r.At))
		}
		g.outcome(d.ID)
	}
}

type requestID struct{}

// TestFaultB4OutlivesTheRequest: after its 202 a turn goes on without the request that brought it, with the
// values of that request's context; the drain waits for it.
func TestFaultB4OutlivesTheRequest(t *testing.T) {
	t.Parallel()
	request := make(chan context.Context, 1)
	run := make(chan struct{})
	g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		<-run
		if ctx.Err() != nil {
			t.Errorf("the turn's context is over: %v", context.Cause(ctx))
		}
		if got := ctx.Value(requestID{}); got != "trace-1" {
			t.Errorf("the context has lost its value: %v", got)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the context has no deadline")
		}
		return w.Text("here it is")
	}), func(c *rigConfig) {
		c.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r = r.WithContext(context.WithValue(r.Context(), requestID{}, "trace-1"))
				select {
				case request <- r.Context():
				default:
				}
				h.ServeHTTP(w, r)
			})
		}
		// Its connection ends with the answer.
		c.platform.Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	<-(<-request).Done()
	drained := make(chan error, 1)
	go func() { drained <- g.handler.Drain(t.Context()) }()
	g.until("it drains", g.engine.Draining)
	select {
	case err := <-drained:
		t.Errorf("the drain did not wait: %v", err)
	default:
	}
	close(run)
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if o := g.outcome(d.ID); o.Status != "completed" || g.count(d.ID, "complete") != 1 {
		t.Errorf("outcome %+v after %d completions", o, g.count(d.ID, "complete"))
	}
	if diff := cmp.Diff([]string{"here it is"}, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// rascal is an error whose text panics.
type rascal struct{}

func (rascal) Error() string { panic("hidden-value of an error") }

// crasher is an adapter that ends as its message says.
type crasher struct{}

func (c crasher) TakesArrivals(turn *adapters.Turn) bool {
	if turn.Message == "in TakesArrivals" {
		panic("hidden-value in TakesArrivals")
	}
	return true
}

func (c crasher) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	switch turn.Message {
	case "at once":
		panic("hidden-value at once")
	case "after three":
		for i := range 3 {
			if err := w.Text(fmt.Sprintf("part %d\n\n", i)); err != nil {
				return err
			}
		}
		panic("hidden-value after three")
	case "taking an arrival":
		in, err := w.Arrivals()
		if err != nil {
			return err
		}
		select {
		case <-in:
			panic("hidden-value of an arrival")
		case <-ctx.Done():
			return ctx.Err()
		}
	case "nil":
		panic(nil) //nolint:govet // on purpose
	case "an error that panics":
		return rascal{}
	case "Goexit":
		goruntime.Goexit()
	case "ErrAbortHandler":
		panic(http.ErrAbortHandler)
	}
	return w.Text("well")
}

// TestFaultB5Panics: adapters that panic or end their goroutine, 100 at a time beside healthy turns.
func TestFaultB5Panics(t *testing.T) {
	kinds := []string{"at once", "after three", "taking an arrival", "nil", "an error that panics", "Goexit", "ErrAbortHandler", "in TakesArrivals", "healthy"}
	const each = 100
	g := newRig(t, crasher{}, func(c *rigConfig) { c.runtime.MaxTurns = len(kinds) * each })
	var all sync.WaitGroup
	for _, kind := range kinds {
		for i := range each {
			all.Go(func() {
				conversation := fmt.Sprintf("%s %d", kind, i)
				d := g.dispatch(testhost.KeikiTurn{Text: kind, ConversationID: conversation})
				if kind == "taking an arrival" {
					if a, err := g.platform.Arrive(t.Context(), d.ID, testhost.KeikiMessage{Text: "more"}); err != nil || !a.Answer.Accepted() {
						t.Errorf("%v %+v", err, a)
					}
				}
				o := g.outcome(d.ID)
				texts := strings.Join(g.platform.Texts(d.ID), "|")
				switch kind {
				case "healthy", "in TakesArrivals": // that one only takes none
					if o.Status != "completed" || texts != "well" {
						t.Errorf("%s: %+v, messages %s", kind, o, texts)
					}
					return
				case "after three":
					if texts != "part 0|part 1|part 2" {
						t.Errorf("%s: messages %s", kind, texts)
					}
				default:
					if texts != "" {
						t.Errorf("%s: messages %s", kind, texts)
					}
				}
				if o.Status != "failed" || !strings.HasPrefix(o.Error, "The agent failed (reference ") || o.Consumed != nil {
					t.Errorf("%s: %+v", kind, o)
				}
				if n := g.count(d.ID, "complete"); n != 1 {
					t.Errorf("%s: %d completions", kind, n)
				}
			})
		}
	}
	all.Wait()
	g.until("all turns are over", func() bool { return g.engine.Stats().Active == 0 })
	want := each * (len(kinds) - 2)
	g.until("the log has all", func() bool { return strings.Count(g.log.String(), `"msg":"turn"`) == each*len(kinds) })
	stacks := 0
	for line := range strings.Lines(g.log.String()) {
		var entry struct{ Stack, Cause, Level string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if entry.Stack != "" {
			stacks++
		}
		if entry.Cause == string(adapters.CausePanic) && (entry.Stack == "" || entry.Level != "ERROR") {
			t.Errorf("a line about a panic: %s", line)
		}
	}
	if stacks != want {
		t.Errorf("%d stacks in the log, want %d", stacks, want)
	}
	if strings.Contains(g.log.String(), "hidden-value") {
		t.Error("the log has the value of a panic")
	}
	// Sessions and slots are free.
	for _, kind := range kinds {
		d := g.dispatch(testhost.KeikiTurn{Text: "healthy", ConversationID: kind + " 0"})
		if o := g.outcome(d.ID); o.Status != "completed" {
			t.Errorf("after %s: %+v", kind, o)
		}
	}
}

// TestHooksThatPanic harm nobody.
func TestHooksThatPanic(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("hi"), func(c *rigConfig) {
		c.runtime.Hooks = []runtime.Hooks{{
			TurnStart: func(context.Context, runtime.TurnInfo) context.Context { panic("start") },
			TurnEnd:   func(context.Context, runtime.TurnInfo, *runtime.Outcome) { panic("end") },
			Refuse:    func(context.Context, adapters.Protocol, string) { panic("refuse") },
		}}
	})
	q := newRequest(g, "turn-1")
	q.secret = otherSecret
	if a := g.send(q); a.Status != http.StatusUnauthorized {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestFaultG4Keys: the keys of a turn's messages are those of its id, whatever the text, the agent and the
// server, so that a turn that runs anew sends them under the same ones.
func TestFaultG4Keys(t *testing.T) {
	t.Parallel()
	keys := func(g *rig, id string) (all []string) {
		for _, d := range g.platform.Deliveries(id) {
			all = append(all, d.Key)
		}
		return all
	}
	var got [2][]string
	for i, text := range []string{"one\n\ntwo\n\nthree", "four\n\nfive\n\nsix"} {
		g := newRig(t, says(text))
		d := g.dispatch(testhost.KeikiTurn{ID: "turn-1", Text: "hi"})
		g.outcome(d.ID)
		got[i] = keys(g, d.ID)
		other := g.dispatch(testhost.KeikiTurn{ID: "turn-2 – ключ \u2028", Text: "hi", Header: http.Header{"Keiki-Turn-Id": {"turn-2 – ключ \u2028"}}})
		g.outcome(other.ID)
		for n, key := range keys(g, other.ID) {
			if key == got[i][n] || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("key %q of the turn %q", key, other.ID)
			}
		}
	}
	// SHA-256 of "turn-1", by openssl.
	want := []string{"bl1-" + turn1Sum + "-0", "bl1-" + turn1Sum + "-1", "bl1-" + turn1Sum + "-2"}
	for i := range got {
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
	}
}

const turn1Sum = "974cad2dd603827b06e9e6affa3de03d"
