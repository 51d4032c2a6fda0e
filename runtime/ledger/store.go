package ledger

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// A Store keeps the facts of turns. Its methods may be called from several goroutines; whether by
// several processes on one database is said by the implementation. See the package comment for what
// an error means.
type Store interface {
	Turns
	Sessions
	Admissions
	Claims
	Reader

	// Recover ends what a process that died left open, and is called once before the first turn:
	//
	//   - a dispatched or suspended turn is settled as unknown / unknown, reconciliation-required,
	//     and charged its full reservation; the part that ran is ended with it;
	//   - a reserved turn is released: it and its requests are forgotten and may come again;
	//   - a running claim becomes lost.
	//
	// Nothing is ever run by it. For each turn that becomes unknown, end is called (once per turn and
	// call of Recover, under no lock) for what the host is to see of it; with a nil end, or a nil
	// result, the turn has no document and its part no lines. Where end fails, Recover stops with
	// its error. It works in several transactions: after an error, or when the process dies within
	// it, what it had done stays done, and doing it again does the rest. In the memory of one
	// process there is nothing left open by another, but Recover does the same.
	Recover(ctx context.Context, at time.Time, end func(Turn, *Part) (*Ending, error)) (Recovery, error)

	// Sweep forgets what has expired at this time: the content of products, recorded lines, claims.
	// It forgets up to limit rows (0 means 1,000), fewer where they are large, and tells whether there
	// are more. The rows stay, marked as [Swept]; claims go altogether.
	Sweep(ctx context.Context, at time.Time, limit int) (Sweeping, error)

	// Ping tells whether the store can commit, nil for yes.
	Ping(ctx context.Context) error

	// Close releases what the store holds. Calls that are being written are finished, others and
	// later ones return [ErrClosed]. It may be called twice.
	Close() error
}

// Turns are the changes of turns. Which one leads from which state to which is drawn in
// docs/ledger.md.
//
// Reserve, Continue and Refuse decide about a request: the first call with an idempotency key is
// [Fresh], and any later one with the same key and digest gets what is known ([Running], [Ended]),
// even if the first was given to another of the three. They need no look-up before. The same key with
// another digest, or a turn's ref with another identity, is [ErrMismatch]; so is a second start of the
// same ref, which has another key and therefore other bytes.
type Turns interface {
	// Reserve sets the budget of a new turn aside, and with r.Dispatch commits the intent to call
	// the adapter in the same transaction. Only who gets Fresh may call the adapter.
	Reserve(ctx context.Context, r Reservation) (Verdict, error)

	// Dispatch commits that the adapter is about to be called for a reserved turn. A turn in another
	// version or state is [ErrConflict], an unknown one [ErrNotFound].
	Dispatch(ctx context.Context, turn TurnRef, version int64, at time.Time) (Turn, error)

	// Release forgets a reserved turn and its requests, so that they may come again. A turn in
	// another version or state is [ErrConflict], an unknown one [ErrNotFound].
	Release(ctx context.Context, turn TurnRef, version int64) error

	// Suspend commits that a dispatched turn awaits observations, and what its stream said so far.
	// Errors are those of Settle.
	Suspend(ctx context.Context, s Suspension) (Turn, error)

	// Continue commits that a suspended turn goes on with an answer. An unknown turn is
	// [ErrNotFound]; one that is not suspended, has another version, or does not await that
	// observation is [ErrConflict]. Then nothing is recorded: the caller refuses.
	Continue(ctx context.Context, c Continuation) (Verdict, error)

	// Settle commits outcome, charge, product and the last bytes of the stream together, at most
	// once per turn. A turn in another version, or settled already, is [ErrConflict], an unknown one
	// [ErrNotFound]. It should be given a context that outlives the host's connection.
	Settle(ctx context.Context, s Settlement) (Turn, error)

	// Refuse records a request that was declined before any adapter was called, with its outcome. A
	// turn that is not known yet is recorded as settled; a known one stays as it was, and only the
	// request is recorded.
	Refuse(ctx context.Context, r Refusal) (Verdict, error)
}

// Sessions are the sessions of bindings.
type Sessions interface {
	// PutSession opens, changes or closes a binding's session. It returns what is known then. A
	// session in another version than s.Version is [ErrConflict].
	PutSession(ctx context.Context, s Session, at time.Time) (Session, error)
}

// Admissions are the profiles and bindings that turns may name. What was replaced or withdrawn is
// remembered for good.
type Admissions interface {
	// Admit admits a document and tells what that changed. From a [Directory] it never lifts a
	// withdrawal and never brings back a document that was replaced; from an [Operator] it does
	// both. Kind, Ref, Generation, Digest, Document and Source are read of a.
	Admit(ctx context.Context, a Admission, at time.Time) (Admission, Change, error)

	// Withdraw revokes a binding or disables a profile. One that is not known is [ErrNotFound]; one
	// that is withdrawn stays as it was.
	Withdraw(ctx context.Context, kind Kind, ref string, at time.Time) (Admission, error)
}

// Claims remember the turn ids of Keiki, so that each runs once (keiki.md, "Settled readings").
type Claims interface {
	// Claim takes a turn id in one atomic step: exactly one of several callers gets [Fresh]. Where
	// as many claims are remembered as the store holds, the oldest that does not run is forgotten;
	// if all run, it is [ErrFull].
	Claim(ctx context.Context, c ClaimRequest) (Claimed, error)

	// EndClaim commits that a claimed turn ended. A claim that is not remembered is [ErrNotFound],
	// one that has ended stays as it was.
	EndClaim(ctx context.Context, agent AgentID, turn TurnRef, at time.Time) error

	// Unclaim forgets a claim, as of a turn that was refused after all. One that is not remembered
	// is no error.
	Unclaim(ctx context.Context, agent AgentID, turn TurnRef) error
}

// A Reader looks at a ledger. It changes nothing.
type Reader interface {
	// Turn returns a turn, or [ErrNotFound].
	Turn(ctx context.Context, ref TurnRef) (Turn, error)
	// Part returns a request with its recorded lines, or [ErrNotFound].
	Part(ctx context.Context, key Key) (Part, error)
	// Parts returns the requests of a turn in the order they were recorded, with their lines. A turn
	// that is not known has none.
	Parts(ctx context.Context, turn TurnRef) ([]Part, error)
	// Product returns a product with its content, or [ErrNotFound].
	Product(ctx context.Context, ref ProductRef) (Product, error)
	// Session returns the session of a binding, open or closed, or [ErrNotFound].
	Session(ctx context.Context, binding BindingRef) (Session, error)
	// Admission returns what is admitted under a ref, withdrawn or not, or [ErrNotFound].
	Admission(ctx context.Context, kind Kind, ref string) (Admission, error)
	// Admissions returns all of a kind by ref, withdrawn ones too.
	Admissions(ctx context.Context, kind Kind) ([]Admission, error)
	// Superseded tells whether a document with this digest was admitted under the ref and replaced.
	Superseded(ctx context.Context, kind Kind, ref string, digest Digest) (bool, error)

	// ListTurns returns a page of turns. A [TurnQuery.Limit] over 1,000 is [ErrInvalid].
	ListTurns(ctx context.Context, q TurnQuery) (TurnPage, error)
	// Export walks all facts: admissions, what they replaced, sessions, turns with their parts and
	// product, claims. It shows no content. Each row is as it was when the walk came by; turns that
	// are recorded meanwhile may or may not be seen. An error is the last pair. The sequence can be
	// walked several times.
	Export(ctx context.Context) iter.Seq2[Record, error]
}

// A Request is what is recorded of a turn request.
type Request struct {
	Key Key
	// Digest covers the whole request, canonically.
	Digest Digest
	Mode   Mode
	// Answers is the observation that a continue answers, empty for a start.
	Answers ObservationRef

	Turn TurnRef
	// Identity covers what all requests of one turn must agree in.
	Identity          Digest
	Agent             AgentID
	Binding           BindingRef
	BindingDigest     Digest     // optional
	Profile           ProfileRef // optional, as where the binding is not known
	ProfileGeneration int64
	Reserved          Budget
	Deadline          time.Time // optional
}

// A Reservation asks for a turn. Its Mode is [Start].
type Reservation struct {
	Request
	// Dispatch commits the intent to call the adapter along with the reservation.
	Dispatch bool
	// Session is changed in the same transaction, where it is not nil.
	Session *Session
	At      time.Time
}

// A Recording is what a part of a stream said.
type Recording struct {
	// Lines are all bytes of the part, not nil unless Oversized.
	Lines []byte
	// Oversized says that the stream outgrew what is kept of one. Lines is then nil and Size tells
	// how long it was, in bytes.
	Oversized bool
	Size      int64
	// LastSeq is the sequence number of its last line.
	LastSeq int64
	// Expires is when Lines may be forgotten; zero means never.
	Expires time.Time
}

// A Suspension says that a turn awaits observations.
type Suspension struct {
	Turn    TurnRef
	Version int64 // that the caller saw
	Key     Key   // of the part that ran
	// Awaiting are all observations that are outstanding; at least one.
	Awaiting  []ObservationRef
	Recording Recording
	Session   *Session // changed in the same transaction, where it is not nil
	At        time.Time
}

// A Continuation answers a suspended turn. Its Mode is [Continue].
type Continuation struct {
	Request
	Version int64    // that the caller saw
	Session *Session // changed in the same transaction, where it is not nil
	At      time.Time
}

// A Settlement ends a turn.
type Settlement struct {
	Turn    TurnRef
	Version int64 // that the caller saw
	// Key is that of the part that ran; empty where none did, as with a suspended turn.
	Key Key
	// Outcome's Status is not Unknown. Its At is set by the store. A turn that was never dispatched
	// is charged nothing.
	Outcome Outcome
	// Product is what a completed turn produced, with the outcome's ref and digest; nil for others.
	// Its Turn, Size, Keeping and At are set by the store.
	Product *Product
	// Recording is what the part said; it is not looked at where Key is empty, but for LastSeq.
	Recording Recording
	Session   *Session // changed in the same transaction, where it is not nil
	At        time.Time
}

// A Refusal declines a request. Its Outcome's Status is [Refused] and charges nothing.
type Refusal struct {
	Request
	Outcome   Outcome
	Recording Recording
	At        time.Time
}

// A Decision tells a caller what became of its request.
type Decision string

// The decisions.
const (
	// Fresh: this call committed it, and what follows is the caller's to do.
	Fresh Decision = "fresh"
	// Running: another call did, and its stream is being made; the caller joins it.
	Running Decision = "running"
	// Ended: another call did, and its stream has ended; the caller replays it.
	Ended Decision = "ended"
)

// A Verdict is the answer to a request.
type Verdict struct {
	Decision Decision
	Turn     Turn
	// Part is the request, with its lines where it has ended.
	Part Part
}

// An Ending is what the host is to see of a turn that became unknown.
type Ending struct {
	Ref       OutcomeRef // optional
	Document  json.RawMessage
	Recording Recording // for the part that ran, if one did
}

// A Recovery is what [Store.Recover] did, in the order it did it.
type Recovery struct {
	Unknown  []Turn // settled as unknown
	Released []TurnRef
	Lost     int // claims
}

// A Sweeping is what [Store.Sweep] did.
type Sweeping struct {
	Products int
	Parts    int
	Claims   int
	More     bool
}

// A Change is what admitting a document changed.
type Change string

// The changes.
const (
	// Admitted: the ref is new.
	Admitted Change = "admitted"
	// Unchanged: this very document is in force already.
	Unchanged Change = "unchanged"
	// Replaced: another document of the ref was in force, and is superseded now.
	Replaced Change = "replaced"
	// Restored: the ref was withdrawn, and an operator admitted it anew.
	Restored Change = "restored"
	// StillWithdrawn: the ref is withdrawn and a directory does not lift that. Nothing changed.
	StillWithdrawn Change = "still-withdrawn"
	// Stale: a directory offered a document that was replaced, or a profile of an earlier generation.
	// Nothing changed.
	Stale Change = "stale"
)

// A ClaimRequest asks for a turn id.
type ClaimRequest struct {
	Agent AgentID
	Turn  TurnRef
	// Again takes also a claim that has ended or was lost: for a platform that offers a turn again
	// when it means it to be run again. A running one is never taken.
	Again   bool
	At      time.Time
	Expires time.Time
}

// A Claimed is the answer to a [ClaimRequest]. The decision about a lost claim is Ended.
type Claimed struct {
	Decision Decision
	Claim    Claim
}

// A TurnQuery selects turns. Its zero value selects all, oldest first. Selecting by anything but After
// reads the turns that are passed over.
type TurnQuery struct {
	// State, Status, Agent and Binding select equal ones; empty means any.
	State   State
	Status  Status
	Agent   AgentID
	Binding BindingRef
	// Newest turns the order round.
	Newest bool
	// After is the Next of the page before, 0 for the first page.
	After int64
	// Limit is the length of a page, 0 means 100.
	Limit int
}

// A TurnPage is a part of a list.
type TurnPage struct {
	Turns []Turn
	// Next is where the next page begins ([TurnQuery.After]), 0 if there is none.
	Next int64
}

// Limits bound what a row may hold, in bytes. A zero field means the default.
type Limits struct {
	Lines     int // of a part's recorded lines; default 16 MiB
	Content   int // of a product; default 4 MiB
	Documents int // of a document; default 1 MiB
	Values    int // of a session; default 16 MiB
	// Claims is how many claims are remembered; default 100,000.
	Claims int
}

// WithDefaults is l with its zero fields set.
func (l Limits) WithDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.Lines, 16<<20)
	def(&l.Content, 4<<20)
	def(&l.Documents, 1<<20)
	def(&l.Values, 16<<20)
	def(&l.Claims, 100_000)
	return l
}
