package cli

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
)

// guess tells what a document is by its beginning; empty if that cannot be told. A document may be
// wrong in any way: that is why it is checked.
func guess(start []byte) string {
	if kind := kindOf(names(start)); kind != "" {
		return kind
	}
	// A stream may begin with lines that do not belong into it.
	for line := range bytes.Lines(start) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] != '{' || schema.Check(line, 0) != nil {
			continue
		}
		if kind := kindOf(names(line)); kind != "" {
			return kind
		}
	}
	return ""
}

// kindOf tells a document by the names of its root's members, and by what its member "schema" says.
func kindOf(names map[string]bool, says string) string {
	has := func(list string) bool {
		for _, name := range strings.Fields(list) {
			if names[name] {
				return true
			}
		}
		return false
	}
	if kind := guessExternal(names, says); kind != "" {
		return kind
	}
	if kind := guessKeiki(names); kind != "" {
		return kind
	}
	switch {
	case has("sessionHandle turn transcriptWindow"):
		return kindRequest
	case has("agent agents"):
		return kindManifest
	case has("type"):
		return kindEvents
	case has("pluginId limits"):
		return kindRequest
	case has("id"):
		return kindManifest
	case has("protocolVersion status content"):
		return kindEvents
	}
	return ""
}

// names lists the members of the object that doc begins with, as far as it can be read, with the text of
// its member "schema".
func names(doc []byte) (list map[string]bool, says string) {
	list = map[string]bool{}
	dec := jsontext.NewDecoder(bytes.NewReader(bytes.TrimPrefix(doc, []byte("\ufeff"))),
		jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if dec.PeekKind() != '{' {
		return list, says
	}
	if _, err := dec.ReadToken(); err != nil {
		return list, says
	}
	for {
		name, err := dec.ReadToken()
		if err != nil || name.Kind() != '"' {
			return list, says
		}
		member := name.String()
		list[member] = true
		if member == "schema" && dec.PeekKind() == '"' {
			if value, err := dec.ReadToken(); err == nil {
				says = value.String()
				continue
			}
			return list, says
		}
		if dec.SkipValue() != nil {
			return list, says
		}
	}
}
