package testhost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

const (
	started  = `{"protocolVersion":1,"type":"status","status":"started"}`
	working  = `{"protocolVersion":1,"type":"status","status":"working"}`
	complete = `{"protocolVersion":1,"type":"status","status":"complete"}`
)

func text(s string) string { return fmt.Sprintf(`{"protocolVersion":1,"type":"text","content":%q}`, s) }

// host is a host for a server that answers every turn with h.
func host(t *testing.T, h http.HandlerFunc) *testhost.Lowkey {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return &testhost.Lowkey{URL: s.URL + "/lowkey/turn", PluginID: "muse", Client: s.Client()}
}

// answers is a server's answer, byte for byte.
func answers(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func ask(t *testing.T, h *testhost.Lowkey) (*testhost.Answer, error) {
	t.Helper()
	s, err := h.Turn(t.Context(), h.Request("hello"))
	if err != nil {
		t.Fatal(err)
	}
	return s.Answer()
}

func TestTurnOfARealServer(t *testing.T) {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: echo.New(), Tokens: map[string]plugin.Secret{"lowkey": "0123456789abcdef"}})
	if err != nil {
		t.Fatal(err)
	}
	h := host(t, p.ServeHTTP)

	a, err := ask(t, h)
	if err != nil || a.Status != http.StatusUnauthorized || a.End.Type != wire.EventError || a.Completed() {
		t.Errorf("without the token: %+v, %v; want a refusal", a, err)
	}

	h.Token = "0123456789abcdef"
	if a, err = ask(t, h); err != nil || !a.Completed() || a.Text != "hello" || a.Status != http.StatusOK {
		t.Errorf("the answer is %+v, %v; want a completed hello", a, err)
	}
	last := time.Duration(0)
	for i, e := range a.Events {
		if e.Line != i+1 || e.At < last || e.At <= 0 || e.Err != nil || len(e.Raw) == 0 {
			t.Errorf("event %d is %+v after %v", i, e, last)
		}
		last = e.At
	}
}

// TestRequests holds what is sent to what the protocol's decoder accepts.
func TestRequests(t *testing.T) {
	t.Parallel()
	var got wire.Request
	var header http.Header
	h := host(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if err := wire.Parse(body, &got); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		header = r.Header
		answers(started+"\n"+complete+"\n")(w, r)
	})
	h.Token = "secret"
	c := testhost.NewConversation(h)
	c.UserName, c.Headless, c.Window = "alvin", true, 3
	want := c.Request("<hi> & \u2028")
	s, err := c.Send(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := s.Answer(); err != nil || !a.Completed() {
		t.Fatalf("%+v, %v", a, err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(wire.Timestamp{})); diff != "" {
		t.Errorf("sent and received (-want +got):\n%s", diff)
	}
	if got := header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("Authorization is %q", got)
	}
	if got := header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type is %q", got)
	}

	// What a request lacks is filled in, and nil is not null.
	bare := want
	bare.ProtocolVersion, bare.PluginID, bare.TranscriptWindow = 0, "", nil
	if s, err = h.Turn(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got.PluginID != "muse" || got.ProtocolVersion != 1 || got.TranscriptWindow == nil {
		t.Errorf("a bare request arrives as %+v", got)
	}

	// Post sends any bytes, and headers can be replaced and left out.
	var body string
	h = host(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body, header = string(b), r.Header
	})
	s, err = h.Post(t.Context(), []byte("junk"), http.Header{"Content-Type": {"text/plain"}, "Accept": nil})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if body != "junk" || header.Get("Content-Type") != "text/plain" || header.Get("Accept") != "" {
		t.Errorf("Post sent %q with %v", body, header)
	}
}

func TestProtocolIsChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		text       string
		end        wire.Event
		err        string // of the whole answer; empty: none
	}{
		{"good", started + "\n" + text("a") + "\n" + working + "\n" + text("b") + "\n" + complete + "\n", "ab",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete}, ""},
		{"error event", started + "\n" + text("a") + "\n" + `{"protocolVersion":1,"type":"error","content":"oh"}`, "a",
			wire.Event{ProtocolVersion: 1, Type: wire.EventError, Content: "oh"}, ""},
		{"status error", started + "\n" + `{"protocolVersion":1,"type":"status","status":"error","content":"oh"}` + "\n", "",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusError, Content: "oh"}, ""},
		{"cancelled", started + "\n" + `{"protocolVersion":1,"type":"status","status":"cancelled"}` + "\n", "",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusCancelled}, ""},
		{"unknown members", started + "\n" + `{"protocolVersion":1,"type":"status","status":"complete","new":[1]}` + "\n", "",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete}, ""},

		{"no start", text("a") + "\n" + complete + "\n", "a",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete},
			`line 1 of the answer: text, expected status "started"`},
		{"started twice", started + "\n\n" + started + "\n" + complete + "\n", "",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete},
			`line 3 of the answer: status "started", expected text, status "working", or an end`},
		{"text behind the end", started + "\n" + complete + "\n" + text("late") + "\n", "",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete},
			`line 3 of the answer: text, expected nothing after the end`},
		{"early end", started + "\n" + text("a") + "\n", "a", wire.Event{},
			`line 3 of the answer: the answer ended early: expected an end: status "complete", status "cancelled", or an error`},
		{"nothing", "", "", wire.Event{}, `line 1 of the answer: the answer ended early: expected status "started"`},
		{"junk, and then on", started + "\nLoading\n" + text("a") + "\n" + complete + "\n", "a",
			wire.Event{ProtocolVersion: 1, Type: wire.EventStatus, Status: wire.StatusComplete},
			`line 2 of the answer: malformed JSON: there is 'L' where a value is expected (line 1, column 1, byte 0, in the document)`},
		{"another version", `{"protocolVersion":2,"type":"status","status":"started"}` + "\n", "", wire.Event{},
			`line 1 of the answer: /protocolVersion is 2, expected the number 1, the only version that is served`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a, err := ask(t, host(t, answers(tc.body)))
			got := ""
			if err != nil {
				got = err.Error()
				var broken *testhost.ProtocolError
				if !errors.As(err, &broken) {
					t.Errorf("the error is a %T, want a *ProtocolError", err)
				}
			}
			if got != tc.err {
				t.Errorf("error\n%s\nwant\n%s", got, tc.err)
			}
			if a.Text != tc.text {
				t.Errorf("text %q, want %q", a.Text, tc.text)
			}
			if diff := cmp.Diff(tc.end, a.End); diff != "" {
				t.Errorf("end (-want +got):\n%s", diff)
			}
		})
	}
}

// inPieces answers with pieces, each flushed by itself.
func inPieces(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// Fault A2: line ends. Chat reads its events by this package.
func TestFaultA2LineEnds(t *testing.T) {
	t.Parallel()
	body := started + "\r\n\r\n\n" + text("a") + "\n" +
		"{\"protocolVersion\":1,\"type\":\"text\",\"content\":\"\u2028b\u2029c\u0085d e\"}\r\n" + complete // no end of line
	const want = "a\u2028b\u2029c\u0085d e"
	check := func(name string, h http.HandlerFunc) {
		t.Helper()
		a, err := ask(t, host(t, h))
		if err != nil || a.Text != want || !a.Completed() {
			t.Errorf("%s: %q, %v; want %q, completed", name, a.Text, err, want)
		}
		if last := a.Events[len(a.Events)-1].Line; last != 6 {
			t.Errorf("%s: the last line is number %d, want 6", name, last)
		}
	}
	check("whole", answers(body))
	check("byte by byte", inPieces(strings.Split(body, "")...))
	if testing.Short() {
		return
	}
	for i := 1; i < len(body); i += 3 {
		check(fmt.Sprintf("cut at %d", i), inPieces(body[:i], body[i:]))
	}
}

// Fault A1: long lines.
func TestFaultA1LongLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 7<<20)
	a, err := ask(t, host(t, inPieces(started+"\n", text(long)+"\n", complete+"\n")))
	if err != nil || a.Text != long || !a.Completed() {
		t.Errorf("a line of 7 MiB: %d bytes, %v", len(a.Text), err)
	}

	gone := make(chan struct{})
	h := host(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		_, _ = io.WriteString(w, started+"\n")
		for r.Context().Err() == nil { // without an end of line, until the host goes
			if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
				return
			}
		}
	})
	h.LineLimit = 1 << 20
	_, err = ask(t, h)
	var tooLong *ndjson.LineTooLongError
	if !errors.As(err, &tooLong) || tooLong.Limit != 1<<20 || tooLong.Number != 2 || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("an endless line: %v; want an error that names the limit", err)
	}
	<-gone // the server was told
}

func TestConnectionIsCut(t *testing.T) {
	t.Parallel()
	a, err := ask(t, host(t, func(w http.ResponseWriter, r *http.Request) {
		inPieces(started+"\n", text("half")+"\n", `{"protocolVersion":1,"ty`)(w, r)
		panic(http.ErrAbortHandler)
	}))
	if err == nil || a.Text != "half" || a.End != (wire.Event{}) {
		t.Errorf("%+v, %v; want half a text and an error", a, err)
	}
	var broken *testhost.ProtocolError
	if errors.As(err, &broken) {
		t.Errorf("%v: a cut connection is no mistake of protocol", err)
	}
}

// A server that ends its turn but not its response is left.
func TestLinger(t *testing.T) {
	defer testhost.SetLinger(20 * time.Millisecond)()
	gone := make(chan struct{})
	a, err := ask(t, host(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		inPieces(started+"\n", complete+"\n")(w, r)
		<-r.Context().Done()
	}))
	if err != nil || !a.Completed() {
		t.Errorf("%+v, %v; want a completed turn", a, err)
	}
	<-gone
}

func TestWalkedOnce(t *testing.T) {
	t.Parallel()
	h := host(t, answers(started+"\n"+complete+"\n"))
	s, err := h.Turn(t.Context(), h.Request("hello"))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range s.Events() {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if _, err := s.Answer(); err == nil {
		t.Error("a stream was walked twice")
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	h := host(t, answers(""))
	h.URL = "http://127.0.0.1:1/lowkey/turn"
	if _, err := h.Turn(t.Context(), h.Request("hello")); err == nil {
		t.Error("there is no server, and no error")
	}
	h.URL = "http://\x00"
	if _, err := h.Turn(t.Context(), h.Request("hello")); err == nil {
		t.Error("there is no URL, and no error")
	}
}

// TestRedirect: a host follows none.
func TestRedirect(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect))
	defer s.Close()
	defer testhost.CloseIdleConnections()
	h := &testhost.Lowkey{URL: s.URL, PluginID: "muse"}
	if a, _ := ask(t, h); a.Status != http.StatusTemporaryRedirect {
		t.Errorf("status %d, want 307", a.Status)
	}
}

// said is a transcript in short.
func said(entries []wire.WindowEntry) []string {
	list := []string{}
	for _, e := range entries {
		list = append(list, string(e.Role)+": "+e.Content)
	}
	return list
}

func TestConversation(t *testing.T) {
	t.Parallel()
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: scripted.New(scripted.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	c := testhost.NewConversation(host(t, p.ServeHTTP))
	c.Window, c.AgentName = 4, "Muse"
	say := func(message string) *testhost.Answer {
		t.Helper()
		s, err := c.Say(t.Context(), message)
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Answer()
		if err != nil {
			t.Fatalf("%q: %v", message, err)
		}
		return a
	}
	before := time.Now().Add(-time.Second)
	first := c.Request("one")
	say("one")
	say("two")
	say("three")
	third := c.Request("four")
	if want := []string{"user: two", "agent: two", "user: three", "agent: three"}; !slices.Equal(said(third.TranscriptWindow), want) {
		t.Errorf("the window is %q, want %q", said(third.TranscriptWindow), want)
	}
	if first.SessionHandle != third.SessionHandle || first.Turn.TurnID == third.Turn.TurnID || third.Limits.TranscriptWindowMessages != 4 {
		t.Errorf("first turn %+v, third %+v: want one handle, other ids, the window's limit", first, third)
	}
	u, a := third.TranscriptWindow[2], third.TranscriptWindow[3]
	if u.TurnID == "" || u.TurnID != a.TurnID || u.AgentID != "" || a.AgentID != "muse" || a.AgentName != "Muse" {
		t.Errorf("entries %+v and %+v: want one turn id, and the agent's id and name on its own", u, a)
	}
	for _, e := range c.Transcript {
		if at := e.Timestamp.Time(); at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%+v was said at %v", e, at)
		}
	}
	// The server sees the conversation go on, further back than the window.
	if got := say("script:\n{\"show\":\"turn\"}").Text; !strings.Contains(got, `"continuity":"extended"`) {
		t.Errorf("the adapter was told %s", got)
	}

	// A failed turn leaves what was said.
	c.Transcript = nil
	if a := say("script:\n{\"text\":\"half\"}\n{\"error\":\"oh\"}"); a.End.Content != "oh" {
		t.Errorf("the end is %+v", a.End)
	}
	if got := said(c.Transcript); len(got) != 2 || got[1] != "agent: half" {
		t.Errorf("after a failed turn: %q", got)
	}
	// One without an answer leaves the message, one that is refused nothing.
	say("script:\n")
	if got := said(c.Transcript); len(got) != 3 {
		t.Errorf("after a turn without text: %q", got)
	}
	c.Host.PluginID = "nobody"
	if a := say("hello"); a.Status != http.StatusNotFound {
		t.Errorf("status %d, want 404", a.Status)
	}
	c.Host.PluginID = "muse"
	if got := said(c.Transcript); len(got) != 3 {
		t.Errorf("after a refused turn: %q", got)
	}
	// No window at all.
	c.Window = 0
	if r := c.Request("x"); r.TranscriptWindow == nil || len(r.TranscriptWindow) != 0 {
		t.Errorf("the window is %#v, want an empty one", r.TranscriptWindow)
	}
	c.Window = -1
	if r := c.Request("x"); len(r.TranscriptWindow) != 0 || r.Limits.TranscriptWindowMessages != 0 {
		t.Errorf("the window is %#v, want an empty one", r)
	}
}

// TestHostGoesAway: cancelling the turn's context is the host going away, and what came stays said.
func TestHostGoesAway(t *testing.T) {
	t.Parallel()
	causes := make(chan adapters.Cause, 1)
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if err := w.Text("so far"); err != nil {
			return err
		}
		<-ctx.Done()
		causes <- adapters.CauseOf(ctx)
		return context.Cause(ctx)
	})})
	if err != nil {
		t.Fatal(err)
	}
	c := testhost.NewConversation(host(t, p.ServeHTTP))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.Say(ctx, "hello")
	if err != nil {
		t.Fatal(err)
	}
	var last error
	for e, err := range s.Events() {
		if e.Type == wire.EventText {
			cancel()
		}
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("the stream ends with %v, want context.Canceled", last)
	}
	if got := <-causes; got != adapters.CauseHostGone {
		t.Errorf("the adapter ended for %q, want host-gone", got)
	}
	if got, want := said(c.Transcript), []string{"user: hello", "agent: so far"}; !slices.Equal(got, want) {
		t.Errorf("transcript %q, want %q", got, want)
	}

	// A stream that is closed unread leaves the message.
	if s, err = c.Say(t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if got := <-causes; got != adapters.CauseHostGone {
		t.Errorf("the adapter ended for %q, want host-gone", got)
	}
	if got := said(c.Transcript); len(got) != 3 || got[2] != "user: again" {
		t.Errorf("transcript %q, want the message added once", got)
	}
}
