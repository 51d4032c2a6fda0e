package external

// A Product describes what a turn produced (agent.external-runtime.product.v1). The content itself
// travels beside it.
type Product struct {
	Schema            Document     `json:"schema" jsonschema_description:"What the document is."`
	ProductRef        ProductRef   `json:"product/ref" jsonschema_description:"The product."`
	ProductDigest     Digest       `json:"product/digest" jsonschema_description:"The digest of this document with this field set to an empty string."`
	TurnRef           TurnRef      `json:"turn/ref" jsonschema_description:"The turn that produced it."`
	PassageRef        PassageRef   `json:"passage/ref" jsonschema_description:"The passage of that turn."`
	BindingRef        BindingRef   `json:"binding/ref" jsonschema_description:"The binding that it ran under."`
	AgentID           AgentID      `json:"agent/id" jsonschema_description:"The agent that it was for."`
	Kind              Kind         `json:"kind" jsonschema_description:"What the product is."`
	ParentProductRefs []ProductRef `json:"parent-product/refs" jsonschema:"maxItems=8,uniqueItems=true" jsonschema_description:"The products that it builds on. May be empty."`
	ContentDigest     Digest       `json:"content/digest" jsonschema_description:"The digest of the content's UTF-8 bytes."`
	// ContentSizeBytes is in bytes of UTF-8.
	ContentSizeBytes int64 `json:"content/size-bytes" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"The number of the content's UTF-8 bytes."`
	// ArtifactRef is there exactly where Retained is true.
	ArtifactRef      ArtifactRef    `json:"artifact/ref,omitempty" jsonschema_description:"Where the content is kept. Exactly where it is."`
	Retained         bool           `json:"retained" jsonschema_description:"Whether the content is kept."`
	OutputSchemaRef  SchemaRef      `json:"output-schema/ref" jsonschema_description:"The schema that the content is to have."`
	ProducerSnapshot Ref            `json:"producer/snapshot" jsonschema_description:"What produced it, and in which state."`
	BudgetUsed       Usage          `json:"budget/used" jsonschema_description:"What the turn used."`
	Visibility       Visibility     `json:"visibility" jsonschema_description:"Who may see the product."`
	Classification   Classification `json:"classification" jsonschema_description:"The classification label of the product."`
	CommittedAt      DateTime       `json:"committed/at" jsonschema_description:"When the product was committed."`
	CommittedBy      PrincipalRef   `json:"committed/by" jsonschema_description:"Who committed it."`
}
