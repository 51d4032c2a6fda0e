package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/backline-dev/backline/internal/testhost"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A lowkeyTalk is a session of Lowkey's.
type lowkeyTalk struct {
	a *app
	f *chatFlags
	c *testhost.Conversation
}

func (a *app) newLowkeyTalk(ctx context.Context, f *chatFlags, address string) (*lowkeyTalk, error) {
	at, err := parseServerURL(address)
	if err != nil {
		return nil, err
	}
	token, err := a.read(f.token)
	if err != nil {
		return nil, err
	}
	id := *f.pluginID
	if id == "" || at.open {
		if found := at.find(ctx); id == "" {
			id = found
		}
	}
	c := testhost.NewConversation(&testhost.Lowkey{URL: at.turns, PluginID: id, Token: token.Reveal(), LineLimit: int(*f.lineLimit)})
	if *f.session != "" {
		c.Handle.ID, c.Handle.SessionID = *f.session, *f.session
	}
	if dir, err := os.Getwd(); err == nil {
		c.Handle.ProjectPath = dir
	}
	c.Window, c.UserName, c.Headless = *f.window, *f.userName, *f.headless
	return &lowkeyTalk{a, f, c}, nil
}

func (t *lowkeyTalk) with() string {
	return fmt.Sprintf("Session %s with %s", t.c.Handle.ID, t.c.Host.PluginID)
}

func (t *lowkeyTalk) next(message string) (any, error) { return t.c.Request(message), nil }

// A turnReport is a turn as --json prints it.
type turnReport struct {
	TurnID    string        `json:"turnId"`
	SessionID string        `json:"sessionId"`
	PluginID  string        `json:"pluginId"`
	HTTP      int           `json:"httpStatus"`
	Status    string        `json:"status"`
	Text      string        `json:"text"`
	Error     string        `json:"error,omitempty"`
	FirstText float64       `json:"firstTextMs,omitempty"`
	Total     float64       `json:"totalMs"`
	Problems  []string      `json:"problems,omitempty"`
	Events    []eventReport `json:"events,omitempty"`

	strange string // the beginning of the first line that is no event
}

// turn runs one turn and shows it. The error says in one line why it did not complete.
func (t *lowkeyTalk) turn(ctx context.Context, message string) error {
	request := t.c.Request(message)
	stream, err := t.c.Send(ctx, request)
	if err != nil {
		if ctx.Err() != nil {
			return errStopped
		}
		return fmt.Errorf("the turn could not be sent: %w; %w", err, errUnreachable)
	}
	r := &turnReport{
		TurnID:    request.Turn.TurnID,
		SessionID: request.SessionHandle.ID,
		PluginID:  request.PluginID,
		HTTP:      stream.Status,
		Status:    turnBroken,
	}
	out := &screen{a: t.a, quiet: *t.f.json || *t.f.events}
	var text strings.Builder
	var end *wire.Event
	n := 0
	for e, err := range stream.Events() {
		if err != nil {
			r.Error = err.Error()
			break
		}
		if *t.f.events {
			if line := (eventReport{milliseconds(e.At), string(e.Raw)}); *t.f.json {
				r.Events = append(r.Events, line)
			} else {
				t.a.showEvent(line)
			}
		}
		first := n == 0
		n++
		// The contract does not ask for a start, only our own grammar does: others may leave it out.
		if e.Err != nil && !(first && e.Type != "") {
			r.Problems = append(r.Problems, e.Err.Error())
			if r.strange == "" {
				r.strange = excerpt(string(e.Raw))
			}
		}
		switch { // an event in a wrong place is shown all the same; a line that is none has no type
		case e.Type == wire.EventText && end == nil:
			if r.FirstText == 0 {
				r.FirstText = milliseconds(e.At)
			}
			text.WriteString(e.Content)
			out.text(e.Content)
		case e.Terminal() && end == nil:
			end = &e.Event
		case e.Content != "" && end == nil:
			out.status(e.Content)
		}
		if stream.Status != http.StatusOK && (end != nil || e.Err != nil) {
			break // a page of another server, perhaps; one line tells enough
		}
	}
	out.finish()
	r.Text = text.String()
	r.Total = milliseconds(time.Since(stream.Sent))
	err = r.conclude(ctx, end)
	if *t.f.json {
		if printErr := t.a.printJSON(r); printErr != nil {
			return printErr
		}
	}
	return err
}

// conclude fills in how the turn ended.
func (r *turnReport) conclude(ctx context.Context, end *wire.Event) error {
	broken := r.Error
	if len(r.Problems) > 0 {
		broken = r.Problems[0] // what came first explains the rest
	}
	said := ""
	if end != nil {
		said = end.Content
	}
	switch {
	case r.HTTP != http.StatusOK:
		r.Status, r.Error = turnRefused, said
		if end == nil {
			r.Error = "the answer is not an error event: " + cmp.Or(r.strange, broken, "it is empty")
		}
		return fmt.Errorf("the turn was refused with HTTP status %d: %s", r.HTTP, r.Error)
	case ctx.Err() != nil && end == nil:
		r.Status, r.Error = turnStopped, ""
		return errStopped
	case end != nil && (end.Type == wire.EventError || end.Status == wire.StatusError):
		r.Status, r.Error = turnFailed, said
		return fmt.Errorf("the turn failed: %s", said)
	case broken != "" || end == nil:
		r.Error = broken
		return fmt.Errorf("the server broke the protocol or the connection: %s", broken)
	case end.Status == wire.StatusCancelled:
		r.Status = turnCancelled
		return errors.New("the server cancelled the turn")
	}
	r.Status = turnComplete
	return nil
}
