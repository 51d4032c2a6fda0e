package lowkey_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

var eventLines = []string{
	`{"protocolVersion":1,"type":"status","status":"started"}`,
	`{ "protocolVersion": 1, "type": "text", "content": "Partial output…" }` + "\r\n",
	`{"protocolVersion":1.0,"type":"error","content":"\ud83d no"}`,
	`{"protocolVersion":1,"type":"status"}`,
	`{"protocolVersion":1,"type":"status","status":"working","content":"thinking","x":{"y":[1]}}`,
	`{"protocolVersion":1,"type":"text"}`,
	`{"protocolVersion":1,"type":"text","content":"","status":"done"}`,
	`{"protocolVersion":2,"type":"later"}`,
	`{"protocolVersion":1,"type":"status","type":"text"}`,
	`[]`, ``, `{"Type":"text"}`,
}

func TestParseEvent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line string
		want wire.Event
	}{
		{`{"protocolVersion":1,"type":"status","status":"started"}`, wire.Event{1, wire.EventStatus, wire.StatusStarted, ""}},
		{` {"content":"x", "type":"text","protocolVersion":1}` + "\n", wire.Event{1, wire.EventText, "", "x"}},
		{`{"protocolVersion":1,"type":"text","content":""}`, wire.Event{1, wire.EventText, "", ""}},
		{`{"protocolVersion":1,"type":"text","content":"caf\u00e9 \u2028 \ud83d\ude00 \ud83d","status":"working"}` + "\r\n", wire.Event{1, wire.EventText, wire.StatusWorking, "café \u2028 😀 \ufffd"}},
		{`{"protocolVersion":1e0,"type":"error","content":"no","code":{"x":[]}}`, wire.Event{1, wire.EventError, "", "no"}},
		{`{"protocolVersion":1,"type":"status"}`, wire.Event{1, wire.EventStatus, "", ""}},
		{`{"protocolVersion":1,"type":"status","status":"cancelled","content":"by you","TYPE":"error"}`, wire.Event{1, wire.EventStatus, wire.StatusCancelled, "by you"}},
	} {
		line := []byte(tc.line)
		got, err := wire.ParseEvent(line)
		clear(line) // nothing of it may be in use
		if err != nil || got != tc.want {
			t.Errorf("ParseEvent(%s) = %+v, %v, want %+v", tc.line, got, err, tc.want)
		}
		holdEvent(t, []byte(tc.line))
	}
}

func TestParseEventRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line, want string
		kind       wire.Kind
	}{
		{`{"protocolVersion":2,"type":"text","content":"x"}`, `/protocolVersion is 2, expected the number 1, the only version that is served`, wire.KindVersion},
		{`{"type":"text","content":"x"}`, `/protocolVersion is missing, expected the number 1, the only version that is served`, wire.KindVersion},
		{`{"protocolVersion":1}`, `/type is missing, expected "status", "text" or "error"`, wire.KindField},
		{`{"protocolVersion":1,"type":"tool"}`, `/type is "tool", expected "status", "text" or "error"`, wire.KindField},
		{`{"protocolVersion":1,"type":"text"}`, `/content is missing, expected a string`, wire.KindField},
		{`{"protocolVersion":1,"type":"error","Content":"x"}`, `/content is missing, expected a string`, wire.KindField},
		{`{"protocolVersion":1,"type":"text","content":null}`, `/content is null, expected a string`, wire.KindField},
		{`{"protocolVersion":1,"type":"status","status":"done"}`, `/status is "done", expected "started", "working", "complete", "error" or "cancelled"`, wire.KindField},
		{`{"protocolVersion":1,"type":"status","status":null}`, `/status is null, expected "started", "working", "complete", "error" or "cancelled"`, wire.KindField},
		{`{"protocolVersion":1,"type":"text","content":"x","content":"y"}`, `malformed JSON: duplicate key "content" (line 1, column 50, byte 49, in /content)`, wire.KindMalformed},
		{`{"protocolVersion":1,"type":"status"}{}`, `malformed JSON: there is '{' after the value, and nothing may follow it (line 1, column 38, byte 37, in the document)`, wire.KindMalformed},
		{``, `malformed JSON: the text is empty, and one JSON value is expected (line 1, column 1, byte 0, in the document)`, wire.KindMalformed},
		{`"text"`, `the document is "text", expected an object`, wire.KindField},
	} {
		_, err := wire.ParseEvent([]byte(tc.line))
		var e *wire.Error
		if !errors.As(err, &e) || e.Kind != tc.kind || e.Error() != tc.want {
			t.Errorf("ParseEvent(%s) = %v, want %s", tc.line, err, tc.want)
		}
		holdEvent(t, []byte(tc.line))
	}
}

func TestEventMarshals(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]wire.Event{
		`{"protocolVersion":1,"type":"status","status":"started"}`:                {1, wire.EventStatus, wire.StatusStarted, ""},
		`{"protocolVersion":1,"type":"status","status":"working","content":"hm"}`: {1, wire.EventStatus, wire.StatusWorking, "hm"},
		`{"protocolVersion":1,"type":"text","content":""}`:                        {1, wire.EventText, "", ""},
		`{"protocolVersion":1,"type":"error","content":"no"}`:                     {1, wire.EventError, "", "no"},
	} {
		got, err := json.Marshal(e)
		if err != nil || string(got) != want {
			t.Errorf("%+v is %s, %v, want %s", e, got, err, want)
		}
		again, err := wire.ParseEvent(got)
		if err != nil || again != e {
			t.Errorf("%s is %+v, %v, want %+v", got, again, err, e)
		}
	}
}

func TestGrammar(t *testing.T) {
	t.Parallel()
	events := map[string]wire.Event{
		"started":   {1, wire.EventStatus, wire.StatusStarted, ""},
		"working":   {1, wire.EventStatus, wire.StatusWorking, ""},
		"status":    {1, wire.EventStatus, "", ""},
		"complete":  {1, wire.EventStatus, wire.StatusComplete, ""},
		"cancelled": {1, wire.EventStatus, wire.StatusCancelled, ""},
		"failed":    {1, wire.EventStatus, wire.StatusError, ""},
		"text":      {1, wire.EventText, "", "x"},
		"text+":     {1, wire.EventText, wire.StatusComplete, "x"}, // the status means nothing here
		"error":     {1, wire.EventError, "", "x"},
	}
	for _, tc := range []struct {
		events string
		want   []string
	}{
		{"started text working text complete", nil},
		{"started complete", nil},
		{"started cancelled", nil},
		{"started error", nil},
		{"started status text+ failed", nil},
		{"", []string{`/0 is missing, expected status "started"`}},
		{"started", []string{`/1 is missing, expected an end: status "complete", status "cancelled", or an error`}},
		{"started text", []string{`/2 is missing, expected an end: status "complete", status "cancelled", or an error`}},
		{"text complete", []string{`/0 is text, expected status "started"`}},
		{"error", []string{`/0 is error, expected status "started"`}},
		{"status complete", []string{`/0 is status without a status, expected status "started"`}},
		{"started started complete", []string{`/1 is status "started", expected text, status "working", or an end`}},
		{"started complete text", []string{`/2 is text, expected nothing after the end`}},
		{"started error complete", []string{`/2 is status "complete", expected nothing after the end`}},
		{"started failed started error", []string{`/2 is status "started", expected nothing after the end`, `/3 is error, expected nothing after the end`}},
		{"working", []string{`/0 is status "working", expected status "started"`, `/1 is missing, expected an end: status "complete", status "cancelled", or an error`}},
	} {
		var g wire.Grammar
		var got []string
		add := func(list []schema.Violation) {
			for _, v := range list {
				got = append(got, v.String())
			}
		}
		ended := false
		for name := range strings.FieldsSeq(tc.events) {
			add(g.Next(events[name]))
			ended = ended || events[name].Terminal()
			if g.Ended() != ended {
				t.Errorf("%s: after %s Ended is %v", tc.events, name, g.Ended())
			}
		}
		add(g.End())
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.events, diff)
		}
	}
}
