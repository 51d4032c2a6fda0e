package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A conn is a connection of a store's own, with its prepared statements. One goroutine at a time uses
// it.
type conn struct {
	sql   *sql.Conn
	stmts map[string]*sql.Stmt
}

// busyTimeout is how long SQLite itself waits for another process, before the store looks who still
// waits and tries again.
const busyTimeout = 250 * time.Millisecond

var busyPragma = fmt.Sprintf("busy_timeout = %d", busyTimeout.Milliseconds())

// The pragmas of every connection that a store uses, whatever the handle's own settings are.
func pragmas(readOnly bool) []string {
	p := []string{
		busyPragma,
		"foreign_keys = 1",
		"synchronous = FULL",
		"trusted_schema = 0",
	}
	if readOnly {
		return append(p, "query_only = 1")
	}
	return append(p,
		"wal_autocheckpoint = 0", // the writer does it, between two commits
		"journal_size_limit = 67108864",
		"cache_size = -65536", // 64 MiB at most: the refs and keys of a large ledger are far apart
		"temp_store = MEMORY", // savepoints keep what they may take back in memory, not in a file
		"recursive_triggers = 0",
		"secure_delete = ON", // what is forgotten is overwritten
	)
}

func newConn(ctx context.Context, db *sql.DB, readOnly bool) (*conn, error) {
	sc, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{sql: sc, stmts: map[string]*sql.Stmt{}}
	for _, p := range pragmas(readOnly) {
		if _, err := sc.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.sql.Close())...)
}

func (c *conn) stmt(query string) (*sql.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	s, err := c.sql.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, firstWords(query))
	}
	c.stmts[query] = s
	return s, nil
}

func firstWords(query string) string {
	words := strings.Fields(query)
	return strings.Join(words[:min(4, len(words))], " ")
}

// exec runs a statement that returns nothing, to its end: what is begun is not interrupted.
func (c *conn) exec(query string, args ...any) (int64, error) {
	s, err := c.stmt(query) //nolint:sqlclosecheck // kept for the next call, and closed with the connection
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", firstWords(query), err)
	}
	return r.RowsAffected()
}

// one scans the first row of a query, and tells whether there is one.
func (c *conn) one(query string, args []any, into ...any) (bool, error) {
	s, err := c.stmt(query) //nolint:sqlclosecheck // kept for the next call, and closed with the connection
	if err != nil {
		return false, err
	}
	err = s.QueryRowContext(context.Background(), args...).Scan(into...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", firstWords(query), err)
	}
	return true, nil
}

// all calls row for each row of a query, until the context ends.
func (c *conn) all(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) (err error) {
	s, err := c.stmt(query) //nolint:sqlclosecheck // kept for the next call, and closed with the connection
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", firstWords(query), err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
