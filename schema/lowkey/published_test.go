package lowkey_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/schemagen"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

func TestSchemaIsCurrent(t *testing.T) {
	t.Parallel()
	want, err := schemagen.Lowkey()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("external-turn-protocol.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the schema is not what the types say; run go generate ./schema/lowkey (-types +file):\n%s", diff)
	}
	if string(wire.Schema()) != string(got) {
		t.Error("Schema is not the file in the tree")
	}
}

// The contract: draft 2020-12, this $id, the request at the root and the event under $defs, both open.
func TestSchemaIsTheContracts(t *testing.T) {
	t.Parallel()
	var doc map[string]any
	if err := json.Unmarshal(wire.Schema(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("$schema is %v", doc["$schema"])
	}
	if doc["$id"] != "https://schemas.lowkeyagents.com/plugins/external-turn-protocol.schema.json" {
		t.Errorf("$id is %v", doc["$id"])
	}
	if _, ok := doc["properties"].(map[string]any)["sessionHandle"]; !ok {
		t.Error("the root is not the request")
	}
	if _, ok := doc["$defs"].(map[string]any)["ExternalAgentTurnEvent"]; !ok {
		t.Error("there is no event")
	}
	described := 0
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v["additionalProperties"]; ok {
				t.Errorf("%s closes or restricts additional properties", at)
			}
			if properties, ok := v["properties"].(map[string]any); ok && v["type"] == "object" {
				for name, p := range properties {
					if p.(map[string]any)["description"] == nil {
						t.Errorf("%s/%s has no description", at, name)
					}
					described++
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
	if described != 25 {
		t.Errorf("%d properties, want 25", described)
	}
	wire.Schema()[0] = 'x'
	if wire.Schema()[0] == 'x' {
		t.Error("Schema returns memory that is shared")
	}
}
