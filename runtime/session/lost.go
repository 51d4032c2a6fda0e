package session

// rememberedLost is how many evicted sessions are known as such. They take at most 3 MB.
const rememberedLost = 1 << 16

// lostKeys remembers which keys were evicted, the last so many of them, by hash alone: it must not
// bring back the memory that evicting them freed. Two keys with one hash would at worst turn a "new"
// into an "evicted".
type lostKeys struct {
	max  int
	ring []hash       // in the order they came, overwritten from the oldest
	next int          // where the next one goes, once the ring is full
	at   map[hash]int // where in ring a remembered one is; a place that it does not name is stale
}

func (l *lostKeys) add(h hash) {
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

func (l *lostKeys) has(h hash) bool {
	_, ok := l.at[h]
	return ok
}

func (l *lostKeys) remove(h hash) { delete(l.at, h) }
