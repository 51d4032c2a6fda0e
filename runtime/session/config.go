package session

import (
	"math"
	"time"
)

// The limits that a zero [Config] means.
const (
	DefaultEntries = 4096
	DefaultBytes   = 256 << 20
	DefaultTTL     = 24 * time.Hour
)

// Config sets a [Cache]'s limits. The zero value is ready to use.
type Config struct {
	// Entries is how many sessions are kept. Zero means DefaultEntries, negative means no limit.
	Entries int
	// Bytes is how much all sessions together may take: text and values, each with a fixed overhead
	// for what surrounds it. Zero means DefaultBytes, negative means no limit.
	Bytes int64
	// TTL is how long a session is kept after its last use. Zero means DefaultTTL, negative means
	// for ever. Nothing runs in the background: a session that has outlived its time is dropped when
	// it is asked for, when sessions are added, and by [Cache.Stats].
	TTL time.Duration
}

// withLimits returns c with defaults filled in, and with the largest value where there is no limit.
func (c Config) withLimits() Config {
	c.Entries = limit(c.Entries, DefaultEntries, math.MaxInt)
	c.Bytes = limit(c.Bytes, DefaultBytes, math.MaxInt64)
	c.TTL = limit(c.TTL, DefaultTTL, math.MaxInt64)
	return c
}

func limit[T ~int | ~int64](v, byDefault, none T) T {
	switch {
	case v == 0:
		return byDefault
	case v < 0:
		return none
	}
	return v
}
