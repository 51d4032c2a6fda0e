package external

import (
	"embed"
	"fmt"
	"strings"
	"sync"

	"github.com/backline-dev/backline/schema"
)

//go:embed *.schema.json
var published embed.FS

// SchemaID is the $id of the schema of a kind of document, as the contract names it:
// urn:orbiplex:schema:agent.external-runtime.turn-request:v1. It panics for a kind that is none.
func SchemaID(kind Document) string {
	if _, ok := known[Document](string(kind)); !ok {
		panic(fmt.Sprintf("external: %q is no kind of document", string(kind)))
	}
	name := strings.TrimSuffix(string(kind), ".v1")
	return "urn:orbiplex:schema:" + name + ":v1"
}

// SchemaFile is the name under which the schema of a kind of document is kept beside this package.
func SchemaFile(kind Document) string { return string(kind) + ".schema.json" }

// Schema is the JSON Schema (draft 2020-12) of a kind of document, generated from its type. Those of
// turn requests, events and products refer to that of the classification label by its $id. The bytes
// are the caller's. It panics for a kind that is none.
func Schema(kind Document) []byte {
	doc, err := published.ReadFile(SchemaFile(kind))
	if err != nil {
		panic(fmt.Sprintf("external: %q is no kind of document", string(kind)))
	}
	return doc
}

// schemaOf returns the compiled schema of a kind of document.
func schemaOf(kind Document) *schema.Schema { return compiled()[kind] }

var compiled = sync.OnceValue(func() map[Document]*schema.Schema {
	var set schema.Set
	for _, kind := range documentValues {
		if err := set.Add(SchemaID(kind), Schema(kind)); err != nil {
			panic(err) // a mistake in this package, which its tests find
		}
	}
	all := map[Document]*schema.Schema{}
	for _, kind := range documentValues {
		s, err := set.Compile(SchemaID(kind))
		if err != nil {
			panic(err) // as above
		}
		all[kind] = s
	}
	return all
})
