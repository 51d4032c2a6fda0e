package schemagen

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/invopop/jsonschema"

	wire "github.com/backline-dev/backline/schema/external"
)

// External returns the schemas of the documents of agent.external-runtime and of the classification
// label, by the names of the files that they are kept in.
func External() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, doc := range []struct {
		kind        wire.Document
		value       any
		title       string
		description string
		finish      func(*document)
	}{
		{wire.TurnRequestV1, wire.TurnRequest{}, "Agent External Runtime Turn Request v1",
			"A host asks a runtime for one bounded turn, or answers what a suspended one asked.", finishRequest},
		{wire.EventV1, wire.Event{}, "Agent External Runtime Event v1",
			"One line of a turn's stream. Which fields an event has, its kind tells.", finishEvent},
		{wire.TurnOutcomeV1, wire.Outcome{}, "Agent External Runtime Turn Outcome v1",
			"How a turn ended, why, and what it is charged.", finishOutcome},
		{wire.ProfileV1, wire.Profile{}, "Agent External Runtime Profile v1",
			"What a runtime can do, and within which limits.", func(*document) {}},
		{wire.BindingV1, wire.Binding{}, "Agent External Runtime Binding v1",
			"Lets one agent use a profile, under ceilings.", func(*document) {}},
		{wire.ProductV1, wire.Product{}, "Agent External Runtime Product v1",
			"What a turn produced. The content itself travels beside it.", finishProduct},
		{wire.ClassificationV1, wire.Classification{}, "Classification v1",
			"The label that travels with data across component boundaries: how restricted the data is (Personal, then Community, then Public), where it came from, whom it is about, and what was done to let it go further.", finishClassification},
	} {
		d := reflectDocument(doc.kind, doc.value)
		d.root.ID = jsonschema.ID(wire.SchemaID(doc.kind))
		d.root.Title = doc.title
		d.root.Description = doc.description
		only(d.property(d.root, "schema"), doc.kind)
		doc.finish(d)
		if d.err != nil {
			return nil, fmt.Errorf("%s: %w", doc.kind, d.err)
		}
		text, err := encode(d.root)
		if err != nil {
			return nil, err
		}
		files[wire.SchemaFile(doc.kind)] = text
	}
	return files, nil
}

// A document is a schema that is being made. Its methods keep the first error.
type document struct {
	root *jsonschema.Schema
	err  error
}

// refTypes are the kinds of refs: one definition does for all.
var refTypes = []reflect.Type{
	reflect.TypeFor[wire.TurnRef](), reflect.TypeFor[wire.BindingRef](), reflect.TypeFor[wire.ProfileRef](),
	reflect.TypeFor[wire.AgentID](), reflect.TypeFor[wire.PassageRef](), reflect.TypeFor[wire.ProductRef](),
	reflect.TypeFor[wire.ArtifactRef](), reflect.TypeFor[wire.EventRef](), reflect.TypeFor[wire.OutcomeRef](),
	reflect.TypeFor[wire.RequestRef](), reflect.TypeFor[wire.IdempotencyKey](), reflect.TypeFor[wire.PromptPolicyRef](),
	reflect.TypeFor[wire.SchemaRef](), reflect.TypeFor[wire.ToolRef](), reflect.TypeFor[wire.PrincipalRef](),
	reflect.TypeFor[wire.Ref](),
}

// codeTypes are the codes, with their values.
var codeTypes = func() map[reflect.Type][]any {
	m := map[reflect.Type][]any{}
	addCode[wire.Mode](m)
	addCode[wire.Kind](m)
	addCode[wire.PartKind](m)
	addCode[wire.Visibility](m)
	addCode[wire.Disposition](m)
	addCode[wire.ReasonCode](m)
	addCode[wire.Status](m)
	addCode[wire.Retryability](m)
	addCode[wire.Fidelity](m)
	addCode[wire.EventKind](m)
	addCode[wire.ProgressCode](m)
	addCode[wire.TransportClass](m)
	addCode[wire.AuthClass](m)
	addCode[wire.SessionScope](m)
	addCode[wire.SessionPersistence](m)
	addCode[wire.RetentionClass](m)
	addCode[wire.EgressClass](m)
	addCode[wire.ToolMode](m)
	addCode[wire.EventOrdering](m)
	addCode[wire.Tier](m)
	addCode[wire.OriginKind](m)
	addCode[wire.Space](m)
	addCode[wire.IngressSurface](m)
	addCode[wire.SubjectKind](m)
	addCode[wire.EgressSurface](m)
	addCode[wire.DeclassifyKind](m)
	addCode[wire.CallerRole](m)
	addCode[wire.QuarantineReason](m)
	return m
}()

func addCode[C wire.Code[C]](to map[reflect.Type][]any) {
	var values []any
	for _, v := range wire.Values[C]() {
		values = append(values, string(v))
	}
	to[reflect.TypeFor[C]()] = values
}

// reflectDocument makes a schema of a wire type, without what only the contract's text can tell.
func reflectDocument(kind wire.Document, value any) *document {
	definitions := jsonschema.Definitions{}
	use := func(name string, s *jsonschema.Schema) *jsonschema.Schema {
		definitions[name] = s
		return &jsonschema.Schema{Ref: "#/$defs/" + name}
	}
	r := &jsonschema.Reflector{
		Anonymous:      true,
		ExpandedStruct: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if slices.Contains(refTypes, t) {
				return use("ref", &jsonschema.Schema{
					Type: "string", MinLength: number(1), MaxLength: number(512), Pattern: `^[^\s\u0000-\u001f\u007f]+$`,
					Description: "Names something. White space is what ECMAScript takes for it.",
				})
			}
			if values, ok := codeTypes[t]; ok {
				if len(values) == 1 {
					return constant(values[0])
				}
				return &jsonschema.Schema{Type: "string", Enum: values}
			}
			switch t {
			case reflect.TypeFor[wire.Document]():
				return &jsonschema.Schema{Type: "string"}
			case reflect.TypeFor[wire.Digest]():
				return use("digest", &jsonschema.Schema{
					Type: "string", Pattern: `^sha256:[A-Za-z0-9_-]{43}$`,
					Description: "SHA-256 over canonical JSON (RFC 8785), in base64url without padding.",
				})
			case reflect.TypeFor[wire.DateTime]():
				return &jsonschema.Schema{Type: "string", Format: "date-time"}
			case reflect.TypeFor[wire.SubjectSetHash]():
				return &jsonschema.Schema{Type: "string", Pattern: `^[A-Fa-f0-9]{64}$`}
			case reflect.TypeFor[json.RawMessage]():
				return &jsonschema.Schema{Type: "object", MinProperties: number(1), MaxProperties: number(64)}
			case reflect.TypeFor[wire.Classification]():
				if kind != wire.ClassificationV1 {
					return &jsonschema.Schema{Ref: wire.SchemaID(wire.ClassificationV1)}
				}
			}
			return nil
		},
	}
	root := r.Reflect(value)
	if root.Definitions == nil {
		root.Definitions = jsonschema.Definitions{}
	}
	for name, s := range definitions {
		root.Definitions[name] = s
	}
	return &document{root: root}
}

func number(n uint64) *uint64 { return &n }

func finishRequest(d *document) {
	d.when("mode", wire.ModeStart, object("observation", jsonschema.FalseSchema))
	d.when("mode", wire.ModeContinue, &jsonschema.Schema{Required: []string{"observation"}})
	d.byKind(d.definition("InputPart"), map[string]variant{
		string(wire.PartText):     {"text-part", []string{"text"}, nil},
		string(wire.PartArtifact): {"artifact-part", []string{"artifact/ref", "artifact/digest", "artifact/size-bytes"}, nil},
	}, nil)
}

func finishEvent(d *document) {
	common := []string{"schema", "event/ref", "turn/ref", "seq/no", "at"}
	d.byKind(d.root, map[string]variant{
		string(wire.EventProgress):         {"progress", []string{"progress/code", "progress/current"}, []string{"progress/total"}},
		string(wire.EventActionCandidate):  {"action-candidate", []string{"action/schema", "action/digest"}, nil},
		string(wire.EventProductCandidate): {"product-candidate", []string{"content", "output-schema/ref"}, nil},
		string(wire.EventToolRequest): {"tool-request", []string{
			"request/ref", "tool/ref", "input/schema-ref", "input/digest", "input", "classification", "deadline/at"}, nil},
		string(wire.EventOperatorQuestion): {"operator-question", []string{
			"request/ref", "question/schema-ref", "question/digest", "question", "deadline/at"}, nil},
		string(wire.EventUsage):       {"usage", []string{"usage/fidelity", "usage"}, nil},
		string(wire.EventTurnOutcome): {"turn-outcome", []string{"status", "reason/code"}, nil},
	}, common)
}

func finishOutcome(d *document) {
	d.when("status", wire.StatusCompleted, &jsonschema.Schema{Required: []string{"product/ref", "product/digest"}})
	var others []any
	for _, status := range wire.Values[wire.Status]() {
		if status != wire.StatusCompleted {
			others = append(others, status)
		}
	}
	d.root.AllOf = append(d.root.AllOf, ifThen(object("status", &jsonschema.Schema{Enum: others}),
		object("product/ref", jsonschema.FalseSchema, "product/digest", jsonschema.FalseSchema), "status"))
	d.when("status", wire.StatusUnknown,
		object("retryability", constant(wire.ReconciliationRequired), "reason/code", constant(wire.ReasonUnknown)))
}

func finishProduct(d *document) {
	d.when("retained", true, &jsonschema.Schema{Required: []string{"artifact/ref"}})
	d.when("retained", false, object("artifact/ref", jsonschema.FalseSchema))
}

func finishClassification(d *document) {
	d.byKind(d.definition("Origin"), map[string]variant{
		string(wire.OriginLocalSpace): {"local-space-origin", []string{"space"}, nil},
		string(wire.OriginIngress):    {"ingress-origin", []string{"surface"}, []string{"peer_ref"}},
		string(wire.OriginDerived):    {"derived-origin", []string{"parents"}, nil},
	}, nil)
	d.byKind(d.definition("DeclassifyMode"), map[string]variant{
		string(wire.DeclassifyOneShot):    {"one-shot-mode", nil, []string{"consumed_at"}},
		string(wire.DeclassifyPersistent): {"persistent-mode", []string{"ttl_seconds"}, nil},
	}, nil)

	act := d.definition("Declassify")
	d.property(act, "from").Enum = []any{wire.TierPersonal, wire.TierCommunity}
	step := func(from, to wire.Tier) *jsonschema.Schema {
		return ifThen(object("from", constant(from)), object("to", constant(to)), "from")
	}
	mode := func(kind wire.DeclassifyKind, then *jsonschema.Schema) *jsonschema.Schema {
		is := object("kind", constant(kind))
		is.Required = []string{"kind"}
		return ifThen(object("mode", is), then, "mode")
	}
	act.AllOf = []*jsonschema.Schema{
		step(wire.TierPersonal, wire.TierCommunity),
		step(wire.TierCommunity, wire.TierPublic),
		mode(wire.DeclassifyPersistent, &jsonschema.Schema{Required: []string{"expires_at"}}),
		mode(wire.DeclassifyOneShot, object("expires_at", jsonschema.FalseSchema)),
	}

	d.when("source_tier", wire.TierPublic, object("effective_tier", constant(wire.TierPublic)))
	d.when("source_tier", wire.TierCommunity, object("effective_tier",
		&jsonschema.Schema{Enum: []any{wire.TierCommunity, wire.TierPublic}}))
	named := object("personal_or_community", &jsonschema.Schema{Type: "array"}, "public_projection", jsonschema.FalseSchema)
	named.Required = []string{"personal_or_community"}
	projected := object("public_projection", &jsonschema.Schema{Type: "object"}, "personal_or_community", jsonschema.FalseSchema)
	projected.Required = []string{"public_projection"}
	d.when("effective_tier", wire.TierPublic, object("bound_subjects", projected))
	d.root.AllOf[len(d.root.AllOf)-1].Else = object("bound_subjects", named)
}

// when adds a rule to the root: where a field has a value, then holds.
func (d *document) when(name string, value any, then *jsonschema.Schema) {
	d.property(d.root, name)
	d.root.AllOf = append(d.root.AllOf, ifThen(object(name, constant(value)), then, name))
}

func ifThen(is, then *jsonschema.Schema, required ...string) *jsonschema.Schema {
	is.Required = required
	return &jsonschema.Schema{If: is, Then: then}
}

// object is a schema that tells of the properties alone, given as name, schema, name, schema.
func object(pairs ...any) *jsonschema.Schema {
	s := &jsonschema.Schema{Properties: jsonschema.NewProperties()}
	for i := 0; i < len(pairs); i += 2 {
		s.Properties.Set(pairs[i].(string), pairs[i+1].(*jsonschema.Schema))
	}
	return s
}

// A variant is what an object of one kind has beside its kind and what all kinds have: a definition of
// its own, with fields that must and fields that may be there.
type variant struct {
	definition string
	must, may  []string
}

// byKind cuts a schema, which has the fields of all kinds, into one for each kind, and leaves in it the
// fields that all kinds have.
func (d *document) byKind(s *jsonschema.Schema, variants map[string]variant, common []string) {
	kind := d.property(s, "kind")
	all := s.Properties
	base := jsonschema.NewProperties()
	used := map[string]bool{"kind": true}
	required := append(slices.Clone(common), "kind")
	for pair := all.Oldest(); pair != nil; pair = pair.Next() {
		if slices.Contains(required, pair.Key) {
			base.Set(pair.Key, pair.Value)
			used[pair.Key] = true
		}
	}
	if len(variants) != len(kind.Enum) {
		d.fail(fmt.Errorf("%d variants for %d kinds", len(variants), len(kind.Enum)))
	}
	for _, value := range kind.Enum {
		v, ok := variants[value.(string)]
		if !ok {
			d.fail(fmt.Errorf("no variant for the kind %v", value))
			continue
		}
		fields := jsonschema.NewProperties()
		for pair := all.Oldest(); pair != nil; pair = pair.Next() {
			own := slices.Contains(v.must, pair.Key) || slices.Contains(v.may, pair.Key)
			used[pair.Key] = used[pair.Key] || own
			switch {
			case own:
				fields.Set(pair.Key, pair.Value)
			case slices.Contains(required, pair.Key):
				fields.Set(pair.Key, &jsonschema.Schema{}) // the base tells more of it
			}
		}
		if want := len(v.must) + len(v.may) + len(required); fields.Len() != want {
			d.fail(fmt.Errorf("the kind %v has %d fields, want %d", value, fields.Len(), want))
		}
		d.root.Definitions[v.definition] = &jsonschema.Schema{
			Type: "object", Properties: fields, Required: v.must, AdditionalProperties: jsonschema.FalseSchema,
		}
		s.AllOf = append(s.AllOf, ifThen(object("kind", constant(value)),
			&jsonschema.Schema{Ref: "#/$defs/" + v.definition}, "kind"))
	}
	for pair := all.Oldest(); pair != nil; pair = pair.Next() {
		if !used[pair.Key] {
			d.fail(fmt.Errorf("no kind has the field %s", pair.Key))
		}
	}
	s.Properties = base
	s.Required = required
	s.AdditionalProperties = nil // each kind closes its own
}

func (d *document) definition(name string) *jsonschema.Schema {
	s, ok := d.root.Definitions[name]
	if !ok {
		d.fail(fmt.Errorf("no definition %s", name))
		return object()
	}
	return s
}

func (d *document) property(s *jsonschema.Schema, name string) *jsonschema.Schema {
	p, ok := s.Properties.Get(name)
	if !ok {
		d.fail(fmt.Errorf("no property %s", name))
		return &jsonschema.Schema{}
	}
	return p
}

func (d *document) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// only makes a string schema one of a single value.
func only(s *jsonschema.Schema, value any) {
	s.Type, s.Enum, s.Const = "", nil, value
}

func constant(value any) *jsonschema.Schema { return &jsonschema.Schema{Const: value} }
