package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/schema/external"
)

// sealable are documents with a digest, each as its text is in a file, with the field's name.
func sealable(t *testing.T) map[string]string {
	t.Helper()
	product, err := os.ReadFile(filepath.Join("..", "..", "schema", "external", "testdata", "valid", "product.json"))
	if err != nil {
		t.Fatal(err)
	}
	binding, err := os.ReadFile(filepath.Join("..", "..", "examples", "reviewer", "admitted", "binding.json"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := os.ReadFile(filepath.Join("..", "..", "examples", "reviewer", "request.json"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"product/digest": string(product), "binding/digest": string(binding), "input/digest": string(request)}
}

// without returns the document with another text for the field's value, and the one that it had.
func without(t *testing.T, doc, field, value string) (changed, had string) {
	t.Helper()
	name := fmt.Sprintf("%q: ", field)
	before, rest, ok := strings.Cut(doc, name)
	if !ok {
		t.Fatalf("there is no %s in\n%s", name, doc)
	}
	had, after, _ := strings.Cut(rest, ",")
	return before + name + value + "," + after, had
}

// TestValidateTellsDigests: a document whose digest is all that is wrong is told the right one, whatever is in
// its place; one that is wrong otherwise is not told a digest that would be wrong again.
func TestValidateTellsDigests(t *testing.T) {
	t.Parallel()
	for field, doc := range sealable(t) {
		pointer := "/" + strings.ReplaceAll(field, "/", "~1")
		for _, value := range []string{`""`, `"sha256:"`, "null", `{"a":[1]}`, `"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"`} {
			changed, had := without(t, doc, field, value)
			v, _ := judge(t, strings.NewReader(changed))
			if v.Valid || len(v.Violations) != 1 || v.Violations[0].Pointer != pointer || !strings.HasPrefix(v.Violations[0].Expected, had+", the digest of ") || `"`+v.Digest+`"` != had {
				t.Errorf("%s %s: %+v\nwant the digest %s", field, value, v, had)
			}
		}
		name := fmt.Sprintf("%q: ", field)
		missing, had := without(t, doc, field, "x")
		missing = strings.Replace(missing, name+"x,", "", 1)
		if v, _ := judge(t, strings.NewReader(missing)); len(v.Violations) != 1 || v.Violations[0].Found != "missing" || `"`+v.Digest+`"` != had {
			t.Errorf("%s is missing: %+v\nwant the digest %s", field, v, had)
		}
		more, _ := without(t, doc, field, `"", "extra": 1`)
		v, _ := judge(t, strings.NewReader(more))
		if len(v.Violations) != 2 || v.Digest != "" || !strings.Contains(fmt.Sprint(v.Violations), "a digest, which is told once the rest is right") || strings.Contains(fmt.Sprint(v.Violations), strings.Trim(had, `"`)) {
			t.Errorf("%s, and more is wrong: %+v", field, v)
		}
		if v, _ := judge(t, strings.NewReader(doc)); !v.Valid || `"`+v.Digest+`"` != had {
			t.Errorf("%s as it has to be: %+v", field, v)
		}
	}
	// What has none is told none.
	if v, _ := judge(t, bytes.NewReader([]byte(`{"schema":"classification.v1"}`))); v.Digest != "" {
		t.Errorf("a label: %+v", v)
	}
}

// TestValidateSeals: the file gets its digest and keeps every other byte, its rights, and its name by a link.
func TestValidateSeals(t *testing.T) {
	t.Parallel()
	for field, doc := range sealable(t) {
		dir := t.TempDir()
		file, link := filepath.Join(dir, "doc.json"), filepath.Join(dir, "link.json")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		changed, had := without(t, doc, field, `""`)
		write(changed)
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		r := run(t, "", nil, "validate", "--seal", link)
		if got, err := os.ReadFile(file); err != nil || string(got) != doc || r.code != 0 || r.err != "" || !strings.Contains(r.out, field+" is now "+strings.Trim(had, `"`)) {
			t.Errorf("%s: exit code %d, %s%s, %v\n%s", field, r.code, r.out, r.err, err, got)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link is replaced (%v)", err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("the file's rights are %v (%v), want those it had", info.Mode(), err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("there is %v (%v)", left, err)
		}

		// Again it changes nothing.
		before, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := judge(t, nil, "--seal", file); !v.Valid || v.Sealed {
			t.Errorf("%s: sealed again: %+v", field, v)
		}
		if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: a file that is right is written anew (%v)", field, err)
		}

		// A field that is missing comes first; of standard input the document is printed.
		missing := strings.Replace(changed, fmt.Sprintf("%q: \"\",", field), "", 1)
		r = run(t, missing, nil, "validate", "--seal")
		if v, _ := judge(t, strings.NewReader(r.out)); r.code != 0 || !v.Valid || !strings.HasPrefix(r.out, "{\n  \""+field+`": `+had+",\n  ") {
			t.Errorf("%s: exit code %d, %+v\n%s", field, r.code, v, r.out)
		}
		if r = run(t, doc, nil, "validate", "--seal", "-"); r.code != 0 || r.out != doc {
			t.Errorf("%s: what is right is printed as %s, exit code %d", field, r.out, r.code)
		}

		// What is wrong otherwise is left alone.
		more, _ := without(t, doc, field, `"", "extra": 1`)
		write(more)
		r = run(t, "", nil, "validate", "--seal", file)
		if got, err := os.ReadFile(file); err != nil || string(got) != more || r.code != 1 {
			t.Errorf("%s, and more is wrong: exit code %d, %v, the file is\n%s", field, r.code, err, got)
		}
	}
}

// TestSealedBindingIsAdmitted: a binding that is written by hand, from its text to a turn.
func TestSealedBindingIsAdmitted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	profile := testhost.NewProfile("profile:1")
	binding := testhost.NewBinding("binding:1", "agent:muse", profile)
	binding.BindingDigest = ""
	writeDoc(t, dir, "profile.json", profile)
	file := writeDoc(t, dir, "binding.json", binding)
	if r := run(t, "", nil, "validate", "--seal", file); r.code != 0 {
		t.Fatalf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if binding, err = external.ParseBinding(text); err != nil {
		t.Fatal(err)
	}
	s := serve(t, nil, "--admissions", dir)
	x := s.orbiplex(profile, binding)
	if a := runTurn(t, x, x.Request("hello")); a.Content != "hello" {
		t.Errorf("%s %q", a.Ended(), a.Content)
	}
}
