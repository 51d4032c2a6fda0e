package ledger_test

import (
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/ledgertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openMemory(t testing.TB, l ledger.Limits) ledger.Store {
	t.Helper()
	s := ledger.NewMemory(ledger.MemoryConfig{Limits: l})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestMemory(t *testing.T) {
	t.Parallel()
	ledgertest.Exercise(t, openMemory, ledgertest.Options{})
}

// settle makes a settled turn whose stream has so many bytes.
func settle(t *testing.T, s ledger.Store, name string, size int) {
	t.Helper()
	r := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	r.Key, r.Turn = ledger.Key("key:"+name), ledger.TurnRef("turn:"+name)
	v, err := s.Reserve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	o := exampleOutcome(ledger.Completed, "completed")
	o.Product, o.ProductDigest = ledger.ProductRef("product:"+name), "sha256:p"
	_, err = s.Settle(t.Context(), ledger.Settlement{
		Turn: v.Turn.Ref, Version: v.Turn.Version, Key: v.Part.Key, Outcome: o, At: noon,
		Product:   &ledger.Product{Ref: o.Product, Digest: o.ProductDigest, Document: []byte(`{}`), Content: []byte("content")},
		Recording: ledger.Recording{Lines: make([]byte, size), LastSeq: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// known are the turns among 0 to n-1 that a store knows. What it has forgotten of a turn it has
// forgotten altogether.
func known(t *testing.T, s ledger.Store, n int) []int {
	t.Helper()
	var all []int
	for i := range n {
		_, err := s.Turn(t.Context(), ledger.TurnRef(fmt.Sprint("turn:", i)))
		_, perr := s.Part(t.Context(), ledger.Key(fmt.Sprint("key:", i)))
		_, derr := s.Product(t.Context(), ledger.ProductRef(fmt.Sprint("product:", i)))
		gone := errors.Is(err, ledger.ErrNotFound)
		if errors.Is(perr, ledger.ErrNotFound) != gone || errors.Is(derr, ledger.ErrNotFound) != gone {
			t.Fatalf("turn %d: %v, its request: %v, its product: %v", i, err, perr, derr)
		}
		if !gone {
			all = append(all, i)
		}
	}
	page, err := s.ListTurns(t.Context(), ledger.TurnQuery{State: ledger.Settled, Limit: 1000})
	if err != nil || len(page.Turns) != len(all) {
		t.Fatalf("%d turns are listed, %d known, %v", len(page.Turns), len(all), err)
	}
	return all
}

func TestMemoryForgetsOldest(t *testing.T) {
	t.Parallel()
	s := ledger.NewMemory(ledger.MemoryConfig{MaxTurns: 3})
	open := ledger.Reservation{Request: exampleRequest(), Dispatch: true, At: noon}
	open.Key, open.Turn = "key:open", "turn:open"
	if _, err := s.Reserve(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		settle(t, s, fmt.Sprint(i), 10)
	}
	if got := fmt.Sprint(known(t, s, 1000)); got != "[997 998 999]" {
		t.Errorf("turns %s are known", got)
	}
	if turn, err := s.Turn(t.Context(), "turn:open"); err != nil || turn.State != ledger.Dispatched {
		t.Errorf("the open turn: %+v, %v", turn, err)
	}
	settle(t, s, "0", 10) // its key is as new
	if got := fmt.Sprint(known(t, s, 1000)); got != "[0 998 999]" {
		t.Errorf("turns %s are known", got)
	}
}

func TestMemoryBoundsBytes(t *testing.T) {
	t.Parallel()
	s := ledger.NewMemory(ledger.MemoryConfig{MaxBytes: 100_000})
	for i := range 50 {
		settle(t, s, fmt.Sprint(i), 20_000)
	}
	if got := fmt.Sprint(known(t, s, 50)); got != "[46 47 48 49]" {
		t.Errorf("turns %s are known", got)
	}
	settle(t, s, "50", 1_000_000) // the last one is kept, whatever it takes
	if got := fmt.Sprint(known(t, s, 51)); got != "[50]" {
		t.Errorf("turns %s are known", got)
	}
	unbounded := ledger.NewMemory(ledger.MemoryConfig{MaxBytes: -1, MaxTurns: -1})
	for i := range 50 {
		settle(t, unbounded, fmt.Sprint(i), 20_000)
	}
	if got := len(known(t, unbounded, 50)); got != 50 {
		t.Errorf("%d turns are known", got)
	}
}

// A sequence is walked while items are taken out of it.
func TestSequence(t *testing.T) {
	t.Parallel()
	s := ledger.NewMemory(ledger.MemoryConfig{})
	for i := range 100 {
		r := ledger.Reservation{Request: exampleRequest(), At: noon}
		r.Key, r.Turn = ledger.Key(fmt.Sprint("key:", i)), ledger.TurnRef(fmt.Sprint("turn:", i))
		if _, err := s.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if i%10 == 0 {
			continue
		}
		if err := s.Release(t.Context(), ledger.TurnRef(fmt.Sprint("turn:", (i*37)%100)), 1); err != nil && !errors.Is(err, ledger.ErrNotFound) {
			t.Fatal(err)
		}
	}
	did, err := s.Recover(t.Context(), noon, nil) // takes out the rest while walking them
	if err != nil || len(did.Released) != 10 {
		t.Errorf("%d turns were released, %v", len(did.Released), err)
	}
	page, err := s.ListTurns(t.Context(), ledger.TurnQuery{})
	if err != nil || len(page.Turns) > 0 {
		t.Errorf("%d turns are left, %v", len(page.Turns), err)
	}
}
