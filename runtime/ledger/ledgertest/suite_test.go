package ledgertest_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/ledgertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const brokenEnv = "BACKLINE_LEDGERTEST_BROKEN"

// A broken store is the memory store with one fault.
type broken func(ledger.Store) ledger.Store

// The faults, each with a test of the suite that must find it.
var faults = map[string]struct {
	finds string
	make  broken
}{
	"settles whatever version is named": {"Transitions", func(s ledger.Store) ledger.Store { return settlesAnyVersion{s} }},
	"lets two run":                      {"FaultG2", func(s ledger.Store) ledger.Store { return &letsTwoRun{Store: s} }},
	"takes other bytes for the same":    {"FaultG1", func(s ledger.Store) ledger.Store { return takesOtherBytes{s} }},
	"loses the lines":                   {"Life", func(s ledger.Store) ledger.Store { return losesLines{s} }},
	"keeps what was swept":              {"Sweep", func(s ledger.Store) ledger.Store { return keepsSwept{s} }},
	"never sweeps":                      {"Model", func(s ledger.Store) ledger.Store { return neverSweeps{s} }},
	"lets a directory restore":          {"Admissions", func(s ledger.Store) ledger.Store { return restores{s} }},
	"puts any session":                  {"Sessions", func(s ledger.Store) ledger.Store { return putsAny{s} }},
	"claims twice":                      {"FaultE5", func(s ledger.Store) ledger.Store { return &claimsTwice{Store: s} }},
	"charges the lost nothing":          {"FaultL2", func(s ledger.Store) ledger.Store { return chargesNothing{s} }},
	"recovers reservations only":        {"FaultG3", func(s ledger.Store) ledger.Store { return recoversNothing{s} }},
	"skips the first of a page":         {"Lists", func(s ledger.Store) ledger.Store { return skips{s} }},
	"settles without the session":       {"SessionWithTransition", func(s ledger.Store) ledger.Store { return withoutSession{s} }},
	"ignores the context":               {"Context", func(s ledger.Store) ledger.Store { return ignoresContext{s} }},
}

type settlesAnyVersion struct{ ledger.Store }

func (b settlesAnyVersion) Settle(ctx context.Context, s ledger.Settlement) (ledger.Turn, error) {
	if t, err := b.Turn(ctx, s.Turn); err == nil {
		s.Version = t.Version
	}
	return b.Store.Settle(ctx, s)
}

type letsTwoRun struct {
	ledger.Store
	mu sync.Mutex
	n  int
}

func (b *letsTwoRun) Reserve(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	v, err := b.Store.Reserve(ctx, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n++; b.n%20 == 10 && err == nil {
		v.Decision = ledger.Fresh
	}
	return v, err
}

type takesOtherBytes struct{ ledger.Store }

func (b takesOtherBytes) Reserve(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	if p, err := b.Part(ctx, r.Key); err == nil {
		r.Digest = p.Digest
	}
	return b.Store.Reserve(ctx, r)
}

type losesLines struct{ ledger.Store }

func (b losesLines) Suspend(ctx context.Context, s ledger.Suspension) (ledger.Turn, error) {
	s.Recording.Lines = s.Recording.Lines[:1]
	return b.Store.Suspend(ctx, s)
}

type keepsSwept struct{ ledger.Store }

func (b keepsSwept) Product(ctx context.Context, ref ledger.ProductRef) (ledger.Product, error) {
	p, err := b.Store.Product(ctx, ref)
	if p.Keeping == ledger.Swept {
		p.Content = []byte("still here")
	}
	return p, err
}

type neverSweeps struct{ ledger.Store }

func (b neverSweeps) Sweep(context.Context, time.Time, int) (ledger.Sweeping, error) {
	return ledger.Sweeping{}, nil
}

type restores struct{ ledger.Store }

func (b restores) Admit(ctx context.Context, a ledger.Admission, at time.Time) (ledger.Admission, ledger.Change, error) {
	a.Source = ledger.Operator
	return b.Store.Admit(ctx, a, at)
}

type putsAny struct{ ledger.Store }

func (b putsAny) PutSession(ctx context.Context, s ledger.Session, at time.Time) (ledger.Session, error) {
	if known, err := b.Session(ctx, s.Binding); err == nil {
		s.Version = known.Version
	}
	return b.Store.PutSession(ctx, s, at)
}

type claimsTwice struct {
	ledger.Store
	mu sync.Mutex
	n  int
}

func (b *claimsTwice) Claim(ctx context.Context, r ledger.ClaimRequest) (ledger.Claimed, error) {
	c, err := b.Store.Claim(ctx, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n++; b.n%10 == 5 {
		c.Decision = ledger.Fresh
	}
	return c, err
}

type chargesNothing struct{ ledger.Store }

func (b chargesNothing) Turn(ctx context.Context, ref ledger.TurnRef) (ledger.Turn, error) {
	t, err := b.Store.Turn(ctx, ref)
	if t.Outcome != nil && t.Outcome.Status == ledger.Unknown {
		t.Outcome.Charged = ledger.Budget{}
	}
	return t, err
}

type recoversNothing struct{ ledger.Store }

func (b recoversNothing) Recover(context.Context, time.Time, func(ledger.Turn, *ledger.Part) (*ledger.Ending, error)) (ledger.Recovery, error) {
	return ledger.Recovery{}, nil
}

type skips struct{ ledger.Store }

func (b skips) ListTurns(ctx context.Context, q ledger.TurnQuery) (ledger.TurnPage, error) {
	if q.After > 0 && !q.Newest {
		q.After++
	}
	return b.Store.ListTurns(ctx, q)
}

type withoutSession struct{ ledger.Store }

func (b withoutSession) Settle(ctx context.Context, s ledger.Settlement) (ledger.Turn, error) {
	s.Session = nil
	return b.Store.Settle(ctx, s)
}

type ignoresContext struct{ ledger.Store }

func (b ignoresContext) Reserve(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	return b.Store.Reserve(context.WithoutCancel(ctx), r)
}

// TestBroken runs the suite on a store with one fault. It is for TestSuiteFindsFaults alone.
func TestBroken(t *testing.T) {
	fault, ok := faults[os.Getenv(brokenEnv)]
	if !ok {
		t.Skip("only TestSuiteFindsFaults runs this, in a process of its own")
	}
	ledgertest.Exercise(t, func(_ testing.TB, l ledger.Limits) ledger.Store {
		return fault.make(ledger.NewMemory(ledger.MemoryConfig{Limits: l}))
	}, ledgertest.Options{Sequences: 100, Rounds: 5})
}

// TestSuiteFindsFaults: a suite that passes everything shows nothing. Each fault is put into a store, and
// a test of the suite must fail for it.
func TestSuiteFindsFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBroken$/^"+fault.finds+"$", "-rapid.nofailfile")
			cmd.Env = append(os.Environ(), brokenEnv+"="+name)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "--- FAIL: TestBroken/"+fault.finds) {
				t.Errorf("%s does not find a store that %s: %v\n%s", fault.finds, name, err, out.String())
			}
		})
	}
}
