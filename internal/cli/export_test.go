package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/plugin"
)

// What tests see of the inside.
var (
	ParseSize           = parseSize
	ParseDuration       = parseDuration
	Visible             = visible
	OneLine             = oneLine
	ShellQuote          = shellQuote
	Guess               = guess
	QuoteModPath        = quoteModPath
	ReleasedLibrary     = releasedLibrary
	ScaffoldContents    = scaffoldContents
	ScaffoldModules     = scaffoldModules
	ScaffoldTestModules = scaffoldTestModules
)

// The versions that init writes.
const LanguageVersion = languageVersion

// A Library is what init's go.mod is made of.
type Library = library

// ParseServerURL returns what chat makes of a URL before it looks for a manifest.
func ParseServerURL(s string) (base, turns string, open bool, err error) {
	u, err := parseServerURL(s)
	if err != nil {
		return "", "", false, err
	}
	return u.base, u.turns, u.open, nil
}

// ServeConfig returns the configuration that serve makes of flags and environment.
func ServeConfig(env []string, args ...string) (conf plugin.Config, err error) {
	a := newApp(Streams{Out: io.Discard, Err: io.Discard, Env: env})
	var f serveFlags
	cmd := &cobra.Command{
		Use:               "serve",
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.fromEnvironment(cmd) },
		RunE: func(*cobra.Command, []string) error {
			conf, err = a.config(&f)
			return err
		},
	}
	f.add(cmd.Flags())
	cmd.SetArgs(args)
	return conf, cmd.ExecuteContext(context.Background())
}
