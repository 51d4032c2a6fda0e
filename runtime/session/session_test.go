package session_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

func newCache(t testing.TB, cfg session.Config) *session.Cache {
	t.Helper()
	c, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func key(handle string) session.Key {
	return session.Key{Plugin: "muse", Principal: "default", Handle: handle}
}

func user(s string) adapters.Message {
	return adapters.Message{Role: adapters.RoleUser, Content: s}
}

func agent(s string) adapters.Message {
	return adapters.Message{Role: adapters.RoleAgent, Content: s}
}

func talk(ms ...adapters.Message) []adapters.Message { return ms }

// acquire takes a session that nobody has.
func acquire(t testing.TB, c *session.Cache, k session.Key) *session.Lease {
	t.Helper()
	l, ok := c.TryAcquire(k)
	if !ok {
		t.Fatalf("session %v is in use", k)
	}
	return l
}

// turn runs one turn to its good end, and returns what it was shown.
func turn(t testing.TB, c *session.Cache, k session.Key, window []adapters.Message, message, answer string) ([]adapters.Message, adapters.Continuity) {
	t.Helper()
	l := acquire(t, c, k)
	defer l.Release()
	history, how := l.Join(window)
	l.Commit(user(message), agent(answer))
	return history, how
}

// peek runs a turn that fails at once, and returns what it was shown.
func peek(t testing.TB, c *session.Cache, k session.Key, window ...adapters.Message) ([]adapters.Message, adapters.Continuity) {
	t.Helper()
	l := acquire(t, c, k)
	defer l.Release()
	return l.Join(window)
}

func check(t testing.TB, c *session.Cache) {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
}

func wantHistory(t testing.TB, got, want []adapters.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func wantHow(t testing.TB, got, want adapters.Continuity) {
	t.Helper()
	if got != want {
		t.Errorf("continuity = %q, want %q", got, want)
	}
}

func store(t testing.TB, l *session.Lease, key, raw string) {
	t.Helper()
	if err := l.Store(key, json.RawMessage(raw)); err != nil {
		t.Fatalf("Store(%q) = %v", key, err)
	}
}

func wantValue(t testing.TB, l *session.Lease, key, want string) {
	t.Helper()
	raw, ok := l.Load(key)
	if want == "" && !ok {
		return
	}
	if string(raw) != want {
		t.Errorf("Load(%q) = %.40q, %t, want %.40q", key, raw, ok, want)
	}
}

func handles(c *session.Cache) (hs []string) {
	for _, k := range c.Kept() {
		hs = append(hs, k.Handle)
	}
	return hs
}

func numbered(n int) string { return fmt.Sprintf("s-%d", n) }
