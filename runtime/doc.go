// Package runtime is the turn engine: it runs one turn from an [adapters.Turn] and a [Sink] to an
// [Outcome]. It owns the session's queue and context, limits of time, heartbeats, back-pressure,
// cancellation with a cause, panics, adapters that ignore their end, drain, repeats of a turn, and the
// hooks. It knows nothing of wires: a protocol is a package below this one that makes turns of
// requests, gives the engine a [Sink] that encodes what happens, and serves the turn's log.
//
// # A turn's way through the engine
//
//	Engine.Start   one atomic step: is it a repeat? draining? busy? at capacity? else a Run
//	Stream.Serve   the host's connection: flushes the first line, then runs the turn
//	Run.launch     waits for the session, joins the history, calls the adapter
//	writer         what the adapter says → Sink → the turn's ndjson.Log → every connection
//	Run.finish     exactly once: session, registry, last line, hooks, log
//
// All that limits time is one timer per turn (Run.watch), which costs nothing per event.
//
// A turn costs no goroutine where its connection is its own (HTTP/1): the adapter runs on the one that
// serves its request. Over HTTP/2 it runs on one beside that. An adapter that outlives its grace is
// counted as abandoned; its turn ends without it, and so does the response to its host.
package runtime
