package keiki_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/schemagen"
	wire "github.com/backline-dev/backline/schema/keiki"
)

func TestSchemasAreCurrent(t *testing.T) {
	t.Parallel()
	want, err := schemagen.Keiki()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.schema.json")
	if err != nil || len(files) != len(want) || len(files) != len(wire.Kinds())+1 {
		t.Errorf("%d schemas in the tree, %d generated, %v", len(files), len(want), err)
	}
	published := map[string][]byte{wire.ClaimSchemaFile: wire.ClaimSchema()}
	for _, kind := range wire.Kinds() {
		published[wire.SchemaFile(kind)] = wire.Schema(kind)
	}
	for name, text := range published {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(want[name]), string(got)); diff != "" {
			t.Errorf("%s is not what the types say; run go generate ./schema/keiki (-types +file):\n%s", name, diff)
		}
		if string(text) != string(got) {
			t.Errorf("the schema that is given out is not %s in the tree", name)
		}
	}
}

// Dialect, $id, a description for each field; every object is open, and every field that may be missing
// takes null.
func TestSchemasAreOpen(t *testing.T) {
	t.Parallel()
	fields := 0
	for _, kind := range wire.Kinds() {
		var doc map[string]any
		if err := json.Unmarshal(wire.Schema(kind), &doc); err != nil {
			t.Fatal(err)
		}
		if doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" || doc["$id"] != "urn:backline:schema:"+string(kind)+":v1" {
			t.Errorf("%s: %v %v", kind, doc["$schema"], doc["$id"])
		}
		if title, _ := doc["title"].(string); !strings.HasSuffix(title, " v1") || doc["description"] == nil {
			t.Errorf("%s: title %v, description %v", kind, doc["title"], doc["description"])
		}
		var walk func(at string, v any)
		walk = func(at string, v any) {
			if list, ok := v.([]any); ok {
				for _, inside := range list {
					walk(at, inside)
				}
			}
			object, ok := v.(map[string]any)
			if !ok {
				return
			}
			if _, ok := object["additionalProperties"]; ok {
				t.Errorf("%s%s closes or restricts additional properties", kind, at)
			}
			required, _ := json.Marshal(object["required"])
			properties, _ := object["properties"].(map[string]any)
			for name, p := range properties {
				fields++
				p := p.(map[string]any)
				if p["description"] == nil {
					t.Errorf("%s%s/%s has no description", kind, at, name)
				}
				mayBeMissing := !strings.Contains(string(required), `"`+name+`"`)
				types, _ := json.Marshal([]any{p["type"], p["anyOf"], p["const"], p["$ref"]})
				anything := string(types) == "[null,null,null,null]"
				if mayBeMissing != (anything || strings.Contains(string(types), `"null"`)) {
					t.Errorf("%s%s/%s may be missing: %v, but takes %s", kind, at, name, mayBeMissing, types)
				}
			}
			for k, inside := range object {
				walk(at+"/"+k, inside)
			}
		}
		walk("", doc)
	}
	if fields != 52 {
		t.Errorf("%d fields, want 52", fields)
	}
	wire.Schema(wire.KindTurn)[0] = 'x'
	if wire.Schema(wire.KindTurn)[0] == 'x' {
		t.Error("Schema returns memory that is shared")
	}
}
