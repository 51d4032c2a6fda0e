package external

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// postTurn is a turn request. The order is that of external-runtime.md, Settled readings, "At the
// door", and then that of the checks.
func (h *Handler) postTurn(w http.ResponseWriter, r *http.Request) *problem {
	body, p := h.readBody(w, r)
	if p != nil {
		return p
	}
	q, p := parse(body, time.Now())
	if p != nil {
		return p
	}
	// Who loses a race to another request of the same turn looks again; each round somebody gets ahead.
	for range 100 {
		again, p := h.decide(w, r, q)
		if p != nil || !again {
			return p
		}
	}
	return h.storeProblem(r.Context(), "decide", errors.New("a turn never settles down"))
}

// decide replays, joins, refuses or runs; again means that somebody else changed the turn meanwhile.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, q *request) (again bool, p *problem) {
	ctx := r.Context()
	t, err := h.find(ctx, q.turn)
	if err != nil {
		return false, nil // the host is gone
	}
	if t != nil {
		if part := t.part(q.key); part != nil {
			if part.digest != q.digest {
				return false, conflict("idempotency key")
			}
			h.engine.Refuse(ctx, adapters.ExternalRuntime, "joined")
			return false, h.follow(w, r, t, part, true)
		}
	}
	// Not a request of a live turn: what does the ledger know?
	part, err := h.store.Part(ctx, q.key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return false, h.storeProblem(ctx, "read", err)
	case part.Digest != q.digest:
		return false, conflict("idempotency key")
	case part.Running():
		if t != nil || h.isLive(q.turn) {
			return true, nil
		}
		return false, elsewhere()
	default:
		h.engine.Refuse(ctx, adapters.ExternalRuntime, "replayed")
		return false, h.replay(w, r, &part)
	}
	known, lastSeq := false, int64(0)
	if t != nil {
		known = true
		if t.identity != q.identity || q.Mode == wire.ModeStart {
			return false, conflict("turn")
		}
	} else {
		row, err := h.store.Turn(ctx, ledger.TurnRef(q.turn))
		switch {
		case errors.Is(err, ledger.ErrNotFound):
		case err != nil:
			return false, h.storeProblem(ctx, "read", err)
		case row.Identity != q.identity || q.Mode == wire.ModeStart:
			// The first one's key may have been reserved since it was looked for.
			if _, err := h.store.Part(ctx, q.key); err == nil {
				return true, nil
			}
			return false, conflict("turn")
		default:
			known, lastSeq = true, row.LastSeq
		}
	}
	g, f, err := h.check(ctx, q)
	if err != nil {
		return false, h.storeProblem(ctx, "check", err)
	}
	if f == nil && q.Mode == wire.ModeContinue {
		// What is outstanding was looked at in its place; t is the turn that has it, unless it has just
		// ended.
		if t == nil {
			return true, nil
		}
		return h.proceed(w, r, q, t)
	}
	if f != nil {
		if t != nil {
			lastSeq = t.sequence()
		}
		return h.decline(w, r, q, &g, f, known, lastSeq)
	}
	return h.start(w, r, q, &g)
}

// find returns the live turn of this ref, or nil. It waits while it is being decided whether there is
// one; the error is that of ctx.
func (h *Handler) find(ctx context.Context, ref wire.TurnRef) (*turn, error) {
	for {
		h.mu.Lock()
		t := h.live[ref]
		h.mu.Unlock()
		if t == nil {
			return nil, nil
		}
		select {
		case <-t.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if t.admitted {
			return t, nil
		}
	}
}

func (h *Handler) isLive(ref wire.TurnRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.live[ref] != nil
}

// remove takes a turn off the live ones.
func (h *Handler) remove(t *turn) {
	h.mu.Lock()
	if h.live[t.ref] == t {
		delete(h.live, t.ref)
	}
	h.mu.Unlock()
}

func elsewhere() *problem {
	p := problemf(http.StatusServiceUnavailable, "elsewhere", "The request is being run by another process, or its end was not seen and is found out when the server starts again.")
	p.RetryAfter = 5
	return p
}

// start runs a turn that passed the checks.
func (h *Handler) start(w http.ResponseWriter, r *http.Request, q *request, g *grant) (again bool, p *problem) {
	ctx := r.Context()
	t := h.newTurn(q, g)
	h.mu.Lock()
	switch {
	case h.live[q.turn] != nil:
		h.mu.Unlock()
		return true, nil
	case h.draining:
		h.mu.Unlock()
		return false, startProblem(runtime.ErrDraining)
	}
	h.live[q.turn] = t
	h.mu.Unlock()
	part, again, p := t.reserve(ctx, g)
	if part == nil {
		h.remove(t)
		close(t.ready)
		return again, p
	}
	t.admitted = true
	close(t.ready)
	stopPoint("dispatched")
	h.tasks.Go(t.stream.Run)
	return false, h.follow(w, r, t, part, false)
}

// proceed answers what a suspended turn awaits.
func (h *Handler) proceed(w http.ResponseWriter, r *http.Request, q *request, t *turn) (again bool, p *problem) {
	ctx, cancel := lasting(r.Context())
	defer cancel()
	part, err := t.answer(ctx, q)
	switch {
	case errors.Is(err, errNotAwaited): // somebody else answered it, or the turn has ended
		return true, nil
	case err != nil:
		return false, h.storeProblem(ctx, "continue", err)
	}
	return false, h.follow(w, r, t, part, false)
}

// contentType is that of streams, shared by all of them.
var contentType = []string{"application/x-ndjson"}

// follow lets a host have a part of a live turn. again: it joins an earlier request, so that there may be
// much to send at once.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, t *turn, p *part, again bool) *problem {
	ctx := r.Context()
	if p.shut {
		select {
		case <-t.done:
		case <-ctx.Done():
			return nil
		}
	}
	wirehttp.StreamHeader(w.Header(), contentType)
	c := h.streams.Open(w, r)
	defer c.Close()
	if again {
		c.HeaderFirst()
	}
	err := t.stream.Follow(ctx, c, p.index)
	if c.Crashed() {
		panic(http.ErrAbortHandler)
	}
	if (errors.Is(err, runtime.ErrOutgrown) || errors.Is(err, runtime.ErrNoPart)) && !c.Began() {
		// The log no longer has the beginning. The ledger has it all once the part has ended.
		select {
		case <-p.ended:
		case <-ctx.Done():
			return nil
		}
		row, err := h.store.Part(ctx, p.key)
		if err != nil {
			return h.storeProblem(ctx, "read", err)
		}
		if row.Running() {
			return elsewhere()
		}
		return h.replay(w, r, &row)
	}
	if err == nil && t.lost.Load() {
		if c.Began() {
			panic(http.ErrAbortHandler)
		}
		return elsewhere()
	}
	_ = err // the host is gone; it may come back
	return nil
}

// replay sends a recorded part.
func (h *Handler) replay(w http.ResponseWriter, r *http.Request, row *ledger.Part) *problem {
	switch {
	case row.Keeping == ledger.Oversized:
		return problemf(http.StatusGone, "oversized", "The stream had %d bytes, too many to be kept. The outcome can be read at the turn.", row.Size)
	case row.Keeping != ledger.Kept || expired(row.Expires, time.Now()):
		return problemf(http.StatusGone, "swept", "The stream's retention time is over. The outcome can be read at the turn.")
	}
	wirehttp.StreamHeader(w.Header(), contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(row.Lines)))
	c := h.streams.Open(w, r)
	defer c.Close()
	_, _ = c.Write(row.Lines) // the host has it, or it is gone
	if c.Crashed() {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// decline records a refusal and sends it.
func (h *Handler) decline(w http.ResponseWriter, r *http.Request, q *request, g *grant, f *finding, known bool, lastSeq int64) (again bool, p *problem) {
	ctx, cancel := lasting(r.Context())
	defer cancel()
	refusal := h.refusal(q, g, f.reason, known, lastSeq)
	stopPoint("refusing")
	v, err := h.store.Refuse(ctx, refusal)
	if err != nil {
		return false, h.storeProblem(ctx, "refuse", err)
	}
	stopPoint("refused")
	switch {
	case v.Decision == ledger.Running:
		return true, nil
	case v.Decision == ledger.Fresh:
		h.log.InfoContext(ctx, "turn refused", "turn", string(q.turn), "binding", string(q.binding), "reason", string(f.reason),
			"field", f.field, "found", f.found, "expected", f.expected)
	}
	h.engine.Refuse(ctx, adapters.ExternalRuntime, string(f.reason))
	return false, h.replay(w, r, &v.Part)
}

// getTurn tells a turn's outcome, or how far it is.
func (h *Handler) getTurn(w http.ResponseWriter, r *http.Request) *problem {
	ctx := r.Context()
	ref, p := refOf(r)
	if p != nil {
		return p
	}
	t, err := h.find(ctx, wire.TurnRef(ref))
	if err != nil {
		return nil // the host is gone
	}
	row, err := h.store.Turn(ctx, ledger.TurnRef(ref))
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return unknownTurn(ref)
	case err != nil:
		return h.storeProblem(ctx, "read", err)
	case row.Outcome != nil && len(row.Outcome.Document) > 0:
		writeJSON(w, http.StatusOK, row.Outcome.Document)
		return nil
	}
	d := turnDocument{
		TurnRef:    wire.TurnRef(row.Ref),
		State:      string(row.State),
		SeqNo:      row.LastSeq,
		ReservedAt: wire.DateTimeOf(row.ReservedAt),
		UpdatedAt:  wire.DateTimeOf(row.UpdatedAt),
	}
	if row.State == ledger.Suspended {
		for _, ref := range row.Awaiting {
			d.RequestRefs = append(d.RequestRefs, wire.RequestRef(ref))
		}
	}
	if !row.DispatchedAt.IsZero() {
		d.DispatchedAt = wire.DateTimeOf(row.DispatchedAt)
	}
	if t != nil {
		d.SeqNo = max(d.SeqNo, t.sequence())
		d.DeadlineAt = wire.DateTimeOf(t.cutoff())
		switch {
		case t.settling.Load():
			d.State = settling
		case row.State == ledger.Reserved:
			if other := h.holder(t.binding.BindingRef); other != nil {
				d.WaitingFor = other.ref
			}
		}
	} else if !row.Deadline.IsZero() {
		d.DeadlineAt = wire.DateTimeOf(row.Deadline)
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// settling is the state of a turn whose adapter is done, and whose outcome the ledger has not taken yet.
const settling = "settling"

// A turnDocument is what a host is told of a turn that has no outcome yet.
type turnDocument struct {
	TurnRef wire.TurnRef `json:"turn/ref"`
	// State is the ledger's, or settling.
	State string `json:"state"`
	// WaitingFor is the turn that has the session for which a reserved turn waits, where it is known.
	WaitingFor wire.TurnRef `json:"waiting/for,omitempty"`
	// RequestRefs are those that a suspended turn awaits the observations of.
	RequestRefs  []wire.RequestRef `json:"request/refs,omitempty"`
	SeqNo        int64             `json:"seq/no"`
	ReservedAt   wire.DateTime     `json:"reserved/at"`
	DispatchedAt wire.DateTime     `json:"dispatched/at,omitempty"`
	UpdatedAt    wire.DateTime     `json:"updated/at"`
	DeadlineAt   wire.DateTime     `json:"deadline/at,omitempty"`
}

// holder is the live turn that has a binding's session, nil for none.
func (h *Handler) holder(ref wire.BindingRef) *turn {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.live {
		if t.holds.Load() && t.binding.BindingRef == ref {
			return t
		}
	}
	return nil
}

func unknownTurn(ref string) *problem {
	return problemf(http.StatusNotFound, "unknown", "No turn %s is known.", wirehttp.Excerpt(ref))
}

// promptly is how long a host waits to hear that an adapter took its cancellation well.
const promptly = 250 * time.Millisecond

// cancelTurn ends a turn that runs.
func (h *Handler) cancelTurn(w http.ResponseWriter, r *http.Request) *problem {
	ctx := r.Context()
	ref, p := refOf(r)
	if p != nil {
		return p
	}
	t, err := h.find(ctx, wire.TurnRef(ref))
	if err != nil {
		return nil // the host is gone
	}
	answer := struct {
		TurnRef      wire.TurnRef `json:"turn/ref"`
		Cancellation string       `json:"cancellation"`
	}{wire.TurnRef(ref), "unknown"}
	if t == nil {
		status := http.StatusOK
		row, err := h.store.Turn(ctx, ledger.TurnRef(ref))
		switch {
		case errors.Is(err, ledger.ErrNotFound):
			status = http.StatusNotFound
		case err != nil:
			return h.storeProblem(ctx, "read", err)
		case row.Outcome != nil:
		case h.isLive(wire.TurnRef(ref)): // it has just begun
			return h.cancelTurn(w, r)
		default:
			return elsewhere()
		}
		writeJSON(w, status, answer)
		return nil
	}
	t.cancelled.Store(true)
	t.progress(wire.ProgressCancelling)
	t.stream.Stop(adapters.CauseStopped)
	answer.Cancellation = "pending"
	if t.wait(ctx, promptly) && t.status != "" {
		answer.Cancellation = "unknown" // it ended by itself in this moment
		if t.status == wire.StatusCancelled {
			answer.Cancellation = "acknowledged"
		}
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// getProduct tells what a turn produced.
func (h *Handler) getProduct(w http.ResponseWriter, r *http.Request) *problem {
	ref, p := refOf(r)
	if p != nil {
		return p
	}
	row, err := h.store.Product(r.Context(), ledger.ProductRef(ref))
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return problemf(http.StatusNotFound, "unknown", "No product %s is known.", wirehttp.Excerpt(ref))
	case err != nil:
		return h.storeProblem(r.Context(), "read", err)
	case row.Keeping != ledger.Kept || expired(row.Expires, time.Now()):
		return problemf(http.StatusGone, "swept", "The retention time of the product's content is over.")
	}
	writeJSON(w, http.StatusOK, struct {
		Product json.RawMessage `json:"product"`
		Content string          `json:"content"`
	}{row.Document, string(row.Content)})
	return nil
}
