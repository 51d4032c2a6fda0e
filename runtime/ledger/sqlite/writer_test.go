package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/soak"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// A blocker holds the right to write a file, as another program's transaction does.
type blocker struct {
	t    testing.TB
	db   *sql.DB
	conn *sql.Conn
}

func block(t testing.TB, path string) *blocker {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(t.Context())
	if err == nil {
		_, err = c.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	return &blocker{t, db, c}
}

func (b *blocker) release() {
	b.t.Helper()
	_, err := b.conn.ExecContext(context.WithoutCancel(b.t.Context()), "ROLLBACK")
	if err := errors.Join(err, b.conn.Close(), b.db.Close()); err != nil {
		b.t.Error(err)
	}
}

// queued waits until so many changes wait for the writer.
func queued(t testing.TB, s *sqlite.Store, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); s.Queued() != n; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d changes wait, want %d", s.Queued(), n)
		}
	}
}

// commits counts the transactions in a write-ahead log, by SQLite's file format: the header of a
// frame that ends a transaction tells the size of the database.
func commits(t testing.TB, path string) int {
	t.Helper()
	b, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 32 {
		return 0
	}
	salt := b[16:24]
	n := 0
	for at := 32; at+24+4096 <= len(b); at += 24 + 4096 {
		if string(b[at+8:at+16]) != string(salt) {
			break // left from before the log began anew
		}
		if binary.BigEndian.Uint32(b[at+4:]) != 0 {
			n++
		}
	}
	return n
}

// TestGroupCommit: what comes while the file cannot be written is committed together, and what of it is
// refused has no effect on the rest.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(fastDir(t), "ledger.db")
	s := open(t, path, sqlite.Config{})
	b := &turner{s: s}
	known := b.request()
	if _, err := s.Reserve(ctx, ledger.Reservation{Request: known, Dispatch: true, At: benchTime}); err != nil {
		t.Fatal(err)
	}
	before := commits(t, path)
	blocked := block(t, path)
	const n = 60
	errs := make([]error, n)
	refs := make([]ledger.TurnRef, n)
	var wg sync.WaitGroup
	for i := range n {
		req := b.request()
		refs[i] = req.Turn
		wg.Go(func() {
			switch i % 6 {
			case 0: // by a rule of the ledger
				req.Key = known.Key
				_, errs[i] = s.Reserve(ctx, ledger.Reservation{Request: req, At: benchTime})
			case 1: // by a constraint of the schema, after the turn was written
				req.Turn = known.Turn
				_, errs[i] = s.Reserve(ctx, ledger.Reservation{Request: req, At: benchTime})
			case 2: // by what comes last in the change
				ses := ledger.Session{Binding: "b", Version: 7, Open: true, Fence: ledger.Fence{Agent: "a", AgentBinding: "b", BindingDigest: "d", Epoch: "e"}}
				_, errs[i] = s.Reserve(ctx, ledger.Reservation{Request: req, Session: &ses, At: benchTime})
			default:
				_, errs[i] = s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: true, At: benchTime})
			}
		})
	}
	queued(t, s, n)
	blocked.release()
	wg.Wait()
	for i, err := range errs {
		want := []error{ledger.ErrMismatch, ledger.ErrMismatch, ledger.ErrConflict, nil, nil, nil}[i%6]
		if !errors.Is(err, want) {
			t.Errorf("change %d: %v, want %v", i, err, want)
		}
		if _, err := s.Turn(ctx, refs[i]); (err == nil) != (want == nil) {
			t.Errorf("change %d was to be %v, and its turn is: %v", i, want, err)
		}
	}
	if got := commits(t, path) - before; got != 1 {
		t.Errorf("%d changes took %d transactions, want 1", n, got)
	}
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// TestFullDisk: where a transaction fails as a whole, only those changes fail that must.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(fastDir(t), "ledger.db")
	s := open(t, path, sqlite.Config{})
	if err := s.LimitPages(ctx, 200); err != nil {
		t.Fatal(err)
	}
	blocked := block(t, path)
	const n = 20
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ses := ledger.Session{Binding: ledger.BindingRef(fmt.Sprint(i)), Open: true, Fence: ledger.Fence{Agent: "a", AgentBinding: "b", BindingDigest: "d", Epoch: "e"}}
			if i == 7 {
				ses.Values = []byte(`"` + strings.Repeat("x", 2<<20) + `"`)
			}
			_, errs[i] = s.PutSession(ctx, ses, benchTime)
		})
	}
	queued(t, s, n)
	blocked.release()
	wg.Wait()
	for i, err := range errs {
		if i != 7 && err != nil {
			t.Errorf("small change %d: %v", i, err)
		}
		if i == 7 && (!errors.Is(err, sqlite.ErrDisk) || !strings.Contains(err.Error(), "the disk is full; make room") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("large change: %v", err)
		}
		if _, err := s.Session(ctx, ledger.BindingRef(fmt.Sprint(i))); (err == nil) != (i != 7) {
			t.Errorf("session %d: %v", i, err)
		}
	}
	// With room it goes on.
	if err := s.LimitPages(ctx, 100_000); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Error(err)
	}
	if err := (&turner{s: s}).turn(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// TestWaitIsBounded: a change that another program keeps waiting ends with its context, and was never
// made; one with more time is made when the other lets it.
func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(fastDir(t), "ledger.db")
	s := open(t, path, sqlite.Config{})
	b := &turner{s: s}
	blocked := block(t, path)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	hasty := b.request()
	patient := make(chan error)
	go func() { patient <- b.turn(t.Context()) }()
	began := time.Now()
	_, err := s.Reserve(short, ledger.Reservation{Request: hasty, Dispatch: true, At: benchTime})
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "lock") {
		t.Errorf("Reserve: %v", err)
	}
	if waited := time.Since(began); waited > 5*time.Second {
		t.Errorf("it waited %v", waited)
	}
	blocked.release()
	if err := <-patient; err != nil {
		t.Errorf("the patient one: %v", err)
	}
	if _, err := s.Turn(t.Context(), hasty.Turn); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("the hasty one's turn: %v", err)
	}
}

// TestCloseWhileWaiting: who waits gets ErrClosed, and nothing was made.
func TestCloseWhileWaiting(t *testing.T) {
	t.Parallel()
	path := filepath.Join(fastDir(t), "ledger.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &turner{s: s}
	blocked := block(t, path)
	errs := make(chan error)
	for range 5 {
		go func() { errs <- b.turn(t.Context()) }()
	}
	queued(t, s, 5)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for range 5 {
		if err := <-errs; !errors.Is(err, ledger.ErrClosed) {
			t.Errorf("a change that waited: %v", err)
		}
	}
	blocked.release()
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	s = open(t, path, sqlite.Config{})
	if page, err := s.ListTurns(t.Context(), ledger.TurnQuery{}); err != nil || len(page.Turns) > 0 {
		t.Errorf("%d turns were made, %v", len(page.Turns), err)
	}
}

// TestCloseAmidTurns: each change that was acknowledged is there.
func TestCloseAmidTurns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(fastDir(t), "ledger.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &turner{s: s}
	var mu sync.Mutex
	done := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				err := b.turn(t.Context())
				if errors.Is(err, ledger.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				done++
				enough := done == 100
				mu.Unlock()
				if enough {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	s = open(t, path, sqlite.Config{})
	settled := 0
	for r, err := range s.Export(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn != nil && r.Turn.State == ledger.Settled {
			settled++
		}
	}
	if settled < done {
		t.Errorf("%d turns are settled, %d were acknowledged", settled, done)
	}
}

// TestFaultK1Pragmas: each connection has them, not only the first.
func TestFaultK1Pragmas(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(fastDir(t), "ledger.db"), sqlite.Config{Readers: 7})
	all, err := s.Pragmas(t.Context(), "journal_mode", "synchronous", "busy_timeout", "foreign_keys")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 9 {
		t.Errorf("%d connections, want 9", len(all))
	}
	for i, p := range all {
		if p["journal_mode"] != "wal" || p["synchronous"] != "2" || p["busy_timeout"] == "0" || p["foreign_keys"] != "1" {
			t.Errorf("connection %d: %v", i, p)
		}
	}
}

// TestFaultK1: 32 writers, and at the same time another process that holds a read transaction, then a
// write transaction, a list and an export running throughout. Each turn is settled, no error speaks of
// a lock, and the log does not grow without end.
func TestFaultK1(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		contend(t, 5, 100, "1s", "600ms")
	} else {
		contend(t, 20, 400, "1s", "600ms")
	}
}

// TestSoakFaultK1 is TestFaultK1 at full length.
func TestSoakFaultK1(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	contend(t, 200, 10_000, "5s", "2s")
}

func contend(t *testing.T, each, more int, read, wrote string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	s := open(t, path, sqlite.Config{})
	b := &turner{s: s}
	if err := b.turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := start(t, "transactions", path, read, wrote)
	if line := other.line(); line != "reading" {
		t.Fatal(line)
	}
	stop := make(chan struct{})
	var watchers, writers sync.WaitGroup
	looks := [2]int{}
	for i, look := range []func(r *sqlite.Reader) error{
		func(r *sqlite.Reader) error {
			_, err := r.ListTurns(t.Context(), ledger.TurnQuery{Newest: true, Limit: 1000})
			return err
		},
		func(r *sqlite.Reader) error {
			for _, err := range r.Export(t.Context()) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		r, err := sqlite.OpenReader(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		watchers.Go(func() {
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := look(r); err != nil {
					t.Errorf("look %d: %v", i, err)
					return
				}
				looks[i]++
			}
		})
	}
	for range 32 {
		writers.Go(func() {
			for range each {
				if err := b.turn(t.Context()); err != nil {
					t.Errorf("a turn: %v", err)
				}
			}
		})
	}
	if line := other.line(); line != "writing" {
		t.Error(line)
	}
	began := time.Now()
	if err := b.turn(t.Context()); err != nil { // it waits for the other process
		t.Error(err)
	}
	t.Logf("a turn that waited for another process took %v", time.Since(began))
	if line := other.line(); line != "done" {
		t.Error(line)
	}
	if err := other.end(); err != nil {
		t.Error(err)
	}
	writers.Wait()
	// Some more turns, while list and export go on: the log must come to be short again.
	if _, err := b.turns(t.Context(), more, 32); err != nil {
		t.Error(err)
	}
	close(stop)
	watchers.Wait()
	wal, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if wal.Size() > 80<<20 {
		t.Errorf("the log has %d bytes", wal.Size())
	}
	t.Logf("%d lists, %d exports, log of %d KiB", looks[0], looks[1], wal.Size()>>10)
	if looks[0] == 0 || looks[1] == 0 {
		t.Error("list or export never came to an end")
	}
	turns := 0
	for r, err := range s.Export(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn == nil {
			continue
		}
		turns++
		if r.Turn.State != ledger.Settled {
			t.Errorf("turn %s is %s", r.Turn.Ref, r.Turn.State)
		}
	}
	if want := 32*each + 2 + more; turns != want {
		t.Errorf("%d turns, want %d", turns, want)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLogIsBounded: with readers that overlap all the time, so that no moment is without one, the log is
// still begun anew.
func TestLogIsBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("100 MB of log take minutes under the race detector; what runs at the same time here does so in TestFaultK1 too")
	}
	t.Parallel()
	path := filepath.Join(fastDir(t), "ledger.db")
	s := open(t, path, sqlite.Config{})
	b := &turner{s: s}
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 2 { // one is always in a transaction while the other begins its next
		readers.Go(func() {
			<-time.After(time.Duration(i) * 15 * time.Millisecond)
			for {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				if err := tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM claims`).Scan(&n); err != nil {
					t.Error(err)
				}
				done := false
				select {
				case <-stop:
					done = true
				case <-time.After(30 * time.Millisecond):
				}
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
				if done {
					return
				}
			}
		})
	}
	big, limit := int64(0), int64(2*8000*4120)
	for written := int64(0); written < limit*3/2; {
		if _, err := b.turns(t.Context(), 200, 16); err != nil {
			t.Fatal(err)
		}
		written += 200 * 20_000 // about
		if info, err := os.Stat(path + "-wal"); err == nil {
			big = max(big, info.Size())
		}
	}
	close(stop)
	readers.Wait()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("the log had up to %d KiB", big>>10)
	if big > limit {
		t.Errorf("the log grew to %d bytes", big)
	}
}
