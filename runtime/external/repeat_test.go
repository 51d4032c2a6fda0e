package external_test

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/soak"
)

// crowd sends n requests at once and returns their answers.
func (g *rig) crowd(n int, q func(i int) doc) []reply {
	g.t.Helper()
	replies := make([]reply, n)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			r, err := g.send(context.Background(), "POST", "turns", q(i).json())
			if err != nil {
				g.t.Error(err)
				return
			}
			replies[i] = g.read(r)
		})
	}
	close(begin)
	all.Wait()
	return replies
}

// Fault G2: however many send one key at the same time, the adapter is called once and all get the same
// bytes; also where it is a refusal, or a continue.
func TestFaultG2TheSameKeyAtTheSameTime(t *testing.T) {
	t.Parallel()
	sendTogether(t, 4)
}

// TestSoakFaultG2 is TestFaultG2TheSameKeyAtTheSameTime with many more turns.
func TestSoakFaultG2(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	sendTogether(t, 4+soak.Turns(t, 1)/100)
}

func sendTogether(t *testing.T, rounds int) {
	t.Helper()
	const callers = 64
	g := newRig(t, nil)
	same := func(round int, name, ends string, replies []reply) {
		for _, r := range replies {
			if r.status != 200 || r.body != replies[0].body {
				t.Fatalf("round %d, %s: %d\n%s\nand\n%s", round, name, r.status, r.body, replies[0].body)
			}
		}
		if ends != "" {
			replies[0].ends(ends)
		}
	}
	for i := range rounds {
		calls := g.adapter.calls.Load()
		q := aRequest(fmt.Sprintf("turn:%d", i), script(`{"text":"x"}`, toolStep, goodUsage))
		start := g.crowd(callers, func(int) doc { return q })
		same(i, "start", "", start)
		c := q.answering(fmt.Sprintf("key:c%d", i), start[0].asked())
		same(i, "continue", "completed/completed", g.crowd(callers, func(int) doc { return c }))
		if n := g.adapter.calls.Load() - calls; n != 1 {
			t.Fatalf("round %d: %d calls", i, n)
		}
		bad := aRequest(fmt.Sprintf("turn:bad:%d", i), "x").with("passage/no", 9)
		same(i, "refusal", "refused/policy-denied", g.crowd(callers, func(int) doc { return bad }))
	}
}

// Many answer one request at the same time, each with a key of its own: one is taken.
func TestOneAnswerIsTaken(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for i := range 5 {
		q := aRequest(fmt.Sprintf("turn:%d", i), script(toolStep, goodUsage))
		start := g.post(q)
		ends := map[string]int{}
		for _, r := range g.crowd(32, func(j int) doc { return q.answering(fmt.Sprintf("key:%d:%d", i, j), start.asked()) }) {
			e := r.last()
			ends[fmt.Sprintf("%s/%s", e.Status, e.ReasonCode)]++
		}
		if ends["completed/completed"] != 1 || ends["refused/event-unauthorized"] != 31 {
			t.Errorf("round %d: %v", i, ends)
		}
	}
}

// Two turns race for one ref, or one key: one runs, the others are told that there is a conflict.
func TestRacingConflicts(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for i := range 5 {
		for name, q := range map[string]func(j int) doc{
			"ref": func(j int) doc {
				return aRequest(fmt.Sprintf("turn:ref:%d", i), goodScript).with("idempotency/key", fmt.Sprintf("key:ref:%d:%d", i, j))
			},
			"key": func(j int) doc {
				return aRequest(fmt.Sprintf("turn:key:%d:%d", i, j), goodScript).with("idempotency/key", fmt.Sprintf("key:key:%d", i))
			},
		} {
			calls := g.adapter.calls.Load()
			statuses := map[int]int{}
			for _, r := range g.crowd(16, q) {
				statuses[r.status]++
			}
			if statuses[200] != 1 || statuses[409] != 15 || g.adapter.calls.Load() != calls+1 {
				t.Errorf("%s %d: %v, %d calls", name, i, statuses, g.adapter.calls.Load()-calls)
			}
		}
	}
}

// Fault G1: the same key, or the same turn, with other bytes is a conflict and changes nothing, while
// the first runs and afterwards.
func TestFaultG1TheSameKeyWithAnotherBody(t *testing.T) {
	t.Parallel()
	g := newRig(t, gated)
	q := aRequest("turn:1", script(`{"text":"x"}`, goodUsage))
	refused := aRequest("turn:2", "x").with("passage/no", 9)
	others := map[string]doc{
		"a letter":       q.with(input(script(`{"text":"y"}`, goodUsage))...),
		"the deadline":   q.with("deadline/at", "2998-01-01T00:00:00Z"),
		"another key":    q.with("idempotency/key", "key:other"),
		"a refused turn": refused.with("passage/no", 8),
		"a refused ref":  refused.with("idempotency/key", "key:other2"),
	}
	done := g.running(q)
	declined := g.post(refused)
	check := func(when string) {
		for name, d := range others {
			r := g.do("POST", "turns", d.json())
			if r.status != 409 || r.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(r.body, `"status":409`) {
				t.Errorf("%s, %s: %d %s", name, when, r.status, r.body)
			}
		}
	}
	check("while it runs")
	g.open()
	first := <-done
	check("after it")
	if again := g.post(q); again.body != first.body {
		t.Errorf("the replay differs:\n%s\n%s", first.body, again.body)
	}
	if again := g.post(refused); again.body != declined.body {
		t.Errorf("the refusal's replay differs:\n%s\n%s", declined.body, again.body)
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	// White space and the order of fields are no difference: the bytes are compared canonically.
	spaced := strings.ReplaceAll(string(q.json()), `"mode":`, "\n \"mode\" : ")
	if r := g.do("POST", "turns", []byte(spaced)); r.body != first.body {
		t.Errorf("the same request with other spaces: %d %s", r.status, r.body)
	}
}

// Ten read one turn, some from the beginning and some who come later; all get the same bytes, which are
// those of the replay.
func TestTenReaders(t *testing.T) {
	t.Parallel()
	g := newRig(t, withProfile("limits", limits(1024, 65536, 65536, 60000)))
	var lines []string
	for range 20 {
		lines = append(lines, action(), `{"sleep":"10ms"}`)
	}
	q := aRequest("turn:1", script(append(lines, `{"text":"x"}`, goodUsage)...))
	done := g.running(q)
	replies := make([]reply, 10)
	var all sync.WaitGroup
	for i := range replies {
		all.Go(func() {
			time.Sleep(time.Duration(i) * 15 * time.Millisecond) // they come at different times
			r, err := g.send(context.Background(), "POST", "turns", q.json())
			if err != nil {
				t.Error(err)
				return
			}
			replies[i] = g.read(r)
		})
	}
	all.Wait()
	first := (<-done).ends("completed/completed")
	for i, r := range replies {
		if r.body != first.body {
			t.Errorf("reader %d has\n%s\nand not\n%s", i, r.body, first.body)
		}
	}
	if again := g.post(q); again.body != first.body {
		t.Error("the replay differs")
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Events leave as they come: the first are there while the adapter still works.
func TestEventsAreFlushed(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	r, err := g.send(context.Background(), "POST", "turns", aRequest("turn:1", script(action(), `{"block":true}`)).json())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r.Body)
	for _, want := range []string{"accepted", "running", "action-candidate"} {
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Fatalf("the line is %q, %v, want one of %s", line, err, want)
		}
	}
	g.cancel("turn:1")
	_ = r.Body.Close()
}

// What an adapter says after its turn's end reaches nobody and is charged to nobody.
func TestLateOutputIsDropped(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(g *rig){
		"cancel":   func(g *rig) { g.cancel("turn:1") },
		"deadline": func(*rig) {},
		"close":    func(g *rig) { g.closeSession(); g.cancel("turn:1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := make(chan error, 8)
			g := newRig(t, func(s *setup) {
				s.engine.Grace = 50 * time.Millisecond
				s.profile = s.profile.with("limits", limits(64, 65536, 65536, 1500))
				s.adapter = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if err := w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(1), WallTimeMS: adapters.Count(1)}); err != nil {
						return err
					}
					if err := w.Candidate([]byte(action()[len(`{"event":`) : len(action())-1])); err != nil {
						return err
					}
					<-ctx.Done()
					time.Sleep(200 * time.Millisecond) // ignores its end for longer than the grace
					late <- w.Text("late")
					late <- w.Usage(adapters.Usage{Tokens: adapters.Count(99)})
					late <- w.Candidate([]byte(action()[len(`{"event":`) : len(action())-1]))
					_, err := w.Tool(context.Background(), adapters.ToolRequest{Ref: "t", Schema: "s", Input: []byte(`{"a":1}`)})
					late <- err
					late <- turn.Session.Store("late", 1)
					close(late)
					return nil
				})
			})
			done := g.running(aRequest("turn:1", "x"))
			g.reached("turn:1", 3)
			end(g)
			first := <-done
			o := g.outcome("turn:1")
			g.engine.WaitAdapters()
			for err := range late {
				if err == nil {
					t.Error("something was taken from an adapter whose turn is over")
				}
			}
			if again := g.post(aRequest("turn:1", "x")); again.body != first.body {
				t.Errorf("the replay differs:\n%s\n%s", first.body, again.body)
			}
			if after := g.outcome("turn:1"); *after != *o || o.BudgetCharged.MaxTokens != 1 {
				t.Errorf("outcome %+v, was %+v", after, o)
			}
			if strings.Contains(first.body, "late") {
				t.Errorf("late output in\n%s", first.body)
			}
		})
	}
}
