package external_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	// Most of these tests wait most of the time, so several for each processor are no burden.
	flag.Parse()
	const parallel = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == parallel })
	if !given {
		if err := flag.Set(parallel, "6"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
