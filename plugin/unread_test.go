package plugin_test

import (
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/backline-dev/backline/plugin"
)

// TestOverHTTP2ABodyThatNobodyReadsEndsNoConnection: others have their streams on it.
func TestOverHTTP2ABodyThatNobodyReadsEndsNoConnection(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echo})
	h = h.speak(t, "HTTP/2")
	for i := range 3 {
		var reused bool
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "http://"+h.addr+"/healthz", strings.NewReader("nobody reads this"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := h.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || i > 0 && !reused {
			t.Errorf("request %d: status %d, on a connection that was there: %t", i, res.StatusCode, reused)
		}
	}
}
