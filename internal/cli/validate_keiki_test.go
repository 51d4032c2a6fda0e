package cli_test

import (
	"strings"
	"testing"

	"github.com/backline-dev/backline/schema/keiki"
)

func TestValidateKeiki(t *testing.T) {
	t.Parallel()
	const (
		turn      = `{"type":"keiki.turn","version":1,"turnId":"t","agentId":"a","messages":[{"text":"hi"}],"keiki":{"apiBase":"https://k.example","turnUrl":"https://k.example/t"}}`
		arrival   = `{"type":"keiki.turn.arrival","version":1,"turnId":"t","agentId":"a","sequence":1,"messages":[{"text":"hi"}]}`
		cancelled = `{"type":"keiki.turn.cancelled","turnId":"t","agentId":"a"}`
		claim     = `{"turn":{"turn":{"turnId":"t","messages":[{"text":"hi"}]},"turnToken":"ht_0123456789","keiki":{"turnUrl":"https://k.example/t"}}}`
	)
	for _, c := range []struct{ doc, schema, wrong string }{
		{turn, "keiki-turn", ""},
		{claim, "keiki-claim", ""},
		{`{"turn":null}`, "keiki-claim", ""},
		{strings.Replace(claim, `"hi"`, `5`, 1), "keiki-claim", "/turn/turn/messages/0/text"},
		{strings.Replace(claim, `"turnId"`, `"turnID"`, 1), "keiki-claim", "/turn/turn/turnId"},
		{arrival, "keiki-arrival", ""},
		{cancelled, "keiki-cancelled", ""},
		{strings.Replace(turn, `"hi"`, `5`, 1), "keiki-turn", "/messages/0/text"},
		{strings.Replace(turn, `"type":"keiki.turn",`, ``, 1), "keiki-turn", "/type"},
		{strings.Replace(arrival, `"sequence":1`, `"sequence":0`, 1), "keiki-arrival", "/sequence"},
		{strings.Replace(cancelled, `"a"`, `""`, 1), "keiki-cancelled", "/agentId"},
		{strings.Replace(turn, `"version":1`, `"version":2,"version":1`, 1), "keiki-turn", "/version"},
	} {
		var args []string
		if c.schema == "keiki-claim" { // cannot be told from the content
			args = []string{"--schema", c.schema}
		}
		v, _ := judge(t, strings.NewReader(c.doc), args...)
		if v.Schema != c.schema || v.Valid != (c.wrong == "") {
			t.Errorf("%s: %+v, want %s", c.doc, v, c.schema)
		}
		if c.wrong != "" && (len(v.Violations) != 1 || v.Violations[0].Pointer != c.wrong) {
			t.Errorf("%s: %+v, want one at %s", c.doc, v.Violations, c.wrong)
		}
	}
	if v, _ := judge(t, strings.NewReader(cancelled), "--schema", "keiki.turn"); v.Schema != "keiki-turn" || v.Valid {
		t.Errorf("by the type's name: %+v", v)
	}
	if r := run(t, "", nil, "schema", "keiki-claim"); r.out != string(keiki.ClaimSchema()) {
		t.Errorf("schema keiki-claim: %q", r.err)
	}
	for _, name := range []string{"keiki-arrival", "keiki.turn.arrival"} {
		if r := run(t, "", nil, "schema", name); r.out != string(keiki.Schema(keiki.KindArrival)) {
			t.Errorf("schema %s: %q", name, r.err)
		}
	}
}
