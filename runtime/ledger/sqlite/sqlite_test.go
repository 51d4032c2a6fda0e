package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/ledgertest"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// fastDir is a folder in memory where the system has one: what is tested there does not depend on the
// disk.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "backline-ledger-*") //nolint:usetesting // in memory, where there is such a place
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func open(t testing.TB, path string, conf sqlite.Config) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	sequences, rounds := 1000, 40
	if raceEnabled {
		sequences, rounds = 100, 10 // SQLite is by far slower there
	}
	paths := map[ledger.Store]string{}
	confs := map[ledger.Store]sqlite.Config{}
	openAt := func(t testing.TB, path string, conf sqlite.Config) ledger.Store {
		s := open(t, path, conf)
		paths[s], confs[s] = path, conf
		return s
	}
	ledgertest.Exercise(t, func(t testing.TB, l ledger.Limits) ledger.Store {
		return openAt(t, filepath.Join(fastDir(t), "ledger.db"), sqlite.Config{Limits: l})
	}, ledgertest.Options{
		Sequences: sequences,
		Rounds:    rounds,
		Reopen: func(t testing.TB, s ledger.Store) ledger.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return openAt(t, paths[s], confs[s])
		},
	})
}
