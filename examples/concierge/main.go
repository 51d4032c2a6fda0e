// Concierge is an agent for Keiki: it answers in messages of a paragraph each, takes what the contact adds
// while it is still at work, and stays silent when it is told to. The same adapter answers Lowkey, where
// nothing is added to a turn that runs.
//
//	CONCIERGE_SECRET=whsec_… go run ./examples/concierge
//
// docs/keiki.md tells how the platform is brought to its door, and how to try it without one.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/backline-dev/backline/plugin"
)

func main() {
	listen := flag.String("listen", plugin.DefaultListen, "listen on this `host:port`")
	think := flag.Duration("think", 2*time.Second, "how long an answer is thought about")
	flag.Parse()
	var secrets plugin.KeikiSecrets
	if s := os.Getenv("CONCIERGE_SECRET"); s != "" {
		secrets.Any = []plugin.Secret{plugin.Secret(s)}
	}
	err := plugin.Serve(context.Background(), plugin.Config{
		ID:      "concierge",
		Adapter: concierge{*think},
		Keiki: &plugin.Keiki{
			Secrets: secrets,                         // without any, every request is refused
			APIBase: os.Getenv("CONCIERGE_PLATFORM"), // pins the platform; empty: any that signs
		},
		Listen:   *listen,
		OnListen: func(addr net.Addr) { fmt.Printf("listening on http://%s\n", addr) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
