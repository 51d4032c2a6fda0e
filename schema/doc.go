// Package schema reads JSON strictly and holds documents to JSON Schemas.
//
// [Check] says whether bytes are one JSON text by the rules that Backline keeps everywhere: no key
// twice, valid UTF-8, bounded nesting. [Compile] makes a [Schema] of a draft 2020-12 document, and
// [Schema.Validate] lists every [Violation] of it, each with the JSON pointer of the field, what was
// found and what is expected. A Schema is for explaining a refusal and for documents that come rarely;
// a request is decoded and checked by hand, by the packages below this one.
//
// Nothing is ever loaded from the network or the file system: a $ref leads to a document that was
// given to [Compile] or [Set], or it is an error.
package schema
