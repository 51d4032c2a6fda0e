// Memory is a plugin that keeps notes: it stores a value with the session, looks through the history,
// and acts on how that history came about.
//
//	go run ./examples/memory
//
// Say "note buy milk", "notes", or any words: then it tells where they were said before.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"strings"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// notes is what the user asked to be kept in this conversation. It is stored as JSON, in a cache that
// is bounded: it may be gone at the next turn.
var notes = adapters.NewValue[[]string]("notes")

// memory answers a turn. It keeps nothing itself, so that turns of many sessions run at once.
func memory(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	kept, _, err := notes.Load(turn.Session) // none in a new session
	if err != nil {
		return err
	}
	switch turn.Continuity {
	case adapters.ContinuityCleared:
		// Values outlive the messages, until the adapter says otherwise. Here they go together.
		if err := notes.Delete(turn.Session); err != nil {
			return err
		}
		kept = nil
	case adapters.ContinuityEvicted:
		if err := w.Text("I had to drop what I remembered of this conversation. "); err != nil {
			return err
		}
	}

	message := strings.TrimSpace(turn.Message)
	note, isNote := strings.CutPrefix(message, "note ")
	switch {
	case isNote:
		kept = append(kept, note)
		// It holds from here on, also if what follows fails.
		if err := notes.Store(turn.Session, kept); err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "Kept as note %d.", len(kept))
	case message == "notes" && len(kept) > 0:
		err = w.Text("- " + strings.Join(kept, "\n- "))
	case message == "notes":
		err = w.Text("There are no notes.")
	default:
		err = w.Text(recall(turn.History, message))
	}
	return err
}

// recall finds the newest message that the user said these words in. The history may reach further back
// than what the host sent with this turn.
func recall(history []adapters.Message, words string) string {
	for i := len(history) - 1; i >= 0; i-- {
		if m := history[i]; m.Role == adapters.RoleUser && words != "" && strings.Contains(m.Content, words) {
			return fmt.Sprintf("%d messages ago you said: %s", len(history)-i, m.Content)
		}
	}
	return "You have not said that before."
}

func main() {
	listen := flag.String("listen", plugin.DefaultListen, "listen on this `host:port`")
	flag.Parse()
	err := plugin.Serve(context.Background(), plugin.Config{
		ID:       "memory",
		Adapter:  adapters.Func(memory),
		Listen:   *listen,
		OnListen: func(addr net.Addr) { fmt.Printf("listening on http://%s\n", addr) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
