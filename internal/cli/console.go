package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

// A console reads messages from a terminal, with editing and a history. The terminal is in raw mode
// only while it reads, so that Ctrl-C is a signal while a turn runs.
type console struct {
	in   *os.File
	line *term.Terminal

	restore func() // leaves raw mode; nil outside it
}

func newConsole(in, ui *os.File, prompt string) *console {
	return &console{in: in, line: term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, ui}, prompt)}
}

// enter puts the terminal into raw mode, for read.
func (c *console) enter() error {
	fd := int(c.in.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	c.restore = func() {
		c.line.SetBracketedPasteMode(false)
		_ = term.Restore(fd, state) // there is nobody to tell
	}
	if width, height, err := term.GetSize(fd); err == nil && width > 0 && height > 0 {
		_ = c.line.SetSize(width, height)
	}
	c.line.SetBracketedPasteMode(true)
	return nil
}

// leave gives the terminal back as it was. It may be called while read waits.
func (c *console) leave() {
	if c.restore != nil {
		c.restore()
		c.restore = nil
	}
}

// read reads one message. Lines that are pasted together are one message, which Enter sends. The error
// is io.EOF for Ctrl-C and Ctrl-D.
func (c *console) read() (string, error) {
	var pasted strings.Builder
	for {
		line, err := c.line.ReadLine()
		if errors.Is(err, term.ErrPasteIndicator) {
			pasted.WriteString(line + "\n")
			continue
		}
		if err == nil && line == "" && pasted.Len() > 0 {
			return strings.TrimSuffix(pasted.String(), "\n"), nil
		}
		return pasted.String() + line, err
	}
}

// redraw shows the prompt anew, and what has been typed behind it. It may be called while read waits.
func (c *console) redraw() { _, _ = c.line.Write(nil) }

// converse holds a conversation on a terminal.
func (t *talk) converse(ctx context.Context) error {
	in, ok := t.a.in.(*os.File)
	if !ok {
		return errors.New("standard input is not a terminal")
	}
	ui, ok := t.a.err.(*os.File)
	if t.a.outIsTTY {
		ui, ok = t.a.out.w.(*os.File)
	}
	if !ok {
		return errors.New("there is no terminal to write to")
	}

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	_, _ = fmt.Fprintf(ui, "%s\n", t.a.dim(fmt.Sprintf(
		"Session %s with %s. Ctrl-C stops a turn; at the prompt, Ctrl-C or Ctrl-D leaves.",
		visible(t.c.Handle.ID), visible(t.c.Host.PluginID))))
	con := newConsole(in, ui, t.a.bold("> "))
	for {
		message, err := t.ask(ctx, con, signals)
		if errors.Is(err, io.EOF) {
			_, _ = fmt.Fprintln(ui)
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(message) == "" {
			continue
		}
		if leave := t.turnOrSignal(ctx, message, signals); leave {
			return nil
		}
	}
}

// ask waits for a message, or for a signal, which leaves like Ctrl-D. A read that is given up stays
// behind until the program ends, which it is about to.
func (t *talk) ask(ctx context.Context, con *console, signals <-chan os.Signal) (string, error) {
	type result struct {
		message string
		err     error
	}
	if err := con.enter(); err != nil {
		return "", err
	}
	defer con.leave()
	read := make(chan result, 1)
	go func() {
		message, err := con.read()
		read <- result{message, err}
	}()
	for {
		select {
		case r := <-read:
			return r.message, r.err
		case s := <-signals:
			// At the prompt Ctrl-C is a key, not a signal. This one was pressed before there was a prompt, to
			// stop the turn, which an earlier one had done already; or it is no key at all.
			if s == os.Interrupt && time.Since(t.stopped) < lateInterrupt {
				con.redraw() // the key made the terminal drop what was on its way to it
				continue
			}
		case <-ctx.Done():
		}
		return "", io.EOF
	}
}

// lateInterrupt is how long after a turn was stopped an interrupt may still be meant for it.
const lateInterrupt = time.Second

// turnOrSignal runs one turn, which the first signal stops. It tells whether to leave: for any signal
// but Ctrl-C's.
func (t *talk) turnOrSignal(ctx context.Context, message string, signals <-chan os.Signal) (leave bool) {
	for len(signals) > 0 { // what was pressed before the turn is not for it
		if s := <-signals; s != os.Interrupt {
			return true
		}
	}
	by, err := t.stoppable(ctx, message, signals)
	if by != nil {
		t.stopped = time.Now()
	}
	switch {
	case by != nil && by != os.Interrupt:
		return true
	case err != nil:
		t.a.complain("%s", err)
	}
	return false
}
