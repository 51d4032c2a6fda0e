package schema_test

import (
	"errors"
	"fmt"

	"github.com/backline-dev/backline/schema"
)

func ExampleCheck() {
	doc := []byte(`{
  "agent": {"runtime": "external:muse", "runtime": "other"}
}`)
	err := schema.Check(doc, 0)
	fmt.Println(err)

	var e *schema.SyntaxError
	if errors.As(err, &e) {
		fmt.Println(e.Pointer, e.Line, e.Column, e.Offset)
	}
	// Output:
	// duplicate key "runtime" (line 2, column 41, byte 42, in /agent/runtime)
	// /agent/runtime 2 41 42
}

func ExampleCompile() {
	_, err := schema.Compile("https://example.com/pet.json", []byte(`{"$ref": "https://example.com/animal.json"}`))
	fmt.Println(err != nil) // nothing is loaded
	// Output: true
}

func ExampleSchema_Validate() {
	s, err := schema.Compile("https://example.com/pet.json", []byte(`{
	  "type": "object",
	  "required": ["name"],
	  "properties": {"name": {"type": "string", "minLength": 1}, "legs": {"type": "integer", "minimum": 0}}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range s.Validate([]byte(`{"legs": -4, "Name": "Rex"}`)) {
		fmt.Println(v)
	}
	fmt.Println(len(s.Validate([]byte(`{"legs": 4.0, "name": "Rex"}`))))
	// Output:
	// /legs is -4, expected an integer of at least 0
	// /name is missing, expected a string that is not empty
	// 0
}

func ExampleSet() {
	var set schema.Set
	for id, doc := range map[string]string{
		"https://example.com/order.json": `{"properties": {"customer": {"$ref": "name.json"}}}`,
		"https://example.com/name.json":  `{"type": "string", "maxLength": 5}`,
	} {
		if err := set.Add(id, []byte(doc)); err != nil {
			fmt.Println(err)
		}
	}
	order, err := set.Compile("https://example.com/order.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(order.Validate([]byte(`{"customer": "Theodora"}`)))
	// Output: [/customer is "Theodora", expected a string of at most 5 characters]
}

func ExampleFound() {
	doc := []byte(`{"a": [1, 2], "b": "text"}`)
	fmt.Println(schema.Found(doc, 0), schema.Found(doc, 5), schema.Found(doc, 18))
	// Output: an object an array "text"
}

func ExampleViolation() {
	v := schema.Violation{Pointer: "/turn/turnId", Found: schema.Missing, Expected: "a string that is not empty"}
	fmt.Println(v)
	// Output: /turn/turnId is missing, expected a string that is not empty
}

func ExamplePointerName() {
	fmt.Println(schema.PointerName(""), schema.PointerName("/turn"))
	// Output: the document /turn
}

func ExampleParseDateTime() {
	for _, s := range []string{"2030-09-01t02:05:00+02:00", "2016-12-31T23:59:60Z", "2030-09-01 00:05:00Z"} {
		t, ok := schema.ParseDateTime(s)
		fmt.Println(t, ok)
	}
	// Output:
	// 2030-09-01 00:05:00 +0000 UTC true
	// 2017-01-01 00:00:00 +0000 UTC true
	// 0001-01-01 00:00:00 +0000 UTC false
}

func ExampleIsSpace() {
	fmt.Println(schema.IsSpace('\u00a0'), schema.IsSpace('\ufeff'), schema.IsSpace('\u0085'))
	// Output: true true false
}

func ExampleMalformed() {
	err := schema.Check([]byte(`{"a": tru}`), 0)
	var e *schema.SyntaxError
	if errors.As(err, &e) {
		fmt.Println(schema.Malformed(e))
	}
	// Output: /a is malformed, expected JSON, but there is 't' where a value is expected, and it does not begin true, false or null (line 1, column 7)
}
