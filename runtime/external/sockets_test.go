package external_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// patience is how long a test waits for what must happen, on a machine that is busy with other things.
const patience = 20 * time.Second

// versions are the protocols that a server is asked in.
var versions = map[string]func(*httptest.Server){
	"HTTP/1.1": func(*httptest.Server) {},
	"HTTP/2":   func(s *httptest.Server) { s.EnableHTTP2 = true },
}

// over makes the rig's server speak a version, with more of its settings changed.
func over(version string, more ...func(*http.Server)) func(*setup) {
	return func(s *setup) {
		s.server = func(server *httptest.Server) {
			versions[version](server)
			for _, change := range more {
				change(server.Config)
			}
		}
	}
}

// together runs parts of a test at the same time, each on a goroutine of its own. They mostly wait; as
// subtests they would wait for one another too, since there are only as many at once as processors. Fatal
// ends the part that calls it, and fails the test.
func together(parts ...func()) {
	var all sync.WaitGroup
	for _, part := range parts {
		all.Go(part)
	}
	all.Wait()
}

// both makes one of several changes to a setup.
func both(changes ...func(*setup)) func(*setup) {
	return func(s *setup) {
		for _, change := range changes {
			change(s)
		}
	}
}

// A stream is an answer that is read line by line.
type stream struct {
	*http.Response
	t     testing.TB
	lines *bufio.Reader
	read  string
	close func()
}

// stream sends a turn request and returns when the header of the answer is there.
func (g *rig) stream(d doc) *stream {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := g.send(ctx, "POST", "turns", d.json()) //nolint:bodyclose // the stream's close does
	if err != nil {
		cancel()
		g.t.Fatal(err)
	}
	s := &stream{Response: r, t: g.t, lines: bufio.NewReader(r.Body), close: func() {
		cancel()
		_ = r.Body.Close()
	}}
	g.t.Cleanup(s.close)
	if r.StatusCode != http.StatusOK {
		g.t.Fatalf("POST: %s", r.Status)
	}
	return s
}

// next reads an event.
func (s *stream) next() *wire.Event {
	s.t.Helper()
	line, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Fatalf("after %q: %v", s.read, err)
	}
	s.read += line
	e, err := wire.ParseEvent([]byte(line))
	if err != nil {
		s.t.Fatalf("%v in %q", err, line)
	}
	return e
}

// rest reads to the end.
func (s *stream) rest() reply {
	s.t.Helper()
	more, err := io.ReadAll(s.lines)
	return reply{s.t, s.StatusCode, s.Header, s.read + string(more), err}
}

// candidates is an adapter that emits an action candidate whenever go gets something, and then completes.
func candidates(lead <-chan struct{}, n int) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for range n {
			select {
			case <-lead:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := w.Candidate(candidateOf(turn.ID)); err != nil {
				return err
			}
		}
		return finish(w)
	})
}

// candidateOf is an action candidate of a turn.
func candidateOf(turn string, changes ...any) []byte {
	return doc{
		"schema": "agent.external-runtime.event.v1", "turn/ref": turn, "kind": "action-candidate",
		"action/schema": "act.v1", "action/digest": wire.ContentDigest(nil),
	}.with(changes...).json()
}

// finish gives a turn what it needs to complete.
func finish(w adapters.Writer) error {
	return errors.Join(w.Text("x"), w.Usage(adapters.Usage{
		Tokens: adapters.Count(3), CostMicros: adapters.Count(2), WallTimeMS: adapters.Count(5), Steps: adapters.Count(1),
	}))
}

// Whatever a host can ask for gets the same answer over either version.
func TestOverBothVersions(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, over(version))
			q := aRequest("turn:1", script(`{"text":"a"}`, toolStep, `{"text":"b"}`, goodUsage))
			start := g.post(q)
			if start.kinds() != "accepted running tool-request awaiting-observation" {
				t.Errorf("the start has %s", start.kinds())
			}
			c := q.answering("key:c", start.asked())
			end := g.post(c).ends("completed/completed")
			if g.post(q).body != start.body || g.post(c).body != end.body {
				t.Error("the replays differ")
			}
			o := g.outcome("turn:1")
			if r := g.do("GET", "products/"+string(o.ProductRef), nil); r.status != 200 || !strings.Contains(r.body, `"content":"aadmitted:receipt:1b"`) {
				t.Errorf("the product is %d %s", r.status, r.body)
			}
			g.post(aRequest("turn:2", "x").with("passage/no", 9)).ends("refused/policy-denied")
			running := g.running(aRequest("turn:3", script(`{"block":true}`)))
			g.cancel("turn:3")
			(<-running).ends("cancelled/cancelled")
			if w := g.closeSession(); w != "closed" {
				t.Errorf("the session: %s", w)
			}
			g.do("POST", "turns", []byte("{")).problem(400)
			g.do("POST", "turns", q.with("kind", "final").with("input/digest", wire.ContentDigest(nil)).json()).problem(422)
			g.do("POST", "turns", q.with("admitted/by", "other").json()).problem(409)
			g.do("GET", "turns/none", nil).problem(404)
			g.operate("GET", "bindings/"+bindingRef, nil).admission(200, "admitted", "")
			r, err := g.send(context.Background(), "POST", "turns", q.json())
			if err != nil {
				t.Fatal(err)
			}
			if r.Proto[:6] != version[:6] || r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("X-Accel-Buffering") != "no" {
				t.Errorf("%s %v", r.Proto, r.Header)
			}
			g.read(r)
		})
	}
}

// Writers as middleware wraps them, each with some of what the server's own can do.
type (
	unwrapOnly struct{ http.ResponseWriter }
	flushOnly  struct{ http.ResponseWriter }
	neither    struct{ http.ResponseWriter }
)

func (w unwrapOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w flushOnly) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

var wrappers = map[string]func(http.ResponseWriter) http.ResponseWriter{
	"none":        func(w http.ResponseWriter) http.ResponseWriter { return w },
	"Unwrap only": func(w http.ResponseWriter) http.ResponseWriter { return unwrapOnly{w} },
	"Flush only":  func(w http.ResponseWriter) http.ResponseWriter { return flushOnly{w} },
	"neither":     func(w http.ResponseWriter) http.ResponseWriter { return neither{w} },
}

func wrapping(name string) func(*setup) {
	return func(s *setup) {
		s.around = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrappers[name](w), r) })
		}
	}
}

// Fault B1: flush lost in a wrapped ResponseWriter.
func TestFaultB1EachEventArrivesBeforeTheNextIsEmitted(t *testing.T) {
	t.Parallel()
	for version := range versions {
		for name := range wrappers {
			if name == "neither" {
				continue
			}
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				const n = 30
				lead := make(chan struct{})
				g := newRig(t, both(over(version), wrapping(name), func(s *setup) { s.adapter = candidates(lead, n) }))
				time.AfterFunc(patience, func() { g.server.CloseClientConnections() })
				s := g.stream(aRequest("turn:1", "x"))
				for e := s.next(); e.ProgressCode != wire.ProgressRunning; e = s.next() {
				}
				for range n {
					lead <- struct{}{}
					for s.next().Kind != wire.EventActionCandidate { // it arrives before the next one is asked for
					}
				}
				r := s.rest().ends("completed/completed")
				r.grammatical(g.profile)
				if strings.Contains(g.logs.String(), `"WARN"`) {
					t.Errorf("warnings: %s", g.logs.String())
				}
			})
		}
	}
}

// A writer that cannot flush at all has the stream arrive late, but whole; one warning says so.
func TestFaultB1AWriterThatCannotFlush(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, both(over(version), wrapping("neither")))
			for i := range 3 {
				q := aRequest(fmt.Sprintf("turn:%d", i), script(`{"text":"a"}`, toolStep, goodUsage))
				start := g.post(q)
				end := g.post(q.answering("key:c"+q.ref("turn/ref"), start.asked())).ends("completed/completed")
				if again := g.post(q.answering("key:c"+q.ref("turn/ref"), start.asked())); again.body != end.body {
					t.Error("the replay differs")
				}
			}
			if n := strings.Count(g.logs.String(), `"WARN"`); n != 1 || !strings.Contains(g.logs.String(), "cannot flush") {
				t.Errorf("%d warnings, want one about a writer that cannot flush: %s", n, g.logs.String())
			}
		})
	}
}

// warm makes a connection, which on a busy machine may take longer than the server's timeouts allow.
func (g *rig) warm() {
	g.t.Helper()
	eventually(g.t, "the connection", func() bool {
		r, err := g.send(context.Background(), "GET", "turns/none", nil)
		if err != nil {
			return false
		}
		_, err = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return err == nil
	})
}

// short are timeouts that end every long stream, if nobody does something about them.
func short(s *http.Server) {
	s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 500*time.Millisecond, 500*time.Millisecond, time.Minute
}

// Fault B2: server timeouts that end long streams.
func TestFaultB2ForeignServerTimeouts(t *testing.T) {
	t.Parallel()
	var parts []func()
	for version := range versions {
		const pause = 750 * time.Millisecond // longer than each of them
		// ready is a rig whose connection is there.
		ready := func(changes ...func(*setup)) *rig {
			g := newRig(t, both(append(changes, over(version, short), func(s *setup) { s.profile, s.binding = nil, nil })...))
			g.profile = aProfile()
			g.warm()
			g.admit("profiles", aProfile())
			g.admit("bindings", aBinding().sealed())
			return g
		}
		paced := func() {
			g := ready()
			for i := range 2 {
				turn := fmt.Sprintf("turn:%d", i)
				var steps []string
				for range 6 {
					steps = append(steps, `{"sleep":"200ms"}`, strings.ReplaceAll(action(), "turn:1", turn))
				}
				r, reused := g.reusing(aRequest(turn, script(append(steps, `{"text":"x"}`, goodUsage)...)))
				r.ends("completed/completed")
				if n := strings.Count(r.kinds(), "action-candidate"); n != 6 || !reused {
					t.Errorf("turn %d has %d candidates, on a connection used before: %t", i, n, reused)
				}
			}
		}
		silent := func() {
			g := ready()
			q := aRequest("turn:1", script(`{"sleep":"`+pause.String()+`"}`, `{"text":"x"}`, goodUsage))
			if r := g.post(q).ends("completed/completed"); g.post(q).body != r.body {
				t.Error("after a silence the replay differs")
			}
		}
		slowBody := func(q doc, status int, ends string) func() {
			return func() {
				g := ready()
				body := q.json()
				read, write := io.Pipe()
				go func() {
					_, _ = write.Write(body[:100])
					time.Sleep(pause) // the slowness itself
					_, _ = write.Write(body[100:])
					_ = write.Close()
				}()
				r, err := g.client().Post(g.server.URL+"/external-runtime/turns", "application/json", read)
				if err != nil {
					t.Fatalf("after a slow body: %v", err)
				}
				if answer := g.read(r); status == 200 {
					answer.ends(ends)
				} else {
					answer.problem(status)
				}
			}
		}
		slowAnswer := func() {
			store := &slowStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}
			g := ready(func(s *setup) { s.conf.Store = store })
			g.post(aRequest("turn:1", goodScript))
			store.delay.Store(int64(pause))
			for path, status := range map[string]int{"turns/turn:1": 200, "turns/none": 404} {
				if r := g.do("GET", path, nil); r.status != status || r.err != nil {
					t.Errorf("GET %s from a slow ledger: %d %s %v", path, r.status, r.body, r.err)
				}
			}
		}
		good := aRequest("turn:1", goodScript)
		parts = append(parts, paced, silent, slowAnswer,
			slowBody(good, 200, "completed/completed"),
			slowBody(good.with("passage/no", 9), 200, "refused/policy-denied"),
			slowBody(good.with("passage/no", 0), 400, ""))
	}
	together(parts...)
}

// A slowStore takes its time to find a turn.
type slowStore struct {
	ledger.Store
	delay atomic.Int64
}

func (s *slowStore) Turn(ctx context.Context, ref ledger.TurnRef) (ledger.Turn, error) {
	select {
	case <-time.After(time.Duration(s.delay.Load())):
	case <-ctx.Done():
		return ledger.Turn{}, context.Cause(ctx)
	}
	return s.Store.Turn(ctx, ref)
}

// reusing sends a turn and tells whether its connection had served one before.
func (g *rig) reusing(d doc) (r reply, reused bool) {
	g.t.Helper()
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
	answer, err := g.send(ctx, "POST", "turns", d.json())
	if err != nil {
		g.t.Fatal(err)
	}
	return g.read(answer), reused
}

// A silence that is longer than our own limit on a write ends nothing, nor does it end what comes next on
// the connection.
func TestFaultB2APauseLongerThanOurWriteTimeout(t *testing.T) {
	t.Parallel()
	var parts []func()
	for version := range versions {
		parts = append(parts, func() {
			const timeout = 300 * time.Millisecond
			g := newRig(t, both(over(version), func(s *setup) {
				s.engine.Stream.WriteTimeout = timeout
				s.around = func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/other" {
							_, _ = w.Write(bytes.Repeat([]byte("x"), 10_000))
							return
						}
						next.ServeHTTP(w, r)
					})
				}
			}))
			for i, steps := range []string{script(`{"sleep":"600ms"}`, `{"text":"x"}`, goodUsage), goodScript} {
				q := aRequest(fmt.Sprintf("turn:%d", i), steps)
				first, _ := g.reusing(q)
				first.ends("completed/completed")
				time.Sleep(timeout * 3 / 2) // the pause that the fault prescribes
				again, reused := g.reusing(q)
				if again.body != first.body || !reused {
					t.Errorf(version+", turn %d: the replay is the same: %t, on a connection used before: %t", i, again.body == first.body, reused)
				}
				time.Sleep(timeout * 3 / 2)
				res, err := g.client().Get(g.server.URL + "/other")
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				if res.Body.Close(); err != nil || len(body) != 10_000 {
					t.Errorf(version+", after turn %d another handler's answer has %d bytes, %v", i, len(body), err)
				}
			}
		})
	}
	together(parts...)
}

// dial opens a connection to the rig's server, without a client's doing.
func (g *rig) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// A host that sends half its body and stops.
func TestFaultB2HalfABody(t *testing.T) {
	t.Parallel()
	var parts []func()
	for name, change := range map[string]func(*http.Server){
		"no timeouts":           func(*http.Server) {},
		"a longer read timeout": func(s *http.Server) { s.ReadTimeout = time.Hour },
		"short timeouts":        func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = 250*time.Millisecond, 250*time.Millisecond },
	} {
		g := newRig(t, func(s *setup) {
			s.conf.BodyTimeout = 500 * time.Millisecond
			s.binding, s.profile = nil, nil
			s.server = func(server *httptest.Server) { change(server.Config) }
		})
		for framing, body := range map[string]string{"Content-Length: 1000\r\n": `{"schema":"x`, "Transfer-Encoding: chunked\r\n": "c\r\n{\"schema\":\"x\r\n"} {
			for path, header := range map[string]string{
				"POST /external-runtime/turns":               "",
				"PUT /external-runtime/profiles/profile:new": "Authorization: Bearer " + operatorToken + "\r\n",
			} {
				parts = append(parts, func() {
					what := name + ", " + path + ", " + framing
					c := g.dial(t)
					if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: h\r\n%s%s\r\n%s", path, header, framing, body); err != nil {
						t.Fatal(err)
					}
					lines := bufio.NewReader(c)
					res, err := http.ReadResponse(lines, nil)
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					g.read(res).problem(http.StatusRequestTimeout)
					if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
						t.Errorf("%s: after the refusal the connection gives %v, want its end", what, err)
					}
				})
			}
		}
	}
	together(parts...)
}

// A request that is answered before its body is looked at, and whose body then never comes, must not hold
// the connection for ever.
func TestAnAnswerDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.conf.BodyTimeout = 300 * time.Millisecond })
	operator := "Authorization: Bearer " + operatorToken + "\r\n"
	var parts []func()
	for name, tc := range map[string]struct {
		start  string
		header string
		status int
	}{
		"method":        {"PUT /external-runtime/turns", "", 405},
		"path":          {"POST /external-runtime/nothing", "", 404},
		"type":          {"POST /external-runtime/turns", "Content-Type: text/plain\r\n", 415},
		"encoding":      {"POST /external-runtime/turns", "Content-Encoding: br\r\n", 415},
		"operator":      {"PUT /external-runtime/profiles/x", "", 401},
		"a bad ref":     {"PUT /external-runtime/profiles/a%20b", operator, 400},
		"turn":          {"GET /external-runtime/turns/none", "", 404},
		"cancel":        {"POST /external-runtime/turns/none/cancel", "", 404},
		"product":       {"GET /external-runtime/products/none", "", 404},
		"session":       {"DELETE /external-runtime/bindings/none/session", "", 404},
		"profile":       {"GET /external-runtime/profiles/" + profileRef, operator, 200},
		"no such thing": {"DELETE /external-runtime/bindings/none", operator, 404},
	} {
		for _, framing := range []string{"Content-Length: 1000\r\n", "Content-Length: 1000000000\r\n", "Transfer-Encoding: chunked\r\n"} {
			parts = append(parts, func() {
				c := g.dial(t)
				if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: h\r\n%s%s\r\n5\r\n{    ", tc.start, tc.header, framing); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				res.Body.Close()
				if res.StatusCode != tc.status {
					t.Errorf("%s: %s, want %d", name, res.Status, tc.status)
				}
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Errorf("%s, %s: the connection is still open: %v", name, framing, err)
				}
			})
		}
	}
	together(parts...)
}

// A connection is used again after a request with a body that it need not have, and one of HTTP/2 after
// any refusal: other requests are on it too.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, both(over(version), func(s *setup) { s.conf.MaxBody = 64 << 10 }))
			g.warm()
			big := bytes.Repeat([]byte(" "), 1<<20)
			for name, ask := range map[string]func() reply{
				"cancel":    func() reply { return g.do("POST", "turns/none/cancel", []byte("{}")) },
				"turn":      func() reply { return g.do("GET", "turns/none", []byte("{}")) },
				"malformed": func() reply { return g.do("POST", "turns", []byte("{}")) },
				"too large": func() reply { return g.do("POST", "turns", big) },
				"type":      func() reply { return g.do("POST", "turns", big, "Content-Type", "text/plain") },
				"method":    func() reply { return g.do("PUT", "turns", big) },
			} {
				if r := ask(); r.status < 400 || r.status > 415 {
					t.Errorf("%s: %d %s", name, r.status, r.body)
				}
				if version == "HTTP/1.1" && strings.Contains("too large, type, method", name) {
					g.warm()
					continue
				}
				if _, reused := g.reusing(aRequest("turn:"+name, goodScript)); !reused {
					t.Errorf("after %s another connection is made", name)
				}
			}
		})
	}
}

func TestExpectContinue(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for name, tc := range map[string]struct{ header, first string }{
		"may":     {"", "HTTP/1.1 100 Continue\r\n"},
		"no JSON": {"Content-Type: text/plain\r\n", "HTTP/1.1 415 Unsupported Media Type\r\n"},
	} {
		c := g.dial(t)
		body := aRequest("turn:1", goodScript).json()
		if _, err := fmt.Fprintf(c, "POST /external-runtime/turns HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n%sContent-Length: %d\r\n\r\n", tc.header, len(body)); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(c)
		first, err := lines.ReadString('\n')
		if first != tc.first {
			t.Errorf("%s: the first line is %q, %v, want %q", name, first, err, tc.first)
		}
		if name != "may" {
			continue
		}
		_, _ = lines.ReadString('\n')
		if _, err := c.Write(body); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(lines, nil)
		if err != nil {
			t.Fatal(err)
		}
		g.read(res).ends("completed/completed")
	}
}

// An old client's stream ends with the connection.
func TestOverHTTP10(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	c := g.dial(t)
	body := aRequest("turn:1", goodScript).json()
	if _, err := fmt.Fprintf(c, "POST /external-runtime/turns HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	g.read(res).ends("completed/completed")
}
