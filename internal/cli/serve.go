package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// defaultPlugin is the plugin's id where nothing names another.
const defaultPlugin = "muse"

// scriptExit allows the scripted adapter's exit step (scripted-adapter.md). It is no flag: it must not
// get into a server by a copied command line.
const scriptExit = "BACKLINE_SCRIPT_EXIT"

// adapterNames are the adapters that serve can host, the default first.
var adapterNames = []string{"echo", "scripted"}

// newAdapter makes the adapter of this name, which is one of adapterNames.
func (a *app) newAdapter(name string) adapters.Adapter {
	if name == "scripted" {
		return scripted.New(scripted.Config{AllowExit: a.env[scriptExit] == "1"})
	}
	return echo.New()
}

// What --disconnect and --busy take.
const (
	disconnectCancel = "cancel"
	disconnectGrace  = "grace="
	busyWait         = "wait"
	busyRefuse       = "refuse"
)

// disconnect is how long a turn goes on when its host has gone.
type disconnect time.Duration

func (d *disconnect) String() string {
	if *d == 0 {
		return disconnectCancel
	}
	return disconnectGrace + (*duration)(d).String()
}

func (d *disconnect) Type() string { return disconnectCancel + "|" + disconnectGrace + "duration" }

func (d *disconnect) Set(s string) error {
	if s == disconnectCancel {
		*d = 0
		return nil
	}
	if value, ok := strings.CutPrefix(s, disconnectGrace); ok {
		if grace, err := parseDuration(value); err == nil && grace > 0 {
			*d = disconnect(grace)
			return nil
		}
	}
	return errors.New("want cancel, or grace= and a time, such as grace=30s")
}

type serveFlags struct {
	listen, pluginID, manifest *string
	adapter                    *string
	authToken                  *secretPair
	insecure                   *bool
	replicas                   *int
	store                      *storeName
	admissions                 *string
	operatorToken              *secretPair
	productRetention           *time.Duration
	streamRetention            *time.Duration

	keiki keikiFlags

	sessions   sessionFlags
	busy       *string
	wait       *time.Duration
	disconnect disconnect
	replay     *time.Duration

	limits       limitFlags
	heartbeat    *time.Duration
	writeTimeout *time.Duration
	maxBody      *int64
	maxTurns     *int

	log  logFlags
	json *bool
}

// sessionFlags bound the conversations that are kept.
type sessionFlags struct {
	sessions *int
	bytes    *int64
	ttl      *time.Duration
}

func (f *sessionFlags) add(fs *pflag.FlagSet) {
	f.sessions = countFlag(fs, "sessions", 4096, "the most sessions kept in memory; 0 is no limit")
	f.bytes = sizeFlag(fs, "session-bytes", 256<<20, "the most memory for sessions; 0 is no limit")
	f.ttl = durationFlag(fs, "session-ttl", 24*time.Hour, "how long a session is kept without a turn; 0 is for ever")
}

func (f *sessionFlags) set(conf *plugin.Config) {
	conf.Sessions, conf.SessionBytes, conf.SessionTTL = orNone(*f.sessions), orNone(*f.bytes), orNone(*f.ttl)
}

// limitFlags bound the time of a turn.
type limitFlags struct {
	turnTimeout, firstOutput, idle, drain *time.Duration
}

func (f *limitFlags) add(fs *pflag.FlagSet) {
	f.turnTimeout = durationFlag(fs, "turn-timeout", 10*time.Minute, "the longest a turn may take; 0 is no limit")
	f.firstOutput = durationFlag(fs, "first-output", 5*time.Minute, "the longest an agent may take to its first output; 0 is no limit")
	f.idle = durationFlag(fs, "idle", 3*time.Minute, "the longest an agent may be silent between two outputs; 0 is no limit")
	f.drain = durationFlag(fs, "drain", 30*time.Second, "how long running turns may go on after SIGTERM or SIGINT; 0 cancels them at once")
}

func (f *limitFlags) set(conf *plugin.Config) {
	conf.TurnTimeout, conf.FirstOutput, conf.Idle = orNone(*f.turnTimeout), orNone(*f.firstOutput), orNone(*f.idle)
	conf.Drain = max(*f.drain, time.Nanosecond) // 0 would be the default
}

// logFlags say how and what is logged.
type logFlags struct{ format, level *string }

func (f *logFlags) add(fs *pflag.FlagSet) {
	f.format = choiceFlag(fs, "log-format", "the form of the log, which goes to standard error", "text", "json")
	f.level = choiceFlag(fs, "log-level", "the least that is logged", "info", "debug", "warn", "error")
}

func (f *serveFlags) add(fs *pflag.FlagSet) {
	f.listen = fs.String("listen", plugin.DefaultListen, "listen on this `host:port`; port 0 takes a free one; beyond loopback a token is asked for")
	f.pluginID = fs.String("plugin-id", "", "the plugin's `id`, as turns name it (default: the manifest's, else "+defaultPlugin+")")
	f.manifest = fs.String("manifest", "", "serve this plugin manifest at /manifest.json (a `file`; default: one made from the id and the address)")
	f.adapter = choiceFlag(fs, "adapter", "what answers the turns", adapterNames...)
	f.authToken = secretFlag(fs, "auth-token", "the bearer `token` that hosts must send, at least 16 bytes")
	f.insecure = fs.Bool("insecure", false, "listen beyond loopback without a token")
	f.replicas = countFlag(fs, "replicas", 1, "how many servers of this plugin run beside each other; more than one brings a warning, since each keeps its own sessions")
	f.store = storeFlag(fs, "where turns of agent.external-runtime, and which of Keiki's have run, are recorded: in memory, or in a file that outlives the server")
	f.admissions = fs.String("admissions", "", "admit the profiles and bindings in this `directory`, one in each .json file, at the start and on SIGHUP")
	f.operatorToken = secretFlag(fs, "operator-token", "the bearer `token` for admitting and revoking profiles and bindings over HTTP, at least 16 bytes")
	f.productRetention = durationFlag(fs, "product-retention", 24*time.Hour, "how long the content of a turn's product can be fetched; 0 is for ever")
	f.streamRetention = durationFlag(fs, "stream-retention", 24*time.Hour, "how long the stream of an ended turn of agent.external-runtime is repeated; 0 is for ever")

	f.keiki.add(fs)

	f.sessions.add(fs)
	f.busy = choiceFlag(fs, "busy", "what a turn does whose session is busy with another", busyWait, busyRefuse)
	f.wait = durationFlag(fs, "session-wait", 0, "how long such a turn waits at most; 0, the default, is no limit but the turn's own")
	fs.Var(&f.disconnect, "disconnect", "when a turn's host goes away: cancel the turn at once, or let the host come back to it for a time")
	f.replay = durationFlag(fs, "replay", 5*time.Minute, "how long a completed turn is repeated to a host that sends it again; 0 is not at all")

	f.limits.add(fs)
	f.heartbeat = durationFlag(fs, "heartbeat", 15*time.Second, "how long a stream is silent before a sign of life is sent; 0 sends none")
	f.writeTimeout = durationFlag(fs, "write-timeout", 30*time.Second, "how long a host may take nothing of what is written; 0 is no limit")
	f.maxBody = sizeFlag(fs, "max-body", 8<<20, "the largest request; 0 is no limit")
	f.maxTurns = countFlag(fs, "max-turns", 0, "the most turns at once, waiting ones included; 0, the default, is no limit")

	f.log.add(fs)
	f.json = fs.Bool("json", false, "print the addresses as one JSON object")
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Host one plugin",
		Long: `Serve hosts one plugin: it listens for the turns of a platform, and streams back what the adapter says.
Platforms are Lowkey; any host of agent.external-runtime: what these may run is what an operator has
admitted, by --admissions or with the operator's token; and Keiki, whose requests are signed with a secret.

On start it prints the addresses, and a curl line that runs a turn. SIGTERM and SIGINT drain: new turns
are refused, running ones have --drain to end, then the exit code is 0. A second signal ends at once.

With --adapter scripted, ` + scriptExit + `=1 in the environment allows scripts to end the server.`,
		Example: `  # Behind Lowkey and Orbiplex on other machines, with a token, a directory of what is admitted and a
  # ledger that outlives the server.
  backline serve --listen :8787 --auth-token-file token.txt --admissions admitted --store sqlite:turns.db`,
		Args: takes(0, 0, ""),
		RunE: a.runs(func(ctx context.Context, _ []string) error { return a.serve(ctx, &f) }),
	}
	cmd.Flags().SortFlags = false
	f.add(cmd.Flags())
	return cmd
}

// orNone makes 0, which means none on the command line, what means none in a plugin.Config, where 0 is
// the default.
func orNone[T int | int64 | time.Duration](v T) T {
	if v == 0 {
		return plugin.NoLimit
	}
	return v
}

// config makes the plugin's configuration of the flags.
func (a *app) config(f *serveFlags) (plugin.Config, error) {
	var conf plugin.Config
	if err := checkListen(*f.listen); err != nil {
		return conf, err
	}
	if *f.replicas < 1 {
		return conf, usagef("--replicas is %d, want at least 1", *f.replicas)
	}
	id := *f.pluginID
	if *f.manifest != "" {
		m, err := manifest.Load(*f.manifest)
		if err != nil {
			return conf, usagef("--manifest: %w", err)
		}
		switch {
		case id == "":
			id = m.ID()
		case id != m.ID():
			return conf, usagef("--plugin-id is %q, and the manifest's id is %q: leave one of them out, or make them the same", id, m.ID())
		}
		conf.Manifest = m
	}
	if id == "" {
		id = defaultPlugin
	}
	token, err := a.read(f.authToken)
	if err != nil {
		return conf, err
	}
	if token != "" {
		conf.Tokens = map[string]plugin.Secret{"default": token}
	}

	operator, err := a.read(f.operatorToken)
	if err != nil {
		return conf, err
	}
	conf.External = &plugin.External{
		Admissions:       *f.admissions,
		OperatorToken:    operator,
		ProductRetention: orNone(*f.productRetention),
		StreamRetention:  orNone(*f.streamRetention),
	}

	conf.Keiki = &plugin.Keiki{}
	if err := f.keiki.set(a, conf.Keiki); err != nil {
		return conf, err
	}

	conf.ID = id
	conf.Adapter = a.newAdapter(*f.adapter)
	conf.Listen = *f.listen
	conf.Insecure = *f.insecure
	conf.Replicas = *f.replicas
	f.sessions.set(&conf)
	f.limits.set(&conf)
	conf.RefuseBusy = *f.busy == busyRefuse
	conf.SessionWait = *f.wait
	conf.HostGone = time.Duration(f.disconnect)
	conf.Replay = orNone(*f.replay)
	conf.Heartbeat = orNone(*f.heartbeat)
	conf.WriteTimeout = orNone(*f.writeTimeout)
	conf.MaxBody = orNone(*f.maxBody)
	conf.MaxTurns = *f.maxTurns
	conf.Logger = a.logger(&f.log)
	return conf, nil
}

// checkListen refuses what is no address at all; whether it can be listened on is seen when it is tried.
func checkListen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usagef("--listen is %q, want a host and a port, such as %s, or :8787 for all interfaces", addr, plugin.DefaultListen)
	}
	return nil
}

// logger writes to standard error.
func (a *app) logger(f *logFlags) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[*f.level]}
	if *f.format == "json" {
		return stray(slog.New(slog.NewJSONHandler(a.err, options)))
	}
	return stray(slog.New(slog.NewTextHandler(a.err, options)))
}

func (a *app) serve(ctx context.Context, f *serveFlags) (err error) {
	conf, err := a.config(f)
	if err != nil {
		return err
	}
	store, err := f.store.open(ctx)
	if err != nil {
		return err
	}
	defer func() { // after the drain
		if closeErr := store.Close(); err == nil {
			err = closeErr
		}
	}()
	conf.External.Store = store
	var p *plugin.Plugin
	conf.OnListen = func(addr net.Addr) { a.announce(p, f, &conf, addr) }
	var wrong *plugin.ConfigError
	if p, err = plugin.New(conf); errors.As(err, &wrong) {
		return &usageError{err}
	} else if err != nil {
		return err
	}
	err = p.ListenAndServe(ctx)
	switch {
	case errors.As(err, &wrong) && len(conf.Tokens) == 0 && !conf.Insecure:
		return usagef("listening on %s without a token lets anybody run turns: give --auth-token-file FILE, or listen on 127.0.0.1, or say --insecure if that is meant", conf.Listen)
	case errors.As(err, &wrong):
		return &usageError{err}
	}
	return err
}

// addresses are what serve prints.
type addresses struct {
	Plugin      string `json:"plugin"`
	Adapter     string `json:"adapter"`
	Listen      string `json:"listen"`
	Turns       string `json:"turns"`
	External    string `json:"external"`
	Store       string `json:"store"`
	Keiki       string `json:"keiki"`
	KeikiSecret string `json:"keikiSecret"` // none, for all agents, by agent
	Healthz     string `json:"healthz"`
	Readyz      string `json:"readyz"`
	Manifest    string `json:"manifest"`
	Schema      string `json:"schema"`
	Curl        string `json:"curl"`
	Chat        string `json:"chat"`
	// ExternalChat runs turns under a binding in the directory of admissions; empty where there is none.
	ExternalChat string `json:"externalChat,omitempty"`
	Platform     string `json:"keikiPlatform,omitempty"`
}

// announce prints where the server is and how to try it.
func (a *app) announce(p *plugin.Plugin, f *serveFlags, conf *plugin.Config, addr net.Addr) {
	reach := reachable(addr)
	base := "http://" + reach
	auth, prefix, chatFlags := "", "", ""
	switch {
	case f.authToken.file != "":
		file, err := filepath.Abs(f.authToken.file)
		if err != nil {
			file = f.authToken.file
		}
		auth = `"Authorization: Bearer $(tr -d '[:space:]' < ` + shellQuote(file) + `)"`
		chatFlags = " --token-file " + shellQuote(file)
	case f.authToken.value != "":
		auth = `"Authorization: Bearer $` + envName("auth-token") + `"`
		prefix = envName("token") + `="$` + envName("auth-token") + `" `
	}
	platform, secretFromEnv := f.keiki.platformLine(a, conf.Keiki, p.KeikiURL(reach))
	where := addresses{
		Plugin:      conf.ID,
		Adapter:     *f.adapter,
		Listen:      addr.String(),
		Turns:       p.TurnURL(reach),
		External:    p.ExternalURL(reach) + "/turns",
		Keiki:       p.KeikiURL(reach),
		KeikiSecret: f.keiki.have(conf.Keiki.Secrets),
		Store:       f.store.String(),
		Healthz:     base + "/healthz",
		Readyz:      base + "/readyz",
		Manifest:    base + "/manifest.json",
		Schema:      base + wire.SchemaPath,
		Curl:        curlLine(p.TurnURL(reach), conf.ID, auth),
		Chat:        prefix + a.self() + " chat " + base + chatFlags,
		Platform:    platform,
	}
	if file := bindingIn(*f.admissions); file != "" {
		where.ExternalChat = where.Chat + " --protocol " + protocolExternal + " --binding " + shellQuote(file)
	}
	if *f.json {
		_ = a.printJSON(where) // finish looks at the output's error
		return
	}
	_, _ = fmt.Fprintf(a.out, `Plugin %s, answered by the %s adapter, listens on %s.

  turns     %s
  external  %s
  keiki     %s (signing secret: %s)
  alive     %s
  ready     %s
  manifest  %s
  schema    %s

Run a turn, a new one each time:

  %s

Or hold a conversation:

  %s

`, visible(strconv.Quote(where.Plugin)), where.Adapter, where.Listen, where.Turns, where.External, where.Keiki, where.KeikiSecret, where.Healthz, where.Readyz, where.Manifest, where.Schema, where.Curl, where.Chat)
	if where.ExternalChat != "" {
		_, _ = fmt.Fprintf(a.out, "Or one as a host of agent.external-runtime does, under a binding that is admitted:\n\n  %s\n\n", where.ExternalChat)
	}
	if *f.admissions == "" && conf.External.OperatorToken == "" {
		_, _ = fmt.Fprint(a.out, "Turns of agent.external-runtime are refused, since nothing is admitted: give --admissions DIR, or\n"+
			"--operator-token-file FILE and admit over HTTP.\n\n")
	}
	if f.authToken.value != "" {
		_, _ = fmt.Fprintf(a.out, "These take the token from %s in your shell's environment.\n\n", envName("auth-token"))
	}
	a.announceKeiki(&where, secretFromEnv)
}

// bindingIn names a file in a directory of admissions that has a binding under which turns may run; empty where
// there is none.
func bindingIn(dir string) string {
	if dir == "" {
		return ""
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "" // the server has read it, and would have told
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(file, ".json") {
			continue
		}
		b, err := readBinding(file)
		if err != nil {
			continue
		}
		if expires, err := b.ExpiresAt.Time(); err != nil || !expires.After(time.Now()) {
			continue
		}
		if abs, err := filepath.Abs(file); err == nil {
			file = abs
		}
		return file
	}
	return ""
}

// reachable is the host and port under which a listener is found on this machine.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
}

// self is how the user may call this program again.
func (a *app) self() string {
	// go run builds into a folder of this name, which is in nobody's path.
	exe, err := os.Executable()
	if err != nil || !strings.Contains(filepath.ToSlash(exe), "/go-build") {
		return "backline"
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if version := moduleVersion(info); release.MatchString(version) {
			return "go run " + modulePath + "/cmd/backline@" + version
		}
	}
	return "go run ./cmd/backline"
}

// printJSON prints v as one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
