// Reviewer is an agent that deliberates: it reads a draft, has the host check what it cannot check itself,
// asks the operator, and writes a critique.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

func main() {
	listen := flag.String("listen", plugin.DefaultListen, "listen on this `host:port`")
	flag.Parse()
	err := plugin.Serve(context.Background(), plugin.Config{
		ID:       "reviewer",
		Adapter:  adapters.Func(review),
		Listen:   *listen,
		OnListen: func(addr net.Addr) { fmt.Printf("listening on http://%s\n", addr) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
