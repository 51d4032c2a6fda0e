package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
)

// What a line of the stand-in's input is.
type lineKind int

const (
	lineMessage lineKind = iota // a text: a turn, or an arrival where one runs
	lineTurn                    // a turn, whatever runs
	lineArrive
	lineCancel
	lineNew
	lineAgain
	lineLose
	lineWait
	lineSleep
	lineHelp
	lineQuit
)

// A platformLine is a line of the stand-in's input.
type platformLine struct {
	kind  lineKind
	text  string // of a message or an arrival; the conversation of lineNew
	turn  testhost.KeikiTurn
	pause time.Duration
}

// A platformCommand is what a line can begin with.
type platformCommand struct {
	name, argument, about string
	needs                 bool // the argument
	parse                 func(argument string) (platformLine, error)
}

func platformCommands() []platformCommand {
	plain := func(kind lineKind) func(string) (platformLine, error) {
		return func(argument string) (platformLine, error) {
			if argument != "" {
				return platformLine{}, errors.New("it takes nothing after it")
			}
			return platformLine{kind: kind}, nil
		}
	}
	flagged := func(set func(*testhost.KeikiTurn)) func(string) (platformLine, error) {
		return func(text string) (platformLine, error) {
			l := platformLine{kind: lineTurn, turn: testhost.KeikiTurn{Text: text}}
			set(&l.turn)
			return l, nil
		}
	}
	return []platformCommand{
		{"new", "[ID]", "go on in a new conversation, or in this one", false, func(id string) (platformLine, error) {
			return platformLine{kind: lineNew, text: id}, nil
		}},
		{"cancel", "", "cancel the turn that runs", false, plain(lineCancel)},
		{"arrive", "TEXT", "a message for the turn that runs, or that ran last", true, func(text string) (platformLine, error) {
			return platformLine{kind: lineArrive, text: text}, nil
		}},
		{"silent", "TEXT", "a turn that is silent", true, flagged(func(t *testhost.KeikiTurn) { t.Silent = true })},
		{"quiet", "TEXT", "a turn of a quiet loop", true, flagged(func(t *testhost.KeikiTurn) { t.QuietLoop = true })},
		{"held", "TEXT", "a turn that is held back", true, flagged(func(t *testhost.KeikiTurn) { t.HeldBack = true })},
		{"flagged", "TEXT", "a turn whose message the screening has flagged", true, flagged(func(t *testhost.KeikiTurn) {
			t.Messages, t.Text = []testhost.KeikiMessage{{Text: t.Text, Flagged: true}}, ""
		})},
		{"again", "", "push the last turn once more, as if the answer had been lost", false, plain(lineAgain)},
		{"lose", "", "take the lease of the turn that runs from the poller", false, plain(lineLose)},
		{"wait", "", "wait until no turn runs", false, plain(lineWait)},
		{"sleep", "TIME", "wait that long", true, func(s string) (platformLine, error) {
			d, err := parseDuration(s)
			return platformLine{kind: lineSleep, pause: d}, err
		}},
		{"help", "", "this list", false, plain(lineHelp)},
		{"quit", "", "leave; turns that run are cancelled", false, plain(lineQuit)},
	}
}

// platformHelp is what /help shows.
func platformHelp() string {
	var b strings.Builder
	b.WriteString("A line of text is a turn, or a message for the turn that runs. A line that begins with { is a turn in\n" +
		"JSON, with the fields of keiki.turn, \"text\" and \"timeout\"; what is missing is made up. // begins a text\n" +
		"with a slash. The commands are:\n\n")
	for _, c := range platformCommands() {
		fmt.Fprintf(&b, "  %-14s %s\n", strings.TrimSpace("/"+c.name+" "+c.argument), c.about)
	}
	return strings.TrimRight(b.String(), "\n")
}

// parsePlatformLine reads a line that is not blank.
func parsePlatformLine(line string) (platformLine, error) {
	switch trimmed := strings.TrimSpace(line); {
	case strings.HasPrefix(trimmed, "//"):
		return platformLine{kind: lineMessage, text: strings.Replace(line, "//", "/", 1)}, nil
	case strings.HasPrefix(trimmed, "/"):
		return parsePlatformCommand(trimmed[1:])
	case strings.HasPrefix(trimmed, "{"):
		turn, err := parsePlatformTurn(trimmed)
		if err != nil {
			return platformLine{}, fmt.Errorf("this is no turn in JSON: %w", err)
		}
		return platformLine{kind: lineTurn, turn: turn}, nil
	}
	return platformLine{kind: lineMessage, text: line}, nil
}

func parsePlatformCommand(text string) (platformLine, error) {
	name, argument := text, ""
	if i := strings.IndexAny(text, " \t\n"); i >= 0 {
		name, argument = text[:i], strings.TrimSpace(text[i:])
	}
	for _, c := range platformCommands() {
		if c.name != name {
			continue
		}
		if c.needs && argument == "" {
			return platformLine{}, fmt.Errorf("/%s needs %s after it", name, c.argument)
		}
		l, err := c.parse(argument)
		if err != nil {
			return platformLine{}, fmt.Errorf("/%s: %w", name, err)
		}
		return l, nil
	}
	return platformLine{}, fmt.Errorf("there is no command /%s: /help lists them, and // begins a text with a slash", name)
}

// parsePlatformTurn reads a turn in JSON: the fields of keiki.turn that are the platform's user's to say.
// Those that are the platform's own may be there, and do not count, so that a recorded turn can be used.
func parsePlatformTurn(text string) (testhost.KeikiTurn, error) {
	type message struct {
		Text      string `json:"text"`
		MessageID string `json:"messageId"`
		Silent    bool   `json:"silent"`
		Screening struct {
			Flagged bool `json:"flagged"`
		} `json:"screening"`
	}
	var in struct {
		TurnID         string                `json:"turnId"`
		AgentID        string                `json:"agentId"`
		ConversationID string                `json:"conversationId"`
		Channel        json.RawMessage       `json:"channel"`
		Text           string                `json:"text"`
		Messages       []message             `json:"messages"`
		History        []testhost.KeikiEntry `json:"history"`
		Context        json.RawMessage       `json:"context"`
		Instructions   string                `json:"instructions"`
		HeldBack       bool                  `json:"heldBack"`
		Silent         bool                  `json:"silent"`
		QuietLoop      bool                  `json:"quietLoop"`
		Timeout        string                `json:"timeout"`

		Type     json.RawMessage `json:"type"`
		Version  json.RawMessage `json:"version"`
		Deadline json.RawMessage `json:"deadline"`
		Links    json.RawMessage `json:"keiki"`
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return testhost.KeikiTurn{}, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return testhost.KeikiTurn{}, errors.New("something follows the object")
	}
	if len(in.Type) > 0 && !bytes.Equal(in.Type, []byte(`"keiki.turn"`)) {
		return testhost.KeikiTurn{}, errors.New(`its type is not "keiki.turn"`)
	}
	turn := testhost.KeikiTurn{
		ID: in.TurnID, AgentID: in.AgentID, ConversationID: in.ConversationID, Channel: in.Channel, Text: in.Text,
		History: in.History, Context: in.Context, Instructions: in.Instructions,
		HeldBack: in.HeldBack, Silent: in.Silent, QuietLoop: in.QuietLoop,
	}
	for _, m := range in.Messages {
		turn.Messages = append(turn.Messages, testhost.KeikiMessage{Text: m.Text, ID: m.MessageID, Silent: m.Silent, Flagged: m.Screening.Flagged})
	}
	if turn.Text == "" && len(turn.Messages) == 0 {
		return testhost.KeikiTurn{}, errors.New("it has neither text nor messages")
	}
	if in.Timeout != "" {
		d, err := parseDuration(in.Timeout)
		if err != nil || d == 0 {
			return testhost.KeikiTurn{}, errors.New("timeout: want a time such as 90s or 10m")
		}
		turn.Timeout = d
	}
	return turn, nil
}
