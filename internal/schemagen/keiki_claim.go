package schemagen

import (
	"github.com/invopop/jsonschema"

	wire "github.com/backline-dev/backline/schema/keiki"
)

// keikiClaim is the schema of what the inbox answers. A claim has a turn's fields, of which all may be
// missing, and in the nested shape a turn in it, where what it lacks may be.
func keikiClaim() *document {
	d := reflectKeiki(wire.Turn{})
	d.finishKeiki(wire.KindTurn)
	fields := d.root.Properties
	for pair := fields.Oldest(); pair != nil; pair = pair.Next() {
		switch s := pair.Value; {
		case s.Const != nil:
			value := s.Const
			s.Const = nil
			s.AnyOf = []*jsonschema.Schema{constant(value), {Type: "null"}}
		case s.Type != "":
			types(s, s.Type, "null")
		}
	}
	links := d.definition("Links")
	types(links, "object", "null")
	links.Required = nil
	for _, name := range []string{"apiBase", "turnUrl"} {
		link := d.property(links, name)
		link.MinLength = nil
		types(link, "string", "null")
	}
	token := types(&jsonschema.Schema{MinLength: number(1), Description: "The turn token: the bearer of the turn's API until another one replaces it."}, "string", "null")
	lease := *d.property(d.root, "deadline")
	lease.Description = "When the claim runs out, in a form as deadline has it."
	fields.Set("turnToken", token)
	fields.Set("leaseExpiresAt", &lease)

	turn := types(&jsonschema.Schema{Properties: fields}, "object", "null")
	claim := types(object("turn", &jsonschema.Schema{Ref: "#/$defs/Turn", Description: "The turn proper, in the nested shape."}), "object", "null")
	nested := &jsonschema.Schema{Properties: object("turn", &jsonschema.Schema{Type: "object"}).Properties, Required: []string{"turn"}}
	for _, need := range []func() *jsonschema.Schema{
		func() *jsonschema.Schema {
			return having("turnId", &jsonschema.Schema{Type: "string", MinLength: number(1)})
		},
		func() *jsonschema.Schema { return having("messages", &jsonschema.Schema{Type: "array"}) },
		func() *jsonschema.Schema {
			url := having("turnUrl", &jsonschema.Schema{Type: "string", MinLength: number(1)})
			url.Type = "object"
			return having("keiki", url)
		},
	} {
		// Where it is not outside, it is inside; where nothing is inside, it is outside.
		claim.AllOf = append(claim.AllOf, &jsonschema.Schema{
			If:   nested,
			Then: &jsonschema.Schema{If: need(), Else: object("turn", need())},
			Else: need(),
		})
	}
	claim.AllOf = append(claim.AllOf, &jsonschema.Schema{Ref: "#/$defs/Turn"})

	answer := having("turn", &jsonschema.Schema{Ref: "#/$defs/Claim", Description: "The turn that was claimed, or null: nothing is waiting."})
	answer.Version = d.root.Version
	answer.Type = "object"
	answer.ID = wire.ClaimSchemaID
	answer.Title = "Keiki Inbox Claim v1"
	answer.Description = "What the inbox answers to a poll. Unknown fields are accepted; an optional field may be null."
	answer.Definitions = d.root.Definitions
	answer.Definitions["Turn"] = turn
	answer.Definitions["Claim"] = claim
	d.root = answer
	return d
}

// having is a schema that tells of one property, and requires it.
func having(name string, value *jsonschema.Schema) *jsonschema.Schema {
	s := object(name, value)
	s.Required = []string{name}
	return s
}
