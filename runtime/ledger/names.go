package ledger

import (
	"fmt"
	"slices"
)

// Names as a protocol gives them. The ledger compares them byte for byte and trusts nothing in them.
// Each is 1 to [MaxName] bytes of UTF-8 without NUL where it is not said to be optional.
type (
	// TurnRef names a turn (turn/ref).
	TurnRef string
	// Key names one request for good (idempotency/key).
	Key string
	// Digest is a digest as text. The ledger never computes one.
	Digest string
	// AgentID names the agent on the host's side (agent/id).
	AgentID string
	// AgentBindingRef names the host's own binding of its agent (agent-binding/ref).
	AgentBindingRef string
	// BindingRef names a binding (binding/ref).
	BindingRef string
	// ProfileRef names a profile (profile/ref).
	ProfileRef string
	// Epoch names an incarnation of the adapter (adapter-instance/epoch).
	Epoch string
	// ObservationRef names a tool request or question that awaits an observation (request/ref).
	ObservationRef string
	// OutcomeRef names an outcome (outcome/ref).
	OutcomeRef string
	// ProductRef names a product (product/ref).
	ProductRef string
	// ReasonCode says why a turn ended as it did (reason/code). The codes are the protocol's.
	ReasonCode string
)

// MaxName is the longest name in bytes: 512 code points, as agent.external-runtime bounds its refs.
const MaxName = 4 * 512

// A State is where a turn is in its life; docs/ledger.md draws it.
type State string

// The states. Reserved, dispatched and suspended turns are open, a settled one never changes again.
const (
	// Reserved: budget is set aside and no adapter was called.
	Reserved State = "reserved"
	// Dispatched: an adapter was called, or may have been.
	Dispatched State = "dispatched"
	// Suspended: the adapter waits for an observation, and no request's stream is open.
	Suspended State = "suspended"
	// Settled: outcome and charge are committed.
	Settled State = "settled"
)

// States are all states, in the order of a turn's life.
func States() []State { return []State{Reserved, Dispatched, Suspended, Settled} }

// String is the state as it is written.
func (s State) String() string { return string(s) }

// MarshalText is the state as it is written.
func (s State) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText takes one of [States].
func (s *State) UnmarshalText(text []byte) error { return unmarshal(s, States(), text) }

// A Status is how a turn ended.
type Status string

// The statuses.
const (
	Completed Status = "completed"
	Refused   Status = "refused"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
	// Unknown is kept for turns whose end nobody saw. Only [Store.Recover] gives it.
	Unknown Status = "unknown"
)

// Statuses are all statuses.
func Statuses() []Status { return []Status{Completed, Refused, Failed, Cancelled, Unknown} }

// String is the status as it is written.
func (s Status) String() string { return string(s) }

// MarshalText is the status as it is written.
func (s Status) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText takes one of [Statuses].
func (s *Status) UnmarshalText(text []byte) error { return unmarshal(s, Statuses(), text) }

// A Retryability tells the host what it may do after an outcome.
type Retryability string

// The retryabilities.
const (
	Terminal               Retryability = "terminal"
	Retryable              Retryability = "retryable"
	ReconciliationRequired Retryability = "reconciliation-required"
)

// Retryabilities are all retryabilities.
func Retryabilities() []Retryability {
	return []Retryability{Terminal, Retryable, ReconciliationRequired}
}

// String is the retryability as it is written.
func (r Retryability) String() string { return string(r) }

// MarshalText is the retryability as it is written.
func (r Retryability) MarshalText() ([]byte, error) { return []byte(r), nil }

// UnmarshalText takes one of [Retryabilities].
func (r *Retryability) UnmarshalText(text []byte) error { return unmarshal(r, Retryabilities(), text) }

// A Fidelity tells who measured what a turn is charged.
type Fidelity string

// The fidelities.
const (
	Authoritative Fidelity = "authoritative"
	HostMeasured  Fidelity = "host-measured"
	Estimated     Fidelity = "estimated"
	Unavailable   Fidelity = "unavailable"
)

// Fidelities are all fidelities.
func Fidelities() []Fidelity { return []Fidelity{Authoritative, HostMeasured, Estimated, Unavailable} }

// String is the fidelity as it is written.
func (f Fidelity) String() string { return string(f) }

// MarshalText is the fidelity as it is written.
func (f Fidelity) MarshalText() ([]byte, error) { return []byte(f), nil }

// UnmarshalText takes one of [Fidelities].
func (f *Fidelity) UnmarshalText(text []byte) error { return unmarshal(f, Fidelities(), text) }

// A Mode tells what a request wants.
type Mode string

// The modes.
const (
	// Start begins a turn.
	Start Mode = "start"
	// Continue answers a suspended one.
	Continue Mode = "continue"
)

// Modes are all modes.
func Modes() []Mode { return []Mode{Start, Continue} }

// String is the mode as it is written.
func (m Mode) String() string { return string(m) }

// MarshalText is the mode as it is written.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText takes one of [Modes].
func (m *Mode) UnmarshalText(text []byte) error { return unmarshal(m, Modes(), text) }

// Keeping tells whether content is there, and why not.
type Keeping string

// The keepings.
const (
	// KeptNot: there is none yet, as with the lines of a request that runs.
	KeptNot Keeping = "none"
	// Kept: it is there, until it expires.
	Kept Keeping = "kept"
	// Swept: its time was over and it was forgotten.
	Swept Keeping = "swept"
	// Oversized: it was too long to be kept at all.
	Oversized Keeping = "oversized"
)

// Keepings are all keepings.
func Keepings() []Keeping { return []Keeping{KeptNot, Kept, Swept, Oversized} }

// String is the keeping as it is written.
func (k Keeping) String() string { return string(k) }

// MarshalText is the keeping as it is written.
func (k Keeping) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText takes one of [Keepings].
func (k *Keeping) UnmarshalText(text []byte) error { return unmarshal(k, Keepings(), text) }

// A Kind is a kind of admitted document.
type Kind string

// The kinds.
const (
	Profile Kind = "profile"
	Binding Kind = "binding"
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{Profile, Binding} }

// String is the kind as it is written.
func (k Kind) String() string { return string(k) }

// MarshalText is the kind as it is written.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText takes one of [Kinds].
func (k *Kind) UnmarshalText(text []byte) error { return unmarshal(k, Kinds(), text) }

// A Source tells who admits a document. Only an operator lifts what was withdrawn.
type Source string

// The sources.
const (
	Operator  Source = "operator"
	Directory Source = "directory"
)

// Sources are all sources.
func Sources() []Source { return []Source{Operator, Directory} }

// String is the source as it is written.
func (s Source) String() string { return string(s) }

// MarshalText is the source as it is written.
func (s Source) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText takes one of [Sources].
func (s *Source) UnmarshalText(text []byte) error { return unmarshal(s, Sources(), text) }

// A ClaimState is how far a claimed turn id got.
type ClaimState string

// The states of a claim.
const (
	// ClaimRunning: the turn runs.
	ClaimRunning ClaimState = "running"
	// ClaimEnded: it ended, well or not.
	ClaimEnded ClaimState = "ended"
	// ClaimLost: the process that ran it is gone. Only [Store.Recover] gives it.
	ClaimLost ClaimState = "lost"
)

// ClaimStates are all states of a claim.
func ClaimStates() []ClaimState { return []ClaimState{ClaimRunning, ClaimEnded, ClaimLost} }

// String is the state as it is written.
func (s ClaimState) String() string { return string(s) }

// MarshalText is the state as it is written.
func (s ClaimState) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText takes one of [ClaimStates].
func (s *ClaimState) UnmarshalText(text []byte) error { return unmarshal(s, ClaimStates(), text) }

func unmarshal[T ~string](v *T, all []T, text []byte) error {
	if !slices.Contains(all, T(text)) {
		return fmt.Errorf("ledger: %q is none of %v", text, all)
	}
	*v = T(text)
	return nil
}
