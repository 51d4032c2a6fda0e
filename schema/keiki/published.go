package keiki

import (
	"embed"
	"fmt"
	"slices"
)

//go:embed *.schema.json
var published embed.FS

// SchemaID is the $id of the schema of a kind of request: urn:backline:schema:keiki.turn:v1. The contract
// names none. It panics for a kind that is none.
func SchemaID(kind Kind) string {
	if !slices.Contains(Kinds(), kind) {
		panic(fmt.Sprintf("keiki: %q is no kind of request", string(kind)))
	}
	return "urn:backline:schema:" + string(kind) + ":v1"
}

// SchemaFile is the name under which the schema of a kind of request is kept beside this package.
func SchemaFile(kind Kind) string { return string(kind) + ".v1.schema.json" }

// ClaimSchemaID is the $id of the schema of what the inbox answers, and ClaimSchemaFile the name under
// which it is kept beside this package.
const (
	ClaimSchemaID   = "urn:backline:schema:keiki.inbox.claim:v1"
	ClaimSchemaFile = "keiki.inbox.claim.v1.schema.json"
)

// ClaimSchema is the JSON Schema (draft 2020-12) of what the inbox answers, {"turn":null} and both shapes
// of a claim. It accepts what [ParseClaim] does. The bytes are the caller's.
func ClaimSchema() []byte {
	doc, err := published.ReadFile(ClaimSchemaFile)
	if err != nil {
		panic(err) // it is embedded above
	}
	return doc
}

// Schema is the JSON Schema (draft 2020-12) of a kind of request, generated from its type. It accepts
// what [ParseRequest] does. The bytes are the caller's. It panics for a kind that is none.
func Schema(kind Kind) []byte {
	doc, err := published.ReadFile(SchemaFile(kind))
	if err != nil {
		panic(fmt.Sprintf("keiki: %q is no kind of request", string(kind)))
	}
	return doc
}
