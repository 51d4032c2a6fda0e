package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
)

// testLife walks the whole diagram: reserved, dispatched, suspended, dispatched, settled.
func testLife(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()

	v := must[ledger.Verdict](t)(s.Reserve(ctx, reservation("a", 1)))
	req := start("a")
	want := ledger.Turn{
		Seq: v.Turn.Seq, Ref: req.Turn, Identity: req.Identity, Agent: req.Agent, Binding: req.Binding, BindingDigest: req.BindingDigest,
		Profile: req.Profile, ProfileGeneration: req.ProfileGeneration, State: ledger.Reserved, Version: 1, Reserved: reserved,
		Deadline: clock(3600), ReservedAt: clock(1), UpdatedAt: clock(1),
	}
	part := ledger.Part{Seq: v.Part.Seq, Key: req.Key, Turn: req.Turn, Digest: req.Digest, Mode: ledger.Start, StartedAt: clock(1), Keeping: ledger.KeptNot}
	equal(t, "verdict", v, ledger.Verdict{Decision: ledger.Fresh, Turn: want, Part: part})
	if v.Turn.Seq < 1 || v.Part.Seq < 1 {
		t.Errorf("Seq of turn %d, of part %d, want from 1", v.Turn.Seq, v.Part.Seq)
	}
	equal(t, "reserved", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part}})

	got := must[ledger.Turn](t)(s.Dispatch(ctx, req.Turn, 1, clock(2)))
	want.State, want.Version, want.DispatchedAt, want.UpdatedAt = ledger.Dispatched, 2, clock(2), clock(2)
	equal(t, "Dispatch", got, want)
	equal(t, "dispatched", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part}})

	got = must[ledger.Turn](t)(s.Suspend(ctx, suspension(got, req.Key, 3, 5, "request:1")))
	want.State, want.Version, want.UpdatedAt, want.LastSeq = ledger.Suspended, 3, clock(5), 3
	want.Awaiting = []ledger.ObservationRef{"request:1"}
	part.EndedAt, part.LastSeq, part.Lines, part.Size = clock(5), 3, []byte("{\"seq/no\":3}\n"), 13
	part.Keeping, part.Expires = ledger.Kept, clock(86400)
	equal(t, "Suspend", got, want)
	equal(t, "suspended", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part}})

	more := proceed("a", "request:1")
	v = must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: more, Version: 3, At: clock(8)}))
	want.State, want.Version, want.UpdatedAt, want.Awaiting = ledger.Dispatched, 4, clock(8), nil
	second := ledger.Part{Seq: v.Part.Seq, Key: more.Key, Turn: req.Turn, Digest: more.Digest, Mode: ledger.Continue, Answers: "request:1", StartedAt: clock(8), Keeping: ledger.KeptNot}
	equal(t, "Continue", v, ledger.Verdict{Decision: ledger.Fresh, Turn: want, Part: second})
	if second.Seq <= part.Seq {
		t.Errorf("the second part has Seq %d, the first %d", second.Seq, part.Seq)
	}
	equal(t, "continued", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part, second}})

	got = must[ledger.Turn](t)(s.Settle(ctx, settlement("a", v.Turn, more.Key, 6, 9)))
	o := outcome("a", ledger.Completed, "completed")
	o.At = clock(9)
	want.State, want.Version, want.UpdatedAt, want.LastSeq, want.Outcome = ledger.Settled, 5, clock(9), 6, &o
	second.EndedAt, second.Status, second.Reason, second.LastSeq = clock(9), ledger.Completed, "completed", 6
	second.Lines, second.Size, second.Keeping, second.Expires = []byte("{\"seq/no\":6}\n"), 13, ledger.Kept, clock(86400)
	prod := product("a")
	prod.Turn, prod.Size, prod.Keeping, prod.At = req.Turn, int64(len(prod.Content)), ledger.Kept, clock(9)
	equal(t, "Settle", got, want)
	equal(t, "settled", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part, second}, Product: prod})

	// Each request replays its own part.
	for _, p := range []struct {
		name string
		ask  func() (ledger.Verdict, error)
		part ledger.Part
	}{
		{"start", func() (ledger.Verdict, error) { return s.Reserve(ctx, dispatch("a", 20)) }, part},
		{"continue", func() (ledger.Verdict, error) {
			return s.Continue(ctx, ledger.Continuation{Request: more, Version: 99, At: clock(20)})
		}, second},
		{"start, refused", func() (ledger.Verdict, error) { return s.Refuse(ctx, refusal(req, 1, 20)) }, part},
		{"continue, refused", func() (ledger.Verdict, error) { return s.Refuse(ctx, refusal(more, 1, 20)) }, second},
	} {
		v := must[ledger.Verdict](t)(p.ask())
		equal(t, "replay of "+p.name, v, ledger.Verdict{Decision: ledger.Ended, Turn: want, Part: p.part})
	}
	equal(t, "settled, after replays", look(t, s, req.Turn), picture{Turn: &want, Parts: []ledger.Part{part, second}, Product: prod})
}

// testLifeInOneStep: reservation and dispatch intent in one transaction, with the session.
func testLifeInOneStep(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	r := dispatch("a", 1)
	ses := session(0)
	r.Session = &ses
	v := must[ledger.Verdict](t)(s.Reserve(ctx, r))
	if v.Decision != ledger.Fresh || v.Turn.State != ledger.Dispatched || v.Turn.Version != 1 || !v.Turn.DispatchedAt.Equal(clock(1)) {
		t.Fatalf("Reserve = %+v", v)
	}
	p := look(t, s, r.Turn)
	equal(t, "turn", *p.Turn, v.Turn)
	if p.Session == nil || p.Session.Version != 1 || !p.Session.Open || string(p.Session.Values) != `{"draft":1}` {
		t.Errorf("session %+v", p.Session)
	}
	again := must[ledger.Verdict](t)(s.Reserve(ctx, r))
	equal(t, "the same again", again, ledger.Verdict{Decision: ledger.Running, Turn: v.Turn, Part: v.Part})
	got := must[ledger.Turn](t)(s.Settle(ctx, failure("a", v.Turn, r.Key, 4, 2)))
	p = look(t, s, r.Turn)
	equal(t, "settled", *p.Turn, got)
	if p.Product != nil || p.Parts[0].Status != ledger.Failed || p.Parts[0].Reason != "provider-unavailable" {
		t.Errorf("a failed turn shows %+v", p)
	}
}

func testRelease(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	must[ledger.Verdict](t)(s.Reserve(ctx, reservation("a", 1)))
	if err := s.Release(ctx, "turn:a", 1); err != nil {
		t.Fatal(err)
	}
	equal(t, "released", look(t, s, "turn:a"), picture{})
	wantErr(t, "released twice", s.Release(ctx, "turn:a", 1), ledger.ErrNotFound)
	// Also another request may have the turn's ref now: nothing is remembered of the first.
	r := dispatch("a", 2)
	r.Digest = "sha256:other"
	if v := must[ledger.Verdict](t)(s.Reserve(ctx, r)); v.Decision != ledger.Fresh {
		t.Errorf("after a release: %s, want fresh", v.Decision)
	}
}

func testRefuse(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for name, req := range map[string]ledger.Request{"start": start("a"), "continue of nothing": proceed("b", "request:1")} {
		r := refusal(req, 1, 3)
		v := must[ledger.Verdict](t)(s.Refuse(ctx, r))
		if v.Decision != ledger.Fresh || v.Turn.State != ledger.Settled || v.Turn.Version != 1 || v.Turn.LastSeq != 1 || !v.Turn.DispatchedAt.IsZero() {
			t.Errorf("%s: %+v", name, v)
		}
		o := r.Outcome
		o.At = clock(3)
		equal(t, name+": outcome", *v.Turn.Outcome, o)
		p := look(t, s, req.Turn)
		equal(t, name+": rows", p, picture{Turn: &v.Turn, Parts: []ledger.Part{v.Part}})
		if part := p.Parts[0]; part.Status != ledger.Refused || part.Reason != "policy-denied" || string(part.Lines) != "{\"seq/no\":1}\n" || part.Answers != req.Answers {
			t.Errorf("%s: part %+v", name, part)
		}
		// The second refusal has other bytes to say, and gets the first's.
		r.Recording.Lines = []byte("other\n")
		equal(t, name+": again", must[ledger.Verdict](t)(s.Refuse(ctx, r)), ledger.Verdict{Decision: ledger.Ended, Turn: v.Turn, Part: v.Part})
	}
	// What was refused stays refused when the reason is gone.
	if v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 9))); v.Decision != ledger.Ended || v.Part.Status != ledger.Refused {
		t.Errorf("a refused request, sent again: %+v", v)
	}
	_, err := s.Reserve(ctx, dispatch("b", 9))
	wantErr(t, "start after a refused continue", err, ledger.ErrMismatch)
}

// testRefuseContinue: a refused continue leaves the suspended turn as it was.
func testRefuseContinue(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 1)))
	key := v.Part.Key
	must[ledger.Turn](t)(s.Suspend(ctx, suspension(v.Turn, key, 3, 2, "request:1")))
	before := look(t, s, "turn:a")

	wrong := proceed("a", "request:other")
	wrong.BindingDigest = "sha256:fence-differs"
	r := refusal(wrong, 4, 3)
	v = must[ledger.Verdict](t)(s.Refuse(ctx, r))
	if v.Decision != ledger.Fresh || v.Part.Status != ledger.Refused || v.Part.LastSeq != 4 {
		t.Errorf("refused continue: %+v", v)
	}
	equal(t, "the turn in the verdict", v.Turn, *before.Turn)
	after := look(t, s, "turn:a")
	equal(t, "the turn", *after.Turn, *before.Turn)
	equal(t, "the parts", after.Parts, []ledger.Part{before.Parts[0], v.Part})

	// It is replayed, also once the turn has gone on.
	v2 := must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("a", "request:1"), Version: 2, At: clock(4)}))
	if v2.Decision != ledger.Fresh {
		t.Fatalf("the right continue: %s", v2.Decision)
	}
	again := must[ledger.Verdict](t)(s.Refuse(ctx, r))
	equal(t, "the refused part, again", again.Part, v.Part)

	other := proceed("a", "request:x")
	other.Identity = "sha256:other"
	_, err := s.Refuse(ctx, refusal(other, 4, 5))
	wantErr(t, "a continue that is none of the turn's", err, ledger.ErrMismatch)
	second := start("a")
	second.Key = "key:second"
	_, err = s.Refuse(ctx, refusal(second, 1, 5))
	wantErr(t, "refusal of a second start", err, ledger.ErrMismatch)
}

// testSettleWithoutPart: a suspended turn ends with no stream open, as by its deadline.
func testSettleWithoutPart(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 1)))
	turn := must[ledger.Turn](t)(s.Suspend(ctx, suspension(v.Turn, v.Part.Key, 3, 2, "request:1")))
	before := look(t, s, "turn:a")
	end := failure("a", turn, "", 4, 3)
	_, err := s.Settle(ctx, failure("a", turn, v.Part.Key, 4, 3))
	wantErr(t, "settling with a part that has ended", err, ledger.ErrConflict)
	got := must[ledger.Turn](t)(s.Settle(ctx, end))
	if got.State != ledger.Settled || got.LastSeq != 4 || got.Awaiting != nil {
		t.Errorf("settled: %+v", got)
	}
	equal(t, "parts", look(t, s, "turn:a").Parts, before.Parts)

	// A reserved turn ends uncharged.
	v = must[ledger.Verdict](t)(s.Reserve(ctx, reservation("b", 1)))
	cancel := failure("b", v.Turn, v.Part.Key, 1, 3)
	cancel.Outcome = outcome("b", ledger.Cancelled, "cancelled")
	_, err = s.Settle(ctx, cancel)
	wantErr(t, "charging a turn that was never dispatched", err, ledger.ErrInvalid)
	cancel.Outcome.Charged = ledger.Budget{}
	must[ledger.Turn](t)(s.Settle(ctx, cancel))
	_, err = s.Settle(ctx, settlement("c", must[ledger.Verdict](t)(s.Reserve(ctx, reservation("c", 1))).Turn, "key:c", 1, 3))
	wantErr(t, "completing a turn that was never dispatched", err, ledger.ErrInvalid)
}

func testSeveralAwaited(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 1)))
	turn := must[ledger.Turn](t)(s.Suspend(ctx, suspension(v.Turn, v.Part.Key, 3, 2, "r:1", "r:2", "r:3")))
	v = must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("a", "r:2"), Version: turn.Version, At: clock(3)}))
	equal(t, "still awaited", v.Turn.Awaiting, []ledger.ObservationRef{"r:1", "r:3"})
	// While it runs, nobody else continues it.
	_, err := s.Continue(ctx, ledger.Continuation{Request: proceed("a", "r:1"), Version: v.Turn.Version, At: clock(4)})
	wantErr(t, "a second continue while the first runs", err, ledger.ErrConflict)
	turn = must[ledger.Turn](t)(s.Suspend(ctx, suspension(v.Turn, v.Part.Key, 5, 5, "r:3")))
	_, err = s.Continue(ctx, ledger.Continuation{Request: proceed("a", "r:1"), Version: turn.Version, At: clock(6)})
	wantErr(t, "an answer that is no longer awaited", err, ledger.ErrConflict)
	v = must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("a", "r:3"), Version: turn.Version, At: clock(7)}))
	equal(t, "stored", *look(t, s, "turn:a").Turn, v.Turn)
}

// inState brings a turn into a state. Its part that runs, or ran last, has the returned key.
func inState(t testing.TB, s ledger.Store, name string, state ledger.State) (ledger.Turn, ledger.Key) {
	t.Helper()
	ctx := t.Context()
	r := dispatch(name, 1)
	r.Dispatch = state != ledger.Reserved
	v := must[ledger.Verdict](t)(s.Reserve(ctx, r))
	switch state {
	case ledger.Suspended:
		v.Turn = must[ledger.Turn](t)(s.Suspend(ctx, suspension(v.Turn, r.Key, 3, 2, "request:1")))
	case ledger.Settled:
		v.Turn = must[ledger.Turn](t)(s.Settle(ctx, failure(name, v.Turn, r.Key, 3, 2)))
	}
	return v.Turn, r.Key
}

// testTransitions tries each change in each state: what is not an arrow of the diagram is refused and
// changes nothing, and so is each arrow that names another version.
func testTransitions(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	type change struct {
		name string
		from []ledger.State
		do   func(name string, turn ledger.Turn, key ledger.Key) error
	}
	changes := []change{
		{"dispatch", []ledger.State{ledger.Reserved}, func(_ string, turn ledger.Turn, _ ledger.Key) error {
			_, err := s.Dispatch(ctx, turn.Ref, turn.Version, clock(9))
			return err
		}},
		{"release", []ledger.State{ledger.Reserved}, func(_ string, turn ledger.Turn, _ ledger.Key) error {
			return s.Release(ctx, turn.Ref, turn.Version)
		}},
		{"suspend", []ledger.State{ledger.Dispatched}, func(_ string, turn ledger.Turn, key ledger.Key) error {
			_, err := s.Suspend(ctx, suspension(turn, key, 4, 9, "request:2"))
			return err
		}},
		{"continue", []ledger.State{ledger.Suspended}, func(name string, turn ledger.Turn, _ ledger.Key) error {
			_, err := s.Continue(ctx, ledger.Continuation{Request: proceed(name, "request:1"), Version: turn.Version, At: clock(9)})
			return err
		}},
		{"settle", []ledger.State{ledger.Reserved, ledger.Dispatched, ledger.Suspended}, func(name string, turn ledger.Turn, key ledger.Key) error {
			if turn.State == ledger.Suspended {
				key = ""
			}
			end := failure(name, turn, key, 4, 9)
			if turn.State == ledger.Reserved {
				end.Outcome.Charged = ledger.Budget{}
			}
			_, err := s.Settle(ctx, end)
			return err
		}},
	}
	for _, c := range changes {
		wantErr(t, c.name+" of nothing", c.do("nothing", ledger.Turn{Ref: "turn:nothing", Version: 1}, "key:nothing"), ledger.ErrNotFound)
		for _, state := range ledger.States() {
			name := fmt.Sprintf("%s-%s", c.name, state)
			turn, key := inState(t, s, name, state)
			before := look(t, s, turn.Ref)
			for _, off := range []int64{-1, 1} {
				stale := turn
				stale.Version += off
				want := ledger.ErrConflict
				if stale.Version < 1 && (c.name == "suspend" || c.name == "continue" || c.name == "settle") {
					want = ledger.ErrInvalid // no version at all
				}
				wantErr(t, fmt.Sprintf("%s, version off by %d", name, off), c.do(name, stale, key), want)
			}
			equal(t, name+": after other versions", look(t, s, turn.Ref), before)
			err := c.do(name, turn, key)
			allowed := false
			for _, from := range c.from {
				allowed = allowed || from == state
			}
			if allowed {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if c.name != "release" {
					if err := c.do(name, turn, key); c.name == "continue" && err != nil {
						t.Errorf("%s again: %v", name, err) // its key is known now
					} else if c.name != "continue" {
						wantErr(t, name+" again", err, ledger.ErrConflict)
					}
				}
				continue
			}
			wantErr(t, name, err, ledger.ErrConflict)
			equal(t, name+": after it was refused", look(t, s, turn.Ref), before)
		}
	}

	// The parts are part of what a change names.
	turn, key := inState(t, s, "keys", ledger.Dispatched)
	before := look(t, s, turn.Ref)
	_, err := s.Settle(ctx, failure("keys", turn, "key:other", 4, 9))
	wantErr(t, "settle naming another request", err, ledger.ErrConflict)
	_, err = s.Settle(ctx, failure("keys", turn, "", 4, 9))
	wantErr(t, "settle naming no request while one runs", err, ledger.ErrConflict)
	_, err = s.Suspend(ctx, suspension(turn, "key:other", 4, 9, "request:2"))
	wantErr(t, "suspend naming another request", err, ledger.ErrConflict)
	equal(t, "after other requests", look(t, s, turn.Ref), before)
	turn = must[ledger.Turn](t)(s.Suspend(ctx, suspension(turn, key, 4, 9, "request:1")))
	v := must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("keys", "request:1"), Version: turn.Version, At: clock(10)}))
	_, err = s.Settle(ctx, failure("keys", v.Turn, v.Part.Key, 3, 11))
	wantErr(t, "a sequence that goes back", err, ledger.ErrInvalid)
}

// testFaultG1: the same key, or the same turn, with other bytes is a mismatch and changes nothing,
// whatever became of the first.
func testFaultG1(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	type first struct {
		name string
		make func(name string)
	}
	firsts := []first{}
	for _, state := range ledger.States() {
		firsts = append(firsts, first{string(state), func(name string) { inState(t, s, name, state) }})
	}
	firsts = append(firsts,
		first{"refused", func(name string) { must[ledger.Verdict](t)(s.Refuse(ctx, refusal(start(name), 1, 1))) }},
		first{"unknown", func(name string) {
			inState(t, s, name, ledger.Dispatched)
			must[ledger.Recovery](t)(s.Recover(ctx, clock(5), nil))
		}},
	)
	for i := len(firsts) - 1; i >= 0; i-- { // unknown first: Recover would end the others
		f := firsts[i]
		f.make(f.name)
		before := look(t, s, start(f.name).Turn)
		letter, deadline, key := start(f.name), start(f.name), start(f.name)
		letter.Digest, letter.Identity = "sha256:letter", "sha256:letter"
		deadline.Digest, deadline.Identity, deadline.Deadline = "sha256:deadline", "sha256:deadline", clock(99)
		key.Key, key.Digest = "key:another-"+ledger.Key(f.name), "sha256:another-key"
		answer := proceed(f.name, "request:1")
		answer.Key, answer.Digest = start(f.name).Key, "sha256:answer"
		for what, req := range map[string]ledger.Request{"a letter": letter, "the deadline": deadline, "the key": key, "the mode": answer} {
			calls := map[string]func() error{
				"Refuse": func() error { _, err := s.Refuse(ctx, refusal(req, 1, 7)); return err },
			}
			if req.Mode == ledger.Start {
				calls["Reserve"] = func() error {
					_, err := s.Reserve(ctx, ledger.Reservation{Request: req, At: clock(7)})
					return err
				}
				calls["Reserve and dispatch"] = func() error {
					_, err := s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: true, At: clock(7)})
					return err
				}
			} else {
				calls["Continue"] = func() error {
					_, err := s.Continue(ctx, ledger.Continuation{Request: req, Version: before.Turn.Version, At: clock(7)})
					return err
				}
			}
			for call, do := range calls {
				wantErr(t, fmt.Sprintf("%s, with %s changed, %s", f.name, what, call), do(), ledger.ErrMismatch)
			}
		}
		equal(t, f.name+" after its imitations", look(t, s, start(f.name).Turn), before)
		replay := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch(f.name, 8)))
		equal(t, f.name+" replayed", replay.Part, before.Parts[0])
	}

	// A continue whose bytes differ elsewhere is none of the turn's.
	turn, _ := inState(t, s, "cont", ledger.Suspended)
	req := proceed("cont", "request:1")
	req.Identity = "sha256:other"
	_, err := s.Continue(ctx, ledger.Continuation{Request: req, Version: turn.Version, At: clock(9)})
	wantErr(t, "continue with another identity", err, ledger.ErrMismatch)
}

func testContext(t *testing.T, open Open, _ Options) {
	s := open(t, ledger.Limits{})
	turn, key := inState(t, s, "a", ledger.Dispatched)
	before := look(t, s, turn.Ref)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the host went away"))
	for name, do := range map[string]func() error{
		"Reserve":   func() error { _, err := s.Reserve(ctx, dispatch("b", 1)); return err },
		"Suspend":   func() error { _, err := s.Suspend(ctx, suspension(turn, key, 3, 2, "r:1")); return err },
		"Settle":    func() error { _, err := s.Settle(ctx, failure("a", turn, key, 3, 2)); return err },
		"Refuse":    func() error { _, err := s.Refuse(ctx, refusal(start("b"), 1, 1)); return err },
		"Turn":      func() error { _, err := s.Turn(ctx, turn.Ref); return err },
		"Part":      func() error { _, err := s.Part(ctx, key); return err },
		"ListTurns": func() error { _, err := s.ListTurns(ctx, ledger.TurnQuery{}); return err },
		"Recover":   func() error { _, err := s.Recover(ctx, clock(5), nil); return err },
		"Sweep":     func() error { _, err := s.Sweep(ctx, clock(5), 0); return err },
		"Claim": func() error {
			_, err := s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: "t", At: clock(1), Expires: clock(2)})
			return err
		},
		"Export": func() error {
			for _, err := range s.Export(ctx) {
				return err
			}
			return nil
		},
	} {
		wantErr(t, name+" on a context that is over", do(), context.Canceled)
	}
	equal(t, "the turn", look(t, s, turn.Ref), before)
	equal(t, "the other", look(t, s, "turn:b"), picture{})
}

func testClose(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	turn, key := inState(t, s, "a", ledger.Dispatched)
	if err := s.Ping(ctx); err != nil {
		t.Errorf("Ping: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	for name, do := range map[string]func() error{
		"Reserve": func() error { _, err := s.Reserve(ctx, dispatch("b", 1)); return err },
		"Settle":  func() error { _, err := s.Settle(ctx, failure("a", turn, key, 3, 2)); return err },
		"Turn":    func() error { _, err := s.Turn(ctx, turn.Ref); return err },
		"Ping":    func() error { return s.Ping(ctx) },
		"Export": func() error {
			for _, err := range s.Export(ctx) {
				return err
			}
			return nil
		},
	} {
		wantErr(t, name+" after Close", do(), ledger.ErrClosed)
	}
}

func testInvalid(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	turn, key := inState(t, s, "a", ledger.Dispatched)
	before := look(t, s, turn.Ref)
	reserve := func(change func(r *ledger.Reservation)) func() error {
		return func() error {
			r := dispatch("b", 1)
			change(&r)
			_, err := s.Reserve(ctx, r)
			return err
		}
	}
	settle := func(change func(r *ledger.Settlement)) func() error {
		return func() error {
			r := settlement("a", turn, key, 4, 2)
			change(&r)
			_, err := s.Settle(ctx, r)
			return err
		}
	}
	suspend := func(change func(r *ledger.Suspension)) func() error {
		return func() error {
			r := suspension(turn, key, 4, 2, "r:1")
			change(&r)
			_, err := s.Suspend(ctx, r)
			return err
		}
	}
	refuse := func(change func(r *ledger.Refusal)) func() error {
		return func() error {
			r := refusal(start("b"), 1, 1)
			change(&r)
			_, err := s.Refuse(ctx, r)
			return err
		}
	}
	admit := func(change func(a *ledger.Admission)) func() error {
		return func() error {
			a := admission(ledger.Profile, "profile:b", 1, "sha256:b", ledger.Operator)
			change(&a)
			_, _, err := s.Admit(ctx, a, clock(1))
			return err
		}
	}
	put := func(change func(a *ledger.Session)) func() error {
		return func() error {
			a := session(0)
			change(&a)
			_, err := s.PutSession(ctx, a, clock(1))
			return err
		}
	}
	long := string(make([]byte, ledger.MaxName+1))
	for name, do := range map[string]func() error{
		"no key":                   reserve(func(r *ledger.Reservation) { r.Key = "" }),
		"no digest":                reserve(func(r *ledger.Reservation) { r.Digest = "" }),
		"no turn":                  reserve(func(r *ledger.Reservation) { r.Turn = "" }),
		"no identity":              reserve(func(r *ledger.Reservation) { r.Identity = "" }),
		"no agent":                 reserve(func(r *ledger.Reservation) { r.Agent = "" }),
		"no binding":               reserve(func(r *ledger.Reservation) { r.Binding = "" }),
		"no time":                  reserve(func(r *ledger.Reservation) { r.At = time.Time{} }),
		"long key":                 reserve(func(r *ledger.Reservation) { r.Key = ledger.Key(long) }),
		"NUL":                      reserve(func(r *ledger.Reservation) { r.Key = "a\x00b" }),
		"invalid UTF-8":            reserve(func(r *ledger.Reservation) { r.Turn = "a\xff" }),
		"a start that answers":     reserve(func(r *ledger.Reservation) { r.Answers = "r:1" }),
		"reserving a continue":     reserve(func(r *ledger.Reservation) { r.Mode, r.Answers = ledger.Continue, "r:1" }),
		"no mode":                  reserve(func(r *ledger.Reservation) { r.Mode = "" }),
		"negative reservation":     reserve(func(r *ledger.Reservation) { r.Reserved.Tokens = -1 }),
		"reservation beyond 2^53":  reserve(func(r *ledger.Reservation) { r.Reserved.Steps = 1 << 53 }),
		"session without binding":  reserve(func(r *ledger.Reservation) { ses := session(0); ses.Binding = ""; r.Session = &ses }),
		"no version":               settle(func(r *ledger.Settlement) { r.Version = 0 }),
		"no outcome":               settle(func(r *ledger.Settlement) { r.Outcome = ledger.Outcome{} }),
		"no outcome ref":           settle(func(r *ledger.Settlement) { r.Outcome.Ref = "" }),
		"unknown":                  settle(func(r *ledger.Settlement) { r.Outcome.Status, r.Product = ledger.Unknown, nil }),
		"unheard-of status":        settle(func(r *ledger.Settlement) { r.Outcome.Status = "done" }),
		"reconciliation":           settle(func(r *ledger.Settlement) { r.Outcome.Retryability = ledger.ReconciliationRequired }),
		"no retryability":          settle(func(r *ledger.Settlement) { r.Outcome.Retryability = "" }),
		"no fidelity":              settle(func(r *ledger.Settlement) { r.Outcome.Fidelity = "" }),
		"no reason":                settle(func(r *ledger.Settlement) { r.Outcome.Reason = "" }),
		"no document":              settle(func(r *ledger.Settlement) { r.Outcome.Document = nil }),
		"a document that is none":  settle(func(r *ledger.Settlement) { r.Outcome.Document = []byte("{") }),
		"negative charge":          settle(func(r *ledger.Settlement) { r.Outcome.Charged.CostMicros = -1 }),
		"completed, no product":    settle(func(r *ledger.Settlement) { r.Product = nil }),
		"completed, no ref":        settle(func(r *ledger.Settlement) { r.Outcome.Product = "" }),
		"another product":          settle(func(r *ledger.Settlement) { r.Product.Ref = "product:other" }),
		"another product digest":   settle(func(r *ledger.Settlement) { r.Product.Digest = "sha256:other" }),
		"empty product":            settle(func(r *ledger.Settlement) { r.Product.Content = nil }),
		"failed, with a product":   settle(func(r *ledger.Settlement) { r.Outcome = outcome("a", ledger.Failed, "x") }),
		"failed, with its ref":     settle(func(r *ledger.Settlement) { r.Outcome.Status, r.Product = ledger.Failed, nil }),
		"no lines":                 settle(func(r *ledger.Settlement) { r.Recording.Lines = nil }),
		"oversized, with lines":    settle(func(r *ledger.Settlement) { r.Recording.Oversized = true }),
		"settled at no time":       settle(func(r *ledger.Settlement) { r.At = time.Time{} }),
		"nothing awaited":          suspend(func(r *ledger.Suspension) { r.Awaiting = nil }),
		"the same awaited twice":   suspend(func(r *ledger.Suspension) { r.Awaiting = []ledger.ObservationRef{"r:1", "r:1"} }),
		"nameless awaited":         suspend(func(r *ledger.Suspension) { r.Awaiting = []ledger.ObservationRef{""} }),
		"suspending nothing":       suspend(func(r *ledger.Suspension) { r.Key = "" }),
		"a refusal that fails":     refuse(func(r *ledger.Refusal) { r.Outcome.Status = ledger.Failed }),
		"a refusal that charges":   refuse(func(r *ledger.Refusal) { r.Outcome.Charged.Tokens = 1 }),
		"a continue that does not": refuse(func(r *ledger.Refusal) { r.Mode = ledger.Continue }),
		"a kind of nothing":        admit(func(a *ledger.Admission) { a.Kind = "policy" }),
		"no source":                admit(func(a *ledger.Admission) { a.Source = "" }),
		"no admission digest":      admit(func(a *ledger.Admission) { a.Digest = "" }),
		"no admitted document":     admit(func(a *ledger.Admission) { a.Document = nil }),
		"binding with generation":  admit(func(a *ledger.Admission) { a.Kind = ledger.Binding }),
		"no epoch":                 put(func(a *ledger.Session) { a.Fence.Epoch = "" }),
		"values that are not JSON": put(func(a *ledger.Session) { a.Values = []byte("{]") }),
		"negative version":         put(func(a *ledger.Session) { a.Version = -1 }),
		"expired claim": func() error {
			_, err := s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: "t", At: clock(2), Expires: clock(2)})
			return err
		},
		"claim of nobody": func() error {
			_, err := s.Claim(ctx, ledger.ClaimRequest{Turn: "t", At: clock(1), Expires: clock(2)})
			return err
		},
		"page too long":        func() error { _, err := s.ListTurns(ctx, ledger.TurnQuery{Limit: 1001}); return err },
		"page of nothing":      func() error { _, err := s.ListTurns(ctx, ledger.TurnQuery{Limit: -1}); return err },
		"unheard-of state":     func() error { _, err := s.ListTurns(ctx, ledger.TurnQuery{State: "done"}); return err },
		"dispatch at no time":  func() error { _, err := s.Dispatch(ctx, "turn:a", 1, time.Time{}); return err },
		"withdraw at no time":  func() error { _, err := s.Withdraw(ctx, ledger.Profile, "p", time.Time{}); return err },
		"recover at no time":   func() error { _, err := s.Recover(ctx, time.Time{}, nil); return err },
		"sweep at no time":     func() error { _, err := s.Sweep(ctx, time.Time{}, 0); return err },
		"sweep less than none": func() error { _, err := s.Sweep(ctx, clock(1), -1); return err },
		"end claim at no time": func() error { return s.EndClaim(ctx, "a", "t", time.Time{}) },
	} {
		wantErr(t, name, do(), ledger.ErrInvalid)
	}
	equal(t, "the turn", look(t, s, turn.Ref), before)
	equal(t, "the other", look(t, s, "turn:b"), picture{})
	if _, err := s.Admission(ctx, ledger.Profile, "profile:b"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("something was admitted: %v", err)
	}

	// A product's ref is one turn's.
	must[ledger.Turn](t)(s.Settle(ctx, settlement("a", turn, key, 4, 2)))
	v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("c", 1)))
	end := settlement("a", v.Turn, v.Part.Key, 4, 2)
	before = look(t, s, "turn:c")
	_, err := s.Settle(ctx, end)
	wantErr(t, "another turn's product", err, ledger.ErrInvalid)
	equal(t, "after it", look(t, s, "turn:c"), before)
	must[ledger.Turn](t)(s.Settle(ctx, settlement("c", v.Turn, v.Part.Key, 4, 2)))
}

func testTooLarge(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{Lines: 100, Content: 100, Documents: 100, Values: 100}), t.Context()
	turn, key := inState(t, s, "a", ledger.Dispatched)
	before := look(t, s, turn.Ref)
	big := make([]byte, 101)
	doc := fmt.Appendf(nil, `%-101s`, `{}`)
	settle := func(change func(r *ledger.Settlement)) error {
		r := settlement("a", turn, key, 4, 2)
		change(&r)
		_, err := s.Settle(ctx, r)
		return err
	}
	wantErr(t, "lines", settle(func(r *ledger.Settlement) { r.Recording.Lines = big }), ledger.ErrTooLarge)
	wantErr(t, "content", settle(func(r *ledger.Settlement) { r.Product.Content = big }), ledger.ErrTooLarge)
	wantErr(t, "outcome", settle(func(r *ledger.Settlement) { r.Outcome.Document = doc }), ledger.ErrTooLarge)
	wantErr(t, "product", settle(func(r *ledger.Settlement) { r.Product.Document = doc }), ledger.ErrTooLarge)
	ses := session(0)
	ses.Values = doc
	_, err := s.PutSession(ctx, ses, clock(1))
	wantErr(t, "values", err, ledger.ErrTooLarge)
	a := admission(ledger.Profile, "p", 1, "d", ledger.Operator)
	a.Document = doc
	_, _, err = s.Admit(ctx, a, clock(1))
	wantErr(t, "admission", err, ledger.ErrTooLarge)
	equal(t, "the turn", look(t, s, turn.Ref), before)

	// The turn can still end, without its lines.
	end := settlement("a", turn, key, 4, 2)
	end.Recording = ledger.Recording{Oversized: true, Size: 5000, LastSeq: 4, Expires: clock(10)}
	must[ledger.Turn](t)(s.Settle(ctx, end))
	part := look(t, s, turn.Ref).Parts[0]
	if part.Keeping != ledger.Oversized || part.Size != 5000 || part.Lines != nil || !part.Expires.IsZero() || part.LastSeq != 4 {
		t.Errorf("oversized part: %+v", part)
	}
}
