package treetest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The checks on documents are code with rules of its own; these tests hold them.

func TestBlocks(t *testing.T) {
	t.Parallel()
	text := "# T\n\n```go\npackage p\n```\n\n1. step\n\n   ```sh\n   go test ./...\n     indented\n   ```\n\n````md\n```go\nnot a block\n```\n````\n\nA line with ```code``` in it.\n"
	var got []block
	for _, b := range blocks("README.md", text) {
		got = append(got, *b)
	}
	want := []block{
		{"README.md", 4, "go", "package p\n"},
		{"README.md", 10, "sh", "go test ./...\n  indented\n"},
		{"README.md", 15, "md", "```go\nnot a block\n```\n"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(block{})); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

func TestAsFile(t *testing.T) {
	t.Parallel()
	names := map[string]string{"fmt": "fmt", "adapters": module + "/adapters", "log": "log"}
	for _, test := range []struct{ name, text, want string }{
		{"file", "package muse\n", "//line a.md:7\npackage muse\n"},
		{"declarations", "func f() { fmt.Println(adapters.Cause(\"\")) }\n",
			"package documents\nimport adapters \"" + module + "/adapters\"\nimport fmt \"fmt\"\n//line a.md:7\nfunc f() { fmt.Println(adapters.Cause(\"\")) }\n"},
		{"statements", "log := 1\nfmt.Println(log.x)\n",
			"package documents\nimport fmt \"fmt\"\nfunc _() {\n//line a.md:7\nlog := 1\nfmt.Println(log.x)\n\n}\n"},
	} {
		got, err := asFile(&block{doc: "docs/a.md", line: 7, text: test.text}, names)
		if err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", test.name, err, cmp.Diff(test.want, got))
		}
	}
	if got, err := asFile(&block{doc: "a.md", line: 1, text: "func {"}, names); err == nil {
		t.Errorf("broken code became %q, want an error", got)
	}
}

func TestCompileBlocks(t *testing.T) {
	t.Parallel()
	tr := load(t)
	good := []*block{
		{doc: "a.md", line: 1, text: "// muse/main.go\npackage main\n\nfunc main() { run() }\n"},
		{doc: "a.md", line: 9, text: "// muse/run.go\npackage main\n\nimport \"github.com/backline-dev/backline/adapters\"\n\nfunc run() { _ = adapters.Func(nil) }\n"},
		{doc: "docs/b.md", line: 3, text: "err := adapters.Public(\"Try again.\", context.Canceled)\nfmt.Println(err)\n"},
	}
	if got := compileBlocks(t, tr, good); len(got) > 0 {
		t.Errorf("good blocks: %s", strings.Join(got, "\n"))
	}
	bad := []*block{
		{doc: "docs/b.md", line: 30, text: "adapters.Public(\"Try again.\", nil)\nadapters.Nonsense()\n"},
		{doc: "docs/b.md", line: 50, text: "func {\n"},
		{doc: "docs/b.md", line: 70, text: "// ../x.go\npackage x\n"},
		{doc: "docs/b.md", line: 80, text: "// x/x.go\npackage x\n"},
		{doc: "docs/b.md", line: 90, text: "// x/x.go\npackage x\n"},
	}
	inner := []*block{
		{doc: "docs/b.md", line: 99, text: "import _ \"github.com/backline-dev/backline/internal/treetest\"\n"},
	}
	got := strings.Join(slices.Concat(compileBlocks(t, tr, bad), compileBlocks(t, tr, inner)), "\n")
	for _, want := range []string{
		"b.md:31:", "undefined: adapters.Nonsense",
		"docs/b.md:50: the Go block is no file, no declarations and no statements",
		"docs/b.md:70: the block names the file ../x.go, which is outside its folder",
		"docs/b.md:90: a second block of this document names the same file",
		"use of internal package github.com/backline-dev/backline/internal/treetest not allowed",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("bad blocks do not give %q:\n%s", want, got)
		}
	}
}

func TestShellCommands(t *testing.T) {
	t.Parallel()
	text := `# a comment
A=1 go test ./... # the tests
backline serve \
  --listen 127.0.0.1:8787 > out.txt 2>&1 &
echo '{"a": "b|c"}' | backline validate - && make check; true
cat <<EOF > file
backline nonsense
EOF
(cd x && go vet "./a b")
curl -d "$(cat body | head)" http://127.0.0.1/
`
	want := [][]string{
		{"A=1", "go", "test", "./..."},
		{"backline", "serve", "--listen", "127.0.0.1:8787"},
		{"echo", `{"a": "b|c"}`},
		{"backline", "validate", "-"},
		{"make", "check"},
		{"true"},
		{"cat"},
		{"cd", "x"},
		{"go", "vet", "./a b"},
		{"curl", "-d", "$(cat body | head)", "http://127.0.0.1/"},
	}
	if diff := cmp.Diff(want, shellCommands(text)); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

func TestShellRules(t *testing.T) {
	t.Parallel()
	helps := map[string]string{
		"":               "Hosts agents.\n\nUsage:\n  backline [command]\n\nAvailable Commands:\n  manifest    The plugin manifest\n  serve       Hosts one plugin\n\nFlags:\n  -h, --help   help for backline\n",
		"serve":          "Hosts one plugin.\n\nUsage:\n  backline serve [flags]\n\nExamples:\n  backline serve --adapter echo\n\nFlags:\n      --adapter string   which adapter (default \"echo\")\n  -h, --help             help for serve\n      --insecure         no token\n",
		"manifest":       "Usage:\n  backline manifest [command]\n\nManifest Commands:\n  check   Checks one\n\nFlags:\n  -h, --help   help\n",
		"manifest check": "Usage:\n  backline manifest check FILE\n\nFlags:\n      --json   for machines\n",
	}
	c := &shellCheck{
		exists:  func(rel string) bool { return rel == "cmd/backline" || rel == "plugin" },
		targets: makeTargets("TOOLS := x\ncheck: a b ## All.\n\tgo vet\nfuzz: ## Fuzz.\n"),
		help: func(command []string) (string, error) {
			if help, ok := helps[strings.Join(command, " ")]; ok {
				return help, nil
			}
			return "", errors.New("no such command")
		},
	}
	for _, test := range []struct{ text, want string }{
		{"go run ./cmd/backline serve --adapter echo --insecure", ""},
		{"backline serve --adapter=echo", ""},
		{"backline serve -h", ""},
		{"backline manifest check --json manifest.json", ""},
		{"go test ./plugin/...", ""},
		{"go test ./...", ""},
		{"make check", ""},
		{"make fuzz FUZZTIME=10s", ""},
		{"cd elsewhere\ngo run ./muse\nmake all", ""},
		{"cd backline\ngo vet ./plugin", ""},
		{"go run github.com/backline-dev/backline/cmd/backline@latest serve", ""},
		{"backline server", "backline has no command server"},
		{"backline serve --adaptor echo", "backline serve has no flag --adaptor"},
		{"backline serve -x", "backline serve has no flag -x"},
		{"backline manifest cheque x", "backline manifest has no command cheque"},
		{"go run ./cmd/backline serve --nope", "backline serve has no flag --nope"},
		{"go tests ./...", "go tests ./...: there is no such command"},
		{"go test ./plugins", "go test ./plugins: there is no such path in the tree"},
		{"make everything", "make everything: there is no such target"},
		{"$ make check", "a prompt ($) stands before a command, which then cannot be pasted"},
	} {
		if got := strings.Join(c.block(test.text), "; "); got != test.want {
			t.Errorf("%q: got %q, want %q", test.text, got, test.want)
		}
	}
	if got := c.targets; !slices.Equal(got, []string{"check", "fuzz"}) {
		t.Errorf("make targets %v", got)
	}
}
