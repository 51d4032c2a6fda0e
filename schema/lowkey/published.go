package lowkey

import _ "embed"

// SchemaID is the $id of the published schema, as the contract names it.
const SchemaID = "https://schemas.lowkeyagents.com/plugins/external-turn-protocol.schema.json"

// SchemaPath is where a server publishes the schema.
const SchemaPath = "/schemas/plugins/external-turn-protocol.schema.json"

//go:embed external-turn-protocol.schema.json
var published string

// Schema returns the published JSON Schema (draft 2020-12). Its root is the [Request]; the [Event] is
// $defs/ExternalAgentTurnEvent. The bytes are the caller's.
func Schema() []byte { return []byte(published) }
