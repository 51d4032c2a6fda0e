package schema

import (
	"fmt"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// MaxViolations is how many violations are listed at most.
const MaxViolations = 20

// maxFound is how many characters of a value Found quotes.
const maxFound = 80

// A Violation is one field that is not as a schema has it.
type Violation struct {
	// Pointer is the JSON pointer (RFC 6901) of the field; empty for the whole document.
	Pointer string
	// Found says what the field is: `"yes"`, "12", "an array", "missing". It quotes at most 80
	// characters of the document, with control characters escaped.
	Found string
	// Expected says what it should be: "an integer of at least 0".
	Expected string
}

// Missing is what [Violation.Found] says of a field that is not there.
const Missing = "missing"

// String is one sentence without a full stop, for the other side to read. It holds at most 200
// characters of the document.
func (v Violation) String() string {
	return fmt.Sprintf("%s is %s, expected %s", PointerName(v.Pointer), clip(v.Found, maxFound+2), v.Expected)
}

// Found says what the value at offset i of doc is, as [Violation.Found] has it. doc must have passed
// [Check], and i be the offset of a value in it.
func Found(doc []byte, i int) string {
	i = scan.Space(doc, i)
	if i >= len(doc) {
		return Missing
	}
	switch doc[i] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't':
		return "true"
	case 'f':
		return "false"
	case 'n':
		return "null"
	case '"':
		end, _, _ := scan.String(doc, i+1)
		raw := scan.Prefix(doc[i+1:end], maxFound+1)
		return excerpt(string(scan.AppendUnescaped(nil, raw)), maxFound)
	}
	end, _ := scan.Number(doc, i)
	return clip(string(doc[i:min(end, i+maxFound+1)]), maxFound)
}
