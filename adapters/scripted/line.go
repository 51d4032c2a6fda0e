package scripted

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// compile reads one line. name is the member that names the step.
func compile(line string) (name string, do step, err error) {
	o, err := readObject([]byte(line))
	if err != nil {
		return "", nil, err
	}
	for _, m := range o {
		if _, ok := kinds[m.name]; !ok {
			continue
		}
		if name != "" {
			return "", nil, fmt.Errorf("%q and %q are two steps; write one a line", name, m.name)
		}
		name = m.name
	}
	if name == "" {
		if len(o) == 0 {
			return "", nil, errors.New("an empty object is no step")
		}
		return "", nil, fmt.Errorf("no step is called %s", quote(o[0].name))
	}
	k := kinds[name]
	if err := o.only(append([]string{name}, k.others...)...); err != nil {
		return "", nil, err
	}
	if do, err = k.compile(o); err != nil {
		return "", nil, err
	}
	return name, do, nil
}

// An object is a JSON object's members in their order. No name occurs twice.
type object []member

type member struct {
	name string
	raw  json.RawMessage // the value's bytes as written
}

// readObject reads a text that is one JSON object. Only its own members must differ in name; what is
// inside their values is for whoever reads those.
func readObject(text []byte) (object, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("not a JSON object: %v at byte %d", err, syntax.Offset)
		}
		return nil, fmt.Errorf("not a JSON object: %v", err)
	}
	if whole[0] != '{' {
		return nil, fmt.Errorf("not a JSON object but %s", typeOf(whole))
	}
	var o object
	d := json.NewDecoder(bytes.NewReader(whole))
	if _, err := d.Token(); err != nil { // the brace
		return nil, err
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("not a JSON object: %v is no name", token) // refused above, as all else that is not JSON
		}
		m := member{name: name}
		if err := d.Decode(&m.raw); err != nil {
			return nil, err
		}
		if _, ok := o.get(m.name); ok {
			return nil, fmt.Errorf("%s is there twice", quote(m.name))
		}
		o = append(o, m)
	}
	return o, nil
}

func (o object) get(name string) (json.RawMessage, bool) {
	i := slices.IndexFunc(o, func(m member) bool { return m.name == name })
	if i < 0 {
		return nil, false
	}
	return o[i].raw, true
}

// only refuses all members but these.
func (o object) only(names ...string) error {
	for _, m := range o {
		if !slices.Contains(names, m.name) {
			return fmt.Errorf("%s does not belong to %q", quote(m.name), names[0])
		}
	}
	return nil
}

// value returns a member that must be there and be of one type, told by how it is called.
func (o object) value(name, want string) (json.RawMessage, error) {
	raw, ok := o.get(name)
	if !ok {
		return nil, fmt.Errorf("%q is missing", name)
	}
	if got := typeOf(raw); got != want {
		return nil, fmt.Errorf("%q must be %s, not %s", name, want, got)
	}
	return raw, nil
}

func (o object) str(name string) (string, error) {
	raw, err := o.value(name, aString)
	if err != nil {
		return "", err
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%q: %w", name, err)
	}
	return s, nil
}

func (o object) boolean(name string) (bool, error) {
	raw, err := o.value(name, aBool)
	return string(raw) == "true", err
}

// isTrue is for members whose only value is true.
func (o object) isTrue(name string) error {
	b, err := o.boolean(name)
	if err == nil && !b {
		err = fmt.Errorf("%q must be true", name)
	}
	return err
}

// integer reads a plain integer from low to high.
func (o object) integer(name string, low, high int64) (int64, error) {
	raw, err := o.value(name, aNumber)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%q must be a whole number from %d to %d, not %s", name, low, high, cut(string(raw)))
	}
	return n, nil
}

func (o object) duration(name string) (time.Duration, error) {
	s, err := o.str(name)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf(`%q must be a duration such as "250ms", not %s`, name, quote(s))
	}
	return d, nil
}

func (o object) base64(name string) ([]byte, error) {
	s, err := o.str(name)
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") { // which the decoder would overlook
		return nil, fmt.Errorf("%q must be padded standard base64, not %s", name, quote(s))
	}
	return b, nil
}

// object reads a member that is an object with no members but these.
func (o object) object(name string, names ...string) (object, error) {
	raw, err := o.value(name, anObject)
	if err != nil {
		return nil, err
	}
	inner, err := readObject(raw)
	if err == nil {
		err = inner.only(append([]string{name}, names...)...)
	}
	if err != nil {
		return nil, fmt.Errorf("in %q: %w", name, err)
	}
	return inner, nil
}

const (
	anObject = "an object"
	anArray  = "an array"
	aString  = "a string"
	aNumber  = "a number"
	aBool    = "true or false"
	aNull    = "null"
)

// typeOf names the type of a valid JSON value without white space around it.
func typeOf(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return anObject
	case '[':
		return anArray
	case '"':
		return aString
	case 't', 'f':
		return aBool
	case 'n':
		return aNull
	}
	return aNumber
}

// quote shows a piece of the script, so that it can be found, and no more.
func quote(s string) string { return strconv.Quote(cut(s)) }

func cut(s string) string {
	const most = 40 // characters
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "…"
		}
	}
	return s
}
