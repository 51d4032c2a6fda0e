package keiki_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	wire "github.com/backline-dev/backline/schema/keiki"
)

const pushed = `{
  "type": "keiki.turn", "version": 1,
  "turnId": "turn-1", "agentId": "agent-1", "conversationId": "+15555550100", "channel": "sms",
  "messages": [{"text": "where is my order?", "messageId": "m-1", "screening": {"flagged": true}}],
  "history": [{"role": "user", "text": "hello"}, {"role": "assistant", "text": "Hello. How can I help?"}],
  "context": {"orderId": 9007199254740993},
  "deadline": "2030-01-01T00:00:00Z",
  "keiki": {"apiBase": "https://keiki.example/api/v1", "turnUrl": "https://keiki.example/api/v1/turns/turn-1"}
}`

func ExampleParseRequest() {
	r, err := wire.ParseRequest([]byte(pushed)) // its signature has been verified
	if err != nil {
		fmt.Println(err)
		return
	}
	switch r.Kind {
	case wire.KindTurn:
		m := r.Turn.Messages[0]
		fmt.Printf("%s: %q, flagged: %v\n", r.Turn.TurnID, m.Text, m.Flagged)
		fmt.Printf("%s until %v\n", r.Turn.Context, r.Turn.Deadline)
	case wire.KindArrival:
		fmt.Println(r.Arrival.Sequence)
	case wire.KindCancelled:
		fmt.Println("cancelled")
	}
	// Output:
	// turn-1: "where is my order?", flagged: true
	// {"orderId": 9007199254740993} until 2030-01-01 00:00:00 +0000 UTC
}

func ExampleParseRequest_refused() {
	for _, body := range []string{
		strings.Replace(pushed, `"version": 1`, `"version": 2`, 1),
		strings.Replace(pushed, `"keiki.turn"`, `"keiki.chat"`, 1),
		strings.Replace(pushed, `"where is my order?"`, `["where is my order?"]`, 1),
		strings.Replace(pushed, `"channel"`, `"turnId"`, 1),
	} {
		_, err := wire.ParseRequest([]byte(body))
		var refusal *wire.Error
		if errors.As(err, &refusal) {
			fmt.Println(refusal.Code, "-", refusal)
		}
	}
	// Output:
	// unsupported_version - /version: found 2, expected the number 1
	// unknown_type - /type: found "keiki.chat", expected "keiki.turn", "keiki.turn.arrival" or "keiki.turn.cancelled"
	// invalid_request - /messages/0/text: found an array, expected a string
	// invalid_json - /turnId: not JSON: duplicate key "turnId" (line 3, column 79, byte 118)
}

func ExampleRequest_TurnID() {
	r, err := wire.ParseRequest([]byte(`{"type":"keiki.turn.cancelled","turnId":"turn-1","agentId":"agent-1"}`))
	fmt.Println(r.Kind, r.TurnID(), err)
	// Output: keiki.turn.cancelled turn-1 <nil>
}

func ExampleAgentID() {
	secrets := map[string]string{"agent-1": "whsec_of_agent_1"}
	agent, ok := wire.AgentID([]byte(pushed))
	_, known := secrets[agent]
	fmt.Println(agent, ok, known)
	// Output: agent-1 true true
}

func ExampleExplain() {
	body := strings.NewReplacer(`"turnId": "turn-1", `, ``, `"sms"`, `7`, `"2030-01-01T00:00:00Z"`, `"soon"`).Replace(pushed)
	for _, v := range wire.Explain(wire.KindTurn, []byte(body)) {
		fmt.Println(v)
	}
	// Output:
	// /channel is 7, expected a string, an object or null
	// /deadline is "soon", expected a string that is a date and time as in RFC 3339, a number of at least 0 and of at most 253402300799999 or null
	// /turnId is missing, expected a string that is not empty
}

func ExampleAppendSend() {
	fmt.Printf("%s\n", wire.AppendSend(nil, "It is on its way.", "bl1-2cf24dba5fb0a30e26e83b2ac5b9e29e-0"))
	// Output: {"text":"It is on its way.","idempotencyKey":"bl1-2cf24dba5fb0a30e26e83b2ac5b9e29e-0"}
}

func ExampleAppendComplete() {
	fmt.Printf("%s\n", wire.AppendComplete(nil, wire.Completion{}))
	fmt.Printf("%s\n", wire.AppendComplete(nil, wire.Completion{Status: wire.StatusFailed, Error: "the model is not available", ConsumedArrivals: []int64{1}}))
	// Output:
	// {"status":"completed"}
	// {"status":"failed","error":"the model is not available","consumedArrivals":[1]}
}

func ExampleAppendString() {
	fmt.Printf("%s\n", wire.AppendString(nil, "two\nlines"))
	// Output: "two\nlines"
}

func ExampleParseArrivals() {
	batches, err := wire.ParseArrivals([]byte(`{"arrivals":[{"sequence":1,"messages":[{"text":"one more detail"}]}]}`))
	for _, b := range batches {
		fmt.Println(b.Sequence, b.Messages[0].Text)
	}
	fmt.Println(len(batches) == wire.ArrivalsPage, err)
	// Output:
	// 1 one more detail
	// false <nil>
}

func ExampleParseFault() {
	for _, body := range []string{
		`{"error":{"code":"turn_closed","message":"The turn has ended."}}`,
		`{"error":"delivery_failed","retryable":false}`,
		`<html>502 Bad Gateway</html>`,
	} {
		f := wire.ParseFault([]byte(body))
		fmt.Printf("%q, says whether to retry: %v\n", f.Code, f.Retryable != nil)
	}
	// Output:
	// "turn_closed", says whether to retry: false
	// "delivery_failed", says whether to retry: true
	// "", says whether to retry: false
}

func ExampleParseLease() {
	l, err := wire.ParseLease([]byte(`{"leaseExpiresAt":1893456000,"turnToken":"ht_2"}`))
	fmt.Println(l.ExpiresAt, l.Token != "", err)
	// Output: 2030-01-01 00:00:00 +0000 UTC true <nil>
}

func ExampleParseClaim() {
	c, err := wire.ParseClaim([]byte(`{"turn":{"turnId":"t-1","messages":[{"text":"hi"}],"turnToken":"ht_0123456789","keiki":{"turnUrl":"https://keiki.example/t-1"}}}`))
	fmt.Println(c.Turn.TurnID, c.Token, err)
	fmt.Println(c.Raw)

	c, err = wire.ParseClaim([]byte(`{"turn":null}`))
	fmt.Println(c == nil, err)
	// Output:
	// t-1 ht_0123456789 <nil>
	// {"turnId":"t-1","messages":[{"text":"hi"}],"turnToken":"[redacted]","keiki":{"turnUrl":"https://keiki.example/t-1"}}
	// true <nil>
}

func ExampleParseForward() {
	f, err := wire.ParseForward([]byte(`{"turn":{"id":"t-1","body":"{}","headers":{"Keiki-Turn-Id":"t-1"}}}`))
	fmt.Println(f.ID, f.Body, f.Headers["Keiki-Turn-Id"], err)
	// Output: t-1 {} t-1 <nil>
}

func ExampleAppendResult() {
	fmt.Printf("%s\n", wire.AppendResult(nil, wire.Result{Status: 202, Body: `{"accepted":true}`}))
	// Output: {"status":202,"body":"{\"accepted\":true}"}
}

func ExampleKinds() {
	fmt.Println(wire.Kinds())
	// Output: [keiki.turn keiki.turn.arrival keiki.turn.cancelled]
}

func ExampleCodes() {
	fmt.Println(wire.Codes())
	// Output: [invalid_json unknown_type unsupported_version invalid_request]
}

func ExampleSchema() {
	var doc struct {
		ID string `json:"$id"`
	}
	err := json.Unmarshal(wire.Schema(wire.KindTurn), &doc)
	fmt.Println(doc.ID == wire.SchemaID(wire.KindTurn), err)
	// Output: true <nil>
}

func ExampleSchemaID() {
	fmt.Println(wire.SchemaID(wire.KindArrival))
	// Output: urn:backline:schema:keiki.turn.arrival:v1
}

func ExampleSchemaFile() {
	fmt.Println(wire.SchemaFile(wire.KindCancelled))
	// Output: keiki.turn.cancelled.v1.schema.json
}

func ExampleExplainClaim() {
	for _, v := range wire.ExplainClaim([]byte(`{"turn":{"turn":{"turnId":"turn-1","messages":[]},"turnToken":7}}`)) {
		fmt.Println(v)
	}
	// Output:
	// /turn/turn/keiki is missing, expected an object
	// /turn/turnToken is 7, expected a string that is not empty or null
}

func ExampleClaimSchema() {
	var doc struct {
		ID string `json:"$id"`
	}
	err := json.Unmarshal(wire.ClaimSchema(), &doc)
	fmt.Println(doc.ID == wire.ClaimSchemaID, wire.ClaimSchemaFile, err)
	// Output: true keiki.inbox.claim.v1.schema.json <nil>
}
