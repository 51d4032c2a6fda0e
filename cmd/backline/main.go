// Backline hosts agents behind the platforms that run external agents; see `backline --help`.
package main

import (
	"context"
	"os"

	"github.com/backline-dev/backline/internal/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Environ(),
	}))
}
