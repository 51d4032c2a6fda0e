package lowkey_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/lowkey"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// The cases are testdata/*.txtar, one or more requests each, sent one after another to a server of its
// own over a real socket. The comment on top says what the case guards. Its files:
//
//	server          flags of the server, one a line (see serverOf)
//	script          what the scripted adapter does, where a message is "$SCRIPT"
//	request[.NAME]  method and path, header lines, an empty line, the body (without its last line end)
//	response[.NAME] the status, some of the header, an empty line, the body as it came
//
// In a request, «ff» stands for the bytes of that hexadecimal number, and «70×text» for 70 times text.
// Header lines that are not sent:
//
//	During: NAME    the request is sent while that one's stream is open, after its first line; NAME 5: after
//	                its fifth
//	Pack: gzip      the body is compressed; "gzip cut N" leaves out its last N bytes, "gzip junk" adds some,
//	                "gzip sum" damages its checksum, "gzip parts" makes several members of it
//
// go test -update writes the responses anew.
var update = flag.Bool("update", false, "write the expected responses of testdata/*.txtar anew")

func TestCases(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runCase(t, name)
		})
	}
}

// A caseServer is the server of one case.
type caseServer struct {
	addr    string
	calls   atomic.Int64 // of adapters
	refused atomic.Int64 // Refuse hooks
	ended   atomic.Int64 // TurnEnd hooks
}

// serverOf starts the server that flags describe.
func serverOf(t *testing.T, flags string) *caseServer {
	t.Helper()
	s := &caseServer{}
	quiet := slog.New(slog.DiscardHandler)
	conf := runtime.Config{
		Logger: quiet,
		Hooks: []runtime.Hooks{{
			TurnEnd: func(context.Context, runtime.TurnInfo, *runtime.Outcome) { s.ended.Add(1) },
			Refuse:  func(context.Context, adapters.Protocol, string) { s.refused.Add(1) },
		}},
	}
	handler := lowkey.Config{
		Plugins: map[string]adapters.Adapter{"muse": s.counted(scripted.New(scripted.Config{}))},
		Tokens:  map[string]secret.Text{},
		Logger:  quiet,
	}
	duration := func(s string) time.Duration {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	drain := false
	for line := range strings.Lines(flags) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "":
		case "plugin":
			handler.Plugins[value] = handler.Plugins["muse"]
		case "token":
			name, token, _ := strings.Cut(value, " ")
			handler.Tokens[name] = secret.Text(token)
		case "max-body":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			handler.MaxBody = n
		case "keep":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			conf.Stream = ndjson.LogConfig{Keep: n}
		case "max-turns":
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			conf.MaxTurns = n
		case "refuse-busy":
			conf.RefuseBusy = true
		case "heartbeat":
			conf.Heartbeat = duration(value)
		case "turn-timeout":
			conf.TurnTimeout = duration(value)
		case "first-output":
			conf.FirstOutput = duration(value)
		case "idle":
			conf.Idle = duration(value)
		case "session-wait":
			conf.SessionWait = duration(value)
		case "grace":
			conf.Grace = duration(value)
		case "draining":
			drain = true
		default:
			t.Fatalf("no server flag is called %q", name)
		}
	}
	engine, err := runtime.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	handler.Engine = engine
	h, err := lowkey.New(handler)
	if err != nil {
		t.Fatal(err)
	}
	if drain {
		if err := engine.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(h)
	s.addr = server.Listener.Addr().String()
	t.Cleanup(func() {
		server.Close()
		engine.WaitAdapters()
		if got := engine.Stats(); got.Active != 0 || got.Abandoned != 0 || s.ended.Load() != got.Total {
			t.Errorf("in the end %+v, and %d TurnEnd hooks", got, s.ended.Load())
		}
	})
	return s
}

func (s *caseServer) counted(a adapters.Adapter) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		s.calls.Add(1)
		return a.Run(ctx, turn, w)
	})
}

// An exchange is one request of a case, and its response.
type exchange struct {
	name, during string
	after        int    // so many lines of that one
	head         string // as it is sent, with its line ends
	body         []byte

	conn net.Conn
	resp *http.Response
	read *bufio.Reader
	got  []byte // of the body
	said string // the response as the case has it
}

var tokens = regexp.MustCompile(`«(?:([0-9]+)×([^»]*)|([0-9a-f]+))»`)

// expand replaces the tokens of a request's body.
func expand(t *testing.T, s string) []byte {
	t.Helper()
	return tokens.ReplaceAllFunc([]byte(s), func(token []byte) []byte {
		m := tokens.FindSubmatch(token)
		if len(m[3]) > 0 {
			b, err := hex.DecodeString(string(m[3]))
			if err != nil {
				t.Fatalf("%s: %v", token, err)
			}
			return b
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatalf("%s: %v", token, err)
		}
		return bytes.Repeat(m[2], n)
	})
}

// pack compresses a body as a Pack line says.
func pack(t *testing.T, how string, body []byte) []byte {
	t.Helper()
	parts := [][]byte{body}
	arg := strings.TrimPrefix(strings.TrimPrefix(how, "gzip"), " ")
	if arg == "parts" {
		third := len(body) / 3
		parts = [][]byte{body[:third], body[third : 2*third], nil, body[2*third:]}
	}
	var out bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&out)
		if _, err := z.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b := out.Bytes()
	switch arg, n, _ := strings.Cut(arg, " "); arg {
	case "", "parts":
	case "junk":
		b = append(b, "junk"...)
	case "sum":
		b[len(b)-8] ^= 1
	case "cut":
		k, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		b = b[:len(b)-k]
	default:
		t.Fatalf("Pack: %s", how)
	}
	return b
}

func parseExchange(t *testing.T, name, text, script string) *exchange {
	t.Helper()
	x := &exchange{name: name}
	head, body, _ := strings.Cut(text, "\n\n")
	head = string(expand(t, head))
	body = strings.TrimSuffix(body, "\n")
	if script != "" {
		quoted, err := json.Marshal("script:\n" + strings.TrimSuffix(script, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		body = strings.ReplaceAll(body, `"$SCRIPT"`, string(quoted))
	}
	x.body = expand(t, body)
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(head, "\n"), "\n")
	fmt.Fprintf(&out, "%s HTTP/1.1\r\nHost: backline.test\r\n", lines[0])
	length := true
	for _, l := range lines[1:] {
		key, value, _ := strings.Cut(l, ": ")
		switch key {
		case "During":
			var lines string
			x.during, lines, _ = strings.Cut(value, " ")
			x.after, _ = strconv.Atoi(lines) // 0: the first
			continue
		case "Pack":
			x.body = pack(t, value, x.body)
			continue
		case "Content-Length", "Transfer-Encoding":
			length = false
		}
		out.WriteString(l + "\r\n")
	}
	if length && len(x.body) > 0 {
		fmt.Fprintf(&out, "Content-Length: %d\r\n", len(x.body))
	}
	x.head = out.String() + "\r\n"
	return x
}

// patience is how long a step of a case may take on a machine that is busy with other things.
const patience = 20 * time.Second

func (x *exchange) send(t *testing.T, s *caseServer) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	x.conn = c
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	go func() { // the server may answer before it has read all
		_, _ = io.WriteString(c, x.head)
		_, _ = c.Write(x.body)
	}()
	method, _, _ := strings.Cut(x.head, " ")
	x.resp, err = http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method}) //nolint:bodyclose // finish closes the connection //nolint:bodyclose // a raw connection, closed by its owner
	if err != nil {
		t.Fatalf("%s: %v", x.name, err)
	}
	x.read = bufio.NewReader(x.resp.Body)
}

// firstLines reads the first lines of the body.
func (x *exchange) firstLines(t *testing.T, n int) {
	t.Helper()
	for range n {
		line, err := x.read.ReadBytes('\n')
		x.got = append(x.got, line...)
		if err != nil {
			t.Fatalf("%s: the first lines: %v", x.name, err)
		}
	}
}

// finish reads the rest, and says what the response was.
func (x *exchange) finish(t *testing.T) {
	t.Helper()
	rest, err := io.ReadAll(x.read)
	x.got = append(x.got, rest...)
	if err != nil {
		t.Errorf("%s: the body: %v", x.name, err)
	}
	_ = x.conn.Close()
	x.said = x.response()
}

var (
	reference  = regexp.MustCompile(`reference [0-9a-f]{16}`)
	heartbeats = regexp.MustCompile(`(\{"protocolVersion":1,"type":"status","status":"working"\}\n){2,}`)
)

// response is the response as a case has it. What is the same for all is left out; several heartbeats
// are one, as their number depends on how busy the machine is.
func (x *exchange) response() string {
	var out strings.Builder
	fmt.Fprintln(&out, x.resp.StatusCode)
	for _, name := range []string{"Allow", "Www-Authenticate", "Retry-After"} {
		for _, v := range x.resp.Header.Values(name) {
			fmt.Fprintf(&out, "%s: %s\n", name, v)
		}
	}
	if x.resp.Close {
		fmt.Fprintln(&out, "Connection: close")
	}
	out.WriteString("\n")
	out.Write(heartbeats.ReplaceAll(reference.ReplaceAll(x.got, []byte("reference REF")), []byte("$1")))
	return out.String()
}

// check is what holds for every response.
func (x *exchange) check(t *testing.T) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Type": "application/x-ndjson; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
	} {
		if got := x.resp.Header.Get(name); got != want {
			t.Errorf("%s: %s is %q, want %q", x.name, name, got, want)
		}
	}
	refusal := x.resp.StatusCode != http.StatusOK
	if refusal == (x.resp.ContentLength < 0) {
		t.Errorf("%s: status %d with the length %d: a refusal has one, a stream has none", x.name, x.resp.StatusCode, x.resp.ContentLength)
	}
	if strings.HasPrefix(x.head, "HEAD ") {
		if len(x.got) > 0 {
			t.Errorf("%s: HEAD has the body %q", x.name, x.got)
		}
		return
	}
	checkBody(t, x.resp.StatusCode, x.got)
}

// checkBody holds a response's body to the grammar: one error event for a refusal, a whole stream
// otherwise, each line a valid event and ended.
func checkBody(t *testing.T, status int, body []byte) {
	t.Helper()
	if len(body) == 0 || body[len(body)-1] != '\n' {
		t.Errorf("the body does not end with a line end: %q", body)
	}
	var g wire.Grammar
	n := 0
	for line := range bytes.Lines(body) {
		e, err := wire.ParseEvent(line)
		if err != nil {
			t.Errorf("line %d, %q: %v", n+1, line, err)
			continue
		}
		n++
		if status != http.StatusOK {
			if e.Type != wire.EventError || e.Content == "" || n > 1 {
				t.Errorf("line %d of a refusal is %q", n, line)
			}
			continue
		}
		for _, v := range g.Next(e) {
			t.Errorf("line %d: %s", n, v)
		}
	}
	if status == http.StatusOK {
		for _, v := range g.End() {
			t.Errorf("the stream: %s", v)
		}
	}
}

func runCase(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range archive.Files {
		files[f.Name] = string(f.Data)
	}
	if len(archive.Comment) == 0 {
		t.Error("the case does not say what it guards")
	}
	var all []*exchange
	for _, f := range archive.Files {
		if name, ok := strings.CutPrefix(f.Name, "request"); ok {
			script := files["script"+name]
			if script == "" {
				script = files["script"]
			}
			all = append(all, parseExchange(t, name, string(f.Data), script))
		} else if name, _, _ := strings.Cut(f.Name, "."); name != "server" && name != "script" && name != "response" {
			t.Fatalf("%s: no file of a case is called so", f.Name)
		}
	}
	s := serverOf(t, files["server"])
	var open []*exchange
	needed := func(x *exchange, later []*exchange) bool {
		return slices.ContainsFunc(later, func(y *exchange) bool { return y.during != "" && "."+y.during == x.name })
	}
	closeOthers := func(later []*exchange) {
		open = slices.DeleteFunc(open, func(x *exchange) bool {
			if needed(x, later) {
				return false
			}
			x.finish(t)
			return true
		})
	}
	for i, x := range all {
		closeOthers(all[i:])
		before, refused := s.calls.Load(), s.refused.Load()
		x.send(t, s)
		if needed(x, all[i+1:]) {
			n := 1
			for _, y := range all[i+1:] {
				if "."+y.during == x.name {
					n = max(n, y.after)
				}
			}
			x.firstLines(t, n)
			open = append(open, x)
			continue
		}
		x.finish(t)
		if x.resp.StatusCode != http.StatusOK && len(open) == 0 {
			if s.calls.Load() != before {
				t.Errorf("%s: an adapter was called for a request that was refused", x.name)
			}
			if s.refused.Load() != refused+1 {
				t.Errorf("%s: %d Refuse hooks, want one", x.name, s.refused.Load()-refused)
			}
		}
	}
	closeOthers(nil)
	out := *archive
	out.Files = nil
	for _, x := range all {
		x.check(t)
		if want := files["response"+x.name]; !*update && x.said != want {
			t.Errorf("response%s (-want +got):\n%s", x.name, cmp.Diff(want, x.said))
		}
	}
	if !*update {
		return
	}
	for _, f := range archive.Files {
		if strings.HasPrefix(f.Name, "response") {
			continue
		}
		out.Files = append(out.Files, f)
		if name, ok := strings.CutPrefix(f.Name, "request"); ok {
			for _, x := range all {
				if x.name == name {
					out.Files = append(out.Files, txtar.File{Name: "response" + name, Data: []byte(x.said)})
				}
			}
		}
	}
	if err := os.WriteFile(file, txtar.Format(&out), 0o644); err != nil { //nolint:gosec // a file of the tree
		t.Fatal(err)
	}
}
