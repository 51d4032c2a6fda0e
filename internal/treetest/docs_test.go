package treetest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A block is one fenced block of a document.
type block struct {
	doc  string // the document, relative to the root
	line int    // the line of the block's first line of text
	lang string
	text string
}

func (b *block) place() string { return fmt.Sprintf("%s:%d", b.doc, b.line) }

// documents are what a user reads: README.md, CONTRIBUTING.md and docs/.
func documents(tr *tree) []string {
	var docs []string
	for _, name := range tr.files {
		if name == "README.md" || name == "CONTRIBUTING.md" || (path.Dir(name) == "docs" && path.Ext(name) == ".md") {
			docs = append(docs, name)
		}
	}
	return docs
}

func blocks(doc string, text string) []*block {
	fence := regexp.MustCompile("^([ \t]*)(```+|~~~+)[ \t]*([^`\\s]*)[^`]*$")
	var found []*block
	var open *block
	var indent, mark string
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == nil && m != nil:
			indent, mark = m[1], m[2]
			open = &block{doc: doc, line: i + 2, lang: m[3]}
		case open != nil && m != nil && strings.HasPrefix(m[2], mark) && strings.TrimSpace(line) == m[2]:
			found = append(found, open)
			open = nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	return found
}

func documentBlocks(t *testing.T, tr *tree, langs ...string) []*block {
	t.Helper()
	var all []*block
	for _, doc := range documents(tr) {
		for _, b := range blocks(doc, string(tr.read(t, doc))) {
			if slices.Contains(langs, b.lang) {
				all = append(all, b)
			}
		}
	}
	return all
}

// TestGoBlocksCompile vets the Go code of the documents as a user's module would hold it.
//
// A block is a whole file, or some declarations, or some statements; what the latter two import is
// added here. Each block is a package by itself, unless its first line is a comment that names a file
// ("// muse/adapter.go"): then it stands in that file, beside the others of the same folder and
// document.
func TestGoBlocksCompile(t *testing.T) {
	t.Parallel()
	tr := load(t)
	for _, problem := range compileBlocks(t, tr, documentBlocks(t, tr, "go")) {
		t.Error(problem)
	}
}

// compileBlocks lists what is wrong with Go blocks.
func compileBlocks(t *testing.T, tr *tree, blocks []*block) []string {
	t.Helper()
	if len(blocks) == 0 {
		return nil
	}
	dir := t.TempDir()
	names := importNames(tr)
	var problems []string
	write := func(rel string, content []byte) {
		file := filepath.Join(dir, filepath.FromSlash(rel))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written := map[string]bool{}
	for _, b := range blocks {
		src, err := asFile(b, names)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: the Go block is no file, no declarations and no statements: %v", b.place(), err))
			continue
		}
		folder := strings.NewReplacer("/", "_", ".", "_").Replace(b.doc)
		file := fmt.Sprintf("%s/line%d/block.go", folder, b.line)
		if m := regexp.MustCompile(`^// ([\w./-]+\.go)\n`).FindStringSubmatch(b.text); m != nil {
			if !filepath.IsLocal(m[1]) {
				problems = append(problems, fmt.Sprintf("%s: the block names the file %s, which is outside its folder", b.place(), m[1]))
				continue
			}
			file = path.Join(folder, "files", m[1])
		}
		if written[file] {
			problems = append(problems, fmt.Sprintf("%s: a second block of this document names the same file", b.place()))
			continue
		}
		written[file] = true
		write(file, []byte(src))
	}

	// The same requirements as ours, so that nothing needs to be resolved or fetched.
	mod := strings.Replace(string(tr.read(t, "go.mod")), "module "+module, "module backline.test/documents", 1)
	mod += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, tr.root)
	write("go.mod", []byte(mod))
	write("go.sum", tr.read(t, "go.sum"))
	cmd := exec.CommandContext(t.Context(), "go", "vet", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		problems = append(problems, fmt.Sprintf("go vet of the Go blocks (places are lines of the document): %v\n%s", err, head(out, 60)))
	}
	return problems
}

// asFile makes a Go file of a block, with a //line comment so that errors name the document.
func asFile(b *block, names map[string]string) (string, error) {
	line := fmt.Sprintf("//line %s:%d\n", path.Base(b.doc), b.line)
	fset := token.NewFileSet()
	if _, err := parser.ParseFile(fset, "", b.text, parser.PackageClauseOnly); err == nil {
		return line + b.text, nil
	}
	var firstErr error
	for _, wrap := range []struct{ before, after string }{
		{"", ""},
		{"func _() {\n", "\n}\n"},
	} {
		body := wrap.before + line + b.text + wrap.after
		f, err := parser.ParseFile(fset, "", "package documents\n"+body, parser.SkipObjectResolution)
		if err != nil {
			firstErr = errors.Join(firstErr, err)
			continue
		}
		var imports strings.Builder
		for _, name := range missingImports(f) {
			if p, ok := names[name]; ok {
				fmt.Fprintf(&imports, "import %s %q\n", name, p)
			}
		}
		return "package documents\n" + imports.String() + body, nil
	}
	return "", firstErr
}

// missingImports names what f uses as if it were a package, neither importing nor declaring it.
func missingImports(f *ast.File) []string {
	used, declared := map[string]bool{}, map[string]bool{}
	declare := func(names ...*ast.Ident) {
		for _, n := range names {
			declared[n.Name] = true
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, lhs := range n.Lhs {
					if id, ok := lhs.(*ast.Ident); ok {
						declare(id)
					}
				}
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if id, ok := e.(*ast.Ident); ok {
					declare(id)
				}
			}
		case *ast.Field:
			declare(n.Names...)
		case *ast.ValueSpec:
			declare(n.Names...)
		case *ast.TypeSpec:
			declare(n.Name)
		case *ast.FuncDecl:
			declare(n.Name)
		case *ast.ImportSpec:
			if n.Name != nil {
				declare(n.Name)
			} else {
				declared[path.Base(strings.Trim(n.Path.Value, `"`))] = true
			}
		}
		return true
	})
	maps.DeleteFunc(used, func(name string, _ bool) bool { return declared[name] })
	return slices.Sorted(maps.Keys(used))
}

// importNames tells which package a bare name means in a document: ours first, then the standard
// library's, where a shorter path wins (context, not a vendored one).
func importNames(tr *tree) map[string]string {
	names := map[string]string{"goruntime": "runtime"}
	for _, importPath := range slices.Sorted(maps.Keys(tr.packages)) {
		p := tr.packages[importPath]
		rel, own := p.rel()
		if p.Name == "main" || strings.Contains("/"+importPath+"/", "/internal/") || strings.HasPrefix(importPath, "vendor/") || !own && !p.Standard {
			continue
		}
		have, taken := names[p.Name]
		_, haveOwn := ours(have)
		switch {
		case !taken:
			names[p.Name] = importPath
		case own && !haveOwn:
			names[p.Name] = importPath
		case own == haveOwn && len(rel+importPath) < len(have):
			names[p.Name] = importPath
		}
	}
	return names
}

// TestShellBlocksAreTrue reads the shell blocks of the documents: they parse, the Go commands, make
// targets and packages they name exist, and so do the commands and flags of backline.
func TestShellBlocksAreTrue(t *testing.T) {
	t.Parallel()
	tr := load(t)
	check := &shellCheck{
		exists: func(rel string) bool {
			_, err := os.Stat(filepath.Join(tr.root, filepath.FromSlash(rel)))
			return err == nil
		},
		targets: makeTargets(string(tr.read(t, "Makefile"))),
	}
	if p := tr.packages[module+"/cmd/backline"]; p != nil {
		check.help = builtHelp(t, tr)
	}
	for _, b := range documentBlocks(t, tr, "sh", "bash", "shell") {
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: the shell block does not parse: %v\n%s", b.place(), err, out)
			continue
		}
		for _, problem := range check.block(b.text) {
			t.Errorf("%s: %s", b.place(), problem)
		}
	}
}

// A shellCheck knows what commands may name.
type shellCheck struct {
	exists  func(rel string) bool
	targets []string
	// help returns what `backline … --help` prints; nil where the tree has no such command.
	help func(command []string) (string, error)
}

var goCommands = strings.Fields("build clean doc env fix fmt generate get help install list mod run test tool version vet work")

func (c *shellCheck) block(text string) []string {
	var problems []string
	elsewhere := false // the block has left the checkout
	for _, words := range shellCommands(text) {
		for len(words) > 0 && regexp.MustCompile(`^[A-Za-z_]\w*=`).MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 0 && words[0] == "$" {
			problems = append(problems, "a prompt ($) stands before a command, which then cannot be pasted")
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		var err error
		switch name := words[0]; {
		case name == "cd":
			elsewhere = len(words) < 2 || path.Base(words[1]) != "backline"
		case name == "backline" || strings.HasSuffix(name, "/backline"):
			err = c.backline(words[1:])
		case name == "make" && !elsewhere:
			for _, word := range words[1:] {
				if !strings.ContainsAny(word, "=-") && !slices.Contains(c.targets, word) {
					err = fmt.Errorf("make %s: there is no such target", word)
				}
			}
		case name == "go":
			err = c.goCommand(words[1:], elsewhere)
		}
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

func (c *shellCheck) goCommand(args []string, elsewhere bool) error {
	if len(args) == 0 || !slices.Contains(goCommands, args[0]) {
		return fmt.Errorf("go %s: there is no such command", strings.Join(args, " "))
	}
	for i, arg := range args[1:] {
		if rel, ok := strings.CutPrefix(arg, "./"); ok && !elsewhere {
			rel = strings.TrimSuffix(strings.TrimSuffix(rel, "..."), "/")
			if rel != "" && !c.exists(rel) {
				return fmt.Errorf("go %s %s: there is no such path in the tree", args[0], arg)
			}
		}
		// The program's own arguments follow the package that go run names.
		if base, _, _ := strings.Cut(arg, "@"); args[0] == "run" && !strings.HasPrefix(arg, "-") {
			if base == "./cmd/backline" || base == module+"/cmd/backline" {
				return c.backline(args[i+2:])
			}
			return nil
		}
	}
	return nil
}

var (
	flagLine    = regexp.MustCompile(`(?m)^ +(?:-(\w), )?--([a-zA-Z][\w-]*)(?: ([^\s]+))?(?: {2,}|$)`)
	commandLine = regexp.MustCompile(`(?m)^  ([a-z][\w-]*)(?: {2,}|$)`)
)

// backline walks the words of a backline command line along the help texts.
func (c *shellCheck) backline(args []string) error {
	if c.help == nil {
		return errors.New("there is no cmd/backline to ask for its commands")
	}
	var command []string
	name := func() string { return strings.Join(append([]string{"backline"}, command...), " ") }
	positional := false
	for i := 0; i < len(args); i++ {
		help, err := c.help(command)
		if err != nil {
			return fmt.Errorf("%s --help: %w", name(), err)
		}
		arg := args[i]
		switch {
		case arg == "--":
			return nil
		case strings.HasPrefix(arg, "-") && arg != "-":
			flag, _, joined := strings.Cut(arg, "=")
			known := slices.IndexFunc(flagLine.FindAllStringSubmatch(help, -1), func(m []string) bool {
				return flag == "--"+m[2] || m[1] != "" && flag == "-"+m[1]
			})
			if known < 0 {
				return fmt.Errorf("%s has no flag %s", name(), flag)
			}
			if takesValue := flagLine.FindAllStringSubmatch(help, -1)[known][3] != ""; takesValue && !joined {
				i++
			}
		case !positional:
			subcommands := subcommandsOf(help)
			switch {
			case slices.Contains(subcommands, arg):
				command = append(command, arg)
			case len(subcommands) > 0:
				return fmt.Errorf("%s has no command %s", name(), arg)
			default:
				positional = true
			}
		}
	}
	_, err := c.help(command)
	return err
}

// subcommandsOf reads the commands that a help text lists between its usage and its flags.
func subcommandsOf(help string) []string {
	var names []string
	in := false
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line != "" && line[0] != ' ':
			in = strings.HasSuffix(line, "ommands:")
		case in:
			if m := commandLine.FindStringSubmatch(line); m != nil {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// builtHelp builds the command once and asks it.
func builtHelp(t *testing.T, tr *tree) func([]string) (string, error) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "backline")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/backline")
	build.Dir = tr.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build ./cmd/backline: %v\n%s", err, out)
	}
	var mu sync.Mutex
	known := map[string]string{}
	return func(command []string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		key := strings.Join(command, " ")
		if help, ok := known[key]; ok {
			return help, nil
		}
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), binary, append(slices.Clone(command), "--help")...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%w\n%s", err, stderr.Bytes())
		}
		known[key] = string(out)
		return known[key], nil
	}
}

func makeTargets(makefile string) []string {
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][\w-]*):(?:[^=]|$)`).FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// shellCommands splits a script into simple commands of plain words. It knows comments, quotes,
// continued lines, here-documents, redirections and the operators between commands; expansions stay
// as written. That is as much shell as a document should need.
func shellCommands(text string) [][]string {
	var commands [][]string
	var words []string
	var word strings.Builder
	inWord := false
	var hereDocs []string
	endWord := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		words = dropRedirections(words)
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	hereDoc := regexp.MustCompile(`^<<-?\s*['"]?(\w+)['"]?`)
	for i := 0; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == '\\' && i+1 < len(text):
			i++
			if text[i] != '\n' {
				word.WriteByte(text[i])
				inWord = true
			}
		case ch == '\'' || ch == '"':
			inWord = true
			for i++; i < len(text) && text[i] != ch; i++ {
				if ch == '"' && text[i] == '\\' && i+1 < len(text) {
					i++
				}
				word.WriteByte(text[i])
			}
		case ch == '#' && !inWord:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case ch == '$' && i+1 < len(text) && text[i+1] == '(':
			depth := 0
			inWord = true
			for ; i < len(text); i++ {
				word.WriteByte(text[i])
				if text[i] == '(' {
					depth++
				} else if text[i] == ')' {
					if depth--; depth == 0 {
						break
					}
				}
			}
		case ch == '<' && hereDoc.MatchString(text[i:]):
			m := hereDoc.FindStringSubmatch(text[i:])
			hereDocs = append(hereDocs, m[1])
			i += len(m[0]) - 1
		case ch == '&' && (i > 0 && text[i-1] == '>' || i+1 < len(text) && text[i+1] == '>'):
			word.WriteByte(ch) // 2>&1 and &>file
			inWord = true
		case ch == '\n' || ch == ';' || ch == '|' || ch == '&' || ch == '(' || ch == ')':
			endCommand()
			for ch == '\n' && len(hereDocs) > 0 {
				line, rest, more := strings.Cut(text[i+1:], "\n")
				if strings.TrimSpace(line) == hereDocs[0] {
					hereDocs = hereDocs[1:]
				}
				if !more {
					return commands
				}
				i = len(text) - len(rest) - 1
			}
		case ch == ' ' || ch == '\t':
			endWord()
		default:
			word.WriteByte(ch)
			inWord = true
		}
	}
	endCommand()
	return commands
}

func dropRedirections(words []string) []string {
	var kept []string
	redirect := regexp.MustCompile(`^(?:\d*|&)(?:>>?|<)(&?\d*|.*)$`)
	for i := 0; i < len(words); i++ {
		if m := redirect.FindStringSubmatch(words[i]); m != nil {
			if m[1] == "" {
				i++ // the file is the next word
			}
			continue
		}
		kept = append(kept, words[i])
	}
	return kept
}
