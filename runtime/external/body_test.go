package external_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault B6: slashes. No request is redirected, and none is served at a path that is not its own.
func TestFaultB6Slashes(t *testing.T) {
	t.Parallel()
	for version := range versions {
		g := newRig(t, over(version))
		client := *g.client()
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for path, want := range map[string]int{
			"/external-runtime/turns":                  200,
			"/external-runtime/turns?a=b":              200,
			"/external-runtime/turns/":                 404,
			"//external-runtime/turns":                 404,
			"/external-runtime//turns":                 404,
			"/external-runtime/turns//":                404,
			"/external-runtime/./turns":                404,
			"/external-runtime/x/../turns":             404,
			"/external-runtime%2Fturns":                404,
			"/External-Runtime/turns":                  404,
			"/external-runtime":                        404,
			"/external-runtime/":                       404,
			"/":                                        404,
			"/external-runtime/turns/turn:none/cancel": 404,
			"/external-runtime/turns/x/cancel/":        404,
			"/external-runtime/turns//cancel":          404,
		} {
			calls := g.adapter.calls.Load()
			r, err := client.Post(g.server.URL+path, "application/json", bytes.NewReader(aRequest("turn:"+path, goodScript).json()))
			if err != nil {
				t.Fatal(err)
			}
			answer := g.read(r)
			if answer.status != want || answer.header.Get("Location") != "" || answer.err != nil {
				t.Errorf("POST %s: %d %s, want %d", path, answer.status, answer.body, want)
			}
			if ran := g.adapter.calls.Load() - calls; (ran == 1) != (want == 200) {
				t.Errorf("POST %s: %d adapter calls", path, ran)
			}
		}
	}
}

func TestFaultB6ContentTypes(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	send := func(i int, typ string) reply {
		t.Helper()
		q, err := http.NewRequest("POST", g.server.URL+"/external-runtime/turns", bytes.NewReader(aRequest(fmt.Sprintf("turn:%d", i), goodScript).json()))
		if err != nil {
			t.Fatal(err)
		}
		if q.Header["Content-Type"] = []string{typ}; typ == "" {
			delete(q.Header, "Content-Type")
		}
		r, err := g.client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		return g.read(r)
	}
	good := []string{
		"", "application/json", "Application/JSON", "application/json;charset=UTF-8", `application/json; charset="utf-8"; x=y`,
		" application/json ", "application/vnd.orbiplex+json", "application/problem+JSON;a=b",
	}
	for i, typ := range good {
		send(i, typ).ends("completed/completed")
	}
	for _, typ := range []string{
		"text/plain", "application/jsonp", "application/x-www-form-urlencoded", "application/json, text/plain", "json", "+json",
		"text/html; x=application/json", "multipart/form-data; boundary=json", "application/", ";", "application/x-ndjson",
	} {
		send(99, typ).problem(http.StatusUnsupportedMediaType)
	}
	if n := g.adapter.calls.Load(); n != int64(len(good)) {
		t.Errorf("%d adapter calls", n)
	}
}

func TestFaultB6Methods(t *testing.T) {
	t.Parallel()
	for version := range versions {
		g := newRig(t, over(version))
		for path, allow := range map[string]string{
			"turns": "POST", "turns/x": "GET", "turns/x/cancel": "POST", "products/x": "GET", "bindings/x/session": "DELETE",
			"profiles/x": "DELETE, GET, PUT", "bindings/x": "DELETE, GET, PUT",
		} {
			for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "POST", "post", "TURN", strings.Repeat("X", 5000)} {
				if strings.Contains(", "+allow+", ", ", "+method+", ") {
					continue
				}
				r := g.do(method, path, aRequest("turn:1", goodScript).json())
				if got := r.header.Get("Allow"); got != allow || r.status != http.StatusMethodNotAllowed {
					t.Errorf("%.20s %s: %d, Allow is %q, want %q", method, path, r.status, got, allow)
				}
				if method == "HEAD" {
					if r.body != "" {
						t.Errorf("HEAD %s has the body %q", path, r.body)
					}
				} else if r.problem(http.StatusMethodNotAllowed); len(r.body) > 400 {
					t.Errorf("%.20s %s: a problem of %d bytes", method, path, len(r.body))
				}
			}
		}
		if n := g.adapter.calls.Load(); n != 0 {
			t.Errorf("%d adapter calls", n)
		}
	}
}

func zip(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&b)
		if _, err := z.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// chunked hides the length of a body.
type chunked struct{ io.Reader }

// endless is a body that never ends: one piece again and again.
type endless struct {
	pieces []byte
	at     int
}

func newEndless(piece []byte) *endless { return &endless{pieces: bytes.Repeat(piece, 10_000)} }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.pieces[e.at:])
	e.at = (e.at + n) % len(e.pieces)
	return n, nil
}

// offer sends a body from any reader, from any goroutine.
func (g *rig) offer(path string, body io.Reader, header ...string) (reply, error) {
	method := "POST"
	if !strings.HasPrefix(path, "turns") {
		method = "PUT"
	}
	q, err := http.NewRequestWithContext(context.Background(), method, g.server.URL+"/external-runtime/"+path, body)
	if err != nil {
		return reply{}, err
	}
	q.Header.Set("Authorization", "Bearer "+operatorToken)
	for i := 0; i < len(header); i += 2 {
		q.Header.Add(header[i], header[i+1])
	}
	r, err := g.client().Do(q)
	if err != nil {
		return reply{}, err
	}
	return g.read(r), nil
}

// pour sends a chunked body until the answer has come. A client would give up when the server no longer
// takes the body, which may be before it sees the answer.
func (g *rig) pour(body io.Reader, header string) (reply, error) {
	c, err := net.Dial("tcp", g.server.Listener.Addr().String())
	if err != nil {
		return reply{}, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	poured := make(chan struct{})
	go func() {
		defer close(poured)
		_, _ = fmt.Fprintf(c, "POST /external-runtime/turns HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n%s\r\n", header)
		w := httputil.NewChunkedWriter(c)
		_, _ = io.Copy(w, body)
		_ = w.Close()
	}()
	defer func() {
		_ = c.Close()
		<-poured
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return reply{}, err
	}
	return g.read(res), nil
}

// Fault B7: size limits that only look at Content-Length. Over the limit is 400 here.
func TestFaultB7TheLimitCountsDecodedBytes(t *testing.T) {
	t.Parallel()
	const limit = 256 << 10
	for version := range versions {
		g := newRig(t, both(over(version), func(s *setup) { s.conf.MaxBody = limit }))
		for path, document := range map[string]doc{"turns": nil, "profiles/" + profileRef: aProfile(), "bindings/" + bindingRef: aBinding().sealed()} {
			for i, over := range []int{0, 1} {
				for name, send := range map[string]func(body []byte) (reply, error){
					"Content-Length": func(b []byte) (reply, error) { return g.offer(path, bytes.NewReader(b)) },
					"chunked":        func(b []byte) (reply, error) { return g.offer(path, chunked{bytes.NewReader(b)}) },
					"gzip": func(b []byte) (reply, error) {
						return g.offer(path, bytes.NewReader(zip(t, b)), "Content-Encoding", "gzip")
					},
					"gzip, chunked": func(b []byte) (reply, error) {
						return g.offer(path, chunked{bytes.NewReader(zip(t, b))}, "Content-Encoding", "gzip")
					},
					"gzip, members": func(b []byte) (reply, error) {
						return g.offer(path, bytes.NewReader(zip(t, b[:99], nil, b[99:])), "Content-Encoding", "gzip")
					},
				} {
					body := document.json()
					if path == "turns" {
						body = aRequest("turn:"+strings.ReplaceAll(name, " ", "")+fmt.Sprint(i), goodScript).json()
					}
					r, err := send(append(body, bytes.Repeat([]byte(" "), limit+over-len(body))...))
					if err != nil {
						t.Fatalf("%s %s %s: %v", version, path, name, err)
					}
					switch {
					case over > 0:
						if p := r.problem(http.StatusBadRequest); !strings.Contains(p.Detail, fmt.Sprint(limit)) {
							t.Errorf("%s %s %s: %s", version, path, name, p.Detail)
						}
					case path == "turns":
						r.ends("completed/completed")
					case r.status != http.StatusOK:
						t.Errorf("%s %s %s: %d %s", version, path, name, r.status, r.body)
					}
				}
			}
		}
		if n := g.adapter.calls.Load(); n != 5 {
			t.Errorf("%s: %d adapter calls, want 5", version, n)
		}
	}
}

func TestFaultB7ContentEncodings(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	plain := aRequest("turn:1", goodScript).json()
	zipped := zip(t, plain)
	for encoding, body := range map[string][]byte{"GZIP": zipped, " gzip ": zipped, "identity": plain, "Identity": plain, "": plain} {
		r, err := g.offer("turns", bytes.NewReader(body), "Content-Encoding", encoding)
		if err != nil {
			t.Fatal(err)
		}
		r.ends("completed/completed")
	}
	refused := func(name string, status int, body []byte, header ...string) {
		t.Helper()
		r, err := g.offer("turns", bytes.NewReader(body), header...)
		if err != nil {
			t.Fatal(name, err)
		}
		r.problem(status)
	}
	for _, encoding := range []string{"br", "gzip, gzip", "gzip,identity", "deflate", "zstd", "x-gzip", "gzip;q=1"} {
		refused(encoding, http.StatusUnsupportedMediaType, zipped, "Content-Encoding", encoding)
	}
	refused("twice", http.StatusUnsupportedMediaType, zip(t, zipped), "Content-Encoding", "gzip", "Content-Encoding", "gzip")
	damaged := bytes.Clone(zipped)
	damaged[len(damaged)-5] ^= 1
	for name, body := range map[string][]byte{
		"empty":        {},
		"cut short":    zipped[:len(zipped)-9],
		"cut trailer":  zipped[:len(zipped)-1],
		"junk behind":  append(bytes.Clone(zipped), "junk"...),
		"zeros behind": append(bytes.Clone(zipped), make([]byte, 512)...),
		"bad checksum": damaged,
		"not gzip":     plain,
		"header alone": zipped[:10],
		"half header":  zipped[:5],
		"two JSON":     zip(t, plain, plain),
	} {
		refused(name, http.StatusBadRequest, body, "Content-Encoding", "gzip")
	}
	if n := g.adapter.calls.Load(); n != 1 {
		t.Errorf("%d adapter calls", n)
	}
}

// What exceeds the limit is refused without being read to its end. Not parallel: it measures memory.
func TestFaultB7WhatExceedsTheLimitIsRefusedUnread(t *testing.T) {
	const limit, at = 2 << 20, 20
	g := newRig(t, func(s *setup) { s.conf.MaxBody = limit })
	bomb := bytes.Repeat(zip(t, make([]byte, 4<<20)), 64) // 256 MiB of zeros
	empty := zip(t, nil)
	for name, body := range map[string]func() io.Reader{
		"a bomb":             func() io.Reader { return bytes.NewReader(bomb) },
		"no end":             func() io.Reader { return newEndless([]byte(" ")) },
		"no end of brackets": func() io.Reader { return newEndless([]byte("[")) },
		"no end of nothing":  func() io.Reader { return newEndless(empty) },
	} {
		header := ""
		if name == "a bomb" || name == "no end of nothing" {
			header = "Content-Encoding: gzip\r\n"
		}
		n := at
		if name == "no end of nothing" {
			n = 1 // it takes much time, and hardly any memory
		}
		goruntime.GC()
		var before goruntime.MemStats
		goruntime.ReadMemStats(&before)
		stop, peak := make(chan struct{}), make(chan uint64)
		go func() {
			var high uint64
			for tick := time.NewTicker(5 * time.Millisecond); ; {
				select {
				case <-stop:
					tick.Stop()
					peak <- high
					return
				case <-tick.C:
					var m goruntime.MemStats
					goruntime.ReadMemStats(&m)
					high = max(high, m.HeapAlloc)
				}
			}
		}()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				r, err := g.pour(body(), header)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				r.problem(http.StatusBadRequest)
			})
		}
		all.Wait()
		close(stop)
		// What is read, what it grew from, and as much again that is not collected yet.
		if grown := int64(<-peak) - int64(before.HeapAlloc); grown > at*limit*3 {
			t.Errorf("%s: memory grew by %d MiB for %d requests of at most %d MiB", name, grown>>20, n, limit>>20)
		}
	}
}
