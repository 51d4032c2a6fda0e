package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/plugin"
)

// manifestFile is where a plugin's manifest is, where nothing else is said.
const manifestFile = "manifest.json"

// defaultEndpoint is where serve takes turns, where nothing else is said.
const defaultEndpoint = "http://" + plugin.DefaultListen + plugin.DefaultTurnPath

func (a *app) manifestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "Write, check or print a plugin manifest",
		Long: `A plugin manifest tells Lowkey where a plugin's agent is: its agent block has the runtime
external:<plugin id> and an absolute http or https endpoint. All other fields are yours.`,
		Example: `  # A manifest for a plugin behind a proxy, to be installed by sideloading.
  backline manifest init --id muse --endpoint https://muse.example/lowkey/turn`,
	}
	cmd.AddCommand(a.manifestInit(), a.manifestCheck(), a.manifestShow())
	return cmd
}

func (a *app) manifestInit() *cobra.Command {
	var id, endpoint *string
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a new manifest",
		Long: `Init writes the smallest valid manifest into FILE (default: ` + manifestFile + `), which must not exist. With - it
writes to standard output.`,
		Example: `  backline manifest init --id muse --endpoint https://muse.example/lowkey/turn`,
		Args:    takes(0, 1, "one FILE"),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	id = fs.String("id", "", "the plugin's `id` (required)")
	endpoint = fs.String("endpoint", defaultEndpoint, "the `URL` to which Lowkey posts turns")
	asJSON = fs.Bool("json", false, "print what was written as one JSON object")
	cmd.RunE = a.runs(func(_ context.Context, args []string) error {
		if *id == "" {
			return usagef("manifest init needs the plugin's id: give --id, such as --id %s", defaultPlugin)
		}
		m, err := manifest.New(*id, *endpoint)
		if err != nil {
			return &usageError{err}
		}
		file := manifestFile
		if len(args) > 0 {
			file = args[0]
		}
		if file == "-" {
			_, err := a.out.Write(m.Bytes())
			return err
		}
		if err := writeNew(file, m.Bytes(), 0o666); err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(map[string]string{"file": file, "id": *id, "endpoint": *endpoint})
		}
		_, err = fmt.Fprintf(a.out, "%s: written for plugin %s at %s\n", file, visible(strconv.Quote(*id)), *endpoint)
		return err
	})
	return cmd
}

// writeNew writes a file that is not there yet.
func writeNew(file string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already and is not overwritten: move it away, or name another file", file)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

func (a *app) manifestCheck() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a manifest, as Lowkey does when it loads it",
		Long: `Check reads FILE (default: ` + manifestFile + `; - is standard input) and holds it to what Lowkey's contract says:
a plugin id, and at least one agent block with the runtime external:<plugin id> and an absolute http or
https endpoint. Other fields are not judged. It prints every violation; the exit code is 1 if there is one.`,
		Example: `  backline manifest check plugins/muse/manifest.json`,
		Args:    takes(0, 1, "one FILE"),
	}
	asJSON = cmd.Flags().Bool("json", false, "print the verdict as one JSON object")
	cmd.RunE = a.runs(func(_ context.Context, args []string) error {
		text, file, err := a.readManifest(args)
		if err != nil {
			return err
		}
		return a.validate(bytes.NewReader(text), file, &validation{kind: kindManifest, asJSON: *asJSON})
	})
	return cmd
}

func (a *app) manifestShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print a manifest",
		Long: `Show reads FILE (default: ` + manifestFile + `; - is standard input) and prints it byte for byte. It need not be valid
by the contract (see manifest check), but it must be a JSON object.`,
		Example: `  backline manifest show plugins/muse/manifest.json`,
		Args:    takes(0, 1, "one FILE"),
		RunE: a.runs(func(_ context.Context, args []string) error {
			text, file, err := a.readManifest(args)
			if err != nil {
				return err
			}
			m, err := manifest.Parse(text)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			_, err = a.out.Write(m.Bytes())
			return err
		}),
	}
}

// readManifest reads the manifest that the arguments name.
func (a *app) readManifest(args []string) (text []byte, file string, err error) {
	if len(args) == 0 {
		args = []string{manifestFile}
	}
	in, file, err := a.open(args)
	if err != nil {
		return nil, "", err
	}
	defer in.Close()
	s, err := readAll(in, maxDocument)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", file, err)
	}
	return []byte(s), file, nil
}
