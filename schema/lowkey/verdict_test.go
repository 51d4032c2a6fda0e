package lowkey_test

import (
	"errors"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

var (
	requestSchema = sync.OnceValues(func() (*schema.Schema, error) { return schema.Compile(wire.SchemaID, wire.Schema()) })
	eventSchema   = sync.OnceValues(func() (*schema.Schema, error) {
		var set schema.Set
		if err := set.Add(wire.SchemaID, wire.Schema()); err != nil {
			return nil, err
		}
		return set.Compile(wire.SchemaID + "#/$defs/ExternalAgentTurnEvent")
	})
)

// tb is what rapid's and testing's T have in common.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// holdRequest holds Parse to the verdict of Check and the published schema, and to the values that
// another strict decoder finds.
func holdRequest(t tb, body []byte) {
	t.Helper()
	s, err := requestSchema()
	if err != nil {
		t.Fatalf("%v", err)
	}
	before := string(body)
	syntax := schema.Check(body, 0)
	list := s.Validate(body)
	// What a used request holds must not show.
	r := wire.Request{PluginID: "x", Turn: wire.Turn{UserName: "x"}, TranscriptWindow: slices.Repeat([]wire.WindowEntry{{AgentID: "x", Content: "x", Timestamp: wire.TimestampOf(7)}}, 3)}
	err = wire.Parse(body, &r)
	var refusal *wire.Error
	switch {
	case err == nil:
		if syntax != nil || list != nil {
			t.Fatalf("Parse accepts %q, but Check says %v, and the schema %v", body, syntax, list)
		}
		if list := wire.Explain(body); list != nil {
			t.Errorf("Parse accepts %q, but Explain says %v", body, list)
		}
		compareRequest(t, body, r)
	case !errors.As(err, &refusal):
		t.Fatalf("Parse(%q) = %T", body, err)
	case syntax != nil:
		if refusal.Kind != wire.KindMalformed || cmp.Diff(syntax, error(refusal.Syntax)) != "" {
			t.Errorf("Parse(%q) = %v, but Check says %v", body, err, syntax)
		}
	default:
		if list == nil {
			t.Fatalf("Parse(%q) = %v, but the schema accepts it", body, err)
		}
		if refusal.Kind == wire.KindMalformed || len(refusal.Violations) != 1 {
			t.Errorf("Parse(%q) = %v (%v)", body, err, refusal.Kind)
		}
		if len(list) < schema.MaxViolations && !slices.Contains(list, refusal.Violations[0]) {
			t.Errorf("Parse(%q) = %v, but the schema says %v", body, err, list)
		}
		versionWrong := slices.ContainsFunc(list, func(v schema.Violation) bool { return v.Pointer == "/protocolVersion" })
		if len(list) < schema.MaxViolations && versionWrong != (refusal.Kind == wire.KindVersion) {
			t.Errorf("Parse(%q) = %v (%v), but the schema says %v", body, err, refusal.Kind, list)
		}
		if !versionWrong && refusal.Violations[0] != list[0] {
			t.Errorf("Parse(%q) = %v, which is not the first of %v", body, err, list)
		}
		if diff := cmp.Diff(list, wire.Explain(body)); diff != "" {
			t.Errorf("Explain(%q) (-schema +Explain):\n%s", body, diff)
		}
	}
	if string(body) != before {
		t.Errorf("the body %q was changed to %q", before, body)
	}
}

// other is a request as the other decoder reads it; numbers stay text, since it does not take 40.0 for
// an integer.
type other struct {
	ProtocolVersion  jsontext.Value     `json:"protocolVersion"`
	PluginID         string             `json:"pluginId"`
	SessionHandle    wire.SessionHandle `json:"sessionHandle"`
	Turn             wire.Turn          `json:"turn"`
	TranscriptWindow []otherEntry       `json:"transcriptWindow"`
	Limits           struct {
		TranscriptWindowMessages jsontext.Value `json:"transcriptWindowMessages"`
	} `json:"limits"`
}

type otherEntry struct {
	Role      wire.Role      `json:"role"`
	Content   string         `json:"content"`
	Timestamp jsontext.Value `json:"timestamp"`
	AgentID   string         `json:"agentId"`
	AgentName string         `json:"agentName"`
	TurnID    string         `json:"turnId"`
}

func compareRequest(t tb, body []byte, got wire.Request) {
	t.Helper()
	var o other
	// The option lets escaped lone surrogates pass; other invalid UTF-8 has been refused before.
	if err := jsonv2.Unmarshal(body, &o, jsontext.AllowInvalidUTF8(true)); err != nil {
		t.Fatalf("Parse accepts %q, but the other decoder says %v", body, err)
	}
	want := wire.Request{
		ProtocolVersion:  int(integer(o.ProtocolVersion)),
		PluginID:         o.PluginID,
		SessionHandle:    o.SessionHandle,
		Turn:             o.Turn,
		TranscriptWindow: []wire.WindowEntry{},
		Limits:           wire.Limits{TranscriptWindowMessages: int(integer(o.Limits.TranscriptWindowMessages))},
	}
	for _, e := range o.TranscriptWindow {
		entry := wire.WindowEntry{Role: e.Role, Content: e.Content, AgentID: e.AgentID, AgentName: e.AgentName, TurnID: e.TurnID}
		if e.Timestamp != nil {
			ms, _ := strconv.ParseFloat(string(e.Timestamp), 64)
			entry.Timestamp = wire.TimestampOf(ms)
		}
		want.TranscriptWindow = append(want.TranscriptWindow, entry)
	}
	if diff := cmp.Diff(want, got, compareTimestamps); diff != "" {
		t.Errorf("Parse(%q) (-other decoder +Parse):\n%s", body, diff)
	}
}

// integer reads the text of an integer that is not negative.
func integer(text jsontext.Value) int64 {
	r, ok := new(big.Rat).SetString(string(text))
	switch {
	case !ok: // an exponent that big.Rat does not take
		if strings.Trim(string(text[:strings.IndexAny(string(text), "eE")]), "-0.") == "" {
			return 0
		}
		return math.MaxInt64
	case !r.IsInt():
		return -1
	case !r.Num().IsInt64():
		return math.MaxInt64
	}
	return r.Num().Int64()
}

// FuzzParse holds the decoder to the schema and to another decoder.
func FuzzParse(f *testing.F) {
	f.Add([]byte(base))
	f.Add([]byte("\n" + strings.ReplaceAll(base, ",", " ,\t") + "\r\n"))
	f.Add([]byte(strings.Replace(base, "40}}", `40.0,"x":{"a":[1e5,null,true],"a":{}}}}`, 1)))
	f.Add([]byte(strings.Replace(base, "hello", `\ud83d\ude00 \ud83d \u0041 渐`, 1)))
	f.Add([]byte(strings.Replace(base, "1719000000000", `-1.5e-7`, 1)))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"protocolVersion":2}`))
	for _, name := range []string{"case-variant", "duplicate-key", "lone-surrogate", "nest-64", "nest-65", "second-value"} {
		f.Add(file(f, "lowkey-"+name+".json"))
	}
	for line := range strings.Lines(string(file(f, "lowkey-rewind.ndjson"))) {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, body []byte) { holdRequest(t, body) })
}

// FuzzParseEvent holds the reader of events to the schema.
func FuzzParseEvent(f *testing.F) {
	for _, line := range eventLines {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) { holdEvent(t, line) })
}

func holdEvent(t tb, line []byte) {
	t.Helper()
	s, err := eventSchema()
	if err != nil {
		t.Fatalf("%v", err)
	}
	list := s.Validate(line)
	e, err := wire.ParseEvent(line)
	var refusal *wire.Error
	switch {
	case err == nil:
		if list != nil {
			t.Fatalf("ParseEvent accepts %q, but the schema says %v", line, list)
		}
		var members struct {
			Type    wire.EventType `json:"type"`
			Status  wire.Status    `json:"status"`
			Content string         `json:"content"`
		}
		if err := jsonv2.Unmarshal(line, &members, jsontext.AllowInvalidUTF8(true)); err != nil {
			t.Fatalf("ParseEvent accepts %q, but the other decoder says %v", line, err)
		}
		want := wire.Event{ProtocolVersion: 1, Type: members.Type, Status: members.Status, Content: members.Content}
		if e != want {
			t.Errorf("ParseEvent(%q) = %+v, want %+v", line, e, want)
		}
	case !errors.As(err, &refusal):
		t.Fatalf("ParseEvent(%q) = %T", line, err)
	default:
		if list == nil {
			t.Fatalf("ParseEvent(%q) = %v, but the schema accepts it", line, err)
		}
		if !slices.Contains(list, refusal.Violations[0]) {
			t.Errorf("ParseEvent(%q) = %v, but the schema says %v", line, err, list)
		}
	}
}

// A writer writes JSON in all the ways that there are to write the same thing, and now and then
// something else.
type writer struct {
	t *rapid.T
	strings.Builder
	// odd is how many times in a hundred a part is replaced by something that may be wrong.
	odd int
}

func (w *writer) pick(n int) int { return rapid.IntRange(0, n-1).Draw(w.t, "pick") }

// chance is false where rapid shrinks a failure.
func (w *writer) chance(percent int) bool { return w.pick(100) >= 100-percent }

func (w *writer) space() {
	if w.chance(5) {
		w.WriteString(rapid.SampledFrom([]string{" ", "\t", "\r\n", " \n  "}).Draw(w.t, "space"))
	}
}

// str writes s as a string.
func (w *writer) str(s string) {
	w.WriteByte('"')
	style := w.pick(10) // 8: every character below U+10000 is an escape; 9: every third
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r < ' ' || r < 0x10000 && (style == 8 || style == 9 && i%3 == 0):
			w.WriteString(`\u`)
			w.WriteString(strconv.FormatInt(int64(r)|0x10000, 16)[1:])
		default:
			w.WriteRune(r)
		}
	}
	if w.chance(w.odd) {
		w.WriteString(rapid.SampledFrom([]string{"\xff", "\xe2\x82", "\xed\xa0\x80", `\x`, `\u12`, "\n", `\`, "\x00"}).Draw(w.t, "junk"))
	}
	w.WriteByte('"')
}

// value writes any value.
func (w *writer) value(depth int) {
	kinds := 8
	if depth > 4 {
		kinds = 6
	}
	switch w.pick(kinds) {
	case 0:
		w.WriteString("null")
	case 1:
		w.WriteString(rapid.SampledFrom([]string{"true", "false"}).Draw(w.t, "bool"))
	case 2, 3:
		w.number(rapid.SampledFrom([]string{"0", "-0", "1", "-1", "1.0", "1e0", "10e-1", "0.1e1", "40.0", "1.5", "1e-1", "1e400", "-1e400", "1e999999999", "1719000000000", "9007199254740993", "123456789012345678901234567890.5"}).Draw(w.t, "number"))
	case 4, 5:
		w.str(rapid.SampledFrom([]string{"", "x", "user", "agent", "User", "é渐😀", "a longer string, more than eight bytes"}).Draw(w.t, "string"))
	case 6:
		w.WriteByte('[')
		for i := range w.pick(4) {
			if i > 0 {
				w.WriteByte(',')
			}
			w.value(depth + 1)
		}
		w.WriteByte(']')
	case 7:
		var members []member
		for range w.pick(4) {
			members = append(members, member{rapid.SampledFrom([]string{"a", "b", "id", "role", "é"}).Draw(w.t, "key"), func() { w.value(depth + 1) }})
		}
		w.object(members...)
	}
}

func (w *writer) number(s string) {
	w.WriteString(s)
	if w.chance(w.odd) {
		w.WriteString(rapid.SampledFrom([]string{".", "e", "-", "0", ".0", "e5", "x"}).Draw(w.t, "tail"))
	}
}

type member struct {
	key   string
	write func()
}

// object writes members in any order, some missing, some twice, some under another key, and unknown
// ones.
func (w *writer) object(members ...member) {
	if w.chance(w.odd) {
		w.value(3)
		return
	}
	for len(members) > 0 && w.chance(w.odd) {
		at := w.pick(len(members))
		switch w.pick(3) {
		case 0:
			members = slices.Delete(slices.Clone(members), at, at+1)
		case 1:
			members = append(members, members[at])
		case 2:
			members = slices.Clone(members)
			members[at].key = rapid.SampledFrom([]string{strings.ToUpper(members[at].key), members[at].key + "2", ""}).Draw(w.t, "renamed")
		}
	}
	unknown := []string{"x", "y", "PLUGINID", "Role", "ID", "protocolversion", "é"}
	for w.chance(10) && len(unknown) > 0 {
		at := w.pick(len(unknown))
		members = append(members, member{unknown[at], func() { w.value(2) }})
		unknown = slices.Delete(unknown, at, at+1)
	}
	if len(members) > 1 && w.chance(30) {
		members = rapid.Permutation(members).Draw(w.t, "order")
	}
	w.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			w.space()
			w.WriteByte(',')
		}
		w.space()
		w.str(m.key)
		w.space()
		w.WriteByte(':')
		w.space()
		if w.chance(w.odd) {
			w.value(0)
		} else {
			m.write()
		}
	}
	w.space()
	w.WriteByte('}')
}

func (w *writer) text() func() {
	return func() {
		if w.chance(10) {
			w.WriteString(rapid.SampledFrom([]string{`"\ud83d"`, `"\ude00."`, `"a\ud83d\ude00"`, `"\ud83d\ud83d\/\b"`, `"\ud83d\u0041"`}).Draw(w.t, "escapes"))
			return
		}
		w.str(rapid.OneOf(rapid.Just(""), rapid.StringN(0, 12, -1), rapid.Just("plain text of some length"), rapid.Just("é渐😀 and so on")).Draw(w.t, "text"))
	}
}

func (w *writer) id() func() {
	return func() { w.str(rapid.StringMatching(`[a-z0-9é:-]{1,12}`).Draw(w.t, "id")) }
}

func (w *writer) oneOf(list ...string) func() {
	return func() { w.WriteString(rapid.SampledFrom(list).Draw(w.t, "one of")) }
}

func (w *writer) request() {
	var entries []func()
	for range w.pick(4) {
		entries = append(entries, func() {
			members := []member{{"role", w.oneOf(`"user"`, `"agent"`, `"system"`, `"\u0075ser"`)}, {"content", w.text()}}
			for _, m := range []member{
				{"timestamp", func() {
					w.number(rapid.SampledFrom([]string{"1719000000000", "0", "-1", "1.5", "1e400", "171900000000017190000000"}).Draw(w.t, "timestamp"))
				}},
				{"agentId", w.text()}, {"agentName", w.text()}, {"turnId", w.text()},
			} {
				if w.chance(50) {
					members = append(members, m)
				}
			}
			w.object(members...)
		})
	}
	turn := []member{{"turnId", w.id()}, {"message", w.text()}, {"headless", w.oneOf("true", "false")}}
	if w.chance(50) {
		turn = append(turn, member{"userName", w.text()})
	}
	w.space()
	w.object(
		member{"protocolVersion", w.oneOf("1", "1", "1", "1.0", "1e0", "100e-2")},
		member{"pluginId", w.id()},
		member{"sessionHandle", func() {
			w.object(member{"id", w.id()}, member{"projectPath", w.text()}, member{"sessionId", w.id()}, member{"agentId", w.id()})
		}},
		member{"turn", func() { w.object(turn...) }},
		member{"transcriptWindow", func() {
			w.WriteByte('[')
			for i, entry := range entries {
				if i > 0 {
					w.WriteByte(',')
				}
				w.space()
				entry()
				w.space()
			}
			w.WriteByte(']')
		}},
		member{"limits", func() {
			w.object(member{"transcriptWindowMessages", w.oneOf("40", "0", "40.0", "4e1", "-0", "1e99", "9223372036854775808")})
		}},
	)
	w.space()
	if w.chance(w.odd) {
		w.WriteString(rapid.SampledFrom([]string{"x", "{}", "]", "}", "\x00", "\n"}).Draw(w.t, "behind"))
	}
}

// Whatever is written, decoder and schema give one verdict.
func TestParseAndSchemaAgree(t *testing.T) {
	t.Parallel()
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := writer{t: t, odd: rapid.SampledFrom([]int{0, 2, 10}).Draw(t, "odd")}
		w.request()
		body := []byte(w.String())
		if w.odd > 0 && w.chance(20) {
			at := w.pick(len(body))
			switch w.pick(3) {
			case 0:
				body = slices.Delete(body, at, at+1)
			case 1:
				body = slices.Insert(body, at, rapid.SampledFrom([]byte("{}[]\",:0e\\ \n\xff")).Draw(t, "byte"))
			case 2:
				body = body[:at]
			}
		}
		holdRequest(t, body)
		var r wire.Request
		if wire.Parse(body, &r) == nil {
			accepted++
			return
		}
		refused++
		if w.odd == 0 && schema.Check(body, 0) == nil { // inside an unknown field a key may come twice
			t.Errorf("nothing odd was written, but %q is refused", body)
		}
	})
	t.Logf("%d accepted, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Errorf("%d accepted, %d refused: the test shows nothing", accepted, refused)
	}
}
