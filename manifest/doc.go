// Package manifest reads, checks, edits and writes the manifest of a Lowkey plugin.
//
// A manifest is a JSON object with the plugin's id and one agent block, or an array of them:
//
//	{
//	  "id": "muse",
//	  "agent": {
//	    "runtime": "external:muse",
//	    "endpoint": "https://muse.example/lowkey/turn"
//	  }
//	}
//
// The contract (Lowkey's external turn protocol, version 1) tells only this much: the block's runtime
// is "external:" and the plugin id, and its endpoint is an absolute http or https URL. [Manifest.Check]
// holds a manifest to exactly that. All other fields belong to whoever wrote them: this package keeps
// every byte of them, their order and their spacing, and an edit changes only the bytes of the value
// that was set.
//
// JSON is read as strictly as everywhere in Backline (see [schema.Check]): a key twice, a second value,
// a byte order mark, invalid UTF-8 and deep nesting are refused with their place. Keys match byte for
// byte: a field "ID" is an unknown field.
package manifest
