package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// A turner makes turns of the usual size: refs with a random part, an outcome document, a product of a
// page, and a stream of five lines.
type turner struct {
	s    ledger.Store
	next atomic.Int64
	seed uint64
}

var (
	benchDocument = fmt.Appendf(nil, `{"schema":"agent.external-runtime.turn-outcome.v1","pad":%q}`, bytes.Repeat([]byte("x"), 600))
	benchContent  = bytes.Repeat([]byte("A page of a review. "), 50)
	benchLines    = append(bytes.Repeat([]byte("{\"schema\":\"agent.external-runtime.event.v1\",\"kind\":\"progress\"}\n"), 8), benchContent...)
	benchBudget   = ledger.Budget{Tokens: 512, CostMicros: 1000, WallTimeMS: 5000, Steps: 3}
	benchTime     = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
)

// scatter is a number that looks random, as hosts' refs do: neighbours in time are none in an index.
func scatter(n uint64) uint64 {
	n ^= n >> 30
	n *= 0xbf58476d1ce4e5b9
	n ^= n >> 27
	n *= 0x94d049bb133111eb
	return n ^ n>>31
}

func (b *turner) request() ledger.Request {
	n := b.seed + uint64(b.next.Add(1))
	id := strconv.FormatUint(scatter(n), 16)
	return ledger.Request{
		Key:               ledger.Key("agent-external-runtime-key:" + strconv.FormatUint(scatter(n+1<<40), 16)),
		Digest:            ledger.Digest("sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0" + id),
		Mode:              ledger.Start,
		Turn:              ledger.TurnRef("agent-external-runtime-turn:" + id),
		Identity:          ledger.Digest("sha256:fEU6Jc4DxxxXuzELH5wTX0QPcszpvFuCz1sHt4b7_Iw" + id),
		Agent:             "agent:reviewer",
		Binding:           "agent-external-runtime-binding:reviewer",
		BindingDigest:     "sha256:fEU6Jc4DxxxXuzELH5wTX0QPcszpvFuCz1sHt4b7_Iw",
		Profile:           "external-runtime-profile:deterministic-fake",
		ProfileGeneration: 1,
		Reserved:          benchBudget,
		Deadline:          benchTime.Add(time.Hour),
	}
}

// turn is one short turn: two changes.
func (b *turner) turn(ctx context.Context) error {
	req := b.request()
	v, err := b.s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: true, At: benchTime})
	if err != nil {
		return err
	}
	_, err = b.s.Settle(ctx, benchSettlement(v.Turn, req.Key, v.Turn.Seq))
	return err
}

func benchSettlement(t ledger.Turn, key ledger.Key, seq int64) ledger.Settlement {
	ref := ledger.ProductRef(fmt.Sprintf("agent-external-runtime-product:%016x:%s", seq, t.Ref[len(t.Ref)-8:]))
	return ledger.Settlement{
		Turn: t.Ref, Version: t.Version, Key: key, At: benchTime.Add(time.Second),
		Outcome: ledger.Outcome{
			Ref: "agent-external-runtime-outcome:" + ledger.OutcomeRef(t.Ref), Status: ledger.Completed, Reason: "completed", Retryability: ledger.Terminal,
			Charged: benchBudget, Fidelity: ledger.Authoritative, Product: ref, ProductDigest: "sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0", Document: benchDocument,
		},
		Product: &ledger.Product{Ref: ref, Digest: "sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0", Document: benchDocument, Content: benchContent,
			ContentDigest: "sha256:EEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE", Expires: benchTime.Add(24 * time.Hour)},
		Recording: ledger.Recording{Lines: benchLines, LastSeq: 5, Expires: benchTime.Add(24 * time.Hour)},
	}
}

// turns runs n turns, so many at a time.
func (b *turner) turns(ctx context.Context, n, atOnce int) (time.Duration, error) {
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, atOnce)
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				errs[i] = b.turn(ctx)
			}
		})
	}
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

// A bare database has one table, and each insert is committed with an fsync: the least that two
// durable facts per turn can cost.
type bare struct {
	db   *sql.DB
	stmt *sql.Stmt
}

func openBare(tb testing.TB, dir string) *bare {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		tb.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	if _, err := db.ExecContext(tb.Context(), `CREATE TABLE facts (id INTEGER PRIMARY KEY, fact BLOB)`); err != nil {
		tb.Fatal(err)
	}
	stmt, err := db.PrepareContext(tb.Context(), `INSERT INTO facts (fact) VALUES (?)`)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := stmt.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &bare{db, stmt}
}

func (b *bare) turns(ctx context.Context, n int) (time.Duration, error) {
	began := time.Now()
	fact := benchDocument[:200]
	for range 2 * n {
		if _, err := b.stmt.ExecContext(context.WithoutCancel(ctx), fact); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// against measures turns of a ledger and bare inserts in turn, on one disk, and returns both rates in
// turns per second.
func against(tb testing.TB, b *turner, dir string, n, atOnce int) (turns, inserts float64) {
	tb.Helper()
	ctx := tb.Context()
	raw := openBare(tb, dir)
	const portion = 100
	var ours, theirs time.Duration
	for done := 0; done < n; done += portion {
		d, err := b.turns(ctx, portion, atOnce)
		if err != nil {
			tb.Fatal(err)
		}
		ours += d
		if d, err = raw.turns(ctx, portion); err != nil {
			tb.Fatal(err)
		}
		theirs += d
	}
	return float64(n) / ours.Seconds(), float64(n) / theirs.Seconds()
}

// BenchmarkTurnsAgainstInserts measures turns, and two bare fsynced inserts per turn, on one disk in one
// run. Its ratio is what counts.
func BenchmarkTurnsAgainstInserts(b *testing.B) {
	for _, atOnce := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("at-once=%d", atOnce), func(b *testing.B) {
			dir := b.TempDir()
			t := &turner{s: open(b, filepath.Join(dir, "ledger.db"), sqlite.Config{})}
			for b.Loop() {
				turns, inserts := against(b, t, b.TempDir(), 500, atOnce)
				b.ReportMetric(turns, "turns/s")
				b.ReportMetric(inserts, "inserts/s")
				b.ReportMetric(turns/inserts, "ratio")
			}
		})
	}
}

// TestSpeedAgainstInserts holds what the benchmark shows: with several turns at once, group commit must
// give at least 0.6 of the turns that two bare fsynced inserts per turn give on the same disk.
func TestSpeedAgainstInserts(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("speed is not measured here: the race detector is in the binary, or the tests are to be short")
	}
	const want = 0.6
	b := &turner{s: open(t, filepath.Join(t.TempDir(), "ledger.db"), sqlite.Config{})}
	best := 0.0
	for range 5 { // a busy machine gets some tries
		turns, inserts := against(t, b, t.TempDir(), 300, 32)
		t.Logf("%.0f turns/s, inserts for %.0f turns/s: ratio %.2f", turns, inserts, turns/inserts)
		if best = max(best, turns/inserts); best >= want {
			return
		}
	}
	t.Errorf("the ratio is %.2f at best, want %.2f", best, want)
}

// BenchmarkTurn is one short turn at a time without the disk: the CPU that a ledger costs.
func BenchmarkTurn(b *testing.B) {
	for name, s := range map[string]ledger.Store{
		"memory": ledger.NewMemory(ledger.MemoryConfig{}),
		"sqlite": open(b, filepath.Join(fastDir(b), "ledger.db"), sqlite.Config{}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			t := &turner{s: s}
			for b.Loop() {
				if err := t.turn(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fill puts n settled turns of the usual size into a ledger, by a path that is fast and not durable.
// Their content has been swept, as with turns older than a day.
func fill(tb testing.TB, path string, n int) {
	tb.Helper()
	ctx := tb.Context()
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=synchronous(OFF)&_pragma=cache_size(-600000)&_pragma=foreign_keys(0)")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	}()
	db.SetMaxOpenConns(1)
	at := benchTime.UnixMicro()
	exec := func(query string, args ...any) {
		tb.Helper()
		if _, err := db.ExecContext(ctx, query, args...); err != nil {
			tb.Fatal(err)
		}
	}
	const portion = 50_000
	for first := 1; first <= n; first += portion {
		last := min(first+portion-1, n)
		exec(`BEGIN`)
		numbers := `WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) `
		exec(`INSERT INTO turns (seq, ref, identity, agent, binding, binding_digest, profile, profile_generation,
			reserved_tokens, reserved_cost_micros, reserved_wall_ms, reserved_steps, deadline, reserved_at, state, version, last_seq, dispatched_at, updated_at) `+numbers+`
			SELECT i, 'agent-external-runtime-turn:' || lower(hex(randomblob(8))), 'sha256:fEU6Jc4DxxxXuzELH5wTX0QPcszpvFuCz1sHt4b7_Iw', 'agent:reviewer',
			'agent-external-runtime-binding:reviewer', 'sha256:fEU6Jc4DxxxXuzELH5wTX0QPcszpvFuCz1sHt4b7_Iw', 'external-runtime-profile:deterministic-fake', 1,
			512, 1000, 5000, 3, ?3, ?3, 'settled', 2, 5, ?3, ?3 FROM n`, first, last, at)
		exec(`INSERT INTO parts (seq, key, turn, digest, mode, started_at) `+numbers+`
			SELECT i, 'agent-external-runtime-key:' || lower(hex(randomblob(8))), i, 'sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0', 'start', ?3 FROM n`, first, last, at)
		exec(`INSERT INTO ends (part, at, status, reason, last_seq, size, keeping, expires) `+numbers+`
			SELECT i, ?3, 'completed', 'completed', 5, 1500, 'swept', ?3 FROM n`, first, last, at)
		exec(`INSERT INTO outcomes (turn, ref, status, reason, retryability, charged_tokens, charged_cost_micros, charged_wall_ms, charged_steps,
			fidelity, product, product_digest, at, document) `+numbers+`
			SELECT i, 'agent-external-runtime-outcome:agent-external-runtime-turn:' || i, 'completed', 'completed', 'terminal', 512, 1000, 5000, 3,
			'authoritative', printf('agent-external-runtime-product:%016x:00000000', i), 'sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0', ?3, ?4 FROM n`, first, last, at, benchDocument)
		exec(`INSERT INTO products (turn, ref, digest, content_digest, size, at, keeping, expires, document) `+numbers+`
			SELECT i, printf('agent-external-runtime-product:%016x:00000000', i), 'sha256:osrl7Ovx3v12s4mbCyCK-qSPJYa8qKBMLgF7P-4EUK0',
			'sha256:EEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE', 1000, ?3, 'swept', ?3, ?4 FROM n`, first, last, at, benchDocument)
		exec(`COMMIT`)
	}
	exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
}

// BenchmarkMillionTurns compares a ledger of 1,000,000 turns with an empty one on the same disk, in one
// run: how long it takes to open, and by how much new turns are slower. Building the file takes a
// minute or two and 3 GB.
func BenchmarkMillionTurns(b *testing.B) {
	dir := b.TempDir()
	path := filepath.Join(dir, "big.db")
	fill(b, path, 1_000_000)
	for _, atOnce := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("at-once=%d", atOnce), func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				s := open(b, path, sqlite.Config{})
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-open")
				big := &turner{s: s, seed: uint64(time.Now().UnixNano())}
				small := &turner{s: open(b, filepath.Join(b.TempDir(), "small.db"), sqlite.Config{}), seed: big.seed}
				var bigTime, smallTime time.Duration
				for range 40 {
					for _, t := range []struct {
						*turner
						sum *time.Duration
					}{{big, &bigTime}, {small, &smallTime}} {
						d, err := t.turns(b.Context(), 100, atOnce)
						if err != nil {
							b.Fatal(err)
						}
						*t.sum += d
					}
				}
				b.ReportMetric(4000/bigTime.Seconds(), "turns/s-big")
				b.ReportMetric(4000/smallTime.Seconds(), "turns/s-empty")
				b.ReportMetric(100*(bigTime.Seconds()/smallTime.Seconds()-1), "%slower")
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
