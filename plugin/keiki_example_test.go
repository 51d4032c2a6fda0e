package plugin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// An agent that is not always online claims its turns by polling.
func ExamplePollInbox() {
	// A platform with nothing to do.
	platform := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, `{"turn": null}`)
	}))
	defer platform.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := plugin.PollInbox(ctx, plugin.Config{
		ID: "muse",
		Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			return w.Text("You said: " + turn.Message)
		}),
		Keiki: &plugin.Keiki{
			APIBase: platform.URL + "/api/v1",
			Inbox:   &plugin.KeikiInbox{APIKey: "sk_test_not-a-real-one"},
		},
	})
	fmt.Println(err)
	// Output: <nil>
}
