package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	externalschema "github.com/backline-dev/backline/schema/external"
)

// ExternalPath is where the endpoints of agent.external-runtime are, below [Config.Prefix].
const ExternalPath = "/external-runtime"

// externalSchemas is where the schemas of its documents are, each under its file's name.
const externalSchemas = "/schemas/external-runtime/"

// External opens a plugin to hosts of agent.external-runtime (Orbiplex) as well: the same adapters, under
// what an operator has admitted, with durable facts of each turn. Its zero value is ready to use, and
// then all is in memory and nothing can be admitted.
type External struct {
	// Store keeps the facts of turns. It is the caller's, who closes it once the plugin has drained; no
	// other plugin may have it meanwhile. Default: one in this process's memory, which forgets all with it.
	Store ledger.Store
	// Admissions is a directory of profiles and bindings, one in each file whose name ends in ".json".
	// New admits them. [Serve] reads it again on SIGHUP, [Plugin.LoadAdmissions] whenever it is called.
	Admissions string
	// OperatorToken is the bearer token, of at least 16 bytes, for the endpoints that admit, show and
	// revoke profiles and bindings. Without one these endpoints are not there.
	OperatorToken Secret
	// Agents tells which plugin answers for an agent: agent id to plugin id. An agent that is not named is
	// answered for by the plugin of its own id, else by Config.Adapter or the only plugin there is, else by
	// nobody: its turns are refused.
	Agents map[string]string
	// Epoch names this life of the adapters: sessions that began in another do not go on. Default: the
	// binding's own epoch is all that counts.
	Epoch string
	// ProductRetention is how long a product's content can be fetched, StreamRetention how long an ended
	// stream can be repeated. Default 24 hours; NoLimit. Outcomes are kept for as long as the store is.
	ProductRetention time.Duration
	StreamRetention  time.Duration
}

// Format is that of [Config].
func (x External) Format(f fmt.State, _ rune) {
	type external External
	show(f, external(x))
}

// Admitted tells what became of one file of [External.Admissions].
type Admitted = external.Admitted

// ErrNoAdmissions reports that a plugin has no directory of admissions.
var ErrNoAdmissions = errors.New("no directory of admissions is configured")

// check names what is wrong and sets what is missing. c is a copy whose Adapters are complete.
func (x *External) check(c *Config, wrong func(format string, args ...any)) *External {
	own := *x
	if own.Store == nil {
		own.Store = ledger.NewMemory(ledger.MemoryConfig{})
	}
	for agent, id := range own.Agents {
		if c.Adapters[id] == nil {
			wrong("External.Agents: agent %q is to be answered for by plugin %q, which is not hosted here", agent, id)
		}
	}
	if t := own.OperatorToken; t != "" && short(t) {
		wrong("External.OperatorToken is shorter than %d bytes: use a long random one", minToken)
	}
	if strings.HasPrefix(c.TurnPath+"/", ExternalPath+"/") {
		wrong("TurnPath is %q, which is below %s", c.TurnPath, ExternalPath)
	}
	return &own
}

// agents are the adapters by agent id, and the one for any other agent, which may be nil. named tells which
// plugin answers for an agent; valid which agent ids there can be.
func (c *Config) agents(named map[string]string, valid func(string) bool) (by map[string]adapters.Adapter, other adapters.Adapter) {
	by = map[string]adapters.Adapter{}
	for id, a := range c.Adapters {
		if valid(id) {
			by[id] = a
		}
		if len(c.Adapters) == 1 {
			other = a
		}
	}
	if c.Adapter != nil {
		other = c.Adapter
	}
	for agent, id := range named {
		by[agent] = c.Adapters[id]
	}
	return by, other
}

// openExternal makes the handler, ends what a process that died left open, and reads the admissions.
func (p *Plugin) openExternal() error {
	c, x := &p.conf, p.conf.External
	by, other := c.agents(x.Agents, externalschema.ValidRef)
	var err error
	p.external, err = external.New(external.Config{
		Engine:           p.engine,
		Store:            x.Store,
		Adapters:         by,
		Adapter:          other,
		Tokens:           c.Tokens,
		OperatorToken:    x.OperatorToken,
		MaxBody:          c.MaxBody,
		BodyTimeout:      c.BodyTimeout,
		ProductRetention: x.ProductRetention,
		StreamRetention:  x.StreamRetention,
		Epoch:            x.Epoch,
		Logger:           c.Logger,
	})
	if err != nil {
		return &ConfigError{err}
	}
	ctx := context.Background()
	found, err := p.external.Recover(ctx)
	if err != nil {
		return fmt.Errorf("the ledger cannot be recovered: %w", err)
	}
	for _, t := range found.Unknown {
		c.Logger.Warn("a turn ended with the server before this one: nobody knows how, and it is charged in full",
			"protocol", string(adapters.ExternalRuntime), "turn", string(t.Ref), "binding", string(t.Binding))
	}
	for _, ref := range found.Released {
		c.Logger.Info("a turn that no adapter was called for may come again", "protocol", string(adapters.ExternalRuntime), "turn", string(ref))
	}
	if x.Admissions != "" {
		files, err := p.admissions(ctx, p.external.OpenAdmissions)
		if err != nil && mistaken(files) > 0 {
			err = fmt.Errorf("%w (%s)", err, validateHint)
		}
		if err != nil {
			return &ConfigError{err}
		}
	}
	if err := p.tellBindings(ctx); err != nil {
		return err
	}
	if _, memory := x.Store.(*ledger.Memory); memory && c.Replicas > 1 {
		c.Logger.Warn("the ledger is in each server's own memory: a turn that is sent to another replica runs again, and what is admitted in one is unknown to the others",
			"replicas", c.Replicas)
	}
	return nil
}

// LoadAdmissions reads [External.Admissions] again. It goes on after a bad file: the results have one
// entry a file, and the error joins what is wrong, each with the file's name. What has disappeared is not
// revoked, and what was revoked stays so. Without a directory it is [ErrNoAdmissions].
func (p *Plugin) LoadAdmissions(ctx context.Context) ([]Admitted, error) {
	if p.external == nil || p.conf.External.Admissions == "" {
		return nil, ErrNoAdmissions
	}
	return p.admissions(ctx, p.external.LoadAdmissions)
}

// admissions reads the directory in one of two ways, and tells the log what that changed.
func (p *Plugin) admissions(ctx context.Context, read func(context.Context, string) ([]Admitted, error)) ([]Admitted, error) {
	files, err := read(ctx, p.conf.External.Admissions)
	for _, f := range files {
		switch {
		case f.Err != nil, f.Change == "": // in err, or nothing came of it
		case f.Change == ledger.Stale || f.Change == ledger.StillWithdrawn:
			p.conf.Logger.Warn("a file of admissions has no effect", "file", f.File, "kind", string(f.Kind), "ref", f.Ref, "why", string(f.Change))
		case f.Change == ledger.Unchanged:
			p.conf.Logger.Debug("admission", "file", f.File, "kind", string(f.Kind), "ref", f.Ref, "change", string(f.Change))
		default:
			p.conf.Logger.Info("admission", "file", f.File, "kind", string(f.Kind), "ref", f.Ref, "change", string(f.Change))
		}
	}
	return files, err
}

// Sweep forgets content and streams whose retention is over, and Keiki's turn ids that are old enough. The
// servers of this package do so by themselves; a program that mounts a Plugin calls it now and then. Without
// External and Keiki it does nothing.
func (p *Plugin) Sweep(ctx context.Context) error {
	var errs []error
	if p.external != nil {
		errs = append(errs, p.external.Sweep(ctx))
	}
	if p.keiki != nil && (p.external == nil || p.conf.External.Store != p.conf.Keiki.Store) {
		for more := true; more && ctx.Err() == nil; {
			swept, err := p.conf.Keiki.Store.Sweep(ctx, time.Now(), 0)
			errs = append(errs, err)
			more = err == nil && swept.More
		}
	}
	return errors.Join(errs...)
}

// sweepEvery is how often a server sweeps.
const sweepEvery = 10 * time.Minute

// upkeep sweeps until ctx is done.
func (p *Plugin) upkeep(ctx context.Context) {
	if p.external == nil && p.keiki == nil {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := p.Sweep(ctx); err != nil && ctx.Err() == nil {
			p.conf.Logger.Error("the ledger could not be swept", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// mistaken counts the files that were not taken.
func mistaken(files []Admitted) int {
	n := 0
	for _, f := range files {
		if f.Err != nil {
			n++
		}
	}
	return n
}

// validateHint says how to find out what is wrong with a file of admissions, and what digest it has to have.
const validateHint = "backline validate FILE says what to mend, and where"

// reloading reads the admissions on SIGHUP until stop is called, which waits for the last reading to end, or to
// be given up.
func (p *Plugin) reloading(ctx context.Context) (stop func()) {
	if p.external == nil || p.conf.External.Admissions == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	hups, gone := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hups, syscall.SIGHUP)
	go func() {
		defer close(gone)
		for {
			select {
			case <-hups:
			case <-ctx.Done():
				return
			}
			files, err := p.LoadAdmissions(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				p.conf.Logger.Info("read the admissions again", "files", len(files))
			} else {
				p.conf.Logger.Error("read the admissions again, and only the files without a mistake were taken", "files", len(files), "mistaken", mistaken(files),
					"error", oneLine(err), "hint", validateHint)
			}
			if err := p.tellBindings(ctx); err != nil && ctx.Err() == nil {
				p.conf.Logger.Error("the bindings could not be looked at", "error", err)
			}
		}
	}()
	return func() {
		signal.Stop(hups)
		cancel()
		<-gone
	}
}

// pingTimeout is how long a store may take to say that it can commit.
const pingTimeout = 3 * time.Second

// storeReady tells why the ledger takes no facts, nil for ready.
func (p *Plugin) storeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var errs []error
	if p.external != nil {
		errs = append(errs, p.conf.External.Store.Ping(ctx))
	}
	if p.keiki != nil && (p.external == nil || p.conf.External.Store != p.conf.Keiki.Store) {
		errs = append(errs, p.conf.Keiki.Store.Ping(ctx))
	}
	return errors.Join(errs...)
}

// externalHandler is the handler as it is mounted.
func (p *Plugin) externalHandler() http.Handler {
	if p.conf.Prefix == "" {
		return p.external
	}
	return http.StripPrefix(p.conf.Prefix, p.external)
}

func serveExternalSchema(kind externalschema.Document) http.HandlerFunc {
	return serveSchemaOf(externalschema.Schema(kind))
}

// ExternalURL is what the URLs of agent.external-runtime's endpoints begin with, on a server that listens on
// addr: turns are posted to ExternalURL(addr)+"/turns". (TurnURL is Lowkey's endpoint itself.) It is empty where
// the protocol is not served.
func (p *Plugin) ExternalURL(addr string) string {
	if p.external == nil {
		return ""
	}
	return "http://" + strings.TrimRight(addr, "/") + p.conf.Prefix + ExternalPath
}

// oneLine is an error's text without its line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
