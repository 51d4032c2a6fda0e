package external_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	wire "github.com/backline-dev/backline/schema/external"
)

// bulk is an adapter that emits n candidates of some 4 KB as fast as it can, and completes.
func bulk(n int) adapters.Adapter {
	padding := strings.Repeat("😀", 480)
	return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for i := range n {
			if err := w.Candidate(candidateOf(turn.ID, "event/ref", fmt.Sprint(padding, i), "action/schema", padding)); err != nil {
				return err
			}
		}
		return finish(w)
	})
}

// bulky has a bulk of 1.6 MB, which is more than sockets hold and a log keeps, at a server whose sockets hold
// little and that waits for readers no longer than limit. serving counts its requests.
func bulky(limit time.Duration, serving *atomic.Int64) func(*setup) {
	return func(s *setup) {
		s.profile = s.profile.with("limits", limits(1024, 1<<20, 1<<20, 60000))
		s.adapter = bulk(400)
		s.engine.Stream.WriteTimeout = limit
		start := s.server
		s.server = func(server *httptest.Server) {
			start(server)
			server.Config.ConnState = func(c net.Conn, state http.ConnState) {
				if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
					_ = tcp.SetWriteBuffer(16 << 10)
				}
			}
		}
		s.around = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				serving.Add(1)
				defer serving.Add(-1)
				next.ServeHTTP(w, r)
			})
		}
	}
}

// small is a client that holds no more than it must of what it has not read.
func (g *rig) small() *http.Client {
	tr := g.client().Transport.(*http.Transport).Clone()
	tr.ReadBufferSize = 1 << 10
	tr.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 128 << 10}
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(32 << 10)
		}
		return c, err
	}
	g.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// stalled sends a turn request and reads no more than the answer's first line. It returns that, and the
// reading of the rest.
func (g *rig) stalled(q doc) (first string, rest func() (string, error)) {
	g.t.Helper()
	r, err := g.small().Post(g.server.URL+"/external-runtime/turns", "application/json", bytes.NewReader(q.json()))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = r.Body.Close() })
	lines := bufio.NewReaderSize(r.Body, 16)
	first, err = lines.ReadString('\n')
	if err != nil {
		g.t.Fatal(err)
	}
	return first, func() (string, error) {
		b, err := io.ReadAll(lines)
		return string(b), err
	}
}

// settled waits for the outcome of a turn that nobody may be reading, and checks that it can be fetched and
// replayed, whole, without another call of its adapter.
func (g *rig) settled(q doc) reply {
	g.t.Helper()
	turn := q.ref("turn/ref")
	eventually(g.t, "the outcome", func() bool {
		return strings.Contains(g.do("GET", "turns/"+turn, nil).body, `"outcome/ref"`)
	})
	if o := g.outcome(turn); o.Status != wire.StatusCompleted {
		g.t.Errorf("outcome %+v", o)
	}
	calls := g.adapter.calls.Load()
	r := g.post(q).ends("completed/completed")
	if again := g.post(q); again.body != r.body || g.adapter.calls.Load() != calls {
		g.t.Error("the replays differ, or the turn ran again")
	}
	return r
}

// Fault B3: a host that goes away does not cancel the turn, whenever it goes. It may come back.
func TestFaultB3AHostThatGoesAway(t *testing.T) {
	t.Parallel()
	const due = time.Second // as the fault prescribes
	slow := aRequest("turn:1", script(`{"sleep":"`+due.String()+`"}`, `{"text":"x"}`, goodUsage))
	var parts []func()
	for version := range versions {
		parts = append(parts,
			func() { // before the first output
				g := newRig(t, over(version))
				s := g.stream(slow)
				first := s.next()
				time.Sleep(100 * time.Millisecond) // as the fault prescribes
				s.close()
				r := g.settled(slow)
				if e := r.events()[0]; e.EventRef != first.EventRef {
					t.Errorf("who comes back gets %s after %s", e.EventRef, first.EventRef)
				}
				if n := g.adapter.calls.Load(); n != 1 {
					t.Errorf("%s: %d calls", version, n)
				}
			},
			func() { // while it is still being written to, and again as one that joins
				g := newRig(t, both(over(version), gated))
				s, joined := g.stream(slow), g.stream(slow)
				s.next()
				joined.next()
				s.close()
				joined.close()
				g.open()
				g.settled(slow)
			},
			func() { // in the middle of a flood
				var serving atomic.Int64
				g := newRig(t, both(over(version), bulky(0, &serving)))
				q := aRequest("turn:1", "x")
				s := g.stream(q)
				for range 10 {
					s.next()
				}
				s.close()
				if r := g.settled(q); !strings.HasPrefix(r.body, s.read) {
					t.Error("who comes back gets another beginning")
				}
			},
			func() { // before it is asked something
				g := newRig(t, both(over(version), gated))
				q := aRequest("turn:1", script(toolStep, goodUsage))
				s := g.stream(q)
				s.next()
				s.close()
				g.open()
				start := g.post(q)
				c := q.answering("key:c", start.asked())
				s = g.stream(c)
				s.close()
				g.settled(c)
				if g.post(q).body != start.body {
					t.Error("the replay of the start differs")
				}
			})
	}
	parts = append(parts, func() { // before the answer's header
		g := newRig(t, nil)
		c := g.dial(t)
		body := slow.json()
		if _, err := fmt.Fprintf(c, "POST /external-runtime/turns HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		eventually(t, "the turn", func() bool { return g.do("GET", "turns/turn:1", nil).status == 200 })
		g.settled(slow)
	})
	together(parts...)
}

// A reader that takes nothing for the write timeout is given up, and nothing else is: the turn goes on, other
// readers get it all, and the connection's handler returns.
func TestFaultB3AReaderThatStalls(t *testing.T) {
	t.Parallel()
	const limit = 1500 * time.Millisecond
	var parts []func()
	for version := range versions {
		parts = append(parts,
			func() { // the one that brought the turn
				var serving atomic.Int64
				g := newRig(t, both(over(version), bulky(limit, &serving)))
				q := aRequest("turn:1", "x")
				first, rest := g.stalled(q)
				if !strings.Contains(first, "accepted") {
					t.Errorf("the first line is %s", first)
				}
				r := g.settled(q)
				eventually(t, "the handler returns", func() bool { return serving.Load() == 0 })
				if got, err := rest(); err == nil || strings.Contains(got, "turn-outcome") || !strings.HasPrefix(r.body, first+got) {
					t.Errorf("%s: who stalled had %d bytes, %v, want a beginning that breaks off", version, len(got), err)
				}
			},
			func() { // one that joins
				var serving atomic.Int64
				g := newRig(t, both(over(version), bulky(limit, &serving), gated))
				q := aRequest("turn:1", "x")
				reading := g.running(q)
				_, rest := g.stalled(q)
				g.open()
				(<-reading).ends("completed/completed")
				g.settled(q)
				eventually(t, "the handler returns", func() bool { return serving.Load() == 0 })
				if got, err := rest(); err == nil || strings.Contains(got, "turn-outcome") {
					t.Errorf("%s: who stalled had %d bytes, %v", version, len(got), err)
				}
			},
			func() { // one that replays
				var serving atomic.Int64
				g := newRig(t, both(over(version), bulky(limit, &serving)))
				q := aRequest("turn:1", "x")
				r := g.post(q).ends("completed/completed")
				first, rest := g.stalled(q)
				eventually(t, "the handler returns", func() bool { return serving.Load() == 0 })
				if got, err := rest(); err == nil || !strings.HasPrefix(r.body, first+got) {
					t.Errorf("%s: who stalled in a replay had %d bytes, %v", version, len(got), err)
				}
				if g.post(q).body != r.body {
					t.Error("the replay differs")
				}
			})
	}
	together(parts...)
}

// A reader that takes a little now and then is slow, not stalled: one line that takes longer than the write
// timeout arrives whole, as it is made and replayed.
func TestAReaderThatTakesALittle(t *testing.T) {
	t.Parallel()
	const size, limit = 600_000, 600 * time.Millisecond
	var parts []func()
	for version := range versions {
		parts = append(parts, func() {
			var serving atomic.Int64
			g := newRig(t, both(over(version), bulky(limit, &serving), func(s *setup) {
				s.adapter = adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					if err := w.Text(strings.Repeat("y", size)); err != nil {
						return err
					}
					return finish(w)
				})
			}))
			q := aRequest("turn:1", "x")
			var bodies []string
			for range 2 {
				r, err := g.small().Post(g.server.URL+"/external-runtime/turns", "application/json", bytes.NewReader(q.json()))
				if err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				began := time.Now()
				for err == nil {
					_, err = io.CopyN(&got, r.Body, 8<<10)
					time.Sleep(12 * time.Millisecond) // the slowness itself
				}
				_ = r.Body.Close()
				if took := time.Since(began); took < limit {
					t.Errorf("%s: the reader was not slow: %v", version, took)
				}
				reply{t, r.StatusCode, r.Header, got.String(), nil}.ends("completed/completed")
				bodies = append(bodies, got.String())
			}
			if bodies[0] != bodies[1] || len(bodies[0]) < size {
				t.Errorf("%s: %d bytes, and %d replayed", version, len(bodies[0]), len(bodies[1]))
			}
		})
	}
	together(parts...)
}
