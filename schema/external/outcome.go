package external

// An Outcome is a turn's terminal fact (agent.external-runtime.turn-outcome.v1).
type Outcome struct {
	Schema       Document     `json:"schema" jsonschema_description:"What the document is."`
	OutcomeRef   OutcomeRef   `json:"outcome/ref" jsonschema_description:"The outcome."`
	TurnRef      TurnRef      `json:"turn/ref" jsonschema_description:"The turn that ended."`
	BindingRef   BindingRef   `json:"binding/ref" jsonschema_description:"The binding that it ran under."`
	AgentID      AgentID      `json:"agent/id" jsonschema_description:"The agent that it was for."`
	Status       Status       `json:"status" jsonschema_description:"How the turn ended."`
	ReasonCode   ReasonCode   `json:"reason/code" jsonschema_description:"Why."`
	Retryability Retryability `json:"retryability" jsonschema_description:"What the host may do next."`
	// ProductRef and ProductDigest are there exactly where Status is completed.
	ProductRef     ProductRef `json:"product/ref,omitempty" jsonschema_description:"The product. Only of a completed turn, and there always."`
	ProductDigest  Digest     `json:"product/digest,omitempty" jsonschema_description:"The product's digest. Only of a completed turn, and there always."`
	BudgetReserved Budget     `json:"budget/reserved" jsonschema_description:"What was set aside for the turn."`
	BudgetCharged  Usage      `json:"budget/charged" jsonschema_description:"What it is charged."`
	UsageFidelity  Fidelity   `json:"usage/fidelity" jsonschema_description:"Who measured what it used."`
	// SessionCheckpointRef is empty where there is none.
	SessionCheckpointRef Ref          `json:"session/checkpoint-ref,omitempty" jsonschema_description:"Where the session can be resumed."`
	SelectedAt           DateTime     `json:"selected/at" jsonschema_description:"When the outcome was settled."`
	SelectedBy           PrincipalRef `json:"selected/by" jsonschema_description:"Who settled it."`
}
