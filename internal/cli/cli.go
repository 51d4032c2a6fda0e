package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The exit codes.
const (
	exitFine   = 0
	exitFailed = 1 // the thing checked or run failed
	exitUsage  = 2 // the command was used wrongly
)

// Streams are what a command reads and writes, and its environment. Where a stream is an *os.File on a
// terminal, commands may use colours, show progress and hold a conversation.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Env is the environment, as os.Environ returns it. It is read once, at the start.
	Env []string
}

// Run runs the command line args, without the program's name, and returns the exit code. ctx ends
// commands that wait for something; signals are taken by the commands that have a use for them (serve
// and chat). It may be called several times, but not by several goroutines at once while serve or chat
// run, which share the process's signals.
func Run(ctx context.Context, args []string, s Streams) int {
	a := newApp(s)
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.InitDefaultHelpCmd()
	// A command that only holds others would print its help for a name that is none of theirs.
	if cmd, rest, _ := root.Find(args); !cmd.Runnable() {
		if i := slices.IndexFunc(rest, func(arg string) bool { return !strings.HasPrefix(arg, "-") }); i >= 0 {
			return a.finish(cmd, unknownCommand(cmd, rest[i]))
		}
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.out.failure()
	}
	return a.finish(cmd, err)
}

// An app is one run of the program.
type app struct {
	in       io.Reader
	out      *output
	err      io.Writer
	env      map[string]string
	setByEnv map[string]bool // the flags that came from the environment
	started  bool            // the command's own code: what fails before it is wrong usage
	outIsTTY bool
	errIsTTY bool
	colour   bool
}

func newApp(s Streams) *app {
	a := &app{in: s.In, err: s.Err, setByEnv: map[string]bool{}, out: &output{w: s.Out}, env: map[string]string{}}
	for _, kv := range s.Env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			a.env[name] = value
		}
	}
	a.outIsTTY, a.errIsTTY = isTerminal(s.Out), isTerminal(s.Err)
	// NO_COLOR: https://no-color.org
	a.colour = a.outIsTTY && a.env["NO_COLOR"] == "" && a.env["TERM"] != "dumb"
	return a
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// output notes the first error of standard output: a result that did not arrive is a failure.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

func (o *output) failure() error {
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("standard output could not be written: %w", o.err)
}

// unknownCommand is the error of a command line that names no command below cmd.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usagef("unknown command %q: the commands of %s are %s", name, cmd.CommandPath(), strings.Join(names, ", "))
}

// A usageError is a mistake in how the command was called: exit code 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errReported ends a command with exit code 1 where its output has said all there is to say.
var errReported = errors.New("reported")

// finish writes what is to be said of err, and returns the exit code.
func (a *app) finish(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitFine
	}
	if errors.Is(err, errReported) {
		return exitFailed
	}
	var usage *usageError
	if errors.As(err, &usage) || !a.started {
		hint := ""
		says := func(command string) bool { return strings.Contains(err.Error(), command) }
		if path := cmd.CommandPath(); !says(" --help") && !says(cmd.Root().Name()+" validate ") { // it tells where to look by itself
			hint = " (see " + path + " --help)"
		}
		a.complain("%s%s", err, hint)
		return exitUsage
	}
	a.complain("%s", err)
	return exitFailed
}

// complain writes one line to standard error.
func (a *app) complain(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, "backline: %s\n", oneLine(fmt.Sprintf(format, args...)))
}

// warn is complain for what does not stop the command.
func (a *app) warn(format string, args ...any) { a.complain("warning: "+format, args...) }

// oneLine joins the lines of s and makes characters that a terminal would act on visible: the text may
// come from the other side.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return visible(strings.Join(lines, "; "))
}

// visible replaces control characters other than newline and tab: no text from the other side moves
// the cursor, changes a title or answers for the user.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ':
			return '\u2400' + r // the pictures of the control characters
		case r == 0x7F:
			return '\u2421'
		case unicode.IsControl(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// root is the whole tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "backline",
		Short: "Host an agent behind the platforms that run external agents",
		Long: `Backline hosts an agent, written once in Go, behind the platforms that run external agents.

Each flag of a command can be given in the environment as well: --turn-timeout as BACKLINE_TURN_TIMEOUT.
The command line wins. Exit codes: 0 fine, 1 the thing checked or run failed, 2 wrong usage.`,
		Example: `  # A server on 127.0.0.1:8787 that echoes.
  backline serve`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
		// Before a command runs: what its flags are in the environment.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.fromEnvironment(cmd) },
	}
	root.AddCommand(
		a.serveCommand(),
		a.initCommand(),
		a.chatCommand(),
		a.keikiCommand(),
		a.validateCommand(),
		a.schemaCommand(),
		a.manifestCommand(),
		a.ledgerCommand(),
		a.versionCommand(),
	)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(a.out)
		// pflag shows that a switch takes a value, which nobody needs to give.
		const value = "[=true|false]"
		_, _ = io.WriteString(a.out, strings.ReplaceAll(text.String(), value, strings.Repeat(" ", len(value))))
	})
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	return root
}

// runs makes f the code of a command: what it returns is a failure unless it is a usageError.
func (a *app) runs(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.started = true
		return f(cmd.Context(), args)
	}
}

// takes checks the number of arguments; names says what they are ("[FILE]").
func takes(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
		switch {
		case len(args) < least:
			return usagef("%s needs %s", name, names)
		case len(args) > most && most == 0:
			return usagef("%s takes no arguments, and was given %q", name, args[0])
		case len(args) > most:
			return usagef("%s takes only %s, and was also given %q", name, names, args[most])
		}
		return nil
	}
}
