package cli_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	goruntime "runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/backline-dev/backline/internal/cli"
)

// TestMain puts a program "backline" into the path, which is this test binary: what the tests start is
// the command as it is, in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(leakTest{m}, map[string]func(){
		"backline": func() {
			os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Streams{
				In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Environ(),
			}))
		},
	})
}

type leakTest struct{ m *testing.M }

func (l leakTest) Run() int {
	// A shell starts what it runs in the background with interrupts ignored, and what is started from here
	// would ignore them too. Taking notice of them ends that.
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	// Most of these tests wait for processes. Side by side they take half the time.
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(3*goruntime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	code := l.m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
