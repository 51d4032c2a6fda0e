// Reviewer is an agent that deliberates: it reads a draft, has the host check what it cannot check itself,
// asks the operator, and writes a critique. It is hosted for agent.external-runtime (Orbiplex), and the
// same adapter for Lowkey, which has neither tools nor operators to ask.
//
//	go run ./examples/reviewer -admissions examples/reviewer/admitted
//
// Then examples/reviewer/request.json is a turn that may run:
//
//	curl -sN http://127.0.0.1:8787/external-runtime/turns -H 'Content-Type: application/json' -d @examples/reviewer/request.json
//
// Its stream ends with what the reviewer asks; docs/external-runtime.md tells how a host answers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

func main() {
	listen := flag.String("listen", plugin.DefaultListen, "listen on this `host:port`")
	admissions := flag.String("admissions", "", "admit the profiles and bindings in this `directory`")
	flag.Parse()
	err := plugin.Serve(context.Background(), plugin.Config{
		ID:      "reviewer",
		Adapter: adapters.Func(review),
		External: &plugin.External{
			// Without a Store the facts of turns are in memory, and gone with the process.
			Admissions: *admissions,
			// Whoever has it may admit and revoke over HTTP; without one nobody may.
			OperatorToken: plugin.Secret(os.Getenv("REVIEWER_OPERATOR_TOKEN")),
		},
		Listen:   *listen,
		OnListen: func(addr net.Addr) { fmt.Printf("listening on http://%s\n", addr) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
