package external_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/external"
	"github.com/backline-dev/backline/runtime/ledger"
)

// reviewer is the adapter of the examples.
var reviewer = adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if err := w.Text("Read with care: " + turn.Message); err != nil {
		return err
	}
	return w.Usage(adapters.Usage{Tokens: adapters.Count(12), CostMicros: adapters.Count(1)})
})

func newHandler() *external.Handler {
	engine, err := runtime.New(runtime.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	h, err := external.New(external.Config{
		Engine:  engine,
		Store:   ledger.NewMemory(ledger.MemoryConfig{}),
		Adapter: reviewer,
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	return h
}

// The documents and the request of an example, which an operator and a host would send.
func exampleDocuments() (profile, binding, request []byte) {
	b := aBinding().sealed()
	return aProfile().json(), b.json(), aRequest("turn:1", "a bounded proposal").json()
}

// A server admits the documents of a directory, finds out what an earlier process left open, and serves.
func Example() {
	profile, binding, request := exampleDocuments()
	dir, err := os.MkdirTemp("", "admissions")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, doc := range map[string][]byte{"profile.json": profile, "binding.json": binding} {
		if err := os.WriteFile(filepath.Join(dir, name), doc, 0o600); err != nil {
			log.Fatal(err)
		}
	}

	h := newHandler()
	ctx := context.Background()
	if _, err := h.LoadAdmissions(ctx, dir); err != nil {
		log.Fatal(err)
	}
	if _, err := h.Recover(ctx); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()

	r, err := http.Post(server.URL+"/external-runtime/turns", "application/json", strings.NewReader(string(request)))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	stream, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(stream)) {
		kind := line[strings.Index(line, `"kind":"`)+8:]
		fmt.Println(kind[:strings.IndexByte(kind, '"')])
	}
	// Output:
	// progress
	// progress
	// product-candidate
	// usage
	// turn-outcome
}

func ExampleNew() {
	_, err := external.New(external.Config{Epoch: "two words"})
	fmt.Println(err)
	// Output:
	// external: Engine is nil
	// external: Store is nil
	// external: no adapter: neither Adapter nor Adapters is set
	// external: Epoch "two words" is no ref: want 1 to 512 characters without white space
}

func ExampleHandler_ServeHTTP() {
	h := newHandler()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/external-runtime/turns/turn%3A1", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 404 application/problem+json
}

func ExampleHandler_LoadAdmissions() {
	dir, err := os.MkdirTemp("", "admissions")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	profile, _, _ := exampleDocuments()
	for name, doc := range map[string]string{"good.json": string(profile), "bad.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(doc), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	results, err := newHandler().LoadAdmissions(context.Background(), dir)
	for _, r := range results {
		if r.Err == nil {
			fmt.Println(r.File, r.Kind, r.Ref, r.Change)
		}
	}
	fmt.Println(err)
	// Output:
	// good.json profile profile:fake admitted
	// admissions: bad.json: its schema is neither agent.external-runtime.profile.v1 nor agent.external-runtime.binding.v1
}

func ExampleHandler_Recover() {
	r, err := newHandler().Recover(context.Background())
	fmt.Println(len(r.Unknown), "turns have an end that nobody saw,", err)
	// Output: 0 turns have an end that nobody saw, <nil>
}

func ExampleHandler_Drain() {
	h := newHandler()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(h.Drain(ctx))
	// Output: <nil>
}

func ExampleHandler_Sweep() {
	fmt.Println(newHandler().Sweep(context.Background()))
	// Output: <nil>
}
