// Package adapters is the contract between Backline and the code that answers turns.
//
// An [Adapter] reads a [Turn] and writes to a [Writer]; returning nil ends the turn well, returning
// an error ends it as failed. The same adapter serves every protocol. What a protocol cannot do is
// a typed error ([ErrNotSupported]), so that an adapter can tell and carry on.
//
// This package knows nothing of wires, sessions' storage or HTTP, and imports only the standard
// library. Adapters that come with Backline are one folder each below it; the test kit is
// adapters/adaptertest.
package adapters
