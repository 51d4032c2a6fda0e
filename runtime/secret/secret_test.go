package secret_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/backline-dev/backline/runtime/secret"
)

func Example() {
	type config struct{ Token secret.Text }
	c := config{Token: "tok_not-a-real-one"}
	fmt.Printf("%v %+v\n", c, c)
	fmt.Println(len(c.Token.Reveal()))
	// Output:
	// {[redacted]} {Token:[redacted]}
	// 18
}

func ExampleText_Equal() {
	key := secret.Text("whsec_not-a-real-one")
	fmt.Println(key.Equal("whsec_not-a-real-one"), key.Equal("whsec_other"))
	// Output: true false
}

func TestNothingShowsIt(t *testing.T) {
	t.Parallel()
	const hidden = "kt_0123456789abcdef"
	type outer struct {
		Token secret.Text
		ByID  map[string]secret.Text
		List  []secret.Text
		Ptr   *secret.Text
	}
	text := secret.Text(hidden)
	v := outer{text, map[string]secret.Text{"a": text}, []secret.Text{text}, &text}
	var shown []string
	for _, verb := range "vsqxXdcUbteEfgGow" {
		for _, flags := range []string{"", "+", "#", "-30", ".3", " "} {
			format := "%" + flags + string(verb)
			if verb == 'w' {
				shown = append(shown, fmt.Errorf(format, errors.New(text.String())).Error())
				continue
			}
			for _, x := range []any{text, v, &v, v.ByID, v.List} {
				shown = append(shown, fmt.Sprintf(format, x))
			}
		}
	}
	shown = append(shown, fmt.Sprint(text, v), fmt.Sprintln(text, v))
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	shown = append(shown, string(b))
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "secret", text, "struct", v, "ptr", &v, "any", slog.AnyValue(text))
	}
	shown = append(shown, log.String())
	for _, s := range shown {
		for _, piece := range []string{hidden, "0123456789", fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), "107 116 95"} {
			if strings.Contains(s, piece) {
				t.Errorf("a secret is shown: %s", s)
			}
		}
	}
	if got := fmt.Sprintf("%q", secret.Text("")); got != "" {
		t.Errorf("the empty secret shows as %q", got)
	}
}

func TestIsSet(t *testing.T) {
	t.Parallel()
	for text, want := range map[secret.Text]bool{"": false, " \t\n": false, "x": true} {
		if got := text.IsSet(); got != want {
			t.Errorf("IsSet of %d bytes = %t, want %t", len(text), got, want)
		}
	}
}
