package plugin_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/schema/keiki"
)

// TestKeikiSchemasAreServed: under their files' names, and only where Keiki is.
func TestKeikiSchemasAreServed(t *testing.T) {
	t.Parallel()
	for _, with := range []bool{true, false} {
		conf := plugin.Config{ID: "muse", Adapter: adapters.Func(nothing)}
		want := http.StatusNotFound
		if with {
			conf.Keiki, want = &plugin.Keiki{}, http.StatusOK
		}
		p, err := plugin.New(conf)
		if err != nil {
			t.Fatal(err)
		}
		schemas := map[string][]byte{keiki.ClaimSchemaFile: keiki.ClaimSchema()}
		for _, kind := range keiki.Kinds() {
			schemas[keiki.SchemaFile(kind)] = keiki.Schema(kind)
		}
		for name, schema := range schemas {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/schemas/keiki/"+name, nil))
			if w.Code != want || with && w.Body.String() != string(schema) {
				t.Errorf("%s: %d %.100s", name, w.Code, w.Body)
			}
		}
	}
}

func nothing(context.Context, *adapters.Turn, adapters.Writer) error { return nil }
