package keiki_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/keiki"
)

var claimSchema = func() *schema.Schema {
	s, err := schema.Compile(wire.ClaimSchemaID, wire.ClaimSchema())
	if err != nil {
		panic(err)
	}
	return s
}()

// holdClaim holds ParseClaim to the verdict of Check and the published schema.
func holdClaim(t tb, body []byte) (accepted bool) {
	t.Helper()
	c, err := wire.ParseClaim(body)
	list := claimSchema.Validate(body)
	once := slices.CompactFunc(slices.Clone(list), func(a, b schema.Violation) bool { return a.Pointer == b.Pointer })
	if diff := cmp.Diff(once, wire.ExplainClaim(body)); diff != "" {
		t.Errorf("ExplainClaim(%q) (-schema +ExplainClaim):\n%s", body, diff)
	}
	if (err == nil) != (list == nil) {
		t.Fatalf("ParseClaim(%q) = %+v, %v, but the schema says %v", body, c, err, list)
	}
	if err == nil {
		return true
	}
	var e *wire.Error
	if !errors.As(err, &e) || c != nil {
		t.Fatalf("ParseClaim(%q) = %+v, %T", body, c, err)
	}
	if (e.Code == wire.CodeInvalidJSON) != (schema.Check(body, 0) != nil) || e.Code != wire.CodeInvalidJSON && e.Code != wire.CodeInvalidRequest {
		t.Errorf("ParseClaim(%q) = %v, with the code %s", body, err, e.Code)
	}
	if len(list) < schema.MaxViolations && !slices.ContainsFunc(list, func(v schema.Violation) bool {
		return v.Pointer == e.Pointer || strings.HasPrefix(e.Pointer, v.Pointer+"/") // what lacks the object lacks the field
	}) {
		t.Errorf("ParseClaim(%q) = %v, but the schema says %v", body, err, list)
	}
	return false
}

// Whatever the inbox answers, reader and schema agree.
func TestClaimsAndSchemaAgree(t *testing.T) {
	t.Parallel()
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(rapid.SampledFrom([]string{
			flatClaim, nestedClaim, `{"turn":null}`, `{"turn":{"turnId":"t","messages":[],"keiki":{"turnUrl":"u"}}}`,
			`{"turn":{"turn":{"turnId":"t","messages":[],"keiki":{"turnUrl":"u"}}}}`,
			`{"turn":{"turn":{},"turnId":"t","messages":[],"keiki":{"turnUrl":"u"}}}`,
			`{"turn":{"turn":{"turnId":"t"},"messages":[],"keiki":{"turnUrl":""}}}`,
			`{"turn":{"turn":null,"turnToken":"ht_0123456789","turnId":null,"messages":null,"keiki":null}}`,
		}).Draw(t, "seed"))
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			body = edit(t, body)
			if holdClaim(t, body) {
				accepted++
			} else {
				refused++
			}
		}
	})
	if accepted == 0 || refused == 0 {
		t.Errorf("%d accepted, %d refused: the test does not show enough", accepted, refused)
	}
}

// What is missing of a claim is looked for where ParseClaim looks for it.
func TestExplainClaim(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		flatClaim:       "",
		nestedClaim:     "",
		`{"turn":null}`: "",
		`{}`:            "/turn is missing, expected an object or null",
		`{"turn":{}}`: "/turn/turnId is missing, expected a string that is not empty\n" +
			"/turn/messages is missing, expected an array\n" +
			"/turn/keiki is missing, expected an object",
		`{"turn":{"turnId":"","messages":{},"keiki":[]}}`: `/turn/turnId is "", expected a string that is not empty` + "\n" +
			"/turn/messages is an object, expected an array\n" +
			"/turn/keiki is an array, expected an object",
		`{"turn":{"turn":{"turnId":"t","messages":[]},"keiki":{"turnUrl":""}}}`: "/turn/turn/keiki is missing, expected an object",
		with(t, nestedClaim, `"messages":[`, `"messages":[7,`):                  "/turn/turn/messages/0 is 7, expected an object",
		`{"turn":null}x`: "not JSON",
	} {
		holdClaim(t, []byte(body))
		var lines []string
		for _, v := range wire.ExplainClaim([]byte(body)) {
			lines = append(lines, v.String())
		}
		if got := strings.Join(lines, "\n"); got != want && (want != "not JSON" || !strings.Contains(got, "after the value")) {
			t.Errorf("ExplainClaim(%s):\n%s\nwant:\n%s", body, got, want)
		}
	}
}

func TestClaimSchema(t *testing.T) {
	t.Parallel()
	var doc struct {
		Dialect     string `json:"$schema"`
		ID          string `json:"$id"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Defs        map[string]struct {
			Properties map[string]struct {
				Description string `json:"description"`
			} `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(wire.ClaimSchema(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Dialect != "https://json-schema.org/draft/2020-12/schema" || doc.ID != wire.ClaimSchemaID || doc.Title == "" || doc.Description == "" {
		t.Errorf("%+v", doc)
	}
	fields := 0
	for name, def := range doc.Defs {
		for field, p := range def.Properties {
			if fields++; p.Description == "" {
				t.Errorf("%s/%s has no description", name, field)
			}
		}
	}
	if fields != 32 {
		t.Errorf("%d fields, want 32", fields)
	}
	if strings.Contains(string(wire.ClaimSchema()), "additionalProperties") {
		t.Error("the schema closes or restricts additional properties")
	}
	wire.ClaimSchema()[0] = 'x'
	if wire.ClaimSchema()[0] == 'x' {
		t.Error("ClaimSchema returns memory that is shared")
	}
}
