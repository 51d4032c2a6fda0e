package external

import "slices"

// A Code is any of the types of this package whose values the contract lists: [Mode], [Status],
// [ReasonCode] and so on. A value that is none of the list is refused wherever a document is read. The
// zero value, the empty string, is never one of them.
type Code[C any] interface {
	~string
	// values are all of them, in the contract's order, as they are shared.
	values() []C
}

// Values lists all values of a code, in the contract's order. The slice is the caller's.
func Values[C Code[C]]() []C {
	var c C
	return slices.Clone(c.values())
}

// known finds the code with this text; ok is false if there is none.
func known[C Code[C]](text string) (code C, ok bool) {
	for _, v := range code.values() {
		if string(v) == text {
			return v, true
		}
	}
	return "", false
}

// A Document names a kind of document, as its field "schema" has it.
type Document string

// The values of a [Document].
const (
	TurnRequestV1    Document = "agent.external-runtime.turn-request.v1"
	EventV1          Document = "agent.external-runtime.event.v1"
	TurnOutcomeV1    Document = "agent.external-runtime.turn-outcome.v1"
	ProfileV1        Document = "agent.external-runtime.profile.v1"
	BindingV1        Document = "agent.external-runtime.binding.v1"
	ProductV1        Document = "agent.external-runtime.product.v1"
	ClassificationV1 Document = "classification.v1"
)

var documentValues = []Document{TurnRequestV1, EventV1, TurnOutcomeV1, ProfileV1, BindingV1, ProductV1, ClassificationV1}

func (Document) values() []Document { return documentValues }

// A Mode tells whether a request begins a turn or answers what a suspended one asked.
type Mode string

// The values of a [Mode].
const (
	ModeStart    Mode = "start"
	ModeContinue Mode = "continue"
)

var modeValues = []Mode{ModeStart, ModeContinue}

func (Mode) values() []Mode { return modeValues }

// A Kind is what a turn is to produce.
type Kind string

// The values of a [Kind].
const (
	KindDraft    Kind = "draft"
	KindCritique Kind = "critique"
	KindRevision Kind = "revision"
	KindFinal    Kind = "final"
)

var kindValues = []Kind{KindDraft, KindCritique, KindRevision, KindFinal}

func (Kind) values() []Kind { return kindValues }

// A PartKind tells what an [InputPart] is.
type PartKind string

// The values of a [PartKind].
const (
	PartText     PartKind = "text"
	PartArtifact PartKind = "artifact"
)

var partKindValues = []PartKind{PartText, PartArtifact}

func (PartKind) values() []PartKind { return partKindValues }

// A Visibility tells who may see a turn and its product; see [Visibility.Over]. The list begins with the
// narrowest.
type Visibility string

// The values of a [Visibility].
const (
	VisibilityPrivate  Visibility = "private"
	VisibilityOperator Visibility = "operator"
	VisibilityShared   Visibility = "shared"
)

var visibilityValues = []Visibility{VisibilityPrivate, VisibilityOperator, VisibilityShared}

func (Visibility) values() []Visibility { return visibilityValues }

// A Disposition tells whether the host did what a turn asked of it.
type Disposition string

// The values of a [Disposition].
const (
	Admitted Disposition = "admitted"
	Refused  Disposition = "refused"
)

var dispositionValues = []Disposition{Admitted, Refused}

func (Disposition) values() []Disposition { return dispositionValues }

// A Status is how a turn ended.
type Status string

// The values of a [Status].
const (
	StatusCompleted Status = "completed" // a product was made
	StatusRefused   Status = "refused"   // a rule declined it
	StatusFailed    Status = "failed"    // it was tried and did not work
	StatusCancelled Status = "cancelled" // the host, or a drain, ended it
	StatusUnknown   Status = "unknown"   // nobody saw its end
)

var statusValues = []Status{StatusCompleted, StatusRefused, StatusFailed, StatusCancelled, StatusUnknown}

func (Status) values() []Status { return statusValues }

// A Retryability is what the host may do after a turn's end.
type Retryability string

// The values of a [Retryability].
const (
	Terminal               Retryability = "terminal"
	Retryable              Retryability = "retryable"
	ReconciliationRequired Retryability = "reconciliation-required"
)

var retryabilityValues = []Retryability{Terminal, Retryable, ReconciliationRequired}

func (Retryability) values() []Retryability { return retryabilityValues }

// A Fidelity tells who measured a usage.
type Fidelity string

// The values of a [Fidelity].
const (
	FidelityAuthoritative Fidelity = "authoritative"
	FidelityHostMeasured  Fidelity = "host-measured"
	FidelityEstimated     Fidelity = "estimated"
	FidelityUnavailable   Fidelity = "unavailable"
)

var fidelityValues = []Fidelity{FidelityAuthoritative, FidelityHostMeasured, FidelityEstimated, FidelityUnavailable}

func (Fidelity) values() []Fidelity { return fidelityValues }

// An EventKind tells what an [Event] is.
type EventKind string

// The values of a [EventKind].
const (
	EventProgress         EventKind = "progress"
	EventActionCandidate  EventKind = "action-candidate"
	EventProductCandidate EventKind = "product-candidate"
	EventToolRequest      EventKind = "tool-request"
	EventOperatorQuestion EventKind = "operator-question"
	EventUsage            EventKind = "usage"
	EventTurnOutcome      EventKind = "turn-outcome"
)

var eventKindValues = []EventKind{EventProgress, EventActionCandidate, EventProductCandidate, EventToolRequest, EventOperatorQuestion, EventUsage, EventTurnOutcome}

func (EventKind) values() []EventKind { return eventKindValues }

// A ProgressCode tells where a turn stands.
type ProgressCode string

// The values of a [ProgressCode].
const (
	ProgressAccepted            ProgressCode = "accepted"
	ProgressRunning             ProgressCode = "running"
	ProgressAwaitingObservation ProgressCode = "awaiting-observation"
	ProgressCancelling          ProgressCode = "cancelling"
	ProgressReconciling         ProgressCode = "reconciling"
)

var progressCodeValues = []ProgressCode{ProgressAccepted, ProgressRunning, ProgressAwaitingObservation, ProgressCancelling, ProgressReconciling}

func (ProgressCode) values() []ProgressCode { return progressCodeValues }

// A TransportClass tells how a runtime reaches what answers.
type TransportClass string

// The values of a [TransportClass].
const (
	TransportInProcess         TransportClass = "in-process"
	TransportSupervisedProcess TransportClass = "supervised-process"
	TransportLocalSocket       TransportClass = "local-socket"
	TransportRemote            TransportClass = "remote"
)

var transportClassValues = []TransportClass{TransportInProcess, TransportSupervisedProcess, TransportLocalSocket, TransportRemote}

func (TransportClass) values() []TransportClass { return transportClassValues }

// An AuthClass tells how a runtime authenticates there.
type AuthClass string

// The values of a [AuthClass].
const (
	AuthNone             AuthClass = "none"
	AuthOperatorSession  AuthClass = "operator-session"
	AuthAPICredential    AuthClass = "api-credential"
	AuthWorkloadIdentity AuthClass = "workload-identity"
)

var authClassValues = []AuthClass{AuthNone, AuthOperatorSession, AuthAPICredential, AuthWorkloadIdentity}

func (AuthClass) values() []AuthClass { return authClassValues }

// A SessionScope tells what a session belongs to.
type SessionScope string

// The values of a [SessionScope].
const (
	ScopeAgentRuntimeBinding SessionScope = "agent-runtime-binding"
)

var sessionScopeValues = []SessionScope{ScopeAgentRuntimeBinding}

func (SessionScope) values() []SessionScope { return sessionScopeValues }

// A SessionPersistence tells what a session outlives.
type SessionPersistence string

// The values of a [SessionPersistence].
const (
	SessionEphemeral      SessionPersistence = "ephemeral"
	SessionAdapterRestart SessionPersistence = "adapter-restart"
	SessionRemote         SessionPersistence = "remote"
)

var sessionPersistenceValues = []SessionPersistence{SessionEphemeral, SessionAdapterRestart, SessionRemote}

func (SessionPersistence) values() []SessionPersistence { return sessionPersistenceValues }

// A RetentionClass tells by whose policy the other side keeps what it is sent.
type RetentionClass string

// The values of a [RetentionClass].
const (
	RetentionNone           RetentionClass = "none"
	RetentionOperatorPolicy RetentionClass = "operator-policy"
	RetentionProviderPolicy RetentionClass = "provider-policy"
)

var retentionClassValues = []RetentionClass{RetentionNone, RetentionOperatorPolicy, RetentionProviderPolicy}

func (RetentionClass) values() []RetentionClass { return retentionClassValues }

// An EgressClass is a class of input that may leave by a remote transport; "none" stands for none.
type EgressClass string

// The values of a [EgressClass].
const (
	EgressText     EgressClass = "text"
	EgressArtifact EgressClass = "artifact"
	EgressMetadata EgressClass = "metadata"
	EgressNone     EgressClass = "none"
)

var egressClassValues = []EgressClass{EgressText, EgressArtifact, EgressMetadata, EgressNone}

func (EgressClass) values() []EgressClass { return egressClassValues }

// A ToolMode tells whether a turn may ask for tools and the operator.
type ToolMode string

// The values of a [ToolMode].
const (
	ToolsDenyAll  ToolMode = "deny-all"
	ToolsMediated ToolMode = "mediated"
)

var toolModeValues = []ToolMode{ToolsDenyAll, ToolsMediated}

func (ToolMode) values() []ToolMode { return toolModeValues }

// An EventOrdering tells how events are numbered.
type EventOrdering string

// The values of a [EventOrdering].
const (
	StrictSequence EventOrdering = "strict-sequence"
)

var eventOrderingValues = []EventOrdering{StrictSequence}

func (EventOrdering) values() []EventOrdering { return eventOrderingValues }

// A Tier is a step of the classification lattice; see [Tier.Over]. The list begins with the most
// restricted.
type Tier string

// The values of a [Tier].
const (
	TierPersonal  Tier = "Personal"
	TierCommunity Tier = "Community"
	TierPublic    Tier = "Public"
)

var tierValues = []Tier{TierPersonal, TierCommunity, TierPublic}

func (Tier) values() []Tier { return tierValues }

// An OriginKind tells what an [Origin] is.
type OriginKind string

// The values of a [OriginKind].
const (
	OriginLocalSpace OriginKind = "local-space"
	OriginIngress    OriginKind = "ingress"
	OriginDerived    OriginKind = "derived"
)

var originKindValues = []OriginKind{OriginLocalSpace, OriginIngress, OriginDerived}

func (OriginKind) values() []OriginKind { return originKindValues }

// A Space is one of the host's own places for data.
type Space string

// The values of a [Space].
const (
	SpacePersonal  Space = "Personal"
	SpaceCommunity Space = "Community"
	SpacePublic    Space = "Public"
	SpaceCrisis    Space = "Crisis"
)

var spaceValues = []Space{SpacePersonal, SpaceCommunity, SpacePublic, SpaceCrisis}

func (Space) values() []Space { return spaceValues }

// An IngressSurface is where data came in from outside.
type IngressSurface string

// The values of a [IngressSurface].
const (
	IngressFederation    IngressSurface = "federation"
	IngressINAC          IngressSurface = "inac"
	IngressImport        IngressSurface = "import"
	IngressOperatorStamp IngressSurface = "operator-stamp"
)

var ingressSurfaceValues = []IngressSurface{IngressFederation, IngressINAC, IngressImport, IngressOperatorStamp}

func (IngressSurface) values() []IngressSurface { return ingressSurfaceValues }

// A SubjectKind is what kind of subject data is about.
type SubjectKind string

// The values of a [SubjectKind].
const (
	SubjectPerson      SubjectKind = "person"
	SubjectNym         SubjectKind = "nym"
	SubjectGroup       SubjectKind = "group"
	SubjectInstitution SubjectKind = "institution"
	SubjectRole        SubjectKind = "role"
)

var subjectKindValues = []SubjectKind{SubjectPerson, SubjectNym, SubjectGroup, SubjectInstitution, SubjectRole}

func (SubjectKind) values() []SubjectKind { return subjectKindValues }

// An EgressSurface is where declassified data may go.
type EgressSurface string

// The values of a [EgressSurface].
const (
	SurfaceAgora     EgressSurface = "agora"
	SurfaceWhisper   EgressSurface = "whisper"
	SurfaceINAC      EgressSurface = "inac"
	SurfaceExport    EgressSurface = "export"
	SurfaceBus       EgressSurface = "bus"
	SurfaceInterface EgressSurface = "interface"
)

var egressSurfaceValues = []EgressSurface{SurfaceAgora, SurfaceWhisper, SurfaceINAC, SurfaceExport, SurfaceBus, SurfaceInterface}

func (EgressSurface) values() []EgressSurface { return egressSurfaceValues }

// A DeclassifyKind tells how long a declassification holds.
type DeclassifyKind string

// The values of a [DeclassifyKind].
const (
	DeclassifyOneShot    DeclassifyKind = "one-shot"
	DeclassifyPersistent DeclassifyKind = "persistent-for-topic-class"
)

var declassifyKindValues = []DeclassifyKind{DeclassifyOneShot, DeclassifyPersistent}

func (DeclassifyKind) values() []DeclassifyKind { return declassifyKindValues }

// A CallerRole is by what right somebody declassified: A0 operator, A1 local module, A2 delegated.
type CallerRole string

// The values of a [CallerRole].
const (
	RoleA0 CallerRole = "A0"
	RoleA1 CallerRole = "A1"
	RoleA2 CallerRole = "A2"
)

var callerRoleValues = []CallerRole{RoleA0, RoleA1, RoleA2}

func (CallerRole) values() []CallerRole { return callerRoleValues }

// A QuarantineReason is why data is in quarantine.
type QuarantineReason string

// The values of a [QuarantineReason].
const (
	QuarantineNoLabel           QuarantineReason = "no-label-at-ingress"
	QuarantineUnknownProvenance QuarantineReason = "unknown-provenance"
	QuarantineOlderSchema       QuarantineReason = "schema-older-than-v-with-classification"
	QuarantineOperatorHold      QuarantineReason = "operator-hold"
)

var quarantineReasonValues = []QuarantineReason{QuarantineNoLabel, QuarantineUnknownProvenance, QuarantineOlderSchema, QuarantineOperatorHold}

func (QuarantineReason) values() []QuarantineReason { return quarantineReasonValues }
