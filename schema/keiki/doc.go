// Package keiki is Keiki's external harness, version 1, as it is on the wire: what the platform sends,
// read by decoders that are as fast as they are strict; what is sent to its turn API; and published
// JSON Schemas, which are generated from the types.
//
// [ParseRequest] is what a server calls for each push whose signature holds; [AgentID] finds out, before
// that, whose secret to check it with. [ParseClaim] and [ParseForward] read what the inbox and the relay
// hand out, [ParseArrivals], [ParseLease] and [ParseFault] what the turn API answers.
//
// Everywhere unknown fields are accepted, and an optional field may be null, which is as if it were
// absent. All else is refused: a key twice in an object at any depth, invalid UTF-8, a byte order mark,
// more than 64 arrays and objects open at once, anything after the value, a field of another type. An
// escaped surrogate without its other half becomes U+FFFD.
//
// The contract is Keiki's page "External harness"; what it leaves open is settled in Backline's page
// keiki.md.
package keiki

//go:generate go run github.com/backline-dev/backline/internal/schemagen/gen -keiki .
