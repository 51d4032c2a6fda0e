package keiki

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/backline-dev/backline/runtime/secret"
	"github.com/backline-dev/backline/schema"
)

// MinSecret is the length in bytes that a signing secret has at least.
const MinSecret = 16

// Secrets are the signing secrets that requests are verified with: either some for all agents, or some for
// each agent. Several stand beside each other while one replaces the other; the first is the one that
// credentials are signed with. The zero value has none, and with it every request is refused.
//
// What the methods are called on must not be changed meanwhile; they may be called from several goroutines.
type Secrets struct {
	// Any are the secrets of all agents.
	Any []secret.Text
	// Agents are the secrets by agent id; an agent that is not named has none. Not together with Any.
	Agents map[string][]secret.Text
}

// IsSet tells whether there is any secret. It does not say that they are good: see [Secrets.Check].
func (s Secrets) IsSet() bool { return len(s.Any) > 0 || len(s.Agents) > 0 }

// Find returns the secrets of an agent, none for an agent that nobody has named. The caller must not change
// what it gets.
func (s Secrets) Find(agentID string) []secret.Text {
	if s.Agents != nil {
		return s.Agents[agentID]
	}
	return s.Any
}

// Check refuses secrets that are no protection: a list with a member that is empty, blank, shorter than
// [MinSecret] or with white space at an end, which a platform would not count as part of the key; an agent
// without a secret or without an id; a map without agents; and Any together with Agents. The error names
// each by its place or its agent, on one line, and shows no secret. The zero Secrets pass (keiki.md,
// "Settled readings"; fault E4).
func (s Secrets) Check() error {
	var wrong complaints
	switch {
	case s.Agents == nil:
		wrong.list("", s.Any)
	case len(s.Any) > 0:
		wrong.add("there are secrets for all agents and secrets by agent, and only one of the two can be meant")
	case len(s.Agents) == 0:
		wrong.add("the map of secrets by agent is empty")
	}
	for _, id := range slices.Sorted(maps.Keys(s.Agents)) {
		wrong.agent(id, s.Agents[id])
	}
	return wrong.err()
}

// ReadSecrets reads a file of secrets by agent: a JSON object with a secret, or a list of secrets, for each
// agent id.
//
//	{"agent-1": "whsec_…", "agent-2": ["whsec_new…", "whsec_old…"]}
//
// Secrets are taken as they stand. It is read strictly: a key that is there twice, anything but a string or
// a list of strings (null too), and what [Secrets.Check] refuses are errors, which name the agent or the
// place in the file and show no secret.
func ReadSecrets(data []byte) (Secrets, error) {
	if err := schema.Check(data, 3); err != nil {
		return Secrets{}, misspelled(err)
	}
	var byAgent map[string]json.RawMessage
	if err := json.Unmarshal(data, &byAgent); err != nil || byAgent == nil {
		return Secrets{}, errors.New("the file is not a JSON object of secrets by agent id")
	}
	s := Secrets{Agents: make(map[string][]secret.Text, len(byAgent))}
	var wrong complaints
	for _, id := range slices.Sorted(maps.Keys(byAgent)) {
		list, err := readSecretList(byAgent[id])
		if err != nil {
			wrong.add("%s: %v", agentName(id), err)
			continue
		}
		s.Agents[id] = list
	}
	if err := wrong.err(); err != nil {
		return Secrets{}, err
	}
	if err := s.Check(); err != nil {
		return Secrets{}, err
	}
	return s, nil
}

// misspelled says where a file is not JSON, without quoting it: it is full of secrets. Only a repeated key
// is shown, which is an agent's id.
func misspelled(err error) error {
	var bad *schema.SyntaxError
	if !errors.As(err, &bad) {
		return errors.New("the file is not JSON")
	}
	at := fmt.Sprintf("line %d, column %d", bad.Line, bad.Column)
	if strings.HasPrefix(bad.Message, "duplicate key") && strings.Count(bad.Pointer, "/") == 1 {
		id := strings.NewReplacer("~1", "/", "~0", "~").Replace(bad.Pointer[1:])
		return fmt.Errorf("%s is there twice (%s)", agentName(id), at)
	}
	return fmt.Errorf("the file is not the JSON that is expected here: it went wrong at %s", at)
}

// readSecretList reads a string or a list of strings. The error says what else it was.
func readSecretList(value json.RawMessage) ([]secret.Text, error) {
	var list []*string // pointers, since null leaves a string as it is
	switch {
	case value[0] == '"':
		list = []*string{nil}
		if err := json.Unmarshal(value, &list[0]); err != nil {
			return nil, errors.New("the secret cannot be read")
		}
	case value[0] == '[':
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, errors.New("the list has a member that is not a string")
		}
	case bytes.Equal(value, []byte("null")):
		return nil, errors.New("it is null, and a secret or a list of secrets is expected")
	default:
		return nil, errors.New("a secret or a list of secrets is expected, as strings")
	}
	secrets := make([]secret.Text, len(list))
	for i, text := range list {
		if text == nil {
			return nil, errors.New("the list has a member that is null")
		}
		secrets[i] = secret.Text(*text)
	}
	return secrets, nil
}

// SecretFromFile returns the secret in a file that holds nothing else. One line end after it is not part of
// it, with or without a carriage return; everything else is.
func SecretFromFile(content []byte) secret.Text {
	if line, ok := bytes.CutSuffix(content, []byte("\n")); ok {
		content = bytes.TrimSuffix(line, []byte("\r"))
	}
	return secret.Text(content)
}

// complaints become one error of one line.
type complaints []error

func (c *complaints) add(format string, args ...any) { *c = append(*c, fmt.Errorf(format, args...)) }

func (c complaints) err() error {
	if len(c) == 0 {
		return nil
	}
	const shown = 10
	texts := make([]string, 0, shown+1)
	for i, err := range c {
		if i == shown {
			texts = append(texts, fmt.Sprintf("and %d more", len(c)-shown))
			break
		}
		texts = append(texts, err.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}

func (c *complaints) agent(id string, list []secret.Text) {
	switch {
	case strings.TrimSpace(id) == "":
		c.add("there are secrets for an agent without an id")
	case len(list) == 0:
		c.add("%s has no secret", agentName(id))
	default:
		c.list(agentName(id)+": ", list)
	}
}

func (c *complaints) list(of string, list []secret.Text) {
	for i, key := range list {
		name := "the secret"
		if len(list) > 1 {
			name = fmt.Sprintf("secret %d of %d", i+1, len(list))
		}
		text := key.Reveal()
		switch {
		case text == "":
			c.add("%s%s is empty", of, name)
		case !key.IsSet():
			c.add("%s%s is blank", of, name)
		case len(text) < MinSecret:
			c.add("%s%s is shorter than %d bytes", of, name, MinSecret)
		case strings.TrimSpace(text) != text:
			c.add("%s%s begins or ends with white space", of, name)
		}
	}
}

// agentName names an agent in an error. In a file that has ids and secrets the wrong way round, what stands
// in the id's place is not shown.
func agentName(id string) string {
	if strings.Contains(id, "whsec_") {
		return "an agent whose id looks like a secret"
	}
	const longest = 100
	if len(id) > longest {
		id = strings.ToValidUTF8(id[:longest], "") + "…"
	}
	return "agent " + strconv.Quote(id)
}
