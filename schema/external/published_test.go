package external_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/schemagen"
	wire "github.com/backline-dev/backline/schema/external"
)

func TestSchemasAreCurrent(t *testing.T) {
	t.Parallel()
	want, err := schemagen.External()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.schema.json")
	if err != nil || len(files) != len(want) || len(files) != len(wire.Values[wire.Document]()) {
		t.Errorf("%d schemas in the tree, %d generated, %v", len(files), len(want), err)
	}
	for _, kind := range wire.Values[wire.Document]() {
		name := wire.SchemaFile(kind)
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(want[name]), string(got)); diff != "" {
			t.Errorf("%s is not what the types say; run go generate ./schema/external (-types +file):\n%s", name, diff)
		}
		if string(wire.Schema(kind)) != string(got) {
			t.Errorf("Schema(%s) is not the file in the tree", kind)
		}
	}
}

// What the contract's schemas and ours must have in common beside their verdicts: dialect, $id, and a
// description for each field; and no object is open.
func TestSchemasAreTheContracts(t *testing.T) {
	t.Parallel()
	fields := 0
	for _, kind := range wire.Values[wire.Document]() {
		var doc map[string]any
		if err := json.Unmarshal(wire.Schema(kind), &doc); err != nil {
			t.Fatal(err)
		}
		if doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
			t.Errorf("%s: $schema is %v", kind, doc["$schema"])
		}
		want := "urn:orbiplex:schema:" + strings.TrimSuffix(string(kind), ".v1") + ":v1"
		if doc["$id"] != want || wire.SchemaID(kind) != want {
			t.Errorf("%s: $id is %v", kind, doc["$id"])
		}
		if title, _ := doc["title"].(string); !strings.HasSuffix(title, " v1") || doc["description"] == nil {
			t.Errorf("%s: title %v, description %v", kind, doc["title"], doc["description"])
		}
		var walk func(at string, v any)
		walk = func(at string, v any) {
			switch v := v.(type) {
			case map[string]any:
				properties, _ := v["properties"].(map[string]any)
				if v["type"] == "object" && properties != nil {
					for name, p := range properties {
						s, isSchema := p.(map[string]any)
						if _, empty := p.(bool); !empty && (!isSchema || s["description"] == nil) {
							t.Errorf("%s%s: %s has no description", kind, at, name)
						}
						fields++
					}
					_, byKind := v["allOf"]
					if v["additionalProperties"] != false && !byKind {
						t.Errorf("%s%s is open", kind, at)
					}
				}
				for k, inside := range v {
					walk(at+"/"+k, inside)
				}
			case []any:
				for _, inside := range v {
					walk(at, inside)
				}
			}
		}
		walk("", doc)
	}
	if fields < 150 {
		t.Errorf("%d fields only", fields)
	}
	wire.Schema(wire.ProfileV1)[0] = 'x'
	if wire.Schema(wire.ProfileV1)[0] == 'x' {
		t.Error("Schema returns memory that is shared")
	}
}

func TestNoKindOfDocument(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(kind wire.Document){
		"Schema":   func(kind wire.Document) { wire.Schema(kind) },
		"SchemaID": func(kind wire.Document) { wire.SchemaID(kind) },
		"Check":    func(kind wire.Document) { _ = wire.Check(kind, []byte("{}")) },
		"Explain":  func(kind wire.Document) { wire.Explain(kind, []byte("{}")) },
	} {
		for _, kind := range []wire.Document{"", "classification.v2", "../doc"} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s(%q) did not panic", name, kind)
					}
				}()
				f(kind)
			}()
		}
	}
	for _, doc := range []string{``, `[]`, `"schema"`, `{}`, `{"schema":1}`, `{"schema":"classification.v2"}`, `{"Schema":"classification.v1"}`, `{"schema":"classification.v1"`, `{"x":{"schema":"classification.v1"}}`} {
		if kind, ok := wire.DocumentOf([]byte(doc)); ok || kind != "" {
			t.Errorf("DocumentOf(%s) = %s", doc, kind)
		}
	}
	for _, doc := range []string{`{"schema":"classification.v1"}`, ` {"x":[{"schema":0}],"sch\u0065ma":"classification.v1"}`} {
		if kind, ok := wire.DocumentOf([]byte(doc)); !ok || kind != wire.ClassificationV1 {
			t.Errorf("DocumentOf(%s) = %s", doc, kind)
		}
	}
}
