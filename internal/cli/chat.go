package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

type chatFlags struct {
	message   *string
	events    *bool
	json      *bool
	pluginID  *string
	token     *secret
	session   *string
	window    *int
	userName  *string
	headless  *bool
	lineLimit *int64
	protocol  *string
	binding   *string
	observe   *string

	oneTurn bool // --message was given, though it may be empty
}

func (a *app) chatCommand() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat URL",
		Short: "Play the host: one turn, or a conversation",
		Long: `Chat plays the Lowkey host against a server, in any language. URL is the turn endpoint, or where the
server is (http://127.0.0.1:8787), and then ` + plugin.DefaultTurnPath + ` is added.

With --message it runs one turn and prints the answer as it arrives; the exit code is 1 if the turn does
not complete. Without it, on a terminal, it holds a conversation and sends the transcript window as the
platform would: Ctrl-C stops the turn that runs; at the prompt Ctrl-C or Ctrl-D leaves. Where standard
input is not a terminal, each line of it that is not empty is one message of a conversation, and the exit
code is 1 if a turn did not complete.

Answers end with a newline, added where the agent wrote none; --json has the text as it came.

With --protocol external-runtime it plays a host of agent.external-runtime and runs one turn, under the
binding in a file that the server has admitted too. What the turn asks for is answered as --observe says.
Ctrl-C cancels the turn.`,
		Example: `  # One turn, with each event's time of arrival.
  backline chat http://127.0.0.1:8787 --message 'Tell me a story' --events`,
		Args: takes(1, 1, "the URL of a server, such as http://"+plugin.DefaultListen),
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
	f.binding = fs.String("binding", "", "external-runtime: run the turn under the binding in this `file`")
	f.observe = choiceFlag(fs, "observe", "external-runtime: what becomes of tool requests and questions", observeRefuse, observeAdmit)
	cmd.RunE = a.runs(func(ctx context.Context, args []string) error {
		f.oneTurn = fs.Changed("message")
		if *f.lineLimit < 1 || *f.lineLimit > 1<<30 {
			return usagef("--line-limit is %s, want 1B to 1GiB", (*size)(f.lineLimit))
		}
		if *f.protocol == protocolExternal {
			return a.chatExternal(ctx, &f, fs, args[0])
		}
		for _, name := range []string{"binding", "observe"} {
			if fs.Changed(name) {
				return usagef("--%s is for --protocol %s", name, protocolExternal)
			}
		}
		return a.chat(ctx, &f, args[0])
	})
	return cmd
}

// chat runs the command.
func (a *app) chat(ctx context.Context, f *chatFlags, address string) error {
	at, err := parseServerURL(address)
	if err != nil {
		return err
	}
	token, err := a.read(f.token)
	if err != nil {
		return err
	}
	message, err := a.messageOf(f)
	if err != nil {
		return err
	}

	defer testhost.CloseIdleConnections()
	id := *f.pluginID
	if id == "" || at.open {
		if found := at.find(ctx); id == "" {
			id = found
		}
	}
	c := testhost.NewConversation(&testhost.Lowkey{URL: at.turns, PluginID: id, Token: token, LineLimit: int(*f.lineLimit)})
	if *f.session != "" {
		c.Handle.ID, c.Handle.SessionID = *f.session, *f.session
	}
	if dir, err := os.Getwd(); err == nil {
		c.Handle.ProjectPath = dir
	}
	c.Window, c.UserName, c.Headless = *f.window, *f.userName, *f.headless
	t := &talk{a: a, f: f, c: c}

	switch {
	case f.oneTurn:
		_, err := t.untilInterrupted(ctx, message)
		return err
	case isTerminal(a.in) && (a.outIsTTY || a.errIsTTY):
		return t.converse(ctx)
	}
	return t.lines(ctx)
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

// errStopped is the error of a turn that was stopped from here.
var errStopped = errors.New("stopped")

// stoppable runs one turn, which a signal stops. It returns the signal, if one came before the turn's
// end, and why the turn did not complete.
func (t *talk) stoppable(ctx context.Context, message string, signals <-chan os.Signal) (by os.Signal, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, watched := make(chan struct{}), make(chan os.Signal, 1)
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			watched <- s
			cancel()
		case <-ended:
		}
	}()
	err = t.turn(ctx, message)
	close(ended)
	return <-watched, err
}

// untilInterrupted runs one turn, which an interrupt stops. Outside of it an interrupt ends the program,
// as usual; one that comes at the turn's very end is told too.
func (t *talk) untilInterrupted(ctx context.Context, message string) (interrupted bool, err error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	by, err := t.stoppable(ctx, message, signals)
	signal.Stop(signals)
	return by != nil || len(signals) > 0, err
}

// lines takes each line of standard input as a message.
func (t *talk) lines(ctx context.Context) error {
	failed := 0
	for line, err := range ndjson.Lines(t.a.in, 0) {
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		interrupted, err := t.untilInterrupted(ctx, string(line.Data))
		switch {
		case errors.Is(err, errStopped) || errors.Is(err, errUnreachable):
			return err // the next turn would fare no better
		case interrupted:
			return cmp.Or(err, errStopped)
		case err == nil:
			continue
		}
		t.a.complain("%s", err)
		failed++
	}
	if failed > 0 {
		return errReported
	}
	return nil
}

// A serverURL is what chat was given.
type serverURL struct {
	base  string // what /manifest.json is looked up below; empty where that cannot be told
	turns string // where turns are posted
	open  bool   // turns may be a base instead: the manifest tells
}

func parseServerURL(s string) (*serverURL, error) {
	text := s
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, usagef("%q is not the URL of a server: want an absolute http or https URL, such as http://%s", s, plugin.DefaultListen)
	case u.User != nil:
		return nil, usagef("the URL has a user name or password in it: give a token with --token-file instead")
	case u.Fragment != "":
		return nil, usagef("the URL has a fragment (#…), which no server is sent: leave it out")
	}
	path := strings.TrimRight(u.Path, "/")
	if prefix, ok := strings.CutSuffix(path, plugin.DefaultTurnPath); ok {
		base := *u
		base.Path, base.RawPath, base.RawQuery = prefix, "", ""
		return &serverURL{base: base.String(), turns: u.String()}, nil
	}
	at := &serverURL{turns: u.String(), open: true}
	if u.RawQuery == "" && u.RawPath == "" {
		u.Path = path
		at.base = u.String()
		if path == "" {
			at.turns, at.open = at.base+plugin.DefaultTurnPath, false
		}
	}
	return at, nil
}

// find looks for the server's manifest. It returns the plugin's id, and settles whether the URL was a
// base.
func (u *serverURL) find(ctx context.Context) (pluginID string) {
	m := u.fetchManifest(ctx)
	if m == nil {
		return defaultPlugin
	}
	if u.open {
		u.turns, u.open = u.base+plugin.DefaultTurnPath, false
	}
	return m.ID()
}

// fetchManifest returns nil where there is no manifest: the turn itself will tell what is wrong.
func (u *serverURL) fetchManifest(ctx context.Context) *manifest.Manifest {
	if u.base == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.base+"/manifest.json", http.NoBody)
	if err != nil {
		return nil
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	doc, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil
	}
	m, err := manifest.Parse(doc)
	if err != nil || m.ID() == "" {
		return nil
	}
	return m
}

// A talk is a conversation and how it is shown.
type talk struct {
	a *app
	f *chatFlags
	c *testhost.Conversation

	stopped time.Time // when Ctrl-C last stopped a turn
}

// errUnreachable is in the error of a turn that never got to a server.
var errUnreachable = errors.New("is the server running?")

// A turnReport is a turn as --json prints it.
type turnReport struct {
	TurnID    string        `json:"turnId"`
	SessionID string        `json:"sessionId"`
	PluginID  string        `json:"pluginId"`
	HTTP      int           `json:"httpStatus"`
	Status    string        `json:"status"`
	Text      string        `json:"text"`
	Error     string        `json:"error,omitempty"`
	FirstText float64       `json:"firstTextMs,omitempty"`
	Total     float64       `json:"totalMs"`
	Problems  []string      `json:"problems,omitempty"`
	Events    []eventReport `json:"events,omitempty"`

	strange string // the beginning of the first line that is no event
}

type eventReport struct {
	At   float64 `json:"ms"`
	Line string  `json:"line"`
}

// How a turn can end in a report.
const (
	turnComplete  = "complete"
	turnFailed    = "error"
	turnCancelled = "cancelled"
	turnRefused   = "refused"
	turnStopped   = "stopped" // by us
	turnBroken    = "broken"  // the connection or the protocol
)

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// turn runs one turn and shows it. The error says in one line why it did not complete.
func (t *talk) turn(ctx context.Context, message string) error {
	request := t.c.Request(message)
	stream, err := t.c.Send(ctx, request)
	if err != nil {
		if ctx.Err() != nil {
			return errStopped
		}
		return fmt.Errorf("the turn could not be sent: %w; %w", err, errUnreachable)
	}
	r := &turnReport{
		TurnID:    request.Turn.TurnID,
		SessionID: request.SessionHandle.ID,
		PluginID:  request.PluginID,
		HTTP:      stream.Status,
		Status:    turnBroken,
	}
	out := &screen{a: t.a, quiet: *t.f.json || *t.f.events}
	var text strings.Builder
	var end *wire.Event
	n := 0
	for e, err := range stream.Events() {
		if err != nil {
			r.Error = err.Error()
			break
		}
		if *t.f.events {
			t.showLine(r, e)
		}
		first := n == 0
		n++
		// The contract does not ask for a start, only our own grammar does: others may leave it out.
		if e.Err != nil && !(first && e.Type != "") {
			r.Problems = append(r.Problems, e.Err.Error())
			if r.strange == "" {
				r.strange = excerpt(string(e.Raw))
			}
		}
		switch { // an event in a wrong place is shown all the same; a line that is none has no type
		case e.Type == wire.EventText && end == nil:
			if r.FirstText == 0 {
				r.FirstText = milliseconds(e.At)
			}
			text.WriteString(e.Content)
			out.text(e.Content)
		case e.Terminal() && end == nil:
			end = &e.Event
		case e.Content != "" && end == nil:
			out.status(e.Content)
		}
		if stream.Status != http.StatusOK && (end != nil || e.Err != nil) {
			break // a page of another server, perhaps; one line tells enough
		}
	}
	out.finish()
	r.Text = text.String()
	r.Total = milliseconds(time.Since(stream.Sent))
	err = r.conclude(ctx, end)
	if *t.f.json {
		if printErr := t.a.printJSON(r); printErr != nil {
			return printErr
		}
	}
	return err
}

// excerpt is the beginning of a text.
func excerpt(s string) string {
	const most = 200
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "…"
		}
	}
	return s
}

// conclude fills in how the turn ended.
func (r *turnReport) conclude(ctx context.Context, end *wire.Event) error {
	broken := r.Error
	if len(r.Problems) > 0 {
		broken = r.Problems[0] // what came first explains the rest
	}
	said := ""
	if end != nil {
		said = end.Content
	}
	switch {
	case r.HTTP != http.StatusOK:
		r.Status, r.Error = turnRefused, said
		if end == nil {
			r.Error = "the answer is not an error event: " + cmp.Or(r.strange, broken, "it is empty")
		}
		return fmt.Errorf("the turn was refused with HTTP status %d: %s", r.HTTP, r.Error)
	case ctx.Err() != nil && end == nil:
		r.Status, r.Error = turnStopped, ""
		return errStopped
	case end != nil && (end.Type == wire.EventError || end.Status == wire.StatusError):
		r.Status, r.Error = turnFailed, said
		return fmt.Errorf("the turn failed: %s", said)
	case broken != "" || end == nil:
		r.Error = broken
		return fmt.Errorf("the server broke the protocol or the connection: %s", broken)
	case end.Status == wire.StatusCancelled:
		r.Status = turnCancelled
		return errors.New("the server cancelled the turn")
	}
	r.Status = turnComplete
	return nil
}

func (t *talk) showLine(r *turnReport, e testhost.Event) {
	at, line := milliseconds(e.At), string(e.Raw)
	if *t.f.json {
		r.Events = append(r.Events, eventReport{at, line})
		return
	}
	if t.a.outIsTTY {
		line = visible(line)
	}
	_, _ = fmt.Fprintf(t.a.out, "%10s ms  %s\n", strconv.FormatFloat(at, 'f', 3, 64), line)
}

// A screen shows the text of one turn as it arrives.
type screen struct {
	a       *app
	quiet   bool
	midLine bool
}

func (s *screen) text(chunk string) {
	if s.quiet || chunk == "" {
		return
	}
	if s.a.outIsTTY {
		chunk = visible(chunk)
	}
	_, _ = io.WriteString(s.a.out, chunk)
	s.midLine = !strings.HasSuffix(chunk, "\n")
}

// status shows what the agent does, where somebody looks, and not in the middle of its text.
func (s *screen) status(content string) {
	if s.quiet || !s.a.outIsTTY || s.midLine {
		return
	}
	_, _ = fmt.Fprintf(s.a.out, "%s\n", s.a.dim("("+oneLine(content)+")"))
}

func (s *screen) finish() {
	if s.midLine {
		_, _ = io.WriteString(s.a.out, "\n")
	}
}

func (a *app) dim(s string) string { return a.styled("2", s) }

func (a *app) bold(s string) string { return a.styled("1", s) }

func (a *app) styled(code, s string) string {
	if !a.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
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
