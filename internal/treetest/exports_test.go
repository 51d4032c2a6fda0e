package treetest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNoSignatureNamesMux: the router is ours to change. Handlers come out as http.Handler.
func TestNoSignatureNamesMux(t *testing.T) {
	t.Parallel()
	for _, p := range load(t).own() {
		rel, _ := p.rel()
		fset := token.NewFileSet()
		for _, f := range parse(t, p, fset, slices.Concat(p.GoFiles, p.IgnoredGoFiles), 0) {
			name := importedAs(f, "github.com/gorilla/mux", "mux")
			if name == "" {
				continue
			}
			for _, use := range exportedUses(f, name) {
				t.Errorf("%s: %s shows a type of gorilla/mux in its exported API", rel, fset.Position(use))
			}
		}
	}
}

// importedAs is the name under which f uses a package, empty if it does not import it.
func importedAs(f *ast.File, importPath, base string) string {
	for _, spec := range f.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil && p == importPath {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return base
		}
	}
	return ""
}

// exportedUses finds where the exported declarations of f name a package: in parameters, results,
// exported fields and methods, types, and what exported variables are made of.
func exportedUses(f *ast.File, name string) []token.Pos {
	var found []token.Pos
	look := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == name {
					found = append(found, n.Pos())
				}
			case *ast.StructType:
				// Hidden fields are nobody's business; embedded ones are public by their type's name.
				for _, field := range n.Fields.List {
					if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
						ast.Inspect(field.Type, func(n ast.Node) bool {
							if s, ok := n.(*ast.SelectorExpr); ok {
								if x, ok := s.X.(*ast.Ident); ok && x.Name == name {
									found = append(found, s.Pos())
								}
							}
							return true
						})
					}
				}
				return false
			}
			return true
		})
	}
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Name.IsExported() && (decl.Recv == nil || exportedReceiver(decl.Recv)) {
				look(decl.Type)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						look(spec.Type)
					}
				case *ast.ValueSpec:
					if !slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
						continue
					}
					if spec.Type != nil {
						look(spec.Type)
						continue
					}
					for _, value := range spec.Values {
						look(value)
					}
				}
			}
		}
	}
	return found
}

func exportedReceiver(recv *ast.FieldList) bool {
	exported := false
	ast.Inspect(recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			exported = id.IsExported()
			return false
		}
		return true
	})
	return exported
}

// met are the packages whose functions a user calls.
var met = []string{"plugin", "adapters", "adapters/*", "manifest", "schema", "schema/lowkey", "schema/external",
	"runtime/ndjson", "runtime/session", "runtime/ledger", "runtime/ledger/sqlite"}

// withoutExample are exported functions that need none, with the reason. Functions that take a
// testing.T or testing.TB are not listed: no Example can call them.
var withoutExample = map[string]string{}

// TestExportedFunctionsHaveExamples: whoever meets a function can see it used, in a form that runs.
func TestExportedFunctionsHaveExamples(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range load(t).own() {
		rel, _ := p.rel()
		if !fits(met, rel) {
			continue
		}
		fset := token.NewFileSet()
		examples := doc.Examples(parse(t, p, fset, slices.Concat(p.TestGoFiles, p.XTestGoFiles), parser.ParseComments)...)
		for _, name := range exportedFunctions(parse(t, p, fset, p.GoFiles, 0)) {
			full := rel + "." + name
			runs := slices.ContainsFunc(examples, func(e *doc.Example) bool {
				return (e.Name == name || strings.HasPrefix(e.Name, name+"_")) && (e.Output != "" || e.EmptyOutput)
			})
			_, excused := withoutExample[full]
			switch {
			case excused && runs:
				t.Errorf("%s has an Example now: take it out of withoutExample in internal/treetest/exports_test.go", full)
			case excused:
				used[full] = true
			case !runs:
				t.Errorf("%s has no Example%s with an // Output:", full, name)
			}
		}
	}
	for full, reason := range withoutExample {
		if !used[full] {
			t.Errorf("withoutExample names %s (%s), which is not there", full, reason)
		}
	}
}

// exportedFunctions names the exported functions of a package.
func exportedFunctions(files []*ast.File) []string {
	var names []string
	for _, f := range files {
		tests := importedAs(f, "testing", "testing")
		for _, decl := range f.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && f.Name.IsExported() && !takesTest(f.Type, tests) {
				names = append(names, f.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func takesTest(f *ast.FuncType, testing string) bool {
	if testing == "" {
		return false
	}
	takes := false
	ast.Inspect(f.Params, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == testing {
				takes = true
			}
		}
		return true
	})
	return takes
}

// TestRules shows that the rules of this file can fail.
func TestRules(t *testing.T) {
	t.Parallel()
	src := `package p

import (
	"testing"

	router "github.com/gorilla/mux"
)

type hidden struct{ R *router.Router }

func (hidden) Router() *router.Router { return nil }

type Open struct {
	r *router.Router
	R *router.Router
}

func (o *Open) Router() *router.Router { return o.r }

func (o *Open) hide() *router.Router { return o.r }

func Route(f func(*router.Route)) { router.NewRouter() }

var Default = router.NewRouter()

type Make func() int

func Check(t testing.TB) {}

func small() {}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var lines []int
	for _, pos := range exportedUses(f, importedAs(f, "github.com/gorilla/mux", "mux")) {
		lines = append(lines, fset.Position(pos).Line)
	}
	if want := []int{15, 18, 22, 24}; !slices.Equal(lines, want) {
		t.Errorf("mux is seen in the API at lines %v, want %v", lines, want)
	}
	if got, want := exportedFunctions([]*ast.File{f}), []string{"Route"}; !slices.Equal(got, want) {
		t.Errorf("exported functions %v, want %v", got, want)
	}
}
