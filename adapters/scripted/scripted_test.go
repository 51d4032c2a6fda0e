package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/adapters/scripted"
)

func TestMain(m *testing.M) {
	if code := os.Getenv("SCRIPTED_TEST_EXIT"); code != "" {
		adaptertest.Run(context.Background(), scripted.New(scripted.Config{AllowExit: true}),
			adaptertest.NewTurn("script:\n{\"exit\":"+code+"}"))
		os.Exit(99) // which the step should have prevented
	}
	goleak.VerifyTestMain(m)
}

// script makes a message of steps.
func script(steps ...string) string { return "script:\n" + strings.Join(steps, "\n") }

func run(t *testing.T, turn *adaptertest.Turn) *adaptertest.Result {
	t.Helper()
	return adaptertest.Run(t.Context(), scripted.New(scripted.Config{}), turn)
}

func play(t *testing.T, steps ...string) *adaptertest.Result {
	t.Helper()
	return run(t, adaptertest.NewTurn(script(steps...)))
}

func events(res *adaptertest.Result) []string {
	var list []string
	for _, e := range res.Events {
		list = append(list, e.String())
	}
	return list
}

// counted is the usage event of a script that reports none by itself.
func counted(chunks int) string {
	return fmt.Sprintf(`usage "tokens %d, cost 0, wall time unmeasured, steps 1"`, chunks)
}

func TestExercise(t *testing.T) {
	adaptertest.Suite{
		LongMessage: script(`{"text":"x"}`, `{"block":true}`),
	}.Exercise(t, func() adapters.Adapter { return scripted.New(scripted.Config{}) })
}

// The other ways to be busy when the end comes.
func TestExerciseLongSteps(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{
		"sleep":    script(`{"sleep":"1h"}`),
		"paced":    script(`{"text":"x","repeat":1000000,"every":"1h"}`),
		"ahead":    script(`{"text":"x","repeat":9223372036854775807}`),
		"stamps":   script(`{"stamp":true,"repeat":9223372036854775807}`),
		"in place": script(`{"text":"","repeat":9223372036854775807,"every":"1ms"}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite := adaptertest.Suite{LongMessage: message, Except: map[adaptertest.Case]string{}}
			for _, c := range []adaptertest.Case{adaptertest.Answers, adaptertest.EmptyMessage, adaptertest.UsageNumbers, adaptertest.WritesFail, adaptertest.ConcurrentTurns} {
				suite.Except[c] = "the same as in TestExercise"
			}
			suite.Exercise(t, func() adapters.Adapter { return scripted.New(scripted.Config{}) })
		})
	}
}

func TestNotAScriptIsEchoed(t *testing.T) {
	t.Parallel()
	for _, message := range []string{
		"hello", "", "script", "script: \n{\"error\":\"x\"}", " script:\n{\"error\":\"x\"}", "Script:\n{\"error\":\"x\"}",
		"script:{\"error\":\"x\"}", "script:\r{\"error\":\"x\"}", "\nscript:\n{\"error\":\"x\"}",
	} {
		res := run(t, adaptertest.NewTurn(message))
		want := []string{"text " + strconv.Quote(message), counted(1)}
		if message == "" {
			want = []string{counted(0)}
		}
		if diff := cmp.Diff(want, events(res)); diff != "" || res.Err != nil {
			t.Errorf("%q: error %v, events (-want +got):\n%s", message, res.Err, diff)
		}
	}
}

// Of a turn request with several text parts the first is the message; elsewhere all of them are.
func TestSeveralTextParts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		protocol adapters.Protocol
		parts    []string
		want     string
		takes    bool
	}{
		{adapters.ExternalRuntime, []string{script(`{"text":"a"}`), "no step"}, "a", false},
		{adapters.ExternalRuntime, []string{script(`{"arrivals":"1ns"}`), "no step"}, "", true},
		{adapters.ExternalRuntime, []string{"hello", script(`{"text":"a"}`)}, "hello", false},
		{adapters.ExternalRuntime, []string{"hello", "world"}, "hello", false},
		{adapters.Keiki, []string{"hello", "world"}, "hello\n\nworld", false},
		{adapters.Keiki, []string{script(`{"text":"a"}`), `{"text":"b"}`}, "ab", false},
	} {
		turn := adaptertest.NewTurn(strings.Join(tt.parts, "\n\n"))
		turn.Protocol = tt.protocol
		for _, p := range tt.parts {
			turn.Messages = append(turn.Messages, adapters.Inbound{Text: p})
		}
		a := scripted.New(scripted.Config{})
		if takes := a.TakesArrivals(&turn.Turn); takes != tt.takes {
			t.Errorf("%q: takes arrivals: %t", tt.parts, takes)
		}
		if tt.takes {
			continue
		}
		if res := run(t, turn); res.Err != nil || res.Text() != tt.want {
			t.Errorf("%s %q: text %q, error %v, want %q", tt.protocol, tt.parts, res.Text(), res.Err, tt.want)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		message, text string
		err           string
	}{
		"nothing behind":       {message: "script:"},
		"nothing but an end":   {message: "script:\n"},
		"crlf":                 {message: "script:\r\n{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n", text: "ab"},
		"mixed ends":           {message: "script:\n{\"text\":\"a\"}\r\n{\"text\":\"b\"}", text: "ab"},
		"empty lines":          {message: "script:\n\n{\"text\":\"a\"}\n\r\n \t \n{\"text\":\"b\"}\n\n", text: "ab"},
		"white space in lines": {message: "script:\n \t{ \"text\" : \"a\" } \n", text: "a"},
		"other separators":     {message: "script:\n{\"text\":\"a\u2028b\u0085c\"}", text: "a\u2028b\u0085c"},
		"empty lines count":    {message: "script:\n\n\r\n{\"text\":\"a\"}\nno\n", text: "a", err: "script line 5: "},
	} {
		res := run(t, adaptertest.NewTurn(tt.message))
		if res.Text() != tt.text {
			t.Errorf("%s: text %q, want %q", name, res.Text(), tt.text)
		}
		if tt.err == "" && res.Err != nil || tt.err != "" && (res.Err == nil || !strings.HasPrefix(res.Err.Error(), tt.err)) {
			t.Errorf("%s: error %v, want %q", name, res.Err, tt.err)
		}
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps []string
		want  []string // events, without the usage that is counted for it
	}{
		"text":              {[]string{`{"text":"a <b> & \u00e9\n"}`}, []string{`text "a <b> & é\n"`}},
		"empty text":        {[]string{`{"text":""}`}, nil},
		"repeat":            {[]string{`{"text":"a","repeat":3}`}, []string{`text "a"`, `text "a"`, `text "a"`}},
		"repeat in front":   {[]string{`{"repeat":2,"every":"0s","text":"a"}`}, []string{`text "a"`, `text "a"`}},
		"repeat 0":          {[]string{`{"text":"a","repeat":0}`}, nil},
		"nothing for ever":  {[]string{`{"text":"","repeat":9223372036854775807}`}, nil},
		"paragraph":         {[]string{`{"paragraph":"a"}`, `{"paragraph":"b"}`}, []string{`text "a\n\n"`, `text "b\n\n"`}},
		"bytes":             {[]string{`{"bytes":"aGVsbG8="}`}, []string{`text "hello"`}},
		"no bytes":          {[]string{`{"bytes":""}`}, nil},
		"status":            {[]string{`{"status":"thinking"}`, `{"text":"a"}`, `{"status":""}`}, []string{`status "thinking"`, `text "a"`, `status ""`}},
		"recall nothing":    {[]string{`{"recall":"k"}`}, []string{`text "null"`}},
		"remember":          {[]string{`{"remember":{"key":"k","value":{"n":[1E+2,1.10, 123456789012345678901234567890]}}}`, `{"recall":"k"}`}, []string{`text "{\"n\":[1E+2,1.10, 123456789012345678901234567890]}"`}},
		"remember null":     {[]string{`{"remember":{"value":1,"key":""}}`, `{"recall":""}`, `{"remember":{"key":"","value":null}}`, `{"recall":""}`}, []string{`text "1"`, `text "null"`}},
		"no history":        {[]string{`{"show":"history"}`}, []string{`text "[]"`}},
		"lone surrogate":    {[]string{`{"text":"a\ud83dz"}`}, []string{"text \"a\uFFFDz\""}},
		"duplicates within": {[]string{`{"remember":{"key":"k","value":{"a":1,"a":2}}}`, `{"recall":"k"}`}, []string{`text "{\"a\":1,\"a\":2}"`}},
	} {
		res := play(t, tt.steps...)
		want := append(slices.Clone(tt.want), counted(len(res.Chunks)))
		if diff := cmp.Diff(want, events(res)); diff != "" || res.Err != nil {
			t.Errorf("%s: error %v, events (-want +got):\n%s", name, res.Err, diff)
		}
	}
}

func TestFaultA4RawBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		steps []string
		want  string
	}{
		{[]string{`{"bytes":"ww=="}`, `{"bytes":"qQ=="}`}, "é"},
		{[]string{`{"bytes":"/w=="}`}, "\uFFFD"},
		{[]string{`{"bytes":"8J+Y"}`}, "\uFFFD\uFFFD\uFFFD"},
	} {
		if res := play(t, tt.steps...); res.Text() != tt.want || res.Err != nil {
			t.Errorf("%s: text %q, error %v; want %q", tt.steps, res.Text(), res.Err, tt.want)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	raw := adapters.RawMeasure
	for name, tt := range map[string]struct {
		steps []string
		want  adapters.Usage
	}{
		"all": {
			[]string{`{"usage":{"max_tokens":3,"max_cost_micros":1,"max_wall_time_ms":7,"max_steps":2},"fidelity":"authoritative"}`},
			adapters.Usage{Tokens: raw("3"), CostMicros: raw("1"), WallTimeMS: raw("7"), Steps: raw("2"), Fidelity: adapters.Authoritative},
		},
		"absent and null axes": {
			[]string{`{"fidelity":"estimated","usage":{"max_tokens":null,"max_steps":1}}`},
			adapters.Usage{Steps: raw("1"), Fidelity: adapters.Estimated},
		},
		"nothing measured": {[]string{`{"text":"a"}`, `{"usage":{}}`}, adapters.Usage{}},
		"wrong values": {
			[]string{`{"usage":{"max_tokens":-1,"max_cost_micros":1.50,"max_wall_time_ms":123456789012345678901234567890,"max_steps":"many"},"fidelity":"guessed"}`},
			adapters.Usage{Tokens: raw("-1"), CostMicros: raw("1.50"), WallTimeMS: raw("123456789012345678901234567890"), Steps: raw(`"many"`), Fidelity: "guessed"},
		},
		"the last counts": {
			[]string{`{"usage":{"max_tokens":1,"max_steps":1}}`, `{"usage":{"max_tokens":2}}`},
			adapters.Usage{Tokens: raw("2"), Steps: raw("1")},
		},
		"counted": {
			[]string{`{"text":"a","repeat":3}`, `{"bytes":"ww=="}`, `{"text":""}`, `{"stamp":true}`, `{"status":"x"}`},
			adapters.Usage{Tokens: raw("5"), CostMicros: raw("0"), Steps: raw("1")},
		},
		"counted up to an error": {
			[]string{`{"text":"a"}`, `{"error":"no"}`, `{"usage":{"max_tokens":9}}`},
			adapters.Usage{Tokens: raw("1"), CostMicros: raw("0"), Steps: raw("1")},
		},
		"reported before an error": {
			[]string{`{"usage":{"max_tokens":9}}`, `{"text":"a"}`, `{"unavailable":"no"}`},
			adapters.Usage{Tokens: raw("9")},
		},
		"counted up to a bad line": {
			[]string{`{"text":"a"}`, `no step`},
			adapters.Usage{Tokens: raw("1"), CostMicros: raw("0"), Steps: raw("1")},
		},
		"nothing at a panic": {[]string{`{"text":"a"}`, `{"panic":"no"}`}, adapters.Usage{}},
	} {
		if diff := cmp.Diff(tt.want, play(t, tt.steps...).Usage, cmp.AllowUnexported(adapters.Measure{})); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", name, diff)
		}
	}
}

func TestEndings(t *testing.T) {
	t.Parallel()
	public := func(err error) string {
		if e, ok := errors.AsType[*adapters.PublicError](err); ok {
			return e.Message
		}
		return ""
	}
	if res := play(t, `{"text":"a"}`, `{"error":"Not today."}`, `{"text":"b"}`); public(res.Err) != "Not today." || res.Text() != "a" {
		t.Errorf("error step: error %#v, text %q", res.Err, res.Text())
	}
	for step, want := range map[string]adapters.Unavailable{
		`{"unavailable":"Overloaded.","temporary":true}`:  {Message: "Overloaded.", Temporary: true},
		`{"unavailable":"Overloaded.","temporary":false}`: {Message: "Overloaded."},
		`{"unavailable":""}`:                              {},
	} {
		res := play(t, `{"text":"a"}`, step, `{"text":"b"}`)
		e, ok := errors.AsType[*adapters.Unavailable](res.Err)
		if !ok || *e != want || res.Text() != "a" {
			t.Errorf("%s: error %#v, text %q", step, res.Err, res.Text())
		}
	}
	res := play(t, `{"text":"a"}`, `{"panic":"boom"}`, `{"text":"b"}`)
	if e, ok := errors.AsType[*adaptertest.PanicError](res.Err); !ok || e.Value != "boom" || res.Text() != "a" {
		t.Errorf("panic step: error %#v, text %q", res.Err, res.Text())
	}
	res = play(t, `{"text":"a"}`, `{"exit":3}`, `{"text":"b"}`)
	if message := public(res.Err); !strings.HasPrefix(message, "script line 3: exit is refused") || res.Text() != "a" {
		t.Errorf("exit step without leave: error %#v, text %q", res.Err, res.Text())
	}
}

func TestExitEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, want := range []int{0, 3, 255} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "SCRIPTED_TEST_EXIT="+strconv.Itoa(want))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
			t.Errorf("the process ended with %v, want %d\n%s", err, want, out)
		}
	}
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`text`:                         "not a JSON object: invalid character",
		`{"text":"a"`:                  "not a JSON object: unexpected end of JSON input",
		`{"text":"a"} {"text":"b"}`:    "not a JSON object: invalid character '{' after top-level value at byte 14",
		`{"text":"a",}`:                "not a JSON object: invalid character",
		`["text"]`:                     "not a JSON object but an array",
		`"text"`:                       "not a JSON object but a string",
		`12`:                           "not a JSON object but a number",
		`true`:                         "not a JSON object but true or false",
		`null`:                         "not a JSON object but null",
		`{}`:                           "an empty object is no step",
		`{"dance":true}`:               `no step is called "dance"`,
		`{"Text":"a"}`:                 `no step is called "Text"`,
		`{"repeat":2}`:                 `no step is called "repeat"`,
		`{"text":"a","status":"b"}`:    `"text" and "status" are two steps`,
		`{"text":"a","text":"b"}`:      `"text" is there twice`,
		`{"text":"a","t\u0065xt":"b"}`: `"text" is there twice`,
		`{"text":"a","color":"red"}`:   `"color" does not belong to "text"`,
		`{"paragraph":"a","repeat":2}`: `"repeat" does not belong to "paragraph"`,
		`{"sleep":"1s","every":"1s"}`:  `"every" does not belong to "sleep"`,
		`{"text":1}`:                   `"text" must be a string, not a number`,
		`{"text":null}`:                `"text" must be a string, not null`,
		`{"text":"a","repeat":-1}`:     `"repeat" must be a whole number from 0 to 9223372036854775807, not -1`,
		`{"text":"a","repeat":1.5}`:    `"repeat" must be a whole number`,
		`{"text":"a","repeat":"2"}`:    `"repeat" must be a number, not a string`,
		`{"text":"a","repeat":9223372036854775808}`:    `"repeat" must be a whole number`,
		`{"text":"a","every":10}`:                      `"every" must be a string, not a number`,
		`{"text":"a","every":"10"}`:                    `"every" must be a duration such as "250ms", not "10"`,
		`{"text":"a","every":"-1s"}`:                   `"every" must be a duration`,
		`{"stamp":false}`:                              `"stamp" must be true`,
		`{"stamp":"true"}`:                             `"stamp" must be true or false, not a string`,
		`{"block":false}`:                              `"block" must be true`,
		`{"bytes":"a"}`:                                `"bytes" must be padded standard base64, not "a"`,
		`{"bytes":"_w=="}`:                             `"bytes" must be padded standard base64`,
		`{"bytes":"/x=="}`:                             `"bytes" must be padded standard base64`,
		`{"bytes":"aGVs\nbG8="}`:                       `"bytes" must be padded standard base64`,
		`{"bytes":7}`:                                  `"bytes" must be a string`,
		`{"status":["a"]}`:                             `"status" must be a string, not an array`,
		`{"sleep":"soon"}`:                             `"sleep" must be a duration`,
		`{"sleep":""}`:                                 `"sleep" must be a duration`,
		`{"stall":"-2s"}`:                              `"stall" must be a duration`,
		`{"arrivals":2}`:                               `"arrivals" must be a string`,
		`{"usage":7}`:                                  `"usage" must be an object, not a number`,
		`{"usage":{"tokens":7}}`:                       `in "usage": "tokens" does not belong to "usage"`,
		`{"usage":{"max_steps":7,"max_steps":8}}`:      `in "usage": "max_steps" is there twice`,
		`{"usage":{},"fidelity":7}`:                    `"fidelity" must be a string`,
		`{"fidelity":"estimated"}`:                     `no step is called "fidelity"`,
		`{"tool":{"ref":"r","schema":"s"}}`:            `"input" is missing`,
		`{"tool":{"ref":"r","input":{}}}`:              `"schema" is missing`,
		`{"tool":{"schema":"s","input":{}}}`:           `"ref" is missing`,
		`{"tool":{"ref":"r","schema":"s","input":[]}}`: `"input" must be an object, not an array`,
		`{"question":{"schema":"s"}}`:                  `"question" is missing`,
		`{"question":{"question":{}}}`:                 `"schema" is missing`,
		`{"question":{"schema":"s","question":"?"}}`:   `"question" must be an object, not a string`,
		`{"event":"x"}`:                                `"event" must be an object, not a string`,
		`{"remember":{"key":"k"}}`:                     `"value" is missing`,
		`{"remember":{"value":1}}`:                     `"key" is missing`,
		`{"remember":{"key":1,"value":1}}`:             `"key" must be a string`,
		`{"recall":{"key":"k"}}`:                       `"recall" must be a string`,
		`{"show":"everything"}`:                        `"show" must be "history" or "turn", not "everything"`,
		`{"error":false}`:                              `"error" must be a string`,
		`{"unavailable":true}`:                         `"unavailable" must be a string`,
		`{"unavailable":"x","temporary":1}`:            `"temporary" must be true or false, not a number`,
		`{"panic":1}`:                                  `"panic" must be a string`,
		`{"exit":256}`:                                 `"exit" must be a whole number from 0 to 255, not 256`,
		`{"exit":"3"}`:                                 `"exit" must be a number`,
		`{"` + strings.Repeat("ä", 500) + `":1}`:       `no step is called "` + strings.Repeat("ä", 40) + `…"`,
		strings.Repeat("[", 100_000):                   "not a JSON object: ",
	} {
		res := play(t, `{"text":"before"}`, line, `{"text":"behind"}`)
		e, ok := errors.AsType[*adapters.PublicError](res.Err)
		if !ok || !strings.HasPrefix(e.Message, "script line 3: "+want) {
			t.Errorf("%.80s: error %v, want one of line 3: %s", line, res.Err, want)
			continue
		}
		if n := len([]rune(e.Message)); n > 200 {
			t.Errorf("%.80s: the message has %d characters", line, n)
		}
		if res.Text() != "before" {
			t.Errorf("%.80s: text %q, want that of the lines above", line, res.Text())
		}
	}
}

func TestToolsAndQuestions(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn(script(
		`{"tool":{"ref":"clock","schema":"clock.v1","input":{"zone": "UTC","n":1E+2}}}`,
		`{"tool":{"ref":"rocket","schema":"rocket.v1","input":{}}}`,
		`{"question":{"schema":"ask.v1","question":{"q":"sure?"}}}`,
		`{"tool":{"ref":"broken","schema":"","input":{}}}`,
		`{"text":"never"}`,
	))
	broken := errors.New("broken")
	turn.OnTool = func(_ context.Context, r adapters.ToolRequest) (adapters.Observation, error) {
		switch r.Ref {
		case "clock":
			return adapters.Observation{Admitted: true, Receipt: "receipt-1", Reason: "fine"}, nil
		case "broken":
			return adapters.Observation{}, broken
		}
		return adapters.Observation{Reason: "policy-denied", Receipt: "receipt-2"}, nil
	}
	turn.OnAsk = func(context.Context, adapters.Question) (adapters.Observation, error) {
		return adapters.Observation{Admitted: true}, nil
	}
	res := run(t, turn)
	want := []string{
		`tool "clock"`, `text "admitted:receipt-1"`,
		`tool "rocket"`, `text "refused:policy-denied"`,
		`question "ask.v1"`, `text "admitted:"`,
		`tool "broken"`, counted(3),
	}
	if diff := cmp.Diff(want, events(res)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if res.Err != broken { //nolint:errorlint // returned as it is, not wrapped
		t.Errorf("error %v, want the host's own", res.Err)
	}
	if got := res.Tools[0]; got.Schema != "clock.v1" || string(got.Input) != `{"zone": "UTC","n":1E+2}` {
		t.Errorf("the host was asked for %+v", got)
	}
	if got := res.Questions[0]; string(got.Question) != `{"q":"sure?"}` {
		t.Errorf("the operator was asked %s", got.Question)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	turn := adaptertest.NewTurn(script(`{"event":{"schema": "x","seq/no":1.0,"a":1,"a":2}}`, `{"event":{}}`, `{"text":"never"}`))
	refused := errors.New("refused")
	turn.OnCandidate = func(event json.RawMessage) error {
		if string(event) == "{}" {
			return refused
		}
		return nil
	}
	res := run(t, turn)
	if !errors.Is(res.Err, refused) || res.Text() != "" {
		t.Errorf("error %v, text %q", res.Err, res.Text())
	}
	if got, want := string(res.Candidates[0]), `{"schema": "x","seq/no":1.0,"a":1,"a":2}`; got != want {
		t.Errorf("event %s, want %s", got, want)
	}
}

func TestUnsupportedStepsReturnTheWritersError(t *testing.T) {
	t.Parallel()
	for step, feature := range map[string]string{
		`{"tool":{"ref":"r","schema":"s","input":{}}}`: "tool",
		`{"question":{"schema":"s","question":{}}}`:    "ask",
		`{"event":{}}`:      "candidate",
		`{"arrivals":"1h"}`: "arrivals",
	} {
		res := play(t, step, `{"text":"never"}`)
		if e, ok := errors.AsType[*adapters.UnsupportedError](res.Err); !ok || e.Feature != feature || res.Text() != "" {
			t.Errorf("%s: error %v, text %q", step, res.Err, res.Text())
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps []string
		at    []time.Duration // of each chunk
		took  time.Duration
	}{
		"sleep":    {[]string{`{"sleep":"250ms"}`, `{"text":"x"}`}, []time.Duration{250 * time.Millisecond}, 250 * time.Millisecond},
		"no sleep": {[]string{`{"sleep":"0s"}`, `{"text":"x"}`}, []time.Duration{0}, 0},
		"stall":    {[]string{`{"stall":"2s"}`, `{"text":"x"}`}, []time.Duration{2 * time.Second}, 2 * time.Second},
		"paced":    {[]string{`{"text":"x","repeat":3,"every":"10ms"}`, `{"sleep":"1s"}`}, []time.Duration{0, 10 * time.Millisecond, 20 * time.Millisecond}, 1020 * time.Millisecond},
		"once":     {[]string{`{"text":"x","every":"1h"}`}, []time.Duration{0}, 0},
		"unpaced":  {[]string{`{"text":"x","repeat":2,"every":"0s"}`}, []time.Duration{0, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var at []time.Duration
				turn := adaptertest.NewTurn(script(tt.steps...))
				turn.OnText = func(string) { at = append(at, time.Since(start)) }
				res := run(t, turn)
				if res.Err != nil || time.Since(start) != tt.took {
					t.Errorf("took %v, error %v; want %v", time.Since(start), res.Err, tt.took)
				}
				if diff := cmp.Diff(tt.at, at); diff != "" {
					t.Errorf("times of the chunks (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A reader that takes longer than the pace gets the next chunk when it is ready, without a burst.
func TestPaceOfASlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		turn := adaptertest.NewTurn(script(`{"text":"x","repeat":5,"every":"10ms"}`))
		turn.OnText = func(string) {
			at = append(at, time.Since(start))
			switch len(at) {
			case 2:
				time.Sleep(35 * time.Millisecond)
			case 4:
				time.Sleep(4 * time.Millisecond)
			}
		}
		res := run(t, turn)
		ms := time.Millisecond
		want := []time.Duration{0, 10 * ms, 45 * ms, 55 * ms, 65 * ms}
		if diff := cmp.Diff(want, at); diff != "" || res.Err != nil {
			t.Errorf("error %v, times of the chunks (-want +got):\n%s", res.Err, diff)
		}
	})
}

func TestStamps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		res := play(t, `{"stamp":true,"repeat":3,"every":"20ms"}`)
		var want []string
		for i := range 3 {
			want = append(want, fmt.Sprintf("%d ", start.Add(time.Duration(i)*20*time.Millisecond).UnixNano()))
		}
		if diff := cmp.Diff(want, res.Chunks); diff != "" || res.Err != nil {
			t.Errorf("error %v, chunks (-want +got):\n%s", res.Err, diff)
		}
	})
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps []string
		took  time.Duration
		over  bool // the error is that of a write which came too late
	}{
		"sleep":    {[]string{`{"sleep":"1h"}`, `{"text":"late"}`}, time.Second, false},
		"block":    {[]string{`{"block":true}`, `{"text":"late"}`}, time.Second, false},
		"paced":    {[]string{`{"text":"","repeat":100,"every":"3s"}`, `{"text":"late"}`}, time.Second, false},
		"stall":    {[]string{`{"stall":"2s"}`, `{"text":"late"}`}, 2 * time.Second, true},
		"remember": {[]string{`{"stall":"2s"}`, `{"remember":{"key":"k","value":1}}`}, 2 * time.Second, true},
		"usage":    {[]string{`{"stall":"2s"}`}, 2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(adapters.CauseStopped) })
				start := time.Now()
				turn := adaptertest.NewTurn(script(tt.steps...))
				turn.Grace = time.Minute
				res := adaptertest.Run(ctx, scripted.New(scripted.Config{}), turn)
				if !errors.Is(res.Err, adapters.CauseStopped) || errors.Is(res.Err, adapters.ErrTurnOver) != tt.over {
					t.Errorf("error %v, want the cause %v (from a write: %v)", res.Err, adapters.CauseStopped, tt.over)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if len(res.Events) > 0 {
					t.Errorf("it wrote %v", res.Events)
				}
			})
		})
	}
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed := make(chan adapters.Arrival)
		turn := adaptertest.NewTurn(script(`{"text":"a"}`, `{"arrivals":"2s"}`, `{"text":"z"}`))
		turn.Arrivals = feed
		go func() {
			time.Sleep(time.Second)
			feed <- adapters.Arrival{Sequence: 1, Messages: []adapters.Inbound{{Text: "one"}, {Text: "two"}}}
			time.Sleep(500 * time.Millisecond)
			feed <- adapters.Arrival{Sequence: 2, Messages: []adapters.Inbound{{Text: ""}}}
		}()
		start := time.Now()
		res := run(t, turn)
		want := []string{"a", "arrival:one", "arrival:two", "arrival:", "z"}
		if diff := cmp.Diff(want, res.Chunks); diff != "" || res.Err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("after %v: error %v, chunks (-want +got):\n%s", time.Since(start), res.Err, diff)
		}
	})

	// No more can come: there is nothing to wait for.
	turn := adaptertest.NewTurn(script(`{"arrivals":"1h"}`, `{"text":"z"}`))
	turn.Arrivals = adaptertest.Arrive("one")
	if res := run(t, turn); res.Text() != "arrival:onez" || res.Err != nil {
		t.Errorf("text %q, error %v", res.Text(), res.Err)
	}

	synctest.Test(t, func(t *testing.T) {
		turn := adaptertest.NewTurn(script(`{"arrivals":"1h"}`, `{"text":"z"}`))
		turn.Arrivals = make(chan adapters.Arrival)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(adapters.CauseStopped) })
		res := adaptertest.Run(ctx, scripted.New(scripted.Config{}), turn)
		if !errors.Is(res.Err, adapters.CauseStopped) || len(res.Events) > 0 {
			t.Errorf("cancelled: error %v, events %v", res.Err, res.Events)
		}
	})
}

func TestTakesArrivals(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"hello":                                false,
		"":                                     false,
		`{"arrivals":"2s"}`:                    false,
		script(`{"text":"arrivals"}`):          false,
		script(`{"text":"a","arrivals":"2s"}`): false,
		script(`{"arrivals":"2s"}`):            true,
		script(`{"text":"a"}`, ``, `{ "arrivals" : "2s" }`, `{"text":"b"}`): true,
		script(`{"arr\u0069vals":"2s"}`):                                    true,
		"script:\r\n{\"arrivals\":\"2s\"}\r\n":                              true,
	} {
		if got := scripted.New(scripted.Config{}).TakesArrivals(&adapters.Turn{Message: message}); got != want {
			t.Errorf("TakesArrivals of %q = %v, want %v", message, got, want)
		}
	}
}

func TestShowHistory(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s")
	for _, message := range []string{`say <"hi">`, script(`{"text":"fine"}`)} {
		if res := run(t, s.Turn(message)); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	turn := s.Turn(script(`{"show":"history"}`))
	turn.History = append(turn.History, adapters.Message{Role: adapters.RoleSystem, Content: "half \xf0"})
	res := run(t, turn)
	const want = `[{"role":"user","content":"say <\"hi\">"},{"role":"agent","content":"say <\"hi\">"},` +
		`{"role":"user","content":"script:\n{\"text\":\"fine\"}"},{"role":"agent","content":"fine"},` +
		`{"role":"system","content":"half \ufffd"}]`
	if diff := cmp.Diff([]string{want}, res.Chunks); diff != "" || res.Err != nil {
		t.Errorf("error %v, chunks (-want +got):\n%s", res.Err, diff)
	}
}

func TestShowTurn(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s1")
	lowkey := s.Turn(script(`{"show":"turn"}`))
	lowkey.Flags.Headless = true
	lowkey.User.Name = "Ada"
	lowkey.Continuity = adapters.ContinuityEvicted

	keiki := &adaptertest.Turn{Turn: adapters.Turn{
		Protocol:       adapters.Keiki,
		ID:             "t1",
		ConversationID: "+15555550123",
		AgentID:        "a1",
		Message:        script(`{"show":"turn"}`),
		Messages:       []adapters.Inbound{{ID: "m1", Text: "x", Silent: true}, {ID: "m2", Text: "y", Flagged: true}},
		Instructions:   "Be <brief>.",
		Context:        json.RawMessage(`{"n":[9007199254740993,1.10, 1E+2]}`),
		Channel:        json.RawMessage(`"sms"`),
		Flags:          adapters.Flags{Silent: true, QuietLoop: true, HeldBack: true},
		Deadline:       time.Date(2050, 1, 2, 3, 4, 5, 6000000, time.UTC),
		Continuity:     adapters.ContinuityExtended,
	}}

	external := &adaptertest.Turn{Turn: adapters.Turn{
		Protocol:    adapters.ExternalRuntime,
		ID:          "turn:1",
		Message:     script(`{"show":"turn"}`),
		Principal:   "orbiplex",
		Budget:      adapters.Budget{Tokens: 100, CostMicros: 5, WallTime: 1500 * time.Millisecond, Steps: 2},
		Attachments: []adapters.Attachment{{Ref: "artifact:1", Digest: "sha256:x", Size: 12}},
	}}

	for _, tt := range []struct {
		turn *adaptertest.Turn
		want string
	}{
		{lowkey, `{"protocol":"lowkey","turnId":"turn-1","sessionId":"s1","conversationId":"conversation-s1","pluginId":"muse","agentId":"agent-1",` +
			`"projectPath":"/projects/demo","user":{"name":"Ada"},"flags":{"headless":true,"silent":false,"quietLoop":false,"heldBack":false},` +
			`"continuity":"evicted","deadline":null}`},
		{keiki, `{"protocol":"keiki","turnId":"t1","sessionId":"session-1","conversationId":"+15555550123","pluginId":"","agentId":"a1",` +
			`"user":{"name":""},"flags":{"headless":false,"silent":true,"quietLoop":true,"heldBack":true},` +
			`"continuity":"extended","deadline":"2050-01-02T03:04:05.006Z","instructions":"Be <brief>.",` +
			`"context":{"n":[9007199254740993,1.10,1E+2]},"channel":"sms",` +
			`"messages":[{"id":"m1","text":"x","silent":true,"flagged":false},{"id":"m2","text":"y","silent":false,"flagged":true}]}`},
		{external, `{"protocol":"external-runtime","turnId":"turn:1","sessionId":"session-1","conversationId":"","pluginId":"","agentId":"",` +
			`"principal":"orbiplex","user":{"name":""},"flags":{"headless":false,"silent":false,"quietLoop":false,"heldBack":false},` +
			`"continuity":"new","deadline":null,"budget":{"tokens":100,"costMicros":5,"wallTimeMs":1500,"steps":2},` +
			`"attachments":[{"ref":"artifact:1","digest":"sha256:x","size":12}]}`},
	} {
		res := run(t, tt.turn)
		if diff := cmp.Diff([]string{tt.want}, res.Chunks); diff != "" || res.Err != nil {
			t.Errorf("%s: error %v, chunks (-want +got):\n%s", tt.turn.Protocol, res.Err, diff)
		}
	}
}

func TestRememberHoldsWhenTheTurnFails(t *testing.T) {
	t.Parallel()
	s := adaptertest.NewSession("s")
	if res := run(t, s.Turn(script(`{"remember":{"key":"k","value":"kept"}}`, `{"error":"no"}`))); res.Err == nil {
		t.Fatal("the turn did not fail")
	}
	if res := run(t, s.Turn(script(`{"recall":"k"}`))); res.Text() != `"kept"` {
		t.Errorf("recalled %s", res.Text())
	}
}

// A long script costs what its lines cost, and a repeated chunk nothing beside its write.
func TestRunningAheadDoesNotAllocate(t *testing.T) {
	allocs := func(message string) float64 {
		turn := &adapters.Turn{Message: message}
		w := new(discard)
		a := scripted.New(scripted.Config{})
		return testing.AllocsPerRun(10, func() {
			if err := a.Run(context.Background(), turn, w); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, step := range []string{`{"text":"twenty bytes of text","repeat":%d}`, `{"stamp":true,"repeat":%d}`} {
		few, many := allocs(script(fmt.Sprintf(step, 10))), allocs(script(fmt.Sprintf(step, 20_000)))
		if many > few+2 { // the digits of the usage
			t.Errorf("%s: %v allocations for 10 chunks, %v for 20,000", step, few, many)
		}
	}
}

// discard is a Writer that takes everything and keeps nothing.
type discard struct {
	adapters.Writer
	chunks int
}

func (d *discard) Text(string) error           { d.chunks++; return nil }
func (d *discard) Write(p []byte) (int, error) { d.chunks++; return len(p), nil }
func (d *discard) Usage(adapters.Usage) error  { return nil }
