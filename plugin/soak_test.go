package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/soak"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// moods are what the soak's adapter does, by the message.
var moods = map[string]func(ctx context.Context, w adapters.Writer) error{
	"short": func(_ context.Context, w adapters.Writer) error { return w.Text("short") },
	"chunks": func(_ context.Context, w adapters.Writer) error {
		for i := range 100 {
			if err := w.Text(strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return nil
	},
	"flood": func(_ context.Context, w adapters.Writer) error {
		for range 20 {
			if err := w.Text(strings.Repeat("flood ", 5000)); err != nil {
				return err
			}
		}
		return nil
	},
	"paced": func(ctx context.Context, w adapters.Writer) error {
		for range 10 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Millisecond):
			}
			if err := w.Status("thinking"); err != nil {
				return err
			}
		}
		return w.Text("paced")
	},
	"waits": func(ctx context.Context, _ adapters.Writer) error {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		return nil
	},
	"error":  func(context.Context, adapters.Writer) error { return errors.New("error") },
	"panics": func(context.Context, adapters.Writer) error { panic("panics") },
	"exits":  func(context.Context, adapters.Writer) error { goruntime.Goexit(); return nil },
}

// ways in which a host vanishes in the middle of its turn.
var ways = []func(h *host, q request) error{
	func(h *host, q request) error { // once it has read so many events
		r, err := h.send(bytes.NewReader(q.body()))
		if err != nil {
			return err
		}
		defer r.close()
		for range rand.IntN(8) {
			if _, err := r.next(); err != nil {
				break
			}
		}
		return nil
	},
	func(h *host, q request) error { // before it has read anything
		return vanish(h, q, func(whole string) string { return whole })
	},
	func(h *host, q request) error { // in the middle of sending
		return vanish(h, q, func(whole string) string { return whole[:rand.IntN(len(whole))] })
	},
	func(h *host, q request) error { // with a reset, while it reads nothing
		q.message = "flood"
		return vanish(h, q, func(whole string) string { return whole })
	},
}

// vanish sends what part leaves of a request and goes.
func vanish(h *host, q request, part func(string) string) error {
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		return err
	}
	body := q.body()
	_, err = io.WriteString(c, part(fmt.Sprintf("POST /lowkey/turn HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)))
	time.Sleep(time.Duration(rand.IntN(int(3 * time.Millisecond)))) // somewhere in its turn
	if tcp, ok := c.(*net.TCPConn); ok && rand.IntN(2) == 0 {
		_ = tcp.SetLinger(0)
	}
	return errors.Join(err, c.Close())
}

// Turns of all kinds, a third of whose hosts vanish: nothing is left of them. A few in the ordinary tests,
// and half of them under the race detector. Not parallel: it counts goroutines and open files.
func TestSoak(t *testing.T) {
	turns := soak.Turns(t, 2000/(1+slowness/10))
	files, routines := openFiles(t), goruntime.NumGoroutine()
	began := time.Now()
	var completed, failed, vanished, started, ended atomic.Int64
	t.Run("", func(t *testing.T) {
		p, h := start(t, plugin.Config{
			ReplayBytes: 4 << 20,
			Sessions:    100,
			Hooks: []plugin.Hooks{{
				TurnStart: func(ctx context.Context, _ plugin.TurnInfo) context.Context { started.Add(1); return ctx },
				TurnEnd:   func(context.Context, plugin.TurnInfo, *plugin.Outcome) { ended.Add(1) },
			}},
			Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				if err := turn.Session.Store("last", turn.Message); err != nil {
					return err
				}
				return moods[turn.Message](ctx, w)
			}),
		})
		names := []string{"short", "short", "short", "chunks", "chunks", "flood", "paced", "waits", "error", "panics", "exits"}
		next := make(chan int)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for i := range next {
					q := request{session: numbered("s", rand.IntN(200)), turn: numbered("t", i), message: names[rand.IntN(len(names))]}
					h := h
					if q.message == "exits" {
						h = hostAt(t, h.addr) // the connection ends with the adapter's goroutine
					}
					if i%3 == 0 {
						vanished.Add(1)
						if err := ways[rand.IntN(len(ways))](h, q); err != nil {
							t.Errorf("turn %d: %v", i, err)
						}
						continue
					}
					r, err := h.run(q)
					switch {
					case err != nil:
						t.Errorf("turn %d (%s): %v", i, q.message, err)
					case r.last().Status == wire.StatusComplete:
						completed.Add(1)
					case r.last().Type == wire.EventError && strings.Contains("error panics exits", q.message):
						failed.Add(1)
					default:
						t.Errorf("turn %d (%s) ends with %+v", i, q.message, r.last())
					}
				}
			})
		}
		for i := range turns {
			next <- i
		}
		close(next)
		wg.Wait()
		quiet(t, p)
		eventually(t, "the end of each turn that began", func() bool { return started.Load() == ended.Load() })
		// Every session is free.
		for i := range 200 {
			if text := h.post(t, request{session: numbered("s", i), turn: "after", message: "short"}).completed(t); text != "short" {
				t.Errorf("afterwards session %d answers %q", i, text)
			}
		}
		quiet(t, p)
	})
	eventually(t, "the end of all goroutines", func() bool { return goruntime.NumGoroutine() <= routines })
	eventually(t, "the end of all connections", func() bool { return openFiles(t) <= files })
	t.Logf("%d turns in %v: %d completed, %d failed as they should, %d hosts vanished; %d were begun and as many ended",
		turns, time.Since(began).Round(time.Millisecond), completed.Load(), failed.Load(), vanished.Load(), started.Load())
}

// Many turns open at once: each has its events, and only its own.
func TestManyTurnsAtOnce(t *testing.T) { manyTurnsAtOnce(t, 1000, "HTTP/1.1") }

// TestSoakManyTurnsAtOnce is TestManyTurnsAtOnce with more turns, over fewer sockets.
func TestSoakManyTurnsAtOnce(t *testing.T) {
	soak.Only(t)
	manyTurnsAtOnce(t, 10_000, "HTTP/2")
}

func manyTurnsAtOnce(t *testing.T, at int, version string) {
	t.Helper()
	var open sync.WaitGroup
	open.Add(at)
	p, h := start(t, plugin.Config{Drain: patience, Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		open.Done()
		open.Wait() // all of them are open now
		for range 3 {
			if err := w.Text(turn.ID + " "); err != nil {
				return err
			}
		}
		return nil
	})})
	h = h.speak(t, version)
	var wg sync.WaitGroup
	for i := range at {
		wg.Go(func() {
			q := request{session: numbered("s", i), turn: numbered("t", i)}
			r, err := h.run(q)
			if err != nil || r.text() != strings.Repeat(q.turn+" ", 3) || r.last().Status != wire.StatusComplete {
				t.Errorf("turn %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	quiet(t, p)
}

// Starts, repeats, hosts that go and a drain, in any order: every stream keeps to the grammar, every
// turn that begins ends once, and nothing is left.
func TestAnyOrderOfStartJoinCancelAndDrain(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	for round := range 6 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			var started, ended atomic.Int64
			p := newPlugin(t, plugin.Config{
				MaxTurns:   12,
				RefuseBusy: round%2 == 1,
				HostGone:   time.Duration(round/2) * 5 * time.Millisecond,
				Hooks: []plugin.Hooks{{
					TurnStart: func(ctx context.Context, _ plugin.TurnInfo) context.Context { started.Add(1); return ctx },
					TurnEnd:   func(context.Context, plugin.TurnInfo, *plugin.Outcome) { ended.Add(1) },
				}},
				Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					for range 20 {
						if err := w.Text(turn.ID); err != nil {
							return err
						}
						select {
						case <-ctx.Done():
							return context.Cause(ctx)
						case <-time.After(200 * time.Microsecond):
						}
					}
					return nil
				}),
			})
			h := mount(t, p, nil)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 24 {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						q := request{session: numbered("s", rand.IntN(4)), turn: numbered("t", rand.IntN(6)), message: strconv.Itoa(rand.IntN(8) / 7)}
						r, err := h.send(bytes.NewReader(q.body()))
						if err != nil {
							t.Error(err)
							return
						}
						switch {
						case r.StatusCode != http.StatusOK:
							if _, err := r.refusal(r.StatusCode); err != nil || r.StatusCode != http.StatusConflict && r.StatusCode != http.StatusServiceUnavailable {
								t.Errorf("%s %q, %v", r.Status, r.raw, err)
							}
						case rand.IntN(3) == 0:
							for range rand.IntN(10) {
								if _, err := r.next(); err != nil {
									break
								}
							}
						default:
							err := r.read()
							if err != nil {
								t.Errorf("%v in %q", err, r.raw)
							} else if r.last().Status == wire.StatusComplete && r.text() != strings.Repeat(q.turn, 20) {
								t.Errorf("a completed turn reads %q", r.text())
							}
						}
						r.close()
					}
				})
			}
			time.Sleep(500 * time.Millisecond) // as long as it goes on
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			if err := p.Drain(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Drain = %v", err)
			}
			if n := p.Stats().Turns.Active; n != 0 {
				t.Errorf("%d turns are active after the drain", n)
			}
			time.Sleep(20 * time.Millisecond) // some more, that are refused
			close(stop)
			wg.Wait()
			quiet(t, p)
			if started.Load() != ended.Load() || started.Load() == 0 || started.Load() != p.Stats().Turns.Total {
				t.Errorf("%d turns began, %d ended, %d are counted", started.Load(), ended.Load(), p.Stats().Turns.Total)
			}
		})
	}
}
