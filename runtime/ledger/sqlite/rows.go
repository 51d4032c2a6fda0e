package sqlite

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
)

// An instant is a time as a column holds it: microseconds since 1970, NULL for the zero time.
type instant struct{ time.Time }

func at(t time.Time) instant { return instant{ledger.Instant(t)} }

// Value implements [driver.Valuer].
func (i instant) Value() (driver.Value, error) {
	if i.IsZero() {
		return nil, nil
	}
	return i.UnixMicro(), nil
}

// into scans a column into a time.
func into(t *time.Time) *instantTo { return (*instantTo)(t) }

type instantTo time.Time

// Scan implements [sql.Scanner].
func (t *instantTo) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*t = instantTo{}
	case int64:
		*t = instantTo(time.UnixMicro(v).UTC())
	default:
		return fmt.Errorf("a time is a %T", v)
	}
	return nil
}

// A name is a column that is NULL for the empty name.
type name[T ~string] struct{ to *T }

func opt[T ~string](v T) any {
	if v == "" {
		return nil
	}
	return string(v)
}

func optTo[T ~string](to *T) name[T] { return name[T]{to} }

// Scan implements [sql.Scanner].
func (n name[T]) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*n.to = ""
	case string:
		*n.to = T(v)
	default:
		return fmt.Errorf("a name is a %T", v)
	}
	return nil
}

// blob is bytes as a column holds them: NULL for none.
func blob[T ~[]byte](b T) any {
	if len(b) == 0 {
		return nil
	}
	return []byte(b)
}

const turnColumns = `t.seq, t.ref, t.identity, t.agent, t.binding, t.binding_digest, t.profile, t.profile_generation,
	t.reserved_tokens, t.reserved_cost_micros, t.reserved_wall_ms, t.reserved_steps, t.deadline, t.reserved_at,
	t.state, t.version, t.last_seq, t.dispatched_at, t.updated_at, t.awaiting`

// turnTo are where turnColumns go. After the scan, finish is called.
func turnTo(t *ledger.Turn, awaiting *string) []any {
	return []any{
		&t.Seq, &t.Ref, &t.Identity, &t.Agent, &t.Binding, &t.BindingDigest, &t.Profile, &t.ProfileGeneration,
		&t.Reserved.Tokens, &t.Reserved.CostMicros, &t.Reserved.WallTimeMS, &t.Reserved.Steps, into(&t.Deadline), into(&t.ReservedAt),
		&t.State, &t.Version, &t.LastSeq, into(&t.DispatchedAt), into(&t.UpdatedAt), optTo(awaiting),
	}
}

func setAwaiting(t *ledger.Turn, awaiting string) error {
	if awaiting == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(awaiting), &t.Awaiting); err != nil {
		return fmt.Errorf("what turn %q awaits: %w", t.Ref, err)
	}
	return nil
}

func awaitingOf(t *ledger.Turn) (any, error) {
	if len(t.Awaiting) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(t.Awaiting)
	return string(text), err
}

// outcomeColumns come from a join that may have none: status is then NULL.
const outcomeColumns = `o.ref, o.status, o.reason, o.retryability, COALESCE(o.charged_tokens, 0), COALESCE(o.charged_cost_micros, 0),
	COALESCE(o.charged_wall_ms, 0), COALESCE(o.charged_steps, 0), o.fidelity, o.product, o.product_digest, o.at, o.document`

func outcomeTo(o *ledger.Outcome) []any {
	return []any{
		optTo(&o.Ref), optTo(&o.Status), optTo(&o.Reason), optTo(&o.Retryability), &o.Charged.Tokens, &o.Charged.CostMicros,
		&o.Charged.WallTimeMS, &o.Charged.Steps, optTo(&o.Fidelity), optTo(&o.Product), optTo(&o.ProductDigest), into(&o.At), (*[]byte)(&o.Document),
	}
}

// A wholeTurn scans a turn with its outcome.
type wholeTurn struct {
	turn     ledger.Turn
	awaiting string
	outcome  ledger.Outcome
}

func (w *wholeTurn) to() []any { return append(turnTo(&w.turn, &w.awaiting), outcomeTo(&w.outcome)...) }

func (w *wholeTurn) row() (ledger.Turn, error) {
	if w.outcome.Status != "" {
		w.turn.Outcome = &w.outcome
	}
	return w.turn, setAwaiting(&w.turn, w.awaiting)
}

const (
	partColumns = `p.seq, p.key, p.digest, p.mode, p.answers, p.started_at`
	endColumns  = `e.at, e.status, e.reason, COALESCE(e.last_seq, 0), COALESCE(e.size, 0), COALESCE(e.keeping, 'none'), e.expires`
)

func partTo(p *ledger.Part) []any {
	return []any{&p.Seq, &p.Key, &p.Digest, &p.Mode, optTo(&p.Answers), into(&p.StartedAt)}
}

func endTo(p *ledger.Part) []any {
	return []any{into(&p.EndedAt), optTo(&p.Status), optTo(&p.Reason), &p.LastSeq, &p.Size, &p.Keeping, into(&p.Expires)}
}

// partColumnsOrNone come from a join that may have none: seq is then 0.
const partColumnsOrNone = `COALESCE(p.seq, 0), p.key, p.digest, p.mode, p.answers, p.started_at`

func partOrNoneTo(p *ledger.Part) []any {
	return []any{&p.Seq, optTo(&p.Key), optTo(&p.Digest), optTo(&p.Mode), optTo(&p.Answers), into(&p.StartedAt)}
}

// partOrNil is a part that runs, nil for none.
func partOrNil(p *ledger.Part, turn ledger.TurnRef) *ledger.Part {
	if p.Seq == 0 {
		return nil
	}
	p.Turn, p.Keeping = turn, ledger.KeptNot
	return p
}

const productColumns = `d.ref, d.digest, d.content_digest, d.size, d.at, d.keeping, d.expires, d.document`

func productTo(p *ledger.Product) []any {
	return []any{&p.Ref, &p.Digest, &p.ContentDigest, &p.Size, into(&p.At), &p.Keeping, into(&p.Expires), (*[]byte)(&p.Document)}
}

const sessionColumns = `binding, version, agent, agent_binding, binding_digest, profile_generation, epoch, open, opened_at, updated_at, closed_at`

func sessionTo(s *ledger.Session) []any {
	return []any{
		&s.Binding, &s.Version, &s.Fence.Agent, &s.Fence.AgentBinding, &s.Fence.BindingDigest, &s.Fence.ProfileGeneration, &s.Fence.Epoch,
		&s.Open, into(&s.OpenedAt), into(&s.UpdatedAt), into(&s.ClosedAt),
	}
}

const admissionColumns = `kind, ref, generation, digest, source, version, admitted_at, withdrawn_at, document`

func admissionTo(a *ledger.Admission) []any {
	return []any{&a.Kind, &a.Ref, &a.Generation, &a.Digest, &a.Source, &a.Version, into(&a.AdmittedAt), into(&a.WithdrawnAt), (*[]byte)(&a.Document)}
}

const claimColumns = `agent, turn, state, at, ended_at, expires`

func claimTo(c *ledger.Claim) []any {
	return []any{&c.Agent, &c.Turn, &c.State, into(&c.At), into(&c.EndedAt), into(&c.Expires)}
}
