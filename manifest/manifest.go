package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/backline-dev/backline/schema"
)

// runtimePrefix and the plugin id make the runtime of an agent block (external turn protocol, first
// paragraph).
const runtimePrefix = "external:"

// A Manifest is a document that was read, or made by [New], with the edits made since. It may be read
// from several goroutines; [Manifest.Set] and [Manifest.SetEndpoint] need it alone. The zero value is
// not a manifest.
type Manifest struct {
	doc  []byte
	root *node
}

// An Agent is an agent block as the manifest has it. A field that is missing or no string is empty.
type Agent struct {
	// Pointer is the block's JSON pointer: "/agent", or "/agents/0".
	Pointer string
	// ID is the agent's own id, where the block has one.
	ID string
	// Runtime is "external:" and the plugin id, where the block is valid.
	Runtime string
	// Endpoint is where Lowkey posts turns: an absolute http or https URL, where the block is valid.
	Endpoint string
}

// Parse reads a manifest, whether or not it is valid by the contract, so that it can be shown, edited
// and mended: call [Manifest.Check] before relying on it. doc is copied.
//
// The error is a [*schema.SyntaxError] if doc is not JSON as Backline reads it, and an [*Error] if it is
// not an object.
func Parse(doc []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := m.take(bytes.Clone(doc)); err != nil {
		return nil, err
	}
	return m, nil
}

// take makes doc the manifest's document, or leaves it alone where doc is none.
func (m *Manifest) take(doc []byte) error {
	if err := schema.Check(doc, schema.DefaultDepth); err != nil {
		return err
	}
	root := index(doc)
	if root.kind != '{' {
		return newError(doc, []Violation{violation(root, schema.Violation{
			Found:    schema.Found(doc, root.start),
			Expected: "an object, the plugin manifest",
		})})
	}
	m.doc, m.root = doc, root
	return nil
}

// Load reads a manifest from a file and checks it. The error is one of [Parse] or [Manifest.Check], or
// of the file system, under the file's name; errors.As finds the typed one.
func Load(path string) (*Manifest, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := Parse(doc)
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// New makes the smallest valid manifest for a plugin, indented by two spaces. The error is an [*Error]
// if id is empty or not UTF-8, or endpoint is no absolute http or https URL.
func New(id, endpoint string) (*Manifest, error) {
	if id == "" || !utf8.ValidString(id) {
		return nil, refused("/id", quote(id), "the plugin id, a non-empty string of UTF-8")
	}
	m, err := Parse([]byte("{\n  \"id\": \"\"\n}\n"))
	if err != nil {
		return nil, err
	}
	if err := m.Set("/id", id); err != nil {
		return nil, err
	}
	if err := m.SetEndpoint(endpoint); err != nil {
		return nil, err
	}
	return m, nil
}

// ID is the plugin's id, empty if the manifest has none.
func (m *Manifest) ID() string { return m.root.member("id").text(m.doc) }

// Agents lists the agent blocks: the one under "agent" first, then those under "agents" in their order.
// What is not an object there is left out; [Manifest.Check] reports it.
func (m *Manifest) Agents() []Agent {
	var agents []Agent
	for _, b := range m.blocks() {
		if b.kind != '{' {
			continue
		}
		agents = append(agents, Agent{
			Pointer:  b.pointer,
			ID:       b.member("id").text(m.doc),
			Runtime:  b.member("runtime").text(m.doc),
			Endpoint: b.member("endpoint").text(m.doc),
		})
	}
	return agents
}

// blocks lists what stands where agent blocks are expected.
func (m *Manifest) blocks() []*node {
	var blocks []*node
	if agent := m.root.member("agent"); agent != nil {
		blocks = append(blocks, agent)
	}
	if agents := m.root.member("agents"); agents != nil && agents.kind == '[' {
		blocks = append(blocks, agents.elements...)
	}
	return blocks
}

// Raw returns the bytes of the value at a JSON pointer (RFC 6901), as they stand in the document, and
// false where there is none. The empty pointer is the whole object. The result is the caller's.
func (m *Manifest) Raw(pointer string) (json.RawMessage, bool) {
	n, _, err := m.find(pointer)
	if err != nil || n == nil {
		return nil, false
	}
	return bytes.Clone(m.doc[n.start:n.end]), true
}

// Bytes returns the document: what was read, byte for byte, but for the values set since. The result is
// the caller's.
func (m *Manifest) Bytes() []byte { return bytes.Clone(m.doc) }
