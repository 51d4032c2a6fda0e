package session_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

// Faults H2 and H4 stand in cache_test.go and queue_test.go.

// Fault H1: edit, rewind, fork.
func TestFaultH1EditRewindFork(t *testing.T) {
	t.Parallel()
	requests, err := os.ReadFile("testdata/lowkey-rewind.ndjson")
	if err != nil {
		t.Fatal(err)
	}

	c := newCache(t, session.Config{})
	answers := []string{"noted A", "once", "anything", "anything", "anything"}
	hows := []adapters.Continuity{
		adapters.ContinuityNew, adapters.ContinuitySame, adapters.ContinuitySame,
		adapters.ContinuityReplaced, adapters.ContinuityReplaced,
	}
	n := 0
	for line := range bytes.Lines(requests) {
		var request struct {
			PluginID      string
			SessionHandle struct{ ID string }
			Turn          struct{ TurnID, Message string }
			Window        []struct{ Role, Content string } `json:"transcriptWindow"`
		}
		if err := json.Unmarshal(line, &request); err != nil {
			t.Fatal(err)
		}
		window := []adapters.Message{}
		for _, m := range request.Window {
			window = append(window, adapters.Message{Role: adapters.Role(m.Role), Content: m.Content})
		}

		l := acquire(t, c, session.Key{Plugin: request.PluginID, Handle: request.SessionHandle.ID})
		history, how := l.Join(window)
		wantHistory(t, history, window)
		wantHow(t, how, hows[n])
		session := adapters.NewSession(request.SessionHandle.ID, l)
		var turns []string
		if _, err := session.Load("turns", &turns); err != nil || len(turns) != n {
			t.Errorf("%s: the adapter's own value is %q, %v", request.Turn.TurnID, turns, err)
		}
		if err := session.Store("turns", append(turns, request.Turn.TurnID)); err != nil {
			t.Error(err)
		}
		l.Commit(user(request.Turn.Message), agent(answers[n]))
		l.Release()
		check(t, c)
		n++
	}
	if n != 5 {
		t.Errorf("%d requests were read", n)
	}
}

// Fault H3: shared memory between turns.
func TestFaultH3SharedMemoryBetweenTurns(t *testing.T) {
	t.Parallel()
	const sessions, turns = 50, 8
	c := newCache(t, session.Config{})
	var late, wg sync.WaitGroup

	// spoil changes all that an adapter got, in place.
	spoil := func(history []adapters.Message, raw []byte) {
		for i := range history {
			history[i].Content, history[i].TurnID = "spoilt", "spoilt"
		}
		for i := range raw {
			raw[i] = '!'
		}
	}
	for s := range sessions {
		wg.Go(func() {
			k := key(numbered(s))
			var transcript []adapters.Message
			var overs []chan struct{}
			value := ""
			for n := range turns {
				l := c.Enqueue(k)
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
					return
				}
				window := slices.Clone(transcript[max(0, len(transcript)-3):])
				history, _ := l.Join(window)
				wantHistory(t, history, append([]adapters.Message{}, transcript...))
				wantValue(t, l, "k", value)
				raw, _ := l.Load("k")

				mine := []byte(fmt.Sprintf("%q", strings.Repeat(numbered(s), n+1)))
				if n%2 == 0 { // the turns between only spoil what they read
					value = string(mine)
					if err := l.Store("k", mine); err != nil {
						t.Error(err)
					}
				}
				spoil(history, raw)
				history = append(history, user("appended"))
				spoil(history, raw)
				spoil(nil, mine)
				over := make(chan struct{}) // closed when the turn after this one has ended
				overs = append(overs, over)
				late.Go(func() { // the adapter has returned and goes on
					for {
						spoil(history[:cap(history)], raw)
						spoil(nil, mine)
						got, _ := l.Load("k")
						spoil(nil, got)
						l.Keys()
						select {
						case <-over:
							if err := l.Store("k", mine); !errors.Is(err, adapters.ErrTurnOver) {
								t.Errorf("Store after the turn = %v", err)
							}
							return
						default:
							goruntime.Gosched()
						}
					}
				})
				m, a := user(fmt.Sprint("message ", n)), agent(fmt.Sprint("answer ", n))
				l.Commit(m, a)
				l.Release()
				transcript = append(transcript, m, a)
				if n > 0 {
					close(overs[n-1])
				}
			}
			close(overs[turns-1])
		})
	}
	wg.Wait()
	late.Wait()
	check(t, c)
	if s := c.Stats(); s.Entries != sessions {
		t.Errorf("%d sessions are kept, want %d", s.Entries, sessions)
	}
}
