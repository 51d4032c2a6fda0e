package treetest

import (
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// directions is the package map: each row may import, of ours, what it names, and can name only rows
// above it, so that arrows point one way. A pattern's star stands for one path element. Tests are free
// in what they import. The text version of this table is in docs/architecture.md.
//
// A new package gets a row here; if it needs an arrow upwards, it is cut in the wrong place.
var directions = []struct {
	packages []string
	mayUse   []string
}{
	// Documents: wire types, their checks, their schemas.
	{[]string{"schema/internal/scan"}, nil},
	{[]string{"schema"}, []string{"schema/internal/scan"}},
	{[]string{"schema/lowkey", "schema/external", "schema/keiki"}, []string{"schema", "schema/internal/scan"}},
	{[]string{"manifest"}, []string{"schema"}},

	// The contract, its test kit, the adapters; never one adapter another.
	{[]string{"adapters"}, []string{"schema"}},
	{[]string{"adapters/adaptertest"}, []string{"adapters", "schema/external"}},
	{[]string{"adapters/echo", "adapters/scripted", "adapters/command", "adapters/openai", "adapters/anthropic", "adapters/acp"}, []string{"adapters"}},

	// The engine on its leaves.
	{[]string{"runtime/session"}, []string{"adapters"}},
	{[]string{"runtime/ndjson"}, nil},
	{[]string{"runtime/ledger"}, nil},
	{[]string{"runtime/secret"}, nil},
	{[]string{"runtime/ledger/ledgertest", "runtime/ledger/sqlite", "runtime/ledger/postgres"}, []string{"runtime/ledger"}},
	{[]string{"runtime"}, []string{"adapters", "runtime/session", "runtime/ledger", "runtime/ndjson"}},

	// The protocols; never one another, and each with its own wire types. What they share of HTTP comes first.
	{[]string{"runtime/internal/wirehttp"}, []string{"runtime/ndjson", "runtime/secret"}},
	{[]string{"runtime/lowkey"}, []string{"runtime", "runtime/session", "runtime/ledger", "runtime/ndjson", "runtime/secret", "runtime/internal/wirehttp",
		"adapters", "schema", "schema/lowkey"}},
	{[]string{"runtime/external"}, []string{"runtime", "runtime/session", "runtime/ledger", "runtime/ndjson", "runtime/secret", "runtime/internal/wirehttp",
		"adapters", "schema", "schema/external"}},
	{[]string{"runtime/keiki"}, []string{"runtime", "runtime/session", "runtime/ledger", "runtime/ndjson", "runtime/secret", "runtime/internal/wirehttp",
		"adapters", "schema", "schema/keiki"}},

	// What users import, and what they write. plugin serves the published schemas, hence the wire types.
	{[]string{"plugin"}, []string{"runtime", "runtime/lowkey", "runtime/external", "runtime/keiki", "runtime/session", "runtime/ledger", "runtime/ndjson", "runtime/secret",
		"adapters", "manifest", "schema/lowkey", "schema/external", "schema/keiki"}},
	{[]string{"examples/*"}, []string{"plugin", "adapters", "adapters/*"}},

	// The generator of the published schemas; nothing that runs imports it.
	{[]string{"internal/schemagen"}, []string{"schema/lowkey", "schema/external", "schema/keiki"}},
	{[]string{"internal/schemagen/gen"}, []string{"internal/schemagen"}},

	// The command and what only it and the tests use.
	{[]string{"internal/conformance", "internal/testhost"}, []string{"schema", "schema/*", "runtime/ndjson"}},
	{[]string{"internal/cli"}, []string{"..."}},
	{[]string{"cmd/backline"}, []string{"internal/cli"}},
	{[]string{"internal/treetest", "internal/soak"}, nil},
	{[]string{"internal/exampletest"}, []string{"internal/testhost"}},
}

// everythingBut is what "..." in the table leaves out: programs, and what belongs to the tests and
// generators of the tree.
var everythingBut = []string{"cmd/*", "examples/*", "internal/treetest", "internal/soak", "internal/exampletest", "internal/schemagen", "internal/schemagen/*"}

func fits(patterns []string, rel string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if p == "..." {
			return !fits(everythingBut, rel)
		}
		ok, err := path.Match(p, rel)
		return ok && err == nil
	})
}

func TestImportDirections(t *testing.T) {
	t.Parallel()
	tr := load(t)
	for _, p := range tr.own() {
		rel, _ := p.rel()
		row := slices.IndexFunc(directions, func(d struct{ packages, mayUse []string }) bool { return fits(d.packages, rel) })
		if row < 0 {
			t.Errorf("package %s has no row in the package map: add it to directions in internal/treetest/imports_test.go, with the packages of ours that it may import", rel)
			continue
		}
		imports := slices.Clone(p.Imports)
		// Files for other systems count too; go list names only those of this one.
		for _, f := range parse(t, p, token.NewFileSet(), p.IgnoredGoFiles, parser.ImportsOnly) {
			if strings.HasSuffix(f.Name.Name, "_test") {
				continue
			}
			for _, spec := range f.Imports {
				name, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				imports = append(imports, name)
			}
		}
		slices.Sort(imports)
		for _, name := range slices.Compact(imports) {
			target, own := ours(name)
			if !own || name == p.ImportPath {
				continue
			}
			if !fits(directions[row].mayUse, target) {
				t.Errorf("%s imports %s, and may import only %s (see directions in internal/treetest/imports_test.go)", rel, target, list(directions[row].mayUse))
			}
		}
	}
}

// TestImportTablePointsDown holds the table itself to one direction.
func TestImportTablePointsDown(t *testing.T) {
	t.Parallel()
	var above []string
	for _, row := range directions {
		for _, use := range row.mayUse {
			if use == "..." {
				continue
			}
			known := slices.ContainsFunc(above, func(have string) bool { return have == use || fits([]string{use}, have) })
			if !known || fits(row.packages, use) {
				t.Errorf("the row of %s allows %s, which no row above it names", list(row.packages), use)
			}
		}
		above = append(above, row.packages...)
	}
}

// TestPackageNames refuses names that say a kind of thing instead of an idea.
func TestPackageNames(t *testing.T) {
	t.Parallel()
	drawers := []string{"util", "utils", "common", "helper", "helpers", "misc", "models", "types", "base", "shared", "lib"}
	for _, p := range load(t).own() {
		rel, _ := p.rel()
		for _, element := range strings.Split(rel, "/") {
			if slices.Contains(drawers, element) {
				t.Errorf("package %s: %q is a drawer, not an idea; put the code where it is used or name the idea", rel, element)
			}
		}
	}
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing of ours"
	}
	return strings.Join(names, ", ")
}

// TestFits shows what a pattern of the table reaches.
func TestFits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, rel string
		want         bool
	}{
		{"runtime", "runtime", true},
		{"runtime", "runtime/lowkey", false},
		{"adapters/*", "adapters/echo", true},
		{"adapters/*", "adapters", false},
		{"examples/*", "examples/muse/inner", false},
		{"...", "runtime/ledger/sqlite", true},
		{"...", "cmd/backline", false},
		{"...", "internal/treetest", false},
	} {
		if got := fits([]string{test.pattern}, test.rel); got != test.want {
			t.Errorf("%s reaches %s: %t, want %t", test.pattern, test.rel, got, test.want)
		}
	}
	if fits(nil, "adapters") {
		t.Error("a row that may use nothing reaches adapters")
	}
}
