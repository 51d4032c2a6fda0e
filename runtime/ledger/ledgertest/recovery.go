package ledgertest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
)

// testFaultG3: what a start finds after the process died between each two steps.
func testFaultG3(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	// "before": nothing was committed.
	inState(t, s, "reserved", ledger.Reserved)
	inState(t, s, "dispatched", ledger.Dispatched)
	inState(t, s, "suspended", ledger.Suspended)
	turn, _ := inState(t, s, "continued", ledger.Suspended)
	must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("continued", "request:1"), Version: turn.Version, At: clock(3)}))
	inState(t, s, "settled", ledger.Settled)
	must[ledger.Verdict](t)(s.Refuse(ctx, refusal(start("refused"), 1, 1)))
	settled, refused := look(t, s, "turn:settled"), look(t, s, "turn:refused")
	continued := look(t, s, "turn:continued")
	must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: "t:running", At: clock(1), Expires: clock(100)}))
	must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: "t:ended", At: clock(1), Expires: clock(100)}))
	if err := s.EndClaim(ctx, "agent", "t:ended", clock(2)); err != nil {
		t.Fatal(err)
	}

	if o.Reopen != nil {
		s = o.Reopen(t, s)
	}
	did := must[ledger.Recovery](t)(s.Recover(ctx, clock(50), nil))
	var unknown []ledger.TurnRef
	for _, turn := range did.Unknown {
		unknown = append(unknown, turn.Ref)
		equal(t, "what Recover returns of "+string(turn.Ref), turn, *look(t, s, turn.Ref).Turn)
	}
	equal(t, "unknown", unknown, []ledger.TurnRef{"turn:dispatched", "turn:suspended", "turn:continued"})
	equal(t, "released", did.Released, []ledger.TurnRef{"turn:reserved"})
	if did.Lost != 1 {
		t.Errorf("%d claims lost, want 1", did.Lost)
	}
	equal(t, "settled", look(t, s, "turn:settled"), settled)
	equal(t, "refused", look(t, s, "turn:refused"), refused)
	equal(t, "reserved", look(t, s, "turn:reserved"), picture{})

	for _, name := range []string{"dispatched", "suspended", "continued"} {
		p := look(t, s, ledger.TurnRef("turn:"+name))
		want := ledger.Outcome{
			Status: ledger.Unknown, Reason: "unknown", Retryability: ledger.ReconciliationRequired,
			Charged: reserved, Fidelity: ledger.Unavailable, At: clock(50),
		}
		if p.Turn.Outcome == nil {
			t.Fatalf("%s is %s and has no outcome", name, p.Turn.State)
		}
		equal(t, name+": outcome", *p.Turn.Outcome, want)
		if p.Turn.State != ledger.Settled || p.Turn.Awaiting != nil {
			t.Errorf("%s: %+v", name, p.Turn)
		}
		last := p.Parts[len(p.Parts)-1]
		switch name {
		case "suspended": // its stream had ended well
			if last.Status != "" || last.Keeping != ledger.Kept {
				t.Errorf("%s: part %+v", name, last)
			}
		default:
			if last.Status != ledger.Unknown || last.Reason != "unknown" || last.Keeping != ledger.KeptNot || !last.EndedAt.Equal(clock(50)) || last.Lines != nil {
				t.Errorf("%s: part %+v", name, last)
			}
		}
		// It never runs again.
		if v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch(name, 60))); v.Decision != ledger.Ended {
			t.Errorf("%s, sent again: %s", name, v.Decision)
		}
	}
	// The first part of a continued turn is what it was.
	equal(t, "the start of a continued turn", look(t, s, "turn:continued").Parts[0], continued.Parts[0])
	// What was reserved or never came runs afresh.
	for _, name := range []string{"reserved", "before"} {
		if v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch(name, 60))); v.Decision != ledger.Fresh {
			t.Errorf("%s, sent again: %s", name, v.Decision)
		} else {
			must[ledger.Turn](t)(s.Settle(ctx, failure(name, v.Turn, v.Part.Key, 4, 61)))
		}
	}
	for turn, state := range map[ledger.TurnRef]ledger.ClaimState{"t:running": ledger.ClaimLost, "t:ended": ledger.ClaimEnded} {
		c := must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: turn, At: clock(60), Expires: clock(200)}))
		if c.Decision != ledger.Ended || c.Claim.State != state {
			t.Errorf("claim %s: %+v", turn, c)
		}
	}
	// Again it does nothing.
	equal(t, "recovered twice", must[ledger.Recovery](t)(s.Recover(ctx, clock(70), nil)), ledger.Recovery{})
}

// testRecoverEndings: the host gets a document and a last line for what became unknown.
func testRecoverEndings(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	inState(t, s, "a", ledger.Dispatched)
	inState(t, s, "b", ledger.Suspended)
	inState(t, s, "c", ledger.Dispatched)
	saw := map[ledger.TurnRef]bool{}
	did := must[ledger.Recovery](t)(s.Recover(ctx, clock(50), func(turn ledger.Turn, p *ledger.Part) (*ledger.Ending, error) {
		if saw[turn.Ref] {
			t.Errorf("asked twice for %s", turn.Ref)
		}
		saw[turn.Ref] = true
		if (p != nil) != (turn.State == ledger.Dispatched) {
			t.Errorf("%s is %s and its running part is %v", turn.Ref, turn.State, p)
		}
		if turn.Ref == "turn:c" {
			return nil, nil
		}
		// The store may be asked meanwhile.
		if got, err := s.Turn(ctx, turn.Ref); err != nil || got.State == ledger.Settled {
			t.Errorf("while recovering %s: %+v, %v", turn.Ref, got, err)
		}
		return &ledger.Ending{Ref: "outcome:lost", Document: []byte(`{"status":"unknown"}`),
			Recording: ledger.Recording{Lines: []byte("unknown\n"), LastSeq: turn.LastSeq + 1, Expires: clock(900)}}, nil
	}))
	if len(did.Unknown) != 3 {
		t.Fatalf("recovered %+v", did)
	}
	a, b := look(t, s, "turn:a"), look(t, s, "turn:b")
	for _, p := range []picture{a, b} {
		o := p.Turn.Outcome
		if o.Ref != "outcome:lost" || string(o.Document) != `{"status":"unknown"}` || o.Charged != reserved || o.Status != ledger.Unknown {
			t.Errorf("outcome %+v", o)
		}
	}
	if a.Turn.LastSeq != 1 || b.Turn.LastSeq != 4 {
		t.Errorf("last sequence numbers %d and %d, want 1 and 4", a.Turn.LastSeq, b.Turn.LastSeq)
	}
	if part := a.Parts[0]; string(part.Lines) != "unknown\n" || part.Keeping != ledger.Kept || part.LastSeq != 1 || !part.Expires.Equal(clock(900)) {
		t.Errorf("the part that ran: %+v", part)
	}
	if part := b.Parts[0]; string(part.Lines) != "{\"seq/no\":3}\n" || part.Status != "" {
		t.Errorf("the part that had ended: %+v", part)
	}
	if v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 60))); v.Decision != ledger.Ended || string(v.Part.Lines) != "unknown\n" {
		t.Errorf("replay: %+v", v)
	}
	if part := look(t, s, "turn:c").Parts[0]; part.Lines != nil || part.Status != ledger.Unknown {
		t.Errorf("a part without an ending: %+v", part)
	}
}

func testRecoverStopsAndGoesOn(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	const n = 300 // more than a store may do in one transaction
	for i := range n {
		inState(t, s, fmt.Sprintf("turn-%d", i), ledger.States()[i%3])
	}
	stop := errors.New("killed")
	calls := 0
	first, err := s.Recover(ctx, clock(50), func(ledger.Turn, *ledger.Part) (*ledger.Ending, error) {
		if calls++; calls > n/3 {
			return nil, stop
		}
		return nil, nil
	})
	wantErr(t, "an ending that fails", err, stop)
	second := must[ledger.Recovery](t)(s.Recover(ctx, clock(60), nil))
	seen := map[ledger.TurnRef]bool{}
	for _, turn := range append(first.Unknown, second.Unknown...) {
		if seen[turn.Ref] {
			t.Errorf("%s became unknown twice", turn.Ref)
		}
		seen[turn.Ref] = true
	}
	if len(seen) != n/3*2 || len(first.Released)+len(second.Released) != n/3 {
		t.Errorf("%d unknown, %d and %d released, want %d and %d", len(seen), len(first.Released), len(second.Released), n/3*2, n/3)
	}
	sum, turns := int64(0), 0
	for r, err := range s.Export(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn != nil {
			turns++
			sum += r.Turn.Outcome.Charged.Tokens
		}
	}
	if turns != n/3*2 || sum != int64(turns)*reserved.Tokens {
		t.Errorf("%d turns charged %d tokens", turns, sum)
	}
}

// testFaultL2: what nobody measured is charged in full, and never as nothing.
func testFaultL2(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	turn, key := inState(t, s, "unmeasured", ledger.Dispatched)
	end := failure("unmeasured", turn, key, 4, 2)
	end.Outcome.Reason, end.Outcome.Charged, end.Outcome.Fidelity = "usage-missing", reserved, ledger.Unavailable
	must[ledger.Turn](t)(s.Settle(ctx, end))
	inState(t, s, "lost", ledger.Dispatched)
	must[ledger.Recovery](t)(s.Recover(ctx, clock(9), nil))
	for _, ref := range []ledger.TurnRef{"turn:unmeasured", "turn:lost"} {
		if o := must[ledger.Turn](t)(s.Turn(ctx, ref)).Outcome; o.Charged != reserved || o.Fidelity != ledger.Unavailable {
			t.Errorf("%s is charged %+v (%s)", ref, o.Charged, o.Fidelity)
		}
	}
}

func testReopen(t *testing.T, open Open, o Options) {
	if o.Reopen == nil {
		t.Skip("this store keeps nothing beyond its own life")
	}
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for i, state := range ledger.States() {
		name := fmt.Sprint(i)
		inState(t, s, name, state)
	}
	turn, key := inState(t, s, "product", ledger.Dispatched)
	must[ledger.Turn](t)(s.Settle(ctx, settlement("product", turn, key, 9, 3)))
	must[ledger.Session](t)(s.PutSession(ctx, session(0), clock(1)))
	for _, a := range []ledger.Admission{
		admission(ledger.Profile, "profile:a", 1, "sha256:p1", ledger.Directory),
		admission(ledger.Profile, "profile:a", 2, "sha256:p2", ledger.Directory),
		admission(ledger.Binding, "binding:a", 0, "sha256:b1", ledger.Directory),
	} {
		if _, _, err := s.Admit(ctx, a, clock(1)); err != nil {
			t.Fatal(err)
		}
	}
	must[ledger.Admission](t)(s.Withdraw(ctx, ledger.Binding, "binding:a", clock(2)))
	must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: "t", At: clock(1), Expires: clock(100)}))

	all := func(s ledger.Store) (records []ledger.Record, pictures []picture) {
		for r, err := range s.Export(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, r)
			if r.Turn != nil {
				pictures = append(pictures, look(t, s, r.Turn.Ref))
			}
		}
		return records, pictures
	}
	records, pictures := all(s)
	for range 2 {
		s = o.Reopen(t, s)
		r, p := all(s)
		equal(t, "records", r, records)
		equal(t, "turns", p, pictures)
	}
	a, change, err := s.Admit(ctx, admission(ledger.Binding, "binding:a", 0, "sha256:b1", ledger.Directory), clock(9))
	if err != nil || change != ledger.StillWithdrawn || a.InForce() {
		t.Errorf("a directory that is read again: %s, %+v, %v", change, a, err)
	}
	if !must[bool](t)(s.Superseded(ctx, ledger.Profile, "profile:a", "sha256:p1")) {
		t.Error("the replaced profile is forgotten")
	}
}
