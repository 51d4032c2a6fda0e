package lowkey_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

const turnRequest = `{
  "protocolVersion": 1,
  "pluginId": "muse",
  "sessionHandle": {"id": "s-1", "projectPath": "/srv/project", "sessionId": "s", "agentId": "muse"},
  "turn": {"turnId": "t-1", "message": "hello", "headless": false},
  "transcriptWindow": [{"role": "user", "content": "caf\u00e9?", "timestamp": 1719000000000}],
  "limits": {"transcriptWindowMessages": 40}
}`

func ExampleParse() {
	var r wire.Request
	if err := wire.Parse([]byte(turnRequest), &r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.PluginID, r.SessionHandle.ID, r.Turn.Message)
	for _, e := range r.TranscriptWindow {
		fmt.Println(e.Role, e.Content, e.Timestamp.Time().Format("2006-01-02"))
	}
	// Output:
	// muse s-1 hello
	// user café? 2024-06-21
}

func ExampleParse_refused() {
	var r wire.Request
	for _, body := range []string{
		strings.Replace(turnRequest, `"protocolVersion": 1`, `"protocolVersion": 2`, 1),
		strings.Replace(turnRequest, `false`, `"no"`, 1),
		strings.Replace(turnRequest, `"pluginId": "muse",`, `"pluginId": "muse", "pluginId": "other",`, 1),
	} {
		err := wire.Parse([]byte(body), &r)
		var refusal *wire.Error
		if errors.As(err, &refusal) {
			fmt.Printf("%v: %v\n", refusal.Kind, refusal)
		}
	}
	// Output:
	// version: /protocolVersion is 2, expected the number 1, the only version that is served
	// field: /turn/headless is "no", expected true or false
	// malformed: malformed JSON: duplicate key "pluginId" (line 3, column 23, byte 48, in /pluginId)
}

func ExampleExplain() {
	body := strings.NewReplacer(`"muse",`, `"",`, `"user"`, `"assistant"`, `"message": "hello", `, ``).Replace(turnRequest)
	for _, v := range wire.Explain([]byte(body)) {
		fmt.Println(v)
	}
	// Output:
	// /pluginId is "", expected a string that is not empty
	// /turn/message is missing, expected a string
	// /transcriptWindow/0/role is "assistant", expected "user", "agent" or "system"
}

func ExampleParseEvent() {
	e, err := wire.ParseEvent([]byte(`{"protocolVersion":1,"type":"text","content":"hi"}`))
	fmt.Println(e.Type, e.Content, err)

	_, err = wire.ParseEvent([]byte(`{"protocolVersion":1,"type":"text"}`))
	fmt.Println(err)
	// Output:
	// text hi <nil>
	// /content is missing, expected a string
}

func ExampleGrammar() {
	response := `{"protocolVersion":1,"type":"text","content":"hi"}
{"protocolVersion":1,"type":"status","status":"complete"}
{"protocolVersion":1,"type":"text","content":"one more thing"}
`
	var g wire.Grammar
	for line := range strings.Lines(response) {
		e, err := wire.ParseEvent([]byte(line))
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, v := range g.Next(e) {
			fmt.Println(v)
		}
	}
	for _, v := range g.End() {
		fmt.Println(v)
	}
	// Output:
	// /0 is text, expected status "started"
	// /2 is text, expected nothing after the end
}

func ExampleRequest_Reset() {
	// A server that pools requests lets go of one body before it reads the next.
	var r wire.Request
	_ = wire.Parse([]byte(turnRequest), &r)
	r.Reset()
	fmt.Printf("%q %d\n", r.PluginID, len(r.TranscriptWindow))
	// Output: "" 0
}

func ExampleTimestampOf() {
	fmt.Println(wire.TimestampOf(1719000000000.5).Time())
	fmt.Println(wire.Timestamp{}.Time().IsZero())
	// Output:
	// 2024-06-21 20:00:00.0005 +0000 UTC
	// true
}

func ExampleTimestampAt() {
	fmt.Println(wire.TimestampAt(time.Date(2024, 6, 21, 20, 0, 0, 0, time.UTC)).Milliseconds())
	// Output: 1.719e+12 true
}

func ExampleKinds() {
	fmt.Println(wire.Kinds())
	// Output: [malformed version field]
}

func ExampleSchema() {
	var doc struct {
		ID string `json:"$id"`
	}
	err := json.Unmarshal(wire.Schema(), &doc)
	fmt.Println(doc.ID, err)
	// Output: https://schemas.lowkeyagents.com/plugins/external-turn-protocol.schema.json <nil>
}
