// Package ndjson writes and reads streams of newline-delimited JSON.
//
// Writing is a [Log]: the append-only record of one turn's encoded lines. One side appends; whoever
// reads it (the host's connection, a second attachment, a replay) is a [Tail], which is only an offset
// into it. A line appended while the reader is caught up leaves at once; lines that follow close
// behind it are gathered into fewer and larger writes; none waits for a timer.
//
// Reading is [Lines]: an iterator with no limit to a line but the one given.
//
// [AppendString] encodes JSON strings by appending.
package ndjson
