package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// What chat --protocol takes.
const (
	protocolLowkey   = "lowkey"
	protocolExternal = "external-runtime"
)

type chatFlags struct {
	message   *string
	events    *bool
	json      *bool
	pluginID  *string
	token     *secretPair
	session   *string
	window    *int
	userName  *string
	headless  *bool
	lineLimit *int64
	protocol  *string
	binding   *string
	observe   *observe
	print     *bool

	oneTurn bool // --message was given, though it may be empty
}

func (a *app) chatCommand() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat URL",
		Short: "Play the host: one turn, or a conversation",
		Long: `Chat plays the host against a server, in any language: Lowkey, or with --protocol external-runtime a
host of agent.external-runtime. URL is where the server is (http://127.0.0.1:8787), or Lowkey's turn
endpoint, which is ` + plugin.DefaultTurnPath + ` there.

With --message it runs one turn and prints the answer as it arrives; the exit code is 1 if the turn does
not complete. Without it, on a terminal, it holds a conversation and sends the transcript window as Lowkey
would: Ctrl-C stops the turn that runs; at the prompt Ctrl-C or Ctrl-D leaves. Where standard input is not
a terminal, each line of it that is not empty is one message of a conversation, and the exit code is 1 if
a turn did not complete.

Answers end with a newline, added where the agent wrote none; --json has the text as it came.

With --protocol external-runtime turns run under the binding in a file that the server has admitted too.
A conversation is one passage in the binding's session; each turn reserves all that the binding allows
one. At a terminal, tool requests and questions of the agent are shown and answered there: y admits, n
refuses, and so does a reason code. Elsewhere they are answered as --observe says. Ctrl-C has the server
cancel the turn, also while it asks, and so do SIGTERM and SIGHUP, which end the program. A turn that waits
for another one of its binding says so after a second, and one that does not complete what to do about it.

With --print-request nothing is sent: the request that one turn would send is printed, to be changed and
sent by hand. It needs no URL.`,
		Example: `  # One turn, with each event's time of arrival.
  backline chat http://127.0.0.1:8787 --message 'Tell me a story' --events`,
		Args: func(cmd *cobra.Command, args []string) error {
			least := 1
			if *f.print {
				least = 0
			}
			return takes(least, 1, "the URL of a server, such as http://"+plugin.DefaultListen)(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.message = fs.StringP("message", "m", "", "run one turn with this `text`; - reads the whole of standard input")
	f.events = fs.Bool("events", false, "print the raw lines, each with its time of arrival since the request")
	f.json = fs.Bool("json", false, "print each turn as one JSON object when it has ended; with --events its lines too")
	f.pluginID = fs.String("plugin-id", "", "the plugin's `id` (default: that of the server's /manifest.json, else "+defaultPlugin+")")
	f.token = secretFlag(fs, "token", "the bearer `token` to send")
	f.session = fs.String("session", "", "the session's `id`, to go on with one (default: a new one)")
	f.window = countFlag(fs, "window", testhost.DefaultWindow, "the most messages of the transcript that a turn carries")
	f.userName = fs.String("user-name", "", "the `name` of the user")
	f.headless = fs.Bool("headless", false, "say that nobody watches the turn")
	f.lineLimit = sizeFlag(fs, "line-limit", ndjson.DefaultLineLimit, "the longest line that is accepted")
	f.protocol = choiceFlag(fs, "protocol", "what the server is spoken to in", protocolLowkey, protocolExternal)
	f.binding = fs.String("binding", "", "external-runtime: run turns under the binding in this `file`")
	f.observe = observeFlag(fs)
	f.print = fs.Bool("print-request", false, "print the request that the turn of --message would send, and send nothing")
	cmd.RunE = a.runs(func(ctx context.Context, args []string) error {
		f.oneTurn = fs.Changed("message")
		if *f.lineLimit < 1 || *f.lineLimit > 1<<30 {
			return usagef("--line-limit is %s, want 1B to 1GiB", (*size)(f.lineLimit))
		}
		foreign, home := externalOnly, protocolExternal
		if *f.protocol == protocolExternal {
			foreign, home = lowkeyOnly, protocolLowkey
		}
		for _, name := range foreign {
			if fs.Changed(name) {
				return usagef("--%s is for --protocol %s", name, home)
			}
		}
		if *f.print && !f.oneTurn {
			return usagef("--print-request prints the request of one turn: give its --message")
		}
		address := "http://" + plugin.DefaultListen // which --print-request does not ask
		if len(args) > 0 {
			address = args[0]
		} else if *f.pluginID == "" {
			*f.pluginID = defaultPlugin
		}
		return a.chat(ctx, &f, address)
	})
	return cmd
}

// chat runs the command.
func (a *app) chat(ctx context.Context, f *chatFlags, address string) (err error) {
	d := &dialogue{a: a, console: a.console()}
	defer testhost.CloseIdleConnections()
	if *f.protocol == protocolExternal {
		d.talk, err = a.newExternalTalk(f, address, d.console)
	} else {
		d.talk, err = a.newLowkeyTalk(ctx, f, address)
	}
	if err != nil {
		return err
	}
	message, err := a.messageOf(f)
	if err != nil {
		return err
	}
	switch {
	case *f.print:
		request, err := d.talk.next(message)
		if err != nil {
			return err
		}
		enc := json.NewEncoder(a.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(request)
	case f.oneTurn:
		_, err := d.untilInterrupted(ctx, message)
		return err
	case d.console != nil:
		return d.converse(ctx)
	}
	return d.lines(ctx)
}

// messageOf is what --message says.
func (a *app) messageOf(f *chatFlags) (string, error) {
	if *f.message != "-" {
		return *f.message, nil
	}
	text, err := readAll(a.in, maxDocument)
	if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	return text, nil
}

// maxDocument is how much of a document is read: far more than any server takes.
const maxDocument = 64 << 20

// readAll reads all of r, if that is not more than limit bytes.
func readAll(r io.Reader, limit int64) (string, error) {
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("longer than the limit of %s", (*size)(&limit))
	}
	return b.String(), err
}
