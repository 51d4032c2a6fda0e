package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// The smallest adapter there is.
var hello = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	return w.Text("Hello, " + turn.Message + "!")
})

// A turn as Lowkey sends it.
const turn = `{
	"protocolVersion": 1,
	"pluginId": "muse",
	"sessionHandle": {"id": "s-1", "projectPath": "/srv/project", "sessionId": "s-1", "agentId": "muse"},
	"turn": {"turnId": "t-1", "message": "world", "headless": false},
	"transcriptWindow": [],
	"limits": {"transcriptWindowMessages": 40}
}`

// send posts a turn and prints the answer.
func send(url string) {
	res, err := http.Post(url, "application/json", strings.NewReader(turn))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	fmt.Println(res.Status)
	if _, err := io.Copy(os.Stdout, res.Body); err != nil {
		log.Fatal(err)
	}
}

var quietly = slog.New(slog.DiscardHandler)

func ExampleNew() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Logger: quietly})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(p)
	defer server.Close()

	send(server.URL + "/lowkey/turn")
	// Output:
	// 200 OK
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"Hello, world!"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
}

// A plugin inside a server of yours, under a prefix and behind middleware of your own.
func ExampleNew_mount() {
	counted := map[string]int{}
	counting := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			counted[r.Method]++
		})
	}
	p, err := plugin.New(plugin.Config{
		ID:         "muse",
		Adapter:    hello,
		Prefix:     "/agents/muse",
		Middleware: []func(http.Handler) http.Handler{counting},
		Logger:     quietly,
	})
	if err != nil {
		log.Fatal(err)
	}
	m := http.NewServeMux()
	m.Handle("/agents/muse/", p)
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "the rest of the server") })
	server := httptest.NewServer(m)

	send(server.URL + "/agents/muse/lowkey/turn")
	server.Close() // waits for the middleware too
	fmt.Println(counted["POST"], "POST")
	// Output:
	// 200 OK
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"Hello, world!"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
	// 1 POST
}

// All that is wrong with a configuration is told at once.
func ExampleNew_wrong() {
	_, err := plugin.New(plugin.Config{
		Adapter:  hello,
		TurnPath: "turn",
		Tokens:   map[string]plugin.Secret{"platform": "short"},
	})
	var wrong *plugin.ConfigError
	fmt.Println(errors.As(err, &wrong))
	fmt.Println(strings.ReplaceAll(err.Error(), "; ", "\n"))
	// Output:
	// true
	// ID is empty: name the plugin that the adapter answers for
	// TurnPath is "turn", want a path that begins with a slash
	// Tokens: the token "platform" is shorter than 16 bytes: use a long random one
}

// Serve runs until its context is done, or until the process is told to end.
func ExampleServe() {
	ctx, cancel := context.WithCancel(context.Background())
	err := plugin.Serve(ctx, plugin.Config{
		ID:      "muse",
		Adapter: hello,
		Listen:  "127.0.0.1:0",
		Drain:   10 * time.Second,
		Logger:  quietly,
		OnListen: func(addr net.Addr) {
			go func() {
				send("http://" + addr.String() + "/lowkey/turn")
				cancel()
			}()
		},
	})
	fmt.Println("served:", err)
	// Output:
	// 200 OK
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"Hello, world!"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
	// served: <nil>
}

// A server that others can reach asks its callers for a token.
func ExampleServe_token() {
	err := plugin.Serve(context.Background(), plugin.Config{ID: "muse", Adapter: hello, Listen: ":8787"})
	fmt.Println(err)
	// Output:
	// listening on :8787 without a token lets anybody run turns: set a token, listen on 127.0.0.1, or say that it is meant to be insecure
}

func ExamplePlugin_ListenAndServe() {
	ctx, cancel := context.WithCancel(context.Background())
	p, err := plugin.New(plugin.Config{
		ID:       "muse",
		Adapter:  hello,
		Listen:   "127.0.0.1:0",
		Logger:   quietly,
		OnListen: func(net.Addr) { cancel() }, // enough for an example
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.ListenAndServe(ctx))
	// Output: <nil>
}

func ExamplePlugin_ServeListener() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Logger: quietly})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- p.ServeListener(ctx, ln) }()

	res, err := http.Get("http://" + ln.Addr().String() + "/readyz")
	if err != nil {
		log.Fatal(err)
	}
	_ = res.Body.Close()
	fmt.Println(res.Status)
	cancel()
	fmt.Println(<-served)
	// Output:
	// 200 OK
	// <nil>
}

// A program that mounts a plugin drains it before it shuts its server down.
func ExamplePlugin_Drain() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Logger: quietly})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(p)
	defer server.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println("drained:", p.Drain(ctx))
	send(server.URL + "/lowkey/turn")
	// Output:
	// drained: <nil>
	// 503 Service Unavailable
	// {"protocolVersion":1,"type":"error","content":"The server is shutting down: send the turn again in a moment."}
}

// A middleware that hides what the server's ResponseWriter can do.
type hiding struct{ http.ResponseWriter }

func ExamplePlugin_CheckMiddleware() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Logger: quietly})
	if err != nil {
		log.Fatal(err)
	}
	chain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.ServeHTTP(hiding{w}, r) })
	fmt.Println(p.CheckMiddleware(p))
	fmt.Println(p.CheckMiddleware(chain))
	// Output:
	// <nil>
	// a middleware's ResponseWriter is in the way (give it a method Unwrap() http.ResponseWriter): flushing: feature not supported
}

func ExamplePlugin_TurnURL() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Prefix: "/agents"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.TurnURL("127.0.0.1:8787"))
	// Output: http://127.0.0.1:8787/agents/lowkey/turn
}

func ExamplePlugin_Stats() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: hello, Logger: quietly})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(p)
	send(server.URL + "/lowkey/turn")
	send(server.URL + "/lowkey/turn") // the same turn again is replayed, not run
	server.Close()
	s := p.Stats()
	fmt.Println(s.Turns.Total, "turn,", s.Turns.Active, "active,", s.Sessions.Entries, "session")
	// Output:
	// 200 OK
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"Hello, world!"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
	// 200 OK
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"Hello, world!"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
	// 1 turn, 0 active, 1 session
}

// Hooks are where metrics and traces come in.
func ExampleHooks() {
	p, err := plugin.New(plugin.Config{
		ID:      "muse",
		Adapter: hello,
		Logger:  quietly,
		Hooks: []plugin.Hooks{{
			TurnEnd: func(_ context.Context, t plugin.TurnInfo, o *plugin.Outcome) {
				fmt.Println(t.PluginID, t.TurnID, "ended as", string(o.Cause), "with", o.Bytes, "bytes")
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(p)
	res, err := http.Post(server.URL+"/lowkey/turn", "application/json", strings.NewReader(turn))
	if err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	server.Close()
	// Output: muse t-1 ended as completed with 13 bytes
}
