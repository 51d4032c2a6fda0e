package wirehttp_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/internal/wirehttp"
)

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         `""`,
		"muse":                     `"muse"`,
		"a\"b\n\x00\xff\u202e":     `"a\"b\n\x00\xff\u202e"`,
		strings.Repeat("渐", 100):   `"` + strings.Repeat("渐", 100) + `"`,
		strings.Repeat("渐", 101):   `"` + strings.Repeat("渐", 100) + `…"`,
		strings.Repeat("x", 10000): `"` + strings.Repeat("x", 100) + `…"`,
	} {
		if got := wirehttp.Excerpt(in); got != want {
			t.Errorf("Excerpt(%.20q) = %s, want %s", in, got, want)
		}
	}
}

func TestMediaTypes(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON": true, "application/json;charset=UTF-8": true,
		`application/json; charset="utf-8"; x=y`: true, "application/problem+json": true, "text/x+json": true,
		"application/vnd.a.b+JSON; v=1": true, "application/json;": true, " application/json ": true,
		"text/plain": false, "application/jsonp": false, "application/x-www-form-urlencoded": false, "json": false,
		"+json": false, "application/": false, "application/json, text/plain": false, "application/json; charset": false, "/": false,
		"application/+": false, "multipart/form-data; boundary=x": false, "application/json+xml": false,
	} {
		if got := wirehttp.AcceptType(http.Header{"Content-Type": {v}}); got != want {
			t.Errorf("acceptType(%q) = %t, want %t", v, got, want)
		}
	}
	if !wirehttp.AcceptType(http.Header{}) {
		t.Error("no Content-Type is refused")
	}
}

func TestEncodings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []string
		gz, ok bool
	}{
		{nil, false, true}, {[]string{""}, false, true}, {[]string{"identity"}, false, true}, {[]string{"Identity"}, false, true},
		{[]string{"gzip"}, true, true}, {[]string{"GZIP"}, true, true}, {[]string{" gzip "}, true, true},
		{[]string{"br"}, false, false}, {[]string{"deflate"}, false, false}, {[]string{"gzip, gzip"}, false, false},
		{[]string{"gzip", "gzip"}, false, false}, {[]string{"gzip, identity"}, false, false}, {[]string{"*"}, false, false},
	} {
		gz, ok := wirehttp.Encoding(http.Header{"Content-Encoding": tc.values})
		if ok != tc.ok || ok && gz != tc.gz {
			t.Errorf("encoding(%q) = %t, %t, want %t, %t", tc.values, gz, ok, tc.gz, tc.ok)
		}
	}
}

func zip(t testing.TB, parts ...string) string {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&b)
		if _, err := io.WriteString(z, p); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// A broken body ends with an error.
type broken struct {
	io.Reader
	err error
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = b.err
	}
	return n, err
}

// one byte at a time.
type trickle struct{ io.Reader }

func (r trickle) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(1, len(p))]) }

// A deadlines is a ResponseWriter that notes its deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { d.read = append(d.read, t); return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = append(d.write, t); return nil }

func TestRead(t *testing.T) {
	t.Parallel()
	const limit = 10_000
	at := strings.Repeat("x", limit)
	const anyLength = -2
	damaged := []byte(zip(t, "hello"))
	damaged[len(damaged)-5] ^= 1
	for name, tc := range map[string]struct {
		body          io.Reader
		length        int64 // anyLength: with its length where that is known, and without
		typ, encoding string
		want          string
		status        int // of the refusal
		reason        string
	}{
		"empty":                 {strings.NewReader(""), anyLength, "", "", "", 0, ""},
		"a body":                {strings.NewReader("hello"), anyLength, "application/json", "", "hello", 0, ""},
		"bytewise":              {trickle{strings.NewReader(at)}, anyLength, "", "", at, 0, ""},
		"at the limit":          {strings.NewReader(at), anyLength, "", "", at, 0, ""},
		"over the limit":        {strings.NewReader(at + "x"), anyLength, "", "", "", 413, "too-large"},
		"a length that lies":    {strings.NewReader("x"), 1 << 40, "", "", "", 413, "too-large"},
		"gzip":                  {strings.NewReader(zip(t, "hello")), anyLength, "", "gzip", "hello", 0, ""},
		"gzip bytewise":         {trickle{strings.NewReader(zip(t, "hello"))}, anyLength, "", "gzip", "hello", 0, ""},
		"gzip members":          {strings.NewReader(zip(t, "he", "", "llo")), anyLength, "", "GZIP", "hello", 0, ""},
		"gzip at the limit":     {strings.NewReader(zip(t, at)), anyLength, "", "gzip", at, 0, ""},
		"gzip over the limit":   {strings.NewReader(zip(t, at, "x")), anyLength, "", "gzip", "", 413, "too-large"},
		"gzip of nothing":       {strings.NewReader(strings.Repeat(zip(t, ""), 100_000)), anyLength, "", "gzip", "", 413, "too-large"},
		"gzip, empty":           {strings.NewReader(""), anyLength, "", "gzip", "", 400, "bad-gzip"},
		"gzip, cut":             {strings.NewReader(zip(t, "hello")[:15]), anyLength, "", "gzip", "", 400, "bad-gzip"},
		"gzip, junk behind":     {strings.NewReader(zip(t, "hello") + "junk"), anyLength, "", "gzip", "", 400, "bad-gzip"},
		"gzip, wrong checksum":  {bytes.NewReader(damaged), anyLength, "", "gzip", "", 400, "bad-gzip"},
		"another type":          {strings.NewReader("x"), anyLength, "text/plain", "", "", 415, "media-type"},
		"another encoding":      {strings.NewReader("x"), anyLength, "", "br", "", 415, "encoding"},
		"cut":                   {broken{strings.NewReader("x"), io.ErrUnexpectedEOF}, -1, "", "", "", 400, "cut-body"},
		"late":                  {broken{strings.NewReader("x"), fmt.Errorf("read: %w", os.ErrDeadlineExceeded)}, -1, "", "", "", 408, "slow-body"},
		"late, gzip":            {broken{strings.NewReader(zip(t, "x")[:12]), os.ErrDeadlineExceeded}, -1, "", "gzip", "", 408, "slow-body"},
		"a middleware's limit":  {broken{strings.NewReader("x"), &http.MaxBytesError{Limit: 1}}, -1, "", "", "", 413, "too-large"},
		"the same, gzip header": {broken{strings.NewReader(""), &http.MaxBytesError{Limit: 1}}, -1, "", "gzip", "", 413, "too-large"},
	} {
		lengths := []int64{tc.length}
		if tc.length == anyLength {
			lengths = []int64{-1}
			if l, ok := tc.body.(interface{ Len() int }); ok {
				lengths = append(lengths, int64(l.Len()))
			}
		}
		for _, length := range lengths {
			t.Run(fmt.Sprintf("%s %d", name, length), func(t *testing.T) {
				if s, ok := tc.body.(io.Seeker); ok {
					if _, err := s.Seek(0, io.SeekStart); err != nil {
						t.Fatal(err)
					}
				}
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Body, r.ContentLength = io.NopCloser(tc.body), length
				r.Header.Set("Content-Type", tc.typ)
				if tc.encoding != "" {
					r.Header.Set("Content-Encoding", tc.encoding)
				}
				b := wirehttp.Body{MaxBytes: limit}.WithDefaults()
				w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
				b.Bound(w, r)
				got, f := b.Read(w, r)
				if tc.status == 0 {
					if f != nil || string(got) != tc.want {
						t.Fatalf("Read = %.20q, %+v, want %.20q", got, f, tc.want)
					}
					if n := len(w.read); n == 0 || !w.read[n-1].IsZero() {
						t.Errorf("the read deadlines are %v, want none in the end", w.read)
					}
					if cap(got) > limit+1 {
						t.Errorf("a body of at most %d bytes takes %d", limit, cap(got))
					}
					return
				}
				if f == nil || f.Status != tc.status || f.Reason != tc.reason || f.Text == "" || got != nil {
					t.Fatalf("Read = %.20q, %+v, want %d %s", got, f, tc.status, tc.reason)
				}
				if f.Closing != (length != 0 || tc.status == 400) {
					t.Errorf("Closing is %t", f.Closing)
				}
				if n := len(w.read); length != 0 && (n != 1 || w.read[0].IsZero()) {
					t.Errorf("the read deadlines are %v, want one in place", w.read)
				}
			})
		}
	}
}

// A body that is signed is taken as it was sent.
func TestReadAsSent(t *testing.T) {
	t.Parallel()
	b := wirehttp.Body{AsSent: true}.WithDefaults()
	for encoding, want := range map[string]string{"": "", "identity": "", "gzip": "encoding", "br": "encoding"} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("hello"))
		r.Header.Set("Content-Type", "text/plain")
		r.Header.Set("Content-Encoding", encoding)
		got, f := b.Read(httptest.NewRecorder(), r)
		if want == "" && (f != nil || string(got) != "hello") || want != "" && (f == nil || f.Reason != want || f.Status != 415 || strings.Contains(f.Text, "gzip or")) {
			t.Errorf("%q: %q, %+v", encoding, got, f)
		}
	}
}

func TestBodyDefaults(t *testing.T) {
	t.Parallel()
	if got, want := (wirehttp.Body{}).WithDefaults(), (wirehttp.Body{MaxBytes: 8 << 20, Timeout: 30 * time.Second}); got != want {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	b := wirehttp.Body{MaxBytes: -1, Timeout: -1}.WithDefaults()
	body := strings.Repeat("x", 9<<20)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	b.Bound(w, r)
	if len(w.read) != 0 {
		t.Errorf("without a limit the read deadlines are %v", w.read)
	}
	if got, f := b.Read(w, r); f != nil || len(got) != len(body) {
		t.Errorf("without a limit Read has %d bytes, %+v", len(got), f)
	}
}

// A body of the size that its header gives is read without a second allocation; what a header only claims
// is not allocated.
func TestReadAllocatesWhatItNeeds(t *testing.T) {
	t.Parallel()
	b := wirehttp.Body{}.WithDefaults()
	for length, most := range map[int64]int{100_000: 100_001, 7 << 20: 512<<10 + 1} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 90_000))), length
		if got, f := b.Read(httptest.NewRecorder(), r); f != nil || cap(got) > most {
			t.Errorf("a body of 90,000 bytes that is announced with %d takes %d, want at most %d (%+v)", length, cap(got), most, f)
		}
	}
}

// Where the server around has a limit of its own on the response, it is lifted.
func TestBoundLiftsTheServersLimit(t *testing.T) {
	t.Parallel()
	const hour = time.Hour // a limit that a slow machine keeps, too
	for name, tc := range map[string]struct {
		readTimeout, writeTimeout time.Duration
		body                      string
		read, write               int // calls
	}{
		"no limits":            {0, 0, "x", 1, 0},
		"no limits and body":   {0, 0, "", 0, 0},
		"limits":               {hour, hour, "x", 1, 1},
		"limits, but no body":  {hour, hour, "", 0, 1},
		"a write timeout only": {0, hour, "", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan *deadlines, 1)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
				b := wirehttp.Body{}.WithDefaults()
				b.Bound(d, r)
				done <- d
			}))
			s.Config.ReadTimeout, s.Config.WriteTimeout = tc.readTimeout, tc.writeTimeout
			s.Start()
			defer s.Close()
			res, err := s.Client().Post(s.URL, "", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			d := <-done
			if len(d.read) != tc.read || len(d.write) != tc.write {
				t.Errorf("read deadlines %v, write deadlines %v, want %d and %d", d.read, d.write, tc.read, tc.write)
			}
			for _, at := range d.write {
				if !at.IsZero() {
					t.Errorf("the write deadline is %v, want none", at)
				}
			}
			for _, at := range d.read {
				if at.IsZero() {
					t.Errorf("the read deadline is %v", at)
				}
			}
		})
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	var none, two wirehttp.Tokens
	two.Add("a", "token-a")
	two.Add("b", "token-b")
	if none.Any() || !two.Any() || none.Knows("") || two.Knows("") || !two.Knows("token-b") {
		t.Error("Any or Knows is wrong")
	}
	for header, want := range map[string]string{
		"Bearer token-a": "a", "bearer token-b": "b", "BEARER  token-a ": "a",
		"": "", "Bearer": "", "Bearer ": "", "Bearer token": "", "Bearer token-ab": "", "Basic token-a": "", "token-a": "", "Bearertoken-a": "",
	} {
		h := http.Header{"Authorization": {header}}
		if name, ok := two.Find(h); name != want || ok != (want != "") {
			t.Errorf("%q is %q, %t, want %q", header, name, ok, want)
		}
		if _, ok := none.Find(h); ok {
			t.Errorf("%q is known where there are no tokens", header)
		}
	}
}
