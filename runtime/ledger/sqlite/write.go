package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
)

// What changes the ledger. Each method checks its argument, then has the writer run a function in a
// savepoint. Such a function may be run a second time, if the transaction it shared failed, so it
// begins by reading and changes nothing outside but its results.

// Reserve implements [ledger.Turns].
func (s *Store) Reserve(ctx context.Context, r ledger.Reservation) (v ledger.Verdict, err error) {
	if err := r.Check(s.conf.Limits); err != nil {
		return v, err
	}
	err = s.write(ctx, func(w *writer) error {
		var known bool
		if v, known, err = w.judge(&r.Request); known || err != nil {
			return err
		}
		t, p := ledger.NewTurn(&r)
		if v, err = w.addTurn(t, p); err != nil {
			return err
		}
		_, err = w.changeSession(r.Session, r.At)
		return err
	})
	if err != nil {
		return ledger.Verdict{}, err
	}
	return v, nil
}

// Dispatch implements [ledger.Turns].
func (s *Store) Dispatch(ctx context.Context, turn ledger.TurnRef, version int64, at time.Time) (t ledger.Turn, err error) {
	if at.IsZero() {
		return t, fmt.Errorf("%w: At is not set", ledger.ErrInvalid)
	}
	err = s.write(ctx, func(w *writer) error {
		was, running, err := w.turn(turn)
		if err != nil {
			return err
		}
		if t, err = was.AfterDispatch(version, at); err != nil {
			return err
		}
		return w.change(&t, running)
	})
	if err != nil {
		return ledger.Turn{}, err
	}
	return t, nil
}

// Release implements [ledger.Turns].
func (s *Store) Release(ctx context.Context, turn ledger.TurnRef, version int64) error {
	return s.write(ctx, func(w *writer) error {
		t, _, err := w.turn(turn)
		if err != nil {
			return err
		}
		if err := t.MayRelease(version); err != nil {
			return err
		}
		return w.forget(&t)
	})
}

// Suspend implements [ledger.Turns].
func (s *Store) Suspend(ctx context.Context, sus ledger.Suspension) (t ledger.Turn, err error) {
	if err := sus.Check(s.conf.Limits); err != nil {
		return t, err
	}
	err = s.write(ctx, func(w *writer) error {
		was, running, err := w.turn(sus.Turn)
		if err != nil {
			return err
		}
		var p ledger.Part
		if t, p, err = was.AfterSuspend(running, &sus); err != nil {
			return err
		}
		if err := w.change(&t, nil); err != nil {
			return err
		}
		if err := w.endPart(&p); err != nil {
			return err
		}
		_, err = w.changeSession(sus.Session, sus.At)
		return err
	})
	if err != nil {
		return ledger.Turn{}, err
	}
	return t, nil
}

// Continue implements [ledger.Turns].
func (s *Store) Continue(ctx context.Context, c ledger.Continuation) (v ledger.Verdict, err error) {
	if err := c.Check(s.conf.Limits); err != nil {
		return v, err
	}
	err = s.write(ctx, func(w *writer) error {
		var known bool
		if v, known, err = w.judge(&c.Request); known || err != nil {
			return err
		}
		was, _, err := w.turn(c.Turn)
		if err != nil {
			return err
		}
		t, p, err := was.AfterContinue(&c)
		if err != nil {
			return err
		}
		if p, err = w.addPart(t.Seq, p); err != nil {
			return err
		}
		if err := w.change(&t, &p); err != nil {
			return err
		}
		v = ledger.Verdict{Decision: ledger.Fresh, Turn: t, Part: p}
		_, err = w.changeSession(c.Session, c.At)
		return err
	})
	if err != nil {
		return ledger.Verdict{}, err
	}
	return v, nil
}

// Settle implements [ledger.Turns].
func (s *Store) Settle(ctx context.Context, set ledger.Settlement) (t ledger.Turn, err error) {
	if err := set.Check(s.conf.Limits); err != nil {
		return t, err
	}
	err = s.write(ctx, func(w *writer) error {
		was, running, err := w.turn(set.Turn)
		if err != nil {
			return err
		}
		var p *ledger.Part
		var product *ledger.Product
		if t, p, product, err = was.AfterSettle(running, &set); err != nil {
			return err
		}
		if err := w.change(&t, nil); err != nil {
			return err
		}
		if err := w.addOutcome(&t); err != nil {
			return err
		}
		if p != nil {
			if err := w.endPart(p); err != nil {
				return err
			}
		}
		if product != nil {
			if err := w.addProduct(t.Seq, product); err != nil {
				return err
			}
		}
		_, err = w.changeSession(set.Session, set.At)
		return err
	})
	if err != nil {
		return ledger.Turn{}, err
	}
	return copyOutcome(t), nil
}

// copyOutcome parts a turn from what the caller gave for its outcome.
func copyOutcome(t ledger.Turn) ledger.Turn {
	if t.Outcome != nil {
		o := *t.Outcome
		o.Document = append([]byte(nil), o.Document...)
		t.Outcome = &o
	}
	return t
}

// Refuse implements [ledger.Turns].
func (s *Store) Refuse(ctx context.Context, r ledger.Refusal) (v ledger.Verdict, err error) {
	if err := r.Check(s.conf.Limits); err != nil {
		return v, err
	}
	err = s.write(ctx, func(w *writer) error {
		var known bool
		if v, known, err = w.judge(&r.Request); known || err != nil {
			return err
		}
		t, found, err := w.wholeTurn(r.Turn)
		if err != nil {
			return err
		}
		if !found {
			t, p := ledger.NewRefusedTurn(&r)
			if v, err = w.addTurn(t, p); err != nil {
				return err
			}
			if err := w.addOutcome(&v.Turn); err != nil {
				return err
			}
			return w.endPart(&v.Part)
		}
		p, err := ledger.NewRefusedPart(&r, &t)
		if err != nil {
			return err
		}
		if p, err = w.addPart(t.Seq, p); err != nil {
			return err
		}
		v = ledger.Verdict{Decision: ledger.Fresh, Turn: t, Part: p}
		return w.endPart(&p)
	})
	if err != nil {
		return ledger.Verdict{}, err
	}
	v.Turn = copyOutcome(v.Turn)
	v.Part.Lines = append([]byte(nil), v.Part.Lines...)
	return v, nil
}

// PutSession implements [ledger.Sessions].
func (s *Store) PutSession(ctx context.Context, ses ledger.Session, at time.Time) (next ledger.Session, err error) {
	if err := ses.Check(at, s.conf.Limits); err != nil {
		return next, err
	}
	err = s.write(ctx, func(w *writer) error {
		next, err = w.changeSession(&ses, at)
		return err
	})
	if err != nil {
		return ledger.Session{}, err
	}
	next.Values = append([]byte(nil), next.Values...)
	return next, nil
}

// Admit implements [ledger.Admissions].
func (s *Store) Admit(ctx context.Context, a ledger.Admission, when time.Time) (next ledger.Admission, change ledger.Change, err error) {
	if err := a.Check(when, s.conf.Limits); err != nil {
		return next, "", err
	}
	err = s.write(ctx, func(w *writer) error {
		prev, found, err := w.admission(a.Kind, a.Ref)
		if err != nil {
			return err
		}
		superseded, err := w.superseded(a.Kind, a.Ref, a.Digest)
		if err != nil {
			return err
		}
		var known *ledger.Admission
		if found {
			known = &prev
		}
		next, change = ledger.NextAdmission(known, superseded, a, when)
		if found && prev.Digest != next.Digest {
			if _, err := w.exec(`INSERT INTO superseded (kind, ref, digest, generation, at) VALUES (?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET generation = excluded.generation, at = excluded.at`,
				string(a.Kind), a.Ref, string(prev.Digest), prev.Generation, at(when)); err != nil {
				return err
			}
			if _, err := w.exec(`DELETE FROM superseded WHERE kind = ? AND ref = ? AND digest = ?`, string(a.Kind), a.Ref, string(next.Digest)); err != nil {
				return err
			}
		}
		return w.putAdmission(&next)
	})
	if err != nil {
		return ledger.Admission{}, "", err
	}
	next.Document = append([]byte(nil), next.Document...)
	return next, change, nil
}

// Withdraw implements [ledger.Admissions].
func (s *Store) Withdraw(ctx context.Context, kind ledger.Kind, ref string, at time.Time) (a ledger.Admission, err error) {
	if at.IsZero() {
		return a, fmt.Errorf("%w: At is not set", ledger.ErrInvalid)
	}
	err = s.write(ctx, func(w *writer) error {
		known, found, err := w.admission(kind, ref)
		if err != nil {
			return err
		}
		if !found {
			return notFound(string(kind), ref)
		}
		a = known.AfterWithdrawal(at)
		return w.putAdmission(&a)
	})
	if err != nil {
		return ledger.Admission{}, err
	}
	return a, nil
}

// Claim implements [ledger.Claims].
func (s *Store) Claim(ctx context.Context, r ledger.ClaimRequest) (c ledger.Claimed, err error) {
	if err := r.Check(); err != nil {
		return c, err
	}
	err = s.write(ctx, func(w *writer) error {
		var was ledger.Claim
		found, err := w.one(`SELECT `+claimColumns+` FROM claims WHERE agent = ? AND turn = ?`, []any{string(r.Agent), string(r.Turn)}, claimTo(&was)...)
		if err != nil {
			return err
		}
		var known *ledger.Claim
		if found {
			known = &was
		}
		if c = ledger.AfterClaim(known, &r); c.Decision != ledger.Fresh {
			return nil
		}
		if found {
			if err := w.unclaim(r.Agent, r.Turn); err != nil {
				return err
			}
		} else if err := w.makeRoom(s.conf.Limits.Claims); err != nil {
			return err
		}
		_, err = w.exec(`INSERT INTO claims (agent, turn, state, at, expires) VALUES (?, ?, ?, ?, ?)`,
			string(c.Claim.Agent), string(c.Claim.Turn), string(c.Claim.State), at(c.Claim.At), at(c.Claim.Expires))
		if err == nil {
			w.claims++
		}
		return err
	})
	if err != nil {
		return ledger.Claimed{}, err
	}
	return c, nil
}

// EndClaim implements [ledger.Claims].
func (s *Store) EndClaim(ctx context.Context, agent ledger.AgentID, turn ledger.TurnRef, when time.Time) error {
	if when.IsZero() {
		return fmt.Errorf("%w: At is not set", ledger.ErrInvalid)
	}
	return s.write(ctx, func(w *writer) error {
		n, err := w.exec(`UPDATE claims SET ended_at = IIF(state = 'running', ?, ended_at), state = IIF(state = 'running', 'ended', state)
			WHERE agent = ? AND turn = ?`, at(when), string(agent), string(turn))
		if err == nil && n == 0 {
			return notFound("claim", turn)
		}
		return err
	})
}

// Unclaim implements [ledger.Claims].
func (s *Store) Unclaim(ctx context.Context, agent ledger.AgentID, turn ledger.TurnRef) error {
	return s.write(ctx, func(w *writer) error { return w.unclaim(agent, turn) })
}

func notFound[T ~string](what string, name T) error {
	return fmt.Errorf("%w: %s %q", ledger.ErrNotFound, what, name)
}

// judge is the verdict about a request whose key is known; false where it is not.
func (w *writer) judge(r *ledger.Request) (ledger.Verdict, bool, error) {
	var turn wholeTurn
	var part ledger.Part
	to := append(append(partTo(&part), endTo(&part)...), &part.Lines)
	found, err := w.one(`SELECT `+partColumns+`, `+endColumns+`, e.lines, `+turnColumns+`, `+outcomeColumns+`
		FROM parts p JOIN turns t ON t.seq = p.turn LEFT JOIN ends e ON e.part = p.seq LEFT JOIN outcomes o ON o.turn = t.seq
		WHERE p.key = ?`, []any{string(r.Key)}, append(to, turn.to()...)...)
	if err != nil || !found {
		return ledger.Verdict{}, false, err
	}
	t, err := turn.row()
	if err != nil {
		return ledger.Verdict{}, true, err
	}
	part.Turn = t.Ref
	v, err := ledger.Judge(r, t, part)
	return v, true, err
}

// turn is a turn that may change, with the part that runs.
func (w *writer) turn(ref ledger.TurnRef) (ledger.Turn, *ledger.Part, error) {
	var t ledger.Turn
	var awaiting string
	var running ledger.Part
	found, err := w.one(`SELECT `+turnColumns+`, `+partColumnsOrNone+` FROM turns t LEFT JOIN parts p ON p.seq = t.running WHERE t.ref = ?`,
		[]any{string(ref)}, append(turnTo(&t, &awaiting), partOrNoneTo(&running)...)...)
	if err != nil {
		return t, nil, err
	}
	if !found {
		return t, nil, notFound("turn", ref)
	}
	err = setAwaiting(&t, awaiting)
	return t, partOrNil(&running, t.Ref), err
}

func (w *writer) wholeTurn(ref ledger.TurnRef) (ledger.Turn, bool, error) {
	var turn wholeTurn
	found, err := w.one(selectTurn+` WHERE t.ref = ?`, []any{string(ref)}, turn.to()...)
	if err != nil || !found {
		return ledger.Turn{}, found, err
	}
	t, err := turn.row()
	return t, true, err
}

// addTurn records a turn and its first part. The turn's ref may be known: then it is a mismatch.
func (w *writer) addTurn(t ledger.Turn, p ledger.Part) (ledger.Verdict, error) {
	w.turnSeq++
	w.partSeq++
	t.Seq, p.Seq = w.turnSeq, w.partSeq
	running := any(p.Seq)
	if !p.Running() {
		running = nil
	}
	n, err := w.exec(`INSERT INTO turns (seq, ref, identity, agent, binding, binding_digest, profile, profile_generation,
		reserved_tokens, reserved_cost_micros, reserved_wall_ms, reserved_steps, deadline, reserved_at,
		state, version, last_seq, dispatched_at, updated_at, running)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ref) DO NOTHING`,
		t.Seq, string(t.Ref), string(t.Identity), string(t.Agent), string(t.Binding), string(t.BindingDigest), string(t.Profile), t.ProfileGeneration,
		t.Reserved.Tokens, t.Reserved.CostMicros, t.Reserved.WallTimeMS, t.Reserved.Steps, at(t.Deadline), at(t.ReservedAt),
		string(t.State), t.Version, t.LastSeq, at(t.DispatchedAt), at(t.UpdatedAt), running)
	if err != nil {
		return ledger.Verdict{}, err
	}
	if n == 0 {
		return ledger.Verdict{}, ledger.Mismatch(&ledger.Request{Turn: t.Ref}, false)
	}
	if err := w.insertPart(t.Seq, &p); err != nil {
		return ledger.Verdict{}, err
	}
	return ledger.Verdict{Decision: ledger.Fresh, Turn: t, Part: p}, nil
}

func (w *writer) addPart(turn int64, p ledger.Part) (ledger.Part, error) {
	w.partSeq++
	p.Seq = w.partSeq
	return p, w.insertPart(turn, &p)
}

func (w *writer) insertPart(turn int64, p *ledger.Part) error {
	_, err := w.exec(`INSERT INTO parts (seq, key, turn, digest, mode, answers, started_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		p.Seq, string(p.Key), turn, string(p.Digest), string(p.Mode), opt(p.Answers), at(p.StartedAt))
	return err
}

// change writes what of a turn may change. running is the part whose stream is being made, nil for
// none.
func (w *writer) change(t *ledger.Turn, running *ledger.Part) error {
	awaiting, err := awaitingOf(t)
	if err != nil {
		return err
	}
	var part any
	if running != nil {
		part = running.Seq
	}
	_, err = w.exec(`UPDATE turns SET state = ?, version = ?, last_seq = ?, dispatched_at = ?, updated_at = ?, running = ?, awaiting = ? WHERE seq = ?`,
		string(t.State), t.Version, t.LastSeq, at(t.DispatchedAt), at(t.UpdatedAt), part, awaiting, t.Seq)
	return err
}

// forget deletes a reserved turn with its requests. Some may have ended: continues that were refused.
func (w *writer) forget(t *ledger.Turn) error {
	if _, err := w.exec(`DELETE FROM ends WHERE part IN (SELECT seq FROM parts WHERE turn = ?)`, t.Seq); err != nil {
		return err
	}
	if _, err := w.exec(`DELETE FROM parts WHERE turn = ?`, t.Seq); err != nil {
		return err
	}
	_, err := w.exec(`DELETE FROM turns WHERE seq = ?`, t.Seq)
	return err
}

func (w *writer) addOutcome(t *ledger.Turn) error {
	o := t.Outcome
	_, err := w.exec(`INSERT INTO outcomes (turn, ref, status, reason, retryability, charged_tokens, charged_cost_micros, charged_wall_ms, charged_steps,
		fidelity, product, product_digest, at, document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		t.Seq, string(o.Ref), string(o.Status), string(o.Reason), string(o.Retryability), o.Charged.Tokens, o.Charged.CostMicros, o.Charged.WallTimeMS, o.Charged.Steps,
		string(o.Fidelity), opt(o.Product), opt(o.ProductDigest), at(o.At), blob(o.Document))
	return err
}

func (w *writer) endPart(p *ledger.Part) error {
	_, err := w.exec(`INSERT INTO ends (part, at, status, reason, last_seq, size, keeping, expires, lines) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.Seq, at(p.EndedAt), opt(p.Status), opt(p.Reason), p.LastSeq, p.Size, string(p.Keeping), at(p.Expires), blob(p.Lines))
	return err
}

func (w *writer) addProduct(turn int64, p *ledger.Product) error {
	n, err := w.exec(`INSERT INTO products (turn, ref, digest, content_digest, size, at, keeping, expires, document, content)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ref) DO NOTHING`,
		turn, string(p.Ref), string(p.Digest), string(p.ContentDigest), p.Size, at(p.At), string(p.Keeping), at(p.Expires), blob(p.Document), blob(p.Content))
	if err == nil && n == 0 {
		return fmt.Errorf("%w: product %q is another turn's", ledger.ErrInvalid, p.Ref)
	}
	return err
}

// changeSession writes what a session becomes; nil is no change. It comes last in a change: if it is
// refused, the savepoint takes the rest back.
func (w *writer) changeSession(s *ledger.Session, when time.Time) (next ledger.Session, err error) {
	if s == nil {
		return next, nil
	}
	var known ledger.Session
	found, err := w.one(`SELECT `+sessionColumns+` FROM sessions WHERE binding = ?`, []any{string(s.Binding)}, sessionTo(&known)...)
	if err != nil {
		return next, err
	}
	var prev *ledger.Session
	if found {
		prev = &known
	}
	if next, err = ledger.NextSession(prev, *s, when); err != nil {
		return next, err
	}
	_, err = w.exec(`INSERT OR REPLACE INTO sessions (`+sessionColumns+`, vals) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(next.Binding), next.Version, string(next.Fence.Agent), string(next.Fence.AgentBinding), string(next.Fence.BindingDigest), next.Fence.ProfileGeneration, string(next.Fence.Epoch),
		next.Open, at(next.OpenedAt), at(next.UpdatedAt), at(next.ClosedAt), blob(next.Values))
	return next, err
}

func (w *writer) admission(kind ledger.Kind, ref string) (a ledger.Admission, found bool, err error) {
	found, err = w.one(`SELECT `+admissionColumns+` FROM admissions WHERE kind = ? AND ref = ?`, []any{string(kind), ref}, admissionTo(&a)...)
	return a, found, err
}

func (w *writer) superseded(kind ledger.Kind, ref string, digest ledger.Digest) (bool, error) {
	var one int
	return w.one(`SELECT 1 FROM superseded WHERE kind = ? AND ref = ? AND digest = ?`, []any{string(kind), ref, string(digest)}, &one)
}

func (w *writer) putAdmission(a *ledger.Admission) error {
	_, err := w.exec(`INSERT INTO admissions (`+admissionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (kind, ref) DO UPDATE SET generation = excluded.generation, digest = excluded.digest, source = excluded.source,
		version = excluded.version, admitted_at = excluded.admitted_at, withdrawn_at = excluded.withdrawn_at, document = excluded.document
		WHERE version <> excluded.version`,
		string(a.Kind), a.Ref, a.Generation, string(a.Digest), string(a.Source), a.Version, at(a.AdmittedAt), at(a.WithdrawnAt), blob(a.Document))
	return err
}

func (w *writer) unclaim(agent ledger.AgentID, turn ledger.TurnRef) error {
	n, err := w.exec(`DELETE FROM claims WHERE agent = ? AND turn = ?`, string(agent), string(turn))
	w.claims -= n
	return err
}

// makeRoom has room for another claim, or returns [ledger.ErrFull].
func (w *writer) makeRoom(limit int) error {
	if w.claims < 0 { // not known since something was rolled back
		if _, err := w.one(`SELECT COUNT(*) FROM claims`, nil, &w.claims); err != nil {
			return err
		}
	}
	if limit < 0 || w.claims < int64(limit) {
		return nil
	}
	n, err := w.exec(`DELETE FROM claims WHERE seq = (SELECT seq FROM claims WHERE state <> 'running' ORDER BY seq LIMIT 1)`)
	w.claims -= n
	if err == nil && n == 0 {
		return ledger.ErrFull
	}
	return err
}
