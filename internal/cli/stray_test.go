package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestStrayLinesQuoteNothing: what net/http says of bytes that nobody asked for is told without them.
func TestStrayLinesQuoteNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := strayLines{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if _, err := s.Write([]byte("Unsolicited response received on idle HTTP channel starting with \"Bearer ht_secret\"; err=<nil>\n")); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "ht_secret") || !strings.Contains(got, "Unsolicited response received on idle HTTP channel") {
		t.Errorf("the log says %s", got)
	}
}
