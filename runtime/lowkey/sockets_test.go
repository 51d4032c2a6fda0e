package lowkey_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
)

// serverFor serves echoes over one version of HTTP.
func serverFor(t *testing.T, version string, change func(*http.Server)) *httptest.Server {
	t.Helper()
	h, engine := newHandler(t, echo.New(), runtime.Config{})
	s := httptest.NewUnstartedServer(h)
	change(s.Config)
	if version == "HTTP/2" {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.Close()
		engine.WaitAdapters()
	})
	return s
}

// Fault B2, for bodies: a server's limit on the whole response is over before a body that comes slowly is
// there. What comes then, a stream or a refusal, arrives all the same.
func TestFaultB2ASlowBodyUnderAServersWriteTimeout(t *testing.T) {
	t.Parallel()
	turn := strings.NewReplacer("$SESSION", "s", "$TURN", "t").Replace(aTurn)
	var all sync.WaitGroup
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		for body, status := range map[string]int{turn: 200, strings.Replace(turn, `"muse"`, `"other"`, 1): 404} {
			server := serverFor(t, version, func(s *http.Server) {
				s.ReadTimeout, s.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
			})
			all.Go(func() {
				// A busy machine may take longer for the connection than the server's timeouts allow.
				for end := time.Now().Add(20 * time.Second); ; {
					res, err := server.Client().Get(server.URL)
					if err == nil {
						_, err = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
					if err == nil {
						break
					}
					if time.Now().After(end) {
						t.Errorf("%s: no connection: %v", version, err)
						return
					}
				}
				read, write := io.Pipe()
				go func() {
					_, _ = io.WriteString(write, body[:50])
					time.Sleep(750 * time.Millisecond) // the slowness itself
					_, _ = io.WriteString(write, body[50:])
					_ = write.Close()
				}()
				res, err := server.Client().Post(server.URL, "application/json", read)
				if err != nil {
					t.Errorf("%s, %d: %v", version, status, err)
					return
				}
				answer, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != status {
					t.Errorf("%s: %s %q, %v, want %d", version, res.Status, answer, err, status)
				}
				checkBody(t, res.StatusCode, answer)
			})
		}
	}
	all.Wait()
}

// A refusal ends no connection of HTTP/2: other turns are on it.
func TestARefusalLeavesAConnectionOfHTTP2(t *testing.T) {
	t.Parallel()
	server := serverFor(t, "HTTP/2", func(*http.Server) {})
	reused := false
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
	for i := range 3 {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(make([]byte, 1<<20)))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "text/plain")
		res, err := server.Client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusUnsupportedMediaType || reused != (i > 0) {
			t.Errorf("%s %q, %v, on a connection used before: %t", res.Status, answer, err, reused)
		}
	}
}
