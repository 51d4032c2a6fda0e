package plugin_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// A host that takes little but never stops is slow and not stalled, also when the kernel would buffer
// megabytes for it and wake the writer only once a third of them is free.
func TestASlowHostThatNeverStopsIsNotStalled(t *testing.T) {
	t.Parallel()
	addr := make(chan net.Addr, 1)
	ended := make(chan adapters.Cause, 1)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- plugin.Serve(ctx, plugin.Config{
			ID: "muse", Listen: "127.0.0.1:0", WriteTimeout: 2 * time.Second, Drain: time.Millisecond,
			Adapter: adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for line := strings.Repeat("y", 1000); ; {
					if err := w.Text(line); err != nil {
						return err
					}
				}
			}),
			Hooks:    []plugin.Hooks{{TurnEnd: func(_ context.Context, _ plugin.TurnInfo, o *plugin.Outcome) { ended <- o.Cause }}},
			OnListen: func(a net.Addr) { addr <- a },
		})
	}()
	c, err := net.Dial("tcp", (<-addr).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(turnRequest("s", "t", "go", 0)); err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, 40<<10)
	for begun := time.Now(); time.Since(begun) < 6*time.Second; time.Sleep(100 * time.Millisecond) {
		if _, err := io.ReadFull(c, piece); err != nil {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	}
	select {
	case cause := <-ended:
		t.Errorf("the turn ended with %s", cause)
	default:
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
