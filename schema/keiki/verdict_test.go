package keiki_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// ParseRequest is held to the verdict of Check and the published schemas, to the values that another
// strict decoder finds, and AgentID to both.

// tb is what rapid's and testing's T have in common.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var schemas = func() map[wire.Kind]*schema.Schema {
	all := map[wire.Kind]*schema.Schema{}
	for _, kind := range wire.Kinds() {
		s, err := schema.Compile(wire.SchemaID(kind), wire.Schema(kind))
		if err != nil {
			panic(err)
		}
		all[kind] = s
	}
	return all
}()

// hold holds everything that reads a request to the same verdict.
func hold(t tb, body []byte) {
	t.Helper()
	before := string(body)
	syntax := schema.Check(body, 0)
	r, err := wire.ParseRequest(body)
	var refusal *wire.Error
	switch {
	case err == nil:
		if syntax != nil {
			t.Fatalf("ParseRequest accepts %q, but Check says %v", body, syntax)
		}
		if list := schemas[r.Kind].Validate(body); list != nil {
			t.Fatalf("ParseRequest accepts %q, but the schema says %v", body, list)
		}
		compareRequest(t, body, r)
	case !errors.As(err, &refusal):
		t.Fatalf("ParseRequest(%q) = %T", body, err)
	case syntax != nil:
		var e *schema.SyntaxError
		if errors.As(syntax, &e); refusal.Code != wire.CodeInvalidJSON || refusal.Pointer != e.Pointer || !strings.Contains(refusal.Message, e.Message) {
			t.Errorf("ParseRequest(%q) = %v, but Check says %v", body, err, syntax)
		}
	default:
		holdRefusal(t, body, refusal)
	}
	for kind, s := range schemas {
		want := s.Validate(body)
		if diff := cmp.Diff(want, wire.Explain(kind, body)); diff != "" {
			t.Errorf("Explain(%s, %q) (-schema +Explain):\n%s", kind, body, diff)
		}
		if (want == nil) != (err == nil && r.Kind == kind) {
			t.Errorf("ParseRequest(%q) = %+v, %v, but the schema of %s says %v", body, r, err, kind, want)
		}
	}
	if string(body) != before {
		t.Errorf("the body %q was changed to %q", before, body)
	}
}

// holdRefusal holds the refusal of a body that is JSON to the schema of its type.
func holdRefusal(t tb, body []byte, refusal *wire.Error) {
	t.Helper()
	var members map[string]jsontext.Value
	if err := jsonv2.Unmarshal(body, &members, jsontext.AllowInvalidUTF8(true)); err != nil {
		if refusal.Code != wire.CodeInvalidRequest || refusal.Pointer != "" || !strings.HasSuffix(refusal.Message, "expected an object") {
			t.Errorf("%q is no object, but ParseRequest says %v", body, refusal)
		}
		return
	}
	if members == nil { // null
		return
	}
	var typ string
	_ = jsonv2.Unmarshal(members["type"], &typ, jsontext.AllowInvalidUTF8(true))
	s := schemas[wire.Kind(typ)]
	if s == nil || members["type"].Kind() != '"' {
		if refusal.Code != wire.CodeUnknownType || refusal.Pointer != "/type" {
			t.Errorf("%q has an unknown type, but ParseRequest says %v", body, refusal)
		}
		return
	}
	list := s.Validate(body)
	if len(list) == 0 {
		t.Fatalf("ParseRequest(%q) = %v, but the schema accepts it", body, refusal)
	}
	want, code := list[0], wire.CodeInvalidRequest
	for _, v := range list {
		if v.Pointer == "/version" {
			want, code = v, wire.CodeUnsupportedVersion
		}
	}
	if len(list) == schema.MaxViolations && refusal.Code == wire.CodeUnsupportedVersion {
		return // it may be beyond those that are listed
	}
	if refusal.Code != code || refusal.Pointer != want.Pointer || !strings.HasSuffix(refusal.Message, ", expected "+want.Expected) ||
		(want.Found == schema.Missing) != strings.HasPrefix(refusal.Message, "missing, ") {
		t.Errorf("ParseRequest(%q) = %v (%s), but the schema says %v", body, refusal, refusal.Code, want)
	}
}

// other is a request as the other decoder reads it.
type other struct {
	Type           wire.Kind      `json:"type"`
	TurnID         string         `json:"turnId"`
	AgentID        string         `json:"agentId"`
	ConversationID string         `json:"conversationId"`
	Channel        jsontext.Value `json:"channel"`
	Messages       []otherMessage `json:"messages"`
	History        *[]otherEntry  `json:"history"`
	Context        jsontext.Value `json:"context"`
	Instructions   string         `json:"instructions"`
	HeldBack       bool           `json:"heldBack"`
	Silent         bool           `json:"silent"`
	QuietLoop      bool           `json:"quietLoop"`
	Deadline       jsontext.Value `json:"deadline"`
	Links          wire.Links     `json:"keiki"`
	Sequence       jsontext.Value `json:"sequence"`
}

type otherMessage struct {
	Text      string `json:"text"`
	ID        string `json:"messageId"`
	Silent    bool   `json:"silent"`
	Screening struct {
		Flagged bool `json:"flagged"`
	} `json:"screening"`
}

type otherEntry struct {
	Role      string         `json:"role"`
	Text      *string        `json:"text"`
	Content   jsontext.Value `json:"content"`
	CreatedAt jsontext.Value `json:"createdAt"`
	At        jsontext.Value `json:"at"`
	Time      jsontext.Value `json:"time"`
	Timestamp jsontext.Value `json:"timestamp"`
}

func compareRequest(t tb, body []byte, got *wire.Request) {
	t.Helper()
	var o other
	// The option lets escaped lone surrogates pass; other invalid UTF-8 has been refused before.
	lenient := jsontext.AllowInvalidUTF8(true)
	var unread error
	switch got.Kind {
	case wire.KindTurn:
		unread = jsonv2.Unmarshal(body, &o, lenient)
	case wire.KindArrival:
		// Of a turn's fields an arrival may have any, in any form.
		var a struct {
			Type           wire.Kind      `json:"type"`
			TurnID         string         `json:"turnId"`
			AgentID        string         `json:"agentId"`
			ConversationID string         `json:"conversationId"`
			Messages       []otherMessage `json:"messages"`
			HeldBack       bool           `json:"heldBack"`
			Links          wire.Links     `json:"keiki"`
			Sequence       jsontext.Value `json:"sequence"`
		}
		unread = jsonv2.Unmarshal(body, &a, lenient)
		o = other{Type: a.Type, TurnID: a.TurnID, AgentID: a.AgentID, ConversationID: a.ConversationID, Messages: a.Messages, HeldBack: a.HeldBack, Links: a.Links, Sequence: a.Sequence}
	default:
		var c struct {
			Type           wire.Kind `json:"type"`
			TurnID         string    `json:"turnId"`
			AgentID        string    `json:"agentId"`
			ConversationID string    `json:"conversationId"`
		}
		unread = jsonv2.Unmarshal(body, &c, lenient)
		o = other{Type: c.Type, TurnID: c.TurnID, AgentID: c.AgentID, ConversationID: c.ConversationID}
	}
	if unread != nil {
		t.Fatalf("ParseRequest accepts %q, but the other decoder says %v", body, unread)
	}
	if id, ok := wire.AgentID(body); !ok || id != o.AgentID {
		t.Errorf("AgentID(%q) = %q, %v, want %q", body, id, ok, o.AgentID)
	}
	if got.TurnID() != o.TurnID {
		t.Errorf("%q: TurnID is %q, want %q", body, got.TurnID(), o.TurnID)
	}
	want := &wire.Request{Kind: o.Type}
	messages := []wire.Message{}
	for _, m := range o.Messages {
		messages = append(messages, wire.Message{Text: m.Text, ID: m.ID, Silent: m.Silent, Flagged: m.Screening.Flagged})
	}
	switch o.Type {
	case wire.KindTurn:
		w := &wire.Turn{
			TurnID: o.TurnID, AgentID: o.AgentID, ConversationID: o.ConversationID, Messages: messages, Context: json.RawMessage(o.Context),
			Instructions: o.Instructions, HeldBack: o.HeldBack, Silent: o.Silent, QuietLoop: o.QuietLoop, Links: o.Links, HasHistory: o.History != nil,
		}
		if o.Channel.Kind() != 'n' {
			w.Channel = json.RawMessage(o.Channel)
		}
		want.Turn = w
		if got.Turn == nil {
			break
		}
		w.Deadline = got.Turn.Deadline
		if !sameInstant(w.Deadline, o.Deadline) {
			t.Errorf("%q: the deadline %s was read as %v", body, o.Deadline, w.Deadline)
		}
		if o.History == nil || len(*o.History) != len(got.Turn.History) {
			break
		}
		for i, e := range *o.History {
			entry := wire.Entry{Role: e.Role, Time: got.Turn.History[i].Time}
			if e.Text != nil {
				entry.Text = *e.Text
			} else {
				entry.Text = contentOf(e.Content)
			}
			w.History = append(w.History, entry)
			if !slices.ContainsFunc([]jsontext.Value{e.CreatedAt, e.At, e.Time, e.Timestamp}, func(v jsontext.Value) bool { return sameInstant(entry.Time, v) }) {
				t.Errorf("%q: the time of entry %d was read as %v", body, i, entry.Time)
			}
		}
	case wire.KindArrival:
		n, ok := new(big.Rat).SetString(string(o.Sequence))
		if !ok || !n.IsInt() {
			t.Fatalf("%q: the sequence %s was accepted", body, o.Sequence)
		}
		want.Arrival = &wire.Arrival{TurnID: o.TurnID, AgentID: o.AgentID, ConversationID: o.ConversationID, HeldBack: o.HeldBack, Links: o.Links, Sequence: n.Num().Int64(), Messages: messages}
	case wire.KindCancelled:
		want.Cancelled = &wire.Cancelled{TurnID: o.TurnID, AgentID: o.AgentID, ConversationID: o.ConversationID}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseRequest(%q) (-other decoder +ParseRequest):\n%s", body, diff)
	}
}

// sameInstant tells whether got is what a value says, to the microsecond; the zero time where the value
// says none.
func sameInstant(got time.Time, value jsontext.Value) bool {
	var want time.Time
	switch value.Kind() {
	case '"':
		var s string
		_ = jsonv2.Unmarshal(value, &s, jsontext.AllowInvalidUTF8(true))
		t, ok := schema.ParseDateTime(s)
		if ok && t.IsZero() {
			return !got.IsZero() && got.Sub(t) < time.Microsecond
		}
		want = t
	case '0':
		n, ok := new(big.Rat).SetString(string(value))
		if !ok || n.Sign() < 0 || n.Cmp(big.NewRat(253402300799999, 1)) > 0 {
			break
		}
		if n.Cmp(big.NewRat(100_000_000_000, 1)) < 0 {
			n.Mul(n, big.NewRat(1000, 1))
		}
		micros, _ := n.Mul(n, big.NewRat(1000, 1)).Float64()
		want = time.UnixMicro(int64(micros)).UTC()
	}
	if want.IsZero() || got.IsZero() {
		return want.IsZero() && got.IsZero()
	}
	const rounding = 64 * time.Microsecond // a double of seconds in the fourth millennium
	d := got.Sub(want)
	return -rounding < d && d < rounding && got.Location() == time.UTC
}

func contentOf(value jsontext.Value) string {
	var s string
	var parts []jsontext.Value
	lenient := jsontext.AllowInvalidUTF8(true)
	switch value.Kind() {
	case '"':
		_ = jsonv2.Unmarshal(value, &s, lenient)
	case '[':
		_ = jsonv2.Unmarshal(value, &parts, lenient)
		for _, p := range parts {
			if p.Kind() == '{' {
				var o struct {
					Text jsontext.Value `json:"text"`
				}
				_ = jsonv2.Unmarshal(p, &o, lenient)
				p = o.Text
			}
			if p.Kind() == '"' {
				var text string
				_ = jsonv2.Unmarshal(p, &text, lenient)
				s += text
			}
		}
	}
	return s
}

// A span is a value in a body, and where it is a member's also that member.
type span struct {
	member     int // the offset of the key's quote; -1 for an element or the root
	start, end int
}

// spans finds all values of a well-formed body.
func spans(body []byte) []span {
	var list []span
	d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	var open []int
	key := -1
	for {
		start := int(d.InputOffset())
		tok, err := d.ReadToken()
		if err != nil {
			return list
		}
		for start < len(body) && strings.IndexByte(" \t\r\n,:", body[start]) >= 0 {
			start++
		}
		kind, n := d.StackIndex(d.StackDepth())
		if tok.Kind() == '"' && kind == '{' && n%2 == 1 {
			key = start
			continue
		}
		switch tok.Kind() {
		case '{', '[':
			open = append(open, len(list))
			list = append(list, span{key, start, -1})
		case '}', ']':
			list[open[len(open)-1]].end = int(d.InputOffset())
			open = open[:len(open)-1]
		default:
			list = append(list, span{key, start, int(d.InputOffset())})
		}
		key = -1
	}
}

// Parts of bodies, right and wrong.
var (
	values = []string{
		`null`, `true`, `false`, `""`, `"x"`, `"é渐😀"`, `"\ud83d"`, `"a\ud83d\ude00\u0000\n"`, `{}`, `[]`, `[[]]`, `[{}]`, `[null]`, `[{"text":"a"},"b",{"text":1},{},7]`,
		`{"text":"hi"}`, `{"flagged":true}`, `{"apiBase":"a","turnUrl":"b"}`, `0`, `-0`, `1`, `-1`, `1.0`, `1e0`, `10e-1`, `2`, `1.5`, `-0.5`, `1e-400`, `-1e-400`, `1e400`, `50.0`,
		`1893456000`, `1893456000.25`, `1893456000000`, `99999999999`, `99999999999.999`, `100000000000`, `100000000000.5`, `253402300799999`, `253402300800000`, `253402300799999.00000001`,
		`253402300799998.999999999`, `9007199254740991`, `9007199254740992`, `123456789012345678901234567890`, `1e999999999`, `1E+2`,
		`"2030-01-01T00:00:00Z"`, `"2030-01-01t00:00:00.123456+14:00"`, `"2030-02-30T00:00:00Z"`, `"0001-01-01T00:00:00Z"`, `"2016-12-31T23:59:60Z"`, `"2030-01-01 00:00:00Z"`,
		`"keiki.turn"`, `"keiki.turn.arrival"`, `"keiki.turn.cancelled"`, `"\u006beiki.turn"`, `"KEIKI.TURN"`,
	}
	names = []string{
		"type", "version", "turnId", "agentId", "conversationId", "channel", "messages", "history", "context", "instructions", "heldBack", "silent", "quietLoop", "deadline", "keiki",
		"sequence", "text", "messageId", "screening", "flagged", "role", "content", "createdAt", "at", "time", "timestamp", "apiBase", "turnUrl", "mcpUrl", "turn", "turnToken", "leaseExpiresAt",
		"", "x", "AGENTID", "agentid", "é", "a longer name than others",
	}
	seeds = []string{
		`{"type":"keiki.turn","version":1,"turnId":"turn-1","agentId":"agent-1","conversationId":"+15555550100","channel":"sms","messages":[{"text":"hi","messageId":"m-1","silent":false,"screening":{"flagged":true}},{"text":""}],"history":[{"role":"user","text":"a","createdAt":"2030-01-01T00:00:00Z"},{"role":"assistant","content":[{"type":"text","text":"b"},"c"],"time":1893456000}],"context":{"a":[1,2.50,{"b":null}]},"instructions":"be kind","heldBack":false,"silent":true,"quietLoop":false,"deadline":"2030-01-01T00:00:00.000Z","keiki":{"apiBase":"https://k.example/api/v1","turnUrl":"https://k.example/api/v1/turns/turn-1","mcpUrl":"https://k.example/mcp"}}`,
		`{"type":"keiki.turn","version":1.0,"turnId":"t","agentId":"a","messages":[],"keiki":{"apiBase":"x","turnUrl":"y"}}`,
		`{ "keiki" : {"turnUrl":"y","apiBase":"x"},"messages":[ {"text":"\ud83d\ude00"} ],"agentId":"\u0061","turnId":"t","channel":{"type":"sms"},"deadline":1893456000,"version":1,"\u0074ype":"keiki.turn"}`,
		`{"type":"keiki.turn.arrival","version":1,"turnId":"turn-123","agentId":"agent-456","conversationId":"+15555550123","heldBack":false,"channel":"sms","keiki":{"apiBase":"https://keiki.example/api/v1","turnUrl":"https://keiki.example/api/v1/turns/turn-123","mcpUrl":"https://keiki.example/api/v1/harness/mcp"},"sequence":1,"messages":[{"text":"one more detail","messageId":"message-789"}]}`,
		`{"messages":[{"text":"a"}],"sequence":2e0,"agentId":"a","turnId":"t","version":1,"type":"keiki.turn.arrival"}`,
		`{"type":"keiki.turn.cancelled","turnId":"t","agentId":"a","conversationId":"c"}`,
		`{"version":1,"turnId":"t","agentId":"a","conversationId":null,"messages":7,"type":"keiki.turn.cancelled"}`,
	}
)

// edit changes a body in one place; most results are still JSON.
func edit(t *rapid.T, body []byte) []byte {
	list := spans(body)
	if len(list) == 0 {
		return body
	}
	at := list[rapid.IntRange(0, len(list)-1).Draw(t, "at")]
	if at.end < at.start { // the body was not JSON
		return body
	}
	value := rapid.SampledFrom(values).Draw(t, "value")
	name := rapid.SampledFrom(names).Draw(t, "name")
	replace := func(from, to int, by string) []byte {
		return slices.Concat(body[:from], []byte(by), body[to:])
	}
	switch rapid.IntRange(0, 9).Draw(t, "edit") {
	case 0, 1, 2: // another value
		return replace(at.start, at.end, value)
	case 3: // another name
		if at.member >= 0 {
			return replace(at.member, at.start, `"`+name+`" :`)
		}
	case 4: // twice
		if at.member >= 0 {
			return replace(at.end, at.end, `,`+string(body[at.member:at.end]))
		}
	case 5: // gone
		if at.member >= 0 {
			out := replace(at.member, at.end, "")
			for _, fix := range []string{"{,", ",,", ",}"} {
				out = bytes.ReplaceAll(out, []byte(fix), []byte(strings.Trim(fix, ",")))
			}
			return out
		}
	case 6, 7: // one more
		if at.member >= 0 {
			return replace(at.member, at.member, `"`+name+`":`+value+", ")
		}
	case 8: // something after it
		return replace(at.end, at.end, rapid.SampledFrom([]string{" ", "\n", "\xff", ",", "]", "}", "x", "0", `"`, "\x00"}).Draw(t, "junk"))
	case 9: // moved to the front
		if at.member > 1 {
			member := string(body[at.member:at.end])
			out := replace(at.member, at.end, `"y":0`)
			return slices.Concat([]byte(`{`+member+`,`), bytes.TrimLeft(out, " {"))
		}
	}
	return body
}

// Whatever is sent, decoder, schemas and another decoder agree.
func TestParseAndSchemasAgree(t *testing.T) {
	t.Parallel()
	accepted, codes := 0, map[wire.Code]int{}
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(rapid.SampledFrom(seeds).Draw(t, "seed"))
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			body = edit(t, body)
			hold(t, body)
			_, err := wire.ParseRequest(body)
			var e *wire.Error
			if errors.As(err, &e) {
				codes[e.Code]++
			} else {
				accepted++
			}
		}
	})
	t.Logf("%d accepted, refused %v", accepted, codes)
	if accepted == 0 || len(codes) != len(wire.Codes()) {
		t.Errorf("%d accepted, refused %v: the test does not show enough", accepted, codes)
	}
}

func TestSeedsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, seed := range seeds {
		hold(t, []byte(seed))
		if _, err := wire.ParseRequest([]byte(seed)); err != nil {
			t.Errorf("%s: %v", seed, err)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	for _, v := range values {
		f.Add([]byte(strings.Replace(seeds[0], `"2030-01-01T00:00:00.000Z"`, v, 1)))
		f.Add([]byte(strings.Replace(seeds[0], `[{"type":"text","text":"b"},"c"]`, v, 1)))
	}
	f.Fuzz(func(t *testing.T, body []byte) { hold(t, body) })
}
