package manifest

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
)

// A Violation is one field that is not as the contract has it, and its place in the document.
type Violation struct {
	schema.Violation

	// Offset is the first byte of the value, from 0; for a field that is missing, of the object that
	// lacks it.
	Offset int64
	// Line and Column are the same place, both from 1; columns count characters. All three are 0 for a
	// value that was refused before it came into the document.
	Line, Column int
}

// String is one sentence without a full stop, with the place if there is one. It quotes at most 200
// characters of the document, and nothing of a URL that may be secret.
func (v Violation) String() string {
	if v.Line == 0 {
		return v.Violation.String()
	}
	return fmt.Sprintf("%s (line %d, column %d)", v.Violation, v.Line, v.Column)
}

// An Error lists every violation of a manifest, in the order of the document.
type Error struct {
	Violations []Violation
}

// Error is one line: the first violation, and how many follow it.
func (e *Error) Error() string {
	if len(e.Violations) == 0 {
		return "the manifest is not valid"
	}
	first := "the manifest is not valid: " + e.Violations[0].String()
	if more := len(e.Violations) - 1; more > 0 {
		return first + "; and " + strconv.Itoa(more) + " more"
	}
	return first
}

// Check holds the manifest to what the contract tells of it: a non-empty id, at least one agent block
// under "agent" or "agents", each with the runtime "external:" + id and an endpoint that is an absolute
// http or https URL with a host, without user info and without a fragment. Nothing else is judged.
//
// The error is an [*Error] that lists all violations.
func (m *Manifest) Check() error {
	c := checker{doc: m.doc}

	id := m.root.member("id")
	c.string(m.root, "id", "the plugin id, a non-empty string", func(s string) bool { return s != "" })

	blocks := m.blocks()
	switch agents := m.root.member("agents"); {
	case agents != nil && agents.kind != '[':
		c.wrong(agents, "an array of agent blocks")
	case agents != nil && len(blocks) == 0:
		c.add(agents, schema.Violation{Pointer: "/agents", Found: "an empty array", Expected: "at least one agent block"})
	case len(blocks) == 0:
		c.add(m.root, schema.Violation{Pointer: "/agent", Found: schema.Missing, Expected: "the agent block, an object with runtime and endpoint"})
	}
	for _, b := range blocks {
		if b.kind != '{' {
			c.wrong(b, "an agent block, an object with runtime and endpoint")
			continue
		}
		if name := id.text(m.doc); name == "" {
			c.string(b, "runtime", `"external:" and the plugin id`, func(s string) bool {
				return strings.HasPrefix(s, runtimePrefix) && s != runtimePrefix
			})
		} else {
			c.string(b, "runtime", `"external:" and the manifest's own id, `+quote(name), func(s string) bool {
				return s == runtimePrefix+name
			})
		}
		c.endpoint(b)
	}
	if len(c.found) == 0 {
		return nil
	}
	return newError(m.doc, c.found)
}

type checker struct {
	doc   []byte
	found []Violation
}

func (c *checker) add(at *node, v schema.Violation) {
	c.found = append(c.found, violation(at, v))
}

func (c *checker) wrong(n *node, expected string) {
	c.add(n, schema.Violation{Pointer: n.pointer, Found: schema.Found(c.doc, n.start), Expected: expected})
}

// string checks a required string member of an object.
func (c *checker) string(object *node, name, expected string, ok func(string) bool) {
	n := object.member(name)
	switch {
	case n == nil:
		c.add(object, schema.Violation{Pointer: object.pointer + "/" + name, Found: schema.Missing, Expected: expected})
	case n.kind != '"' || !ok(n.text(c.doc)):
		c.wrong(n, expected)
	}
}

func (c *checker) endpoint(block *node) {
	n := block.member("endpoint")
	switch {
	case n == nil:
		c.add(block, schema.Violation{Pointer: block.pointer + "/endpoint", Found: schema.Missing, Expected: absoluteURL})
	case n.kind != '"':
		c.wrong(n, absoluteURL)
	default:
		if found, expected, ok := checkEndpoint(n.text(c.doc)); !ok {
			c.add(n, schema.Violation{Pointer: n.pointer, Found: found, Expected: expected})
		}
	}
}

const absoluteURL = "an absolute http or https URL"

// checkEndpoint judges an endpoint. found quotes nothing that may be a password or a token: no query,
// and nothing at all of a URL with an @ in it.
func checkEndpoint(endpoint string) (found, expected string, ok bool) {
	shown, _, cut := strings.Cut(endpoint, "?")
	switch {
	case strings.Contains(endpoint, "@"):
		found = "a string with an @ in it"
	case cut:
		found = quote(shown + "?...")
	default:
		found = quote(endpoint)
	}
	// Where a parser of another language would read the text otherwise than net/url does, it is refused.
	if i := strings.IndexFunc(endpoint, oddInURL); i >= 0 {
		return found, absoluteURL + " without white space, control characters, quotes, backslashes or angle brackets", false
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return found, absoluteURL, false
	case u.Scheme != "http" && u.Scheme != "https":
		return found, absoluteURL, false
	case u.Opaque != "" || u.Hostname() == "":
		return found, absoluteURL + " with a host", false
	case u.User != nil:
		return "a URL with user info", absoluteURL + " without user info", false
	case strings.Contains(endpoint, "#"):
		return found, absoluteURL + " without a fragment", false
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return found, absoluteURL + " with a port from 1 to 65535", false
		}
	}
	return "", "", true
}

func oddInURL(r rune) bool {
	return r <= ' ' || r == 0x7F || r == utf8.RuneError || strings.ContainsRune("\"\\<>^`{|}\u0085\u00a0\u2028\u2029\ufeff", r)
}

// quote shows a string as violations show strings: in quotes, cut, what does not print escaped.
func quote(s string) string {
	quoted, _ := jsontext.AppendQuote(nil, s) // the error says that invalid UTF-8 became U+FFFD
	return schema.Found(quoted, 0)
}

func violation(at *node, v schema.Violation) Violation {
	return Violation{Violation: v, Offset: int64(at.start)}
}

// newError puts the violations into the order of the document and finds their lines and columns, in one
// pass over it, however many there are.
func newError(doc []byte, found []Violation) *Error {
	slices.SortStableFunc(found, func(a, b Violation) int { return cmp.Compare(a.Offset, b.Offset) })
	line, column, at := 1, 1, 0
	for i := range found {
		for at < int(found[i].Offset) {
			r, size := utf8.DecodeRune(doc[at:])
			at += size
			column++
			if r == '\n' {
				line, column = line+1, 1
			}
		}
		found[i].Line, found[i].Column = line, column
	}
	return &Error{found}
}

// refused is the error about a value that did not come into the document.
func refused(pointer, found, expected string) *Error {
	return &Error{[]Violation{{Violation: schema.Violation{Pointer: pointer, Found: found, Expected: expected}}}}
}
