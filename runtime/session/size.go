package session

import "github.com/backline-dev/backline/adapters"

// What surrounds text in memory, in bytes. Measured with 1,000,000 sessions, and rounded up:
// BenchmarkSessions reports the heap beside the counted bytes.
const (
	entryOverhead   = 320 // an entry, its place in the LRU's map and list
	messageOverhead = 136 // an adapters.Message, a quarter of spare room, rounding of its text
	valueOverhead   = 96  // a value's place in its list, rounding of its bytes
)

func entrySize(k Key) int64 {
	return int64(entryOverhead + len(k.Plugin) + len(k.Principal) + len(k.Handle))
}

func messageSize(m *adapters.Message) int64 {
	return int64(messageOverhead + len(m.Content) + len(m.Role) + len(m.AgentID) + len(m.AgentName) + len(m.TurnID))
}

func messagesSize(ms []adapters.Message) (n int64) {
	for i := range ms {
		n += messageSize(&ms[i])
	}
	return n
}

func valueSize(v value) int64 { return int64(valueOverhead + len(v.key) + len(v.raw)) }
