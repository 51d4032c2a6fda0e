package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// Some tests need a second process: this test binary, started again with the name of what it is to do
// in its environment, and its arguments behind. It says what it did in lines on its standard output,
// and ends when its standard input does.
const helperEnv = "BACKLINE_LEDGER_TEST_HELPER"

func help(name string) int {
	ctx := context.Background()
	args := strings.Split(os.Getenv(helperEnv+"_ARGS"), "\x1f")
	var err error
	switch name {
	case "hold":
		err = helpHold(ctx, args[0])
	case "open":
		err = helpOpen(ctx, args[0])
	case "transactions":
		err = helpTransactions(ctx, args[0], args[1], args[2])
	case "crash":
		err = helpCrash(ctx, args[0], args[1])
	case "disk":
		err = helpDisk(ctx, args[0])
	default:
		err = fmt.Errorf("no helper %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// A child is a helper that runs.
type child struct {
	*exec.Cmd
	t     testing.TB
	in    io.WriteCloser
	lines *bufio.Scanner
}

func start(t testing.TB, name string, args ...string) *child {
	t.Helper()
	return startCmd(t, exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0]), name, args...)
}

func startCmd(t testing.TB, cmd *exec.Cmd, name string, args ...string) *child {
	t.Helper()
	cmd.Env = append(os.Environ(), helperEnv+"="+name, helperEnv+"_ARGS="+strings.Join(args, "\x1f"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, t, in, bufio.NewScanner(out)}
	t.Cleanup(func() { c.kill() })
	return c
}

// line is the helper's next line.
func (c *child) line() string {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the helper ended: %v", c.lines.Err())
	}
	return c.lines.Text()
}

// kill ends the helper as kill -9 does, and waits until it is gone.
func (c *child) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()         // it was killed
	}
}

// end has the helper end by itself.
func (c *child) end() error {
	return errors.Join(c.in.Close(), c.Wait())
}

func waitForEnd() { _, _ = io.Copy(io.Discard, os.Stdin) }

// helpHold opens a ledger and keeps it.
func helpHold(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		fmt.Println(err)
		waitForEnd()
		return nil
	}
	fmt.Println("open")
	waitForEnd()
	return s.Close()
}

// helpOpen tries to open a ledger and says what came of it.
func helpOpen(ctx context.Context, path string) error {
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		fmt.Printf("%t %q\n", errors.Is(err, sqlite.ErrNotWritable), err.Error())
		return nil
	}
	fmt.Println("open")
	return s.Close()
}

// helpTransactions holds a read transaction for a while, then a write transaction.
func helpTransactions(ctx context.Context, path, read, write string) error {
	readFor, err := time.ParseDuration(read)
	if err != nil {
		return err
	}
	writeFor, err := time.ParseDuration(write)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		return err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		begin, what string
		hold        time.Duration
	}{{"BEGIN; SELECT COUNT(*) FROM turns", "reading", readFor}, {"BEGIN IMMEDIATE", "writing", writeFor}} {
		if _, err := c.ExecContext(ctx, step.begin); err != nil {
			return err
		}
		fmt.Println(step.what)
		<-time.After(step.hold)
		if _, err := c.ExecContext(ctx, "ROLLBACK"); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return errors.Join(c.Close(), db.Close())
}
