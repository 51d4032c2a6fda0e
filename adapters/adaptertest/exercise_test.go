package adaptertest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

func static(f adapters.Func) func() adapters.Adapter { return func() adapters.Adapter { return f } }

// good does a bit of everything as it should.
func good(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if err := w.Status("thinking"); err != nil {
		return err
	}
	if _, err := w.Tool(ctx, adapters.ToolRequest{Ref: "clock"}); err != nil && !errors.Is(err, adapters.ErrNotSupported) {
		return err
	}
	if err := turn.Session.Store("last", turn.Message); err != nil {
		return err
	}
	for range 3 {
		if err := w.Text(turn.Message); err != nil {
			return err
		}
	}
	if turn.Message == "for ever" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return w.Usage(adapters.Usage{Steps: adapters.Count(1)})
}

func TestExercisePassesAGoodAdapter(t *testing.T) {
	adaptertest.Suite{LongMessage: "for ever"}.Exercise(t, static(good))
}

func TestExerciseSkipsExceptionsAloud(t *testing.T) {
	t.Parallel()
	count := func(s adaptertest.Suite) (cases int) {
		t.Run("suite", func(t *testing.T) {
			s.Exercise(t, func() adapters.Adapter {
				cases++
				return adapters.Func(good)
			})
		})
		return cases
	}
	all := count(adaptertest.Suite{})
	some := count(adaptertest.Suite{Except: map[adaptertest.Case]string{
		adaptertest.EmptyMessage: "the provider refuses one",
		adaptertest.NextTurn:     "it keeps no sessions",
	}})
	if all != 10 || some != 8 {
		t.Errorf("%d cases ran, and %d with two exceptions; want 10 and 8", all, some)
	}
}

// Each of these adapters breaks one rule, and the case for that rule must say so.
func TestExerciseFindsBadAdapters(t *testing.T) {
	t.Parallel()
	type leaky struct {
		sync.Mutex
		last string
	}
	tests := []struct {
		name       string
		newAdapter func() adapters.Adapter
		suite      adaptertest.Suite
		fails      adaptertest.Case
		want       string
	}{
		{
			name: "fails",
			newAdapter: static(func(context.Context, *adapters.Turn, adapters.Writer) error {
				return errors.New("no model today")
			}),
			fails: adaptertest.Answers, want: "a turn failed: no model today",
		},
		{
			name: "cannot take a history",
			newAdapter: static(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
				if len(turn.History) > 0 {
					return errors.New("too much")
				}
				return nil
			}),
			fails: adaptertest.Answers, want: "a turn with a history failed: too much",
		},
		{
			name: "panics without text",
			newAdapter: static(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
				return w.Text(strings.ToUpper(turn.Message[:1]) + turn.Message[1:])
			}),
			fails: adaptertest.EmptyMessage, want: "slice bounds out of range",
		},
		{
			name: "reports nonsense",
			newAdapter: static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				return w.Usage(adapters.Usage{Steps: adapters.RawMeasure("1.5")})
			}),
			fails: adaptertest.UsageNumbers, want: "Steps is 1.5",
		},
		{
			name: "reports less than nothing",
			newAdapter: static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				return w.Usage(adapters.Usage{Tokens: adapters.Count(-1)})
			}),
			fails: adaptertest.UsageNumbers, want: "Tokens is -1",
		},
		{
			name:       "ignores a cancellation from the start",
			newAdapter: static(slow),
			fails:      adaptertest.CancelledBefore, want: "did not return within 500ms",
		},
		{
			name:       "ignores a cancellation",
			newAdapter: static(slow),
			fails:      adaptertest.CancelledMeanwhile, want: "did not return within 500ms",
		},
		{
			name:       "ignores a deadline",
			newAdapter: static(slow),
			fails:      adaptertest.DeadlinePasses, want: "did not return within 500ms",
		},
		{
			name:       "the long message is short",
			newAdapter: static(func(context.Context, *adapters.Turn, adapters.Writer) error { return nil }),
			suite:      adaptertest.Suite{LongMessage: "for ever"},
			fails:      adaptertest.CancelledMeanwhile, want: "ended before it was cancelled",
		},
		{
			name:       "the long message is shorter than the deadline",
			newAdapter: static(func(context.Context, *adapters.Turn, adapters.Writer) error { return nil }),
			suite:      adaptertest.Suite{LongMessage: "for ever"},
			fails:      adaptertest.DeadlinePasses, want: "ended before its deadline",
		},
		{
			name: "goes on when writes fail",
			newAdapter: static(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
				for ctx.Err() == nil {
					_ = w.Text("x")
					time.Sleep(time.Millisecond)
				}
				return nil
			}),
			fails: adaptertest.WritesFail, want: "after write 2 had failed",
		},
		{
			name: "panics when a write fails",
			newAdapter: static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				if err := w.Text("x"); err != nil {
					panic(err)
				}
				return nil
			}),
			fails: adaptertest.WritesFail, want: "the adapter panicked: the turn is over",
		},
		{
			name: "answers a session once",
			newAdapter: func() adapters.Adapter {
				seen := map[string]bool{}
				return adapters.Func(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
					if seen[turn.Session.ID()] {
						return errors.New("once is enough")
					}
					seen[turn.Session.ID()] = true
					return nil
				})
			},
			fails: adaptertest.NextTurn, want: "the second turn of a session failed: once is enough",
		},
		{
			name: "is broken by a cancellation",
			newAdapter: func() adapters.Adapter {
				broken := false
				return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					if broken {
						return errors.New("broken")
					}
					for range 2 {
						if err := w.Text(turn.Message); err != nil {
							broken = true
							return err
						}
					}
					return nil
				})
			},
			fails: adaptertest.NextTurn, want: "the turn after a cancelled one failed: broken",
		},
		{
			name: "mixes turns up",
			newAdapter: func() adapters.Adapter {
				var l leaky
				return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					l.Lock()
					before := l.last
					l.last = turn.User.Name
					l.Unlock()
					return w.Text("hello " + before)
				})
			},
			fails: adaptertest.ConcurrentTurns, want: "which is another session's",
		},
		{
			name: "mixes turns up once all write",
			newAdapter: func() adapters.Adapter {
				var l leaky
				return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					l.Lock()
					l.last = turn.Message
					l.Unlock()
					if err := w.Text("well… "); err != nil {
						return err
					}
					l.Lock()
					defer l.Unlock()
					return w.Text(l.last)
				})
			},
			fails: adaptertest.ConcurrentTurns, want: "which is another session's",
		},
		{
			name: "stores what is another's",
			newAdapter: func() adapters.Adapter {
				var l leaky
				return adapters.Func(func(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
					l.Lock()
					defer l.Unlock()
					before := l.last
					l.last = turn.History[0].Content
					return turn.Session.Store("before", before)
				})
			},
			fails: adaptertest.ConcurrentTurns, want: "which is another session's",
		},
		{
			name: "writes when it has returned",
			newAdapter: static(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
				go func() { _ = w.Text("one more thing") }()
				return nil
			}),
			fails: adaptertest.NothingLate, want: "used 1 times",
		},
		{
			name: "stores when it has returned",
			newAdapter: static(func(_ context.Context, turn *adapters.Turn, _ adapters.Writer) error {
				go func() { _ = turn.Session.Store("k", 1) }()
				return nil
			}),
			fails: adaptertest.NothingLate, want: "used 1 times",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			problems := adaptertest.Problems(tt.fails, tt.suite, tt.newAdapter)
			if all := strings.Join(problems, "\n"); !strings.Contains(all, tt.want) {
				t.Errorf("%s found %q, want %q in it", tt.fails, all, tt.want)
			}
			if problems := adaptertest.Problems(tt.fails, adaptertest.Suite{LongMessage: "for ever"}, static(good)); len(problems) > 0 {
				t.Errorf("%s found %q in a good adapter", tt.fails, problems)
			}
		})
	}
}

// slow takes longer than the suite's limits, and ends so that the tests leave no goroutine.
func slow(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
	_ = w.Text("wait")
	time.Sleep(700 * time.Millisecond)
	return nil
}
