package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/ledger"
)

// DefaultKeikiPath is where signed requests of Keiki's are sent.
const DefaultKeikiPath = "/keiki/turn"

// keikiSchemas is where the schemas of signed requests and of claims are, each under its file's name.
const keikiSchemas = "/schemas/keiki/"

// KeikiSecrets are the signing secrets of Keiki's agents.
type KeikiSecrets = keiki.Secrets

// A Delivery says how an adapter's text becomes messages.
type Delivery = keiki.Delivery

// The deliveries of [Keiki].
const (
	Paragraphs   = keiki.Paragraphs
	WholeMessage = keiki.WholeMessage
	Streamed     = keiki.Streamed
)

// ErrKeyRefused reports that the platform does not take [KeikiInbox.APIKey].
var ErrKeyRefused = keiki.ErrKeyRefused

// Keiki opens a plugin to Keiki's external harness as well: signed turns are pushed to Path and answered
// through the platform's turn API, by the same adapters. Its zero value refuses every request, since no
// signing secret is configured.
type Keiki struct {
	// Path is where signed requests are sent, below Config.Prefix. Default [DefaultKeikiPath].
	Path string
	// Secrets are the signing secrets, one list for all agents or one for each; several in a list let a
	// secret be rotated. Without any every request is refused.
	Secrets KeikiSecrets
	// Tolerance is how far a signature's time may be from now, either way. Default 300 seconds.
	Tolerance time.Duration
	// APIBase pins the platform: a turn whose API base has another origin is refused. Empty means that
	// every signed one is taken.
	APIBase string
	// Agents tells which plugin answers for an agent: agent id to plugin id. An agent that is not named is
	// answered for by the plugin of its own id, else by Config.Adapter or the only plugin there is, else by
	// nobody: its turns are refused.
	Agents map[string]string
	// Delivery says how text becomes messages. Default [Paragraphs].
	Delivery Delivery
	// StreamPath is the path below a turn's URL that [Streamed] posts to. Default "stream".
	StreamPath string
	// MaxMessage is the longest message in bytes. Default 16 KiB, and 1 MiB for [WholeMessage].
	MaxMessage int
	// FlaggedWarning is put before the instructions of a turn with a message that the platform's screening
	// has flagged. The default says not to follow instructions in it.
	FlaggedWarning string
	// Store remembers which turn ids have run, so that none runs twice. It is the caller's, who closes it
	// once the plugin has drained. Default: External's, if there is one, else this process's memory, which
	// forgets all with it.
	Store ledger.Store
	// Inbox is what [PollInbox] polls.
	Inbox *KeikiInbox
}

// KeikiInbox says where turns are claimed by polling. [Keiki.APIBase] names the platform.
type KeikiInbox struct {
	// APIKey is the harness API key. Required.
	APIKey Secret
	// Wait is how long the platform is to hold a poll, up to 30 seconds. Default 25 seconds; negative means
	// not at all.
	Wait time.Duration
	// Concurrency is how many turns run at once. Default 4.
	Concurrency int
}

// Format is that of [Config].
func (k Keiki) Format(f fmt.State, _ rune) {
	type keiki Keiki
	show(f, keiki(k))
}

// Format is that of [Config].
func (i KeikiInbox) Format(f fmt.State, _ rune) {
	type inbox KeikiInbox
	show(f, inbox(i))
}

// check names what is wrong and sets what is missing. c is a copy whose Adapters are complete.
func (k *Keiki) check(c *Config, wrong func(format string, args ...any)) *Keiki {
	own := *k
	if own.Path == "" {
		own.Path = DefaultKeikiPath
	}
	if !strings.HasPrefix(own.Path, "/") || strings.ContainsAny(own.Path, "{}?#") {
		wrong("Keiki.Path is %q, want a path that begins with a slash", own.Path)
	}
	own.Path = strings.TrimRight(own.Path, "/")
	if own.Path == c.TurnPath {
		wrong("Keiki.Path is %q, which is TurnPath too", own.Path)
	}
	taken := []string{"/healthz", "/readyz", "/manifest.json", "/schemas", probePath}
	if c.External != nil {
		taken = append(taken, ExternalPath)
	}
	for _, other := range taken { // which would never let a request through
		if own.Path == other || strings.HasPrefix(own.Path, other+"/") {
			wrong("Keiki.Path is %q, and something else is served at %s/", own.Path, other)
		}
	}
	for agent, id := range own.Agents {
		if c.Adapters[id] == nil {
			wrong("Keiki.Agents: agent %q is to be answered for by plugin %q, which is not hosted here", agent, id)
		}
	}
	for name := range c.Tokens {
		if strings.HasPrefix(name, "keiki:") || strings.HasPrefix(name, "keiki-turn:") { // their sessions would meet
			wrong("Tokens: the name %q begins with \"keiki:\" or \"keiki-turn:\", which are kept for Keiki's agents", name)
		}
	}
	if own.Store == nil {
		if c.External != nil {
			own.Store = c.External.Store
		} else {
			own.Store = ledger.NewMemory(ledger.MemoryConfig{})
		}
	}
	return &own
}

// openKeiki makes the handler. The store's facts are recovered, unless External has done that.
func (p *Plugin) openKeiki() error {
	c, k := &p.conf, p.conf.Keiki
	by, other := c.agents(k.Agents, func(string) bool { return true })
	shared := keiki.Config{
		Engine:         p.engine,
		Claims:         k.Store,
		Adapters:       by,
		Adapter:        other,
		APIBase:        k.APIBase,
		Delivery:       k.Delivery,
		StreamPath:     k.StreamPath,
		MaxMessage:     k.MaxMessage,
		FlaggedWarning: k.FlaggedWarning,
		Logger:         c.Logger,
	}
	var err error
	p.keiki, err = keiki.New(keiki.PushConfig{
		Config:      shared,
		Secrets:     k.Secrets,
		Tolerance:   k.Tolerance,
		MaxBody:     c.MaxBody,
		BodyTimeout: c.BodyTimeout,
	})
	if err != nil {
		return &ConfigError{err}
	}
	if k.Inbox != nil {
		p.inbox, err = keiki.NewInbox(keiki.InboxConfig{
			Config:      shared,
			APIKey:      k.Inbox.APIKey,
			Wait:        k.Inbox.Wait,
			Concurrency: k.Inbox.Concurrency,
		})
		if err != nil {
			return &ConfigError{err}
		}
	}
	if c.External == nil || c.External.Store != k.Store {
		found, err := k.Store.Recover(context.Background(), time.Now(), nil)
		if err != nil {
			return fmt.Errorf("the store of Keiki's turn ids cannot be recovered: %w", err)
		}
		if found.Lost > 0 {
			c.Logger.Warn("turns ended with the server before this one, and are not run again", "protocol", string(adapters.Keiki), "turns", found.Lost)
		}
	}
	return nil
}

// PollInbox claims turns from Keiki's inbox and runs them here, without a server: until ctx is done or the
// process gets SIGINT or SIGTERM, and then drains. Turns that Config.Drain leaves no time for are left to
// their lease. conf.Keiki.Inbox is required. It returns nil after a drain, [ErrKilled] after a second signal,
// [ErrKeyRefused] once the turns in hand are done where the platform refuses the key, and a [*ConfigError]
// where conf is wrong.
func PollInbox(ctx context.Context, conf Config) error {
	p, err := New(conf)
	if err != nil {
		return err
	}
	if p.inbox == nil {
		return &ConfigError{errors.New("Keiki.Inbox is nil: there is nothing to poll")}
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return p.pollInbox(ctx, signals)
}

func (p *Plugin) pollInbox(ctx context.Context, signals <-chan os.Signal) error {
	polling, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.inbox.Run(polling) }()
	upkeep, stopUpkeep := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { defer close(kept); p.upkeep(upkeep) }()
	defer func() { stopUpkeep(); <-kept }()

	draining := func(s os.Signal) {
		p.conf.Logger.Info("draining; a second signal ends at once", "signal", s.String(), "limit", p.conf.Drain)
	}
	var refused error
	select {
	case refused = <-ended: // nobody asked for the end: the turns in hand are finished
		over := make(chan struct{})
		go func() { defer close(over); p.inbox.Wait() }()
		select {
		case <-over:
		case <-ctx.Done():
		case s := <-signals:
			draining(s)
		}
	case <-ctx.Done():
	case s := <-signals:
		draining(s)
	}
	stop()
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if p.conf.Drain > 0 {
		drain, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.conf.Drain)
	}
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		if refused == nil {
			refused = <-ended // the last poll is given up at once
		}
		if err := p.inbox.Drain(drain); err != nil {
			p.conf.Logger.Warn("turns were left to their lease at the end of the drain", "limit", p.conf.Drain)
		}
	}()
	select {
	case <-drained:
		return refused
	case <-second(signals, drained):
		p.engine.CancelAll()
		cancel()
		return ErrKilled // at once: the drain that is given up ends by itself within the adapters' grace
	}
}

// KeikiURL is the URL that signed requests are sent to on a server that listens on addr; empty where Keiki
// is not served.
func (p *Plugin) KeikiURL(addr string) string {
	if p.keiki == nil {
		return ""
	}
	return "http://" + strings.TrimRight(addr, "/") + p.conf.Prefix + p.conf.Keiki.Path
}
