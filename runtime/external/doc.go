// Package external serves agent.external-runtime, version 1: a host sends turn requests, a turn runs
// under an admitted binding and profile and within a budget, and flushed NDJSON events go out, the last
// of which is the turn's outcome. What must outlive the process is in a [ledger.Store].
//
// # A request's way
//
//	Handler.turns   authentication, body, schema, input digest; then replay, join or 409; then the checks
//	checks          binding, profile, policy, deadline, session, budget: a refusal is a stream of one line
//	turn            a turn that runs: its parts, what it asked the host, its place in the engine
//	sink.go         what the engine says becomes events: sequence, limits, candidates
//	settle.go       outcome and charge, committed before the last line leaves
//
// # Parts
//
// A turn's stream is cut where the adapter awaits an observation: each request of the turn (its start,
// and every continue) has one part of it. While anything is outstanding no part is open, so a host that
// reads each stream to its end always finds a request to answer. What the adapter emits meanwhile is
// the beginning of the next part.
//
// The last lines of a part, which are what it asks for or the turn's outcome, leave once they are committed.
// What comes before them leaves at once.
//
// The log of the running turn has all parts; the ledger has those that ended. A request that comes again
// follows its part of the log while the turn runs, and gets the recorded bytes afterwards.
//
// # Locks
//
// Handler.mu guards the map of live turns and is held for map operations. turn.mu orders what changes a
// turn in the ledger (dispatch, suspension, continuation, settlement) and is held over those commits, but
// for the settlement's: from then on nobody else changes the turn, and that commit may take as long as the
// ledger is out of order. The lock of the turn's log guards the sink's state; it comes last and nothing
// blocks under it.
//
// The contract is Backline's page external-runtime.md with the schemas of the family.
package external
