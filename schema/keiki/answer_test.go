package keiki_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// explains tells whether an error is an *Error at a place, for a body that is JSON or not.
func explains(err error, code wire.Code, pointer string) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code == code && e.Pointer == pointer
}

func TestParseArrivals(t *testing.T) {
	t.Parallel()
	batches, err := wire.ParseArrivals([]byte(`{"next":null,"arrivals":[{"sequence":1,"messages":[{"text":"a","messageId":"m"}],"at":7},{"messages":[],"sequence":2e0}]}`))
	want := []wire.Batch{{Sequence: 1, Messages: []wire.Message{{Text: "a", ID: "m"}}}, {Sequence: 2, Messages: []wire.Message{}}}
	if diff := cmp.Diff(want, batches); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if batches, err := wire.ParseArrivals([]byte(`{"arrivals":[]}`)); len(batches) != 0 || err != nil {
		t.Errorf("an empty page: %v, %v", batches, err)
	}
	for body, pointer := range map[string]string{
		`{}`:                             "/arrivals",
		`{"arrivals":null}`:              "/arrivals",
		`[]`:                             "",
		`{"arrivals":[1]}`:               "/arrivals/0",
		`{"arrivals":[{"messages":[]}]}`: "/arrivals/0/sequence",
		`{"arrivals":[{"sequence":1}]}`:  "/arrivals/0/messages",
		`{"arrivals":[{"sequence":0}]}`:  "/arrivals/0/sequence",
		`{"arrivals":[{"messages":[{"text":1}]}]}`: "/arrivals/0/messages/0/text",
	} {
		if batches, err := wire.ParseArrivals([]byte(body)); !explains(err, wire.CodeInvalidRequest, pointer) || batches != nil {
			t.Errorf("ParseArrivals(%s) = %v, %v, want an error at %q", body, batches, err, pointer)
		}
	}
	for _, body := range []string{``, `{"arrivals":[]`, `{"arrivals":[],"arrivals":[]}`, "<html>", `{"arrivals":[]}{}`, `{"arrivals":[{"sequence":1,"messages":[]},]}`} {
		if _, err := wire.ParseArrivals([]byte(body)); err == nil || !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("ParseArrivals(%s) = %v", body, err)
		}
	}
}

func TestParseFault(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for body, want := range map[string]wire.Fault{
		`{"error":{"code":"turn_closed","message":"The turn is closed."}}`: {Code: "turn_closed"},
		`{"code":"turn_closed"}`:                                 {Code: "turn_closed"},
		`{"error":"turn_closed"}`:                                {Code: "turn_closed"},
		`{"error":{"code":"delivery_failed","retryable":false}}`: {Code: "delivery_failed", Retryable: &no},
		`{"error":"delivery_failed","retryable":false}`:          {Code: "delivery_failed", Retryable: &no},
		`{"retryable":true,"code":"busy","error":{}}`:            {Code: "busy", Retryable: &yes},
		`{"retryable":true,"error":{"retryable":false}}`:         {Retryable: &no},
		`{"error":"The turn is closed.","code":"turn_closed"}`:   {Code: "turn_closed"},
		`{"error":{"code":409},"code":"turn_closed"}`:            {Code: "turn_closed"},
		`{"error":{"code":"a"},"code":"b"}`:                      {Code: "a"},
		`{"error":{"code":"http_502"}}`:                          {Code: "http_502"},
		`{"error":{"code":"turn_\u0063losed"}}`:                  {Code: "turn_closed"},
		`{"error":{"code":"` + strings.Repeat("a", 64) + `"}}`:   {Code: strings.Repeat("a", 64)},
		`{"error":{"code":"` + strings.Repeat("a", 65) + `"}}`:   {},
		`{"error":{"code":"ht_abcdef"}}`:                         {},
		`{"error":"sk_live_abc"}`:                                {},
		`{"code":"whsec_abc"}`:                                   {},
		`{"code":"kts1"}`:                                        {},
		`{"code":"0123456789abcdef0123456789abcdef"}`:            {},
		`{"code":"Turn Closed"}`:                                 {},
		`{"code":"turn-closed"}`:                                 {},
		`{"code":"café"}`:                                        {},
		`{"code":""}`:                                            {},
		`{"code":null,"retryable":"no"}`:                         {},
		`{"retryable":null}`:                                     {},
		`{"error":[{"code":"a"}]}`:                               {},
		`{"error":{"error":{"code":"a"}}}`:                       {},
		`{"code":"a","code":"b"}`:                                {},
		`{"code":"a"} x`:                                         {},
		`[]`:                                                     {},
		``:                                                       {},
		`<html><body>502 Bad Gateway</body></html>`:              {},
		`{"error":{"code":"a","detail":` + strings.Repeat("[", 100_000) + `}}`: {},
	} {
		if diff := cmp.Diff(want, wire.ParseFault([]byte(body))); diff != "" {
			t.Errorf("ParseFault(%.100s) (-want +got):\n%s", body, diff)
		}
	}
}

func TestParseLease(t *testing.T) {
	t.Parallel()
	until := at("2030-01-01T00:00:00Z")
	for body, want := range map[string]wire.Lease{
		`{"leaseExpiresAt":"2030-01-01T00:00:00Z"}`:                                   {ExpiresAt: until},
		`{"ok":true,"leaseExpiresAt":"2030-01-01T01:00:00+01:00","turnToken":"ht_2"}`: {ExpiresAt: until, Token: "ht_2"},
		`{"leaseExpiresAt":1893456000}`:                                               {ExpiresAt: until},
		`{"turnToken":null,"leaseExpiresAt":1893456000000}`:                           {ExpiresAt: until},
		`{"leaseExpiresAt":null}`:                                                     {},
		`{}`:                                                                          {},
	} {
		if got, err := wire.ParseLease([]byte(body)); got != want || err != nil {
			t.Errorf("ParseLease(%s) = %+v, %v, want %+v", body, got, err, want)
		}
	}
	// A token is not missed for a time that is wrong.
	for body, want := range map[string]struct {
		lease   wire.Lease
		pointer string
	}{
		`{"leaseExpiresAt":"soon","turnToken":"ht_2"}`:   {wire.Lease{Token: "ht_2"}, "/leaseExpiresAt"},
		`{"turnToken":"ht_2","leaseExpiresAt":["a",{}]}`: {wire.Lease{Token: "ht_2"}, "/leaseExpiresAt"},
		`{"turnToken":"ht_2","leaseExpiresAt":-1}`:       {wire.Lease{Token: "ht_2"}, "/leaseExpiresAt"},
		`{"turnToken":7,"leaseExpiresAt":1893456000}`:    {wire.Lease{ExpiresAt: until}, "/turnToken"},
		`{"turnToken":"","leaseExpiresAt":1893456000}`:   {wire.Lease{ExpiresAt: until}, "/turnToken"},
		`{"turnToken":["ht_2"],"leaseExpiresAt":"ht_3"}`: {wire.Lease{}, "/turnToken"},
		`[]`: {wire.Lease{}, ""},
	} {
		got, err := wire.ParseLease([]byte(body))
		if got != want.lease || !explains(err, wire.CodeInvalidRequest, want.pointer) || strings.Contains(err.Error(), "ht_") {
			t.Errorf("ParseLease(%s) = %+v, %v, want %+v", body, got, err, want)
		}
	}
	for _, body := range []string{``, `{"turnToken":"ht_2"`, `{"turnToken":"ht_2","turnToken":"ht_3"}`, "{\"turnToken\":\"ht_2\xff\"}", `{"turnToken":"ht_2"}x`} {
		got, err := wire.ParseLease([]byte(body))
		if (got != wire.Lease{}) || err == nil || strings.Contains(err.Error(), "ht_") {
			t.Errorf("ParseLease(%s) = %+v, %v", body, got, err)
		}
	}
}

const flatClaim = `{"turn":{"type":"keiki.turn","version":1,"turnId":"t-1","agentId":"a-1","conversationId":"c-1","messages":[{"text":"hi"}],` +
	`"context":{"n":1.10},"deadline":"2030-01-01T00:00:00Z","keiki":{"turnUrl":"https://k.example/turns/t-1"},` +
	`"turnToken":"ht_abcdefgh","leaseExpiresAt":1893456000000}}`

const nestedClaim = `{"turn":{"turn":{"type":"keiki.turn","version":1,"turnId":"t-1","agentId":"a-1","conversationId":"c-1","messages":[{"text":"hi"}],` +
	`"context":{"n":1.10},"deadline":1,"keiki":{"apiBase":"https://k.example","turnUrl":"https://old.example/t","mcpUrl":"https://k.example/mcp"}},` +
	`"deadline":"2030-01-01T00:00:00Z","turnToken":"ht_abcdefgh","leaseExpiresAt":"2030-01-01T00:00:00Z","keiki":{"turnUrl":"https://k.example/turns/t-1"}}}`

func TestParseClaim(t *testing.T) {
	t.Parallel()
	turn := wire.Turn{
		TurnID: "t-1", AgentID: "a-1", ConversationID: "c-1", Messages: []wire.Message{{Text: "hi"}}, Context: []byte(`{"n":1.10}`),
		Deadline: at("2030-01-01T00:00:00Z"), Links: wire.Links{TurnURL: "https://k.example/turns/t-1"},
	}
	inner := turn
	inner.Links = wire.Links{APIBase: "https://k.example", TurnURL: "https://k.example/turns/t-1", MCPURL: "https://k.example/mcp"}
	raw := func(body string) string {
		return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(body, `{"turn":`), `}`), "ht_abcdefgh", "[redacted]")
	}
	until := at("2030-01-01T00:00:00Z")
	for _, tc := range []struct {
		name, body string
		want       *wire.Claim
	}{
		{"nothing", `{"turn":null}`, nil},
		{"nothing, and more", `{"x":1,"turn": null }`, nil},
		{"flat", flatClaim, &wire.Claim{Turn: turn, Token: "ht_abcdefgh", LeaseExpiresAt: until, Raw: raw(flatClaim)}},
		{"nested", nestedClaim, &wire.Claim{Turn: inner, Token: "ht_abcdefgh", LeaseExpiresAt: until, Raw: raw(nestedClaim)}},
		{"the least of a flat one", `{"turn":{"turnId":"t","messages":[],"keiki":{"turnUrl":"u"}}}`,
			&wire.Claim{Turn: wire.Turn{TurnID: "t", Messages: []wire.Message{}, Links: wire.Links{TurnURL: "u"}}, Raw: `{"turnId":"t","messages":[],"keiki":{"turnUrl":"u"}}`}},
		{"all that may be outside is outside", `{"turn":{"turn":{},"turnId":"t","agentId":"a","conversationId":"c","messages":[{"text":"x"}],"deadline":1893456000,"leaseExpiresAt":1893456000,"turnToken":"ht_1","keiki":{"apiBase":"b","turnUrl":"u","mcpUrl":"m"}}}`,
			&wire.Claim{Turn: wire.Turn{TurnID: "t", AgentID: "a", ConversationID: "c", Messages: []wire.Message{{Text: "x"}}, Deadline: until, Links: wire.Links{APIBase: "b", TurnURL: "u", MCPURL: "m"}}, Token: "ht_1", LeaseExpiresAt: until,
				Raw: `{"turn":{},"turnId":"t","agentId":"a","conversationId":"c","messages":[{"text":"x"}],"deadline":1893456000,"leaseExpiresAt":1893456000,"turnToken":"[redacted]","keiki":{"apiBase":"b","turnUrl":"u","mcpUrl":"m"}}`}},
		{"all that may be inside is inside", `{"turn":{"turn":{"turnId":"t","messages":[],"leaseExpiresAt":1893456000,"turnToken":"ht_1","keiki":{"turnUrl":"u"}},"turnToken":null,"deadline":null,"keiki":null}}`,
			&wire.Claim{Turn: wire.Turn{TurnID: "t", Messages: []wire.Message{}, Links: wire.Links{TurnURL: "u"}}, Token: "ht_1", LeaseExpiresAt: until,
				Raw: `{"turn":{"turnId":"t","messages":[],"leaseExpiresAt":1893456000,"turnToken":"[redacted]","keiki":{"turnUrl":"u"}},"turnToken":null,"deadline":null,"keiki":null}`}},
		{"null is as good as absent", `{"turn":{"turn":null,"type":null,"version":null,"turnId":"t","agentId":null,"messages":[],"history":null,"deadline":null,"leaseExpiresAt":null,"turnToken":null,"keiki":{"apiBase":null,"turnUrl":"u"}}}`,
			&wire.Claim{Turn: wire.Turn{TurnID: "t", Messages: []wire.Message{}, Links: wire.Links{TurnURL: "u"}},
				Raw: `{"turn":null,"type":null,"version":null,"turnId":"t","agentId":null,"messages":[],"history":null,"deadline":null,"leaseExpiresAt":null,"turnToken":null,"keiki":{"apiBase":null,"turnUrl":"u"}}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := wire.ParseClaim([]byte(tc.body))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	for _, tc := range []struct{ body, pointer string }{
		{`{}`, "/turn"},
		{`[]`, ""},
		{`null`, ""},
		{`"ht_abcdefgh"`, ""},
		{`{"turn":"ht_abcdefgh"}`, "/turn"},
		{`{"turn":[]}`, "/turn"},
		{`{"turn":{}}`, "/turn/turnId"},
		{`{"turn":{"turn":{}}}`, "/turn/turn/turnId"},
		{with(t, flatClaim, `"t-1"`, `""`), "/turn/turnId"},
		{with(t, flatClaim, `"messages"`, `"x"`), "/turn/messages"},
		{with(t, flatClaim, `"turnUrl"`, `"x"`), "/turn/keiki/turnUrl"},
		{with(t, flatClaim, `"keiki":{`, `"x":{`), "/turn/keiki/turnUrl"},
		{with(t, flatClaim, `"version":1`, `"version":2`), "/turn/version"},
		{with(t, flatClaim, `"type":"keiki.turn"`, `"type":"ht_abcdefgh"`), "/turn/type"},
		{with(t, flatClaim, `"turnToken":"ht_abcdefgh"`, `"turnToken":["ht_abcdefgh"]`), "/turn/turnToken"},
		{with(t, flatClaim, `"turnToken":"ht_abcdefgh"`, `"turnToken":""`), "/turn/turnToken"},
		{with(t, flatClaim, `"leaseExpiresAt":1893456000000`, `"leaseExpiresAt":"ht_abcdefgh"`), "/turn/leaseExpiresAt"},
		{with(t, nestedClaim, `"turn":{"turn":{`, `"turn":{"turn":"ht_abcdefgh","x":{`), "/turn/turn"},
		{with(t, nestedClaim, `"messages":[`, `"messages":[7,`), "/turn/turn/messages/0"},
		{with(t, nestedClaim, `"messages"`, `"x"`), "/turn/turn/messages"},
	} {
		got, err := wire.ParseClaim([]byte(tc.body))
		if got != nil || !explains(err, wire.CodeInvalidRequest, tc.pointer) || strings.Contains(err.Error(), "ht_") {
			t.Errorf("ParseClaim(%s) = %+v, %v, want an error at %q", tc.body, got, err, tc.pointer)
		}
	}
	for _, body := range []string{
		``, `<html>`, flatClaim + `x`, "\ufeff" + flatClaim, with(t, flatClaim, `"hi"`, "\"\xff\""), with(t, flatClaim, `"turnId"`, `"turnId":"t-1","turnId"`),
		with(t, flatClaim, `"turnToken"`, `"turnToken":"ht_12345678","turnToken"`), with(t, nestedClaim, `"deadline":1`, `"deadline":1,"deadline":2`), `{"turn":null,"turn":null}`,
	} {
		got, err := wire.ParseClaim([]byte(body))
		var e *wire.Error
		if got != nil || !errors.As(err, &e) || e.Code != wire.CodeInvalidJSON || strings.Contains(err.Error(), "ht_") {
			t.Errorf("ParseClaim(%s) = %+v, %v", body, got, err)
		}
	}
}

// A token is in no string of what is passed on, however it is written there and wherever it is.
func TestClaimsAreRedacted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ body, want string }{
		{
			`{"turn":{"turnToken":"ht_\u0061bcdefgh","turnId":"t","messages":[{"text":"Bearer ht_abcdefgh, and ht_abcdefg"}],"x":["ht_abcdefgh","ht_\u0061bc\u0064efgh","a\"ht_abcdefgh\n"],"ht_abcdefgh":1,"keiki":{"turnUrl":"https://k.example/?t=ht_abcdefgh"}}}`,
			`{"turnToken":"[redacted]","turnId":"t","messages":[{"text":"Bearer [redacted], and ht_abcdefg"}],"x":["[redacted]","[redacted]","a\"[redacted]\n"],"[redacted]":1,"keiki":{"turnUrl":"https://k.example/?t=[redacted]"}}`,
		},
		{
			`{"turn":{"turn":{"turnToken":"ht_of_the_turn","turnId":"t","messages":[{"text":"ht_of_the_claim ht_of_the_turn \/"}],"keiki":{"turnUrl":"u"}},"turnToken":"ht_of_the_claim"}}`,
			`{"turn":{"turnToken":"[redacted]","turnId":"t","messages":[{"text":"[redacted] [redacted] /"}],"keiki":{"turnUrl":"u"}},"turnToken":"[redacted]"}`,
		},
		// What is short is no secret, and may be in any text.
		{
			`{"turn":{"turnToken":"t","turnId":"t","messages":[{"text":"that"}],"keiki":{"turnUrl":"u"}}}`,
			`{"turnToken":"[redacted]","turnId":"t","messages":[{"text":"that"}],"keiki":{"turnUrl":"u"}}`,
		},
	} {
		c, err := wire.ParseClaim([]byte(tc.body))
		if err != nil {
			t.Fatalf("%s: %v", tc.body, err)
		}
		if c.Raw != tc.want || schema.Check([]byte(c.Raw), 0) != nil {
			t.Errorf("%s became\n%s, want\n%s", tc.body, c.Raw, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.StringN(8, 20, -1).Draw(t, "token")
		text := rapid.String().Draw(t, "before") + token + rapid.String().Draw(t, "after")
		quote := func(s string) string { return string(wire.AppendString(nil, s)) }
		body := fmt.Sprintf(`{"turn":{"x":{%s:%s},"turnToken":%s,"turnId":"t","messages":[{"text":%s}],"keiki":{"turnUrl":"u"},"n":1.10}}`, quote(text), quote(text), quote(token), quote(text))
		c, err := wire.ParseClaim([]byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		var strs []string
		d := jsontext.NewDecoder(strings.NewReader(c.Raw))
		for {
			tok, err := d.ReadToken()
			if err != nil {
				break
			}
			if tok.Kind() == '"' {
				strs = append(strs, tok.String())
			}
		}
		if c.Token != token || c.Turn.Messages[0].Text != text {
			t.Errorf("token %q, text %q, want %q, %q", c.Token, c.Turn.Messages[0].Text, token, text)
		}
		for _, s := range strs {
			if strings.Contains(strings.ReplaceAll(s, "[redacted]", ""), token) {
				t.Errorf("%q is in %s", token, c.Raw)
			}
		}
		if !strings.Contains(c.Raw, `"n":1.10`) || !strings.Contains(c.Raw, `"turnToken":"[redacted]"`) {
			t.Errorf("Raw is %s", c.Raw)
		}
	})
}

func TestParseForward(t *testing.T) {
	t.Parallel()
	body := `{"turn":{"id":"t-1","attempt":1,"body":"{\"type\":\"keiki.turn\"}\n","headers":{"Keiki-Signature":"t=1,v1=ab","Keiki-Turn-Id":"t-1"}}}`
	got, err := wire.ParseForward([]byte(body))
	want := &wire.Forward{ID: "t-1", Body: "{\"type\":\"keiki.turn\"}\n", Headers: map[string]string{"Keiki-Signature": "t=1,v1=ab", "Keiki-Turn-Id": "t-1"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for body, want := range map[string]*wire.Forward{
		`{"turn":null}`: nil,
		`{"turn":{"id":"t","body":"","headers":null}}`:     {ID: "t"},
		`{"turn":{"id":"t","body":"x","headers":{}}}`:      {ID: "t", Body: "x"},
		`{"turn":{"id":"t","body":"\ud83d\ude00"},"x":[]}`: {ID: "t", Body: "😀"},
	} {
		if got, err := wire.ParseForward([]byte(body)); cmp.Diff(want, got) != "" || err != nil {
			t.Errorf("ParseForward(%s) = %+v, %v", body, got, err)
		}
	}
	for body, pointer := range map[string]string{
		`{}`:                            "/turn",
		`{"turn":7}`:                    "/turn",
		`{"turn":{"body":""}}`:          "/turn/id",
		`{"turn":{"id":"","body":""}}`:  "/turn/id",
		`{"turn":{"id":"t"}}`:           "/turn/body",
		`{"turn":{"id":"t","body":{}}}`: "/turn/body",
		`{"turn":{"id":"t","body":"","headers":[]}}`:          "/turn/headers",
		`{"turn":{"id":"t","body":"","headers":{"a":["b"]}}}`: "/turn/headers/a",
	} {
		if got, err := wire.ParseForward([]byte(body)); got != nil || !explains(err, wire.CodeInvalidRequest, pointer) {
			t.Errorf("ParseForward(%s) = %+v, %v, want an error at %q", body, got, err, pointer)
		}
	}
	for _, body := range []string{``, `<html>`, `{"turn":{"id":"t","body":"","headers":{"a":"b","a":"c"}}}`, `{"turn":null}x`, `{"turn":{"id":"t","body":"","headers":{"a":"b"}`} {
		var e *wire.Error
		if got, err := wire.ParseForward([]byte(body)); got != nil || !errors.As(err, &e) || e.Code != wire.CodeInvalidJSON {
			t.Errorf("ParseForward(%s) = %+v, %v", body, got, err)
		}
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for want, got := range map[string][]byte{
		`{"text":"a \"b\"\n<&>","idempotencyKey":"bl1-0"}`:                 wire.AppendSend(nil, "a \"b\"\n<&>", "bl1-0"),
		`x{"text":"\u2028�","idempotencyKey":"k"}`:                         wire.AppendSend([]byte("x"), "\u2028\xff", "k"),
		`{"status":"completed"}`:                                           wire.AppendComplete(nil, wire.Completion{Status: wire.StatusCompleted}),
		`x{"status":"completed"}`:                                          wire.AppendComplete([]byte("x"), wire.Completion{ConsumedArrivals: []int64{}}),
		`{"status":"completed","consumedArrivals":[1,2]}`:                  wire.AppendComplete(nil, wire.Completion{ConsumedArrivals: []int64{1, 2}}),
		`{"status":"failed","error":"no \"luck\"","consumedArrivals":[9]}`: wire.AppendComplete(nil, wire.Completion{Status: wire.StatusFailed, Error: `no "luck"`, ConsumedArrivals: []int64{9}}),
		`{"status":502,"body":"{\"error\":\"unreachable\"}"}`:              wire.AppendResult(nil, wire.Result{Status: 502, Body: `{"error":"unreachable"}`}),
		`x{"status":200,"body":"�"}`:                                       wire.AppendResult([]byte("x"), wire.Result{Status: 200, Body: "\xff"}),
	} {
		if string(got) != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		key := string(rapid.SliceOf(rapid.Byte()).Draw(t, "key"))
		line := wire.AppendSend(nil, text, key)
		var back struct{ Text, IdempotencyKey string }
		if err := jsonv2.Unmarshal(line, &back, jsonv2.MatchCaseInsensitiveNames(true)); err != nil || strings.ContainsAny(string(line), "\n\r\u2028\u2029") {
			t.Fatalf("%q: %v", line, err)
		}
		if replaced, _ := json.Marshal(key); back.Text != text || string(wire.AppendString(nil, key)) != string(wire.AppendString(nil, back.IdempotencyKey)) {
			t.Errorf("%q, %s came back as %+v", text, replaced, back)
		}
	})
}

// Whatever the platform answers, the readers agree with Check, and none of them shows a token.
func FuzzParseAnswers(f *testing.F) {
	for _, body := range []string{
		flatClaim, nestedClaim, `{"turn":null}`, `{"turn":{"id":"t","body":"b","headers":{"a":"b"}}}`, `{"arrivals":[{"sequence":1,"messages":[{"text":"a"}]}]}`,
		`{"error":{"code":"turn_closed","retryable":false}}`, `{"code":"a","retryable":true}`, `{"error":"a"}`, `{"leaseExpiresAt":1893456000,"turnToken":"ht_abcdefgh"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		malformed := schema.Check(body, 0) != nil
		judge := func(name string, err error) {
			var e *wire.Error
			if err == nil && malformed || err != nil && (!errors.As(err, &e) || malformed != (e.Code == wire.CodeInvalidJSON)) {
				t.Errorf("%s(%q) = %v, malformed: %v", name, body, err, malformed)
			}
		}
		holdClaim(t, body)
		c, err := wire.ParseClaim(body)
		judge("ParseClaim", err)
		if c != nil {
			if err := schema.Check([]byte(c.Raw), 0); err != nil {
				t.Errorf("ParseClaim(%q): Raw is %q: %v", body, c.Raw, err)
			}
			if c.Turn.TurnID == "" || c.Turn.Messages == nil || c.Turn.Links.TurnURL == "" {
				t.Errorf("ParseClaim(%q) = %+v", body, c)
			}
			again, err := wire.ParseClaim(fmt.Appendf(nil, `{"turn":%s}`, c.Raw))
			if err != nil || again == nil || c.Token == "" != (again.Token == "") || again.Token != "" && again.Token != "[redacted]" {
				t.Errorf("ParseClaim(%q): Raw is %q, which is read as %+v, %v", body, c.Raw, again, err)
			}
		}
		_, err = wire.ParseForward(body)
		judge("ParseForward", err)
		_, err = wire.ParseArrivals(body)
		judge("ParseArrivals", err)
		_, err = wire.ParseLease(body)
		judge("ParseLease", err)
		if fault := wire.ParseFault(body); malformed && fault != (wire.Fault{}) || strings.Trim(fault.Code, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("ParseFault(%q) = %+v", body, fault)
		}
		id, ok := wire.AgentID(body)
		if ok != (id != "") {
			t.Errorf("AgentID(%q) = %q, %v", body, id, ok)
		}
		if string(body) != before {
			t.Errorf("the body %q was changed to %q", before, body)
		}
	})
}
