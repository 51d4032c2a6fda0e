package treetest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// pluginModules are the modules outside this one that a user of plugin links. Each is here for what it
// saves; a new one needs such a sentence, and what it brings along is part of its price.
var pluginModules = map[string]string{
	"github.com/gorilla/mux":                   "routes",
	"github.com/hashicorp/golang-lru/v2":       "the core of the session cache",
	"github.com/santhosh-tekuri/jsonschema/v5": "explains a refused request, violation by violation",
	"github.com/gowebpki/jcs":                  "canonical JSON numbers, as ECMAScript writes them",
	"github.com/go-json-experiment/json":       "keeps the bytes and the order of documents that come rarely",
}

// notInPlugin are the import paths that must stay out of a user's program whatever the list above says.
var notInPlugin = map[string]string{
	"github.com/spf13/cobra":                 "commands belong to cmd/backline",
	"github.com/spf13/pflag":                 "flags belong to cmd/backline",
	"github.com/invopop/jsonschema":          "schemas are generated in the tree, not at run time",
	"database/sql":                           "a store takes a handle which its caller opened",
	"modernc.org/sqlite":                     "drivers are opened by the caller",
	"github.com/jackc/pgx":                   "drivers are opened by the caller",
	"github.com/openai/openai-go":            "provider SDKs belong to their adapter",
	"github.com/anthropics/anthropic-sdk-go": "provider SDKs belong to their adapter",
	"github.com/coder/acp-go-sdk":            "agent SDKs belong to their adapter",
	"github.com/modelcontextprotocol/go-sdk": "agent SDKs belong to their adapter",
	"go.opentelemetry.io/otel/sdk":           "the SDK is the program's choice; libraries use the API",
	"github.com/chromedp":                    "browsers are for tests",
}

func TestPluginLinks(t *testing.T) {
	t.Parallel()
	tr := load(t)
	from := tr.reach(tr.need(t, "plugin"))
	for _, name := range slices.Sorted(maps.Keys(from)) {
		for prefix, why := range notInPlugin {
			if name == prefix || strings.HasPrefix(name, prefix+"/") {
				t.Errorf("plugin links %s (%s): %s", name, why, chain(from, name))
			}
		}
		p := tr.packages[name]
		if p == nil || p.Standard || p.Module == nil || p.Module.Path == module {
			continue
		}
		if _, ok := pluginModules[p.Module.Path]; !ok {
			t.Errorf("plugin links the module %s, which pluginModules in internal/treetest/links_test.go does not name: %s", p.Module.Path, chain(from, name))
		}
	}
}

// testKits are the packages of ours that exist for tests and may import testing; nothing that runs
// outside a test may reach them.
var testKits = []string{"adapters/adaptertest", "runtime/ledger/ledgertest", "internal/treetest", "internal/soak", "internal/exampletest"}

func TestNoProgramLinksTesting(t *testing.T) {
	t.Parallel()
	tr := load(t)
	for _, p := range tr.own() {
		rel, _ := p.rel()
		if slices.Contains(testKits, rel) {
			continue
		}
		// The chain is told once, where it enters: at the package of ours that imports it itself, or at
		// the programs and plugin, whoever brought it.
		entry := rel == "plugin" || strings.HasPrefix(rel, "cmd/") || strings.HasPrefix(rel, "examples/")
		from := tr.reach(p)
		for _, name := range []string{"testing", "testing/fstest", "testing/quick", "testing/synctest", "net/http/httptest"} {
			if _, linked := from[name]; linked && (entry || from[name] == p.ImportPath) {
				t.Errorf("%s links %s: %s", rel, name, chain(from, name))
			}
		}
	}
}

// TestNoSchemaFromTheNetwork: httploader makes a JSON Schema fetch URLs, only by being imported.
func TestNoSchemaFromTheNetwork(t *testing.T) {
	t.Parallel()
	tr := load(t)
	for _, p := range tr.own() {
		rel, _ := p.rel()
		for _, name := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if strings.HasPrefix(name, "github.com/santhosh-tekuri/jsonschema/") && strings.HasSuffix(name, "/httploader") {
				t.Errorf("%s imports %s, which lets a schema load from the network", rel, name)
			}
		}
	}
	for name := range tr.packages {
		if strings.HasSuffix(name, "jsonschema/v5/httploader") {
			t.Errorf("%s is linked by something in the tree", name)
		}
	}
}
