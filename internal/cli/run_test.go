package cli_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/internal/testhost"
)

// A result is what one run of the command did.
type result struct {
	code     int
	out, err string
}

// run runs the command in this process.
func run(t *testing.T, stdin string, env []string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	code := cli.Run(t.Context(), args, cli.Streams{In: strings.NewReader(stdin), Out: &out, Err: &err, Env: env})
	return result{code, out.String(), err.String()}
}

// TestExitCodes is the table of the command line's page.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good := write("good.json", `{"id":"muse","agent":{"runtime":"external:muse","endpoint":"http://127.0.0.1:8787/lowkey/turn"}}`)
	bad := write("bad.json", `{"id":"muse","agent":{"runtime":"external:other","endpoint":"nowhere"}}`)
	binding := writeDoc(t, t.TempDir(), "binding.json", testhost.NewBinding("binding:1", "agent:muse", testhost.NewProfile("profile:1")))
	twice := write("twice.json", `{"id":"muse","id":"muse"}`)
	weak := write("weak.txt", "short\n")
	empty := write("empty.txt", "\n")
	odd := write("odd.txt", "0123456789 abcdefghij")
	token := "0123456789abcdef0123"
	secrets := write("secrets.json", `{"agent-7":"0123456789abcdef0123"}`)

	for _, tc := range []struct {
		name string
		args []string
		env  []string
		code int
		err  string // in the one line on standard error
	}{
		{"unknown command", []string{"bogus"}, nil, 2, `unknown command "bogus"`},
		{"unknown command of Keiki's", []string{"keiki", "push"}, nil, 2, `unknown command "push"`},
		{"unknown command of a group", []string{"manifest", "bogus"}, nil, 2, `unknown command "bogus"`},
		{"unknown help topic", []string{"--bogus"}, nil, 2, "unknown flag: --bogus"},
		{"unknown flag", []string{"serve", "--bogus"}, nil, 2, "unknown flag: --bogus (see backline serve --help)"},
		{"unknown adapter", []string{"serve", "--adapter", "openai"}, nil, 2, "want echo or scripted"},
		{"bad time", []string{"serve", "--idle", "soon"}, nil, 2, "want a time such as 90s"},
		{"negative time", []string{"serve", "--idle", "-1s"}, nil, 2, "not negative"},
		{"bad size", []string{"serve", "--max-body", "8 bananas"}, nil, 2, `the unit "bananas" is not known`},
		{"bad number", []string{"serve", "--max-turns", "-1"}, nil, 2, "want a whole number of at least 0"},
		{"bad disconnect", []string{"serve", "--disconnect", "grace=0s"}, nil, 2, "such as grace=30s"},
		{"bad busy", []string{"serve", "--busy", "maybe"}, nil, 2, "want wait or refuse"},
		{"bad log level", []string{"serve", "--log-level", "loud"}, nil, 2, "want info, debug, warn or error"},
		{"no replicas", []string{"serve", "--replicas", "0"}, nil, 2, "--replicas is 0, want at least 1"},
		{"bad address", []string{"serve", "--listen", "nowhere"}, nil, 2, "want a host and a port"},
		{"bad port", []string{"serve", "--listen", "127.0.0.1:70000"}, nil, 2, "want a host and a port"},
		{"open without a token", []string{"serve", "--listen", "0.0.0.0:0"}, nil, 2, "give --auth-token-file FILE, or listen on 127.0.0.1, or say --insecure"},
		{"open without a token, all interfaces", []string{"serve", "--listen", ":0"}, nil, 2, "--insecure"},
		{"weak token", []string{"serve", "--auth-token-file", weak}, nil, 2, "shorter than 16 bytes"},
		{"weak token in the environment", []string{"serve"}, []string{"BACKLINE_AUTH_TOKEN=short"}, 2, "shorter than 16 bytes"},
		{"empty token file", []string{"serve", "--auth-token-file", empty}, nil, 2, "--auth-token-file is empty"},
		{"empty token", []string{"serve", "--auth-token", ""}, []string{}, 2, "is empty"},
		{"empty token in the environment", []string{"serve"}, []string{"BACKLINE_AUTH_TOKEN="}, 2, "BACKLINE_AUTH_TOKEN is empty"},
		{"token that fits no header", []string{"serve", "--auth-token-file", odd}, nil, 2, "visible ASCII"},
		{"no token file", []string{"serve", "--auth-token-file", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"two tokens", []string{"serve", "--auth-token", token, "--auth-token-file", weak}, nil, 2, "both given"},
		{"two tokens in the environment", []string{"serve"}, []string{"BACKLINE_AUTH_TOKEN=" + token, "BACKLINE_AUTH_TOKEN_FILE=" + weak}, 2, "both given"},
		{"bad manifest", []string{"serve", "--manifest", bad}, nil, 2, "/agent/runtime"},
		{"malformed manifest", []string{"serve", "--manifest", twice}, nil, 2, `duplicate key "id"`},
		{"no manifest", []string{"serve", "--manifest", filepath.Join(dir, "none.json")}, nil, 2, "no such file"},
		{"another id than the manifest's", []string{"serve", "--manifest", good, "--plugin-id", "other"}, nil, 2, `the manifest's id is "muse"`},
		{"bad flag in the environment", []string{"serve"}, []string{"BACKLINE_TURN_TIMEOUT=soon"}, 2, "BACKLINE_TURN_TIMEOUT in the environment is not right for --turn-timeout: want a time"},
		{"arguments of serve", []string{"serve", "muse"}, nil, 2, `serve takes no arguments, and was given "muse"`},

		{"short secret of Keiki's", []string{"serve", "--keiki-secret-file", weak}, nil, 2, "--keiki-secret-file: the secret is shorter than 16 bytes"},
		{"empty secret of Keiki's", []string{"serve", "--keiki-secret-file", empty}, nil, 2, "--keiki-secret-file: the secret is empty"},
		{"empty secret of Keiki's on the command line", []string{"serve", "--keiki-secret", ""}, nil, 2, "--keiki-secret: the secret is empty"},
		{"empty secret of Keiki's in the environment", []string{"serve"}, []string{"BACKLINE_KEIKI_SECRET="}, 2, "BACKLINE_KEIKI_SECRET: the secret is empty"},
		{"blank secret of Keiki's", []string{"serve"}, []string{"BACKLINE_KEIKI_SECRET=                  "}, 2, "BACKLINE_KEIKI_SECRET: the secret is blank"},
		{"secret of Keiki's with white space", []string{"serve"}, []string{"BACKLINE_KEIKI_SECRET= " + token}, 2, "BACKLINE_KEIKI_SECRET: the secret begins or ends with white space"},
		{"no secret file of Keiki's", []string{"serve", "--keiki-secret-file", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"two secrets of Keiki's", []string{"serve"}, []string{"BACKLINE_KEIKI_SECRET=" + token, "BACKLINE_KEIKI_SECRETS=" + secrets}, 2, "--keiki-secret and --keiki-secrets are both given"},
		{"empty file of Keiki's secrets", []string{"serve"}, []string{"BACKLINE_KEIKI_SECRETS="}, 2, "--keiki-secrets is empty"},
		{"bad secrets of Keiki's", []string{"serve", "--keiki-secrets", good}, nil, 2, `agent "agent": a secret or a list of secrets is expected`},
		{"no secrets of Keiki's", []string{"serve", "--keiki-secrets", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"no tolerance", []string{"serve", "--keiki-tolerance", "0"}, nil, 2, "--keiki-tolerance is 0"},
		{"unknown delivery", []string{"serve", "--keiki-delivery", "letter"}, nil, 2, "want paragraphs, message or stream"},
		{"no path to stream to", []string{"serve", "--keiki-stream-path", "/"}, nil, 2, "--keiki-stream-path is"},
		{"path to stream to that leads out", []string{"serve", "--keiki-stream-path", "../x"}, nil, 2, "--keiki-stream-path is"},
		{"API base that is no URL", []string{"serve", "--keiki-api-base", "keiki.example"}, nil, 2, "--keiki-api-base is not an absolute http or https URL"},
		{"API base with a password", []string{"serve", "--keiki-api-base", "https://a:secret@keiki.example"}, nil, 2, "--keiki-api-base has a user name or password in it"},

		{"relay without an API key", []string{"keiki", "relay", "--api-base", "https://keiki.example"}, nil, 2, "there is no harness API key: give --api-key-file FILE or KEIKI_API_KEY"},
		{"relay with an empty API key", []string{"keiki", "relay", "--api-base", "https://keiki.example"}, []string{"KEIKI_API_KEY="}, 2, "KEIKI_API_KEY is empty"},
		{"relay with an empty file for its key", []string{"keiki", "relay", "--api-base", "https://keiki.example", "--api-key-file", empty}, nil, 2, "--api-key-file is empty"},
		{"relay from nowhere", []string{"keiki", "relay"}, []string{"KEIKI_API_KEY=" + token}, 2, "give --api-base URL"},
		{"relay from two platforms", []string{"keiki", "relay", "--api-base", "https://a.example", "--keiki-api-base", "https://b.example"}, nil, 2, "name two platforms"},
		{"relay from the platform of the command line", []string{"keiki", "relay", "--api-base", "https://a.example"}, []string{"BACKLINE_KEIKI_API_BASE=https://b.example"}, 2, "there is no harness API key"},
		{"relay from the platform of the environment", []string{"keiki", "relay"}, []string{"BACKLINE_KEIKI_API_BASE=https://b.example"}, 2, "there is no harness API key"},
		{"relay from a platform that is none", []string{"keiki", "relay", "--api-base", "https://b.example/?x=y"}, nil, 2, "--api-base has a query"},
		{"relay to nowhere", []string{"keiki", "relay", "--api-base", "https://keiki.example", "--app-url", "ftp://x"}, []string{"KEIKI_API_KEY=" + token}, 2, "--app-url is not an absolute http or https URL"},
		{"relay that reports on nothing", []string{"keiki", "relay", "--api-base", "https://keiki.example", "--result-path", "x"}, []string{"KEIKI_API_KEY=" + token}, 2, "--result-path has no {id} in it"},
		{"relay of none at a time", []string{"keiki", "relay", "--api-base", "https://keiki.example", "--concurrency", "0"}, []string{"KEIKI_API_KEY=" + token}, 2, "--concurrency is 0, want at least 1"},
		{"inbox without an API key", []string{"keiki", "inbox", "--keiki-api-base", "https://keiki.example"}, nil, 2, "there is no harness API key"},
		{"inbox with an odd API key", []string{"keiki", "inbox", "--api-base", "https://keiki.example", "--api-key-file", odd}, nil, 2, "visible ASCII"},
		{"inbox of nowhere", []string{"keiki", "inbox"}, []string{"KEIKI_API_KEY=" + token}, 2, "give --api-base URL"},
		{"inbox with a long wait", []string{"keiki", "inbox", "--api-base", "https://keiki.example", "--wait", "31s"}, []string{"KEIKI_API_KEY=" + token}, 2, "--wait is 31s, want whole seconds from 0s to 30s"},
		{"inbox with a part of a second", []string{"keiki", "inbox", "--api-base", "https://keiki.example", "--wait", "1500ms"}, []string{"KEIKI_API_KEY=" + token}, 2, "--wait is 1.5s"},
		{"inbox of none at a time", []string{"keiki", "inbox", "--api-base", "https://keiki.example", "--concurrency", "0"}, []string{"KEIKI_API_KEY=" + token}, 2, "--concurrency is 0"},
		{"inbox with a limit of serve's", []string{"keiki", "inbox", "--max-turns", "1"}, nil, 2, "unknown flag: --max-turns"},
		{"platform with a short secret", []string{"keiki", "platform", "--secret-file", weak}, nil, 2, "--secret-file: the secret is shorter than 16 bytes"},
		{"platform with two secrets", []string{"keiki", "platform", "--secret-file", weak, "--secrets", secrets}, nil, 2, "both given"},
		{"platform with an agent without a secret", []string{"keiki", "platform", "--secrets", secrets, "--agent-id", "nobody"}, nil, 2, `--agent-id is "nobody", for which there is no secret`},
		{"platform with an odd API key", []string{"keiki", "platform", "--api-key-file", write("key.txt", "0123456789abcdef")}, nil, 2, "does not begin with sk_"},
		{"platform with nothing to say", []string{"keiki", "platform", "--secret-file", write("secret.txt", token), "--once", " "}, nil, 2, "--once is empty"},
		{"platform with a command for a turn", []string{"keiki", "platform", "--listen", "127.0.0.1:0", "--secret-file", write("secret.txt", token), "--once", "/cancel"}, nil, 2, "--once: it is a command, and no turn"},
		{"platform with a turn that is none", []string{"keiki", "platform", "--listen", "127.0.0.1:0", "--secret-file", write("secret.txt", token), "--once", "{}"}, nil, 2, "--once: this is no turn in JSON: it has neither text nor messages"},
		{"platform with a secret that nobody has", []string{"keiki", "platform", "--secret-file", filepath.Join(dir, "new.txt"), "--once", "x"}, nil, 2, "--once needs the secret that the server has been given"},
		{"platform with a turn and a file", []string{"keiki", "platform", good, "--once", "x"}, nil, 2, "--once is one turn, and a FILE was given too"},
		{"platform of no file", []string{"keiki", "platform", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"platform with more than all going wrong", []string{"keiki", "platform", "--drop", "50", "--errors", "51"}, nil, 2, "want at most 100"},
		{"platform without time", []string{"keiki", "platform", "--timeout", "0"}, nil, 2, "want a time above 0"},
		{"platform in an unknown mode", []string{"keiki", "platform", "--mode", "pull"}, nil, 2, "want push, relay or inbox"},

		{"unknown store", []string{"serve", "--store", "redis://x"}, nil, 2, "want memory, or sqlite: and a file"},
		{"store without a file", []string{"serve", "--store", "sqlite:"}, nil, 2, "want memory, or sqlite: and a file"},
		{"store that is no ledger", []string{"serve", "--store", "sqlite:" + good}, nil, 1, "not a ledger"},
		{"store in no folder", []string{"serve", "--store", "sqlite:" + filepath.Join(dir, "none", "x.db")}, nil, 1, "make the folder first"},
		{"weak operator's token", []string{"serve", "--operator-token", "short"}, nil, 2, "External.OperatorToken is shorter than 16 bytes"},
		{"one token for hosts and operators", []string{"serve"}, []string{"BACKLINE_AUTH_TOKEN=" + token, "BACKLINE_OPERATOR_TOKEN=" + token}, 2, "also a host's token"},
		{"no admissions", []string{"serve", "--admissions", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"bad admissions", []string{"serve", "--admissions", dir}, nil, 2, "bad.json"},

		{"ledger of nothing", []string{"ledger", "list", filepath.Join(dir, "none.db")}, nil, 1, "no such file"},
		{"ledger of something else", []string{"ledger", "export", good}, nil, 1, "not a ledger"},
		{"ledger in memory", []string{"ledger", "list", "memory"}, nil, 2, "only a ledger in a file can be read"},
		{"ledger list without a file", []string{"ledger", "list"}, nil, 2, "ledger list needs the FILE of a ledger"},
		{"ledger list of too many", []string{"ledger", "list", good, "--limit", "1001"}, nil, 2, "want 1 to 1000"},
		{"ledger list in an unknown state", []string{"ledger", "list", good, "--state", "done"}, nil, 2, "want reserved, dispatched, suspended or settled"},
		{"ledger list with an unknown status", []string{"ledger", "list", good, "--status", "done"}, nil, 2, "want completed, refused, failed, cancelled or unknown"},
		{"ledger show without a turn", []string{"ledger", "show", good}, nil, 2, "and the TURN's ref"},
		{"unknown command of the ledger", []string{"ledger", "drop"}, nil, 2, `unknown command "drop"`},

		{"chat external without a binding", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "-m", "x"}, nil, 2, "needs --binding FILE"},
		{"chat external with a bad binding", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "-m", "x", "--binding", good}, nil, 2, "--binding: "},
		{"chat external with an empty message", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "-m", "", "--binding", binding}, nil, 2, "--message is empty"},
		{"chat external with nobody", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "-m", "x", "--binding", binding}, nil, 1, "is the server running?"},
		{"chat external with nobody, lines", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "--binding", binding}, nil, 1, "is the server running?"},
		{"chat external at a URL with a query", []string{"chat", "http://127.0.0.1:1/?a=b", "--protocol", "external-runtime", "--binding", binding}, nil, 2, "has a query"},
		{"chat external that asks nobody", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "--binding", binding, "--observe", "ask"}, nil, 2, "--observe ask needs a terminal"},
		{"chat external with an unknown answer", []string{"chat", "http://127.0.0.1:1", "--observe", "maybe"}, nil, 2, "want ask, admit, refuse, or refuse= and a reason code"},
		{"chat external with a reason to admit", []string{"chat", "http://127.0.0.1:1", "--observe", "admit=policy-denied"}, nil, 2, "want ask, admit, refuse, or refuse= and a reason code"},
		{"chat external with an unknown reason", []string{"chat", "http://127.0.0.1:1", "--observe", "refuse=mood"}, nil, 2, "want one of the reason codes policy-denied, binding-missing"},
		{"chat external with a refusal that is none", []string{"chat", "http://127.0.0.1:1", "--observe", "refuse=completed"}, nil, 2, "want one of the reason codes policy-denied"},
		{"chat external with a window", []string{"chat", "http://127.0.0.1:1", "--protocol", "external-runtime", "--window", "1"}, nil, 2, "--window is for --protocol lowkey"},
		{"chat with a binding", []string{"chat", "http://127.0.0.1:1", "--binding", good}, nil, 2, "--binding is for --protocol external-runtime"},
		{"validate with a bad profile", []string{"validate", "--profile", good, good}, nil, 2, "--profile: "},

		{"chat without a URL", []string{"chat"}, nil, 2, "chat needs the URL of a server"},
		{"chat with two", []string{"chat", "a", "b"}, nil, 2, `was also given "b"`},
		{"chat with an odd URL", []string{"chat", "ftp://example.com"}, nil, 2, "want an absolute http or https URL"},
		{"chat with a password", []string{"chat", "http://a:secret@127.0.0.1:1"}, nil, 2, "give a token with --token-file instead"},
		{"chat with nobody", []string{"chat", "http://127.0.0.1:1", "-m", "x"}, nil, 1, "is the server running?"},
		{"chat with nobody, lines", []string{"chat", "http://127.0.0.1:1"}, nil, 1, "is the server running?"},
		{"chat with an odd limit", []string{"chat", "http://127.0.0.1:1", "--line-limit", "0"}, nil, 2, "want 1B to 1GiB"},

		{"validate something bad", []string{"validate", bad}, nil, 1, "is not a valid manifest: 2 violations"},
		{"validate nothing", []string{"validate", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"validate a directory", []string{"validate", dir}, nil, 2, "is a directory"},
		{"validate as what?", []string{"validate", weak}, nil, 2, "name it with --schema manifest|lowkey-request|lowkey-events|external-request|"},
		{"validate by an unknown schema", []string{"validate", "--schema", "lowkey", good}, nil, 2, "want manifest, lowkey-request, lowkey-events, external-request, external-events, external-outcome, external-profile, external-binding, external-product, classification, keiki-turn, keiki-arrival, keiki-cancelled or keiki-claim"},
		{"validate two", []string{"validate", good, bad}, nil, 2, "takes only one FILE"},

		{"unknown schema", []string{"schema", "bogus"}, nil, 2, "the names are lowkey-request, lowkey-events, external-request, external-events, external-outcome, external-profile, external-binding, external-product, classification, keiki-turn, keiki-arrival, keiki-cancelled and keiki-claim"},
		{"manifest check", []string{"manifest", "check", bad}, nil, 1, "2 violations"},
		{"manifest show of no object", []string{"manifest", "show", weak}, nil, 1, "where a value is expected"},
		{"manifest show of nothing", []string{"manifest", "show", filepath.Join(dir, "none")}, nil, 2, "no such file"},
		{"manifest init without an id", []string{"manifest", "init", filepath.Join(dir, "new.json")}, nil, 2, "give --id"},
		{"manifest init over a file", []string{"manifest", "init", good, "--id", "muse"}, nil, 1, "is there already and is not overwritten"},
		{"manifest init with a bad endpoint", []string{"manifest", "init", filepath.Join(dir, "new.json"), "--id", "muse", "--endpoint", "nowhere"}, nil, 2, "absolute http or https URL"},
		{"manifest init nowhere", []string{"manifest", "init", filepath.Join(dir, "none", "new.json"), "--id", "muse"}, nil, 1, "no such file"},

		{"init without a directory", []string{"init", "--id", "muse"}, nil, 2, "init needs the DIR"},
		{"init without an id", []string{"init", filepath.Join(dir, "new")}, nil, 2, "give --id"},
		{"init with a path for an id", []string{"init", filepath.Join(dir, "new"), "--id", "../muse"}, nil, 2, "letters, digits"},
		{"init with a space in the id", []string{"init", filepath.Join(dir, "new"), "--id", "my muse"}, nil, 2, "letters, digits"},
		{"init with a new line in the id", []string{"init", filepath.Join(dir, "new"), "--id", "muse\nevil"}, nil, 2, "letters, digits"},
		{"init with another adapter", []string{"init", filepath.Join(dir, "new"), "--id", "muse", "--adapter", "openai"}, nil, 2, "want custom"},
		{"init into a file", []string{"init", good, "--id", "muse"}, nil, 1, "is not a directory"},
		{"version with arguments", []string{"version", "x"}, nil, 2, "takes no arguments"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "a message\n", tc.env, tc.args...)
			if r.code != tc.code {
				t.Errorf("exit code %d, want %d", r.code, tc.code)
			}
			if !strings.Contains(lastLine(r.err), tc.err) {
				t.Errorf("standard error\n%s\ndoes not say %q", r.err, tc.err)
			}
			lines := strings.Count(r.err, "\n")
			if warned := strings.Count(r.err, "backline: warning: "); lines != 1+warned {
				t.Errorf("standard error has %d lines, want one besides %d warnings:\n%s", lines, warned, r.err)
			}
			if tc.code == 2 && r.out != "" {
				t.Errorf("standard output of a command used wrongly: %q", r.out)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(dir, "new*")); err != nil || len(left) > 0 {
		t.Errorf("commands that failed left %q behind (%v)", left, err)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestHelpWithoutACommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"help"}, {"-h"}, {"help", "serve"}, {"manifest"}} {
		if r := run(t, "", nil, args...); r.code != 0 || !strings.Contains(r.out, "Usage:") || r.err != "" {
			t.Errorf("%q: exit code %d, %q", args, r.code, r.err)
		}
	}
}

// TestOutputFails: a result that could not be written is no success.
func TestOutputFails(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"schema"}, {"schema", "lowkey-request"}, {"manifest", "init", "-", "--id", "muse"}} {
		var errs bytes.Buffer
		code := cli.Run(context.Background(), args, cli.Streams{In: strings.NewReader(""), Out: full{}, Err: &errs})
		if code != 1 || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%q to a full disk: exit code %d, %q", args, code, errs.String())
		}
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// program is the command in the path, as TestMain has put it there.
func program(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("backline")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
