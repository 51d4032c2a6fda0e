package ledger_test

import (
	"encoding"
	"fmt"
	"testing"

	"github.com/backline-dev/backline/runtime/ledger"
)

// Each code goes through text and back, and nothing else is taken for one.
func TestCodes(t *testing.T) {
	t.Parallel()
	codes(t, ledger.States())
	codes(t, ledger.Statuses())
	codes(t, ledger.Retryabilities())
	codes(t, ledger.Fidelities())
	codes(t, ledger.Modes())
	codes(t, ledger.Keepings())
	codes(t, ledger.Kinds())
	codes(t, ledger.Sources())
	codes(t, ledger.ClaimStates())
}

func codes[T interface {
	~string
	encoding.TextMarshaler
	fmt.Stringer
}](t *testing.T, all []T) {
	t.Helper()
	seen := map[string]bool{}
	for _, c := range all {
		text, err := c.MarshalText()
		if err != nil || string(text) != c.String() || string(text) != string(c) || seen[string(text)] {
			t.Errorf("%T %q is written %q, %v", c, c, text, err)
		}
		seen[string(text)] = true
		var back T
		if err := any(&back).(encoding.TextUnmarshaler).UnmarshalText(text); err != nil || back != c {
			t.Errorf("%T %q came back as %q, %v", c, c, back, err)
		}
	}
	for _, text := range []string{"", "none of them", string(all[0]) + " ", " " + string(all[0])} {
		if seen[text] {
			continue
		}
		back := all[0]
		if err := any(&back).(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err == nil || back != all[0] {
			t.Errorf("%T took %q, %v", back, text, err)
		}
	}
}

func TestLimitsDefaults(t *testing.T) {
	t.Parallel()
	l := ledger.Limits{Content: 7}.WithDefaults()
	if l.Content != 7 || l.Lines != 16<<20 || l.Documents != 1<<20 || l.Values != 16<<20 || l.Claims != 100_000 {
		t.Errorf("defaults %+v", l)
	}
}
