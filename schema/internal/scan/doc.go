// Package scan walks JSON text (RFC 8259) strictly: one value, no key twice in an object at any
// depth, valid UTF-8, a nesting limit that is counted while scanning. It builds no values; [schema]
// wraps it for everybody, the decoders of schema/* call its parts directly.
//
// Nothing here recurses, and time and memory are linear in the text whatever it holds.
package scan
