package testhost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/internal/testhost"
)

func ExampleKeiki() {
	k, err := testhost.NewKeiki(testhost.KeikiConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer k.Close()
	if _, err := k.Listen("127.0.0.1:0"); err != nil {
		fmt.Println(err)
		return
	}
	// An app that says one thing and completes, before it has even accepted the turn.
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var turn struct{ Keiki struct{ TurnURL string } }
		if json.NewDecoder(r.Body).Decode(&turn) != nil {
			return
		}
		post(turn.Keiki.TurnURL+"/messages", r.Header.Get("Keiki-Turn-Token"), `{"text":"good day","idempotencyKey":"1"}`)
		post(turn.Keiki.TurnURL+"/complete", r.Header.Get("Keiki-Turn-Token"), `{"status":"completed"}`)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer app.Close()
	if err := k.SetDispatchURL(app.URL); err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	d, err := k.Dispatch(ctx, testhost.KeikiTurn{Text: "hello"})
	if err != nil {
		fmt.Println(err)
		return
	}
	o, err := k.Outcome(ctx, d.ID)
	fmt.Println(o.Status, err)
	fmt.Println(k.Texts(d.ID), len(k.Violations()), "violations")
	// Output:
	// completed <nil>
	// [good day] 0 violations
}

func post(url, token, body string) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close() // not of interest
	}
}

func messages(texts ...string) (all []testhost.KeikiMessage) {
	for _, text := range texts {
		all = append(all, testhost.KeikiMessage{Text: text})
	}
	return all
}

func texts(all []testhost.KeikiMessage) (texts []string) {
	for _, m := range all {
		texts = append(texts, m.Text)
	}
	return texts
}

// TestKeikiArrivals: what the app accepts can be pulled, and what it does not consume comes again.
func TestKeikiArrivals(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Backoff: time.Millisecond})
	ready := make(chan string)
	app := newApp(t, k, func(a *appTurn) {
		for body := range ready {
			if body == "say" {
				a.say("a", "one")
				continue
			}
			a.complete(body)
			return
		}
	})
	app.refuse = func(w http.ResponseWriter, kind string, n int) bool {
		status := map[int]int{3: 503, 5: 409}[n] // the second arrival's first attempt; the third arrival
		if status != 0 {
			w.WriteHeader(status)
		}
		return status != 0
	}
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x", ConversationID: "c"})
	for i, want := range []testhost.KeikiArrival{
		{Sequence: 1, Attempts: 1, Answer: testhost.KeikiAnswer{Status: 202}},
		{Sequence: 2, Attempts: 2, Answer: testhost.KeikiAnswer{Status: 202}},
		{Sequence: 3, Attempts: 1, Answer: testhost.KeikiAnswer{Status: 409}},
		{Sequence: 4, Attempts: 1, Answer: testhost.KeikiAnswer{Status: 202}},
	} {
		got, err := k.Arrive(t.Context(), d.ID, messages(fmt.Sprint("arrival ", i+1))...)
		got.Answer = testhost.KeikiAnswer{Status: got.Answer.Status}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("arrival %d: %v (-want +got):\n%s", i, err, diff)
		}
		if i == 1 {
			ready <- "say"
			until(t, k, "a message", func() bool { return len(k.Texts(d.ID)) == 1 })
		}
	}
	equal(t, "rejected", texts(k.Pending("", "c")), "arrival 3")
	status, body := app.running[d.ID].call("GET", "/arrivals?after=1", d.Token, "")
	if want := `{"arrivals":[{"sequence":2,"messages":[{"text":"arrival 2","messageId":"message-3"}]},` +
		`{"sequence":4,"messages":[{"text":"arrival 4","messageId":"message-5"}]}]}`; status != 200 || body != want {
		t.Errorf("arrivals: %d %s, want %s", status, body, want)
	}
	ready <- `{"status":"failed","error":"no","consumedArrivals":[1,3,4]}`
	o := outcome(t, k, d.ID)
	if !slices.Equal(o.Consumed, []int64{1, 3, 4}) || o.Code != "app_error" || o.Error != "no" {
		t.Errorf("outcome %+v", o)
	}
	equal(t, "requeued", texts(o.Requeued), "arrival 2")
	equal(t, "pending", texts(k.Pending("", "c")), "arrival 2", "arrival 3")
	equal(t, "violations", rules(k), "consumed_not_accepted", "consumed_without_an_answer")

	late, err := k.Arrive(t.Context(), d.ID, messages("late")...)
	if err != nil || late.Attempts != 0 {
		t.Errorf("late arrival: %+v, %v", late, err)
	}
	next := dispatch(t, k, testhost.KeikiTurn{Text: "y", ConversationID: "c"})
	var in struct{ Messages []testhost.KeikiMessage }
	if err := json.Unmarshal(next.Body, &in); err != nil {
		t.Fatal(err)
	}
	equal(t, "the next turn", texts(in.Messages), "arrival 2", "arrival 3", "late", "y")
	ready <- completed
}

// TestKeikiArrivalPages: pages of 50, sequences out of order and again, and pulls that fail.
func TestKeikiArrivalPages(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{})
	gate := make(chan struct{})
	app := newApp(t, k, func(a *appTurn) { <-gate; a.complete(completed) })
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	for _, sequence := range []int64{1, 121, 1} {
		if a, err := k.PushArrival(t.Context(), d.ID, sequence, messages("pushed")...); err != nil || a.Status != 202 {
			t.Errorf("push: %d, %v", a.Status, err)
		}
	}
	for sequence := int64(120); sequence > 1; sequence-- {
		if err := k.StoreArrival(d.ID, sequence, messages(fmt.Sprint("stored ", sequence))...); err != nil {
			t.Error(err)
		}
	}
	if want := []int64{1, 121, 1}; !slices.Equal(app.arrivals, want) {
		t.Errorf("pushed %v, want %v", app.arrivals, want)
	}
	app.mu.Lock()
	a := app.running[d.ID]
	app.mu.Unlock()
	for _, page := range []struct{ after, first, last, count int64 }{{1, 2, 51, 50}, {51, 52, 101, 50}, {101, 102, 121, 20}, {121, 0, 0, 0}} {
		status, body := a.call("GET", fmt.Sprint("/arrivals?after=", page.after), d.Token, "")
		var got struct{ Arrivals []struct{ Sequence int64 } }
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 || int64(len(got.Arrivals)) != page.count {
			t.Fatalf("after %d: %d %s, %v", page.after, status, body, err)
		}
		if n := len(got.Arrivals); n > 0 && (got.Arrivals[0].Sequence != page.first || got.Arrivals[n-1].Sequence != page.last) {
			t.Errorf("after %d: %v", page.after, got)
		}
	}
	close(gate)
	outcome(t, k, d.ID)
	until(t, k, "the app's turn to be over", func() bool { app.wg.Wait(); return true })
	if a, err := k.PushArrival(t.Context(), d.ID, 122, messages("late")...); err != nil || a.Status != 409 {
		t.Errorf("late push: %d, %v", a.Status, err)
	}
	if status, body := a.call("GET", "/arrivals", d.Token, ""); status != 409 || !strings.Contains(body, "turn_closed") {
		t.Errorf("arrivals of a turn that has ended: %d %s", status, body)
	}
	clean(t, k)
}

// TestKeikiSecrets: rotation, retirement, agents of their own, and a body sent as it is.
func TestKeikiSecrets(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Secrets: map[string][]string{"agent-1": {"whsec_one"}}})
	app := newApp(t, k, nil)
	knows := func(secrets ...string) { app.secret = func() []string { return secrets } }
	try := func(what string, in testhost.KeikiTurn, want int) {
		t.Helper()
		in.Text = "x"
		if d := dispatch(t, k, in); d.Answer.Status != want {
			t.Errorf("%s: %d, want %d", what, d.Answer.Status, want)
		}
	}
	knows("whsec_one")
	try("the first", testhost.KeikiTurn{}, 202)
	try("another agent", testhost.KeikiTurn{AgentID: "agent-2"}, 401)
	second := k.Rotate("")
	try("the old one during rotation", testhost.KeikiTurn{}, 202)
	knows(second)
	try("the new one during rotation", testhost.KeikiTurn{}, 202)
	k.Retire("")
	if got := k.Secrets(""); !slices.Equal(got, []string{second}) || !strings.HasPrefix(second, "whsec_") {
		t.Errorf("secrets %d", len(got))
	}
	try("the new one alone", testhost.KeikiTurn{}, 202)
	knows("whsec_one")
	try("the old one retired", testhost.KeikiTurn{}, 401)
	k.SetSigners("", "whsec_forged")
	knows(second)
	try("a forged one", testhost.KeikiTurn{}, 401)
	k.SetSigners("")
	try("the own one again", testhost.KeikiTurn{}, 202)

	raw, err := os.ReadFile("testdata/keiki-big-numbers.json")
	if err != nil {
		t.Fatal(err)
	}
	d := dispatch(t, k, testhost.KeikiTurn{Body: raw})
	if d.ID != "turn-7" || d.ConversationID != "conv-1" || d.Answer.Status != 202 || !bytes.Equal(d.Body, raw) {
		t.Errorf("dispatch %+v", d)
	}
	edited := dispatch(t, k, testhost.KeikiTurn{Text: "x", ID: "e", Links: &testhost.KeikiLinks{TurnURL: "https://elsewhere.example/"}, Edit: func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1)
	}})
	if !bytes.Contains(edited.Body, []byte(`"version":2`)) || !bytes.Contains(edited.Body, []byte(`"keiki":{"turnUrl":"https://elsewhere.example/"}`)) {
		t.Errorf("body %s", edited.Body)
	}
	for i, p := range []testhost.KeikiPush{
		{TurnID: "e", Body: edited.Body, At: time.Now().Add(-time.Hour), Secrets: []string{"whsec_x", second}},
		{Body: edited.Body, Header: http.Header{"Keiki-Turn-Id": {"e"}}},
		{TurnID: "e", Body: edited.Body, Header: http.Header{"Keiki-Signature": nil}},
	} {
		a, err := k.Push(t.Context(), p)
		if want := []int{202, 202, 401}[i]; err != nil || a.Status != want {
			t.Errorf("push %d: %d, %v", i, a.Status, err)
		}
	}
	if a, err := k.Redispatch(t.Context(), d.ID); err != nil || a.Status != 202 {
		t.Errorf("again: %d, %v", a.Status, err)
	}
}

// TestKeikiStream: text comes in pieces and leaves in paragraphs.
func TestKeikiStream(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{StreamPath: "live/stream", Fault: func(_ *http.Request, n int) testhost.KeikiFault {
		return testhost.KeikiFault{Drop: n == 2, After: true}
	}})
	newApp(t, k, func(a *appTurn) {
		for i, piece := range []string{"one", "\n", "\ntwo\n", " more", " ", "\n\nthr", "ee\n"} {
			body, err := json.Marshal(map[string]string{"text": piece, "idempotencyKey": fmt.Sprint(i)})
			if err != nil {
				t.Error(err)
			}
			for status := 0; status == 0; {
				status, _ = a.call("POST", "/live/stream", a.token, string(body))
			}
		}
		a.complete(completed)
	})
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x", HeldBack: true})
	outcome(t, k, d.ID)
	equal(t, "deliveries", k.Texts(d.ID), "one", "two\n more", "three")
	if first := k.Deliveries(d.ID)[0]; !first.Streamed || !first.HeldBack || first.Key != "2" {
		t.Errorf("delivery %+v", first)
	}
	clean(t, k)
}

// TestKeikiStreamFails: a piece whose paragraph is not delivered is poisoned, and so is no other.
func TestKeikiStreamFails(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Deliver: func(d testhost.KeikiDelivery) error {
		if d.Text == "bad" {
			return errors.New("the line is down")
		}
		return nil
	}})
	var seen []string
	app := newApp(t, k, func(a *appTurn) {
		for _, body := range []string{
			`{"text":"bad\n\ngood","idempotencyKey":"a"}`, `{"text":"bad\n\ngood","idempotencyKey":"a"}`, `{"text":" end"}`,
		} {
			status, answer := a.call("POST", "/stream", a.token, body)
			seen = append(seen, fmt.Sprint(status, answer))
		}
		a.complete(completed)
		status, _ := a.call("POST", "/stream", a.token, `{"text":"late"}`)
		seen = append(seen, fmt.Sprint(status))
	})
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	app.wg.Wait()
	equal(t, "answers", seen, `502{"error":{"code":"delivery_failed","retryable":false}}`,
		`409{"error":{"code":"previous_attempt_failed","retryable":false}}`, `200{"ok":true}`, "409")
	equal(t, "deliveries", k.Texts(d.ID), "good end")
	equal(t, "violations", rules(k), "retry_after_unknown", "message_after_complete")
}

// TestKeikiHistory: a conversation is remembered, bounded, where that is asked for.
func TestKeikiHistory(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{History: 3})
	histories := make(chan string, 3)
	newApp(t, k, func(a *appTurn) {
		h := ""
		for _, e := range a.in.History {
			h += e.Role + ":" + e.Text + " "
		}
		histories <- h
		a.say("k", "re "+a.in.Messages[0].Text)
		a.complete(completed)
	})
	for i, want := range []string{"", "user:1 assistant:re 1 ", "assistant:re 1 user:2 assistant:re 2 "} {
		n := fmt.Sprint(i + 1)
		d := dispatch(t, k, testhost.KeikiTurn{ConversationID: "c", Messages: []testhost.KeikiMessage{{Text: n}, {Text: "not for the record", Silent: true}}})
		if got := <-histories; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		outcome(t, k, d.ID)
	}
}

// A poller claims work as the contract says.
type poller struct {
	t      *testing.T
	k      *testhost.Keiki
	client *http.Client
	key    string
}

func newPoller(t *testing.T, k *testhost.Keiki) *poller {
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	return &poller{t, k, client, k.APIKey("")}
}

type claimed struct {
	appTurn
	Token    string `json:"turnToken"`
	Expires  string `json:"leaseExpiresAt"`
	ID       string `json:"turnId"`
	Deadline string `json:"deadline"`
	Messages []struct{ Text string }
	Keiki    struct{ TurnURL string }
}

// next polls the inbox; nil is that there was nothing.
func (p *poller) next(wait string) *claimed {
	p.t.Helper()
	status, body := call(p.t, p.client, "GET", p.k.APIBase()+"/harness/inbox/next?wait="+wait, p.key, "")
	var answer struct{ Turn *claimed }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
		p.t.Fatalf("poll: %d %s, %v", status, body, err)
	}
	if c := answer.Turn; c != nil {
		c.app = &keikiApp{t: p.t, client: p.client}
		c.token, c.in.Keiki.TurnURL = c.Token, c.Keiki.TurnURL
		c.ctx = context.Background()
		return c
	}
	if body != `{"turn":null}` {
		p.t.Errorf("poll: %s", body)
	}
	return nil
}

func (c *claimed) messages() string {
	var all []string
	for _, m := range c.Messages {
		all = append(all, m.Text)
	}
	return strings.Join(all, " ")
}

// TestKeikiInbox: one turn of a conversation at a time, merged where they wait, and none of other agents.
func TestKeikiInbox(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode})
	p := newPoller(t, k)
	if d := dispatch(t, k, testhost.KeikiTurn{Text: "x", HeldBack: true}); outcome(t, k, d.ID).Code != "inbox_offline" {
		t.Error("a held-back turn was queued although nobody polls")
	}
	if p.next("0") != nil {
		t.Error("a turn of nobody's")
	}
	in := func(id, conversation, agent string) {
		dispatch(t, k, testhost.KeikiTurn{ID: id, ConversationID: conversation, AgentID: agent, Text: id})
	}
	in("a1", "a", "")
	in("b1", "b", "")
	in("a2", "a", "")
	in("z1", "a", "agent-2")
	in("a3", "a", "")
	a := p.next("0")
	if a == nil || a.ID != "a1" || a.messages() != "a1 a2 a3" {
		t.Fatalf("claim %+v", a)
	}
	if o := outcome(t, k, "a2"); o.Status != "merged" || o.MergedInto != "a1" {
		t.Errorf("outcome %+v", o)
	}
	in("a4", "a", "")
	b := p.next("0")
	if b == nil || b.ID != "b1" || b.messages() != "b1" {
		t.Fatalf("claim %+v", b)
	}
	if c := p.next("0"); c != nil {
		t.Errorf("a second turn of a conversation: %+v", c)
	}
	if _, err := time.Parse(time.RFC3339, a.Expires); err != nil || !strings.HasPrefix(a.Token, "ht_") || a.Deadline == "" {
		t.Errorf("claim %+v", a)
	}
	if status, _ := a.say("k", "hello"); status != 200 {
		t.Errorf("message: %d", status)
	}
	got := make(chan *claimed)
	go func() { got <- p.next("30") }() // held until the conversation is free
	if status := a.complete(completed); status != 200 {
		t.Errorf("completion: %d", status)
	}
	if c := <-got; c == nil || c.ID != "a4" {
		t.Errorf("claim %+v", c)
	}
	go func() { got <- p.next("30") }()
	in("c1", "c", "")
	if c := <-got; c == nil || c.ID != "c1" {
		t.Errorf("claim %+v", c)
	}
	if _, err := k.Arrive(t.Context(), "c1", messages("x")...); err == nil {
		t.Error("an arrival for a turn of the inbox")
	}
	if status, body := call(t, p.client, "GET", k.APIBase()+"/harness/inbox/next", "sk_wrong", ""); status != 401 || !strings.Contains(body, "invalid_api_key") {
		t.Errorf("a wrong key: %d %s", status, body)
	}
	if status, _ := call(t, p.client, "GET", k.APIBase()+"/harness/inbox/next?wait=31", p.key, ""); status != 400 {
		t.Errorf("a long wait: %d", status)
	}
	equal(t, "violations", rules(k), "bearer", "query")
}

// TestKeikiLeases: a claim that is not refreshed is given to the next poll, with another token and what
// was already said.
func TestKeikiLeases(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	k := newKeiki(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode, RotateOnRefresh: true, Now: clock(&ahead)})
	p := newPoller(t, k)
	dispatch(t, k, testhost.KeikiTurn{ID: "a", Text: "x"})
	first := p.next("0")
	first.say("k", "hello")
	if status, body := first.call("POST", "/lease", first.token, ""); status != 200 {
		t.Errorf("refresh: %d %s", status, body)
	} else {
		var lease struct{ LeaseExpiresAt, TurnToken string }
		if err := json.Unmarshal([]byte(body), &lease); err != nil || lease.TurnToken == first.token || lease.LeaseExpiresAt == "" {
			t.Errorf("refresh: %s, %v", body, err)
		}
		if status, body := first.say("k", "hello"); status != 401 || !strings.Contains(body, "token_rotated") {
			t.Errorf("the old token: %d %s", status, body)
		}
		first.token = lease.TurnToken
	}
	ahead.Add(int64(40 * time.Second))
	if left := k.Leased("a"); left != 20*time.Second {
		t.Errorf("%v left", left)
	}
	if again := p.next("0"); again != nil {
		t.Errorf("a leased turn: %+v", again)
	}
	ahead.Add(int64(20 * time.Second))
	second := p.next("0")
	if second == nil || second.ID != "a" || second.Deadline != first.Deadline || second.token == first.token {
		t.Fatalf("claim %+v", second)
	}
	if status, _ := first.call("POST", "/lease", first.token, "{}"); status != 401 {
		t.Errorf("a refresh of who has lost it: %d", status)
	}
	if status, body := second.say("k", "hello"); status != 200 || !strings.Contains(body, "duplicate") {
		t.Errorf("the message again: %d %s", status, body)
	}
	k.LoseLease("a")
	if status, body := second.call("POST", "/lease", second.token, ""); status != 409 || !strings.Contains(body, "lease_lost") {
		t.Errorf("a refresh after the loss: %d %s", status, body)
	}
	clean(t, k)
	second.say("k2", "more")
	equal(t, "violations", rules(k), "after_lease_lost")
	third := p.next("0")
	if third == nil || third.ID != "a" {
		t.Fatalf("claim %+v", third)
	}
	third.complete(completed)
	if o := outcome(t, k, "a"); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	if n := len(k.Tokens("a")); n != 4 {
		t.Errorf("%d tokens", n)
	}
	equal(t, "deliveries", k.Texts("a"), "hello", "more")
	equal(t, "violations", rules(k), "after_lease_lost")
}

// clock is one that goes only when ahead does.
func clock(ahead *atomic.Int64) func() time.Time {
	start := time.Unix(1764547200, 0)
	return func() time.Time { return start.Add(time.Duration(ahead.Load())) }
}

// TestKeikiLeaseEnds: a held poll gets a turn when its lease runs out, in both queues.
func TestKeikiLeaseEnds(t *testing.T) {
	t.Parallel()
	for mode, path := range map[testhost.KeikiMode]string{
		testhost.KeikiInboxMode: "/harness/inbox/next?wait=30", testhost.KeikiRelayMode: "/harness/turns/next?wait=30",
	} {
		k := newKeiki(t, testhost.KeikiConfig{Mode: mode, Lease: 100 * time.Millisecond})
		p := newPoller(t, k)
		d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
		for i := range 3 {
			if status, body := call(t, p.client, "GET", k.APIBase()+path, p.key, ""); status != 200 || !strings.Contains(body, d.ID) {
				t.Errorf("%s, poll %d: %d %s", mode, i, status, body)
			}
		}
		clean(t, k)
	}
}

// TestKeikiNestedClaim: the other shape of a claim.
func TestKeikiNestedClaim(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode, NestedClaims: true})
	p := newPoller(t, k)
	dispatch(t, k, testhost.KeikiTurn{ID: "a", Text: "x", Context: []byte(`{ "n":1.0}`)})
	_, body := call(t, p.client, "GET", k.APIBase()+"/harness/inbox/next", p.key, "")
	var answer struct {
		Turn struct {
			Turn struct {
				TurnID  string
				Context json.RawMessage
			}
			Deadline, TurnToken, LeaseExpiresAt string
			Keiki                               struct{ TurnURL string }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	if c := answer.Turn; c.Turn.TurnID != "a" || c.Deadline == "" || c.TurnToken != k.Tokens("a")[0] || c.LeaseExpiresAt == "" ||
		c.Keiki.TurnURL != k.Links("a").TurnURL || string(c.Turn.Context) != `{ "n":1.0}` {
		t.Errorf("claim %s", body)
	}
}

// TestKeikiRelay: a turn is queued, forwarded with a signature that the app takes, and reported on.
func TestKeikiRelay(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	k := newKeiki(t, testhost.KeikiConfig{Mode: testhost.KeikiRelayMode, Now: clock(&ahead)})
	app := newApp(t, k, func(a *appTurn) { a.say("k", "hello"); a.complete(completed) })
	p := newPoller(t, k)
	type forward struct {
		ID, Body string
		Headers  map[string]string
	}
	next := func(wait string) *forward {
		t.Helper()
		status, body := call(t, p.client, "GET", k.APIBase()+"/harness/turns/next?wait="+wait, p.key, "")
		var answer struct{ Turn *forward }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
			t.Fatalf("poll: %d %s, %v", status, body, err)
		}
		return answer.Turn
	}
	report := func(id, body string) (int, string) {
		return call(t, p.client, "POST", k.APIBase()+"/harness/turns/"+id+"/result", p.key, body)
	}
	if next("0") != nil {
		t.Error("a turn of nobody's")
	}
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	if status, _ := report(d.ID, `{"status":202}`); status != 409 {
		t.Errorf("a report before the claim: %d", status)
	}
	f := next("30")
	if next("0") != nil {
		t.Error("it is given twice")
	}
	ahead.Add(int64(time.Minute))
	if again := next("0"); again == nil || again.ID != f.ID || again.Body != f.Body { // nobody reported
		t.Fatalf("again %+v, first %+v", again, f)
	}
	req := httptest.NewRequest("POST", "/", strings.NewReader(f.Body))
	for name, value := range f.Headers {
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	app.ServeHTTP(w, req)
	if w.Code != 202 {
		t.Errorf("the app answers %d", w.Code)
	}
	for i, want := range []string{`{"ok":true}`, `{"ok":true,"duplicate":true}`} {
		if status, body := report(d.ID, `{"status":202,"body":"{}"}`); status != 200 || body != want {
			t.Errorf("report %d: %d %s", i, status, body)
		}
	}
	if o := outcome(t, k, d.ID); o.Status != "completed" {
		t.Errorf("outcome %+v", o)
	}
	equal(t, "deliveries", k.Texts(d.ID), "hello")
	for status, code := range map[int]string{401: "signature_rejected", 502: "unreachable", 503: "app_rejected"} {
		d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
		next("30")
		report(d.ID, fmt.Sprintf(`{"status":%d}`, status))
		if o := outcome(t, k, d.ID); o.Code != code {
			t.Errorf("outcome after %d: %+v", status, o)
		}
	}
	if d := dispatch(t, k, testhost.KeikiTurn{Text: "x", Timeout: time.Millisecond}); outcome(t, k, d.ID).Code != "relay_offline" {
		t.Error("nobody took it, and it is not relay_offline")
	}
	report("nobody", `{"status":202}`)
	report(d.ID, `{"status":"ok"}`)
	equal(t, "violations", rules(k), "result", "result", "body")
}

// TestKeikiClose: what is held is let go, and nothing begins any more.
func TestKeikiClose(t *testing.T) {
	t.Parallel()
	k, err := testhost.NewKeiki(testhost.KeikiConfig{Mode: testhost.KeikiInboxMode})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(k)
	defer server.Close()
	if _, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "x"}); err == nil {
		t.Error("a turn without the platform's URL")
	}
	if err := k.SetURL(server.URL + "/"); err != nil {
		t.Fatal(err)
	}
	if got := k.APIBase(); got != server.URL+"/api/v1" {
		t.Errorf("API base %s", got)
	}
	p := newPoller(t, k)
	d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	p.next("0")
	polled, waited := make(chan *claimed, 1), make(chan error, 1)
	go func() { polled <- p.next("30") }()
	go func() {
		_, err := k.Outcome(context.Background(), d.ID)
		waited <- err
	}()
	until(t, k, "a held poll", func() bool { return len(k.Requests("")) == 2 })
	k.Close()
	k.Close()
	if c := <-polled; c != nil {
		t.Errorf("claim %+v", c)
	}
	if err := <-waited; err == nil {
		t.Error("an outcome after Close")
	}
	if _, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "y"}); err == nil {
		t.Error("a turn after Close")
	}
	if _, err := k.Push(t.Context(), testhost.KeikiPush{URL: server.URL, Body: []byte("{}")}); err == nil {
		t.Error("a push after Close")
	}
	if err := k.Until(t.Context(), func() bool { return false }); err == nil {
		t.Error("something came after Close")
	}
	if status, _ := call(t, p.client, "GET", server.URL+"/api/v1/harness/inbox/next", p.key, ""); status != 503 {
		t.Errorf("a poll after Close: %d", status)
	}
}

// TestKeikiConfig: what is wrong is named, all of it.
func TestKeikiConfig(t *testing.T) {
	t.Parallel()
	_, err := testhost.NewKeiki(testhost.KeikiConfig{
		URL: "x", DispatchURL: "y", BasePath: "api", Mode: "pull", APIKey: "key", ResultPath: "result", Timeout: -1, Keep: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"x"`, `"y"`, "BasePath", "Mode", "APIKey", "ResultPath", "Timeout", "Keep"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error says nothing of %s: %v", want, err)
		}
	}
}

// TestKeikiForgets: what has ended is forgotten in order, and what is open is not.
func TestKeikiForgets(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Keep: 10})
	gate := make(chan struct{})
	newApp(t, k, func(a *appTurn) {
		if a.in.TurnID == "open" {
			<-gate
		}
		a.complete(completed)
	})
	dispatch(t, k, testhost.KeikiTurn{ID: "open", Text: "x"})
	for i := range 30 {
		outcome(t, k, dispatch(t, k, testhost.KeikiTurn{ID: fmt.Sprint(i), Text: "x"}).ID)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for id, want := range map[string]bool{"open": true, "0": false, "19": false, "20": true, "29": true} {
		_, err := k.Outcome(ctx, id)
		if known := err == nil || errors.Is(err, context.Canceled); known != want {
			t.Errorf("turn %s: %v", id, err)
		}
	}
	if n := len(k.Requests("")); n > 10 {
		t.Errorf("%d requests", n)
	}
	close(gate)
	outcome(t, k, "open")
	clean(t, k)
}

// TestKeikiForgetsConversations: of conversations at rest no more are remembered than of turns.
func TestKeikiForgetsConversations(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Keep: 5, History: 10})
	newApp(t, k, func(a *appTurn) { a.complete(completed) })
	remembered := 0
	for i := range 40 {
		conversation := fmt.Sprint(i)
		if i >= 20 { // again, from the last one back
			conversation = fmt.Sprint(39 - i)
		}
		d := dispatch(t, k, testhost.KeikiTurn{ConversationID: conversation, Text: "x"})
		outcome(t, k, d.ID)
		if i >= 20 && bytes.Contains(d.Body, []byte(`"history":[{"role":"user","text":"x",`)) {
			remembered++
		}
	}
	if remembered < 1 || remembered > 5 {
		t.Errorf("%d conversations remembered", remembered)
	}
}

// TestKeikiCallbacks: each is called once for what it is about, and may look at the platform.
func TestKeikiCallbacks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string
	var k *testhost.Keiki
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf(format, args...))
	}
	ready := make(chan struct{})
	cfg := testhost.KeikiConfig{
		Deliver:     func(d testhost.KeikiDelivery) error { note("deliver %s", d.Text); return nil },
		OnOutcome:   func(o testhost.KeikiOutcome) { note("outcome %s %d", o.Status, len(k.Texts(o.TurnID))) },
		OnViolation: func(v testhost.KeikiViolation) { note("violation %s", v.Rule) },
		OnRequest: func(r testhost.KeikiRequest) {
			note("request %s %d", r.Route, r.Status)
			if r.N == 3 {
				close(ready)
			}
		},
	}
	k = newKeiki(t, cfg)
	newApp(t, k, func(a *appTurn) {
		a.say("k", "hello")
		a.say("k", "hello")
		a.complete(`{"status":"completed","why":1}`)
	})
	dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	<-ready
	mu.Lock()
	defer mu.Unlock()
	equal(t, "told", told, "deliver hello", "request messages 200", "request messages 200",
		"violation unknown_field", "outcome completed 1", "request complete 200")
}

// TestKeikiMany: thousands of turns at once are cheap.
func TestKeikiMany(t *testing.T) {
	t.Parallel()
	const turns = 1000
	var wg sync.WaitGroup
	var open, most atomic.Int64
	gate := make(chan struct{})
	k := newKeiki(t, testhost.KeikiConfig{PushTimeout: time.Minute})
	newApp(t, k, func(a *appTurn) {
		if n := open.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-gate
		a.persist("k", "hello")
		a.complete(completed)
	})
	work := make(chan int)
	for range 32 {
		wg.Go(func() {
			for i := range work {
				if _, err := k.Dispatch(t.Context(), testhost.KeikiTurn{ID: fmt.Sprint(i), Text: "x"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range turns {
		work <- i
	}
	close(work)
	wg.Wait()
	close(gate)
	for i := range turns {
		if o := outcome(t, k, fmt.Sprint(i)); o.Status != "completed" || len(k.Texts(o.TurnID)) != 1 {
			t.Fatalf("outcome %+v", o)
		}
	}
	if most.Load() < turns/2 {
		t.Errorf("%d turns at once", most.Load())
	}
	clean(t, k)
}

// TestKeikiSameKeyAtOnce: a key that is being delivered is waited for, and delivered once.
func TestKeikiSameKeyAtOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	arrived, release := make(chan struct{}), make(chan struct{})
	k := newKeiki(t, testhost.KeikiConfig{Deliver: func(testhost.KeikiDelivery) error {
		if calls.Add(1) == 1 {
			close(arrived)
			<-release
		}
		return nil
	}})
	app := newApp(t, k, func(a *appTurn) {
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if status, _ := a.say("k", "hello"); status != 200 {
					t.Errorf("message: %d", status)
				}
			})
			if i == 0 {
				<-arrived
			}
		}
		until(t, k, "all messages", func() bool { return len(k.Requests("")) == 5 })
		close(release)
		wg.Wait()
		a.complete(completed)
	})
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	app.wg.Wait()
	if s := k.Sends(d.ID); len(s) != 1 || s[0].Tries != 5 || calls.Load() != 1 {
		t.Errorf("sends %+v, %d calls", s, calls.Load())
	}
	clean(t, k)
}

// TestKeikiClock: stamps, credentials and the rule about deadlines go by the given clock.
func TestKeikiClock(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	k := newKeiki(t, testhost.KeikiConfig{Now: clock(&ahead)})
	start := clock(new(atomic.Int64))()
	app := newApp(t, k, func(a *appTurn) {
		a.token = testhost.KeikiCredential(k.Secrets("")[0], a.in.AgentID, a.in.TurnID, start)
		if status, _ := a.say("a", "in time"); status != 200 {
			t.Errorf("message: %d", status)
		}
		ahead.Store(int64(10*time.Minute + 6*time.Second)) // timers go by another clock
		a.token = k.Tokens(a.in.TurnID)[0]
		if status, _ := a.say("b", "late"); status != 200 {
			t.Errorf("message: %d", status)
		}
	})
	for form, want := range map[testhost.KeikiDeadlineForm]string{
		testhost.KeikiDeadlineText: `"deadline":"2025-12-01T00:10:00.000Z",`, testhost.KeikiDeadlineSeconds: `"deadline":1764547800,`,
		testhost.KeikiDeadlineMillis: `"deadline":1764547800000,`, testhost.KeikiDeadlineNone: `"quietLoop":false,"keiki":`,
	} {
		ahead.Store(0)
		d := dispatch(t, k, testhost.KeikiTurn{Text: "x", Deadline: form})
		if !bytes.Contains(d.Body, []byte(want)) {
			t.Errorf("form %q: %s", form, d.Body)
		}
		app.wg.Wait()
		if at := k.Sends(d.ID)[0].At; !at.Equal(start) {
			t.Errorf("delivered at %v", at)
		}
	}
	equal(t, "violations", rules(k), "after_deadline", "after_deadline", "after_deadline", "after_deadline")
}

// TestKeikiOddRequests: what is no request of the contract is refused, and noted.
func TestKeikiOddRequests(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{})
	newApp(t, k, nil)
	p := newPoller(t, k)
	d := dispatch(t, k, testhost.KeikiTurn{ID: "t", Text: "x"})
	base := k.APIBase()
	forgotten := testhost.KeikiCredential(k.Secrets("")[0], "agent-1", "forgotten", time.Now())
	for _, test := range []struct {
		method, path, bearer, body string
		status                     int
		rule                       string
	}{
		{"POST", "/harness/mcp", d.Token, `{}`, 404, ""},
		{"POST", "/turns/forgotten/complete", forgotten, completed, 404, ""},
		{"POST", "/turns/t", d.Token, `{}`, 404, "path"},
		{"POST", "/turns//messages", d.Token, `{}`, 404, "path"},
		{"GET", "/harness/turns/a/b/result", p.key, "", 404, "path"},
		{"POST", "/turns/t/lease", d.Token, "", 404, ""}, // it was pushed
		{"POST", "/harness/inbox/next", p.key, "", 405, "method"},
		{"GET", "/harness/turns/next", d.Token, "", 401, "bearer"},
		{"POST", "/turns/t/messages", d.Token, `{"idempotencyKey":"k","text":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "body"},
		{"POST", "/turns/t/messages", d.Token, `["text"]`, 400, "body"},
		{"POST", "/turns/t/messages", d.Token, `{"text":"x","idempotencyKey":"k"`, 400, "body"},
		{"POST", "/turns/t/messages", d.Token, "\ufeff" + `{"text":"x","idempotencyKey":"k"}`, 400, "body"},
		{"POST", "/turns/t/complete", d.Token, `{"status":"completed","consumedArrivals":1}`, 400, "body"},
		{"POST", "/turns/t/complete", d.Token, `{"consumedArrivals":[1]}`, 400, "body"},
	} {
		before := len(k.Violations())
		status, body := call(t, p.client, test.method, base+test.path, test.bearer, test.body)
		if got := strings.Join(rules(k)[before:], " "); status != test.status || got != test.rule {
			t.Errorf("%s %s %.40s: %d %s, violations %q; want %d, %q", test.method, test.path, test.body, status, body, got, test.status, test.rule)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", k.Links("t").TurnURL+"/messages", strings.NewReader(`{"text":"x","idempotencyKey":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "bearer "+d.Token)
	req.Header.Set("Content-Type", "text/plain")
	resp, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // not of interest
	if all := rules(k); resp.StatusCode != 200 || all[len(all)-1] != "content_type" {
		t.Errorf("text/plain: %d, %q", resp.StatusCode, all)
	}
}

// TestKeikiCancelInbox: a turn of the inbox is cancelled without a push; its worker is told by what it
// calls, and its conversation is free.
func TestKeikiCancelInbox(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{Mode: testhost.KeikiInboxMode})
	p := newPoller(t, k)
	dispatch(t, k, testhost.KeikiTurn{ID: "a", ConversationID: "c", Text: "x"})
	claim := p.next("0")
	dispatch(t, k, testhost.KeikiTurn{ID: "b", ConversationID: "c", Text: "x"})
	if a, err := k.Cancel(t.Context(), "a"); err != nil || a.Status != 0 {
		t.Errorf("cancellation: %d, %v", a.Status, err)
	}
	if status, body := claim.call("POST", "/lease", claim.token, ""); status != 409 || !strings.Contains(body, "turn_closed") {
		t.Errorf("refresh: %d %s", status, body)
	}
	if o := outcome(t, k, "a"); o.Status != "cancelled" {
		t.Errorf("outcome %+v", o)
	}
	if next := p.next("0"); next == nil || next.ID != "b" {
		t.Errorf("claim %+v", next)
	}
	clean(t, k)
}
