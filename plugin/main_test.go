package plugin_test

import (
	"flag"
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
	if os.Getenv(serveChild) != "" {
		os.Exit(childMain())
	}
	// The tests mostly wait for time to pass, so many of them fit on few cores.
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "32"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
