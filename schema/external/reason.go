package external

import "fmt"

// A ReasonCode says why a turn ended as it did, or why the host answered a request as it did. There are
// 28 ([Values]); external-runtime.md tells when each is used.
type ReasonCode string

// The reason codes.
const (
	ReasonCompleted            ReasonCode = "completed"
	ReasonPolicyDenied         ReasonCode = "policy-denied"
	ReasonBindingMissing       ReasonCode = "binding-missing"
	ReasonBindingStale         ReasonCode = "binding-stale"
	ReasonBindingMismatch      ReasonCode = "binding-mismatch"
	ReasonBindingExpired       ReasonCode = "binding-expired"
	ReasonBindingRevoked       ReasonCode = "binding-revoked"
	ReasonProfileDisabled      ReasonCode = "profile-disabled"
	ReasonProfileMismatch      ReasonCode = "profile-mismatch"
	ReasonBudgetExhausted      ReasonCode = "budget-exhausted"
	ReasonUsageMissing         ReasonCode = "usage-missing"
	ReasonUsageMalformed       ReasonCode = "usage-malformed"
	ReasonUsageOverflow        ReasonCode = "usage-overflow"
	ReasonUsageConflict        ReasonCode = "usage-conflict"
	ReasonSessionFenceMismatch ReasonCode = "session-fence-mismatch"
	ReasonSessionLost          ReasonCode = "session-lost"
	ReasonEventMalformed       ReasonCode = "event-malformed"
	ReasonEventDuplicate       ReasonCode = "event-duplicate"
	ReasonEventReordered       ReasonCode = "event-reordered"
	ReasonEventOversized       ReasonCode = "event-oversized"
	ReasonEventUnauthorized    ReasonCode = "event-unauthorized"
	ReasonEventStale           ReasonCode = "event-stale"
	ReasonEventTimeout         ReasonCode = "event-timeout"
	ReasonToolNotAdmitted      ReasonCode = "tool-not-admitted"
	ReasonApprovalNotAdmitted  ReasonCode = "approval-not-admitted"
	ReasonProviderUnavailable  ReasonCode = "provider-unavailable"
	ReasonCancelled            ReasonCode = "cancelled"
	ReasonUnknown              ReasonCode = "unknown"
)

var reasonCodeValues = []ReasonCode{
	ReasonCompleted,
	ReasonPolicyDenied,
	ReasonBindingMissing,
	ReasonBindingStale,
	ReasonBindingMismatch,
	ReasonBindingExpired,
	ReasonBindingRevoked,
	ReasonProfileDisabled,
	ReasonProfileMismatch,
	ReasonBudgetExhausted,
	ReasonUsageMissing,
	ReasonUsageMalformed,
	ReasonUsageOverflow,
	ReasonUsageConflict,
	ReasonSessionFenceMismatch,
	ReasonSessionLost,
	ReasonEventMalformed,
	ReasonEventDuplicate,
	ReasonEventReordered,
	ReasonEventOversized,
	ReasonEventUnauthorized,
	ReasonEventStale,
	ReasonEventTimeout,
	ReasonToolNotAdmitted,
	ReasonApprovalNotAdmitted,
	ReasonProviderUnavailable,
	ReasonCancelled,
	ReasonUnknown,
}

func (ReasonCode) values() []ReasonCode { return reasonCodeValues }

// String is the code as it is on the wire.
func (c ReasonCode) String() string { return string(c) }

// MarshalText is the code as it is on the wire; an error for one that the contract does not have.
func (c ReasonCode) MarshalText() ([]byte, error) {
	if _, ok := known[ReasonCode](string(c)); !ok {
		return nil, fmt.Errorf("%.64q is no reason code", string(c))
	}
	return []byte(c), nil
}

// UnmarshalText reads a code; an error, and c unchanged, for one that the contract does not have.
func (c *ReasonCode) UnmarshalText(text []byte) error {
	code, ok := known[ReasonCode](string(text))
	if !ok {
		return fmt.Errorf("%.64q is no reason code", string(text))
	}
	*c = code
	return nil
}
