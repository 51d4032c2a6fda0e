package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/internal/soak"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

// TestFaultK2 kills a process that runs turns, at random instants, and compares what it had been told
// with what the next one finds: each acknowledged fact is there, as it was; nothing that was settled is
// ever different; the integrity check is clean; nothing is charged twice.
func TestFaultK2(t *testing.T) {
	t.Parallel()
	crash(t, 15)
}

// TestSoakFaultK2 is TestFaultK2 with many more kills.
func TestSoakFaultK2(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	crash(t, soak.Kills(t, 15))
}

func crash(t *testing.T, rounds int) {
	t.Helper()
	var book *ledgerBook
	for round := range rounds {
		if round%20 == 0 { // a new ledger now and then: it may die while it is made
			book = newBook(filepath.Join(t.TempDir(), "ledger.db"))
		}
		c := start(t, "crash", book.path, strconv.Itoa(round))
		// The instant is random: in a third of the rounds before the file is there, or while it is
		// recovered; otherwise in the midst of turns.
		delay := time.Duration(rand.Int64N(int64(150 * time.Millisecond)))
		kill := func() { _ = c.Process.Kill() } // it may have ended
		var timer *time.Timer
		if round%3 == 0 {
			timer = time.AfterFunc(delay, kill)
		}
		for c.lines.Scan() {
			book.told(t, c.lines.Text())
			if timer == nil {
				timer = time.AfterFunc(delay, kill)
			}
		}
		if timer != nil {
			timer.Stop()
		}
		c.kill()
		book.compare(t, round)
	}
	if len(book.settled) == 0 {
		t.Fatal("no turn was settled in all rounds")
	}
	s := open(t, book.path, sqlite.Config{})
	if _, err := s.Recover(t.Context(), benchTime, nil); err != nil {
		t.Fatal(err)
	}
	for _, state := range []ledger.State{ledger.Reserved, ledger.Dispatched, ledger.Suspended} {
		page, err := s.ListTurns(t.Context(), ledger.TurnQuery{State: state})
		if err != nil || len(page.Turns) > 0 {
			t.Errorf("after a recovery %d turns are %s, %v", len(page.Turns), state, err)
		}
	}
}

// A ledgerBook is what clients of a ledger were told.
type ledgerBook struct {
	path    string
	facts   map[string][]string        // ref → its acknowledged steps
	settled map[ledger.TurnRef]string  // what was found settled once
	others  map[string]map[string]bool // claims, admissions: kind → name
}

func newBook(path string) *ledgerBook {
	return &ledgerBook{path, map[string][]string{}, map[ledger.TurnRef]string{}, map[string]map[string]bool{"claim": {}, "withdrawn": {}}}
}

// told takes a line of the helper: a step and a name. The last line may be cut.
func (b *ledgerBook) told(t *testing.T, line string) {
	t.Helper()
	step, name, ok := strings.Cut(line, " ")
	name, whole := strings.CutSuffix(name, ".")
	if !ok || !whole {
		return
	}
	if kind, ok := b.others[step]; ok {
		kind[name] = true
		return
	}
	b.facts[name] = append(b.facts[name], step)
}

func (b *ledgerBook) compare(t *testing.T, round int) {
	t.Helper()
	ctx := t.Context()
	if _, err := os.Stat(b.path); errors.Is(err, os.ErrNotExist) {
		if len(b.facts) > 0 {
			t.Fatalf("round %d: the ledger is gone", round)
		}
		return // it died before the file was made
	}
	s, err := sqlite.Open(ctx, b.path, sqlite.Config{})
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}()
	if err := s.Check(ctx); err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	for name, steps := range b.facts {
		turn, err := s.Turn(ctx, ledger.TurnRef(name))
		last := steps[len(steps)-1]
		switch {
		case errors.Is(err, ledger.ErrNotFound) && last == "reserved":
			continue // released by a recovery
		case err != nil:
			t.Fatalf("round %d: turn %s was %v, and now: %v", round, name, steps, err)
		}
		unknown := turn.Outcome != nil && turn.Outcome.Status == ledger.Unknown
		parts, err := s.Parts(ctx, turn.Ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			switch step {
			case "reserved":
			case "dispatched":
				if turn.DispatchedAt.IsZero() {
					t.Fatalf("round %d: turn %s was dispatched, and is %s", round, name, turn.State)
				}
			case "suspended":
				if !bytes.Equal(parts[0].Lines, crashLines(name, 3)) || parts[0].Status != "" {
					t.Fatalf("round %d: turn %s was suspended, and its first part is %+v", round, name, parts[0])
				}
			case "continued":
				if len(parts) != 2 {
					t.Fatalf("round %d: turn %s was continued, and has %d parts", round, name, len(parts))
				}
			case "settled":
				if turn.State != ledger.Settled || unknown {
					t.Fatalf("round %d: turn %s was settled, and is %s with %+v", round, name, turn.State, turn.Outcome)
				}
			}
		}
		if turn.State == ledger.Settled && !unknown { // told or not, it is what it was to be
			want := crashOutcome(name)
			o := *turn.Outcome
			lines := parts[len(parts)-1].Lines
			if o.Charged != want.Charged || o.Status != want.Status || string(o.Document) != string(want.Document) || !bytes.Equal(lines, crashLines(name, 6)) {
				t.Fatalf("round %d: turn %s settled as %+v with %q", round, name, o, lines)
			}
			if p, err := s.Product(ctx, o.Product); err != nil || string(p.Content) != "product of "+name {
				t.Fatalf("round %d: turn %s: product %+v, %v", round, name, p, err)
			}
		}
	}
	for r, err := range s.Export(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Turn == nil || r.Turn.State != ledger.Settled {
			continue
		}
		o := r.Turn.Outcome
		now := fmt.Sprintf("%s %s %+v %s %s", o.Status, o.Reason, o.Charged, o.At, o.Document)
		if was, known := b.settled[r.Turn.Ref]; known && was != now {
			t.Fatalf("round %d: turn %s was settled as %s, and now as %s", round, r.Turn.Ref, was, now)
		}
		if o.Status == ledger.Unknown && o.Charged != benchBudget {
			t.Fatalf("round %d: an unknown turn is charged %+v", round, o.Charged)
		}
		b.settled[r.Turn.Ref] = now
	}
	for ref := range b.settled {
		if turn, err := s.Turn(ctx, ref); err != nil || turn.State != ledger.Settled {
			t.Fatalf("round %d: turn %s was settled, and now: %+v, %v", round, ref, turn, err)
		}
	}
	for name := range b.others["claim"] {
		c, err := s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: ledger.TurnRef(name), At: benchTime, Expires: benchTime.Add(time.Hour)})
		if err != nil || c.Decision == ledger.Fresh {
			t.Fatalf("round %d: claim %s is forgotten, %v", round, name, err)
		}
	}
	for name := range b.others["withdrawn"] {
		a, err := s.Admission(ctx, ledger.Binding, name)
		if err != nil || a.InForce() {
			t.Fatalf("round %d: binding %s was revoked, and now: %+v, %v", round, name, a, err)
		}
	}
}

func crashLines(name string, seq int) []byte {
	return fmt.Appendf(bytes.Repeat([]byte("x"), int(crashNumber(name))%3000), "%s %d\n", name, seq)
}

func crashNumber(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum32()
}

func crashOutcome(name string) ledger.Outcome {
	return ledger.Outcome{
		Ref: ledger.OutcomeRef("outcome:" + name), Status: ledger.Completed, Reason: "completed", Retryability: ledger.Terminal,
		Charged: ledger.Budget{Tokens: int64(crashNumber(name) % 500), Steps: 1}, Fidelity: ledger.Authoritative,
		Product: ledger.ProductRef("product:" + name), ProductDigest: "sha256:product", Document: fmt.Appendf(nil, `{"turn/ref":%q}`, name),
	}
}

// helpCrash recovers a ledger and then runs turns of several kinds until it is killed. It says each step
// once the step is acknowledged.
func helpCrash(ctx context.Context, path, round string) error {
	s, err := sqlite.Open(ctx, path, sqlite.Config{})
	if err != nil {
		return err
	}
	if _, err := s.Recover(ctx, benchTime, nil); err != nil {
		return err
	}
	tell := func(step, name string) { fmt.Printf("%s %s.\n", step, name) }
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for worker := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if err := crashTurn(ctx, s, fmt.Sprintf("turn:%s:%d:%d", round, worker, i), i%4, tell); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	return <-errs
}

func crashTurn(ctx context.Context, s *sqlite.Store, name string, kind int, tell func(step, name string)) error {
	req := ledger.Request{
		Key: ledger.Key("key:" + name), Digest: "sha256:request", Mode: ledger.Start, Turn: ledger.TurnRef(name), Identity: "sha256:identity",
		Agent: "agent", Binding: "binding", Reserved: benchBudget,
	}
	v, err := s.Reserve(ctx, ledger.Reservation{Request: req, Dispatch: kind != 0, At: benchTime})
	if err != nil {
		return err
	}
	t, key := v.Turn, req.Key
	if kind == 0 {
		tell("reserved", name)
		if t, err = s.Dispatch(ctx, t.Ref, t.Version, benchTime); err != nil {
			return err
		}
	}
	tell("dispatched", name)
	switch kind {
	case 1:
		if t, err = s.Suspend(ctx, ledger.Suspension{Turn: t.Ref, Version: t.Version, Key: key, Awaiting: []ledger.ObservationRef{"r"},
			Recording: ledger.Recording{Lines: crashLines(name, 3), LastSeq: 3}, At: benchTime}); err != nil {
			return err
		}
		tell("suspended", name)
		next := req
		next.Key, next.Digest, next.Mode, next.Answers = key+":2", "sha256:continue", ledger.Continue, "r"
		if v, err = s.Continue(ctx, ledger.Continuation{Request: next, Version: t.Version, At: benchTime}); err != nil {
			return err
		}
		tell("continued", name)
		t, key = v.Turn, next.Key
	case 2:
		if _, err := s.Claim(ctx, ledger.ClaimRequest{Agent: "agent", Turn: t.Ref, At: benchTime, Expires: benchTime.Add(time.Hour)}); err != nil {
			return err
		}
		tell("claim", name)
	case 3:
		a := ledger.Admission{Kind: ledger.Binding, Ref: name, Digest: "sha256:b", Document: []byte(`{}`), Source: ledger.Directory}
		if _, _, err := s.Admit(ctx, a, benchTime); err != nil {
			return err
		}
		if _, err := s.Withdraw(ctx, ledger.Binding, name, benchTime); err != nil {
			return err
		}
		tell("withdrawn", name)
	}
	o := crashOutcome(name)
	_, err = s.Settle(ctx, ledger.Settlement{
		Turn: t.Ref, Version: t.Version, Key: key, Outcome: o, At: benchTime,
		Product:   &ledger.Product{Ref: o.Product, Digest: o.ProductDigest, Document: []byte(`{}`), Content: []byte("product of " + name)},
		Recording: ledger.Recording{Lines: crashLines(name, 6), LastSeq: 6},
	})
	if err == nil {
		tell("settled", name)
	}
	return err
}
