package keiki_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
)

// TestFaultF2QuietPolls: polls that the platform holds their full time, and longer, are no errors. Each is
// followed by the next one at once.
func TestFaultF2QuietPolls(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testhost.KeikiFault{
		"held":            {},
		"held for longer": {After: true, Delay: 1200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, onRoute("/inbox/next", func(int) testhost.KeikiFault { return fault }))
			d.work(says("hello"), func(c *workerConfig) { c.inbox.Wait = time.Second })
			d.until("two polls were quiet", func() bool { return len(d.polls("inbox")) == 3 })
			polls, least := d.polls("inbox"), time.Hour
			for i, p := range polls {
				if p.Path != "/api/v1/harness/inbox/next?wait=1" {
					t.Errorf("a poll of %s", p.Path)
				}
				if p.Auth != "api_key" {
					t.Errorf("a poll with a bearer of kind %q", p.Auth)
				}
				if i == 0 {
					continue
				}
				before := polls[i-1]
				if before.Took < time.Second+fault.Delay || before.Status != http.StatusOK || string(before.Answer) != `{"turn":null}` {
					t.Errorf("a poll took %v and was answered %d %s", before.Took, before.Status, before.Answer)
				}
				least = min(least, p.At.Sub(before.At)-before.Took)
			}
			if least > time.Second/2 { // of two, since the machine may be busy
				t.Errorf("%v between two quiet polls", least)
			}
			if log := d.log.String(); log != "" {
				t.Errorf("quiet polls are told to the log:\n%s", log)
			}
		})
	}
}

// TestWaits: what the platform is asked to wait.
func TestWaits(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]string{
		0: "25", -1: "0", time.Second: "1", 1500 * time.Millisecond: "2", 30 * time.Second: "30", 29*time.Second + 1: "30",
	} {
		d := newDesk(t)
		w := d.work(says("hello"), func(c *workerConfig) { c.inbox.Wait = wait })
		d.until("it polls", func() bool { return len(d.polls("inbox")) > 0 })
		if path := d.polls("inbox")[0].Path; path != "/api/v1/harness/inbox/next?wait="+want {
			t.Errorf("wait %v: %s", wait, path)
		}
		w.stop(t.Context())
	}
}

// TestFaultF2Failures: five proxy pages, then good: the pauses grow and differ, and are short again after that.
func TestFaultF2Failures(t *testing.T) {
	t.Parallel()
	const least = 40 * time.Millisecond
	var n atomic.Int64
	d := newDesk(t, onRoute("/inbox/next", func(i int) testhost.KeikiFault {
		n.Store(int64(i))
		if i == 6 {
			return testhost.KeikiFault{}
		}
		return testhost.KeikiFault{Status: http.StatusBadGateway, Body: "<html><body>502 Bad Gateway</body></html>"}
	}))
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	w := d.work(says("hello"), func(c *workerConfig) { c.least, c.most = least, 20*time.Second })
	if o := d.outcome(id); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	d.until("it fails again", func() bool { return n.Load() >= 8 && len(d.lines("polling failed")) >= 7 })
	w.stop(t.Context())
	polls := d.polls("inbox")
	for i := 1; i < 8; i++ {
		pause := polls[i].At.Sub(polls[i-1].At)
		lowest := least << (i - 1)
		switch i {
		case 6:
			lowest = 0 // after the good one
		case 7:
			lowest = least
		}
		if highest := 2*lowest + 2*time.Second; pause < lowest || pause > highest { // the machine may be busy
			t.Errorf("pause %d was %v, want %v to %v", i, pause, lowest, highest)
		}
	}
	if n, all := len(d.lines("polling failed", `"error":"502"`, `"level":"WARN"`)), len(d.lines("polling failed")); n != all {
		t.Errorf("the log tells of %d failures, and of %d in these words", all, n)
	}
	if strings.Contains(d.log.String(), "<html>") || strings.Contains(d.log.String(), "Bad Gateway") {
		t.Error("the proxy's page stands in the log")
	}
}

// TestFaultF2TheEndDuringAPoll: Run returns at once.
func TestFaultF2TheEndDuringAPoll(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	w := d.work(says("hello"))
	d.until("it polls", func() bool { return len(d.polls("inbox")) == 1 })
	began := time.Now()
	w.cancel()
	receive(t, "the end", w.ended)
	if took := time.Since(began); took > 5*time.Second || w.err != nil {
		t.Errorf("Run returned %v after %v", w.err, took)
	}
}

// TestFaultF2TheEndDuringAPause as well, and while there is no room for another turn.
func TestFaultF2TheEndDuringAPause(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testhost.KeikiFault{
		"of our own":        {Status: http.StatusBadGateway},
		"that it asked for": {RetryAfter: "3600"},
		"between two":       {Body: `{"turn":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, onRoute("/inbox/next", func(int) testhost.KeikiFault { return fault }))
			w := d.work(says("hello"), func(c *workerConfig) { c.every, c.least, c.most = time.Hour, time.Hour, 2*time.Hour })
			d.until("it has polled", func() bool { p := d.polls("inbox"); return len(p) == 1 && p[0].Done })
			w.cancel()
			receive(t, "the end", w.ended)
			if w.err != nil {
				t.Errorf("Run returned %v", w.err)
			}
		})
	}
}

// TestRetryAfterOfPolls: the pause that the platform asks for is made.
func TestRetryAfterOfPolls(t *testing.T) {
	t.Parallel()
	d := newDesk(t, onRoute("/inbox/next", func(n int) testhost.KeikiFault {
		if n == 1 {
			return testhost.KeikiFault{Status: http.StatusTooManyRequests, RetryAfter: "1"}
		}
		return testhost.KeikiFault{}
	}))
	id := d.queue(testhost.KeikiTurn{Text: "hello"})
	d.work(says("hello"))
	d.outcome(id)
	polls := d.polls("inbox")
	if pause := polls[1].At.Sub(polls[0].At); pause < time.Second {
		t.Errorf("it polled again after %v, and was asked to wait for a second", pause)
	}
}

// A fakePlatform answers polls in a bubble of synctest, where time is exact.
type fakePlatform struct {
	mu    sync.Mutex
	polls []time.Time
	// answer answers a poll.
	answer func(r *http.Request) (*http.Response, error)
}

func (f *fakePlatform) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.polls = append(f.polls, time.Now())
	f.mu.Unlock()
	return f.answer(r)
}

func (f *fakePlatform) pauses() (list []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 1; i < len(f.polls); i++ {
		list = append(list, f.polls[i].Sub(f.polls[i-1]))
	}
	return list
}

func answering(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// poll has an inbox poll a fake platform, with the pauses that it has in earnest, until ctx is done.
func poll(ctx context.Context, t *testing.T, f http.RoundTripper, log io.Writer) error {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	engine, err := runtime.New(runtime.Config{Logger: logger})
	if err != nil {
		t.Error(err)
		return nil
	}
	inbox, err := keiki.NewInbox(keiki.InboxConfig{
		Config: keiki.Config{Engine: engine, Adapter: says("hello"), APIBase: "https://keiki.example/api/v1", Transport: f, Logger: logger},
		APIKey: "sk_test_key",
	})
	if err != nil {
		t.Error(err)
		return nil
	}
	return inbox.Run(ctx)
}

// TestFaultF2PausesInEarnest: errors are followed by pauses of a second at first and of a minute at most, which
// differ; a good answer ends that.
func TestFaultF2PausesInEarnest(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func() (*http.Response, error){
		"html":      func() (*http.Response, error) { return answering(502, "<html>502 Bad Gateway</html>") },
		"ok html":   func() (*http.Response, error) { return answering(200, "<html>It works!</html>") },
		"null":      func() (*http.Response, error) { return answering(200, "null") },
		"empty":     func() (*http.Response, error) { return answering(200, "") },
		"206":       func() (*http.Response, error) { return answering(206, `{"turn":null}`) },
		"redirect":  func() (*http.Response, error) { return answering(307, "") },
		"404":       func() (*http.Response, error) { return answering(404, `{"error":{"code":"not_found"}}`) },
		"no answer": func() (*http.Response, error) { return nil, errors.New("connection refused") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fakePlatform{}
				n := 0
				f.answer = func(r *http.Request) (*http.Response, error) {
					if n++; n == 13 {
						return answering(200, `{"turn":null}`)
					}
					return bad()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var log journal
				if err := poll(ctx, t, f, &log); err != nil {
					t.Errorf("Run returned %v", err)
				}
				pauses := f.pauses()
				lowest := time.Second
				for i, pause := range pauses[:12] {
					if pause < lowest || pause >= 2*lowest || pause > time.Minute {
						t.Errorf("pause %d was %v, want %v to %v", i, pause, lowest, 2*lowest)
					}
					lowest = min(2*lowest, 30*time.Second)
				}
				if pauses[12] != time.Second { // it did not wait, and is not hammered
					t.Errorf("after an answer without a wait: %v", pauses[12])
				}
				if pauses[13] < time.Second || pauses[13] >= 2*time.Second {
					t.Errorf("the first pause after a good answer was %v", pauses[13])
				}
				slices.Sort(pauses)
				if d := slices.Compact(pauses); len(d) < 40 {
					t.Errorf("of the pauses in an hour only %d differ", len(d))
				}
			})
		})
	}
}

// TestFaultF2ManyPollers: twenty whose server comes back after ten seconds return spread over seconds.
func TestFaultF2ManyPollers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		var back []time.Duration
		first := map[string]bool{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for i := range 20 {
			f := &fakePlatform{}
			f.answer = func(r *http.Request) (*http.Response, error) {
				since := time.Since(began)
				if since < 10*time.Second {
					return nil, errors.New("connection refused")
				}
				mu.Lock()
				if name := fmt.Sprint(i); !first[name] {
					first[name] = true
					back = append(back, since-10*time.Second)
				}
				mu.Unlock()
				select { // held for its full time
				case <-time.After(25 * time.Second):
					return answering(200, `{"turn":null}`)
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}
			all.Go(func() { _ = poll(ctx, t, f, io.Discard) })
		}
		all.Wait()
		slices.Sort(back)
		if len(back) != 20 {
			t.Fatalf("%d of 20 came back", len(back))
		}
		if spread := back[19] - back[0]; spread < 2*time.Second {
			t.Errorf("they came back within %v: %v", spread, back)
		}
		if last := back[19]; last > 20*time.Second {
			t.Errorf("the last one came back %v after the server", last)
		}
		for i := range len(back) - 14 { // not most of them within a second
			if back[i+14]-back[i] < time.Second {
				t.Errorf("fifteen came back within %v: %v", back[i+14]-back[i], back)
			}
		}
	})
}

// TestAPlatformThatDoesNotWait is asked once a second. It may say that there is nothing with a 204 as well.
func TestAPlatformThatDoesNotWait(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 204} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { oncePerSecond(t, status) })
		})
	}
}

func oncePerSecond(t *testing.T, status int) {
	t.Helper()
	f := &fakePlatform{answer: func(*http.Request) (*http.Response, error) {
		if status == http.StatusNoContent {
			return answering(status, "")
		}
		return answering(status, `{"turn":null}`)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log journal
	if err := poll(ctx, t, f, &log); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if n := len(f.polls); n != 60 && n != 61 { // the last one as the minute ends
		t.Errorf("%d polls in a minute", n)
	}
	if log.String() != "" {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestAPlatformThatHangs: a poll without an answer is given up, clearly later than the platform was to wait.
func TestAPlatformThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakePlatform{answer: func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 43*time.Second)
		defer cancel()
		var log journal
		began := time.Now()
		if err := poll(ctx, t, f, &log); err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(began); took != 43*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		pauses := f.pauses()
		if len(pauses) != 1 || pauses[0] < 41*time.Second || pauses[0] >= 42*time.Second || !strings.Contains(log.String(), "no answer in time") {
			t.Errorf("polls after %v, want one after 41 seconds; log:\n%s", pauses, log.String())
		}
	})
}

// TestTheKeyIsRefusedAtOnce: without a second try.
func TestTheKeyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403} {
		f := &fakePlatform{answer: func(*http.Request) (*http.Response, error) { return answering(status, "<html>") }}
		if err := poll(t.Context(), t, f, io.Discard); !errors.Is(err, keiki.ErrKeyRefused) {
			t.Errorf("%d: Run returned %v", status, err)
		}
		if len(f.polls) != 1 {
			t.Errorf("%d: %d polls", status, len(f.polls))
		}
	}
}
