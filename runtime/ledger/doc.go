// Package ledger keeps the durable facts of turns: what was asked, what was set aside for it, that an
// adapter was called, how it ended and what it cost. It decides, in one atomic step, which of several
// equal requests runs; and it remembers what was admitted and withdrawn.
//
// [Store] is what a server needs, [Reader] what somebody needs who only looks. [NewMemory] is a store
// for one process's lifetime; runtime/ledger/sqlite keeps the facts in a file. Any store passes
// ledgertest.Exercise.
//
// The states of a turn, what is committed when, and how long anything is kept, are drawn in
// docs/ledger.md. The contract is external-runtime.md (idempotency, settlement, replay and recovery)
// and, for claims, keiki.md (duplicates of a turn id).
//
// # The bargain
//
// After nil the fact is committed, and survives the death of the process as far as the store is
// durable. After an error nothing of the call is, whatever the error. A call whose context is over
// before its turn to be written has come returns the context's error; once it is being written it is
// finished, so that no answer is ever in doubt.
//
// The time is an argument of each call. It is kept to the microsecond, in UTC; the zero time means
// none. Rows have no wire types: a document is the caller's bytes, kept as they are. What a call is
// given it does not keep or change beyond its return, and what it returns is the caller's.
//
// # What is in the rows
//
// Refs, digests, counters, codes and times. Two columns hold content: the recorded lines of a [Part]
// and the content of a [Product]. Both have a time until which they are kept, and [Store.Sweep]
// forgets them. Neither lists nor exports show them.
package ledger
