package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/ndjson"
	"github.com/backline-dev/backline/runtime/session"
)

// Random lives: hosts that send turns of a few sessions, join and leave them, are slow or broken, while
// turns are stopped and the engine drains, and adapters do what they like. Times are multiples of 10 ms,
// so that many things happen at one moment, and at that moment in parallel. Whatever happens, no two
// adapters of one session run at once, each turn ends once, what each host has got is a part of its
// turn from the first line on, and in the end nothing is left.

// An act is one thing that happens.
type act struct {
	At      time.Duration
	What    string // "send", "stop", "drain"
	Session int
	Turn    int
	Other   bool // the turn has another fingerprint
	Steps   []move
	Leaves  time.Duration // after that time the host goes; 0: it does not
	Slow    time.Duration // the host takes nothing for so long
	Broken  bool          // the host's connection fails on its second write
}

// A move is one thing that an adapter does.
type move struct {
	Do string
	N  int           // of text
	D  time.Duration // of sleep
}

type world struct {
	conf runtime.Config
	acts []act
}

var tick = rapid.Custom(func(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(0, 12).Draw(t, "ticks")) * 10 * ms
})

var worlds = rapid.Custom(func(t *rapid.T) world {
	duration := func(name string, ds ...time.Duration) time.Duration { return rapid.SampledFrom(ds).Draw(t, name) }
	w := world{conf: runtime.Config{
		TurnTimeout: duration("TurnTimeout", -1, 100*ms, 200*ms),
		FirstOutput: duration("FirstOutput", -1, 50*ms),
		Idle:        duration("Idle", -1, 30*ms),
		Heartbeat:   duration("Heartbeat", -1, 10*ms, 30*ms),
		Grace:       duration("Grace", 10*ms, 20*ms),
		SessionWait: duration("SessionWait", -1, 40*ms),
		HostGone:    duration("HostGone", runtime.CancelAtOnce, runtime.Detach, 30*ms),
		Replay:      duration("Replay", -1, 50*ms, time.Hour),
		ReplayBytes: rapid.SampledFrom([]int64{1, 4 << 10, 0}).Draw(t, "ReplayBytes"),
		RefuseBusy:  rapid.Bool().Draw(t, "RefuseBusy"),
		MaxTurns:    rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "MaxTurns"),
		Stream: ndjson.LogConfig{
			Keep:         rapid.SampledFrom([]int64{500, 2000, 0}).Draw(t, "Keep"),
			Ahead:        rapid.SampledFrom([]int64{300, 0}).Draw(t, "Ahead"),
			WriteTimeout: duration("WriteTimeout", 40*ms, 0),
		},
	}}
	moves := rapid.Custom(func(t *rapid.T) move {
		return move{
			Do: rapid.SampledFrom([]string{
				"text", "text", "text", "status", "store", "usage", "sleep", "sleep", "ignore", "parallel", "panic", "error", "Goexit",
			}).Draw(t, "do"),
			N: rapid.SampledFrom([]int{0, 5, 100, 700}).Draw(t, "n"),
			D: tick.Draw(t, "d"),
		}
	})
	w.acts = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
		return act{
			At:      tick.Draw(t, "at"),
			What:    rapid.SampledFrom([]string{"send", "send", "send", "send", "send", "send", "send", "stop", "drain"}).Draw(t, "what"),
			Session: rapid.IntRange(0, 2).Draw(t, "session"),
			Turn:    rapid.IntRange(0, 3).Draw(t, "turn"),
			Other:   rapid.IntRange(0, 9).Draw(t, "other") == 0,
			Steps:   rapid.SliceOfN(moves, 0, 6).Draw(t, "steps"),
			Leaves:  tick.Draw(t, "leaves"),
			Slow:    tick.Draw(t, "slow"),
			Broken:  rapid.IntRange(0, 9).Draw(t, "broken") == 0,
		}
	}), 1, 25).Draw(t, "acts")
	return w
})

// A life is one run of a world.
type life struct {
	engine *runtime.Engine
	inUse  [3]atomic.Int64 // adapters that run in each session, but for those that were left behind

	mu     sync.Mutex
	faults []string
	runs   []*randomRun
	hosts  []*randomHost
	ends   map[string]int
}

func (l *life) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// A randomRun is a turn that was sent, its sink, and its record of what it wrote.
type randomRun struct {
	lineSink
	life    *life
	name    string // of all runs, this one
	session int
	first   bool // it is a turn of its own

	mu      sync.Mutex
	lines   []byte
	settled int
	outcome runtime.Outcome
	left    bool // the adapter was left behind
	calls   int
	late    bool // the adapter has returned
}

func (r *randomRun) note(dst, longer []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, longer[len(dst):]...)
	return longer
}

func (r *randomRun) Started(dst []byte) []byte {
	return r.note(dst, fmt.Appendf(dst, "started %s\n", r.name))
}
func (r *randomRun) Text(dst []byte, s string) []byte { return r.note(dst, r.lineSink.Text(dst, s)) }
func (r *randomRun) Status(dst []byte, s string) []byte {
	return r.note(dst, r.lineSink.Status(dst, s))
}
func (r *randomRun) Heartbeat(dst []byte) []byte { return r.note(dst, r.lineSink.Heartbeat(dst)) }
func (r *randomRun) End(dst []byte, o *runtime.Outcome) []byte {
	return r.note(dst, r.lineSink.End(dst, o))
}

func (r *randomRun) Settle(o *runtime.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled++
	r.outcome = *o
	if o.Abandoned && r.calls > 0 && !r.late {
		r.left = true
		r.life.inUse[r.session].Add(-1)
	}
}

// adapter makes the moves.
func (r *randomRun) adapter(steps []move) adapters.Func {
	return func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		if n := r.life.inUse[r.session].Add(1); n != 1 {
			r.life.fault("%d adapters of session %d run at once", n, r.session)
		}
		r.mu.Lock()
		r.calls++
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.late = true
			if !r.left {
				r.life.inUse[r.session].Add(-1)
			}
		}()
		for i, s := range steps {
			var err error
			switch s.Do {
			case "text":
				err = w.Text(strings.Repeat("x", s.N))
			case "status":
				err = w.Status("s")
			case "usage":
				err = w.Usage(adapters.Usage{Steps: adapters.Count(1)})
			case "store":
				err = turn.Session.Store("k", i)
			case "sleep":
				select {
				case <-time.After(s.D):
				case <-ctx.Done():
					err = context.Cause(ctx)
				}
			case "ignore":
				time.Sleep(s.D)
			case "parallel":
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() { _ = w.Text("p"); _ = w.Status("p") })
				}
				wg.Wait()
			case "panic":
				panic("move")
			case "error":
				return errors.New("move")
			case "Goexit":
				goruntime.Goexit()
			}
			if err != nil {
				if !errors.Is(err, adapters.ErrTurnOver) && ctx.Err() == nil {
					r.life.fault("%s: %s = %v", r.name, s.Do, err)
				}
				return err
			}
		}
		return nil
	}
}

type randomHost struct {
	*host
	own *randomRun
}

func (l *life) send(t *testing.T, a act, number int) {
	run := &randomRun{life: l, name: fmt.Sprintf("%d/%d#%d", a.Session, a.Turn, number), session: a.Session}
	s := in(fmt.Sprint(a.Session), spec(fmt.Sprint(a.Turn), run.adapter(a.Steps)))
	s.Sink = run
	if a.Other {
		s.Fingerprint = 2
	}
	stream, err := l.engine.Start(t.Context(), s)
	if err != nil {
		for _, known := range []error{runtime.ErrConflict, runtime.ErrOutgrown, runtime.ErrDraining, runtime.ErrSessionBusy, runtime.ErrAtCapacity} {
			if errors.Is(err, known) {
				return
			}
		}
		l.fault("Start = %v", err)
		return
	}
	c := newConn(t)
	if a.Slow > 0 {
		c.hold(40)
		time.AfterFunc(a.Slow, c.release)
	}
	g := &rig{t: t}
	h := &randomHost{host: g.serve(c, stream), own: run}
	if a.Broken {
		time.AfterFunc(10*ms, func() { c.breakWith(errors.New("broken")) })
	}
	if a.Leaves > 0 {
		time.AfterFunc(a.Leaves, h.leave)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	run.first = stream.Repeat == runtime.First
	if run.first {
		l.runs = append(l.runs, run)
	}
	l.hosts = append(l.hosts, h)
}

// live runs a world and returns what was wrong with it.
func (w world) live(t *testing.T) (faults []string) {
	t.Helper()
	l := &life{ends: map[string]int{}}
	synctest.Test(t, func(t *testing.T) {
		conf := w.conf
		conf.Logger = slog.New(slog.DiscardHandler)
		sessions, err := session.New(session.Config{})
		if err != nil {
			t.Fatal(err)
		}
		conf.Sessions = sessions
		var ended atomic.Int64
		conf.Hooks = []runtime.Hooks{{TurnEnd: func(context.Context, runtime.TurnInfo, *runtime.Outcome) { ended.Add(1) }}}
		if l.engine, err = runtime.New(conf); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		drain := func(limit time.Duration) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
			defer cancel()
			_ = l.engine.Drain(ctx)
			if s := l.engine.Stats(); s.Active != 0 {
				l.fault("after Drain: %+v", s)
			}
		}
		for i, a := range w.acts {
			all.Go(func() {
				time.Sleep(a.At)
				switch a.What {
				case "send":
					l.send(t, a, i)
				case "stop":
					l.engine.Stop(adapters.Lowkey, key(fmt.Sprint(a.Session)), fmt.Sprint(a.Turn))
				case "drain":
					drain(a.Slow)
				}
			})
		}
		all.Wait()
		drain(time.Second)
		l.mu.Lock()
		hosts := l.hosts
		l.mu.Unlock()
		for _, h := range hosts {
			h.release()
			<-h.done
		}
		l.engine.WaitAdapters()
		synctest.Wait()

		for i := range l.inUse {
			if n := l.inUse[i].Load(); n != 0 {
				l.fault("%d adapters of session %d run in the end", n, i)
			}
		}
		s := l.engine.Stats()
		if s.Active != 0 || s.Abandoned != 0 || s.Total != int64(len(l.runs)) || ended.Load() != s.Total {
			l.fault("%d turns, %d ends, %+v", len(l.runs), ended.Load(), s)
		}
		if c := sessions.Stats(); c.Held != 0 || c.Waiting != 0 {
			l.fault("sessions: %+v", c)
		}
		byName := map[string]*randomRun{}
		for _, r := range l.runs {
			byName[r.name] = r
			lines := string(r.lines)
			if r.settled != 1 || r.calls > 1 || strings.Count(lines, "end ") != 1 || !strings.HasPrefix(lines, "started "+r.name+"\n") {
				l.fault("%s: settled %d times, called %d times, lines %q", r.name, r.settled, r.calls, lines)
			}
			if want := fmt.Sprintf("end %s %s\n", r.outcome.Status, string(r.outcome.Cause)); !strings.HasSuffix(lines, want) {
				l.fault("%s: lines %q, want the last to be %q", r.name, lines, want)
			}
		}
		for _, h := range hosts {
			seen := h.seen()
			if seen == "" {
				if h.err == nil && h.returned {
					l.fault("%s: a host got nothing and no error", h.own.name)
				}
				continue
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(seen, "started "), "\n")
			run := byName[name]
			switch {
			case run == nil && h.err != nil: // half a line
			case run == nil || !strings.HasPrefix(string(run.lines), seen):
				l.fault("%s (%v): a host got %q, which no turn wrote", h.own.name, h.Repeat, seen)
			case h.err == nil && h.returned && seen != string(run.lines):
				l.fault("%s (%v): a host got %q, its turn wrote %q", h.own.name, h.Repeat, seen, run.lines)
			}
		}
	})
	return l.faults
}

func TestRandomLives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := worlds.Draw(rt, "world")
		if faults := w.live(t); len(faults) > 0 {
			rt.Fatalf("%s", strings.Join(faults, "\n"))
		}
	})
}
