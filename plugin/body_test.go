package plugin_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/plugin"
)

// Fault B6: slashes, content types, methods.
func TestFaultB6Slashes(t *testing.T) {
	t.Parallel()
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	for path, want := range map[string]int{
		"/lowkey/turn":       200,
		"/lowkey/turn/":      200,
		"/lowkey/turn?a=b":   200,
		"/lowkey/turn/?a=b":  200,
		"//lowkey/turn":      404,
		"/lowkey//turn":      404,
		"/lowkey/turn//":     404,
		"/lowkey/../turn":    404,
		"/./lowkey/turn":     404,
		"/lowkey%2Fturn":     404,
		"/lowkey":            404,
		"/LOWKEY/turn":       404,
		"/lowkey/turn/extra": 404,
		"/healthz/":          404,
		"/":                  404,
	} {
		before := calls.times()
		r, err := h.do(http.MethodPost, path, bytes.NewReader(request{turn: "t " + path, message: "x"}.body()))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.close()
		if r.StatusCode != want || err != nil {
			t.Errorf("POST %s: %s %.100q, %v, want %d", path, r.Status, body, err, want)
		}
		if ran := calls.times() - before; (ran == 1) != (want == 200) {
			t.Errorf("POST %s: %d adapter calls", path, ran)
		}
	}
}

func TestFaultB6ContentTypes(t *testing.T) {
	t.Parallel()
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	for i, typ := range []string{
		"", "application/json", "Application/JSON", "application/json;charset=UTF-8", `application/json; charset="utf-8"; x=y`,
		" application/json ", "application/vnd.lowkey.turn+json", "application/problem+JSON;a=b",
	} {
		if text := h.with("Content-Type", typ).post(t, request{turn: numbered("t", i), message: "x"}).completed(t); text != "x" {
			t.Errorf("Content-Type %q: the text is %q", typ, text)
		}
	}
	before := calls.times()
	for _, typ := range []string{
		"text/plain", "application/jsonp", "application/x-www-form-urlencoded", "application/json, text/plain", "json", "+json",
		"text/html; x=application/json", "multipart/form-data; boundary=json", "application/", ";",
	} {
		h.with("Content-Type", typ).post(t, request{turn: "refused"}).refused(t, http.StatusUnsupportedMediaType)
	}
	if n := calls.times() - before; n != 0 {
		t.Errorf("%d adapter calls for refused types", n)
	}
}

func TestFaultB6Methods(t *testing.T) {
	t.Parallel()
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "post", "TURN"} {
		for _, path := range []string{"/lowkey/turn", "/lowkey/turn/"} {
			r, err := h.do(method, path, bytes.NewReader(request{}.body()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.close)
			if allow := r.Header.Get("Allow"); allow != http.MethodPost {
				t.Errorf("%s %s: Allow is %q", method, path, allow)
			}
			if method != http.MethodHead {
				r.refused(t, http.StatusMethodNotAllowed)
				continue
			}
			if body, err := io.ReadAll(r.Body); r.StatusCode != http.StatusMethodNotAllowed || len(body) > 0 || err != nil {
				t.Errorf("HEAD: %s %q, %v", r.Status, body, err)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/manifest.json", "/schemas/plugins/external-turn-protocol.schema.json"} {
		r, err := h.do(http.MethodPost, path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.close()
		if r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s: %s, Allow %q", path, r.Status, r.Header.Get("Allow"))
		}
	}
	if n := calls.times(); n != 0 {
		t.Errorf("%d adapter calls", n)
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

// sized is a request of exactly n bytes.
func sized(n int, turn string) []byte {
	body := request{turn: turn, message: "x"}.body()
	return append(body, bytes.Repeat([]byte(" "), n-len(body))...)
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

const limit = 8 << 20 // the default

// Fault B7: size limits that only look at Content-Length.
func TestFaultB7TheLimitCountsDecodedBytes(t *testing.T) { // not parallel: it keeps the machine busy, and others measure time
	var calls called
	conf := plugin.Config{Adapter: calls.by(echo)}
	limit := limit
	if slowness > 1 {
		limit /= 8
		conf.MaxBody = int64(limit)
	}
	_, h := start(t, conf)
	zipped := h.with("Content-Encoding", "gzip")
	for i, over := range []int{0, 1} {
		for name, send := range map[string]func(body []byte) (*reply, error){
			"Content-Length": func(b []byte) (*reply, error) { return h.send(bytes.NewReader(b)) },
			"chunked":        func(b []byte) (*reply, error) { return h.send(chunked{bytes.NewReader(b)}) },
			"gzip":           func(b []byte) (*reply, error) { return zipped.send(bytes.NewReader(zip(t, b))) },
			"gzip, chunked":  func(b []byte) (*reply, error) { return zipped.send(chunked{bytes.NewReader(zip(t, b))}) },
			"gzip, members":  func(b []byte) (*reply, error) { return zipped.send(bytes.NewReader(zip(t, b[:99], nil, b[99:]))) },
		} {
			r, err := send(sized(limit+over, fmt.Sprint(name, i)))
			if err != nil {
				t.Fatal(name, err)
			}
			if over == 0 {
				r.completed(t)
			} else {
				r.refused(t, http.StatusRequestEntityTooLarge)
			}
			r.close()
		}
	}
	if n := calls.times(); n != 5 {
		t.Errorf("%d adapter calls, want 5", n)
	}
}

func TestFaultB7ContentEncodings(t *testing.T) {
	t.Parallel()
	var calls called
	_, h := start(t, plugin.Config{Adapter: calls.by(echo)})
	plain := request{message: "x"}.body()
	zipped := zip(t, plain)
	for encoding, body := range map[string][]byte{
		"GZIP": zipped, " gzip ": zipped, "identity": plain, "Identity": plain, "": plain,
	} {
		r := h.with("Content-Encoding", encoding).postBody(t, body)
		if text := r.completed(t); text != "x" {
			t.Errorf("%q: the text is %q", encoding, text)
		}
	}
	before := calls.times()
	for _, encoding := range []string{"br", "gzip, gzip", "gzip,identity", "deflate", "zstd", "x-gzip", "gzip;q=1"} {
		h.with("Content-Encoding", encoding).postBody(t, zipped).refused(t, http.StatusUnsupportedMediaType)
	}
	twice := *h
	twice.header = http.Header{"Content-Encoding": {"gzip", "gzip"}}
	twice.postBody(t, zip(t, zipped)).refused(t, http.StatusUnsupportedMediaType)

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
		r, err := h.with("Content-Encoding", "gzip").send(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.refusal(http.StatusBadRequest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r.close()
	}
	if n := calls.times() - before; n != 0 {
		t.Errorf("%d adapter calls", n)
	}
}

// Not parallel: it measures memory.
func TestFaultB7WhatExceedsTheLimitIsRefusedUnread(t *testing.T) {
	const at = 20 / (1 + slowness/3)
	_, strict := start(t, plugin.Config{Adapter: echo, MaxBody: 64 << 10})
	_, h := start(t, plugin.Config{Adapter: echo})
	bomb := bytes.Repeat(zip(t, make([]byte, 4<<20)), 256) // 1 GiB of zeros, as so many members
	empty := zip(t, nil)
	for name, send := range map[string]func() (*reply, error){
		"a bomb":             func() (*reply, error) { return h.with("Content-Encoding", "gzip").send(bytes.NewReader(bomb)) },
		"no end":             func() (*reply, error) { return h.send(newEndless([]byte(" "))) },
		"no end of brackets": func() (*reply, error) { return h.send(newEndless([]byte("["))) },
		"no end of nothing":  func() (*reply, error) { return strict.with("Content-Encoding", "gzip").send(newEndless(empty)) },
		"a length that lies": func() (*reply, error) { return rawPost(h, fmt.Sprintf("Content-Length: %d\r\n", 1<<40), "{") },
		"a terabyte of gzips": func() (*reply, error) {
			return rawPost(h, fmt.Sprintf("Content-Encoding: br\r\nContent-Length: %d\r\n", 1<<40), "{")
		},
	} {
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
		var wg sync.WaitGroup
		n := at
		if name == "no end of nothing" {
			n = 1 // it takes much time, and hardly any memory
		}
		for range n {
			wg.Go(func() {
				r, err := send()
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				defer r.close()
				want := http.StatusRequestEntityTooLarge
				if strings.Contains(name, "gzips") {
					want = http.StatusUnsupportedMediaType
				}
				if _, err := r.refusal(want); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		close(stop)
		// What is read, what it grew from, and as much again that is not collected yet.
		if grown := int64(<-peak) - int64(before.HeapAlloc); grown > at*limit*3 {
			t.Errorf("%s: memory grew by %d MiB for %d requests of at most %d MiB", name, grown>>20, at, limit>>20)
		} else {
			t.Logf("%s: memory grew by %d MiB", name, grown>>20)
		}
	}
}

// rawPost sends a header and the beginning of a body, on a connection of its own, and waits for the
// answer without sending more.
func rawPost(h *host, header, body string) (*reply, error) {
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\n%s\r\n%s", h.path, h.addr, header, body); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	lines := bufio.NewReader(c)
	res, err := http.ReadResponse(lines, nil) //nolint:bodyclose // the reply closes it
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	res.Body = closer{res.Body, c}
	return &reply{Response: res, lines: bufio.NewReader(res.Body), cancel: func() { _ = c.Close() }}, nil
}

// rawPost10 sends a turn as an old client does.
func rawPost10(h *host, body []byte) (*reply, error) {
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", h.path, len(body), body); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // the reply closes it
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	res.Body = closer{res.Body, c}
	return newReply(res, func() { _ = c.Close() }), nil
}

type closer struct {
	io.Reader
	io.Closer
}

// A request that is refused before its body is looked at, and whose body then never comes, must not
// hold the connection for ever.
func TestARefusalDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo, Tokens: map[string]plugin.Secret{"a": secretToken}, BodyTimeout: 300 * time.Millisecond})
	auth := "Authorization: Bearer " + secretToken + "\r\n"
	for name, tt := range map[string]struct {
		start  string
		header string
		status int
	}{
		"method":   {"PUT /lowkey/turn", auth, 405},
		"token":    {"POST /lowkey/turn", "", 401},
		"type":     {"POST /lowkey/turn", auth + "Content-Type: text/plain\r\n", 415},
		"encoding": {"POST /lowkey/turn", auth + "Content-Encoding: br\r\n", 415},
		"path":     {"POST /lowkey", auth, 404},
		"health":   {"GET /healthz", "", 200},
		"ready":    {"POST /readyz", "", 405},
	} {
		for _, framing := range []string{"Content-Length: 1000\r\n", "Content-Length: 1000000000\r\n", "Transfer-Encoding: chunked\r\n"} {
			t.Run(name+" "+framing[:len(framing)-2], func(t *testing.T) {
				t.Parallel()
				c, err := net.Dial("tcp", h.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: h\r\n%s%s\r\n5\r\n{    ", tt.start, tt.header, framing); err != nil {
					t.Fatal(err)
				}
				_ = c.SetReadDeadline(time.Now().Add(patience / 2))
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode != tt.status {
					t.Errorf("%s, want %d", res.Status, tt.status)
				}
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Errorf("the connection is still open: %v", err)
				}
			})
		}
	}
}
