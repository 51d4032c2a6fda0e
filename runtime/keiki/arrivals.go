package keiki

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/backline-dev/backline/adapters"
	wire "github.com/backline-dev/backline/schema/keiki"
)

const (
	// maxArrivals is how many arrivals wait for an adapter, at most.
	maxArrivals = 256
	// maxArrivalsInTurn is how many a whole turn takes, at most.
	maxArrivalsInTurn = 10_000
	// gapPatience is how long an arrival that is missing is pulled for before it is passed over.
	gapPatience = 5 * time.Second
)

// Arrivals of one turn: what came in while it runs, in order and once each.
//
// They wait in a channel that always has room for what is put into it. What was put and is no longer
// there has been taken by the adapter, and so it is known to the letter which arrivals an adapter had
// before it wrote something, without asking it.
type arrivals struct {
	takes bool // the adapter takes any; set before the turn is known to anybody

	mu      sync.Mutex
	ch      chan adapters.Arrival    // nil until the adapter asks
	early   []adapters.Arrival       // in order, for when it does
	held    map[int64][]wire.Message // out of order
	seqs    []int64                  // sequences in order, of those put or early
	next    int64                    // the sequence that is due
	over    bool                     // past the completion boundary
	pulling bool                     // a goroutine fills a gap
	moved   chan struct{}            // closed when next has moved, for the one that pulls
	marks   []mark                   // what was taken before which text
	answers int                      // how many arrivals are answered
}

// A mark says that the first n arrivals were taken before the text at this offset.
type mark struct {
	offset int64
	n      int
}

// A reception is what became of an arrival.
type reception int

const (
	received reception = iota
	repeated
	notTaken   // the adapter takes none
	notRunning // the turn is over, or nearly
	tooMany
)

var noArrivals = func() chan adapters.Arrival { c := make(chan adapters.Arrival); close(c); return c }()

// channel is what the adapter gets.
func (a *arrivals) channel() <-chan adapters.Arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ch != nil:
	case !a.takes || a.over:
		return noArrivals
	default:
		a.ch = make(chan adapters.Arrival, maxArrivals+1)
		for _, x := range a.early {
			a.ch <- x
		}
		a.early = nil
	}
	return a.ch
}

// waiting counts arrivals that are not taken. Called with a locked.
func (a *arrivals) waiting() int { return len(a.ch) + len(a.early) }

// taken counts arrivals that the adapter has taken. Called with a locked.
func (a *arrivals) taken() int { return len(a.seqs) - a.waiting() }

// receive takes an arrival in. gap tells that one before it is missing.
func (a *arrivals) receive(seq int64, messages []wire.Message) (r reception, gap bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
		return notRunning, false
	case !a.takes:
		return notTaken, false
	case seq < a.next:
		if _, had := slices.BinarySearch(a.seqs, seq); had {
			return repeated, false
		}
		return notTaken, false // it was passed over
	case a.held[seq] != nil:
		return repeated, true
	case len(a.seqs) >= maxArrivalsInTurn:
		return tooMany, false
	}
	switch n := a.waiting() + len(a.held); {
	case n < maxArrivals:
	case n == maxArrivals && seq == a.next && len(a.held) > 0: // the others are held for this one
	default:
		return tooMany, false
	}
	if seq > a.next {
		if a.held == nil {
			a.held = map[int64][]wire.Message{}
		}
		if messages == nil {
			messages = []wire.Message{}
		}
		a.held[seq] = messages
		return received, true
	}
	a.put(seq, messages)
	a.catchUp()
	return received, len(a.held) > 0
}

// put hands over the arrival that is due. Called with a locked.
func (a *arrivals) put(seq int64, messages []wire.Message) {
	x := adapters.Arrival{Sequence: seq, Messages: inbound(messages)}
	if a.ch != nil {
		a.ch <- x // there is room: maxArrivals, and the one that all others were held for
	} else {
		a.early = append(a.early, x)
	}
	a.seqs = append(a.seqs, seq)
	a.next = seq + 1
}

// catchUp hands over what was held for the gap that is closed now. Called with a locked.
func (a *arrivals) catchUp() {
	for m, ok := a.held[a.next]; ok; m, ok = a.held[a.next] {
		delete(a.held, a.next)
		a.put(a.next, m)
	}
	if a.moved != nil {
		close(a.moved)
		a.moved = nil
	}
}

// skip passes over the gap.
func (a *arrivals) skip() (from, to int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || len(a.held) == 0 {
		return 0, 0
	}
	from = a.next
	first := true
	for seq := range a.held {
		if first || seq < to {
			to, first = seq, false
		}
	}
	a.next = to
	a.catchUp()
	return from, to
}

// gap tells which sequence is missing, and returns a channel that is closed when it has come.
func (a *arrivals) gap() (missing int64, moved <-chan struct{}, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || len(a.held) == 0 {
		a.pulling = false
		return 0, nil, false
	}
	if a.moved == nil {
		a.moved = make(chan struct{})
	}
	return a.next, a.moved, true
}

// startPulling tells whether the caller is to fill the gap.
func (a *arrivals) startPulling() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pulling || a.over || len(a.held) == 0 {
		return false
	}
	a.pulling = true
	return true
}

// writing notes what was taken before the text at this offset.
func (a *arrivals) writing(offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.taken()
	if n > 0 && (len(a.marks) == 0 || a.marks[len(a.marks)-1].n < n) {
		a.marks = append(a.marks, mark{offset, n})
	}
}

// delivered notes that text up to this offset has reached the platform, and so what it answers.
func (a *arrivals) delivered(end int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.marks) > 0 && a.marks[0].offset < end {
		a.answers = a.marks[0].n
		a.marks = a.marks[1:]
	}
}

// close ends it at the completion boundary: nothing is taken any more.
func (a *arrivals) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	a.over = true
	a.seqs = a.seqs[:a.taken()]
	a.early, a.held = nil, nil
	if a.moved != nil {
		close(a.moved)
		a.moved = nil
	}
	if a.ch != nil {
		// What is left goes: an adapter that takes one now would be answering what is not reported.
		for len(a.ch) > 0 {
			select {
			case <-a.ch:
			default:
			}
		}
		close(a.ch)
	}
}

// consumed are the arrivals to report: all that were taken for a turn that completed, those that were
// answered for another. Called after close.
func (a *arrivals) consumed(completed bool) []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if completed {
		return slices.Clone(a.seqs)
	}
	return slices.Clone(a.seqs[:min(a.answers, len(a.seqs))])
}

func inbound(messages []wire.Message) []adapters.Inbound {
	list := make([]adapters.Inbound, len(messages))
	for i, m := range messages {
		list[i] = adapters.Inbound{ID: m.ID, Text: m.Text, Silent: m.Silent, Flagged: m.Flagged}
	}
	return list
}

// receive takes a pushed arrival in, and has a gap before it filled.
func (t *turn) receive(seq int64, messages []wire.Message) reception {
	r, gap := t.arrivals.receive(seq, messages)
	if gap && t.arrivals.startPulling() {
		t.r.tasks.Go(t.fill)
	}
	return r
}

// fill pulls what is missing, until nothing is or the turn is over.
func (t *turn) fill() {
	var since time.Time
	var due int64
	attempt := 0
	for {
		missing, moved, ok := t.arrivals.gap()
		if !ok {
			return
		}
		if missing != due {
			due, since, attempt = missing, time.Now(), 0
		}
		left := t.r.patience - time.Since(since)
		if left <= 0 {
			from, to := t.arrivals.skip()
			t.log.Warn("arrivals are missing and passed over", "from", from, "to", to-1)
			continue
		}
		ctx, cancel := context.WithTimeout(t.calls, left)
		t.pull(ctx, missing-1)
		cancel()
		select {
		case <-moved: // the next page, or the end
			continue
		default:
		}
		timer := time.NewTimer(min(t.r.backoff.next(attempt, -1), left))
		attempt++
		select {
		case <-moved:
		case <-timer.C:
		case <-t.calls.Done():
			timer.Stop()
			t.arrivals.stopPulling()
			return
		}
		timer.Stop()
	}
}

func (a *arrivals) stopPulling() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pulling = false
}

// pull asks for the arrivals after one.
func (t *turn) pull(ctx context.Context, after int64) {
	a := t.fetch(ctx, "/arrivals?after="+strconv.FormatInt(after, 10))
	switch a.judge() {
	case settled:
	case closed:
		if a.fault.Code == "turn_closed" { // a 404 alone may be a platform that has nothing to pull
			t.end(endClosed, &a)
		}
		return
	case unauthorised:
		t.end(endUnauthorised, &a)
		return
	default:
		if ctx.Err() == nil {
			t.log.Debug("arrivals could not be pulled", "answer", a.word())
		}
		return
	}
	batches, err := wire.ParseArrivals(a.body)
	if err != nil {
		t.log.Warn("what the platform sent is no page of arrivals") // its own words might hold a token
		return
	}
	slices.SortFunc(batches, func(x, y wire.Batch) int { return cmp.Compare(x.Sequence, y.Sequence) })
	for _, b := range batches {
		t.arrivals.receive(b.Sequence, b.Messages)
	}
}
