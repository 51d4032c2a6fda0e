package session

import "hash/maphash"

// rememberedLost is how many evicted sessions are known as such. At most 3 MB.
const rememberedLost = 1 << 16

// lostKeys remembers which keys were evicted, the last so many of them, by hash alone: it must not
// bring back the memory that evicting them freed. Two keys with one hash (of 64 bits, seeded) would
// at worst turn a "new" into an "evicted".
type lostKeys struct {
	seed maphash.Seed
	max  int
	ring []uint64       // hashes in the order they came, overwritten from the oldest
	next int            // where the next one goes, once the ring is full
	at   map[uint64]int // where in ring a remembered hash is; a place that it does not name is stale
}

func newLostKeys(limit int) lostKeys {
	return lostKeys{seed: maphash.MakeSeed(), max: limit, at: make(map[uint64]int)}
}

func (l *lostKeys) add(key Key) {
	h := maphash.Comparable(l.seed, key)
	if len(l.ring) < l.max {
		l.at[h] = len(l.ring)
		l.ring = append(l.ring, h)
		return
	}
	if old := l.ring[l.next]; l.at[old] == l.next {
		delete(l.at, old)
	}
	l.ring[l.next] = h
	l.at[h] = l.next
	l.next = (l.next + 1) % l.max
}

func (l *lostKeys) has(key Key) bool {
	if len(l.at) == 0 {
		return false
	}
	_, ok := l.at[maphash.Comparable(l.seed, key)]
	return ok
}

func (l *lostKeys) remove(key Key) {
	if len(l.at) != 0 {
		delete(l.at, maphash.Comparable(l.seed, key))
	}
}
