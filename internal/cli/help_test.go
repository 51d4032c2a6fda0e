package cli_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/internal/cli"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, c := range cli.Commands() {
		command := strings.Fields(c.CommandPath())
		name := strings.Join(command, "-")
		golden := filepath.Join("testdata", "help", name+".golden")
		r := run(t, "", nil, append(command[1:], "--help")...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s --help: exit code %d, %q", name, r.code, r.err)
		}
		if !strings.Contains(r.out, "\nExamples:\n"+c.Example+"\n") {
			t.Errorf("%s --help does not show its example:\n%s", name, r.out)
		}
		if *update {
			if err := os.WriteFile(golden, []byte(r.out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), r.out); diff != "" {
			t.Errorf("%s --help (-want +got), go test -update writes it anew:\n%s", name, diff)
		}
	}
}

// TestExamples: each command's help shows one example, a command line that the command accepts.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, c := range cli.Commands() {
		if err := checkExample(t, c); err != nil {
			t.Errorf("%s --help: %v:\n%s", c.CommandPath(), err, c.Example)
		}
	}
}

// TestCheckExample: what is not one example is found.
func TestCheckExample(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ command, example, want string }{
		{"backline serve", "  # In a pipeline.\n  curl x |\n    backline serve --idle '1m' \\\n      --json > log.json", "<nil>"},
		{"backline ledger", "  backline ledger list turns.db", "<nil>"},
		{"backline serve", "", "there is no example"},
		{"backline serve", "  # Nothing.", "0 calls of backline, want one"},
		{"backline serve", "  backline serve\n  backline serve --json", "2 calls of backline, want one"},
		{"backline serve", "  backline serve && backline serve", "2 calls of backline, want one"},
		{"backline serve", "  backline serve\n\n  # More.", "an empty line, as between two examples"},
		{"backline serve", "  backline version", "it is one of backline version"},
		{"backline ledger list", "  backline ledger show turns.db turn:1", "it is one of backline ledger show"},
		{"backline serve", "  backline serve --nope", "unknown flag: --nope"},
		{"backline serve", "  backline serve --idle soon", `invalid argument "soon"`},
		{"backline serve", "  backline serve muse", "serve takes no arguments"},
		{"backline ledger", "  backline ledger drop", `unknown command "drop"`},
		{"backline serve", "  backlime serve", "exit status 127"},
		{"backline serve", "  backline serve 'x", "Unterminated"},
	} {
		found := false
		for _, c := range cli.Commands() {
			if c.CommandPath() != tc.command {
				continue
			}
			found = true
			c.Example = tc.example
			if got := fmt.Sprint(checkExample(t, c)); !strings.Contains(strings.ToLower(got), strings.ToLower(tc.want)) {
				t.Errorf("%s with the example\n%s\n%s, want %s", tc.command, tc.example, got, tc.want)
			}
		}
		if !found {
			t.Errorf("there is no %s", tc.command)
		}
	}
}

// checkExample has a shell read a command's example, in which nothing is run, and the command the one call
// of backline in it. The example of a command that only holds others is one of theirs.
func checkExample(t *testing.T, c *cobra.Command) error {
	t.Helper()
	switch {
	case strings.TrimSpace(c.Example) == "":
		return fmt.Errorf("there is no example")
	case strings.Contains(c.Example, "\n\n"):
		return fmt.Errorf("an empty line, as between two examples")
	}
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `
backline() { printf '%s\0' "$@" >> "$CALLS"; printf '\n' >> "$CALLS"; }
for other in cd curl go jq; do eval "$other() { :; }"; done
PATH=
`+c.Example)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CALLS="+calls, "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the shell: %w: %s", err, out)
	}
	written, err := os.ReadFile(calls)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if n := bytes.Count(written, []byte("\n")); n != 1 {
		return fmt.Errorf("%d calls of backline, want one", n)
	}
	args := strings.Split(strings.TrimSuffix(string(written), "\x00\n"), "\x00")
	root := c.Root()
	called, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if !called.Runnable() {
		return fmt.Errorf("unknown command %q", strings.Join(rest, " "))
	}
	if called != c && (c.Runnable() || !strings.HasPrefix(called.CommandPath(), c.CommandPath()+" ")) {
		return fmt.Errorf("it is one of %s", called.CommandPath())
	}
	if err := called.ParseFlags(rest); err != nil {
		return err
	}
	return called.ValidateArgs(called.Flags().Args())
}
