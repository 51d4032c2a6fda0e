package cli_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/script. Besides testscript's own commands there are:
//
//	exits CODE PROGRAM ARGS…   runs it and holds it to this exit code
//	oneline                    standard error of the last program is one line
//	server FLAGS…              starts backline serve on a free port; $URL is where it is
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":   scriptExits,
			"oneline": scriptOneLine,
			"server":  scriptServer,
		},
	})
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d; standard error:\n%s", code, want, ts.ReadFile("stderr"))
	}
}

func scriptOneLine(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || !strings.HasPrefix(text, "backline: ") {
		ts.Fatalf("standard error is not one line of backline's:\n%s", text)
	}
}

func scriptServer(ts *testscript.TestScript, _ bool, args []string) {
	program, err := exec.LookPath("backline")
	ts.Check(err)
	cmd := exec.Command(program, append([]string{"serve", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	cmd.Dir = ts.Getenv("WORK")
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	var log strings.Builder
	cmd.Stderr = &log
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			ts.Logf("the server ended with %v\n%s", err, log.String())
			ts.Fatalf("the server did not end well")
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		ts.Fatalf("the server says nothing: %v\n%s", err, log.String())
	}
	var at struct {
		Turns string `json:"turns"`
	}
	ts.Check(json.Unmarshal(line, &at))
	ts.Setenv("URL", strings.TrimSuffix(at.Turns, "/lowkey/turn"))
}
