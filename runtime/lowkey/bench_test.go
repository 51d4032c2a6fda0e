package lowkey_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/lowkey"
)

func benchHandler(b *testing.B, adapter adapters.Adapter) http.Handler {
	b.Helper()
	engine, err := runtime.New(runtime.Config{Logger: quiet, Replay: -1})
	if err != nil {
		b.Fatal(err)
	}
	h, err := lowkey.New(lowkey.Config{Engine: engine, Plugins: map[string]adapters.Adapter{"muse": adapter}, Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.WaitAdapters)
	return h
}

// A sinkhole is a connection that takes everything at once.
type sinkhole struct {
	header http.Header
	status int
	n      int
}

func (s *sinkhole) Header() http.Header              { return s.header }
func (s *sinkhole) WriteHeader(status int)           { s.status = status }
func (s *sinkhole) FlushError() error                { return nil }
func (s *sinkhole) SetReadDeadline(time.Time) error  { return nil }
func (s *sinkhole) SetWriteDeadline(time.Time) error { return nil }
func (s *sinkhole) Write(p []byte) (int, error) {
	s.n += len(p)
	return len(p), nil
}

// BenchmarkHandler is one turn without a socket: what the package and the engine cost. The adapter writes
// nothing, one chunk, or a hundred.
func BenchmarkHandler(b *testing.B) {
	for _, chunks := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("chunks=%d", chunks), func(b *testing.B) {
			h := benchHandler(b, adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for range chunks {
					if err := w.Text("some of the answer"); err != nil {
						return err
					}
				}
				return nil
			}))
			body := strings.ReplaceAll(aTurn, "$SESSION", "s-1")
			b.ReportAllocs()
			for i := range b.N {
				r := httptest.NewRequest(http.MethodPost, "/lowkey/turn", nil)
				text := strings.Replace(body, "$TURN", fmt.Sprintf("t-%d", i), 1)
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
				w := &sinkhole{header: http.Header{}}
				h.ServeHTTP(w, r)
				if w.n < 100 {
					b.Fatal(w)
				}
			}
		})
	}
}

// BenchmarkShortTurn is one echo over a socket, for many hosts at once.
func BenchmarkShortTurn(b *testing.B) {
	server := httptest.NewServer(benchHandler(b, echo.New()))
	defer server.Close()
	client := server.Client()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	var n atomic.Int64
	b.SetParallelism(8)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := fmt.Sprintf("t-%d", n.Add(1))
			body := strings.ReplaceAll(strings.ReplaceAll(aTurn, "$TURN", id), "$SESSION", id)
			r, err := client.Post(server.URL, "application/json", strings.NewReader(body))
			if err != nil {
				b.Error(err)
				return
			}
			answer, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			if err != nil || !bytes.Contains(answer, []byte(`"status":"complete"`)) {
				b.Errorf("%v %s", err, answer)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
}

const aTurn = `{"protocolVersion":1,"pluginId":"muse",
	"sessionHandle":{"id":"$SESSION","projectPath":"/srv/project","sessionId":"$SESSION","agentId":"muse"},
	"turn":{"turnId":"$TURN","message":"Hello there","headless":false},
	"transcriptWindow":[{"role":"user","content":"Hello"},{"role":"agent","content":"Good morning"}],
	"limits":{"transcriptWindowMessages":40}}`
