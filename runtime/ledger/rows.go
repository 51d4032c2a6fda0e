package ledger

import (
	"encoding/json"
	"time"
)

// A Budget is an amount per axis, of what is set aside or charged. Each is 0 to [MaxAmount]. The wall
// time is a number of milliseconds because its range is beyond time.Duration's.
type Budget struct {
	Tokens     int64 `json:"tokens"`
	CostMicros int64 `json:"cost_micros"`
	WallTimeMS int64 `json:"wall_time_ms"`
	Steps      int64 `json:"steps"`
}

// MaxAmount is the largest amount on an axis, 2^53-1.
const MaxAmount = 1<<53 - 1

// A Turn is what is known of a turn.
type Turn struct {
	// Seq grows with each turn that is recorded, from 1; lists are ordered by it. Numbers may be
	// missing.
	Seq int64   `json:"seq"`
	Ref TurnRef `json:"ref"`
	// Identity covers what all requests of the turn agree in.
	Identity          Digest     `json:"identity"`
	Agent             AgentID    `json:"agent"`
	Binding           BindingRef `json:"binding"`
	BindingDigest     Digest     `json:"binding_digest,omitempty"`
	Profile           ProfileRef `json:"profile,omitempty"`
	ProfileGeneration int64      `json:"profile_generation,omitempty"`

	State State `json:"state"`
	// Version grows by 1 with each change of the turn, from 1.
	Version  int64  `json:"version"`
	Reserved Budget `json:"reserved"`
	// LastSeq is the last sequence number that is committed, 0 for none. A running turn may have
	// sent more.
	LastSeq int64 `json:"last_seq"`
	// Awaiting are the observations that are outstanding, in the order they were asked for. A turn
	// that goes on after one of several was answered still has the others.
	Awaiting []ObservationRef `json:"awaiting,omitempty"`

	Deadline     time.Time `json:"deadline,omitzero"`
	ReservedAt   time.Time `json:"reserved_at"`
	DispatchedAt time.Time `json:"dispatched_at,omitzero"` // the first time
	UpdatedAt    time.Time `json:"updated_at"`

	// Outcome is nil until the turn is settled.
	Outcome *Outcome `json:"outcome,omitempty"`
}

// An Outcome is how a turn ended and what it costs.
type Outcome struct {
	Ref          OutcomeRef   `json:"ref"`
	Status       Status       `json:"status"`
	Reason       ReasonCode   `json:"reason"`
	Retryability Retryability `json:"retryability"`
	Charged      Budget       `json:"charged"`
	Fidelity     Fidelity     `json:"fidelity"`
	// Product and ProductDigest are there for a completed turn and no other.
	Product       ProductRef `json:"product,omitempty"`
	ProductDigest Digest     `json:"product_digest,omitempty"`
	// Document is the outcome as the host gets it. Its bytes are kept as they are; nil where the
	// ledger settled the turn by itself.
	Document json.RawMessage `json:"document,omitempty"`
	// At is when it was committed. The store sets it.
	At time.Time `json:"at"`
}

// A Part is one request of a turn, with what its stream said: a turn has one for its start and one for
// each request that continued it, or tried to.
type Part struct {
	// Seq grows with each part that is recorded, from 1. Numbers may be missing.
	Seq  int64   `json:"seq"`
	Key  Key     `json:"key"`
	Turn TurnRef `json:"turn"`
	// Digest covers the whole request.
	Digest Digest `json:"digest"`
	Mode   Mode   `json:"mode"`
	// Answers is the observation that a continue answers.
	Answers   ObservationRef `json:"answers,omitempty"`
	StartedAt time.Time      `json:"started_at"`

	// EndedAt is zero while the part runs.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Status and Reason are those of the outcome that ends the stream. They are empty while the part
	// runs, and where its stream ended because the turn was suspended. A refused continue has them
	// although its turn goes on.
	Status Status     `json:"status,omitempty"`
	Reason ReasonCode `json:"reason,omitempty"`
	// LastSeq is the sequence number of the last line.
	LastSeq int64 `json:"last_seq,omitempty"`
	// Lines are the bytes of the stream, all of them, where Keeping is Kept. Lists omit them.
	Lines   []byte  `json:"-"`
	Size    int64   `json:"size"` // of the lines in bytes, also after they were swept
	Keeping Keeping `json:"keeping"`
	// Expires is when Lines may be forgotten; zero means never.
	Expires time.Time `json:"expires,omitzero"`
}

// Running tells whether the part's stream is still being made.
func (p *Part) Running() bool { return p.EndedAt.IsZero() }

// A Product is what a completed turn produced.
type Product struct {
	Ref    ProductRef `json:"ref"`
	Turn   TurnRef    `json:"turn"`
	Digest Digest     `json:"digest"`
	// Document is the product's description as the host gets it; it holds no content.
	Document json.RawMessage `json:"document,omitempty"`
	// Content is there where Keeping is Kept. Lists omit it.
	Content       []byte    `json:"-"`
	ContentDigest Digest    `json:"content_digest,omitempty"`
	Size          int64     `json:"size"` // of the content in bytes, also after it was swept
	Keeping       Keeping   `json:"keeping"`
	Expires       time.Time `json:"expires,omitzero"` // when Content may be forgotten; zero means never
	At            time.Time `json:"at"`               // when it was committed
}

// A Fence is what must still hold before a session continues.
type Fence struct {
	Agent             AgentID         `json:"agent"`
	AgentBinding      AgentBindingRef `json:"agent_binding"`
	BindingDigest     Digest          `json:"binding_digest"`
	ProfileGeneration int64           `json:"profile_generation"`
	Epoch             Epoch           `json:"epoch"`
}

// A Session is what is known of a binding's session: at most one is open for a binding.
type Session struct {
	Binding BindingRef `json:"binding"`
	// Version grows by 1 with each change, from 1. In a change it is the version that the caller
	// saw, 0 for none.
	Version int64 `json:"version"`
	Fence   Fence `json:"fence"`
	// Open tells whether the session is open. Values are those of an open one, in JSON, and are
	// forgotten when it closes.
	Open   bool            `json:"open"`
	Values json.RawMessage `json:"-"`
	// OpenedAt is when it was opened with this fence; a change of the fence opens it anew.
	OpenedAt  time.Time `json:"opened_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	ClosedAt  time.Time `json:"closed_at,omitzero"`
}

// An Admission is a profile or a binding that was admitted.
type Admission struct {
	Kind Kind   `json:"kind"`
	Ref  string `json:"ref"` // a ProfileRef or a BindingRef
	// Generation is the profile's; a binding has none (0).
	Generation int64 `json:"generation,omitempty"`
	// Digest is the binding's own, or one over the profile's canonical form.
	Digest   Digest          `json:"digest"`
	Document json.RawMessage `json:"document"`
	Source   Source          `json:"source"`
	// Version grows by 1 with each change, from 1.
	Version    int64     `json:"version"`
	AdmittedAt time.Time `json:"admitted_at"`
	// WithdrawnAt is when a binding was revoked or a profile disabled; zero where it is in force.
	WithdrawnAt time.Time `json:"withdrawn_at,omitzero"`
}

// InForce tells whether the document was not withdrawn.
func (a *Admission) InForce() bool { return a.WithdrawnAt.IsZero() }

// A Superseded is a document that was admitted and has been replaced by another of the same ref. Only
// its digest is remembered.
type Superseded struct {
	Kind       Kind      `json:"kind"`
	Ref        string    `json:"ref"`
	Generation int64     `json:"generation,omitempty"`
	Digest     Digest    `json:"digest"`
	At         time.Time `json:"at"` // when it was replaced, the last time
}

// A Claim is the memory of a Keiki turn id: who has it runs the turn, once.
type Claim struct {
	Agent AgentID    `json:"agent"`
	Turn  TurnRef    `json:"turn"`
	State ClaimState `json:"state"`
	At    time.Time  `json:"at"`
	// EndedAt is when the turn ended or was found lost.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Expires is when the claim may be forgotten.
	Expires time.Time `json:"expires"`
}

// A Record is one row of an export; exactly one field is not nil.
type Record struct {
	Admission  *Admission  `json:"admission,omitempty"`
	Superseded *Superseded `json:"superseded,omitempty"`
	Session    *Session    `json:"session,omitempty"`
	Turn       *Turn       `json:"turn,omitempty"`
	Part       *Part       `json:"part,omitempty"`
	Product    *Product    `json:"product,omitempty"`
	Claim      *Claim      `json:"claim,omitempty"`
}
