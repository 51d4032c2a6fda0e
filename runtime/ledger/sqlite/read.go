package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/backline-dev/backline/runtime/ledger"
)

// A pool has the connections that only read, and the methods of [ledger.Reader]. Each call takes one
// connection for one short transaction, so that no reader keeps the write-ahead log from being worked
// off for long.
type pool struct {
	path  string
	conns chan *conn
	n     int

	mu     sync.Mutex
	closed chan struct{}
}

func newPool(path string, conns []*conn) *pool {
	p := &pool{path: path, conns: make(chan *conn, len(conns)), n: len(conns), closed: make(chan struct{})}
	for _, c := range conns {
		p.conns <- c
	}
	return p
}

// close waits for the reads that are under way. Only the first call does anything.
func (p *pool) close() error {
	p.mu.Lock()
	select {
	case <-p.closed:
		p.mu.Unlock()
		return nil
	default:
	}
	close(p.closed)
	p.mu.Unlock()
	var errs []error
	for range p.n {
		errs = append(errs, (<-p.conns).close())
	}
	return errors.Join(errs...)
}

// read runs a function on one connection, and explains what went wrong.
func (p *pool) read(ctx context.Context, f func(c *conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-p.closed:
		return ledger.ErrClosed
	default:
	}
	var c *conn
	select {
	case c = <-p.conns:
	case <-p.closed:
		return ledger.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { p.conns <- c }()
	return p.explain(ctx, f(c))
}

func (p *pool) explain(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return ctx.Err()
	}
	return explain(p.path, err)
}

// snapshot runs a function in one read transaction.
func (p *pool) snapshot(ctx context.Context, f func(c *conn) error) error {
	return p.read(ctx, func(c *conn) (err error) {
		if _, err := c.exec(`BEGIN`); err != nil {
			return err
		}
		defer func() {
			_, end := c.exec(`ROLLBACK`)
			err = errors.Join(err, end)
		}()
		return f(c)
	})
}

const (
	selectTurn    = `SELECT ` + turnColumns + `, ` + outcomeColumns + ` FROM turns t LEFT JOIN outcomes o ON o.turn = t.seq`
	selectPart    = `SELECT t.ref, ` + partColumns + `, ` + endColumns + `, e.lines FROM parts p JOIN turns t ON t.seq = p.turn LEFT JOIN ends e ON e.part = p.seq`
	selectProduct = `SELECT t.ref, ` + productColumns + `, d.content FROM products d JOIN turns t ON t.seq = d.turn`
)

// Turn implements [ledger.Reader].
func (p *pool) Turn(ctx context.Context, ref ledger.TurnRef) (t ledger.Turn, err error) {
	err = p.read(ctx, func(c *conn) error {
		var turn wholeTurn
		found, err := c.one(selectTurn+` WHERE t.ref = ?`, []any{string(ref)}, turn.to()...)
		if err == nil && !found {
			return notFound("turn", ref)
		}
		if err == nil {
			t, err = turn.row()
		}
		return err
	})
	return t, err
}

// Part implements [ledger.Reader].
func (p *pool) Part(ctx context.Context, key ledger.Key) (part ledger.Part, err error) {
	err = p.read(ctx, func(c *conn) error {
		found, err := c.one(selectPart+` WHERE p.key = ?`, []any{string(key)}, wholePartTo(&part)...)
		if err == nil && !found {
			return notFound("request", key)
		}
		return err
	})
	return part, err
}

func wholePartTo(p *ledger.Part) []any {
	return append(append(append([]any{&p.Turn}, partTo(p)...), endTo(p)...), &p.Lines)
}

// Parts implements [ledger.Reader].
func (p *pool) Parts(ctx context.Context, turn ledger.TurnRef) (parts []ledger.Part, err error) {
	err = p.read(ctx, func(c *conn) error {
		return c.all(ctx, selectPart+` WHERE t.ref = ? ORDER BY p.seq`, []any{string(turn)}, func(scan func(...any) error) error {
			var part ledger.Part
			err := scan(wholePartTo(&part)...)
			parts = append(parts, part)
			return err
		})
	})
	return parts, err
}

// Product implements [ledger.Reader].
func (p *pool) Product(ctx context.Context, ref ledger.ProductRef) (product ledger.Product, err error) {
	err = p.read(ctx, func(c *conn) error {
		to := append(append([]any{&product.Turn}, productTo(&product)...), &product.Content)
		found, err := c.one(selectProduct+` WHERE d.ref = ?`, []any{string(ref)}, to...)
		if err == nil && !found {
			return notFound("product", ref)
		}
		return err
	})
	return product, err
}

// Session implements [ledger.Reader].
func (p *pool) Session(ctx context.Context, binding ledger.BindingRef) (s ledger.Session, err error) {
	err = p.read(ctx, func(c *conn) error {
		found, err := c.one(`SELECT `+sessionColumns+`, vals FROM sessions WHERE binding = ?`, []any{string(binding)}, append(sessionTo(&s), (*[]byte)(&s.Values))...)
		if err == nil && !found {
			return notFound("session of", binding)
		}
		return err
	})
	return s, err
}

// Admission implements [ledger.Reader].
func (p *pool) Admission(ctx context.Context, kind ledger.Kind, ref string) (a ledger.Admission, err error) {
	err = p.read(ctx, func(c *conn) error {
		found, err := c.one(`SELECT `+admissionColumns+` FROM admissions WHERE kind = ? AND ref = ?`, []any{string(kind), ref}, admissionTo(&a)...)
		if err == nil && !found {
			return notFound(string(kind), ref)
		}
		return err
	})
	return a, err
}

// Admissions implements [ledger.Reader].
func (p *pool) Admissions(ctx context.Context, kind ledger.Kind) (all []ledger.Admission, err error) {
	err = p.read(ctx, func(c *conn) error {
		all = nil
		return c.all(ctx, `SELECT `+admissionColumns+` FROM admissions WHERE kind = ? ORDER BY ref`, []any{string(kind)}, func(scan func(...any) error) error {
			var a ledger.Admission
			err := scan(admissionTo(&a)...)
			all = append(all, a)
			return err
		})
	})
	return all, err
}

// Superseded implements [ledger.Reader].
func (p *pool) Superseded(ctx context.Context, kind ledger.Kind, ref string, digest ledger.Digest) (is bool, err error) {
	err = p.read(ctx, func(c *conn) error {
		var one int
		is, err = c.one(`SELECT 1 FROM superseded WHERE kind = ? AND ref = ? AND digest = ?`, []any{string(kind), ref, string(digest)}, &one)
		return err
	})
	return is, err
}

// ListTurns implements [ledger.Reader].
func (p *pool) ListTurns(ctx context.Context, q ledger.TurnQuery) (page ledger.TurnPage, err error) {
	q, err = q.Defaults()
	if err != nil {
		return page, err
	}
	err = p.read(ctx, func(c *conn) (err error) {
		page, err = list(ctx, c, q)
		return err
	})
	return page, err
}

func list(ctx context.Context, c *conn, q ledger.TurnQuery) (page ledger.TurnPage, err error) {
	query := selectTurn + ` WHERE t.seq > ?`
	args := []any{q.After}
	order := ` ORDER BY t.seq LIMIT ?`
	if q.Newest {
		order = ` ORDER BY t.seq DESC LIMIT ?`
		if q.After == 0 {
			query = selectTurn + ` WHERE t.seq > ?` // all
		} else {
			query = selectTurn + ` WHERE t.seq < ?`
		}
	}
	filter := func(column, value string) {
		if value != "" {
			query += ` AND ` + column + ` = ?`
			args = append(args, value)
		}
	}
	if q.State != "" && q.State != ledger.Settled {
		query += ` AND t.state <> 'settled'` // the index of open turns
	}
	filter("t.state", string(q.State))
	filter("o.status", string(q.Status))
	filter("t.agent", string(q.Agent))
	filter("t.binding", string(q.Binding))
	err = c.all(ctx, query+order, append(args, q.Limit+1), func(scan func(...any) error) error {
		var turn wholeTurn
		if err := scan(turn.to()...); err != nil {
			return err
		}
		t, err := turn.row()
		page.Turns = append(page.Turns, t)
		return err
	})
	if len(page.Turns) > q.Limit {
		page.Turns = page.Turns[:q.Limit]
		page.Next = page.Turns[q.Limit-1].Seq
	}
	return page, err
}

// Export implements [ledger.Reader].
func (p *pool) Export(ctx context.Context) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		var records []ledger.Record
		err := p.snapshot(ctx, func(c *conn) (err error) {
			records, err = exportHead(ctx, c)
			return err
		})
		for after := int64(0); err == nil; {
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
			if after < 0 {
				return
			}
			records = records[:0]
			err = p.snapshot(ctx, func(c *conn) (err error) {
				records, after, err = exportTurns(ctx, c, after, records)
				return err
			})
		}
		yield(ledger.Record{}, err)
	}
}

// exportHead are the records before the turns.
func exportHead(ctx context.Context, c *conn) (records []ledger.Record, err error) {
	err = errors.Join(
		c.all(ctx, `SELECT `+admissionColumns+` FROM admissions ORDER BY kind, ref`, nil, func(scan func(...any) error) error {
			var a ledger.Admission
			records = append(records, ledger.Record{Admission: &a})
			return scan(admissionTo(&a)...)
		}),
		c.all(ctx, `SELECT kind, ref, generation, digest, at FROM superseded ORDER BY kind, ref, digest`, nil, func(scan func(...any) error) error {
			var s ledger.Superseded
			records = append(records, ledger.Record{Superseded: &s})
			return scan(&s.Kind, &s.Ref, &s.Generation, &s.Digest, into(&s.At))
		}),
		c.all(ctx, `SELECT `+sessionColumns+` FROM sessions ORDER BY binding`, nil, func(scan func(...any) error) error {
			var s ledger.Session
			records = append(records, ledger.Record{Session: &s})
			return scan(sessionTo(&s)...)
		}),
	)
	return records, err
}

// exportTurns are some turns behind a place, and where they end. The last ones come with the claims,
// and with the place -1.
func exportTurns(ctx context.Context, c *conn, after int64, records []ledger.Record) ([]ledger.Record, int64, error) {
	page, err := list(ctx, c, ledger.TurnQuery{After: after, Limit: 100})
	if err != nil {
		return nil, 0, err
	}
	if len(page.Turns) > 0 {
		last := page.Turns[len(page.Turns)-1].Seq
		parts := map[ledger.TurnRef][]*ledger.Part{}
		products := map[ledger.TurnRef]*ledger.Product{}
		err := errors.Join(
			c.all(ctx, `SELECT t.ref, `+partColumns+`, `+endColumns+` FROM turns t JOIN parts p ON p.turn = t.seq LEFT JOIN ends e ON e.part = p.seq
				WHERE t.seq > ? AND t.seq <= ? ORDER BY p.seq`, []any{after, last}, func(scan func(...any) error) error {
				var p ledger.Part
				err := scan(append(append([]any{&p.Turn}, partTo(&p)...), endTo(&p)...)...)
				parts[p.Turn] = append(parts[p.Turn], &p)
				return err
			}),
			c.all(ctx, `SELECT t.ref, `+productColumns+` FROM products d JOIN turns t ON t.seq = d.turn WHERE d.turn > ? AND d.turn <= ?`,
				[]any{after, last}, func(scan func(...any) error) error {
					var p ledger.Product
					err := scan(append([]any{&p.Turn}, productTo(&p)...)...)
					products[p.Turn] = &p
					return err
				}),
		)
		if err != nil {
			return nil, 0, err
		}
		for i := range page.Turns {
			t := &page.Turns[i]
			records = append(records, ledger.Record{Turn: t})
			for _, p := range parts[t.Ref] {
				records = append(records, ledger.Record{Part: p})
			}
			if p := products[t.Ref]; p != nil {
				records = append(records, ledger.Record{Product: p})
			}
		}
	}
	if page.Next > 0 {
		return records, page.Next, nil
	}
	err = c.all(ctx, `SELECT `+claimColumns+` FROM claims ORDER BY seq`, nil, func(scan func(...any) error) error {
		var claim ledger.Claim
		records = append(records, ledger.Record{Claim: &claim})
		return scan(claimTo(&claim)...)
	})
	return records, -1, err
}

// Check reads the whole ledger and compares what must agree: SQLite's own integrity check, references,
// states with outcomes, charges of unknown turns. It returns the first fault, as [ErrDamaged]. It takes
// about a second for each 100,000 turns.
func (p *pool) Check(ctx context.Context) error {
	return p.snapshot(ctx, func(c *conn) error {
		var fault string
		fail := func(what string) error { return fmt.Errorf("ledger %s is %w: %s", p.path, ErrDamaged, what) }
		if _, err := c.one(`PRAGMA integrity_check(1)`, nil, &fault); err != nil {
			return err
		}
		if fault != "ok" {
			return fail(fault)
		}
		var faults []string
		if err := c.all(ctx, `SELECT "table" FROM pragma_foreign_key_check LIMIT 1`, nil, func(scan func(...any) error) error {
			err := scan(&fault)
			faults = append(faults, "a row of "+fault+" belongs to none")
			return err
		}); err != nil {
			return err
		}
		for what, query := range checks {
			if err := c.all(ctx, query, nil, func(scan func(...any) error) error {
				err := scan(&fault)
				faults = append(faults, fmt.Sprintf("%s: %s", what, fault))
				return err
			}); err != nil {
				return err
			}
		}
		if len(faults) > 0 {
			return fail(faults[0])
		}
		return nil
	})
}

// checks name what must not be, with a query for one such row.
var checks = map[string]string{
	"a settled turn without an outcome":     `SELECT t.ref FROM turns t LEFT JOIN outcomes o ON o.turn = t.seq WHERE t.state = 'settled' AND o.turn IS NULL LIMIT 1`,
	"an outcome of a turn that is open":     `SELECT t.ref FROM outcomes o JOIN turns t ON t.seq = o.turn WHERE t.state <> 'settled' LIMIT 1`,
	"a turn without a request":              `SELECT t.ref FROM turns t WHERE NOT EXISTS (SELECT 1 FROM parts p WHERE p.turn = t.seq) LIMIT 1`,
	"a request that runs in no turn":        `SELECT p.key FROM parts p LEFT JOIN ends e ON e.part = p.seq JOIN turns t ON t.seq = p.turn WHERE e.part IS NULL AND t.running IS NOT p.seq LIMIT 1`,
	"a turn whose running request ended":    `SELECT t.ref FROM turns t JOIN ends e ON e.part = t.running LIMIT 1`,
	"a completed turn without its product":  `SELECT t.ref FROM outcomes o JOIN turns t ON t.seq = o.turn LEFT JOIN products d ON d.turn = t.seq WHERE o.status = 'completed' AND d.ref IS NOT o.product LIMIT 1`,
	"a product of a turn not completed":     `SELECT d.ref FROM products d JOIN outcomes o ON o.turn = d.turn WHERE o.status <> 'completed' LIMIT 1`,
	"an unknown turn not charged in full":   `SELECT t.ref FROM outcomes o JOIN turns t ON t.seq = o.turn WHERE o.status = 'unknown' AND (o.charged_tokens <> t.reserved_tokens OR o.charged_cost_micros <> t.reserved_cost_micros OR o.charged_wall_ms <> t.reserved_wall_ms OR o.charged_steps <> t.reserved_steps) LIMIT 1`,
	"a document both in force and replaced": `SELECT a.ref FROM admissions a JOIN superseded s ON s.kind = a.kind AND s.ref = a.ref AND s.digest = a.digest LIMIT 1`,
}
