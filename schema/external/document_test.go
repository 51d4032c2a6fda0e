package external_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	wire "github.com/backline-dev/backline/schema/external"
)

const (
	digestD = "sha256:DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD"
	label   = `{"schema":"classification.v1","source_tier":"Community","effective_tier":"Community","provenance":{"kind":"local-space","space":"Crisis"},"bound_subjects":{"personal_or_community":[]},"declassify_trail":[]}`
	event   = `{"schema":"agent.external-runtime.event.v1","event/ref":"e:1","turn/ref":"t:1","seq/no":1,"at":"2026-09-01T00:00:01Z",`
)

// validDocuments are documents of each kind and of each kind of event: the contract's own and some more.
func validDocuments(t testing.TB) map[wire.Document][]string {
	t.Helper()
	all := map[wire.Document][]string{}
	for _, doc := range documents(t, "valid") {
		kind, _ := wire.DocumentOf(doc)
		all[kind] = append(all[kind], string(doc))
	}
	for _, list := range all {
		slices.Sort(list)
	}
	request := all[wire.TurnRequestV1][0]
	all[wire.TurnRequestV1] = append(all[wire.TurnRequestV1], strings.NewReplacer(
		`"start"`, `"continue","observation":{"request/ref":"q:1","disposition":"admitted","reason/code":"completed","receipt/ref":"r:1","evidence/refs":["x","y"]}`,
		`"kind": "text",`, `"kind":"artifact","artifact/ref":"a:1","artifact/digest":"`+digestD+`","artifact/size-bytes":12},{"kind":"text",`,
		`"parent-product/refs": []`, `"parent-product/refs":["p:1","p:2"]`,
	).Replace(request))
	outcome := all[wire.TurnOutcomeV1][0]
	product := `"product/ref": "agent-external-runtime-product:reviewer:1",
  "product/digest": "` + digestD + `",`
	for _, end := range []string{
		`"status":"failed","reason/code":"event-timeout","retryability":"retryable"`,
		`"status":"cancelled","reason/code":"cancelled","retryability":"terminal"`,
		`"status":"unknown","reason/code":"unknown","retryability":"reconciliation-required"`,
	} {
		doc := strings.NewReplacer(product, "", `"status": "completed",
  "reason/code": "completed",
  "retryability": "terminal"`, end).Replace(outcome)
		all[wire.TurnOutcomeV1] = append(all[wire.TurnOutcomeV1], doc)
	}
	all[wire.ProductV1] = append(all[wire.ProductV1], strings.NewReplacer(
		`"artifact/ref": "object-store:sha256:EEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE",`, "", `"retained": true`, `"retained": false`, `"parent-product/refs": []`, `"parent-product/refs": ["p:1","p:2"]`,
	).Replace(all[wire.ProductV1][0]))
	all[wire.ProfileV1] = append(all[wire.ProfileV1], strings.NewReplacer(
		`"profile/generation"`, `"principal/snapshot-ref":"snapshot:1","profile/generation"`, `"none"
  ],`, `"text","artifact"],`, `"mediated"`, `"deny-all"`,
	).Replace(all[wire.ProfileV1][0]))
	for _, members := range []string{
		`"kind":"progress","progress/code":"running","progress/current":0,"progress/total":7}`,
		`"kind":"action-candidate","action/schema":"s","action/digest":"` + digestD + `"}`,
		`"kind":"tool-request","request/ref":"q:1","tool/ref":"search","input/schema-ref":"s","input/digest":"` + digestD + `","input":{"q":"bounds","n":9007199254740993,"f":1.50,"deep":[{"a":[]},null]},"classification":` + label + `,"deadline/at":"2026-09-01T00:05:00Z"}`,
		`"kind":"operator-question","request/ref":"q:2","question/schema-ref":"s","question/digest":"` + digestD + `","question":{"text":"May I?"},"deadline/at":"2026-09-01T00:05:00Z"}`,
		`"kind":"usage","usage/fidelity":"estimated","usage":{"max_tokens":0,"max_cost_micros":0,"max_wall_time_ms":12,"max_steps":4294967295}}`,
		`"kind":"turn-outcome","status":"refused","reason/code":"policy-denied"}`,
	} {
		all[wire.EventV1] = append(all[wire.EventV1], event+members)
	}
	used := ""
	for _, doc := range all[wire.ClassificationV1] {
		if strings.Contains(doc, `"one-shot"`) {
			used = strings.Replace(doc, `"kind": "one-shot"`, `"kind":"one-shot","consumed_at":"2026-04-20T11:00:00Z"`, 1)
			used = strings.Replace(used, `"rationale"`, `"evidence_ref":"fact:1","rationale"`, 1)
		}
	}
	all[wire.ClassificationV1] = append(all[wire.ClassificationV1], label, used,
		strings.Replace(label, `{"kind":"local-space","space":"Crisis"}`, `{"kind":"derived","parents":[{"kind":"derived","parents":[{"kind":"ingress","surface":"inac"},{"kind":"local-space","space":"Public"}]},{"kind":"ingress","surface":"federation","peer_ref":"p"}]}`, 1))
	return all
}

func TestMoreValidDocuments(t *testing.T) {
	t.Parallel()
	kinds := map[wire.EventKind]bool{}
	for kind, list := range validDocuments(t) {
		for _, doc := range list {
			if err := wire.Check(kind, []byte(doc)); err != nil {
				t.Errorf("%s: %v\n%s", kind, err, doc)
			}
			if kind == wire.EventV1 {
				if e, err := wire.ParseEvent([]byte(doc)); err == nil {
					kinds[e.Kind] = true
				}
			}
		}
	}
	if len(kinds) != len(wire.Values[wire.EventKind]()) {
		t.Errorf("events of the kinds %v only", kinds)
	}
}

// A node is a JSON value that can be changed and written in many ways.
type node struct {
	kind     byte // '{', '[' or 0
	members  []member
	elements []*node
	scalar   string // JSON
}

type member struct {
	key   string
	value *node
}

func parseNode(t tb, doc string) *node {
	d := jsontext.NewDecoder(strings.NewReader(doc))
	var value func() *node
	value = func() *node {
		switch d.PeekKind() {
		case '{':
			n := &node{kind: '{'}
			for _, err := d.ReadToken(); d.PeekKind() != '}'; {
				if err != nil {
					t.Fatalf("%v", err)
				}
				key, err := d.ReadToken()
				if err != nil {
					t.Fatalf("%v", err)
				}
				n.members = append(n.members, member{key.String(), value()})
			}
			_, _ = d.ReadToken()
			return n
		case '[':
			n := &node{kind: '['}
			for _, err := d.ReadToken(); d.PeekKind() != ']'; {
				if err != nil {
					t.Fatalf("%v", err)
				}
				n.elements = append(n.elements, value())
			}
			_, _ = d.ReadToken()
			return n
		}
		v, err := d.ReadValue()
		if err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		return &node{scalar: string(v)}
	}
	return value()
}

func (n *node) clone() *node {
	c := *n
	c.members, c.elements = nil, nil
	for _, m := range n.members {
		c.members = append(c.members, member{m.key, m.value.clone()})
	}
	for _, e := range n.elements {
		c.elements = append(c.elements, e.clone())
	}
	return &c
}

// all lists the nodes in and below n.
func (n *node) all() []*node {
	list := []*node{n}
	for _, m := range n.members {
		list = append(list, m.value.all()...)
	}
	for _, e := range n.elements {
		list = append(list, e.all()...)
	}
	return list
}

// oddScalars are values that are right in some places and wrong in others.
var oddScalars = func() []string {
	list := []string{
		`null`, `true`, `false`, `0`, `-0`, `-1`, `1`, `1.0`, `1e0`, `10e-1`, `2`, `1.5`, `0.0`, `256`, `257`, `1024`, `1025`, `1048576`, `1048577`,
		`3600000`, `3600001`, `4294967295`, `4294967296`, `9007199254740991`, `9007199254740992`, `9.007199254740991e15`, `-9007199254740992`,
		`1e15`, `1e16`, `1e400`, `1e-400`, `-1e400`, `0e400`, `123456789012345678901234567890`, `1.00000000000000000000000001`,
		`""`, `"x"`, `"a b"`, `"a\u00a0b"`, `"\ufeff"`, `"a\u0085b"`, `"a\u2028"`, `"a\u0000"`, `"\u007f"`, `"\n"`, `"é渐😀"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00x"`, `"\ud83d\u0041"`, `"\ud83dx\ude00"`,
		`"2030-09-01T00:05:00Z"`, `"2030-09-01t00:05:00.123z"`, `"2030-09-01 00:05:00Z"`, `"2016-12-31T23:59:60Z"`, `"2016-12-31T23:58:60Z"`, `"2030-02-30T00:00:00Z"`,
		`"` + digestD + `"`, `"` + digestD[:49] + `="`, `"` + digestD + `D"`, `"` + strings.ToUpper(digestD) + `"`,
		`"0123456789abcdefABCDEF0123456789abcdefABCDEF0123456789abcdefABCD"`, `"g123456789abcdefABCDEF0123456789abcdefABCDEF0123456789abcdefABCD"`,
		`{}`, `[]`, `[[]]`, `{"a":1}`, `[1]`, `["x"]`, `["x","x"]`, `["x","\u0078"]`, `["x","y"]`,
		`"` + strings.Repeat("x", 512) + `"`, `"` + strings.Repeat("x", 513) + `"`, `"` + strings.Repeat("😀", 512) + `"`, `"` + strings.Repeat("😀", 513) + `"`,
		`"` + strings.Repeat("é", 65536) + `"`, `"` + strings.Repeat("é", 65537) + `"`,
	}
	list = append(list, quoted[wire.Mode]()...)
	list = append(list, quoted[wire.Kind]()...)
	list = append(list, quoted[wire.PartKind]()...)
	list = append(list, quoted[wire.Visibility]()...)
	list = append(list, quoted[wire.Status]()...)
	list = append(list, quoted[wire.ReasonCode]()...)
	list = append(list, quoted[wire.Retryability]()...)
	list = append(list, quoted[wire.Tier]()...)
	list = append(list, quoted[wire.EventKind]()...)
	list = append(list, quoted[wire.DeclassifyKind]()...)
	list = append(list, quoted[wire.OriginKind]()...)
	list = append(list, quoted[wire.EgressClass]()...)
	list = append(list, quoted[wire.Document]()...)
	return list
}()

func quoted[C wire.Code[C]]() (list []string) {
	for _, v := range wire.Values[C]() {
		list = append(list, fmt.Sprintf("%q", string(v)))
	}
	return list
}

// A writer changes and writes documents.
type writer struct {
	t *rapid.T
	strings.Builder
	parts []*node // of other documents, to put in
	names []string
}

func (w *writer) pick(n int) int { return rapid.IntRange(0, n-1).Draw(w.t, "pick") }

// chance is false where rapid shrinks a failure.
func (w *writer) chance(percent int) bool { return w.pick(100) >= 100-percent }

// change makes one change somewhere below n.
func (w *writer) change(root *node) {
	list := root.all()
	n := list[w.pick(len(list))]
	switch n.kind {
	case '{':
		switch w.pick(7) {
		case 0: // leave out
			if len(n.members) > 0 {
				i := w.pick(len(n.members))
				n.members = slices.Delete(n.members, i, i+1)
			}
		case 1: // add
			n.members = append(n.members, member{w.names[w.pick(len(w.names))], w.other()})
		case 2: // take another name
			if len(n.members) > 0 {
				n.members[w.pick(len(n.members))].key = w.names[w.pick(len(w.names))]
			}
		case 3: // in other letters
			if len(n.members) > 0 {
				m := &n.members[w.pick(len(n.members))]
				m.key = strings.ToUpper(m.key)
			}
		case 4: // twice
			if len(n.members) > 0 {
				m := n.members[w.pick(len(n.members))]
				n.members = append(n.members, member{m.key, m.value.clone()})
			}
		case 5: // add something well-formed that some object has
			from := w.parts[w.pick(len(w.parts))]
			if len(from.members) > 0 {
				m := from.members[w.pick(len(from.members))]
				n.members = append(n.members, member{m.key, m.value.clone()})
			}
		default:
			w.replace(n)
		}
	case '[':
		switch w.pick(4) {
		case 0:
			if len(n.elements) > 0 {
				i := w.pick(len(n.elements))
				n.elements = slices.Delete(n.elements, i, i+1)
			}
		case 1: // as many as this
			size := rapid.SampledFrom([]int{1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33}).Draw(w.t, "size")
			var first *node
			if len(n.elements) > 0 {
				first = n.elements[0]
			} else {
				first = &node{scalar: `"x"`}
			}
			distinct := !w.chance(10) && strings.HasPrefix(first.scalar, `"`)
			n.elements = nil
			for i := range size {
				e := first.clone()
				if distinct {
					e.scalar = fmt.Sprintf(`"%s-%d"`, e.scalar[1:len(e.scalar)-1], i)
				}
				n.elements = append(n.elements, e)
			}
		case 2:
			n.elements = append(n.elements, w.other())
		default:
			w.replace(n)
		}
	default:
		w.replace(n)
	}
}

// replace puts another value in the place of n.
func (w *writer) replace(n *node) { *n = *w.other() }

func (w *writer) other() *node {
	switch {
	case w.chance(15):
		return w.parts[w.pick(len(w.parts))].clone()
	case w.chance(5): // nested about as deep as it may be
		depth := rapid.IntRange(58, 66).Draw(w.t, "depth")
		if w.chance(50) {
			return &node{scalar: strings.Repeat(`[`, depth) + strings.Repeat(`]`, depth)}
		}
		leaf := `{"kind":"local-space","space":"Public"}`
		return &node{scalar: strings.Repeat(`{"kind":"derived","parents":[`+leaf+`,`, depth/2) + leaf + strings.Repeat(`]}`, depth/2)}
	}
	return &node{scalar: oddScalars[w.pick(len(oddScalars))]}
}

// write writes n in one of the ways there are.
func (w *writer) write(n *node, plain bool) {
	space := func() {
		if !plain && w.chance(10) {
			w.WriteString(rapid.SampledFrom([]string{" ", "\n", "\t\r\n "}).Draw(w.t, "space"))
		}
	}
	space()
	defer space()
	switch n.kind {
	case '{':
		members := n.members
		if !plain && w.chance(20) {
			members = rapid.Permutation(members).Draw(w.t, "order")
		}
		w.WriteByte('{')
		for i, m := range members {
			if i > 0 {
				w.WriteByte(',')
			}
			space()
			key, err := json.Marshal(m.key)
			if err != nil {
				w.t.Fatal(err)
			}
			w.text(string(key), plain)
			space()
			w.WriteByte(':')
			w.write(m.value, plain)
		}
		space()
		w.WriteByte('}')
	case '[':
		w.WriteByte('[')
		for i, e := range n.elements {
			if i > 0 {
				w.WriteByte(',')
			}
			w.write(e, plain)
		}
		space()
		w.WriteByte(']')
	default:
		w.text(n.scalar, plain)
	}
}

// text writes a scalar, now and then in other letters or digits.
func (w *writer) text(scalar string, plain bool) {
	if plain || !w.chance(8) || len(scalar) > 200 {
		w.WriteString(scalar)
		return
	}
	switch c := scalar[0]; {
	case c == '"' && !strings.Contains(scalar, `\`):
		w.WriteByte('"')
		for _, r := range scalar[1 : len(scalar)-1] {
			if r < 0x10000 && w.chance(30) {
				w.WriteString(fmt.Sprintf(`\u%04X`, r))
			} else {
				w.WriteRune(r)
			}
		}
		w.WriteByte('"')
	case c-'0' <= 9 && !strings.ContainsAny(scalar, ".eE"):
		w.WriteString(scalar)
		w.WriteString(rapid.SampledFrom([]string{".0", "e0", "E+00", ".000e0", "0e-1"}).Draw(w.t, "number"))
	default:
		w.WriteString(scalar)
	}
}

// draw makes a document out of a valid one.
func (w *writer) draw(seeds []*node) []byte {
	n := seeds[w.pick(len(seeds))].clone()
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(w.t, "changes") {
		w.change(n)
	}
	w.Reset()
	w.write(n, !w.chance(30))
	body := []byte(w.String())
	if w.chance(5) {
		at := w.pick(len(body))
		switch w.pick(3) {
		case 0:
			body = slices.Delete(body, at, at+1)
		case 1:
			body = slices.Insert(body, at, rapid.SampledFrom([]byte("{}[]\",:0e\\ \n\xff")).Draw(w.t, "byte"))
		case 2:
			body = body[:at]
		}
	}
	return body
}

// material is what documents are drawn from.
type material struct {
	seeds map[wire.Document][]*node
	parts []*node
	names []string
}

func loadMaterial(t testing.TB) material {
	m := material{seeds: map[wire.Document][]*node{}, names: []string{"x", "", "schema", "PLUGINID", "a~b/c", "\u00e9"}}
	for _, kind := range wire.Values[wire.Document]() {
		for _, doc := range validDocuments(t)[kind] {
			n := parseNode(t, doc)
			m.seeds[kind] = append(m.seeds[kind], n)
			for _, part := range n.all() {
				if part.kind != 0 {
					m.parts = append(m.parts, part)
				}
				for _, mm := range part.members {
					if !slices.Contains(m.names, mm.key) {
						m.names = append(m.names, mm.key)
					}
				}
			}
		}
	}
	return m
}
