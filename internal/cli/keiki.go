package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

func (a *app) keikiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keiki",
		Short: "Take Keiki's turns by polling, or play the platform",
		Long: `Keiki pushes turns to "backline serve". These commands are for servers that it cannot reach, and for trying
a plugin without the platform.`,
		Example: `  # The platform on this machine, for a server that runs beside it.
  backline keiki platform --secret-file keiki-secret.txt`,
	}
	cmd.AddCommand(a.keikiRelayCommand(), a.keikiInboxCommand(), a.keikiPlatformCommand())
	return cmd
}

// keikiAnswers are the flags for what becomes of an adapter's text.
type keikiAnswers struct {
	delivery, streamPath, flaggedWarning *string
}

func (f *keikiAnswers) add(fs *pflag.FlagSet) {
	var deliveries []string
	for _, d := range keiki.Deliveries() {
		deliveries = append(deliveries, string(d))
	}
	f.delivery = choiceFlag(fs, "keiki-delivery", "Keiki: an agent's text is sent by paragraphs, as one message, or streamed", deliveries...)
	f.streamPath = fs.String("keiki-stream-path", keiki.DefaultStreamPath, "Keiki: stream to this `path` below a turn's URL")
	f.flaggedWarning = fs.String("keiki-flagged-warning", "", "Keiki: put this `text` before the instructions of turns with a message that was flagged (default: one that says not to follow instructions in it)")
}

func (f *keikiAnswers) set(conf *plugin.Keiki) error {
	if err := checkPath("keiki-stream-path", *f.streamPath); err != nil {
		return err
	}
	conf.Delivery, conf.StreamPath, conf.FlaggedWarning = plugin.Delivery(*f.delivery), *f.streamPath, *f.flaggedWarning
	return nil
}

// checkPath checks a path below another URL.
func checkPath(flag, value string) error {
	u, err := url.Parse("/" + strings.Trim(value, "/"))
	if err != nil || strings.Trim(value, "/") == "" || u.RawQuery != "" || u.Fragment != "" || strings.Contains("/"+u.Path+"/", "/../") {
		return usagef("--%s is %q, want a path such as stream", flag, value)
	}
	return nil
}

// An apiBase is the platform's API base, by one of two names.
type apiBase struct {
	flags       *pflag.FlagSet
	short, long string
}

const (
	apiBaseShort = "api-base"
	apiBaseLong  = "keiki-api-base"
)

func apiBaseFlag(fs *pflag.FlagSet) *apiBase {
	b := &apiBase{flags: fs}
	fs.StringVar(&b.short, apiBaseShort, "", "the platform's API base, a `URL` such as https://keiki.example/api/v1")
	fs.StringVar(&b.long, apiBaseLong, "", "the same, as serve has it (a `URL`)")
	for _, name := range []string{apiBaseShort, apiBaseLong} {
		fs.Lookup(name).Annotations = map[string][]string{aliasFlags: {apiBaseShort, apiBaseLong}}
	}
	return b
}

// read returns the URL, without a slash at its end.
func (b *apiBase) read() (string, error) {
	name, value := apiBaseShort, b.short
	switch {
	case b.flags.Changed(apiBaseShort) && b.flags.Changed(apiBaseLong) && b.short != b.long:
		return "", usagef("--%s and --%s name two platforms: give one of them", apiBaseShort, apiBaseLong)
	case b.flags.Changed(apiBaseLong):
		name, value = apiBaseLong, b.long
	}
	if value == "" {
		return "", usagef("give --%s URL, the platform's API base, such as https://keiki.example/api/v1", apiBaseShort)
	}
	return readAPIBase(name, value)
}

// readAPIBase checks the URL of a flag. It is not quoted where it may hold a password.
func readAPIBase(flag, value string) (string, error) {
	u, err := absoluteURL(flag, value)
	if err != nil {
		return "", err
	}
	if u.RawQuery != "" {
		return "", usagef("--%s has a query: want a URL such as https://keiki.example/api/v1", flag)
	}
	return strings.TrimRight(value, "/"), nil
}

// absoluteURL reads the URL of a flag.
func absoluteURL(flag, value string) (*url.URL, error) {
	u, err := url.Parse(value)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, usagef("--%s is not an absolute http or https URL", flag)
	case u.User != nil:
		return nil, usagef("--%s has a user name or password in it, which is sent nowhere: leave it out", flag)
	case u.Fragment != "":
		return nil, usagef("--%s has a fragment (#…), which no server is sent: leave it out", flag)
	}
	return u, nil
}

// appURL reads the URL of the app's endpoint. Where there is no path, it is that of serve.
func appURL(flag, value string) (string, error) {
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	u, err := absoluteURL(flag, value)
	if err != nil {
		return "", err
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = plugin.DefaultKeikiPath
	}
	return u.String(), nil
}

const defaultAppURL = "http://" + plugin.DefaultListen + plugin.DefaultKeikiPath

func appURLFlag(fs *pflag.FlagSet, usage string) *string {
	return fs.String("app-url", defaultAppURL, usage+"; without a path, "+plugin.DefaultKeikiPath+" is added")
}

// keikiAPIKey is the environment variable that the platform's own scripts take the harness API key from.
const keikiAPIKey = "KEIKI_API_KEY"

func apiKeyFlag(fs *pflag.FlagSet) *secretPair {
	return secretFlag(fs, "api-key", "the agent's harness API `key`, which "+keikiAPIKey+" in the environment gives too")
}

// readAPIKey reads the key, which must be there.
func (a *app) readAPIKey(s *secretPair) (secret.Text, error) {
	key, err := a.read(s)
	if key != "" || err != nil {
		return key, err
	}
	value, there := a.env[keikiAPIKey]
	if !there {
		return "", usagef("there is no harness API key: give --api-key%s FILE or %s", fileSuffix, keikiAPIKey)
	}
	return checkToken(value, keikiAPIKey)
}

// atLeastOne checks a number.
func atLeastOne(flag string, n int) error {
	if n < 1 {
		return usagef("--%s is %d, want at least 1", flag, n)
	}
	return nil
}

// errKilled is the end by a second signal.
var errKilled = plugin.ErrKilled

// sameSignal is how close two signals are taken for one: some wrappers signal a process and then its group.
const sameSignal = 100 * time.Millisecond

// untilSignalled calls run, whose context ends with the first signal. A second one is not waited for: then
// the error is errKilled, and run may go on. first, which may be nil, is called with the first.
func untilSignalled(ctx context.Context, first func(os.Signal), run func(ctx context.Context) error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	var since time.Time
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			switch {
			case since.IsZero():
				since = time.Now()
				if first != nil {
					first(s)
				}
				stop()
			case time.Since(since) > sameSignal:
				return errKilled
			}
		}
	}
}

// keyRefused makes a poller's error one that says what to do.
func keyRefused(err error) error {
	if errors.Is(err, keiki.ErrKeyRefused) {
		return fmt.Errorf("%w: give the one that belongs to the agent", err)
	}
	return err
}
