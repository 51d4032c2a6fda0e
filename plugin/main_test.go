package plugin_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(benchServer); kind != "" {
		fmt.Fprintln(os.Stderr, serveBench(kind))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
