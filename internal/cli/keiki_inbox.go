package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/keiki"
)

type inboxFlags struct {
	apiBase     *apiBase
	apiKey      *secretPair
	wait        *time.Duration
	concurrency *int
	adapter     *string
	answers     keikiAnswers
	store       *storeName
	sessions    sessionFlags
	limits      limitFlags
	log         logFlags
}

// The longest that the platform holds a poll.
const longestWait = 30 * time.Second

func (a *app) keikiInboxCommand() *cobra.Command {
	var f inboxFlags
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Claim Keiki's turns by polling, and answer them here",
		Long: `Inbox hosts one plugin without a server: it claims the turns of an agent in inbox mode, runs them here, and
keeps their lease meanwhile. Several may poll for one agent; a turn of one that died is claimed by another
when its lease has run out, and no message of it is sent twice.

SIGTERM and SIGINT end the polling; turns in hand have --drain to end, what is left then is left to its
lease, and the exit code is 0. A second signal ends at once. Where the platform does not take the key, the
exit code is 1 once the turns in hand have ended.`,
		Example: `  # Four turns at a time, with a record of them that outlives the poller.
  backline keiki inbox --api-base https://keiki.example/api/v1 --api-key-file key.txt --store sqlite:turns.db`,
		Args: takes(0, 0, ""),
		RunE: a.runs(func(ctx context.Context, _ []string) error { return a.keikiInbox(ctx, &f) }),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.apiBase = apiBaseFlag(fs)
	f.apiKey = apiKeyFlag(fs)
	f.wait = durationFlag(fs, "wait", keiki.DefaultWait, "how long the platform may hold a poll, in whole seconds up to 30s; 0 is not at all")
	f.concurrency = countFlag(fs, "concurrency", keiki.DefaultConcurrency, "the most turns that run at once")
	f.adapter = choiceFlag(fs, "adapter", "what answers the turns", adapterNames...)
	f.answers.add(fs)
	f.store = storeFlag(fs, "where the turns that run here are recorded: in memory, or in a file that outlives the poller")
	f.sessions.add(fs)
	f.limits.add(fs)
	f.log.add(fs)
	return cmd
}

// inboxConfig makes the plugin's configuration of the flags.
func (a *app) inboxConfig(f *inboxFlags) (plugin.Config, error) {
	var conf plugin.Config
	base, err := f.apiBase.read()
	if err != nil {
		return conf, err
	}
	key, err := a.readAPIKey(f.apiKey)
	if err != nil {
		return conf, err
	}
	if *f.wait > longestWait || *f.wait%time.Second != 0 {
		return conf, usagef("--wait is %s, want whole seconds from 0s to 30s", (*duration)(f.wait))
	}
	if err := atLeastOne("concurrency", *f.concurrency); err != nil {
		return conf, err
	}
	conf.ID = defaultPlugin
	conf.Adapter = a.newAdapter(*f.adapter)
	conf.Keiki = &plugin.Keiki{
		APIBase: base,
		Inbox:   &plugin.KeikiInbox{APIKey: key, Wait: orNone(*f.wait), Concurrency: *f.concurrency},
	}
	if err := f.answers.set(conf.Keiki); err != nil {
		return conf, err
	}
	f.sessions.set(&conf)
	f.limits.set(&conf)
	conf.Logger = a.logger(&f.log)
	return conf, nil
}

func (a *app) keikiInbox(ctx context.Context, f *inboxFlags) (err error) {
	conf, err := a.inboxConfig(f)
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
	conf.Keiki.Store = store
	_, _ = fmt.Fprintf(a.out, "Polling the inbox at %s; the %s adapter answers.\n", conf.Keiki.APIBase, *f.adapter) // finish looks at the output's error
	err = plugin.PollInbox(ctx, conf)
	var wrong *plugin.ConfigError
	if errors.As(err, &wrong) {
		return &usageError{err}
	}
	return keyRefused(err)
}
