package lowkey_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
)

// Wait waits for streams that are open, and no longer than it may.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, engine := newHandler(t, adapters.Func(func(context.Context, *adapters.Turn, adapters.Writer) error {
			time.Sleep(10 * time.Second)
			return nil
		}), runtime.Config{})
		began := time.Now()
		h.Wait(t.Context()) // there is nothing to wait for
		if took := time.Since(began); took != 0 {
			t.Errorf("Wait took %v although no stream is open", took)
		}
		w := httptest.NewRecorder()
		go h.ServeHTTP(w, httptest.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, "/lowkey/turn", strings.NewReader(`{
			"protocolVersion": 1, "pluginId": "muse",
			"sessionHandle": {"id": "s", "projectPath": "", "sessionId": "s", "agentId": "a"},
			"turn": {"turnId": "t", "message": "", "headless": true},
			"transcriptWindow": [], "limits": {"transcriptWindowMessages": 0}
		}`)))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		h.Wait(ctx)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("Wait took %v, want as long as it may", took)
		}
		h.Wait(t.Context())
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("Wait took %v, want until the stream ends", took)
		}
		synctest.Wait()
		checkBody(t, w.Code, w.Body.Bytes())
		engine.WaitAdapters()
	})
}
