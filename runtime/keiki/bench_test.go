package keiki_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
)

// A bareTurn is what [keiki.Handler] reads of a turn.
type bareTurn struct {
	Type           string          `json:"type"`
	Version        int             `json:"version"`
	TurnID         string          `json:"turnId"`
	AgentID        string          `json:"agentId"`
	ConversationID string          `json:"conversationId"`
	Channel        json.RawMessage `json:"channel"`
	Messages       []struct {
		Text      string `json:"text"`
		MessageID string `json:"messageId"`
		Silent    bool   `json:"silent"`
		Screening struct {
			Flagged bool `json:"flagged"`
		} `json:"screening"`
	} `json:"messages"`
	History []struct {
		Role      string    `json:"role"`
		Text      string    `json:"text"`
		CreatedAt time.Time `json:"createdAt"`
	} `json:"history"`
	Context      json.RawMessage `json:"context"`
	Instructions string          `json:"instructions"`
	HeldBack     bool            `json:"heldBack"`
	Silent       bool            `json:"silent"`
	QuietLoop    bool            `json:"quietLoop"`
	Deadline     time.Time       `json:"deadline"`
	Keiki        struct {
		APIBase string `json:"apiBase"`
		TurnURL string `json:"turnUrl"`
		MCPURL  string `json:"mcpUrl"`
	} `json:"keiki"`
}

// bare is the least that an app of one's own does before it answers 202.
func bare(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "", http.StatusBadRequest)
		return
	}
	stamp, signature, _ := strings.Cut(r.Header.Get("Keiki-Signature"), ",v1=")
	mac := hmac.New(sha256.New, []byte(testSecret))
	mac.Write([]byte(strings.TrimPrefix(stamp, "t=") + "."))
	mac.Write(body)
	if got, err := hex.DecodeString(signature); err != nil || !hmac.Equal(got, mac.Sum(nil)) {
		http.Error(w, "", http.StatusUnauthorized)
		return
	}
	var turn bareTurn
	if err := json.Unmarshal(body, &turn); err != nil || turn.TurnID != r.Header.Get("Keiki-Turn-Id") {
		http.Error(w, "", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"accepted":true,"turnId":%q}`, turn.TurnID)
}

// benchBody is a turn of some 4 KiB, as a platform sends it in a conversation that has gone on for a while.
func benchBody(turn string) []byte {
	var history []string
	for i := range 14 {
		role := []string{"user", "assistant"}[i%2]
		history = append(history, fmt.Sprintf(`{"role":%q,"text":"This is message number %d of a conversation about an order that has not arrived; \"where is it?\", they ask, and we look it up.","createdAt":"2026-04-18T12:%02d:00.000Z"}`, role, i, i))
	}
	base := "https://keiki.example/api/v1"
	return fmt.Appendf(nil, `{"type":"keiki.turn","version":1,"turnId":%q,"agentId":"agent-1","conversationId":"conversation-of-%s","channel":{"kind":"sms","from":"+15555550123","to":"+15555550100"},`+
		`"messages":[{"text":"Hello again, is there any news of my order 9007199254740993?","messageId":"message-1"},{"text":"I am at home until five.","messageId":"message-2","screening":{"flagged":false}}],`+
		`"history":[%s],"context":{"order":{"id":9007199254740993,"state":"shipped","carrier":"slow boat","items":[{"sku":"A-1","count":2},{"sku":"B-7","count":1}]},"locale":"en-GB","timezone":"Europe/London"},`+
		`"instructions":%q,"heldBack":false,"silent":false,"quietLoop":false,"deadline":"2099-01-01T00:00:00.000Z","keiki":{"apiBase":%q,"turnUrl":"%s/turns/%s","mcpUrl":"%s/harness/mcp"}}`,
		turn, turn, strings.Join(history, ","), strings.Repeat("Answer in the language of the contact. Be brief and kind, and never promise a date. ", 12), base, base, turn, base)
}

// benchRig is a handler whose adapters wait for release, which also sees the turns to their end.
func benchRig(b *testing.B) (h *keiki.Handler, release func()) {
	b.Helper()
	silent := slog.New(slog.DiscardHandler)
	engine, err := runtime.New(runtime.Config{Logger: silent})
	if err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	hold := make(chan struct{})
	h, err = keiki.New(keiki.PushConfig{
		Config: keiki.Config{
			Engine: engine, Transport: yes, Logger: silent,
			Adapter: adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
				mu.Lock()
				wait := hold
				mu.Unlock()
				<-wait
				return nil
			}),
		},
		Secrets: keiki.Secrets{Any: []secret.Text{testSecret}},
	})
	if err != nil {
		b.Fatal(err)
	}
	release = func() {
		mu.Lock()
		close(hold)
		mu.Unlock()
		h.Wait()
		mu.Lock()
		hold = make(chan struct{})
		mu.Unlock()
	}
	return h, release
}

// BenchmarkAcceptance is what it takes to take a turn: read, verify, parse, claim, start, answer 202. The
// metric ratio is how many of them are taken in the time in which a bare handler would take one, that
// does the same HMAC and has json.Unmarshal fill an equal struct. Adapters wait, so that nothing else is
// measured; their goroutines are.
func BenchmarkAcceptance(b *testing.B) {
	h, release := benchRig(b)
	const batch = 500
	var ours, theirs time.Duration
	serve := func(h http.Handler, requests []*http.Request) time.Duration {
		began := time.Now()
		for _, r := range requests {
			w := &response{header: http.Header{}}
			if h.ServeHTTP(w, r); w.status != http.StatusAccepted {
				b.Fatalf("%d %s", w.status, w.body)
			}
		}
		return time.Since(began)
	}
	n := 0
	b.SetBytes(int64(len(benchBody("turn-0000000"))))
	b.ReportAllocs()
	for n < b.N {
		b.StopTimer()
		requests := [2][]*http.Request{}
		for range min(batch, b.N-n) {
			n++
			id := fmt.Sprintf("turn-%07d", n)
			body := benchBody(id)
			signature := keiki.Sign(testSecret, body, time.Now())
			for i := range requests {
				r := httptest.NewRequest(http.MethodPost, "/keiki/turn", bytes.NewReader(body))
				r.Header = http.Header{
					"Keiki-Signature": {signature}, "Keiki-Turn-Id": {id}, "Keiki-Turn-Token": {"ht_0123456789"}, "Content-Type": {"application/json"},
				}
				requests[i] = append(requests[i], r)
			}
		}
		theirs += serve(http.HandlerFunc(bare), requests[0])
		b.StartTimer()
		ours += serve(h, requests[1])
		b.StopTimer()
		release()
	}
	b.ReportMetric(float64(theirs)/float64(ours), "ratio")
}

// A response is a ResponseWriter of the plainest kind.
type response struct {
	header http.Header
	status int
	body   []byte
}

func (w *response) Header() http.Header              { return w.header }
func (w *response) WriteHeader(status int)           { w.status = status }
func (w *response) SetReadDeadline(time.Time) error  { return nil }
func (w *response) SetWriteDeadline(time.Time) error { return nil }
func (w *response) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

// BenchmarkAcceptanceAtOnce sends 300 turns at the same moment, each over a connection of its own, to a
// server in this process, and measures how long each waits for its 202: the median, the 99th percentile,
// and how many times the one the other is.
func BenchmarkAcceptanceAtOnce(b *testing.B) {
	const turns = 300
	h, release := benchRig(b)
	server := httptest.NewServer(h)
	defer server.Close()
	clients := make([]*http.Client, turns)
	for i := range clients {
		t := &http.Transport{}
		defer t.CloseIdleConnections()
		clients[i] = &http.Client{Transport: t}
	}
	n := 0
	wave := func() []time.Duration {
		latencies := make([]time.Duration, turns)
		start := make(chan struct{})
		var ready, done sync.WaitGroup
		for i, client := range clients {
			n++
			id := fmt.Sprintf("turn-%07d", n)
			body := benchBody(id)
			r, err := http.NewRequest(http.MethodPost, server.URL, bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("Keiki-Signature", keiki.Sign(testSecret, body, time.Now()))
			r.Header.Set("Keiki-Turn-Id", id)
			r.Header.Set("Keiki-Turn-Token", "ht_0123456789")
			ready.Add(1)
			done.Go(func() {
				ready.Done()
				<-start
				began := time.Now()
				resp, err := client.Do(r)
				if err != nil {
					b.Error(err)
					return
				}
				latencies[i] = time.Since(began)
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusAccepted {
					b.Errorf("status %d", resp.StatusCode)
				}
			})
		}
		ready.Wait()
		close(start)
		done.Wait()
		return latencies
	}
	wave() // opens the connections
	release()
	var all []time.Duration
	b.ResetTimer()
	for range b.N {
		all = append(all, wave()...)
		b.StopTimer()
		release()
		b.StartTimer()
	}
	slices.Sort(all)
	p50, p99 := all[len(all)/2], all[len(all)*99/100]
	b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
	b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
	b.ReportMetric(float64(p99)/float64(p50), "p99/p50")
}
