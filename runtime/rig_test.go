package runtime_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/session"
)

// inBubble runs a test with time of its own: it stands while anything runs, and jumps ahead when all
// wait for it.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// A lineSink is a protocol whose lines can be read: one for each call.
type lineSink struct{}

func (lineSink) Started(dst []byte) []byte { return append(dst, "started\n"...) }

func (lineSink) Text(dst []byte, s string) []byte {
	return append(strconv.AppendQuote(append(dst, "text "...), s), '\n')
}

func (lineSink) Status(dst []byte, s string) []byte {
	return append(strconv.AppendQuote(append(dst, "status "...), s), '\n')
}

func (lineSink) Heartbeat(dst []byte) []byte { return append(dst, "beat\n"...) }

func (lineSink) End(dst []byte, o *runtime.Outcome) []byte {
	dst = append(append(append(append(dst, "end "...), o.Status...), ' '), o.Cause...)
	return append(dst, '\n')
}

// A rig is an engine with all that it told its hooks and its log. When its test ends, each turn must
// have ended once and nothing may be held any more.
type rig struct {
	*runtime.Engine
	t         *testing.T
	sessions  *session.Cache
	log       logs
	began     time.Time
	realTime  bool // there is no bubble
	discarded int  // turns that were taken back

	mu    sync.Mutex
	ends  []ended
	begun map[string]int
}

// An ended turn is what a TurnEnd hook was told, and when.
type ended struct {
	runtime.TurnInfo
	runtime.Outcome
	at  time.Duration
	ctx context.Context
}

func newRig(t *testing.T, conf runtime.Config) *rig {
	t.Helper()
	g := &rig{t: t, began: time.Now(), begun: map[string]int{}}
	if conf.Sessions == nil {
		c, err := session.New(session.Config{})
		if err != nil {
			t.Fatal(err)
		}
		conf.Sessions = c
	}
	g.sessions = conf.Sessions
	if conf.Logger == nil {
		conf.Logger = slog.New(slog.NewJSONHandler(&g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	conf.Hooks = append([]runtime.Hooks{{
		TurnStart: func(ctx context.Context, i runtime.TurnInfo) context.Context {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.begun[i.TurnID]++
			return nil
		},
		TurnEnd: func(ctx context.Context, i runtime.TurnInfo, o *runtime.Outcome) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.ends = append(g.ends, ended{i, *o, g.now(), ctx})
		},
	}}, conf.Hooks...)
	e, err := runtime.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	g.Engine = e
	t.Cleanup(g.check)
	return g
}

// now is the time since the rig was made.
func (g *rig) now() time.Duration { return time.Since(g.began) }

// until waits for a time since the rig was made.
func (g *rig) until(d time.Duration) {
	time.Sleep(d - g.now())
	synctest.Wait()
}

// check sees that nothing is left.
func (g *rig) check() {
	if g.t.Failed() { // so that what hangs does not hide it
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Drain(ctx)
		return
	}
	g.WaitAdapters()
	if !g.realTime {
		synctest.Wait()
	}
	s := g.Stats()
	if s.Active != 0 || s.Abandoned != 0 {
		g.t.Errorf("at the end: %+v", s)
	}
	if c := g.sessions.Stats(); c.Held != 0 || c.Waiting != 0 {
		g.t.Errorf("at the end, sessions: %+v", c)
	}
	lines := 0
	for _, l := range g.log.records(g.t) {
		if l["msg"] == "turn" {
			lines++
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if want := int(s.Total) - g.discarded; len(g.ends) != want || lines != want {
		g.t.Errorf("%d turns, %d of them discarded, %d ends, %d log lines", s.Total, g.discarded, len(g.ends), lines)
	}
}

// end returns the one end of a turn.
func (g *rig) end(id string) ended {
	g.t.Helper()
	if !g.realTime {
		synctest.Wait() // the last line does not wait for hooks
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []ended
	for _, e := range g.ends {
		if e.TurnID == id {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		g.t.Fatalf("turn %s has %d ends, want 1 (at %v)", id, len(found), g.now())
	}
	return found[0]
}

// running tells whether a turn has not ended.
func (g *rig) running(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.ends {
		if e.TurnID == id {
			return false
		}
	}
	return true
}

// wantEnd checks how and when a turn ended.
func (g *rig) wantEnd(id string, status runtime.Status, cause adapters.Cause, at time.Duration) ended {
	g.t.Helper()
	e := g.end(id)
	if e.Status != status || e.Cause != cause || e.at != at {
		g.t.Errorf("turn %s ended %s, %q, at %v, want %s, %q, at %v", id, e.Status, string(e.Cause), e.at, status, string(cause), at)
	}
	if (e.CorrelationID == "") != (e.Status == runtime.Completed) {
		g.t.Errorf("turn %s ended %s with the correlation id %q", id, e.Status, e.CorrelationID)
	}
	return e
}

func key(handle string) session.Key { return session.Key{Plugin: "muse", Handle: handle} }

// spec is a turn of session "s".
func spec(id string, a adapters.Adapter) *runtime.Spec {
	return &runtime.Spec{
		Turn: adapters.Turn{
			Protocol: adapters.Lowkey, ID: id, PluginID: "muse", AgentID: "muse", Message: "message of " + id,
		},
		Adapter:     a,
		Sink:        lineSink{},
		Session:     key("s"),
		Fingerprint: 1,
	}
}

// in puts a turn into another session.
func in(handle string, s *runtime.Spec) *runtime.Spec {
	s.Session = key(handle)
	return s
}

// A host is a connection that a turn is served to, on a goroutine of its own.
type host struct {
	*conn
	runtime.Stream
	leave    context.CancelFunc
	done     chan struct{} // closed when Serve has returned
	returned bool          // and not by runtime.Goexit
	err      error
}

// send starts a turn, or finds it, and serves it.
func (g *rig) send(s *runtime.Spec) *host {
	g.t.Helper()
	return g.sendTo(newConn(g.t), s)
}

func (g *rig) sendTo(c *conn, s *runtime.Spec) *host {
	g.t.Helper()
	stream, err := g.Start(g.t.Context(), s)
	if err != nil {
		g.t.Fatalf("Start(%s) = %v", s.Turn.ID, err)
	}
	return g.serve(c, stream)
}

func (g *rig) serve(c *conn, stream runtime.Stream) *host {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	h := &host{conn: c, Stream: stream, leave: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		defer cancel()
		defer c.end()
		h.err = stream.Serve(ctx, c)
		h.returned = true
	}()
	return h
}

// wait waits for Serve to return and returns what it returned.
func (h *host) wait() error {
	<-h.done
	return h.err
}

// A conn is a connection to a host. It takes all that is written, unless it is held.
type conn struct {
	t *testing.T

	mu       sync.Mutex
	data     []byte
	flushed  int
	flushes  []flush
	room     int           // how many bytes it takes in all; negative means any number
	change   chan struct{} // closed when room or deadline changes
	deadline time.Time
	fail     error // of every write
	using    bool  // a Write or Flush is under way
	over     bool  // Serve has returned
	hungUp   []time.Time
}

// A flush is when how much had been written.
type flush struct {
	at   time.Time
	size int
}

func newConn(t *testing.T) *conn { return &conn{t: t, room: -1, change: make(chan struct{})} }

func (c *conn) use(what string) {
	if c.over {
		c.t.Errorf("%s after Serve has returned", what)
	}
}

func (c *conn) changed() {
	close(c.change)
	c.change = make(chan struct{})
}

func (c *conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use("Write")
	if c.using {
		c.t.Error("Write during another call")
	}
	c.using = true
	defer func() { c.using = false }()
	for {
		if c.fail != nil {
			return n, c.fail
		}
		if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
			return n, fmt.Errorf("write: %w", os.ErrDeadlineExceeded)
		}
		k := len(p)
		if c.room >= 0 {
			k = min(k, max(c.room-len(c.data), 0))
		}
		c.data = append(c.data, p[:k]...)
		n, p = n+k, p[k:]
		if len(p) == 0 {
			return n, nil
		}
		change := c.change
		var passed <-chan time.Time
		if !c.deadline.IsZero() {
			timer := time.NewTimer(time.Until(c.deadline))
			defer timer.Stop()
			passed = timer.C
		}
		c.mu.Unlock()
		select {
		case <-change:
		case <-passed:
		}
		c.mu.Lock()
	}
}

func (c *conn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use("Flush")
	if c.using {
		c.t.Error("Flush during another call")
	}
	if c.fail != nil {
		return c.fail
	}
	c.flushed = len(c.data)
	c.flushes = append(c.flushes, flush{time.Now(), c.flushed})
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use("SetWriteDeadline")
	c.deadline = t
	c.changed()
	return nil
}

func (c *conn) HangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use("HangUp")
	c.hungUp = append(c.hungUp, time.Now())
	c.flushed = len(c.data)
}

// hold lets no more than n bytes more through.
func (c *conn) hold(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = len(c.data) + n
	c.changed()
}

// release lets everything through.
func (c *conn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = -1
	c.changed()
}

// breakWith has every write fail from now on.
func (c *conn) breakWith(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
	c.changed()
}

// end is the end of the response: what is written has left.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.flushed = len(c.data)
}

// seen is what the host has got.
func (c *conn) seen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.data[:c.flushed])
}

// lines are those that the host has got, without their ends.
func (c *conn) lines() []string {
	s := c.seen()
	if s == "" {
		return nil
	}
	if !strings.HasSuffix(s, "\n") {
		c.t.Errorf("the host has got half a line: %q", s)
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// last is the last line that the host has got.
func (c *conn) last() string {
	l := c.lines()
	if len(l) == 0 {
		return ""
	}
	return l[len(l)-1]
}

// count counts the host's lines that begin with prefix.
func (c *conn) count(prefix string) (n int) {
	for _, l := range c.lines() {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

// wantLines checks what the host has got.
func (c *conn) wantLines(want ...string) {
	c.t.Helper()
	if got := c.lines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		c.t.Errorf("the host has got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// logs collects what a logger writes.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) records(t *testing.T) (all []map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(l.String()))
	for d.More() {
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// turn returns the log line of a turn.
func (l *logs) turn(t *testing.T, id string) map[string]any {
	t.Helper()
	var found map[string]any
	for _, m := range l.records(t) {
		if m["msg"] == "turn" && m["turn"] == id {
			if found != nil {
				t.Errorf("two log lines of turn %s", id)
			}
			found = m
		}
	}
	if found == nil {
		t.Fatalf("no log line of turn %s:\n%s", id, l)
	}
	return found
}

// Adapters that many tests use.

// block waits until it is told to end, and says why it did.
var block = adapters.Func(func(ctx context.Context, _ *adapters.Turn, _ adapters.Writer) error {
	<-ctx.Done()
	return context.Cause(ctx)
})

// say writes its chunks and ends.
func say(chunks ...string) adapters.Func {
	return func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for _, c := range chunks {
			if err := w.Text(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// sayThenBlock writes its chunks and waits until it is told to end.
func sayThenBlock(chunks ...string) adapters.Func {
	return func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if err := say(chunks...)(ctx, turn, w); err != nil {
			return err
		}
		return block(ctx, turn, w)
	}
}

// sleep waits for d, and longer than its turn if it must.
func sleep(d time.Duration) adapters.Func {
	return func(context.Context, *adapters.Turn, adapters.Writer) error {
		time.Sleep(d)
		return nil
	}
}

// never must not be called.
func never(t *testing.T) adapters.Func {
	return func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
		t.Errorf("the adapter of turn %s was called", turn.ID)
		return nil
	}
}

// isOver checks the error of a Writer after the end.
func isOver(t *testing.T, what string, err error, cause adapters.Cause) {
	t.Helper()
	if !errors.Is(err, adapters.ErrTurnOver) {
		t.Errorf("%s = %v, want ErrTurnOver", what, err)
	}
	if cause != "" && !errors.Is(err, cause) {
		t.Errorf("%s = %v, want an error that wraps the cause %s", what, err, cause)
	}
}

// alias makes a string that shares b's memory, as a protocol's decoder may.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
