package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// Two protocols that need more of the engine than Lowkey does, in the small: what follows shows that
// they can be built on what the engine has.
//
// The first is like agent.external-runtime. Its lines are numbered without gaps. An adapter that asks
// for a tool is suspended: the stream ends without an outcome, and the answer comes with a request of
// its own, whose stream carries on. Text is gathered and comes at the end.

// A mediated server is that protocol's handler.
type mediated struct {
	*rig
	deny bool // refuse every tool request

	mu    sync.Mutex
	turns map[string]*mediatedTurn
	owned sync.WaitGroup
}

// A mediatedTurn is a turn, and the sink that it is written to.
type mediatedTurn struct {
	server *mediated
	id     string
	stream runtime.Stream

	// Under the log's lock, as a sink's methods are called.
	seq     int
	product bytes.Buffer

	mu      sync.Mutex
	part    int // that comes next
	waiting map[string]chan adapters.Observation
	asked   int
	ledger  []string // what was committed
}

func (s *mediatedTurn) line(dst []byte, format string, args ...any) []byte {
	s.seq++
	return fmt.Appendf(dst, "%d %s\n", s.seq, fmt.Sprintf(format, args...))
}

func (s *mediatedTurn) Started(dst []byte) []byte {
	return s.line(s.line(dst, "accepted"), "running")
}

func (s *mediatedTurn) Text(dst []byte, text string) []byte {
	s.product.WriteString(text)
	return dst
}

func (s *mediatedTurn) Status(dst []byte, _ string) []byte { return dst }

func (s *mediatedTurn) Heartbeat(dst []byte) []byte { return s.line(dst, "running") }

func (s *mediatedTurn) End(dst []byte, o *runtime.Outcome) []byte {
	if o.Status == runtime.Completed {
		dst = s.line(dst, "product %q", s.product.String())
	}
	dst = s.line(dst, "usage %s", o.Usage.Steps)
	return s.line(dst, "outcome %s %s", o.Status, string(o.Cause))
}

// Settle commits outcome and charge before the last line; a product that is empty is a failure.
func (s *mediatedTurn) Settle(o *runtime.Outcome) {
	if o.Status == runtime.Completed && s.product.Len() == 0 {
		o.Status, o.Cause = runtime.Failed, "event-malformed"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger = append(s.ledger, fmt.Sprintf("%s %s", o.Status, string(o.Cause)))
}

func (s *mediatedTurn) Tool(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
	if s.server.deny {
		s.stream.Stop("tool-not-admitted")
		return adapters.Observation{}, adapters.ErrToolNotAdmitted
	}
	answer := make(chan adapters.Observation, 1)
	s.mu.Lock()
	s.asked++
	request := fmt.Sprint("request-", s.asked)
	s.waiting[request] = answer // before the host can know of it
	s.part++
	s.mu.Unlock()
	out := s.stream.Output()
	if err := out.Append(func(dst []byte) []byte {
		return s.line(s.line(dst, "tool-request %s %s", request, r.Ref), "awaiting-observation")
	}); err != nil {
		return adapters.Observation{}, err
	}
	out.Cut()
	select {
	case o := <-answer:
		return o, nil
	case <-ctx.Done():
		return adapters.Observation{}, context.Cause(ctx)
	}
}

func (s *mediatedTurn) Ask(ctx context.Context, _ adapters.Question) (adapters.Observation, error) {
	return s.Tool(ctx, adapters.ToolRequest{Ref: "question"})
}

// spec is a turn of this protocol: no host's going ends it.
func (m *mediated) spec(id string, a adapters.Adapter) *runtime.Spec {
	s := spec(id, a)
	s.Turn.Protocol = adapters.ExternalRuntime
	s.HostGone = runtime.Detach
	return s
}

// follow serves part n of a turn to a host.
func (m *mediated) follow(stream runtime.Stream, part int) *host {
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	h := &host{conn: newConn(m.t), Stream: stream, leave: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		defer cancel()
		defer h.end()
		h.err = stream.Follow(ctx, h.conn, part)
	}()
	return h
}

// start is the request that brings a turn, or repeats it.
func (m *mediated) start(s *runtime.Spec) *host {
	m.t.Helper()
	turn := &mediatedTurn{server: m, id: s.Turn.ID, waiting: map[string]chan adapters.Observation{}}
	s.Sink = turn
	stream, err := m.Start(m.t.Context(), s)
	if err != nil {
		m.t.Fatalf("Start = %v", err)
	}
	if stream.Repeat == runtime.First {
		turn.stream = stream
		m.mu.Lock()
		m.turns[s.Turn.ID] = turn
		m.mu.Unlock()
		m.owned.Go(stream.Run)
	}
	return m.follow(stream, 0)
}

func (m *mediated) turn(id string) *mediatedTurn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turns[id]
}

// answer is the request that answers a tool request; its stream carries on.
func (m *mediated) answer(id, request string, o adapters.Observation) *host {
	m.t.Helper()
	turn := m.turn(id)
	turn.mu.Lock()
	waiting, part := turn.waiting[request], turn.part
	delete(turn.waiting, request)
	turn.mu.Unlock()
	if waiting == nil {
		m.t.Fatalf("nobody waits for %s", request)
	}
	waiting <- o
	return m.follow(turn.stream, part)
}

// cancel is the host's request to end a turn.
func (m *mediated) cancel(id string) {
	turn := m.turn(id)
	_ = turn.stream.Output().Append(func(dst []byte) []byte { return turn.line(dst, "cancelling") })
	turn.stream.Stop(adapters.CauseStopped)
}

// drain stops suspended turns, which are not to hold it.
func (m *mediated) drain(limit time.Duration) <-chan drained {
	m.mu.Lock()
	for _, turn := range m.turns {
		turn.mu.Lock()
		suspended := len(turn.waiting) > 0
		turn.mu.Unlock()
		if suspended {
			turn.stream.Stop(adapters.CauseDrain)
		}
	}
	m.mu.Unlock()
	return m.rig.drain(limit)
}

func newMediated(t *testing.T) *mediated {
	conf := runtime.Config{TurnTimeout: 10 * time.Hour, FirstOutput: time.Minute, Idle: time.Minute, Heartbeat: 10 * time.Second}
	m := &mediated{rig: newRig(t, conf), turns: map[string]*mediatedTurn{}}
	t.Cleanup(m.owned.Wait)
	return m
}

// using is an adapter that uses a tool for each of its chunks, and says what came of it.
func using(tools ...string) adapters.Func {
	return func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if err := w.Text("begin"); err != nil {
			return err
		}
		for _, ref := range tools {
			o, err := w.Tool(ctx, adapters.ToolRequest{Ref: ref})
			if err != nil {
				return err
			}
			said := " " + ref + ":" + o.Receipt
			if !o.Admitted {
				said = " " + ref + " refused:" + o.Reason
			}
			if err := w.Text(said); err != nil {
				return err
			}
		}
		return w.Usage(adapters.Usage{Steps: adapters.Count(int64(len(tools)))})
	}
}

func TestSuspendedTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newMediated(t)
		first := m.start(m.spec("t", using("search", "fetch")))
		if err := first.wait(); err != nil {
			t.Errorf("the start's stream = %v", err)
		}
		part0 := []string{"1 accepted", "2 running", "3 tool-request request-1 search", "4 awaiting-observation"}
		first.wantLines(part0...)

		// Hours later the turn is there as it was: nothing was added, nothing ran out, and its session is
		// its own.
		waiter := m.start(m.spec("waits", say("x")))
		m.until(3 * time.Hour)
		if s := m.Stats(); s.Active != 2 || m.sessions.Stats().Held != 1 {
			t.Errorf("while it is suspended: %+v, %+v", s, m.sessions.Stats())
		}
		late := m.start(m.spec("t", never(t)))
		_ = late.wait()
		if late.Repeat != runtime.Joined {
			t.Errorf("a repeat of the start is %v, want Joined", late.Repeat)
		}
		late.wantLines(part0...)

		second := m.answer("t", "request-1", adapters.Observation{Admitted: true, Receipt: "r1"})
		_ = second.wait()
		part1 := []string{"5 tool-request request-2 fetch", "6 awaiting-observation"}
		second.wantLines(part1...)

		m.until(4 * time.Hour)
		third := m.answer("t", "request-2", adapters.Observation{Reason: "policy-denied"})
		_ = third.wait()
		part2 := []string{`7 product "begin search:r1 fetch refused:policy-denied"`, "8 usage 2", "9 outcome completed completed"}
		third.wantLines(part2...)
		m.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 4*time.Hour)
		_ = waiter.wait()
		m.wantEnd("waits", runtime.Completed, adapters.CauseCompleted, 4*time.Hour)

		// Repeats of each request get what it got, byte for byte.
		replay := m.start(m.spec("t", never(t)))
		_ = replay.wait()
		replay.wantLines(part0...)
		for part, want := range [][]string{part0, part1, part2} {
			h := m.follow(m.turn("t").stream, part)
			if err := h.wait(); err != nil {
				t.Errorf("part %d again: %v", part, err)
			}
			h.wantLines(want...)
		}
		h := m.follow(m.turn("t").stream, 3)
		if err := h.wait(); !errors.Is(err, runtime.ErrNoPart) {
			t.Errorf("a part that never was: %v, want ErrNoPart", err)
		}
		if diff := cmp.Diff([]string{"completed completed"}, m.turn("t").ledger); diff != "" {
			t.Errorf("ledger (-want +got):\n%s", diff)
		}
	})
}

func TestSuspendedTurnsEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end    func(m *mediated)
		at     time.Duration
		status runtime.Status
		cause  adapters.Cause
		want   []string // of the part that nobody has asked for yet
	}{
		"at the deadline": {
			func(m *mediated) {}, 2 * time.Hour, runtime.Failed, adapters.CauseTurnTimeout,
			[]string{"5 usage unmeasured", "6 outcome failed turn-timeout"},
		},
		"as the host asks": {
			func(m *mediated) { m.cancel("t") }, time.Hour, runtime.Cancelled, adapters.CauseStopped,
			[]string{"5 cancelling", "6 usage unmeasured", "7 outcome cancelled host-stopped"},
		},
		"with its session": {
			func(m *mediated) { m.turn("t").stream.Stop("session-lost") }, time.Hour, runtime.Failed, "session-lost",
			[]string{"5 usage unmeasured", "6 outcome failed session-lost"},
		},
		"when the engine drains": {
			func(m *mediated) { (<-m.drain(time.Minute)).want(m.t, nil, time.Hour) }, time.Hour, runtime.Cancelled, adapters.CauseDrain,
			[]string{"5 usage unmeasured", "6 outcome cancelled drain"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newMediated(t)
				s := m.spec("t", using("search"))
				s.Deadline = m.began.Add(2 * time.Hour)
				s.Forget = true // this protocol remembers by itself
				h := m.start(s)
				_ = h.wait()
				m.until(time.Hour)
				tc.end(m)
				m.until(3 * time.Hour)
				m.wantEnd("t", tc.status, tc.cause, tc.at)
				rest := m.follow(m.turn("t").stream, 1)
				if err := rest.wait(); err != nil {
					t.Errorf("the rest: %v", err)
				}
				rest.wantLines(tc.want...)
				if m.Draining() {
					return
				}

				// An answer that comes too late finds no turn, and must not run it again.
				stream, err := m.Start(t.Context(), m.spec("t", never(t)))
				if err != nil || stream.Repeat != runtime.First {
					t.Fatalf("Start = %v, %v", stream.Repeat, err)
				}
				stream.Discard()
				if s := m.Stats(); s.Active != 0 {
					t.Errorf("after Discard: %+v", s)
				}
				m.rig.mu.Lock()
				if m.begun["t"] != 1 {
					t.Errorf("TurnStart ran %d times", m.begun["t"])
				}
				m.rig.mu.Unlock()
				m.discarded++
			})
		})
	}
}

func TestToolsThatAreDenied(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newMediated(t)
		m.deny = true
		h := m.start(m.spec("t", using("search")))
		_ = h.wait()
		h.wantLines("1 accepted", "2 running", "3 usage unmeasured", "4 outcome failed tool-not-admitted")
		m.wantEnd("t", runtime.Failed, "tool-not-admitted", 0)
	})
}

// A host that goes does not end a turn of this protocol; one that comes back has it all.
func TestHostsOfASuspendingProtocolComeAndGo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newMediated(t)
		adapter := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(25 * time.Second)
			return using("search")(ctx, turn, w)
		})
		gone := m.start(m.spec("t", adapter))
		m.until(time.Second)
		gone.leave()
		if err := gone.wait(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Follow = %v, want ErrGone", err)
		}
		m.until(15 * time.Second)
		back := m.start(m.spec("t", never(t)))
		_ = back.wait()
		back.wantLines("1 accepted", "2 running", "3 running", "4 running", "5 tool-request request-1 search", "6 awaiting-observation")
		after := m.answer("t", "request-1", adapters.Observation{Admitted: true})
		after.leave() // at once
		_ = after.wait()
		synctest.Wait()
		m.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 25*time.Second)
		_ = m.turn("t")
		if s := m.Stats(); s.Active != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Readers that attach in the very moment of a cut get their part, whole and nothing else.
func TestReadersAtTheMomentOfACut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newMediated(t)
		for round := range 50 {
			id := fmt.Sprint(round)
			first := m.start(m.spec(id, using("search")))
			var readers []*host
			for range 20 {
				readers = append(readers, m.follow(m.turn(id).stream, 0))
			}
			_ = first.wait()
			for _, h := range readers {
				if err := h.wait(); err != nil || h.seen() != first.seen() {
					t.Fatalf("round %d: %v, %q, want %q", round, err, h.seen(), first.seen())
				}
			}
			rest := m.answer(id, "request-1", adapters.Observation{Admitted: true})
			_ = rest.wait()
			rest.wantLines(`5 product "begin search:"`, "6 usage 1", "7 outcome completed completed")
		}
	})
}

// The protocol keeps its sessions' values by itself, and its turns queue all the same.
func TestValuesOfTheProtocolsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		own := &ownValues{m: map[string]string{}}
		s := spec("t", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			time.Sleep(time.Second)
			return errors.Join(turn.Session.Store("k", 7), w.Text(string(turn.Continuity)), w.Text(turn.Session.ID()))
		}))
		s.Values, s.Turn.Continuity = own, adapters.ContinuitySame
		s.Window = []adapters.Message{{Role: adapters.RoleUser, Content: "not looked at"}}
		h := g.send(s)
		next := spec("next", adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return w.Text(fmt.Sprintf("%d %s", len(turn.History), turn.Continuity))
		}))
		n := g.send(next)
		_ = h.wait()
		_ = n.wait()
		h.wantLines("started", `text "same"`, `text "s"`, "end completed completed")
		n.wantLines("started", `text "0 new"`, "end completed completed")
		if own.m["k"] != "7" {
			t.Errorf("the protocol's values are %v", own.m)
		}
		if e := g.end("t"); e.Continuity != adapters.ContinuitySame || e.History != 0 {
			t.Errorf("continuity %q, %d messages", e.Continuity, e.History)
		}
	})
}

type ownValues struct{ m map[string]string }

func (v *ownValues) Load(k string) (json.RawMessage, bool) {
	s, ok := v.m[k]
	return json.RawMessage(s), ok
}

func (v *ownValues) Store(k string, raw json.RawMessage) error {
	v.m[k] = string(raw)
	return nil
}

func (v *ownValues) Delete(k string) error {
	delete(v.m, k)
	return nil
}

func (v *ownValues) Keys() []string { return nil }

// Discard takes a start back: whoever waits behind it goes on, and whoever has joined it is let go.
func TestDiscard(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		conf := none
		conf.MaxTurns = 2
		g := newRig(t, conf)
		owner := &recycler{}
		s := spec("t", never(t))
		s.Owner = owner
		stream, err := g.Start(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		joiner := g.send(spec("t", never(t)))
		waiter := g.send(spec("waits", say("x")))
		g.until(time.Second)
		joiner.wantLines("started")
		stream.Discard()
		stream.Discard() // once is enough
		_ = waiter.wait()
		_ = joiner.wait()
		waiter.wantLines("started", `text "x"`, "end completed completed")
		if owner.count() != 1 {
			t.Errorf("the window went back %d times", owner.count())
		}
		again := g.send(spec("t", say("y")))
		_ = again.wait()
		again.wantLines("started", `text "y"`, "end completed completed")
		if e := g.end("t"); e.Cause != adapters.CauseCompleted {
			t.Errorf("%+v", e)
		}
		(<-g.drain(time.Hour)).want(t, nil, time.Second)
		g.discarded++
	})
}

// Discard after the turn was run does nothing.
func TestDiscardOfARunningTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		h := g.send(spec("t", counting(3)))
		g.until(1500 * ms)
		h.Discard()
		joiner := g.send(spec("t", never(t)))
		joiner.Discard()
		_ = h.wait()
		_ = joiner.wait()
		h.wantLines(counted(3)...)
		h.Discard()
		h.Stream.Stop(adapters.CauseStopped)
		g.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 3*time.Second)
	})
}

func TestOutput(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newRig(t, none)
		stream, err := g.Start(t.Context(), spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			_ = w.Text("a")
			time.Sleep(2 * time.Second)
			return w.Text("b")
		})))
		if err != nil {
			t.Fatal(err)
		}
		out := stream.Output()
		line := func(s string) error {
			return out.Append(func(dst []byte) []byte { return append(append(dst, s...), '\n') })
		}
		if err := line("before"); err != nil {
			t.Errorf("Append = %v", err)
		}
		h := g.serve(newConn(t), stream)
		g.until(time.Second)
		if err := line("in between"); err != nil {
			t.Errorf("Append = %v", err)
		}
		synctest.Wait()
		h.wantLines("started", "before", `text "a"`, "in between")
		_ = h.wait()
		h.wantLines("started", "before", `text "a"`, "in between", `text "b"`, "end completed completed")
		if err := out.Append(func([]byte) []byte { t.Error("encode was called after the end"); return nil }); !errors.Is(err, ndjson.ErrSealed) {
			t.Errorf("Append = %v after the end, want ErrSealed", err)
		}
		if e := g.end("t"); e.Chunks != 2 {
			t.Errorf("%d chunks counted, want the adapter's own", e.Chunks)
		}
	})
}

// The second protocol is like Keiki: a request is answered at once, and the turn runs on and answers
// by calls of its own. Whatever the adapter writes becomes messages, sent one after another.

// A platform is what those calls go to.
type platform struct {
	took time.Duration // that a call takes

	mu     sync.Mutex
	calls  []string
	closed bool // it wants no more messages of the turn
}

var errClosed = errors.New("turn_closed")

func (p *platform) post(call string) error {
	time.Sleep(p.took)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	p.calls = append(p.calls, call)
	return nil
}

func (p *platform) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.calls...)
}

// A sender reads a turn's log and makes calls of it. It is the log's reader, as a host's connection is
// elsewhere.
type sender struct {
	to       *platform
	stream   runtime.Stream
	attached chan struct{} // closed when the sender reads the log
	rest     []byte        // of a line
	closed   bool
}

func (s *sender) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		kind, what, _ := strings.Cut(string(line), " ")
		s.rest = rest
		var err error
		switch kind {
		case "started":
			close(s.attached)
		case "text":
			err = s.to.post("message " + what)
		case "end":
			if s.closed || strings.HasSuffix(what, string(adapters.CauseStopped)) {
				continue // nothing is sent after a cancellation
			}
			err = s.to.post("complete " + what)
		}
		if errors.Is(err, errClosed) {
			s.closed = true
			s.stream.Stop(adapters.CauseStopped)
		}
	}
}

func (s *sender) Flush() error { return nil }

// Calls have limits of time of their own.
func (s *sender) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// A courier is that protocol's handler.
type courier struct {
	*rig
	owned sync.WaitGroup // turns and their senders
}

func newCourier(t *testing.T, conf runtime.Config) *courier {
	c := &courier{rig: newRig(t, conf)}
	t.Cleanup(c.owned.Wait)
	return c
}

// accept takes a turn, or says that it has it already.
func (c *courier) accept(ctx context.Context, s *runtime.Spec, to *platform) (duplicate bool, err error) {
	s.Turn.Protocol = adapters.Keiki
	s.HostGone = runtime.Detach
	stream, err := c.Start(ctx, s)
	if err != nil || stream.Repeat != runtime.First {
		return err == nil, err
	}
	reader := &sender{to: to, stream: stream, attached: make(chan struct{})}
	c.owned.Go(func() {
		if err := stream.Follow(context.WithoutCancel(ctx), reader, 0); err != nil {
			c.t.Errorf("Follow = %v", err)
		}
	})
	c.owned.Go(func() {
		<-reader.attached // so that the adapter is held up by its sender from the first line on
		stream.Run()
	})
	return false, nil
}

func TestAcceptedTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCourier(t, runtime.Config{Idle: 5 * time.Second, MaxTurns: 1})
		p := &platform{took: 3 * time.Second}
		ctx, answered := context.WithCancel(context.WithValue(t.Context(), hookKey{}, "trace"))
		s := spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for i := range 5 {
				time.Sleep(time.Second)
				if err := w.Text(fmt.Sprint(ctx.Value(hookKey{}), i)); err != nil {
					return err
				}
			}
			return nil
		}))
		if duplicate, err := c.accept(ctx, s, p); duplicate || err != nil {
			t.Fatalf("accept = %t, %v", duplicate, err)
		}
		answered() // the request is over
		if c.now() != 0 {
			t.Errorf("the answer took %v", c.now())
		}
		c.until(ms)
		if duplicate, err := c.accept(t.Context(), spec("t", never(t)), p); !duplicate || err != nil {
			t.Errorf("accept = %t, %v, want a duplicate", duplicate, err)
		}
		if _, err := c.accept(t.Context(), in("other", spec("u", never(t))), p); !errors.Is(err, runtime.ErrAtCapacity) {
			t.Errorf("accept = %v, want ErrAtCapacity", err)
		}
		c.until(7*time.Second + 1)
		if got := p.all(); len(got) != 2 {
			t.Errorf("after 7 s: %q, want two messages", got)
		}
		// The adapter has run ahead of the calls; a drain waits for it, and the protocol for its calls.
		c.wantEnd("t", runtime.Completed, adapters.CauseCompleted, 5*time.Second)
		(<-c.drain(time.Hour)).want(t, nil, 7*time.Second+1)
		c.owned.Wait()
		if at := c.now(); at != 19*time.Second {
			t.Errorf("the last call ended at %v", at)
		}
		want := []string{`message "trace0"`, `message "trace1"`, `message "trace2"`, `message "trace3"`, `message "trace4"`, "complete completed completed"}
		if diff := cmp.Diff(want, p.all()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if duplicate, err := c.accept(t.Context(), spec("t", never(t)), p); !duplicate || err != nil {
			t.Errorf("after the end, accept = %t, %v, want a duplicate", duplicate, err)
		}
	})
}

// How turns of this protocol end, and what the platform hears.
func TestAcceptedTurnsEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		adapter adapters.Func
		during  func(c *courier, p *platform)
		want    []string
		cause   adapters.Cause
	}{
		"by failing": {
			returning(errors.New("e")), nil,
			[]string{`message "x"`, "complete failed adapter-error"}, adapters.CauseAdapter,
		},
		"at the platform's deadline": {
			say2Block, nil,
			[]string{`message "a"`, "complete failed turn-timeout"}, adapters.CauseTurnTimeout,
		},
		"as the platform asks": {
			say2Block, func(c *courier, p *platform) { c.Stop(adapters.Keiki, key("s"), "t") },
			[]string{`message "a"`}, adapters.CauseStopped,
		},
		"when the platform wants no more": {
			counting(30), func(c *courier, p *platform) { p.mu.Lock(); p.closed = true; p.mu.Unlock() },
			[]string{`message "0"`, `message "1"`, `message "2"`, `message "3"`}, adapters.CauseStopped,
		},
		"when the drain runs out": {
			say2Block, func(c *courier, p *platform) { <-c.drain(time.Second) },
			[]string{`message "a"`, "complete cancelled drain"}, adapters.CauseDrain,
		},
		"without its adapter": {
			func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("a")
				time.Sleep(time.Hour)
				return nil
			}, nil,
			[]string{`message "a"`, "complete failed turn-timeout"}, adapters.CauseTurnTimeout,
		},
		"by ending its goroutine": {
			func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				_ = w.Text("a")
				panic(nothing)
			}, nil,
			[]string{`message "a"`, "complete failed panic"}, adapters.CausePanic,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCourier(t, none)
				p := &platform{took: 100 * ms}
				s := spec("t", tc.adapter)
				s.Deadline = c.began.Add(time.Minute)
				if _, err := c.accept(t.Context(), s, p); err != nil {
					t.Fatal(err)
				}
				if tc.during != nil {
					c.until(4500 * ms)
					tc.during(c, p)
				}
				c.owned.Wait()
				if diff := cmp.Diff(tc.want, p.all()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				if e := c.end("t"); e.Cause != tc.cause {
					t.Errorf("ended %q, want %q", string(e.Cause), string(tc.cause))
				}
			})
		})
	}
}

// A sender that is slow holds the adapter up where it is too far behind, and does not count as idleness.
func TestASlowSender(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCourier(t, runtime.Config{Idle: 5 * time.Second, TurnTimeout: -1, Stream: ndjson.LogConfig{Ahead: 1 << 10}})
		p := &platform{took: time.Minute}
		s := spec("t", adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			for range 50 {
				if err := w.Text(strings.Repeat("x", 100)); err != nil {
					return err
				}
			}
			return nil
		}))
		if _, err := c.accept(t.Context(), s, p); err != nil {
			t.Fatal(err)
		}
		c.until(time.Minute)
		if !c.running("t") {
			t.Error("the adapter was not held up")
		}
		c.owned.Wait()
		if n := len(p.all()); n != 51 || c.now() != 51*time.Minute {
			t.Errorf("%d calls in %v", n, c.now())
		}
		if e := c.end("t"); e.Cause != adapters.CauseCompleted || e.at < 30*time.Minute {
			t.Errorf("ended %q at %v", string(e.Cause), e.at)
		}
	})
}

// Messages may come in while a turn runs; the protocol knows when no more can.
type courierSink struct {
	lineSink
	arrivals chan adapters.Arrival
}

func (s courierSink) Arrivals() (<-chan adapters.Arrival, error) { return s.arrivals, nil }

func (s courierSink) End(dst []byte, o *runtime.Outcome) []byte {
	close(s.arrivals)
	return s.lineSink.End(dst, o)
}

func TestArrivalsOfAnAcceptedTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCourier(t, none)
		p := &platform{}
		arrivals := make(chan adapters.Arrival, 10)
		s := spec("t", adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
			in, err := w.Arrivals()
			if err != nil {
				return err
			}
			for {
				select {
				case a := <-in:
					if err := w.Text(fmt.Sprint(a.Sequence)); err != nil {
						return err
					}
				case <-time.After(5 * time.Second):
					return nil
				}
			}
		}))
		s.Sink = courierSink{arrivals: arrivals}
		if _, err := c.accept(t.Context(), s, p); err != nil {
			t.Fatal(err)
		}
		arrivals <- adapters.Arrival{Sequence: 1}
		c.until(3 * time.Second)
		arrivals <- adapters.Arrival{Sequence: 2}
		c.owned.Wait()
		if diff := cmp.Diff([]string{`message "1"`, `message "2"`, "complete completed completed"}, p.all()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if _, open := <-arrivals; open {
			t.Error("the channel of arrivals is open after the end")
		}
	})
}
