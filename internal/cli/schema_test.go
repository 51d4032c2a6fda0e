package cli_test

import (
	"testing"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// TestSchemasAreThePublishedOnes: byte for byte, and the event's part is a schema of its own.
func TestSchemasAreThePublishedOnes(t *testing.T) {
	t.Parallel()
	if r := run(t, "", nil, "schema", "lowkey-request"); r.code != 0 || r.out != string(wire.Schema()) {
		t.Errorf("exit code %d, %q; want the published schema", r.code, r.err)
	}
	r := run(t, "", nil, "schema", "lowkey-events")
	if r.code != 0 {
		t.Fatalf("exit code %d, %q", r.code, r.err)
	}
	s, err := schema.Compile("https://example.com/event", []byte(r.out))
	if err != nil {
		t.Fatal(err)
	}
	for doc, valid := range map[string]bool{
		`{"protocolVersion":1,"type":"status","status":"started"}`: true,
		`{"protocolVersion":1,"type":"text","content":""}`:         true,
		`{"protocolVersion":1,"type":"text"}`:                      false,
		`{"protocolVersion":2,"type":"status"}`:                    false,
	} {
		if got := s.Validate([]byte(doc)); (len(got) == 0) != valid {
			t.Errorf("%s: %v, want valid %v", doc, got, valid)
		}
	}
}
