package lowkey

import (
	"net/http"
	"sync"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/session"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// requests are pooled: one is needed only until its turn is made.
var requests = sync.Pool{New: func() any { return new(wire.Request) }}

// A window is the memory of a transcript window that a turn borrows.
type window struct{ messages []adapters.Message }

var windows = sync.Pool{New: func() any { return new(window) }}

// maxPooledWindow is the longest window whose memory is kept for the next request.
const maxPooledWindow = 1024

// Recycle implements [runtime.Recycler].
func (w *window) Recycle() {
	if cap(w.messages) > maxPooledWindow {
		return
	}
	clear(w.messages)
	w.messages = w.messages[:0]
	windows.Put(w)
}

// parse makes a turn of a request. The turn's strings share memory with it.
func (h *Handler) parse(body []byte, principal string) (*runtime.Spec, *wirehttp.Refusal) {
	q := requests.Get().(*wire.Request)
	defer func() {
		q.Reset()
		requests.Put(q)
	}()
	if err := wire.Parse(body, q); err != nil {
		return nil, explain(err, body)
	}
	plugin, ok := h.plugins[q.PluginID]
	if !ok {
		return nil, wirehttp.Refuse(http.StatusNotFound, "unknown-plugin", "This server does not host the plugin %s; it hosts %s.", wirehttp.Excerpt(q.PluginID), h.names)
	}
	flag := "0"
	if q.Turn.Headless {
		flag = "1"
	}
	spec := &runtime.Spec{
		Turn: adapters.Turn{
			Protocol:       adapters.Lowkey,
			ID:             q.Turn.TurnID,
			PluginID:       plugin.id,
			AgentID:        q.SessionHandle.AgentID,
			ConversationID: q.SessionHandle.SessionID,
			ProjectPath:    q.SessionHandle.ProjectPath,
			Principal:      principal,
			Message:        q.Turn.Message,
			User:           adapters.User{Name: q.Turn.UserName},
			Flags:          adapters.Flags{Headless: q.Turn.Headless},
			Raw:            unsafe.String(unsafe.SliceData(body), len(body)),
		},
		Adapter:     plugin.adapter,
		Sink:        sink{},
		Session:     session.Key{Plugin: plugin.id, Principal: principal, Handle: q.SessionHandle.ID},
		Fingerprint: runtime.Fingerprint(q.Turn.Message, flag, q.Turn.UserName),
		PublicTexts: true,
	}
	if len(q.TranscriptWindow) > 0 {
		w := windows.Get().(*window)
		w.messages = appendWindow(w.messages[:0], q)
		spec.Window, spec.Owner = w.messages, w
	}
	return spec, nil
}

// appendWindow makes the history of a transcript window: the newest messages that the host's own limit
// allows, without the message that this turn is about.
func appendWindow(dst []adapters.Message, q *wire.Request) []adapters.Message {
	w := q.TranscriptWindow
	if n := len(w); n > 0 && w[n-1].Role == wire.RoleUser && w[n-1].TurnID == q.Turn.TurnID {
		w = w[:n-1]
	}
	if over := len(w) - q.Limits.TranscriptWindowMessages; over > 0 {
		w = w[over:]
	}
	for i := range w {
		e := &w[i]
		dst = append(dst, adapters.Message{
			Role:      role(e.Role),
			Content:   e.Content,
			Time:      e.Timestamp.Time(),
			AgentID:   e.AgentID,
			AgentName: e.AgentName,
			TurnID:    e.TurnID,
		})
	}
	return dst
}

func role(r wire.Role) adapters.Role {
	switch r {
	case wire.RoleUser:
		return adapters.RoleUser
	case wire.RoleAgent:
		return adapters.RoleAgent
	default:
		return adapters.RoleSystem
	}
}
