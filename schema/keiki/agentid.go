package keiki

import (
	"bytes"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// AgentID reads the agentId of a body whose signature is yet to be checked, to find the secret that it is
// checked with. It is for nothing else. For a body that [ParseRequest] accepts it is the agent that is
// found there. From others it takes what it can, so that the signature can be checked before anything is
// said of the body: ok is false if the root is no object, or has no agentId that is a string and not
// empty, or has two that differ.
//
// It takes time linear in the length of body and no memory, whatever body holds. The string may share
// memory with body.
func AgentID(body []byte) (id string, ok bool) {
	i := 0
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		i = 3 // ParseRequest refuses it, once the signature holds
	}
	if i = scan.Space(body, i); i >= len(body) || body[i] != '{' {
		return "", false
	}
	depth := 0
	key := false // whether a string here would be a key of the root
	for ; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			depth++
			key = depth == 1
		case '}', ']':
			if depth--; depth == 0 {
				return id, id != ""
			}
		case ',':
			key = depth == 1
		case '"':
			end, escaped, f := scan.String(body, i+1)
			isName := key && f == scan.OK && isAgentID(body[i+1:end], escaped)
			key = false
			if f != scan.OK {
				end = closing(body, i+1)
			}
			if i = end; !isName {
				continue
			}
			if i = scan.Space(body, i+1); i >= len(body) || body[i] != ':' {
				return "", false
			}
			i = scan.Space(body, i+1)
			c := scan.Cursor{Doc: body, At: i}
			if c.Peek() != '"' {
				return "", false
			}
			s, wellFormed := c.Text()
			if !wellFormed || s == "" || id != "" && s != id {
				return "", false
			}
			id, i = s, c.At-1
		}
	}
	return id, id != ""
}

// isAgentID tells whether raw, the inside of a string, is agentId.
func isAgentID(raw []byte, escaped bool) bool {
	if !escaped {
		return string(raw) == "agentId"
	}
	var memory [64]byte // all escaped, it has 42
	return len(raw) <= len(memory) && string(scan.AppendUnescaped(memory[:0], raw)) == "agentId"
}

// closing returns the offset of the quote that ends the string that begins at i and is not well-formed,
// or the length of the body.
func closing(body []byte, i int) int {
	for ; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(body)
}
