package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/schema"
)

// What tests see of the inside.
var (
	ParseSize        = parseSize
	ParseDuration    = parseDuration
	Visible          = visible
	OneLine          = oneLine
	ShellQuote       = shellQuote
	Guess            = guess
	QuoteModPath     = quoteModPath
	ReleasedLibrary  = releasedLibrary
	ScaffoldContents = scaffoldContents
	ScaffoldModules  = scaffoldModules
	Advice           = advice
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

// Commands are the program itself and all its commands, those inside others too.
func Commands() []*cobra.Command {
	all := []*cobra.Command{newApp(Streams{}).root()}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Commands()...)
	}
	return all
}

// Places tells where in doc violations are said to be, as "line:column".
func Places(doc []byte, violations ...schema.Violation) []string {
	var list []string
	for _, p := range locate(doc, violations) {
		list = append(list, fmt.Sprintf("%d:%d", p.line, p.column))
	}
	return list
}

// Name and Text are a new plugin's file.
func (f newFile) Name() string { return f.name }

func (f newFile) Text() string { return string(f.text) }

// ParsePlatformTurn reads a line of the stand-in's input that is a turn, or an error.
func ParsePlatformTurn(line string) (testhost.KeikiTurn, error) {
	l, err := parsePlatformLine(line)
	if l.kind == lineMessage {
		l.turn.Text = l.text
	}
	return l.turn, err
}
