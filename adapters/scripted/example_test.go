package scripted_test

import (
	"context"
	"fmt"

	"github.com/backline-dev/backline/adapters/adaptertest"
	"github.com/backline-dev/backline/adapters/scripted"
)

func ExampleNew() {
	a := scripted.New(scripted.Config{})
	message := `script:
{"status":"thinking"}
{"text":"tick ","repeat":3}
{"remember":{"key":"ticks","value":3}}
{"recall":"ticks"}
{"error":"Out of ticks."}`
	res := adaptertest.Run(context.Background(), a, adaptertest.NewTurn(message))
	for _, e := range res.Events {
		fmt.Println(e)
	}
	fmt.Println("error:", res.Err)
	// Output:
	// status "thinking"
	// text "tick "
	// text "tick "
	// text "tick "
	// text "3"
	// usage "tokens 4, cost 0, wall time unmeasured, steps 1"
	// error: Out of ticks.
}

// A mistake names its line; the lines above it have run.
func ExampleNew_mistake() {
	a := scripted.New(scripted.Config{})
	message := `script:
{"text":"so far"}
{"txet":"so good"}`
	res := adaptertest.Run(context.Background(), a, adaptertest.NewTurn(message))
	fmt.Println(res.Text())
	fmt.Println(res.Err)
	// Output:
	// so far
	// script line 3: no step is called "txet"
}
