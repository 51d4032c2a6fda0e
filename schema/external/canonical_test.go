package external_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/schema"
	wire "github.com/backline-dev/backline/schema/external"
)

type vector struct{ Input, Canonical, Digest string }

func vectors(t *testing.T) []vector {
	t.Helper()
	var list []vector
	if err := json.Unmarshal(file(t, "canonical-vectors.json"), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 7 {
		t.Fatalf("%d vectors, want 7", len(list))
	}
	return list
}

func holdVector(t *testing.T, v vector) {
	t.Helper()
	got, err := wire.AppendCanonical(nil, []byte(v.Input))
	if err != nil || string(got) != v.Canonical {
		t.Errorf("AppendCanonical(%s) = %s, %v, want %s", v.Input, got, err, v.Canonical)
	}
	digest, err := wire.CanonicalDigest([]byte(v.Input))
	if err != nil || string(digest) != v.Digest {
		t.Errorf("CanonicalDigest(%s) = %s, %v, want %s", v.Input, digest, err, v.Digest)
	}
	if digest := wire.ContentDigest([]byte(v.Canonical)); string(digest) != v.Digest {
		t.Errorf("ContentDigest(%s) = %s, want %s", v.Canonical, digest, v.Digest)
	}
	other, err := jcs.Transform([]byte(v.Input))
	if err != nil || string(other) != v.Canonical {
		t.Errorf("jcs.Transform(%s) = %s, %v, want %s", v.Input, other, err, v.Canonical)
	}
	// Parts of a request with this text: its own digest is the right one, another is not.
	for i := range 2 {
		wanted := v.Digest
		parts := []wire.InputPart{{Kind: wire.PartText, Text: v.Input}}
		var r wire.TurnRequest
		if err := json.Unmarshal(file(t, "valid/turn-request.json"), &r); err != nil {
			t.Fatal(err)
		}
		r.InputParts = parts
		if i == 0 {
			text, err := json.Marshal(parts)
			if err != nil {
				t.Fatal(err)
			}
			canonical, err := jcs.Transform(text)
			if err != nil {
				t.Fatal(err)
			}
			wanted = string(wire.ContentDigest(canonical))
		}
		r.InputDigest = wire.Digest(wanted)
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := wire.ParseTurnRequest(body)
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := parsed.DigestInput(); err != nil || (digest == parsed.InputDigest) != (i == 0) {
			t.Errorf("DigestInput = %s, %v, and the request says %s", digest, err, parsed.InputDigest)
		}
	}
}

// Fault I1: the order of keys, escapes, no other normalisation.
func TestFaultI1(t *testing.T) {
	t.Parallel()
	for i, v := range vectors(t) {
		if i != 2 {
			holdVector(t, v)
		}
	}
}

// Fault I2: numbers as ECMAScript writes doubles.
func TestFaultI2(t *testing.T) {
	t.Parallel()
	holdVector(t, vectors(t)[2])
	for in, want := range map[string]string{
		"-0": "0", "0e5": "0", "-0.0e-7": "0", "1e-400": "0", "-1e-400": "0", "5e-324": "5e-324", "2.5e-324": "5e-324", "2.4e-324": "0",
		"1.7976931348623157e308": "1.7976931348623157e+308", "1e23": "1e+23", "999999999999999900000": "999999999999999900000",
		"123456789012345678901234567890": "1.2345678901234568e+29", "9007199254740993": "9007199254740992", "1E+2": "100", "1.10": "1.1",
		"-1.5e-7": "-1.5e-7", "100000000000000000000000e-2": "1e+21", "0.000001": "0.000001", "0.0000009": "9e-7", "1234567890123456": "1234567890123456",
	} {
		if got, err := wire.AppendCanonical(nil, []byte(in)); err != nil || string(got) != want {
			t.Errorf("AppendCanonical(%s) = %s, %v, want %s", in, got, err, want)
		}
	}
}

// ecma writes a double as ECMAScript's Number::toString does (ECMA-262, section 6.1.6.1.20), from its
// shortest digits and exponent.
func ecma(f float64) string {
	if f == 0 {
		return "0"
	}
	if f < 0 {
		return "-" + ecma(-f)
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
	digits := strings.ReplaceAll(mantissa, ".", "")
	e, _ := strconv.Atoi(exponent)
	k, n := len(digits), e+1
	switch {
	case k <= n && n <= 21:
		return digits + strings.Repeat("0", n-k)
	case 0 < n && n <= 21:
		return digits[:n] + "." + digits[n:]
	case -6 < n && n <= 0:
		return "0." + strings.Repeat("0", -n) + digits
	}
	sign := "+"
	if n-1 < 0 {
		sign = "-"
	}
	tail := "e" + sign + strconv.Itoa(max(n-1, 1-n))
	if k == 1 {
		return digits + tail
	}
	return digits[:1] + "." + digits[1:] + tail
}

// Random doubles, in several spellings, come out as a second implementation writes them.
func TestNumbersAsECMAScript(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			f = float64(rapid.Int64().Draw(t, "integer"))
		case 1:
			f = float64(rapid.Int32().Draw(t, "integer")) * math.Pow10(rapid.IntRange(-30, 30).Draw(t, "exponent"))
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return
		}
		want := ecma(f)
		if own, err := jcs.NumberToJSON(f); err != nil || own != want {
			t.Fatalf("jcs.NumberToJSON(%v) = %s, %v, want %s", f, own, err, want)
		}
		spellings := []string{
			strconv.FormatFloat(f, 'e', -1, 64), strconv.FormatFloat(f, 'E', 20, 64), strconv.FormatFloat(f, 'f', -1, 64), want,
			string(strconv.AppendFloat(nil, f, 'g', -1, 64)),
		}
		if r := new(big.Rat).SetFloat64(f); r.IsInt() {
			spellings = append(spellings, r.Num().String())
		}
		for _, s := range spellings {
			if got, err := wire.AppendCanonical(nil, []byte(s)); err != nil || string(got) != want {
				t.Errorf("AppendCanonical(%s) = %s, %v, want %s", s, got, err, want)
			}
		}
		back, err := strconv.ParseFloat(want, 64)
		if err != nil || back != f {
			t.Errorf("%s is %v, want %v", want, back, f)
		}
	})
}

// Keys of all kinds come in the order of their UTF-16 units.
func TestOrderOfKeys(t *testing.T) {
	t.Parallel()
	// Characters around the places where UTF-8 and UTF-16 disagree.
	runes := []rune{'a', 'b', 0, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xfb33, 0xfffd, 0xffff, 0x10000, 0x1f600, 0x103ff, 0x10400, 0x10ffff}
	key := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom(runes), 0, 4).Draw(t, "key"))
	})
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(key, 0, 40, rapid.ID).Draw(t, "keys")
		doc := []byte("{")
		for i, k := range keys {
			if i > 0 {
				doc = append(doc, ',')
			}
			text, err := json.Marshal(k)
			if err != nil {
				t.Fatal(err)
			}
			doc = append(append(doc, text...), `:{"b":[],"a":0}`...)
		}
		doc = append(doc, '}')
		slices.SortFunc(keys, func(a, b string) int { return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) })
		got, err := wire.AppendCanonical(nil, doc)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		d := jsontext.NewDecoder(bytes.NewReader(got))
		_, _ = d.ReadToken()
		for d.PeekKind() == '"' {
			k, err := d.ReadToken()
			if err != nil {
				t.Fatal(err)
			}
			order = append(order, k.String())
			if v, err := d.ReadValue(); err != nil || string(v) != `{"a":0,"b":[]}` {
				t.Fatalf("the value is %s, %v", v, err)
			}
		}
		if !slices.Equal(order, keys) {
			t.Errorf("AppendCanonical(%q) = %q, want the keys as in %q", doc, got, keys)
		}
	})
}

// holdCanonical holds the canonical form to that of package jcs.
func holdCanonical(t tb, doc []byte) {
	t.Helper()
	before := bytes.Clone(doc)
	got, err := wire.AppendCanonical([]byte("x"), doc)
	want, jcsErr := jcs.Transform(doc)
	switch {
	case !bytes.Equal(doc, before):
		t.Fatalf("%q was changed", before)
	case err != nil:
		if string(got) != "x" {
			t.Errorf("AppendCanonical(%q) fails and leaves %q", doc, got)
		}
		// Package jcs has another limit of nesting.
		var syntax *schema.SyntaxError
		if jcsErr == nil && !(errors.As(err, &syntax) && strings.Contains(syntax.Message, "nested")) {
			t.Errorf("AppendCanonical(%q) = %v, and jcs.Transform = %q", doc, err, want)
		}
		return
	case jcsErr != nil:
		t.Fatalf("AppendCanonical(%q) = %q, and jcs.Transform = %v", doc, got, jcsErr)
	case string(got) != "x"+string(want):
		t.Fatalf("AppendCanonical(%q) = %q, want x%q", doc, got, want)
	}
	again, err := wire.AppendCanonical(nil, want)
	if err != nil || !bytes.Equal(again, want) {
		t.Errorf("AppendCanonical(%q) = %q, %v: not the same again", want, again, err)
	}
}

func TestCanonicalAsPackageJCS(t *testing.T) {
	t.Parallel()
	m := loadMaterial(t)
	rapid.Check(t, func(t *rapid.T) {
		w := writer{t: t, parts: m.parts, names: m.names}
		holdCanonical(t, w.draw(m.parts))
	})
}

func TestCanonicalRefuses(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		``:                            "empty",
		`{"a":1,"\u0061":2}`:          "duplicate",
		`[1] 2`:                       "after the value",
		"\"\xff\"":                    "0xFF",
		`{"a":["x","\ud83d"]}`:        "/a/1 is \"\ufffd\", expected text without half of a surrogate pair",
		`["\ude00\ud83d"]`:            "/0 is",
		`[1e309]`:                     "/0 is 1e309, expected a number that a double can hold",
		`{"a":{"b~/c":-1e309}}`:       "/a/b~0~1c is -1e309",
		strings.Repeat("[", 65) + "0": "more than 64 deep",
	} {
		if got, err := wire.AppendCanonical([]byte("x"), []byte(doc)); err == nil || !strings.Contains(err.Error(), want) || string(got) != "x" {
			t.Errorf("AppendCanonical(%s) = %s, %v, want %s", doc, got, err, want)
		}
		if got, err := wire.CanonicalDigest([]byte(doc)); err == nil || got != "" {
			t.Errorf("CanonicalDigest(%s) = %s, %v", doc, got, err)
		}
	}
}

// Deep nesting out of order costs no more than a copy for each level.
func TestCanonicalTime(t *testing.T) { // not parallel: it looks at the clock
	doc := []byte(strings.Repeat(`{"b":0,"a":`, 62) + `["` + strings.Repeat(`x\n`, 1<<20) + `"]` + strings.Repeat(`}`, 62))
	start := time.Now()
	if _, err := wire.CanonicalDigest(doc); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 3*time.Second && !raceEnabled {
		t.Errorf("%d bytes took %v", len(doc), took)
	}
	doc = []byte("{")
	for i := range 100_000 {
		doc = strconv.AppendInt(append(doc, '"'), int64(100_000-i), 36)
		doc = append(doc, `":0,`...)
	}
	start = time.Now()
	if _, err := wire.CanonicalDigest(append(doc, `"":0}`...)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 3*time.Second && !raceEnabled {
		t.Errorf("100,000 keys took %v", took)
	}
}

func TestDigestWithout(t *testing.T) {
	t.Parallel()
	want := wire.ContentDigest([]byte(`{"a":"","b":[1]}`))
	for _, doc := range []string{`{"b":[1],"a":"x"}`, `{"a":{"a":[]},"b":[1]}`, ` {"\u0061" : 12.5 , "b":[1.0]}`, `{"a":"","b":[1]}`} {
		if got, err := wire.DigestWithout([]byte(doc), "a"); got != want || err != nil {
			t.Errorf("DigestWithout(%s) = %s, %v, want %s", doc, got, err, want)
		}
	}
	for doc, message := range map[string]string{
		`{"b":{"a":1}}`:     `no field "a"`,
		`{}`:                `no field "a"`,
		`["a"]`:             "an array is no object",
		`{"a":1`:            "ends",
		`{"a":1,"a":2}`:     "duplicate",
		`{"a":1,"b":1e999}`: "a number that a double can hold",
	} {
		if got, err := wire.DigestWithout([]byte(doc), "a"); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("DigestWithout(%s) = %s, %v, want %s", doc, got, err, message)
		}
	}
}

func TestInputDigest(t *testing.T) {
	t.Parallel()
	want := wire.ContentDigest([]byte(`[{"a":1,"b":"é"}]`))
	for _, doc := range []string{`{"x":0,"input/parts":[ {"b":"\u00e9","a":1.0}]}`, `{"input\/parts":[{"a":1,"b":"é"}],"input/part":0}`} {
		if got, err := wire.InputDigest([]byte(doc)); got != want || err != nil {
			t.Errorf("InputDigest(%s) = %s, %v, want %s", doc, got, err, want)
		}
	}
	for _, doc := range []string{`{}`, `[]`, `{"x":{"input/parts":[]}}`, `{"input/parts":[],"input/parts":[]}`, `{"input/parts":["\ud800"]}`, `null`} {
		if got, err := wire.InputDigest([]byte(doc)); err == nil {
			t.Errorf("InputDigest(%s) = %s, want an error", doc, got)
		}
	}
}

// FuzzCanonical holds the canonical form to that of package jcs.
func FuzzCanonical(f *testing.F) {
	for _, list := range validDocuments(f) {
		for _, doc := range list {
			f.Add([]byte(doc))
		}
	}
	f.Add([]byte(`{"\ufb33":1,"\ud83d\ude00":[-0.0e5,1E400],"":"\u0000\b\/\u2028"}`))
	f.Fuzz(func(t *testing.T, doc []byte) { holdCanonical(t, doc) })
}
