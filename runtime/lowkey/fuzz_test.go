package lowkey_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// pieces is an adapter that writes its message three bytes at a time, with statuses in between.
var pieces = adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	for rest := turn.Message; rest != ""; {
		n := min(3, len(rest))
		if err := w.Text(rest[:n]); err != nil {
			return err
		}
		if err := w.Status(rest); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if len(turn.History) > 3 {
		return adapters.Public(turn.History[0].Content, nil)
	}
	return turn.Session.Store(turn.ID, turn.History)
})

// FuzzHandler sends any body, with any type and encoding. Whatever it is, the handler does not panic, the
// status is one that the protocol page knows, and the body is one error event or a whole stream.
func FuzzHandler(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range a.Files {
			if strings.HasPrefix(part.Name, "request") && len(part.Data) < 2000 {
				_, body, _ := strings.Cut(string(part.Data), "\n\n")
				f.Add([]byte(body), "application/json", "")
			}
		}
	}
	f.Add([]byte("\x1f\x8b"), "", "gzip")
	h, engine := newHandler(f, pieces, runtime.Config{ReplayBytes: 1 << 20})
	known := map[int]bool{
		http.StatusOK: true, http.StatusBadRequest: true, http.StatusNotFound: true, http.StatusConflict: true,
		http.StatusRequestEntityTooLarge: true, http.StatusUnsupportedMediaType: true,
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType, encoding string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/lowkey/turn", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if !known[w.Code] {
			t.Errorf("status %d", w.Code)
		}
		if !utf8.Valid(w.Body.Bytes()) {
			t.Errorf("the body is not UTF-8: %q", w.Body)
		}
		checkBody(t, w.Code, w.Body.Bytes())
		if s := engine.Stats(); s.Active != 0 {
			t.Errorf("a turn is left: %+v", s)
		}

		// What was accepted is what the decoder accepts, and the text of a turn is its message.
		var q wire.Request
		err := wire.Parse(body, &q)
		if w.Code == http.StatusOK && encoding == "" {
			if err != nil {
				t.Fatalf("accepted what is no request: %v", err)
			}
			var text strings.Builder
			for line := range bytes.Lines(w.Body.Bytes()) {
				if e, err := wire.ParseEvent(line); err == nil && e.Type == wire.EventText {
					text.WriteString(e.Content)
				}
			}
			if text.String() != q.Turn.Message {
				t.Errorf("the text is %q, the message %q", text.String(), q.Turn.Message)
			}
		}
		if err == nil && w.Code == http.StatusBadRequest && encoding == "" {
			t.Errorf("refused a good request: %s", w.Body)
		}
	})
}
