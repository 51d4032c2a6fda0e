package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/backline-dev/backline/runtime/ledger"
)

// One goroutine writes. Who wants a change hands it a function and waits; while one transaction is
// being committed, the next ones gather, and go into one transaction together (group commit): the
// fsync that a single turn would wait for is shared by all that came meanwhile. Nothing waits for a
// timer, so a lone turn is written at once.
//
// Each function runs in a savepoint. If it fails, by a rule of the ledger or a constraint of the
// schema, its savepoint is rolled back and the others go on. If SQLite gives up the whole transaction
// (a full disk, say), the functions are run again one by one, so that only those fail that must.

// maxBatch is how many changes go into one transaction: enough for the fsync to be a small part, few
// enough for the last one not to wait long.
const maxBatch = 128

// A change is a call that waits for the writer.
type change struct {
	run   func(*writer) error
	state atomic.Int32 // one of the below
	done  chan error   // buffered
}

const (
	waiting   = iota
	taken     // the writer has it, and will answer
	abandoned // the caller has gone, and nothing was done
)

// A writer is the connection that writes. Only the store's goroutine uses it.
type writer struct {
	*conn
	turnSeq, partSeq int64 // the highest ones in use, or used before
	claims           int64 // how many there are, negative for unknown
	changes          int   // since the last look at the log
	nextRestart      time.Time
	forgot           bool // content that the log may still have
}

// write has the writer run f, and returns once what f did is on the disk, or nothing is.
func (s *Store) write(ctx context.Context, f func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &change{run: f, done: make(chan error, 1)}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ledger.ErrClosed
	}
	s.queue = append(s.queue, c)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if c.state.CompareAndSwap(waiting, abandoned) {
			return ctx.Err()
		}
		return <-c.done
	}
}

// loop is the store's goroutine.
func (s *Store) loop() {
	defer close(s.done)
	for {
		<-s.wake
		for s.waiting() {
			s.batch()
		}
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return
		}
	}
}

// waiting tells whether somebody waits, and gives up on those who do not. On closing, nobody does.
func (s *Store) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.queue[:0]
	for _, c := range s.queue {
		switch {
		case c.state.Load() == abandoned:
		case s.closing:
			if c.state.CompareAndSwap(waiting, taken) {
				c.done <- ledger.ErrClosed
			}
		default:
			kept = append(kept, c)
		}
	}
	clear(s.queue[len(kept):])
	s.queue = kept
	return len(kept) > 0
}

// take takes what waits, up to a batch.
func (s *Store) take() []*change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []*change
	n := 0
	for _, c := range s.queue {
		if len(batch) == maxBatch {
			break
		}
		n++
		if c.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, c)
		}
	}
	rest := copy(s.queue, s.queue[n:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
	return batch
}

// batch commits what waits in one transaction.
func (s *Store) batch() {
	if err := s.broken(); err != nil {
		answer(s.take(), err)
		return
	}
	if _, err := s.writer.exec(`BEGIN IMMEDIATE`); err != nil {
		if !isBusy(err) { // otherwise: another process writes; whoever may wait longer does
			answer(s.take(), s.failed(err))
		}
		return
	}
	changes := s.take()
	if len(changes) == 1 {
		s.single(changes[0])
		return
	}
	results := make([]error, len(changes))
	var err error
	for i, c := range changes {
		if results[i], err = s.writer.inSavepoint(c.run); err != nil {
			break
		}
	}
	if err == nil {
		_, err = s.writer.exec(`COMMIT`)
	}
	switch {
	case err == nil:
		for i, c := range changes {
			c.done <- results[i]
		}
		s.checkpoint(len(changes))
	default:
		if _ = s.abort(err); s.broken() != nil {
			answer(changes, s.broken())
			return
		}
		for _, c := range changes {
			s.alone(c)
		}
	}
}

func answer(changes []*change, err error) {
	for _, c := range changes {
		c.done <- err
	}
}

// alone commits one change in a transaction of its own. It has been taken: it waits for other
// processes as long as need be, but not beyond Close.
func (s *Store) alone(c *change) {
	for {
		err := s.broken()
		if err == nil {
			_, err = s.writer.exec(`BEGIN IMMEDIATE`)
		}
		if err != nil && isBusy(err) && !s.isClosing() {
			continue
		}
		if err != nil {
			c.done <- s.failed(err)
			return
		}
		break
	}
	s.single(c)
}

// single commits the only change of a transaction that has begun. It needs no savepoint: what is to be
// undone is the whole.
func (s *Store) single(c *change) {
	result := c.run(s.writer)
	if result == nil {
		if _, err := s.writer.exec(`COMMIT`); err != nil {
			result = s.abort(err)
		}
	} else if code := codeOf(result); code != 0 && code != sqlite3.SQLITE_CONSTRAINT {
		result = s.abort(result)
	} else {
		s.writer.claims = -1
		if _, err := s.writer.exec(`ROLLBACK`); err != nil {
			result = s.failed(err)
		}
	}
	c.done <- result
	if result == nil {
		s.checkpoint(1)
	}
}

// inSavepoint runs a change. The first error is the change's own, and undone; the second one means
// that the transaction is no good.
func (w *writer) inSavepoint(run func(*writer) error) (result, fatal error) {
	if _, err := w.exec(`SAVEPOINT change`); err != nil {
		return nil, err
	}
	if result = run(w); result != nil {
		if code := codeOf(result); code != 0 && code != sqlite3.SQLITE_CONSTRAINT {
			return nil, result
		}
		w.claims = -1
		if _, err := w.exec(`ROLLBACK TO change`); err != nil {
			return nil, err
		}
	}
	_, fatal = w.exec(`RELEASE change`)
	return result, fatal
}

// abort ends a transaction that failed, if SQLite has not done so.
func (s *Store) abort(cause error) error {
	s.writer.claims = -1
	// There may be no transaction any more: SQLite ends it itself after some errors. What matters is
	// that there is none from here on, and BEGIN tells.
	_, _ = s.writer.exec(`ROLLBACK`)
	return s.failed(cause)
}

// failed explains an error, and remembers one after which nothing is certain any more.
func (s *Store) failed(err error) error {
	code := codeOf(err)
	err = explain(s.path, err)
	switch code {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		s.mu.Lock()
		if s.brokenBy == nil {
			s.brokenBy = err
		}
		s.mu.Unlock()
	}
	return err
}

// broken is why the store takes no changes any more, nil while it does.
func (s *Store) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.brokenBy
}

func (s *Store) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// How the write-ahead log is kept short. While turns go on, another goroutine copies what is in the log
// into the database file (PASSIVE: it waits for nobody and nobody for it). SQLite begins the log anew
// once all of it is copied and no reader needs it, but while turns go on that moment never comes by
// itself: there is always a little more, and often a reader. So from some length on the writer makes
// that moment: it stops writing, for restartWait at most, until the readers of older states are gone.
// Those who come meanwhile read what is copied already, and are in nobody's way.
const (
	lookAfter    = 128      // changes
	copyPages    = 1000     // 4 MiB
	restartPages = 8 * 1000 // 32 MiB
	restartWait  = 250 * time.Millisecond
	restartLook  = 2 * time.Millisecond
	restartShare = 5 // at most one part in so many of the time is spent waiting
)

// checkpoint looks at the log after some changes, and has it worked off. After content was forgotten the
// log is cut to nothing, as soon as that can be, since it still has what the database file has no more.
func (s *Store) checkpoint(changes int) {
	w := s.writer
	cut := w.forgot && time.Now().After(w.nextRestart)
	if w.changes += changes; w.changes < lookAfter && !cut || s.copying.Load() {
		return
	}
	w.changes = 0
	_, pages, copied, err := w.walCheckpoint("NOOP")
	switch {
	case err != nil:
	case cut:
		var done bool
		done, err = w.restartLog("TRUNCATE")
		w.forgot = !done
	case pages >= restartPages && time.Now().After(w.nextRestart):
		_, err = w.restartLog("RESTART")
	case pages-copied >= copyPages:
		s.copying.Store(true)
		s.copyWake <- struct{}{}
	}
	if err != nil && !isBusy(err) {
		_ = s.failed(err)
	}
}

// restartLog has the next change begin the log anew, if readers allow it in time, which done tells. Mode is
// RESTART, or TRUNCATE to cut the file as well.
func (w *writer) restartLog(mode string) (done bool, err error) {
	// SQLite's own waiting tries less and less often, and misses moments.
	if _, err := w.sql.ExecContext(context.Background(), `PRAGMA busy_timeout = 0`); err != nil {
		return false, err
	}
	defer func() {
		_, again := w.sql.ExecContext(context.Background(), "PRAGMA "+busyPragma)
		err = errors.Join(err, again)
	}()
	began := time.Now()
	for {
		busy, _, _, err := w.walCheckpoint(mode)
		waited := time.Since(began)
		switch {
		case err != nil && !isBusy(err):
			return false, err
		case err == nil && !busy:
			return true, nil
		case waited > restartWait:
			w.nextRestart = time.Now().Add((restartShare - 1) * waited)
			return false, nil
		}
		time.Sleep(restartLook)
	}
}

// copyLog is the goroutine that copies the log while turns go on. It ends when copyWake is closed.
func (s *Store) copyLog() {
	defer close(s.copyDone)
	for range s.copyWake {
		if _, _, _, err := s.copier.walCheckpoint("PASSIVE"); err != nil && !isBusy(err) {
			_ = s.failed(err)
		}
		s.copying.Store(false)
	}
}

// walCheckpoint returns how many pages the log has, and how many of them are in the database file. It is
// busy if it could not do all that the mode wants.
func (c *conn) walCheckpoint(mode string) (busy bool, pages, copied int, err error) {
	if _, err := c.one(fmt.Sprintf("PRAGMA wal_checkpoint(%s)", mode), nil, &busy, &pages, &copied); err != nil {
		return false, 0, 0, fmt.Errorf("checkpoint: %w", err)
	}
	return busy, pages, copied, nil
}

// Ping implements [ledger.Store]: it commits something, the schema's number as it is.
func (s *Store) Ping(ctx context.Context) error {
	return s.write(ctx, func(w *writer) error {
		_, err := w.exec(setVersion)
		return err
	})
}

var setVersion = fmt.Sprintf("PRAGMA user_version = %d", len(migrations))

// Recover implements [ledger.Store].
func (s *Store) Recover(ctx context.Context, when time.Time, end func(ledger.Turn, *ledger.Part) (*ledger.Ending, error)) (did ledger.Recovery, err error) {
	if when.IsZero() {
		return did, fmt.Errorf("%w: At is not set", ledger.ErrInvalid)
	}
	const portion = 100
	for after, more := int64(0), true; more; {
		var page ledger.TurnPage
		var parts []*ledger.Part
		err := s.snapshot(ctx, func(c *conn) (err error) {
			page, parts, err = openTurns(ctx, c, after, portion)
			return err
		})
		if err != nil {
			return did, err
		}
		// What a turn's end looks like is asked without any lock. If that fails, those before it are
		// still committed.
		endings := make([]*ledger.Ending, 0, len(page.Turns))
		var stop error
		for i, t := range page.Turns {
			var ending *ledger.Ending
			if end != nil && t.State != ledger.Reserved {
				if ending, stop = end(t, parts[i]); stop != nil {
					break
				}
			}
			endings = append(endings, ending)
		}
		var unknown []ledger.Turn
		var released []ledger.TurnRef
		err = s.write(ctx, func(w *writer) error {
			unknown, released = nil, nil
			for i, ending := range endings {
				saw := &page.Turns[i]
				t, running, err := w.turn(saw.Ref)
				if errors.Is(err, ledger.ErrNotFound) || err == nil && t.Version != saw.Version {
					continue // somebody changed it meanwhile
				}
				if err != nil {
					return err
				}
				if t.State == ledger.Reserved {
					if err := w.forget(&t); err != nil {
						return err
					}
					released = append(released, t.Ref)
					continue
				}
				lost, part, err := t.AfterLoss(running, ending, when, s.conf.Limits)
				if err != nil {
					return err
				}
				if err := w.change(&lost, nil); err != nil {
					return err
				}
				if err := w.addOutcome(&lost); err != nil {
					return err
				}
				if part != nil {
					if err := w.endPart(part); err != nil {
						return err
					}
				}
				unknown = append(unknown, copyOutcome(lost))
			}
			return nil
		})
		if err != nil {
			return did, errors.Join(err, stop)
		}
		did.Unknown = append(did.Unknown, unknown...)
		did.Released = append(did.Released, released...)
		if stop != nil {
			return did, stop
		}
		after, more = page.Next, page.Next > 0
	}
	err = s.write(ctx, func(w *writer) error {
		n, err := w.exec(`UPDATE claims SET state = 'lost', ended_at = ? WHERE state = 'running'`, at(when))
		did.Lost = int(n)
		return err
	})
	return did, err
}

// openTurns are turns that are not settled, each with the part that runs or nil.
func openTurns(ctx context.Context, c *conn, after int64, limit int) (page ledger.TurnPage, parts []*ledger.Part, err error) {
	err = c.all(ctx, `SELECT `+turnColumns+`, `+partColumnsOrNone+` FROM turns t LEFT JOIN parts p ON p.seq = t.running
		WHERE t.state <> 'settled' AND t.seq > ? ORDER BY t.seq LIMIT ?`, []any{after, limit}, func(scan func(...any) error) error {
		var t ledger.Turn
		var awaiting string
		var p ledger.Part
		if err := scan(append(turnTo(&t, &awaiting), partOrNoneTo(&p)...)...); err != nil {
			return err
		}
		page.Turns = append(page.Turns, t)
		parts = append(parts, partOrNil(&p, t.Ref))
		return setAwaiting(&page.Turns[len(page.Turns)-1], awaiting)
	})
	if len(page.Turns) == limit {
		page.Next = page.Turns[limit-1].Seq
	}
	return page, parts, err
}

// Sweep implements [ledger.Store].
func (s *Store) Sweep(ctx context.Context, when time.Time, limit int) (did ledger.Sweeping, err error) {
	if when.IsZero() || limit < 0 {
		return did, fmt.Errorf("%w: At is not set, or the limit is negative", ledger.ErrInvalid)
	}
	if limit == 0 {
		limit = 1000
	}
	err = s.write(ctx, func(w *writer) error {
		did = ledger.Sweeping{}
		left := limit
		for _, kind := range []struct {
			count      *int
			find, each string
		}{
			{
				&did.Products,
				`SELECT turn, size FROM products WHERE keeping = 'kept' AND expires IS NOT NULL AND expires <= ? ORDER BY expires LIMIT ?`,
				`UPDATE products SET content = NULL, keeping = 'swept' WHERE turn = ?`,
			}, {
				&did.Parts,
				`SELECT part, size FROM ends WHERE keeping = 'kept' AND expires IS NOT NULL AND expires <= ? ORDER BY expires LIMIT ?`,
				`UPDATE ends SET lines = NULL, keeping = 'swept' WHERE part = ?`,
			}, {
				&did.Claims,
				`SELECT seq, 0 FROM claims WHERE expires <= ? ORDER BY expires LIMIT ?`,
				`DELETE FROM claims WHERE seq = ?`,
			},
		} {
			var rows []int64
			bytes := int64(0)
			err := w.all(context.Background(), kind.find, []any{at(when), left + 1}, func(scan func(...any) error) error {
				var row, size int64
				if err := scan(&row, &size); err != nil {
					return err
				}
				if bytes += size; len(rows) == left || len(rows) > 0 && bytes > sweepBytes {
					did.More = true
				} else {
					rows = append(rows, row)
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, row := range rows {
				if _, err := w.exec(kind.each, row); err != nil {
					return err
				}
			}
			*kind.count = len(rows)
			left -= len(rows)
		}
		w.claims -= int64(did.Claims)
		w.forgot = w.forgot || did.Products+did.Parts > 0
		return nil
	})
	if err != nil {
		return ledger.Sweeping{}, err
	}
	return did, nil
}

// sweepBytes is how much content one sweep forgets at most, since turns wait for it.
const sweepBytes = 64 << 20
