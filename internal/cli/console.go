package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
)

// A console reads what somebody types at a terminal, with editing, and of messages with a history. The
// terminal is in raw mode only while it reads, so that Ctrl-C is a signal while a turn runs.
type console struct {
	in   *os.File
	ui   *os.File
	keys *keys

	history term.History // of messages

	mu   sync.Mutex
	line *term.Terminal // that is being typed; nil while nothing is read
}

// console is the terminal of whoever runs the command, nil where there is none to type at and to be asked.
func (a *app) console() *console {
	in, ok := a.in.(*os.File)
	if !ok || !isTerminal(in) {
		return nil
	}
	ui, ok := a.err.(*os.File)
	if a.outIsTTY {
		ui, ok = a.out.w.(*os.File)
	}
	if !ok || !isTerminal(ui) {
		return nil
	}
	c := &console{in: in, ui: ui, keys: &keys{in: in}}
	c.history = c.editor("").History
	return c
}

// editor is a new line to type.
func (c *console) editor(prompt string) *term.Terminal {
	return term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{c.keys, c.ui}, prompt)
}

// show writes something above the next prompt, or above the line that is being typed. It may be called by
// any goroutine.
func (c *console) show(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var w io.Writer = c.ui
	if c.line != nil {
		w = c.line
	}
	_, _ = io.WriteString(w, text+"\n")
}

// answer asks for an answer. The error is io.EOF for Ctrl-C and Ctrl-D, or that of ctx.
func (c *console) answer(ctx context.Context, prompt string) (string, error) {
	return c.read(ctx, c.editor(prompt), nil, nil)
}

// message asks for a message, which any signal gives up that is not meant for something else. The error
// is io.EOF for that, for the end of ctx, and for Ctrl-C and Ctrl-D.
func (c *console) message(ctx context.Context, prompt string, signals <-chan os.Signal, forElse func(os.Signal) bool) (string, error) {
	line := c.editor(prompt)
	line.History = c.history
	text, err := c.read(ctx, line, signals, forElse)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = io.EOF
	}
	return text, err
}

// read reads with the terminal in raw mode, and gives it back as it was.
func (c *console) read(ctx context.Context, line *term.Terminal, signals <-chan os.Signal, forElse func(os.Signal) bool) (text string, err error) {
	fd := int(c.in.Fd())
	c.mu.Lock()
	state, err := term.MakeRaw(fd)
	if err != nil {
		c.mu.Unlock()
		return "", err
	}
	c.line = line
	c.mu.Unlock()
	if width, height, err := term.GetSize(fd); err == nil && width > 0 && height > 0 {
		_ = line.SetSize(width, height)
	}
	line.SetBracketedPasteMode(true)
	defer func() {
		line.SetBracketedPasteMode(false)
		if err != nil {
			_, _ = io.WriteString(c.ui, "\r\n") // what comes next begins below the prompt
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.line = nil
		_ = term.Restore(fd, state) // there is nobody to tell
	}()

	type result struct {
		text string
		err  error
	}
	c.keys.givenUp = make(chan struct{})
	read := make(chan result, 1)
	go func() {
		text, err := readMessage(line)
		read <- result{text, err}
	}()
	var why error
	for why == nil {
		select {
		case r := <-read:
			return r.text, r.err
		case s := <-signals:
			if forElse(s) {
				// The key made the terminal drop what was on its way to it: the prompt, and what was typed.
				_, _ = line.Write(nil)
				continue
			}
			why = io.EOF
		case <-ctx.Done():
			why = ctx.Err()
		}
	}
	close(c.keys.givenUp)
	<-read
	return "", why
}

// readMessage reads one message. Lines that are pasted together are one message, which Enter sends.
func readMessage(line *term.Terminal) (string, error) {
	var pasted strings.Builder
	for {
		text, err := line.ReadLine()
		if errors.Is(err, term.ErrPasteIndicator) {
			pasted.WriteString(text + "\n")
			continue
		}
		if err == nil && text == "" && pasted.Len() > 0 {
			return strings.TrimSuffix(pasted.String(), "\n"), nil
		}
		return pasted.String() + text, err
	}
}

// keys are what is typed. Reading them can be given up, which reading a terminal cannot: what is typed
// then is kept for the next one who reads. So is what follows an Enter, since each line has an editor of
// its own. It is for one goroutine at a time.
type keys struct {
	in      *os.File
	givenUp chan struct{}   // closed to give up a Read
	waiting chan keystrokes // of a read that goes on; nil for none
	rest    []byte
}

type keystrokes struct {
	text []byte
	err  error
}

var errGivenUp = errors.New("given up")

func (k *keys) Read(p []byte) (int, error) {
	if len(k.rest) == 0 {
		if k.waiting == nil {
			waiting := make(chan keystrokes, 1)
			k.waiting = waiting
			go func() { // until somebody types, or the program ends
				text := make([]byte, 256)
				n, err := k.in.Read(text)
				waiting <- keystrokes{text[:n], err}
			}()
		}
		select {
		case typed := <-k.waiting:
			k.waiting = nil
			if typed.err != nil {
				return 0, typed.err
			}
			k.rest = typed.text
		case <-k.givenUp:
			return 0, errGivenUp
		}
	}
	n := copy(p, k.rest[:lineEnd(k.rest)])
	k.rest = k.rest[n:]
	return n, nil
}

// lineEnd is the length of the first line of text, or of all of it.
func lineEnd(text []byte) int {
	switch i := bytes.IndexAny(text, "\r\n"); {
	case i < 0:
		return len(text)
	case text[i] == '\r' && i+1 < len(text) && text[i+1] == '\n':
		return i + 2
	default:
		return i + 1
	}
}

// converse holds a conversation at the console.
func (d *dialogue) converse(ctx context.Context) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	d.console.show(d.a.dim(visible(d.talk.with()) + ". Ctrl-C stops a turn; at the prompt, Ctrl-C or Ctrl-D leaves."))
	for {
		// At the prompt Ctrl-C is a key, not a signal. One that comes soon after a turn was stopped was
		// pressed before there was a prompt, to stop the turn, which an earlier one had done already.
		message, err := d.console.message(ctx, d.a.bold("> "), signals, func(s os.Signal) bool {
			return s == os.Interrupt && time.Since(d.stopped) < lateInterrupt
		})
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(message) == "" {
			continue
		}
		if leave := d.turnOrSignal(ctx, message, signals); leave {
			return nil
		}
	}
}

// lateInterrupt is how long after a turn was stopped an interrupt may still be meant for it.
const lateInterrupt = time.Second

// turnOrSignal runs one turn, which the first signal stops. It tells whether to leave: for any signal
// but Ctrl-C's.
func (d *dialogue) turnOrSignal(ctx context.Context, message string, signals <-chan os.Signal) (leave bool) {
	for len(signals) > 0 { // what was pressed before the turn is not for it
		if s := <-signals; s != os.Interrupt {
			return true
		}
	}
	by, err := d.stoppable(ctx, message, signals, nil)
	if by != nil {
		d.stopped = time.Now()
	}
	switch {
	case by != nil && by != os.Interrupt:
		return true
	case err != nil:
		d.a.complain("%s", err)
	}
	return false
}
