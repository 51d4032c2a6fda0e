package cli

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/runtime/secret"
)

// envPrefix and a flag's name in upper case, with underscores, make its name in the environment.
const envPrefix = "BACKLINE_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line has not set. An empty variable counts as none,
// unless it is a secret's: whoever meant to set one must not get a server without.
func (a *app) fromEnvironment(cmd *cobra.Command) error {
	var err error
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		value, there := a.env[envName(f.Name)]
		if err != nil || f.Changed || f.Name == "help" || !there || value == "" && f.Annotations[secretFlags] == nil {
			return
		}
		// One of several flags for one thing on the command line overrules them all in the environment.
		for _, twin := range slices.Concat(f.Annotations[secretFlags], f.Annotations[aliasFlags]) {
			if flags.Changed(twin) && !a.setByEnv[twin] {
				return
			}
		}
		if setErr := flags.Set(f.Name, value); setErr != nil {
			// The cause alone: pflag's own text quotes the value.
			err = usagef("%s in the environment is not right for --%s: %w", envName(f.Name), f.Name, rootCause(setErr))
			return
		}
		a.setByEnv[f.Name] = true
	})
	return err
}

func rootCause(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err
		}
		err = inner.Unwrap()
	}
}

const fileSuffix = "-file"

// secretFlags is the annotation that names all flags of a secret, aliasFlags that of flags which are the same
// by two names.
const (
	secretFlags = "backline_secret"
	aliasFlags  = "backline_alias"
)

// A secretPair is the two flags of a secret, --x SECRET and --x-file FILE.
type secretPair struct {
	flags       *pflag.FlagSet
	name        string
	value, file string
}

// secretFlag adds the two flags of a secret; what names it, with its kind in backquotes.
func secretFlag(fs *pflag.FlagSet, name, what string) *secretPair {
	s := &secretPair{flags: fs, name: name}
	fs.StringVar(&s.value, name, "", fmt.Sprintf("%s; better given as --%s%s or %s", what, name, fileSuffix, envName(name)))
	fs.StringVar(&s.file, name+fileSuffix, "", fmt.Sprintf("read what --%s takes from this `file`; white space around it does not count", name))
	for _, flag := range []string{name, name + fileSuffix} {
		fs.Lookup(flag).Annotations = map[string][]string{secretFlags: {name, name + fileSuffix}}
	}
	return s
}

// read returns a token, empty where none was given. It warns where the secret can be seen by others.
func (a *app) read(s *secretPair) (secret.Text, error) {
	text, source, err := a.given(s)
	if source == "" || err != nil {
		return "", err
	}
	if source == "--"+s.name+fileSuffix {
		text = strings.TrimSpace(text)
	}
	return checkToken(text, source)
}

// given returns what a secret's flags hold, the content of the file in full, and which of them it was, or the
// name in the environment: empty where none was given. It warns where the secret can be seen by others.
func (a *app) given(s *secretPair) (text, source string, err error) {
	byValue, byFile := s.flags.Changed(s.name), s.flags.Changed(s.name+fileSuffix)
	switch {
	case byValue && byFile:
		return "", "", usagef("--%s and --%s%s are both given: give one of them", s.name, s.name, fileSuffix)
	case byFile:
		content, err := os.ReadFile(s.file)
		if err != nil {
			return "", "", usagef("--%s%s: %w", s.name, fileSuffix, err)
		}
		return string(content), "--" + s.name + fileSuffix, nil
	case byValue && a.setByEnv[s.name]:
		return s.value, envName(s.name), nil
	case byValue:
		a.warn("a secret on the command line can be read by everybody on this machine: give --%s%s FILE or %s instead", s.name, fileSuffix, envName(s.name))
		return s.value, "--" + s.name, nil
	}
	return "", "", nil
}

// checkToken refuses an empty token, and what no HTTP header could carry. It does not quote it.
func checkToken(token, source string) (secret.Text, error) {
	if token == "" {
		return "", usagef("%s is empty: give a token, or leave it out", source)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7F }) {
		return "", usagef("%s: a token is made of visible ASCII characters, and this one holds another", source)
	}
	return secret.Text(token), nil
}

// choice is a flag with a fixed set of values.
type choice struct {
	value *string
	of    []string
}

// choiceFlag adds a flag whose value is one of the given; the first is the default.
func choiceFlag(fs *pflag.FlagSet, name, usage string, of ...string) *string {
	value := of[0]
	fs.Var(choice{&value, of}, name, usage)
	return &value
}

func (c choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c choice) Type() string { return strings.Join(c.of, "|") }

func (c choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("want %s", alternatives(c.of))
	}
	*c.value = s
	return nil
}

// alternatives lists words: "a, b or c".
func alternatives(words []string) string { return joined(words, " or ") }

// listing lists words: "a, b and c".
func listing(words []string) string { return joined(words, " and ") }

func joined(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + last + words[len(words)-1]
}

// duration is a time that is not negative.
type duration time.Duration

func durationFlag(fs *pflag.FlagSet, name string, byDefault time.Duration, usage string) *time.Duration {
	d := byDefault
	fs.Var((*duration)(&d), name, usage)
	return &d
}

// String is the time without parts that are zero: "10m", not "10m0s".
func (d *duration) String() string {
	s := time.Duration(*d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (d *duration) Type() string { return "duration" }

func (d *duration) Set(s string) error {
	v, err := parseDuration(s)
	if err != nil {
		return err
	}
	*d = duration(v)
	return nil
}

func parseDuration(s string) (time.Duration, error) {
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("want a time such as 90s, 10m or 1h30m, not negative")
	}
	return v, nil
}

// count is a whole number that is not negative.
type count int

func countFlag(fs *pflag.FlagSet, name string, byDefault int, usage string) *int {
	n := byDefault
	fs.Var((*count)(&n), name, usage)
	return &n
}

func (c *count) String() string { return strconv.Itoa(int(*c)) }

func (c *count) Type() string { return "number" }

func (c *count) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, strconv.IntSize)
	if err != nil || n < 0 {
		return fmt.Errorf("want a whole number of at least 0")
	}
	*c = count(n)
	return nil
}

// size is a number of bytes.
type size int64

func sizeFlag(fs *pflag.FlagSet, name string, byDefault int64, usage string) *int64 {
	n := byDefault
	fs.Var((*size)(&n), name, usage)
	return &n
}

type sizeUnit struct {
	name  string
	bytes int64
}

// sizeUnits are what may follow the number; powers of 1000 where there is no i, as everywhere but in
// some operating systems' menus.
var sizeUnits = []sizeUnit{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3},
	{"B", 1},
}

// String is the number with the largest unit that leaves it whole.
func (n *size) String() string {
	for _, u := range sizeUnits {
		if strings.HasSuffix(u.name, "iB") && *n != 0 && int64(*n)%u.bytes == 0 {
			return strconv.FormatInt(int64(*n)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*n), 10)
}

func (n *size) Type() string { return "size" }

func (n *size) Set(s string) error {
	v, err := parseSize(s)
	if err != nil {
		return err
	}
	*n = size(v)
	return nil
}

// parseSize reads a number of bytes: digits, and one of the units.
func parseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := s[len(digits):]
	factor := int64(1)
	if unit != "" {
		i := slices.IndexFunc(sizeUnits, func(u sizeUnit) bool { return u.name == unit })
		if i < 0 {
			return 0, fmt.Errorf("want a size such as 512KiB, 256MiB or 1GB; the unit %q is not known", unit)
		}
		factor = sizeUnits[i].bytes
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(digits, " "), 10, 63)
	switch {
	case err != nil:
		return 0, fmt.Errorf("want a size such as 512KiB, 256MiB or 1GB: a whole number and a unit")
	case int64(n) > math.MaxInt64/factor:
		return 0, fmt.Errorf("that is more bytes than can be counted")
	}
	return int64(n) * factor, nil
}
