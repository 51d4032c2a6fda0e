package treetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/backline-dev/backline"

// A goPackage is what `go list` tells about one package, ours or not.
type goPackage struct {
	ImportPath     string
	Dir            string
	Name           string
	Standard       bool
	Module         *struct{ Path string }
	GoFiles        []string
	CgoFiles       []string
	IgnoredGoFiles []string
	TestGoFiles    []string
	XTestGoFiles   []string
	Imports        []string
	TestImports    []string
	XTestImports   []string
	Error          *struct{ Err string }
}

// rel is the package's path below the module, and false for a package that is not ours.
func (p *goPackage) rel() (string, bool) { return ours(p.ImportPath) }

func ours(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// A tree is the checkout as all tests here see it; it is read once.
type tree struct {
	root string
	// files are the checkout's files, slash-separated and relative to root, without what git ignores.
	files []string
	// packages holds ours and everything they link, by import path.
	packages map[string]*goPackage
}

var loadTree = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	tr := &tree{root: root, packages: map[string]*goPackage{}}

	// The walk comes first for a second reason: it opens every folder of the tree in this process. That
	// is how `go test` learns that a cached result depends on them; what `go list` reads it never sees.
	ignored := []string{".git", ".tools", "bin", "dist"}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed while we walked
			}
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && slices.Contains(ignored, rel):
			return fs.SkipDir
		case d.Type().IsRegular():
			tr.files = append(tr.files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	cmd := exec.Command("go", "list", "-e", "-deps",
		"-json=ImportPath,Dir,Name,Standard,Module,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Error",
		"./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Error != nil {
			return nil, fmt.Errorf("go list: %s: %s", p.ImportPath, p.Error.Err)
		}
		tr.packages[p.ImportPath] = p
	}
	return tr, nil
})

func load(t *testing.T) *tree {
	t.Helper()
	tr, err := loadTree()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// own lists our packages in order of their path.
func (tr *tree) own() []*goPackage {
	var list []*goPackage
	for _, name := range slices.Sorted(maps.Keys(tr.packages)) {
		if _, ok := ours(name); ok {
			list = append(list, tr.packages[name])
		}
	}
	return list
}

// need returns the package with this path below the module.
func (tr *tree) need(t *testing.T, rel string) *goPackage {
	t.Helper()
	p := tr.packages[module+"/"+rel]
	if p == nil {
		t.Fatalf("there is no package %s", rel)
	}
	return p
}

// reach walks everything that a program with this package links and returns, for each import path,
// the package that first led there. The start leads to itself.
func (tr *tree) reach(start *goPackage) map[string]string {
	from := map[string]string{start.ImportPath: start.ImportPath}
	for queue := []string{start.ImportPath}; len(queue) > 0; queue = queue[1:] {
		p := tr.packages[queue[0]]
		if p == nil {
			continue // "C" and "unsafe"
		}
		for _, next := range p.Imports {
			if _, seen := from[next]; !seen {
				from[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return from
}

// chain words how a package was reached.
func chain(from map[string]string, to string) string {
	names := []string{to}
	for from[to] != to {
		to = from[to]
		names = append(names, to)
	}
	slices.Reverse(names)
	return strings.Join(names, " → ")
}

// parse reads the named files of a package.
func parse(t *testing.T, p *goPackage, fset *token.FileSet, names []string, mode parser.Mode) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, mode|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// read returns a file of the checkout.
func (tr *tree) read(t *testing.T, rel string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tr.root, filepath.FromSlash(rel)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
