package keiki_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime/keiki"
)

// A stuck body never comes to its end, whatever becomes of the request.
type stuckBody struct{ closed chan struct{} }

func (b stuckBody) Read([]byte) (int, error) { <-b.closed; return 0, io.ErrUnexpectedEOF }
func (b stuckBody) Close() error             { close(b.closed); return nil }

// oddly passes requests on, and spoils the answers to those that match.
type oddly struct {
	http.RoundTripper
	path  string
	spoil func(*http.Response)
}

func (o oddly) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := o.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, o.path) {
		o.spoil(res)
	}
	return res, err
}

func odd(t *testing.T, path string, spoil func(*http.Response)) func(*rigConfig) {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return func(c *rigConfig) { c.push.Transport = oddly{transport, path, spoil} }
}

// TestSwitchingProtocols: after a 101 no context ends the connection, so its body must not be read.
func TestSwitchingProtocols(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 100)
	g := newRig(t, says("hello"), odd(t, "/messages", func(res *http.Response) {
		_ = res.Body.Close()
		res.StatusCode = http.StatusSwitchingProtocols
		res.Body = stuckBody{make(chan struct{})}
		closed <- struct{}{}
	}))
	g.complaints[testhost.RuleAfterClosed] = true // what the platform answered did not come
	began := time.Now()
	d := g.dispatch(testhost.KeikiTurn{Text: "hi", Timeout: 3 * time.Second})
	o := g.outcome(d.ID)
	g.until("the turn is over", func() bool { return g.engine.Stats().Active == 0 })
	if o.Status != "failed" || len(closed) < 2 || time.Since(began) > 25*time.Second {
		t.Errorf("after %v and %d answers: %+v", time.Since(began), len(closed), o)
	}
}

// TestA2xxSettlesWithoutItsBody, which may never come.
func TestA2xxSettlesWithoutItsBody(t *testing.T) {
	t.Parallel()
	g := newRig(t, says("one\n\ntwo"), odd(t, "/messages", func(res *http.Response) {
		body := res.Body
		res.Body = struct {
			io.Reader
			io.Closer
		}{&dripping{}, body}
	}))
	began := time.Now()
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if o := g.outcome(d.ID); o.Status != "completed" || time.Since(began) > 20*time.Second {
		t.Errorf("after %v: %+v", time.Since(began), o)
	}
}

// dripping gives an endless answer as fast as it is read.
type dripping struct{}

func (*dripping) Read(p []byte) (int, error) { p[0] = ' '; return 1, nil }

// TestFaultE6NoPieceOfAnAnswerIsLogged: a platform that names the token in a key, twice, is not quoted.
func TestFaultE6NoPieceOfAnAnswerIsLogged(t *testing.T) {
	t.Parallel()
	taken := make(chan struct{})
	g := newRig(t, taker{func(ctx context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
		<-taken
		return nil
	}}, func(c *rigConfig) {
		c.platform.Fault = func(r *http.Request, _ int) testhost.KeikiFault {
			if !strings.HasSuffix(r.URL.Path, "/arrivals") {
				return testhost.KeikiFault{}
			}
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			return testhost.KeikiFault{Status: 200, Body: fmt.Sprintf(`{"arrivals":[],%q:1,%q:2}`, token, token)}
		}
	})
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	if a, err := g.platform.PushArrival(t.Context(), d.ID, 2, testhost.KeikiMessage{Text: "more"}); err != nil || a.Status != http.StatusAccepted {
		t.Fatalf("%+v, %v", a, err)
	}
	g.until("a pull was answered so", func() bool { return strings.Contains(g.log.String(), "no page of arrivals") })
	close(taken)
	g.outcome(d.ID)
	g.noSecret(g.log.String())
}

// TestAgentsOfLikeNamesHaveSessionsOfTheirOwn: one without a conversation, and one that is called so.
func TestAgentsOfLikeNamesHaveSessionsOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := make(chan bool, 2)
	g := newRig(t, adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
		var v int
		had, err := turn.Session.Load("n", &v)
		seen <- had
		if err != nil {
			return err
		}
		return turn.Session.Store("n", 1)
	}), func(c *rigConfig) {
		c.platform.Secrets["a"], c.platform.Secrets["a:turn"] = []string{testSecret}, []string{testSecret}
	})
	first := g.dispatch(testhost.KeikiTurn{AgentID: "a", ID: "conv-1", Text: "hi", Edit: func(body []byte) []byte {
		return []byte(strings.Replace(string(body), `"conversationId"`, `"other"`, 1))
	}})
	g.outcome(first.ID)
	g.until("it is over", func() bool { return g.engine.Stats().Active == 0 })
	second := g.dispatch(testhost.KeikiTurn{AgentID: "a:turn", ConversationID: "conv-1", Text: "hi"})
	g.outcome(second.ID)
	for range 2 {
		if !<-seen {
			continue
		}
		t.Error("one agent saw what another had stored")
	}
}

// TestTheOneThatAllOthersAreHeldForIsTaken although as many wait as may.
func TestTheOneThatAllOthersAreHeldForIsTaken(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	count := 0
	g := newRig(t, taker{func(_ context.Context, in <-chan adapters.Arrival, _ adapters.Writer) error {
		<-goOn
		for range 257 {
			<-in
			count++
		}
		return nil
	}})
	keiki.SetGapPatience(g.handler, time.Minute)
	d := g.dispatch(testhost.KeikiTurn{Text: "hi"})
	for seq := int64(2); seq <= 257; seq++ {
		g.arrive(d.ID, seq, http.StatusAccepted, "")
	}
	g.arrive(d.ID, 1, http.StatusAccepted, "")
	close(goOn)
	if o := g.outcome(d.ID); o.Status != "completed" || len(o.Consumed) != 257 || count != 257 {
		t.Errorf("%d arrivals were taken: %+v", count, o)
	}
}
