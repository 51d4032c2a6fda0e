package cli

import "github.com/backline-dev/backline/schema/external"

// advice is what a host does about a turn that ended so: the last column of the table of reason codes in
// docs/external-runtime.md, which a test compares.
var advice = map[external.Status]map[external.ReasonCode]string{
	external.StatusRefused: {
		external.ReasonPolicyDenied:         "send what the binding allows, or have another one admitted; the server's log names the field",
		external.ReasonBindingMissing:       "have the operator admit it",
		external.ReasonBindingStale:         "read the binding anew, then again",
		external.ReasonBindingMismatch:      "use the binding as it is admitted here; the server's log names the field",
		external.ReasonBindingExpired:       "have a new generation admitted",
		external.ReasonBindingRevoked:       "stop using it; only an operator's PUT lifts it",
		external.ReasonProfileDisabled:      "stop using it; only an operator's PUT lifts it",
		external.ReasonProfileMismatch:      "have profile and binding admitted that fit",
		external.ReasonBudgetExhausted:      "reserve less",
		external.ReasonSessionFenceMismatch: "cancel the suspended turn, then again",
		external.ReasonSessionLost:          "read the turn's outcome, then again",
		external.ReasonEventUnauthorized:    "read the turn: it was answered, or has ended",
		external.ReasonEventTimeout:         "again, with a later deadline",
		external.ReasonToolNotAdmitted:      "admit a mediated profile, or the tool",
		external.ReasonApprovalNotAdmitted:  "admit a mediated profile",
	},
	external.StatusFailed: {
		external.ReasonBudgetExhausted:     "reserve more, or give up",
		external.ReasonUsageMissing:        "have the adapter report tokens and cost, once; with usage/fidelity estimated it need not",
		external.ReasonUsageMalformed:      "mend the adapter",
		external.ReasonUsageOverflow:       "mend the adapter",
		external.ReasonUsageConflict:       "mend the adapter: it reports once",
		external.ReasonSessionLost:         "again, if it is still wanted",
		external.ReasonEventMalformed:      "mend the adapter: the error that its call returned says what is wrong",
		external.ReasonEventDuplicate:      "mend the adapter",
		external.ReasonEventReordered:      "mend the adapter",
		external.ReasonEventOversized:      "raise the limits, or ask for less",
		external.ReasonEventUnauthorized:   "mend the adapter",
		external.ReasonEventStale:          "again, in a new session",
		external.ReasonEventTimeout:        "again: it is retryable",
		external.ReasonProviderUnavailable: "again if retryable; else have the runtime's operator look at the adapter's error",
	},
	external.StatusUnknown: {
		external.ReasonUnknown: "reconcile: it may have acted. It is never run again",
	},
}

// withAdvice is a reason code, and what to do about it where there is something to do.
func withAdvice(status external.Status, reason external.ReasonCode) string {
	if a := advice[status][reason]; a != "" {
		return string(reason) + " (" + a + ")"
	}
	return string(reason)
}
