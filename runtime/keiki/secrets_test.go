package keiki_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

func ExampleReadSecrets() {
	secrets, err := keiki.ReadSecrets([]byte(`{
		"agent-1": "whsec_bm90LWEtcmVhbC1zZWNyZXQ",
		"agent-2": ["whsec_bmV3LXNlY3JldA", "whsec_b2xkLXNlY3JldA"]
	}`))
	fmt.Println(err, len(secrets.Find("agent-1")), len(secrets.Find("agent-2")), len(secrets.Find("agent-3")))

	_, err = keiki.ReadSecrets([]byte(`{"agent-1": ["", "whsec_bm90LWEtcmVhbC1zZWNyZXQ"]}`))
	fmt.Println(err)
	// Output:
	// <nil> 1 2 0
	// agent "agent-1": secret 1 of 2 is empty
}

func ExampleSecretFromFile() {
	key := keiki.SecretFromFile([]byte("whsec_bm90LWEtcmVhbC1zZWNyZXQ\n"))
	fmt.Println(key, keiki.Secrets{Any: []secret.Text{key}}.Check())
	// Output: [redacted] <nil>
}

const (
	one = "whsec_bm90LWEtcmVhbC1zZWNyZXQ"
	two = "whsec_bm90LWVpdGhlcg"
)

// hides reports what an error text gives away of the secrets above.
func hides(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, piece := range []string{"bm90", "hunter2", "whsec"} {
		if strings.Contains(err.Error(), piece) {
			t.Errorf("an error shows a secret: %v", err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of more than one line: %v", err)
	}
}

// TestFaultE4Secrets: what is no protection does not pass at the start.
func TestFaultE4Secrets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		secrets keiki.Secrets
		want    string
	}{
		{"none", keiki.Secrets{}, ""},
		{"one", keiki.Secrets{Any: []secret.Text{one}}, ""},
		{"two", keiki.Secrets{Any: []secret.Text{one, two}}, ""},
		{"sixteen bytes", keiki.Secrets{Any: []secret.Text{"0123456789abcdef"}}, ""},
		{"fifteen bytes", keiki.Secrets{Any: []secret.Text{"hunter2hunter2h"}}, "the secret is shorter than 16 bytes"},
		{"empty", keiki.Secrets{Any: []secret.Text{""}}, "the secret is empty"},
		{"blank", keiki.Secrets{Any: []secret.Text{"                    "}}, "the secret is blank"},
		{"one of two empty", keiki.Secrets{Any: []secret.Text{"", one}}, "secret 1 of 2 is empty"},
		{"two of two empty", keiki.Secrets{Any: []secret.Text{one, ""}}, "secret 2 of 2 is empty"},
		{"a line end", keiki.Secrets{Any: []secret.Text{one + "\n"}}, "the secret begins or ends with white space"},
		{"agents", keiki.Secrets{Agents: map[string][]secret.Text{"a": {one}, "b": {one, two}}}, ""},
		{"no agents", keiki.Secrets{Agents: map[string][]secret.Text{}}, "the map of secrets by agent is empty"},
		{"an agent without", keiki.Secrets{Agents: map[string][]secret.Text{"a": {one}, "b": nil}}, `agent "b" has no secret`},
		{"an agent without id", keiki.Secrets{Agents: map[string][]secret.Text{"": {one}}}, "there are secrets for an agent without an id"},
		{"several wrong", keiki.Secrets{Agents: map[string][]secret.Text{"c": {" "}, "b": {one, "hunter2"}, "a": {""}}},
			`agent "a": the secret is empty; agent "b": secret 2 of 2 is shorter than 16 bytes; agent "c": the secret is blank`},
		{"both", keiki.Secrets{Any: []secret.Text{one}, Agents: map[string][]secret.Text{"a": {one}}},
			"there are secrets for all agents and secrets by agent, and only one of the two can be meant"},
	} {
		err := test.secrets.Check()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: Check() = %q, want %q", test.name, got, test.want)
		}
		hides(t, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		secrets keiki.Secrets
		agent   string
		want    []secret.Text
		set     bool
	}{
		{keiki.Secrets{}, "a", nil, false},
		{keiki.Secrets{Any: []secret.Text{}}, "a", []secret.Text{}, false},
		{keiki.Secrets{Any: []secret.Text{one}}, "a", []secret.Text{one}, true},
		{keiki.Secrets{Any: []secret.Text{one}}, "", []secret.Text{one}, true},
		{keiki.Secrets{Agents: map[string][]secret.Text{"a": {two}}}, "a", []secret.Text{two}, true},
		{keiki.Secrets{Agents: map[string][]secret.Text{"a": {two}}}, "A", nil, true},
		{keiki.Secrets{Agents: map[string][]secret.Text{"a": {two}}}, "", nil, true},
		// A map that is there but empty is not one list for all.
		{keiki.Secrets{Any: []secret.Text{one}, Agents: map[string][]secret.Text{}}, "a", nil, true},
	} {
		got := test.secrets.Find(test.agent)
		if diff := cmp.Diff(reveal(test.want), reveal(got)); diff != "" {
			t.Errorf("Find(%q) (-want +got):\n%s", test.agent, diff)
		}
		if got := test.secrets.IsSet(); got != test.set {
			t.Errorf("IsSet() = %t, want %t", got, test.set)
		}
	}
}

func reveal(list []secret.Text) []string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = s.Reveal()
	}
	return texts
}

func TestReadSecrets(t *testing.T) {
	t.Parallel()
	got, err := keiki.ReadSecrets([]byte(" {\"a\" : \"" + one + "\" ,\n\"b\":\t[ \"" + two + "\" , \"" + one + "\" ], \"A\":[\"whsec_\\u006eot-real-\\u00e9\"], \"/~\":\"" + one + "\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"a": {one}, "b": {two, one}, "A": {"whsec_not-real-é"}, "/~": {one}}
	seen := map[string][]string{}
	for id, list := range got.Agents {
		seen[id] = reveal(list)
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Any != nil {
		t.Errorf("Any = %v, want none", got.Any)
	}
}

func TestReadSecretsRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, file, want string }{
		{"nothing", ``, `line 1, column 1`},
		{"null", `null`, `not a JSON object`},
		{"a list", `["` + one + `"]`, `not a JSON object`},
		{"a string", `"` + one + `"`, `not a JSON object`},
		{"no agents", `{}`, `the map of secrets by agent is empty`},
		{"an empty secret", `{"a":"` + one + `","b":""}`, `agent "b": the secret is empty`},
		{"a blank secret", `{"b":" "}`, `agent "b": the secret is blank`},
		{"a short secret", `{"b":"hunter2"}`, `agent "b": the secret is shorter than 16 bytes`},
		{"a line end", `{"b":"` + one + `\n"}`, `agent "b": the secret begins or ends with white space`},
		{"null for an agent", `{"b":null}`, `agent "b": it is null`},
		{"an empty list", `{"b":[]}`, `agent "b" has no secret`},
		{"an empty member", `{"b":["","` + one + `"]}`, `agent "b": secret 1 of 2 is empty`},
		{"a null member", `{"b":["` + one + `",null]}`, `agent "b": the list has a member that is null`},
		{"a number member", `{"b":["` + one + `",7]}`, `agent "b": the list has a member that is not a string`},
		{"a list in a list", `{"b":[["` + one + `"]]}`, `agent "b": the list has a member that is not a string`},
		{"a number", `{"b":12345678901234567890}`, `agent "b": a secret or a list of secrets is expected`},
		{"true", `{"b":true}`, `agent "b": a secret or a list of secrets is expected`},
		{"an object", `{"b":{"secret":"` + one + `"}}`, `agent "b": a secret or a list of secrets is expected`},
		{"no id", `{"":"` + one + `"}`, `an agent without an id`},
		{"several", `{"d":null,"c":[null]}`, `agent "c": the list has a member that is null; agent "d": it is null`},
		{"twice", `{"b":"` + one + `","b":"` + two + `"}`, `agent "b" is there twice (line 1`},
		{"twice, spelled otherwise", `{"/~":"` + one + `","\u002f~":"` + two + `"}`, `agent "/~" is there twice`},
		{"twice inside", `{"b":{"hunter2":"` + one + `","hunter2":1}}`, `line 1, column`},
		{"the wrong way round", `{"` + one + `":"agent-1"}`, `an agent whose id looks like a secret: the secret is shorter`},
		{"the wrong way round, twice", `{"` + one + `":"agent-1","` + one + `":"agent-2"}`, `an agent whose id looks like a secret is there twice`},
		{"cut off", `{"b":"` + one, `line 1, column`},
		{"no quotes", `{"b":` + one + `}`, `line 1, column 6`},
		{"behind it", `{"b":"` + one + `"} ` + one, `line 1, column`},
		{"a byte order mark", "\ufeff" + `{"b":"` + one + `"}`, `line 1, column 1`},
		{"not UTF-8", "{\n\"b\":\"" + one + "\xff\"}", `line 2, column`},
		{"deep", strings.Repeat("[", 100_000), `line 1, column`},
	} {
		got, err := keiki.ReadSecrets([]byte(test.file))
		if err == nil {
			t.Errorf("%s: taken", test.name)
			continue
		}
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, want it to say %q", test.name, err, test.want)
		}
		if got.IsSet() {
			t.Errorf("%s: secrets beside an error", test.name)
		}
		hides(t, err)
	}
}

// TestManyComplaints: the line stays one that can be read.
func TestManyComplaints(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString(`{"` + strings.Repeat("é", 10_000) + `":1`)
	for i := range 1000 {
		fmt.Fprintf(&file, `,"agent-%d":null`, i)
	}
	file.WriteString("}")
	_, err := keiki.ReadSecrets([]byte(file.String()))
	if err == nil || len(err.Error()) > 2000 || !strings.HasSuffix(err.Error(), "; and 991 more") {
		t.Errorf("ReadSecrets = %v", err)
	}
}

func TestSecretFromFile(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]secret.Text{
		"":             "",
		"\n":           "",
		"\r\n":         "",
		one:            one,
		one + "\n":     one,
		one + "\r\n":   one,
		one + "\n\n":   one + "\n",
		one + "\r":     one + "\r",
		one + "\r\r\n": one + "\r",
		one + " \n":    one + " ",
		"\n" + one:     "\n" + one,
	} {
		if got := keiki.SecretFromFile([]byte(content)); got != want {
			t.Errorf("SecretFromFile(%q) = %q, want %q", content, got.Reveal(), want.Reveal())
		}
	}
}
