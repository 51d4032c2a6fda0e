package lowkey

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
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

// acceptType tells whether a Content-Type is JSON. None at all is accepted.
func acceptType(h http.Header) bool {
	v := h.Get("Content-Type")
	if v == "application/json" || v == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(v)
	if err != nil {
		return false
	}
	return t == "application/json" || strings.HasSuffix(t, "+json") && strings.Contains(t, "/")
}

// encoding reads Content-Encoding: false means none, true gzip.
func encoding(h http.Header) (gz bool, ok bool) {
	v := h["Content-Encoding"]
	if len(v) == 0 {
		return false, true
	}
	if len(v) > 1 {
		return false, false
	}
	switch strings.ToLower(strings.TrimSpace(v[0])) {
	case "", "identity":
		return false, true
	case "gzip":
		return true, true
	}
	return false, false
}

var gzips sync.Pool

// firstRead is how much is allocated on the word of a Content-Length alone.
const firstRead = 512 << 10

// readBody reads a whole body within the limit, which counts decoded bytes as they are read.
func (h *Handler) readBody(r *http.Request, gz bool) ([]byte, *refusal) {
	limit := h.maxBody
	src, length := io.Reader(r.Body), r.ContentLength
	if !gz && length > limit {
		return nil, h.tooLarge()
	}
	if gz {
		length = -1
		packed := &packedBody{r.Body, limit}
		z, _ := gzips.Get().(*gzip.Reader)
		var err error
		if z == nil {
			z, err = gzip.NewReader(packed)
		} else {
			err = z.Reset(packed)
		}
		if z != nil {
			defer gzips.Put(z)
		}
		if err != nil {
			return nil, readFailure(err, true)
		}
		src = z
	}
	size := int64(4 << 10)
	if length >= 0 {
		size = min(length, firstRead)
	}
	buf := make([]byte, 0, size+1) // one more, so that the end is seen without growing
	for {
		if int64(len(buf)) > limit {
			return nil, h.tooLarge()
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*int64(cap(buf)), max(limit, int64(cap(buf)))+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			if int64(len(buf)) > limit {
				return nil, h.tooLarge()
			}
			return buf, nil
		}
		if errors.Is(err, errPacked) {
			return nil, h.tooLarge()
		}
		if err != nil {
			return nil, readFailure(err, gz)
		}
	}
}

// A packedBody is a compressed body. More than the limit of it can only be what decompresses to
// nothing (empty gzip members without end), which no limit on decoded bytes would ever stop.
type packedBody struct {
	r    io.Reader
	left int64
}

var errPacked = errors.New("the compressed body is larger than the limit")

// gzipOverhead is more than what gzip adds to a body that does not shrink, up to some gigabytes.
const gzipOverhead = 1 << 20

func (b *packedBody) Read(p []byte) (int, error) {
	if b.left < -gzipOverhead {
		return 0, errPacked
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

func (h *Handler) tooLarge() *refusal {
	f := refuse(http.StatusRequestEntityTooLarge, "too-large", "The request is larger than the limit of %d bytes.", h.maxBody)
	f.closing = true
	return f
}

func readFailure(err error, gz bool) *refusal {
	var f *refusal
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over): // a middleware's limit
		f = refuse(http.StatusRequestEntityTooLarge, "too-large", "The request is larger than the limit of %d bytes.", over.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		f = refuse(http.StatusRequestTimeout, "slow-body", "The request's body did not arrive in time.")
	case gz && (errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)):
		f = refuse(http.StatusBadRequest, "bad-gzip", "The request's body is not valid gzip: expected whole gzip members and nothing behind them.")
	case gz:
		f = refuse(http.StatusBadRequest, "bad-gzip", "The request's body could not be decompressed: expected whole gzip members, found a damaged or truncated one.")
	default:
		f = refuse(http.StatusBadRequest, "cut-body", "The request's body ended before it was complete.")
	}
	f.closing = true
	return f
}

// parse makes a turn of a request. The turn's strings share memory with it.
func (h *Handler) parse(body []byte, principal string) (*runtime.Spec, *refusal) {
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
		return nil, refuse(http.StatusNotFound, "unknown-plugin", "This server does not host the plugin %s; it hosts %s.", excerpt(q.PluginID), h.names)
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

// bodyDeadline bounds the reading of a body; a server's own read timeout would go on counting and
// cancel the request in the middle of its stream, so it is cleared afterwards.
func (h *Handler) bodyDeadline(rc *http.ResponseController) (clear func()) {
	if h.bodyTimeout > 0 {
		_ = rc.SetReadDeadline(time.Now().Add(h.bodyTimeout)) // without it the server's own holds
	}
	return func() { _ = rc.SetReadDeadline(time.Time{}) }
}
