package plugin_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/backline-dev/backline/plugin"
)

func ExampleSecret() {
	conf := plugin.Config{
		ID:      "muse",
		Adapter: echo,
		Tokens:  map[string]plugin.Secret{"lowkey": "not-a-real-token-0123"},
	}
	fmt.Println(conf.Tokens)
	fmt.Println(conf.Tokens["lowkey"].Equal("not-a-real-token-0123"))
	// Output:
	// map[lowkey:[redacted]]
	// true
}

// TestSecretsAreNotShown: whoever prints or logs a configuration, or the plugin made of it, shows no secret.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	const host, operator, key = "host-0123456789abcdef", "operator-0123456789abcdef", "key-0123456789abcdef"
	// Of standard-webhooks' form, which is base64.
	const signing = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	conf := plugin.Config{
		ID: "muse", Adapter: echo, Tokens: map[string]plugin.Secret{"lowkey": host},
		External: &plugin.External{OperatorToken: operator},
		Keiki: &plugin.Keiki{
			Secrets: plugin.KeikiSecrets{Any: []plugin.Secret{signing}}, APIBase: "https://keiki.example",
			Inbox: &plugin.KeikiInbox{APIKey: key},
		},
	}
	p, err := plugin.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{conf, &conf, *conf.External, conf.External, conf.Tokens, *conf.Keiki, conf.Keiki, *conf.Keiki.Inbox, conf.Keiki.Inbox, conf.Keiki.Secrets, p} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
		slog.New(h).Info("x", "conf", conf, "external", *conf.External, "tokens", conf.Tokens, "keiki", *conf.Keiki, "plugin", p)
	}
	for _, secret := range []string{"0123456789abcdef", fmt.Sprintf("%x", "0123456789abcdef"), "MDEyMzQ1"} {
		if i := strings.Index(shown.String(), secret); i >= 0 {
			t.Errorf("a secret is shown: …%s…", shown.String()[max(0, i-200):i+len(secret)])
		}
	}
	if !strings.Contains(shown.String(), "lowkey:[redacted]") {
		t.Error("that there is a token is not shown")
	}
	if got := fmt.Sprintf("%v %s", plugin.Config{ID: "muse"}, &plugin.Config{}); !strings.Contains(got, "ID:muse") || strings.Count(got, "External:<nil>") != 2 {
		t.Errorf("configurations without External show as %s", got)
	}
	if string(conf.Tokens["lowkey"]) != host || string(conf.External.OperatorToken) != operator {
		t.Error("the caller's own configuration has lost its secrets")
	}
}
