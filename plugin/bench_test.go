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
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// The benchmarks compare a plugin, with everything on, to a bare net/http handler that decodes the same
// request with encoding/json, and writes and flushes the same events. Each runs in a process of its own,
// so that CPU time and memory are the server's alone; the two take turns within one run, and what is
// reported is the ratio of the medians. Run them with
//
//	go test -run '^$' -bench Ratio -benchtime 1x ./plugin
//
// A server is this test binary itself, started with benchServer set in its environment.
const benchServer = "BACKLINE_BENCH_SERVER"

// serveBench is the server process.
func serveBench(kind string) error {
	var h http.Handler = http.HandlerFunc(bareTurn)
	if kind == "backline" {
		p, err := plugin.New(plugin.Config{
			ID:      "muse",
			Adapter: adapters.Func(benchAdapter),
			Logger:  slog.New(slog.NewJSONHandler(io.Discard, nil)),
			Hooks: []plugin.Hooks{{
				TurnStart: func(ctx context.Context, _ plugin.TurnInfo) context.Context { return ctx },
				TurnEnd:   func(context.Context, plugin.TurnInfo, *plugin.Outcome) {},
			}},
			TurnTimeout: time.Hour, FirstOutput: time.Hour, Idle: time.Hour,
		})
		if err != nil {
			return err
		}
		h = p
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	m := http.NewServeMux()
	m.Handle("/lowkey/turn", h)
	m.HandleFunc("/stats", benchStats)
	return (&http.Server{Handler: m, ReadHeaderTimeout: time.Minute}).Serve(ln)
}

// processStats is what a server process tells of itself.
type processStats struct {
	CPU     time.Duration // user and system
	Mallocs uint64
	Memory  uint64 // heap and stacks in use
	Routine int
}

func benchStats(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("gc") {
		for range 3 {
			goruntime.GC()
		}
		debug.FreeOSMemory()
	}
	var s processStats
	var ru syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	s.CPU = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	s.Mallocs, s.Memory, s.Routine = m.Mallocs, m.HeapInuse+m.StackInuse, goruntime.NumGoroutine()
	_ = json.NewEncoder(w).Encode(s)
}

const (
	shortChunk = "forty bytes of text, as models emit it.."
	longChunk  = "twenty bytes of text"
	longChunks = 20_000
)

// perform does what the message asks for.
func perform(ctx context.Context, message string, text func(string) error) error {
	what, arg, _ := strings.Cut(message, " ")
	switch what {
	case "short":
		for range 5 {
			if err := text(shortChunk); err != nil {
				return err
			}
		}
	case "long":
		for range longChunks {
			if err := text(longChunk); err != nil {
				return err
			}
		}
	case "paced":
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range n {
			<-tick.C
			if err := text(strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
				return err
			}
		}
	case "idle":
		<-ctx.Done()
	}
	return nil
}

func benchAdapter(ctx context.Context, t *adapters.Turn, w adapters.Writer) error {
	return perform(ctx, t.Message, w.Text)
}

type bareRequest struct {
	ProtocolVersion int    `json:"protocolVersion"`
	PluginID        string `json:"pluginId"`
	SessionHandle   struct {
		ID          string `json:"id"`
		ProjectPath string `json:"projectPath"`
		SessionID   string `json:"sessionId"`
		AgentID     string `json:"agentId"`
	} `json:"sessionHandle"`
	Turn struct {
		TurnID   string `json:"turnId"`
		Message  string `json:"message"`
		Headless bool   `json:"headless"`
		UserName string `json:"userName"`
	} `json:"turn"`
	TranscriptWindow []struct {
		Role      string  `json:"role"`
		Content   string  `json:"content"`
		Timestamp float64 `json:"timestamp"`
		AgentID   string  `json:"agentId"`
		AgentName string  `json:"agentName"`
		TurnID    string  `json:"turnId"`
	} `json:"transcriptWindow"`
	Limits struct {
		TranscriptWindowMessages int `json:"transcriptWindowMessages"`
	} `json:"limits"`
}

type bareEvent struct {
	ProtocolVersion int    `json:"protocolVersion"`
	Type            string `json:"type"`
	Status          string `json:"status,omitempty"`
	Content         string `json:"content,omitempty"`
}

func bareTurn(w http.ResponseWriter, r *http.Request) {
	var q bareRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.ProtocolVersion != 1 || q.PluginID != "muse" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	rc, enc := http.NewResponseController(w), json.NewEncoder(w)
	emit := func(e bareEvent) error {
		e.ProtocolVersion = 1
		if err := enc.Encode(e); err != nil {
			return err
		}
		return rc.Flush()
	}
	if emit(bareEvent{Type: "status", Status: "started"}) != nil {
		return
	}
	_ = perform(r.Context(), q.Turn.Message, func(s string) error { return emit(bareEvent{Type: "text", Content: s}) })
	_ = emit(bareEvent{Type: "status", Status: "complete"})
}

// A server is a running server process.
type server struct {
	addr string
	stop func()
}

func startServer(b *testing.B, kind string) *server {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+kind)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	s := &server{addr: strings.TrimSpace(addr), stop: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})}
	b.Cleanup(s.stop)
	return s
}

func (s *server) stats(b *testing.B, gc bool) (st processStats) {
	b.Helper()
	url := "http://" + s.addr + "/stats"
	if gc {
		url += "?gc"
	}
	res, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		b.Fatal(err)
	}
	return st
}

// turnRequest is a whole HTTP request with a body of about size bytes.
func turnRequest(session, turn, message string, size int) []byte {
	var window []map[string]any
	const entry = 200
	for i := range size / (entry + 80) {
		role := "user"
		if i%2 == 1 {
			role = "agent"
		}
		window = append(window, map[string]any{
			"role": role, "content": fmt.Sprintf("%06d ", i) + strings.Repeat("lorem ipsum ", entry/12), "timestamp": 1719000000000 + i, "turnId": fmt.Sprintf("t%d", i),
		})
	}
	body, err := json.Marshal(map[string]any{
		"protocolVersion": 1, "pluginId": "muse",
		"sessionHandle":    map[string]any{"id": session, "projectPath": "/srv/project", "sessionId": session, "agentId": "muse"},
		"turn":             map[string]any{"turnId": turn, "message": message, "headless": false},
		"transcriptWindow": append([]map[string]any{}, window...), "limits": map[string]any{"transcriptWindowMessages": max(40, len(window))},
	})
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(nil, "POST /lowkey/turn HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// A hostConn is one connection of a host that costs as little as can be, so that what is measured is
// the server.
type hostConn struct {
	net.Conn
	r     *bufio.Reader
	buf   []byte
	whole int // the length of a body that comes in one piece, 0 for one in chunks
}

func dialHost(addr string) (*hostConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &hostConn{Conn: c, r: bufio.NewReaderSize(c, 64<<10), buf: make([]byte, 64<<10)}, nil
}

var errNotOK = errors.New("the response is not 200")

// send sends a request and reads the response's header.
func (c *hostConn) send(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	c.whole = 0
	for first := true; ; first = false {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.Contains(line, []byte(" 200 ")) {
			return errNotOK
		}
		if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			c.whole, _ = strconv.Atoi(string(bytes.TrimSpace(n)))
		}
		if len(line) == 2 {
			return nil
		}
	}
}

// chunk reads one chunk of the body; nil is its end.
func (c *hostConn) chunk() ([]byte, error) {
	if n := c.whole; n != 0 {
		if n < 0 {
			return nil, nil
		}
		c.whole = -1
		c.buf = append(c.buf[:0], make([]byte, n)...)
		_, err := io.ReadFull(c.r, c.buf)
		return c.buf, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	n := 0
	for _, d := range bytes.TrimRight(line, "\r\n") {
		v := strings.IndexByte("0123456789abcdef", d)
		if v < 0 {
			return nil, fmt.Errorf("bad chunk size %q", line)
		}
		n = n<<4 | v
	}
	if n+2 > len(c.buf) {
		c.buf = make([]byte, n+2)
	}
	if _, err := io.ReadFull(c.r, c.buf[:n+2]); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	return c.buf[:n], nil
}

// turn runs one turn to its end and returns the time to the first event and the number of events.
func (c *hostConn) turn(request []byte) (first time.Duration, events int, err error) {
	start := time.Now()
	if err := c.send(request); err != nil {
		return 0, 0, err
	}
	for {
		b, err := c.chunk()
		if err != nil || b == nil {
			return first, events, err
		}
		if first == 0 {
			first = time.Since(start)
		}
		events += bytes.Count(b, []byte{'\n'})
	}
}

// A sample is what one round of one server measured.
type sample struct {
	rate   float64 // turns or events per second
	cpu    float64 // of the server, per turn or event, in µs
	allocs float64
	p50    float64 // µs
	p99    float64
}

// compare runs rounds of both servers, one after the other, and returns the medians.
func compare(b *testing.B, rounds int, round func(b *testing.B, s *server, n int) sample) (bare, ours sample) {
	b.Helper()
	kinds := []string{"bare", "backline"}
	all := map[string][]sample{}
	servers := map[string]*server{}
	for _, k := range kinds {
		servers[k] = startServer(b, k)
		round(b, servers[k], -1) // to warm up
	}
	for i := range rounds {
		for _, k := range kinds {
			all[k] = append(all[k], round(b, servers[k], i))
		}
	}
	middle := func(k string, f func(sample) float64) float64 {
		var v []float64
		for _, s := range all[k] {
			v = append(v, f(s))
		}
		return median(v)
	}
	of := func(k string) sample {
		return sample{
			rate:   middle(k, func(s sample) float64 { return s.rate }),
			cpu:    middle(k, func(s sample) float64 { return s.cpu }),
			allocs: middle(k, func(s sample) float64 { return s.allocs }),
			p50:    middle(k, func(s sample) float64 { return s.p50 }),
			p99:    middle(k, func(s sample) float64 { return s.p99 }),
		}
	}
	for _, s := range servers {
		s.stop()
	}
	return of("bare"), of("backline")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func percentile(v []time.Duration, p float64) float64 {
	slices.Sort(v)
	return float64(v[int(float64(len(v)-1)*p)].Nanoseconds()) / 1000
}

// turns runs total turns over conns connections.
func turns(b *testing.B, s *server, conns, total int, request func(conn, i int) []byte) sample {
	b.Helper()
	before := s.stats(b, false)
	start := time.Now()
	firsts := make([][]time.Duration, conns)
	var wg sync.WaitGroup
	for c := range conns {
		wg.Go(func() {
			h, err := dialHost(s.addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = h.Close() }()
			for i := range total / conns {
				first, _, err := h.turn(request(c, i))
				if err != nil {
					b.Error(err)
					return
				}
				firsts[c] = append(firsts[c], first)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	after := s.stats(b, false)
	n := float64(total)
	all := slices.Concat(firsts...)
	return sample{
		rate:   n / took.Seconds(),
		cpu:    float64((after.CPU - before.CPU).Microseconds()) / n,
		allocs: float64(after.Mallocs-before.Mallocs) / n,
		p50:    percentile(all, 0.5),
		p99:    percentile(all, 0.99),
	}
}

func reportRatio(b *testing.B, bare, ours sample) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ours.rate/bare.rate, "rate-ratio")
	b.ReportMetric(ours.cpu/bare.cpu, "cpu-ratio")
	if bare.p50 > 0 {
		b.ReportMetric(ours.p50/bare.p50, "p50-ratio")
		b.ReportMetric(ours.p99/bare.p99, "p99-ratio")
	}
	if bare.allocs > 0 {
		b.ReportMetric(ours.allocs/bare.allocs, "allocs-ratio")
	}
	b.Logf("bare %+.1f, backline %+.1f", bare, ours)
}

func benchmarkTurns(b *testing.B, size, total int) {
	// Requests are made beforehand: a new turn id and, for every tenth turn, a new session.
	const conns = 16
	made := map[int][][][]byte{}
	request := func(round int) func(conn, i int) []byte {
		if made[round] == nil {
			for c := range conns {
				var list [][]byte
				for i := range total / conns {
					list = append(list, turnRequest(fmt.Sprintf("s-%d-%d-%d", round, c, i/10), fmt.Sprintf("turn-%d-%d-%d", round, c, i), "short", size))
				}
				made[round] = append(made[round], list)
			}
		}
		return func(c, i int) []byte { return made[round][c][i] }
	}
	bare, ours := compare(b, 5, func(b *testing.B, s *server, n int) sample {
		if n < 0 {
			return turns(b, s, conns, total, request(-1))
		}
		r := request(n)
		return turns(b, s, conns, total, r)
	})
	reportRatio(b, bare, ours)
}

// Short turns: 8 KB of request, 5 chunks of 40 bytes, 16 connections.
func BenchmarkRatioShortTurns(b *testing.B) {
	for b.Loop() {
		benchmarkTurns(b, 8<<10, 16*500)
	}
}

// Requests of 200 KB.
func BenchmarkRatioLargeRequests(b *testing.B) {
	for b.Loop() {
		benchmarkTurns(b, 200<<10, 16*25)
	}
}

// One long turn whose adapter runs ahead: 20,000 chunks of 20 bytes. The rate is events per second.
func BenchmarkRatioRunningAhead(b *testing.B) {
	for b.Loop() {
		bare, ours := compare(b, 7, func(b *testing.B, s *server, n int) sample {
			h, err := dialHost(s.addr)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = h.Close() }()
			before := s.stats(b, false)
			start := time.Now()
			const repeat = 10
			events := 0
			for i := range repeat {
				_, k, err := h.turn(turnRequest("s-long", fmt.Sprintf("long-%d-%d", n, i), "long", 0))
				if err != nil {
					b.Fatal(err)
				}
				events += k
			}
			took := time.Since(start)
			after := s.stats(b, false)
			if events != repeat*(longChunks+2) {
				b.Fatalf("%d events arrived", events)
			}
			return sample{
				rate:   float64(events) / took.Seconds(),
				cpu:    float64((after.CPU - before.CPU).Nanoseconds()) / 1000 / float64(events),
				allocs: float64(after.Mallocs-before.Mallocs) / float64(events),
			}
		})
		reportRatio(b, bare, ours)
	}
}

// Paced events: 100 streams, one event each 10 ms. p50 and p99 are the delay from emission to receipt.
func BenchmarkRatioPacedEvents(b *testing.B) {
	const streams, events = 100, 300
	for b.Loop() {
		bare, ours := compare(b, 5, func(b *testing.B, s *server, n int) sample {
			before := s.stats(b, false)
			delays := make([][]time.Duration, streams)
			var wg sync.WaitGroup
			for c := range streams {
				wg.Go(func() {
					h, err := dialHost(s.addr)
					if err != nil {
						b.Error(err)
						return
					}
					defer func() { _ = h.Close() }()
					if err := h.send(turnRequest(fmt.Sprintf("s-%d", c), fmt.Sprintf("paced-%d-%d", n, c), fmt.Sprint("paced ", events), 0)); err != nil {
						b.Error(err)
						return
					}
					for {
						chunk, err := h.chunk()
						now := time.Now().UnixNano()
						if err != nil {
							b.Error(err)
							return
						}
						if chunk == nil {
							return
						}
						if _, stamp, ok := bytes.Cut(chunk, []byte(`"content":"`)); ok && len(stamp) > 19 {
							at, _ := strconv.ParseInt(string(stamp[:19]), 10, 64)
							delays[c] = append(delays[c], time.Duration(now-at))
						}
					}
				})
			}
			wg.Wait()
			after := s.stats(b, false)
			all := slices.Concat(delays...)
			if len(all) < streams*events*9/10 {
				b.Fatalf("%d of %d events arrived one by one", len(all), streams*events)
			}
			return sample{
				rate:   1,
				cpu:    float64((after.CPU - before.CPU).Nanoseconds()) / 1000 / (streams * events),
				allocs: float64(after.Mallocs-before.Mallocs) / (streams * events),
				p50:    percentile(all, 0.5),
				p99:    percentile(all, 0.99),
			}
		})
		reportRatio(b, bare, ours)
	}
}

// Open streams whose adapter waits: memory (heap and stacks) and goroutines for each.
func BenchmarkRatioIdleStreams(b *testing.B) {
	const streams = 10_000
	for b.Loop() {
		per := map[string]float64{}
		routines := map[string]float64{}
		for _, k := range []string{"bare", "backline"} {
			s := startServer(b, k)
			before := s.stats(b, true)
			var open []*hostConn
			for i := range streams {
				h, err := dialHost(s.addr)
				if err != nil {
					b.Fatal(err)
				}
				h.r = bufio.NewReaderSize(h.Conn, 1024)
				h.buf = make([]byte, 256)
				if err := h.send(turnRequest(fmt.Sprintf("s-%d", i), fmt.Sprintf("idle-%d", i), "idle", 0)); err != nil {
					b.Fatal(err)
				}
				if _, err := h.chunk(); err != nil {
					b.Fatal(err)
				}
				open = append(open, h)
			}
			after := s.stats(b, true)
			per[k] = float64(after.Memory-before.Memory) / streams
			routines[k] = float64(after.Routine-before.Routine) / streams
			for _, h := range open {
				_ = h.Close()
			}
			s.stop()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(per["backline"]/per["bare"], "memory-ratio")
		b.ReportMetric(per["bare"], "bare-B/stream")
		b.ReportMetric(per["backline"], "backline-B/stream")
		b.ReportMetric(routines["backline"]-routines["bare"], "more-goroutines/stream")
	}
}
