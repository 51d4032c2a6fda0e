package sqlite

import (
	"context"
	"fmt"
)

// LimitPages makes the disk full at so many pages beyond what the file has now.
func (s *Store) LimitPages(ctx context.Context, more int) error {
	return s.write(ctx, func(w *writer) error {
		var n int
		if _, err := w.one(`PRAGMA page_count`, nil, &n); err != nil {
			return err
		}
		_, err := w.one(fmt.Sprintf(`PRAGMA max_page_count = %d`, n+more), nil, &n)
		return err
	})
}

// Queued is how many changes wait for the writer.
func (s *Store) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Pragmas are the settings of every connection of the store.
func (s *Store) Pragmas(ctx context.Context, names ...string) ([]map[string]string, error) {
	conns := []*conn{s.writer.conn, s.copier}
	for range s.n {
		c := <-s.conns
		defer func() { s.conns <- c }()
		conns = append(conns, c)
	}
	var all []map[string]string
	for _, c := range conns {
		m := map[string]string{}
		for _, name := range names {
			var v string
			if err := c.sql.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v); err != nil {
				return nil, err
			}
			m[name] = v
		}
		all = append(all, m)
	}
	return all, nil
}
