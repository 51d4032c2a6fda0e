package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

func exampleFile() (path string, remove func()) {
	dir, err := os.MkdirTemp("", "backline-example-*")
	if err != nil {
		panic(err)
	}
	return filepath.Join(dir, "ledger.db"), func() { _ = os.RemoveAll(dir) }
}

// What is committed outlives the process: the next one recovers it.
func ExampleOpen() {
	ctx := context.Background()
	path, remove := exampleFile()
	defer remove()
	noon := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	for range 2 {
		s, err := sqlite.Open(ctx, path, sqlite.Config{})
		if err != nil {
			fmt.Println(err)
			return
		}
		did, err := s.Recover(ctx, noon, nil)
		if err != nil {
			fmt.Println(err)
		}
		for _, t := range did.Unknown {
			fmt.Println(t.Ref, "is", t.Outcome.Status)
		}
		v, err := s.Reserve(ctx, ledger.Reservation{
			Request: ledger.Request{
				Key: "key:1", Digest: "sha256:request", Mode: ledger.Start, Turn: "turn:1", Identity: "sha256:identity",
				Agent: "agent:reviewer", Binding: "binding:reviewer",
			},
			Dispatch: true,
			At:       noon,
		})
		fmt.Println(v.Decision, err)
		if err := s.Close(); err != nil { // the turn never ended
			fmt.Println(err)
		}
	}
	// Output:
	// fresh <nil>
	// turn:1 is unknown
	// ended <nil>
}

func ExampleNew() {
	ctx := context.Background()
	path, remove := exampleFile()
	defer remove()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }() // nothing is left to lose
	s, err := sqlite.New(ctx, db, sqlite.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Ping(ctx), s.Close())
	// Output: <nil> <nil>
}

// A ledger may be looked at while a server has it.
func ExampleOpenReader() {
	ctx := context.Background()
	path, remove := exampleFile()
	defer remove()
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }() // nothing is left to lose
	r, err := sqlite.OpenReader(ctx, path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Close() }() // nothing is left to lose
	page, err := r.ListTurns(ctx, ledger.TurnQuery{Newest: true})
	fmt.Println(len(page.Turns), err)
	// Output: 0 <nil>
}
