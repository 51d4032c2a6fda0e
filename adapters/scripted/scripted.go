package scripted

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/backline-dev/backline/adapters"
)

// Config tunes an [Adapter]. The zero value is ready to use.
type Config struct {
	// AllowExit lets a script end the whole process with an exit step. False, the default, refuses the
	// step: whoever can send a turn could stop the server.
	AllowExit bool
}

// Adapter runs the scripts in its turns' messages. It keeps nothing between turns and can run any
// number of them at once.
type Adapter struct {
	config Config
	exit   func(code int)
}

var (
	_ adapters.Adapter      = (*Adapter)(nil)
	_ adapters.ArrivalTaker = (*Adapter)(nil)
)

// New returns the adapter.
func New(config Config) *Adapter { return &Adapter{config: config, exit: os.Exit} }

// Run implements [adapters.Adapter].
func (a *Adapter) Run(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	p := &player{adapter: a, turn: turn, w: w}
	err := p.play(ctx)
	if p.reported {
		return err
	}
	// Where the turn is failing anyway, a report that cannot be made any more does not change why.
	reportErr := w.Usage(adapters.Usage{
		Tokens:     adapters.Count(p.chunks),
		CostMicros: adapters.Count(0),
		Steps:      adapters.Count(1),
	})
	if err == nil {
		err = reportErr
	}
	return err
}

// TakesArrivals implements [adapters.ArrivalTaker]: a script takes them if it has an arrivals step.
func (a *Adapter) TakesArrivals(turn *adapters.Turn) bool {
	script, ok := scriptOf(messageOf(turn))
	if !ok {
		return false
	}
	for rest := script; rest != ""; {
		var line string
		line, rest = cutLine(rest)
		// Most lines cannot be it; only an escape could hide the name.
		if !strings.Contains(line, "arrivals") && !strings.Contains(line, `\u`) {
			continue
		}
		if name, _, err := compile(line); err == nil && name == "arrivals" {
			return true
		}
	}
	return false
}

// messageOf is the message that is a script or is echoed: of a turn request with several text parts the
// first.
func messageOf(turn *adapters.Turn) string {
	if turn.Protocol == adapters.ExternalRuntime && len(turn.Messages) > 0 {
		return turn.Messages[0].Text
	}
	return turn.Message
}

// scriptOf returns what follows the first line of a message that is a script.
func scriptOf(message string) (script string, ok bool) {
	first, rest := cutLine(message)
	return rest, first == "script:"
}

// cutLine cuts off the first line, and the line end behind it: \n or \r\n.
func cutLine(s string) (line, rest string) {
	line, rest, found := strings.Cut(s, "\n")
	if found {
		line = strings.TrimSuffix(line, "\r")
	}
	return line, rest
}

// A player runs one turn.
type player struct {
	adapter  *Adapter
	turn     *adapters.Turn
	w        adapters.Writer
	line     int   // the number of the line that runs, from 1
	chunks   int64 // text chunks taken, empty ones not counted
	reported bool  // by a usage step
}

func (p *player) play(ctx context.Context) error {
	message := messageOf(p.turn)
	script, ok := scriptOf(message)
	if !ok {
		return p.text(message)
	}
	p.line = 1
	for rest := script; rest != ""; {
		var line string
		line, rest = cutLine(rest)
		p.line++
		if strings.Trim(line, " \t\r") == "" {
			continue
		}
		_, do, err := compile(line)
		if err != nil {
			return p.refuse(err)
		}
		if err := do(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// refuse makes err the error of the line that runs.
func (p *player) refuse(err error) error {
	return adapters.Public(fmt.Sprintf("script line %d: %v", p.line, err), nil)
}

// text writes one chunk and counts it.
func (p *player) text(s string) error {
	if s == "" {
		return nil
	}
	if err := p.w.Text(s); err != nil {
		return err
	}
	p.chunks++
	return nil
}

// bytes is text for raw bytes.
func (p *player) bytes(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	p.chunks++
	return nil
}
