package sqlite_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// What is forgotten is in no file any more: neither in the pages that became free, nor in the log.
func TestWhatIsForgottenIsOverwritten(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := fastDir(t)
	path := filepath.Join(dir, "ledger.db")
	s := open(t, path, sqlite.Config{})
	for i, size := range []int{1, 100, 2000, 100_000} {
		secret := strings.Repeat("SECRETWORD ", size)
		b := &turner{s: s, seed: uint64(i) << 20}
		req := b.request()
		v, err := s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: true, At: benchTime})
		if err != nil {
			t.Fatal(err)
		}
		set := benchSettlement(v.Turn, req.Key, v.Turn.Seq)
		set.Product.Content, set.Recording.Lines = []byte(secret), []byte(secret)
		if _, err := s.Settle(ctx, set); err != nil {
			t.Fatal(err)
		}
	}
	// A session's values go with the session.
	session := ledger.Session{
		Binding: "binding:1", Open: true, Fence: ledger.Fence{Agent: "a", AgentBinding: "b", BindingDigest: "d", Epoch: "e"},
		Values: fmt.Appendf(nil, `{"k":%q}`, strings.Repeat("SECRETWORD ", 3000)),
	}
	session, err := s.PutSession(ctx, session, benchTime)
	if err != nil {
		t.Fatal(err)
	}
	found := func() (n int) {
		t.Helper()
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			content, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			n += bytes.Count(content, []byte("SECRETWORD"))
		}
		return n
	}
	if found() == 0 {
		t.Fatal("there is nothing to forget")
	}
	session.Open, session.Values = false, nil
	if _, err := s.PutSession(ctx, session, benchTime); err != nil {
		t.Fatal(err)
	}
	swept, err := s.Sweep(ctx, benchTime.Add(48*time.Hour), 0)
	if err != nil || swept.Products != 4 || swept.Parts != 4 {
		t.Fatalf("Sweep = %+v, %v", swept, err)
	}
	// The log is cut behind the sweep, or soon after where somebody reads in this moment.
	for i := 0; found() > 0 && i < 20; i++ {
		if err := s.Ping(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := found(); n > 0 {
		t.Errorf("after the sweep the word is there %d times", n)
	}
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// A ping commits something: it is no use to know that a transaction can be begun.
func TestPingCommits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(fastDir(t), "ledger.db")
	s := open(t, path, sqlite.Config{})
	before := commits(t, path)
	for range 3 {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := commits(t, path) - before; n != 3 {
		t.Errorf("three pings made %d commits", n)
	}
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatalf("after a ping: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
