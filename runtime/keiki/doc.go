// Package keiki hosts adapters behind Keiki's external harness: a turn comes in signed, by push ([Handler]),
// through a relay ([Relay]) or from an inbox ([Inbox]), and is answered through the platform's turn API.
// The contract is Keiki's page "External harness"; what it leaves open is settled in keiki.md.
//
// # A turn's way
//
//	Handler.ServeHTTP   raw body → signature → wire.Request → claim of the turn id → 202
//	runner.begin        engine.Start, with the sender attached; the run goes on without its request
//	sink                what the adapter says goes into the turn's log as plain text
//	sender              reads the log, cuts messages, POSTs them one after the other
//	sink.Settle         the adapter has returned: the last message, then the completion
//
// A turn's id is claimed in the ledger before it is accepted, so it runs once however often it is sent.
// The key of a message depends on turn id and index alone, so it is delivered once however often the
// turn runs.
//
// # Secrets
//
// Tokens, API keys and signing secrets are [secret.Text]. They go to the origin of the turn's apiBase
// and nowhere else, no redirect is followed, and nothing that the platform answers reaches a log but
// its status and its code.
package keiki
