package cli

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema/external"
)

// scaffold holds the files of a new plugin. Each is a template between [[ and ]], since the workflow
// has braces of its own, and its name ends in .tmpl, so that nothing takes it for code of this module.
//
//go:embed scaffold
var scaffold embed.FS

// admittedDir is the folder of a new plugin that has what is admitted.
const admittedDir = "admitted"

// scaffoldFiles are the files of a new plugin and their templates; one without is made.
var scaffoldFiles = []struct{ name, template string }{
	{"go.mod", "go.mod.tmpl"},
	{"go.sum", ""},
	{"main.go", "main.go.tmpl"},
	{"main_test.go", "main_test.go.tmpl"},
	{"adapter.go", "adapter.go.tmpl"},
	{"adapter_test.go", "adapter_test.go.tmpl"},
	{manifestFile, ""},
	{admittedDir + "/profile.json", "profile.json.tmpl"},
	{admittedDir + "/binding.json", "binding.json.tmpl"},
	{"README.md", "README.md.tmpl"},
	{"Dockerfile", "Dockerfile.tmpl"},
	{".github/workflows/ci.yml", "ci.yml.tmpl"},
	{".gitignore", "gitignore.tmpl"},
}

// scaffoldModules are the modules, besides Backline, that a new plugin and its tests link on some system. A test
// holds the list to what the packages import.
var scaffoldModules = []string{
	"github.com/dustin/go-humanize",
	"github.com/go-json-experiment/json",
	"github.com/google/uuid",
	"github.com/gorilla/mux",
	"github.com/gowebpki/jcs",
	"github.com/hashicorp/golang-lru/v2",
	"github.com/mattn/go-isatty",
	"github.com/ncruces/go-strftime",
	"github.com/remyoudompheng/bigfft",
	"github.com/santhosh-tekuri/jsonschema/v5",
	"golang.org/x/sys",
	"modernc.org/libc",
	"modernc.org/mathutil",
	"modernc.org/memory",
	"modernc.org/sqlite",
}

// goodID is what an id may be here: it goes into file contents of many kinds, and into a module path.
// (A manifest may have any id.)
var goodID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// A library is where the new plugin's go.mod finds Backline.
type library struct {
	Version  string   // of the requirement
	Checkout string   // what replaces it; empty: nothing does
	Go       string   // the go directive
	Modules  []string // "path version" of what it links besides
	sums     []byte   // go.sum, as far as it is known
}

func (a *app) initCommand() *cobra.Command {
	var id *string
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Scaffold a plugin repository",
		Long: `Init writes a plugin repository for Lowkey and Orbiplex into DIR: an adapter to fill in, its tests, a server,
the plugin manifest, a profile and a binding to be admitted, and what it takes to build and ship it. It
builds, passes its tests and serves both as it is.

No file is ever overwritten: where one is there already, nothing is written. From a checkout of Backline
the new go.mod gets a replace directive to it, so that it builds offline.`,
		Example: `  backline init ./muse --id muse && cd muse && go test ./... && go run .`,
		Args:    takes(1, 1, "the DIR to write into"),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	id = flags.String("id", "", "the plugin's `id` (required): letters, digits, dots, dashes and underscores")
	choiceFlag(flags, "adapter", "what the plugin begins with: an adapter of your own", "custom")
	asJSON = flags.Bool("json", false, "print what was written as one JSON object")
	cmd.RunE = a.runs(func(_ context.Context, args []string) error {
		switch {
		case *id == "":
			return usagef("init needs the plugin's id: give --id, such as --id %s", defaultPlugin)
		case !goodID.MatchString(*id):
			return usagef("--id is %q, want letters, digits, dots, dashes and underscores, a letter or digit first, at most 100", *id)
		case args[0] == "":
			return usagef("DIR is empty: name the directory to write into")
		}
		return a.scaffold(args[0], *id, *asJSON)
	})
	return cmd
}

func (a *app) scaffold(dir, id string, asJSON bool) error {
	lib, err := findLibrary(dir)
	if err != nil {
		return err
	}
	files, err := scaffoldContents(id, lib)
	if err != nil {
		return err
	}
	if err := writeTree(dir, files); err != nil {
		return err
	}

	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.name
	}
	next := []string{"cd " + shellQuote(dir), "go test ./...", "go run ."}
	if lib.Checkout == "" {
		next = slices.Insert(next, 1, "go mod tidy")
	}
	if asJSON {
		return a.printJSON(struct {
			Dir     string   `json:"dir"`
			ID      string   `json:"id"`
			Files   []string `json:"files"`
			Replace string   `json:"replace,omitempty"`
			Next    []string `json:"next"`
		}{dir, id, names, lib.Checkout, next})
	}
	_, _ = fmt.Fprintf(a.out, "Plugin %s is in %s:\n\n  %s\n\n", id, dir, strings.Join(names, "\n  "))
	if lib.Checkout != "" {
		_, _ = fmt.Fprintf(a.out, "Its go.mod has a replace directive to this checkout of Backline, so that it builds offline:\n\n  %s => %s\n\nREADME.md says how to take it out before the plugin leaves this machine.\n\n", modulePath, lib.Checkout)
	}
	_, _ = fmt.Fprintf(a.out, "Next:\n\n  %s\n", strings.Join(next, "\n  "))
	return nil
}

// A newFile is a file to be written below a directory.
type newFile struct {
	name string // with slashes
	text []byte
}

// scaffoldContents makes the files of a new plugin, in the order in which a reader wants them.
func scaffoldContents(id string, lib *library) ([]newFile, error) {
	templates, err := template.New("").Delims("[[", "]]").ParseFS(scaffold, "scaffold/*.tmpl")
	if err != nil {
		return nil, err
	}
	m, err := manifest.New(id, defaultEndpoint)
	if err != nil {
		return nil, err
	}
	var files []newFile
	for _, f := range scaffoldFiles {
		var text bytes.Buffer
		switch {
		case f.name == manifestFile:
			text.Write(m.Bytes())
		case f.template == "":
			text.Write(lib.sums)
		default:
			err := templates.ExecuteTemplate(&text, f.template, map[string]any{
				"ID": id, "Library": lib, "Backline": modulePath, "Endpoint": defaultEndpoint, "Manifest": manifestFile,
				"Admitted": admittedDir, "Now": external.DateTimeOf(time.Now().Truncate(time.Second)), "ReplacePath": quoteModPath(lib.Checkout),
			})
			if err != nil {
				return nil, err
			}
		}
		if text.Len() > 0 { // the sums of a release are not known
			files = append(files, newFile{f.name, text.Bytes()})
		}
	}
	for i := range files {
		if files[i].name == admittedDir+"/binding.json" {
			s := sealOf(external.BindingV1)
			digest, err := s.digest(files[i].text)
			if err != nil {
				return nil, err
			}
			files[i].text = s.put(files[i].text, digest)
		}
	}
	return files, nil
}

// writeTree writes files below dir. If any of them is there, nothing is written; if one cannot be
// written, those before it are removed again.
func writeTree(dir string, files []newFile) (err error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a directory: name another", dir)
	}
	var there []string
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.name))); err == nil {
			there = append(there, f.name)
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("%s has %s already, and nothing is overwritten: move that away, or name another directory", dir, strings.Join(there, ", "))
	}
	var written []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range slices.Backward(written) {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.name))
		made, err := makeDirs(filepath.Dir(path))
		written = append(written, made...)
		if err != nil {
			return err
		}
		if err := writeNew(path, f.text, 0o666); err != nil {
			return err
		}
		written = append(written, path)
	}
	return nil
}

// makeDirs makes a directory and those above it, and lists those that were not there, outermost first.
func makeDirs(dir string) (made []string, err error) {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil, nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if made, err = makeDirs(parent); err != nil {
			return made, err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		return made, err
	}
	return append(made, dir), nil
}

// findLibrary tells where a plugin in dir finds Backline: in a checkout, if this program is run in one
// or was built from one, else as the release that this program is.
func findLibrary(dir string) (*library, error) {
	if checkout := findCheckout(dir); checkout != "" {
		return libraryIn(checkout)
	}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if lib := releasedLibrary(info); lib != nil {
			return lib, nil
		}
	}
	return nil, errors.New("this program was built from a checkout of Backline that is not there any more: run it inside a checkout, or install a release (go install " + modulePath + "/cmd/backline@latest)")
}

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// releasedLibrary returns nil if the program is no release of Backline.
func releasedLibrary(info *debug.BuildInfo) *library {
	version := moduleVersion(info)
	if !release.MatchString(version) {
		return nil
	}
	lib := &library{Version: version, Go: languageVersion}
	for _, dep := range info.Deps {
		if slices.Contains(scaffoldModules, dep.Path) {
			lib.Modules = append(lib.Modules, dep.Path+" "+dep.Version)
		}
	}
	return lib
}

// languageVersion is the go directive of a plugin made by a release. A test holds it to go.mod.
const languageVersion = "1.26.0"

// findCheckout finds the root of a checkout of Backline, above the working directory, above the new
// plugin, or where this program's source is. Empty: there is none.
func findCheckout(dir string) string {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if abs, err := filepath.Abs(dir); err == nil {
		starts = append(starts, abs)
	}
	// A program that was built with -trimpath has no absolute path here; one that was installed from a
	// release has a path in the module cache, with the version behind an @.
	if _, source, _, ok := goruntime.Caller(0); ok && filepath.IsAbs(source) && !strings.Contains(source, "@") {
		starts = append(starts, filepath.Dir(source))
	}
	for _, start := range starts {
		for at := start; ; {
			if text, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil && moduleLine.Match(text) {
				return at
			}
			parent := filepath.Dir(at)
			if parent == at {
				break
			}
			at = parent
		}
	}
	return ""
}

var (
	moduleLine  = regexp.MustCompile(`(?m)^module\s+"?` + regexp.QuoteMeta(modulePath) + `"?\s*$`)
	goLine      = regexp.MustCompile(`(?m)^go\s+(\S+)\s*$`)
	requireLine = regexp.MustCompile(`(?m)^\s*(?:require\s+)?([\w./~-]+)\s+(v[\w.+-]+)\s*(?://.*)?$`)
)

// libraryIn is the library as a checkout has it.
func libraryIn(checkout string) (*library, error) {
	mod, err := os.ReadFile(filepath.Join(checkout, "go.mod"))
	if err != nil {
		return nil, err
	}
	lib := &library{Version: "v0.0.0", Checkout: checkout, Go: languageVersion}
	if m := goLine.FindSubmatch(mod); m != nil {
		lib.Go = string(m[1])
	}
	versions := map[string]string{}
	for _, m := range requireLine.FindAllSubmatch(mod, -1) {
		versions[string(m[1])] = string(m[2])
	}
	for _, path := range scaffoldModules {
		version, ok := versions[path]
		if !ok {
			return nil, fmt.Errorf("%s does not require %s: the checkout is not of this program's version", filepath.Join(checkout, "go.mod"), path)
		}
		lib.Modules = append(lib.Modules, path+" "+version)
	}
	sums, err := os.ReadFile(filepath.Join(checkout, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lib.sums = neededSums(sums, lib.Modules)
	return lib, nil
}

// neededSums picks the lines of go.sum that concern modules, each "path version".
func neededSums(sums []byte, modules []string) []byte {
	var needed []byte
	for line := range bytes.Lines(sums) {
		for _, module := range modules {
			if bytes.HasPrefix(line, []byte(module+" ")) || bytes.HasPrefix(line, []byte(module+"/go.mod ")) {
				needed = append(needed, line...)
			}
		}
	}
	return needed
}

// quoteModPath quotes a path for go.mod, if it needs that.
func quoteModPath(path string) string {
	if strings.ContainsAny(path, " \t'\"`()[]{},;") || strings.Contains(path, "//") {
		return fmt.Sprintf("%q", path)
	}
	return path
}
