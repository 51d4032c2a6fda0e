// Package lowkey serves Lowkey's external turn protocol, version 1: a turn request comes in, flushed
// NDJSON events go out. [New] makes the http.Handler of one endpoint, which may host several plugins.
//
// A turn's way: [Handler.ServeHTTP] checks the request in the order that the protocol page gives
// (method, caller, media type, size, content, plugin), makes an [adapters.Turn] of it and hands that to
// the engine; the engine's log is written to the connection. Every refusal is one NDJSON error event.
package lowkey
