package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

// Config tunes an [Engine]. The zero value is ready to use. A zero duration means the default, a
// negative one no limit.
type Config struct {
	// Sessions keeps conversations; nil means a new cache with its defaults.
	Sessions *session.Cache
	// Logger gets one line per turn and warnings; nil means slog.Default().
	Logger *slog.Logger
	// Hooks see every turn.
	Hooks []Hooks

	// TurnTimeout limits the whole turn, the wait for its session included. Default 10 minutes.
	TurnTimeout time.Duration
	// FirstOutput limits the time to the adapter's first output. Default 5 minutes.
	FirstOutput time.Duration
	// Idle limits the silence between two outputs of the adapter. Default 3 minutes.
	Idle time.Duration
	// Heartbeat is how long a turn may be silent on the wire. Default 15 seconds.
	Heartbeat time.Duration
	// Grace is how long an adapter may take to return once its turn must end. Default 2 seconds; it
	// has no "no limit".
	Grace time.Duration
	// SessionWait limits the wait for another turn of the same session; by default only TurnTimeout
	// does.
	SessionWait time.Duration
	// RefuseBusy refuses a turn whose session is busy, instead of letting it wait.
	RefuseBusy bool
	// MaxTurns is how many turns may run or wait at once; 0 means no limit.
	MaxTurns int
	// HostGone says what happens when a turn's last reader goes: [CancelAtOnce] (the default),
	// [Detach], or a positive time in which one may come back.
	HostGone time.Duration
	// Replay is how long a completed turn can be repeated without running again. Default 5 minutes;
	// negative means not at all.
	Replay time.Duration
	// ReplayBytes bounds the memory of completed turns. Default 64 MiB.
	ReplayBytes int64
	// Stream bounds each turn's log. Its HoldUnread is set by the engine.
	Stream ndjson.LogConfig
}

// What Config.HostGone and Spec.HostGone may be besides a positive time.
const (
	CancelAtOnce time.Duration = 0
	Detach       time.Duration = -1
)

const forever = time.Duration(1<<63 - 1)

func (c Config) withDefaults() (Config, error) {
	var errs []error
	def := func(v *time.Duration, d time.Duration) {
		switch {
		case *v == 0:
			*v = d
		case *v < 0:
			*v = forever
		}
	}
	def(&c.TurnTimeout, 10*time.Minute)
	def(&c.FirstOutput, 5*time.Minute)
	def(&c.Idle, 3*time.Minute)
	def(&c.Heartbeat, 15*time.Second)
	def(&c.SessionWait, forever)
	def(&c.Replay, 5*time.Minute)
	if c.Replay == forever {
		c.Replay = 0
	}
	if c.Grace == 0 {
		c.Grace = 2 * time.Second
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("runtime: Grace is %v, want a positive time", c.Grace))
	}
	if c.ReplayBytes == 0 {
		c.ReplayBytes = 64 << 20
	}
	if c.MaxTurns < 0 {
		errs = append(errs, fmt.Errorf("runtime: MaxTurns is %d, want 0 (no limit) or more", c.MaxTurns))
	}
	if c.HostGone < 0 && c.HostGone != Detach {
		errs = append(errs, fmt.Errorf("runtime: HostGone is %v, want CancelAtOnce, Detach or a positive time", c.HostGone))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Sessions == nil {
		s, err := session.New(session.Config{})
		if err != nil {
			errs = append(errs, err)
		}
		c.Sessions = s
	}
	c.Stream.HoldUnread = false
	return c, errors.Join(errs...)
}
