package ledgertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
)

// together calls do n times at once and returns what each said.
func together[T any](n int, do func(i int) (T, error)) ([]T, []error) {
	results, errs := make([]T, n), make([]error, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			results[i], errs[i] = do(i)
		})
	}
	close(begin)
	wg.Wait()
	return results, errs
}

// testFaultG2: 64 equal requests at once. Exactly one runs, the others join or replay it; there is one
// reservation and one charge.
func testFaultG2(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for round := range o.Rounds {
		name := fmt.Sprintf("round-%d", round)
		verdicts, errs := together(64, func(int) (ledger.Verdict, error) {
			v, err := s.Reserve(ctx, dispatch(name, 1))
			if err == nil && v.Decision == ledger.Fresh {
				_, err = s.Settle(ctx, settlement(name, v.Turn, v.Part.Key, 4, 2))
			}
			return v, err
		})
		count := map[ledger.Decision]int{}
		for i, v := range verdicts {
			if errs[i] != nil {
				t.Fatalf("round %d: %v", round, errs[i])
			}
			count[v.Decision]++
			if v.Part.Seq != verdicts[0].Part.Seq || v.Turn.Seq != verdicts[0].Turn.Seq {
				t.Fatalf("round %d: two rows for one key", round)
			}
			if v.Decision == ledger.Ended && string(v.Part.Lines) != "{\"seq/no\":4}\n" {
				t.Fatalf("round %d: a replay of %q", round, v.Part.Lines)
			}
		}
		if count[ledger.Fresh] != 1 || count[ledger.Running]+count[ledger.Ended] != 63 {
			t.Fatalf("round %d: decisions %v", round, count)
		}
	}
	turns, charged := 0, ledger.Budget{}
	for r, err := range s.Export(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn != nil {
			turns++
			charged.Tokens += r.Turn.Outcome.Charged.Tokens
		}
	}
	if turns != o.Rounds || charged.Tokens != int64(32*o.Rounds) {
		t.Errorf("%d turns, %d tokens charged, want %d and %d", turns, charged.Tokens, o.Rounds, 32*o.Rounds)
	}
}

// testRacingContinues: of several answers to one observation, with keys of their own, one goes on.
func testRacingContinues(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for round := range o.Rounds {
		name := fmt.Sprintf("round-%d", round)
		turn, _ := inState(t, s, name, ledger.Suspended)
		verdicts, errs := together(16, func(i int) (ledger.Verdict, error) {
			req := proceed(name, "request:1")
			req.Key = ledger.Key(fmt.Sprintf("%s:%d", req.Key, i/2)) // each key twice
			return s.Continue(ctx, ledger.Continuation{Request: req, Version: turn.Version, At: clock(3)})
		})
		fresh, winner := 0, ledger.Key("")
		for i, v := range verdicts {
			if errs[i] == nil && v.Decision == ledger.Fresh {
				fresh++
				winner = v.Part.Key
			}
		}
		if fresh != 1 {
			t.Fatalf("round %d: %d went on: %v", round, fresh, errs)
		}
		running := 0
		for i, v := range verdicts {
			switch {
			case errors.Is(errs[i], ledger.ErrConflict):
			case errs[i] != nil:
				t.Fatalf("round %d: %v", round, errs[i])
			case v.Part.Key != winner:
				t.Fatalf("round %d: two keys went on", round)
			case v.Decision == ledger.Running:
				running++
			}
		}
		if running != 1 {
			t.Fatalf("round %d: %d joined the winner, want 1", round, running)
		}
		if parts := must[[]ledger.Part](t)(s.Parts(ctx, turn.Ref)); len(parts) != 2 {
			t.Fatalf("round %d: %d parts", round, len(parts))
		}
	}
}

// testRacingSettlements: a turn is charged once, also when its end, its deadline and its cancellation
// come together.
func testRacingSettlements(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for round := range o.Rounds {
		name := fmt.Sprintf("round-%d", round)
		turn, key := inState(t, s, name, ledger.Dispatched)
		turns, errs := together(16, func(i int) (ledger.Turn, error) {
			end := settlement(name, turn, key, 4, 2)
			if i%2 == 1 {
				end = failure(name, turn, key, 4, 2)
			}
			end.Outcome.Charged.Tokens = int64(i)
			return s.Settle(ctx, end)
		})
		won := -1
		for i, err := range errs {
			switch {
			case err == nil && won >= 0:
				t.Fatalf("round %d: settled twice", round)
			case err == nil:
				won = i
			case !errors.Is(err, ledger.ErrConflict):
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if won < 0 {
			t.Fatalf("round %d: nobody settled: %v", round, errs)
		}
		p := look(t, s, turn.Ref)
		equal(t, "the turn", *p.Turn, turns[won])
		if p.Turn.Outcome.Charged.Tokens != int64(won) || (p.Product != nil) != (won%2 == 0) {
			t.Fatalf("round %d: %d won and the charge is %v, the product %v", round, won, p.Turn.Outcome.Charged, p.Product)
		}
	}
}

// testRacingStarts: of several starts of one turn with different keys, one is recorded.
func testRacingStarts(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for round := range o.Rounds {
		name := fmt.Sprintf("round-%d", round)
		_, errs := together(16, func(i int) (ledger.Verdict, error) {
			r := dispatch(name, 1)
			r.Key = ledger.Key(fmt.Sprintf("%s:%d", r.Key, i))
			r.Digest = ledger.Digest(r.Key)
			if i%4 == 0 {
				return s.Refuse(ctx, refusal(r.Request, 1, 1))
			}
			return s.Reserve(ctx, r)
		})
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, ledger.ErrMismatch) {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if won != 1 {
			t.Fatalf("round %d: %d starts of one turn", round, won)
		}
	}
}

// testFaultE5: a turn id that is claimed 50 times at once is claimed once.
func testFaultE5(t *testing.T, open Open, o Options) {
	s, ctx := open(t, ledger.Limits{}), t.Context()
	for round := range o.Rounds {
		turn := ledger.TurnRef(fmt.Sprintf("turn-%d", round))
		claims, errs := together(50, func(i int) (ledger.Claimed, error) {
			return s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: turn, Again: i%2 == 0, At: clock(1), Expires: clock(100)})
		})
		fresh := 0
		for i, c := range claims {
			if errs[i] != nil {
				t.Fatalf("round %d: %v", round, errs[i])
			}
			switch c.Decision {
			case ledger.Fresh:
				fresh++
			case ledger.Running:
			default:
				t.Fatalf("round %d: %s", round, c.Decision)
			}
		}
		if fresh != 1 {
			t.Fatalf("round %d: claimed %d times", round, fresh)
		}
	}
}
