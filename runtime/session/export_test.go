package session

import (
	"fmt"

	"github.com/backline-dev/backline/adapters"
)

// Sizes of what surrounds text, for tests that compute limits.
const (
	EntryOverhead   = entryOverhead
	MessageOverhead = messageOverhead
	ValueOverhead   = valueOverhead
	RememberedLost  = rememberedLost
)

// OverlapByHash needs a window that is at least as long as said.
var (
	Overlap       = overlap
	OverlapByHash = overlapByHash
)

// Limits returns the limits in force.
func (c *Cache) Limits() Config { return c.cfg }

// Kept returns the kept keys, oldest first, without using them.
func (c *Cache) Kept() []Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []Key
	for _, e := range c.kept.Values() {
		keys = append(keys, e.key)
	}
	return keys
}

// LostMemory returns how many evicted keys are remembered, and in how many places.
func (c *Cache) LostMemory() (keys, places int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lost.at), len(c.lost.ring)
}

// Said returns what is remembered for key, without using it.
func (c *Cache) Said(key Key) []adapters.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.kept.Peek(c.hash(key)); ok && e.key == key {
		return e.said
	}
	return nil
}

// Check measures anew all that is kept, and compares it with what the cache believes. No turn may
// run meanwhile.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum int64
	for _, e := range c.kept.Values() {
		key := e.key
		n := EntryOverhead + len(key.Plugin+key.Principal+key.Handle)
		for _, m := range e.said {
			n += MessageOverhead + len(m.Content+string(m.Role)+m.AgentID+m.AgentName+m.TurnID)
		}
		for _, v := range e.values {
			n += ValueOverhead + len(v.key) + len(v.raw)
		}
		if e.bytes != int64(n) {
			return fmt.Errorf("%v is counted as %d bytes and takes %d", key, e.bytes, n)
		}
		if !e.kept || e.dropped || e.leased != (c.held[key] != nil) {
			return fmt.Errorf("%v: kept %t, dropped %t, leased %t", key, e.kept, e.dropped, e.leased)
		}
		if c.lost.has(e.hash) {
			return fmt.Errorf("%v is kept and remembered as evicted", key)
		}
		sum += int64(n)
	}
	switch {
	case sum != c.bytes:
		return fmt.Errorf("%d bytes are counted and %d are kept", c.bytes, sum)
	case sum > c.cfg.Bytes:
		return fmt.Errorf("%d bytes are kept, over the limit of %d", sum, c.cfg.Bytes)
	case c.kept.Len() > c.cfg.Entries:
		return fmt.Errorf("%d entries are kept, over the limit of %d", c.kept.Len(), c.cfg.Entries)
	}
	return nil
}

// AcquireAs takes key's idle session as if key had the hash of like.
func (c *Cache) AcquireAs(key, like Key) *Lease {
	l := &Lease{c: c, key: key, hash: c.hash(like)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hand(l)
	return l
}
