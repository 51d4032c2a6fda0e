package testhost_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
)

func ExampleNewConversation() {
	p, err := plugin.New(plugin.Config{ID: "muse", Adapter: echo.New()})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(p)
	defer server.Close()

	c := testhost.NewConversation(&testhost.Lowkey{
		URL: server.URL + plugin.DefaultTurnPath, PluginID: "muse", Client: server.Client(),
	})
	for _, message := range []string{"hello", "and again"} {
		stream, err := c.Say(context.Background(), message)
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, err := stream.Answer()
		fmt.Println(answer.Text, answer.Completed(), err)
	}
	fmt.Println(len(c.Transcript), "entries")
	// Output:
	// hello true <nil>
	// and again true <nil>
	// 4 entries
}
