package session_test

import (
	"context"
	"fmt"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime/session"
)

// One turn, from its place in the queue to its end.
func Example() {
	cache, err := session.New(session.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	run := func(window []adapters.Message, message string) error {
		lease := cache.Enqueue(session.Key{Plugin: "muse", Handle: "s-1"})
		if err := lease.Wait(context.Background()); err != nil {
			return err
		}
		defer lease.Release()
		history, how := lease.Join(window)
		fmt.Printf("%s: %d messages before %q\n", how, len(history), message)
		lease.Commit(
			adapters.Message{Role: adapters.RoleUser, Content: message},
			adapters.Message{Role: adapters.RoleAgent, Content: "heard: " + message})
		return nil
	}
	for _, turn := range []struct {
		window  []adapters.Message
		message string
	}{
		{nil, "hello"},
		{talk(agent("heard: hello")), "go on"}, // the host sends one message of context
		{talk(user("hi")), "and now?"},         // the user edited the first message
	} {
		if err := run(turn.window, turn.message); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// new: 0 messages before "hello"
	// extended: 2 messages before "go on"
	// replaced: 1 messages before "and now?"
}

func ExampleNew() {
	cache, err := session.New(session.Config{
		Entries: 100,
		Bytes:   1 << 20,
		TTL:     -1, // for ever
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease := cache.Enqueue(session.Key{Plugin: "muse", Handle: "s-1"})
	if err := lease.Store("mood", []byte(`"curious"`)); err != nil {
		fmt.Println(err)
	}
	fmt.Println(cache.Stats().Entries, cache.Stats().Held)
	lease.Release()
	fmt.Println(cache.Stats().Entries, cache.Stats().Held)
	// Output:
	// 1 1
	// 1 0
}

func ExampleCache_TryAcquire() {
	cache, err := session.New(session.Config{TTL: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	key := session.Key{Plugin: "muse", Handle: "s-1"}
	lease, ok := cache.TryAcquire(key)
	fmt.Println("first:", ok)
	_, ok = cache.TryAcquire(key)
	fmt.Println("second:", ok)
	lease.Release()
	// Output:
	// first: true
	// second: false
}

// What an adapter stores holds from then on, whatever becomes of its turn.
func ExampleLease_Store() {
	cache, err := session.New(session.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	key := session.Key{Plugin: "muse", Handle: "s-1"}
	mood := adapters.NewValue[string]("mood")

	lease := cache.Enqueue(key)
	if err := mood.Store(adapters.NewSession(key.Handle, lease), "curious"); err != nil {
		fmt.Println(err)
	}
	lease.Release() // the turn failed: no Commit

	lease = cache.Enqueue(key)
	defer lease.Release()
	fmt.Println(mood.Load(adapters.NewSession(key.Handle, lease)))
	// Output: curious true <nil>
}

func ExampleLease_Forget() {
	cache, err := session.New(session.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease := cache.Enqueue(session.Key{Plugin: "muse", Handle: "s-1"})
	defer lease.Release()
	if err := lease.Store("mood", []byte(`"curious"`)); err != nil {
		fmt.Println(err)
	}
	fmt.Println(lease.Forget(), lease.Keys(), cache.Stats().Entries)
	// Output: true [] 0
}
