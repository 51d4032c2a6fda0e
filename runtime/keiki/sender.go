package keiki

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// A sender is the reader of a turn's log: it makes messages of the text and sends them, each after the one
// before has settled. While it sends, the log grows, and the adapter waits where it is too far ahead.
type sender struct {
	t        *turn
	attached runtime.Attached

	started bool // guarded by the lock of the turn's log, as all that sink uses

	// These belong to whoever writes: the goroutine of run, and finish once that has caught up.
	split  *splitter
	half   []byte // of a character, under [Streamed]
	index  int    // of the next message
	keyed  string // what the keys of this turn begin with
	buffer []byte

	mu       sync.Mutex
	read     int64         // how much of the log is dealt with
	dead     bool          // nothing more will be
	progress chan struct{} // closed when one of the two has changed
	over     chan struct{} // closed when run has returned
}

var _ ndjson.Conn = (*sender)(nil)

// messageKey is what the idempotency keys of a turn's messages begin with: a function of the turn id alone,
// in printable ASCII and short whatever the id (keiki.md, "Settled readings").
func messageKey(turnID string) string {
	sum := sha256.Sum256([]byte(turnID))
	return "bl1-" + hex.EncodeToString(sum[:16]) + "-"
}

func (s *sender) init(t *turn) {
	s.t = t
	s.keyed = messageKey(t.id)
	s.progress = make(chan struct{})
	s.over = make(chan struct{})
	if d := t.r.conf.Delivery; d != Streamed {
		s.split = newSplitter(d == WholeMessage, t.r.conf.MaxMessage)
	}
}

// run sends until the turn's text has ended, or nothing more is to be sent.
func (s *sender) run() {
	defer close(s.over)
	err := s.attached.Follow(s.t.calls)
	s.mu.Lock()
	s.dead = true
	s.moved()
	s.mu.Unlock()
	if err != nil && s.t.calls.Err() == nil && !errors.Is(err, errEnded) {
		s.t.log.Error("the sender stopped", "error", err)
	}
}

// moved wakes who waits for progress. Called with s locked.
func (s *sender) moved() {
	close(s.progress)
	s.progress = make(chan struct{})
}

// caughtUp waits until all text up to n is dealt with; false if that will never be, or ctx was faster.
func (s *sender) caughtUp(ctx context.Context, n int64) bool {
	for {
		s.mu.Lock()
		read, dead, progress := s.read, s.dead, s.progress
		s.mu.Unlock()
		switch {
		case read >= n:
			return true
		case dead:
			return false
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return false
		}
	}
}

// Write takes text from the log.
func (s *sender) Write(p []byte) (int, error) {
	var err error
	if s.split == nil {
		err = s.chunk(p)
	} else {
		err = s.split.feed(p, s.send)
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.read += int64(len(p))
	s.moved()
	s.mu.Unlock()
	return len(p), nil
}

// Flush does nothing: a message leaves when it is complete.
func (*sender) Flush() error { return nil }

// SetWriteDeadline says that there is none: how long a message may take is limited by the turn.
func (*sender) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// chunk sends text as it comes, but no half characters.
func (s *sender) chunk(p []byte) error {
	end := s.read + int64(len(p))
	if len(s.half) > 0 {
		p = append(s.half, p...)
		s.half = nil
	}
	whole := len(p)
	for back := 1; back < utf8.UTFMax && back <= len(p); back++ {
		if c := p[len(p)-back]; utf8.RuneStart(c) {
			if !utf8.FullRune(p[len(p)-back:]) {
				whole = len(p) - back
			}
			break
		}
	}
	if whole < len(p) {
		s.half = append([]byte(nil), p[whole:]...)
	}
	if whole == 0 {
		return nil
	}
	return s.send(string(p[:whole]), end)
}

// finish sends what is left when the adapter has ended well. All text has been read by then.
func (s *sender) finish() error {
	if s.split == nil {
		return nil
	}
	return s.split.finish(s.send)
}

// errEnded says that nothing more is to be sent.
var errEnded = errors.New("the turn takes no more messages")

// send sends one message and waits until it has settled. end is where its text ends in the log.
func (s *sender) send(text string, end int64) error {
	t := s.t
	if t.calls.Err() != nil || t.ended() != notEnded {
		return errEnded
	}
	key := s.keyed + strconv.Itoa(s.index)
	s.index++
	path := "/messages"
	if s.split == nil {
		path = "/" + t.r.conf.StreamPath
	}
	s.buffer = wire.AppendSend(s.buffer[:0], text, key)
	a, v := t.insist(t.calls, path, s.buffer)
	switch v {
	case settled:
		t.sent.Add(1)
		t.arrivals.delivered(end)
		return nil
	case unknown:
		t.lost.Add(1)
		t.log.Warn("nobody knows whether a message was delivered, and it is not sent again", "message", s.index, "answer", a.word())
		return nil
	case closed:
		t.arrivals.delivered(end)
		t.end(endClosed, &a)
	case unauthorised:
		t.end(endUnauthorised, &a)
	case refused:
		t.end(endRefused, &a)
	case again:
		if t.calls.Err() == nil {
			t.end(endUnreachable, &a)
		}
	}
	return errEnded
}
