// Package schemagen generates the published JSON Schemas from the wire types. It is used by the
// programs that go generate runs and by the tests that hold the generated files to the types, so that
// nobody who imports the wire types links the generator's library.
package schemagen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/invopop/jsonschema"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// Lowkey returns the schema of Lowkey's external turn protocol: the request, with the event under
// $defs.
func Lowkey() ([]byte, error) {
	names := map[reflect.Type]string{
		reflect.TypeFor[wire.Request]():       "ExternalAgentTurnRequest",
		reflect.TypeFor[wire.Event]():         "ExternalAgentTurnEvent",
		reflect.TypeFor[wire.SessionHandle](): "ExternalAgentSessionHandle",
		reflect.TypeFor[wire.Turn]():          "ExternalAgentTurn",
		reflect.TypeFor[wire.WindowEntry]():   "ExternalAgentTranscriptEntry",
		reflect.TypeFor[wire.Limits]():        "ExternalAgentTurnLimits",
	}
	r := &jsonschema.Reflector{
		Anonymous:                 true,
		AllowAdditionalProperties: true,
		ExpandedStruct:            true,
		Namer:                     func(t reflect.Type) string { return names[t] },
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if t == reflect.TypeFor[wire.Timestamp]() {
				return &jsonschema.Schema{Type: "number"}
			}
			return nil
		},
	}

	root := r.Reflect(wire.Request{})
	root.ID = wire.SchemaID
	root.Title = "ExternalAgentTurnRequest"
	root.Description = "One turn of a session, which Lowkey posts to the endpoint of an external agent runtime. Unknown fields are accepted."

	event := r.Reflect(wire.Event{})
	event.Version = ""
	event.Definitions = nil
	event.Title = "ExternalAgentTurnEvent"
	event.Description = "One line of the newline-delimited response. Unknown fields are accepted."
	withContent := jsonschema.NewProperties()
	withContent.Set("type", &jsonschema.Schema{Enum: []any{wire.EventText, wire.EventError}})
	event.If = &jsonschema.Schema{Properties: withContent, Required: []string{"type"}}
	event.Then = &jsonschema.Schema{Required: []string{"content"}}
	root.Definitions["ExternalAgentTurnEvent"] = event

	for _, s := range []*jsonschema.Schema{root, event} {
		version, ok := s.Properties.Get("protocolVersion")
		if !ok {
			return nil, fmt.Errorf("%s has no protocolVersion", s.Title)
		}
		version.Const = wire.ProtocolVersion
	}

	return encode(root)
}

// encode writes a schema as it is kept in the tree.
func encode(root *jsonschema.Schema) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
