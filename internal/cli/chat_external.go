package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/schema/external"
)

// The flags of chat that mean nothing in the other protocol.
var (
	lowkeyOnly   = []string{"plugin-id", "session", "window", "user-name", "headless"}
	externalOnly = []string{"binding", "observe"}
)

// What chat --observe takes. Without it, somebody at a terminal is asked, and otherwise it is refuse.
const (
	observeAsk    = "ask"
	observeAdmit  = "admit"
	observeRefuse = "refuse"
)

// observe is what becomes of what a turn asks for.
type observe struct {
	word   string              // one of the above; empty where none was given
	reason external.ReasonCode // of a refusal; empty for the one that fits
}

func observeFlag(fs *pflag.FlagSet) *observe {
	var o observe
	fs.Var(&o, "observe", "external-runtime: what becomes of tool requests and questions (default: ask at a terminal, else refuse)")
	return &o
}

func (o *observe) String() string {
	if o.reason != "" {
		return o.word + "=" + string(o.reason)
	}
	return o.word
}

func (o *observe) Type() string { return "ask|admit|refuse[=reason]" }

func (o *observe) Set(s string) error {
	word, reason, given := strings.Cut(s, "=")
	if word != observeAsk && word != observeAdmit && word != observeRefuse || given && word != observeRefuse {
		return fmt.Errorf("want ask, admit, refuse, or refuse= and a reason code, such as refuse=%s", external.ReasonPolicyDenied)
	}
	*o = observe{word: word}
	if given {
		var ok bool
		if o.reason, ok = refusal(reason); !ok {
			return fmt.Errorf("want one of the reason codes %s", alternatives(refusals()))
		}
	}
	return nil
}

// refusals are the reason codes that refuse.
func refusals() []string {
	var codes []string
	for _, c := range external.Values[external.ReasonCode]() {
		if c != external.ReasonCompleted {
			codes = append(codes, string(c))
		}
	}
	return codes
}

func refusal(s string) (code external.ReasonCode, ok bool) {
	for _, c := range refusals() {
		if c == s {
			return external.ReasonCode(c), true
		}
	}
	return "", false
}

func readBinding(file string) (*external.Binding, error) {
	doc, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("--binding: %w", err)
	}
	b, err := external.ParseBinding(doc)
	if err != nil {
		return nil, usagef("--binding: %s: %w", file, err)
	}
	return b, nil
}

// An externalTalk is one passage under a binding of agent.external-runtime: the session is the binding's,
// and each turn names what the one before it produced.
type externalTalk struct {
	a       *app
	f       *chatFlags
	h       *testhost.External
	console *console // nil where nobody is asked
	passage external.PassageRef
	product external.ProductRef // of the turn that completed last
}

func (a *app) newExternalTalk(f *chatFlags, address string, c *console) (*externalTalk, error) {
	at, err := parseServerURL(address)
	if err != nil {
		return nil, err
	}
	base, err := at.external()
	switch {
	case err != nil:
		return nil, err
	case *f.binding == "":
		return nil, usagef("--protocol %s needs --binding FILE, the binding that turns run under", protocolExternal)
	}
	b, err := readBinding(*f.binding)
	if err != nil {
		return nil, err
	}
	switch {
	case f.observe.word == observeAdmit || f.observe.word == observeRefuse:
		c = nil
	case f.observe.word == observeAsk && c == nil:
		return nil, usagef("--observe ask needs a terminal, to ask at: give admit or refuse")
	}
	token, err := a.read(f.token)
	if err != nil {
		return nil, err
	}
	h := &testhost.External{URL: base, Token: token.Reveal(), Binding: b, LineLimit: int(*f.lineLimit)}
	return &externalTalk{a: a, f: f, h: h, console: c, passage: h.Request("").PassageRef}, nil
}

func (t *externalTalk) with() string {
	return fmt.Sprintf("Binding %s with %s", t.h.Binding.BindingRef, t.h.Binding.AgentID)
}

// request makes the request for the next turn. It may use all that the binding has for one: whoever
// answers what it asks takes his time.
func (t *externalTalk) request(message string) *external.TurnRequest {
	r := t.h.Request(message)
	r.PassageRef, r.BudgetReservation = t.passage, t.h.Binding.BudgetTurnCeiling
	if t.product != "" {
		r.ParentProductRefs = []external.ProductRef{t.product}
	}
	return r
}

func (t *externalTalk) next(message string) (any, error) {
	if message == "" {
		return nil, errNoInput
	}
	return t.request(message), nil
}

var errNoInput = usagef("--message is empty, and a turn of agent.external-runtime has at least one character of input")

// turn runs one turn.
func (t *externalTalk) turn(ctx context.Context, message string) error {
	if message == "" {
		return errNoInput
	}
	x := &externalTurn{
		externalTalk: t,
		request:      t.request(message),
		began:        time.Now(),
		out:          &screen{a: t.a, quiet: *t.f.json || *t.f.events},
	}
	x.report.TurnRef, x.report.Binding, x.report.Status = string(x.request.TurnRef), string(x.request.BindingRef), turnBroken
	err := x.run(ctx)
	x.out.finish()
	x.report.Total = milliseconds(time.Since(x.began))
	if err != nil {
		x.report.Error = err.Error()
	}
	if *t.f.json {
		if printErr := t.a.printJSON(&x.report); printErr != nil {
			return printErr
		}
	}
	return err
}

// An externalTurn is one turn and how it is shown.
type externalTurn struct {
	*externalTalk
	request *external.TurnRequest
	began   time.Time
	out     *screen
	report  externalReport
}

// An externalReport is a turn as --json prints it.
type externalReport struct {
	TurnRef    string        `json:"turn/ref"`
	Binding    string        `json:"binding/ref"`
	HTTP       int           `json:"httpStatus"`
	Status     string        `json:"status"`
	Reason     string        `json:"reason/code,omitempty"`
	Text       string        `json:"text"`
	ProductRef string        `json:"product/ref,omitempty"`
	Error      string        `json:"error,omitempty"`
	Total      float64       `json:"totalMs"`
	Problems   []string      `json:"problems,omitempty"`
	Events     []eventReport `json:"events,omitempty"`
}

// stopPatience is how long a server may take to end a turn that it was told to cancel. An adapter of ours
// has two seconds of that.
const stopPatience = 5 * time.Second

// latePatience is how long a server may take to end a turn whose time is over by our clock.
const latePatience = 2 * time.Second

// run runs the turn to its end. The end of ctx has the server cancel it, and the server is heard out: the
// end of a connection would not end the turn.
func (x *externalTurn) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	hear, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	ended, cancelled := make(chan struct{}), make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		x.cancel(ended)
		leave()
	})
	err := x.walk(ctx, hear, stop)
	close(ended)
	if !unhook() {
		<-cancelled
	}
	return err
}

// cancel asks the server to end the turn, and returns when it has ended or the server has had its time.
func (x *externalTurn) cancel(ended <-chan struct{}) {
	ctx, done := context.WithTimeout(context.Background(), stopPatience)
	defer done()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := x.h.Cancel(ctx, x.request.TurnRef)
		var problem *testhost.Problem
		switch {
		case err == nil:
			select {
			case <-ended:
			case <-ctx.Done():
			}
			return
		case !errors.As(err, &problem) || problem.Status != http.StatusNotFound:
			x.a.warn("the turn could not be cancelled: %s", err)
			return
		}
		select { // the request for the turn may be on its way still
		case <-again.C:
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// walk walks the turn's streams, and answers what it asks. ctx ends with the wish to hear an answer, hear
// with the wish to hear the end; stop ends ctx. The error says why the turn did not complete.
func (x *externalTurn) walk(ctx, hear context.Context, stop func()) error {
	var outstanding []external.Event
	request := x.request
	for {
		outcome, asked, err := x.stream(hear, request)
		if err != nil {
			return err
		}
		if outcome != nil {
			return x.conclude(hear, stop, request, outcome)
		}
		outstanding = append(outstanding, asked...)
		if len(outstanding) == 0 {
			return errors.New("the server broke the protocol: the stream ended without an outcome, and nothing was asked")
		}
		next := &outstanding[0]
		outstanding = outstanding[1:]
		reason, err := x.answer(ctx, next)
		switch {
		case errors.Is(err, context.DeadlineExceeded): // the turn's time is over, and the server sees that too
			late := time.AfterFunc(latePatience, stop)
			defer late.Stop()
			return x.ending(hear)
		case err != nil: // there is nobody any more to answer
			stop()
			return x.ending(hear)
		}
		request = testhost.Observe(x.request, next.RequestRef, reason)
	}
}

// stream walks one stream. The outcome is nil where the turn awaits an answer.
func (x *externalTurn) stream(ctx context.Context, r *external.TurnRequest) (outcome *external.Event, asked []external.Event, err error) {
	s, err := x.h.Turn(ctx, r)
	if err != nil {
		if ctx.Err() != nil {
			x.report.Status = turnStopped
			return nil, nil, errStopped
		}
		return nil, nil, fmt.Errorf("the turn could not be sent: %w; %w", err, errUnreachable)
	}
	x.report.HTTP = s.Status
	begun := func() {}
	if r.Mode == external.ModeStart {
		begun = sync.OnceFunc(x.watch(ctx))
		defer begun()
	}
	for e, err := range s.Events() {
		if err != nil || e.ProgressCode != external.ProgressAccepted {
			begun()
		}
		var problem *testhost.Problem
		switch {
		case errors.As(err, &problem):
			x.report.Status = turnRefused
			return nil, nil, fmt.Errorf("the request was refused with %w", problem)
		case err != nil && ctx.Err() != nil:
			x.report.Status = turnStopped
			return nil, nil, errStopped
		case err != nil:
			return nil, nil, fmt.Errorf("the server broke the protocol or the connection: %w", err)
		}
		if line := (eventReport{milliseconds(s.Sent.Sub(x.began) + e.At), string(e.Raw)}); *x.f.events && *x.f.json {
			x.report.Events = append(x.report.Events, line)
		} else if *x.f.events {
			x.a.showEvent(line)
		}
		if e.Err != nil {
			x.report.Problems = append(x.report.Problems, e.Err.Error())
		}
		switch e.Kind {
		case external.EventProductCandidate:
			x.report.Text += e.Content
			x.out.text(e.Content)
		case external.EventActionCandidate:
			x.out.status("the agent proposes an action of " + string(e.ActionSchema))
		case external.EventToolRequest, external.EventOperatorQuestion:
			asked = append(asked, e.Event)
		case external.EventTurnOutcome:
			outcome = &e.Event
		}
	}
	return outcome, asked, nil
}

// answer says what becomes of a tool request or a question. The error tells that there is no answer, and
// will be none.
func (x *externalTurn) answer(ctx context.Context, asked *external.Event) (external.ReasonCode, error) {
	what, refused := "the tool "+string(asked.ToolRef), external.ReasonToolNotAdmitted
	if asked.Kind == external.EventOperatorQuestion {
		what, refused = "an answer", external.ReasonApprovalNotAdmitted
	}
	switch {
	case x.console != nil:
		return x.ask(ctx, asked, refused)
	case x.f.observe.word == observeAdmit:
		x.out.status("the agent asks for " + what + ": admitted")
		return external.ReasonCompleted, nil
	}
	if x.f.observe.reason != "" {
		refused = x.f.observe.reason
	}
	x.out.status("the agent asks for " + what + ": refused")
	return refused, nil
}

// ask has whoever sits at the console answer.
func (x *externalTurn) ask(ctx context.Context, asked *external.Event, refused external.ReasonCode) (external.ReasonCode, error) {
	if until, err := asked.DeadlineAt.Time(); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	x.out.finish()
	what, prompt := fmt.Sprintf("The agent asks for the tool %s, with %s:", asked.ToolRef, asked.InputSchemaRef), "admit? y, n or a reason> "
	doc := asked.Input
	if asked.Kind == external.EventOperatorQuestion {
		what, prompt, doc = fmt.Sprintf("The agent asks, with %s:", asked.QuestionSchemaRef), "y, n or a reason> ", asked.Question
	}
	var text bytes.Buffer
	if json.Indent(&text, doc, "  ", "  ") != nil {
		text.Write(doc) // a stream with an event that is none
	}
	x.console.show(visible(what + "\n  " + text.String()))
	for {
		answer, err := x.console.answer(ctx, x.a.bold(prompt))
		if err != nil {
			return "", err
		}
		switch word := strings.ToLower(strings.TrimSpace(answer)); word {
		case "y", "yes":
			return external.ReasonCompleted, nil
		case "n", "no":
			return refused, nil
		default:
			if reason, ok := refusal(word); ok {
				return reason, nil
			}
			x.console.show("y admits it, n refuses it (" + string(refused) + "), and so does one of the reasons " + alternatives(refusals()) + ".")
		}
	}
}

// conclude fills in how the turn ended, as the last event says. A request that was to continue it may have
// been refused alone: then the turn itself stands, or ended before.
func (x *externalTurn) conclude(ctx context.Context, stop func(), request *external.TurnRequest, end *external.Event) error {
	x.report.Status, x.report.Reason = string(end.Status), string(end.ReasonCode)
	if len(x.report.Problems) > 0 {
		return fmt.Errorf("the server broke the protocol: %s", x.report.Problems[0])
	}
	refused := request.Mode == external.ModeContinue && end.Status == external.StatusRefused
	if end.Status != external.StatusCompleted && !refused {
		return fmt.Errorf("the turn %s: %s", ended(end.Status), withAdvice(end.Status, end.ReasonCode))
	}
	outcome, _, err := x.h.Inspect(ctx, x.request.TurnRef)
	switch {
	case err != nil:
		return fmt.Errorf("the outcome could not be read: %w", err)
	case outcome == nil && refused:
		stop() // there is no other way on
		_ = x.ending(ctx)
		return fmt.Errorf("the answer was refused, and the turn cancelled: %s", withAdvice(end.Status, end.ReasonCode))
	case outcome == nil:
		return errors.New("the turn has ended, and the server has no outcome of it")
	}
	return x.concludeAs(outcome)
}

// concludeAs fills in how the turn ended, as its outcome says.
func (x *externalTurn) concludeAs(o *external.Outcome) error {
	x.report.Status, x.report.Reason, x.report.ProductRef = string(o.Status), string(o.ReasonCode), string(o.ProductRef)
	if o.Status != external.StatusCompleted {
		return fmt.Errorf("the turn %s: %s", ended(o.Status), withAdvice(o.Status, o.ReasonCode))
	}
	x.product = o.ProductRef
	return nil
}

// ending waits for the outcome of a turn that ends outside of a stream.
func (x *externalTurn) ending(ctx context.Context) error {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		outcome, _, err := x.h.Inspect(ctx, x.request.TurnRef)
		switch {
		case outcome != nil && err == nil:
			return x.concludeAs(outcome)
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("the outcome could not be read: %w", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			x.report.Status = turnStopped
			return errStopped
		}
	}
}

// ended is a status in a sentence that begins "the turn".
func ended(s external.Status) string {
	switch s {
	case external.StatusFailed:
		return "failed"
	case external.StatusUnknown:
		return "was lost, and nobody knows how it ended"
	}
	return "was " + string(s)
}
