// Muse is the smallest useful plugin: an adapter of five lines, hosted behind Lowkey.
//
//	go run ./examples/muse
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

var questions = []string{
	"What would be missed if you left it out?",
	"Who is it for, and what do they do just before they need it?",
	"What is the smallest version that you would show to somebody?",
	"What do you know about it that you did not know a week ago?",
}

// muse asks a question back, another one at each turn of a conversation.
func muse(_ context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if strings.TrimSpace(turn.Message) == "" {
		return adapters.Public("Tell me what you are working on.", nil)
	}
	return w.Text(questions[len(turn.History)/2%len(questions)])
}

func main() {
	listen := flag.String("listen", plugin.DefaultListen, "listen on this `host:port`")
	flag.Parse()
	err := plugin.Serve(context.Background(), plugin.Config{
		ID:       "muse",
		Adapter:  adapters.Func(muse),
		Listen:   *listen,
		OnListen: func(addr net.Addr) { fmt.Printf("listening on http://%s\n", addr) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
