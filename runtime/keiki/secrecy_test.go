package keiki_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// TestFaultE6NothingIsGivenAway: the secrets, the turn tokens and the credentials that were signed are
// looked for in everything that leaves the handler and everything that it keeps: logs at debug level, the
// answers to pushes, what hooks and adapters are shown, conversations, the ledger's file, completions. The
// platform repeats them wherever it can, and tries to lead them elsewhere.
func TestFaultE6NothingIsGivenAway(t *testing.T) {
	t.Parallel()
	elsewhere := newEavesdropper(t)
	folder := t.TempDir()
	store := openStore(t, filepath.Join(folder, "turns.db"))
	sessions, err := session.New(session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var shown strings.Builder
	show := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(&shown, format+"\n", args...)
	}
	hidden := map[string]bool{}
	hide := func(secret string) {
		mu.Lock()
		defer mu.Unlock()
		hidden[secret] = true
		for _, prefix := range []string{"whsec_", "ht_", "kts1."} {
			if rest, ok := strings.CutPrefix(secret, prefix); ok {
				hidden[rest] = true
			}
		}
		for part := range strings.SplitSeq(secret, ".") {
			if len(part) > 16 {
				hidden[part] = true // payload and signature of a credential
			}
		}
	}
	hide(testSecret)
	hide(otherSecret)

	g := newRig(t, turnTaker{func(ctx context.Context, turn *adapters.Turn, in <-chan adapters.Arrival, w adapters.Writer) error {
		show("%+v %#v %s %s", turn, turn, turn.Raw, turn.Context)
		if err := turn.Session.Store("turn", turn); err != nil {
			return err
		}
		_ = w.Text("one\n\ntwo\n\n")
		switch turn.Message {
		case "arrivals":
			select {
			case a := <-in:
				show("%+v", a)
			case <-ctx.Done():
			}
		case "panic":
			panic(turn)
		case "fail":
			return fmt.Errorf("no: %+v", turn)
		}
		err := w.Text("three")
		show("%v %v %v", err, context.Cause(ctx), ctx)
		return err
	}}, func(c *rigConfig) {
		c.push.Secrets.Any = append(c.push.Secrets.Any, otherSecret)
		c.push.Claims = store
		c.runtime.Sessions = sessions
		c.runtime.Hooks = []runtime.Hooks{{
			TurnStart: func(ctx context.Context, info runtime.TurnInfo) context.Context {
				show("%+v %v", info, ctx)
				return ctx
			},
			TurnEnd: func(ctx context.Context, info runtime.TurnInfo, o *runtime.Outcome) {
				show("%+v %+v %v %v", info, o, o.PublicText(), ctx)
			},
			Refuse: func(ctx context.Context, p adapters.Protocol, reason string) { show("%s %s", p, reason) },
		}}
		c.platform.Fault = func(r *http.Request, n int) testhost.KeikiFault {
			bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			hide(bearer)
			switch kind := strings.Split(r.URL.Path, "/turns/")[1]; {
			case strings.HasPrefix(kind, "fine"), strings.HasPrefix(kind, "kts1"):
				return testhost.KeikiFault{}
			case strings.HasPrefix(kind, "echo-json"):
				return testhost.KeikiFault{Status: []int{500, 409, 400, 502}[n%4], Body: fmt.Sprintf(`{"error":{"code":%q,"message":%q,"retryable":false}}`, bearer, bearer)}
			case strings.HasPrefix(kind, "echo-text"):
				return testhost.KeikiFault{Status: []int{500, 409, 400, 502}[n%4], Body: fmt.Sprintf(`{"error":%q}`, strings.ToLower(bearer))}
			case strings.HasPrefix(kind, "echo-html"):
				return testhost.KeikiFault{Status: 503, Body: "<html>" + bearer, RetryAfter: "3600"}
			case strings.HasPrefix(kind, "echo-401"):
				return testhost.KeikiFault{Status: 401, Body: bearer}
			case strings.HasPrefix(kind, "echo-ok"):
				return testhost.KeikiFault{Status: 200, Body: `{"arrivals":"` + bearer + `"}`, After: true}
			case strings.HasPrefix(kind, "redirect"):
				return testhost.KeikiFault{Redirect: elsewhere.URL + "/" + kind, Status: []int{301, 302, 303, 307, 308}[n%5]}
			case strings.HasPrefix(kind, "drop"):
				return testhost.KeikiFault{Drop: n%3 > 0, After: n%2 == 0}
			}
			return testhost.KeikiFault{}
		}
	})
	// Some answers tell the platform nothing, and some requests below run as turns that it does not know.
	for _, rule := range []testhost.KeikiRule{testhost.RuleUnsettled, testhost.RuleOverlap, testhost.RuleBearer} {
		g.complaints[rule] = true
	}

	var conversations []session.Key
	for _, kind := range []string{"fine", "kts1", "echo-json", "echo-text", "echo-html", "echo-401", "echo-ok", "redirect", "drop"} {
		for _, text := range []string{"arrivals", "panic", "fail", "hi"} {
			id := kind + "-" + text
			in := testhost.KeikiTurn{ID: id, ConversationID: "c-" + id, Text: text}
			if kind == "echo-html" {
				in.Timeout = 4 * time.Second // until then it is tried again
			}
			if kind == "kts1" {
				in.Header = http.Header{"Keiki-Turn-Token": nil}
			}
			d := g.dispatch(in)
			hide(d.Token)
			conversations = append(conversations, session.Key{Principal: "keiki:agent-1", Handle: "c-" + id})
			if text == "arrivals" {
				a, err := g.platform.PushArrival(t.Context(), id, 2, testhost.KeikiMessage{Text: "more"}) // which leaves a gap
				if err != nil {
					t.Fatal(err)
				}
				show("%s %v", a.Body, a.Header)
				a, err = g.platform.PushArrival(t.Context(), id, 1, testhost.KeikiMessage{Text: "more"})
				if err != nil {
					t.Fatal(err)
				}
				show("%s %v", a.Body, a.Header)
			}
			show("%s %v", d.Answer.Body, d.Answer.Header)
		}
	}
	g.until("all turns are over", func() bool { return g.engine.Stats().Active == 0 })

	// Refusals, with secrets where they do not belong.
	for _, f := range faults() {
		q := newRequest(g, "refused")
		f.make(&q)
		a := g.send(q)
		show("%s %v", a.Body, a.Header)
	}
	for _, body := range []string{testSecret, `{"agentId":"` + testSecret + `"}`, `{"type":"` + testSecret + `","agentId":"agent-1"}`, `{"type":"keiki.turn","version":"` + testSecret + `"}`} {
		a, err := g.platform.Push(t.Context(), testhost.KeikiPush{TurnID: testSecret, Token: testSecret, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(body, "type\":\"whsec_") {
			continue // an unknown type is named: whoever signs it sees what they sent
		}
		show("%s %v", a.Body, a.Header)
	}

	for _, key := range conversations {
		lease, free := sessions.TryAcquire(key)
		if !free {
			t.Fatalf("%v is still in use", key)
		}
		list, _ := lease.Recall()
		show("%+v", list)
		for _, key := range lease.Keys() {
			raw, _ := lease.Load(key)
			show("%s %s", key, raw)
		}
		lease.Release()
	}
	for _, r := range g.platform.Requests("") {
		show("%s %s %v %s", r.Method, r.Path, r.Header, r.Body)
	}
	show("%+v %v %#v", g.conf.push.Config, g.conf.push.Secrets, g.conf.push.Secrets)
	g.stop(t.Context())
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		show("%s", content)
	}
	if heard := elsewhere.heard(); len(heard) > 0 {
		t.Errorf("a redirect was followed: %q", heard)
	}
	everything := map[string]string{"the log": g.log.String(), "what was shown or kept": shown.String()}
	if len(everything["the log"]) < 1000 || len(everything["what was shown or kept"]) < 10_000 || len(hidden) < 50 {
		t.Fatal("there is too little to look through")
	}
	for where, text := range everything {
		lower := strings.ToLower(text)
		for secret := range hidden {
			if len(secret) < 12 {
				t.Fatalf("a secret of %d bytes", len(secret))
			}
			if i := strings.Index(lower, strings.ToLower(secret)); i >= 0 {
				t.Errorf("%.12s… is found in %s: …%.300s…", secret, where, text[max(0, i-150):])
				break
			}
		}
	}
	if !slices.Contains(sortedKeys(hidden), testSecret) || !strings.Contains(everything["what was shown or kept"], "c-fine-hi") {
		t.Error("the search looks for the wrong things, or in the wrong place")
	}
}

func sortedKeys(m map[string]bool) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// TestCallsGoToThePlatform: every call of a turn has the platform's origin and its turn's path, with the
// bearer in its header and nowhere else.
func TestCallsGoToThePlatform(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	g := newRig(t, turnTaker{func(ctx context.Context, _ *adapters.Turn, in <-chan adapters.Arrival, w adapters.Writer) error {
		for range 2 {
			select {
			case <-in:
			case <-ctx.Done():
				return errors.New("no arrivals")
			}
		}
		return w.Text("hi")
	}}, func(c *rigConfig) {
		inner := &http.Transport{}
		t.Cleanup(inner.CloseIdleConnections)
		c.push.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			got = append(got, r.Method+" "+r.URL.String())
			mu.Unlock()
			if r.Header.Get("Cookie") != "" || r.Header.Get("Referer") != "" || strings.Contains(r.URL.String(), "ht_") {
				t.Errorf("%s %v", r.URL, r.Header)
			}
			return inner.RoundTrip(r)
		})
	})
	id := "turn/with a slash?"
	links := g.platform.Links(id)
	links.TurnURL += "///" // a slash at the end is no part of it
	d := g.dispatch(testhost.KeikiTurn{ID: id, Text: "hi", Links: &links})
	if err := g.platform.StoreArrival(id, 1, testhost.KeikiMessage{Text: "stored"}); err != nil {
		t.Fatal(err)
	}
	g.arrive(id, 2, http.StatusAccepted, "")
	if o := g.outcome(d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	base := g.platform.Links(id).TurnURL
	want := []string{"GET " + base + "/arrivals?after=0", "POST " + base + "/messages", "POST " + base + "/complete"}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}
