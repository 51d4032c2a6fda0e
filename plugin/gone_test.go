package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// A provider is a stand-in that accepts requests and says nothing.
type provider struct {
	url         string
	open, total atomic.Int64
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{}
	h := mount(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p.total.Add(1)
		p.open.Add(1)
		defer p.open.Add(-1)
		<-r.Context().Done()
	}), nil)
	p.url = "http://" + h.addr
	return p
}

// adapter asks the provider, as an adapter does that has a model behind it.
func (p *provider) adapter(client *http.Client) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if turn.Message != "ask" {
			return w.Text("no need to ask")
		}
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := client.Do(q)
		if err != nil {
			return &adapters.Unavailable{Err: err}
		}
		return res.Body.Close()
	})
}

// openFiles counts this process's file descriptors.
func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("no list of open files here: %v", err)
	}
	return len(list)
}

// Fault B3: a host that goes away before the first token. Not parallel: it counts goroutines.
func TestFaultB3AHostThatGoesBeforeTheFirstToken(t *testing.T) {
	for name, shared := range map[string]int{"each its own session": 0, "half of them wait for one session": 100} {
		t.Run(name, func(t *testing.T) {
			const turns = 200
			files, routines := openFiles(t), goruntime.NumGoroutine()
			t.Run("", func(t *testing.T) { // so that all of it is cleaned up before the counts
				prov := startProvider(t)
				var e ends
				tr := &http.Transport{}
				t.Cleanup(tr.CloseIdleConnections)
				p, h := start(t, plugin.Config{Adapter: prov.adapter(&http.Client{Transport: tr}), Hooks: e.hooks()})
				replies := make([]*reply, turns)
				var wg sync.WaitGroup
				for i := range turns {
					wg.Go(func() {
						session := "shared"
						if i >= shared {
							session = numbered("s", i)
						}
						r, err := h.send(bytes.NewReader(request{session: session, turn: numbered("t", i), message: "ask"}.body()))
						if err != nil {
							t.Error(err)
							return
						}
						replies[i] = r
						if _, err := r.next(); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				asking := int64(turns)
				if shared > 0 {
					asking -= int64(shared) - 1
				}
				eventually(t, "the provider's part", func() bool { return prov.open.Load() == asking })
				if s := p.Stats(); s.Turns.Active != turns || s.Sessions.Waiting != max(shared-1, 0) {
					t.Errorf("%+v, want %d turns, %d of them waiting", s, turns, shared-1)
				}
				time.Sleep(100 * time.Millisecond) // as the fault prescribes
				went := time.Now()
				for _, r := range replies {
					if r != nil {
						r.close()
					}
				}
				eventually(t, "the end of the provider's requests", func() bool { return prov.open.Load() == 0 })
				if after := time.Since(went); after > time.Second*slowness {
					t.Errorf("the provider saw the last request end after %v", after)
				}
				quiet(t, p)
				// Of those that wait, one may run while the server has not noticed yet that its host is gone too.
				if n := prov.total.Load(); n != asking && shared == 0 {
					t.Errorf("the provider was asked %d times, want %d", n, asking)
				}
				for i := range turns {
					list := e.of(numbered("t", i))
					if len(list) != 1 || list[0].Cause != adapters.CauseHostGone || list[0].Status != "cancelled" {
						t.Fatalf("turn %d ended as %+v, want host-gone, once", i, list)
					}
				}
				if text := h.post(t, request{session: "shared", turn: "after"}).completed(t); text != "no need to ask" {
					t.Errorf("afterwards the session answers %q", text)
				}
			})
			eventually(t, "the end of all goroutines", func() bool { return goruntime.NumGoroutine() <= routines })
			eventually(t, "the end of all connections", func() bool { return openFiles(t) <= files })
		})
	}
}

// The host may go at any moment; over HTTP/2 its stream is reset while the connection stays.
func TestFaultB3TheAdapterIsCancelledWhateverItDoes(t *testing.T) {
	t.Parallel()
	for version := range versions {
		for name, busy := range map[string]func(ctx context.Context, w adapters.Writer){
			"waits": func(ctx context.Context, _ adapters.Writer) { <-ctx.Done() },
			"writes": func(_ context.Context, w adapters.Writer) {
				for w.Text("x") == nil {
				}
			},
			"writes slowly": func(_ context.Context, w adapters.Writer) {
				for w.Text("x") == nil {
					time.Sleep(time.Millisecond) // the adapter's work
				}
			},
			"says what it does": func(_ context.Context, w adapters.Writer) {
				for w.Status("x") == nil {
				}
			},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				var e ends
				began, causes := make(chan struct{}), make(chan adapters.Cause, 1)
				p := newPlugin(t, plugin.Config{Hooks: e.hooks(), Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
					close(began)
					busy(ctx, w)
					if err := w.Text("too late"); !errors.Is(err, adapters.ErrTurnOver) || !errors.Is(err, adapters.CauseHostGone) {
						t.Errorf("a write after the end: %v", err)
					}
					causes <- adapters.CauseOf(ctx)
					return errors.New("looks like anything")
				})})
				h := mount(t, p, bothVersions).speak(t, version)
				r := h.post(t, request{}).started(t)
				receive(t, "the adapter's start", began)
				went := time.Now()
				r.close()
				if cause := receive(t, "the adapter's end", causes); cause != adapters.CauseHostGone {
					t.Errorf("the adapter is told %q", cause)
				}
				if after := time.Since(went); after > time.Second {
					t.Errorf("the adapter was cancelled after %v", after)
				}
				if end := e.wait(t, "t-1"); end.Cause != adapters.CauseHostGone || end.Status != "cancelled" {
					t.Errorf("the hook is told %s, %s", end.Cause, end.Status)
				}
				quiet(t, p)
			})
		}
	}
}

type contextKey struct{}

// Fault B4: work that outlives the response, on the request's context.
func TestFaultB4TheRequestsValuesReachAdapterAndHooks(t *testing.T) {
	t.Parallel()
	var e ends
	values := make(chan any, 1)
	p := newPlugin(t, plugin.Config{
		Hooks: append(e.hooks(), plugin.Hooks{TurnStart: func(ctx context.Context, _ plugin.TurnInfo) context.Context {
			return context.WithValue(ctx, contextKey{}, fmt.Sprint(ctx.Value(contextKey{}), " and the hook"))
		}}),
		Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			values <- ctx.Value(contextKey{})
			<-ctx.Done()
			return nil
		}),
		Middleware: []func(http.Handler) http.Handler{func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, "the middleware")))
			})
		}},
	})
	r := mount(t, p, nil).post(t, request{}).started(t)
	if v := receive(t, "the adapter", values); v != "the middleware and the hook" {
		t.Errorf("the adapter sees %v", v)
	}
	r.close()
	end := e.wait(t, "t-1")
	if v := end.ctx.Value(contextKey{}); v != "the middleware and the hook" {
		t.Errorf("the hook at the end sees %v", v)
	}
	if err := end.ctx.Err(); err != nil {
		t.Errorf("the hook's context at the end: %v", err)
	}
	quiet(t, p)
	if n := len(e.of("t-1")); n != 1 {
		t.Errorf("the hook ran %d times", n)
	}
}

// slowValue takes its time to be stored: until the host is gone.
type slowValue struct{ gone <-chan struct{} }

func (v slowValue) MarshalJSON() ([]byte, error) {
	<-v.gone
	time.Sleep(200 * time.Millisecond) // the slow write that the fault prescribes
	return []byte(`"stored"`), nil
}

func TestFaultB4AStoreThatIsUnderWayWhenTheHostGoesHolds(t *testing.T) {
	t.Parallel()
	stored := make(chan error, 1)
	began := make(chan struct{})
	draft := adapters.NewValue[string]("draft")
	p, h := start(t, plugin.Config{Drain: patience, Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if turn.ID == "store" {
			close(began)
			err := turn.Session.Store("draft", slowValue{ctx.Done()})
			stored <- err
			return err
		}
		v, _, err := draft.Load(turn.Session)
		return errors.Join(err, w.Text(v))
	})})
	r := h.post(t, request{turn: "store"}).started(t)
	receive(t, "the adapter", began)
	next := h.post(t, request{turn: "load"}).started(t) // waits for the session
	r.close()
	if err := receive(t, "the store", stored); err != nil {
		t.Errorf("Store = %v", err)
	}
	if text := next.completed(t); text != "stored" {
		t.Errorf("the next turn finds %q", text)
	}
	quiet(t, p)
}

func TestDrainWaitsForATurnWhoseHostIsGone(t *testing.T) {
	t.Parallel()
	began, hold := make(chan struct{}), newGate(t)
	var over atomic.Bool
	p := newPlugin(t, plugin.Config{Adapter: adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
		close(began)
		<-ctx.Done()
		<-hold.C
		over.Store(true)
		return nil
	})})
	r := mount(t, p, nil).post(t, request{}).started(t)
	receive(t, "the adapter", began)
	r.close()
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(context.Background()) }()
	hold.open()
	if err := receive(t, "the drain", drained); err != nil || !over.Load() {
		t.Errorf("Drain = %v, and the adapter has returned: %v", err, over.Load())
	}
}

// A server that goes away in the middle of a request's body, or a host that does.
func TestAHostThatGoesInTheMiddleOfItsRequest(t *testing.T) {
	t.Parallel()
	var calls called
	p, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	whole := fmt.Sprintf("POST /lowkey/turn HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(request{}.body()), request{}.body())
	for _, n := range []int{0, 1, 20, len(whole) / 2, len(whole) - 1} {
		c, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, whole[:n]); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	quiet(t, p)
	if n := calls.times(); n != 0 {
		t.Errorf("%d adapter calls", n)
	}
}

// HostGone: the host may come back within a time.

// watchFirst is middleware that tells when the server has noticed that the host of the first request
// is gone.
func watchFirst() (gone chan struct{}, middleware func(http.Handler) http.Handler) {
	gone = make(chan struct{})
	var once sync.Once
	return gone, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			once.Do(func() { context.AfterFunc(r.Context(), func() { close(gone) }) })
			next.ServeHTTP(w, r)
		})
	}
}

func TestAHostThatComesBackInTimeFindsItsTurn(t *testing.T) {
	t.Parallel()
	var e ends
	var calls called
	came := newGate(t)
	wrote := make(chan struct{})
	gone, middleware := watchFirst()
	p := newPlugin(t, plugin.Config{HostGone: patience, Hooks: e.hooks(), Adapter: calls.by(adapters.Func(
		func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			if err := w.Text("before"); err != nil {
				return err
			}
			close(wrote)
			<-came.C
			return w.Text(", after")
		}))})
	h := mount(t, middleware(p), nil)
	q := request{message: "the same"}
	first := h.post(t, q).started(t)
	receive(t, "the first chunk", wrote)
	first.close()
	receive(t, "the end of the connection", gone)
	again := q
	again.window = []entry{{Role: "user", Content: "another window"}}
	second := h.post(t, again).started(t)
	came.open()
	if text := second.completed(t); text != "before, after" {
		t.Errorf("the host that came back reads %q", text)
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
	if end := e.wait(t, "t-1"); end.Cause != adapters.CauseCompleted {
		t.Errorf("the turn ended as %s", end.Cause)
	}
	quiet(t, p)
}

func TestAHostThatDoesNotComeBackInTimeHasItsTurnCancelled(t *testing.T) {
	t.Parallel()
	const within = 200 * time.Millisecond
	var e ends
	began := make(chan struct{}, 1)
	p, h := start(t, plugin.Config{HostGone: within, Hooks: e.hooks(), Adapter: adapters.Func(
		func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
			began <- struct{}{}
			<-ctx.Done()
			return nil
		})})
	first := h.post(t, request{}).started(t)
	receive(t, "the adapter", began)
	went := time.Now()
	first.close()
	end := e.wait(t, "t-1")
	if end.Cause != adapters.CauseHostGone || end.Status != "cancelled" {
		t.Errorf("the turn ended as %s, %s", end.Cause, end.Status)
	}
	if after := time.Since(went); after < within {
		t.Errorf("the turn was cancelled %v after the host went, want %v", after, within)
	}
	quiet(t, p)
	h.post(t, request{}).started(t) // a retry runs it again
	receive(t, "the adapter", began)
}

// A turn that nobody reads ends as it would have, and can then be replayed.
func TestATurnCompletesWhileItsHostIsAway(t *testing.T) {
	t.Parallel()
	var e ends
	var calls called
	wrote := make(chan struct{})
	gone, middleware := watchFirst()
	p := newPlugin(t, plugin.Config{HostGone: patience, Hooks: e.hooks(), Adapter: calls.by(adapters.Func(
		func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			close(wrote)
			<-gone
			return w.Text(strings.Repeat("x", 100_000))
		}))})
	h := mount(t, middleware(p), nil)
	first := h.post(t, request{}).started(t)
	receive(t, "the adapter", wrote)
	first.close()
	if end := e.wait(t, "t-1"); end.Cause != adapters.CauseCompleted {
		t.Errorf("the turn ended as %s", end.Cause)
	}
	if text := h.post(t, request{}).completed(t); len(text) != 100_000 {
		t.Errorf("the replay has %d bytes", len(text))
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
	quiet(t, p)
}

// While the host is away the log holds what it will want, and the adapter waits once that is full.
func TestAnAbsentHostHoldsItsAdapterBack(t *testing.T) {
	t.Parallel()
	gone, middleware := watchFirst()
	var written atomic.Int64
	p := newPlugin(t, plugin.Config{HostGone: patience, Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		<-gone
		chunk := strings.Repeat("x", 10_000)
		for range 1000 {
			if err := w.Text(chunk); err != nil {
				return err
			}
			written.Add(int64(len(chunk)))
		}
		return nil
	})})
	h := mount(t, middleware(p), nil)
	first := h.post(t, request{}).started(t)
	first.close()
	eventually(t, "the adapter's first megabyte", func() bool { return written.Load() > 500_000 })
	time.Sleep(100 * time.Millisecond) // whatever more it would write
	if n := written.Load(); n > 2<<20 {
		t.Errorf("%d bytes were written with nobody to read them", n)
	}
	if text := h.post(t, request{}).completed(t); len(text) != 10_000_000 {
		t.Errorf("the host that came back read %d bytes, want all", len(text))
	}
	quiet(t, p)
}
