package keiki_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

const tolerance = 300 * time.Second

func ExampleVerify() {
	key := secret.Text("whsec_bm90LWEtcmVhbC1zZWNyZXQ")
	body := []byte(`{"type":"keiki.turn.cancelled","turnId":"turn-1"}`)
	now := time.Unix(1764547200, 0)
	header := keiki.Sign(key, body, now)

	fmt.Println(keiki.Verify(header, body, []secret.Text{key}, now.Add(time.Minute), 5*time.Minute))

	err := keiki.Verify(header, body, []secret.Text{key}, now.Add(time.Hour), 5*time.Minute)
	var refused *keiki.SignatureError
	if errors.As(err, &refused) {
		fmt.Println(refused.Code)
	}
	// Output:
	// <nil>
	// signature_expired
}

func ExampleSign() {
	fmt.Println(keiki.Sign("whsec_bm90LWEtcmVhbC1zZWNyZXQtZm9yLXRlc3Rz", []byte("{}"), time.Unix(0, 0)))
	// Output: t=0,v1=cf968e8498350b38a246f7897f23dfc26939b19d2998550c6097b4120bfe5b52
}

// vectors are the headers of testdata/keiki-signatures.json, with the body that they sign.
type vectors struct {
	Secret  secret.Text `json:"secret"`
	Retired secret.Text `json:"retired secret"`
	Clock   int64       `json:"clock for the test (unix seconds)"`
	Cases   []struct {
		Header *string `json:"header"`
		Answer string  `json:"answer"`
	} `json:"cases"`
	body []byte
	now  time.Time
}

func readVectors(tb testing.TB) *vectors {
	tb.Helper()
	data, err := os.ReadFile("testdata/keiki-signatures.json")
	if err != nil {
		tb.Fatal(err)
	}
	v := new(vectors)
	if err := json.Unmarshal(data, v); err != nil {
		tb.Fatal(err)
	}
	v.body, err = os.ReadFile("testdata/keiki-odd-body.json")
	if err != nil {
		tb.Fatal(err)
	}
	v.now = time.Unix(v.Clock, 0)
	return v
}

// code is the code of a refusal, "" where there is none.
func code(tb testing.TB, err error) keiki.SignatureCode {
	tb.Helper()
	if err == nil {
		return ""
	}
	var bad *keiki.SignatureError
	if !errors.As(err, &bad) {
		tb.Fatalf("the error is a %T, want a *SignatureError: %v", err, err)
	}
	return bad.Code
}

var namedCode = regexp.MustCompile(`signature_\w+`)

// TestFaultE1: the answers of keiki-signatures.json, as far as the header alone decides them.
func TestFaultE1(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	if len(v.Cases) != 20 {
		t.Errorf("%d cases, want 20", len(v.Cases))
	}
	for _, c := range v.Cases {
		header := ""
		if c.Header != nil {
			header = *c.Header
		}
		for _, list := range [][]secret.Text{{v.Secret}, {v.Retired, v.Secret}, {v.Secret, v.Retired}} {
			got := code(t, keiki.Verify(header, v.body, list, v.now, tolerance))
			want := namedCode.FindString(c.Answer)
			switch {
			case strings.HasPrefix(c.Answer, "202"):
				if got != "" {
					t.Errorf("%d secrets, Verify(%q) = %s, want it taken: %s", len(list), header, got, c.Answer)
				}
			case got == "", want != "" && string(got) != want:
				t.Errorf("%d secrets, Verify(%q) = %q, want %s", len(list), header, got, c.Answer)
			}
		}
		if got := code(t, keiki.Verify(header, append(v.body[:len(v.body):len(v.body)], ' '), []secret.Text{v.Secret}, v.now, tolerance)); got == "" {
			t.Errorf("Verify(%q) takes a body with one space more", header)
		}
		if got := code(t, keiki.Verify(header, v.body[:len(v.body)-1], []secret.Text{v.Secret}, v.now, tolerance)); got == "" {
			t.Errorf("Verify(%q) takes a body without its last newline", header)
		}
	}
}

// TestFaultE2: the edge of the window is inside, before and after, in whole seconds.
func TestFaultE2(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	secrets := []secret.Text{v.Secret}
	for _, test := range []struct {
		tolerance time.Duration
		off       int64
		in        bool
	}{
		{tolerance, 0, true}, {tolerance, 299, true}, {tolerance, 300, true}, {tolerance, 301, false},
		{10 * time.Second, 9, true}, {10 * time.Second, 10, true}, {10 * time.Second, 11, false},
		{0, 0, true}, {0, 1, false},
		{1500 * time.Millisecond, 1, true}, {1500 * time.Millisecond, 2, false},
		{1<<63 - 1, 1_700_000_000, true},
	} {
		for _, sign := range []int64{1, -1} {
			header := keiki.Sign(v.Secret, v.body, v.now.Add(time.Duration(sign*test.off)*time.Second))
			want := keiki.SignatureExpired
			if test.in {
				want = ""
			}
			if strings.Contains(header, "t=-") {
				want = keiki.SignatureMalformed
			}
			// A fraction of a second of the clock does not count.
			for _, now := range []time.Time{v.now, v.now.Add(time.Second - 1)} {
				if got := code(t, keiki.Verify(header, v.body, secrets, now, test.tolerance)); got != want {
					t.Errorf("%+d s under %v: %q, want %q", sign*test.off, test.tolerance, got, want)
				}
			}
		}
	}
	// Milliseconds are not seconds, whatever the signature.
	ms := keiki.Sign(v.Secret, v.body, time.Unix(v.Clock*1000, 0))
	if got := code(t, keiki.Verify(ms, v.body, secrets, v.now, tolerance)); got != keiki.SignatureExpired {
		t.Errorf("a time in milliseconds: %q, want it expired", got)
	}
	if got := code(t, keiki.Verify(keiki.Sign(v.Secret, v.body, v.now), v.body, secrets, time.Time{}, tolerance)); got != keiki.SignatureExpired {
		t.Errorf("a clock that was never set: %q, want it expired", got)
	}
}

// TestFaultE3: several signatures, odd lengths, odd spelling.
func TestFaultE3(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	stamp := strconv.FormatInt(v.Clock, 10)
	good := strings.TrimPrefix(keiki.Sign(v.Secret, v.body, v.now), "t="+stamp+",v1=")
	old := strings.TrimPrefix(keiki.Sign(v.Retired, v.body, v.now), "t="+stamp+",v1=")
	other := strings.Repeat("ab", 32)
	early := strconv.FormatInt(v.Clock-301, 10)

	for _, test := range []struct {
		name, header string
		want         keiki.SignatureCode // with the secret alone
		both         keiki.SignatureCode // with the retired one beside it
	}{
		{"plain", "t=%t,v1=%g", "", ""},
		{"signed by the retired one", "t=%t,v1=%o", keiki.SignatureMismatch, ""},
		{"the first of two", "t=%t,v1=%g,v1=%x", "", ""},
		{"the last of three", "t=%t,v1=%x,v1=%x,v1=%g", "", ""},
		{"beside one of odd length", "t=%t,v1=abc,v1=%g", "", ""},
		{"beside an empty one", "t=%t,v1=,v1=%g", "", ""},
		{"t at the end", "v1=%g,v1=%x,t=%t", "", ""},
		{"t between", "v1=%x,t=%t,v1=%g", "", ""},
		{"spaces and tabs everywhere", " t = %t\t, v1 =\t%g ", "", ""},
		{"empty elements", ",t=%t,,v1=%g,", "", ""},
		{"unknown elements", "t=%t,v0=%x,v2=%x,T=1,V1=%x,x,=,v1=%g", "", ""},
		{"none that matches", "t=%t,v1=%x", keiki.SignatureMismatch, keiki.SignatureMismatch},
		{"none that matches beside an odd one", "t=%t,v1=zz,v1=%x", keiki.SignatureMismatch, keiki.SignatureMismatch},

		{"nothing", "", keiki.SignatureMissing, keiki.SignatureMissing},
		{"blank", " \t ", keiki.SignatureMissing, keiki.SignatureMissing},
		{"no element", ",", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"not a list", "whatever", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"no t", "v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"no v1", "t=%t", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"v1 in another case", "t=%t,V1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"v1 without a value", "t=%t,v1", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"v1 too short", "t=%t,v1=abcd", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"v1 with a prefix", "t=%t,v1=0x%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"v1 in quotes", `t=%t,v1="%g"`, keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"two t", "t=%t,t=%t,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t empty", "t=,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t with a sign", "t=+%t,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t negative", "t=-%t,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t with a fraction", "t=%t.0,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t with an underscore", "t=1_764547210,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t in other digits", "t=١٧٦٤٥٤٧٢١٠,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t beyond 64 bits", "t=18446744075474098826,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t at the end of 64 bits", "t=9223372036854775807,v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"t far ahead", "t=999999999999999999,v1=%g", keiki.SignatureExpired, keiki.SignatureExpired},
		// What is signed is t as it stands there.
		{"t with a zero in front", "t=0%t,v1=%g", keiki.SignatureMismatch, keiki.SignatureMismatch},
		{"separated by something else", "t=%t;v1=%g", keiki.SignatureMalformed, keiki.SignatureMalformed},

		// The order: the header's form, then its time, then the signature.
		{"malformed and old", "t=%e,v1=zz", keiki.SignatureMalformed, keiki.SignatureMalformed},
		{"old and wrong", "t=%e,v1=%x", keiki.SignatureExpired, keiki.SignatureExpired},
	} {
		header := strings.NewReplacer("%t", stamp, "%g", good, "%o", old, "%x", other, "%e", early).Replace(test.header)
		if got := code(t, keiki.Verify(header, v.body, []secret.Text{v.Secret}, v.now, tolerance)); got != test.want {
			t.Errorf("%s: Verify(%q) = %q, want %q", test.name, header, got, test.want)
		}
		for _, both := range [][]secret.Text{{v.Secret, v.Retired}, {v.Retired, v.Secret}} {
			if got := code(t, keiki.Verify(header, v.body, both, v.now, tolerance)); got != test.both {
				t.Errorf("%s, two secrets: Verify(%q) = %q, want %q", test.name, header, got, test.both)
			}
		}
	}
}

// TestFaultE4: no secret, an empty one and a blank one let nothing pass, whatever it is signed with.
func TestFaultE4(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, key := range []secret.Text{"", " ", "\n"} {
		header := keiki.Sign(key, v.body, v.now)
		for _, list := range [][]secret.Text{nil, {}, {key}, {"", " ", "\n"}, {"", v.Secret}} {
			if got := code(t, keiki.Verify(header, v.body, list, v.now, tolerance)); got != keiki.SignatureMismatch {
				t.Errorf("signed with %d bytes of nothing, %d secrets: %q, want %q", len(key), len(list), got, keiki.SignatureMismatch)
			}
		}
	}
	// The empty ones do not stand in the way of a good one.
	if err := keiki.Verify(keiki.Sign(v.Secret, v.body, v.now), v.body, []secret.Text{"", v.Secret}, v.now, tolerance); err != nil {
		t.Error(err)
	}
}

// TestFixedSignatures: what openssl dgst -sha256 -hmac made of the same bytes.
func TestFixedSignatures(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, test := range []struct {
		key  secret.Text
		body []byte
		at   int64
		want string
	}{
		{v.Secret, v.body, 1764547200, "a3019df86afd85bbc702a433d86367455b5f8eb815431c9a97f4f805bb900633"},
		{v.Retired, v.body, 1764547200, "87679e689b4e70c64e2ef20ba25be759fd7734f9420ffc7c8df29c43ac871d4e"},
		{v.Secret, v.body, 1764546910, "62c00156c0f8b0208949f1428c49ba95fc45f2bf575835f02d9b3daa434a9a01"},
		{v.Secret, v.body, 1764547510, "0a0515d940f605b3f98377db5c5fb0a0659a68e1852a619d3ac0612c3035f3de"},
		{v.Secret, nil, 1764547200, "7447a2971b1d2d5076b64e517143915836feb80b95e2197f0258f19e4fd28a19"},
		{v.Secret, []byte("{}"), 0, "cf968e8498350b38a246f7897f23dfc26939b19d2998550c6097b4120bfe5b52"},
	} {
		want := fmt.Sprintf("t=%d,v1=%s", test.at, test.want)
		if got := keiki.Sign(test.key, test.body, time.Unix(test.at, 999)); got != want {
			t.Errorf("Sign at %d = %s, want %s", test.at, got, want)
		}
	}
}

// openssl runs it, or skips the test where it is missing.
func openssl(t *testing.T, key string, input []byte) string {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is missing, and CI has to have it")
		}
		t.Skip("SKIPPED: openssl is missing, so nothing outside Go checks our HMAC here")
	}
	cmd := exec.CommandContext(t.Context(), path, "dgst", "-sha256", "-hmac", key)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openssl dgst: %v", err)
	}
	fields := strings.Fields(string(out))
	return fields[len(fields)-1]
}

func TestOpenSSLAgrees(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"whsec_bm90LWEtcmVhbC1zZWNyZXQ", strings.Repeat("k", 16), strings.Repeat("longer than a block ", 10)} {
		for _, body := range []string{"", "{}", "a\r\n\x00\xff\n", strings.Repeat("x", 70_000)} {
			at := time.Unix(1764547200, 0)
			want := "t=1764547200,v1=" + openssl(t, key, []byte("1764547200."+body))
			if got := keiki.Sign(secret.Text(key), []byte(body), at); got != want {
				t.Errorf("key of %d bytes, body of %d: Sign = %s, openssl says %s", len(key), len(body), got, want)
			}
			if err := keiki.Verify(want, []byte(body), []secret.Text{secret.Text(key)}, at, tolerance); err != nil {
				t.Errorf("key of %d bytes, body of %d: what openssl signed is refused: %v", len(key), len(body), err)
			}
		}
	}
}

// TestVerifyAllocates nothing that grows with the body. Not parallel: it reads the process's counters.
func TestVerifyAllocates(t *testing.T) {
	v := readVectors(t)
	body := bytes.Repeat([]byte("x"), 8<<20)
	header := keiki.Sign(v.Secret, body, v.now) + strings.Repeat(",v1="+strings.Repeat("ab", 32), 1000)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if err := keiki.Verify(header, body, []secret.Text{v.Retired, v.Secret}, v.now, tolerance); err != nil {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("%d bytes allocated for a body of %d and a header of %d", n, len(body), len(header))
	}
}

// TestSignatureErrorTexts: there is one for each code, and they show nothing of what came.
func TestSignatureErrorTexts(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range []keiki.SignatureCode{keiki.SignatureMissing, keiki.SignatureMalformed, keiki.SignatureExpired, keiki.SignatureMismatch, "another"} {
		text := (&keiki.SignatureError{Code: c}).Error()
		if text == "" || seen[text] {
			t.Errorf("%s has the text %q, which is no text of its own", c, text)
		}
		seen[text] = true
	}
}

// naiveVerify is the page's words again, with lists and regular expressions.
func naiveVerify(header string, body []byte, secrets []secret.Text, now time.Time, within time.Duration) keiki.SignatureCode {
	if strings.Trim(header, " \t") == "" {
		return keiki.SignatureMissing
	}
	var stamps []string
	var signatures [][]byte
	for _, element := range strings.Split(header, ",") {
		m := regexp.MustCompile(`(?s)^[ \t]*(.*?)[ \t]*(?:=[ \t]*(.*?)[ \t]*)?$`).FindStringSubmatch(element)
		name, value := m[1], m[2]
		switch {
		case name == "t":
			stamps = append(stamps, value)
		case name == "v1" && regexp.MustCompile(`^[0-9a-fA-F]{64}$`).MatchString(value):
			raw, err := hex.DecodeString(value)
			if err != nil {
				panic(err)
			}
			signatures = append(signatures, raw)
		}
	}
	if len(stamps) != 1 || !regexp.MustCompile(`^[0-9]{1,18}$`).MatchString(stamps[0]) || len(signatures) == 0 {
		return keiki.SignatureMalformed
	}
	at, err := strconv.ParseInt(stamps[0], 10, 64)
	if err != nil {
		panic(err)
	}
	seconds := int64(within / time.Second)
	if at < now.Unix()-seconds || at > now.Unix()+seconds {
		return keiki.SignatureExpired
	}
	for _, key := range secrets {
		mac := hmac.New(sha256.New, []byte(key.Reveal()))
		mac.Write([]byte(stamps[0] + "." + string(body)))
		for _, s := range signatures {
			if strings.TrimSpace(key.Reveal()) != "" && hmac.Equal(s, mac.Sum(nil)) {
				return ""
			}
		}
	}
	return keiki.SignatureMismatch
}

// FuzzVerify: no header makes it panic or gives another verdict than the naive reading, nor does what else
// stands in a header change that a good signature is found.
func FuzzVerify(f *testing.F) {
	v := readVectors(f)
	for _, c := range v.Cases {
		if c.Header != nil {
			f.Add(*c.Header, v.body)
		}
	}
	for _, header := range []string{"", " ", ",", "=", "t=,v1=", "t=1,t=1", "v1=\xff,t=\x00", "t\t=\t1764547200 , v1 = ab"} {
		f.Add(header, []byte("{}"))
	}
	secrets := []secret.Text{v.Retired, v.Secret, ""}
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		got := code(t, keiki.Verify(header, body, secrets, v.now, tolerance))
		if want := naiveVerify(header, body, secrets, v.now, tolerance); got != want {
			t.Fatalf("Verify(%q) = %q, want %q", header, got, want)
		}
		switch got {
		case "", keiki.SignatureMissing, keiki.SignatureMalformed, keiki.SignatureExpired, keiki.SignatureMismatch:
		default:
			t.Errorf("Verify(%q) = %q, which is no code", header, got)
		}
		good := keiki.Sign(v.Secret, body, v.now)
		if !bytes.Contains([]byte(header), []byte("t")) {
			if err := keiki.Verify(header+","+good, body, secrets, v.now, tolerance); err != nil {
				t.Errorf("a good signature behind %q: %v", header, err)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	v := readVectors(b)
	header := keiki.Sign(v.Secret, v.body, v.now)
	b.ReportAllocs()
	for b.Loop() {
		if err := keiki.Verify(header, v.body, []secret.Text{v.Secret}, v.now, tolerance); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleSignCredential() {
	bearer := keiki.SignCredential("whsec_bm90LWEtcmVhbC1zZWNyZXQtZm9yLXRlc3Rz", "agent-1", "turn-1", time.Unix(1764547200, 0))
	fmt.Println(bearer) // only the header of a call gets it
	fmt.Println(len(bearer.Reveal()))
	// Output:
	// [redacted]
	// 129
}
