package cli

import (
	"errors"
	"slices"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/keiki"
)

// A keikiKind is a kind of document of Keiki's, by the name that --schema has for it.
type keikiKind struct {
	name    string
	kind    keiki.Kind // the type of a signed request; empty for an answer of the inbox, which has none
	about   string
	id      string
	text    []byte
	explain func(doc []byte) []schema.Violation
}

// keikiKinds are all of them.
var keikiKinds = []keikiKind{
	keikiRequest("keiki-turn", keiki.KindTurn, "a turn"),
	keikiRequest("keiki-arrival", keiki.KindArrival, "messages that came in while a turn runs"),
	keikiRequest("keiki-cancelled", keiki.KindCancelled, "a turn was cancelled"),
	{
		name: "keiki-claim", about: keikiContract + "what the inbox answers to a poll",
		id: keiki.ClaimSchemaID, text: keiki.ClaimSchema(), explain: keiki.ExplainClaim,
	},
}

const keikiContract = "Keiki external harness v1: "

func keikiRequest(name string, kind keiki.Kind, about string) keikiKind {
	return keikiKind{
		name: name, kind: kind, about: keikiContract + about, id: keiki.SchemaID(kind), text: keiki.Schema(kind),
		explain: func(doc []byte) []schema.Violation { return keiki.Explain(kind, doc) },
	}
}

// keikiNamed finds a kind by its name here, or by its own; nil if there is none.
func keikiNamed(name string) *keikiKind {
	i := slices.IndexFunc(keikiKinds, func(k keikiKind) bool { return k.name == name || name != "" && string(k.kind) == name })
	if i < 0 {
		return nil
	}
	return &keikiKinds[i]
}

// guessKeiki tells a request of Keiki's by the names of its members. It is empty for other documents, and for
// claims: they begin as a request of Lowkey's may.
func guessKeiki(names map[string]bool) string {
	switch {
	case !names["turnId"] && !names["keiki"]:
		return ""
	case names["sequence"]:
		return "keiki-arrival"
	case names["messages"] || names["keiki"]:
		return "keiki-turn"
	case names["type"]:
		return "keiki-cancelled"
	}
	return ""
}

// checkKeiki checks a document of Keiki's.
func (v *verdict) checkKeiki(kind *keikiKind, doc []byte) {
	var e *schema.SyntaxError
	if errors.As(schema.Check(doc, schema.DefaultDepth), &e) {
		v.malformed(e)
		return
	}
	v.add(doc, kind.explain(doc))
}
