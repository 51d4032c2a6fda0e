// Package external is agent.external-runtime, version 1, as it is on the wire: the types of its
// documents (turn request, event, turn outcome, profile, binding, product) and of the classification
// label they carry, decoders that are as fast as they are strict, digests over canonical JSON, and the
// JSON Schemas, which are generated from the types.
//
// [ParseTurnRequest] is what a server calls for each turn, [ParseProfile] and [ParseBinding] when a
// document is to be admitted, the others when a stream or a document of a runtime is read. Each refuses
// exactly what the schema of its document and the rules for JSON below refuse; [Explain] then lists all
// that is wrong. [Grammar] holds the events of one stream to their order. [Event.Append] and
// [Outcome.Append] write.
//
// The rules for JSON, beyond those of [schema.Check]: an escaped surrogate must have its other half; a
// number must not overflow a double; and a number that is an integer, however it is spelled, must lie
// within ±(2^53-1), except inside the input of a tool request and inside an operator question, whose
// bytes are passed on as they are (external-runtime.md, Settled readings). No document has fields that
// are not in its schema, at any depth.
//
// The contract is the family of agent.external-runtime schemas by Orbiplex; what they leave open is
// settled in Backline's page external-runtime.md.
package external

//go:generate go run github.com/backline-dev/backline/internal/schemagen/gen -external .
