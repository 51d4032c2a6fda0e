package external_test

import (
	"testing"

	wire "github.com/backline-dev/backline/schema/external"
)

// Each parser is held to the published schema, to the rules for JSON and to another decoder; the seeds
// are the contract's examples and some more.

func FuzzParseTurnRequest(f *testing.F)    { fuzz(f, wire.TurnRequestV1) }
func FuzzParseEvent(f *testing.F)          { fuzz(f, wire.EventV1) }
func FuzzParseOutcome(f *testing.F)        { fuzz(f, wire.TurnOutcomeV1) }
func FuzzParseProfile(f *testing.F)        { fuzz(f, wire.ProfileV1) }
func FuzzParseBinding(f *testing.F)        { fuzz(f, wire.BindingV1) }
func FuzzParseProduct(f *testing.F)        { fuzz(f, wire.ProductV1) }
func FuzzParseClassification(f *testing.F) { fuzz(f, wire.ClassificationV1) }

func fuzz(f *testing.F, kind wire.Document) {
	for _, doc := range validDocuments(f)[kind] {
		f.Add([]byte(doc))
		f.Add([]byte(parseNode(f, doc).text()))
	}
	for _, doc := range documents(f, "invalid") {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc []byte) { hold(t, kind, doc) })
}
