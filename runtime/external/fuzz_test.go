package external_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// obedient is an adapter that does what its message says, without ever waiting: a message that begins with
// a brace is emitted as a candidate, one that begins with "tool" is the input of a tool, one with "ask" of a
// question, one with "fail" an error; anything is text, three bytes at a time.
var obedient = adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	input, err := json.Marshal(map[string]string{"q": turn.Message})
	if err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(turn.Message, "{"):
		err = w.Candidate(json.RawMessage(turn.Message))
	case strings.HasPrefix(turn.Message, "tool"):
		_, err = w.Tool(ctx, adapters.ToolRequest{Ref: "tool:x", Schema: "x.v1", Input: input})
	case strings.HasPrefix(turn.Message, "ask"):
		_, err = w.Ask(ctx, adapters.Question{Schema: "x.v1", Question: input})
	case strings.HasPrefix(turn.Message, "fail"):
		err = errors.New(turn.Message)
	}
	if err != nil {
		return err
	}
	for rest := turn.Message; rest != ""; {
		n := min(3, len(rest))
		if _, err := w.Write([]byte(rest[:n])); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return errors.Join(turn.Session.Store("message", turn.Message), w.Usage(adapters.Usage{
		Tokens: adapters.Count(int64(len(turn.Message))), CostMicros: adapters.Count(2), WallTimeMS: adapters.Count(5), Steps: adapters.Count(1),
	}))
})

// FuzzHandler sends any body, with any type and encoding, as a turn request, a profile or a binding. Whatever
// it is, the handler does not panic, the answer is a problem, a document or a whole stream, and not a failure
// of ours, and no adapter is called for what is refused. The same body again is answered in the same way.
func FuzzHandler(f *testing.F) {
	const turns, profiles, bindings = 0, 1, 2
	files, err := filepath.Glob("../../schema/external/testdata/*valid/*.json")
	if err != nil || len(files) < 10 {
		f.Fatalf("the contract's examples: %v, %v", files, err)
	}
	seed := func(where uint8, body []byte) { f.Add(where, body, "application/json", "") }
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for where := range uint8(3) {
			seed(where, doc)
		}
	}
	good := aRequest("turn:1", "Review the bounded proposal.")
	for _, q := range []doc{
		good, good.with(input("a", "b")...), good.with(input("tool")...), good.with(input("ask")...), good.with(input("fail")...),
		good.with(input(string(candidateOf("turn:1")))...), good.with(input(string(candidateOf("turn:1", "seq/no", 3, "event/ref", "e", "at", "2999-01-01T00:00:00Z")))...),
		good.with(input(candidateTool())...), good.with("passage/no", 9), good.with("binding/ref", "binding:none"),
		good.with("classification", label("Public")), good.with("deadline/at", "2000-01-01T00:00:00Z"),
		good.with("budget/reservation", budget(9999, 1, 1, 1)), good.with("input/digest", wire.ContentDigest(nil)),
		good.answering("key:c", "request:1"),
	} {
		seed(turns, q.json())
	}
	seed(profiles, aProfile().json())
	seed(bindings, aBinding().sealed().json())
	seed(bindings, aBinding().json())
	f.Add(uint8(turns), []byte("\x1f\x8b"), "", "gzip")
	f.Add(uint8(turns), zip(f, good.json()), "", "gzip")

	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, where uint8, body []byte, contentType, encoding string) {
		// Nothing of this waits for anything.
		defer time.AfterFunc(patience, func() { panic(fmt.Sprintf("the handler hangs after %q", body)) }).Stop()
		engine, err := runtime.New(runtime.Config{Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		adapter := &counter{Adapter: obedient}
		h, err := external.New(external.Config{
			Engine: engine, Store: ledger.NewMemory(ledger.MemoryConfig{}), Adapter: adapter, OperatorToken: operatorToken, Logger: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.WaitAdapters()
		serveIn(t, h, "PUT", "profiles/"+profileRef, aProfile())
		serveIn(t, h, "PUT", "bindings/"+bindingRef, aBinding().sealed())

		send := func() reply {
			method, path := "POST", "turns"
			if where > 0 {
				var named map[string]json.RawMessage
				var ref string
				field := map[uint8]string{1: "profile", 0: "binding"}[where%2]
				_ = json.Unmarshal(body, &named)
				if json.Unmarshal(named[field+"/ref"], &ref) != nil || ref == "" {
					ref = "ref"
				}
				method, path = "PUT", field+"s/"+url.PathEscape(ref)
			}
			r := httptest.NewRequestWithContext(context.Background(), method, "/external-runtime/"+path, bytes.NewReader(body))
			r.Header["Content-Type"], r.Header["Authorization"] = []string{contentType}, []string{"Bearer " + operatorToken}
			if encoding != "" {
				r.Header["Content-Encoding"] = []string{encoding}
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return reply{t, w.Code, w.Header(), w.Body.String(), nil}
		}
		first := send()
		check(t, first, adapter.calls.Load())
		// A request that was not refused may have left a turn that waits for an answer of ours.
		if first.status == http.StatusOK && where == turns {
			if e := first.events()[0]; first.last().Kind != wire.EventTurnOutcome {
				if r := serveIn(t, h, "POST", "turns/"+url.PathEscape(string(e.TurnRef))+"/cancel", nil); r.status != http.StatusOK {
					t.Errorf("cancel: %d %s", r.status, r.body)
				}
			}
		}
		calls := adapter.calls.Load()
		again := send()
		check(t, again, adapter.calls.Load())
		if adapter.calls.Load() != calls || where == turns && (again.body != first.body || again.status != first.status) {
			t.Errorf("sent again, the answer to %s is %d\n%s\nand was %d\n%s", body, again.status, again.body, first.status, first.body)
		}
		engine.WaitAdapters()
		if s := engine.Stats(); s.Active != 0 {
			t.Errorf("a turn is left: %+v", s)
		}
		if where != turns || encoding != "" || first.status == http.StatusUnsupportedMediaType {
			return
		}
		// What was accepted is what the decoder accepts.
		q, err := wire.ParseTurnRequest(body)
		switch {
		case err != nil:
			if first.status != http.StatusBadRequest {
				t.Errorf("%d for what is no request: %v", first.status, err)
			}
		case first.status == http.StatusBadRequest:
			t.Errorf("refused a good request: %s", first.body)
		case first.status == http.StatusOK:
			if e := first.events()[0]; e.TurnRef != q.TurnRef {
				t.Errorf("the stream is of %s, the request of %s", e.TurnRef, q.TurnRef)
			}
		}
	})
}

// check holds an answer to what every answer must be.
func check(t *testing.T, r reply, calls int64) {
	t.Helper()
	if !utf8.ValidString(r.body) {
		t.Errorf("the body is not UTF-8: %q", r.body)
	}
	switch r.header.Get("Content-Type") {
	case "application/x-ndjson":
		if r.status != http.StatusOK {
			t.Errorf("a stream with status %d", r.status)
		}
		r.grammatical(aProfile())
		all := r.events()
		if refused := len(all) == 1 && all[0].Kind == wire.EventTurnOutcome; refused != (calls == 0) {
			t.Errorf("%d adapter calls for the stream\n%s", calls, r.body)
		}
		if len(all) == 1 && all[0].Status != wire.StatusRefused {
			t.Errorf("a stream of one line that is no refusal:\n%s", r.body)
		}
		return
	case "application/problem+json":
		if r.status < 400 || r.status >= 500 {
			t.Errorf("a problem with status %d: %s", r.status, r.body)
		}
		r.problem(r.status)
	case "application/json":
		if r.status != http.StatusOK && r.status != http.StatusCreated || !json.Valid([]byte(r.body)) {
			t.Errorf("a document with status %d: %s", r.status, r.body)
		}
	default:
		t.Errorf("%d with the Content-Type %q: %q", r.status, r.header.Get("Content-Type"), r.body)
	}
	if calls != 0 {
		t.Errorf("%d adapter calls for the answer %d %s", calls, r.status, r.body)
	}
}
