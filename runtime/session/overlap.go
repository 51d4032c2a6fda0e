package session

import (
	"hash/maphash"
	"math/bits"

	"github.com/backline-dev/backline/adapters"
)

// How many messages at the end of the conversation are those that the window begins with.
//
// The longest such overlap is the right one: a shorter one would show something twice that was said
// once. It is found in time linear in the text, whatever the text is, since both sides come from
// outside: thousands of equal messages are a legal window.
//
//   - Any overlap begins where the conversation has the window's first message. The first such place
//     within reach is nearly always it, or there is none; that costs one comparison per message.
//   - Otherwise the overlaps by role and content are found as in Knuth, Morris and Pratt, on hashes,
//     so that a long text is read once and not each time it is compared; the longest whose timestamps
//     agree is then compared in full.
//
// Timestamps need the detour because "equal where both have one" is not transitive, and the
// algorithm's jumps rest on transitivity.

// overlap returns the length of the longest suffix of said that is a prefix of window.
func overlap(said, window []adapters.Message) int {
	if len(said) > len(window) {
		said = said[len(said)-len(window):]
	}
	for i := range said {
		if equal(&said[i], &window[0]) {
			said = said[i:]
			if allEqual(said, window[:len(said)]) {
				return len(said)
			}
			return overlapByHash(said[1:], window)
		}
	}
	return 0
}

// equal tells whether two messages are the same one (lowkey.md, "Settled readings").
func equal(a, b *adapters.Message) bool {
	return a.Role == b.Role && a.Content == b.Content && sameTime(a, b)
}

func sameTime(a, b *adapters.Message) bool {
	return a.Time.Equal(b.Time) || a.Time.IsZero() || b.Time.IsZero()
}

// allEqual compares two slices of one length. What is cheap to compare and likely to differ comes
// first.
func allEqual(a, b []adapters.Message) bool {
	for i := range a {
		if len(a[i].Content) != len(b[i].Content) {
			return false
		}
	}
	for i := range a {
		if !equal(&a[i], &b[i]) {
			return false
		}
	}
	return true
}

// timeChecks bounds the comparisons of timestamps in overlapByHash, per message. Up to twice as many
// messages it is never reached. Beyond, text that repeats itself with timestamps made to agree
// everywhere but in the middle can reach it; then there is no overlap, and the window stands alone.
const timeChecks = 128

// overlapByHash is overlap for any said and window. said is not longer than window.
func overlapByHash(said, window []adapters.Message) int {
	n := len(said)
	if n == 0 {
		return 0
	}
	window = window[:n]

	seed := maphash.MakeSeed()
	hash := func(m *adapters.Message) uint64 {
		return maphash.String(seed, m.Content) ^ bits.RotateLeft64(maphash.String(seed, string(m.Role)), 1)
	}
	hashes := make([]uint64, n)
	for i := range window {
		hashes[i] = hash(&window[i])
	}

	// border[i] is the length of the longest proper prefix of hashes[:i+1] that is its suffix too.
	border := make([]int, n)
	advance := func(matched int, h uint64) int {
		for matched > 0 && hashes[matched] != h {
			matched = border[matched-1]
		}
		if hashes[matched] == h {
			matched++
		}
		return matched
	}
	for i := 1; i < n; i++ {
		border[i] = advance(border[i-1], hashes[i])
	}
	matched := 0
	for i := range said {
		matched = advance(matched, hash(&said[i]))
	}

	checks := timeChecks * n
	for ; matched > 0; matched = border[matched-1] {
		tail := said[n-matched:]
		agree := true
		for i := matched - 1; i >= 0 && agree; i-- {
			if checks--; checks < 0 {
				return 0
			}
			agree = sameTime(&tail[i], &window[i])
		}
		if !agree {
			continue
		}
		if allEqual(tail, window[:matched]) {
			return matched
		}
		return 0 // two texts with one hash; the window alone is always right
	}
	return 0
}
