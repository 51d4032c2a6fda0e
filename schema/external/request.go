package external

import (
	"slices"
	"time"
)

// A TurnRequest asks for one bounded turn, or continues one that waits for an observation
// (agent.external-runtime.turn-request.v1).
type TurnRequest struct {
	Schema            Document        `json:"schema" jsonschema_description:"What the document is."`
	TurnRef           TurnRef         `json:"turn/ref" jsonschema_description:"The turn."`
	Mode              Mode            `json:"mode" jsonschema_description:"Whether the turn begins, or goes on with the observation it waits for."`
	BindingRef        BindingRef      `json:"binding/ref" jsonschema_description:"The binding that the turn runs under."`
	BindingDigest     Digest          `json:"binding/digest" jsonschema_description:"The digest of that binding, which tells its generation."`
	AgentID           AgentID         `json:"agent/id" jsonschema_description:"The agent that the turn is for."`
	PassageRef        PassageRef      `json:"passage/ref" jsonschema_description:"The passage that the turn belongs to."`
	PassageNo         int64           `json:"passage/no" jsonschema:"minimum=1,maximum=256" jsonschema_description:"The number of the turn in its passage."`
	Kind              Kind            `json:"kind" jsonschema_description:"What the turn is to produce."`
	ParentProductRefs []ProductRef    `json:"parent-product/refs" jsonschema:"maxItems=8,uniqueItems=true" jsonschema_description:"The products that this one builds on. May be empty."`
	InputParts        []InputPart     `json:"input/parts" jsonschema:"minItems=1,maxItems=32" jsonschema_description:"The input, in order."`
	InputDigest       Digest          `json:"input/digest" jsonschema_description:"The digest of the value of input/parts."`
	InstructionHash   Digest          `json:"instruction/hash" jsonschema_description:"The digest of the instructions that the host gave the agent."`
	PromptPolicyRef   PromptPolicyRef `json:"prompt-policy/ref" jsonschema_description:"The prompt policy that the turn follows."`
	OutputSchemaRef   SchemaRef       `json:"output-schema/ref" jsonschema_description:"The schema that the product is to have."`
	Visibility        Visibility      `json:"visibility" jsonschema_description:"Who may see the turn and its product."`
	Classification    Classification  `json:"classification" jsonschema_description:"The classification label of the input."`
	BudgetReservation Budget          `json:"budget/reservation" jsonschema_description:"What the host sets aside for the turn."`
	Observation       *Observation    `json:"observation,omitempty" jsonschema_description:"What the turn waits for. Only where the mode is continue, and there always."`
	IdempotencyKey    IdempotencyKey  `json:"idempotency/key" jsonschema_description:"The host's name for this request."`
	DeadlineAt        DateTime        `json:"deadline/at" jsonschema_description:"When the turn is cut off."`
	AdmittedAt        DateTime        `json:"admitted/at" jsonschema_description:"When the host admitted the request."`
	AdmittedBy        PrincipalRef    `json:"admitted/by" jsonschema_description:"Who admitted the request."`

	// body is the request as it came, and input the value of input/parts in it; nil in a request that
	// was not parsed.
	body, input []byte
}

// An InputPart is a piece of text, or an artifact that the host keeps. Only the fields of its kind are
// set.
type InputPart struct {
	Kind PartKind `json:"kind" jsonschema_description:"What the part is."`

	Text string `json:"text,omitempty" jsonschema:"minLength=1,maxLength=65536" jsonschema_description:"The text."`

	ArtifactRef    ArtifactRef `json:"artifact/ref,omitempty" jsonschema_description:"The artifact."`
	ArtifactDigest Digest      `json:"artifact/digest,omitempty" jsonschema_description:"The digest of the artifact."`
	// ArtifactSizeBytes is in bytes.
	ArtifactSizeBytes int64 `json:"artifact/size-bytes,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"The size of the artifact in bytes."`
}

// An Observation is the host's answer to what a turn asked of it.
type Observation struct {
	RequestRef  RequestRef  `json:"request/ref" jsonschema_description:"The tool request or operator question that this answers."`
	Disposition Disposition `json:"disposition" jsonschema_description:"Whether the host did what was asked."`
	ReasonCode  ReasonCode  `json:"reason/code" jsonschema_description:"Why."`
	// ReceiptRef is empty where there is none.
	ReceiptRef   Ref   `json:"receipt/ref,omitempty" jsonschema_description:"The record of what was done."`
	EvidenceRefs []Ref `json:"evidence/refs" jsonschema:"maxItems=16,uniqueItems=true" jsonschema_description:"Further records. May be empty."`
}

// A Budget is what is set aside for a turn, or the most that may be. Each axis is at least 1; steps are
// at most 2^32-1, the others at most 2^53-1.
type Budget struct {
	MaxTokens     int64 `json:"max_tokens" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"Tokens."`
	MaxCostMicros int64 `json:"max_cost_micros" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"Cost, in millionths of the host's currency."`
	MaxWallTimeMS int64 `json:"max_wall_time_ms" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"Time from start to end, in milliseconds."`
	MaxSteps      int64 `json:"max_steps" jsonschema:"minimum=1,maximum=4294967295" jsonschema_description:"Steps."`
}

// WallTime is the time that b allows; the longest [time.Duration] where that cannot hold it.
func (b Budget) WallTime() time.Duration { return milliseconds(b.MaxWallTimeMS) }

// Within tells whether no axis of b is over the ceiling's.
func (b Budget) Within(ceiling Budget) bool {
	return b.MaxTokens <= ceiling.MaxTokens && b.MaxCostMicros <= ceiling.MaxCostMicros &&
		b.MaxWallTimeMS <= ceiling.MaxWallTimeMS && b.MaxSteps <= ceiling.MaxSteps
}

// A Usage is what a turn used or is charged, on the axes of its [Budget]; each is at least 0. A Budget
// can be converted to a Usage.
type Usage struct {
	MaxTokens     int64 `json:"max_tokens" jsonschema:"minimum=0,maximum=9007199254740991" jsonschema_description:"Tokens."`
	MaxCostMicros int64 `json:"max_cost_micros" jsonschema:"minimum=0,maximum=9007199254740991" jsonschema_description:"Cost, in millionths of the host's currency."`
	MaxWallTimeMS int64 `json:"max_wall_time_ms" jsonschema:"minimum=0,maximum=9007199254740991" jsonschema_description:"Time from start to end, in milliseconds."`
	MaxSteps      int64 `json:"max_steps" jsonschema:"minimum=0,maximum=4294967295" jsonschema_description:"Steps."`
}

// Within tells whether no axis of u is over the budget's.
func (u Usage) Within(b Budget) bool { return Budget(u).Within(b) }

// milliseconds is a number of them, cut to what a [time.Duration] holds.
func milliseconds(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// Over tells whether v is over the ceiling: seen by more than it allows (private < operator < shared).
// What is none of the three is over every ceiling, and every value is over such a ceiling.
func (v Visibility) Over(ceiling Visibility) bool {
	rank, most := slices.Index(visibilityValues, v), slices.Index(visibilityValues, ceiling)
	return rank < 0 || most < 0 || rank > most
}
