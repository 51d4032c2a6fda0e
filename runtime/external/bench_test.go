package external_test

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

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
)

// benchHandler serves an echo under many bindings, so that turns do not wait for one another.
func benchHandler(b *testing.B, bindings int, adapter adapters.Adapter) (h *external.Handler, requests []string) {
	b.Helper()
	engine, err := runtime.New(runtime.Config{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	h, err = external.New(external.Config{Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{MaxTurns: 10_000}), Adapter: adapter, OperatorToken: operatorToken, Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	serveIn(b, h, "PUT", "profiles/"+profileRef, aProfile())
	for i := range bindings {
		name := fmt.Sprintf("binding:%d", i)
		d := aBinding().with("binding/ref", name).sealed()
		serveIn(b, h, "PUT", "bindings/"+name, d)
		requests = append(requests, string(aRequest("TURN", "Review the bounded proposal.").with("binding/ref", name, "binding/digest", d["binding/digest"]).json()))
	}
	b.Cleanup(engine.WaitAdapters)
	return h, requests
}

// BenchmarkShortTurn is one echo over a socket with the memory store: a turn request of the size of the
// contract's example, five events, product, outcome, settlement.
func BenchmarkShortTurn(b *testing.B) {
	h, requests := benchHandler(b, 64, echo.New())
	server := httptest.NewServer(h)
	defer server.Close()
	client := server.Client()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	var n, worker atomic.Int64
	b.SetParallelism(8)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		request := requests[int(worker.Add(1))%len(requests)]
		for pb.Next() {
			body := strings.ReplaceAll(request, "TURN", fmt.Sprintf("turn:%d", n.Add(1)))
			r, err := client.Post(server.URL+"/external-runtime/turns", "application/json", strings.NewReader(body))
			if err != nil {
				b.Error(err)
				return
			}
			answer, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			if err != nil || !bytes.Contains(answer, []byte(`"status":"completed"`)) {
				b.Errorf("%v %s", err, answer)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
}

// BenchmarkHandler is the same without a socket: what the package itself costs.
func BenchmarkHandler(b *testing.B) {
	h, requests := benchHandler(b, 1, echo.New())
	b.ReportAllocs()
	for i := range b.N {
		body := strings.ReplaceAll(requests[0], "TURN", fmt.Sprintf("turn:%d", i))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "POST", "/external-runtime/turns", strings.NewReader(body)))
		if !bytes.Contains(w.Body.Bytes(), []byte(`"status":"completed"`)) {
			b.Fatal(w.Body.String())
		}
	}
}
