package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	external "github.com/backline-dev/backline/schema/external"
)

// Short turns of agent.external-runtime beside those of Lowkey: one server, the same adapter, requests of 8 KB,
// 5 chunks of 40 bytes, 16 connections, the ledger in memory. The ratio is that of turns per second, the
// medians of rounds that take turns.
func BenchmarkRatioExternalTurns(b *testing.B) {
	const conns, each, rounds, token = 16, 250, 5, "a token for the operator"
	p, err := plugin.New(plugin.Config{
		ID:       "muse",
		Adapter:  adapters.Func(benchAdapter),
		Logger:   slog.New(slog.NewJSONHandler(io.Discard, nil)),
		External: &plugin.External{OperatorToken: token},
	})
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(p)
	defer s.Close()
	addr := s.Listener.Addr().String()

	// Turns of one binding wait for one another, so each connection has its own.
	profile := testhost.NewProfile("profile:bench")
	profile.UsageFidelity = external.FidelityEstimated
	var hosts []*testhost.External
	for c := range conns {
		h := &testhost.External{
			URL: s.URL + plugin.ExternalPath, OperatorToken: token, Profile: profile,
			Binding: testhost.NewBinding(external.BindingRef(fmt.Sprint("binding:", c)), "muse", profile),
		}
		if err := h.Setup(b.Context()); err != nil {
			b.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	externalRequest := func(c int) []byte {
		body, err := json.Marshal(hosts[c].Request("short " + strings.Repeat("lorem ipsum ", 550)))
		if err != nil {
			b.Fatal(err)
		}
		return fmt.Appendf(nil, "POST %s/turns HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", plugin.ExternalPath, len(body), body)
	}
	lowkeyRequest := func(n, c, i int) []byte {
		return turnRequest(fmt.Sprintf("s-%d-%d-%d", n, c, i/10), fmt.Sprintf("turn-%d-%d-%d", n, c, i), "short", 8<<10)
	}
	completed := func(end []byte) bool {
		return bytes.Contains(end, []byte(`"complete"`)) || bytes.Contains(end, []byte(`"status":"completed"`))
	}
	run := func(request func(c, i int) []byte) float64 {
		var made [conns][][]byte
		for c := range conns {
			for i := range each {
				made[c] = append(made[c], request(c, i))
			}
		}
		var wg sync.WaitGroup
		start := time.Now()
		for c := range conns {
			wg.Go(func() {
				h, err := dialHost(addr)
				if err != nil {
					b.Error(err)
					return
				}
				defer func() { _ = h.Close() }()
				for _, r := range made[c] {
					if err := h.send(r); err != nil {
						b.Error(err)
						return
					}
					ok := false
					for {
						chunk, err := h.chunk()
						if err != nil {
							b.Error(err)
							return
						}
						if chunk == nil {
							break
						}
						ok = completed(chunk)
					}
					if !ok {
						b.Error("a turn did not complete")
						return
					}
				}
			})
		}
		wg.Wait()
		return conns * each / time.Since(start).Seconds()
	}
	for b.Loop() {
		var lowkey, orbiplex []float64
		for n := range rounds {
			lowkey = append(lowkey, run(func(c, i int) []byte { return lowkeyRequest(n, c, i) }))
			orbiplex = append(orbiplex, run(func(c, _ int) []byte { return externalRequest(c) }))
		}
		l, o := median(lowkey), median(orbiplex)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(o/l, "rate-ratio")
		b.Logf("lowkey %.0f, external %.0f turns per second", l, o)
	}
	if err := p.Drain(context.Background()); err != nil {
		b.Error(err)
	}
}
