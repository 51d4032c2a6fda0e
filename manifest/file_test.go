package manifest_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "manifest.json")
	doc := testdata(t, "full.json")
	m := parse(t, doc)

	if err := m.Write(path); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != doc {
		t.Errorf("a new file holds %s", got)
	}
	// A new file gets what any new file of this process gets.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if got, want := mode(t, path), mode(t, other); got != want {
		t.Errorf("a new file has mode %v, want %v", got, want)
	}

	for _, perm := range []fs.FileMode{0o600, 0o664, 0o777} {
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
		if err := m.SetEndpoint("http://h/" + perm.String()); err != nil {
			t.Fatal(err)
		}
		if err := m.Write(path); err != nil {
			t.Fatal(err)
		}
		if got := mode(t, path); got != perm {
			t.Errorf("the mode is %v now, was %v", got, perm)
		}
		if got := read(t, path); got != string(m.Bytes()) {
			t.Errorf("the file holds %s", got)
		}
	}
	noLeftovers(t, dir, "manifest.json", "other")
}

func TestWriteThroughALink(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	target := filepath.Join(elsewhere, "real.json")
	link := filepath.Join(dir, "manifest.json")
	if err := os.WriteFile(target, []byte("{}"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	m := parse(t, `{"id":"muse"}`)
	if err := m.Write(link); err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(link); err != nil || got != target {
		t.Errorf("the link leads to %q, %v", got, err)
	}
	if got := read(t, target); got != `{"id":"muse"}` || mode(t, target) != 0o640 {
		t.Errorf("the target holds %s with mode %v", got, mode(t, target))
	}
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	if err := m.Write(link); err == nil {
		t.Error("Write replaced a link to nothing")
	}
	noLeftovers(t, dir, "manifest.json")
	noLeftovers(t, elsewhere)
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := parse(t, `{"id":"muse"}`)
	if err := m.Write(dir); err == nil {
		t.Error("Write to a folder: no error")
	}
	if err := m.Write(filepath.Join(dir, "none", "manifest.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write into a folder that is not there: %v", err)
	}
	noLeftovers(t, dir)
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func noLeftovers(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Errorf("the folder holds %v, want %v", entries, want)
	}
}
