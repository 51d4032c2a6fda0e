package ledgertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
)

func testSessions(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	_, err := s.Session(ctx, "binding:reviewer")
	wantErr(t, "no session", err, ledger.ErrNotFound)
	gone := session(0)
	gone.Open = false
	_, err = s.PutSession(ctx, gone, clock(1))
	wantErr(t, "closing no session", err, ledger.ErrNotFound)

	put := func(what string, ses ledger.Session, at int, want ledger.Session) {
		t.Helper()
		got := must[ledger.Session](t)(s.PutSession(ctx, ses, clock(at)))
		equal(t, what, got, want)
		equal(t, what+", read", must[ledger.Session](t)(s.Session(ctx, "binding:reviewer")), want)
	}
	want := session(1)
	want.OpenedAt, want.UpdatedAt = clock(1), clock(1)
	put("opened", session(0), 1, want)

	stale := session(0)
	stale.Values = []byte(`{"draft":"stale"}`)
	_, err = s.PutSession(ctx, stale, clock(2))
	wantErr(t, "another version", err, ledger.ErrConflict)
	equal(t, "after another version", must[ledger.Session](t)(s.Session(ctx, "binding:reviewer")), want)

	changed := session(1)
	changed.Values = []byte(`{"draft":2, "order":[3,1]}`)
	want.Version, want.Values, want.UpdatedAt = 2, changed.Values, clock(3)
	put("changed", changed, 3, want)

	// Another fence opens it anew.
	fenced := changed
	fenced.Version, fenced.Fence.Epoch, fenced.Values = 2, "epoch:2", nil
	want.Version, want.Fence, want.Values, want.OpenedAt, want.UpdatedAt = 3, fenced.Fence, nil, clock(4), clock(4)
	put("fenced", fenced, 4, want)

	closed := fenced
	closed.Version, closed.Open, closed.Values = 3, false, []byte(`{"left":"over"}`)
	want.Version, want.Open, want.UpdatedAt, want.ClosedAt = 4, false, clock(5), clock(5)
	put("closed", closed, 5, want)
	closed.Version = 4
	want.Version, want.UpdatedAt = 5, clock(6)
	put("closed again", closed, 6, want)

	reopened := session(5)
	want = session(6)
	want.OpenedAt, want.UpdatedAt = clock(7), clock(7)
	put("opened again", reopened, 7, want)

	other := session(0)
	other.Binding = "binding:other"
	if got := must[ledger.Session](t)(s.PutSession(ctx, other, clock(8))); got.Version != 1 {
		t.Errorf("another binding's session: %+v", got)
	}
	equal(t, "the first", must[ledger.Session](t)(s.Session(ctx, "binding:reviewer")), want)
}

// testSessionWithTransition: a session that is changed along with a turn is changed with it or not at
// all, and the turn likewise.
func testSessionWithTransition(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	with := func(version int64, values string) *ledger.Session {
		ses := session(version)
		ses.Values = []byte(values)
		return &ses
	}
	values := func(want string) {
		t.Helper()
		if got := must[ledger.Session](t)(s.Session(ctx, "binding:reviewer")); string(got.Values) != want {
			t.Fatalf("values %s, want %s", got.Values, want)
		}
	}
	r := dispatch("a", 1)
	r.Session = with(0, `1`)
	v := must[ledger.Verdict](t)(s.Reserve(ctx, r))
	values(`1`)
	// A replay changes no session.
	r.Session = with(1, `"replayed"`)
	must[ledger.Verdict](t)(s.Reserve(ctx, r))
	values(`1`)

	b := dispatch("b", 1)
	b.Session = with(0, `"stale"`)
	_, err := s.Reserve(ctx, b)
	wantErr(t, "reserve with a stale session", err, ledger.ErrConflict)
	if p := look(t, s, "turn:b"); p.Turn != nil || len(p.Parts) > 0 {
		t.Fatalf("a reservation whose session failed left %+v", p)
	}

	pause := suspension(v.Turn, r.Key, 3, 2, "r:1")
	pause.Session = with(9, `2`)
	before := look(t, s, "turn:a")
	_, err = s.Suspend(ctx, pause)
	wantErr(t, "suspend with a stale session", err, ledger.ErrConflict)
	equal(t, "after it", look(t, s, "turn:a"), before)
	pause.Session = with(1, `2`)
	turn := must[ledger.Turn](t)(s.Suspend(ctx, pause))
	values(`2`)

	c := ledger.Continuation{Request: proceed("a", "r:1"), Version: turn.Version, At: clock(3), Session: with(9, `3`)}
	before = look(t, s, "turn:a")
	_, err = s.Continue(ctx, c)
	wantErr(t, "continue with a stale session", err, ledger.ErrConflict)
	equal(t, "after it", look(t, s, "turn:a"), before)
	c.Session = with(2, `3`)
	v = must[ledger.Verdict](t)(s.Continue(ctx, c))
	values(`3`)

	end := settlement("a", v.Turn, v.Part.Key, 6, 4)
	end.Session = with(9, `4`)
	before = look(t, s, "turn:a")
	_, err = s.Settle(ctx, end)
	wantErr(t, "settle with a stale session", err, ledger.ErrConflict)
	equal(t, "after it", look(t, s, "turn:a"), before)
	if _, err := s.Product(ctx, "product:a"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("a settlement that failed left a product: %v", err)
	}
	end.Session = with(3, `4`)
	must[ledger.Turn](t)(s.Settle(ctx, end))
	values(`4`)
}

func testAdmissions(t *testing.T, open Open, _ Options) {
	for _, kind := range ledger.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s, ctx := open(t, ledger.Limits{}), t.Context()
			// doc is the generation n of a document.
			doc := func(n int64, source ledger.Source) ledger.Admission {
				generation := n
				if kind == ledger.Binding {
					generation = 0
				}
				return admission(kind, "ref:a", generation, ledger.Digest(fmt.Sprintf("sha256:%d", n)), source)
			}
			_, err := s.Admission(ctx, kind, "ref:a")
			wantErr(t, "nothing", err, ledger.ErrNotFound)
			_, err = s.Withdraw(ctx, kind, "ref:a", clock(1))
			wantErr(t, "withdrawing nothing", err, ledger.ErrNotFound)

			version, at := int64(0), 0
			var current ledger.Admission
			step := func(a ledger.Admission, want ledger.Change) {
				t.Helper()
				at++
				got, change, err := s.Admit(ctx, a, clock(at))
				if err != nil || change != want {
					t.Fatalf("%s from %s: %s, %v, want %s", a.Digest, a.Source, change, err, want)
				}
				switch want {
				case ledger.Unchanged, ledger.StillWithdrawn, ledger.Stale:
				default:
					version++
					current = a
					current.Version, current.AdmittedAt = version, clock(at)
				}
				equal(t, "admitted", got, current)
				equal(t, "read", must[ledger.Admission](t)(s.Admission(ctx, kind, "ref:a")), current)
			}
			withdraw := func() {
				t.Helper()
				at++
				if current.InForce() {
					version++
					current.Version, current.WithdrawnAt = version, clock(at)
				}
				equal(t, "withdrawn", must[ledger.Admission](t)(s.Withdraw(ctx, kind, "ref:a", clock(at))), current)
				equal(t, "read", must[ledger.Admission](t)(s.Admission(ctx, kind, "ref:a")), current)
			}
			superseded := func(want ...int64) {
				t.Helper()
				for n := int64(1); n <= 9; n++ {
					in := false
					for _, w := range want {
						in = in || w == n
					}
					if got := must[bool](t)(s.Superseded(ctx, kind, "ref:a", ledger.Digest(fmt.Sprintf("sha256:%d", n)))); got != in {
						t.Fatalf("superseded %d: %t, want %t", n, got, in)
					}
				}
			}
			dir, op := ledger.Directory, ledger.Operator
			step(doc(2, dir), ledger.Admitted)
			step(doc(2, dir), ledger.Unchanged)
			step(doc(2, op), ledger.Unchanged)
			superseded()
			step(doc(3, dir), ledger.Replaced)
			step(doc(2, dir), ledger.Stale)
			superseded(2)
			step(doc(5, op), ledger.Replaced)
			superseded(2, 3)
			step(doc(3, op), ledger.Replaced) // an operator may go back
			superseded(2, 5)
			step(doc(5, dir), ledger.Stale) // and a directory does not undo that
			withdraw()
			withdraw()
			step(doc(3, dir), ledger.StillWithdrawn)
			step(doc(6, dir), ledger.StillWithdrawn)
			superseded(2, 5)
			step(doc(3, op), ledger.Restored)
			withdraw()
			step(doc(7, op), ledger.Restored)
			superseded(2, 3, 5)
			if kind == ledger.Profile {
				step(doc(6, dir), ledger.Stale) // an earlier generation, though never seen
			} else {
				step(doc(6, dir), ledger.Replaced)
			}

			// The other kind has names of its own.
			for _, other := range ledger.Kinds() {
				if other != kind {
					_, err := s.Admission(ctx, other, "ref:a")
					wantErr(t, "the same ref as "+string(other), err, ledger.ErrNotFound)
				}
			}
			for _, ref := range []string{"ref:c", "ref:b"} {
				a := admission(kind, ref, 0, "sha256:x", op)
				if _, _, err := s.Admit(ctx, a, clock(50)); err != nil {
					t.Fatal(err)
				}
			}
			must[ledger.Admission](t)(s.Withdraw(ctx, kind, "ref:b", clock(51)))
			var refs []string
			for _, a := range must[[]ledger.Admission](t)(s.Admissions(ctx, kind)) {
				refs = append(refs, fmt.Sprintf("%s %t", a.Ref, a.InForce()))
			}
			equal(t, "all", refs, []string{"ref:a true", "ref:b false", "ref:c true"})
		})
	}
}

func testClaims(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	claim := func(agent ledger.AgentID, at int, again bool) ledger.Claimed {
		t.Helper()
		return must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: agent, Turn: "t", Again: again, At: clock(at), Expires: clock(at + 100)}))
	}
	first := ledger.Claim{Agent: "a", Turn: "t", State: ledger.ClaimRunning, At: clock(1), Expires: clock(101)}
	equal(t, "first", claim("a", 1, false), ledger.Claimed{Decision: ledger.Fresh, Claim: first})
	equal(t, "second", claim("a", 2, false), ledger.Claimed{Decision: ledger.Running, Claim: first})
	equal(t, "again, while it runs", claim("a", 2, true), ledger.Claimed{Decision: ledger.Running, Claim: first})
	// A turn belongs to (agent, turn).
	if c := claim("b", 3, false); c.Decision != ledger.Fresh {
		t.Errorf("another agent's: %+v", c)
	}
	wantErr(t, "ending nothing", s.EndClaim(ctx, "c", "t", clock(4)), ledger.ErrNotFound)
	for at := range 2 { // the second time it stays as it was
		if err := s.EndClaim(ctx, "a", "t", clock(5+at)); err != nil {
			t.Fatal(err)
		}
	}
	first.State, first.EndedAt = ledger.ClaimEnded, clock(5)
	equal(t, "ended", claim("a", 7, false), ledger.Claimed{Decision: ledger.Ended, Claim: first})
	again := ledger.Claim{Agent: "a", Turn: "t", State: ledger.ClaimRunning, At: clock(8), Expires: clock(108)}
	equal(t, "again", claim("a", 8, true), ledger.Claimed{Decision: ledger.Fresh, Claim: again})
	if err := s.Unclaim(ctx, "a", "t"); err != nil {
		t.Fatal(err)
	}
	if err := s.Unclaim(ctx, "a", "t"); err != nil {
		t.Errorf("forgetting what is forgotten: %v", err)
	}
	if c := claim("a", 9, false); c.Decision != ledger.Fresh {
		t.Errorf("after it was forgotten: %+v", c)
	}
	// What has expired is forgotten, running or not.
	if c := claim("a", 109, false); c.Decision != ledger.Fresh || !c.Claim.At.Equal(clock(109)) {
		t.Errorf("after it expired: %+v", c)
	}
}

func testClaimsBounded(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{Claims: 3}), t.Context()
	claim := func(turn ledger.TurnRef) (ledger.Claimed, error) {
		return s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: turn, At: clock(1), Expires: clock(100)})
	}
	for _, turn := range []ledger.TurnRef{"1", "2", "3"} {
		must[ledger.Claimed](t)(claim(turn))
	}
	_, err := claim("4")
	wantErr(t, "more than run", err, ledger.ErrFull)
	for _, turn := range []ledger.TurnRef{"3", "2"} {
		if err := s.EndClaim(ctx, "a", turn, clock(2)); err != nil {
			t.Fatal(err)
		}
	}
	if c := must[ledger.Claimed](t)(claim("2")); c.Decision != ledger.Ended {
		t.Errorf("an ended one while there is room: %+v", c)
	}
	must[ledger.Claimed](t)(claim("4")) // "2" was claimed before "3"
	if c := must[ledger.Claimed](t)(claim("3")); c.Decision != ledger.Ended {
		t.Errorf("the younger of two that ended was forgotten: %+v", c)
	}
	if c := must[ledger.Claimed](t)(claim("2")); c.Decision != ledger.Fresh {
		t.Errorf("the oldest that ended was kept: %+v", c)
	}
	if c := must[ledger.Claimed](t)(claim("1")); c.Decision != ledger.Running {
		t.Errorf("a running one was forgotten: %+v", c)
	}
	if err := s.Unclaim(ctx, "a", "1"); err != nil {
		t.Fatal(err)
	}
	must[ledger.Claimed](t)(claim("5"))
	_, err = claim("6")
	wantErr(t, "full again", err, ledger.ErrFull)
	if o.Reopen == nil {
		t.Log("skipped: the count after a restart, since this store keeps nothing")
		return
	}
	s = o.Reopen(t, s)
	_, err = claim("6")
	wantErr(t, "full after a restart", err, ledger.ErrFull)
}

func testSweep(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for i := range 5 {
		name := fmt.Sprint(i)
		turn, key := inState(t, s, name, ledger.Dispatched)
		end := settlement(name, turn, key, 4, 2)
		end.Product.Expires = clock(100 + i)
		end.Recording.Expires = clock(200 + i)
		if i == 4 { // kept for good
			end.Product.Expires, end.Recording.Expires = time.Time{}, time.Time{}
		}
		must[ledger.Turn](t)(s.Settle(ctx, end))
		must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: ledger.TurnRef(name), At: clock(1), Expires: clock(150 + i)}))
	}
	before := look(t, s, "turn:1")
	sweep := func(at, limit int, want ledger.Sweeping) {
		t.Helper()
		equal(t, fmt.Sprintf("sweep at %d", at), must[ledger.Sweeping](t)(s.Sweep(ctx, clock(at), limit)), want)
	}
	sweep(99, 0, ledger.Sweeping{})
	sweep(101, 0, ledger.Sweeping{Products: 2})
	after := look(t, s, "turn:1")
	before.Product.Content, before.Product.Keeping = nil, ledger.Swept
	equal(t, "a turn whose product was swept", after, before)
	sweep(101, 0, ledger.Sweeping{})
	sweep(152, 0, ledger.Sweeping{Products: 2, Claims: 3})
	sweep(202, 0, ledger.Sweeping{Parts: 3, Claims: 2})
	before.Parts[0].Lines, before.Parts[0].Keeping = nil, ledger.Swept
	equal(t, "a turn whose lines were swept", look(t, s, "turn:1"), before)
	if v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("1", 1))); v.Decision != ledger.Ended || v.Part.Keeping != ledger.Swept || v.Part.Lines != nil || v.Part.Size != 13 {
		t.Errorf("replay of what was swept: %+v", v)
	}
	sweep(100_000, 0, ledger.Sweeping{Parts: 1})
	if p := look(t, s, "turn:4"); p.Product.Keeping != ledger.Kept || p.Parts[0].Keeping != ledger.Kept {
		t.Errorf("what never expires was swept: %+v", p)
	}

	// In portions.
	for i := range 3 {
		name := fmt.Sprintf("more-%d", i)
		turn, key := inState(t, s, name, ledger.Dispatched)
		must[ledger.Turn](t)(s.Settle(ctx, settlement(name, turn, key, 4, 2)))
		must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: ledger.TurnRef(name), At: clock(1), Expires: clock(2)}))
	}
	sum, calls := ledger.Sweeping{}, 0
	for more := true; more; calls++ {
		got := must[ledger.Sweeping](t)(s.Sweep(ctx, clock(100_000), 2))
		if n := got.Products + got.Parts + got.Claims; n > 2 || got.More && n < 2 {
			t.Fatalf("a portion of %+v", got)
		}
		sum.Products += got.Products
		sum.Parts += got.Parts
		sum.Claims += got.Claims
		more = got.More
	}
	equal(t, "all portions", sum, ledger.Sweeping{Products: 3, Parts: 3, Claims: 3})
	if calls != 5 {
		t.Errorf("9 rows in portions of 2 took %d calls, want 5", calls)
	}
}

func testLists(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	equal(t, "nothing", must[ledger.TurnPage](t)(s.ListTurns(ctx, ledger.TurnQuery{})), ledger.TurnPage{})
	var all []ledger.Turn
	for i := range 40 {
		name := fmt.Sprint(i)
		state := ledger.States()[i%4]
		if i%8 == 5 { // one that is missing in the sequence
			r := reservation("gone-"+name, 1)
			must[ledger.Verdict](t)(s.Reserve(ctx, r))
			if err := s.Release(ctx, r.Turn, 1); err != nil {
				t.Fatal(err)
			}
		}
		if i%10 == 9 {
			r := refusal(start(name), 1, 1)
			r.Agent, r.Binding = "agent:other", "binding:other"
			all = append(all, must[ledger.Verdict](t)(s.Refuse(ctx, r)).Turn)
			continue
		}
		turn, _ := inState(t, s, name, state)
		all = append(all, turn)
	}
	for name, test := range map[string]struct {
		query ledger.TurnQuery
		want  func(ledger.Turn) bool
	}{
		"all":        {ledger.TurnQuery{}, func(ledger.Turn) bool { return true }},
		"reserved":   {ledger.TurnQuery{State: ledger.Reserved}, func(t ledger.Turn) bool { return t.State == ledger.Reserved }},
		"settled":    {ledger.TurnQuery{State: ledger.Settled}, func(t ledger.Turn) bool { return t.State == ledger.Settled }},
		"failed":     {ledger.TurnQuery{Status: ledger.Failed}, func(t ledger.Turn) bool { return t.Outcome != nil && t.Outcome.Status == ledger.Failed }},
		"refused":    {ledger.TurnQuery{Status: ledger.Refused}, func(t ledger.Turn) bool { return t.Outcome != nil && t.Outcome.Status == ledger.Refused }},
		"of agent":   {ledger.TurnQuery{Agent: "agent:other"}, func(t ledger.Turn) bool { return t.Agent == "agent:other" }},
		"of binding": {ledger.TurnQuery{Binding: "binding:reviewer", Status: ledger.Failed}, func(t ledger.Turn) bool { return t.Binding == "binding:reviewer" && t.Outcome != nil }},
		"of nobody":  {ledger.TurnQuery{Agent: "agent:nobody"}, func(ledger.Turn) bool { return false }},
	} {
		for _, newest := range []bool{false, true} {
			var want []ledger.Turn
			for _, turn := range all {
				if test.want(turn) {
					want = append(want, turn)
				}
			}
			if newest {
				for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
					want[i], want[j] = want[j], want[i]
				}
			}
			for _, limit := range []int{1, 3, 7, 40, 1000, 0} {
				q := test.query
				q.Newest, q.Limit = newest, limit
				var got []ledger.Turn
				for pages := 0; ; pages++ {
					page := must[ledger.TurnPage](t)(s.ListTurns(ctx, q))
					got = append(got, page.Turns...)
					if page.Next == 0 {
						break
					}
					if len(page.Turns) != limit || pages > len(all) {
						t.Fatalf("%s: a page of %d for a limit of %d", name, len(page.Turns), limit)
					}
					q.After = page.Next
				}
				equal(t, fmt.Sprintf("%s, newest %t, limit %d", name, newest, limit), got, want)
			}
		}
	}
}

func testExport(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for range s.Export(ctx) { //nolint:errcheck // any pair fails
		t.Fatal("an empty store exports something")
	}
	var want []string
	admit := func(a ledger.Admission) {
		if _, _, err := s.Admit(ctx, a, clock(1)); err != nil {
			t.Fatal(err)
		}
	}
	admit(admission(ledger.Profile, "p", 1, "sha256:p1", ledger.Operator))
	admit(admission(ledger.Profile, "p", 2, "sha256:p2", ledger.Operator))
	admit(admission(ledger.Binding, "b", 0, "sha256:b1", ledger.Operator))
	must[ledger.Session](t)(s.PutSession(ctx, session(0), clock(1)))
	want = append(want, "admission binding b", "admission profile p", "superseded p sha256:p1", "session binding:reviewer")
	for i := range 250 {
		name := fmt.Sprint(i)
		if i%2 == 0 {
			inState(t, s, name, ledger.States()[i%3])
			want = append(want, "turn turn:"+name, "part key:"+name)
			continue
		}
		turn, key := inState(t, s, name, ledger.Dispatched)
		must[ledger.Turn](t)(s.Settle(ctx, settlement(name, turn, key, 4, 2)))
		want = append(want, "turn turn:"+name, "part key:"+name, "product product:"+name)
	}
	for _, turn := range []ledger.TurnRef{"z", "a"} {
		must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: "a", Turn: turn, At: clock(1), Expires: clock(2)}))
		want = append(want, "claim "+string(turn))
	}
	line := func(r ledger.Record) string {
		switch {
		case r.Admission != nil:
			return fmt.Sprintf("admission %s %s", r.Admission.Kind, r.Admission.Ref)
		case r.Superseded != nil:
			return fmt.Sprintf("superseded %s %s", r.Superseded.Ref, r.Superseded.Digest)
		case r.Session != nil:
			if r.Session.Values != nil {
				t.Error("an export shows a session's values")
			}
			return "session " + string(r.Session.Binding)
		case r.Turn != nil:
			full := must[ledger.Turn](t)(s.Turn(ctx, r.Turn.Ref))
			equal(t, "exported turn", *r.Turn, full)
			return "turn " + string(r.Turn.Ref)
		case r.Part != nil:
			full := must[ledger.Part](t)(s.Part(ctx, r.Part.Key))
			full.Lines = nil
			equal(t, "exported part", *r.Part, full)
			return "part " + string(r.Part.Key)
		case r.Product != nil:
			full := must[ledger.Product](t)(s.Product(ctx, r.Product.Ref))
			full.Content = nil
			equal(t, "exported product", *r.Product, full)
			return "product " + string(r.Product.Ref)
		case r.Claim != nil:
			return "claim " + string(r.Claim.Turn)
		}
		return "nothing"
	}
	seq := s.Export(ctx)
	for range 2 {
		var got []string
		for r, err := range seq {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, line(r))
		}
		equal(t, "export", got, want)
	}
	// A walk may stop anywhere, and the store may change meanwhile.
	n := 0
	for r, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn != nil && n%50 == 0 {
			inState(t, s, fmt.Sprintf("meanwhile-%d", n), ledger.Settled)
		}
		if n++; n == 300 {
			break
		}
	}
}

func testNames(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for i, name := range []string{
		"'", `"`, "%", "_", `\`, "a'); DROP TABLE turns; --", "agent-external-runtime-turn:ü:\u2028", "ＡＢＣ", "é", "e\u0301",
		"A", "a", "1", "01", "1.0", "true", "null", "NaN", "../x", "a/b?c#d", strings.Repeat("x", 2000), strings.Repeat("😀", 500), "\x01\x7f",
	} {
		r := dispatch(name, 1)
		if v := must[ledger.Verdict](t)(s.Reserve(ctx, r)); v.Decision != ledger.Fresh {
			t.Errorf("%q is taken for another name", name)
		}
		if p := look(t, s, r.Turn); p.Turn == nil || p.Turn.Ref != r.Turn || p.Turn.Identity != r.Identity || p.Parts[0].Key != r.Key {
			t.Errorf("%q became %+v", name, p)
		}
		must[ledger.Claimed](t)(s.Claim(ctx, ledger.ClaimRequest{Agent: ledger.AgentID(name), Turn: ledger.TurnRef(name), At: clock(i), Expires: clock(1000)}))
	}
}

func testBytes(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	large := make([]byte, 3<<20)
	for i := range large {
		large[i] = byte(i * i >> 3)
	}
	for name, b := range map[string][]byte{"every byte": every, "large": large, "one": {0}} {
		turn, key := inState(t, s, name, ledger.Dispatched)
		end := settlement(name, turn, key, 4, 2)
		end.Recording.Lines, end.Product.Content = b, b
		end.Outcome.Document = []byte(" {\"b\" : 1e0,\"a\":\"\\u00e9\", \"b\":2}\n")
		must[ledger.Turn](t)(s.Settle(ctx, end))
		p := look(t, s, turn.Ref)
		if string(p.Parts[0].Lines) != string(b) || string(p.Product.Content) != string(b) || p.Product.Size != int64(len(b)) || p.Parts[0].Size != int64(len(b)) {
			t.Errorf("%s came back changed", name)
		}
		if string(p.Turn.Outcome.Document) != string(end.Outcome.Document) {
			t.Errorf("document %q", p.Turn.Outcome.Document)
		}
	}
}

func testTimes(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	zone := time.FixedZone("somewhere", 5*3600+1800)
	for i, at := range []time.Time{
		time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999999999, time.UTC),
		time.Unix(0, 0),
		time.Date(2026, 9, 1, 12, 0, 0, 123456789, zone),
		time.Now(),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
	} {
		r := dispatch(fmt.Sprint(i), 1)
		r.Deadline, r.At = at, at
		must[ledger.Verdict](t)(s.Reserve(ctx, r))
		got := must[ledger.Turn](t)(s.Turn(ctx, r.Turn))
		want := at.UTC().Truncate(time.Microsecond).Round(0)
		if got.Deadline != want || got.ReservedAt != want || got.UpdatedAt != want {
			t.Errorf("%v came back as %v and %v, want %v", at, got.Deadline, got.ReservedAt, want)
		}
	}
	r := dispatch("none", 1)
	r.Deadline = time.Time{}
	must[ledger.Verdict](t)(s.Reserve(ctx, r))
	if got := must[ledger.Turn](t)(s.Turn(ctx, r.Turn)); !got.Deadline.IsZero() {
		t.Errorf("no deadline became %v", got.Deadline)
	}
}

// testCopies: what a store was given and what it gave are the caller's.
func testCopies(t *testing.T, open Open, _ Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	scribble := func(slices ...[]byte) {
		for _, b := range slices {
			for i := range b {
				b[i] = 'x'
			}
		}
	}
	v := must[ledger.Verdict](t)(s.Reserve(ctx, dispatch("a", 1)))
	pause := suspension(v.Turn, v.Part.Key, 3, 2, "r:1")
	turn := must[ledger.Turn](t)(s.Suspend(ctx, pause))
	pause.Awaiting[0] = "x"
	turn.Awaiting[0] = "x"
	scribble(pause.Recording.Lines)
	v = must[ledger.Verdict](t)(s.Continue(ctx, ledger.Continuation{Request: proceed("a", "r:1"), Version: 2, At: clock(3)}))
	end := settlement("a", v.Turn, v.Part.Key, 5, 4)
	ses := session(0)
	end.Session = &ses
	turn = must[ledger.Turn](t)(s.Settle(ctx, end))
	want := look(t, s, "turn:a")
	scribble(end.Recording.Lines, end.Product.Content, end.Product.Document, end.Outcome.Document, ses.Values, turn.Outcome.Document)
	turn.Outcome.Charged.Tokens = 99
	if string(want.Parts[0].Lines) != "{\"seq/no\":3}\n" {
		t.Errorf("lines became %q", want.Parts[0].Lines)
	}
	got := look(t, s, "turn:a")
	equal(t, "after scribbling over what was given", got, want)
	scribble(got.Parts[0].Lines, got.Product.Content, got.Product.Document, got.Turn.Outcome.Document, got.Session.Values)
	got.Turn.Outcome.Charged.Tokens = 99
	equal(t, "after scribbling over what was got", look(t, s, "turn:a"), want)

	a := admission(ledger.Binding, "b", 0, "sha256:b", ledger.Operator)
	admitted, _, err := s.Admit(ctx, a, clock(1))
	if err != nil {
		t.Fatal(err)
	}
	scribble(a.Document, admitted.Document)
	if got := must[ledger.Admission](t)(s.Admission(ctx, ledger.Binding, "b")); string(got.Document) != `{"digest":"sha256:b"}` {
		t.Errorf("document became %s", got.Document)
	}
}
