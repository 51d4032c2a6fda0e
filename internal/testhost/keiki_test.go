package testhost_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// A keikiApp is an app as somebody might write it by hand from the contract.
type keikiApp struct {
	t      *testing.T
	secret func() []string
	client *http.Client
	url    string // of the app
	// turn answers a turn; it is called on a goroutine of its own, after the 202.
	turn func(a *appTurn)
	// refuse, where it is set, may answer instead.
	refuse func(w http.ResponseWriter, kind string, n int) bool

	mu       sync.Mutex
	running  map[string]*appTurn
	seen     int // pushes
	arrivals []int64
	wg       sync.WaitGroup
}

type appTurn struct {
	app   *keikiApp
	token string
	in    struct {
		Type, TurnID, AgentID, ConversationID string
		Sequence                              int64
		Messages                              []struct {
			Text, MessageID string
			Silent          bool
			Screening       *struct{ Flagged bool }
		}
		History []struct{ Role, Text string }
		Context json.RawMessage
		Keiki   struct{ APIBase, TurnURL, MCPURL string }
	}
	ctx    context.Context
	cancel context.CancelFunc
}

func newKeiki(t *testing.T, cfg testhost.KeikiConfig) *testhost.Keiki {
	t.Helper()
	k, err := testhost.NewKeiki(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	if _, err := k.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	return k
}

// newApp serves an app, and pushes k's turns to it.
func newApp(t *testing.T, k *testhost.Keiki, turn func(*appTurn)) *keikiApp {
	t.Helper()
	app := &keikiApp{
		t: t, turn: turn, running: map[string]*appTurn{}, secret: func() []string { return k.Secrets("") },
		client: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	server := httptest.NewServer(app)
	app.url = server.URL
	if err := k.SetDispatchURL(server.URL + "/keiki/turn"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		app.wg.Wait()
		app.client.CloseIdleConnections()
	})
	return app
}

// signed tells whether one of the v1 is right, by the contract's words.
func (app *keikiApp) signed(r *http.Request, body []byte) bool {
	stamp, sums := "", []string{}
	for part := range strings.SplitSeq(r.Header.Get("Keiki-Signature"), ",") {
		switch name, value, _ := strings.Cut(part, "="); name {
		case "t":
			stamp = value
		case "v1":
			sums = append(sums, value)
		}
	}
	for _, secret := range app.secret() {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "." + string(body)))
		if slices.Contains(sums, hex.EncodeToString(mac.Sum(nil))) {
			return true
		}
	}
	return false
}

func (app *keikiApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !app.signed(r, body) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	a := &appTurn{app: app, token: r.Header.Get("Keiki-Turn-Token")}
	if err := json.Unmarshal(body, &a.in); err != nil || a.in.TurnID != r.Header.Get("Keiki-Turn-Id") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	app.mu.Lock()
	app.seen++
	n, running := app.seen, app.running[a.in.TurnID]
	app.mu.Unlock()
	if app.refuse != nil && app.refuse(w, a.in.Type, n) {
		return
	}
	switch a.in.Type {
	case "keiki.turn":
		app.start(a)
	case "keiki.turn.arrival":
		if running == nil {
			w.WriteHeader(http.StatusConflict)
			return
		}
		app.mu.Lock()
		app.arrivals = append(app.arrivals, a.in.Sequence)
		app.mu.Unlock()
	case "keiki.turn.cancelled":
		if running != nil {
			running.cancel()
		}
	}
	w.WriteHeader(http.StatusAccepted)
}

func (app *keikiApp) start(a *appTurn) {
	a.ctx, a.cancel = context.WithCancel(context.Background())
	app.mu.Lock()
	app.running[a.in.TurnID] = a
	app.mu.Unlock()
	app.wg.Go(func() {
		defer a.cancel()
		if app.turn != nil {
			app.turn(a)
		}
		app.mu.Lock()
		delete(app.running, a.in.TurnID)
		app.mu.Unlock()
	})
}

// call makes one request to the turn API; a status of 0 is a connection that broke.
func (a *appTurn) call(method, path, bearer, body string) (int, string) {
	return call(a.app.t, a.app.client, method, a.in.Keiki.TurnURL+path, bearer, body)
}

func call(t *testing.T, client *http.Client, method, url, bearer, body string) (int, string) {
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }() // read
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(answer)
}

func (a *appTurn) say(key, text string) (int, string) {
	body, err := json.Marshal(map[string]string{"text": text, "idempotencyKey": key})
	if err != nil {
		a.app.t.Error(err)
	}
	return a.call(http.MethodPost, "/messages", a.token, string(body))
}

// persist says it until it has settled, as an app must.
func (a *appTurn) persist(key, text string) int {
	for {
		status, body := a.say(key, text)
		again := status == 0 || status == 429 || status >= 500 && !strings.Contains(body, `"retryable":false`)
		if !again || a.ctx.Err() != nil {
			return status
		}
	}
}

func (a *appTurn) complete(body string) int {
	for {
		status, _ := a.call(http.MethodPost, "/complete", a.token, body)
		if again := status == 0 || status == 429 || status >= 500; !again || a.ctx.Err() != nil {
			return status
		}
	}
}

const completed = `{"status":"completed"}`

func dispatch(t *testing.T, k *testhost.Keiki, in testhost.KeikiTurn) *testhost.KeikiDispatch {
	t.Helper()
	d, err := k.Dispatch(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func outcome(t *testing.T, k *testhost.Keiki, id string) testhost.KeikiOutcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o, err := k.Outcome(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func until(t *testing.T, k *testhost.Keiki, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := k.Until(ctx, cond); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func rules(k *testhost.Keiki) []string {
	var all []string
	for _, v := range k.Violations() {
		all = append(all, string(v.Rule))
	}
	return all
}

func clean(t *testing.T, k *testhost.Keiki) {
	t.Helper()
	for _, v := range k.Violations() {
		t.Errorf("violation: %v", v)
	}
}

// equal compares texts, where nil is empty.
func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestKeikiPush: a turn is pushed, answered and completed, and what was seen of it is there.
func TestKeikiPush(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{})
	got := make(chan *appTurn, 1)
	newApp(t, k, func(a *appTurn) {
		got <- a
		for i, text := range []string{"one <&>", "two"} {
			if status, body := a.say(fmt.Sprint("k-", i), text); status != 200 || body != `{"ok":true}` {
				t.Errorf("message: %d %s", status, body)
			}
		}
		if status, body := a.say("k-0", "one <&>"); status != 200 || body != `{"ok":true,"duplicate":true}` {
			t.Errorf("again: %d %s", status, body)
		}
		if status := a.complete(completed); status != 200 {
			t.Errorf("completion: %d", status)
		}
		if status, body := a.call("POST", "/complete", a.token, completed); status != 200 || body != `{"ok":true,"duplicate":true}` {
			t.Errorf("second completion: %d %s", status, body)
		}
		if status, body := a.say("k-2", "late"); status != 409 || body != `{"error":{"code":"turn_closed"}}` {
			t.Errorf("late message: %d %s", status, body)
		}
	})
	d := dispatch(t, k, testhost.KeikiTurn{
		ID: "turn 1/ü?", Text: "hello", ConversationID: "c",
		Messages: []testhost.KeikiMessage{{Text: "psst", Silent: true, ID: "m"}, {Text: "evil", Flagged: true}},
		History:  []testhost.KeikiEntry{{Role: "user", Text: `"context":1,"instructions"`}},
		Context:  []byte(`{"n": 9007199254740993 }`), Channel: []byte(`{ "kind" : "sms" }`),
	})
	if d.Answer.Status != http.StatusAccepted {
		t.Fatalf("answer %d", d.Answer.Status)
	}
	a := <-got
	if a.token != d.Token || !slices.Equal(k.Tokens(d.ID), []string{d.Token}) {
		t.Error("another token")
	}
	if want := k.Links(d.ID); a.in.Keiki.APIBase != want.APIBase || a.in.Keiki.TurnURL != want.TurnURL || a.in.Keiki.MCPURL != want.MCPURL {
		t.Errorf("links %+v, want %+v", a.in.Keiki, want)
	}
	var texts []string
	for _, m := range a.in.Messages {
		texts = append(texts, fmt.Sprint(m.Text, m.Silent, m.Screening != nil && m.Screening.Flagged, m.MessageID != ""))
	}
	equal(t, "messages", texts, "pssttrue false true", "evilfalse true true", "hellofalse false true")
	if string(a.in.Context) != `{"n": 9007199254740993 }` || !bytes.Contains(d.Body, []byte(`"channel":{ "kind" : "sms" },`)) || a.in.History[0].Text != `"context":1,"instructions"` {
		t.Errorf("body %s", d.Body)
	}
	if o := outcome(t, k, d.ID); o.Status != "completed" || o.Code != "" || string(o.Completion) != completed || o.ConversationID != "c" {
		t.Errorf("outcome %+v", o)
	}
	until(t, k, "six requests", func() bool {
		all := k.Requests(d.ID)
		return len(all) == 6 && all[5].Done
	})
	equal(t, "deliveries", k.Texts(d.ID), "one <&>", "two")
	sends := k.Sends(d.ID)
	if len(sends) != 3 || sends[0].Tries != 2 || sends[0].State != testhost.KeikiDelivered || sends[2].State != testhost.KeikiTried {
		t.Errorf("sends %+v", sends)
	}
	r := k.Requests("")[0]
	if r.Method != "POST" || r.Path != "/api/v1/turns/turn%201%2F%C3%BC%3F/messages" || r.Auth != "turn_token" || r.Status != 200 ||
		string(r.Body) != `{"idempotencyKey":"k-0","text":"one \u003c\u0026\u003e"}` || r.Header.Get("Authorization") != "" {
		t.Errorf("record %+v", r)
	}
	equal(t, "violations", rules(k), "complete_again", "message_after_complete")
	if k.Active("", "c") != "" {
		t.Error("the conversation is still active")
	}
}

// TestKeikiSignatures holds the vectors of the contract: the stand-in makes the signatures that are right.
func TestKeikiSignatures(t *testing.T) {
	t.Parallel()
	var file struct {
		Secret, Retired string
		Cases           []struct{ Header, Answer string }
	}
	read := func(name string) []byte {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := json.Unmarshal(bytes.Replace(read("keiki-signatures.json"), []byte(`"retired secret"`), []byte(`"retired"`), 1), &file); err != nil {
		t.Fatal(err)
	}
	body := read("keiki-odd-body.json")
	sign := func(at int64, secrets ...string) string {
		return testhost.KeikiSignature(time.Unix(at, 0), body, secrets...)
	}
	for i, want := range map[int]string{
		0:  sign(1764547200, file.Secret),
		6:  sign(1764547200, ""),
		16: sign(1764546909, file.Secret),
		17: sign(1764546911, file.Secret),
		18: sign(1764547511, file.Secret),
		19: sign(1764547509, file.Secret),
	} {
		if got := file.Cases[i].Header; got != want {
			t.Errorf("case %d (%s): %s, want %s", i, file.Cases[i].Answer, want, got)
		}
	}
	two := strings.Replace(file.Cases[2].Header, "v0=zz,", "", 1)
	if got := sign(1764547200, file.Retired, file.Secret); got != two {
		t.Errorf("two secrets: %s, want %s", got, two)
	}
}

// TestKeikiCredential: a credential as the contract writes it is a bearer, and nothing near it.
func TestKeikiCredential(t *testing.T) {
	t.Parallel()
	k := newKeiki(t, testhost.KeikiConfig{})
	newApp(t, k, nil)
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	other := dispatch(t, k, testhost.KeikiTurn{Text: "x", AgentID: "agent-2", ID: "other"})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	secret := k.Secrets("")[0]
	credential := func(secret, payload string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(payload))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte("keiki-turn-auth.v1." + text))
		return "kts1." + text + "." + hex.EncodeToString(mac.Sum(nil))
	}
	payload := func(agent, turn string, age time.Duration) string {
		return fmt.Sprintf(`{"a":%q,"t":%q,"ts":%d}`, agent, turn, time.Now().Add(-age).Unix())
	}
	good := credential(secret, payload("agent-1", d.ID, 0))
	for name, test := range map[string]struct {
		bearer string
		status int
		code   string
		rule   string
	}{
		"good":            {good, 200, "", ""},
		"made":            {testhost.KeikiCredential(secret, "agent-1", d.ID, time.Now()), 200, "", ""},
		"four minutes":    {credential(secret, payload("agent-1", d.ID, 4*time.Minute)), 200, "", ""},
		"token":           {d.Token, 200, "", ""},
		"none":            {"", 401, "missing_token", "bearer"},
		"expired":         {credential(secret, payload("agent-1", d.ID, 303*time.Second)), 401, "expired_credential", "expired_credential"},
		"ahead":           {credential(secret, payload("agent-1", d.ID, -303*time.Second)), 401, "expired_credential", "expired_credential"},
		"other turn":      {credential(secret, payload("agent-1", "other", 0)), 401, "wrong_turn", "foreign_bearer"},
		"other agent":     {credential(k.Secrets("agent-2")[0], payload("agent-2", d.ID, 0)), 401, "wrong_turn", "foreign_bearer"},
		"unknown agent":   {credential(secret, payload("agent-3", d.ID, 0)), 401, "invalid_credential", "bearer"},
		"other secret":    {credential("whsec_x", payload("agent-1", d.ID, 0)), 401, "invalid_credential", "bearer"},
		"upper case":      {strings.Replace(good, good[len(good)-64:], strings.ToUpper(good[len(good)-64:]), 1), 401, "invalid_credential", "bearer"},
		"more fields":     {credential(secret, `{"x":1,`+payload("agent-1", d.ID, 0)[1:]), 401, "invalid_credential", "bearer"},
		"padded":          {strings.Replace(good, ".", ".=", 1), 401, "invalid_credential", "bearer"},
		"no signature":    {good[:strings.LastIndexByte(good, '.')+1], 401, "invalid_credential", "bearer"},
		"token of other":  {other.Token, 401, "wrong_turn", "foreign_bearer"},
		"unknown token":   {"ht_x", 401, "invalid_token", "bearer"},
		"API key":         {k.APIKey(""), 401, "invalid_token", "bearer"},
		"signing secret":  {secret, 401, "invalid_token", "bearer"},
		"something short": {"kts1", 401, "invalid_token", "bearer"},
	} {
		before := len(k.Violations())
		status, body := call(t, client, "GET", k.Links(d.ID).TurnURL+"/arrivals", test.bearer, "")
		if status != test.status || (test.code != "" && body != `{"error":{"code":"`+test.code+`"}}`) {
			t.Errorf("%s: %d %s, want %d %s", name, status, body, test.status, test.code)
		}
		broken := slices.DeleteFunc(rules(k)[before:], func(r string) bool { return r == "after_unauthorized" })
		if strings.Join(broken, " ") != test.rule {
			t.Errorf("%s: violations %q, want %q", name, broken, test.rule)
		}
	}
}

// TestKeikiFaults: each kind of fault is seen by the app as what it is, and what was processed is once.
func TestKeikiFaults(t *testing.T) {
	t.Parallel()
	faults := map[int]testhost.KeikiFault{
		1: {Drop: true},
		2: {Drop: true, After: true},
		3: {Status: 500, After: true},
		5: {Status: 429, RetryAfter: "3"},
		6: {Body: "<html>busy</html>", Status: 502},
		7: {Redirect: "http://127.0.0.1:9/elsewhere"},
		8: {Delay: time.Millisecond},
	}
	k := newKeiki(t, testhost.KeikiConfig{Fault: func(r *http.Request, n int) testhost.KeikiFault {
		if body, err := io.ReadAll(r.Body); err != nil || !json.Valid(body) {
			t.Errorf("the fault's body %q, %v", body, err)
		}
		return faults[n]
	}})
	var seen []string
	newApp(t, k, func(a *appTurn) {
		for range 4 {
			status, body := a.say("a", "one")
			seen = append(seen, fmt.Sprint(status, body))
		}
		for range 4 {
			status, body := a.say("b", "two")
			seen = append(seen, fmt.Sprint(status, body))
		}
		a.complete(completed)
	})
	d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
	outcome(t, k, d.ID)
	equal(t, "answers", seen, "0", "0", "500", `200{"ok":true,"duplicate":true}`,
		"429", "502<html>busy</html>", "307", `200{"ok":true}`)
	equal(t, "deliveries", k.Texts(d.ID), "one", "two")
	if sends := k.Sends(d.ID); sends[0].Tries != 4 || sends[1].Tries != 4 {
		t.Errorf("sends %+v", sends)
	}
	all := k.Requests(d.ID)
	equal(t, "faults", []string{all[0].Fault, all[1].Fault, all[2].Fault, all[4].Fault, all[6].Fault, all[7].Fault},
		"drop", "drop, after processing", "status 500, after processing", "status 429", "redirect", "delay 1ms")
	if !all[0].Dropped || all[0].Status != 0 || all[4].Status != 429 {
		t.Errorf("records %+v", all)
	}
	clean(t, k)
}

// TestKeikiDeliveryError: after one, the key is poisoned and the others are not, in all shapes of errors.
func TestKeikiDeliveryError(t *testing.T) {
	t.Parallel()
	for shape, want := range map[testhost.KeikiErrorShape][2]string{
		testhost.KeikiErrorNested: {`502{"error":{"code":"delivery_failed","retryable":false}}`, `409{"error":{"code":"previous_attempt_failed","retryable":false}}`},
		testhost.KeikiErrorFlat:   {`502{"code":"delivery_failed","retryable":false}`, `409{"code":"previous_attempt_failed","retryable":false}`},
		testhost.KeikiErrorText:   {`502{"error":"delivery_failed","retryable":false}`, `409{"error":"previous_attempt_failed","retryable":false}`},
	} {
		t.Run(string(shape), func(t *testing.T) {
			t.Parallel()
			k := newKeiki(t, testhost.KeikiConfig{Errors: shape, Deliver: func(d testhost.KeikiDelivery) error {
				if d.Text == "two" {
					return errors.New("the line is down")
				}
				return nil
			}})
			var seen []string
			newApp(t, k, func(a *appTurn) {
				for _, m := range []string{"one", "two", "two", "three"} {
					status, body := a.say(m, m)
					seen = append(seen, fmt.Sprint(status, body))
				}
				a.say("other key", "two")
				a.complete(completed)
			})
			d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
			outcome(t, k, d.ID)
			equal(t, "answers", seen, `200{"ok":true}`, want[0], want[1], `200{"ok":true}`)
			equal(t, "deliveries", k.Texts(d.ID), "one", "three")
			if s := k.Sends(d.ID)[1]; s.State != testhost.KeikiUnknown || s.Tries != 2 {
				t.Errorf("send %+v", s)
			}
			equal(t, "violations", rules(k), "retry_after_unknown", "resent_under_new_key")
		})
	}
}

// TestKeikiRandomFaults: many turns at once over a bad network, each text once, and an app that does it
// right breaks no rule.
func TestKeikiRandomFaults(t *testing.T) {
	t.Parallel()
	var delivered atomic.Int64
	k := newKeiki(t, testhost.KeikiConfig{
		Fault:   testhost.RandomFaults(1, 10, 10, 10),
		Deliver: func(testhost.KeikiDelivery) error { delivered.Add(1); return nil },
	})
	newApp(t, k, func(a *appTurn) {
		for i := range 3 {
			a.persist(fmt.Sprint("key-", i), fmt.Sprint("text ", i))
		}
		a.complete(completed)
	})
	const turns = 200
	var wg sync.WaitGroup
	for i := range turns {
		wg.Go(func() {
			d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{ID: fmt.Sprint("t", i), Text: "x"})
			if err != nil || !d.Answer.Accepted() {
				t.Errorf("dispatch: %+v, %v", d, err)
			}
		})
	}
	wg.Wait()
	tried := 0
	for i := range turns {
		id := fmt.Sprint("t", i)
		if o := outcome(t, k, id); o.Status != "completed" {
			t.Errorf("outcome %+v", o)
		}
		equal(t, "deliveries", k.Texts(id), "text 0", "text 1", "text 2")
		for _, s := range k.Sends(id) {
			tried += s.Tries
		}
	}
	if n := delivered.Load(); n != 3*turns {
		t.Errorf("%d deliveries", n)
	}
	if tried < 3*turns*5/4 {
		t.Errorf("%d tries: hardly any fault", tried)
	}
	clean(t, k)
}

// TestKeikiRules: each rule is held against an app that breaks it, and only that one.
func TestKeikiRules(t *testing.T) {
	t.Parallel()
	post := func(body string) func(*appTurn) {
		return func(a *appTurn) {
			a.call("POST", "/messages", a.token, body)
			a.complete(completed)
		}
	}
	finish := func(body string) func(*appTurn) { return func(a *appTurn) { a.complete(body) } }
	for name, test := range map[string]struct {
		turn  func(*appTurn)
		fault func(*http.Request, int) testhost.KeikiFault
		want  string
	}{
		"unknown field":   {turn: post(`{"text":"x","idempotencyKey":"k","more":1}`), want: "unknown_field"},
		"empty text":      {turn: post(`{"text":" \n","idempotencyKey":"k"}`), want: "body"},
		"no key":          {turn: post(`{"text":"x"}`), want: "body"},
		"empty key":       {turn: post(`{"text":"x","idempotencyKey":""}`), want: "body"},
		"long key":        {turn: post(`{"text":"x","idempotencyKey":"` + strings.Repeat("k", 256) + `"}`), want: "body"},
		"key of 255":      {turn: post(`{"text":"x","idempotencyKey":"` + strings.Repeat("k", 255) + `"}`)},
		"key not ASCII":   {turn: post(`{"text":"x","idempotencyKey":"ü"}`), want: "body"},
		"twice a field":   {turn: post(`{"text":"x","idempotencyKey":"k","text":"y"}`), want: "body"},
		"two values":      {turn: post(`{"text":"x","idempotencyKey":"k"} {}`), want: "body"},
		"not UTF-8":       {turn: post("{\"text\":\"\xff\",\"idempotencyKey\":\"k\"}"), want: "body"},
		"text no string":  {turn: post(`{"text":["x"],"idempotencyKey":"k"}`), want: "body"},
		"status":          {turn: finish(`{"status":"done"}`), want: "body"},
		"no reason":       {turn: finish(`{"status":"failed"}`), want: "completion_error"},
		"reason":          {turn: finish(`{"status":"failed","error":"no"}`)},
		"needless reason": {turn: finish(`{"status":"completed","error":"no"}`), want: "completion_error"},
		"completion more": {turn: finish(`{"status":"completed","turnId":"x"}`), want: "unknown_field"},
		"consumed none":   {turn: finish(`{"status":"completed","consumedArrivals":[]}`), want: "consumed_list"},
		"consumed wrong":  {turn: finish(`{"status":"completed","consumedArrivals":[1]}`), want: "consumed_not_accepted"},
		"consumed text":   {turn: finish(`{"status":"completed","consumedArrivals":["1"]}`), want: "body"},
		"method":          {turn: func(a *appTurn) { a.call("PUT", "/messages", a.token, `{}`); a.complete(completed) }, want: "method"},
		"path":            {turn: func(a *appTurn) { a.call("POST", "/message", a.token, `{}`); a.complete(completed) }, want: "path"},
		"token in query": {turn: func(a *appTurn) {
			a.call("GET", "/arrivals?after=0&token="+a.token, a.token, "")
			a.complete(completed)
		}, want: "url_secret query"},
		"bad cursor": {turn: func(a *appTurn) { a.call("GET", "/arrivals?after=-1", a.token, ""); a.complete(completed) }, want: "query"},
		"wrong token": {turn: func(a *appTurn) {
			a.call("POST", "/messages", "ht_x", `{"text":"x","idempotencyKey":"k"}`)
			a.complete(completed)
		}, want: "bearer"},
		"after 403": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault {
				return testhost.KeikiFault{Status: map[int]int{1: 403}[n]}
			},
			turn: func(a *appTurn) { a.say("a", "x"); a.say("b", "y"); a.complete(completed) }, want: "after_unauthorized after_unauthorized",
		},
		"gives up a message": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault {
				return testhost.KeikiFault{Status: map[int]int{1: 500}[n]}
			},
			turn: func(a *appTurn) { a.say("a", "x"); a.say("b", "y"); a.complete(completed) }, want: "message_before_settled complete_before_settled",
		},
		"gives up and fails": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault { return testhost.KeikiFault{Drop: n == 1} },
			turn:  func(a *appTurn) { a.say("a", "x"); a.complete(`{"status":"failed","error":"no"}`) },
		},
		"other text": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault {
				return testhost.KeikiFault{Drop: n == 1, After: true}
			},
			turn: func(a *appTurn) { a.say("a", "x"); a.say("a", "y"); a.complete(completed) }, want: "key_with_other_text",
		},
		"other completion": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault { return testhost.KeikiFault{Drop: n == 1} },
			turn: func(a *appTurn) {
				a.call("POST", "/complete", a.token, completed)
				a.complete(`{"status":"failed","error":"no"}`)
			}, want: "complete_with_other_body",
		},
		"after the end": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault { return testhost.KeikiFault{Drop: n == 1} },
			turn: func(a *appTurn) {
				a.call("POST", "/complete", a.token, completed)
				a.say("a", "x")
				a.complete(completed)
			}, want: "message_after_complete",
		},
		"closed": {
			fault: func(_ *http.Request, n int) testhost.KeikiFault {
				return testhost.KeikiFault{Status: map[int]int{1: 409}[n], Body: map[int]string{1: `{"code":"turn_closed"}`}[n]}
			},
			turn: func(a *appTurn) { a.say("a", "x"); a.complete(completed) }, want: "after_turn_closed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeiki(t, testhost.KeikiConfig{Fault: test.fault})
			app := newApp(t, k, test.turn)
			d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
			if !d.Answer.Accepted() {
				t.Fatalf("answer %d", d.Answer.Status)
			}
			app.wg.Wait()
			if got := strings.Join(rules(k), " "); got != test.want {
				t.Errorf("violations %q, want %q\n%v", got, test.want, k.Violations())
			}
			for _, v := range k.Violations() {
				if v.Request == 0 || strings.Contains(v.String(), d.Token) {
					t.Errorf("violation %v", v)
				}
			}
		})
	}
}

// TestKeikiUnderWay: two messages at once break a rule; a message that the app no longer waits for does not.
func TestKeikiUnderWay(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"at once": false, "given up": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, release := make(chan struct{}), make(chan struct{})
			k := newKeiki(t, testhost.KeikiConfig{Deliver: func(d testhost.KeikiDelivery) error {
				if d.Text == "one" {
					close(arrived)
					<-release
				}
				return nil
			}})
			app := newApp(t, k, func(a *appTurn) {
				ctx, cancel := context.WithCancel(a.ctx)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					req, err := http.NewRequestWithContext(ctx, "POST", a.in.Keiki.TurnURL+"/messages", strings.NewReader(`{"text":"one","idempotencyKey":"a"}`))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Authorization", "Bearer "+a.token)
					req.Header.Set("Content-Type", "application/json")
					if resp, err := a.app.client.Do(req); err == nil {
						_ = resp.Body.Close() // not read
					}
				})
				<-arrived
				if gone {
					cancel()
					wg.Wait()
				}
				a.complete(`{"status":"failed","error":"no"}`)
				close(release)
				wg.Wait()
			})
			d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
			app.wg.Wait()
			until(t, k, "both answered", func() bool {
				all := k.Requests(d.ID)
				return len(all) == 2 && all[0].Done && all[1].Done
			})
			want := []string{"complete_before_settled"}
			if gone {
				want = nil
			}
			if diff := cmp.Diff(want, rules(k)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKeikiEndings: how a turn ends other than by its app.
func TestKeikiEndings(t *testing.T) {
	t.Parallel()
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		k := newKeiki(t, testhost.KeikiConfig{Timeout: 100 * time.Millisecond})
		app := newApp(t, k, func(a *appTurn) {
			outcome(t, k, a.in.TurnID)
			if status, body := a.say("a", "late"); status != 409 || !strings.Contains(body, "turn_closed") {
				t.Errorf("late: %d %s", status, body)
			}
		})
		d := dispatch(t, k, testhost.KeikiTurn{Text: "x", Deadline: testhost.KeikiDeadlineMillis})
		if o := outcome(t, k, d.ID); o.Status != "failed" || o.Code != "turn_timeout" {
			t.Errorf("outcome %+v", o)
		}
		app.wg.Wait()
		equal(t, "deliveries", k.Texts(d.ID))
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		k := newKeiki(t, testhost.KeikiConfig{})
		told := make(chan struct{})
		app := newApp(t, k, func(a *appTurn) {
			a.say("a", "one")
			<-a.ctx.Done()
			<-told
			a.call("POST", "/complete", a.token, completed)
		})
		d := dispatch(t, k, testhost.KeikiTurn{Text: "x", ConversationID: "c"})
		until(t, k, "a message", func() bool { return len(k.Texts(d.ID)) == 1 })
		if k.Active("agent-1", "c") != d.ID {
			t.Error("the conversation is not active")
		}
		answer, err := k.Cancel(t.Context(), d.ID)
		if err != nil || answer.Status != 202 {
			t.Errorf("cancellation: %d, %v", answer.Status, err)
		}
		close(told)
		app.wg.Wait()
		if o := outcome(t, k, d.ID); o.Status != "cancelled" || o.Code != "cancelled" {
			t.Errorf("outcome %+v", o)
		}
		equal(t, "violations", rules(k), "after_cancel")
	})
	for name, test := range map[string]struct {
		status int
		code   string
	}{"refused": {503, "app_rejected"}, "unsigned": {401, "signature_rejected"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeiki(t, testhost.KeikiConfig{})
			newApp(t, k, nil).refuse = func(w http.ResponseWriter, _ string, _ int) bool {
				w.WriteHeader(test.status)
				return true
			}
			d := dispatch(t, k, testhost.KeikiTurn{Text: "x"})
			if o := outcome(t, k, d.ID); o.Code != test.code || d.Answer.Status != test.status {
				t.Errorf("outcome %+v", o)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		k := newKeiki(t, testhost.KeikiConfig{DispatchURL: "http://127.0.0.1:9/"})
		d, err := k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "x"})
		if err == nil || outcome(t, k, d.ID).Code != "unreachable" {
			t.Errorf("error %v", err)
		}
		k.SetSecrets("")
		if d, err = k.Dispatch(t.Context(), testhost.KeikiTurn{Text: "x"}); err == nil || outcome(t, k, d.ID).Code != "signing_secret_missing" {
			t.Errorf("error %v", err)
		}
	})
}
