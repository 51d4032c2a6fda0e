// Gen writes the published schemas, which are generated from the wire types. It is run by go generate:
//
//	gen FILE            the schema of Lowkey's external turn protocol
//	gen -external DIR   the schemas of agent.external-runtime, one file for each document
//	gen -keiki DIR      the schemas of Keiki's requests, one file for each kind
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/backline-dev/backline/internal/schemagen"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1:
		err = lowkey(args[0])
	case len(args) == 2 && args[0] == "-external":
		err = several(args[1], schemagen.External)
	case len(args) == 2 && args[0] == "-keiki":
		err = several(args[1], schemagen.Keiki)
	default:
		fmt.Fprintln(os.Stderr, "usage: gen FILE | gen -external DIR | gen -keiki DIR")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func lowkey(file string) error {
	doc, err := schemagen.Lowkey()
	if err != nil {
		return err
	}
	return os.WriteFile(file, doc, 0o644)
}

func several(dir string, generate func() (map[string][]byte, error)) error {
	files, err := generate()
	if err != nil {
		return err
	}
	for name, doc := range files {
		if err := os.WriteFile(filepath.Join(dir, name), doc, 0o644); err != nil {
			return err
		}
	}
	return nil
}
