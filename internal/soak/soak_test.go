package soak_test

import (
	"testing"

	"github.com/backline-dev/backline/internal/soak"
)

// Not parallel, all of them: they set the environment.

func TestOrdinary(t *testing.T) {
	t.Setenv("BACKLINE_SOAK_TURNS", "")
	t.Setenv("BACKLINE_SOAK_KILLS", "")
	if turns, kills := soak.Turns(t, 7), soak.Kills(t, 8); turns != 7 || kills != 8 {
		t.Errorf("%d turns and %d kills, want 7 and 8", turns, kills)
	}
	if r := watch(t, func(t testing.TB) { soak.Only(t) }); !r.skipped {
		t.Error("a long test is not skipped")
	}
}

func TestLong(t *testing.T) {
	t.Setenv("BACKLINE_SOAK_TURNS", "70")
	t.Setenv("BACKLINE_SOAK_KILLS", "")
	if turns, kills := soak.Turns(t, 7), soak.Kills(t, 8); turns != 70 || kills != 8 {
		t.Errorf("%d turns and %d kills, want 70 and 8", turns, kills)
	}
	if r := watch(t, func(t testing.TB) { soak.Only(t) }); r.skipped {
		t.Error("a long test is skipped")
	}
	t.Setenv("BACKLINE_SOAK_KILLS", "80")
	if kills := soak.Kills(t, 8); kills != 80 {
		t.Errorf("%d kills, want 80", kills)
	}
}

func TestNotANumber(t *testing.T) {
	for _, text := range []string{"many", "0", "-1", "1e3"} {
		t.Setenv("BACKLINE_SOAK_TURNS", text)
		if r := watch(t, func(t testing.TB) { soak.Turns(t, 7) }); !r.failed {
			t.Errorf("%q is taken for a number of turns", text)
		}
	}
}

// A record is a test that notes what becomes of it instead of ending.
type record struct {
	testing.TB
	skipped, failed bool
}

func watch(t *testing.T, f func(testing.TB)) *record {
	r := &record{TB: t}
	f(r)
	return r
}

func (r *record) Skip(...any) { r.skipped = true }

func (r *record) Fatalf(string, ...any) { r.failed = true }
