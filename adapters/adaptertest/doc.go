// Package adaptertest tests adapters without a server.
//
// [Run] plays one turn and returns what the adapter did with it:
//
//	res := adaptertest.Run(t.Context(), MyAdapter{}, adaptertest.NewTurn("hello"))
//	if res.Err != nil || res.Text() != "hello yourself" { … }
//
// A [Turn] is an adapters.Turn whose fields a test may set before it runs it, together with the
// host's part: what tools and operators answer, which messages arrive meanwhile. A [Session] plays
// several turns of one conversation. [Exercise] is a suite of cases that every adapter passes;
// [Suite.External] adds those of agent.external-runtime, and [Result.CheckExternal] holds one turn to it.
//
// What the engine guarantees is true here as well: characters that are split between chunks are
// joined, bytes that are no character become U+FFFD, writes fail with adapters.ErrTurnOver once the
// turn is over, a panic ends the turn and not the process, and an adapter that ignores its
// cancellation is abandoned after a grace time. There are no clocks of the engine's own (first
// output, silence, heartbeat): end the context instead.
//
// The package imports testing; only tests import it.
package adaptertest
