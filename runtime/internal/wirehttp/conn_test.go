package wirehttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ndjson"
)

// A slowWriter is a ResponseWriter that takes its time for each write, and keeps its deadlines.
type slowWriter struct {
	header   http.Header
	each     time.Duration
	mu       sync.Mutex
	deadline time.Time
	sets     int   // of the deadline
	sizes    []int // of the writes
	flushes  int
	flushErr error
}

func (w *slowWriter) Header() http.Header { return w.header }
func (w *slowWriter) WriteHeader(int)     {}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.each)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.deadline.IsZero() && !time.Now().Before(w.deadline) {
		return 0, errDeadline
	}
	w.sizes = append(w.sizes, len(p))
	return len(p), nil
}

var errDeadline = errors.New("the deadline has passed")

func (w *slowWriter) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	w.sets++
	return nil
}

func (w *slowWriter) FlushError() error {
	w.flushes++
	return w.flushErr
}

func (w *slowWriter) written() (n int) {
	for _, s := range w.sizes {
		n += s
	}
	return n
}

func streams() *wirehttp.Streams { return &wirehttp.Streams{Logger: slog.New(slog.DiscardHandler)} }

func requestOf(major, minor int) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.ProtoMajor, r.ProtoMinor = major, minor
	return r
}

const size = 10*wirehttp.WritePiece + 5

// A long line is written in pieces, each with its own time: a reader that is slow gets it all, one that takes
// nothing does not hold anybody longer than the limit.
func TestALongWriteHasADeadlineForEachPiece(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit, each time.Duration // limit 0: the default
		written     int
		took        time.Duration
	}{
		"slow":              {time.Second, 900 * time.Millisecond, size, 11 * 900 * time.Millisecond},
		"stalled":           {time.Second, 2 * time.Second, 0, 2 * time.Second},
		"slow, default":     {0, 29 * time.Second, size, 11 * 29 * time.Second},
		"stalled, default":  {0, 31 * time.Second, 0, 31 * time.Second},
		"very slow, no end": {-1, time.Hour, size, 11 * time.Hour},
	} {
		for _, major := range []int{1, 2} {
			t.Run(fmt.Sprint(name, major), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := &slowWriter{each: tc.each}
					s := streams()
					s.WriteTimeout = tc.limit
					c := s.Open(w, requestOf(major, 1))
					defer c.Close()
					began := time.Now()
					n, err := c.Write(make([]byte, size))
					if n != tc.written || (err == nil) != (n == size) || w.written() != n {
						t.Errorf("Write = %d, %v, want %d", n, err, tc.written)
					}
					if took := time.Since(began); took != tc.took {
						t.Errorf("it took %v, want %v", took, tc.took)
					}
					if err != nil && !errors.Is(err, errDeadline) {
						t.Error(err)
					}
					if c.Flush() != nil || major == 2 && !w.deadline.IsZero() {
						t.Errorf("after a flush the deadline of a shared connection is %v", w.deadline)
					}
				})
			})
		}
	}
}

// What the writer of a log sets counts from then on, and a time that has passed cuts a write short, now
// and later.
func TestSetWriteDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &slowWriter{each: 2 * time.Second}
		c := streams().Open(w, requestOf(1, 1))
		defer c.Close()
		if err := c.SetWriteDeadline(time.Now().Add(3 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Write(make([]byte, size)); n != size || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
		sets := w.sets
		if sets < 11 || sets > 12 {
			t.Errorf("the deadline was set %d times for 11 pieces", sets)
		}
		// One that was set a moment ago is as good as new.
		w.each = 0
		if n, err := c.Write(make([]byte, size)); n != size || err != nil || w.sets > sets+1 {
			t.Errorf("Write = %d, %v, the deadline was set %d times more", n, err, w.sets-sets)
		}
		// None, whatever was set before.
		if err := c.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		w.each = time.Hour
		if n, err := c.Write(make([]byte, size)); n != size || err != nil {
			t.Errorf("without a limit: Write = %d, %v", n, err)
		}
		// Somebody else cuts a write short.
		if err := c.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		w.each = 20 * time.Second
		go func() {
			time.Sleep(50 * time.Second)
			_ = c.SetWriteDeadline(time.Unix(1, 0))
		}()
		if n, err := c.Write(make([]byte, size)); !errors.Is(err, errDeadline) || n != 2*wirehttp.WritePiece {
			t.Errorf("cut short: Write = %d, %v", n, err)
		}
		time.Sleep(time.Hour)
		if n, err := c.Write([]byte("x")); err == nil {
			t.Errorf("after it was cut short: Write = %d, nil", n)
		}
	})
}

// Where there are no deadlines nobody asks for them again and again.
func TestWithoutDeadlines(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	c := streams().Open(w, requestOf(1, 1))
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SetWriteDeadline = %v", err)
	}
	if n, err := c.Write(make([]byte, size)); n != size || err != nil || w.Body.Len() != size {
		t.Errorf("Write = %d, %v", n, err)
	}
}

func TestHeaderFirst(t *testing.T) {
	t.Parallel()
	w := &slowWriter{}
	c := streams().Open(w, requestOf(1, 1))
	defer c.Close()
	c.HeaderFirst()
	if c.Began() || w.flushes != 0 {
		t.Error("something was written already")
	}
	for range 2 {
		if _, err := c.Write([]byte("x")); err != nil || w.flushes != 1 || !c.Began() {
			t.Errorf("%v, %d flushes", err, w.flushes)
		}
	}
}

// A panic of foreign code stays in the connection, whatever is asked of it.
func TestAWriterThatPanics(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(c *wirehttp.Conn) error{
		"Write":            func(c *wirehttp.Conn) error { _, err := c.Write([]byte("x")); return err },
		"Flush":            func(c *wirehttp.Conn) error { return c.Flush() },
		"SetWriteDeadline": func(c *wirehttp.Conn) error { return c.SetWriteDeadline(time.Now().Add(time.Second)) },
		"cutting short":    func(c *wirehttp.Conn) error { return c.SetWriteDeadline(time.Unix(1, 0)) },
		"HangUp": func(c *wirehttp.Conn) error {
			c.Lent().(ndjson.HangUper).HangUp()
			return errors.New("it has none to tell")
		},
	} {
		var log lines
		s := &wirehttp.Streams{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		c := s.Open(panicking{}, requestOf(1, 1))
		if err := call(c); err == nil || !c.Crashed() {
			t.Errorf("%s: %v, Crashed = %t", name, err, c.Crashed())
		}
		if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "panicking") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: the log has %q", name, got)
		}
		c.Close()
		s.Wait(t.Context())
	}
}

type panicking struct{}

func (panicking) Header() http.Header              { return nil }
func (panicking) WriteHeader(int)                  { panic("hunter2") }
func (panicking) Write([]byte) (int, error)        { panic("hunter2") }
func (panicking) FlushError() error                { panic("hunter2") }
func (panicking) SetWriteDeadline(time.Time) error { panic("hunter2") }
func (panicking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	panic("hunter2")
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A writer that cannot flush is warned about once, and no failure of the stream.
func TestAWriterThatCannotFlush(t *testing.T) {
	t.Parallel()
	var log lines
	s := &wirehttp.Streams{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		c := s.Open(struct{ http.ResponseWriter }{httptest.NewRecorder()}, requestOf(1, 1))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if err := c.Flush(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Flush = %v", err)
		}
		c.Close()
	}
	if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "Unwrap") {
		t.Errorf("the log has %q", got)
	}
	gone := errors.New("gone")
	c := s.Open(&slowWriter{flushErr: gone}, requestOf(1, 1))
	defer c.Close()
	if err := c.Flush(); !errors.Is(err, gone) {
		t.Errorf("Flush = %v, want its error", err)
	}
}

// HangUp ends a response whose handler does not return.
func TestHangUp(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"HTTP/1.1", "HTTP/1.0"} {
		for name, wrap := range map[string]func(http.ResponseWriter) http.ResponseWriter{
			"net/http's own": func(w http.ResponseWriter) http.ResponseWriter { return w },
			"cannot hijack":  func(w http.ResponseWriter) http.ResponseWriter { return noHijack{w, http.NewResponseController(w)} },
		} {
			t.Run(proto+" "+name, func(t *testing.T) {
				t.Parallel()
				s := streams()
				release := make(chan struct{})
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c := s.Open(wrap(w), r)
					defer c.Close()
					lent := c.Lent()
					_, _ = io.WriteString(lent, "the last line\n")
					lent.(ndjson.HangUper).HangUp()
					<-release
				}))
				defer server.Close()
				defer close(release)
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				if _, err := fmt.Fprintf(conn, "GET / %s\r\nHost: h\r\n\r\n", proto); err != nil {
					t.Fatal(err)
				}
				if name == "cannot hijack" {
					// The line is there; what comes of the connection is the middleware's doing.
					line := ""
					for lines := bufio.NewReader(conn); !strings.Contains(line, "the last line"); {
						if line, err = lines.ReadString('\n'); err != nil {
							t.Fatal(err)
						}
					}
				} else {
					res, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || string(body) != "the last line\n" {
						t.Errorf("the response is %q, %v", body, err)
					}
				}
				s.Wait(t.Context()) // it does not wait for the handler
			})
		}
	}
}

// A noHijack is what some middleware is: it flushes, but the connection cannot be taken.
type noHijack struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (w noHijack) FlushError() error                   { return w.rc.Flush() }
func (w noHijack) SetWriteDeadline(at time.Time) error { return w.rc.SetWriteDeadline(at) }

// A connection of HTTP/2 cannot be taken.
func TestLent(t *testing.T) {
	t.Parallel()
	for major, want := range map[int]bool{1: true, 2: false} {
		c := streams().Open(httptest.NewRecorder(), requestOf(major, 0))
		defer c.Close()
		if _, ok := c.Lent().(ndjson.HangUper); ok != want {
			t.Errorf("HTTP/%d: the connection can be hung up: %t", major, ok)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := streams()
		s.Wait(t.Context()) // there is nothing to wait for
		a, b := s.Open(httptest.NewRecorder(), requestOf(1, 1)), s.Open(httptest.NewRecorder(), requestOf(1, 1))
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Wait(ctx)
		if took := time.Since(began); took != time.Second {
			t.Errorf("Wait took %v, want as long as it may", took)
		}
		a.Close()
		a.Close() // counts once
		go func() {
			time.Sleep(time.Minute)
			b.Close()
		}()
		s.Wait(t.Context())
		if took := time.Since(began); took < time.Minute || took > time.Minute+2*time.Second {
			t.Errorf("Wait took %v, want until both are closed", took)
		}
	})
}

// The header of a refusal has what its status needs.
func TestRefusalHeaders(t *testing.T) {
	t.Parallel()
	http1 := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	http2 := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	http2.ProtoMajor = 2
	empty := httptest.NewRequest(http.MethodPost, "/", nil)
	for name, tc := range map[string]struct {
		f    *wirehttp.Refusal
		want []string
	}{
		"method":       {&wirehttp.Refusal{Status: 405, Allow: "GET, PUT"}, []string{"Allow: GET, PUT"}},
		"token":        {&wirehttp.Refusal{Status: 401}, []string{`Www-Authenticate: Bearer realm="backline"`}},
		"busy":         {&wirehttp.Refusal{Status: 503, RetryAfter: 5}, []string{"Retry-After: 5"}},
		"unread":       {(&wirehttp.Refusal{Status: 400}).Unread(http1), []string{"Connection: close"}},
		"unread, none": {(&wirehttp.Refusal{Status: 400}).Unread(empty), nil},
		"HTTP/2":       {(&wirehttp.Refusal{Status: 400}).Unread(http2), nil},
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		w.Header()["Content-Type"] = []string{"text/plain"}
		tc.f.Write(w, []byte("hello"))
		want := append([]string{"Cache-Control: no-store", "Content-Length: 5", "Content-Type: text/plain"}, tc.want...)
		var got []string
		for k, v := range w.Header() {
			got = append(got, k+": "+strings.Join(v, "; "))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || w.Code != tc.f.Status || w.Body.String() != "hello" {
			t.Errorf("%s: %d %q with %q, want %q", name, w.Code, w.Body, got, want)
		}
		if len(w.write) != 1 || time.Until(w.write[0]) < 20*time.Second {
			t.Errorf("%s: the write deadlines are %v", name, w.write)
		}
	}
}
