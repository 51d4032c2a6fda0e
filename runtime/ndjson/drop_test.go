package ndjson_test

import (
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
)

// A lateConn is a connection whose reader is given up at the moment at which a write deadline is set,
// and that takes nothing.
type lateConn struct {
	drop func()

	mu       sync.Mutex
	deadline time.Time
	change   chan struct{}
	flushed  bool
}

func (c *lateConn) SetWriteDeadline(t time.Time) error {
	if t.After(time.Now()) && c.flushed {
		c.drop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.change != nil {
		close(c.change)
		c.change = nil
	}
	return nil
}

func (c *lateConn) Write(p []byte) (int, error) {
	if !c.flushed {
		return len(p), nil
	}
	for {
		c.mu.Lock()
		left := time.Until(c.deadline)
		c.change = make(chan struct{})
		change := c.change
		c.mu.Unlock()
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		select {
		case <-time.After(left):
		case <-change:
		}
	}
}

func (c *lateConn) Flush() error {
	c.flushed = true
	return nil
}

// Drop cuts a write short also where the write has begun but has not set its deadline yet.
func TestDropBeforeTheDeadlineOfAWriteIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log ndjson.Log
		log.Init(nil)
		line := func() {
			if err := log.Begin(); err != nil {
				t.Fatal(err)
			}
			log.Commit(append(log.Room(8), "line\n"...), true)
		}
		c := &lateConn{}
		tail, err := log.Feed(c, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.drop = sync.OnceFunc(func() { _ = tail.Drop() })
		line()
		time.Sleep(10 * time.Second) // so that the deadline is set anew
		began := time.Now()
		line()
		_ = tail.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("the write was cut short after %v", took)
		}
	})
}
