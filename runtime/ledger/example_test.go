package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func exampleRequest() ledger.Request {
	return ledger.Request{
		Key: "key:1", Digest: "sha256:request", Mode: ledger.Start,
		Turn: "turn:1", Identity: "sha256:identity",
		Agent: "agent:reviewer", Binding: "binding:reviewer",
		Reserved: ledger.Budget{Tokens: 512, CostMicros: 1000, WallTimeMS: 5000, Steps: 3},
	}
}

func exampleOutcome(status ledger.Status, reason ledger.ReasonCode) ledger.Outcome {
	return ledger.Outcome{
		Ref: "outcome:1", Status: status, Reason: reason, Retryability: ledger.Terminal, Fidelity: ledger.Unavailable, Document: []byte(`{}`),
	}
}

// The life of a turn: its reservation and the intent to call the adapter are one transaction, its
// outcome, its charge and the last bytes of its stream another. A request that comes again gets what the
// first one got.
func ExampleNewMemory() {
	ctx := context.Background()
	s := ledger.NewMemory(ledger.MemoryConfig{})

	request := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	v, err := s.Reserve(ctx, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("first:", v.Decision, v.Turn.State)

	v2, _ := s.Reserve(ctx, request)
	fmt.Println("meanwhile:", v2.Decision)

	end := ledger.Settlement{
		Turn: v.Turn.Ref, Version: v.Turn.Version, Key: v.Part.Key,
		Outcome:   exampleOutcome(ledger.Failed, "provider-unavailable"),
		Recording: ledger.Recording{Lines: []byte("{\"seq/no\":1}\n"), LastSeq: 1},
		At:        noon.Add(time.Second),
	}
	end.Outcome.Charged = v.Turn.Reserved // nothing was measured
	if _, err := s.Settle(ctx, end); err != nil {
		fmt.Println(err)
	}
	_, err = s.Settle(ctx, end)
	fmt.Println("settled twice:", errors.Is(err, ledger.ErrConflict))

	v3, _ := s.Reserve(ctx, request)
	fmt.Printf("afterwards: %s, %s %s, %q\n", v3.Decision, v3.Turn.Outcome.Status, v3.Turn.Outcome.Reason, v3.Part.Lines)

	request.Digest = "sha256:another"
	_, err = s.Reserve(ctx, request)
	fmt.Println(err)
	// Output:
	// first: fresh dispatched
	// meanwhile: running
	// settled twice: true
	// afterwards: ended, failed provider-unavailable, "{\"seq/no\":1}\n"
	// ledger: known from another request: idempotency key "key:1"
}

// After a crash: what was dispatched is unknown and charged in full, what was only reserved may come
// again.
func ExampleMemory_Recover() {
	ctx := context.Background()
	s := ledger.NewMemory(ledger.MemoryConfig{})
	for i, dispatch := range []bool{true, false} {
		r := ledger.Reservation{Request: exampleRequest(), Dispatch: dispatch, At: noon}
		r.Key, r.Turn = ledger.Key(fmt.Sprint("key:", i)), ledger.TurnRef(fmt.Sprint("turn:", i))
		if _, err := s.Reserve(ctx, r); err != nil {
			fmt.Println(err)
		}
	}
	did, err := s.Recover(ctx, noon, func(t ledger.Turn, running *ledger.Part) (*ledger.Ending, error) {
		return &ledger.Ending{Ref: "outcome:" + ledger.OutcomeRef(t.Ref), Document: []byte(`{"status":"unknown"}`)}, nil
	})
	if err != nil {
		fmt.Println(err)
	}
	for _, t := range did.Unknown {
		fmt.Println(t.Ref, t.Outcome.Status, t.Outcome.Retryability, t.Outcome.Charged.Tokens)
	}
	fmt.Println("released:", did.Released)
	// Output:
	// turn:0 unknown reconciliation-required 512
	// released: [turn:1]
}

func ExampleMemory_Admit() {
	ctx := context.Background()
	s := ledger.NewMemory(ledger.MemoryConfig{})
	file := ledger.Admission{Kind: ledger.Binding, Ref: "binding:reviewer", Digest: "sha256:b", Document: []byte(`{}`), Source: ledger.Directory}
	_, change, _ := s.Admit(ctx, file, noon)
	fmt.Println(change)
	_, _ = s.Withdraw(ctx, ledger.Binding, "binding:reviewer", noon)
	_, change, _ = s.Admit(ctx, file, noon) // the directory is read again
	fmt.Println(change)
	file.Source = ledger.Operator
	_, change, _ = s.Admit(ctx, file, noon)
	fmt.Println(change)
	// Output:
	// admitted
	// still-withdrawn
	// restored
}

func ExampleMemory_Claim() {
	ctx := context.Background()
	s := ledger.NewMemory(ledger.MemoryConfig{})
	for range 2 {
		c, _ := s.Claim(ctx, ledger.ClaimRequest{Agent: "agent-456", Turn: "turn-123", At: noon, Expires: noon.Add(time.Hour)})
		fmt.Println(c.Decision)
	}
	_ = s.EndClaim(ctx, "agent-456", "turn-123", noon.Add(time.Minute))
	c, _ := s.Claim(ctx, ledger.ClaimRequest{Agent: "agent-456", Turn: "turn-123", At: noon.Add(time.Minute), Expires: noon.Add(time.Hour)})
	fmt.Println(c.Decision, c.Claim.State)
	// Output:
	// fresh
	// running
	// ended ended
}

func ExampleMemory_Export() {
	ctx := context.Background()
	s := ledger.NewMemory(ledger.MemoryConfig{})
	_, _ = s.Reserve(ctx, ledger.Reservation{Request: exampleRequest(), At: noon})
	for r, err := range s.Export(ctx) {
		switch {
		case err != nil:
			fmt.Println(err)
		case r.Turn != nil:
			fmt.Println("turn", r.Turn.Ref, r.Turn.State)
		case r.Part != nil:
			fmt.Println("part", r.Part.Key, r.Part.Mode)
		}
	}
	// Output:
	// turn turn:1 reserved
	// part key:1 start
}

func ExampleStates() {
	fmt.Println(ledger.States())
	// Output: [reserved dispatched suspended settled]
}

func ExampleStatuses() {
	fmt.Println(ledger.Statuses())
	// Output: [completed refused failed cancelled unknown]
}

func ExampleRetryabilities() {
	fmt.Println(ledger.Retryabilities())
	// Output: [terminal retryable reconciliation-required]
}

func ExampleFidelities() {
	fmt.Println(ledger.Fidelities())
	// Output: [authoritative host-measured estimated unavailable]
}

func ExampleModes() {
	fmt.Println(ledger.Modes())
	// Output: [start continue]
}

func ExampleKeepings() {
	fmt.Println(ledger.Keepings())
	// Output: [none kept swept oversized]
}

func ExampleKinds() {
	fmt.Println(ledger.Kinds())
	// Output: [profile binding]
}

func ExampleSources() {
	fmt.Println(ledger.Sources())
	// Output: [operator directory]
}

func ExampleClaimStates() {
	fmt.Println(ledger.ClaimStates())
	// Output: [running ended lost]
}

func ExampleInstant() {
	there := time.FixedZone("there", 2*3600)
	fmt.Println(ledger.Instant(time.Date(2026, 9, 1, 14, 0, 0, 123456789, there)))
	// Output: 2026-09-01 12:00:00.123456 +0000 UTC
}

func ExampleMismatch() {
	r := exampleRequest()
	fmt.Println(ledger.Mismatch(&r, true))
	fmt.Println(ledger.Mismatch(&r, false))
	// Output:
	// ledger: known from another request: idempotency key "key:1"
	// ledger: known from another request: turn "turn:1"
}

func ExampleJudge() {
	r := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	turn, part := ledger.NewTurn(&r)
	v, err := ledger.Judge(&r.Request, turn, part)
	fmt.Println(v.Decision, err)
	// Output: running <nil>
}

func ExampleNewTurn() {
	r := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	turn, part := ledger.NewTurn(&r)
	fmt.Println(turn.State, turn.Version, turn.Reserved.Tokens, part.Running())
	// Output: dispatched 1 512 true
}

func ExampleNewRefusedTurn() {
	r := ledger.Refusal{
		Request:   exampleRequest(),
		Outcome:   exampleOutcome(ledger.Refused, "binding-revoked"),
		Recording: ledger.Recording{Lines: []byte("{}\n"), LastSeq: 1},
		At:        noon,
	}
	turn, part := ledger.NewRefusedTurn(&r)
	fmt.Println(turn.State, turn.Outcome.Charged.Tokens, part.Reason)
	// Output: settled 0 binding-revoked
}

func ExampleNewRefusedPart() {
	r := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	turn, _ := ledger.NewTurn(&r)
	again := ledger.Refusal{Request: r.Request}
	again.Key = "key:2" // a second start of one turn
	_, err := ledger.NewRefusedPart(&again, &turn)
	fmt.Println(errors.Is(err, ledger.ErrMismatch))
	// Output: true
}

func ExampleNextSession() {
	fence := ledger.Fence{Agent: "agent:reviewer", AgentBinding: "agent-binding:reviewer", BindingDigest: "sha256:b", ProfileGeneration: 1, Epoch: "epoch:1"}
	first, err := ledger.NextSession(nil, ledger.Session{Binding: "binding:reviewer", Fence: fence, Open: true, Values: []byte(`{"draft":1}`)}, noon)
	fmt.Println(first.Version, first.Open, err)
	end := first
	end.Open = false
	closed, err := ledger.NextSession(&first, end, noon.Add(time.Minute))
	fmt.Println(closed.Version, closed.Open, len(closed.Values), err)
	// Output:
	// 1 true <nil>
	// 2 false 0 <nil>
}

func ExampleNextAdmission() {
	file := ledger.Admission{Kind: ledger.Profile, Ref: "profile:fake", Generation: 2, Digest: "sha256:2", Source: ledger.Directory}
	second, change := ledger.NextAdmission(nil, false, file, noon)
	fmt.Println(change)
	file.Generation, file.Digest = 1, "sha256:1"
	_, change = ledger.NextAdmission(&second, false, file, noon)
	fmt.Println(change)
	// Output:
	// admitted
	// stale
}

func ExampleAfterClaim() {
	r := ledger.ClaimRequest{Agent: "agent-456", Turn: "turn-123", At: noon, Expires: noon.Add(time.Hour)}
	first := ledger.AfterClaim(nil, &r)
	second := ledger.AfterClaim(&first.Claim, &r)
	fmt.Println(first.Decision, second.Decision)
	// Output: fresh running
}
