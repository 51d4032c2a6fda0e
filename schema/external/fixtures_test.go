package external_test

import (
	"os"
	"path/filepath"
	"testing"

	wire "github.com/backline-dev/backline/schema/external"
)

func file(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// documents are the contract's own examples, by name; valid ones and invalid ones.
func documents(t testing.TB, verdict string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", verdict, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s documents: %v", verdict, err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		all[filepath.Base(name)] = file(t, filepath.Join(verdict, filepath.Base(name)))
	}
	return all
}

// The contract's examples get the verdict that the folder they are in tells.
func TestContractsExamples(t *testing.T) {
	t.Parallel()
	for _, verdict := range []string{"valid", "invalid"} {
		for name, doc := range documents(t, verdict) {
			kind, ok := wire.DocumentOf(doc)
			if !ok {
				t.Errorf("%s: no kind of document", name)
				continue
			}
			if err := wire.Check(kind, doc); (err == nil) != (verdict == "valid") {
				t.Errorf("%s/%s: %v", verdict, name, err)
			}
		}
	}
}

// The digests in the contract's examples are what they should be.
func TestContractsDigests(t *testing.T) {
	t.Parallel()
	request := file(t, "valid/turn-request.json")
	r, err := wire.ParseTurnRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.DigestInput(); got != r.InputDigest || err != nil {
		t.Errorf("DigestInput = %s, %v, want %s", got, err, r.InputDigest)
	}
	if got, err := wire.InputDigest(request); got != r.InputDigest || err != nil {
		t.Errorf("InputDigest = %s, %v, want %s", got, err, r.InputDigest)
	}
	doc := file(t, "valid/binding.json")
	b, err := wire.ParseBinding(doc)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := wire.DigestWithout(doc, "binding/digest"); got != b.BindingDigest || err != nil {
		t.Errorf("DigestWithout = %s, %v, want %s", got, err, b.BindingDigest)
	}
	doc = file(t, "valid/product.json")
	p, err := wire.ParseProduct(doc)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := wire.DigestWithout(doc, "product/digest"); got != p.ProductDigest || err != nil {
		t.Errorf("DigestWithout = %s, %v, want %s", got, err, p.ProductDigest)
	}
}
