package external

import "encoding/json"

// An Event is one line of a turn's stream (agent.external-runtime.event.v1). Only the fields that every
// event has and those of its kind are set; [Event.Append] writes no others.
type Event struct {
	Schema   Document  `json:"schema" jsonschema_description:"What the document is."`
	EventRef EventRef  `json:"event/ref" jsonschema_description:"The event."`
	TurnRef  TurnRef   `json:"turn/ref" jsonschema_description:"The turn that it belongs to."`
	SeqNo    int64     `json:"seq/no" jsonschema:"minimum=1,maximum=1024" jsonschema_description:"The number of the event in its turn."`
	Kind     EventKind `json:"kind" jsonschema_description:"What the event is."`

	// Progress.
	ProgressCode    ProgressCode `json:"progress/code" jsonschema_description:"Where the turn stands."`
	ProgressCurrent int64        `json:"progress/current" jsonschema:"minimum=0,maximum=9007199254740991" jsonschema_description:"How much has been done."`
	// ProgressTotal is 0 where it is not known.
	ProgressTotal int64 `json:"progress/total,omitempty" jsonschema:"minimum=1,maximum=9007199254740991" jsonschema_description:"How much there is to do."`

	// Action candidate.
	ActionSchema Ref    `json:"action/schema" jsonschema_description:"The schema of the action."`
	ActionDigest Digest `json:"action/digest" jsonschema_description:"The digest of the action."`

	// Product candidate.
	Content         string    `json:"content" jsonschema:"minLength=1,maxLength=1048576" jsonschema_description:"The content of the product."`
	OutputSchemaRef SchemaRef `json:"output-schema/ref" jsonschema_description:"The schema that the content is to have."`

	// Tool request and operator question.
	RequestRef RequestRef `json:"request/ref" jsonschema_description:"What the observation that answers will name."`

	// Tool request.
	ToolRef        ToolRef   `json:"tool/ref" jsonschema_description:"The tool."`
	InputSchemaRef SchemaRef `json:"input/schema-ref" jsonschema_description:"The schema of the input."`
	InputDigest    Digest    `json:"input/digest" jsonschema_description:"The digest of the value of input."`
	// Input is an object of 1 to 64 members, its bytes as they came.
	Input          json.RawMessage `json:"input" jsonschema_description:"The tool's input."`
	Classification *Classification `json:"classification" jsonschema_description:"The classification label of the input."`

	// Operator question.
	QuestionSchemaRef SchemaRef `json:"question/schema-ref" jsonschema_description:"The schema of the question."`
	QuestionDigest    Digest    `json:"question/digest" jsonschema_description:"The digest of the value of question."`
	// Question is an object of 1 to 64 members, its bytes as they came.
	Question json.RawMessage `json:"question" jsonschema_description:"The question."`

	// Tool request and operator question.
	DeadlineAt DateTime `json:"deadline/at" jsonschema_description:"Until when an answer is of use."`

	// Usage.
	UsageFidelity Fidelity `json:"usage/fidelity" jsonschema_description:"Who measured it."`
	Usage         Usage    `json:"usage" jsonschema_description:"What the turn has used."`

	// Turn outcome.
	Status     Status     `json:"status" jsonschema_description:"How the turn ended."`
	ReasonCode ReasonCode `json:"reason/code" jsonschema_description:"Why."`

	At DateTime `json:"at" jsonschema_description:"When the event came about."`
}
