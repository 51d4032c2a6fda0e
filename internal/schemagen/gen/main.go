// Gen writes the schema of Lowkey's external turn protocol to the file that its argument names. It is
// run by go generate.
package main

import (
	"fmt"
	"os"

	"github.com/backline-dev/backline/internal/schemagen"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FILE")
		os.Exit(2)
	}
	doc, err := schemagen.Lowkey()
	if err == nil {
		err = os.WriteFile(os.Args[1], doc, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}
