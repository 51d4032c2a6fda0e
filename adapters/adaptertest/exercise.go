package adaptertest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// A Case names one case of [Exercise], and the subtest that it runs in.
type Case string

// The cases.
const (
	// Answers: the message is answered without an error, also where the turn has a history.
	Answers Case = "answers"
	// EmptyMessage: a turn without text ends, well or with an error, and not with a panic.
	EmptyMessage Case = "empty-message"
	// UsageNumbers: what is reported as measured is a whole number and not negative.
	UsageNumbers Case = "usage-numbers"
	// CancelledBefore: a context that is cancelled from the start ends the turn promptly.
	CancelledBefore Case = "cancelled-before"
	// CancelledMeanwhile: so does one that is cancelled after the first output, or where there is
	// none.
	CancelledMeanwhile Case = "cancelled-meanwhile"
	// DeadlinePasses: so does a deadline.
	DeadlinePasses Case = "deadline-passes"
	// WritesFail: the adapter returns promptly once the writer answers adapters.ErrTurnOver, at the
	// first write or at the second.
	WritesFail Case = "writes-fail"
	// NextTurn: a session answers its next turn, after a completed one and after a cancelled one.
	NextTurn Case = "next-turn"
	// ConcurrentTurns: turns of several sessions at the same time answer, and nothing of one is seen
	// in another: its message, its history, its user, its stored values.
	ConcurrentTurns Case = "concurrent-turns"
	// ExternalAdmits: under agent.external-runtime a turn completes whose requests to the host are all
	// admitted, and [Result.CheckExternal] finds nothing. This case and the next two are run where
	// [Suite.External] is set.
	ExternalAdmits Case = "external-admits"
	// ExternalRefuses: a turn whose requests are all refused ends, well or with an error, and
	// [Result.CheckExternal] finds nothing.
	ExternalRefuses Case = "external-refuses"
	// ExternalWaits: a turn whose request is never answered returns promptly when it is cancelled.
	ExternalWaits Case = "external-waits"
	// NothingLate: in none of the cases, this one included, was a writer or a session used after the
	// adapter had returned.
	NothingLate Case = "nothing-late"
)

// A Suite is the cases that every adapter passes, fitted to one adapter. The zero value is what
// [Exercise] runs.
type Suite struct {
	// Message is what the turns say. The adapter has to answer it. Empty means "hello".
	Message string

	// LongMessage is a message that keeps the adapter busy until it is cancelled, for the cases that
	// cancel; these then also see that the turn does not end before. Empty means that they use
	// Message, and a turn that ends by itself is as good.
	LongMessage string

	// External adds the cases of agent.external-runtime. An adapter that is hosted for it alone or besides
	// passes them; what it breaks there ends turns as failed, and is charged.
	External bool

	// Except names the cases that are not for this adapter, each with the reason. They are skipped,
	// with the reason in the test's output.
	Except map[Case]string
}

// Exercise runs the cases that every adapter passes, each as a subtest with an adapter of its own
// from newAdapter. What the adapter calls must be there, or a stand-in for it. Run it with the race
// detector. An adapter that hangs fails a case after some seconds, and leaves its goroutine behind.
func Exercise(t *testing.T, newAdapter func() adapters.Adapter) {
	t.Helper()
	Suite{}.Exercise(t, newAdapter)
}

// Exercise is the function [Exercise] with this suite's settings.
func (s Suite) Exercise(t *testing.T, newAdapter func() adapters.Adapter) {
	t.Helper()
	for c, reason := range s.Except {
		if !slices.ContainsFunc(exercises, func(x namedCase) bool { return x.name == c }) {
			t.Fatalf("adaptertest: Except names the case %q, which is not there", c)
		}
		if reason == "" {
			t.Fatalf("adaptertest: Except gives no reason for %q", c)
		}
	}
	e := newExercise(s, newAdapter)
	for _, x := range exercises {
		if x.external && !s.External {
			continue
		}
		t.Run(string(x.name), func(t *testing.T) {
			if reason, ok := s.Except[x.name]; ok {
				t.Skipf("not for this adapter: %s", reason)
			}
			for _, problem := range e.problems(x.run) {
				t.Error(problem)
			}
		})
	}
}

// exercise is one run of the suite.
type exercise struct {
	newAdapter    func() adapters.Adapter
	message, long string
	blocks        bool // long does not end by itself

	atMost   time.Duration // bounds a turn that nobody cancels
	promptly time.Duration // what an adapter may take to return when it has to
	silence  time.Duration // how long a case waits for a first output before it goes on without one

	mu      sync.Mutex
	results []*Result // of all cases, for NothingLate
	found   []string  // problems of the case that runs
}

func newExercise(s Suite, newAdapter func() adapters.Adapter) *exercise {
	return &exercise{
		newAdapter: newAdapter,
		message:    cmp.Or(s.Message, "hello"),
		long:       cmp.Or(s.LongMessage, s.Message, "hello"),
		blocks:     s.LongMessage != "",
		atMost:     30 * time.Second,
		promptly:   DefaultGrace,
		silence:    100 * time.Millisecond,
	}
}

type namedCase struct {
	name     Case
	run      func(*exercise, adapters.Adapter)
	external bool
}

// exercises are the cases in the order in which they run.
var exercises = []namedCase{
	{name: Answers, run: (*exercise).answers},
	{name: EmptyMessage, run: (*exercise).emptyMessage},
	{name: UsageNumbers, run: (*exercise).usageNumbers},
	{name: CancelledBefore, run: (*exercise).cancelledBefore},
	{name: CancelledMeanwhile, run: (*exercise).cancelledMeanwhile},
	{name: DeadlinePasses, run: (*exercise).deadlinePasses},
	{name: WritesFail, run: (*exercise).writesFail},
	{name: NextTurn, run: (*exercise).nextTurn},
	{name: ConcurrentTurns, run: (*exercise).concurrentTurns},
	{name: ExternalAdmits, run: (*exercise).externalAdmits, external: true},
	{name: ExternalRefuses, run: (*exercise).externalRefuses, external: true},
	{name: ExternalWaits, run: (*exercise).externalWaits, external: true},
	{name: NothingLate, run: (*exercise).nothingLate},
}

// problems runs one case with a fresh adapter and returns what was wrong.
func (e *exercise) problems(run func(*exercise, adapters.Adapter)) []string {
	e.found = nil
	run(e, e.newAdapter())
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.found
}

func (e *exercise) problem(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found = append(e.found, fmt.Sprintf(format, args...))
}

// These end the context of a turn that should have ended by itself.
var (
	errTooLong   = errors.New("the turn took too long")
	errWroteLong = errors.New("the turn went on although its writes failed")
)

// run runs one turn. A panic is always a problem, and so is an adapter that has to be abandoned.
func (e *exercise) run(ctx context.Context, a adapters.Adapter, turn *Turn) *Result {
	turn.Grace = e.promptly
	ctx, cancel := context.WithTimeoutCause(ctx, e.atMost, errTooLong)
	defer cancel()
	res := Run(ctx, a, turn)
	e.mu.Lock()
	e.results = append(e.results, res)
	e.mu.Unlock()
	var p *PanicError
	switch {
	case errors.As(res.Err, &p):
		e.problem("%v\n%s", p, p.Stack)
	case errors.Is(context.Cause(ctx), errTooLong):
		e.problem("the turn did not end within %v", e.atMost)
	case errors.Is(res.Err, ErrAbandoned):
		e.problem("the adapter did not return within %v after its context was cancelled", e.promptly)
	}
	return res
}

// completes runs one turn that must end well.
func (e *exercise) completes(ctx context.Context, a adapters.Adapter, turn *Turn, which string) *Result {
	res := e.run(ctx, a, turn)
	if res.Err != nil && !isA[*PanicError](res.Err) {
		e.problem("%s failed: %v", which, res.Err)
	}
	return res
}

func (e *exercise) answers(a adapters.Adapter) {
	e.completes(context.Background(), a, NewTurn(e.message), "a turn")

	turn := NewTurn(e.message)
	turn.History = []adapters.Message{
		{Role: adapters.RoleSystem, Content: "Be brief."},
		{Role: adapters.RoleUser, Content: "good morning"},
		{Role: adapters.RoleAgent, Content: "Good morning!"},
	}
	e.completes(context.Background(), a, turn, "a turn with a history")
}

func (e *exercise) emptyMessage(a adapters.Adapter) { e.run(context.Background(), a, NewTurn("")) }

func (e *exercise) usageNumbers(a adapters.Adapter) {
	for _, u := range e.run(context.Background(), a, NewTurn(e.message)).UsageReports {
		for axis, m := range map[string]adapters.Measure{
			"Tokens": u.Tokens, "CostMicros": u.CostMicros, "WallTimeMS": u.WallTimeMS, "Steps": u.Steps,
			"InputTokens": u.InputTokens, "OutputTokens": u.OutputTokens,
		} {
			if n, ok := m.Int(); m.Known() && (!ok || n < 0) {
				e.problem("usage: %s is %s; a measured value is a whole number and not negative", axis, m)
			}
		}
	}
}

func (e *exercise) cancelledBefore(a adapters.Adapter) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(adapters.CauseStopped)
	e.run(ctx, a, NewTurn(e.long))
}

func (e *exercise) cancelledMeanwhile(a adapters.Adapter) { e.cancelled(a, NewTurn(e.long)) }

// cancelled runs turn and cancels it after its first output, or after a while without.
func (e *exercise) cancelled(a adapters.Adapter, turn *Turn) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer time.AfterFunc(e.silence, func() { cancel(adapters.CauseHostGone) }).Stop()
	turn.OnText = func(string) { cancel(adapters.CauseHostGone) }
	e.run(ctx, a, turn)
	if e.blocks && ctx.Err() == nil {
		e.problem("the turn of the long message ended before it was cancelled")
	}
}

func (e *exercise) deadlinePasses(a adapters.Adapter) {
	turn := NewTurn(e.long)
	turn.Deadline = time.Now().Add(e.silence)
	e.run(context.Background(), a, turn)
	if e.blocks && time.Now().Before(turn.Deadline) {
		e.problem("the turn of the long message ended before its deadline")
	}
}

func (e *exercise) writesFail(a adapters.Adapter) {
	for good := range 2 {
		ctx, cancel := context.WithCancelCause(context.Background())
		failing := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return a.Run(ctx, turn, &failingWriter{Writer: w, good: int64(good), failed: func() {
				time.AfterFunc(e.promptly, func() { cancel(errWroteLong) })
			}})
		})
		e.run(ctx, failing, NewTurn(e.message))
		if ctx.Err() != nil {
			e.problem("the adapter did not return within %v after write %d had failed with ErrTurnOver", e.promptly, good+1)
		}
		cancel(nil)
	}
}

// A failingWriter fails all calls after the first good ones, as a writer does whose turn is over.
type failingWriter struct {
	adapters.Writer
	good   int64
	failed func() // called at the first failure
	calls  atomic.Int64
}

func (f *failingWriter) call() error {
	switch n := f.calls.Add(1); {
	case n <= f.good:
		return nil
	case n == f.good+1:
		f.failed()
	}
	return fmt.Errorf("%w: %w", adapters.ErrTurnOver, adapters.CauseHostGone)
}

func (f *failingWriter) Write(p []byte) (int, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	return f.Writer.Write(p)
}

func (f *failingWriter) Text(s string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.Writer.Text(s)
}

func (f *failingWriter) Status(s string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.Writer.Status(s)
}

func (f *failingWriter) Usage(u adapters.Usage) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.Writer.Usage(u)
}

func (f *failingWriter) Tool(ctx context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
	if err := f.call(); err != nil {
		return adapters.Observation{}, err
	}
	return f.Writer.Tool(ctx, r)
}

func (f *failingWriter) Ask(ctx context.Context, q adapters.Question) (adapters.Observation, error) {
	if err := f.call(); err != nil {
		return adapters.Observation{}, err
	}
	return f.Writer.Ask(ctx, q)
}

func (f *failingWriter) Arrivals() (<-chan adapters.Arrival, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.Writer.Arrivals()
}

func (f *failingWriter) Candidate(event json.RawMessage) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.Writer.Candidate(event)
}

func (e *exercise) nextTurn(a adapters.Adapter) {
	s := NewSession("session-1")
	e.completes(context.Background(), a, s.Turn(e.message), "the first turn")
	e.completes(context.Background(), a, s.Turn(e.message), "the second turn of a session")
	e.cancelled(a, s.Turn(e.long))
	e.completes(context.Background(), a, s.Turn(e.message), "the turn after a cancelled one")
}

// concurrentTurns gives each turn words of its own, and looks for those of the others in its answer.
func (e *exercise) concurrentTurns(a adapters.Adapter) {
	const turns = 8
	marker := func(i int) string { return fmt.Sprintf("marker-%c%c", 'q'+i, 'Q'+i) }
	key := "adaptertest.marker"
	sessions := make([]*Session, turns)
	results := make([]*Result, turns)
	var writing atomic.Int64
	together := make(chan struct{}) // closed once all turns have written something
	var all sync.WaitGroup
	for i := range turns {
		s := NewSession("session of " + marker(i))
		if err := s.Values().Store(key, marker(i)); err != nil {
			e.problem("%v", err)
		}
		turn := s.Turn(e.message + " " + marker(i))
		turn.User.Name = "user " + marker(i)
		turn.History = []adapters.Message{{Role: adapters.RoleUser, Content: "earlier " + marker(i)}}
		meet := sync.OnceFunc(func() {
			if writing.Add(1) == turns {
				close(together)
			}
			select {
			case <-together:
			case <-time.After(e.silence): // the adapter lets them run one by one
			}
		})
		turn.OnText = func(string) { meet() }
		sessions[i] = s
		all.Go(func() { results[i] = e.completes(context.Background(), a, turn, "a turn beside others") })
	}
	all.Wait()
	for i, res := range results {
		said := res.Text() + strings.Join(res.Statuses, "\n")
		for _, k := range sessions[i].values.Keys() {
			var v json.RawMessage
			if _, err := sessions[i].Values().Load(k, &v); err != nil {
				e.problem("%v", err)
			}
			said += string(v)
		}
		for j := range turns {
			if i != j && strings.Contains(said, marker(j)) {
				e.problem("the turn of %s shows or stores %s, which is another session's", marker(i), marker(j))
			}
		}
	}
}

func (e *exercise) nothingLate(a adapters.Adapter) {
	e.run(context.Background(), a, NewTurn(e.message))
	// That nothing comes cannot be waited for, only watched for a while. The cases before this one have
	// been watched since they ended.
	time.Sleep(e.silence / 2)
	e.mu.Lock()
	results := slices.Clone(e.results)
	e.mu.Unlock()
	late := 0
	for _, res := range results {
		late += res.Late()
	}
	if late > 0 {
		e.problem("the writer or the session was used %d times after the adapter had returned", late)
	}
}
