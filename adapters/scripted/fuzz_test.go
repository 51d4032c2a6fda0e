package scripted_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/adapters/scripted"
)

// Any line gives a step or an error, never both, neither or a panic; and a step only what JSON is.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		`{"text":"…","repeat":3,"every":"10ms"}`, `{"stamp":true,"repeat":2,"every":"1ms"}`, `{"bytes":"8J+Y"}`,
		`{"paragraph":"a"}`, `{"status":"…"}`, `{"sleep":"250ms"}`, `{"stall":"2s"}`, `{"block":true}`,
		`{"usage":{"max_tokens":3,"max_cost_micros":1,"max_wall_time_ms":1,"max_steps":1},"fidelity":"authoritative"}`,
		`{"tool":{"ref":"r","schema":"s","input":{"a":[1]}}}`, `{"question":{"schema":"s","question":{}}}`, `{"event":{"a":1}}`,
		`{"remember":{"key":"k","value":1E+2}}`, `{"recall":"k"}`, `{"show":"turn"}`, `{"arrivals":"2s"}`, `{"error":"…"}`,
		`{"unavailable":"…","temporary":true}`, `{"panic":"…"}`, `{"exit":3}`,
		`{}`, `null`, `"text"`, `{"text":null}`, `{"text":"a","text":"b"}`, `{"text":"\ud800"}`, "{\"text\":\"\xff\"}", `{"":{"":{}}}`,
		`{"usage":null}`, ` { "usage" : { "max_steps" : null } } `, `{"text":"a"}{}`, `[[[[`, `{"remember":{"key":"k","value":}}`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		name, ok, err := scripted.Compile(line)
		if ok != (err == nil) || (name != "") != ok {
			t.Fatalf("%q: step %q (%v) and error %v", line, name, ok, err)
		}
		if ok && (!json.Valid([]byte(line)) || !strings.HasPrefix(strings.TrimLeft(line, " \t\r\n"), "{")) {
			t.Fatalf("%q is a step %q and no JSON object", line, name)
		}
		if err != nil && !utf8.ValidString(err.Error()) {
			t.Fatalf("%q: the error %q is not valid UTF-8", line, err)
		}
	})
}

// Any message ends with a result; steps that wait or end the process are left out.
func FuzzMessage(f *testing.F) {
	f.Add("script:\n{\"text\":\"a\"}\r\n\n{\"error\":\"b\"}")
	f.Add("script:\n{\"tool\":{\"ref\":\"r\",\"schema\":\"s\",\"input\":{}}}")
	f.Add("script:\n{\"recall\":\"k\"}\n{\"show\":\"history\"}\n{\"usage\":{}}")
	f.Add("script: \nhello")
	f.Fuzz(func(t *testing.T, message string) {
		for _, wait := range []string{"sleep", "stall", "every", "repeat", "block", "panic", `\u`} {
			if strings.Contains(message, wait) {
				t.Skip()
			}
		}
		turn := adaptertest.NewTurn(message)
		turn.Arrivals = adaptertest.Arrive()
		res := adaptertest.Run(t.Context(), scripted.New(scripted.Config{}), turn)
		if p, ok := errors.AsType[*adaptertest.PanicError](res.Err); ok {
			t.Fatalf("%q: %v\n%s", message, p, p.Stack)
		}
	})
}
