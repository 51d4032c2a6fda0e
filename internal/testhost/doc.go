// Package testhost plays the platforms that send turns: for the command's chat, and for tests.
//
// A [Lowkey] sends turns as Lowkey's external turn protocol has them and reads what comes back, with
// the time at which each event arrived and what is wrong with it. A [Conversation] keeps a session's
// transcript, and sends the window of it that the platform would.
//
// An [External] plays the other side of agent.external-runtime: it makes requests with their digests,
// answers what a turn asks ([Observe]), cancels, inspects, fetches products, and admits what the turns run
// under. [External.Run] of the same request again is a replay.
//
// A [Keiki] is the platform of that name: it dispatches signed turns, serves the turn API to the app that
// answers them, and holds against it what it may not do.
package testhost
