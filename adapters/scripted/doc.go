// Package scripted is an adapter without a model: a deterministic stand-in for trying out hosts, and
// for demonstrations, load and fault tests.
//
// It echoes the message (of a turn request of agent.external-runtime the first text part), unless that
// begins with the line "script:". Then each further line is one step, a JSON object, and the steps run in
// order:
//
//	script:
//	{"status":"thinking"}
//	{"text":"tick ","repeat":3,"every":"10ms"}
//	{"error":"out of ticks"}
//
// The steps are those of scripted-adapter.md:
//
//	{"text":"…"}                                one text chunk
//	{"text":"…","repeat":N,"every":"10ms"}      N chunks, one each every; 0s: as fast as they are taken
//	{"stamp":true,"repeat":N,"every":"10ms"}    N chunks: Unix time in nanoseconds at emission, a space
//	{"bytes":"<base64>"}                        one chunk of raw bytes
//	{"paragraph":"…"}                           one text chunk that ends with a blank line
//	{"status":"…"}                              a working status
//	{"sleep":"250ms"}                           waits; ends when cancelled
//	{"stall":"2s"}                              waits, also when cancelled
//	{"block":true}                              waits until cancelled
//	{"usage":{"max_tokens":3,"max_cost_micros":1,"max_wall_time_ms":1,"max_steps":1},"fidelity":"…"}
//	{"tool":{"ref":"…","schema":"…","input":{…}}}
//	{"question":{"schema":"…","question":{…}}}  both write admitted:<receipt> or refused:<reason>
//	{"event":{…}}                               a candidate event, as it is
//	{"remember":{"key":"…","value":…}}          stores a session value
//	{"recall":"key"}                            one text chunk: the value as JSON, or null
//	{"show":"history"}, {"show":"turn"}         one text chunk: what the adapter was told, as JSON
//	{"arrivals":"2s"}                           takes arrivals; one text chunk each: arrival:<text>
//	{"error":"…"}                               ends with this error
//	{"unavailable":"…","temporary":true}        ends with a provider failure
//	{"panic":"…"}                               panics
//	{"exit":3}                                  ends the process; refused unless [Config.AllowExit]
//
// # Lines
//
// A line ends with \n or \r\n; the last one needs no end. Lines of nothing but spaces and tabs mean
// nothing, and count. Steps are read when their turn comes: a line that is no step ends the turn with a
// public error that names its number (the line "script:" is number 1), after the steps above
// it have run. No step is a JSON object with an unknown or a second step in it, an unknown or repeated
// member, a value of the wrong type, a duration that time.ParseDuration refuses or that is negative, or bytes
// that are not padded standard base64. Values that are passed on (input, question, event, value, and those of
// usage) are only held to be JSON, and keep their bytes.
//
// # Details that the table leaves open
//
//   - repeat may be 0. The first chunk of a paced step comes at once, and the step ends with its last
//     chunk. A reader that is too slow for the pace gets no burst afterwards.
//   - Cancellation ends sleep, block, arrivals and the pauses of a paced step with the context's cause.
//     The other steps run and learn of it from the Writer: so a script can write after a stall.
//   - usage with an axis that is absent or null leaves that axis unmeasured; {"usage":{}} reports
//     that nothing was measured.
//   - arrivals ends early once no more can come. A batch of several messages gives a chunk for each.
//   - A tool, a question, an event or arrivals under a protocol without them ends the turn with the
//     Writer's own error.
//
// # Usage
//
// A script that has reported no usage by the time it ends reports what can be counted honestly: one
// step, as many tokens as non-empty chunks were taken, no cost. It does so also where it ends with an error, for
// what was written was written. A panic reports nothing.
package scripted
