package session

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/backline-dev/backline/adapters"
)

// A Key is a conversation's identity: which plugin, which authenticated host, and the handle under
// which that host knows the conversation (Lowkey's sessionHandle.id). Its strings may share memory
// with the request until the [Lease] that was taken with it is released.
type Key struct{ Plugin, Principal, Handle string }

// clone copies k into memory of its own, in one piece.
func (k Key) clone() Key {
	s := strings.Join([]string{k.Plugin, k.Principal, k.Handle}, "")
	p, q := len(k.Plugin), len(k.Plugin)+len(k.Principal)
	return Key{Plugin: s[:p], Principal: s[p:q], Handle: s[q:]}
}

// A Cache remembers sessions within limits, and queues the turns of each. Its methods may be called
// from several goroutines. It runs nothing in the background and needs no closing.
type Cache struct {
	cfg   Config
	start time.Time
	seed  maphash.Seed

	// mu guards what follows, the links and states of leases, and the fields of entries that say so.
	// It is held for a few map operations at a time.
	mu      sync.Mutex
	kept    *simplelru.LRU[hash, *entry]
	bytes   int64 // the sum of the kept entries' bytes
	evicted int64
	lost    lostKeys
	held    map[Key]*Lease // the lease that has the session; others wait behind it
	waiting int
}

// A hash stands for a key in the LRU: that saves it two copies of the key, and comparing its strings
// at each step of a turn. An entry has its whole key, which is what counts. Should two keys ever have
// one hash (of 64 bits, seeded at random), each drives the other out.
type hash uint64

func (c *Cache) hash(k Key) hash { return hash(maphash.Comparable(c.seed, k)) }

// An entry is one session as it is remembered. While a lease is held the entry is its alone, kept or
// not.
type entry struct {
	key    Key // the entry's own copy
	hash   hash
	said   []adapters.Message
	values []value // sorted by key

	// The rest is guarded by Cache.mu.

	bytes   int64         // what the entry takes; see size.go
	used    time.Duration // last use, since Cache.start
	leased  bool          // a lease works on the entry
	kept    bool          // the entry is in the LRU and its bytes count
	dropped bool          // the entry was evicted, or never let in, since it was last kept
}

// New returns an empty cache.
func New(cfg Config) (*Cache, error) {
	cfg = cfg.withLimits()
	kept, err := simplelru.NewLRU[hash, *entry](cfg.Entries, nil)
	if err != nil {
		return nil, err
	}
	return &Cache{
		cfg:   cfg,
		start: time.Now(),
		kept:  kept,
		seed:  maphash.MakeSeed(),
		lost:  lostKeys{max: rememberedLost, at: make(map[hash]int)},
		held:  make(map[Key]*Lease),
	}, nil
}

// Stats is what a [Cache] holds at one moment.
type Stats struct {
	// Entries is how many sessions are kept, and Bytes how much they take.
	Entries int
	Bytes   int64
	// Evicted is how many sessions have been dropped by a limit since the cache was made.
	Evicted int64
	// Held is how many sessions a turn works on now; Waiting is how many turns wait for theirs.
	Held, Waiting int
}

// Stats tells what the cache holds now. It drops what has outlived its time first, so it is cheap
// but not free.
func (c *Cache) Stats() Stats {
	for {
		c.mu.Lock()
		if more := c.expire(c.now(), 64); more {
			c.mu.Unlock() // let others in between
			continue
		}
		s := Stats{
			Entries: c.kept.Len(),
			Bytes:   c.bytes,
			Evicted: c.evicted,
			Held:    len(c.held),
			Waiting: c.waiting,
		}
		c.mu.Unlock()
		return s
	}
}

func (c *Cache) now() time.Duration { return time.Since(c.start) }

// The methods below need c.mu.

// find returns the session's entry, or nil and how a session without one is to be called.
func (c *Cache) find(key Key, h hash) (*entry, adapters.Continuity) {
	e, ok := c.kept.Get(h)
	if ok && e.key == key {
		if c.now()-e.used < c.cfg.TTL {
			return e, adapters.ContinuitySame
		}
		c.drop(e)
	}
	if c.lost.has(h) {
		return nil, adapters.ContinuityEvicted
	}
	return nil, adapters.ContinuityNew
}

// settle counts that e, which a lease works on, has grown by delta bytes, and keeps it as the most
// recently used one, if the limits allow.
func (c *Cache) settle(e *entry, delta int64) {
	e.bytes += delta
	if e.kept {
		c.bytes += delta
	}
	if e.bytes > c.cfg.Bytes {
		c.drop(e)
		return
	}
	e.used = c.now()
	if e.kept {
		c.kept.Get(e.hash)
	} else {
		c.insert(e)
	}
	// This ends at e at the latest, which is the newest and fits.
	for c.bytes > c.cfg.Bytes {
		c.dropOldest()
	}
}

func (c *Cache) insert(e *entry) {
	c.expire(e.used, 16)
	if other, ok := c.kept.Peek(e.hash); ok {
		c.drop(other)
	}
	for c.kept.Len() >= c.cfg.Entries {
		c.dropOldest()
	}
	c.kept.Add(e.hash, e)
	c.bytes += e.bytes
	e.kept, e.dropped = true, false
	c.lost.remove(e.hash)
}

// expire drops the oldest entries while they have outlived their time, at most limit of them, and
// tells whether there may be more.
func (c *Cache) expire(now time.Duration, limit int) (more bool) {
	for range limit {
		_, e, ok := c.kept.GetOldest()
		if !ok || now-e.used < c.cfg.TTL {
			return false
		}
		if e.leased {
			// Not idle: a turn works on it.
			e.used = now
			c.kept.Get(e.hash)
			continue
		}
		c.drop(e)
	}
	return true
}

func (c *Cache) dropOldest() {
	if _, e, ok := c.kept.GetOldest(); ok {
		c.drop(e)
	}
}

// drop evicts e, or notes that e was too large to be let in.
func (c *Cache) drop(e *entry) {
	c.remove(e)
	if !e.dropped {
		e.dropped = true
		c.evicted++
		c.lost.add(e.hash)
	}
}

func (c *Cache) remove(e *entry) {
	if e.kept {
		c.kept.Remove(e.hash)
		c.bytes -= e.bytes
		e.kept = false
	}
}
