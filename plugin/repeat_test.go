package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A stepper is an adapter that writes a chunk each time it is told to, and ends when it is told to.
type stepper struct {
	called
	chunks chan string // closed: the turn completes
}

func newStepper() *stepper { return &stepper{chunks: make(chan string)} }

func (s *stepper) adapter() adapters.Adapter {
	return s.by(adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for {
			select {
			case c, ok := <-s.chunks:
				if !ok {
					return nil
				}
				if err := w.Text(c); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}))
}

func TestARepeatOfARunningTurnSeesItsStreamFromTheFirstEvent(t *testing.T) {
	t.Parallel()
	s := newStepper()
	p, h := start(t, plugin.Config{Adapter: s.adapter(), Heartbeat: plugin.NoLimit})
	q := request{message: "hello", user: "Ada", headless: true}
	first := h.post(t, q).started(t)
	s.chunks <- "one "
	again := q
	again.window = []entry{{Role: "user", Content: "another window"}}
	second := h.post(t, again)
	for second.text() != "one " {
		if _, err := second.next(); err != nil {
			t.Fatal(err)
		}
	}
	s.chunks <- "two "
	third := h.post(t, q)
	s.chunks <- "three"
	close(s.chunks)
	for i, r := range []*reply{first, second, third} {
		if text := r.completed(t); text != "one two three" {
			t.Errorf("reader %d reads %q", i, text)
		}
		if !bytes.Equal(r.raw, first.raw) {
			t.Errorf("reader %d reads\n%s\nand the first\n%s", i, r.raw, first.raw)
		}
		if err := streamHeaders(r.Header); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	if n := s.times(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
	quiet(t, p)
}

func TestACompletedTurnIsReplayedWithoutTheAdapter(t *testing.T) {
	t.Parallel()
	var calls called
	var reasons sync.Map
	_, h := start(t, plugin.Config{Adapter: calls.by(echo), Hooks: []plugin.Hooks{{
		Refuse: func(_ context.Context, _ adapters.Protocol, reason string) { reasons.Store(reason, true) },
	}}})
	q := request{message: "hello \u2028 <é>"}
	first := h.post(t, q)
	first.completed(t)
	q.window = []entry{{Role: "agent", Content: "another window"}}
	for range 3 {
		r := h.post(t, q)
		r.completed(t)
		if !bytes.Equal(r.raw, first.raw) {
			t.Errorf("the replay is\n%s\nwant\n%s", r.raw, first.raw)
		}
	}
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
	if _, ok := reasons.Load("replayed"); !ok {
		t.Error("the hook is not told of the replay")
	}
	// A turn of the same id in another session is another turn.
	q.session = "s-2"
	h.post(t, q).completed(t)
	if n := calls.times(); n != 2 {
		t.Errorf("%d adapter calls, want one for the other session", n)
	}
}

func TestTheSameTurnIDWithAnotherTurnIsAConflict(t *testing.T) {
	t.Parallel()
	s := newStepper()
	_, h := start(t, plugin.Config{Adapter: s.adapter()})
	q := request{message: "hello", user: "Ada"}
	others := map[string]request{
		"message":  {message: "hello ", user: "Ada"},
		"user":     {message: "hello", user: "ada"},
		"no user":  {message: "hello"},
		"headless": {message: "hello", user: "Ada", headless: true},
		"shifted":  {message: "hell", user: "oAda"},
	}
	first := h.post(t, q).started(t)
	conflicts := func(when string) {
		for name, other := range others {
			why := h.post(t, other).refused(t, http.StatusConflict)
			if !strings.Contains(why, `"t-1"`) {
				t.Errorf("%s, another %s: the refusal %q does not name the turn", when, name, why)
			}
		}
	}
	conflicts("while it runs")
	close(s.chunks)
	first.completed(t)
	conflicts("after it")
	h.post(t, q).completed(t)
	if n := s.times(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
}

func TestATurnThatDidNotCompleteRunsAgain(t *testing.T) {
	t.Parallel()
	var calls called
	var e ends
	began := make(chan struct{}, 1)
	_, h := start(t, plugin.Config{Hooks: e.hooks(), Adapter: calls.by(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		began <- struct{}{}
		switch turn.Message {
		case "fail":
			return errors.New("failed")
		case "unavailable":
			return &adapters.Unavailable{Message: "try again", Temporary: true}
		case "panic":
			panic("x")
		}
		<-ctx.Done()
		return nil
	}))})
	n := 0
	for _, message := range []string{"fail", "unavailable", "panic"} {
		for range 3 {
			n++
			h.post(t, request{turn: message, message: message}).failed(t)
			<-began
		}
		// Another turn of that id is no conflict either: the failed one is forgotten.
		n++
		h.post(t, request{turn: message, message: message, user: "Ada"}).failed(t)
		<-began
	}
	for i := range 3 {
		n++
		r := h.post(t, request{turn: "gone", message: "wait"}).started(t)
		receive(t, "the adapter", began)
		r.close()
		eventually(t, "the end", func() bool { return len(e.of("gone")) == i+1 })
	}
	if got := calls.times(); got != n {
		t.Errorf("%d adapter calls, want %d", got, n)
	}
}

// A turn that is ending is not joined: the repeat queues behind it and runs afresh.
func TestARepeatOfATurnThatIsEndingRunsAfresh(t *testing.T) {
	t.Parallel()
	var calls called
	var e ends
	ending, hold := make(chan struct{}), newGate(t)
	_, h := start(t, plugin.Config{Hooks: e.hooks(), Adapter: calls.by(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if len(e.of("t-1")) > 0 {
			return w.Text("afresh")
		}
		<-ctx.Done()
		close(ending)
		<-hold.C
		return nil
	}))})
	first := h.post(t, request{}).started(t)
	eventually(t, "the adapter's call", func() bool { return calls.times() == 1 })
	first.close()
	receive(t, "the end of the first", ending)
	second := h.post(t, request{}).started(t)
	third := h.post(t, request{}).started(t) // joins the second
	if n := calls.times(); n != 1 {
		t.Errorf("%d adapter calls while the first is ending", n)
	}
	hold.open()
	for _, r := range []*reply{second, third} {
		if text := r.completed(t); text != "afresh" {
			t.Errorf("a repeat reads %q", text)
		}
	}
	if n := calls.times(); n != 2 {
		t.Errorf("%d adapter calls, want the first and one for both repeats", n)
	}
	if end := e.wait(t, "t-1"); end.Cause != adapters.CauseHostGone {
		t.Errorf("the first ended as %s", end.Cause)
	}
}

// The moment between a turn's last output and its record must not let a second run through.
func TestEqualTurnsAtOnceCallTheAdapterOnce(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const at, rounds = 50, 40
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	for round := range rounds {
		q := request{session: numbered("s", round), turn: "same", message: "hello"}
		bodies := make([][]byte, at)
		var wg sync.WaitGroup
		for i := range at {
			wg.Go(func() {
				r, err := h.run(q)
				if err != nil {
					t.Error(err)
					return
				}
				bodies[i] = r.raw
			})
		}
		wg.Wait()
		for i, b := range bodies {
			if !bytes.Equal(b, bodies[0]) {
				t.Fatalf("round %d: reader %d reads %q, the first %q", round, i, b, bodies[0])
			}
		}
		if n := calls.times(); n != round+1 {
			t.Fatalf("%d adapter calls in %d rounds", n, round+1)
		}
	}
}

// The same, with answers that take a while to be put into the conversation.
func TestEqualTurnsAtTheEndOfALargeOneCallTheAdapterOnce(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const rounds = 20 / (1 + slowness/3)
	var calls called
	about := make(chan struct{}, 1)
	_, h := start(t, plugin.Config{Adapter: calls.by(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		err := w.Text(strings.Repeat("x", 900_000))
		about <- struct{}{}
		return err
	}))})
	for round := range rounds {
		q := request{session: numbered("s", round), turn: "same"}
		first := h.post(t, q)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := first.read(); err != nil {
				t.Error(err)
			}
		})
		receive(t, "the last output", about)
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond) // spread over the turn's end
				r, err := h.run(q)
				if err != nil {
					t.Error(err)
				} else if r.last().Status != wire.StatusComplete && r.StatusCode != http.StatusConflict {
					t.Errorf("a repeat reads %.100q", r.raw)
				}
			})
		}
		wg.Wait()
		if n := calls.times(); n != round+1 {
			t.Fatalf("%d adapter calls in %d rounds", n, round+1)
		}
		first.close()
	}
}

func TestATurnWhoseLogIsOutgrownCannotBeRepeated(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	s := newStepper()
	p, h := start(t, plugin.Config{Adapter: s.adapter()})
	first := h.post(t, request{}).started(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := first.read(); err != nil {
			t.Error(err)
		}
	})
	chunk := strings.Repeat("x", 100_000)
	for range 30 {
		s.chunks <- chunk
	}
	why := h.post(t, request{}).refused(t, http.StatusConflict)
	if !strings.Contains(why, "outgrown") {
		t.Errorf("the refusal is %q", why)
	}
	if why := h.post(t, request{message: "other"}).refused(t, http.StatusConflict); !strings.Contains(why, "new turn id") {
		t.Errorf("the refusal of another turn is %q", why)
	}
	close(s.chunks)
	wg.Wait()
	if len(first.text()) != 3_000_000 || first.last().Status != wire.StatusComplete {
		t.Errorf("the first reader read %d bytes and %+v", len(first.text()), first.last())
	}
	h.post(t, request{}).completed(t) // runs again
	h.post(t, request{}).completed(t) // that one was short, so it is replayed
	if n := s.times(); n != 2 {
		t.Errorf("%d adapter calls, want two", n)
	}
	quiet(t, p)
}

func TestRepeatsPassAtCapacityAndWhileDraining(t *testing.T) {
	t.Parallel()
	s := newStepper()
	p := newPlugin(t, plugin.Config{MaxTurns: 2, RefuseBusy: true, Adapter: s.adapter()})
	h := mount(t, p, nil)
	done := h.post(t, request{session: "done", turn: "done"}).started(t)
	s.chunks <- "x"
	s.chunks <- "" // taken: so the turn is in its loop
	one, two := request{session: "one", turn: "one"}, request{session: "two", turn: "two"}
	first := h.post(t, one).started(t)
	eventually(t, "both calls", func() bool { return s.times() == 2 })
	h.post(t, two).refused(t, http.StatusServiceUnavailable)
	joined := h.post(t, one).started(t)
	other := h.post(t, request{session: "done", turn: "done"}).started(t)
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(context.Background()) }()
	eventually(t, "the drain", func() bool { return getStatus(t, h, "/readyz") == http.StatusServiceUnavailable })
	late := h.post(t, one).started(t)
	why := h.post(t, two).refused(t, http.StatusServiceUnavailable)
	if !strings.Contains(why, "shutting down") {
		t.Errorf("a new turn is refused with %q", why)
	}
	close(s.chunks)
	for _, r := range []*reply{done, first, joined, other, late} {
		r.completed(t)
	}
	if err := receive(t, "the drain", drained); err != nil {
		t.Error(err)
	}
	if text := h.post(t, request{session: "done", turn: "done"}).completed(t); text != "x" {
		t.Errorf("a replay while draining reads %q", text)
	}
	if n := s.times(); n != 2 {
		t.Errorf("%d adapter calls", n)
	}
}

func TestATurnIsCancelledWhenItsLastReaderGoes(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"the first goes first": {0, 1}, "the second goes first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e ends
			s := newStepper()
			p, h := start(t, plugin.Config{Hooks: e.hooks(), Adapter: s.adapter()})
			readers := []*reply{h.post(t, request{}).started(t), h.post(t, request{}).started(t)}
			goes, stays := readers[order[0]], readers[order[1]]
			goes.close()
			for i := range 5 { // the one that stays goes on reading
				chunk := numbered("chunk", i)
				s.chunks <- chunk
				if e, err := stays.next(); err != nil || e.Content != chunk {
					t.Fatalf("%+v, %v, want %q", e, err, chunk)
				}
			}
			if len(e.of("t-1")) > 0 {
				t.Fatal("the turn has ended with a reader left")
			}
			stays.close()
			if end := e.wait(t, "t-1"); end.Cause != adapters.CauseHostGone {
				t.Errorf("the turn ended as %s", end.Cause)
			}
			quiet(t, p)
		})
	}
}

func TestAReplayIsForgottenInTime(t *testing.T) {
	t.Parallel()
	var calls called
	p, h := start(t, plugin.Config{Adapter: calls.by(echo), Replay: time.Second})
	h.post(t, request{}).completed(t)
	if s := p.Stats().Turns; s.Replayable != 1 || s.ReplayBytes == 0 {
		t.Errorf("%+v, want one turn", s)
	}
	eventually(t, "the end of the retention", func() bool { return p.Stats().Turns.Replayable == 0 })
	if s := p.Stats().Turns; s.ReplayBytes != 0 {
		t.Errorf("%+v, want nothing", s)
	}
	h.post(t, request{message: "even another message"}).completed(t)
	if n := calls.times(); n != 2 {
		t.Errorf("%d adapter calls, want two", n)
	}
}

func TestNoReplayAtAll(t *testing.T) {
	t.Parallel()
	var calls called
	p, h := start(t, plugin.Config{Adapter: calls.by(echo), Replay: plugin.NoLimit})
	for range 3 {
		h.post(t, request{}).completed(t)
	}
	if n := calls.times(); n != 3 {
		t.Errorf("%d adapter calls, want three", n)
	}
	if s := p.Stats().Turns; s.Replayable != 0 {
		t.Errorf("%+v", s)
	}
}

func TestReplaysAreBoundedInBytes(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const bound = 1 << 20
	var calls called
	p, h := start(t, plugin.Config{Adapter: calls.by(echo), ReplayBytes: bound})
	message := strings.Repeat("x", 50_000)
	const n = 100
	for i := range n {
		h.post(t, request{session: numbered("s", i), message: message}).completed(t)
		if s := p.Stats().Turns; s.ReplayBytes > bound || s.ReplayBytes < s.Replayable*50_000 {
			t.Fatalf("after %d turns: %+v, want at most %d bytes, and all of them counted", i+1, s, bound)
		}
	}
	if s := p.Stats().Turns; s.Replayable < 5 {
		t.Errorf("%+v: the bound keeps hardly any", s)
	}
	h.post(t, request{session: numbered("s", n-1), message: message}).completed(t) // the newest is kept
	if got := calls.times(); got != n {
		t.Errorf("%d adapter calls, want %d", got, n)
	}
	h.post(t, request{session: numbered("s", 0), message: message}).completed(t) // the oldest is not
	if got := calls.times(); got != n+1 {
		t.Errorf("%d adapter calls, want %d", got, n+1)
	}
}

// A second reader that takes nothing is back-pressure on its own turn alone, until it is given up.
func TestASecondReaderThatStallsDoesNotEndTheTurn(t *testing.T) {
	t.Parallel()
	var e ends
	var written atomic.Int64
	p := newPlugin(t, plugin.Config{Hooks: e.hooks(), WriteTimeout: 4 * time.Second, Adapter: adapters.Func(
		func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if turn.Message == "small" {
				return w.Text("small")
			}
			for range 60 {
				if err := w.Text(strings.Repeat("x", 50_000)); err != nil {
					return err
				}
				written.Add(50_000)
			}
			return nil
		})})
	h := mountSmall(t, p)
	var wg sync.WaitGroup
	first := h.post(t, request{}).started(t)
	second := h.post(t, request{}) // reads nothing
	if second.StatusCode != http.StatusOK {
		t.Fatalf("the second host gets status %d; the first reads nothing yet, so the turn can be joined", second.StatusCode)
	}
	wg.Go(func() {
		if err := first.read(); err != nil {
			t.Error(err)
		}
	})
	if text := h.post(t, request{session: "other", message: "small"}).completed(t); text != "small" {
		t.Errorf("another session's turn: %q", text)
	}
	wg.Wait()
	if len(first.text()) != 3_000_000 || first.last().Status != wire.StatusComplete {
		t.Errorf("the first reader read %d bytes and %+v", len(first.text()), first.last())
	}
	if err := second.read(); err == nil {
		t.Error("the reader that stalled read everything")
	}
	if end := e.wait(t, "t-1"); end.Cause != adapters.CauseCompleted {
		t.Errorf("the turn ended as %s", end.Cause)
	}
}

// A repeat may come at any moment of a turn's life: it must see the whole stream, a conflict that says
// that the log is outgrown, or a run of its own.
func TestRepeatsAtAnyMoment(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const sessions, repeats = 20, 30
	var calls called
	p, h := start(t, plugin.Config{Adapter: calls.by(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for i := range 200 {
			if err := w.Text(fmt.Sprintf("%d,", i)); err != nil {
				return err
			}
		}
		return nil
	}))})
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintf(&want, "%d,", i)
	}
	var wg sync.WaitGroup
	for s := range sessions {
		for range repeats {
			wg.Go(func() {
				r, err := h.run(request{session: numbered("s", s)})
				if err != nil || r.text() != want.String() {
					t.Errorf("a repeat: %v, %d bytes", err, len(r.text()))
				}
			})
		}
	}
	wg.Wait()
	if n := calls.times(); n != sessions {
		t.Errorf("%d adapter calls for %d turns", n, sessions)
	}
	quiet(t, p)
}
