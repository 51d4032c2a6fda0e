package plugin

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/secret"
)

// NoLimit is the value of a [Config] field for "no limit", where zero means the default.
const NoLimit = -1

// Hooks let metrics and traces see turns; see the fields.
type Hooks = runtime.Hooks

// A Secret is a token or a key. A string constant can be assigned to it as it is, a string is converted:
// plugin.Secret(os.Getenv("MUSE_TOKEN")). What prints, logs or encodes it, or a [Config] that holds it, shows
// "[redacted]".
type Secret = secret.Text

// TurnInfo says which turn a hook is called for.
type TurnInfo = runtime.TurnInfo

// Outcome is how a turn ended.
type Outcome = runtime.Outcome

// Defaults of [Config].
const (
	DefaultListen   = "127.0.0.1:8787"
	DefaultTurnPath = "/lowkey/turn"
)

// Config says what is hosted and how. Only ID and Adapter (or Adapters) are needed. The zero value of
// any other field means its default; [NoLimit] (any negative value) switches a limit off where the
// field says so.
type Config struct {
	// ID is the plugin's id, as the host's turns name it. Default: the manifest's.
	ID string
	// Adapter answers the turns of ID.
	Adapter adapters.Adapter
	// Adapters are further plugins behind the same endpoint: plugin id to adapter.
	Adapters map[string]adapters.Adapter
	// Manifest is served at /manifest.json. Default: one that names ID and the address that the request
	// for it came to.
	Manifest *manifest.Manifest

	// External, if not nil, serves agent.external-runtime beside Lowkey, with the same adapters, tokens
	// and limits.
	External *External

	// Keiki, if not nil, serves Keiki's external harness beside Lowkey, with the same adapters and limits.
	Keiki *Keiki

	// Listen is the address of [Serve], default [DefaultListen]. An address beyond loopback needs
	// Tokens, unless Insecure says otherwise.
	Listen string
	// Prefix is the path under which the handler is mounted, for servers that pass paths on whole, such
	// as "/agents". With http.StripPrefix leave it empty.
	Prefix string
	// TurnPath is where turns are sent, below Prefix. Default [DefaultTurnPath].
	TurnPath string
	// Tokens are the bearer tokens that hosts must send one of: name to token, each of at least 16
	// bytes. The name becomes the turn's Principal; sessions of different names never meet.
	Tokens map[string]Secret
	// Insecure lets Serve listen beyond loopback without tokens.
	Insecure bool
	// Replicas is how many servers of this plugin run beside each other. Sessions and repeats live in
	// this process's memory, and by default External's ledger too, so more than one gives a warning.
	Replicas int

	// Sessions, SessionBytes and SessionTTL bound the conversations kept in memory: how many, how large
	// together, and how long one is kept without a turn. Defaults 4096, 256 MiB, 24 hours; NoLimit.
	Sessions     int
	SessionBytes int64
	SessionTTL   time.Duration
	// RefuseBusy refuses a turn whose session is busy; by default it waits its turn.
	RefuseBusy bool
	// SessionWait limits that wait. By default only what limits the whole turn does: TurnTimeout, and in
	// agent.external-runtime, where the session is the binding's, the request's deadline and the profile's
	// turn-timeout-ms.
	SessionWait time.Duration

	// TurnTimeout limits a whole turn (default 10 minutes), FirstOutput the time to the adapter's first
	// output (5 minutes), Idle the silence between two of its outputs (3 minutes). NoLimit.
	TurnTimeout time.Duration
	FirstOutput time.Duration
	Idle        time.Duration
	// Heartbeat is how long a stream may be silent before a sign of life is written. Default 15
	// seconds; NoLimit for none.
	Heartbeat time.Duration
	// HostGone is what happens when the host closes a turn's connection: 0 cancels the turn at once, a
	// positive time lets the host come back with the same turn and attach to it.
	HostGone time.Duration
	// Replay is how long a completed turn is repeated to a host that sends it again, without calling
	// the adapter. Default 5 minutes, NoLimit for not at all. ReplayBytes bounds what that takes in
	// memory; default 64 MiB.
	Replay      time.Duration
	ReplayBytes int64
	// MaxTurns is how many turns may run at once, waiting ones included. 0 means no limit.
	MaxTurns int

	// MaxBody limits a request in bytes (default 8 MiB), BodyTimeout the time to read one (30 seconds),
	// WriteTimeout how long a host may take nothing of what is written (30 seconds). NoLimit.
	MaxBody      int64
	BodyTimeout  time.Duration
	WriteTimeout time.Duration
	// IdleConn is how long [Serve] keeps a connection open on which nothing happens between requests.
	// Set it above that of a load balancer in front. Default 2 minutes; NoLimit.
	IdleConn time.Duration
	// Drain is how long running turns may go on when the server is told to end. Default 30 seconds;
	// NoLimit waits for them all.
	Drain time.Duration

	// Middleware wraps the whole handler, the first one outermost. A ResponseWriter of its own needs an
	// Unwrap method; New looks whether flushes get through and warns.
	Middleware []func(http.Handler) http.Handler
	// Logger gets one line per turn. Default slog.Default().
	Logger *slog.Logger
	// Hooks see every turn.
	Hooks []Hooks
	// OnListen, if not nil, is called by [Serve] once it listens.
	OnListen func(addr net.Addr)
}

// Format makes every verb of fmt show a configuration as %+v or %#v do, without its secrets. For a verb that
// does not fit, fmt would show what the fields' pointers hold, and ask no secret how it wants to be shown.
func (c Config) Format(f fmt.State, _ rune) {
	type config Config
	show(f, config(c))
}

func show(f fmt.State, v any) {
	format := "%+v"
	if f.Flag('#') {
		format = "%#v"
	}
	_, _ = fmt.Fprintf(f, format, v)
}

// A ConfigError lists what is wrong with a [Config]. It is a mistake of whoever configured the server,
// as opposed to a failure to run it.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return strings.ReplaceAll(e.Err.Error(), "\n", "; ") }

func (e *ConfigError) Unwrap() error { return e.Err }

// minToken is the shortest token that is accepted, in bytes.
const minToken = 16

func short(t Secret) bool { return len(strings.TrimSpace(t.Reveal())) < minToken }

func (c Config) withDefaults() (Config, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.ID == "" && c.Manifest != nil {
		c.ID = c.Manifest.ID()
	}
	all := map[string]adapters.Adapter{}
	for id, a := range c.Adapters {
		if id == "" || a == nil {
			wrong("Adapters: plugin %q needs an id and an adapter", id)
		}
		all[id] = a
	}
	switch {
	case c.Adapter != nil && c.ID == "":
		wrong("ID is empty: name the plugin that the adapter answers for")
	case c.Adapter != nil && all[c.ID] != nil:
		wrong("Adapters: plugin %q is hosted by Adapter already", c.ID)
	case c.Adapter != nil:
		all[c.ID] = c.Adapter
	case len(all) == 0:
		wrong("Adapter is nil: there is nothing to host")
	}
	c.Adapters = all
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.TurnPath == "" {
		c.TurnPath = DefaultTurnPath
	}
	for name, p := range map[string]string{"TurnPath": c.TurnPath, "Prefix": c.Prefix} {
		if p != "" && (!strings.HasPrefix(p, "/") || strings.ContainsAny(p, "{}?#")) {
			wrong("%s is %q, want a path that begins with a slash", name, p)
		}
	}
	c.Prefix = strings.TrimRight(c.Prefix, "/")
	c.TurnPath = strings.TrimRight(c.TurnPath, "/")
	if c.Manifest != nil && all[c.Manifest.ID()] == nil {
		wrong("Manifest: it is that of plugin %q, which is not hosted here", c.Manifest.ID())
	}
	names := map[Secret]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Tokens)) {
		t := c.Tokens[name]
		if other, twice := names[t]; twice {
			wrong("Tokens: %q and %q are the same token, so that callers could not be told apart", other, name)
		}
		names[t] = name
		switch {
		case name == "":
			wrong("Tokens: a token has no name")
		case short(t):
			wrong("Tokens: the token %q is shorter than %d bytes: use a long random one", name, minToken)
		}
	}
	if c.IdleConn == 0 {
		c.IdleConn = 2 * time.Minute
	}
	if c.MaxTurns < 0 {
		wrong("MaxTurns is %d, want 0 (no limit) or more", c.MaxTurns)
	}
	if c.HostGone < 0 {
		wrong("HostGone is %v, want 0 (cancel at once) or a positive time", c.HostGone)
	}
	if c.Drain == 0 {
		c.Drain = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.External != nil {
		c.External = c.External.check(&c, wrong)
	}
	if c.Keiki != nil {
		c.Keiki = c.Keiki.check(&c, wrong)
	}
	if len(errs) > 0 {
		return c, &ConfigError{errors.Join(errs...)}
	}
	return c, nil
}

// checkListen refuses an address that others can reach, unless callers must prove who they are.
func (c *Config) checkListen() error {
	if len(c.Tokens) > 0 || c.Insecure || loopback(c.Listen) {
		return nil
	}
	return &ConfigError{fmt.Errorf("listening on %s without a token lets anybody run turns: set a token, listen on 127.0.0.1, or say that it is meant to be insecure", c.Listen)}
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
