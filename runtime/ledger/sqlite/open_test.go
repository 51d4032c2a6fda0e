package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// ledgerFile makes a ledger with some turns, and closes it.
func ledgerFile(t testing.TB, dir string, turns int) string {
	t.Helper()
	path := filepath.Join(dir, "ledger.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &turner{s: s}
	for range turns {
		if err := b.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// change runs SQL on a file that no store has.
func change(t testing.TB, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFaultK2Refusals: what cannot be opened is refused in one line that says what to do, and is left as
// it was: never a fresh empty ledger in its place.
func TestFaultK2Refusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		make func(t *testing.T, dir string) string
		want error
		says string
	}{
		"no database": {func(t *testing.T, dir string) string {
			return write(t, dir, bytes.Repeat([]byte("not a database\n"), 1000))
		}, sqlite.ErrNoLedger, "name another file"},
		"a few bytes": {func(t *testing.T, dir string) string { return write(t, dir, []byte("hello")) }, sqlite.ErrNoLedger, "name another file"},
		"empty":       {func(t *testing.T, dir string) string { return write(t, dir, nil) }, sqlite.ErrNoLedger, "restore a copy, or remove it"},
		"a folder": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "ledger.db")
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			return path
		}, sqlite.ErrNoLedger, "name a file"},
		"newer": {func(t *testing.T, dir string) string {
			path := ledgerFile(t, dir, 1)
			change(t, path, "PRAGMA user_version = 1000")
			return path
		}, sqlite.ErrNewer, "schema 1000, this one knows"},
		"another program's": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "ledger.db")
			change(t, path, "CREATE TABLE turns (seq INTEGER PRIMARY KEY)")
			return path
		}, sqlite.ErrNoLedger, "another program"},
		"no tables": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "ledger.db")
			change(t, path, "PRAGMA application_id = 1112230990", "PRAGMA user_version = 1")
			return path
		}, sqlite.ErrDamaged, "restore a copy"},
		"cut in half": {func(t *testing.T, dir string) string {
			path := ledgerFile(t, dir, 100)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, info.Size()/2); err != nil {
				t.Fatal(err)
			}
			return path
		}, sqlite.ErrDamaged, "restore a copy"},
		"overwritten": {func(t *testing.T, dir string) string {
			path := ledgerFile(t, dir, 100)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 4096; i < len(b); i++ {
				b[i] = 0xa5
			}
			return write(t, dir, b)
		}, sqlite.ErrDamaged, "restore a copy"},
		"gone, but for its log": {func(t *testing.T, dir string) string {
			path := write(t, dir, []byte("log"))
			if err := os.Rename(path, path+"-wal"); err != nil {
				t.Fatal(err)
			}
			return path
		}, sqlite.ErrDamaged, "put the file back"},
		"a link to nothing": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "ledger.db")
			if err := os.Symlink(filepath.Join(dir, "not-mounted"), path); err != nil {
				t.Fatal(err)
			}
			return path
		}, sqlite.ErrDamaged, "put the file back"},
		"no folder": {func(_ *testing.T, dir string) string { return filepath.Join(dir, "none", "ledger.db") }, nil, "make the folder first"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := test.make(t, dir)
			before, _ := os.ReadFile(path) // there may be none
			s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			t.Log(err)
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, test.says) || !strings.Contains(text, "ledger.db") {
				t.Errorf("error %q, want one line with the file's name and %q", text, test.says)
			}
			after, _ := os.ReadFile(path)
			if !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
			if s, err := sqlite.OpenReader(t.Context(), path); err == nil {
				_ = s.Close()
				t.Error("a reader opened it")
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("a reader's error has several lines: %q", err)
			}
			after, _ = os.ReadFile(path)
			if !bytes.Equal(before, after) {
				t.Error("the file was changed by a reader")
			}
		})
	}
}

func write(t *testing.T, dir string, b []byte) string {
	t.Helper()
	path := filepath.Join(dir, "ledger.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDamageWithin: damage that no start can see without reading everything is found by Check.
func TestDamageWithin(t *testing.T) {
	t.Parallel()
	path := ledgerFile(t, t.TempDir(), 300)
	s := open(t, path, sqlite.Config{})
	if err := s.Check(t.Context()); err != nil {
		t.Fatalf("a sound ledger: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) / 2 / 4096 * 4096; i < len(b)/2+4096; i++ {
		b[i] ^= 0x5a
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, sqlite.Config{})
	if err := s.Check(t.Context()); !errors.Is(err, sqlite.ErrDamaged) {
		t.Errorf("a damaged page: %v", err)
	}
}

// TestCheck finds what SQLite itself has nothing against.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"settled turn without an outcome": {"DROP TRIGGER outcomes_kept", "DELETE FROM outcomes WHERE turn = 2"},
		"belongs to none":                 {"DROP TRIGGER turns_kept", "DELETE FROM turns WHERE seq = 2"},
		"charged in full":                 {"DROP TRIGGER outcomes_for_good", "DELETE FROM products WHERE turn = 2", "UPDATE outcomes SET status = 'unknown', retryability = 'reconciliation-required', product = NULL, product_digest = NULL, charged_steps = 0 WHERE turn = 2"},
		"without its product":             {"DELETE FROM products WHERE turn = 2"},
		"request that runs in no turn":    {"DELETE FROM ends WHERE part = 2"},
		"turn without a request":          {"DELETE FROM ends WHERE part = 2", "DELETE FROM parts WHERE seq = 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := ledgerFile(t, fastDir(t), 3)
			change(t, path, statements...)
			r, err := sqlite.OpenReader(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := r.Check(t.Context()); !errors.Is(err, sqlite.ErrDamaged) || !strings.Contains(err.Error(), name) {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// TestSchemaHolds: what the program must never do, the schema refuses by itself.
func TestSchemaHolds(t *testing.T) {
	t.Parallel()
	path := ledgerFile(t, fastDir(t), 3)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	const turn = `INSERT INTO turns (seq, ref, identity, agent, binding, binding_digest, profile, profile_generation, reserved_tokens, reserved_cost_micros,
		reserved_wall_ms, reserved_steps, reserved_at, state, version, last_seq, dispatched_at, updated_at, running, awaiting)
		VALUES (%s, %s, 'i', 'a', 'b', '', '', 0, %s, 0, 0, 0, 1, %s, 1, 0, %s, 1, %s, NULL)`
	for name, statement := range map[string]string{
		"changing a settled turn":       `UPDATE turns SET version = version + 1, state = 'dispatched', running = 1 WHERE seq = 1`,
		"deleting a settled turn":       `DELETE FROM turns WHERE seq = 1`,
		"changing a charge":             `UPDATE outcomes SET charged_tokens = 0 WHERE turn = 1`,
		"deleting an outcome":           `DELETE FROM outcomes WHERE turn = 1`,
		"a second outcome":              `INSERT INTO outcomes SELECT * FROM outcomes WHERE turn = 1`,
		"an outcome of nothing":         `INSERT INTO outcomes SELECT 99, ref, status, reason, retryability, 0, 0, 0, 0, fidelity, product, product_digest, at, document FROM outcomes WHERE turn = 1`,
		"the same key twice":            `INSERT INTO parts (seq, key, turn, digest, mode, started_at) SELECT 99, key, turn, digest, mode, started_at FROM parts WHERE seq = 1`,
		"a request of nothing":          `INSERT INTO parts (seq, key, turn, digest, mode, started_at) VALUES (99, 'k', 99, 'd', 'start', 1)`,
		"a start that answers":          `INSERT INTO parts (seq, key, turn, digest, mode, answers, started_at) VALUES (99, 'k', 1, 'd', 'start', 'r', 1)`,
		"the same turn twice":           fmt.Sprintf(turn, "99", "(SELECT ref FROM turns WHERE seq = 1)", "1", "'dispatched'", "1", "99"),
		"an unheard-of state":           fmt.Sprintf(turn, "99", "'t'", "1", "'done'", "1", "99"),
		"a negative reservation":        fmt.Sprintf(turn, "99", "'t'", "-1", "'dispatched'", "1", "99"),
		"a reservation beyond 2^53":     fmt.Sprintf(turn, "99", "'t'", "9007199254740992", "'dispatched'", "1", "99"),
		"dispatched, nothing runs":      fmt.Sprintf(turn, "99", "'t'", "1", "'dispatched'", "1", "NULL"),
		"suspended, nothing is awaited": fmt.Sprintf(turn, "99", "'t'", "1", "'suspended'", "1", "NULL"),
		"reserved and dispatched":       fmt.Sprintf(turn, "99", "'t'", "1", "'reserved'", "1", "99"),
		"text where a number belongs":   fmt.Sprintf(turn, "99", "'t'", "'many'", "'dispatched'", "1", "99"),
		"forgetting an admission":       `DELETE FROM admissions`,
	} {
		if name == "forgetting an admission" {
			if _, err := db.ExecContext(t.Context(), `INSERT INTO admissions (kind, ref, generation, digest, source, version, admitted_at, document) VALUES ('profile', 'p', 1, 'd', 'operator', 1, 1, '{}')`); err == nil {
				t.Fatal("text went into a blob")
			}
			if _, err := db.ExecContext(t.Context(), `INSERT INTO admissions (kind, ref, generation, digest, source, version, admitted_at, document) VALUES ('profile', 'p', 1, 'd', 'operator', 1, 1, x'7b7d')`); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.ExecContext(t.Context(), statement); err == nil {
			t.Errorf("%s: the schema has nothing against it", name)
		} else if !strings.Contains(err.Error(), "constraint") && !strings.Contains(err.Error(), "cannot store") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenMakes: a new ledger is whole before it has its name, and is its owner's alone.
func TestOpenMakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a ledger?#%41.db")
	// What a process left that died while it made one.
	for _, end := range []string{"-new", "-new-journal", "-new-wal"} {
		if err := os.WriteFile(path+end, []byte("half a ledger"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, path, sqlite.Config{})
	if err := (&turner{s: s}).turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"", "-wal", "-shm", "-lock", "-lock-journal"} {
		info, err := os.Stat(path + end)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", info.Name(), info.Mode())
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if name := f.Name(); name != filepath.Base(path) && name != filepath.Base(path)+"-lock" {
			t.Errorf("%s is left", name)
		}
	}
}

// TestReaderLeavesNothing: who looks at a ledger that no server has leaves no file behind, and who looks at one
// that a server has, or that one has left in a crash, takes none away.
func TestReaderLeavesNothing(t *testing.T) {
	t.Parallel()
	look := func(path string) {
		t.Helper()
		r, err := sqlite.OpenReader(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := r.ListTurns(t.Context(), ledger.TurnQuery{}); err != nil || len(page.Turns) != 3 {
			t.Errorf("it reads %d turns, %v", len(page.Turns), err)
		}
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	there := func(path string) (ends []string) {
		for _, end := range []string{"-wal", "-shm"} {
			if _, err := os.Stat(path + end); err == nil {
				ends = append(ends, end)
			}
		}
		return ends
	}
	path := ledgerFile(t, t.TempDir(), 3)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	look(path)
	if ends := there(path); len(ends) > 0 {
		t.Errorf("a reader leaves %q", ends)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a reader changes the file (%v)", err)
	}

	// Not a ledger of this version: it leaves nothing either.
	other := ledgerFile(t, t.TempDir(), 1)
	change(t, other, "PRAGMA user_version = 1000")
	if _, err := sqlite.OpenReader(t.Context(), other); err == nil {
		t.Error("a newer ledger is read")
	}
	if ends := there(other); len(ends) > 0 {
		t.Errorf("a reader that was refused leaves %q", ends)
	}

	// A server has it; and a copy of its files is what a crash leaves.
	s := open(t, path, sqlite.Config{})
	look(path)
	crashed := filepath.Join(t.TempDir(), "crashed.db")
	for _, end := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + end)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(crashed+end, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look(crashed)
	if ends := there(crashed); len(ends) != 2 {
		t.Errorf("after a crash a reader leaves %q of the log, and it was to be kept", ends)
	}
	if ends := there(path); len(ends) != 2 {
		t.Errorf("beside a server a reader leaves %q of the log", ends)
	}
	if err := (&turner{s: s, seed: 1000}).turn(t.Context()); err != nil {
		t.Errorf("after a reader the server: %v", err)
	}
}

// TestFaultG2SecondProcess: a second process on one file is refused, in a line, until the first is gone,
// however it went.
func TestFaultG2SecondProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := ledgerFile(t, dir, 1)
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	refused := func(path string) {
		t.Helper()
		s, err := sqlite.Open(t.Context(), path, sqlite.Config{})
		if err == nil {
			_ = s.Close()
			t.Fatal("two stores have one file")
		}
		if !errors.Is(err, sqlite.ErrInUse) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "stop that one, or name another file") {
			t.Errorf("error %q", err)
		}
	}
	c := start(t, "hold", path)
	if line := c.line(); line != "open" {
		t.Fatal(line)
	}
	refused(path)
	refused(link)
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := sqlite.New(t.Context(), db, sqlite.Config{}); !errors.Is(err, sqlite.ErrInUse) {
		t.Errorf("New: %v", err)
	}
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatalf("a reader beside a server: %v", err)
	}
	if page, err := r.ListTurns(t.Context(), ledger.TurnQuery{}); err != nil || len(page.Turns) != 1 {
		t.Errorf("a reader sees %d turns, %v", len(page.Turns), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	refused(path) // also after something was closed that had the file open
	c.kill()
	s := open(t, path, sqlite.Config{})
	refused(path)
	refused(link)
	other := start(t, "hold", link)
	if line := other.line(); !strings.Contains(line, "in use") {
		t.Errorf("the second process says %q", line)
	}
	if err := other.end(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, link, sqlite.Config{})
	refused(path)
	if err := (&turner{s: s, seed: 9}).turn(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRacingOpens: of several processes that make the same new ledger at once, one has it.
func TestRacingOpens(t *testing.T) {
	t.Parallel()
	for range 3 {
		path := filepath.Join(t.TempDir(), "ledger.db")
		var children []*child
		for range 4 {
			children = append(children, start(t, "hold", path))
		}
		won := 0
		for _, c := range children {
			if line := c.line(); line == "open" {
				won++
			} else if !strings.Contains(line, "in use") {
				t.Errorf("a loser says %q", line)
			}
		}
		if won != 1 {
			t.Fatalf("%d processes have one ledger", won)
		}
		for _, c := range children {
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNewOnHandle(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(fastDir(t), "ledger.db")
	handle := func(name string) *sql.DB {
		db, err := sql.Open("sqlite", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return db
	}
	if _, err := sqlite.New(ctx, handle(":memory:"), sqlite.Config{}); err == nil || !strings.Contains(err.Error(), "ledger.NewMemory") {
		t.Errorf("in memory: %v", err)
	}
	small := handle("file:" + path)
	small.SetMaxOpenConns(3)
	if _, err := sqlite.New(ctx, small, sqlite.Config{}); err == nil || !strings.Contains(err.Error(), "allows 3 connections") {
		t.Errorf("a handle that is too small: %v", err)
	}
	if _, err := sqlite.New(ctx, small, sqlite.Config{Readers: -1}); err == nil {
		t.Error("a negative number of readers was taken")
	}
	small.SetMaxOpenConns(3)
	s, err := sqlite.New(ctx, small, sqlite.Config{Readers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&turner{s: s}).turn(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// The handle is the caller's, and still good.
	var n int
	if err := small.QueryRowContext(ctx, `SELECT COUNT(*) FROM outcomes`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d outcomes, %v", n, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := sqlite.Open(cancelled, path, sqlite.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("on a context that is over: %v", err)
	}
}
