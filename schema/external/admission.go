package external

import "time"

// A Profile tells what a runtime can do and within which limits (agent.external-runtime.profile.v1). An
// operator admits it.
type Profile struct {
	Schema            Document       `json:"schema" jsonschema_description:"What the document is."`
	ProfileRef        ProfileRef     `json:"profile/ref" jsonschema_description:"The profile."`
	ProfileGeneration int64          `json:"profile/generation" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"Which generation of it this is."`
	DriverVariant     Ref            `json:"driver/variant" jsonschema_description:"The driver that runs the turns."`
	DriverVersion     Ref            `json:"driver/version" jsonschema_description:"The version of the driver."`
	TransportClass    TransportClass `json:"transport/class" jsonschema_description:"How the runtime reaches what answers."`
	AuthClass         AuthClass      `json:"auth/class" jsonschema_description:"How the runtime authenticates there."`
	// PrincipalSnapshotRef is empty where there is none.
	PrincipalSnapshotRef Ref                `json:"principal/snapshot-ref,omitempty" jsonschema_description:"As whom it does."`
	SessionScope         SessionScope       `json:"session/scope" jsonschema_description:"What a session belongs to."`
	SessionPersistence   SessionPersistence `json:"session/persistence" jsonschema_description:"What a session outlives."`
	RetentionClass       RetentionClass     `json:"retention/class" jsonschema_description:"By whose policy the other side keeps what it is sent."`
	EgressClasses        []EgressClass      `json:"egress/classes" jsonschema:"maxItems=4,uniqueItems=true" jsonschema_description:"The classes of input that may leave by a remote transport. May be empty."`
	ToolMode             ToolMode           `json:"tool/mode" jsonschema_description:"Whether turns may ask for tools and the operator."`
	UsageFidelity        Fidelity           `json:"usage/fidelity" jsonschema_description:"Who measures what turns use."`
	EventOrdering        EventOrdering      `json:"event/ordering" jsonschema_description:"How events are numbered."`
	Supports             Supports           `json:"supports" jsonschema_description:"What the runtime can do."`
	Limits               Limits             `json:"limits" jsonschema_description:"The limits of a turn."`
	CreatedAt            DateTime           `json:"created/at" jsonschema_description:"When the profile was made."`
	CreatedBy            PrincipalRef       `json:"created/by" jsonschema_description:"Who made it."`
}

// Supports tells what a runtime can do.
type Supports struct {
	ExactResume        bool `json:"exact-resume" jsonschema_description:"Resume a session exactly where it was."`
	RequestIdempotency bool `json:"request-idempotency" jsonschema_description:"Answer a repeated request without running it again."`
	Cancellation       bool `json:"cancellation" jsonschema_description:"Cancel a turn."`
	Inspection         bool `json:"inspection" jsonschema_description:"Tell where a turn stands."`
	SessionClose       bool `json:"session-close" jsonschema_description:"Close a session."`
}

// Limits are the limits of a turn.
type Limits struct {
	MaxEvents       int64 `json:"max-events" jsonschema:"minimum=1,maximum=1024" jsonschema_description:"The most events of a turn."`
	MaxEventBytes   int64 `json:"max-event-bytes" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"The most bytes of one event."`
	MaxProductBytes int64 `json:"max-product-bytes" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"The most bytes of a product's content."`
	// TurnTimeoutMS is in milliseconds; see TurnTimeout.
	TurnTimeoutMS int64 `json:"turn-timeout-ms" jsonschema:"minimum=1,maximum=3600000" jsonschema_description:"The most milliseconds that a turn may take."`
}

// TurnTimeout is how long a turn may take.
func (l Limits) TurnTimeout() time.Duration { return milliseconds(l.TurnTimeoutMS) }

// A Binding lets one agent use a profile, under ceilings (agent.external-runtime.binding.v1). An
// operator admits it; its digest tells its generation and must verify: see [DigestWithout].
type Binding struct {
	Schema                Document          `json:"schema" jsonschema_description:"What the document is."`
	BindingRef            BindingRef        `json:"binding/ref" jsonschema_description:"The binding."`
	BindingDigest         Digest            `json:"binding/digest" jsonschema_description:"The digest of this document with this field set to an empty string."`
	AgentID               AgentID           `json:"agent/id" jsonschema_description:"The agent."`
	AgentBindingRef       Ref               `json:"agent-binding/ref" jsonschema_description:"The host's own binding of the agent."`
	ProfileRef            ProfileRef        `json:"profile/ref" jsonschema_description:"The profile that turns run with."`
	ProfileGeneration     int64             `json:"profile/generation" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"Which generation of it."`
	AdapterInstanceEpoch  Ref               `json:"adapter-instance/epoch" jsonschema_description:"Which life of the adapter."`
	MaxPassages           int64             `json:"max/passages" jsonschema:"minimum=1,maximum=256" jsonschema_description:"The highest passage/no of a turn."`
	PromptPolicyRefs      []PromptPolicyRef `json:"prompt-policy/refs" jsonschema:"minItems=1,maxItems=16,uniqueItems=true" jsonschema_description:"The prompt policies that a turn may follow."`
	OutputSchemaRefs      []SchemaRef       `json:"output-schema/refs" jsonschema:"minItems=1,maxItems=16,uniqueItems=true" jsonschema_description:"The schemas that a product may have."`
	VisibilityCeiling     Visibility        `json:"visibility/ceiling" jsonschema_description:"The widest visibility of a turn."`
	ClassificationCeiling Tier              `json:"classification/ceiling" jsonschema_description:"The most restricted input that a turn may have."`
	BudgetTurnCeiling     Budget            `json:"budget/turn-ceiling" jsonschema_description:"The most that may be set aside for a turn."`
	ExpiresAt             DateTime          `json:"expires/at" jsonschema_description:"When the binding ends."`
	CreatedAt             DateTime          `json:"created/at" jsonschema_description:"When it was made."`
	CreatedBy             PrincipalRef      `json:"created/by" jsonschema_description:"Who made it."`
}
