package runtime

import "github.com/backline-dev/backline/adapters"

// Stop has the turn end for this cause, unless it is ending already; the adapter is told, and has the
// grace to return. It does not wait. Not to be called from a [Sink]'s methods that run under the log's
// lock.
func (s Stream) Stop(cause adapters.Cause) {
	if s.run != nil {
		s.run.stop(cause)
	}
}

// Held tells whether the turn has its session, as it has from Start on where no other turn had it. One that
// has to wait for it gets it before its adapter is called.
func (s Stream) Held() bool { return s.run != nil && s.run.lease.Held() }

// Discard takes back a Start whose stream was neither served nor run, as if it had never been: the
// adapter is not called, hooks and log hear nothing. A protocol does this that had to start the turn
// before it could know whether it may run. It takes the place of Serve or Run.
func (s Stream) Discard() {
	r := s.run
	if s.Repeat != First || r == nil {
		return
	}
	e := s.engine
	e.mu.Lock()
	if r.launched || r.ended {
		e.mu.Unlock()
		return
	}
	r.launched, r.ended, r.ending = true, true, true
	e.mu.Unlock()
	r.lease.Release()
	if r.owner != nil {
		r.owner.Recycle()
	}
	e.settle(r, false)
	_ = r.rec.log.Begin() // only this function seals the log
	r.closed = true
	r.rec.log.Seal(nil, false)
	r.cancel(adapters.CauseStopped)
	e.closed(r)
	e.goroutines.Done()
}
