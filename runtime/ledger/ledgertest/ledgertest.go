// Package ledgertest holds what every [ledger.Store] must pass. A store's own tests call [Exercise];
// what only one kind of store can show (files, processes, speed) stays in that store's tests.
package ledgertest

import (
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
)

// Options tell what a store cannot do. What is left out is skipped aloud.
type Options struct {
	// Reopen ends a store and opens another on what it kept. Nil is for stores that keep nothing
	// beyond their own life.
	Reopen func(t testing.TB, s ledger.Store) ledger.Store
	// Sequences is how many random sequences of calls are compared with a model; 0 means 1,000.
	Sequences int
	// Rounds is how often each race is run; 0 means 40.
	Rounds int
}

// Open opens an empty store with these limits. It closes it at the end of the test.
type Open func(t testing.TB, l ledger.Limits) ledger.Store

// Exercise runs the suite. The tests are those of docs/ledger.md: each transition of its diagram, each
// one that is not in it, what is committed together, races, recovery, retention, lists.
func Exercise(t *testing.T, open Open, o Options) {
	t.Helper()
	if o.Sequences == 0 {
		o.Sequences = 1000
	}
	if o.Rounds == 0 {
		o.Rounds = 40
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, Open, Options)
	}{
		{"Life", testLife},
		{"LifeInOneStep", testLifeInOneStep},
		{"Release", testRelease},
		{"Refuse", testRefuse},
		{"RefuseContinue", testRefuseContinue},
		{"SettleWithoutPart", testSettleWithoutPart},
		{"SeveralAwaited", testSeveralAwaited},
		{"Transitions", testTransitions},
		{"FaultG1", testFaultG1},
		{"FaultG2", testFaultG2},
		{"RacingContinues", testRacingContinues},
		{"RacingSettlements", testRacingSettlements},
		{"RacingStarts", testRacingStarts},
		{"FaultE5", testFaultE5},
		{"FaultG3", testFaultG3},
		{"RecoverEndings", testRecoverEndings},
		{"RecoverStopsAndGoesOn", testRecoverStopsAndGoesOn},
		{"FaultL2", testFaultL2},
		{"Sessions", testSessions},
		{"SessionWithTransition", testSessionWithTransition},
		{"Admissions", testAdmissions},
		{"Claims", testClaims},
		{"ClaimsBounded", testClaimsBounded},
		{"Sweep", testSweep},
		{"Lists", testLists},
		{"Export", testExport},
		{"Invalid", testInvalid},
		{"TooLarge", testTooLarge},
		{"Names", testNames},
		{"Bytes", testBytes},
		{"Times", testTimes},
		{"Copies", testCopies},
		{"Context", testContext},
		{"Close", testClose},
		{"Reopen", testReopen},
		{"Model", testModel},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open, o) })
	}
}
