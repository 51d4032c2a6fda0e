package ndjson_test

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
)

func ExampleLines() {
	stream := strings.NewReader("{\"n\":1}\r\n\n{\"n\":2}")
	for line, err := range ndjson.Lines(stream, 1<<20) {
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Printf("%d: %s\n", line.Number, line.Data)
	}
	// Output:
	// 1: {"n":1}
	// 3: {"n":2}
}

func ExampleAppendString() {
	fmt.Printf("%s\n", ndjson.AppendString([]byte(`{"text":`), "say \"hi\"\n"))
	// Output:
	// {"text":"say \"hi\"\n"
}

// stdout is a [ndjson.Conn] without deadlines.
type stdout struct{ *os.File }

func (stdout) Flush() error                     { return nil }
func (stdout) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

func ExampleLog() {
	var log ndjson.Log
	log.Init(nil)

	// The producer.
	go func() {
		for i := range 3 {
			if log.Begin() == nil {
				log.Commit(fmt.Appendf(log.Room(32), "{\"n\":%d}\n", i), true)
			}
		}
		if log.Begin() == nil {
			log.Seal(append(log.Room(32), "{\"end\":true}\n"...), false)
		}
	}()

	// A reader: its connection gets all from the first line, however late it comes.
	tail, err := log.Attach(stdout{os.Stdout}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tail.Detach()
	if err := tail.Follow(nil); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"n":0}
	// {"n":1}
	// {"n":2}
	// {"end":true}
}

func ExampleNow() {
	before := ndjson.Now()
	fmt.Println(before > 0, ndjson.Now() >= before)
	// Output: true true
}
