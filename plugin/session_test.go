package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// seen is what an adapter was shown.
type seen struct {
	history    []string
	continuity adapters.Continuity
	value      int
}

// remembering is an adapter that records what it is shown, counts its turns in the session's value and
// answers what it is told to, in turn.
type remembering struct {
	mu      sync.Mutex
	answers []string
	list    []seen
}

var turnsSoFar = adapters.NewValue[int]("turns")

func (r *remembering) Run(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	s := seen{continuity: turn.Continuity}
	for _, m := range turn.History {
		s.history = append(s.history, strings.Clone(m.Content))
	}
	var err error
	if s.value, _, err = turnsSoFar.Load(turn.Session); err != nil {
		return err
	}
	if err := turnsSoFar.Store(turn.Session, s.value+1); err != nil {
		return err
	}
	r.mu.Lock()
	r.list = append(r.list, s)
	answer := "anything"
	if n := len(r.list); n <= len(r.answers) {
		answer = r.answers[n-1]
	}
	r.mu.Unlock()
	return w.Text(answer)
}

func (r *remembering) last() seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list[len(r.list)-1]
}

// Fault H1: edit, rewind, fork.
func TestFaultH1EditRewindFork(t *testing.T) {
	t.Parallel()
	a := &remembering{answers: []string{"noted A", "once"}}
	_, h := start(t, plugin.Config{Adapter: a})
	how := []adapters.Continuity{
		adapters.ContinuityNew, adapters.ContinuitySame, adapters.ContinuitySame, adapters.ContinuityReplaced, adapters.ContinuityReplaced,
	}
	n := 0
	for line := range bytes.Lines(testdata(t, "lowkey-rewind.ndjson")) {
		h.postBody(t, line).completed(t)
		var q wire.Request
		if err := wire.Parse(line, &q); err != nil {
			t.Fatal(err)
		}
		var window []string
		for _, m := range q.TranscriptWindow {
			window = append(window, m.Content)
		}
		got := a.last()
		if !slices.Equal(got.history, window) {
			t.Errorf("%s: the adapter sees %q, want the window %q", q.Turn.TurnID, got.history, window)
		}
		if got.continuity != how[n] {
			t.Errorf("%s: the history is %s, want %s", q.Turn.TurnID, got.continuity, how[n])
		}
		if got.value != n {
			t.Errorf("%s: the adapter's own value is %d, want %d", q.Turn.TurnID, got.value, n)
		}
		n++
	}
	if n != 5 {
		t.Errorf("%d requests", n)
	}
}

func TestTheWindowIsExtendedBackwards(t *testing.T) {
	t.Parallel()
	a := &remembering{}
	_, h := start(t, plugin.Config{Adapter: a})
	var said []entry
	for i := range 10 {
		q := request{turn: numbered("t", i), message: numbered("m", i), limit: 4, window: said[max(0, len(said)-4):]}
		h.post(t, q).completed(t)
		got := a.last()
		var want []string
		for _, e := range said {
			want = append(want, e.Content)
		}
		if !slices.Equal(got.history, want) {
			t.Fatalf("turn %d: the adapter sees %q, want all that was said: %q", i, got.history, want)
		}
		if i > 2 && got.continuity != adapters.ContinuityExtended {
			t.Errorf("turn %d: the history is %s", i, got.continuity)
		}
		said = append(said, entry{Role: "user", Content: numbered("m", i)}, entry{Role: "agent", Content: "anything"})
	}
	h.post(t, request{turn: "cleared", message: "x"}).completed(t)
	if got := a.last(); got.continuity != adapters.ContinuityCleared || len(got.history) != 0 {
		t.Errorf("an empty window gives %+v, want cleared", got)
	}
	h.post(t, request{turn: "longer", limit: 2, window: said}).completed(t)
	if got := a.last(); len(got.history) != 2 {
		t.Errorf("of a window longer than its limit of 2 the adapter sees %d messages", len(got.history))
	}
}

func TestAFailedOrCancelledTurnDoesNotChangeTheConversation(t *testing.T) {
	t.Parallel()
	var e ends
	_, h := start(t, plugin.Config{Adapter: scripted.New(scripted.Config{}), Hooks: e.hooks()})
	h.post(t, request{turn: "one", message: script(`{"text":"first"}`, `{"remember":{"key":"k","value":1}}`)}).completed(t)
	h.post(t, request{turn: "fails", window: []entry{{Role: "agent", Content: "first"}},
		message: script(`{"text":"second"}`, `{"remember":{"key":"k","value":2}}`, `{"error":"x"}`)}).failed(t)
	gone := h.post(t, request{turn: "gone", window: []entry{{Role: "agent", Content: "first"}}, message: script(`{"text":"third"}`, `{"block":true}`)})
	for gone.text() == "" {
		if _, err := gone.next(); err != nil {
			t.Fatal(err)
		}
	}
	gone.close()
	e.wait(t, "gone")
	text := h.post(t, request{turn: "two", window: []entry{{Role: "agent", Content: "first"}}, message: script(`{"show":"history"}`, `{"recall":"k"}`)}).completed(t)
	if strings.Contains(text, "second") || strings.Contains(text, "third") || !strings.Contains(text, "first") {
		t.Errorf("the adapter sees %s", text)
	}
	if !strings.HasSuffix(text, "2") {
		t.Errorf("the stored value is lost: %s", text)
	}
}

// Fault H2: a cache bounded by entries alone.
func TestFaultH2SessionsAreBoundedInBytes(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const limit = 1 << 20
	blob := adapters.NewValue[string]("blob")
	a := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		var size int
		if _, err := fmt.Sscan(turn.Message, &size); err != nil {
			return err
		}
		old, _, err := blob.Load(turn.Session)
		if err != nil {
			return err
		}
		if size > 0 {
			err = blob.Store(turn.Session, strings.Repeat("x", size))
		}
		return errors.Join(err, w.Text(fmt.Sprintf("%s %d", turn.Continuity, len(old))))
	})
	p, h := start(t, plugin.Config{Adapter: a, SessionBytes: limit, Replay: plugin.NoLimit})
	n := 0
	run := func(session string, size int) string {
		t.Helper()
		n++
		r, err := h.run(request{session: session, turn: numbered("t", n), message: fmt.Sprint(size), window: []entry{{Role: "user", Content: "hi"}}})
		if err != nil {
			t.Fatal(err)
		}
		if s := p.Stats().Sessions; s.Bytes > limit {
			t.Fatalf("%+v: more than %d bytes", s, limit)
		}
		return r.text()
	}
	for i := range 100 {
		if got := run(numbered("s", i), 100<<10); got != "new 0" {
			t.Fatalf("session %d is told %q", i, got)
		}
	}
	if s := p.Stats().Sessions; s.Entries < 9 || s.Entries > 10 || s.Evicted != int64(100-s.Entries) {
		t.Errorf("%+v, want some ten sessions", s)
	}
	if got := run("s-0", 0); got != "evicted 0" {
		t.Errorf("the oldest session is told %q", got)
	}
	if got := run("s-99", 0); !strings.HasSuffix(got, fmt.Sprint(" ", 100<<10)) {
		t.Errorf("the newest session is told %q", got)
	}
	for i := range 300 / slowness {
		size := 1<<10 + i*7919%(199<<10)
		run("changing", size)
		if got := run("changing", 0); !strings.HasSuffix(got, fmt.Sprint(" ", size)) {
			t.Fatalf("round %d: %q, want %d", i, got, size)
		}
	}
	if got := run("huge", 2<<20); got != "new 0" {
		t.Errorf("a session over the whole limit is told %q", got)
	}
	if got := run("huge", 0); got != "evicted 0" {
		t.Errorf("after it was too large, the session is told %q", got)
	}
}

func TestFaultH2SessionsAreForgottenInTime(t *testing.T) {
	t.Parallel()
	a := &remembering{}
	p, h := start(t, plugin.Config{Adapter: a, SessionTTL: 100 * time.Millisecond})
	h.post(t, request{turn: "one"}).completed(t)
	eventually(t, "the end of the session", func() bool { return p.Stats().Sessions.Entries == 0 })
	h.post(t, request{turn: "two", window: []entry{{Role: "user", Content: "hi"}}}).completed(t)
	if got := a.last(); got.continuity != adapters.ContinuityEvicted || got.value != 0 || len(got.history) != 1 {
		t.Errorf("the session is told %+v, want evicted, and its window", got)
	}
}

func TestSessionsAreBoundedInNumber(t *testing.T) {
	t.Parallel()
	a := &remembering{}
	p, h := start(t, plugin.Config{Adapter: a, Sessions: 3})
	for i := range 10 {
		h.post(t, request{session: numbered("s", i)}).completed(t)
		if s := p.Stats().Sessions; s.Entries > 3 {
			t.Fatalf("%+v", s)
		}
	}
}

// Fault H3: shared memory between turns. It means something under the race detector.
func TestFaultH3WhatAnAdapterGetsIsItsOwn(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const sessions, turns = 50, 6
	type notes struct{ Words []string }
	own := adapters.NewValue[notes]("notes")
	stop := newGate(t)
	var late sync.WaitGroup
	a := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		for i := range turn.History {
			if !strings.HasPrefix(turn.History[i].Content, turn.Session.ID()) {
				return fmt.Errorf("the history of %s has %q", turn.Session.ID(), turn.History[i].Content)
			}
		}
		n, _, err := own.Load(turn.Session)
		if err != nil {
			return err
		}
		for _, word := range n.Words {
			if word != turn.Session.ID() {
				return fmt.Errorf("the value of %s has %q", turn.Session.ID(), word)
			}
		}
		n.Words = append(n.Words, strings.Clone(turn.Session.ID()))
		raw, err := json.Marshal(n)
		if err != nil {
			return err
		}
		message := json.RawMessage(raw)
		if err := turn.Session.Store("notes", message); err != nil {
			return err
		}
		spoil := func() {
			for i := range turn.History {
				turn.History[i].Content = "spoilt"
			}
			_ = append(turn.History, adapters.Message{Content: "spoilt"})
			for i := range n.Words {
				n.Words[i] = "spoilt"
			}
			for i := range message {
				message[i] = 'x'
			}
			turn.Message, turn.ID = "spoilt", "spoilt"
		}
		answer := turn.Session.ID() + " answers"
		spoil()
		late.Go(func() {
			for {
				select {
				case <-stop.C:
					return
				case <-time.After(time.Millisecond):
					spoil()
				}
			}
		})
		return w.Text(answer)
	})
	_, h := start(t, plugin.Config{Adapter: a})
	t.Cleanup(late.Wait)
	t.Cleanup(stop.open)
	var wg sync.WaitGroup
	for s := range sessions {
		wg.Go(func() {
			name := numbered("s", s)
			var window []entry
			for i := range turns {
				r, err := h.run(request{session: name, turn: numbered("t", i), message: name + " asks", window: window})
				if err != nil || r.last().Status != wire.StatusComplete {
					t.Errorf("%v, %q", err, r.raw)
					return
				}
				window = []entry{{Role: "user", Content: name + " asks"}, {Role: "agent", Content: name + " answers"}}
			}
		})
	}
	wg.Wait()
}

// Fault H4: waiting for each other.
func TestFaultH4AWaiterThatGoesTouchesNoOther(t *testing.T) {
	t.Parallel()
	var calls called
	var e ends
	hold := newGate(t)
	p, h := start(t, plugin.Config{Drain: patience, Hooks: e.hooks(), Adapter: calls.by(adapters.Func(
		func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if turn.ID == "1" {
				<-ctx.Done()
				<-hold.C
				return nil
			}
			return w.Text(turn.ID)
		}))})
	var replies []*reply
	for i := range 4 {
		replies = append(replies, h.post(t, request{turn: fmt.Sprint(i + 1)}).started(t))
		eventually(t, "its place in the queue", func() bool { return p.Stats().Sessions.Waiting == i })
	}
	replies[1].close() // the second
	if end := e.wait(t, "2"); end.Cause != adapters.CauseHostGone {
		t.Errorf("the second ended as %s", end.Cause)
	}
	if text := h.post(t, request{session: "other", turn: "other"}).completed(t); text != "other" {
		t.Errorf("another session's turn: %q", text)
	}
	eventually(t, "the first call", func() bool { return calls.times() == 2 })
	replies[0].close() // the first
	hold.open()
	for _, i := range []int{2, 3} {
		if text := replies[i].completed(t); text != fmt.Sprint(i+1) {
			t.Errorf("turn %d: %q", i+1, text)
		}
	}
	if got := calls.order(); !slices.Contains([]string{"1 other 3 4", "other 1 3 4"}, strings.Join(got, " ")) {
		t.Errorf("the turns ran in the order %v, want first come, first served, and the second never", got)
	}
	quiet(t, p)
}

func TestFaultH4TheWaitHasABound(t *testing.T) {
	t.Parallel()
	const bound = 200 * time.Millisecond
	var e ends
	began := make(chan struct{}, 1)
	p, h := start(t, plugin.Config{SessionWait: bound, Hooks: e.hooks(), Adapter: adapters.Func(
		func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			if turn.Message != "blocks" {
				return w.Text("x")
			}
			began <- struct{}{}
			<-ctx.Done()
			return nil
		})})
	first := h.post(t, request{turn: "first", message: "blocks"}).started(t)
	receive(t, "the first", began)
	at := time.Now()
	why := h.post(t, request{turn: "second"}).failed(t)
	if took := time.Since(at); took < bound || took > bound+patience/2 {
		t.Errorf("the wait ended after %v", took)
	}
	if !strings.Contains(why, "busy") || !strings.Contains(why, bound.String()) {
		t.Errorf("the host is told %q", why)
	}
	if end := e.wait(t, "second"); end.Cause != adapters.CauseSessionBusy || end.Status != "failed" {
		t.Errorf("the hook is told %s, %s", end.Cause, end.Status)
	}
	h.post(t, request{session: "other", turn: "other"}).completed(t)
	if waited := e.wait(t, "other").Waited; waited != 0 {
		t.Errorf("another session waited %v", waited)
	}
	first.close()
	quiet(t, p)
}

func TestOneTurnOfASessionAtATimeInOrder(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	const turns = 30
	var mu sync.Mutex
	running := 0
	var calls called
	p, h := start(t, plugin.Config{Drain: patience, Adapter: calls.by(adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		mu.Lock()
		if running++; running > 1 {
			t.Error("two turns of one session at once")
		}
		mu.Unlock()
		err := w.Text(turn.ID)
		mu.Lock()
		running--
		mu.Unlock()
		return err
	}))})
	var wg sync.WaitGroup
	for i := range turns {
		wg.Go(func() {
			if r, err := h.run(request{turn: numbered("t", i)}); err != nil || r.last().Status != wire.StatusComplete {
				t.Errorf("turn %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	quiet(t, p)
	if n := calls.times(); n != turns {
		t.Errorf("%d adapter calls", n)
	}
}

func TestSessionsOfDifferentTokensAndPluginsNeverMeet(t *testing.T) {
	t.Parallel()
	const tokenA, tokenB = "token-a-token-a-token-a", "token-b-token-b-token-b"
	began, hold := make(chan string, 8), newGate(t)
	a := adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		who := turn.Principal + "/" + turn.PluginID
		if turn.Message == "block" {
			began <- who
			<-hold.C
			return nil
		}
		old, _, err := adapters.NewValue[string]("who").Load(turn.Session)
		if err != nil {
			return err
		}
		if err := turn.Session.Store("who", who); err != nil {
			return err
		}
		return w.Text(fmt.Sprintf("%s %s %d", old, turn.Continuity, len(turn.History)))
	})
	p, h := start(t, plugin.Config{
		Adapters: map[string]adapters.Adapter{"muse": a, "oracle": a},
		Tokens:   map[string]plugin.Secret{"a": tokenA, "b": tokenB},
		Drain:    patience,
	})
	hosts := map[string]*host{"a": h.with("Authorization", "Bearer "+tokenA), "b": h.with("Authorization", "BEARER  "+tokenB)}
	for round, how := range []string{"new", "same"} {
		for name, h := range hosts {
			for _, id := range []string{"muse", "oracle"} {
				q := request{plugin: id, session: "one", turn: numbered("t", round), message: "hello"}
				want := " " + how + " 0"
				if round > 0 {
					q.window = []entry{{Role: "user", Content: "hello"}, {Role: "agent", Content: " new 0"}}
					want = name + "/" + id + " " + how + " 2"
				}
				if text := h.post(t, q).completed(t); text != want {
					t.Errorf("round %d, %s/%s: %q, want %q", round, name, id, text, want)
				}
			}
		}
	}
	if n := p.Stats().Sessions.Entries; n != 4 {
		t.Errorf("%d sessions, want four", n)
	}
	// Nor do they wait for each other.
	for _, h := range hosts {
		for _, id := range []string{"muse", "oracle"} {
			h.post(t, request{plugin: id, session: "one", turn: "block", message: "block"}).started(t)
			receive(t, "the call", began)
		}
	}
	hold.open()
	quiet(t, p)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	var log logs
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo), Tokens: map[string]plugin.Secret{"a": secretToken, "b": "another-token-of-length"}, Logger: log.logger()})
	for _, value := range []string{
		"", "Bearer", "Bearer ", "Bearer " + secretToken[1:], "Bearer " + secretToken + "x", "Bearer " + strings.ToUpper(secretToken),
		"Basic " + secretToken, secretToken, "Bearer " + secretToken + " " + secretToken, "Bearer a", "Bearer\t" + secretToken,
	} {
		r := h.with("Authorization", value).post(t, request{})
		why := r.refused(t, http.StatusUnauthorized)
		if got := r.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
			t.Errorf("%q: WWW-Authenticate is %q", value, got)
		}
		if strings.Contains(why, secretToken[1:]) {
			t.Errorf("%q: the refusal is %q", value, why)
		}
	}
	if n := calls.times(); n != 0 {
		t.Errorf("%d adapter calls", n)
	}
	for _, value := range []string{"Bearer " + secretToken, "bearer " + secretToken, "Bearer another-token-of-length", "Bearer   " + secretToken + " "} {
		h.with("Authorization", value).post(t, request{}).completed(t)
	}
	// The rest of the server needs none.
	for _, path := range []string{"/healthz", "/readyz", "/manifest.json"} {
		if s := getStatus(t, h, path); s != http.StatusOK {
			t.Errorf("GET %s: %d", path, s)
		}
	}
	if s := log.String(); strings.Contains(s, secretToken) || strings.Contains(s, "another-token") {
		t.Errorf("the log holds a token: %s", s)
	}
}

// A body that arrives slowly is not read before the caller has proved who it is.
func TestAuthenticationComesBeforeTheBody(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo, Tokens: map[string]plugin.Secret{"a": secretToken}})
	r, err := rawPost(h, "Content-Length: 1000\r\n", "not JSON")
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	r.refused(t, http.StatusUnauthorized)
	if _, err := r.Body.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
