package echo_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/adapters/echo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExercise(t *testing.T) {
	adaptertest.Suite{External: true}.Exercise(t, func() adapters.Adapter { return echo.New() })
}

func TestEcho(t *testing.T) {
	t.Parallel()
	tests := []struct {
		message, text string
		chunks        int
	}{
		{"hello", "hello", 1},
		{"", "", 0},
		{"two\n\nparagraphs 👩🏽‍🚀", "two\n\nparagraphs 👩🏽‍🚀", 1},
		{"script:\n{\"error\":\"no\"}", "script:\n{\"error\":\"no\"}", 1},
		{"half \xf0\x9f", "half \uFFFD\uFFFD", 2}, // the writer repairs what no host may send
	}
	for _, tt := range tests {
		res := adaptertest.Run(t.Context(), echo.Adapter{}, adaptertest.NewTurn(tt.message))
		if res.Err != nil || res.Text() != tt.text || len(res.Chunks) != tt.chunks {
			t.Errorf("echo of %q: text %q in %d chunks, error %v; want %q in %d", tt.message, res.Text(), len(res.Chunks), res.Err, tt.text, tt.chunks)
		}
		want := adapters.Usage{Tokens: adapters.Count(1), CostMicros: adapters.Count(0), Steps: adapters.Count(1)}
		if tt.message == "" {
			want.Tokens = adapters.Count(0)
		}
		if res.Usage != want {
			t.Errorf("echo of %q: usage %+v, want %+v", tt.message, res.Usage, want)
		}
	}
}

func TestEchoReturnsTheErrorOfAWrite(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(adapters.CauseHostGone)
	for _, message := range []string{"hello", ""} {
		res := adaptertest.Run(ctx, echo.New(), adaptertest.NewTurn(message))
		if !errors.Is(res.Err, adapters.ErrTurnOver) || !errors.Is(res.Err, adapters.CauseHostGone) {
			t.Errorf("echo of %q to a host that is gone: error %v, want %v because of %v", message, res.Err, adapters.ErrTurnOver, adapters.CauseHostGone)
		}
	}
}

func ExampleNew() {
	res := adaptertest.Run(context.Background(), echo.New(), adaptertest.NewTurn("hello, hello"))
	fmt.Println(res.Text())
	// Output: hello, hello
}
