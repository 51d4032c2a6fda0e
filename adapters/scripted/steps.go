package scripted

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/backline-dev/backline/adapters"
)

// A step does what one line says.
type step func(ctx context.Context, p *player) error

// A kind is how the steps of one name are made of their line, and which members the line may have
// beside that name.
type kind struct {
	compile func(o object) (step, error)
	others  []string
}

// kinds are all steps by the member that names them.
var kinds = map[string]kind{
	"text":        {compile: textStep, others: []string{"repeat", "every"}},
	"stamp":       {compile: stampStep, others: []string{"repeat", "every"}},
	"bytes":       {compile: bytesStep},
	"paragraph":   {compile: paragraphStep},
	"status":      {compile: statusStep},
	"sleep":       {compile: sleepStep},
	"stall":       {compile: stallStep},
	"block":       {compile: blockStep},
	"usage":       {compile: usageStep, others: []string{"fidelity"}},
	"tool":        {compile: toolStep},
	"question":    {compile: questionStep},
	"event":       {compile: eventStep},
	"remember":    {compile: rememberStep},
	"recall":      {compile: recallStep},
	"show":        {compile: showStep},
	"arrivals":    {compile: arrivalsStep},
	"error":       {compile: errorStep},
	"unavailable": {compile: unavailableStep, others: []string{"temporary"}},
	"panic":       {compile: panicStep},
	"exit":        {compile: exitStep},
}

func textStep(o object) (step, error) {
	text, err := o.str("text")
	if err != nil {
		return nil, err
	}
	times, every, err := pace(o)
	if err != nil {
		return nil, err
	}
	if text == "" && every == 0 {
		times = 0 // nothing, however often; and nothing would notice a cancellation
	}
	return func(ctx context.Context, p *player) error {
		return paced(ctx, times, every, func() error { return p.text(text) })
	}, nil
}

func stampStep(o object) (step, error) {
	if err := o.isTrue("stamp"); err != nil {
		return nil, err
	}
	times, every, err := pace(o)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, p *player) error {
		var buf []byte
		return paced(ctx, times, every, func() error {
			buf = strconv.AppendInt(buf[:0], time.Now().UnixNano(), 10)
			buf = append(buf, ' ')
			return p.bytes(buf)
		})
	}, nil
}

// pace reads how often and how fast.
func pace(o object) (times int64, every time.Duration, err error) {
	times = 1
	if _, ok := o.get("repeat"); ok {
		if times, err = o.integer("repeat", 0, math.MaxInt64); err != nil {
			return 0, 0, err
		}
	}
	if _, ok := o.get("every"); ok {
		if every, err = o.duration("every"); err != nil {
			return 0, 0, err
		}
	}
	return times, every, nil
}

// paced calls emit so many times, one each every. It does not drift; where emit takes longer than
// every, it goes on from there without catching up.
func paced(ctx context.Context, times int64, every time.Duration, emit func() error) error {
	if every == 0 {
		for range times {
			if err := emit(); err != nil {
				return err
			}
		}
		return nil
	}
	timer := time.NewTimer(every)
	defer timer.Stop()
	next := time.Now()
	for i := range times {
		if i > 0 {
			next = next.Add(every)
			if now := time.Now(); next.Before(now) {
				next = now
			}
			timer.Reset(time.Until(next))
			if err := await(ctx, timer); err != nil {
				return err
			}
		}
		if err := emit(); err != nil {
			return err
		}
	}
	return nil
}

// await waits for the timer, or returns why ctx was cancelled.
func await(ctx context.Context, timer *time.Timer) error {
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func bytesStep(o object) (step, error) {
	b, err := o.base64("bytes")
	return func(_ context.Context, p *player) error { return p.bytes(b) }, err
}

func paragraphStep(o object) (step, error) {
	s, err := o.str("paragraph")
	return func(_ context.Context, p *player) error { return p.text(s + "\n\n") }, err
}

func statusStep(o object) (step, error) {
	s, err := o.str("status")
	return func(_ context.Context, p *player) error { return p.w.Status(s) }, err
}

func sleepStep(o object) (step, error) {
	d, err := o.duration("sleep")
	return func(ctx context.Context, _ *player) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		return await(ctx, timer)
	}, err
}

func stallStep(o object) (step, error) {
	d, err := o.duration("stall")
	return func(context.Context, *player) error {
		time.Sleep(d)
		return nil
	}, err
}

func blockStep(o object) (step, error) {
	return func(ctx context.Context, _ *player) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, o.isTrue("block")
}

func usageStep(o object) (step, error) {
	axes, err := o.object("usage", "max_tokens", "max_cost_micros", "max_wall_time_ms", "max_steps")
	if err != nil {
		return nil, err
	}
	measure := func(axis string) adapters.Measure {
		raw, ok := axes.get(axis)
		if !ok || typeOf(raw) == aNull {
			return adapters.Measure{}
		}
		return adapters.RawMeasure(string(raw))
	}
	u := adapters.Usage{
		Tokens:     measure("max_tokens"),
		CostMicros: measure("max_cost_micros"),
		WallTimeMS: measure("max_wall_time_ms"),
		Steps:      measure("max_steps"),
	}
	if _, ok := o.get("fidelity"); ok {
		f, err := o.str("fidelity")
		if err != nil {
			return nil, err
		}
		u.Fidelity = adapters.Fidelity(f)
	}
	return func(_ context.Context, p *player) error {
		p.reported = true
		return p.w.Usage(u)
	}, nil
}

func toolStep(o object) (step, error) {
	t, err := o.object("tool", "ref", "schema", "input")
	if err != nil {
		return nil, err
	}
	var r adapters.ToolRequest
	if r.Ref, err = t.str("ref"); err != nil {
		return nil, err
	}
	if r.Schema, err = t.str("schema"); err != nil {
		return nil, err
	}
	if r.Input, err = t.value("input", anObject); err != nil {
		return nil, err
	}
	return func(ctx context.Context, p *player) error {
		return p.observe(p.w.Tool(ctx, r))
	}, nil
}

func questionStep(o object) (step, error) {
	t, err := o.object("question", "schema", "question")
	if err != nil {
		return nil, err
	}
	var q adapters.Question
	if q.Schema, err = t.str("schema"); err != nil {
		return nil, err
	}
	if q.Question, err = t.value("question", anObject); err != nil {
		return nil, err
	}
	return func(ctx context.Context, p *player) error {
		return p.observe(p.w.Ask(ctx, q))
	}, nil
}

// observe writes the host's answer.
func (p *player) observe(o adapters.Observation, err error) error {
	switch {
	case err != nil:
		return err
	case o.Admitted:
		return p.text("admitted:" + o.Receipt)
	default:
		return p.text("refused:" + o.Reason)
	}
}

func eventStep(o object) (step, error) {
	event, err := o.value("event", anObject)
	return func(_ context.Context, p *player) error { return p.w.Candidate(event) }, err
}

func rememberStep(o object) (step, error) {
	r, err := o.object("remember", "key", "value")
	if err != nil {
		return nil, err
	}
	key, err := r.str("key")
	if err != nil {
		return nil, err
	}
	value, ok := r.get("value")
	if !ok {
		return nil, errors.New(`"value" is missing`)
	}
	return func(_ context.Context, p *player) error { return p.turn.Session.Store(key, value) }, nil
}

func recallStep(o object) (step, error) {
	key, err := o.str("recall")
	return func(_ context.Context, p *player) error {
		value := json.RawMessage("null")
		if _, err := p.turn.Session.Load(key, &value); err != nil {
			return err
		}
		return p.text(string(value))
	}, err
}

func arrivalsStep(o object) (step, error) {
	d, err := o.duration("arrivals")
	return func(ctx context.Context, p *player) error {
		arrivals, err := p.w.Arrivals()
		if err != nil {
			return err
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-timer.C:
				return nil
			case a, ok := <-arrivals:
				if !ok {
					return nil
				}
				for _, m := range a.Messages {
					if err := p.text("arrival:" + m.Text); err != nil {
						return err
					}
				}
			}
		}
	}, err
}

func errorStep(o object) (step, error) {
	message, err := o.str("error")
	return func(context.Context, *player) error { return adapters.Public(message, nil) }, err
}

func unavailableStep(o object) (step, error) {
	message, err := o.str("unavailable")
	if err != nil {
		return nil, err
	}
	temporary := false
	if _, ok := o.get("temporary"); ok {
		if temporary, err = o.boolean("temporary"); err != nil {
			return nil, err
		}
	}
	return func(context.Context, *player) error {
		return &adapters.Unavailable{Message: message, Temporary: temporary}
	}, nil
}

func panicStep(o object) (step, error) {
	value, err := o.str("panic")
	return func(context.Context, *player) error { panic(value) }, err
}

func exitStep(o object) (step, error) {
	code, err := o.integer("exit", 0, 255)
	return func(_ context.Context, p *player) error {
		if !p.adapter.config.AllowExit {
			return p.refuse(errors.New("exit is refused; the server allows it with BACKLINE_SCRIPT_EXIT=1 in its environment"))
		}
		p.adapter.exit(int(code))
		return nil
	}, err
}
