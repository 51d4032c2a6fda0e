package plugin_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/plugin"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// serveChild in the environment makes this test binary a server, for what only a process can show:
// signals and exit codes.
const serveChild = "BACKLINE_TEST_SERVE"

// childMain is the server: exit code 0 after a drain, 3 after a second signal, 1 otherwise.
func childMain() int {
	if kind := os.Getenv(serveChild); kind != "1" {
		return pollingChild(kind)
	}
	err := plugin.Serve(context.Background(), plugin.Config{
		Keiki:     &plugin.Keiki{Secrets: plugin.KeikiSecrets{Any: []plugin.Secret{keikiSecret}}},
		ID:        "muse",
		Adapter:   scripted.New(scripted.Config{}),
		Listen:    "127.0.0.1:0",
		Drain:     childDrain,
		Heartbeat: 100 * time.Millisecond,
		OnListen:  func(addr net.Addr) { fmt.Println(addr) },
	})
	switch {
	case errors.Is(err, plugin.ErrKilled):
		return 3
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const (
	childDrain = 2 * time.Second
	grace      = 2 * time.Second
)

// A child is a server in a process of its own.
type child struct {
	*host
	cmd  *exec.Cmd
	exit chan int
}

func startChild(t *testing.T) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveChild+"=1", "GORACE=atexit_sleep_ms=0") // the race detector waits a second
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	exit := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		exit <- cmd.ProcessState.ExitCode()
		close(exit)
		if t.Failed() {
			t.Logf("the server's log:\n%s", log.Bytes())
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range exit {
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return &child{hostAt(t, strings.TrimSpace(addr)), cmd, exit}
}

// last is how a stream ended, and when.
type last struct {
	event wire.Event
	err   error
	at    time.Time
	beats int // working events after the signal
}

// Fault K3: shutdown with streams open.
func TestFaultK3Drain(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c := startChild(t)
			sent := make(chan struct{})
			follow := func(name, session, message string) chan last {
				t.Helper()
				r := c.post(t, request{session: session, turn: name, message: message}).started(t)
				if !strings.Contains(name, "waits") { // until the adapter is at it
					for e := r.last(); e.Type != wire.EventText; {
						var err error
						if e, err = r.next(); err != nil {
							t.Fatal(err)
						}
					}
				}
				done := make(chan last, 1)
				go func() {
					err := r.read()
					l := last{r.last(), err, time.Now(), 0}
					<-sent
					l.beats = r.count(wire.StatusWorking)
					done <- l
				}()
				return done
			}
			long := follow("long", "s-long", script(`{"text":"x"}`, `{"sleep":"60s"}`))
			stall := follow("stall", "s-stall", script(`{"text":"x"}`, `{"stall":"60s"}`))
			waits := follow("waits", "s-long", "never")
			short := follow("short", "s-short", script(`{"text":"x"}`, `{"sleep":"1s"}`, `{"text":"y"}`))

			signalled := time.Now()
			if err := c.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			close(sent)
			eventually(t, "the drain", func() bool { return getStatus(t, c.host, "/readyz") == http.StatusServiceUnavailable })
			why := c.post(t, request{turn: "new"}).refused(t, http.StatusServiceUnavailable)
			if !strings.Contains(why, "shutting down") {
				t.Errorf("a new turn is refused with %q", why)
			}
			if s := getStatus(t, c.host, "/healthz"); s != http.StatusOK {
				t.Errorf("/healthz: %d while draining", s)
			}

			if l := receive(t, "the short turn", short); l.err != nil || l.event.Status != wire.StatusComplete {
				t.Errorf("the short turn ended with %+v, %v", l.event, l.err)
			}
			for name, done := range map[string]chan last{"long": long, "waiting": waits, "stalled": stall} {
				l := receive(t, "the "+name+" turn", done)
				if l.err != nil || l.event.Status != wire.StatusCancelled {
					t.Errorf("the %s turn ended with %+v, %v, want cancelled", name, l.event, l.err)
				}
				if l.beats < 5 {
					t.Errorf("the %s turn had %d heartbeats in two seconds, want twenty", name, l.beats)
				}
				from := childDrain
				if name == "stalled" {
					from += grace
				}
				if after := l.at.Sub(signalled); after < from-100*time.Millisecond || after > from+time.Second {
					t.Errorf("the %s turn ended %v after the signal, want %v", name, after, from)
				}
			}
			if code := receive(t, "the exit", c.exit); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if after := time.Since(signalled); after > childDrain+grace+time.Second {
				t.Errorf("the exit came %v after the signal", after)
			}
		})
	}
}

func TestFaultK3ASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := startChild(t)
	r := c.post(t, request{message: script(`{"text":"x"}`, `{"stall":"60s"}`)}).started(t)
	signal := func() {
		t.Helper()
		if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	signal()
	eventually(t, "the drain", func() bool { return getStatus(t, c.host, "/readyz") == http.StatusServiceUnavailable })
	time.Sleep(150 * time.Millisecond) // signals that come closer together are taken for one
	signal()
	began := time.Now()
	if code := receive(t, "the exit", c.exit); code != 3 {
		t.Errorf("exit code %d, want that of ErrKilled", code)
	}
	if after := time.Since(began); after > time.Second {
		t.Errorf("the exit came %v after the second signal", after)
	}
	if err := r.read(); err == nil {
		t.Error("the stream has a good end")
	}
}

// Some wrappers signal a process and then its group: that is one signal.
func TestTwoSignalsAtOnceDrain(t *testing.T) {
	t.Parallel()
	c := startChild(t)
	r := c.post(t, request{message: script(`{"text":"x"}`, `{"sleep":"300ms"}`)}).started(t)
	for range 2 {
		if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.read(); err != nil || r.last().Status != wire.StatusComplete {
		t.Errorf("the running turn ended with %+v, %v, want complete", r.last(), err)
	}
	if code := receive(t, "the exit", c.exit); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestAServerThatHasNothingToDoEndsAtOnce(t *testing.T) {
	t.Parallel()
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := startChild(t)
			c.speak(t, version).post(t, request{message: "x"}).completed(t) // its connection stays open
			if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if code := receive(t, "the exit", c.exit); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if after := time.Since(began); after > childDrain*3/4 {
				t.Errorf("the exit came after %v", after)
			} else {
				t.Log(after)
			}
		})
	}
}

// Drain by itself, for a plugin inside another server.
func TestDrainWaitsForTurnsAndSaysWhyItCutThemShort(t *testing.T) {
	t.Parallel()
	release := newGate(t)
	var e ends
	began := make(chan struct{}, 2)
	p := newPlugin(t, plugin.Config{Hooks: e.hooks(), Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		began <- struct{}{}
		if turn.ID == "good" {
			<-release.C
			return w.Text("done")
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})})
	h := mount(t, p, nil)
	good := h.post(t, request{session: "a", turn: "good"})
	cut := h.post(t, request{session: "b", turn: "cut"})
	<-began
	<-began
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error, 1)
	go func() { first <- p.Drain(ctx) }()
	eventually(t, "the drain", func() bool { return getStatus(t, h, "/readyz") == http.StatusServiceUnavailable })
	release.open()
	if text := good.completed(t); text != "done" {
		t.Errorf("the text is %q", text)
	}
	cancel(why)
	if err := receive(t, "the end of Drain", first); !errors.Is(err, why) {
		t.Errorf("Drain = %v, want why it was ended", err)
	}
	if cut.all(t).last().Status != wire.StatusCancelled {
		t.Errorf("what is left ends with %+v", cut.last())
	}
	if end := e.wait(t, "cut"); end.Cause != adapters.CauseDrain || end.Status != "cancelled" {
		t.Errorf("the hook is told %s, %s", end.Cause, end.Status)
	}
	// Again, with nothing left to do, whatever the context.
	if err := p.Drain(ctx); err != nil {
		t.Errorf("Drain of a plugin without turns = %v", err)
	}
	h.post(t, request{turn: "late"}).refused(t, http.StatusServiceUnavailable)
}

func TestServeListenerFailsWhenItsListenerDoes(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, plugin.Config{Adapter: echo})
	ln := listen(t)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.ServeListener(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ServeListener on a closed listener = %v", err)
	}
}

func TestServeRefusesWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	taken := listen(t)
	t.Cleanup(func() { _ = taken.Close() })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var conf *plugin.ConfigError
	for _, tt := range []struct {
		name   string
		conf   plugin.Config
		config bool   // a mistake in the configuration
		says   string // empty: it serves
	}{
		{"any address, no token", plugin.Config{Listen: "0.0.0.0:0"}, true, "token"},
		{"no host, no token", plugin.Config{Listen: ":0"}, true, "token"},
		{"a name, no token", plugin.Config{Listen: "example.com:80"}, true, "token"},
		{"any address of IPv6, no token", plugin.Config{Listen: "[::]:0"}, true, "token"},
		{"any address, a token", plugin.Config{Listen: "0.0.0.0:0", Tokens: map[string]plugin.Secret{"a": secretToken}}, false, ""},
		{"any address, on purpose", plugin.Config{Listen: "0.0.0.0:0", Insecure: true}, false, ""},
		{"loopback", plugin.Config{Listen: "127.0.0.1:0"}, false, ""},
		{"localhost", plugin.Config{Listen: "localhost:0"}, false, ""},
		{"another loopback", plugin.Config{Listen: "127.9.9.9:0"}, false, ""},
		{"in use", plugin.Config{Listen: taken.Addr().String()}, false, "in use"},
		{"no address", plugin.Config{Listen: "127.0.0.1"}, true, "token"},
	} {
		tt.conf.ID, tt.conf.Adapter = "muse", echo
		ctx := t.Context()
		if tt.says == "" {
			ctx, cancel = context.WithCancel(ctx)
			tt.conf.OnListen = func(net.Addr) { cancel() }
		}
		err := plugin.Serve(ctx, tt.conf)
		if (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) || errors.As(err, &conf) != tt.config {
			t.Errorf("%s: Serve = %v (%T), want one that says %q", tt.name, err, err, tt.says)
		}
	}
	if err := plugin.Serve(ended, plugin.Config{}); !errors.As(err, &conf) {
		t.Errorf("Serve of nothing = %v", err)
	}
}
