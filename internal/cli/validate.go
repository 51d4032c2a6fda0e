package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/schema"
	"github.com/backline-dev/backline/schema/external"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A finding is one violation and its place.
type finding struct {
	Line     int    `json:"line"`
	Column   int    `json:"column,omitempty"`
	Pointer  string `json:"pointer"`
	Found    string `json:"found"`
	Expected string `json:"expected"`
}

// A verdict is what a check found; --json prints it.
type verdict struct {
	File       string    `json:"file"`
	Schema     string    `json:"schema"`
	Valid      bool      `json:"valid"`
	Violations []finding `json:"violations"`
	// Digest is what the digest that the document carries has to be; empty where it carries none, or something
	// else is wrong with it.
	Digest string `json:"digest,omitempty"`
	// Sealed: the digest was written into the file.
	Sealed bool `json:"sealed,omitempty"`

	oneEvent bool // a single event instead of a stream of them
}

// streams tells whether the document is a stream of lines.
func (v *verdict) streams() bool { return v.Schema == kindEvents || v.Schema == kindExternalEvents }

func (a *app) validateCommand() *cobra.Command {
	var name *string
	var asJSON *bool
	var lineLimit *int64
	cmd := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a manifest, a turn request, a stream of events, or another document of a protocol",
		Long: `Validate checks a document: a plugin manifest; a Lowkey turn request, or the NDJSON events of a Lowkey
response, with their order; any document of agent.external-runtime, with the digests that it carries, or
its events, with their order, numbers and digests, and with --profile its limits; a request that Keiki
signs, or with --schema keiki-claim what its inbox answers. It reads FILE, or standard input without one or
with -.

A binding, a product and a turn request carry a digest. What it has to be is said where that is all that is
wrong with them, and with --seal it is written into FILE, in which nothing else changes; of standard input
the document is printed. So who makes one by hand begins with an empty digest.

What the document is, is told from its content, or by --schema. Every violation is one line, with the
line and column in the file (of a field that is missing, those of the object that lacks it), the JSON
pointer of the field, what was found and what is expected; of one document at most ` + fmt.Sprint(schema.MaxViolations) + ` are listed. In a
stream of events the pointer is that within the line, and a bad line does not end the check. The exit
code is 1 if there is a violation, and 2 if the document could not be read or told.`,
		Example: `  # What a server in any language answers to a turn.
  curl -sN http://127.0.0.1:8787/lowkey/turn -H 'Content-Type: application/json' -d @request.json |
    backline validate --schema lowkey-events`,
		Args: takes(0, 1, "one FILE"),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	name = fs.String("schema", "", "what the document is: "+alternatives(kindNames())+" (a `name`; default: told from the content)")
	profile := fs.String("profile", "", "hold "+kindExternalEvents+" to the limits of the profile in this `file`")
	after := countFlag(fs, "after", 0, "the number of the event before the first of "+kindExternalEvents+", as where a turn goes on")
	write := fs.Bool("seal", false, "write the digest that it has to carry into FILE, for "+alternatives(sealed()))
	asJSON = fs.Bool("json", false, "print the verdict as one JSON object")
	lineLimit = sizeFlag(fs, "line-limit", ndjson.DefaultLineLimit, "the longest line of a stream that is read")
	cmd.RunE = a.runs(func(_ context.Context, args []string) error {
		kind := *name
		if e := externalNamed(kind); e != nil {
			kind = e.name
		}
		if k := keikiNamed(kind); k != nil {
			kind = k.name
		}
		if kind != "" && !slices.Contains(kindNames(), kind) {
			return usagef("--schema is %q, want %s", kind, alternatives(kindNames()))
		}
		if *lineLimit < 1 || *lineLimit > 1<<30 {
			return usagef("--line-limit is %s, want 1B to 1GiB", (*size)(lineLimit))
		}
		o := validation{kind: kind, grammar: &external.Grammar{After: int64(*after)}, lineLimit: int(*lineLimit), seal: *write, asJSON: *asJSON}
		if *profile != "" {
			var err error
			if o.grammar.Profile, err = readProfile(*profile); err != nil {
				return &usageError{err}
			}
		}
		o.print = *write && (len(args) == 0 || args[0] == "-")
		if o.print && *asJSON {
			return usagef("--seal prints the document that it reads from standard input: leave --json out, or name a FILE")
		}
		in, file, err := a.open(args)
		if err != nil {
			return err
		}
		defer in.Close()
		return a.validate(in, file, &o)
	})
	return cmd
}

// open opens the file that the arguments name, or standard input.
func (a *app) open(args []string) (in io.ReadCloser, name string, err error) {
	if len(args) == 0 || args[0] == "-" {
		return io.NopCloser(a.in), "standard input", nil
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, "", &usageError{err}
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, "", usagef("%s is a directory: name a file", args[0])
	}
	return f, args[0], nil
}

// What a document can be.
const (
	kindManifest = "manifest"
	kindRequest  = "lowkey-request"
	kindEvents   = "lowkey-events"
)

func kindNames() []string {
	names := []string{kindManifest, kindRequest, kindEvents}
	for i := range externalKinds {
		names = append(names, externalKinds[i].name)
	}
	for _, k := range keikiKinds {
		names = append(names, k.name)
	}
	return names
}

// A validation is how a document is checked.
type validation struct {
	kind      string            // empty: it is told from the content
	grammar   *external.Grammar // for the events of agent.external-runtime
	lineLimit int
	seal      bool // and sealed
	print     bool // instead of being written to its file
	asJSON    bool
}

// validate checks a document.
func (a *app) validate(in io.Reader, file string, o *validation) error {
	kind := o.kind
	const enough = 64 << 10 // to tell what it is
	br := bufio.NewReaderSize(in, enough)
	if kind == "" {
		start, err := br.Peek(enough)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if kind = guess(start); kind == "" {
			return usagef("it cannot be told what %s is: name it with --schema %s", file, strings.Join(kindNames(), "|"))
		}
	}
	v := &verdict{File: file, Schema: kind, Violations: []finding{}}
	stream := v.checkEvents
	if kind == kindExternalEvents {
		start, err := br.Peek(enough)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", file, err)
		}
		stream = func(r io.Reader, lineLimit int) error { return v.checkExternalEvents(r, o.grammar, lineLimit) }
		if severalLines(start) {
			stream = nil
		}
	}
	e, k := externalNamed(kind), keikiNamed(kind)
	if o.seal && (e == nil || sealOf(e.kind) == nil) {
		return usagef("%s is taken for %s, and --seal is for %s", file, kind, alternatives(sealed()))
	}
	if v.streams() && stream != nil {
		if err := stream(br, o.lineLimit); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	} else {
		text, err := readAll(br, maxDocument)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		doc := []byte(text)
		switch {
		case kind == kindManifest:
			v.checkManifest(doc)
		case e != nil:
			v.checkExternal(e.kind, doc)
		case k != nil:
			v.checkKeiki(k, doc)
		default:
			v.checkRequest(doc)
		}
		if o.seal && v.Digest != "" {
			return a.seal(v, sealOf(e.kind), doc, o)
		}
	}
	return a.pronounce(v, o.asJSON)
}

// seal puts the digest into a document in which at most that is wrong.
func (a *app) seal(v *verdict, s *seal, doc []byte, o *validation) error {
	wrong := len(v.Violations) > 0
	if wrong {
		doc = s.put(doc, external.Digest(v.Digest))
	}
	switch {
	case o.print:
		_, err := a.out.Write(doc)
		return err
	case wrong:
		if err := rewrite(v.File, doc); err != nil {
			return err
		}
		v.Sealed, v.Violations = true, []finding{}
	}
	if v.Sealed && !o.asJSON {
		_, _ = fmt.Fprintf(a.out, "%s: sealed, %s is now %s\n", v.File, s.field, v.Digest)
	}
	return a.pronounce(v, o.asJSON)
}

// pronounce prints a verdict.
func (a *app) pronounce(v *verdict, asJSON bool) error {
	v.Valid = len(v.Violations) == 0
	switch {
	case asJSON:
		if err := a.printJSON(v); err != nil {
			return err
		}
	case v.Valid:
		_, _ = fmt.Fprintf(a.out, "%s: valid %s\n", v.File, v.Schema)
	}
	if v.Valid {
		return nil
	}
	if !asJSON {
		for _, f := range v.Violations {
			place := fmt.Sprint(f.Line)
			if f.Column > 0 {
				place += fmt.Sprintf(":%d", f.Column)
			}
			sentence := schema.Violation{Pointer: f.Pointer, Found: f.Found, Expected: f.Expected}.String()
			if f.Pointer == "" && v.streams() && !v.oneEvent {
				sentence = "the line is " + f.Found + ", expected " + f.Expected
			}
			_, _ = fmt.Fprintf(a.out, "%s:%s: %s\n", v.File, place, oneLine(sentence))
		}
	}
	how := ""
	if v.Digest != "" {
		how = " (with --seal the digest is written into the file)"
	}
	if n := len(v.Violations); n == 1 {
		a.complain("%s is not a valid %s: 1 violation%s", v.File, v.Schema, how)
	} else {
		a.complain("%s is not a valid %s: %d violations", v.File, v.Schema, n)
	}
	return errReported
}

// add notes violations whose place is the start of what their pointers name.
func (v *verdict) add(doc []byte, list []schema.Violation) {
	places := locate(doc, list)
	for i, violation := range list {
		v.Violations = append(v.Violations, finding{
			places[i].line, places[i].column, violation.Pointer, violation.Found, violation.Expected,
		})
	}
}

func (v *verdict) malformed(e *schema.SyntaxError) {
	v.Violations = append(v.Violations, finding{e.Line, e.Column, e.Pointer, "malformed", "JSON, but " + e.Message})
}

func (v *verdict) checkRequest(doc []byte) {
	if err := schema.Check(doc, schema.DefaultDepth); err != nil {
		var e *schema.SyntaxError
		errors.As(err, &e)
		v.malformed(e)
		return
	}
	v.add(doc, wire.Explain(doc))
}

func (v *verdict) checkManifest(doc []byte) {
	m, err := manifest.Parse(doc)
	if err == nil {
		err = m.Check()
	}
	var syntax *schema.SyntaxError
	var wrong *manifest.Error
	switch {
	case errors.As(err, &syntax):
		v.malformed(syntax)
	case errors.As(err, &wrong):
		for _, w := range wrong.Violations {
			v.Violations = append(v.Violations, finding{w.Line, w.Column, w.Pointer, w.Found, w.Expected})
		}
	}
}

// checkEvents checks each line, and the order of those that are events. The error is one of reading.
func (v *verdict) checkEvents(r io.Reader, lineLimit int) error {
	var grammar wire.Grammar
	last := 0
	for line, err := range ndjson.Lines(r, lineLimit) {
		var long *ndjson.LineTooLongError
		if errors.As(err, &long) {
			v.tooLong(long)
			return nil
		}
		if err != nil {
			return err
		}
		last = line.Number
		e, err := wire.ParseEvent(line.Data)
		if err != nil {
			v.addEvent(line.Number, line.Data, err)
			continue
		}
		for _, violation := range grammar.Next(e) {
			v.Violations = append(v.Violations, finding{line.Number, 0, "", violation.Found, violation.Expected})
		}
	}
	for _, violation := range grammar.End() {
		v.Violations = append(v.Violations, finding{last + 1, 0, "", violation.Found, violation.Expected})
	}
	return nil
}

func (v *verdict) tooLong(e *ndjson.LineTooLongError) {
	v.Violations = append(v.Violations, finding{
		Line: e.Number, Found: "longer than the limit", Expected: fmt.Sprintf("at most %d bytes (see --line-limit); what follows was not read", e.Limit),
	})
}

// addEvent notes what is wrong with one line of a stream.
func (v *verdict) addEvent(number int, line []byte, err error) {
	var wrong *wire.Error
	if !errors.As(err, &wrong) {
		v.Violations = append(v.Violations, finding{Line: number, Found: "no event", Expected: err.Error()})
		return
	}
	if s := wrong.Syntax; s != nil {
		v.malformedLine(number, s)
		return
	}
	list := wrong.Violations // the first
	if all := eventValidator().Validate(line); len(all) > 0 {
		list = all
	}
	v.addLine(number, line, list)
}

func (v *verdict) malformedLine(number int, s *schema.SyntaxError) {
	// A line has one line: the parser's own count is 1.
	v.Violations = append(v.Violations, finding{number, s.Column, s.Pointer, "malformed", "JSON, but " + s.Message})
}

// addLine notes violations of one line of a stream.
func (v *verdict) addLine(number int, line []byte, list []schema.Violation) {
	places := locate(line, list)
	for i, violation := range list {
		v.Violations = append(v.Violations, finding{
			number, places[i].column, violation.Pointer, violation.Found, violation.Expected,
		})
	}
}

// eventValidator lists all that is wrong with an event.
var eventValidator = sync.OnceValue(func() *schema.Schema {
	var set schema.Set
	err := set.Add(wire.SchemaID, wire.Schema())
	if err == nil {
		var s *schema.Schema
		if s, err = set.Compile(wire.SchemaID + eventDefinition); err == nil {
			return s
		}
	}
	panic(err) // a mistake in the published schema, which the tests find
})
