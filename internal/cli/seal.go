package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/external"
)

// A seal is the digest that a document carries of itself, or of a part of itself.
type seal struct {
	kind   external.Document
	field  string
	of     string // the field whose value it covers; empty: the document
	digest func(doc []byte) (external.Digest, error)
	said   func(doc []byte) external.Digest // of a document that is valid
}

// seals are those that a document is sealed with.
var seals = []seal{
	{external.TurnRequestV1, "input/digest", "input/parts", external.InputDigest, func(doc []byte) external.Digest {
		r, _ := external.ParseTurnRequest(doc)
		return r.InputDigest
	}},
	{external.BindingV1, "binding/digest", "", digestWithout("binding/digest"), func(doc []byte) external.Digest {
		b, _ := external.ParseBinding(doc)
		return b.BindingDigest
	}},
	{external.ProductV1, "product/digest", "", digestWithout("product/digest"), func(doc []byte) external.Digest {
		p, _ := external.ParseProduct(doc)
		return p.ProductDigest
	}},
}

func digestWithout(field string) func(doc []byte) (external.Digest, error) {
	return func(doc []byte) (external.Digest, error) { return external.DigestWithout(doc, field) }
}

// sealOf finds the seal of a kind of document; nil where it has none.
func sealOf(kind external.Document) *seal {
	for i := range seals {
		if seals[i].kind == kind {
			return &seals[i]
		}
	}
	return nil
}

// sealed are the kinds of document that have one, as the command line names them.
func sealed() []string {
	var names []string
	for _, s := range seals {
		names = append(names, externalNamed(string(s.kind)).name)
	}
	return names
}

func (s *seal) pointer() string { return "/" + strings.ReplaceAll(s.field, "/", "~1") }

// put returns the document with this digest in its field, and every other byte as it was. A document that lacks
// the field gets it as its first member. doc is an object without a key twice.
func (s *seal) put(doc []byte, digest external.Digest) []byte {
	text := `"` + string(digest) + `"`
	dec := jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	_, _ = dec.ReadToken() // the object's begin
	begin := int(dec.InputOffset())
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			break
		}
		found := name.String() == s.field
		value, err := dec.ReadValue()
		if err != nil {
			break
		}
		if found {
			to := int(dec.InputOffset())
			return splice(doc, to-len(value), to, text)
		}
	}
	space := doc[begin : begin+len(doc[begin:])-len(bytes.TrimLeft(doc[begin:], " \t\r\n"))]
	return splice(doc, begin, begin, string(space)+`"`+s.field+`": `+text+",")
}

func splice(doc []byte, from, to int, text string) []byte {
	out := make([]byte, 0, len(doc)+len(text))
	out = append(out, doc[:from]...)
	out = append(out, text...)
	return append(out, doc[to:]...)
}

// checkSeal judges what a document with a seal violates: its digest too, and where nothing else is wrong it says
// what that has to be. list is what the document violates by itself.
func (v *verdict) checkSeal(s *seal, doc []byte, list []schema.Violation) {
	unset := -1
	for i := range list {
		if list[i].Pointer == s.pointer() {
			unset = i
		}
	}
	switch {
	case len(list) > 1 && unset >= 0:
		list[unset].Expected = "a digest, which is told once the rest is right"
		fallthrough
	case len(list) > 0 && unset < 0:
		v.add(doc, list)
		return
	}
	whole := doc
	if unset >= 0 { // missing, or anything
		whole = s.put(doc, "")
	}
	digest, err := s.digest(whole)
	if err == nil {
		v.Digest = string(digest)
	}
	said := external.Digest("")
	if unset < 0 {
		said = s.said(doc)
	}
	wrong := digestOf(s.field, s.of, said, digest, err)
	if unset >= 0 && len(wrong) > 0 {
		wrong[0].Found = list[0].Found
	}
	v.add(doc, wrong)
}

// rewrite gives a file another content, all of it or none, and leaves its rights as they are.
func rewrite(file string, content []byte) (err error) {
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("%s cannot be replaced: %w", file, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
