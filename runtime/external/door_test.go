package external_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/external"
)

// A problem is an answer as in RFC 9457.
type problem struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Detail     string `json:"detail"`
	Violations []struct {
		Pointer, Found, Expected string
	} `json:"violations"`
}

// problem is the problem that an answer is.
func (r reply) problem(status int) problem {
	r.t.Helper()
	var p problem
	err := json.Unmarshal([]byte(r.body), &p)
	if err != nil || r.status != status || r.header.Get("Content-Type") != "application/problem+json" ||
		p.Status != status || p.Type == "" || p.Title == "" || p.Detail == "" {
		r.t.Errorf("the answer is %d %s, %v, want a problem with %d\n%s", r.status, r.header.Get("Content-Type"), err, status, r.body)
	}
	return p
}

func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.conf.MaxBody = 64 << 10 })
	good := aRequest("turn:1", "x")
	text := string(good.json())
	for name, c := range map[string]struct {
		body    string
		pointer string // of a violation
		status  int
	}{
		"empty":                 {"", "", 400},
		"no JSON":               {"{", "", 400},
		"a second value":        {text + "{}", "", 400},
		"a key twice":           {strings.Replace(text, `"mode":"start"`, `"mode":"start","mode":"start"`, 1), "/mode", 400},
		"another case":          {strings.Replace(text, `"mode"`, `"MODE"`, 1), "/mode", 400},
		"an unknown field":      {string(good.with("more", 1).json()), "/more", 400},
		"a missing field":       {string(good.with("kind", nil).json()), "/kind", 400},
		"a wrong value":         {string(good.with("passage/no", 257).json()), "/passage~1no", 400},
		"a big number":          {strings.Replace(text, `"max_tokens":512`, `"max_tokens":9007199254740993`, 1), "/budget~1reservation/max_tokens", 400},
		"beyond a double":       {strings.Replace(text, `"max_tokens":512`, `"max_tokens":1e999`, 1), "/budget~1reservation/max_tokens", 400},
		"half a surrogate":      {strings.Replace(text, `"passage:1"`, `"passage:\ud800"`, 1), "/passage~1ref", 400},
		"a space in a date":     {strings.Replace(text, `2026-09-01T00:00:00Z`, `2026-09-01 00:00:00Z`, 1), "/admitted~1at", 400},
		"observation of start":  {string(good.with("observation", doc{"request/ref": "r", "disposition": "admitted", "reason/code": "completed", "evidence/refs": []string{}}).json()), "/observation", 400},
		"continue without":      {string(good.with("mode", "continue").json()), "/observation", 400},
		"too deep":              {strings.Repeat("[", 65) + strings.Repeat("]", 65), "", 400},
		"over the limit":        {text + strings.Repeat(" ", 64<<10), "", 400},
		"a wrong input digest":  {string(good.with("input/digest", wire.ContentDigest(nil)).json()), "", 422},
		"digest and schema":     {string(good.with("input/digest", wire.ContentDigest(nil), "kind", "x").json()), "/kind", 400},
		"digest, then conflict": {string(good.with("input/digest", wire.ContentDigest(nil), "binding/ref", "binding:none").json()), "", 422},
	} {
		p := g.do("POST", "turns", []byte(c.body)).problem(c.status)
		if c.pointer == "" {
			continue
		}
		found := false
		for _, v := range p.Violations {
			found = found || v.Pointer == c.pointer && v.Expected != ""
		}
		if !found {
			t.Errorf("%s: no violation at %s in %+v", name, c.pointer, p)
		}
	}
	if p := g.do("POST", "turns", []byte(`{"a":1,"b":2}`)).problem(400); len(p.Violations) < 10 || len(p.Violations) > 20 {
		t.Errorf("%d violations are listed", len(p.Violations))
	}
	if row, err := g.store.ListTurns(t.Context(), ledger.TurnQuery{}); err != nil || len(row.Turns) != 0 {
		t.Errorf("malformed requests left turns: %+v, %v", row, err)
	}
	// 1.0 is an integer, and t and z may be lower case.
	odd := strings.NewReplacer(`"max_tokens":512`, `"max_tokens":512.0`, `2026-09-01T00:00:00Z`, `2026-09-01t00:00:00z`).Replace(text)
	if r := g.do("POST", "turns", []byte(odd)); r.status != 200 {
		t.Errorf("an odd but valid request: %d %s", r.status, r.body)
	}
}

// Faults A5 and A6 for the documents that an operator sends.
func TestFaultA5A6Admissions(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for path, d := range map[string]doc{"profiles/" + profileRef: aProfile(), "bindings/" + bindingRef: aBinding().sealed()} {
		text := string(d.json())
		for name, body := range map[string]string{
			"a key twice":    strings.Replace(text, `"created/by"`, `"created/by":"x","created/by"`, 1),
			"another case":   strings.Replace(text, `"created/by"`, `"CREATED/BY"`, 1),
			"a second value": text + "{}",
			"deep":           strings.Repeat("[", 100_000),
			"very deep":      strings.Repeat("[", 4_000_000),
		} {
			began := time.Now()
			r := g.operate("PUT", path, []byte(body))
			r.problem(400)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s %s took %v", path, name, took)
			}
		}
	}
}

// Fault I1 and I2: input/digest is that of the canonical form of the value as it came.
func TestFaultI1I2InputDigest(t *testing.T) {
	t.Parallel()
	var vectors []struct{ Input, Canonical, Digest string }
	raw, err := os.ReadFile("testdata/canonical-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	g := newRig(t, nil)
	for i, v := range vectors {
		q := aRequest(fmt.Sprintf("turn:%d", i), "x")
		if text, ok := strings.CutPrefix(v.Input, "["); ok { // a text
			parts := `[{"text":` + strings.TrimSuffix(text, "]") + `, "kind":"text"}]`
			canonical := `[{"kind":"text","text":` + v.Canonical[1:len(v.Canonical)-1] + `}]`
			g.do("POST", "turns", splice(q, parts, v.Digest)).problem(422)
			if r := g.do("POST", "turns", splice(q, parts, string(wire.ContentDigest([]byte(canonical))))); r.status != 200 {
				t.Errorf("vector %d: %d %s", i, r.status, r.body)
			}
			continue
		}
		// An object: the input of a tool, whose bytes are kept.
		r := g.post(q.with(input(script(`{"tool":{"ref":"t","schema":"s","input":` + v.Input + `}}`))...))
		for _, e := range r.events() {
			if e.Kind == wire.EventToolRequest && (string(e.InputDigest) != v.Digest || string(e.Input) != v.Input) {
				t.Errorf("vector %d: %s with %s, want %s with %s", i, e.Input, e.InputDigest, v.Input, v.Digest)
			}
		}
		r.asked()
		g.cancel(q.ref("turn/ref"))
	}
}

// splice puts a text in the place of input/parts.
func splice(q doc, parts, digest string) []byte {
	return bytes.Replace(q.with("input/parts", "HERE", "input/digest", digest).json(), []byte(`"HERE"`), []byte(parts), 1)
}

func TestPathsAndMethods(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "turns", 405, "POST"},
		{"PUT", "turns/turn:1", 405, "GET"},
		{"GET", "turns/turn:1", 404, ""},
		{"GET", "turns/turn:1/cancel", 405, "POST"},
		{"GET", "turns/a%20b", 400, ""},
		{"GET", "turns/", 404, ""},
		{"GET", "turns//", 404, ""},
		{"POST", "turns/", 404, ""},
		{"GET", "nothing", 404, ""},
		{"GET", "products/product:1", 404, ""},
		{"PUT", "products/product:1", 405, "GET"},
		{"GET", "bindings/b/session", 405, "DELETE"},
		{"POST", "bindings/b", 405, "DELETE, GET, PUT"},
	} {
		r := g.do(c.method, c.path, nil)
		r.problem(c.status)
		if r.header.Get("Allow") != c.allow || r.header.Get("Location") != "" {
			t.Errorf("%s %s: Allow %q, Location %q", c.method, c.path, r.header.Get("Allow"), r.header.Get("Location"))
		}
	}
	if r := g.do("POST", "turns/turn:1/cancel", nil); r.status != 404 || r.body != `{"turn/ref":"turn:1","cancellation":"unknown"}`+"\n" {
		t.Errorf("cancel of an unknown turn: %d %s", r.status, r.body)
	}
	if r := g.do("DELETE", "bindings/binding:none/session", nil); r.status != 404 || r.body != `{"session":"unknown"}`+"\n" {
		t.Errorf("close of an unknown session: %d %s", r.status, r.body)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(s *setup) { s.conf.Tokens = map[string]secret.Text{"a": "token-a", "b": "token-b"} })
	q := aRequest("turn:1", goodScript).json()
	paths := []struct{ method, path string }{
		{"POST", "turns"}, {"GET", "turns/t"}, {"POST", "turns/t/cancel"}, {"GET", "products/p"}, {"DELETE", "bindings/b/session"},
	}
	for _, p := range paths {
		for _, header := range []string{"", "Bearer", "Bearer token-c", "Basic token-a", "Bearer " + operatorToken} {
			r := g.do(p.method, p.path, q, "Authorization", header)
			r.problem(401)
			if r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: no WWW-Authenticate", p.method, p.path)
			}
		}
	}
	// Authentication comes before all else.
	g.do("POST", "turns", []byte("{")).problem(401)
	for _, header := range []string{"Bearer token-a", "bearer token-b"} {
		if r := g.do("POST", "turns", q, "Authorization", header); r.status != 200 {
			t.Errorf("%s: %d %s", header, r.status, r.body)
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		for _, path := range []string{"profiles/" + profileRef, "bindings/" + bindingRef} {
			g.do(method, path, nil, "Authorization", "Bearer token-a").problem(401)
			g.do(method, path, nil).problem(401)
		}
	}
	none := newRig(t, func(s *setup) { s.conf.OperatorToken = "" })
	none.do("GET", "profiles/"+profileRef, nil).problem(404)
	none.do("PUT", "bindings/"+bindingRef, nil, "Authorization", "Bearer ").problem(404)
}

func TestNewNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := external.New(external.Config{
		Adapters:      map[string]adapters.Adapter{"a b": nil},
		Tokens:        map[string]secret.Text{"": "", "x": "same"},
		OperatorToken: "same",
		Epoch:         "a b",
	})
	for _, want := range []string{"Engine is nil", "Store is nil", `Adapters["a b"]`, `token ""`, "OperatorToken is also", "Epoch"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want it to name %s", err, want)
		}
	}
	engine, err := runtime.New(runtime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := external.New(external.Config{Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{})}); err == nil || !strings.Contains(err.Error(), "no adapter") {
		t.Errorf("New without an adapter = %v", err)
	}
}
