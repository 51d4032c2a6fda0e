package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
)

// A standIn is the platform with somebody who has turns dispatched. Its methods but line may be called from
// several goroutines.
type standIn struct {
	k           *testhost.Keiki
	out         *platformOutput
	mode        testhost.KeikiMode
	agent       string
	secrets     []string        // of every agent; nil where each has its own
	byAgent     map[string]bool // that have one
	concurrency int             // of turns from a file; 0 for no limit, and no waiting
	run         string          // part of the ids of this run

	tasks sync.WaitGroup

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced when anything below changes
	turns, convs int           // that ids were made for
	conversation string        // that the next turn is of
	live         map[string]conversationKey
	talks        map[conversationKey]*platformTalk
	unacked      map[string]bool // completions whose acknowledgement has not come through
	polled       bool
	leaving      bool
	failed       int
	first        *testhost.KeikiOutcome // that failed
	violations   int
}

type conversationKey struct{ agent, conversation string }

// A platformTalk is a conversation of the stand-in.
type platformTalk struct {
	running []string // turns, oldest first
	last    string   // turn
	held    []testhost.KeikiMessage
}

func newStandIn(mode testhost.KeikiMode, agent string) *standIn {
	return &standIn{
		mode: mode, agent: agent, run: strings.ToLower(rand.Text()[:8]), changed: make(chan struct{}),
		live: map[string]conversationKey{}, talks: map[conversationKey]*platformTalk{}, unacked: map[string]bool{},
	}
}

// hook has the platform tell the stand-in what happens. faults may be nil. unknown is how many of a hundred
// messages have a delivery error.
func (s *standIn) hook(c *testhost.KeikiConfig, faults func(*http.Request, int) testhost.KeikiFault, seed uint64, unknown int) {
	c.Fault = func(r *http.Request, n int) testhost.KeikiFault {
		s.poll(r)
		if faults == nil {
			return testhost.KeikiFault{}
		}
		return faults(r, n)
	}
	chance, mu := mathrand.New(mathrand.NewPCG(seed, 1)), sync.Mutex{} //nolint:gosec // chance, not secrecy
	c.Deliver = func(d testhost.KeikiDelivery) error {
		e := platformEvent{Event: eventMessage, TurnID: d.TurnID, Text: d.Text, Key: d.Key, Streamed: d.Streamed, State: stateDelivered}
		mu.Lock()
		lost := chance.IntN(100) < unknown
		mu.Unlock()
		switch {
		case lost:
			e.State = stateUnknown
		case d.HeldBack:
			e.State = stateCaptured
		}
		s.out.event(e)
		if lost {
			return errors.New("a delivery error on purpose")
		}
		return nil
	}
	c.OnOutcome, c.OnRequest, c.OnViolation = s.ended, s.answered, s.violated
}

// poll tells of the first poll.
func (s *standIn) poll(r *http.Request) {
	if s.mode == testhost.KeikiPushMode || !strings.HasSuffix(r.URL.Path, "/next") {
		return
	}
	s.mu.Lock()
	told := s.polled
	s.polled = true
	s.mu.Unlock()
	if !told {
		s.out.event(platformEvent{Event: eventPoller, Mode: string(s.mode)})
	}
}

func (s *standIn) violated(v testhost.KeikiViolation) {
	s.update(func() { s.violations++ })
	s.out.event(platformEvent{Event: eventViolation, TurnID: v.TurnID, Rule: string(v.Rule), Detail: v.Detail})
}

// answered sees each request to the platform when it has been answered.
func (s *standIn) answered(r testhost.KeikiRequest) {
	if r.Route == "complete" && !r.Dropped && r.Status < 300 {
		s.update(func() { delete(s.unacked, r.TurnID) })
	}
	e := platformEvent{TurnID: r.TurnID, Request: r.Method + " " + cmp.Or(r.Route, "of no route"), HTTP: r.Status, Code: r.Code, Fault: r.Fault}
	switch {
	case r.Fault != "":
		e.Event, e.HTTP, e.Code = eventFault, 0, ""
	case r.Status >= 400:
		e.Event = eventRefused
	default:
		return
	}
	s.out.event(e)
}

// ended sees each turn when it has ended.
func (s *standIn) ended(o testhost.KeikiOutcome) {
	s.out.event(platformEvent{
		Event: eventOutcome, TurnID: o.TurnID, ConversationID: o.ConversationID, Status: o.Status, Code: o.Code, Error: o.Error,
		Consumed: o.Consumed, Returned: len(o.Requeued), Into: o.MergedInto,
	})
	s.update(func() {
		key := s.live[o.TurnID]
		s.remove(o.TurnID)
		if !s.leaving {
			s.tasks.Go(func() { s.follow(context.Background(), key) })
		}
		if o.Completion != nil {
			s.unacked[o.TurnID] = true
		}
		if o.Status == "failed" {
			if s.failed++; s.first == nil {
				s.first = &o
			}
		}
	})
}

// update changes what s.mu guards.
func (s *standIn) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits until cond holds, which is called with s.mu held.
func (s *standIn) until(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// talk finds or makes a conversation. s.mu is held.
func (s *standIn) talk(key conversationKey) *platformTalk {
	t := s.talks[key]
	if t == nil {
		t = &platformTalk{}
		s.talks[key] = t
	}
	return t
}

// add notes that a turn runs. s.mu is held.
func (s *standIn) add(id string, key conversationKey) {
	t := s.talk(key)
	t.running, t.last = append(t.running, id), id
	s.live[id] = key
}

// remove notes that a turn has ended. s.mu is held.
func (s *standIn) remove(id string) {
	key, ok := s.live[id]
	if !ok {
		return
	}
	delete(s.live, id)
	t := s.talks[key]
	t.running = slices.DeleteFunc(t.running, func(other string) bool { return other == id })
}

// here is the conversation that lines are of now. s.mu is held.
func (s *standIn) here() conversationKey {
	if s.conversation == "" {
		s.convs++
		s.conversation = fmt.Sprintf("conversation-%s-%d", s.run, s.convs)
	}
	return conversationKey{s.agent, s.conversation}
}

// name gives a turn the ids that it has not. s.mu is held.
func (s *standIn) name(in *testhost.KeikiTurn) conversationKey {
	if in.ID == "" {
		s.turns++
		in.ID = fmt.Sprintf("turn-%s-%d", s.run, s.turns)
	}
	in.AgentID = cmp.Or(in.AgentID, s.agent)
	if in.ConversationID == "" {
		in.ConversationID = s.here().conversation
	}
	return conversationKey{in.AgentID, in.ConversationID}
}

// dispatch has a turn run. Turns from a file wait for the one before in their conversation, and for room.
func (s *standIn) dispatch(ctx context.Context, in testhost.KeikiTurn) error {
	if err := s.admit(&in); err != nil {
		return err
	}
	var key conversationKey
	s.update(func() { key = s.name(&in) })
	if s.concurrency > 0 {
		if err := s.until(ctx, func() bool { return len(s.live) < s.concurrency && len(s.talk(key).running) == 0 }); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if _, runs := s.live[in.ID]; runs || len(s.k.Tokens(in.ID)) > 0 {
		s.mu.Unlock()
		return fmt.Errorf("there was a turn %q already", in.ID)
	}
	s.add(in.ID, key)
	s.mu.Unlock()
	return s.bring(ctx, in, key)
}

// admit refuses turns of agents whose requests cannot be signed.
func (s *standIn) admit(in *testhost.KeikiTurn) error {
	switch {
	case in.AgentID == "" || in.AgentID == s.agent:
		return nil
	case s.mode != testhost.KeikiPushMode:
		return fmt.Errorf("in %s mode turns are those of %s, whose API key is asked for", s.mode, s.agent)
	case s.secrets != nil:
		s.k.SetSecrets(in.AgentID, s.secrets...)
		return nil
	case !s.byAgent[in.AgentID]:
		return fmt.Errorf("there is no secret for the agent %q", in.AgentID)
	}
	return nil
}

// bring brings a turn to the app. It is among those that run already.
func (s *standIn) bring(ctx context.Context, in testhost.KeikiTurn, key conversationKey) error {
	push, back := s.mode == testhost.KeikiPushMode, 0
	if push {
		back = len(s.k.Pending(key.agent, key.conversation))
	}
	e := platformEvent{
		Event: eventDispatched, TurnID: in.ID, ConversationID: key.conversation, AgentID: key.agent, Mode: string(s.mode),
		Messages: len(in.Messages) + back, Returned: back,
	}
	if in.Text != "" {
		e.Messages++
	}
	s.out.event(e)
	ctx, done := lingering(ctx)
	defer done()
	d, err := s.k.Dispatch(ctx, in)
	if d == nil {
		s.update(func() { s.remove(in.ID) })
		return errors.New(strings.TrimPrefix(err.Error(), "testhost: "))
	}
	if push {
		s.out.answer(eventAnswered, in.ID, d.Answer, err)
	}
	return nil
}

// linger is how long a push may go on when everything is to end.
const linger = 2 * time.Second

// lingering is a context for a push, which does not break off at once: the app may have taken what its
// answer is awaited for, and has to be told what becomes of that. done is to be called.
func lingering(ctx context.Context) (_ context.Context, done func()) {
	push, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(linger, cancel)
		context.AfterFunc(push, func() { timer.Stop() })
	})
	return push, func() { stop(); cancel() }
}

// follow dispatches a turn for messages that went back to a conversation in which nothing runs.
func (s *standIn) follow(ctx context.Context, key conversationKey) {
	s.mu.Lock()
	t := s.talk(key)
	if s.leaving || key.conversation == "" || len(t.running) > 0 ||
		len(t.held) == 0 && (s.mode != testhost.KeikiPushMode || len(s.k.Pending(key.agent, key.conversation)) == 0) {
		s.mu.Unlock()
		return
	}
	in := testhost.KeikiTurn{AgentID: key.agent, ConversationID: key.conversation, Messages: t.held}
	t.held = nil
	s.name(&in)
	s.add(in.ID, key)
	s.mu.Unlock()
	if err := s.bring(ctx, in, key); err != nil {
		s.out.note(err.Error())
	}
}

// line does what a line says. The error is the line's own. alive tells that somebody types: then a message
// for a conversation in which a turn runs is an arrival.
func (s *standIn) line(ctx context.Context, text string, alive bool) (quit bool, err error) {
	l, err := parsePlatformLine(text)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	key := s.here()
	t := s.talk(key)
	running, last := "", t.last
	if n := len(t.running); n > 0 {
		running = t.running[n-1]
	}
	s.mu.Unlock()
	switch l.kind {
	case lineMessage:
		if alive && running != "" && s.mode != testhost.KeikiInboxMode {
			return false, s.arrive(ctx, key, running, l.text)
		}
		return false, s.dispatch(ctx, testhost.KeikiTurn{Text: l.text})
	case lineTurn:
		return false, s.dispatch(ctx, l.turn)
	case lineArrive:
		if last == "" {
			return false, errors.New("there is no turn for it to arrive at")
		}
		return false, s.arrive(ctx, key, cmp.Or(running, last), l.text)
	case lineCancel:
		if running == "" {
			s.out.note("no turn runs in this conversation")
			return false, nil
		}
		return false, s.cancel(ctx, running)
	case lineNew:
		s.update(func() { s.conversation = l.text; key = s.here() })
		s.out.note("conversation " + key.conversation)
	case lineAgain:
		if last == "" || s.mode != testhost.KeikiPushMode {
			return false, errors.New("no turn was pushed")
		}
		ctx, done := lingering(ctx)
		defer done()
		answer, err := s.k.Redispatch(ctx, last)
		s.out.answer(eventAgain, last, answer, err)
	case lineLose:
		if running == "" || s.mode != testhost.KeikiInboxMode {
			return false, errors.New("no turn of the inbox runs in this conversation")
		}
		s.k.LoseLease(running)
		s.out.note("the lease of " + running + " is lost")
	case lineWait:
		return false, s.idle(ctx)
	case lineSleep:
		timer := time.NewTimer(l.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	case lineHelp:
		s.out.note(platformHelp())
	case lineQuit:
		return true, nil
	}
	return false, nil
}

// arrive sends a message to a turn. Where the mode has no arrivals, it is held for the next turn.
func (s *standIn) arrive(ctx context.Context, key conversationKey, turn, text string) error {
	m := testhost.KeikiMessage{Text: text}
	e := platformEvent{Event: eventArrival, TurnID: turn}
	if s.mode != testhost.KeikiPushMode {
		s.update(func() { t := s.talk(key); t.held = append(t.held, m) })
		e.Returned = 1
	} else {
		ctx, done := lingering(ctx)
		defer done()
		a, err := s.k.Arrive(ctx, turn, m)
		if err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "testhost: "))
		}
		e.Sequence = a.Sequence
		if a.Attempts > 0 { // the turn had not ended
			e.HTTP, e.Code = said(a.Answer)
		}
		if !a.Answer.Accepted() {
			e.Returned = 1
		}
	}
	s.out.event(e)
	s.follow(ctx, key) // nothing may run any more
	return nil
}

func (s *standIn) cancel(ctx context.Context, turn string) error {
	answer, err := s.k.Cancel(ctx, turn)
	if s.mode != testhost.KeikiPushMode {
		return err
	}
	s.out.answer(eventCancel, turn, answer, err)
	return nil
}

// idle waits until no turn runs and nothing is left to be dispatched.
func (s *standIn) idle(ctx context.Context) error {
	return s.until(ctx, func() bool {
		for key, t := range s.talks {
			if len(t.running) > 0 || len(t.held) > 0 || len(s.k.Pending(key.agent, key.conversation)) > 0 {
				return false
			}
		}
		return true
	})
}

// How long leaving may take: to tell the app what is cancelled, and for its completions to be acknowledged.
const (
	cancelling      = 5 * time.Second
	acknowledgement = 10 * time.Second
)

// leave cancels what runs, and waits a moment for apps that have not heard that their completion came.
func (s *standIn) leave(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	var running []string
	s.update(func() {
		s.leaving = true
		for id := range s.live {
			running = append(running, id)
		}
	})
	slices.Sort(running)
	telling, cancel := context.WithTimeout(ctx, cancelling)
	defer cancel()
	var all sync.WaitGroup
	for _, id := range running {
		all.Go(func() {
			if err := s.cancel(telling, id); err != nil {
				s.out.note(err.Error())
			}
		})
	}
	all.Wait()
	s.tasks.Wait()
	waiting, stop := context.WithTimeout(ctx, acknowledgement)
	defer stop()
	_ = s.until(waiting, func() bool { return len(s.unacked) == 0 }) // or they find out themselves
}

// verdict is the error of a run from a script: nil if every turn ended well and no rule was broken.
func (s *standIn) verdict() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	switch {
	case s.failed == 1:
		parts = append(parts, s.first.TurnID+" failed: "+s.why(s.first))
	case s.failed > 1:
		parts = append(parts, fmt.Sprintf("%d turns failed, the first of them %s: %s", s.failed, s.first.TurnID, s.why(s.first)))
	}
	if s.violations > 0 {
		parts = append(parts, "the app broke the contract: "+counted(s.violations, "violation"))
	}
	if len(parts) == 0 {
		return nil
	}
	return errors.New(strings.Join(parts, "; "))
}

// why says why a turn failed, and what can be done about it.
func (s *standIn) why(o *testhost.KeikiOutcome) string {
	text := o.Code
	if o.Error != "" {
		text += ": " + s.out.redact(o.TurnID, o.Error)
	}
	switch o.Code {
	case "unreachable":
		text += ": is the app running?"
	case "signature_rejected":
		text += ": does the app have this signing secret?"
	case "relay_offline", "inbox_offline":
		text += ": nobody has polled"
	case "turn_timeout":
		text += ": the app did not complete it in time"
	}
	return text
}
