// Package lowkey is Lowkey's external turn protocol, version 1, as it is on the wire: the types of a
// request and of an event, a decoder that is as fast as it is strict, and the published JSON Schema,
// which is generated from the types.
//
// [Parse] is what a server calls for each turn. It reads the request in one pass and refuses exactly
// what the schema refuses, and what [schema.Check] refuses. [Explain] lists all that is wrong with a
// refused request, by the schema. [ParseEvent] and [Grammar] read the other direction: the lines of a
// response.
//
// The contract is Lowkey's page "External turn protocol"; what it leaves open is settled in Backline's
// page lowkey.md.
package lowkey

//go:generate go run github.com/backline-dev/backline/internal/schemagen/gen external-turn-protocol.schema.json
