package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/schema/external"
)

// What chat --protocol takes.
const (
	protocolLowkey   = "lowkey"
	protocolExternal = "external-runtime"
)

// What chat --observe takes.
const (
	observeRefuse = "refuse"
	observeAdmit  = "admit"
)

// lowkeyOnly are the flags of chat that mean nothing to agent.external-runtime.
var lowkeyOnly = []string{"plugin-id", "session", "window", "user-name", "headless"}

// externalBase makes the base of the endpoints of what chat was given.
func externalBase(s string) (string, error) {
	at, err := parseServerURL(s)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(at.turns)
	if err != nil {
		return "", err // it was parsed before
	}
	if u.RawQuery != "" {
		return "", usagef("the URL has a query, which no endpoint of agent.external-runtime takes: leave it out")
	}
	u.RawPath = ""
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), plugin.DefaultTurnPath)
	u.Path = strings.TrimSuffix(u.Path, "/turns")
	u.Path = strings.TrimSuffix(u.Path, plugin.ExternalPath) + plugin.ExternalPath
	return u.String(), nil
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

// chatExternal runs one turn as a host of agent.external-runtime does.
func (a *app) chatExternal(ctx context.Context, f *chatFlags, fs *pflag.FlagSet, address string) error {
	for _, name := range lowkeyOnly {
		if fs.Changed(name) {
			return usagef("--%s is for the protocol %s", name, protocolLowkey)
		}
	}
	base, err := externalBase(address)
	switch {
	case err != nil:
		return err
	case *f.binding == "":
		return usagef("--protocol %s needs --binding FILE, the binding that the turn runs under", protocolExternal)
	case !f.oneTurn:
		return usagef("--protocol %s needs --message TEXT: it runs one turn", protocolExternal)
	}
	b, err := readBinding(*f.binding)
	if err != nil {
		return err
	}
	token, err := a.read(f.token)
	if err != nil {
		return err
	}
	message, err := a.messageOf(f)
	if err != nil {
		return err
	}
	if message == "" {
		return usagef("--message is empty, and a turn of agent.external-runtime has at least one character of input")
	}
	defer testhost.CloseIdleConnections()
	t := &externalTalk{
		a: a, f: f, sent: time.Now(),
		h: &testhost.External{URL: base, Token: token, Binding: b, LineLimit: int(*f.lineLimit)},
	}
	t.report.Binding = string(b.BindingRef)
	return t.run(ctx, t.h.Request(message))
}

// An externalTalk is one turn and how it is shown.
type externalTalk struct {
	a      *app
	f      *chatFlags
	h      *testhost.External
	sent   time.Time
	report externalReport
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

func (t *externalTalk) run(ctx context.Context, r *external.TurnRequest) error {
	t.report.TurnRef, t.report.Status = string(r.TurnRef), turnBroken
	stop := t.cancelOnInterrupt(r.TurnRef)
	err := t.stream(ctx, r)
	stop()
	t.report.Total = milliseconds(time.Since(t.sent))
	if err != nil {
		t.report.Error = err.Error()
	}
	if *t.f.json {
		return cmp.Or(t.a.printJSON(&t.report), err)
	}
	return err
}

// cancelOnInterrupt asks the server to end the turn when an interrupt comes; the stream then tells its
// end. A second one ends the program, as usual.
func (t *externalTalk) cancelOnInterrupt(turn external.TurnRef) (stop func()) {
	signals, ended, gone := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt)
	go func() {
		defer close(gone)
		select {
		case <-signals:
			signal.Stop(signals)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if _, err := t.h.Cancel(ctx, turn); err != nil {
				t.a.warn("the turn could not be cancelled: %s", err)
			}
		case <-ended:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(ended)
		<-gone
	}
}

// stream walks the turn's streams, and answers what it asks. The error says why it did not complete.
func (t *externalTalk) stream(ctx context.Context, r *external.TurnRequest) error {
	out := &screen{a: t.a, quiet: *t.f.json || *t.f.events}
	defer out.finish()
	var outstanding []external.Event
	request := r
	for {
		s, err := t.h.Turn(ctx, request)
		if err != nil {
			if ctx.Err() != nil {
				return errStopped
			}
			return fmt.Errorf("the turn could not be sent: %w; %w", err, errUnreachable)
		}
		t.report.HTTP = s.Status
		var outcome *external.Event
		for e, err := range s.Events() {
			var problem *testhost.Problem
			switch {
			case errors.As(err, &problem):
				t.report.Status = turnRefused
				return fmt.Errorf("the request was refused with %w", problem)
			case err != nil && ctx.Err() != nil:
				t.report.Status = turnStopped
				return errStopped
			case err != nil:
				return fmt.Errorf("the server broke the protocol or the connection: %w", err)
			}
			if *t.f.events {
				t.show(&e)
			}
			if e.Err != nil {
				t.report.Problems = append(t.report.Problems, e.Err.Error())
			}
			switch e.Kind {
			case external.EventProductCandidate:
				t.report.Text += e.Content
				out.text(e.Content)
			case external.EventToolRequest, external.EventOperatorQuestion:
				outstanding = append(outstanding, e.Event)
			case external.EventTurnOutcome:
				outcome = &e.Event
			}
		}
		if outcome != nil {
			return t.conclude(ctx, r.TurnRef, outcome)
		}
		if len(outstanding) == 0 {
			return errors.New("the server broke the protocol: the stream ended without an outcome, and nothing was asked")
		}
		asked := outstanding[0]
		outstanding = outstanding[1:]
		request = testhost.Observe(r, asked.RequestRef, t.answer(&asked, out))
	}
}

// answer says what becomes of a tool request or a question.
func (t *externalTalk) answer(asked *external.Event, out *screen) external.ReasonCode {
	what, reason := "the tool "+string(asked.ToolRef), external.ReasonToolNotAdmitted
	if asked.Kind == external.EventOperatorQuestion {
		what, reason = "an answer", external.ReasonApprovalNotAdmitted
	}
	word := "refused"
	if *t.f.observe == observeAdmit {
		word, reason = "admitted", external.ReasonCompleted
	}
	out.status("the agent asks for " + what + ": " + word)
	return reason
}

// conclude fills in how the turn ended.
func (t *externalTalk) conclude(ctx context.Context, turn external.TurnRef, end *external.Event) error {
	t.report.Status, t.report.Reason = string(end.Status), string(end.ReasonCode)
	if len(t.report.Problems) > 0 {
		return fmt.Errorf("the server broke the protocol: %s", t.report.Problems[0])
	}
	if end.Status != external.StatusCompleted {
		return fmt.Errorf("the turn %s: %s", ended(end.Status), end.ReasonCode)
	}
	outcome, _, err := t.h.Inspect(ctx, turn)
	if err != nil {
		return fmt.Errorf("the outcome could not be read: %w", err)
	}
	if outcome == nil {
		return errors.New("the turn has ended, and the server has no outcome of it")
	}
	t.report.ProductRef = string(outcome.ProductRef)
	return nil
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

func (t *externalTalk) show(e *testhost.ExternalEvent) {
	at, line := milliseconds(time.Since(t.sent)), string(e.Raw)
	if *t.f.json {
		t.report.Events = append(t.report.Events, eventReport{at, line})
		return
	}
	if t.a.outIsTTY {
		line = visible(line)
	}
	_, _ = fmt.Fprintf(t.a.out, "%10s ms  %s\n", strconv.FormatFloat(at, 'f', 3, 64), line)
}
