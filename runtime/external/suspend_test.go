package external_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	wire "github.com/backline-dev/backline/schema/external"
)

// asks is an adapter that asks for n tools at once and writes what it was told, in order.
func asks(n int) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		got := make([]string, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				o, err := w.Tool(ctx, adapters.ToolRequest{Ref: fmt.Sprintf("tool:%d", i), Schema: "s.v1", Input: json.RawMessage(fmt.Sprintf(`{"i":%d}`, i))})
				got[i] = fmt.Sprint(o.Receipt, err)
			})
		}
		all.Wait()
		if err := w.Text(fmt.Sprint(got)); err != nil {
			return err
		}
		return w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)})
	})
}

// Several requests may be outstanding: a host that reads each stream to its end always finds one that it
// can answer, in whatever order it likes, until the turn goes on.
func TestSeveralOutstandingRequests(t *testing.T) {
	t.Parallel()
	const n = 5
	for _, newest := range []bool{false, true} {
		g := newRig(t, func(s *setup) { s.adapter = asks(n) })
		q := aRequest("turn:1", "x")
		var streams []reply
		var sent []doc
		open := map[string]string{} // request to tool
		var order []string
		seq := int64(0)
		read := func(q doc, r reply) {
			streams, sent = append(streams, r), append(sent, q)
			for _, e := range r.events() {
				if seq++; e.SeqNo != seq {
					t.Errorf("seq/no %d, want %d", e.SeqNo, seq)
				}
				if e.Kind == wire.EventToolRequest {
					open[string(e.RequestRef)] = string(e.ToolRef)
					order = append(order, string(e.RequestRef))
				}
			}
		}
		read(q, g.post(q))
		want := make([]string, n)
		for i := 0; len(open) > 0; i++ {
			if i > n {
				t.Fatal("more requests than were made")
			}
			next := order[0]
			order = order[1:]
			if newest {
				order = append([]string{next}, order...)
				next, order = order[len(order)-1], order[:len(order)-1]
			}
			var tool int
			if _, err := fmt.Sscanf(open[next], "tool:%d", &tool); err != nil {
				t.Fatal(err)
			}
			delete(open, next)
			want[tool] = "receipt:" + open[next] + fmt.Sprint(tool) + "<nil>"
			c := q.answering(fmt.Sprintf("key:c%d", i), next, "receipt/ref", fmt.Sprintf("receipt:%d", tool))
			read(c, g.post(c))
		}
		last := streams[len(streams)-1].ends("completed/completed")
		for _, e := range last.events() {
			if e.Kind == wire.EventProductCandidate && e.Content != fmt.Sprint(want) {
				t.Errorf("content %q, want %q", e.Content, want)
			}
		}
		if len(streams) != n+1 {
			t.Errorf("%d streams", len(streams))
		}
		joined := reply{t: t}
		for _, r := range streams {
			joined.body += r.body
		}
		joined.grammatical(g.profile)
		for i, q := range sent {
			if again := g.post(q); again.body != streams[i].body {
				t.Errorf("the replay of %s differs:\n%s\n%s", q.ref("idempotency/key"), streams[i].body, again.body)
			}
		}
	}
}

func TestSuspendedTurns(t *testing.T) {
	t.Parallel()
	suspended := func(t *testing.T, change func(*setup), after ...string) (*rig, doc, reply) {
		t.Parallel()
		g := newRig(t, change)
		q := aRequest("turn:1", script(append([]string{toolStep}, after...)...))
		r := g.post(q)
		if k := r.kinds(); k != "accepted running tool-request awaiting-observation" {
			t.Fatalf("the start's events are %s", k)
		}
		return g, q, r
	}
	t.Run("metadata", func(t *testing.T) {
		g, _, _ := suspended(t, nil, goodUsage)
		r := g.do("GET", "turns/turn:1", nil)
		var m map[string]any
		if err := json.Unmarshal([]byte(r.body), &m); err != nil || m["state"] != "suspended" || m["seq/no"] != 4.0 || m["turn/ref"] != "turn:1" {
			t.Errorf("%d %v %s", r.status, err, r.body)
		}
	})
	t.Run("joined while it waits", func(t *testing.T) {
		g, q, r := suspended(t, nil)
		if again := g.post(q); again.body != r.body {
			t.Errorf("the repeat differs:\n%s\n%s", r.body, again.body)
		}
	})
	t.Run("a wrong request, then the right one, then a second answer", func(t *testing.T) {
		g, q, start := suspended(t, nil, goodUsage)
		for _, ref := range []string{"request:none", start.asked() + "x"} {
			r := g.post(q.answering("key:"+ref, ref)).ends("refused/event-unauthorized")
			if e := r.events(); len(e) != 1 || e[0].SeqNo != 5 {
				t.Errorf("the refusal is\n%s", r.body)
			}
		}
		r := g.post(q.answering("key:c", start.asked())).ends("completed/completed")
		if n := r.events()[0].SeqNo; n != 5 {
			t.Errorf("the stream goes on with seq/no %d", n)
		}
		late := g.post(q.answering("key:c2", start.asked())).ends("refused/event-unauthorized")
		if n, last := late.events()[0].SeqNo, r.last().SeqNo; n != last+1 {
			t.Errorf("seq/no %d after %d", n, last)
		}
		if o := g.outcome("turn:1"); o.Status != wire.StatusCompleted {
			t.Errorf("the outcome is %s", o.Status)
		}
	})
	t.Run("a second answer while it runs", func(t *testing.T) {
		g, q, start := suspended(t, nil, `{"block":true}`)
		done := make(chan reply, 1)
		go func() {
			r, err := g.send(context.Background(), "POST", "turns", q.answering("key:c", start.asked()).json())
			if err != nil {
				t.Error(err)
				done <- reply{}
				return
			}
			done <- g.read(r)
		}()
		eventually(t, "the turn goes on", func() bool {
			row, err := g.store.Turn(t.Context(), "turn:1")
			return err == nil && row.State == "dispatched"
		})
		g.post(q.answering("key:c2", start.asked())).ends("refused/event-unauthorized")
		g.cancel("turn:1")
		(<-done).ends("cancelled/cancelled")
	})
	t.Run("a refused continue leaves it as it was", func(t *testing.T) {
		g, q, start := suspended(t, nil, goodUsage)
		g.post(q.answering("key:over", start.asked()).with("deadline/at", "2999-01-01T00:00:00Z")) // runs: nothing else changed
		q2 := aRequest("turn:2", script(toolStep, goodUsage))
		start2 := g.post(q2)
		g.operate("DELETE", "profiles/"+profileRef, nil)
		g.post(q2.answering("key:d", start2.asked())).ends("refused/profile-disabled")
		g.admit("profiles", aProfile())
		g.post(q2.answering("key:d2", start2.asked())).ends("completed/completed")
	})
	t.Run("another request of the turn", func(t *testing.T) {
		g, q, start := suspended(t, nil)
		for name, d := range map[string]doc{
			"a start with another key":     q.with("idempotency/key", "key:other"),
			"a continue with another text": q.with(input("y")...).answering("key:c", start.asked()),
			"the start's key":              q.answering("key:turn:1", start.asked()),
			"the key with another turn":    aRequest("turn:2", "x").with("idempotency/key", "key:turn:1"),
		} {
			if r := g.do("POST", "turns", d.json()); r.status != 409 {
				t.Errorf("%s: %d %s", name, r.status, r.body)
			}
		}
	})
	t.Run("the deadline passes", func(t *testing.T) {
		g, q, start := suspended(t, withProfile("limits", limits(64, 65536, 65536, 200)))
		eventually(t, "the turn ends", func() bool { return g.do("GET", "turns/turn:1", nil).body[:10] != `{"turn/ref` })
		if o := g.outcome("turn:1"); o.Status != wire.StatusFailed || o.ReasonCode != wire.ReasonEventTimeout || o.Retryability != wire.Retryable {
			t.Errorf("outcome %+v", o)
		}
		g.post(q.answering("key:c", start.asked())).ends("refused/event-unauthorized")
	})
	t.Run("the engine's clocks stand", func(t *testing.T) {
		g, q, start := suspended(t, func(s *setup) {
			s.engine.Idle, s.engine.FirstOutput, s.engine.Heartbeat = 50*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
		}, goodUsage)
		time.Sleep(150 * time.Millisecond) // longer than the limits that must not count
		g.post(q.answering("key:c", start.asked())).ends("completed/completed")
	})
	t.Run("cancelled", func(t *testing.T) {
		g, q, start := suspended(t, nil, goodUsage)
		if w := g.cancel("turn:1"); w != "acknowledged" {
			t.Errorf("cancellation %s", w)
		}
		if o := g.outcome("turn:1"); o.Status != wire.StatusCancelled || o.ReasonCode != wire.ReasonCancelled {
			t.Errorf("outcome %+v", o)
		}
		if again := g.post(q); again.body != start.body {
			t.Errorf("the start's replay differs:\n%s\n%s", start.body, again.body)
		}
		if w := g.cancel("turn:1"); w != "unknown" {
			t.Errorf("cancellation again %s", w)
		}
	})
	t.Run("a continue of a turn that never started", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, nil)
		g.post(aRequest("turn:0", goodScript)) // opens the session
		q := aRequest("turn:1", "x").answering("key:c", "request:1")
		r := g.post(q).ends("refused/event-unauthorized")
		if e := r.events(); len(e) != 1 || e[0].SeqNo != 1 {
			t.Errorf("the refusal is\n%s", r.body)
		}
		if o := g.outcome("turn:1"); o.ReasonCode != wire.ReasonEventUnauthorized {
			t.Errorf("outcome %+v", o)
		}
		if again := g.post(q); again.body != r.body {
			t.Error("the replay differs")
		}
	})
	t.Run("an adapter that gives the tool up", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, func(s *setup) {
			s.adapter = adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
				defer stop()
				_, err := w.Tool(short, adapters.ToolRequest{Ref: "t", Schema: "s", Input: json.RawMessage(`{"a":1}`)})
				if err == nil {
					return fmt.Errorf("an answer that nobody gave")
				}
				if err := w.Text("without it"); err != nil {
					return err
				}
				return w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)})
			})
		})
		q := aRequest("turn:1", "x")
		start := g.post(q)
		eventually(t, "the turn ends", func() bool { return g.do("GET", "turns/turn:1", nil).body[:10] != `{"turn/ref` })
		if o := g.outcome("turn:1"); o.Status != wire.StatusCompleted {
			t.Errorf("outcome %+v", o)
		}
		g.post(q.answering("key:c", start.asked())).ends("refused/event-unauthorized")
	})
	t.Run("many events while it waits", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, func(s *setup) {
			s.adapter = adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				var all sync.WaitGroup
				for range 3 {
					all.Go(func() {
						for range 5 {
							_ = w.Candidate(json.RawMessage(action()[len(`{"event":`) : len(action())-1]))
							_ = w.Text("x")
						}
					})
				}
				all.Go(func() {
					_, _ = w.Tool(ctx, adapters.ToolRequest{Ref: "t", Schema: "s", Input: json.RawMessage(`{"a":1}`)})
				})
				all.Wait()
				return w.Usage(adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0)})
			})
		})
		q := aRequest("turn:1", "x")
		start := g.post(q)
		c := q.answering("key:c", start.asked())
		end := g.post(c).ends("completed/completed")
		seq := int64(0)
		actions := 0
		for _, e := range append(start.events(), end.events()...) {
			if seq++; e.SeqNo != seq {
				t.Errorf("seq/no %d, want %d", e.SeqNo, seq)
			}
			if e.Kind == wire.EventActionCandidate {
				actions++
			}
		}
		if actions != 15 {
			t.Errorf("%d action candidates", actions)
		}
		if g.post(q).body != start.body || g.post(c).body != end.body {
			t.Error("a replay differs")
		}
	})
}

// A tool request's digest is that of its input, whose bytes are kept; the observation reaches the
// adapter as it was sent.
func TestToolRequestsAndObservations(t *testing.T) {
	t.Parallel()
	got := make(chan adapters.Observation, 1)
	input := `{"big":123456789012345678901234567890, "small" : 1.10,"exp":1E+2}`
	g := newRig(t, func(s *setup) {
		s.adapter = adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			o, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:x", Schema: "x.v1", Input: json.RawMessage(input)})
			got <- o
			return err
		})
	})
	q := aRequest("turn:1", "x")
	start := g.post(q)
	for _, e := range start.events() {
		if e.Kind != wire.EventToolRequest {
			continue
		}
		digest, err := wire.CanonicalDigest([]byte(input))
		if err != nil || e.InputDigest != digest || string(e.Input) != input {
			t.Errorf("input %s with digest %s, want %s with %s", e.Input, e.InputDigest, input, digest)
		}
		if e.Classification == nil || e.Classification.SourceTier != wire.TierPersonal {
			t.Errorf("classification %+v", e.Classification)
		}
	}
	g.post(q.answering("key:c", start.asked(), "disposition", "refused", "reason/code", "policy-denied", "receipt/ref", nil, "evidence/refs", []string{"e:1", "e:2"}))
	o := <-got
	if o.Admitted || o.Reason != "policy-denied" || o.Receipt != "" || fmt.Sprint(o.Evidence) != "[e:1 e:2]" {
		t.Errorf("observation %+v", o)
	}
}
