package keiki

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// An origin is the part of a URL that decides who gets a credential: scheme, host and port. Origins are
// compared with ==; the zero origin is none.
type origin struct {
	scheme string // http or https
	host   string // in lower case; an IPv6 address in its shortest form, without brackets
	port   uint16 // the scheme's own where the URL names none
}

// isSet tells whether there is one.
func (o origin) isSet() bool { return o != origin{} }

// parseOrigin returns the origin of a URL that calls with a credential may be made to: http or https, a host,
// no user info, nothing that two readers of URLs could take for different hosts. Names must be ASCII (which
// an internationalised one is in a URL), and one with a dot at its end is another than the one without. The
// error says what is wrong and quotes nothing of the URL, which may hold anything.
func parseOrigin(rawURL string) (origin, error) {
	o, err := readOrigin(rawURL)
	if err != nil {
		return origin{}, err
	}
	return o, nil
}

// parseBase is parseOrigin for a URL that paths are appended to: it has no query and no fragment.
func parseBase(rawURL string) (origin, error) {
	o, err := parseOrigin(rawURL)
	if err == nil && strings.ContainsAny(rawURL, "?#") {
		return origin{}, errors.New("the URL has a query or a fragment")
	}
	return o, err
}

// readOrigin is parseOrigin, but where it can be told what the URL of an error leads to, that is returned too.
func readOrigin(rawURL string) (origin, error) {
	fail := func(what string) (origin, error) { return origin{}, errors.New(what) }
	if rawURL == "" {
		return fail("the URL is missing")
	}
	for _, c := range []byte(rawURL) {
		if c <= ' ' || c == 0x7f || c == '\\' {
			return fail("the URL has a control character, a space or a backslash in it")
		}
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return fail("it is not a URL")
	}
	o := origin{scheme: u.Scheme, host: strings.ToLower(u.Hostname())}
	switch u.Scheme {
	case "http":
		o.port = 80
	case "https":
		o.port = 443
	default:
		return o, errors.New("the URL's scheme is not http or https")
	}
	if u.Opaque != "" || o.host == "" {
		return fail("the URL has no host")
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fail("the URL's port is not a number from 1 to 65535")
		}
		o.port = uint16(n)
	}
	if strings.HasPrefix(u.Host, "[") {
		ip, err := netip.ParseAddr(o.host)
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return fail("the URL's host is not an IPv6 address without a zone")
		}
		o.host = ip.String()
	} else if strings.Trim(o.host, ".") == "" || strings.ContainsFunc(u.Hostname(), notInHostName) {
		return fail("the URL's host is not a name in ASCII or an address")
	}
	if u.User != nil {
		return o, errors.New("the URL has user info in it")
	}
	return o, nil
}

// notInHostName looks at a name as it was written: in lower case the Kelvin sign is a k.
func notInHostName(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
}

// The codes of a linkError.
const (
	codeInvalidURL     = "invalid_url"
	codeForeignAPIBase = "foreign_api_base"
	codeForeignTurnURL = "foreign_turn_url"
)

// A linkError says why a turn's URLs are not used. Its message is a sentence for the platform and quotes
// nothing of them.
type linkError struct {
	code, message string
}

func (e *linkError) Error() string { return e.message }

// checkLinks refuses URLs with which a credential would go elsewhere than to the platform: apiBase must have
// the origin pin where that is set, turnURL and mcpURL the origin of apiBase. mcpURL may be empty, the others
// may not; neither apiBase nor turnURL, to which paths are appended, has a query or a fragment. The error is a
// *linkError. One that leads elsewhere is foreign, whatever else is wrong with it (keiki.md, Push and
// "Settled readings"; fault E6).
func checkLinks(apiBase, turnURL, mcpURL string, pin origin) error {
	if err := checkLink("apiBase", apiBase, parseBase, pin, codeForeignAPIBase, "apiBase is not of the platform that this server is set up for."); err != nil {
		return err
	}
	home, err := parseBase(apiBase)
	if err != nil {
		return err // it was read before
	}
	if err := checkLink("turnUrl", turnURL, parseBase, home, codeForeignTurnURL, "turnUrl has another scheme, host or port than apiBase."); err != nil {
		return err
	}
	if mcpURL == "" {
		return nil
	}
	return checkLink("mcpUrl", mcpURL, parseOrigin, home, codeForeignTurnURL, "mcpUrl has another scheme, host or port than apiBase.")
}

// checkLink checks one URL, which must be of the origin home where that is set.
func checkLink(name, rawURL string, parse func(string) (origin, error), home origin, code, foreign string) error {
	if o, _ := readOrigin(rawURL); home.isSet() && o.isSet() && o != home {
		return &linkError{code, foreign}
	}
	if _, err := parse(rawURL); err != nil {
		return &linkError{codeInvalidURL, name + " cannot be used: " + err.Error() + "."}
	}
	return nil
}
