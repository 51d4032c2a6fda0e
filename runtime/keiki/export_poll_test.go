package keiki

import "time"

// Hurry makes the pauses of an inbox shorter, for tests: between quiet polls, after polls that failed, and
// between the attempts of a call. Before Run.
func (i *Inbox) Hurry(every, least, most time.Duration) {
	i.poll.hurry(every, least, most)
	i.run.backoff = newBackoff(least, most)
}

// Hurry is that of an inbox.
func (r *Relay) Hurry(every, least, most time.Duration) {
	r.poll.hurry(every, least, most)
	r.backoff = newBackoff(least, most)
}

func (p *poller) hurry(every, least, most time.Duration) {
	p.every, p.backoff = every, newBackoff(least, most)
}
