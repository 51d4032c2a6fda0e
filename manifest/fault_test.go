package manifest_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema"
)

// Fault A5: a duplicate key and a second value are refused with the position; keys in another case are
// unknown fields, which stay as they are.
func TestFaultA5(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file         string
		line, column int
		pointer      string
	}{
		{"duplicate-key.json", 6, 5, "/agent/endpoint"},
		{"second-value.json", 5, 1, ""},
	} {
		_, err := manifest.Load(filepath.Join("testdata", test.file))
		e, ok := errors.AsType[*schema.SyntaxError](err)
		if !ok || e.Line != test.line || e.Column != test.column || e.Pointer != test.pointer {
			t.Errorf("%s: Load = %v, want a *schema.SyntaxError at line %d, column %d, in %q", test.file, err, test.line, test.column, test.pointer)
		}
	}

	doc := testdata(t, "case-variant.json")
	path := filepath.Join(t.TempDir(), "manifest.json")
	m, err := manifest.Load(filepath.Join("testdata", "case-variant.json"))
	if err != nil {
		t.Fatal(err)
	}
	agents := m.Agents()
	if m.ID() != "muse" || len(agents) != 1 || agents[0].Endpoint != "http://127.0.0.1:8787/lowkey/turn" || agents[0].Runtime != "external:muse" {
		t.Errorf("the manifest is read as %q, %+v", m.ID(), agents)
	}
	if err := m.SetEndpoint("https://muse.example/"); err != nil {
		t.Fatal(err)
	}
	if err := m.Write(path); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(doc, "http://127.0.0.1:8787/lowkey/turn", "https://muse.example/", 1)
	if got := read(t, path); got != want {
		t.Errorf("written: %s", got)
	}
}

// Fault A6: 64 levels are accepted, 65 are not, and masses of brackets cost next to nothing.
func TestFaultA6(t *testing.T) {
	nested := func(levels int) []byte {
		return []byte(`{"id":"muse","agent":{"runtime":"external:muse","endpoint":"http://h/"},"x":` +
			strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + "}")
	}
	m, err := manifest.Parse(nested(64))
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		t.Errorf("64 levels: %v", err)
	}
	if _, err := manifest.Parse(nested(65)); err == nil || !strings.Contains(err.Error(), "more than 64 deep") {
		t.Errorf("65 levels: %v", err)
	}
	for _, n := range []int{100_000, 4_000_000} {
		for _, unit := range []string{"[", `{"a":`} {
			doc := []byte(strings.Repeat(unit, n/len(unit)))
			quickest := time.Hour
			for range 3 { // the machine may be busy with something else
				start := time.Now()
				_, err := manifest.Parse(doc)
				quickest = min(quickest, time.Since(start))
				if e, ok := errors.AsType[*schema.SyntaxError](err); !ok || e.Line != 1 {
					t.Fatalf("%d × %s: %v", n, unit, err)
				}
			}
			if quickest > 100*time.Millisecond {
				t.Errorf("%d × %s took %v, want at most 100ms", n, unit, quickest)
			}
			bytes := allocated(func() {
				if _, err := manifest.Parse(doc); err == nil {
					t.Error("accepted")
				}
			})
			if limit := uint64(3*len(doc) + 1<<16); bytes > limit {
				t.Errorf("%d × %s took %d bytes of memory, want at most %d", n, unit, bytes, limit)
			}
		}
	}
}

// Fault A7: numbers that no float64 holds are found again exactly so, after a load, an edit and a write.
func TestFaultA7(t *testing.T) {
	t.Parallel()
	doc := testdata(t, "big-numbers.json")
	path := filepath.Join(t.TempDir(), "manifest.json")
	m, err := manifest.Load(filepath.Join("testdata", "big-numbers.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(path); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != doc {
		t.Errorf("written unchanged: %s", got)
	}
	if err := m.SetEndpoint("https://muse.example/"); err != nil {
		t.Fatal(err)
	}
	if err := m.Set("/name", "Muse"); err != nil {
		t.Fatal(err)
	}
	if err := m.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := manifest.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for pointer, want := range map[string]string{
		"/context/orderId": "9007199254740993",
		"/context/big":     "123456789012345678901234567890",
		"/context/rate":    "1.10",
		"/context/exp":     "1E+2",
		"/agent/orderId":   "9007199254740993",
		"/name":            `"Muse"`,
	} {
		if got, _ := again.Raw(pointer); string(got) != want {
			t.Errorf("%s is %s, want %s", pointer, got, want)
		}
	}
}
