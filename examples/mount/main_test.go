package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/exampletest"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/schema/external"
)

const token = "a token for this test alone"

// TestProgram builds the program, runs it on a free port, reads turns through its middleware, and ends
// it in the middle of another one, which comes to its end.
func TestProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	profile := testhost.NewProfile("profile:1")
	p := exampletest.Start(t, []string{"MUSE_TOKEN=" + token}, "-admissions", dir)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	host := &testhost.Lowkey{URL: p.URL + "/agents/lowkey/turn", PluginID: "muse", Token: token, Client: client}

	if status, body := get(t, client, p.URL+"/"); status != http.StatusOK || body != "nothing to see here\n" {
		t.Errorf("the server's own page: %d %q", status, body)
	}
	if status, _ := get(t, client, p.URL+"/agents/readyz"); status != http.StatusOK {
		t.Errorf("readiness: %d", status)
	}
	stranger := &testhost.Lowkey{URL: host.URL, PluginID: "muse", Client: client}
	if a := exampletest.Say(t, testhost.NewConversation(stranger), "hello"); a.Status != http.StatusUnauthorized {
		t.Errorf("a turn without the token: status %d, want 401", a.Status)
	}
	a := exampletest.Say(t, testhost.NewConversation(host), "one after another")
	if !a.Completed() || a.Text != "one after another " {
		t.Errorf("text %q, ended by %+v", a.Text, a.End)
	}

	// As Orbiplex, under a binding that comes later, with refs that have to be encoded in paths.
	x := &testhost.External{URL: p.URL + "/agents/external-runtime", Token: token, Client: client, Profile: profile,
		Binding: testhost.NewBinding("binding://muse/1", "agent:muse", profile)}
	write(t, dir, "binding.json", x.Binding)
	write(t, dir, "profile.json", profile)
	p.Signal(syscall.SIGHUP)
	var answer *testhost.ExternalAnswer
	began := time.Now()
	for n := 0; answer == nil || answer.Ended() == "refused/binding-missing" && time.Since(began) < 20*time.Second; n++ {
		r := x.Request("once more")
		r.TurnRef = external.TurnRef(fmt.Sprintf("turn://muse/%d", n))
		var err error
		if answer, err = x.Run(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if answer.Ended() != "completed/completed" || answer.Content != "once more " {
		t.Errorf("as Orbiplex: %s %q", answer.Ended(), answer.Content)
	}
	if outcome, raw, err := x.Inspect(t.Context(), answer.Events[0].TurnRef); err != nil || outcome == nil {
		t.Errorf("its outcome: %s, %v", raw, err)
	}

	// Each word arrives while the turn runs: after the first one there is time to end the program.
	const words = 20
	s, err := host.Turn(t.Context(), host.Request(strings.Repeat("word ", words)))
	if err != nil {
		t.Fatal(err)
	}
	got, draining := 0, false
	for e, err := range s.Events() {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		switch {
		case e.Terminal() && e.Status != "complete":
			t.Errorf("the turn that was running ended with %+v", e.Event)
		case e.Type == "text":
			if got++; got == 1 {
				p.Signal(syscall.SIGTERM)
			} else if !draining {
				status, _ := get(t, client, p.URL+"/agents/readyz")
				draining = status == http.StatusServiceUnavailable
			}
		}
	}
	if got != words || !draining {
		t.Errorf("%d words came, want %d; readiness said 503 meanwhile: %t", got, words, draining)
	}
	// What the middleware saw of both turns.
	if want := "POST /agents/lowkey/turn: 200, "; strings.Count(p.Wait(), want) != 2 {
		t.Errorf("the access log does not have %q twice", want)
	}
}

// TestTokenIsNeeded: without one the program does not serve.
func TestTokenIsNeeded(t *testing.T) {
	t.Setenv("MUSE_TOKEN", "")
	if err := run("127.0.0.1:0", ""); err == nil || !strings.Contains(err.Error(), "Tokens") {
		t.Errorf("without a token: %v", err)
	}
}

func write(t *testing.T, dir, name string, doc any) {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
