package ledger_test

import (
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/ledgertest"
)

func openMemory(t testing.TB, l ledger.Limits) ledger.Store {
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
