package keiki

import (
	"testing"
	"time"
)

// TestBackoff: the bounds of each pause, for calls and for polling.
func TestBackoff(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, test := range []struct {
		least, most time.Duration
		floors      []time.Duration
	}{
		{250 * ms, 10 * time.Second, []time.Duration{250 * ms, 500 * ms, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}},
		{time.Second, time.Minute, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second}},
	} {
		b := newBackoff(test.least, test.most)
		for attempt, floor := range test.floors {
			for share, want := range map[float64]time.Duration{0: floor, 0.5: floor + floor/2, 0.75: floor + floor*3/4} {
				b.random = func() float64 { return share }
				if got := b.next(attempt, 0); got != want {
					t.Errorf("%v to %v, attempt %d, at %v: %v, want %v", test.least, test.most, attempt, share, got, want)
				}
			}
		}
		for _, attempt := range []int{7, 100, 1 << 40} {
			b.random = func() float64 { return 0.999999 }
			if got := b.next(attempt, -1); got > test.most || got < test.most*9/10 {
				t.Errorf("attempt %d: %v, want nearly %v", attempt, got, test.most)
			}
		}
	}
}

// TestBackoffRetryAfter: what the other side asked for is the least, on every attempt.
func TestBackoffRetryAfter(t *testing.T) {
	t.Parallel()
	b := newBackoff(time.Second, time.Minute)
	for share, want := range map[float64]time.Duration{0: 0, 0.5: 500 * time.Millisecond} {
		b.random = func() float64 { return share }
		for _, attempt := range []int{0, 3, 50} {
			for _, after := range []time.Duration{1, time.Second, time.Hour} {
				if got := b.next(attempt, after); got != after+want {
					t.Errorf("attempt %d after %v: %v, want %v", attempt, after, got, after+want)
				}
			}
		}
	}
}

// TestBackoffSpreads: twenty that failed together come back over seconds, not together.
func TestBackoffSpreads(t *testing.T) {
	t.Parallel()
	b := newBackoff(time.Second, time.Minute)
	seen := map[time.Duration]bool{}
	first, last := time.Hour, time.Duration(0)
	for range 20 {
		d := b.next(3, 0)
		seen[d] = true
		first, last = min(first, d), max(last, d)
	}
	if len(seen) < 15 || last-first < 2*time.Second {
		t.Errorf("%d different pauses from %v to %v", len(seen), first, last)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2025, 12, 1, 0, 0, 10, 500_000_000, time.UTC)
	for header, want := range map[string]time.Duration{
		"0":                              0,
		"1":                              time.Second,
		" 120 ":                          2 * time.Minute,
		"0000000000000000000000000007":   7 * time.Second,
		"86400":                          24 * time.Hour,
		"86401":                          24 * time.Hour,
		"99999999999999999999999999999":  24 * time.Hour,
		"-1":                             0,
		"-99999999999999999999999999":    0,
		"Mon, 01 Dec 2025 00:00:40 GMT":  29500 * time.Millisecond,
		"Monday, 01-Dec-25 00:00:40 GMT": 29500 * time.Millisecond,
		"Mon Dec  1 00:00:40 2025":       29500 * time.Millisecond,
		"Mon, 01 Dec 2025 00:00:10 GMT":  0,
		"Mon, 01 Dec 1925 00:00:00 GMT":  0,
		"Fri, 01 Jan 2125 00:00:00 GMT":  24 * time.Hour,
		"Fri, 31 Dec 9999 23:59:59 GMT":  24 * time.Hour,
	} {
		if got, ok := retryAfter(header, now); !ok || got != want {
			t.Errorf("retryAfter(%q) = %v, %t, want %v", header, got, ok, want)
		}
	}
	for _, header := range []string{"", " ", "-", "soon", "1.5", "1s", "+1", "1, 2", "0x10", "١", "--1", "2025-12-01T00:00:40Z", "Mon, 01 Dec 2025 00:00:40"} {
		if got, ok := retryAfter(header, now); ok || got != 0 {
			t.Errorf("retryAfter(%q) = %v, %t, want none", header, got, ok)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, header := range []string{"1", "-5", "99999999999999999999", "Mon, 01 Dec 2025 00:00:40 GMT", "x"} {
		f.Add(header, int64(1764547200))
	}
	f.Fuzz(func(t *testing.T, header string, now int64) {
		d, ok := retryAfter(header, time.Unix(now, 0))
		if d < 0 || d > longestRetryAfter || !ok && d != 0 {
			t.Errorf("retryAfter(%q) = %v, %t", header, d, ok)
		}
	})
}
