package cli_test

import (
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/plugin"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"0": 0, "0B": 0, "7": 7, "007": 7, "1B": 1, "1kB": 1000, "1KB": 1000, "1KiB": 1024, "512 KiB": 512 << 10,
		"256MiB": 256 << 20, "1MB": 1e6, "1GB": 1e9, "2GiB": 2 << 30, "1TB": 1e12, "1TiB": 1 << 40,
		"9223372036854775807": math.MaxInt64, "8388607TiB": 8388607 << 40,
	} {
		if got, err := cli.ParseSize(in); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "B", "MiB", "-1", "+1", "1.5MiB", "1mib", "1 M", "1Mi", "1b", "1  B", "0x10", "1e3", "1_000", "٣", "1MiB ",
		"9223372036854775808", "8388608TiB", "99999999999999999999999",
	} {
		if got, err := cli.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{"0": 0, "0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond} {
		if got, err := cli.ParseDuration(in); got != want || err != nil {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "10", "-1s", "soon", "1d", "9999999h"} {
		if got, err := cli.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain é 渐\t👩🏽‍🚀":      "plain é 渐\t👩🏽‍🚀",
		"\x1b]0;title\a\x7f":   "␛]0;title␇␡",
		"a\u009b31mb":          "a\ufffd31mb",
		"two\nlines\r\n\n end": "two\nlines␍\n\n end",
	} {
		if got := cli.Visible(in); got != want {
			t.Errorf("visible(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"one": "one", "two\nlines\r\n\n end\n": "two; lines; end", "\x1b[2J": "␛[2J", "": "",
	} {
		if got := cli.OneLine(in); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", "a b", "it's", `"$(x)"`, "`x`", "\\", "a\nb", "~", "#x", "é!", "--x=1", "*", "''", "{a,b}", "=", "a=b"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+cli.ShellQuote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("the shell reads %s as %q, %v; want %q", cli.ShellQuote(s), out, err, s)
		}
	}
}

// TestConfig: what becomes of serve's flags.
func TestConfig(t *testing.T) {
	t.Parallel()
	manifest := filepath.Join("testdata", "manifest.json")
	ignore := cmp.Options{
		cmpopts.IgnoreFields(plugin.Config{}, "Adapter", "Logger", "Manifest", "Middleware", "OnListen", "Hooks"),
	}
	defaults := plugin.Config{
		ID: "muse", Listen: "127.0.0.1:8787", Replicas: 1,
		Sessions: 4096, SessionBytes: 256 << 20, SessionTTL: 24 * time.Hour,
		TurnTimeout: 10 * time.Minute, FirstOutput: 5 * time.Minute, Idle: 3 * time.Minute,
		Heartbeat: 15 * time.Second, Replay: 5 * time.Minute, WriteTimeout: 30 * time.Second,
		Drain: 30 * time.Second, MaxBody: 8 << 20,
		External: &plugin.External{ProductRetention: 24 * time.Hour, StreamRetention: 24 * time.Hour},
		Keiki:    &plugin.Keiki{Tolerance: 5 * time.Minute, Delivery: plugin.Paragraphs, StreamPath: "stream"},
	}
	with := func(change func(*plugin.Config)) plugin.Config {
		c := defaults
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name string
		env  []string
		args string
		want plugin.Config
	}{
		{"defaults", nil, "", defaults},
		{"all", nil, "--listen :1 --insecure --plugin-id x --replicas 3 --sessions 1 --session-bytes 1KiB --session-ttl 1s " +
			"--busy refuse --session-wait 13s --disconnect grace=30s --replay 2s --turn-timeout 3s --first-output 4s --idle 5s --heartbeat 6s " +
			"--write-timeout 7s --drain 8s --max-body 2KiB --max-turns 9 --admissions testdata/admissions --operator-token operator-01234567 --store sqlite:x --product-retention 10s --stream-retention 11s " +
			"--keiki-secret whsec_0123456789 --keiki-api-base https://keiki.example/api/v1/ --keiki-tolerance 12s --keiki-delivery stream --keiki-stream-path live --keiki-flagged-warning Careful!", plugin.Config{
			ID: "x", Listen: ":1", Insecure: true, Replicas: 3, Sessions: 1, SessionBytes: 1024, SessionTTL: time.Second,
			RefuseBusy: true, SessionWait: 13 * time.Second, HostGone: 30 * time.Second, Replay: 2 * time.Second, TurnTimeout: 3 * time.Second,
			FirstOutput: 4 * time.Second, Idle: 5 * time.Second, Heartbeat: 6 * time.Second, WriteTimeout: 7 * time.Second,
			Drain: 8 * time.Second, MaxBody: 2048, MaxTurns: 9,
			External: &plugin.External{
				Admissions: "testdata/admissions", OperatorToken: "operator-01234567", ProductRetention: 10 * time.Second, StreamRetention: 11 * time.Second,
			},
			Keiki: &plugin.Keiki{
				Secrets: plugin.KeikiSecrets{Any: []plugin.Secret{"whsec_0123456789"}}, APIBase: "https://keiki.example/api/v1",
				Tolerance: 12 * time.Second, Delivery: plugin.Streamed, StreamPath: "live", FlaggedWarning: "Careful!",
			},
		}},
		{"zero is none", nil, "--sessions 0 --session-bytes 0 --session-ttl 0 --replay 0 --turn-timeout 0 --first-output 0 " +
			"--idle 0 --heartbeat 0 --write-timeout 0 --drain 0 --max-body 0 --max-turns 0 --product-retention 0 --stream-retention 0", plugin.Config{
			ID: "muse", Listen: "127.0.0.1:8787", Replicas: 1,
			Sessions: plugin.NoLimit, SessionBytes: plugin.NoLimit, SessionTTL: plugin.NoLimit, Replay: plugin.NoLimit,
			TurnTimeout: plugin.NoLimit, FirstOutput: plugin.NoLimit, Idle: plugin.NoLimit, Heartbeat: plugin.NoLimit,
			WriteTimeout: plugin.NoLimit, Drain: time.Nanosecond, MaxBody: plugin.NoLimit,
			External: &plugin.External{ProductRetention: plugin.NoLimit, StreamRetention: plugin.NoLimit},
			Keiki:    defaults.Keiki,
		}},
		{"environment", []string{"BACKLINE_SESSION_BYTES=1GiB", "BACKLINE_BUSY=refuse", "BACKLINE_INSECURE=true", "BACKLINE_IDLE=", "BACKLINE_MAX_TURNS=3"}, "--max-turns 4",
			with(func(c *plugin.Config) {
				c.SessionBytes, c.RefuseBusy, c.Insecure, c.MaxTurns = 1<<30, true, true, 4
			})},
		{"cancel", nil, "--disconnect cancel --busy wait", defaults},
		{"manifest", nil, "--manifest " + manifest, with(func(c *plugin.Config) { c.ID = "orpheus" })},
		{"manifest and the same id", nil, "--plugin-id orpheus --manifest " + manifest, with(func(c *plugin.Config) { c.ID = "orpheus" })},
		{"token", []string{"BACKLINE_AUTH_TOKEN=0123456789abcdef"}, "",
			with(func(c *plugin.Config) { c.Tokens = map[string]plugin.Secret{"default": "0123456789abcdef"} })},
		{"token on the command line over a file in the environment", []string{"BACKLINE_AUTH_TOKEN_FILE=nowhere"}, "--auth-token 0123456789abcdef",
			with(func(c *plugin.Config) { c.Tokens = map[string]plugin.Secret{"default": "0123456789abcdef"} })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := cli.ServeConfig(tc.env, strings.Fields(tc.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, ignore); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Adapter == nil || got.Logger == nil {
				t.Error("there is no adapter or no logger")
			}
			if _, err := plugin.New(got); err != nil {
				t.Errorf("plugin.New refuses it: %v", err)
			}
		})
	}
}

func TestServerURL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in, base, turns string
		open            bool
	}{
		{"http://127.0.0.1:8787", "http://127.0.0.1:8787", "http://127.0.0.1:8787/lowkey/turn", false},
		{"http://127.0.0.1:8787/", "http://127.0.0.1:8787", "http://127.0.0.1:8787/lowkey/turn", false},
		{"127.0.0.1:8787", "http://127.0.0.1:8787", "http://127.0.0.1:8787/lowkey/turn", false},
		{"localhost:8787/lowkey/turn", "http://localhost:8787", "http://localhost:8787/lowkey/turn", false},
		{"https://h.example/agents/lowkey/turn/", "https://h.example/agents", "https://h.example/agents/lowkey/turn/", false},
		{"https://h.example/agents", "https://h.example/agents", "https://h.example/agents", true},
		{"https://h.example/agents/", "https://h.example/agents", "https://h.example/agents/", true},
		{"https://h.example/turn?key=1", "", "https://h.example/turn?key=1", true},
		{"http://[::1]:1", "http://[::1]:1", "http://[::1]:1/lowkey/turn", false},
	} {
		base, turns, open, err := cli.ParseServerURL(tc.in)
		if err != nil || base != tc.base || turns != tc.turns || open != tc.open {
			t.Errorf("%q: %q, %q, %v, %v; want %q, %q, %v", tc.in, base, turns, open, err, tc.base, tc.turns, tc.open)
		}
	}
	for _, in := range []string{"", "http://", "/lowkey/turn", "ws://h", "http://h/#x", "http://h:x", "http://u@h", "mailto:x"} {
		if _, _, _, err := cli.ParseServerURL(in); err == nil {
			t.Errorf("%q is taken for a URL", in)
		}
	}
}
