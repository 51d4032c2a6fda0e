package external_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/internal/soak"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
	wire "github.com/backline-dev/backline/schema/external"
)

// The crash tests run a server in a process of its own, this test binary with childEnv set to the
// folder of its ledger, and kill it.
const (
	childEnv = "BACKLINE_TEST_CHILD"
	// stopEnv is the stop point at which the child kills itself with signal 9.
	stopEnv = "BACKLINE_TEST_STOP"
)

func childMain() int {
	dir, stop := os.Getenv(childEnv), os.Getenv(stopEnv)
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	if stop != "" {
		external.SetStopHook(func(name string) {
			if name == stop {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // until it arrives
			}
		})
	}
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "ledger.db"), sqlite.Config{})
	if err != nil {
		return fail(err)
	}
	calls, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(err)
	}
	play := scripted.New(scripted.Config{AllowExit: true})
	engine, err := runtime.New(runtime.Config{Logger: quiet})
	if err != nil {
		return fail(err)
	}
	h, err := external.New(external.Config{
		Engine: engine, Store: store, OperatorToken: operatorToken,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if _, err := calls.WriteString(turn.ID + "\n"); err != nil {
				return err
			}
			return play.Run(ctx, turn, w)
		}),
	})
	if err != nil {
		return fail(err)
	}
	if _, err := h.Recover(ctx); err != nil {
		return fail(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	fmt.Println(l.Addr())
	return fail(http.Serve(l, h)) //nolint:gosec // a test's server, which is killed
}

// A child is a server that may be killed at any time.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	base   string
	client *http.Client
	stderr *lockedBuffer
	exited chan struct{}
}

func startChild(t testing.TB, dir, stop string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0]), stderr: &lockedBuffer{}, exited: make(chan struct{}), client: &http.Client{Transport: &http.Transport{}}}
	c.cmd.Env = append(os.Environ(), childEnv+"="+dir, stopEnv+"="+stop)
	c.cmd.Stderr = c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = c.cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(c.kill)
	if err != nil {
		t.Fatalf("the child did not start: %v\n%s", err, c.stderr.String())
	}
	c.base = "http://" + strings.TrimSpace(addr) + "/external-runtime/"
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.exited
	c.client.CloseIdleConnections()
}

// died waits for the child to end by itself.
func (c *child) died() {
	c.t.Helper()
	select {
	case <-c.exited:
	case <-time.After(20 * time.Second):
		c.t.Fatal("the child has not died")
	}
	c.client.CloseIdleConnections()
}

// do sends a request; the error is that of a server that died.
func (c *child) do(method, path string, body []byte) (reply, error) {
	q, err := http.NewRequest(method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	q.Header.Set("Authorization", "Bearer "+operatorToken)
	r, err := c.client.Do(q)
	if err != nil {
		return reply{}, err
	}
	b, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	return reply{c.t, r.StatusCode, r.Header, string(b), err}, err
}

func (c *child) must(method, path string, body []byte) reply {
	c.t.Helper()
	r, err := c.do(method, path, body)
	if err != nil || r.status >= 300 {
		c.t.Fatalf("%s %s: %d %v %s\n%s", method, path, r.status, err, r.body, c.stderr.String())
	}
	return r
}

func (c *child) admit() {
	c.t.Helper()
	c.must("PUT", "profiles/"+profileRef, aProfile().json())
	c.must("PUT", "bindings/"+bindingRef, aBinding().sealed().json())
}

func (c *child) outcome(turn string) *wire.Outcome {
	c.t.Helper()
	o, err := wire.ParseOutcome([]byte(c.must("GET", "turns/"+url.PathEscape(turn), nil).body))
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// calls counts the calls of the adapter by turn, over all lives of the server.
func calls(t testing.TB, dir string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	n := map[string]int{}
	for line := range strings.Lines(string(b)) {
		n[strings.TrimSpace(line)]++
	}
	return n
}

// Fault G3: the process dies between each two facts. No committed fact is lost, no adapter is called a
// second time, nothing is charged twice, and an end that nobody saw is unknown.
func TestFaultG3TheProcessDies(t *testing.T) {
	t.Parallel()
	dieAtEachPoint(t, 1)
}

// TestSoakFaultG3 is TestFaultG3TheProcessDies with many more deaths, spread over the points.
func TestSoakFaultG3(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	dieAtEachPoint(t, 1+soak.Kills(t, 1)/10)
}

func dieAtEachPoint(t *testing.T, rounds int) {
	t.Helper()
	plain := aRequest("turn:1", script(`{"text":"x"}`, goodUsage))
	tool := aRequest("turn:1", script(toolStep, goodUsage))
	refused := aRequest("turn:1", "x").with("passage/no", 9)
	for _, c := range []struct {
		stop    string
		request doc
		goesOn  bool // it dies at a continue
		calls   int
		again   string // what the same request gets afterwards
		outcome string // what the turn's outcome is then
	}{
		{stop: "reserving", request: plain, calls: 1, again: "completed/completed", outcome: "completed/completed"},
		{stop: "reserved", request: plain, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "dispatched", request: plain, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "calling", request: plain, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "", request: aRequest("turn:1", script(`{"text":"x"}`, `{"exit":3}`)), calls: 1, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "settling", request: plain, calls: 1, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "settled", request: plain, calls: 1, again: "completed/completed", outcome: "completed/completed"},
		{stop: "suspending", request: tool, calls: 1, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "suspended", request: tool, calls: 1, again: "", outcome: "unknown/unknown"},
		{stop: "continuing", request: tool, goesOn: true, calls: 1, again: "refused/event-unauthorized", outcome: "unknown/unknown"},
		{stop: "continued", request: tool, goesOn: true, calls: 1, again: "unknown/unknown", outcome: "unknown/unknown"},
		{stop: "refusing", request: refused, again: "refused/policy-denied", outcome: "refused/policy-denied"},
		{stop: "refused", request: refused, again: "refused/policy-denied", outcome: "refused/policy-denied"},
	} {
		for round := range rounds {
			t.Run(fmt.Sprintf("%s/%d", c.stop, round), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				server := startChild(t, dir, c.stop)
				server.admit()
				q := c.request
				var start reply
				if c.goesOn {
					start = server.must("POST", "turns", q.json())
					q = q.answering("key:c", start.asked())
				}
				if r, err := server.do("POST", "turns", q.json()); err == nil {
					t.Fatalf("the server did not die: %d %s", r.status, r.body)
				}
				server.died()
				before := calls(t, dir)["turn:1"]

				server = startChild(t, dir, "")
				again := server.must("POST", "turns", q.json())
				if c.again != "" {
					again.ends(c.again)
				} else if again.asked() == "" { // the start of a turn that was suspended: as it was
					t.Error("the replay asks for nothing")
				}
				if n := calls(t, dir)["turn:1"]; n != c.calls || before > 0 && n != before {
					t.Errorf("%d calls, %d before the restart, want %d", n, before, c.calls)
				}
				o := server.outcome("turn:1")
				if got := string(o.Status) + "/" + string(o.ReasonCode); got != c.outcome {
					t.Errorf("the outcome is %s, want %s", got, c.outcome)
				}
				var want wire.Usage
				switch o.Status {
				case wire.StatusUnknown:
					want = wire.Usage(o.BudgetReserved)
					if o.Retryability != wire.ReconciliationRequired {
						t.Errorf("retryability %s", o.Retryability)
					}
				case wire.StatusCompleted:
					want = wire.Usage{MaxTokens: 3, MaxCostMicros: 2, MaxWallTimeMS: 5, MaxSteps: 1}
				}
				if o.BudgetCharged != want {
					t.Errorf("charged %+v, want %+v", o.BudgetCharged, want)
				}
				if c.goesOn {
					if r := server.must("POST", "turns", c.request.json()); r.body != start.body {
						t.Errorf("the start's replay differs:\n%s\n%s", start.body, r.body)
					}
				}
				if r := server.must("POST", "turns", q.json()); r.body != again.body {
					t.Errorf("the second replay differs:\n%s\n%s", again.body, r.body)
				}
				server.kill()

				// Once more, and nothing has changed.
				server = startChild(t, dir, "")
				if after := server.outcome("turn:1"); *after != *o {
					t.Errorf("the outcome became %+v, was %+v", after, o)
				}
				if r := server.must("POST", "turns", q.json()); r.body != again.body {
					t.Errorf("the replay after another start differs:\n%s\n%s", again.body, r.body)
				}
			})
		}
	}
}

// Killed at random, again and again, with hosts that send what they got no answer to: what a host was told
// stays so, no adapter is called twice, and every turn that was dispatched has an outcome with a charge.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	killAtRandom(t, 3)
}

// TestSoakRandomKills is TestRandomKills with many more kills.
func TestSoakRandomKills(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	killAtRandom(t, soak.Kills(t, 3))
}

func killAtRandom(t *testing.T, rounds int) {
	t.Helper()
	dir := t.TempDir()
	type told struct {
		q    doc
		body string
	}
	var all []told
	turns := 0
	for round := range rounds {
		server := startChild(t, dir, "")
		if round == 0 {
			server.admit()
		}
		var mu sync.Mutex
		var heard []told
		var hosts sync.WaitGroup
		for i := range 4 {
			first := turns
			hosts.Go(func() {
				for n := 0; ; n++ {
					name := fmt.Sprintf("turn:%d:%d:%d", first, i, n)
					q := aRequest(name, script(`{"text":"x"}`, toolStep, goodUsage))
					if n%3 != 0 {
						q = aRequest(name, goodScript)
					}
					r, err := server.do("POST", "turns", q.json())
					if err != nil {
						return
					}
					mu.Lock()
					heard = append(heard, told{q, r.body})
					mu.Unlock()
					if n%3 != 0 {
						continue
					}
					c := q.answering("key:c:"+name, r.asked())
					if r, err = server.do("POST", "turns", c.json()); err != nil {
						return
					}
					mu.Lock()
					heard = append(heard, told{c, r.body})
					mu.Unlock()
				}
			})
		}
		turns++
		some := 1 + rand.IntN(40)
		eventually(t, "turns have been answered", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(heard) >= some
		})
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // anywhere in what goes on then
		server.kill()
		hosts.Wait()
		all = append(all, heard...)
	}
	server := startChild(t, dir, "")
	completed := 0
	for _, h := range all {
		r := server.must("POST", "turns", h.q.json())
		if r.body != h.body {
			t.Errorf("%s was answered\n%s\nand is now\n%s", h.q.ref("idempotency/key"), h.body, r.body)
		}
		if strings.Contains(h.body, `"completed"`) {
			completed++
		}
	}
	if completed == 0 {
		t.Error("no turn completed before a kill: nothing was tested")
	}
	for turn, n := range calls(t, dir) {
		if n != 1 {
			t.Errorf("%s: %d calls", turn, n)
		}
		o := server.outcome(turn)
		measured := wire.Usage{MaxTokens: 3, MaxCostMicros: 2, MaxWallTimeMS: 5, MaxSteps: 1}
		switch {
		case o.Status == wire.StatusCompleted && o.BudgetCharged == measured:
		case o.Status == wire.StatusUnknown && o.BudgetCharged == wire.Usage(o.BudgetReserved):
		default:
			t.Errorf("%s: %+v", turn, o)
		}
	}
}

// The straight path and a suspended turn on a ledger in a file.
func TestOnSQLite(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	g := newRig(t, func(s *setup) { s.conf.Store = store })
	q := aRequest("turn:1", script(`{"remember":{"key":"k","value":1.10}}`, toolStep, `{"recall":"k"}`, goodUsage))
	start := g.post(q)
	c := q.answering("key:c", start.asked())
	end := g.post(c).ends("completed/completed")
	if g.post(q).body != start.body || g.post(c).body != end.body {
		t.Error("a replay differs")
	}
	r := g.do("GET", "products/"+string(g.outcome("turn:1").ProductRef), nil)
	if r.status != 200 || !strings.Contains(r.body, `"content":"admitted:receipt:11.10"`) {
		t.Errorf("product: %d %s", r.status, r.body)
	}
	replies := g.crowd(50, func(int) doc { return aRequest("turn:2", goodScript) })
	for _, r := range replies {
		if r.body != replies[0].body {
			t.Fatal("fifty equal requests have different answers")
		}
	}
	if n := g.adapter.calls.Load(); n != 2 {
		t.Errorf("%d calls", n)
	}
	g.post(aRequest("turn:3", "x").with("passage/no", 9)).ends("refused/policy-denied")
	if w := g.closeSession(); w != "closed" {
		t.Errorf("close: %s", w)
	}
	g.post(aRequest("turn:4", script(`{"recall":"k"}`, goodUsage))).ends("completed/completed")
}
