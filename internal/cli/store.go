package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// What --store takes.
const (
	storeMemory = "memory"
	storeSQLite = "sqlite:"
)

// A storeName is a ledger as the command line names it.
type storeName string

func storeFlag(fs *pflag.FlagSet, usage string) *storeName {
	s := storeName(storeMemory)
	fs.Var(&s, "store", usage)
	return &s
}

func (s *storeName) String() string { return string(*s) }

func (s *storeName) Type() string { return storeMemory + "|" + storeSQLite + "FILE" }

func (s *storeName) Set(v string) error {
	if file, ok := strings.CutPrefix(v, storeSQLite); v == storeMemory || ok && file != "" {
		*s = storeName(v)
		return nil
	}
	return errors.New("want memory, or sqlite: and a file, such as sqlite:turns.db")
}

// open opens the ledger; the caller closes it. A ledger in memory is a new one.
func (s storeName) open(ctx context.Context) (ledger.Store, error) {
	if file, ok := strings.CutPrefix(string(s), storeSQLite); ok {
		return sqlite.Open(ctx, file, sqlite.Config{})
	}
	return ledger.NewMemory(ledger.MemoryConfig{}), nil
}
