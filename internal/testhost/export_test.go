package testhost

import "time"

// SetLinger changes how long a stream waits for its connection's end; it returns what undoes that.
func SetLinger(d time.Duration) (undo func()) {
	old := linger
	linger = d
	return func() { linger = old }
}
