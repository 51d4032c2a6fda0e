package schemagen

import (
	"fmt"
	"slices"

	"github.com/invopop/jsonschema"

	wire "github.com/backline-dev/backline/schema/keiki"
)

// Keiki returns the schemas of the requests that Keiki signs and of what its inbox answers, by the names
// of the files that they are kept in.
func Keiki() (map[string][]byte, error) {
	documents := map[string]*document{}
	for _, doc := range []struct {
		kind        wire.Kind
		value       any
		title       string
		description string
	}{
		{wire.KindTurn, wire.Turn{}, "Keiki Turn v1", "Keiki asks an agent to answer the messages of a conversation."},
		{wire.KindArrival, wire.Arrival{}, "Keiki Turn Arrival v1", "Messages that came in while a turn runs."},
		{wire.KindCancelled, wire.Cancelled{}, "Keiki Turn Cancelled v1", "A turn was cancelled."},
	} {
		d := reflectKeiki(doc.value)
		d.root.ID = jsonschema.ID(wire.SchemaID(doc.kind))
		d.root.Title = doc.title
		d.root.Description = doc.description + " Unknown fields are accepted; an optional field may be null."
		d.finishKeiki(doc.kind)
		documents[wire.SchemaFile(doc.kind)] = d
	}
	documents[wire.ClaimSchemaFile] = keikiClaim()
	files := map[string][]byte{}
	for name, d := range documents {
		if d.err != nil {
			return nil, fmt.Errorf("%s: %w", name, d.err)
		}
		text, err := encode(d.root)
		if err != nil {
			return nil, err
		}
		files[name] = text
	}
	return files, nil
}

func reflectKeiki(value any) *document {
	r := &jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, ExpandedStruct: true}
	return &document{root: r.Reflect(value)}
}

// finishKeiki adds what the wire has and the Go types do not.
func (d *document) finishKeiki(kind wire.Kind) {
	all := []*jsonschema.Schema{d.root}
	for _, s := range d.root.Definitions {
		all = append(all, s)
	}
	for _, s := range all {
		for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
			if pair.Value.Type != "" && !slices.Contains(s.Required, pair.Key) {
				types(pair.Value, pair.Value.Type, "null")
			}
		}
	}
	if kind == wire.KindArrival {
		// What is referred to is never null here, so that the definition becomes the property.
		links := d.property(d.root, "keiki")
		description := links.Description
		*links = *types(d.definition("Links"), "object", "null")
		links.Description = description
		delete(d.root.Definitions, "Links")
	}

	head := jsonschema.NewProperties()
	head.Set("type", &jsonschema.Schema{Const: kind, Description: "What the request is."})
	version := &jsonschema.Schema{Const: wire.Version}
	d.root.Required = append([]string{"type"}, d.root.Required...)
	if kind == wire.KindCancelled {
		version = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{version, {Type: "null"}}}
	} else {
		d.root.Required = slices.Insert(d.root.Required, 1, "version")
	}
	version.Description = "The version of the contract."
	head.Set("version", version)
	for pair := d.root.Properties.Oldest(); pair != nil; pair = pair.Next() {
		head.Set(pair.Key, pair.Value)
	}
	d.root.Properties = head

	if kind == wire.KindCancelled {
		return
	}
	flagged := types(&jsonschema.Schema{Description: "Whether the message was found suspicious. It is to be answered with care, and not refused."}, "boolean", "null")
	screening := types(&jsonschema.Schema{Properties: jsonschema.NewProperties(), Description: "What prompt guarding found."}, "object", "null")
	screening.Properties.Set("flagged", flagged)
	d.definition("Message").Properties.Set("screening", screening)
	if kind != wire.KindTurn {
		return
	}
	types(d.property(d.root, "channel"), "string", "object", "null")
	deadline := d.property(d.root, "deadline")
	*deadline = jsonschema.Schema{Description: deadline.Description, AnyOf: []*jsonschema.Schema{
		{Type: "string", Format: "date-time"},
		{Type: "number", Minimum: "0", Maximum: "253402300799999"},
		{Type: "null"},
	}}
	entry := d.definition("Entry").Properties
	entry.Set("content", types(&jsonschema.Schema{Description: "What was said, where there is no text: a string, or parts of which some have a text."}, "string", "array", "null"))
	for _, name := range []string{"createdAt", "at", "time", "timestamp"} {
		entry.Set(name, &jsonschema.Schema{Description: "When it was said, if it is a date and time or a number as in deadline."})
	}
}

// types makes a schema take values of these types.
func types(s *jsonschema.Schema, list ...string) *jsonschema.Schema {
	s.Type = ""
	s.Extras = map[string]any{"type": list}
	return s
}
