package lowkey_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/lowkey"
)

// The handler is an ordinary one, for whoever has a server and an engine already. Package plugin makes
// both.
func ExampleNew() {
	engine, err := runtime.New(runtime.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler, err := lowkey.New(lowkey.Config{
		Engine:  engine,
		Plugins: map[string]adapters.Adapter{"muse": echo.New()},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()

	resp, err := http.Post(server.URL+"/lowkey/turn", "application/json", strings.NewReader(`{
		"protocolVersion": 1,
		"pluginId": "muse",
		"sessionHandle": {"id": "s-1", "projectPath": "/srv/project", "sessionId": "s", "agentId": "muse"},
		"turn": {"turnId": "t-1", "message": "hello", "headless": false},
		"transcriptWindow": [],
		"limits": {"transcriptWindowMessages": 40}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	stream, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(stream))
	// Output:
	// {"protocolVersion":1,"type":"status","status":"started"}
	// {"protocolVersion":1,"type":"text","content":"hello"}
	// {"protocolVersion":1,"type":"status","status":"complete"}
}
