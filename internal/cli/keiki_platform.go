package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/secret"
)

type platformFlags struct {
	flags *pflag.FlagSet

	listen  *string
	mode    *string
	appURL  *string
	agentID *string
	secret  *secretPair
	secrets string
	apiKey  *secretPair

	once        *string
	json        *bool
	concurrency *int
	timeout     *time.Duration
	lease       *time.Duration
	history     *int

	drop, errors, throttle, unknown, seed *int

	streamPath, resultPath *string
}

const (
	platformListen     = "127.0.0.1:8790"
	platformAgent      = "agent-1"
	platformSecretFlag = "secret"
	platformKeyFlag    = "api-key"
)

func (a *app) keikiPlatformCommand() *cobra.Command {
	var f platformFlags
	cmd := &cobra.Command{
		Use:   "platform [FILE]",
		Short: "Play Keiki on this machine, for trying a plugin",
		Long: `Platform stands in for Keiki: it signs turns and brings them to a server, in any language, in one of the
three modes, takes what the server sends, holds it to the contract, and shows what a contact would have
got. On start it prints what to run beside it.

At a terminal each line is a turn, or a message for the turn that runs; /help lists what else can be said.
Elsewhere the lines are those of FILE or of standard input: each turn waits for the one before in its
conversation. A line that begins with { is a whole turn in JSON. With --once there is one turn. From a
file and with --once the exit code is 1 if a turn failed or the server broke the contract. Turns of the
inbox wait until they are claimed.

Secrets that are not given are minted: into the file that was named, if it is not there yet, else they are
printed on start. Turn tokens are never printed.`,
		Example: `  # One turn, for a server that was given the secret in this file.
  backline keiki platform --secret-file keiki-secret.txt --once 'Tell me a story'`,
		Args: takes(0, 1, "one FILE"),
		RunE: a.runs(func(ctx context.Context, args []string) error {
			file := ""
			if len(args) > 0 {
				file = args[0]
			}
			return a.keikiPlatform(ctx, &f, file)
		}),
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *platformFlags) add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	f.flags = fs
	f.listen = fs.String("listen", platformListen, "serve the platform's API at this `host:port`; port 0 takes a free one")
	f.mode = choiceFlag(fs, "mode", "how turns come to the server", string(testhost.KeikiPushMode), string(testhost.KeikiRelayMode), string(testhost.KeikiInboxMode))
	f.appURL = appURLFlag(fs, "push to the server at this `URL`")
	f.agentID = fs.String("agent-id", "", "the agent's `id` (default: the first of --secrets, else "+platformAgent+")")
	f.secret = secretFlag(fs, platformSecretFlag, "the signing `secret`, at least 16 bytes")
	fs.Lookup(platformSecretFlag + fileSuffix).Usage = signingSecretFileUsage(platformSecretFlag) + "; minted into it where there is no such file"
	fs.StringVar(&f.secrets, "secrets", "", "the signing secrets by agent, as serve takes them (a JSON `file`)")
	twins(fs, platformSecretFlag, platformSecretFlag+fileSuffix, "secrets")
	f.apiKey = secretFlag(fs, platformKeyFlag, "relay and inbox: the harness API `key`, which begins with sk_")
	fs.Lookup(platformKeyFlag + fileSuffix).Usage += "; minted into it where there is no such file"

	f.once = fs.String("once", "", "dispatch one turn with this `text`, or the turn that it is in JSON, and wait for its end; - reads the whole of standard input")
	f.json = fs.Bool("json", false, "print what happens as JSON, one object a line")
	f.concurrency = countFlag(fs, "concurrency", 1, "from a file: the most turns at once")
	f.timeout = durationFlag(fs, "timeout", 10*time.Minute, "the time of a turn until its deadline")
	f.lease = durationFlag(fs, "lease", time.Minute, "inbox: how long a claim holds; relay: how long until a turn is offered again")
	f.history = countFlag(fs, "history", 40, "the most entries of a conversation that a turn carries")

	f.drop = countFlag(fs, "drop", 0, "of a hundred requests to the platform, so many have their connection cut, half of them after they were processed")
	f.errors = countFlag(fs, "errors", 0, "so many are answered 500, half of them after they were processed")
	f.throttle = countFlag(fs, "throttle", 0, "so many are answered 429")
	f.unknown = countFlag(fs, "unknown", 0, "of a hundred messages, so many have a delivery error: nobody knows whether they came")
	f.seed = countFlag(fs, "seed", 1, "what goes wrong is the same for the same number and the same requests")

	f.streamPath = fs.String("stream-path", keiki.DefaultStreamPath, "take streamed text at this `path` below a turn's URL")
	f.resultPath = fs.String("result-path", keiki.DefaultResultPath, "relay: take reports at this `path` below the API base, in which {id} stands for the turn's id")
}

// A platformKey is a secret that the stand-in was given or mints.
type platformKey struct {
	text   secret.Text // empty: to be minted
	file   string      // that has it, or gets it
	minted bool
}

// key reads a secret of the flags. Where its file is not there yet, it is to be minted.
func (a *app) key(s *secretPair, read func(*secretPair) (secret.Text, error)) (platformKey, error) {
	k := platformKey{file: s.file}
	if s.file != "" && !s.flags.Changed(s.name) {
		if _, err := os.Stat(s.file); errors.Is(err, os.ErrNotExist) {
			k.minted = true
			return k, nil
		}
	}
	var err error
	k.text, err = read(s)
	k.minted = k.text == "" && err == nil
	return k, err
}

// handOver keeps a secret that was minted in its file, if it has one.
func (k *platformKey) handOver(minted string) error {
	k.text = secret.Text(minted)
	if k.file == "" {
		return nil
	}
	f, err := os.OpenFile(k.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("what was minted cannot be kept: %w", err)
	}
	_, err = io.WriteString(f, minted+"\n")
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// shown is a secret that has to be handed over on the screen; empty where it is known, or in a file.
func (k *platformKey) shown() string {
	if k.minted && k.file == "" {
		return k.text.Reveal()
	}
	return ""
}

// A platformSetup is what the flags of platform come to.
type platformSetup struct {
	conf   testhost.KeikiConfig
	app    string // the server's endpoint
	secret platformKey
	apiKey platformKey
	agents keiki.Secrets // with --secrets
}

func (a *app) platformSetup(f *platformFlags) (*platformSetup, error) {
	if err := checkListen(*f.listen); err != nil {
		return nil, err
	}
	if err := atLeastOne("concurrency", *f.concurrency); err != nil {
		return nil, err
	}
	if *f.drop+*f.errors+*f.throttle > 100 || *f.unknown > 100 {
		return nil, usagef("--drop, --errors and --throttle are of a hundred requests together, and --unknown of a hundred messages: want at most 100")
	}
	if *f.timeout == 0 || *f.lease == 0 {
		return nil, usagef("--timeout and --lease want a time above 0")
	}
	if err := checkPath("stream-path", *f.streamPath); err != nil {
		return nil, err
	}
	if !strings.Contains(*f.resultPath, "{id}") {
		return nil, usagef("--result-path has no {id} in it, which stands for the turn's id")
	}
	s := &platformSetup{}
	var err error
	if s.app, err = appURL("app-url", *f.appURL); err != nil {
		return nil, err
	}
	s.conf = testhost.KeikiConfig{
		DispatchURL: s.app, Mode: testhost.KeikiMode(*f.mode), AgentID: *f.agentID, Timeout: *f.timeout, Lease: *f.lease,
		History: *f.history, StreamPath: strings.Trim(*f.streamPath, "/"), ResultPath: strings.Trim(*f.resultPath, "/"),
		InFlight: 2 * time.Second,
	}
	if err := a.platformSecrets(f, s); err != nil {
		return nil, err
	}
	if s.apiKey, err = a.key(f.apiKey, a.read); err != nil {
		return nil, err
	}
	if s.conf.APIKey = s.apiKey.text.Reveal(); s.conf.APIKey != "" && !strings.HasPrefix(s.conf.APIKey, "sk_") {
		return nil, usagef("the harness API key does not begin with sk_")
	}
	return s, nil
}

// platformSecrets reads the signing secrets, and who the agent is.
func (a *app) platformSecrets(f *platformFlags, s *platformSetup) (err error) {
	if !f.flags.Changed("secrets") {
		if s.conf.AgentID == "" {
			s.conf.AgentID = platformAgent
		}
		s.secret, err = a.key(f.secret, a.readSigningSecret)
		if text := s.secret.text.Reveal(); text != "" {
			s.conf.Secrets = map[string][]string{s.conf.AgentID: {text}}
		}
		return err
	}
	if f.flags.Changed(platformSecretFlag) || f.flags.Changed(platformSecretFlag+fileSuffix) {
		return usagef("--secret and --secrets are both given: give one of them")
	}
	if s.agents, err = readSecretsFile("secrets", f.secrets); err != nil {
		return err
	}
	s.conf.Secrets = map[string][]string{}
	for agent, list := range s.agents.Agents {
		for _, text := range list {
			s.conf.Secrets[agent] = append(s.conf.Secrets[agent], text.Reveal())
		}
	}
	if s.conf.AgentID == "" {
		s.conf.AgentID = slices.Min(slices.Collect(maps.Keys(s.conf.Secrets)))
	}
	if s.conf.Secrets[s.conf.AgentID] == nil {
		return usagef("--agent-id is %q, for which there is no secret in --secrets", s.conf.AgentID)
	}
	return nil
}

func (a *app) keikiPlatform(ctx context.Context, f *platformFlags, file string) error {
	setup, err := a.platformSetup(f)
	if err != nil {
		return err
	}
	once := f.flags.Changed("once")
	switch {
	case once && file != "":
		return usagef("--once is one turn, and a FILE was given too")
	case once && setup.conf.Mode == testhost.KeikiPushMode && setup.secret.minted:
		return usagef("--once needs the secret that the server has been given: give it with --secret%s FILE", fileSuffix)
	}
	text := *f.once
	if text == "-" {
		if text, err = readAll(a.in, maxDocument); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
	}
	if once && strings.TrimSpace(text) == "" {
		return usagef("--once is empty, and a turn has a message")
	}
	var in io.Reader
	switch {
	case once:
	case file != "" && file != "-":
		opened, err := os.Open(file)
		if err != nil {
			return usagef("%w", err)
		}
		defer func() { _ = opened.Close() }() // it was only read
		in = opened
	case file == "-" || a.console() == nil:
		in = a.in
	}
	p := &platformRun{a: a, f: f, setup: setup, text: text, once: once, in: in}
	if in == nil && !once {
		p.console = a.console()
	}
	return p.run(ctx)
}

// lastAnswers is for answers to be written when all is over.
const lastAnswers = 250 * time.Millisecond

// A platformRun is one run of the stand-in.
type platformRun struct {
	a       *app
	f       *platformFlags
	setup   *platformSetup
	console *console  // where somebody types
	in      io.Reader // lines, where nobody does
	once    bool
	text    string // of the one turn

	s *standIn
}

// run runs the stand-in until its input ends.
func (p *platformRun) run(ctx context.Context) (err error) {
	conf := p.setup.conf
	p.s = newStandIn(conf.Mode, conf.AgentID)
	if p.console == nil {
		p.s.concurrency = *p.f.concurrency
	}
	seed := uint64(*p.f.seed) //nolint:gosec // it is not negative
	var faults func(*http.Request, int) testhost.KeikiFault
	if *p.f.drop+*p.f.errors+*p.f.throttle > 0 {
		faults = testhost.RandomFaults(seed, *p.f.drop, *p.f.errors, *p.f.throttle)
	}
	p.s.hook(&conf, faults, seed, *p.f.unknown)
	k, err := testhost.NewKeiki(conf)
	if err != nil {
		return &usageError{err}
	}
	defer k.Close()
	p.s.k = k
	p.s.out = &platformOutput{a: p.a, console: p.console, json: *p.f.json, redact: redactor(k, append(slices.Collect(maps.Keys(p.setup.agents.Agents)), conf.AgentID))}

	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", *p.f.listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use: stop the other program or give --listen another address", *p.f.listen)
	case err != nil:
		return fmt.Errorf("listen on %s: %w", *p.f.listen, err)
	}
	if err = k.SetURL("http://" + reachable(ln.Addr())); err == nil {
		err = p.handOver()
	}
	if err != nil {
		_ = ln.Close() // nothing was served yet
		return err
	}
	server := &http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	defer func() {
		k.Close() // polls that are held are answered
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close() // connections on which nothing was ever asked
		}
		<-served //nolint:errcheck // http.ErrServerClosed
	}()
	p.announce()
	return untilSignalled(ctx, nil, func(ctx context.Context) error {
		defer p.s.tasks.Wait()
		err := p.take(ctx)
		p.s.leave(ctx)
		return err
	})
}

// handOver mints what was not given.
func (p *platformRun) handOver() error {
	needsSecret, needsKey := p.needs()
	p.s.byAgent = map[string]bool{}
	for agent := range p.setup.agents.Agents {
		p.s.byAgent[agent] = true
	}
	if needsSecret && p.setup.agents.Agents == nil {
		secrets := p.s.k.Secrets("")
		if p.setup.secret.minted {
			if err := p.setup.secret.handOver(secrets[0]); err != nil {
				return err
			}
		}
		p.s.secrets = secrets
	}
	key := p.s.k.APIKey("") // which pollers can use from now on
	if needsKey && p.setup.apiKey.minted {
		return p.setup.apiKey.handOver(key)
	}
	return nil
}

// needs tells which secrets the mode has.
func (p *platformRun) needs() (signingSecret, apiKey bool) {
	mode := p.setup.conf.Mode
	return mode != testhost.KeikiInboxMode, mode != testhost.KeikiPushMode
}

// take takes turns from where they come from, and waits for their end unless somebody types.
func (p *platformRun) take(ctx context.Context) error {
	var err error
	switch {
	case p.console != nil:
		return p.converse(ctx)
	case p.once:
		err = p.one(ctx)
	default:
		err = p.lines(ctx)
	}
	if err == nil {
		err = p.s.idle(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return errStopped
	case err != nil:
		return err
	}
	return p.s.verdict()
}

// one dispatches the turn of --once.
func (p *platformRun) one(ctx context.Context) error {
	l, err := parsePlatformLine(p.text)
	if err == nil && l.kind != lineMessage && l.kind != lineTurn {
		err = errors.New("it is a command, and no turn")
	}
	if err != nil {
		return usagef("--once: %w", err)
	}
	if l.kind == lineMessage {
		l.turn.Text = l.text
	}
	return p.s.dispatch(ctx, l.turn)
}

// lines does what each line says.
func (p *platformRun) lines(ctx context.Context) error {
	type read struct {
		line ndjson.Line
		err  error
	}
	lines := make(chan read)
	go func() { // ends with its input, or with the program: a read cannot be given up
		defer close(lines)
		for line, err := range ndjson.Lines(p.in, 0) {
			line.Data = append([]byte(nil), line.Data...)
			select {
			case lines <- read{line, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r, more := <-lines:
			switch {
			case !more:
				return nil
			case r.err != nil:
				return fmt.Errorf("the input: %w", r.err)
			case strings.TrimSpace(string(r.line.Data)) == "":
				continue
			}
			quit, err := p.s.line(ctx, string(r.line.Data), false)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				return fmt.Errorf("line %d of the input: %w", r.line.Number, err)
			case quit:
				return nil
			}
		}
	}
}

// converse does what somebody types.
func (p *platformRun) converse(ctx context.Context) error {
	for quit := false; !quit && ctx.Err() == nil; {
		text, err := p.console.message(ctx, p.a.bold("> "), nil, nil)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(text) == "" {
			continue
		}
		if quit, err = p.s.line(ctx, text, true); err != nil && ctx.Err() == nil {
			p.console.show("backline: " + oneLine(err.Error()))
		}
	}
	return nil
}

// announce prints what to run beside the stand-in.
func (p *platformRun) announce() {
	s, conf := p.setup, &p.setup.conf
	e := platformEvent{
		Event: eventListening, Mode: string(conf.Mode), AgentID: conf.AgentID, APIBase: p.s.k.APIBase(), AppURL: s.app,
		Secret: s.secret.shown(), SecretFile: s.secret.file, APIKey: s.apiKey.shown(), APIKeyFile: s.apiKey.file,
	}
	needsSecret, needsKey := p.needs()
	if !needsSecret {
		e.Secret, e.SecretFile, e.AppURL = "", "", ""
	}
	if !needsKey {
		e.APIKey, e.APIKeyFile = "", ""
	}
	e.Commands = p.commands(&e)
	if *p.f.json {
		p.s.out.event(e)
		return
	}
	if p.once && e.Secret == "" && e.APIKey == "" {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Playing Keiki at %s for %s, in %s mode. Run beside it:\n\n", e.APIBase, visible(e.AgentID), e.Mode)
	for _, line := range e.Commands {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	if conf.Mode == testhost.KeikiPushMode {
		fmt.Fprintf(&b, "\nTurns are pushed to %s.\n", s.app)
	}
	if p.console != nil {
		b.WriteString("\n" + p.a.dim("A line is a turn, or a message for the turn that runs. /help lists what else there is; Ctrl-C leaves.") + "\n")
	}
	b.WriteString("\n")
	p.s.out.print(b.String())
}

// commands are the command lines to run beside the stand-in.
func (p *platformRun) commands(e *platformEvent) []string {
	var lines []string
	needsSecret, needsKey := p.needs()
	serve := p.a.self() + " serve"
	if needsSecret {
		switch {
		case p.setup.agents.Agents != nil:
			serve += " --keiki-secrets " + shellQuote(absolute(p.f.secrets))
		case e.SecretFile != "":
			serve += " --keiki-secret-file " + shellQuote(absolute(e.SecretFile))
		case e.Secret != "":
			lines = append(lines, "export "+envName(keikiSecretFlag)+"="+shellQuote(e.Secret))
		default:
			serve = envName(keikiSecretFlag) + `="$` + envName(platformSecretFlag) + `" ` + serve
		}
		if listen := servedAt(p.setup.app); listen != plugin.DefaultListen && listen != "" {
			serve += " --listen " + shellQuote(listen)
		}
		lines = append(lines, serve)
	}
	if needsKey {
		poll := p.a.self() + " keiki " + e.Mode + " --api-base " + shellQuote(e.APIBase)
		switch {
		case e.APIKeyFile != "":
			poll += " --api-key-file " + shellQuote(absolute(e.APIKeyFile))
		case e.APIKey != "":
			lines = append(lines, "export "+keikiAPIKey+"="+shellQuote(e.APIKey))
		default:
			poll = keikiAPIKey + `="$` + envName(platformKeyFlag) + `" ` + poll
		}
		if e.AppURL != "" && e.AppURL != defaultAppURL {
			poll += " --app-url " + shellQuote(e.AppURL)
		}
		lines = append(lines, poll)
	}
	return lines
}

// servedAt is where serve would have to listen for its endpoint to be this one; empty where it cannot.
func servedAt(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Path != plugin.DefaultKeikiPath || u.Port() == "" || !isLoopback(u.Hostname()) {
		return ""
	}
	return u.Host
}
