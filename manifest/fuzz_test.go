package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema"
)

// What is parsed comes out as it went in; what Check accepts, encoding/json reads the same values from;
// setting a value is read back and undone to the byte.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range files {
		doc, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	for _, doc := range []string{
		`{}`, "{\n}", `{"id":"muse","agents":[]}`, `{"id":"m","agents":[{"runtime":"external:m","endpoint":"http://h"},1]}`,
		`{"\ud800":1,"\udfff":2}`, `{"\ud800":1,"\ud801":2}`, "{\"agent\":{\r\n}}", `[]`, `{"a":1,"a":2}`, `{"é":"\u00e9"}`,
		"{ \"id\": \"m\"\n, \"agent\": {\"endpoint\": 1}}",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		m, err := manifest.Parse(doc)
		if syntax := schema.Check(doc, 0); err != nil {
			if _, invalid := errors.AsType[*manifest.Error](err); invalid == (syntax != nil) {
				t.Fatalf("Parse: %v, schema.Check: %v", err, syntax)
			}
			return
		}
		if !bytes.Equal(m.Bytes(), doc) {
			t.Fatalf("Bytes = %q", m.Bytes())
		}
		if m.Check() == nil {
			var read struct {
				Agent *struct{ Endpoint string }
			}
			// encoding/json matches names without regard to case, so it is asked only where that is moot.
			if agent, ok := m.Raw("/agent"); ok && json.Unmarshal([]byte(`{"Agent":`+string(agent)+`}`), &read) == nil &&
				!bytes.Contains(bytes.ToLower(agent), []byte(`\u`)) && bytes.Count(bytes.ToLower(agent), []byte(`endpoint"`)) == 1 {
				if got := m.Agents()[0].Endpoint; got != read.Agent.Endpoint {
					t.Errorf("the endpoint is %q, encoding/json reads %q", got, read.Agent.Endpoint)
				}
			}
			old, ok := m.Raw(m.Agents()[0].Pointer + "/endpoint")
			if !ok {
				t.Fatal("Check accepts a block without an endpoint")
			}
			pointer := m.Agents()[0].Pointer + "/endpoint"
			if err := m.Set(pointer, "https://fuzz.example/"); err != nil {
				t.Fatal(err)
			}
			if got := m.Agents()[0].Endpoint; got != "https://fuzz.example/" {
				t.Errorf("the endpoint set is read as %q", got)
			}
			if err := m.Check(); err != nil {
				t.Errorf("Check after setting the endpoint: %v", err)
			}
			if err := m.Set(pointer, old); err != nil || !bytes.Equal(m.Bytes(), doc) {
				t.Errorf("set back: %q, %v", m.Bytes(), err)
			}
		}
		const name = "added by the fuzz test"
		if _, taken := m.Raw("/" + name); taken {
			return
		}
		if err := m.Set("/"+name, map[string]any{"list": []int{1, 2}}); err != nil {
			t.Fatalf("adding a member: %v", err)
		}
		var compact bytes.Buffer
		if got, ok := m.Raw("/" + name); !ok || json.Compact(&compact, got) != nil || compact.String() != `{"list":[1,2]}` {
			t.Errorf("the member added is read as %s", got)
		}
		if err := schema.Check(m.Bytes(), 0); err != nil {
			t.Errorf("the document with one more member: %v\n%s", err, m.Bytes())
		}
	})
}
