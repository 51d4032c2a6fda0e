package plugin_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A fetched is what came before the body of an answer that has been read.
type fetched struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// get reads a whole answer.
func (h *host) get(t testing.TB, path string) (fetched, []byte) {
	t.Helper()
	res, err := h.client.Get("http://" + h.addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fetched{res.StatusCode, res.Status, res.Header}, body
}

// at is the host with another path of the turns.
func (h *host) at(path string) *host {
	other := *h
	other.path = path
	return &other
}

func TestMountedUnderAPrefix(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mount  func(t *testing.T) http.Handler
		prefix string
		turns  string
	}{
		"StripPrefix": {func(t *testing.T) http.Handler {
			return http.StripPrefix("/agents/muse", newPlugin(t, plugin.Config{Adapter: echo}))
		}, "/agents/muse", "/lowkey/turn"},
		"Prefix": {func(t *testing.T) http.Handler {
			return newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/agents/muse"})
		}, "/agents/muse", "/lowkey/turn"},
		"Prefix with a slash": {func(t *testing.T) http.Handler {
			return newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/agents/"})
		}, "/agents", "/lowkey/turn"},
		"ServeMux": {func(t *testing.T) http.Handler {
			m := http.NewServeMux()
			m.Handle("/agents/", newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/agents"}))
			return m
		}, "/agents", "/lowkey/turn"},
		"ServeMux and StripPrefix": {func(t *testing.T) http.Handler {
			m := http.NewServeMux()
			m.Handle("/agents/", http.StripPrefix("/agents", newPlugin(t, plugin.Config{Adapter: echo})))
			return m
		}, "/agents", "/lowkey/turn"},
		"TurnPath": {func(t *testing.T) http.Handler { return newPlugin(t, plugin.Config{Adapter: echo, TurnPath: "/t"}) }, "", "/t"},
		"Prefix and TurnPath": {func(t *testing.T) http.Handler {
			return newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/a/b", TurnPath: "/t/u/"})
		}, "/a/b", "/t/u"},
		"TurnPath is all": {func(t *testing.T) http.Handler { return newPlugin(t, plugin.Config{Adapter: echo, TurnPath: "/"}) }, "", "/"},
		"an odd prefix": {func(t *testing.T) http.Handler {
			return newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/a.b-c_d~e"})
		}, "/a.b-c_d~e", "/lowkey/turn"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := mount(t, tt.mount(t), nil)
			paths := []string{tt.prefix + tt.turns}
			if tt.turns != "/" {
				paths = append(paths, tt.prefix+tt.turns+"/")
			}
			for _, path := range paths {
				if text := h.at(path).post(t, request{turn: path, message: "x"}).completed(t); text != "x" {
					t.Errorf("%s: the text is %q", path, text)
				}
			}
			for _, path := range []string{"/healthz", "/readyz", wire.SchemaPath} {
				if res, body := h.get(t, tt.prefix+path); res.StatusCode != http.StatusOK || len(body) == 0 {
					t.Errorf("GET %s: %s %q", tt.prefix+path, res.Status, body)
				}
			}
			if tt.prefix != "" {
				if s := getStatus(t, h, "/healthz"); s != http.StatusNotFound {
					t.Errorf("GET /healthz outside the prefix: %d", s)
				}
			}
			_, body := h.get(t, tt.prefix+"/manifest.json")
			m, err := manifest.Parse(body)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Check(); err != nil {
				t.Errorf("the manifest: %v", err)
			}
			if name != "StripPrefix" && name != "ServeMux and StripPrefix" { // there the plugin cannot know
				endpoint := m.Agents()[0].Endpoint
				path, ok := strings.CutPrefix(endpoint, "http://"+h.addr)
				if !ok {
					t.Fatalf("the manifest's endpoint is %q", endpoint)
				}
				if text := h.at(path).post(t, request{turn: "by manifest", message: "x"}).completed(t); text != "x" {
					t.Errorf("the manifest's endpoint %q: the text is %q", endpoint, text)
				}
			}
		})
	}
}

func TestTwoPluginsInOneServer(t *testing.T) {
	t.Parallel()
	says := func(s string) adapters.Adapter {
		return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return w.Text(s + " as " + turn.PluginID)
		})
	}
	one := newPlugin(t, plugin.Config{ID: "one", Adapter: says("one"), Prefix: "/one"})
	two := newPlugin(t, plugin.Config{ID: "two", Adapter: says("two"), Prefix: "/two", Adapters: map[string]adapters.Adapter{"three": says("three")}})
	m := http.NewServeMux()
	m.Handle("/one/", one)
	m.Handle("/two/", two)
	h := mount(t, m, nil)
	for _, tt := range []struct{ path, id, want string }{
		{"/one/lowkey/turn", "one", "one as one"}, {"/two/lowkey/turn", "two", "two as two"}, {"/two/lowkey/turn", "three", "three as three"},
	} {
		if text := h.at(tt.path).post(t, request{plugin: tt.id}).completed(t); text != tt.want {
			t.Errorf("%s at %s: %q", tt.id, tt.path, text)
		}
	}
	why := h.at("/one/lowkey/turn").post(t, request{plugin: "two"}).refused(t, http.StatusNotFound)
	if !strings.Contains(why, `"two"`) || !strings.Contains(why, `"one"`) {
		t.Errorf("the refusal is %q, want it to name what was asked for and what is hosted", why)
	}
	if err := one.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	h.at("/one/lowkey/turn").post(t, request{plugin: "one", turn: "late"}).refused(t, http.StatusServiceUnavailable)
	h.at("/two/lowkey/turn").post(t, request{plugin: "two", turn: "late"}).completed(t)
}

// Foreign middleware around the plugin, of the kinds that people have.
func TestInsideForeignMiddleware(t *testing.T) {
	t.Parallel()
	slow := adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for range 5 {
			if err := w.Text("x"); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond) // the adapter's pace
		}
		return nil
	})
	t.Run("compression", func(t *testing.T) {
		t.Parallel()
		h := mount(t, compress(newPlugin(t, plugin.Config{Adapter: slow})), nil)
		r := h.with("Accept-Encoding", "gzip").post(t, request{})
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(z)
		if err != nil || strings.Count(string(body), `"x"`) != 5 || !strings.HasSuffix(string(body), "\"complete\"}\n") {
			t.Errorf("%q, %v", body, err)
		}
	})
	t.Run("http.TimeoutHandler", func(t *testing.T) {
		t.Parallel()
		p := newPlugin(t, plugin.Config{Adapter: slow})
		h := mount(t, http.TimeoutHandler(p, patience, ""), nil)
		if text := h.post(t, request{}).completed(t); text != "xxxxx" { // all at once, but all of it
			t.Errorf("the text is %q", text)
		}
	})
	t.Run("http.TimeoutHandler, too short", func(t *testing.T) {
		t.Parallel()
		var e ends
		p := newPlugin(t, plugin.Config{Adapter: block, Hooks: e.hooks()})
		h := mount(t, http.TimeoutHandler(p, 100*time.Millisecond, "too slow"), nil)
		r := h.post(t, request{})
		if body, err := io.ReadAll(r.Body); r.StatusCode != http.StatusServiceUnavailable || string(body) != "too slow" || err != nil {
			t.Errorf("%s %q, %v", r.Status, body, err)
		}
		if end := e.wait(t, "t-1"); end.Cause != adapters.CauseHostGone {
			t.Errorf("the turn ended as %s", end.Cause)
		}
		quiet(t, p)
	})
	t.Run("a context that ends", func(t *testing.T) {
		t.Parallel()
		var e ends
		p := newPlugin(t, plugin.Config{Adapter: block, Hooks: e.hooks()})
		h := mount(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
			defer cancel()
			p.ServeHTTP(w, r.WithContext(ctx))
		}), nil)
		r := h.post(t, request{}).started(t)
		if err := r.read(); err == nil && r.last().Status != wire.StatusCancelled {
			t.Errorf("the stream is %q", r.raw)
		}
		e.wait(t, "t-1")
		quiet(t, p)
	})
	t.Run("a smaller limit on bodies", func(t *testing.T) {
		t.Parallel()
		h := mount(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, 1000)
			newPlugin(t, plugin.Config{Adapter: echo}).ServeHTTP(w, r)
		}), nil)
		r, err := h.send(chunked{bytes.NewReader(sized(10_000, "t"))})
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		r.refused(t, http.StatusRequestEntityTooLarge)
		h.post(t, request{message: "x"}).completed(t)
	})
}

// compress is middleware as it should be: it flushes what it holds.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		next.ServeHTTP(zipping{w, z}, r)
		_ = z.Close()
	})
}

type zipping struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w zipping) Write(p []byte) (int, error) { return w.z.Write(p) }
func (w zipping) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w zipping) FlushError() error {
	return errors.Join(w.z.Flush(), http.NewResponseController(w.ResponseWriter).Flush())
}

func TestOverHTTP2AllEventsArriveAsTheyCome(t *testing.T) {
	t.Parallel()
	s := newStepper()
	_, h := start(t, plugin.Config{Adapter: s.adapter(), Heartbeat: plugin.NoLimit})
	h = h.speak(t, "HTTP/2")
	r := h.post(t, request{}).started(t)
	if r.ProtoMajor != 2 {
		t.Fatalf("the server speaks %s", r.Proto)
	}
	for i := range 20 {
		s.chunks <- numbered("chunk", i)
		if e, err := r.next(); err != nil || e.Content != numbered("chunk", i) {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	close(s.chunks)
	r.completed(t)
	if err := streamHeaders(r.Header); err != nil {
		t.Error(err)
	}
}

func TestOverHTTP10TheStreamEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo})
	body := request{message: "x"}.body()
	r, err := rawPost10(h, body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if text := r.completed(t); text != "x" {
		t.Errorf("the text is %q", text)
	}
	if len(r.TransferEncoding) > 0 || r.ContentLength != -1 {
		t.Errorf("%v, %d", r.TransferEncoding, r.ContentLength)
	}
}

func TestTheManifestAndTheSchemaAreServed(t *testing.T) {
	t.Parallel()
	own, err := manifest.New("muse", "https://muse.example/turn")
	if err != nil {
		t.Fatal(err)
	}
	_, h := start(t, plugin.Config{Manifest: own, Adapter: echo})
	res, body := h.get(t, "/manifest.json")
	if !bytes.Equal(body, own.Bytes()) || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %q", res.Header.Get("Content-Type"), body)
	}
	res, body = h.get(t, wire.SchemaPath)
	var schema struct {
		ID   string         `json:"$id"`
		Defs map[string]any `json:"$defs"`
	}
	if err := json.Unmarshal(body, &schema); err != nil || schema.ID != wire.SchemaID || schema.Defs["ExternalAgentTurnEvent"] == nil {
		t.Errorf("%s %.200q, %v", res.Status, body, err)
	}
	h.post(t, request{message: "x"}).completed(t) // the id is the manifest's
	for _, path := range []string{"/.well-known/backline-probe", "/favicon.ico", "/schemas/", "/"} {
		if s := getStatus(t, h, path); s != http.StatusNotFound {
			t.Errorf("GET %s: %d", path, s)
		}
	}
}

func TestNewNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	other, err := manifest.New("other", "https://muse.example/turn")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		conf plugin.Config
		says []string
	}{
		"nothing":              {plugin.Config{}, []string{"Adapter"}},
		"no id":                {plugin.Config{Adapter: echo}, []string{"ID"}},
		"no adapter":           {plugin.Config{ID: "muse"}, []string{"Adapter"}},
		"a nil adapter":        {plugin.Config{Adapters: map[string]adapters.Adapter{"muse": nil}}, []string{"Adapters", `"muse"`}},
		"the same id twice":    {plugin.Config{ID: "muse", Adapter: echo, Adapters: map[string]adapters.Adapter{"muse": echo}}, []string{`"muse"`}},
		"a short token":        {plugin.Config{ID: "muse", Adapter: echo, Tokens: map[string]plugin.Secret{"a": "short"}}, []string{"Tokens", `"a"`, "16"}},
		"a blank token":        {plugin.Config{ID: "muse", Adapter: echo, Tokens: map[string]plugin.Secret{"a": plugin.Secret(strings.Repeat(" ", 40))}}, []string{"Tokens"}},
		"a token without name": {plugin.Config{ID: "muse", Adapter: echo, Tokens: map[string]plugin.Secret{"": secretToken}}, []string{"Tokens", "name"}},
		"one token, two names": {plugin.Config{ID: "muse", Adapter: echo, Tokens: map[string]plugin.Secret{"a": secretToken, "b": secretToken}}, []string{"Tokens", `"a"`, `"b"`}},
		"a relative path":      {plugin.Config{ID: "muse", Adapter: echo, TurnPath: "turn"}, []string{"TurnPath"}},
		"a pattern":            {plugin.Config{ID: "muse", Adapter: echo, Prefix: "/{x}"}, []string{"Prefix"}},
		"negative turns":       {plugin.Config{ID: "muse", Adapter: echo, MaxTurns: -2}, []string{"MaxTurns"}},
		"odd host gone":        {plugin.Config{ID: "muse", Adapter: echo, HostGone: -2}, []string{"HostGone"}},
		"many things": {plugin.Config{TurnPath: "turn", MaxTurns: -2, Adapter: echo, Tokens: map[string]plugin.Secret{"a": "short"}},
			[]string{"ID", "TurnPath", "MaxTurns", "Tokens"}},
		"a manifest of another id": {plugin.Config{ID: "muse", Adapter: echo, Manifest: other}, []string{"Manifest", `"other"`}},
	} {
		p, err := plugin.New(tt.conf)
		var conf *plugin.ConfigError
		if p != nil || !errors.As(err, &conf) {
			t.Errorf("%s: New = %v, %v (%T)", name, p, err, err)
			continue
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: the error %q does not name %s", name, err, s)
			}
		}
		if strings.Contains(err.Error(), secretToken) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %q", name, err)
		}
	}
}

func TestTurnURL(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, plugin.Config{Adapter: echo, Prefix: "/a/", TurnPath: "/t/"})
	if got := p.TurnURL("127.0.0.1:8787"); got != "http://127.0.0.1:8787/a/t" {
		t.Errorf("TurnURL = %q", got)
	}
}

func TestReplicasAreWarnedAbout(t *testing.T) {
	t.Parallel()
	var log logs
	newPlugin(t, plugin.Config{Adapter: echo, Replicas: 2, Logger: log.logger()})
	if w := log.warnings(t); len(w) != 1 || w[0]["replicas"] != 2.0 {
		t.Errorf("%v", w)
	}
}

func TestTheLogHasOneLinePerTurnAndNoContent(t *testing.T) {
	t.Parallel()
	var log logs
	_, h := start(t, plugin.Config{Logger: log.logger(), Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		_ = w.Usage(adapters.Usage{Tokens: adapters.Count(42)})
		return errors.Join(w.Status("status-content"), w.Text("answer-content"), w.Text("!"))
	})})
	h.post(t, request{turn: "t-1", message: "message-content", user: "user-name", window: []entry{{Role: "user", Content: "window-content"}}}).completed(t)
	eventually(t, "the log line", func() bool { return len(log.turnLines(t, "t-1")) > 0 })
	lines := log.turnLines(t, "t-1")
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	l := lines[0]
	for k, want := range map[string]any{
		"protocol": "lowkey", "plugin": "muse", "session": "s-1", "turn": "t-1", "status": "completed", "cause": "completed",
		"chunks": 2.0, "bytes": 15.0, "history": 1.0, "continuity": "new", "tokens": "42", "level": "INFO",
	} {
		if l[k] != want {
			t.Errorf("%s is %v, want %v", k, l[k], want)
		}
	}
	for _, k := range []string{"duration", "first_output"} {
		if n, ok := l[k].(float64); !ok || n <= 0 {
			t.Errorf("%s is %v", k, l[k])
		}
	}
	for _, content := range []string{"status-content", "answer-content", "message-content", "window-content", "user-name", "/srv/project"} {
		if strings.Contains(log.String(), content) {
			t.Errorf("the log holds %q", content)
		}
	}
	if got := slices.Collect(strings.Lines(log.String())); len(got) != 1 {
		t.Errorf("%d lines for one turn: %s", len(got), log.String())
	}
}

func TestHooksSeeEveryTurn(t *testing.T) {
	t.Parallel()
	var e ends
	_, h := start(t, plugin.Config{Hooks: e.hooks(), Adapter: adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
		_ = w.Usage(adapters.Usage{Tokens: adapters.Count(1), Steps: adapters.Count(1)})
		_ = w.Usage(adapters.Usage{Tokens: adapters.Count(7)})
		return w.Text("four")
	})})
	began := time.Now()
	h.post(t, request{headless: true}).completed(t)
	end := e.wait(t, "t-1")
	if end.Protocol != adapters.Lowkey || end.PluginID != "muse" || end.AgentID != "muse" || end.SessionID != "s-1" || !end.Headless {
		t.Errorf("%+v", end.TurnInfo)
	}
	if end.Chunks != 1 || end.Bytes != 4 || end.Usage.Tokens != adapters.Count(7) || end.Usage.Steps != adapters.Count(1) || !end.UsageReported {
		t.Errorf("%+v", end.Outcome)
	}
	if end.Accepted.Before(began) || end.Total <= 0 || end.FirstOutput <= 0 || end.FirstOutput > end.Total || end.Waited != 0 || end.CorrelationID != "" {
		t.Errorf("%+v", end.Outcome)
	}
}

func TestWhatLowkeyDoesNotHaveIsATypedError(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		_, tool := w.Tool(ctx, adapters.ToolRequest{Ref: "x"})
		_, ask := w.Ask(ctx, adapters.Question{})
		_, arrivals := w.Arrivals()
		for name, err := range map[string]error{"tool": tool, "ask": ask, "arrivals": arrivals, "candidate": w.Candidate(json.RawMessage(`{}`))} {
			var unsupported *adapters.UnsupportedError
			if !errors.Is(err, adapters.ErrNotSupported) || !errors.As(err, &unsupported) || unsupported.Feature != name || unsupported.Protocol != adapters.Lowkey {
				t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})})
	r := h.post(t, request{})
	r.completed(t)
	if len(r.events) != 2 {
		t.Errorf("the stream is %q", r.raw)
	}
}
