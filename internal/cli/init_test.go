package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/internal/testhost"
)

// goTool runs the Go command in dir as on a machine without a network.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestScaffoldWorks makes a plugin, holds it to what is promised of it (it builds, vets, passes its
// tests and serves both protocols, offline and with no edit), and runs it.
func TestScaffoldWorks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "my plugin", "7-seas")
	r := run(t, "", nil, "init", dir, "--id", "7-seas")
	if r.code != 0 || r.err != "" {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	if out := goTool(t, dir, "vet", "./..."); out != "" {
		t.Errorf("go vet says %s", out)
	}
	if out, err := exec.CommandContext(t.Context(), "gofmt", "-l", dir).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("gofmt: %v\n%s", err, out)
	}
	goTool(t, dir, "test", "./...")
	goTool(t, dir, "build", "-o", "bin/", ".")
	out, errs := newTranscript(), newTranscript()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "7-seas-plugin"), "-listen", "127.0.0.1:0", "-store", "turns.db")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PLUGIN_OPERATOR_TOKEN="+operatorToken)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := out.await(t, `(?m)^plugin 7-seas takes turns at (http://\S+)$`)[1]
	base := strings.TrimSuffix(out.await(t, `(?m)^and of agent\.external-runtime at (http://\S+)$`)[1], "/external-runtime/turns")
	defer testhost.CloseIdleConnections()
	c := testhost.NewConversation(&testhost.Lowkey{URL: url, PluginID: "7-seas"})
	for _, want := range []string{
		`You said "ahoy". This is turn 1, and I remember 0 messages.`,
		`You said "ahoy". This is turn 2, and I remember 2 messages.`,
	} {
		stream, err := c.Say(t.Context(), "ahoy")
		if err != nil {
			t.Fatal(err)
		}
		if a, err := stream.Answer(); err != nil || !a.Completed() || a.Text != want {
			t.Errorf("it answers %q, %v; want %q", a.Text, err, want)
		}
	}
	// The same adapter under the binding, whose session is another; and the operator's endpoints are there.
	binding := filepath.Join(dir, "admitted", "binding.json")
	for _, want := range []string{"You said \"ahoy\". This is turn 1, and I remember 0 messages.\n", "You said \"ahoy\". This is turn 2, and I remember 0 messages.\n"} {
		if r := run(t, "", nil, "chat", base, "--protocol", "external-runtime", "--binding", binding, "-m", "ahoy"); r.code != 0 || r.out != want || r.err != "" {
			t.Errorf("as Orbiplex: exit code %d, %q %s; want %q", r.code, r.out, r.err, want)
		}
	}
	x := &testhost.External{URL: base + "/external-runtime", OperatorToken: operatorToken}
	if err := x.RevokeBinding(t.Context(), "binding:7-seas"); err != nil {
		t.Errorf("as operator: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM ends it with %v, want exit code 0\n%s", err, errs)
	}
	if r := run(t, "", nil, "ledger", "list", filepath.Join(dir, "turns.db"), "--json"); r.code != 0 || strings.Count(r.out, `"completed"`) < 2 {
		t.Errorf("its ledger: exit code %d, %s%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"binding.json", "profile.json"} {
		if r := run(t, "", nil, "validate", filepath.Join(dir, "admitted", name)); r.code != 0 {
			t.Errorf("%s: %s%s", name, r.out, r.err)
		}
	}

	// Beyond loopback it wants a token, like serve.
	open := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "7-seas-plugin"), "-listen", "0.0.0.0:0")
	open.Dir = dir
	if text, err := open.CombinedOutput(); err == nil || !strings.Contains(string(text), "token") {
		t.Errorf("listening on all interfaces: %v, %s", err, text)
	}
}

// TestScaffoldLibrary holds init's lists of modules to what the scaffold's imports link, on the systems that people
// write plugins on.
func TestScaffoldLibrary(t *testing.T) {
	t.Parallel()
	const ours = "github.com/backline-dev/backline"
	var modules []string
	for _, system := range []string{"linux", "darwin", "windows"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
			ours+"/plugin", ours+"/manifest", ours+"/runtime/ledger/sqlite", ours+"/adapters/adaptertest")
		cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off", "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range strings.Fields(string(out)) {
			if path != ours && !slices.Contains(modules, path) {
				modules = append(modules, path)
			}
		}
	}
	slices.Sort(modules)
	if !slices.Equal(modules, cli.ScaffoldModules) {
		t.Errorf("a new plugin links %q, and init writes %q into its go.mod: change scaffoldModules", modules, cli.ScaffoldModules)
	}
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(mod, []byte("\ngo "+cli.LanguageVersion+"\n")) {
		t.Errorf("go.mod has another go directive than %s: change languageVersion", cli.LanguageVersion)
	}
	m := regexp.MustCompile(`^(\d+\.\d+)`).FindString(cli.LanguageVersion)
	docker, err := os.ReadFile(filepath.Join("scaffold", "Dockerfile.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(docker, []byte("FROM golang:"+m+" AS")) {
		t.Errorf("the Dockerfile does not build with Go %s", m)
	}
}

// TestScaffoldOfARelease: what init writes where Backline is a release, by the build information of one.
func TestScaffoldOfARelease(t *testing.T) {
	t.Parallel()
	const ours = "github.com/backline-dev/backline"
	deps := []*debug.Module{
		{Path: "github.com/gorilla/mux", Version: "v1.8.1"},
		{Path: "github.com/spf13/cobra", Version: "v1.10.2"},
	}
	for _, info := range []*debug.BuildInfo{
		{Main: debug.Module{Path: ours, Version: "v1.2.3"}, Deps: deps},
		{Main: debug.Module{Path: "example.com/tools", Version: "(devel)"}, Deps: append(deps, &debug.Module{Path: ours, Version: "v1.2.3"})},
	} {
		lib := cli.ReleasedLibrary(info)
		if lib == nil {
			t.Fatal("a release is not known as one")
		}
		files, err := cli.ScaffoldContents("muse", lib)
		if err != nil {
			t.Fatal(err)
		}
		const want = `module example.com/muse-plugin

go 1.26.0

require github.com/backline-dev/backline v1.2.3

require (
	github.com/gorilla/mux v1.8.1 // indirect
)
`
		for _, f := range files {
			name, text := f.Name(), f.Text()
			if name == "go.mod" && text != want {
				t.Errorf("go.mod is\n%s\nwant\n%s", text, want)
			}
			if name == "go.sum" {
				t.Error("there is a go.sum, though its sums are not known")
			}
			if strings.Contains(text, "replace github.com") || strings.Contains(text, "dropreplace") || strings.Contains(text, "[[") || !strings.HasSuffix(text, "\n") || strings.HasSuffix(text, "\n\n") {
				t.Errorf("%s names a replacement, holds a template's brackets, or does not end as it should:\n%s", name, text)
			}
		}
	}
	for _, version := range []string{"(devel)", "", "v1.2.3+dirty", "v0.0.0-20261130-abc+dirty", "1.2.3"} {
		if lib := cli.ReleasedLibrary(&debug.BuildInfo{Main: debug.Module{Path: ours, Version: version}}); lib != nil {
			t.Errorf("%q is taken for a release", version)
		}
	}
}

// TestScaffoldIsOnItsOwn: made elsewhere, by a program whose source is a checkout, it points there.
func TestScaffoldIsOnItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program(t), "init", "muse", "--id", "muse", "--json")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Replace string }
	if err := json.Unmarshal(out, &made); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if made.Replace != root {
		t.Errorf("it is replaced by %q, want %q", made.Replace, root)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "muse", "go.mod"))
	if err != nil || !bytes.Contains(mod, []byte("\nreplace github.com/backline-dev/backline => ")) {
		t.Errorf("%v\n%s", err, mod)
	}
}

// TestScaffoldFromAnotherCheckout: the one that is worked in comes before that of the program.
func TestScaffoldFromAnotherCheckout(t *testing.T) {
	t.Parallel()
	checkout := filepath.Join(t.TempDir(), "a (check) out")
	if err := os.MkdirAll(filepath.Join(checkout, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(checkout, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/backline-dev/backline\n\ngo 1.26.7\n\nrequire example.com/other v1.0.0\n")
	dir := t.TempDir()
	init := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), program(t), "init", filepath.Join(dir, "muse"), "--id", "muse")
		cmd.Dir = filepath.Join(checkout, "sub")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := init(); err == nil || !strings.Contains(out, "the checkout is not of this program's version") {
		t.Errorf("a checkout that lacks a module: %v, %s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v behind (%v)", left, err)
	}
	mod := "module github.com/backline-dev/backline // ours\n\ngo 1.26.7\n\nrequire (\n"
	for _, path := range cli.ScaffoldModules {
		mod += "\t" + path + " v9.9.9 // indirect\n"
	}
	write("go.mod", strings.Replace(mod, " // ours", "", 1)+")\n")
	write("go.sum", "github.com/gorilla/mux v9.9.9 h1:x=\ngithub.com/gorilla/mux v9.9.9/go.mod h1:y=\ngithub.com/gorilla/mux v1.0.0/go.mod h1:z=\n")
	if out, err := init(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "muse", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ngo 1.26.7\n", "\tgithub.com/gorilla/mux v9.9.9 // indirect\n", `replace github.com/backline-dev/backline => "` + checkout + `"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("go.mod lacks %q:\n%s", want, text)
		}
	}
	if sums, err := os.ReadFile(filepath.Join(dir, "muse", "go.sum")); err != nil || string(sums) != "github.com/gorilla/mux v9.9.9 h1:x=\ngithub.com/gorilla/mux v9.9.9/go.mod h1:y=\n" {
		t.Errorf("go.sum is %q, %v", sums, err)
	}
}
