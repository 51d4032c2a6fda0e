package external_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	wire "github.com/backline-dev/backline/schema/external"
)

// stream makes events of short notes: a kind, or progress/<code>, then changes as field=value.
func stream(t *testing.T, notes ...string) []*wire.Event {
	t.Helper()
	var list []*wire.Event
	for i, note := range notes {
		words := strings.Fields(note)
		kind, code, _ := strings.Cut(words[0], "/")
		e := &wire.Event{
			EventRef: wire.EventRef(fmt.Sprintf("e:%d", i+1)), TurnRef: "t:1", SeqNo: int64(i + 1), Kind: wire.EventKind(kind),
			At: wire.DateTime(fmt.Sprintf("2026-09-01T00:00:%02dZ", i)), ProgressCode: wire.ProgressCode(code), Content: "abc",
		}
		for _, change := range words[1:] {
			field, value, _ := strings.Cut(change, "=")
			switch field {
			case "seq":
				if _, err := fmt.Sscan(value, &e.SeqNo); err != nil {
					t.Fatal(err)
				}
			case "ref":
				e.EventRef = wire.EventRef(value)
			case "turn":
				e.TurnRef = wire.TurnRef(value)
			case "at":
				e.At = wire.DateTime(value)
			default:
				t.Fatalf("no field %s", field)
			}
		}
		list = append(list, e)
	}
	return list
}

func TestGrammar(t *testing.T) {
	t.Parallel()
	limited := func(events, eventBytes, productBytes int64, mode wire.ToolMode) *wire.Profile {
		return &wire.Profile{ToolMode: mode, Limits: wire.Limits{MaxEvents: events, MaxEventBytes: eventBytes, MaxProductBytes: productBytes}}
	}
	for _, tc := range []struct {
		name   string
		g      wire.Grammar
		events []string
		want   []string
	}{
		{"refusal", wire.Grammar{}, []string{"turn-outcome"}, nil},
		{"whole turn", wire.Grammar{}, []string{"progress/accepted", "progress/running", "action-candidate", "product-candidate", "usage", "turn-outcome"}, nil},
		{"one instant", wire.Grammar{}, []string{"progress/accepted at=2026-09-01T00:00:01Z", "turn-outcome at=2026-09-01T02:00:01.0+02:00"}, nil},
		{"nothing", wire.Grammar{}, nil, []string{`/0 is missing, expected the turn's outcome`}},
		{"no outcome", wire.Grammar{}, []string{"progress/accepted"}, []string{`/1 is missing, expected the turn's outcome`}},
		{"two outcomes", wire.Grammar{}, []string{"turn-outcome", "turn-outcome"}, []string{`/1 is an event, expected nothing after the turn's outcome`}},
		{"something after", wire.Grammar{}, []string{"turn-outcome", "usage"}, []string{`/1 is an event, expected nothing after the turn's outcome`}},
		{"begins at 0", wire.Grammar{}, []string{"progress/accepted seq=0", "turn-outcome"}, []string{`/0/seq~1no is 0, expected 1`}},
		{"gap", wire.Grammar{}, []string{"progress/accepted", "usage seq=3", "turn-outcome seq=4"}, []string{`/1/seq~1no is 3, expected 2`}},
		{"repeated number", wire.Grammar{}, []string{"progress/accepted", "usage seq=1", "turn-outcome seq=3"}, []string{`/1/seq~1no is 1, expected 2`}},
		{"repeated name", wire.Grammar{}, []string{"progress/accepted", "usage ref=e:1", "turn-outcome ref=e:1"},
			[]string{`/1/event~1ref is "e:1", expected a name that no earlier event has`, `/2/event~1ref is "e:1", expected a name that no earlier event has`}},
		{"clock", wire.Grammar{}, []string{"progress/accepted at=2026-09-01T00:00:05Z", "usage at=2026-09-01T02:00:04+02:00", "turn-outcome at=2026-09-01T00:00:05Z"},
			[]string{`/1/at is "2026-09-01T02:00:04+02:00", expected a time not before 2026-09-01T00:00:05Z, when the event before came about`}},
		{"a nanosecond", wire.Grammar{}, []string{"progress/accepted at=2026-09-01T00:00:05.000000001Z", "turn-outcome at=2026-09-01T00:00:05Z"},
			[]string{`/1/at is "2026-09-01T00:00:05Z", expected a time not before 2026-09-01T00:00:05.000000001Z, when the event before came about`}},
		{"other turn", wire.Grammar{}, []string{"progress/accepted", "turn-outcome turn=t:2"}, []string{`/1/turn~1ref is "t:2", expected "t:1", the turn of the stream`}},
		{"named turn", wire.Grammar{TurnRef: "t:2"}, []string{"turn-outcome"}, []string{`/0/turn~1ref is "t:1", expected "t:2", the turn of the stream`}},
		{"suspended", wire.Grammar{}, []string{"progress/accepted", "tool-request", "progress/awaiting-observation"}, nil},
		{"asked and not suspended", wire.Grammar{}, []string{"progress/accepted", "operator-question"}, []string{`/2 is missing, expected the turn's outcome`}},
		{"suspended without a question", wire.Grammar{}, []string{"progress/awaiting-observation"},
			[]string{`/0/progress~1code is "awaiting-observation", expected a tool request or an operator question before it that is not answered`}},
		{"suspended for what was asked before", wire.Grammar{After: 3}, []string{"progress/running seq=4", "progress/awaiting-observation seq=5"}, nil},
		{"suspended for the second of two", wire.Grammar{}, []string{"tool-request", "tool-request", "progress/awaiting-observation",
			"progress/awaiting-observation", "progress/running", "turn-outcome"}, nil},
		{"suspended for what is answered", wire.Grammar{}, []string{"tool-request", "progress/awaiting-observation", "progress/running", "progress/awaiting-observation"},
			[]string{`/3/progress~1code is "awaiting-observation", expected a tool request or an operator question before it that is not answered`}},
		{"asked while it was suspended", wire.Grammar{}, []string{"tool-request", "progress/awaiting-observation", "operator-question", "progress/awaiting-observation"}, nil},
		{"suspended and carried on", wire.Grammar{}, []string{"operator-question", "progress/awaiting-observation", "progress/running"}, []string{`/3 is missing, expected the turn's outcome`}},
		{"carried on", wire.Grammar{After: 3}, []string{"progress/running seq=4", "turn-outcome seq=5"}, nil},
		{"carried on wrongly", wire.Grammar{After: 3}, []string{"turn-outcome"}, []string{`/0/seq~1no is 1, expected 4`}},
		{"limits kept", wire.Grammar{Profile: limited(3, 100, 3, wire.ToolsMediated)}, []string{"operator-question", "product-candidate", "usage", "turn-outcome"}, nil},
		{"too many", wire.Grammar{Profile: limited(2, 100, 3, wire.ToolsDenyAll)}, []string{"progress/accepted", "progress/running", "usage", "turn-outcome"},
			[]string{`/2 is event 3 of the turn, expected at most 2 events`}},
		{"too long", wire.Grammar{Profile: limited(9, 99, 3, wire.ToolsDenyAll)}, []string{"usage", "turn-outcome"}, []string{`/0 is a line of 100 bytes, expected at most 99 bytes`}},
		{"too large", wire.Grammar{Profile: limited(9, 100, 2, wire.ToolsDenyAll)}, []string{"product-candidate", "turn-outcome"}, []string{`/0/content is a text of 3 bytes, expected at most 2 bytes`}},
		{"tools", wire.Grammar{Profile: limited(9, 100, 3, wire.ToolsDenyAll)}, []string{"tool-request", "turn-outcome"},
			[]string{`/0/kind is "tool-request", expected a kind that the profile allows: its tool/mode is deny-all`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := tc.g
			var got []string
			for _, e := range stream(t, tc.events...) {
				if e.Kind != wire.EventProductCandidate {
					e.Content = ""
				}
				for _, v := range g.Next(e, 100) {
					got = append(got, v.String())
				}
			}
			for _, v := range g.End() {
				got = append(got, v.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	var g wire.Grammar
	for i, e := range stream(t, "tool-request", "progress/awaiting-observation", "turn-outcome") {
		g.Next(e, 0)
		if g.Suspended() != (i == 1) || g.Ended() != (i == 2) || g.After != int64(i+1) || g.TurnRef != "t:1" {
			t.Errorf("after event %d: %+v", i+1, g)
		}
	}
}
