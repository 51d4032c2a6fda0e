package keiki_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// FuzzHandler: whatever is signed, it is answered 200, 202, 400, 401, 404 or 409 with JSON; nothing panics,
// and no turn is left behind.
func FuzzHandler(f *testing.F) {
	odd, err := os.ReadFile("testdata/keiki-odd-body.json")
	if err != nil {
		f.Fatal(err)
	}
	turn := `{"type":"keiki.turn","version":1,"turnId":"turn-1","agentId":"agent-1","conversationId":"c","messages":[{"text":"hi","screening":{"flagged":true}},{"text":"","silent":true}],"history":[{"role":"agent","content":[{"text":"x"}],"time":1}],"deadline":%s,"keiki":{"apiBase":"http://keiki.example/api/v1","turnUrl":"http://keiki.example/api/v1/turns/turn-1","mcpUrl":""}}`
	for _, seed := range []string{
		string(odd), "", "[", "{}", `{"type":"keiki.turn"}`, `{"agentId":"agent-1","agentId":"agent-1"}`,
		fmt.Sprintf(turn, `"2099-01-01T00:00:00Z"`), fmt.Sprintf(turn, "4070908800"), fmt.Sprintf(turn, "0"), fmt.Sprintf(turn, "null"),
		fmt.Sprintf(turn, `"9999-12-31T23:59:59.999999999Z"`), fmt.Sprintf(turn, "99999999999999"),
		`{"type":"keiki.turn.arrival","version":1,"turnId":"turn-1","agentId":"agent-1","sequence":9007199254740991,"messages":[]}`,
		`{"type":"keiki.turn.cancelled","turnId":"turn-1","agentId":"agent-1"}`,
	} {
		f.Add([]byte(seed), "", true)
		f.Add([]byte(seed), "turn-1", false)
	}
	silent := slog.New(slog.DiscardHandler)
	engine, err := runtime.New(runtime.Config{Logger: silent})
	if err != nil {
		f.Fatal(err)
	}
	handlers := map[bool]*keiki.Handler{}
	for _, byAgent := range []bool{false, true} {
		secrets := keiki.Secrets{Any: []secret.Text{testSecret}}
		if byAgent {
			secrets = keiki.Secrets{Agents: map[string][]secret.Text{"agent-1": {testSecret}}}
		}
		handlers[byAgent], err = keiki.New(keiki.PushConfig{
			Config:  keiki.Config{Engine: engine, Adapter: taker{answersOne}, Transport: yes, Logger: silent},
			Secrets: secrets,
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Cleanup(func() {
		for _, h := range handlers {
			if err := h.Drain(context.Background()); err != nil {
				f.Error(err)
			}
			h.Wait()
		}
		if n := engine.Stats().Active; n != 0 {
			f.Errorf("%d turns are left", n)
		}
	})
	f.Fuzz(func(t *testing.T, body []byte, header string, byAgent bool) {
		r := httptest.NewRequest(http.MethodPost, "/keiki/turn", bytes.NewReader(body))
		r.Header.Set(keiki.SignatureHeader, keiki.Sign(testSecret, body, time.Now()))
		r.Header.Set(keiki.TokenHeader, "ht_x")
		if req, err := wire.ParseRequest(body); err == nil && header == "" {
			header = req.TurnID()
		}
		r.Header[keiki.TurnIDHeader] = []string{header}
		w := httptest.NewRecorder()
		handlers[byAgent].ServeHTTP(w, r)
		if !slices.Contains([]int{200, 202, 400, 401, 404, 409}, w.Code) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		var answer struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || (w.Code >= 400) != (answer.Error.Code != "") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w.Code >= 400 && strings.Contains(w.Body.String(), testSecret) && !bytes.Contains(body, []byte(testSecret)) {
			t.Errorf("the secret is in %s", w.Body)
		}
	})
}

// FuzzSignatureHeader: no header of one's own invention gets anything but 401 (fault E3).
func FuzzSignatureHeader(f *testing.F) {
	v := readVectors(f)
	for _, c := range v.Cases {
		if c.Header != nil {
			f.Add(*c.Header)
		}
	}
	silent := slog.New(slog.DiscardHandler)
	engine, err := runtime.New(runtime.Config{Logger: silent})
	if err != nil {
		f.Fatal(err)
	}
	h, err := keiki.New(keiki.PushConfig{
		Config:  keiki.Config{Engine: engine, Adapter: says(), Transport: yes, Logger: silent, Now: func() time.Time { return v.now }},
		Secrets: keiki.Secrets{Any: []secret.Text{v.Secret, v.Retired}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(h.Wait)
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequest(http.MethodPost, "/keiki/turn", bytes.NewReader(v.body))
		r.Header[keiki.SignatureHeader] = []string{header}
		r.Header.Set(keiki.TurnIDHeader, "turn-1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		good := keiki.Verify(header, v.body, []secret.Text{v.Secret, v.Retired}, v.now, keiki.DefaultTolerance) == nil
		if good && w.Code != 200 && w.Code != 202 || !good && w.Code != 401 {
			t.Errorf("%q: %d %s", header, w.Code, w.Body)
		}
	})
}

// answersOne takes what has come by now, and answers.
func answersOne(_ context.Context, in <-chan adapters.Arrival, w adapters.Writer) error {
	select {
	case <-in:
	default:
	}
	return w.Text("hi")
}
