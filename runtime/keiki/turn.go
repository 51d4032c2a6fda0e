package keiki

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/session"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// A runner runs turns, however they came in. Its methods may be called from several goroutines.
type runner struct {
	conf    Config
	pin     origin
	caller  *caller
	backoff *backoff
	log     *slog.Logger
	// patience is gapPatience, and less in tests.
	patience time.Duration

	mu   sync.Mutex
	live map[turnKey]*turn

	tasks sync.WaitGroup // goroutines of turns
}

// A turnKey names a turn: another agent's turn of the same id is another one.
type turnKey struct{ agent, turn string }

func newRunner(c Config) *runner {
	r := &runner{
		conf:     c,
		caller:   newCaller(c.Transport),
		backoff:  newBackoff(250*time.Millisecond, 10*time.Second),
		log:      c.Logger,
		patience: gapPatience,
		live:     map[turnKey]*turn{},
	}
	if c.APIBase != "" {
		r.pin, _ = parseOrigin(c.APIBase) // checked
	}
	return r
}

// An assignment is a turn as it comes in.
type assignment struct {
	turn  *wire.Turn
	raw   string // without secrets
	creds *credentials
	// leave: a turn that the drain ends is left to its lease, and a claim that has ended may be taken again.
	leave bool
}

// An ending says what ended a turn from outside its adapter.
type ending int32

const (
	notEnded ending = iota
	endCancelled
	endClosed
	endUnauthorised
	endLost
	endRefused
	endUnreachable
)

// completes tells whether the platform is to hear of the turn's end.
func (e ending) completes() bool { return e == notEnded || e == endRefused || e == endUnreachable }

func (e ending) cause() adapters.Cause {
	switch e {
	case endLost, endUnauthorised:
		return adapters.CauseHostGone
	case endUnreachable:
		return adapters.CauseHostStalled
	default:
		return adapters.CauseStopped
	}
}

// mark puts the ending into the turn's outcome.
func (e ending) mark(o *runtime.Outcome) {
	o.Cause = e.cause()
	o.Status = runtime.Cancelled
	if e.completes() || e == endUnauthorised {
		o.Status = runtime.Failed
	}
}

// text is for the platform.
func (e ending) text() string {
	if e == endRefused {
		return "The platform refused a message of the agent."
	}
	return "A message of the agent could not be delivered in time."
}

// A turn is one that runs here, or is about to.
type turn struct {
	r       *runner
	id      string
	key     turnKey
	links   wire.Links
	creds   *credentials
	leave   bool
	log     *slog.Logger
	decided chan struct{} // closed when it is known whether the turn runs
	runs    bool          // it does
	done    chan struct{} // closed when all is over

	// deadline is the platform's; where it names none, a limit of ours for calls.
	deadline time.Time
	// platformCut: the adapter is cancelled because of the platform's deadline, not of the turn timeout.
	platformCut bool

	// life ends when nothing at all may be sent any more. A part of it is time, which ends with the deadline,
	// or when the drain can wait no longer; and a part of that is calls, which ends when no message may be sent.
	life, time, calls context.Context
	endLife, noCall   context.CancelCauseFunc
	endTime           context.CancelFunc

	stream   runtime.Stream
	sink     sink
	sender   sender
	arrivals arrivals

	why        atomic.Int32 // an ending
	hurry      atomic.Bool
	sent, lost atomic.Int64
}

func (t *turn) ended() ending       { return ending(t.why.Load()) }
func (t *turn) hurried() bool       { return t.hurry.Load() }
func (t *turn) cutByPlatform() bool { return t.platformCut }
func (t *turn) stopCalls(err error) { t.noCall(err) }

// end ends the turn from outside its adapter. The first ending counts. a, if not nil, is the answer that
// tells of it.
func (t *turn) end(e ending, a *answer) {
	if !t.why.CompareAndSwap(int32(notEnded), int32(e)) {
		return
	}
	word := ""
	if a != nil {
		word = a.word()
	}
	switch e {
	case endUnauthorised:
		t.log.Error("the platform does not take this turn's credential: the turn ends, and nothing more is sent", "answer", word)
	case endRefused:
		t.log.Error("the platform refused a message for good: the turn ends as failed", "answer", word)
	case endUnreachable:
		t.log.Error("a message could not be delivered before the turn's deadline: the turn ends as failed", "answer", word)
	case endLost:
		t.log.Warn("the lease on the turn is lost: it ends here, and nothing more is sent", "answer", word)
	case endClosed:
		t.log.Info("the platform has closed the turn", "answer", word)
	}
	if !e.completes() {
		t.endLife(errEnded)
	}
	<-t.decided
	if t.runs {
		t.stream.Stop(e.cause())
	}
}

// find returns the turn if it is running here, nil otherwise. One that has passed its completion boundary
// may still be found.
func (r *runner) find(agent, id string) *turn {
	r.mu.Lock()
	t := r.live[turnKey{agent, id}]
	r.mu.Unlock()
	if t == nil {
		return nil
	}
	<-t.decided
	if !t.runs {
		return nil
	}
	return t
}

// Why a turn does not begin, besides the engine's own reasons.
var (
	errDuplicate = errors.New("the turn has run or runs")
	errNoAdapter = errors.New("no adapter answers for this agent")
	errStore     = errors.New("the store of claims does not answer")
	errID        = errors.New("the turn's id or its agent's is longer than can be kept, or has a NUL in it")
)

// claimTimeout limits what is asked of the store. Longer than any store takes that works.
const claimTimeout = 10 * time.Second

// begin claims the turn and starts it. The error is errDuplicate (with the turn where it runs here),
// errNoAdapter, errStore, errID, or one of the engine's; after an error nothing is remembered of it.
func (r *runner) begin(ctx context.Context, a assignment) (*turn, error) {
	adapter := r.adapter(a.turn.AgentID)
	if adapter == nil {
		return nil, errNoAdapter
	}
	t := r.newTurn(ctx, a, adapter)
	for {
		r.mu.Lock()
		known := r.live[t.key]
		if known == nil {
			r.live[t.key] = t
		}
		r.mu.Unlock()
		if known == nil {
			break
		}
		<-known.decided
		if known.runs {
			t.abort()
			return known, errDuplicate
		}
	}
	err := r.start(ctx, t, a, adapter)
	if err != nil {
		r.forget(t)
		t.abort()
	} else {
		t.runs = true
	}
	close(t.decided)
	if err != nil {
		return nil, err
	}
	r.tasks.Go(t.run)
	return t, nil
}

func (r *runner) adapter(agent string) adapters.Adapter {
	if a := r.conf.Adapters[agent]; a != nil {
		return a
	}
	return r.conf.Adapter
}

func (r *runner) forget(t *turn) {
	r.mu.Lock()
	delete(r.live, t.key)
	r.mu.Unlock()
}

// abort gives up a turn that does not run.
func (t *turn) abort() {
	t.noCall(errEnded)
	t.endTime()
	t.endLife(errEnded)
}

// newTurn makes a turn that nobody knows yet.
func (r *runner) newTurn(ctx context.Context, a assignment, adapter adapters.Adapter) *turn {
	w := a.turn
	id := strings.Clone(w.TurnID)
	t := &turn{
		r: r, id: id, key: turnKey{strings.Clone(w.AgentID), id}, links: w.Links, creds: a.creds, leave: a.leave,
		log:     r.log.With("protocol", string(adapters.Keiki), "agent", w.AgentID, "turn", id),
		decided: make(chan struct{}),
		done:    make(chan struct{}),
	}
	t.links.TurnURL = strings.TrimRight(t.links.TurnURL, "/")
	t.sink.t = t
	t.arrivals.next = 1
	if t.deadline = w.Deadline; t.deadline.IsZero() {
		t.deadline = time.Now().Add(max(defaultDeadline, r.turnTimeout()))
	}
	t.life, t.endLife = context.WithCancelCause(context.WithoutCancel(ctx))
	t.time, t.endTime = context.WithDeadline(t.life, t.deadline)
	t.calls, t.noCall = context.WithCancelCause(t.time)
	t.sender.init(t)
	return t
}

// turnTimeout is the engine's limit for a whole turn, 0 where it has none.
func (r *runner) turnTimeout() time.Duration {
	if d := r.conf.Engine.Config().TurnTimeout; d > 0 && d < 1<<62 {
		return d
	}
	return 0
}

// start claims the turn's id and hands it to the engine.
func (r *runner) start(ctx context.Context, t *turn, a assignment, adapter adapters.Adapter) error {
	now := time.Now()
	// A claim that was given up half-way might stand, with nobody to run it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	agent, id := ledger.AgentID(t.key.agent), ledger.TurnRef(t.id)
	longest := now.Add(max(defaultDeadline, r.turnTimeout()))
	if t.deadline.After(longest) {
		longest = t.deadline
	}
	claimed, err := r.conf.Claims.Claim(ctx, ledger.ClaimRequest{Agent: agent, Turn: id, Again: a.leave, At: now, Expires: longest.Add(afterDeadline)})
	switch {
	case errors.Is(err, ledger.ErrInvalid):
		return errID
	case err != nil:
		t.log.Error("the turn could not be claimed", "error", err)
		return errStore
	case claimed.Decision != ledger.Fresh:
		return errDuplicate
	}
	spec := r.spec(t, a.turn, a.raw, adapter)
	spec.Deadline, t.platformCut = r.cut(now, a.turn.Deadline)
	t.stream, err = r.conf.Engine.Start(ctx, spec)
	if err == nil && t.stream.Repeat != runtime.First { // two agents' ids cannot meet, so this is no case
		err = errDuplicate
	}
	if err != nil {
		if e := r.conf.Claims.Unclaim(ctx, agent, id); e != nil {
			t.log.Error("a refused turn could not be forgotten, and will be taken for a repeat", "error", e)
		}
		return err
	}
	// A log that nothing was written to cannot have outgrown anything.
	t.sender.attached, _ = t.stream.Attach(&t.sender, 0)
	return nil
}

// cut tells when the adapter is cancelled because of the platform's deadline: a second before it, or at half
// of what is left where that is less than two seconds. at is zero where the engine's own limit is the nearer
// one.
func (r *runner) cut(now, deadline time.Time) (at time.Time, platform bool) {
	if deadline.IsZero() {
		return time.Time{}, false
	}
	left := deadline.Sub(now)
	at = deadline.Add(-time.Second)
	if left < 2*time.Second {
		at = now.Add(max(left, 0) / 2)
	}
	if limit := r.turnTimeout(); limit > 0 && !at.Before(now.Add(limit)) {
		return time.Time{}, false
	}
	return at, true
}

// run runs the turn.
func (t *turn) run() {
	if t.platformCut && !time.Now().Before(t.deadline) {
		t.stream.Stop(adapters.CauseTurnTimeout) // it has passed already: the adapter is not called
	}
	if e := t.ended(); e != notEnded {
		t.stream.Stop(e.cause())
	}
	t.stream.Run()
}

// close is the very end of the turn, adapter or not.
func (t *turn) close() {
	t.abort()
	if t.sender.started {
		<-t.sender.over
	} else {
		_ = t.sender.attached.Follow(t.calls) // which is over: it only lets go
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.life), claimTimeout)
	defer cancel()
	if err := t.r.conf.Claims.EndClaim(ctx, ledger.AgentID(t.key.agent), ledger.TurnRef(t.id), time.Now()); err != nil {
		t.log.Error("the end of the turn could not be recorded", "error", err)
	}
	t.r.forget(t)
	close(t.done)
}

// What the principals of sessions begin with. No token of a host's is called so.
const (
	principal = "keiki:"
	loneTurn  = "keiki-turn:"
)

// spec is the turn as the engine gets it.
func (r *runner) spec(t *turn, w *wire.Turn, raw string, adapter adapters.Adapter) *runtime.Spec {
	taker, ok := adapter.(adapters.ArrivalTaker)
	spec := &runtime.Spec{
		Adapter:  adapter,
		Sink:     &t.sink,
		Session:  session.Key{Principal: principal + w.AgentID, Handle: w.ConversationID},
		Window:   window(w.History),
		NoWindow: !w.HasHistory,
		HostGone: runtime.Detach,
		Forget:   true,
		Turn: adapters.Turn{
			Protocol:       adapters.Keiki,
			ID:             w.TurnID,
			AgentID:        w.AgentID,
			ConversationID: w.ConversationID,
			Messages:       inbound(w.Messages),
			Flags:          adapters.Flags{Silent: w.Silent, QuietLoop: w.QuietLoop, HeldBack: w.HeldBack},
			Instructions:   w.Instructions,
			Context:        w.Context,
			Channel:        w.Channel,
			Raw:            raw,
		},
	}
	if w.ConversationID == "" { // no other turn belongs to it
		// The mark comes first: agents have any names.
		spec.Session = session.Key{Principal: loneTurn + w.AgentID, Handle: w.TurnID}
	}
	texts := make([]string, 0, len(w.Messages))
	silent, flagged := len(w.Messages) > 0, false
	for _, m := range w.Messages {
		if m.Text != "" {
			texts = append(texts, m.Text)
		}
		silent = silent && m.Silent
		flagged = flagged || m.Flagged
	}
	turn := &spec.Turn
	turn.Message = strings.Join(texts, "\n\n")
	turn.Flags.Silent = turn.Flags.Silent || silent
	if flagged {
		turn.Instructions = strings.TrimRight(r.conf.FlaggedWarning+"\n\n"+turn.Instructions, "\n")
	}
	if ok {
		t.arrivals.takes = takesArrivals(taker, turn)
	}
	return spec
}

// takesArrivals asks the adapter, and survives its panic.
func takesArrivals(a adapters.ArrivalTaker, turn *adapters.Turn) (takes bool) {
	defer func() { _ = recover() }()
	own := *turn
	return a.TakesArrivals(&own)
}

// window is the history as the engine joins it.
func window(history []wire.Entry) []adapters.Message {
	list := make([]adapters.Message, len(history))
	for i, e := range history {
		list[i] = adapters.Message{Role: role(e.Role), Content: e.Text, Time: e.Time}
	}
	return list
}

// role reads a role as platforms write it. Who is not known to be the agent or the system is the contact.
func role(s string) adapters.Role {
	switch strings.ToLower(s) {
	case "assistant", "agent", "bot", "model", "outbound", "ai":
		return adapters.RoleAgent
	case "system", "developer":
		return adapters.RoleSystem
	}
	return adapters.RoleUser
}

// rush ends what the drain can wait for no longer: each turn that has passed its boundary gets one last try.
func (r *runner) rush() {
	r.mu.Lock()
	list := make([]*turn, 0, len(r.live))
	for _, t := range r.live {
		list = append(list, t)
	}
	r.mu.Unlock()
	for _, t := range list {
		t.hurry.Store(true)
		t.stopCalls(errEnded)
		t.endTime()
	}
}

// drain refuses new turns and waits for the running ones, as [runtime.Engine.Drain] does.
func (r *runner) drain(ctx context.Context) error {
	rushing := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { r.rush(); close(rushing) })
	err := r.conf.Engine.Drain(ctx)
	if !stop() {
		<-rushing
	}
	return err
}
