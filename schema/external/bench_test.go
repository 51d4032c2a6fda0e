package external_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/gowebpki/jcs"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

// requests are valid turn requests as hosts send them, without white space.
func requests(b testing.TB) map[string][]byte {
	var small bytes.Buffer
	if err := json.Compact(&small, file(b, "valid/turn-request.json")); err != nil {
		b.Fatal(err)
	}
	prose := strings.Repeat("The proposal preserves the stated authority boundary. ", 370)
	return map[string][]byte{
		"1KB":  small.Bytes(),
		"20KB": bytes.Replace(small.Bytes(), []byte("Review the bounded proposal."), []byte(prose), 1),
	}
}

func BenchmarkTurnRequest(b *testing.B) {
	compiled, err := schemas()
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range requests(b) {
		bench := func(what string, f func() error) {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		bench("Parse", func() error { _, err := wire.ParseTurnRequest(body); return err })
		bench("schema", func() error { // Check and the validator, without a struct
			if list := compiled[wire.TurnRequestV1].Validate(body); list != nil {
				b.Fatal(list)
			}
			return nil
		})
		bench("go-json-experiment", func() error { return jsonv2.Unmarshal(body, new(wire.TurnRequest)) })
		bench("Check", func() error { return schema.Check(body, 0) })
		buffer := make([]byte, 0, 2*len(body))
		bench("canonical", func() error { _, err := wire.AppendCanonical(buffer, body); return err })
		bench("canonical-jcs", func() error { _, err := jcs.Transform(body); return err })
		bench("CanonicalDigest", func() error { _, err := wire.CanonicalDigest(body); return err })
		r, err := wire.ParseTurnRequest(body)
		if err != nil {
			b.Fatal(err)
		}
		bench("canonical-parsed", func() error { _, err := r.AppendCanonical(buffer); return err })
		bench("DigestInput", func() error { _, err := r.DigestInput(); return err })
	}
}

// A verdict without the validator takes at most a tenth of the time of one with it.
func TestParseIsFast(t *testing.T) { // not parallel: it looks at the clock
	if raceEnabled {
		t.Skip("the race detector slows the two down by different factors")
	}
	compiled, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	body := requests(t)["1KB"]
	fastest := func(f func()) time.Duration {
		best := time.Hour
		for range 20 {
			start := time.Now()
			for range 20 {
				f()
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	parser := fastest(func() {
		if _, err := wire.ParseTurnRequest(body); err != nil {
			t.Fatal(err)
		}
	})
	validator := fastest(func() {
		if list := compiled[wire.TurnRequestV1].Validate(body); list != nil {
			t.Fatal(list)
		}
	})
	t.Logf("parser %v, validator %v: %.0f times", parser/20, validator/20, float64(validator)/float64(parser))
	if validator < 10*parser {
		t.Errorf("parser %v, validator %v: less than 10 times", parser/20, validator/20)
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	for _, doc := range validDocuments(b)[wire.EventV1] {
		e, err := wire.ParseEvent([]byte(doc))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(e.Kind), func(b *testing.B) {
			var line []byte
			b.ReportAllocs()
			for b.Loop() {
				line = e.Append(line[:0])
			}
		})
	}
}
