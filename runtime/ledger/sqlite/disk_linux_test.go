package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// TestFaultK2NotWritable: a ledger, or a folder, that this user may not write. As root it runs a process
// of another user, whom rights concern.
func TestFaultK2NotWritable(t *testing.T) {
	t.Parallel()
	try := func(path string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		c := startCmd(t, cmd, "open", path)
		line := c.line()
		if !strings.HasPrefix(line, "true ") || strings.Contains(line, `\n`) || !strings.Contains(line, "give this user the right to write") {
			t.Errorf("%s: %s", path, line)
		}
		t.Log(line)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	}
	dir, err := os.MkdirTemp("", "backline-rights-*") //nolint:usetesting // t.TempDir's parents are the owner's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(os.Chmod(dir, 0o700), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	path := ledgerFile(t, dir, 3)
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	chmod(path, 0o644)
	chmod(path+"-lock", 0o644)
	chmod(dir, 0o555)
	try(path)                           // a read-only folder
	try(filepath.Join(dir, "other.db")) // a new ledger in it
	chmod(dir, 0o777)
	if err := os.Remove(path + "-lock"); err != nil {
		t.Fatal(err)
	}
	chmod(path, 0o444)
	try(path) // a read-only file
	if err := os.Remove(path + "-lock"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"-lock", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	chmod(path, 0o666)
	try(path) // a lock that this user cannot take
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the ledger was changed, or is gone: %v", err)
	}
}

// TestDiskFailure: after an I/O error the store takes no more changes, goes on reading, and a new start
// finds all that was acknowledged.
func TestDiskFailure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	c := start(t, "disk", path)
	var refs []ledger.TurnRef
	for {
		line := c.line()
		if line == "failed" {
			break
		}
		refs = append(refs, ledger.TurnRef(line))
	}
	if err := c.end(); err != nil {
		t.Fatalf("the helper: %v", err)
	}
	if len(refs) < 3 {
		t.Fatalf("only %d turns were acknowledged before the disk failed", len(refs))
	}
	s := open(t, path, sqlite.Config{})
	for _, ref := range refs {
		if turn, err := s.Turn(t.Context(), ref); err != nil || turn.State != ledger.Settled {
			t.Errorf("turn %s: %+v, %v", ref, turn, err)
		}
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// helpDisk makes turns until a limit of the system fails a write, as a disk would.
func helpDisk(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: 400 << 10, Max: 400 << 10}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	b := &turner{s: s}
	settled := ledger.TurnRef("")
	for range 1000 {
		if err = b.turn(ctx); err != nil {
			break
		}
		page, err := s.ListTurns(ctx, ledger.TurnQuery{Newest: true, Limit: 1})
		if err != nil {
			return err
		}
		settled = page.Turns[0].Ref
		fmt.Println(settled)
	}
	if !errors.Is(err, sqlite.ErrDisk) || strings.Contains(err.Error(), "\n") {
		return fmt.Errorf("a write beyond the limit: %w", err)
	}
	for name, do := range map[string]func() error{
		"a turn": func() error { return b.turn(ctx) },
		"Ping":   func() error { return s.Ping(ctx) },
		"Sweep":  func() error { _, err := s.Sweep(ctx, benchTime, 0); return err },
	} {
		if err := do(); !errors.Is(err, sqlite.ErrDisk) {
			return fmt.Errorf("%s after the disk failed: %w", name, err)
		}
	}
	if turn, err := s.Turn(ctx, settled); err != nil || turn.State != ledger.Settled {
		return fmt.Errorf("reading after the disk failed: %+v, %w", turn, err)
	}
	fmt.Println("failed")
	waitForEnd()
	_ = s.Close() // the log may be longer than the limit lets the file become
	return nil
}

// TestPingOnAFullDisk: a ledger on a disk without room does not say that it can commit, and does so again once
// there is some. It needs the right to mount a file system.
func TestPingOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "ledger.db"), sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	if err := s.Ping(t.Context()); !errors.Is(err, sqlite.ErrDisk) {
		t.Errorf("Ping on a full disk = %v", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping once there is room = %v", err)
	}
}
