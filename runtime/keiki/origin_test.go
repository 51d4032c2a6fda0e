package keiki

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestParseOrigin(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]origin{
		"https://keiki.example":                     {"https", "keiki.example", 443},
		"https://keiki.example/":                    {"https", "keiki.example", 443},
		"https://keiki.example/api/v1?x=1#y":        {"https", "keiki.example", 443},
		"HTTPS://KEIKI.Example:443/API":             {"https", "keiki.example", 443},
		"https://keiki.example:":                    {"https", "keiki.example", 443},
		"https://keiki.example:0443":                {"https", "keiki.example", 443},
		"http://keiki.example":                      {"http", "keiki.example", 80},
		"http://keiki.example:443":                  {"http", "keiki.example", 443},
		"https://keiki.example:8443/x":              {"https", "keiki.example", 8443},
		"https://keiki.example./":                   {"https", "keiki.example.", 443},
		"https://my_host-1/":                        {"https", "my_host-1", 443},
		"http://127.0.0.1:8787":                     {"http", "127.0.0.1", 8787},
		"http://[::1]:8787":                         {"http", "::1", 8787},
		"http://[0:0:0:0:0:0:0:1]":                  {"http", "::1", 80},
		"http://[2001:DB8::0:1]":                    {"http", "2001:db8::1", 80},
		"https://xn--kiki-0wa.example/é":            {"https", "xn--kiki-0wa.example", 443},
		"https://keiki.example/@evil.example":       {"https", "keiki.example", 443},
		"https://keiki.example?@evil.example":       {"https", "keiki.example", 443},
		"https://keiki.example#@evil.example":       {"https", "keiki.example", 443},
		"https://keiki.example/%5c..//evil.example": {"https", "keiki.example", 443},
	} {
		got, err := parseOrigin(raw)
		if err != nil || got != want {
			t.Errorf("parseOrigin(%q) = %v, %v, want %v", raw, got, err, want)
		}
		if !got.isSet() {
			t.Errorf("parseOrigin(%q) is not set", raw)
		}
	}
}

var badURLs = []string{
	"", "keiki.example", "/api/v1", "//keiki.example", "https:", "https:keiki.example", "https:/keiki.example", "https://", "https:///api", "https://:443",
	"ftp://keiki.example", "file:///etc/passwd", "javascript:alert(1)", "wss://keiki.example", "httpss://keiki.example", "unix:///run/x",
	"https://hunter2@keiki.example", "https://user:hunter2@keiki.example", "https://@keiki.example", "https://:@keiki.example",
	"https://keiki.example:0", "https://keiki.example:65536", "https://keiki.example:99999999999999999999", "https://keiki.example:-1", "https://keiki.example:x", "https://keiki.example:+1",
	" https://keiki.example", "https://keiki.example ", "https://keiki.example/a b", "https://keiki\t.example", "https://keiki.example/\n", "https://keiki.example/\x00", "https://keiki.example\r\nX: y", "\x7fhttps://keiki.example",
	`https://keiki.example\@evil.example`, `https:\\keiki.example`, `https://keiki.example/\`,
	"https://keiki%2eexample", "https://keiki.example%00", "https://keiki.example%2F", "https://k%C3%A9iki.example", "https://kéiki.example", "https://keiki。example", "https://ｋeiki.example", "https://\u212Aeiki.example",
	"https://.", "https://..", "https://keiki.example,evil.example", "https://keiki!.example", "https://*.example", "https://(keiki)",
	"http://[::1", "http://::1", "http://[::1]x", "http://[fe80::1%25eth0]", "http://[127.0.0.1]", "http://[keiki.example]", "http://[]", "http://[::1]:x",
	"https://keiki.example/%", "https://keiki.example/%zz", "https://[v1.x]/",
}

func TestParseOriginRefuses(t *testing.T) {
	t.Parallel()
	for _, raw := range badURLs {
		got, err := parseOrigin(raw)
		if err == nil {
			t.Errorf("parseOrigin(%q) = %v, want an error", raw, got)
			continue
		}
		if got.isSet() {
			t.Errorf("parseOrigin(%q): an origin beside an error", raw)
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "keiki") {
			t.Errorf("parseOrigin(%q) quotes the URL: %v", raw, err)
		}
	}
	for _, raw := range []string{"https://keiki.example?", "https://keiki.example/?x", "https://keiki.example/#", "https://keiki.example/x#y"} {
		if _, err := parseBase(raw); err == nil {
			t.Errorf("parseBase(%q) takes it", raw)
		}
	}
	if _, err := parseBase("https://keiki.example/%3F%23"); err != nil {
		t.Error(err)
	}
}

func mustOrigin(t *testing.T, raw string) origin {
	t.Helper()
	if raw == "" {
		return origin{}
	}
	o, err := parseOrigin(raw)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestFaultE6Links: no credential leaves for another origin than that of apiBase.
func TestFaultE6Links(t *testing.T) {
	t.Parallel()
	const (
		base = "https://keiki.example/api/v1"
		turn = "https://keiki.example/api/v1/turns/turn-1"
		mcp  = "https://keiki.example/api/v1/harness/mcp"
	)
	for _, test := range []struct {
		name                     string
		apiBase, turnURL, mcpURL string
		pin                      string
		want                     string
	}{
		{"as the contract shows it", base, turn, mcp, "", ""},
		{"no mcpUrl", base, turn, "", "", ""},
		{"spelled otherwise", "https://keiki.example:443", "HTTPS://Keiki.Example/t", "https://keiki.example:/m?x=1", "https://KEIKI.EXAMPLE/other/path", ""},
		{"pinned", base, turn, mcp, "https://keiki.example", ""},

		{"apiBase is another host", base, turn, mcp, "https://keiki.test", codeForeignAPIBase},
		{"apiBase is a part of the host", base, turn, mcp, "https://example", codeForeignAPIBase},
		{"apiBase is another port", base, turn, mcp, "https://keiki.example:8443", codeForeignAPIBase},
		{"apiBase is another scheme", base, turn, mcp, "http://keiki.example:443", codeForeignAPIBase},
		{"apiBase has a dot more", "https://keiki.example./", "https://keiki.example./t", "", base, codeForeignAPIBase},
		{"apiBase is foreign and more", "https://x@keiki.test?y", turn, mcp, base, codeForeignAPIBase},
		{"apiBase has user info", "https://hunter2@keiki.example/api/v1", turn, mcp, base, codeInvalidURL},
		{"apiBase has user info and no pin", "https://hunter2@keiki.example/api/v1", turn, mcp, "", codeInvalidURL},
		{"apiBase is no http", "ftp://keiki.example/", "ftp://keiki.example/t", "", "", codeInvalidURL},
		{"apiBase has a query", base + "?x=", turn, mcp, "", codeInvalidURL},
		{"no apiBase", "", turn, mcp, "", codeInvalidURL},
		{"no apiBase under a pin", "", turn, mcp, base, codeInvalidURL},

		{"turnUrl is another host", base, "https://evil.example/api/v1/turns/turn-1", mcp, "", codeForeignTurnURL},
		{"turnUrl is another host under a pin", base, "https://evil.example/api/v1/turns/turn-1", mcp, base, codeForeignTurnURL},
		{"turnUrl is a subdomain", base, "https://x.keiki.example/t", mcp, "", codeForeignTurnURL},
		{"turnUrl is a longer name", base, "https://keiki.example.evil.test/t", mcp, "", codeForeignTurnURL},
		{"turnUrl is another port", base, "https://keiki.example:8443/t", mcp, "", codeForeignTurnURL},
		{"turnUrl is another scheme", base, "http://keiki.example/t", mcp, "", codeForeignTurnURL},
		{"turnUrl is no http", base, "ftp://keiki.example/t", mcp, "", codeForeignTurnURL},
		{"turnUrl hides its host", base, "https://keiki.example@evil.example/t", mcp, "", codeForeignTurnURL},
		{"turnUrl without a scheme", base, "//evil.example/t", mcp, "", codeForeignTurnURL},
		{"turnUrl has user info", base, "https://hunter2@keiki.example/t", mcp, "", codeInvalidURL},
		{"turnUrl is a path", base, "/api/v1/turns/turn-1", mcp, "", codeInvalidURL},
		{"turnUrl has a query", base, turn + "?hunter2", mcp, "", codeInvalidURL},
		{"turnUrl has a fragment", base, turn + "#", mcp, "", codeInvalidURL},
		{"no turnUrl", base, "", mcp, "", codeInvalidURL},

		{"mcpUrl is another host", base, turn, "https://evil.example/mcp", "", codeForeignTurnURL},
		{"mcpUrl is another scheme", base, turn, "http://keiki.example/mcp", "", codeForeignTurnURL},
		{"mcpUrl has user info", base, turn, "https://hunter2@keiki.example/mcp", "", codeInvalidURL},
		{"mcpUrl is nothing", base, turn, " ", "", codeInvalidURL},
	} {
		err := checkLinks(test.apiBase, test.turnURL, test.mcpURL, mustOrigin(t, test.pin))
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		var bad *linkError
		if !errors.As(err, &bad) || bad.code != test.want {
			t.Errorf("%s: %v (%+v), want %s", test.name, err, bad, test.want)
			continue
		}
		if !strings.HasSuffix(bad.message, ".") || strings.Contains(bad.message, "hunter2") || strings.Contains(bad.message, "evil") {
			t.Errorf("%s: the message is %q", test.name, bad.message)
		}
	}
	for _, raw := range badURLs {
		if err := checkLinks(base, raw, "", origin{}); err == nil {
			t.Errorf("checkLinks takes the turnUrl %q", raw)
		}
		if err := checkLinks(raw, raw, raw, origin{}); err == nil {
			t.Errorf("checkLinks takes %q everywhere", raw)
		}
	}
}

// FuzzParseOrigin: what is taken is taken in the same way by net/http, and leads to the host and port that
// the origin says.
func FuzzParseOrigin(f *testing.F) {
	for _, raw := range badURLs {
		f.Add(raw)
	}
	for _, raw := range []string{"https://keiki.example/api/v1", "http://[::1]:80", "HTTPS://A:1", "https://a.:443/@b"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		o, err := parseOrigin(raw)
		if err != nil {
			if strings.Contains(err.Error(), raw) && len(raw) > 8 {
				t.Errorf("parseOrigin(%q) quotes the URL: %v", raw, err)
			}
			return
		}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, raw, nil)
		if err != nil {
			t.Fatalf("net/http does not take %q, which has the origin %v", raw, o)
		}
		if q.URL.Scheme != o.scheme || q.URL.User != nil {
			t.Errorf("%q: the origin is %v, net/http calls %v", raw, o, q.URL)
		}
		// Another spelling of the same origin is the same origin.
		u := url.URL{Scheme: strings.ToUpper(o.scheme), Host: strings.ToUpper(q.URL.Host), Path: "/other"}
		if again, err := parseOrigin(u.String()); err != nil || again != o {
			t.Errorf("%q has the origin %v, %q has %v (%v)", raw, o, u.String(), again, err)
		}
	})
}
