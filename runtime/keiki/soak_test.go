package keiki_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/soak"
	"github.com/backline-dev/backline/internal/testhost"
)

// A role is what the adapter of a long test does in a turn: always the same for a turn's id.
type role struct {
	messages int
	pause    time.Duration // before each message
	end      string        // "", "error" or "panic"
}

func roleOf(turnID string) role {
	h := fnv.New64a()
	_, _ = h.Write([]byte(turnID)) // never fails
	random := rand.New(rand.NewPCG(h.Sum64(), 0))
	r := role{messages: random.IntN(5), pause: time.Duration(random.IntN(30)) * time.Millisecond}
	switch random.IntN(20) {
	case 0:
		r.end = "error"
	case 1:
		r.end = "panic"
	case 2:
		r.pause = 300 * time.Millisecond // it needs its lease refreshed
	}
	return r
}

func (r role) texts(turnID string) (list []string) {
	for i := range r.messages {
		list = append(list, fmt.Sprintf("%s says %d", turnID, i))
	}
	return list
}

func (r role) play(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	for _, text := range r.texts(turn.ID) {
		timer := time.NewTimer(r.pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if err := w.Text(text + "\n\n"); err != nil {
			return err
		}
	}
	switch r.end {
	case "error":
		return errors.New("as it is meant to")
	case "panic":
		panic("as it is meant to")
	}
	return nil
}

func playRole(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	return roleOf(turn.ID).play(ctx, turn, w)
}

// A stage is a desk whose turns play their roles, whoever takes them up, and are held to them.
type stage struct {
	*desk
	open                      chan struct{} // one element for each turn that has not ended
	completed, failed, merged atomic.Int64
}

// newStage makes a platform that fails now and then.
func newStage(t *testing.T, edit ...func(*deskConfig)) *stage {
	t.Helper()
	s := &stage{open: make(chan struct{}, 200)}
	edit = append([]func(*deskConfig){func(c *deskConfig) {
		c.platform.Lease = time.Second
		c.platform.RotateOnRefresh = true
		c.platform.Fault = testhost.RandomFaults(rand.Uint64(), 2, 3, 1)
		c.platform.OnOutcome = s.ended
		c.platform.InFlight = 2 * time.Second
	}}, edit...)
	s.desk = newDesk(t, edit...)
	// A drain without time gives up a completion whose answer is on its way, and tries it once more.
	s.complaints[testhost.RuleCompleted] = true
	return s
}

// ended holds a turn that has ended to its role.
func (s *stage) ended(o testhost.KeikiOutcome) {
	r := roleOf(o.TurnID)
	texts := s.platform.Texts(o.TurnID)
	switch want := r.texts(o.TurnID); {
	case o.Status == "merged":
		s.merged.Add(1)
		if len(texts) > 0 {
			s.t.Errorf("a turn that was merged has messages %q", texts)
		}
	case o.Status == "completed" && r.end == "" || o.Status == "failed" && o.Code == "app_error" && r.end != "":
		if o.Status == "completed" {
			s.completed.Add(1)
		} else {
			s.failed.Add(1)
		}
		if diff := cmp.Diff(want, texts); diff != "" {
			s.t.Errorf("%s: messages (-want +got):\n%s", o.TurnID, diff)
		}
	default:
		s.t.Errorf("%+v of a turn that was to be %+v", o, r)
	}
	<-s.open
}

// run queues turns, 200 at a time, until all have ended. Meanwhile disturb is called so many times, at random.
func (s *stage) run(turns, disturbances int, pause time.Duration, disturb func()) {
	s.t.Helper()
	queued, open, last := 0, 0, time.Now()
	due := time.NewTimer(0)
	defer due.Stop()
	for queued < turns || len(s.open) > 0 || disturbances > 0 {
		for queued < turns || disturbances > 0 {
			select {
			case s.open <- struct{}{}:
				s.queue(testhost.KeikiTurn{ID: fmt.Sprintf("turn-%d-%x", queued, rand.Uint64()), Text: "hello", ConversationID: fmt.Sprintf("conversation-%d", rand.IntN(300))})
				queued++
				continue
			default:
			}
			break
		}
		select {
		case <-due.C:
			if disturbances > 0 {
				disturb()
				disturbances--
				due.Reset(rand.N(pause))
			}
		case <-time.After(5 * time.Millisecond): // look again
		}
		if n := len(s.open); n != open {
			open, last = n, time.Now()
		}
		if time.Since(last) > time.Minute {
			s.t.Fatalf("nothing has ended for a minute, and %d turns are open", open)
		}
	}
	s.t.Logf("%d turns: %d completed, %d failed as they should, %d were merged", queued, s.completed.Load(), s.failed.Load(), s.merged.Load())
}

// A lifeline is a transport that can be cut: nothing leaves after that, as from a process that is killed.
type lifeline struct {
	http.RoundTripper
	ctx  context.Context
	kill context.CancelFunc
}

func newLifeline(rt http.RoundTripper) *lifeline {
	ctx, kill := context.WithCancel(context.Background())
	return &lifeline{rt, ctx, kill}
}

func (l *lifeline) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.ctx.Err() != nil {
		return nil, l.ctx.Err()
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(l.ctx, cancel)
	res, err := l.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	res.Body = &lifelineBody{res.Body, func() { stop(); cancel() }}
	return res, nil
}

type lifelineBody struct {
	rc interface {
		Read([]byte) (int, error)
		Close() error
	}
	close func()
}

func (b *lifelineBody) Read(p []byte) (int, error) { return b.rc.Read(p) }
func (b *lifelineBody) Close() error               { defer b.close(); return b.rc.Close() }

// TestSoakInbox: many turns over a platform that drops, fails and throttles, by three pollers that are killed at
// random, or drained without time: each turn is answered as it should be, each message delivered once and in
// order, and no poller runs two turns of a conversation at once.
func TestSoakInbox(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	kills, drains := 0, 0
	type poller struct {
		*worker
		line *lifeline
	}
	open := func() poller {
		var mu sync.Mutex
		running := map[string]bool{}
		var line *lifeline
		w := s.work(adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
			mu.Lock()
			twice := running[turn.ConversationID]
			running[turn.ConversationID] = true
			mu.Unlock()
			if twice {
				t.Errorf("two turns of %s run at once", turn.ConversationID)
			}
			defer func() {
				mu.Lock()
				delete(running, turn.ConversationID)
				mu.Unlock()
			}()
			return playRole(ctx, turn, w)
		}), func(c *workerConfig) {
			line = newLifeline(c.inbox.Transport)
			c.inbox.Transport = line
			c.inbox.Concurrency = 8
		})
		return poller{w, line}
	}
	pollers := []poller{open(), open(), open()}
	turns := soak.Turns(t, 100)
	s.run(turns, max(5, turns/50), 300*time.Millisecond, func() {
		i := rand.IntN(len(pollers))
		if rand.IntN(3) > 0 {
			kills++
			pollers[i].line.kill()
		} else {
			drains++
		}
		pollers[i].stop(expired())
		pollers[i] = open()
	})
	t.Logf("%d pollers were killed, %d drained without time", kills, drains)
}

// TestSoakInboxProcesses: the same by processes that are killed, with their memory of turns in a file.
func TestSoakInboxProcesses(t *testing.T) {
	soak.Only(t)
	t.Parallel()
	s := newStage(t)
	var children []*exec.Cmd
	dir := t.TempDir()
	open := func(i int) *exec.Cmd {
		conf, err := json.Marshal(childConfig{APIBase: s.url, APIKey: s.platform.APIKey(""), Store: filepath.Join(dir, fmt.Sprintf("%d.db", i)), Roles: true})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), pollingChild+"="+string(conf))
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	for i := range 3 {
		children = append(children, open(i))
	}
	kills := soak.Kills(t, 20)
	s.run(soak.Turns(t, 200)/10, kills, time.Second, func() {
		i := rand.IntN(len(children))
		if err := errors.Join(children[i].Process.Kill(), ignoreExit(children[i].Wait())); err != nil {
			t.Error(err)
		}
		children[i] = open(i)
	})
	t.Logf("%d processes were killed", kills)
}
