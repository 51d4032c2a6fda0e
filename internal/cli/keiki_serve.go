package cli

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

// keikiFlags are the flags of serve about Keiki.
type keikiFlags struct {
	flags     *pflag.FlagSet
	secret    *secretPair
	secrets   string
	apiBase   *string
	tolerance *time.Duration
	answers   keikiAnswers
}

const (
	keikiSecretFlag  = "keiki-secret"
	keikiSecretsFlag = "keiki-secrets"
)

func (f *keikiFlags) add(fs *pflag.FlagSet) {
	f.flags = fs
	f.secret = secretFlag(fs, keikiSecretFlag, "the signing `secret` of Keiki's requests, for all agents, at least 16 bytes; without any they are refused")
	fs.Lookup(keikiSecretFlag + fileSuffix).Usage = signingSecretFileUsage(keikiSecretFlag)
	fs.StringVar(&f.secrets, keikiSecretsFlag, "", "the signing secrets by agent, instead of one for all: a JSON `file` of agent id to secret, or to a list of secrets")
	twins(fs, keikiSecretFlag, keikiSecretFlag+fileSuffix, keikiSecretsFlag)
	f.apiBase = fs.String(apiBaseLong, "", "take Keiki's turns from the platform with this API base alone (a `URL`; default: every one that is signed)")
	f.tolerance = durationFlag(fs, "keiki-tolerance", keiki.DefaultTolerance, "Keiki: how far the time of a signature may be from now")
	f.answers.add(fs)
}

// signingSecretFileUsage is for the flag of a file: a signing secret is not trimmed like a token.
func signingSecretFileUsage(name string) string {
	return "read what --" + name + " takes from this `file`; a line end after it does not count"
}

// twins says that of these flags for a secret only one can be given.
func twins(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		fs.Lookup(name).Annotations = map[string][]string{secretFlags: names}
	}
}

// set makes the configuration of the flags.
func (f *keikiFlags) set(a *app, conf *plugin.Keiki) error {
	if *f.tolerance == 0 {
		return usagef("--keiki-tolerance is 0, want a time such as 300s")
	}
	conf.Tolerance = *f.tolerance
	if *f.apiBase != "" {
		var err error
		if conf.APIBase, err = readAPIBase(apiBaseLong, *f.apiBase); err != nil {
			return err
		}
	}
	if err := f.answers.set(conf); err != nil {
		return err
	}
	var err error
	conf.Secrets, err = f.readSecrets(a)
	return err
}

func (f *keikiFlags) readSecrets(a *app) (keiki.Secrets, error) {
	if !f.flags.Changed(keikiSecretsFlag) {
		one, err := a.readSigningSecret(f.secret)
		if one == "" || err != nil {
			return keiki.Secrets{}, err
		}
		return keiki.Secrets{Any: []secret.Text{one}}, nil
	}
	for _, name := range []string{keikiSecretFlag, keikiSecretFlag + fileSuffix} {
		if f.flags.Changed(name) {
			return keiki.Secrets{}, usagef("--%s and --%s are both given: give one of them", name, keikiSecretsFlag)
		}
	}
	return readSecretsFile(keikiSecretsFlag, f.secrets)
}

// readSecretsFile reads the secrets by agent of a flag.
func readSecretsFile(flag, file string) (keiki.Secrets, error) {
	if file == "" {
		return keiki.Secrets{}, usagef("--%s is empty: give a file, or leave it out", flag)
	}
	doc, err := os.ReadFile(file)
	if err != nil {
		return keiki.Secrets{}, usagef("--%s: %w", flag, err)
	}
	s, err := keiki.ReadSecrets(doc)
	if err != nil {
		return keiki.Secrets{}, usagef("--%s: %s: %w", flag, file, err)
	}
	return s, nil
}

// readSigningSecret returns a signing secret, empty where none was given. Unlike a token it is taken as it
// stands: each byte is part of the key.
func (a *app) readSigningSecret(s *secretPair) (secret.Text, error) {
	text, source, err := a.given(s)
	if source == "" || err != nil {
		return "", err
	}
	key := secret.Text(text)
	if source == "--"+s.name+fileSuffix {
		key = keiki.SecretFromFile([]byte(text))
	}
	if err := (keiki.Secrets{Any: []secret.Text{key}}).Check(); err != nil {
		return "", usagef("%s: %w", source, err)
	}
	return key, nil
}

// How serve says which secrets it has.
const (
	keikiNoSecret    = "none"
	keikiOneSecret   = "for all agents"
	keikiManySecrets = "by agent"
)

func (f *keikiFlags) have(s keiki.Secrets) string {
	switch {
	case len(s.Agents) > 0:
		return keikiManySecrets
	case s.IsSet():
		return keikiOneSecret
	}
	return keikiNoSecret
}

// platformLine is a command line that plays the platform for this server, which has these secrets. It is
// empty where the server takes turns of a platform elsewhere. fromEnv tells that it takes the secret from
// the environment.
func (f *keikiFlags) platformLine(a *app, conf *plugin.Keiki, endpoint string) (line string, fromEnv bool) {
	line = a.self() + " keiki platform"
	if conf.APIBase != "" {
		u, err := url.Parse(conf.APIBase)
		if err != nil || u.Scheme != "http" || u.Port() == "" || !isLoopback(u.Hostname()) {
			return "", false
		}
		line += " --listen " + shellQuote(u.Host)
	}
	switch {
	case f.flags.Changed(keikiSecretsFlag):
		agents := slices.Sorted(maps.Keys(conf.Secrets.Agents))
		line += " --secrets " + shellQuote(absolute(f.secrets)) + " --agent-id " + shellQuote(agents[0])
	case f.secret.file != "":
		line += " --secret-file " + shellQuote(absolute(f.secret.file))
	case f.secret.value != "":
		line = envName("secret") + `="$` + envName(keikiSecretFlag) + `" ` + line
		fromEnv = true
	default:
		line += " --secret-file keiki-secret.txt"
	}
	if endpoint != defaultAppURL {
		line += " --app-url " + shellQuote(endpoint)
	}
	return line, fromEnv
}

// absolute is a file's name that holds in every folder.
func absolute(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}

// announceKeiki says how to try what is served to Keiki.
func (a *app) announceKeiki(where *addresses, fromEnv bool) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
	switch {
	case where.KeikiSecret == keikiNoSecret:
		say("Keiki's turns are refused, since there is no signing secret: give --%s%s FILE. To try it without the\n"+
			"platform, this mints one and says how to serve with it:\n\n  %s\n\n", keikiSecretFlag, fileSuffix, where.Platform)
	case where.Platform == "":
	default:
		say("Or play Keiki, with turns typed in:\n\n  %s\n\n", where.Platform)
	}
	if fromEnv {
		say("It takes the secret from %s in your shell's environment.\n\n", envName(keikiSecretFlag))
	}
}

func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}
