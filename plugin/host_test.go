package plugin_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// patience is how long a test waits for what must happen, on a machine that is busy with other things.
const patience = 20 * time.Second

// A host plays the platform: it sends turns to a server over real sockets and reads what comes.
type host struct {
	addr   string
	path   string // of the turns
	client *http.Client
	header http.Header // sent with every turn
}

// hostAt returns a host of the server at addr.
func hostAt(t testing.TB, addr string) *host {
	tr := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}
	t.Cleanup(tr.CloseIdleConnections)
	return &host{
		addr:   addr,
		path:   plugin.DefaultTurnPath,
		client: &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		header: http.Header{},
	}
}

// with returns a host of the same server that sends a header too.
func (h *host) with(key, value string) *host {
	other := *h
	other.header = h.header.Clone()
	other.header.Set(key, value)
	return &other
}

// start runs a plugin as a server of its own until the test ends. What conf leaves out is made fit for
// a test: the id muse, a log that is thrown away, a short drain.
func start(t testing.TB, conf plugin.Config) (*plugin.Plugin, *host) {
	t.Helper()
	p := newPlugin(t, conf)
	ln := listen(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.ServeListener(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ServeListener = %v", err)
		}
	})
	return p, hostAt(t, ln.Addr().String())
}

func newPlugin(t testing.TB, conf plugin.Config) *plugin.Plugin {
	t.Helper()
	if conf.ID == "" && conf.Adapters == nil {
		conf.ID = "muse"
	}
	if conf.Logger == nil {
		conf.Logger = slog.New(slog.DiscardHandler)
	}
	if conf.Drain == 0 {
		conf.Drain = 50 * time.Millisecond
	}
	p, err := plugin.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mount runs h in an http.Server as somebody else would set it up.
func mount(t testing.TB, h http.Handler, change func(*http.Server)) *host {
	t.Helper()
	server := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	if change != nil {
		change(server)
	}
	ln := listen(t)
	ended := make(chan struct{})
	go func() {
		_ = server.Serve(ln)
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return hostAt(t, ln.Addr().String())
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// A request is a turn as a host sends it. What is empty gets a sensible value.
type request struct {
	plugin, session, turn, message, user string
	headless                             bool
	window                               []entry
	limit                                int
}

// An entry is one of a transcript window.
type entry struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	TurnID  string `json:"turnId,omitempty"`
}

func (q request) body() []byte {
	or := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	session := or(q.session, "s-1")
	turn := map[string]any{"turnId": or(q.turn, "t-1"), "message": q.message, "headless": q.headless}
	if q.user != "" {
		turn["userName"] = q.user
	}
	if q.limit == 0 {
		q.limit = max(40, len(q.window))
	}
	body, err := json.Marshal(map[string]any{
		"protocolVersion":  1,
		"pluginId":         or(q.plugin, "muse"),
		"sessionHandle":    map[string]any{"id": session, "projectPath": "/srv/project", "sessionId": session, "agentId": "muse"},
		"turn":             turn,
		"transcriptWindow": append([]entry{}, q.window...),
		"limits":           map[string]any{"transcriptWindowMessages": q.limit},
	})
	if err != nil {
		panic(err)
	}
	return body
}

// script is a message for the scripted adapter.
func script(steps ...string) string { return "script:\n" + strings.Join(steps, "\n") }

// send sends a turn and returns when the response's header is there. It may be called from any
// goroutine.
func (h *host) send(body io.Reader) (*reply, error) {
	return h.do(http.MethodPost, h.path, body)
}

func (h *host) do(method, path string, body io.Reader) (*reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	q, err := http.NewRequestWithContext(ctx, method, "http://"+h.addr+path, body)
	if err != nil {
		cancel()
		return nil, err
	}
	if method == http.MethodPost {
		q.Header.Set("Content-Type", "application/json")
	}
	for k, v := range h.header {
		if q.Header[k] = v; len(v) == 1 && v[0] == "" {
			delete(q.Header, k)
		}
	}
	res, err := h.client.Do(q) //nolint:bodyclose // the reply closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return newReply(res, cancel), nil
}

func newReply(res *http.Response, cancel context.CancelFunc) *reply {
	return &reply{Response: res, lines: bufio.NewReaderSize(res.Body, 64<<10), cancel: cancel}
}

// post sends a turn, from the test's goroutine.
func (h *host) post(t testing.TB, q request) *reply {
	t.Helper()
	return h.postBody(t, q.body())
}

func (h *host) postBody(t testing.TB, body []byte) *reply {
	t.Helper()
	r, err := h.send(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// run sends a turn and reads it to its end, from any goroutine.
func (h *host) run(q request) (*reply, error) {
	r, err := h.send(bytes.NewReader(q.body()))
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r, r.read()
}

// A reply is the response to a turn: its events as they are read, held to the grammar.
type reply struct {
	*http.Response
	lines   *bufio.Reader
	cancel  context.CancelFunc
	grammar wire.Grammar
	events  []wire.Event
	raw     []byte
}

// close ends the response: the host is gone, if it is not at its end.
func (r *reply) close() {
	r.cancel()
	_ = r.Body.Close()
}

// slowly makes the reply be read at a pace: so many bytes, each time after a pause.
func (r *reply) slowly(n int, pause time.Duration) {
	r.lines = bufio.NewReaderSize(&slowReader{r.Body, pause}, n)
}

type slowReader struct {
	io.Reader
	pause time.Duration
}

func (s *slowReader) Read(p []byte) (int, error) {
	time.Sleep(s.pause)
	return s.Reader.Read(p)
}

// next reads the next event; the error is io.EOF at the end of the response.
func (r *reply) next() (wire.Event, error) {
	line, err := r.lines.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = fmt.Errorf("the response ends in the middle of the line %q", line)
		}
		return wire.Event{}, err
	}
	r.raw = append(r.raw, line...)
	e, err := wire.ParseEvent(line)
	if err != nil {
		return e, fmt.Errorf("line %q: %w", line, err)
	}
	if r.StatusCode == http.StatusOK {
		if v := r.grammar.Next(e); v != nil {
			return e, fmt.Errorf("line %q: %v", line, v)
		}
	}
	r.events = append(r.events, e)
	return e, nil
}

// read reads to the end of the response.
func (r *reply) read() error {
	for {
		if _, err := r.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	if r.StatusCode == http.StatusOK {
		if v := r.grammar.End(); v != nil {
			return fmt.Errorf("the stream %q: %v", r.raw, v)
		}
	}
	return nil
}

// started reads the first event.
func (r *reply) started(t testing.TB) *reply {
	t.Helper()
	if e, err := r.next(); err != nil || e.Status != wire.StatusStarted {
		t.Fatalf("the first event is %+v, %v, want started", e, err)
	}
	return r
}

// all reads to the end of the response, from the test's goroutine.
func (r *reply) all(t testing.TB) *reply {
	t.Helper()
	if err := r.read(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reply) text() string {
	var b strings.Builder
	for _, e := range r.events {
		if e.Type == wire.EventText {
			b.WriteString(e.Content)
		}
	}
	return b.String()
}

func (r *reply) last() wire.Event {
	if len(r.events) == 0 {
		return wire.Event{}
	}
	return r.events[len(r.events)-1]
}

// count counts the status events of a kind.
func (r *reply) count(s wire.Status) (n int) {
	for _, e := range r.events {
		if e.Status == s {
			n++
		}
	}
	return n
}

// completed reads to the end, which must be a good one, and returns the text.
func (r *reply) completed(t testing.TB) string {
	t.Helper()
	r.all(t)
	if r.StatusCode != http.StatusOK || r.last().Status != wire.StatusComplete {
		t.Fatalf("%s, and the turn ends with %+v, want 200 and complete", r.Status, r.last())
	}
	return r.text()
}

// failed reads to the end, which must be an error event, and returns its content.
func (r *reply) failed(t testing.TB) string {
	t.Helper()
	r.all(t)
	if r.StatusCode != http.StatusOK || r.last().Type != wire.EventError {
		t.Fatalf("%s, and the turn ends with %+v, want 200 and an error", r.Status, r.last())
	}
	return r.last().Content
}

// refused reads a refusal, which must be one error event in the form of a stream, and returns its
// content.
func (r *reply) refused(t testing.TB, status int) string {
	t.Helper()
	content, err := r.refusal(status)
	if err != nil {
		t.Error(err)
	}
	return content
}

func (r *reply) refusal(status int) (string, error) {
	if err := r.read(); err != nil {
		return "", err
	}
	if r.StatusCode != status {
		return "", fmt.Errorf("%s %q, want %d", r.Status, r.raw, status)
	}
	if len(r.events) != 1 || r.events[0].Type != wire.EventError || r.events[0].Content == "" {
		return "", fmt.Errorf("%s with %q, want one error event", r.Status, r.raw)
	}
	if err := streamHeaders(r.Header); err != nil {
		return "", err
	}
	retry := r.Header.Get("Retry-After")
	if (status == http.StatusServiceUnavailable) != (retry != "") {
		return "", fmt.Errorf("%s with Retry-After %q", r.Status, retry)
	}
	return r.events[0].Content, nil
}

// streamHeaders checks what streams and refusals have in common.
func streamHeaders(h http.Header) error {
	for k, want := range map[string]string{
		"Content-Type":      "application/x-ndjson; charset=utf-8",
		"Cache-Control":     "no-store",
		"X-Accel-Buffering": "no",
		"Content-Encoding":  "",
	} {
		if got := h.Get(k); got != want {
			return fmt.Errorf("%s is %q, want %q", k, got, want)
		}
	}
	return nil
}

// eventually waits until something that must happen has happened.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen in %v", what, patience)
		}
	}
}

// receive waits for a value, or for a channel to be closed.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not happen in %v", what, patience)
		panic("not reached")
	}
}

// quiet waits until no turn runs or waits and no session is held.
func quiet(t testing.TB, p *plugin.Plugin) {
	t.Helper()
	eventually(t, "the end of all turns", func() bool {
		s := p.Stats()
		return s.Turns.Active == 0 && s.Turns.Abandoned == 0 && s.Sessions.Held == 0 && s.Sessions.Waiting == 0
	})
}

// An end is what the hook was told of one turn's end.
type end struct {
	plugin.TurnInfo
	plugin.Outcome
	ctx context.Context
}

// ends records the ends of turns.
type ends struct {
	mu   sync.Mutex
	list []end
}

func (e *ends) hooks() []plugin.Hooks {
	return []plugin.Hooks{{TurnEnd: func(ctx context.Context, i plugin.TurnInfo, o *plugin.Outcome) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.list = append(e.list, end{i, *o, ctx})
	}}}
}

func (e *ends) of(turn string) (list []end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range e.list {
		if o.TurnID == turn {
			list = append(list, o)
		}
	}
	return list
}

// wait waits for the end of a turn.
func (e *ends) wait(t testing.TB, turn string) end {
	t.Helper()
	eventually(t, "the end of "+turn, func() bool { return len(e.of(turn)) > 0 })
	return e.of(turn)[0]
}

// logs records a log at every level.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// lines returns the log's lines that ok accepts.
func (l *logs) lines(t testing.TB, ok func(line map[string]any) bool) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if ok(m) {
			list = append(list, m)
		}
	}
	return list
}

func (l *logs) warnings(t testing.TB) []map[string]any {
	t.Helper()
	return l.lines(t, func(m map[string]any) bool { return m["level"] == "WARN" && m["msg"] != "turn" })
}

// turnLines returns the log's lines on one turn.
func (l *logs) turnLines(t testing.TB, turn string) []map[string]any {
	t.Helper()
	return l.lines(t, func(m map[string]any) bool { return m["msg"] == "turn" && m["turn"] == turn })
}

// A gate is a channel that opens at the latest with the end of the test.
type gate struct {
	C    chan struct{}
	open func()
}

func newGate(t testing.TB) *gate {
	g := &gate{C: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.C) })
	t.Cleanup(g.open)
	return g
}

// called counts an adapter's calls by turn id.
type called struct {
	mu    sync.Mutex
	turns []string
}

// by returns an adapter that counts and then does what a does.
func (c *called) by(a adapters.Adapter) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		c.mu.Lock()
		c.turns = append(c.turns, strings.Clone(turn.ID))
		c.mu.Unlock()
		return a.Run(ctx, turn, w)
	})
}

func (c *called) times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.turns)
}

func (c *called) order() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.turns)
}

// echo answers with the message.
var echo = adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error { return w.Text(turn.Message) })

// block waits for the end of its turn and says why it came.
var block = adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
	<-ctx.Done()
	return context.Cause(ctx)
})

func numbered(name string, n int) string { return fmt.Sprintf("%s-%d", name, n) }
