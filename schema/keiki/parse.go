package keiki

import (
	"github.com/backline-dev/backline/schema/internal/scan"
)

// ParseRequest reads a push body, of any kind. It is for bodies whose signature holds: what it says of a
// wrong one is for the platform to read. The error is an [*Error]. A malformed text is told first, then a
// type that is not known, then a version that is not served, then the first other field.
//
// Strings and bytes of the request share memory with body, which must not be changed as long as any of
// them is in use; one that is kept keeps the whole body alive, so clone what is kept. ParseRequest may be
// called from several goroutines.
func ParseRequest(body []byte) (*Request, error) {
	c := scan.Cursor{Doc: body, At: scan.Space(body, 0)}
	root := c.At
	there := find(&c, "type")
	kind := Kind("")
	if there && c.Peek() == '"' {
		typ := c
		if s, ok := typ.Text(); ok {
			kind = Kind(s)
		}
	}
	r, d, ok := read(kind, body)
	if r == nil {
		d = &decoder{Cursor: c, at: c.At, want: theTypes}
		switch {
		case there:
		case root < len(body) && body[root] == '{':
			d.at, d.missing = root, "type"
		default:
			d.at, d.want = root, anObject
		}
		return nil, refuseRequest(d, "")
	}
	if !ok {
		return nil, refuseRequest(d, kind)
	}
	return r, nil
}

// read reads a body as a request of this kind; r is nil for a kind that is none.
func read(kind Kind, body []byte) (r *Request, d *decoder, ok bool) {
	switch kind {
	case KindTurn:
		r = &Request{Kind: KindTurn, Turn: &Turn{}}
		d, ok = whole(body, r.Turn, turnFields)
	case KindArrival:
		r = &Request{Kind: KindArrival, Arrival: &Arrival{}}
		d, ok = whole(body, r.Arrival, arrivalFields)
	case KindCancelled:
		r = &Request{Kind: KindCancelled, Cancelled: &Cancelled{}}
		d, ok = whole(body, r.Cancelled, cancelledFields)
	}
	return r, d, ok
}

// The fields of the objects that the platform sends.
var (
	turnFields = []field[Turn]{
		{"type", required, theKind(KindTurn), func(d *decoder, _ *Turn) bool { return d.kind(KindTurn) }},
		{"version", required, theVersion, func(d *decoder, _ *Turn) bool { return d.version() }},
		{"turnId", required, anID, func(d *decoder, t *Turn) bool { return d.id(&t.TurnID) }},
		{"agentId", required, anID, func(d *decoder, t *Turn) bool { return d.id(&t.AgentID) }},
		{"conversationId", optional, "", func(d *decoder, t *Turn) bool { return d.text(&t.ConversationID) }},
		{"channel", optional, "", func(d *decoder, t *Turn) bool { return d.channel(t) }},
		{"messages", required, anArray, func(d *decoder, t *Turn) bool { return d.messages(&t.Messages) }},
		{"history", optional, "", func(d *decoder, t *Turn) bool { return d.history(t) }},
		{"context", anything, "", func(d *decoder, t *Turn) bool { return d.raw((*[]byte)(&t.Context)) }},
		{"instructions", optional, "", func(d *decoder, t *Turn) bool { return d.text(&t.Instructions) }},
		{"heldBack", optional, "", func(d *decoder, t *Turn) bool { return d.boolean(&t.HeldBack) }},
		{"silent", optional, "", func(d *decoder, t *Turn) bool { return d.boolean(&t.Silent) }},
		{"quietLoop", optional, "", func(d *decoder, t *Turn) bool { return d.boolean(&t.QuietLoop) }},
		{"deadline", optional, "", func(d *decoder, t *Turn) bool { return d.instant(&t.Deadline) }},
		{"keiki", required, anObject, func(d *decoder, t *Turn) bool { return object(d, &t.Links, linkFields) }},
	}
	arrivalFields = []field[Arrival]{
		{"type", required, theKind(KindArrival), func(d *decoder, _ *Arrival) bool { return d.kind(KindArrival) }},
		{"version", required, theVersion, func(d *decoder, _ *Arrival) bool { return d.version() }},
		{"turnId", required, anID, func(d *decoder, a *Arrival) bool { return d.id(&a.TurnID) }},
		{"agentId", required, anID, func(d *decoder, a *Arrival) bool { return d.id(&a.AgentID) }},
		{"conversationId", optional, "", func(d *decoder, a *Arrival) bool { return d.text(&a.ConversationID) }},
		{"heldBack", optional, "", func(d *decoder, a *Arrival) bool { return d.boolean(&a.HeldBack) }},
		{"keiki", optional, "", func(d *decoder, a *Arrival) bool { return object(d, &a.Links, linkFields) }},
		{"sequence", required, aSequence, func(d *decoder, a *Arrival) bool { return d.sequence(&a.Sequence) }},
		{"messages", required, anArray, func(d *decoder, a *Arrival) bool { return d.messages(&a.Messages) }},
	}
	cancelledFields = []field[Cancelled]{
		{"type", required, theKind(KindCancelled), func(d *decoder, _ *Cancelled) bool { return d.kind(KindCancelled) }},
		{"turnId", required, anID, func(d *decoder, c *Cancelled) bool { return d.id(&c.TurnID) }},
		{"agentId", required, anID, func(d *decoder, c *Cancelled) bool { return d.id(&c.AgentID) }},
		{"conversationId", optional, "", func(d *decoder, c *Cancelled) bool { return d.text(&c.ConversationID) }},
		{"version", optional, "", func(d *decoder, _ *Cancelled) bool { return d.version() }},
	}
	linkFields = []field[Links]{
		{"apiBase", required, anID, func(d *decoder, l *Links) bool { return d.id(&l.APIBase) }},
		{"turnUrl", required, anID, func(d *decoder, l *Links) bool { return d.id(&l.TurnURL) }},
		{"mcpUrl", optional, "", func(d *decoder, l *Links) bool { return d.text(&l.MCPURL) }},
	}
	messageFields = []field[Message]{
		{"text", required, aString, func(d *decoder, m *Message) bool { return d.text(&m.Text) }},
		{"messageId", optional, "", func(d *decoder, m *Message) bool { return d.text(&m.ID) }},
		{"silent", optional, "", func(d *decoder, m *Message) bool { return d.boolean(&m.Silent) }},
		{"screening", optional, "", func(d *decoder, m *Message) bool { return object(d, m, screeningFields) }},
	}
	screeningFields = []field[Message]{
		{"flagged", optional, "", func(d *decoder, m *Message) bool { return d.boolean(&m.Flagged) }},
	}
	entryFields = []field[entry]{
		{"role", optional, "", func(d *decoder, e *entry) bool { return d.text(&e.Role) }},
		{"text", optional, "", func(d *decoder, e *entry) bool { e.hasText = true; return d.text(&e.Text) }},
		{"content", optional, "", func(d *decoder, e *entry) bool { return d.content(&e.content) }},
		{"createdAt", anything, "", func(d *decoder, e *entry) bool { return d.guessInstant(&e.Time) }},
		{"at", anything, "", func(d *decoder, e *entry) bool { return d.guessInstant(&e.Time) }},
		{"time", anything, "", func(d *decoder, e *entry) bool { return d.guessInstant(&e.Time) }},
		{"timestamp", anything, "", func(d *decoder, e *entry) bool { return d.guessInstant(&e.Time) }},
	}
	partFields = []field[string]{
		{"text", anything, "", func(d *decoder, s *string) bool { return d.guessText(s) }},
	}
)

// channel reads a string or an object and keeps its bytes.
func (d *decoder) channel(t *Turn) bool {
	if c := d.Peek(); c != '"' && c != '{' {
		return d.wrong(d.At, aChannel)
	}
	return d.raw((*[]byte)(&t.Channel))
}

func (d *decoder) messages(to *[]Message) bool {
	if !list(d, to, 1, func(d *decoder, m *Message) bool { return object(d, m, messageFields) }) {
		return false
	}
	if *to == nil {
		*to = []Message{}
	}
	return true
}

// An entry is an [Entry] that is being read.
type entry struct {
	Entry
	hasText bool
	content string
}

func (d *decoder) history(t *Turn) bool {
	t.HasHistory = true
	// No useful entry is shorter than this. Where there are many, append finds the right size.
	const shortest = len(`{"role":"user","text":""},`)
	e := &d.entry
	return list(d, &t.History, min(64, (len(d.Doc)-d.At)/shortest+1), func(d *decoder, to *Entry) bool {
		*e = entry{}
		if !object(d, e, entryFields) {
			return false
		}
		if !e.hasText {
			e.Text = e.content
		}
		*to = e.Entry
		return true
	})
}

// content reads an entry's content: a string, or parts of which some may have a text.
func (d *decoder) content(to *string) bool {
	switch d.Peek() {
	case '"':
		return d.text(to)
	case '[':
		var parts []string
		if !list(d, &parts, 1, func(d *decoder, s *string) bool {
			if d.Peek() == '{' {
				return object(d, s, partFields)
			}
			return d.guessText(s)
		}) {
			return false
		}
		*to = join(parts)
		return true
	}
	return d.wrong(d.At, theContent)
}

func join(parts []string) string {
	if len(parts) == 1 {
		return parts[0] // shares memory with the body
	}
	n := 0
	for _, s := range parts {
		n += len(s)
	}
	b := make([]byte, 0, n)
	for _, s := range parts {
		b = append(b, s...)
	}
	return string(b)
}

// guessText reads a string if there is one, and whatever else there is too.
func (d *decoder) guessText(to *string) bool {
	if d.Peek() == '"' {
		return d.text(to)
	}
	return d.skip()
}
