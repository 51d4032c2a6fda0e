package keiki_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
)

// What the platform answers to messages and completions, and what becomes of the turn.

// A script has what goes wrong with the requests of each route, in their order; what it does not name goes
// well.
type script struct {
	mu    sync.Mutex
	steps map[string][]testhost.KeikiFault
}

func (s *script) fault(r *http.Request, _ int) testhost.KeikiFault {
	route := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.steps[route]
	if len(list) == 0 {
		return testhost.KeikiFault{}
	}
	s.steps[route] = list[1:]
	return list[0]
}

func plays(route string, steps ...testhost.KeikiFault) func(*rigConfig) {
	s := &script{steps: map[string][]testhost.KeikiFault{route: steps}}
	return func(c *rigConfig) { c.platform.Fault = s.fault }
}

// tries are a turn's requests on a route, in order.
func (g *rig) tries(id, route string) (list []testhost.KeikiRequest) {
	for _, r := range g.platform.Requests(id) {
		if r.Route == route {
			list = append(list, r)
		}
	}
	return list
}

func errorBody(code string) string { return fmt.Sprintf(`{"error":{"code":%q}}`, code) }

// TestSettlementOfMessages: three messages, and something happens to the second one.
func TestSettlementOfMessages(t *testing.T) {
	t.Parallel()
	elsewhere := newEavesdropper(t)
	type fate string
	const (
		delivered fate = "delivered" // all three, and completed
		goesOn    fate = "goes on"   // not known of the second one, completed
		fails     fate = "fails"     // a failed completion, nothing else
		over      fate = "over"      // nothing more is sent
	)
	status := func(code int, body string) testhost.KeikiFault { return testhost.KeikiFault{Status: code, Body: body} }
	after := func(f testhost.KeikiFault) testhost.KeikiFault { f.After = true; return f }
	for _, test := range []struct {
		name  string
		steps []testhost.KeikiFault // of the second message
		fate  fate
		tries int // of the second message
		log   string
	}{
		{"200", nil, delivered, 1, ""},
		{"200 with nothing", []testhost.KeikiFault{after(status(200, ""))}, delivered, 1, ""},
		{"200 with HTML", []testhost.KeikiFault{after(status(200, "<html>fine</html>"))}, delivered, 1, ""},
		{"200 with an error in it", []testhost.KeikiFault{after(status(200, errorBody("turn_closed")))}, delivered, 1, ""},
		{"201", []testhost.KeikiFault{after(status(201, `{"ok":true}`))}, delivered, 1, ""},
		{"202", []testhost.KeikiFault{after(status(202, ``))}, delivered, 1, ""},
		{"204", []testhost.KeikiFault{after(status(204, ""))}, delivered, 1, ""},
		{"a lost answer", []testhost.KeikiFault{{Drop: true, After: true}}, delivered, 2, ""},
		{"a lost request", []testhost.KeikiFault{{Drop: true}}, delivered, 2, ""},
		{"lost again and again", []testhost.KeikiFault{{Drop: true, After: true}, {Drop: true}, {Drop: true}, {Drop: true, After: true}}, delivered, 5, ""},
		{"408", []testhost.KeikiFault{status(408, "")}, delivered, 2, ""},
		{"425", []testhost.KeikiFault{status(425, "")}, delivered, 2, ""},
		{"429", []testhost.KeikiFault{status(429, errorBody("rate_limited"))}, delivered, 2, ""},
		{"500", []testhost.KeikiFault{status(500, errorBody("internal"))}, delivered, 2, ""},
		{"500 after delivery", []testhost.KeikiFault{after(status(500, errorBody("internal"))), status(500, "")}, delivered, 3, ""},
		{"500 with HTML", []testhost.KeikiFault{status(500, "<html>oops</html>")}, delivered, 2, ""},
		{"502 of a proxy", []testhost.KeikiFault{status(502, "<html>Bad Gateway</html>")}, delivered, 2, ""},
		{"502 without a word", []testhost.KeikiFault{status(502, errorBody("bad_gateway"))}, delivered, 2, ""},
		{"502 retryable", []testhost.KeikiFault{status(502, `{"error":{"code":"x","retryable":true}}`)}, delivered, 2, ""},
		{"503", []testhost.KeikiFault{status(503, "")}, delivered, 2, ""},
		{"504", []testhost.KeikiFault{status(504, "<html>")}, delivered, 2, ""},
		{"502 final", []testhost.KeikiFault{status(502, `{"error":{"code":"delivery_failed","retryable":false}}`)}, goesOn, 1, "502 delivery_failed"},
		{"502 final, flat", []testhost.KeikiFault{status(502, `{"code":"delivery_failed","retryable":false}`)}, goesOn, 1, "502 delivery_failed"},
		{"502 final, as text", []testhost.KeikiFault{status(502, `{"error":"delivery_failed","retryable":false}`)}, goesOn, 1, "502 delivery_failed"},
		{"500, then 502 final", []testhost.KeikiFault{status(500, ""), status(502, `{"retryable":false}`)}, goesOn, 2, ""},
		{"previous_attempt_failed", []testhost.KeikiFault{status(409, errorBody("previous_attempt_failed"))}, goesOn, 1, "409 previous_attempt_failed"},
		{"409 of another kind", []testhost.KeikiFault{status(409, errorBody("conflict"))}, goesOn, 1, "409 conflict"},
		{"turn_closed", []testhost.KeikiFault{status(409, errorBody("turn_closed"))}, over, 1, "409 turn_closed"},
		{"turn_closed, flat", []testhost.KeikiFault{status(409, `{"code":"turn_closed"}`)}, over, 1, "409 turn_closed"},
		{"turn_closed, as text", []testhost.KeikiFault{status(409, `{"error":"turn_closed"}`)}, over, 1, "409 turn_closed"},
		{"404", []testhost.KeikiFault{status(404, errorBody("turn_not_found"))}, over, 1, "404 turn_not_found"},
		{"410", []testhost.KeikiFault{status(410, "")}, over, 1, "410"},
		{"401", []testhost.KeikiFault{status(401, errorBody("invalid_token"))}, over, 1, "401 invalid_token"},
		{"403", []testhost.KeikiFault{status(403, errorBody("forbidden"))}, over, 1, "403 forbidden"},
		{"500, then 401", []testhost.KeikiFault{status(500, ""), status(401, "")}, over, 2, "401"},
		{"400", []testhost.KeikiFault{status(400, errorBody("invalid_request"))}, fails, 1, "400 invalid_request"},
		{"413", []testhost.KeikiFault{status(413, "")}, fails, 1, "413"},
		{"422", []testhost.KeikiFault{status(422, "")}, fails, 1, "422"},
		{"405", []testhost.KeikiFault{status(405, "<html>")}, fails, 1, "405"},
		{"301", []testhost.KeikiFault{{Redirect: elsewhere.URL, Status: 301}}, fails, 1, "301"},
		{"302", []testhost.KeikiFault{{Redirect: elsewhere.URL, Status: 302}}, fails, 1, "302"},
		{"307", []testhost.KeikiFault{{Redirect: elsewhere.URL}}, fails, 1, "307"},
		{"308", []testhost.KeikiFault{{Redirect: elsewhere.URL, Status: 308}}, fails, 1, "308"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				err := w.Text("one\n\ntwo\n\n")
				if test.fate == fails || test.fate == over {
					<-ctx.Done() // the turn ends while its adapter waits
					err = context.Cause(ctx)
				} else if err == nil {
					err = w.Text("three")
				}
				ended <- err
				return err
			}), plays("messages", append([]testhost.KeikiFault{{}}, test.steps...)...))
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			cause := <-ended
			g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })

			texts := []string{"one", "two", "three"}
			completions := []string{`{"status":"completed"}`}
			switch test.fate {
			case goesOn:
				texts = []string{"one", "three"}
			case fails:
				texts = texts[:1]
				completions = []string{`{"status":"failed","error":"The platform refused a message of the agent."}`}
			case over:
				texts = texts[:1]
				completions = nil
			}
			if diff := cmp.Diff(texts, g.platform.Texts(d.ID)); diff != "" {
				t.Errorf("delivered (-want +got):\n%s", diff)
			}
			var got []string
			for _, r := range g.tries(d.ID, "complete") {
				got = append(got, string(r.Body))
			}
			if diff := cmp.Diff(completions, got); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
			tries := map[string]int{}
			for _, s := range g.platform.Sends(d.ID) {
				tries[s.Text] += s.Tries
			}
			if tries["one"] != 1 || tries["two"] != test.tries || tries["three"] > 1 {
				t.Errorf("tries %v, want %d of the second", tries, test.tries)
			}
			if (test.fate == fails || test.fate == over) && (!errors.Is(cause, context.Canceled) || tries["three"] > 0) {
				t.Errorf("the adapter's context ended with %v; the third message was tried %d times", cause, tries["three"])
			}
			if !strings.Contains(g.log.String(), test.log) || strings.Contains(g.log.String(), "<html>") {
				t.Errorf("%q is not in the log:\n%s", test.log, g.log)
			}
			if n := strings.Count(g.log.String(), `"level":"ERROR"`); (test.fate == fails || test.name[len(test.name)-3:] == "401" || test.name == "403") != (n == 1) || n > 1 {
				t.Errorf("%d errors in the log:\n%s", n, g.log)
			}
		})
	}
	if got := elsewhere.heard(); len(got) > 0 {
		t.Errorf("a redirect was followed: %v", got)
	}
}

// TestErrorShapes: the platform's own errors, in each shape that they may have.
func TestErrorShapes(t *testing.T) {
	t.Parallel()
	for _, shape := range []testhost.KeikiErrorShape{testhost.KeikiErrorNested, testhost.KeikiErrorFlat, testhost.KeikiErrorText} {
		g := newRig(t, says("one\n\ntwo\n\nthree"), func(c *rigConfig) {
			c.platform.Errors = shape
			c.platform.Deliver = func(d testhost.KeikiDelivery) error {
				if d.Text == "two" {
					return errors.New("no signal")
				}
				return nil
			}
		})
		d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
		if o := g.outcome(d.ID); o.Status != "completed" {
			t.Errorf("%s: %+v", shape, o)
		}
		if diff := cmp.Diff([]string{"one", "three"}, g.platform.Texts(d.ID)); diff != "" {
			t.Errorf("%s: delivered (-want +got):\n%s", shape, diff)
		}
		if sends := g.platform.Sends(d.ID); len(sends) != 3 || sends[1].Tries != 1 || sends[1].State != testhost.KeikiUnknown {
			t.Errorf("%s: %+v", shape, sends)
		}
		if !strings.Contains(g.log.String(), "nobody knows whether a message was delivered") {
			t.Errorf("%s: it is not reported:\n%s", shape, g.log)
		}
	}
}

// TestFaultG4LostAnswers: answers get lost after each message was taken, then the server fails twice: each
// text is there once, each key is one text's.
func TestFaultG4LostAnswers(t *testing.T) {
	t.Parallel()
	lost := testhost.KeikiFault{Drop: true, After: true}
	fails := testhost.KeikiFault{Status: 500}
	g := newRig(t, says("one\n\ntwo\n\nthree"), plays("messages", lost, fails, fails, testhost.KeikiFault{}, lost, testhost.KeikiFault{}, lost))
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if diff := cmp.Diff([]string{"one", "two", "three"}, g.platform.Texts(d.ID)); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
	for i, want := range []int{4, 2, 2} {
		if s := g.platform.Sends(d.ID)[i]; s.Tries != want {
			t.Errorf("message %d was tried %d times, want %d", i, s.Tries, want)
		}
	}
}

// TestAnswersThatAreCutOff: a 2xx settles what was sent, though the rest of the answer does not come.
func TestAnswersThatAreCutOff(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("one\n\ntwo"), func(c *rigConfig) {
		inner := &http.Transport{}
		t.Cleanup(inner.CloseIdleConnections)
		c.push.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := inner.RoundTrip(r)
			if err == nil {
				resp.Body = cutOff{resp.Body}
			}
			return resp, err
		})
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
	if m, c := g.count(d.ID, "messages"), g.count(d.ID, "complete"); m != 2 || c != 1 {
		t.Errorf("%d messages and %d completions were sent", m, c)
	}
}

// A cutOff is a body whose connection breaks.
type cutOff struct{ io.ReadCloser }

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestRetryAfter: the platform's own pause is kept to, in seconds and as a date, for messages and completions.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for route, f := range map[string]func() testhost.KeikiFault{
		"messages": func() testhost.KeikiFault { return testhost.KeikiFault{Status: 429, RetryAfter: "1"} },
		"complete": func() testhost.KeikiFault {
			return testhost.KeikiFault{Status: 503, RetryAfter: time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)}
		},
	} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			first := true
			g := newRig(t, says("one"), func(c *rigConfig) {
				var mu sync.Mutex
				c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					mu.Lock()
					defer mu.Unlock()
					if !first || !strings.HasSuffix(r.URL.Path, route) {
						return testhost.KeikiFault{}
					}
					first = false
					return f()
				}
			})
			d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
			if o := g.outcome(d.ID); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			list := g.tries(d.ID, route)
			if len(list) != 2 {
				t.Fatalf("%d tries", len(list))
			}
			// A date has whole seconds.
			if pause := list[1].At.Sub(list[0].At); pause < 990*time.Millisecond || pause > 10*time.Second {
				t.Errorf("the pause was %v", pause)
			}
		})
	}
}

// TestRetryAfterTheDeadline: a pause that the deadline does not allow for ends before it, with another try.
func TestRetryAfterTheDeadline(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"messages", "complete"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			g := newRig(t, says("one\n\ntwo"), func(c *rigConfig) {
				c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, route) && calls.Add(1) == 1 {
						return testhost.KeikiFault{Status: 429, RetryAfter: "3600"}
					}
					return testhost.KeikiFault{}
				}
			})
			d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: 5 * time.Second})
			if o := g.outcome(d.ID); o.Status != "completed" || len(g.platform.Texts(d.ID)) != 2 {
				t.Errorf("outcome %+v, messages %q", o, g.platform.Texts(d.ID))
			}
			list := g.tries(d.ID, route)
			if pause := list[1].At.Sub(list[0].At); pause < 2*time.Second {
				t.Errorf("the pause was %v", pause)
			}
		})
	}
}

// TestSettlementOfCompletions: one completion, until it is acknowledged.
func TestSettlementOfCompletions(t *testing.T) {
	t.Parallel()
	elsewhere := newEavesdropper(t)
	status := func(code int, body string) testhost.KeikiFault { return testhost.KeikiFault{Status: code, Body: body} }
	after := func(f testhost.KeikiFault) testhost.KeikiFault { f.After = true; return f }
	for _, test := range []struct {
		name  string
		steps []testhost.KeikiFault
		tries int
		log   string
	}{
		{"200", nil, 1, ""},
		{"204", []testhost.KeikiFault{after(status(204, ""))}, 1, ""},
		{"200 with HTML", []testhost.KeikiFault{after(status(200, "<html>"))}, 1, ""},
		{"a lost answer", []testhost.KeikiFault{{Drop: true, After: true}}, 2, ""},
		{"a lost request", []testhost.KeikiFault{{Drop: true}, {Drop: true}, {Drop: true}}, 4, ""},
		{"429", []testhost.KeikiFault{status(429, "")}, 2, ""},
		{"500", []testhost.KeikiFault{status(500, ""), after(status(500, "")), status(503, "<html>")}, 4, ""},
		{"502", []testhost.KeikiFault{status(502, "<html>")}, 2, ""},
		{"turn_closed", []testhost.KeikiFault{status(409, errorBody("turn_closed"))}, 1, "the platform has closed the turn"},
		{"404", []testhost.KeikiFault{status(404, "")}, 1, "the platform has closed the turn"},
		{"401", []testhost.KeikiFault{status(401, "")}, 1, "the turn could not be completed"},
		{"403", []testhost.KeikiFault{status(403, "")}, 1, "the turn could not be completed"},
		{"400", []testhost.KeikiFault{status(400, "")}, 1, "the turn could not be completed"},
		{"307", []testhost.KeikiFault{{Redirect: elsewhere.URL}}, 1, "the turn could not be completed"},
	} {
		for _, failing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/failing=%v", test.name, failing), func(t *testing.T) {
				t.Parallel()
				g := newRig(t, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
					_ = w.Text("one\n\n")
					if failing {
						return adapters.Public("It is closed today.", nil)
					}
					return nil
				}), plays("complete", test.steps...))
				d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
				g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
				want := `{"status":"completed"}`
				if failing {
					want = `{"status":"failed","error":"It is closed today."}`
				}
				list := g.tries(d.ID, "complete")
				if len(list) != test.tries {
					t.Errorf("%d tries, want %d", len(list), test.tries)
				}
				for _, r := range list {
					if string(r.Body) != want {
						t.Errorf("completion %s", r.Body)
					}
				}
				if diff := cmp.Diff([]string{"one"}, g.platform.Texts(d.ID)); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
				if !strings.Contains(g.log.String(), test.log) {
					t.Errorf("%q is not in the log:\n%s", test.log, g.log)
				}
			})
		}
	}
	if got := elsewhere.heard(); len(got) > 0 {
		t.Errorf("a redirect was followed: %v", got)
	}
}

// TestARefusedMessageIsCompletedForSure: the failed completion of a turn whose message was refused is
// repeated like any other.
func TestARefusedMessageIsCompletedForSure(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} { // the adapter, for its end
		s := &script{steps: map[string][]testhost.KeikiFault{
			"messages": {{Status: 400}},
			"complete": {{Status: 500}, {Drop: true}, {Status: 429}},
		}}
		g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			err := w.Text("one\n\ntwo")
			if waits {
				<-ctx.Done()
			}
			return err
		}), func(c *rigConfig) { c.platform.Fault = s.fault })
		d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: 20 * time.Second})
		if o := g.outcome(d.ID); o.Status != "failed" || o.Error != "The platform refused a message of the agent." {
			t.Errorf("outcome %+v", o)
		}
		if n := len(g.tries(d.ID, "complete")); n != 4 {
			t.Errorf("%d tries", n)
		}
	}
}

// TestAnUnreachablePlatform: a message is tried until the deadline, and the turn then ends.
func TestAnUnreachablePlatform(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("one\n\ntwo"), func(c *rigConfig) {
		c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
			return testhost.KeikiFault{Drop: strings.HasSuffix(r.URL.Path, "/messages")}
		}
	})
	began := time.Now()
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: 1500 * time.Millisecond})
	o := g.outcome(d.ID)
	g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
	if took := time.Since(began); took < 700*time.Millisecond || took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if o.Status != "failed" || len(g.tries(d.ID, "messages")) < 3 || len(g.platform.Texts(d.ID)) > 0 {
		t.Errorf("outcome %+v after %d tries", o, len(g.tries(d.ID, "messages")))
	}
	keys := map[string]bool{}
	for _, s := range g.platform.Sends(d.ID) {
		keys[s.Key] = true
	}
	if len(keys) != 1 {
		t.Errorf("keys %v", keys)
	}
}

// TestMessagesSettleOneAfterTheOther: the next one waits, also where the adapter is far ahead; the platform
// checks it too.
func TestMessagesSettleOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var under sync.Mutex
	var order []string
	g := newRig(t, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		var all sync.WaitGroup
		defer all.Wait()
		for i := range 50 {
			if err := w.Text(fmt.Sprintf("message %d\n\n", i)); err != nil {
				return err
			}
		}
		return nil
	}), func(c *rigConfig) {
		c.platform.Deliver = func(d testhost.KeikiDelivery) error {
			if !under.TryLock() {
				t.Error("two messages at once")
				return nil
			}
			defer under.Unlock()
			order = append(order, d.Text)
			return nil
		}
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	g.outcome(d.ID)
	under.Lock()
	defer under.Unlock()
	if len(order) != 50 || !slices.IsSortedFunc(order, func(a, b string) int {
		var x, y int
		_, _ = fmt.Sscanf(a, "message %d", &x)
		_, _ = fmt.Sscanf(b, "message %d", &y)
		return x - y
	}) {
		t.Errorf("order %q", order)
	}
}

// TestMessagesLeaveWhileTheAdapterRuns: the adapter goes on only once its first paragraph has been delivered.
func TestMessagesLeaveWhileTheAdapterRuns(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 10)
	g := newRig(t, adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for _, p := range []string{"one", "two", "three"} {
			if err := w.Text(p + "\n \t\r\n"); err != nil {
				return err
			}
			select {
			case got := <-arrived:
				if got != p {
					t.Errorf("%q arrived, want %q", got, p)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}), func(c *rigConfig) {
		c.platform.Deliver = func(d testhost.KeikiDelivery) error { arrived <- d.Text; return nil }
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
}

// TestAnAdapterThatIsFarAhead is held back while the platform is slow, and nothing of what it says is lost.
func TestAnAdapterThatIsFarAhead(t *testing.T) {
	t.Parallel()
	const messages = 1500
	paragraph := strings.Repeat("words and more words, ", 100)
	var written atomic.Int64
	hold := make(chan struct{})
	g := newRig(t, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := range messages {
			if err := w.Text(fmt.Sprintf("%d: %s\n\n", i, paragraph)); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	}), func(c *rigConfig) {
		c.platform.Deliver = func(testhost.KeikiDelivery) error { <-hold; return nil }
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	last := int64(-1)
	g.until("the adapter waits", func() bool {
		now := written.Load()
		same := now == last && now > 0
		last = now
		return same
	})
	close(hold)
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if last == messages {
		t.Error("the adapter was not held back")
	}
	got := g.platform.Texts(d.ID)
	if len(got) != messages {
		t.Errorf("%d messages", len(got))
	}
	for i, text := range got {
		if want := fmt.Sprintf("%d: %s", i, strings.TrimSpace(paragraph)); text != want {
			t.Errorf("message %d is %.60q…", i, text)
		}
	}
}
