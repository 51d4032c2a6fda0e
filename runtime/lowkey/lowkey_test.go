package lowkey_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/lowkey"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// What the host is told of a turn that failed. Nothing of an error that was not written for it gets out.
func TestPublicText(t *testing.T) {
	t.Parallel()
	const id, secret = "00c0ffee00c0ffee", "hunter2"
	cause := errors.New(secret)
	var noUnsupported *adapters.UnsupportedError
	for name, tc := range map[string]struct {
		o    runtime.Outcome
		want string
	}{
		"turn timeout": {
			runtime.Outcome{Cause: adapters.CauseTurnTimeout, Limit: 10 * time.Minute, Continuity: adapters.ContinuityNew, Err: cause},
			"The turn passed the limit for a whole turn (turn timeout, 10m0s).",
		},
		"turn timeout after a wait": {
			runtime.Outcome{Cause: adapters.CauseTurnTimeout, Limit: time.Minute, Waited: time.Second, Continuity: adapters.ContinuityNew},
			"The turn passed the limit for a whole turn (turn timeout, 1m0s).",
		},
		"turn timeout during the wait": {
			runtime.Outcome{Cause: adapters.CauseTurnTimeout, Limit: time.Minute, Waited: time.Minute},
			"The turn waited for another turn of its session until it passed the limit for a whole turn (turn timeout, 1m0s).",
		},
		"first output": {
			runtime.Outcome{Cause: adapters.CauseFirstOutput, Limit: 5 * time.Minute, Err: cause},
			"The agent wrote nothing within the limit for its first output (5m0s).",
		},
		"idle": {
			runtime.Outcome{Cause: adapters.CauseIdle, Limit: 1500 * time.Millisecond, Err: adapters.Public("not this", nil)},
			"The agent fell silent for longer than the limit between two outputs (idle, 1.5s).",
		},
		"busy": {
			runtime.Outcome{Cause: adapters.CauseSessionBusy, Limit: 30 * time.Second},
			"The session is busy: another turn of it ran for longer than this one may wait (30s). Try again.",
		},
		"an error":            {runtime.Outcome{Cause: adapters.CauseAdapter, Err: cause}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"a wrapped error":     {runtime.Outcome{Cause: adapters.CauseAdapter, Err: fmt.Errorf("more: %w", cause)}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"a tool not admitted": {runtime.Outcome{Cause: adapters.CauseAdapter, Err: adapters.ErrToolNotAdmitted}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"a panic":             {runtime.Outcome{Cause: adapters.CausePanic}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"an unknown cause":    {runtime.Outcome{Cause: "of-another-time", Err: cause}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"a public error":      {runtime.Outcome{Cause: adapters.CauseAdapter, Err: adapters.Public("Sorry.", cause)}, "Sorry."},
		"a wrapped one":       {runtime.Outcome{Cause: adapters.CauseAdapter, Err: fmt.Errorf("%s: %w", secret, adapters.Public("Sorry.", cause))}, "Sorry."},
		"a joined one":        {runtime.Outcome{Cause: adapters.CauseAdapter, Err: errors.Join(cause, adapters.Public("Sorry.", cause))}, "Sorry."},
		"an empty one":        {runtime.Outcome{Cause: adapters.CauseAdapter, Err: adapters.Public("", cause)}, "The agent failed (reference 00c0ffee00c0ffee)."},
		"unavailable":         {runtime.Outcome{Cause: adapters.CauseProvider, Err: &adapters.Unavailable{Message: "Overloaded.", Err: cause}}, "Overloaded."},
		"wrapped unavailable": {runtime.Outcome{Cause: adapters.CauseProvider, Err: fmt.Errorf("%s: %w", secret, &adapters.Unavailable{Message: "Overloaded."})}, "Overloaded."},
		"silently unavailable": {runtime.Outcome{Cause: adapters.CauseProvider, Err: &adapters.Unavailable{Err: cause}},
			"The service behind the agent is unavailable (reference 00c0ffee00c0ffee)."},
		"public, of unavailable": {runtime.Outcome{Cause: adapters.CauseProvider, Err: adapters.Public("Sorry.", &adapters.Unavailable{Message: "Overloaded."})}, "Sorry."},
		"unsupported": {runtime.Outcome{Cause: adapters.CauseAdapter, Err: fmt.Errorf("%s: %w", secret, &adapters.UnsupportedError{Feature: "tool", Protocol: adapters.Lowkey})},
			"The agent needs what this protocol does not have: tool is not supported under lowkey."},
		"unsupported, but nil": {runtime.Outcome{Cause: adapters.CauseAdapter, Err: fmt.Errorf("more: %w", noUnsupported)}, "The agent failed (reference 00c0ffee00c0ffee)."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.o.Status, tc.o.CorrelationID = runtime.Failed, id
			got := lowkey.PublicText(&tc.o)
			if got != tc.want || strings.Contains(got, secret) {
				t.Errorf("publicText = %q, want %q", got, tc.want)
			}
			line := lowkey.Sink.End(nil, &tc.o)
			if e, err := wire.ParseEvent(line); err != nil || e.Type != wire.EventError || e.Content != tc.want {
				t.Errorf("End = %q (%v)", line, err)
			}
		})
	}
}

func TestStartRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err        error
		status     int
		reason     string
		retryAfter int
		text       string
	}{
		{runtime.ErrConflict, http.StatusConflict, "conflict", 0, `"t-1"`},
		{runtime.ErrOutgrown, http.StatusConflict, "outgrown", 0, `"t-1"`},
		{runtime.ErrDraining, http.StatusServiceUnavailable, "draining", 5, "shutting down"},
		{runtime.ErrSessionBusy, http.StatusServiceUnavailable, "busy", 1, "busy"},
		{runtime.ErrAtCapacity, http.StatusServiceUnavailable, "capacity", 1, "as many turns as it may"},
		{errors.New("hunter2"), http.StatusInternalServerError, "internal", 0, "could not start"},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("more: %w", tc.err)} {
			status, reason, text, retryAfter := lowkey.StartRefusal(err, "t-1")
			if status != tc.status || reason != tc.reason || retryAfter != tc.retryAfter || !strings.Contains(text, tc.text) || strings.Contains(text, "hunter2") {
				t.Errorf("%v: %d, %s, %q, Retry-After %d", err, status, reason, text, retryAfter)
			}
		}
	}
	if _, _, text, _ := lowkey.StartRefusal(runtime.ErrConflict, strings.Repeat("x", 5000)); len(text) > 400 {
		t.Errorf("a long turn id makes %d bytes of refusal", len(text))
	}
}

// The history that a window becomes: oldest first, the newest that many, without the current message.
func TestWindow(t *testing.T) {
	t.Parallel()
	e := func(role wire.Role, content, turn string) wire.WindowEntry {
		return wire.WindowEntry{Role: role, Content: content, TurnID: turn}
	}
	const u, a, s = wire.RoleUser, wire.RoleAgent, wire.RoleSystem
	for name, tc := range map[string]struct {
		window []wire.WindowEntry
		limit  int
		want   string
	}{
		"empty":                             {nil, 40, ""},
		"all":                               {[]wire.WindowEntry{e(u, "1", ""), e(a, "2", ""), e(s, "3", "")}, 40, "user 1, agent 2, system 3"},
		"exactly the limit":                 {[]wire.WindowEntry{e(u, "1", ""), e(a, "2", "")}, 2, "user 1, agent 2"},
		"the newest":                        {[]wire.WindowEntry{e(u, "1", ""), e(a, "2", ""), e(u, "3", "")}, 2, "agent 2, user 3"},
		"none":                              {[]wire.WindowEntry{e(u, "1", "")}, 0, ""},
		"no bound":                          {[]wire.WindowEntry{e(u, "1", "")}, math.MaxInt, "user 1"},
		"the current message":               {[]wire.WindowEntry{e(a, "1", ""), e(u, "now", "t")}, 40, "agent 1"},
		"the current message alone":         {[]wire.WindowEntry{e(u, "now", "t")}, 40, ""},
		"dropped before the limit":          {[]wire.WindowEntry{e(u, "1", ""), e(a, "2", ""), e(u, "now", "t")}, 2, "user 1, agent 2"},
		"once":                              {[]wire.WindowEntry{e(u, "now", "t"), e(u, "now", "t")}, 40, "user now"},
		"an answer in this turn":            {[]wire.WindowEntry{e(u, "now", "t"), e(a, "2", "t")}, 40, "user now, agent 2"},
		"a system message in this turn":     {[]wire.WindowEntry{e(s, "now", "t")}, 40, "system now"},
		"the last message of another turn":  {[]wire.WindowEntry{e(u, "1", "t2")}, 40, "user 1"},
		"the same text without a turn's id": {[]wire.WindowEntry{e(u, "now", "")}, 40, "user now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := &wire.Request{
				Turn:             wire.Turn{TurnID: "t", Message: "now"},
				TranscriptWindow: tc.window,
				Limits:           wire.Limits{TranscriptWindowMessages: tc.limit},
			}
			var got []string
			for _, m := range lowkey.AppendWindow(nil, q) {
				got = append(got, fmt.Sprintf("%s %s", m.Role, m.Content))
			}
			if s := strings.Join(got, ", "); s != tc.want {
				t.Errorf("the history is %q, want %q", s, tc.want)
			}
		})
	}
}

func TestWindowEntry(t *testing.T) {
	t.Parallel()
	at := time.Date(2024, 6, 21, 20, 0, 0, 123e6, time.UTC)
	q := &wire.Request{
		Turn: wire.Turn{TurnID: "t"},
		TranscriptWindow: []wire.WindowEntry{
			{Role: wire.RoleAgent, Content: "c", Timestamp: wire.TimestampAt(at), AgentID: "muse", AgentName: "Muse", TurnID: "t-0"},
			{Role: wire.RoleUser, Timestamp: wire.TimestampOf(0)},
			{Role: wire.RoleUser, Timestamp: wire.TimestampOf(0.5)},
			{Role: wire.RoleUser, Timestamp: wire.TimestampOf(-1)},
			{Role: wire.RoleUser},
		},
		Limits: wire.Limits{TranscriptWindowMessages: 40},
	}
	want := []adapters.Message{
		{Role: adapters.RoleAgent, Content: "c", Time: at, AgentID: "muse", AgentName: "Muse", TurnID: "t-0"},
		{Role: adapters.RoleUser, Time: time.Unix(0, 0).UTC()},
		{Role: adapters.RoleUser, Time: time.Unix(0, 500e3).UTC()},
		{Role: adapters.RoleUser, Time: time.UnixMilli(-1).UTC()},
		{Role: adapters.RoleUser},
	}
	if diff := cmp.Diff(want, lowkey.AppendWindow(nil, q)); diff != "" {
		t.Errorf("the history (-want +got):\n%s", diff)
	}
	if got := lowkey.AppendWindow(nil, q)[4]; !got.Time.IsZero() {
		t.Errorf("an entry without a timestamp has the time %v", got.Time)
	}
}

// A window that goes back keeps nothing of its request.
func TestWindowsKeepNothing(t *testing.T) {
	t.Parallel()
	m := []adapters.Message{{Role: adapters.RoleUser, Content: "c", TurnID: "t"}, {Role: adapters.RoleAgent, Content: "d"}}
	for i, got := range lowkey.Recycled(m) {
		if got != (adapters.Message{}) {
			t.Errorf("message %d is still %+v", i, got)
		}
	}
}

// The lines of a stream: nothing but the contract's members, whatever the text.
func TestSink(t *testing.T) {
	t.Parallel()
	s := lowkey.Sink
	for name, tc := range map[string]struct {
		line []byte
		want string
	}{
		"started":         {s.Started(nil), `{"protocolVersion":1,"type":"status","status":"started"}`},
		"text":            {s.Text(nil, "<b> & \"q\" \\\n\u2028"), `{"protocolVersion":1,"type":"text","content":"<b> & \"q\" \\\n\u2028"}`},
		"a status":        {s.Status(nil, "thinking"), `{"protocolVersion":1,"type":"status","status":"working","content":"thinking"}`},
		"an empty status": {s.Status(nil, ""), `{"protocolVersion":1,"type":"status","status":"working"}`},
		"a heartbeat":     {s.Heartbeat(nil), `{"protocolVersion":1,"type":"status","status":"working"}`},
		"complete":        {s.End(nil, &runtime.Outcome{Status: runtime.Completed}), `{"protocolVersion":1,"type":"status","status":"complete"}`},
		"cancelled":       {s.End(nil, &runtime.Outcome{Status: runtime.Cancelled, Cause: adapters.CauseDrain}), `{"protocolVersion":1,"type":"status","status":"cancelled"}`},
		"failed": {s.End(nil, &runtime.Outcome{Status: runtime.Failed, Cause: adapters.CauseAdapter, Err: adapters.Public("\"No\"\n", nil)}),
			`{"protocolVersion":1,"type":"error","content":"\"No\"\n"}`},
	} {
		if got := string(tc.line); got != tc.want+"\n" {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	// The constant first line is nobody's to append to.
	first := s.Started(nil)
	_ = append(first, "junk"...)
	if got := string(s.Started(nil)); got != string(first) {
		t.Errorf("started has become %q", got)
	}
}

func TestSinkAppends(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := lowkey.Sink
		text := rapid.OneOf(rapid.String(), rapid.StringN(0, 2000, -1)).Draw(t, "text")
		room := rapid.IntRange(0, 100).Draw(t, "room")
		failed := &runtime.Outcome{Status: runtime.Failed, Cause: adapters.CauseAdapter, Err: adapters.Public("!"+text, nil)}
		for name, tc := range map[string]struct {
			f    func(dst []byte) []byte
			want wire.Event
		}{
			"Started":   {s.Started, wire.Event{Type: wire.EventStatus, Status: wire.StatusStarted}},
			"Text":      {func(dst []byte) []byte { return s.Text(dst, text) }, wire.Event{Type: wire.EventText, Content: text}},
			"Status":    {func(dst []byte) []byte { return s.Status(dst, text) }, wire.Event{Type: wire.EventStatus, Status: wire.StatusWorking, Content: text}},
			"Heartbeat": {s.Heartbeat, wire.Event{Type: wire.EventStatus, Status: wire.StatusWorking}},
			"End":       {func(dst []byte) []byte { return s.End(dst, failed) }, wire.Event{Type: wire.EventError, Content: "!" + text}},
		} {
			tc.want.ProtocolVersion = 1
			line, ok := strings.CutPrefix(string(tc.f(append(make([]byte, 0, 5+room), "line\n"...))), "line\n")
			if !ok || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "}\n") || strings.ContainsAny(line, "\r\u2028\u2029") || !utf8.ValidString(line) {
				t.Fatalf("%s(%q) = %q, which is not one line", name, text, line)
			}
			if e, err := wire.ParseEvent([]byte(line)); err != nil || e != tc.want {
				t.Fatalf("%s(%q) = %q: %+v, %v, want %+v", name, text, line, e, err, tc.want)
			}
		}
	})
}

// A line is appended in place and allocates nothing.
func TestSinkDoesNotAllocate(t *testing.T) {
	s, buf := lowkey.Sink, make([]byte, 0, 4096)
	for name, f := range map[string]func(){
		"Text":      func() { buf = s.Text(buf[:0], "naïve \"text\" \u2028 of an answer\n") },
		"Status":    func() { buf = s.Status(buf[:0], "thinking") },
		"Heartbeat": func() { buf = s.Heartbeat(buf[:0]) },
		"Started":   func() { buf = s.Started(buf[:0]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// No refusal holds more than 200 characters of the request, wherever they stand.
func TestRefusalsHoldLittleOfTheRequest(t *testing.T) {
	t.Parallel()
	const marker = "\u6e10" // in no text of ours
	long := strings.Repeat(marker, 3000)
	quoted, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"a version":         fmt.Sprintf(`{"protocolVersion": %s}`, quoted),
		"a name":            fmt.Sprintf(`{%s: 1, %s: 2}`, quoted, quoted),
		"a role":            fmt.Sprintf(`{"protocolVersion":1,"pluginId":"muse","transcriptWindow":[{"role":%s,"content":""},{"role":%[1]s,"content":""}]}`, quoted),
		"many wrong values": fmt.Sprintf(`{"protocolVersion":1,"pluginId":%s,"sessionHandle":%[1]s,"turn":%[1]s,"transcriptWindow":%[1]s,"limits":%[1]s}`, quoted),
		"a document":        string(quoted),
		"no document":       long,
		"a pointer":         fmt.Sprintf(`{"protocolVersion":1,%s:{"a":1,"a":2}}`, quoted),
	} {
		text := lowkey.ExplainBody([]byte(body))
		if text == "" {
			t.Errorf("%s: the body is accepted", name)
		}
		if n := strings.Count(text, marker); n > 200 {
			t.Errorf("%s: the refusal holds %d characters of the request", name, n)
		}
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	engine, err := runtime.New(runtime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	plugins := map[string]adapters.Adapter{"muse": echo.New()}
	for name, tc := range map[string]struct {
		conf lowkey.Config
		want []string
	}{
		"nothing":          {lowkey.Config{}, []string{"Engine", "no plugin"}},
		"no engine":        {lowkey.Config{Plugins: plugins}, []string{"Engine"}},
		"a nil adapter":    {lowkey.Config{Engine: engine, Plugins: map[string]adapters.Adapter{"owl": nil}}, []string{`"owl"`}},
		"no id":            {lowkey.Config{Engine: engine, Plugins: map[string]adapters.Adapter{"": echo.New()}}, []string{`""`}},
		"an empty token":   {lowkey.Config{Engine: engine, Plugins: plugins, Tokens: map[string]secret.Text{"ci": ""}}, []string{`"ci"`}},
		"a nameless token": {lowkey.Config{Engine: engine, Plugins: plugins, Tokens: map[string]secret.Text{"": "secret"}}, []string{"token"}},
		"good":             {lowkey.Config{Engine: engine, Plugins: plugins, Tokens: map[string]secret.Text{"ci": "secret"}}, nil},
	} {
		_, err := lowkey.New(tc.conf)
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: New = %v", name, err)
		}
		for _, want := range tc.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: New = %v, want it to name %s", name, err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: New = %v, which has the token", name, err)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

// newHandler is a handler of plugin muse.
func newHandler(tb testing.TB, a adapters.Adapter, conf runtime.Config) (*lowkey.Handler, *runtime.Engine) {
	tb.Helper()
	conf.Logger = quiet
	engine, err := runtime.New(conf)
	if err != nil {
		tb.Fatal(err)
	}
	h, err := lowkey.New(lowkey.Config{Engine: engine, Plugins: map[string]adapters.Adapter{"muse": a}, Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	return h, engine
}
