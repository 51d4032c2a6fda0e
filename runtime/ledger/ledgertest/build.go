package ledgertest

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/backline-dev/backline/runtime/ledger"
)

// Builders of valid rows, named after what they are about: a request's refs all follow from its name.

var epoch = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// clock is a time some seconds after the beginning.
func clock(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

var reserved = ledger.Budget{Tokens: 512, CostMicros: 1000, WallTimeMS: 5000, Steps: 3}

func start(name string) ledger.Request {
	return ledger.Request{
		Key:               ledger.Key("key:" + name),
		Digest:            ledger.Digest("sha256:start-" + name),
		Mode:              ledger.Start,
		Turn:              ledger.TurnRef("turn:" + name),
		Identity:          ledger.Digest("sha256:identity-" + name),
		Agent:             "agent:reviewer",
		Binding:           "binding:reviewer",
		BindingDigest:     "sha256:binding",
		Profile:           "profile:fake",
		ProfileGeneration: 1,
		Reserved:          reserved,
		Deadline:          clock(3600),
	}
}

func proceed(name, answers string) ledger.Request {
	r := start(name)
	r.Key = ledger.Key(fmt.Sprintf("key:%s:%s", name, answers))
	r.Digest = ledger.Digest(fmt.Sprintf("sha256:continue-%s-%s", name, answers))
	r.Mode = ledger.Continue
	r.Answers = ledger.ObservationRef(answers)
	return r
}

func reservation(name string, at int) ledger.Reservation {
	return ledger.Reservation{Request: start(name), At: clock(at)}
}

func dispatch(name string, at int) ledger.Reservation {
	r := reservation(name, at)
	r.Dispatch = true
	return r
}

func recording(lastSeq int64) ledger.Recording {
	return ledger.Recording{
		Lines:   fmt.Appendf(nil, "{\"seq/no\":%d}\n", lastSeq),
		LastSeq: lastSeq,
		Expires: clock(86400),
	}
}

func suspension(t ledger.Turn, key ledger.Key, lastSeq int64, at int, awaiting ...ledger.ObservationRef) ledger.Suspension {
	return ledger.Suspension{Turn: t.Ref, Version: t.Version, Key: key, Awaiting: awaiting, Recording: recording(lastSeq), At: clock(at)}
}

func outcome(name string, status ledger.Status, reason ledger.ReasonCode) ledger.Outcome {
	o := ledger.Outcome{
		Ref:          ledger.OutcomeRef("outcome:" + name),
		Status:       status,
		Reason:       reason,
		Retryability: ledger.Terminal,
		Charged:      ledger.Budget{Tokens: 32, CostMicros: 1, WallTimeMS: 10, Steps: 1},
		Fidelity:     ledger.Authoritative,
		Document:     fmt.Appendf(nil, `{"outcome/ref":"outcome:%s","status":%q}`, name, status),
	}
	switch status {
	case ledger.Completed:
		o.Product = ledger.ProductRef("product:" + name)
		o.ProductDigest = ledger.Digest("sha256:product-" + name)
	case ledger.Refused:
		o.Charged, o.Fidelity = ledger.Budget{}, ledger.Unavailable
	}
	return o
}

// settlement ends a turn whose name begins its refs, as completed.
func settlement(name string, t ledger.Turn, key ledger.Key, lastSeq int64, at int) ledger.Settlement {
	o := outcome(name, ledger.Completed, "completed")
	return ledger.Settlement{
		Turn: t.Ref, Version: t.Version, Key: key,
		Outcome:   o,
		Product:   product(name),
		Recording: recording(lastSeq),
		At:        clock(at),
	}
}

func product(name string) *ledger.Product {
	return &ledger.Product{
		Ref:           ledger.ProductRef("product:" + name),
		Digest:        ledger.Digest("sha256:product-" + name),
		Document:      fmt.Appendf(nil, `{"product/ref":"product:%s"}`, name),
		Content:       []byte("A review of " + name + "."),
		ContentDigest: "sha256:content",
		Expires:       clock(86400),
	}
}

// failure ends a turn without a product.
func failure(name string, t ledger.Turn, key ledger.Key, lastSeq int64, at int) ledger.Settlement {
	s := settlement(name, t, key, lastSeq, at)
	s.Outcome, s.Product = outcome(name, ledger.Failed, "provider-unavailable"), nil
	return s
}

func refusal(r ledger.Request, lastSeq int64, at int) ledger.Refusal {
	return ledger.Refusal{Request: r, Outcome: outcome(string(r.Key), ledger.Refused, "policy-denied"), Recording: recording(lastSeq), At: clock(at)}
}

func session(version int64) ledger.Session {
	return ledger.Session{
		Binding: "binding:reviewer",
		Version: version,
		Fence:   ledger.Fence{Agent: "agent:reviewer", AgentBinding: "agent-binding:reviewer", BindingDigest: "sha256:binding", ProfileGeneration: 1, Epoch: "epoch:1"},
		Open:    true,
		Values:  []byte(`{"draft":1}`),
	}
}

func admission(kind ledger.Kind, ref string, generation int64, digest ledger.Digest, source ledger.Source) ledger.Admission {
	return ledger.Admission{
		Kind: kind, Ref: ref, Generation: generation, Digest: digest, Source: source,
		Document: fmt.Appendf(nil, `{"digest":%q}`, digest),
	}
}

// must is for what a test needs and does not test.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("unexpected error: %v", err)
		}
		return v
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
}

// equal compares rows.
func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if reflect.DeepEqual(got, want) { // by far faster than cmp for megabytes
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// A picture is all that a store shows of one turn.
type picture struct {
	Turn    *ledger.Turn
	Parts   []ledger.Part
	Product *ledger.Product
	Session *ledger.Session
}

func look(t testing.TB, s ledger.Store, ref ledger.TurnRef) picture {
	t.Helper()
	ctx := t.Context()
	var p picture
	turn, err := s.Turn(ctx, ref)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		t.Fatalf("Turn(%q): %v", ref, err)
	default:
		p.Turn = &turn
		if turn.Outcome != nil && turn.Outcome.Product != "" {
			product, err := s.Product(ctx, turn.Outcome.Product)
			if err != nil {
				t.Fatalf("Product(%q): %v", turn.Outcome.Product, err)
			}
			p.Product = &product
		}
	}
	p.Parts, err = s.Parts(ctx, ref)
	if err != nil {
		t.Fatalf("Parts(%q): %v", ref, err)
	}
	for _, part := range p.Parts {
		got, err := s.Part(ctx, part.Key)
		if err != nil {
			t.Fatalf("Part(%q): %v", part.Key, err)
		}
		equal(t, "Part and Parts of "+string(part.Key), got, part)
	}
	ses, err := s.Session(ctx, "binding:reviewer")
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		t.Fatalf("Session: %v", err)
	default:
		p.Session = &ses
	}
	return p
}
