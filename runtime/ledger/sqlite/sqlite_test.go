package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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

// TestSweepIsBounded: turns wait for a sweep, so it leaves what is too much for one go.
func TestSweepIsBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t, filepath.Join(fastDir(t), "ledger.db"), sqlite.Config{})
	b := &turner{s: s}
	for range 5 {
		req := b.request()
		v, err := s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: true, At: benchTime})
		if err != nil {
			t.Fatal(err)
		}
		end := benchSettlement(v.Turn, req.Key, v.Turn.Seq)
		end.Recording.Lines = make([]byte, 15<<20)
		end.Product.Expires = benchTime.Add(48 * time.Hour)
		if _, err := s.Settle(ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []ledger.Sweeping{{Parts: 4, More: true}, {Parts: 1}, {}} {
		if did, err := s.Sweep(ctx, benchTime.Add(24*time.Hour), 0); err != nil || did != want {
			t.Errorf("sweep %d: %+v, %v, want %+v", i, did, err, want)
		}
	}
}
