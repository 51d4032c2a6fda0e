// Package testhost plays the platforms that send turns: for the command's chat, and for tests.
//
// A [Lowkey] sends turns as Lowkey's external turn protocol has them and reads what comes back, with
// the time at which each event arrived and what is wrong with it. A [Conversation] keeps a session's
// transcript, and sends the window of it that the platform would.
package testhost
