package cli

import (
	"errors"
	"slices"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/keiki"
)

// A keikiKind is a kind of request of Keiki's, by the name that --schema has for it.
type keikiKind struct {
	name  string
	kind  keiki.Kind
	about string
}

// keikiKinds are all of them.
var keikiKinds = []keikiKind{
	{"keiki-turn", keiki.KindTurn, "Keiki external harness v1: a turn"},
	{"keiki-arrival", keiki.KindArrival, "Keiki external harness v1: messages that came in while a turn runs"},
	{"keiki-cancelled", keiki.KindCancelled, "Keiki external harness v1: a turn was cancelled"},
}

// keikiNamed finds a kind by its name here, or by its own; nil if there is none.
func keikiNamed(name string) *keikiKind {
	i := slices.IndexFunc(keikiKinds, func(k keikiKind) bool { return k.name == name || string(k.kind) == name })
	if i < 0 {
		return nil
	}
	return &keikiKinds[i]
}

// guessKeiki tells a request of Keiki's by the names of its members. It is empty for other documents.
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

// checkKeiki checks a request of Keiki's.
func (v *verdict) checkKeiki(kind keiki.Kind, doc []byte) {
	var e *schema.SyntaxError
	if errors.As(schema.Check(doc, schema.DefaultDepth), &e) {
		v.malformed(e)
		return
	}
	v.add(doc, keiki.Explain(kind, doc))
}
