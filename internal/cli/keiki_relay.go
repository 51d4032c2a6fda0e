package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/runtime/keiki"
)

type relayFlags struct {
	apiBase     *apiBase
	apiKey      *secretPair
	appURL      *string
	resultPath  *string
	concurrency *int
	log         logFlags
}

func (a *app) keikiRelayCommand() *cobra.Command {
	var f relayFlags
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Forward Keiki's turns to a server that it cannot reach",
		Long: `Relay polls the platform for the signed requests of an agent in relay mode, forwards each to the app as it
came, and reports what the app answered. The app holds the signing secret, as in push mode; the relay has
the harness API key alone.

SIGTERM and SIGINT end the polling; what is in hand is forwarded and reported, then the exit code is 0. A
second signal ends at once. Where the platform does not take the key, the exit code is 1.`,
		Example: `  # For a server on this machine.
  backline keiki relay --api-base https://keiki.example/api/v1 --api-key-file key.txt`,
		Args: takes(0, 0, ""),
		RunE: a.runs(func(ctx context.Context, _ []string) error { return a.keikiRelay(ctx, &f) }),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.apiBase = apiBaseFlag(fs)
	f.apiKey = apiKeyFlag(fs)
	f.appURL = appURLFlag(fs, "forward to the app at this `URL`")
	f.resultPath = fs.String("result-path", keiki.DefaultResultPath, "report to this `path` below the API base, in which {id} stands for the turn's id")
	f.concurrency = countFlag(fs, "concurrency", keiki.DefaultConcurrency, "the most requests that are forwarded at once")
	f.log.add(fs)
	return cmd
}

func (a *app) keikiRelay(ctx context.Context, f *relayFlags) error {
	base, err := f.apiBase.read()
	if err != nil {
		return err
	}
	key, err := a.readAPIKey(f.apiKey)
	if err != nil {
		return err
	}
	app, err := appURL("app-url", *f.appURL)
	if err != nil {
		return err
	}
	if !strings.Contains(*f.resultPath, "{id}") {
		return usagef("--result-path has no {id} in it, which stands for the turn's id")
	}
	if err := atLeastOne("concurrency", *f.concurrency); err != nil {
		return err
	}
	log := a.logger(&f.log)
	relay, err := keiki.NewRelay(keiki.RelayConfig{
		APIBase: base, APIKey: key, AppURL: app, ResultPath: *f.resultPath, Concurrency: *f.concurrency, Logger: log,
	})
	if err != nil {
		return &usageError{err}
	}
	_, _ = fmt.Fprintf(a.out, "Relaying from %s to %s.\n", base, app) // finish looks at the output's error
	return keyRefused(untilSignalled(ctx, func(s os.Signal) {
		log.Info("what is in hand is finished; a second signal ends at once", "signal", s.String())
	}, relay.Run))
}
