package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
)

// whsec is a signing secret that tests give; it is found wherever it is written.
const whsec = "whsec_0123456789abcdef-signing"

// patience is how long a test waits for something that is to come.
const patience = 20 * time.Second

// platform is Keiki in this process, with the secret whsec, unless the configuration has others. No app may
// break a rule of the contract.
func platform(t *testing.T, c testhost.KeikiConfig) *testhost.Keiki {
	t.Helper()
	if c.Secrets == nil {
		c.Secrets = map[string][]string{"agent-1": {whsec}}
	}
	c.InFlight = 5 * time.Second // processes that are being ended send what they had begun
	k, err := testhost.NewKeiki(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range k.Violations() {
			t.Errorf("the contract is broken: %v", v)
		}
		k.Close()
	})
	if _, err := k.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	return k
}

// within gives up in time.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dispatch begins a turn, which the app takes.
func dispatch(t *testing.T, k *testhost.Keiki, in testhost.KeikiTurn) *testhost.KeikiDispatch {
	t.Helper()
	d, err := k.Dispatch(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if d.Answer.Status != 0 && d.Answer.Status != http.StatusAccepted {
		t.Fatalf("the turn is answered %d: %s", d.Answer.Status, d.Answer.Body)
	}
	return d
}

// outcome waits for a turn's end.
func outcome(t *testing.T, k *testhost.Keiki, turn string) testhost.KeikiOutcome {
	t.Helper()
	o, err := k.Outcome(within(t), turn)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// delivered waits until a turn has so many messages.
func delivered(t *testing.T, k *testhost.Keiki, turn string, n int) {
	t.Helper()
	if err := k.Until(within(t), func() bool { return len(k.Texts(turn)) >= n }); err != nil {
		t.Fatalf("%d messages did not come, but %q: %v", n, k.Texts(turn), err)
	}
}

// wantTurn runs a turn to its end, which is good, and looks at what was delivered.
func wantTurn(t *testing.T, k *testhost.Keiki, text string, want ...string) testhost.KeikiOutcome {
	t.Helper()
	d := dispatch(t, k, testhost.KeikiTurn{Text: text})
	o := outcome(t, k, d.ID)
	if got := k.Texts(d.ID); o.Status != "completed" || !slices.Equal(got, want) {
		t.Errorf("%q ends %s (%s %s) with %q delivered, want completed and %q", text, o.Status, o.Code, o.Error, got, want)
	}
	return o
}

func writeSecret(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// serveKeiki starts a server that k dispatches to.
func serveKeiki(t *testing.T, k *testhost.Keiki, env []string, args ...string) *server {
	t.Helper()
	s := serve(t, env, append([]string{"--adapter", "scripted"}, args...)...)
	if err := k.SetDispatchURL(s.base + "/keiki/turn"); err != nil {
		t.Fatal(err)
	}
	return s
}

// ends sends SIGTERM, and the exit code is 0.
func (s *server) ends() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		s.t.Errorf("exit code %d, want 0:\n%s", code, s.err)
	}
}

func TestServeKeiki(t *testing.T) {
	t.Parallel()
	k := platform(t, testhost.KeikiConfig{})
	s := serveKeiki(t, k, nil, "--keiki-secret-file", writeSecret(t, whsec+"\r\n"))
	wantTurn(t, k, "hello", "hello")
	wantTurn(t, k, steps(`{"paragraph":"one"}`, `{"text":"two\nlines\n\nthree"}`), "one", "two\nlines", "three")
	d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"arrivals":"300ms"}`)})
	if a, err := k.Arrive(t.Context(), d.ID, testhost.KeikiMessage{Text: "more"}); err != nil || a.Answer.Status != http.StatusAccepted {
		t.Errorf("an arrival: %+v, %v", a, err)
	}
	if o := outcome(t, k, d.ID); !slices.Equal(o.Consumed, []int64{1}) || !slices.Equal(k.Texts(d.ID), []string{"arrival:more"}) {
		t.Errorf("a turn with an arrival: %+v, %q", o, k.Texts(d.ID))
	}
	d = dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"block":true}`)})
	delivered(t, k, d.ID, 1)
	if answer, err := k.Cancel(t.Context(), d.ID); err != nil || answer.Status != http.StatusOK {
		t.Errorf("a cancellation: %+v, %v", answer, err)
	}
	s.err.await(t, `turn=`+d.ID+` status=cancelled`)
	s.ends()
}

// TestServeKeikiFlags tries what each of the flags does.
func TestServeKeikiFlags(t *testing.T) {
	t.Parallel()
	t.Run("no secret", func(t *testing.T) {
		t.Parallel()
		k := platform(t, testhost.KeikiConfig{})
		s := serveKeiki(t, k, nil)
		s.out.await(t, `keiki +`+regexp.QuoteMeta(s.base)+`/keiki/turn \(signing secret: none\)`)
		s.out.await(t, `Keiki's turns are refused`)
		d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hello"})
		if err != nil || d.Answer.Status != http.StatusServiceUnavailable || !bytes.Contains(d.Answer.Body, []byte(`"signing_secret_missing"`)) {
			t.Errorf("answered %d %s, %v; want 503 signing_secret_missing", d.Answer.Status, d.Answer.Body, err)
		}
	})
	t.Run("secrets by agent", func(t *testing.T) {
		t.Parallel()
		file := writeDoc(t, t.TempDir(), "secrets.json", map[string]any{"agent-1": []string{"whsec_0123456789-other", whsec}, "agent-2": "whsec_0123456789-second"})
		k := platform(t, testhost.KeikiConfig{Secrets: map[string][]string{"agent-1": {whsec}, "agent-2": {whsec}, "agent-3": {whsec}}})
		// The flag on the command line overrules the secret in the environment.
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=whsec_0123456789-none"}, "--keiki-secrets", file).out.await(t, `signing secret: by agent`)
		wantTurn(t, k, "hello", "hello")
		for agent, code := range map[string]string{"agent-2": "signature_mismatch", "agent-3": "unknown_agent"} {
			d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{AgentID: agent, Text: "hello"})
			if err != nil || d.Answer.Status != http.StatusUnauthorized || !bytes.Contains(d.Answer.Body, []byte(code)) {
				t.Errorf("%s is answered %d %s, %v; want 401 %s", agent, d.Answer.Status, d.Answer.Body, err, code)
			}
		}
	})
	t.Run("tolerance", func(t *testing.T) {
		t.Parallel()
		k := platform(t, testhost.KeikiConfig{})
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--keiki-tolerance", "1h")
		d := dispatch(t, k, testhost.KeikiTurn{Text: "hello"})
		outcome(t, k, d.ID)
		for age, want := range map[time.Duration]int{59 * time.Minute: http.StatusOK, 61 * time.Minute: http.StatusUnauthorized} {
			a, err := k.Push(t.Context(), testhost.KeikiPush{TurnID: d.ID, Token: d.Token, Body: d.Body, At: time.Now().Add(-age)})
			if err != nil || a.Status != want {
				t.Errorf("a signature of %v ago is answered %d, %v; want %d", age, a.Status, err, want)
			}
		}
	})
	t.Run("API base", func(t *testing.T) {
		t.Parallel()
		k := platform(t, testhost.KeikiConfig{})
		s := serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--keiki-api-base", "https://keiki.example/api/v1")
		if strings.Contains(s.out.String(), "keiki platform") {
			t.Errorf("it offers a platform that it would refuse:\n%s", s.out)
		}
		d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "hello"})
		if err != nil || d.Answer.Status != http.StatusBadRequest {
			t.Errorf("another platform is answered %d %s, %v; want 400", d.Answer.Status, d.Answer.Body, err)
		}
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--keiki-api-base", k.APIBase())
		wantTurn(t, k, "hello", "hello")
	})
	t.Run("delivery", func(t *testing.T) {
		t.Parallel()
		k := platform(t, testhost.KeikiConfig{StreamPath: "live"})
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec, "BACKLINE_KEIKI_DELIVERY=message"})
		wantTurn(t, k, "one\n\ntwo", "one\n\ntwo")
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--keiki-delivery", "stream", "--keiki-stream-path", "live")
		wantTurn(t, k, "one\n\ntwo", "one", "two")
		if !slices.ContainsFunc(k.Requests(""), func(r testhost.KeikiRequest) bool { return r.Route == "stream" }) {
			t.Error("nothing was streamed")
		}
	})
	t.Run("flagged warning", func(t *testing.T) {
		t.Parallel()
		k := platform(t, testhost.KeikiConfig{})
		serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--keiki-flagged-warning", "Mind the gap.", "--keiki-delivery", "message")
		d := dispatch(t, k, testhost.KeikiTurn{Messages: []testhost.KeikiMessage{{Text: steps(`{"show":"turn"}`), Flagged: true}}, Instructions: "Be kind."})
		outcome(t, k, d.ID)
		if got := strings.Join(k.Texts(d.ID), ""); !strings.Contains(got, `"Mind the gap.\n\nBe kind."`) {
			t.Errorf("the agent was told %s", got)
		}
	})
}

// TestServeKeikiRemembers: which turns have run outlives a server where the store does.
func TestServeKeikiRemembers(t *testing.T) {
	t.Parallel()
	store := "sqlite:" + filepath.Join(t.TempDir(), "turns.db")
	k := platform(t, testhost.KeikiConfig{})
	s := serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--store", store)
	ended := wantTurn(t, k, "hello", "hello")
	lost := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"block":true}`)})
	delivered(t, k, lost.ID, 1)
	s.signal(syscall.SIGKILL)
	s.exit()
	s = serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--store", store)
	for _, turn := range []string{ended.TurnID, lost.ID} {
		if a, err := k.Redispatch(t.Context(), turn); err != nil || a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte(`"duplicate":true`)) {
			t.Errorf("%s again is answered %d %s, %v; want a duplicate", turn, a.Status, a.Body, err)
		}
	}
	wantTurn(t, k, "after", "after")
	s.ends()
	if n := strings.Count(s.err.String(), "msg=turn "); n != 1 {
		t.Errorf("%d turns ran, want the new one alone:\n%s", n, s.err)
	}
}

func TestServeKeikiDrains(t *testing.T) {
	t.Parallel()
	k := platform(t, testhost.KeikiConfig{})
	s := serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec})
	d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"sleep":"500ms"}`, `{"text":"done"}`)})
	delivered(t, k, d.ID, 1)
	s.signal(syscall.SIGTERM)
	s.err.await(t, "draining")
	if o := outcome(t, k, d.ID); o.Status != "completed" || !slices.Equal(k.Texts(d.ID), []string{"begun", "done"}) {
		t.Errorf("the running turn ends %s with %q", o.Status, k.Texts(d.ID))
	}
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}

	s = serveKeiki(t, k, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--drain", "0")
	d = dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"block":true}`)})
	delivered(t, k, d.ID, 1)
	s.ends()
	if o := outcome(t, k, d.ID); o.Status != "failed" || o.Error != "server is shutting down" {
		t.Errorf("without a drain the turn ends %s, %q", o.Status, o.Error)
	}
}

// poll starts a poller of k's.
func poll(t *testing.T, k *testhost.Keiki, command string, args ...string) *server {
	t.Helper()
	s := launch(t, nil, []string{"KEIKI_API_KEY=" + k.APIKey("")}, append([]string{"keiki", command, "--api-base", k.APIBase()}, args...)...)
	s.out.await(t, `^(Relaying from|Polling the inbox at) `)
	return s
}

func TestRelay(t *testing.T) {
	t.Parallel()
	k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiRelayMode, ResultPath: "relayed/{id}"})
	s := serve(t, []string{"BACKLINE_KEIKI_SECRET=" + whsec}, "--adapter", "scripted")
	r := poll(t, k, "relay", "--app-url", s.base, "--result-path", "relayed/{id}")
	wantTurn(t, k, "hello", "hello")
	wantTurn(t, k, steps(`{"paragraph":"one"}`, `{"text":"two"}`), "one", "two")
	r.ends() // while it polls
	s.ends()

	// An app that cannot be reached.
	r = poll(t, k, "relay", "--app-url", s.base, "--result-path", "relayed/{id}")
	d := dispatch(t, k, testhost.KeikiTurn{Text: "hello"})
	if o := outcome(t, k, d.ID); o.Code != "unreachable" {
		t.Errorf("without the app the turn ends %s %s", o.Status, o.Code)
	}
	r.err.await(t, "the app could not be reached")
	r.ends()
}

// TestRelayFinishes: what is in hand at SIGTERM is forwarded and reported, and a second signal does not wait
// for it.
func TestRelayFinishes(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			t.Parallel()
			in, out := make(chan struct{}, 1), make(chan struct{})
			var once sync.Once
			free := func() { once.Do(func() { close(out) }) }
			defer free()
			app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				in <- struct{}{}
				<-out
				w.WriteHeader(http.StatusTeapot)
			}))
			t.Cleanup(app.Close)
			k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiRelayMode})
			r := poll(t, k, "relay", "--app-url", app.URL)
			d := dispatch(t, k, testhost.KeikiTurn{Text: "hello"})
			<-in
			r.signal(syscall.SIGTERM)
			r.err.await(t, "what is in hand is finished; a second signal ends at once")
			if killed {
				time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
				r.signal(syscall.SIGTERM)
				if code := r.exit(); code != 1 || !strings.Contains(r.err.String(), "backline: ended by a second signal") {
					t.Errorf("exit code %d, want 1 and why:\n%s", code, r.err)
				}
				free()
				return
			}
			free()
			if o := outcome(t, k, d.ID); o.Code != "app_rejected" {
				t.Errorf("the turn ends %s %s, want app_rejected", o.Status, o.Code)
			}
			if code := r.exit(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}

// TestKeyRefused: a poller whose key the platform does not take finishes what it has, and fails.
func TestKeyRefused(t *testing.T) {
	t.Parallel()
	k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode})
	var refused atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused.Load() && strings.HasSuffix(r.URL.Path, "/next") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		k.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	if err := k.SetURL(front.URL); err != nil {
		t.Fatal(err)
	}
	d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"sleep":"900ms"}`, `{"text":"done"}`)})
	in := poll(t, k, "inbox", "--adapter", "scripted", "--wait", "0")
	delivered(t, k, d.ID, 1)
	refused.Store(true)
	if o := outcome(t, k, d.ID); o.Status != "completed" {
		t.Errorf("the turn in hand ends %s", o.Status)
	}
	relay := launch(t, nil, nil, "keiki", "relay", "--keiki-api-base", k.APIBase(), "--api-key-file", writeSecret(t, "sk_0123456789-none"))
	for _, s := range []*server{in, relay} {
		if code := s.exit(); code != 1 || !strings.Contains(s.err.String(), "\nbackline: the platform does not take the harness API key") && !strings.HasPrefix(s.err.String(), "backline: the platform does not") {
			t.Errorf("exit code %d, want 1 and why:\n%s", code, s.err)
		}
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode})
	in := poll(t, k, "inbox", "--adapter", "scripted", "--keiki-delivery", "message", "--concurrency", "2")
	wantTurn(t, k, "one\n\ntwo", "one\n\ntwo")
	in.ends() // while it polls
	in = poll(t, k, "inbox", "--adapter", "scripted")
	d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"sleep":"500ms"}`, `{"text":"done"}`)})
	delivered(t, k, d.ID, 1)
	in.signal(syscall.SIGTERM)
	in.err.await(t, "draining; a second signal ends at once")
	if o := outcome(t, k, d.ID); o.Status != "completed" || !slices.Equal(k.Texts(d.ID), []string{"begun", "done"}) {
		t.Errorf("the turn in hand ends %s with %q", o.Status, k.Texts(d.ID))
	}
	if code := in.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// TestInboxLeaves: a turn that the drain has no time for is left to its lease, and so is what a second
// signal ends. Another poller takes it up.
func TestInboxLeaves(t *testing.T) {
	t.Parallel()
	for _, signals := range []int{1, 2} {
		t.Run(fmt.Sprint(signals), func(t *testing.T) {
			t.Parallel()
			k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode, Lease: 500 * time.Millisecond})
			d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"begun"}`, `{"sleep":"900ms"}`, `{"text":"done"}`)})
			drain := "0"
			if signals == 2 {
				drain = "10m"
			}
			in := poll(t, k, "inbox", "--adapter", "scripted", "--drain", drain)
			delivered(t, k, d.ID, 1)
			in.signal(syscall.SIGTERM)
			if signals == 2 {
				in.err.await(t, "draining")
				time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
				in.signal(syscall.SIGTERM)
			}
			if code := in.exit(); code != signals-1 {
				t.Errorf("exit code %d, want %d:\n%s", code, signals-1, in.err)
			}
			next := poll(t, k, "inbox", "--adapter", "scripted")
			if o := outcome(t, k, d.ID); o.Status != "completed" || !slices.Equal(k.Texts(d.ID), []string{"begun", "done"}) {
				t.Errorf("the next poller ends it %s with %q", o.Status, k.Texts(d.ID))
			}
			next.ends()
		})
	}
}

// TestInboxIsKilled: a poller dies in the middle of a turn. Another claims it when the lease has run out, and
// what was sent is sent under the same keys: the contact gets each message once.
func TestInboxIsKilled(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"memory", "sqlite:" + filepath.Join(t.TempDir(), "turns.db")} {
		t.Run(store[:6], func(t *testing.T) {
			t.Parallel()
			k := platform(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode, Lease: 500 * time.Millisecond})
			d := dispatch(t, k, testhost.KeikiTurn{Text: steps(`{"paragraph":"one"}`, `{"paragraph":"two"}`, `{"sleep":"900ms"}`, `{"paragraph":"three"}`)})
			args := []string{"--adapter", "scripted", "--store", store}
			in := poll(t, k, "inbox", args...)
			delivered(t, k, d.ID, 2)
			in.signal(syscall.SIGKILL)
			in.exit()
			in = poll(t, k, "inbox", args...)
			if o := outcome(t, k, d.ID); o.Status != "completed" {
				t.Errorf("the turn ends %s %s %s", o.Status, o.Code, o.Error)
			}
			if got := k.Texts(d.ID); !slices.Equal(got, []string{"one", "two", "three"}) {
				t.Errorf("the contact has %q", got)
			}
			keys := map[string]string{}
			for _, s := range k.Sends(d.ID) {
				if other, twice := keys[s.Text]; twice {
					t.Errorf("%q was sent under the keys %s and %s", s.Text, other, s.Key)
				}
				keys[s.Text] = s.Key
			}
			if tokens := k.Tokens(d.ID); len(tokens) != 2 {
				t.Errorf("%d claims, want 2", len(tokens))
			}
			in.ends()
		})
	}
}

// TestKeikiSecretsStayInside looks for secrets in all that servers and pollers write at their most talkative,
// while the platform fails in every way.
func TestKeikiSecretsStayInside(t *testing.T) {
	t.Parallel()
	for _, mode := range []testhost.KeikiMode{testhost.KeikiPushMode, testhost.KeikiRelayMode, testhost.KeikiInboxMode} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			ledger := filepath.Join(t.TempDir(), "turns.db")
			faults := testhost.RandomFaults(7, 10, 15, 5)
			k := platform(t, testhost.KeikiConfig{
				Mode: mode, Lease: time.Second, RotateOnRefresh: true, APIKey: "sk_test_0123456789abcdef",
				Fault: func(r *http.Request, n int) testhost.KeikiFault {
					if strings.HasSuffix(r.URL.Path, "/next") && n > 1 { // the pauses between polls are long
						return testhost.KeikiFault{}
					}
					if n == 1 {
						return testhost.KeikiFault{Status: http.StatusInternalServerError, Body: `{"error":{"code":"internal"}}`}
					}
					return faults(r, n)
				},
			})
			talkative := []string{"--log-level", "debug", "--log-format", "json"}
			var all []*server
			app := k.APIBase()
			if mode != testhost.KeikiInboxMode {
				s := serveKeiki(t, k, nil, append(talkative, "--keiki-secret", whsec, "--store", "sqlite:"+ledger)...)
				all, app = append(all, s), s.base+"/keiki/turn"
			}
			switch mode {
			case testhost.KeikiRelayMode:
				all = append(all, poll(t, k, "relay", append(talkative, "--app-url", app, "--api-key", k.APIKey(""))...))
			case testhost.KeikiInboxMode:
				all = append(all, poll(t, k, "inbox", append(talkative, "--adapter", "scripted", "--api-key", k.APIKey(""), "--store", "sqlite:"+ledger)...))
			}
			var known []string
			for i, text := range []string{"hello\n\nworld", steps(`{"panic":"x"}`), steps(`{"sleep":"700ms"}`, `{"text":"x"}`), steps(`{"show":"turn"}`)} {
				in := testhost.KeikiTurn{ID: fmt.Sprintf("turn-%d", i), Text: text}
				if i == 3 && mode != testhost.KeikiInboxMode { // the app signs a credential of its own
					in.Header = http.Header{"Keiki-Turn-Token": nil}
				}
				d := dispatch(t, k, in)
				outcome(t, k, d.ID)
				known = append(known, k.Tokens(d.ID)...)
			}
			if mode == testhost.KeikiPushMode { // what is refused
				for _, h := range []http.Header{{"Keiki-Signature": {"t=1,v1=" + whsec}}, {"Keiki-Signature": nil}, {"Keiki-Turn-Id": {"other"}}} {
					if _, err := k.Push(t.Context(), testhost.KeikiPush{TurnID: "turn-9", Token: known[0], Body: []byte(`{"type":"keiki.turn"}`), Header: h}); err != nil {
						t.Error(err)
					}
				}
			}
			for _, s := range slices.Backward(all) {
				s.ends()
				text := s.out.String() + s.err.String()
				for _, secret := range append(known, whsec, k.APIKey("")) {
					if strings.Contains(text, secret) {
						t.Errorf("a secret is written:\n%s", text)
					}
				}
				if regexp.MustCompile(`ht_[A-Z0-9]{10}|kts1\.`).MatchString(text) {
					t.Errorf("something like a token is written:\n%s", text)
				}
				if !strings.Contains(text, "warning: a secret on the command line") {
					t.Errorf("the warning is missing:\n%s", text)
				}
			}
			files, err := filepath.Glob(ledger + "*")
			if err != nil || len(files) == 0 && mode == testhost.KeikiInboxMode {
				t.Errorf("the store is not there: %v", err)
			}
			for _, file := range files {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, secret := range append(known, whsec, k.APIKey("")) {
					if bytes.Contains(content, []byte(secret)) {
						t.Errorf("a secret is in %s", file)
					}
				}
			}
		})
	}
}
