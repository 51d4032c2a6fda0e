package session

import (
	"strings"

	"github.com/backline-dev/backline/adapters"
)

// loneLabel is the length in bytes from which a label (anything in a message but its content) is
// copied by itself. Shorter ones share memory with the contents that came with them. A label may be
// replaced while the content stays, and then lies uncounted in the shared memory; so it must be short.
const loneLabel = 64

const labels = 4

// label returns one of m's strings other than its content.
func label(m *adapters.Message, i int) *string {
	switch i {
	case 0:
		return (*string)(&m.Role)
	case 1:
		return &m.AgentID
	case 2:
		return &m.AgentName
	default:
		return &m.TurnID
	}
}

// relabel gives said, messages of the cache, the time and labels of window, the same messages as the
// host sent them now. said is ms[from:]; it returns by how many bytes ms has grown.
func relabel(ms []adapters.Message, from int, window []adapters.Message) (delta int64) {
	for j := range window {
		i := from + j
		m, w := &ms[i], &window[j]
		m.Time = w.Time
		if m.AgentID == w.AgentID && m.AgentName == w.AgentName && m.TurnID == w.TurnID {
			continue
		}
		delta -= messageSize(m)
		for k := 1; k < labels; k++ { // the role is equal
			old, s := label(m, k), *label(w, k)
			if *old == s {
				continue
			}
			if shared, ok := known(ms, i, k, s); ok {
				*old = shared
			} else {
				*old = strings.Clone(s)
			}
		}
		delta += messageSize(m)
	}
	return delta
}

// own makes every string of ms[from:] the cache's own: one copy for all of them together, but for
// labels that the messages before have too, and for long labels.
func own(ms []adapters.Message, from int) {
	size := 0
	for i := from; i < len(ms); i++ {
		size += len(ms[i].Content)
		for k := range labels {
			s := *label(&ms[i], k)
			if _, ok := known(ms, i, k, s); !ok && len(s) < loneLabel {
				size += len(s)
			}
		}
	}
	var b strings.Builder
	b.Grow(size)
	take := func(s string) string {
		at := b.Len()
		b.WriteString(s)
		return b.String()[at:]
	}
	for i := from; i < len(ms); i++ {
		m := &ms[i]
		m.Content = take(m.Content)
		for k := range labels {
			p := label(m, k)
			if shared, ok := known(ms, i, k, *p); ok {
				*p = shared
			} else if len(*p) < loneLabel {
				*p = take(*p)
			} else {
				*p = strings.Clone(*p)
			}
		}
	}
}

// known finds the label s of ms[i] where the cache owns it already: among the constants, and in the
// two messages before, since user and agent take turns.
func known(ms []adapters.Message, i, k int, s string) (string, bool) {
	if s == "" {
		return "", true // an empty string too can hold on to a request
	}
	if k == 0 {
		switch adapters.Role(s) {
		case adapters.RoleUser:
			return string(adapters.RoleUser), true
		case adapters.RoleAgent:
			return string(adapters.RoleAgent), true
		case adapters.RoleSystem:
			return string(adapters.RoleSystem), true
		}
	}
	for j := i - 1; j >= 0 && j >= i-2; j-- {
		if t := *label(&ms[j], k); t == s {
			return t, true
		}
	}
	return "", false
}

// grow returns ms with room for n more. What is new gets no spare room, what grows gets a quarter:
// most conversations are short, and there are many of them.
func grow(ms []adapters.Message, n int) []adapters.Message {
	need := len(ms) + n
	if need <= cap(ms) {
		return ms
	}
	if len(ms) > 0 {
		need += need / 4
	}
	return append(make([]adapters.Message, 0, need), ms...)
}
