package keiki

import (
	"strings"
	"time"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// A Claim is a turn that was taken from the inbox.
type Claim struct {
	// Turn is the turn. Its AgentID and its Links.APIBase are empty where the platform left them out.
	Turn Turn
	// Token is the turn token. It is a credential, and empty where the platform gave none.
	Token string
	// LeaseExpiresAt is when the claim runs out, in UTC; the zero time if that was not told.
	LeaseExpiresAt time.Time
	// Raw is the turn object as it came, byte for byte but for the token: its value is "[redacted]", and so
	// is it where another string holds it.
	Raw string
}

// ParseClaim reads the answer of GET /harness/inbox/next. It is nil, without an error, for {"turn":null}:
// nothing is waiting. A turn may come flat, all in one object, or nested, with the turn proper in an object
// turn of its own (keiki.md, Settled readings); where both objects have a deadline, a URL or a token, the
// outer one counts, since it is the claim's. A type or a version must be right where there is one.
//
// The error is an [*Error], which holds nothing of the token; its code is [CodeInvalidJSON] or
// [CodeInvalidRequest]. Memory is shared as with [ParseRequest], but for Raw and Token.
func ParseClaim(body []byte) (*Claim, error) {
	c, err := parseClaim(body)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func parseClaim(body []byte) (*Claim, *Error) {
	outer := &outerClaim{}
	d, ok := whole(body, outer, claimRoot)
	if !ok {
		return nil, refuse(d)
	}
	if outer.to == 0 {
		return nil, nil // which is what an empty inbox is
	}
	t, l := &outer.Turn, &outer.Links
	pointer := "/turn"
	if inner := outer.inner; inner != nil {
		pointer = "/turn/turn"
		t, l = &inner.Turn, &inner.Links
		prefer(&t.TurnID, t.TurnID, outer.TurnID)
		prefer(&t.AgentID, t.AgentID, outer.AgentID)
		prefer(&t.ConversationID, t.ConversationID, outer.ConversationID)
		if t.Messages == nil {
			t.Messages = outer.Messages
		}
		if !outer.Deadline.IsZero() {
			t.Deadline = outer.Deadline
		}
		prefer(&l.APIBase, outer.Links.APIBase, l.APIBase)
		prefer(&l.TurnURL, outer.Links.TurnURL, l.TurnURL)
		prefer(&l.MCPURL, outer.Links.MCPURL, l.MCPURL)
		prefer(&outer.token, outer.token, inner.token)
		if outer.lease.IsZero() {
			outer.lease = inner.lease
		}
	}
	for _, need := range []struct {
		missing    bool
		name, want string
	}{
		{t.TurnID == "", "/turnId", anID},
		{t.Messages == nil, "/messages", anArray},
		{l.TurnURL == "", "/keiki/turnUrl", anID},
	} {
		if need.missing {
			return nil, lacking(CodeInvalidRequest, pointer+need.name, need.want)
		}
	}
	return &Claim{
		Turn:           *t,
		Token:          strings.Clone(outer.token),
		LeaseExpiresAt: outer.lease,
		Raw:            redact(body, outer),
	}, nil
}

// prefer sets a string to the first of two that is not empty.
func prefer(to *string, first, second string) {
	*to = first
	if first == "" {
		*to = second
	}
}

// A claim is the object of a claim, or the turn in it, that is being read.
type claim struct {
	Turn
	token   string
	tokenAt int // its opening quote; 0 without a token
	lease   time.Time
}

// An outerClaim is the claim, and what is in it.
type outerClaim struct {
	claim
	from, to int // where it is in the body; to is 0 without a turn
	inner    *claim
}

var (
	claimRoot = []field[outerClaim]{
		{"turn", required, anObject + orNull, func(d *decoder, o *outerClaim) bool {
			switch d.Peek() {
			case '{':
				o.from = d.At
				ok := object(d, o, outerFields)
				o.to = d.At
				return ok
			case 'n':
				return d.skip()
			}
			return d.wrong(d.At, anObject+orNull)
		}},
	}
	outerFields = append(claimFields(func(o *outerClaim) *claim { return &o.claim }),
		field[outerClaim]{"turn", optional, "", func(d *decoder, o *outerClaim) bool {
			o.inner = new(claim)
			return object(d, o.inner, innerFields)
		}})
	innerFields = claimFields(func(c *claim) *claim { return c })

	claimLinkFields = []field[Links]{
		{"apiBase", optional, "", func(d *decoder, l *Links) bool { return d.text(&l.APIBase) }},
		{"turnUrl", optional, "", func(d *decoder, l *Links) bool { return d.text(&l.TurnURL) }},
		{"mcpUrl", optional, "", func(d *decoder, l *Links) bool { return d.text(&l.MCPURL) }},
	}
)

// claimFields are the fields of a turn, of which the object may have any, and what a claim adds. in finds
// the claim in what is being read.
func claimFields[T any](in func(v *T) *claim) []field[T] {
	var table []field[T]
	for _, f := range turnFields {
		read := f.read
		if f.name == "keiki" {
			read = func(d *decoder, t *Turn) bool { return object(d, &t.Links, claimLinkFields) }
		}
		need := optional
		if f.need == anything {
			need = anything
		}
		table = append(table, field[T]{f.name, need, "", func(d *decoder, v *T) bool { return read(d, &in(v).Turn) }})
	}
	return append(table,
		field[T]{"turnToken", optional, "", func(d *decoder, v *T) bool {
			c := in(v)
			c.tokenAt = d.At
			return d.id(&c.token)
		}},
		field[T]{"leaseExpiresAt", optional, "", func(d *decoder, v *T) bool { return d.instant(&in(v).lease) }},
	)
}

// redact is the claim's text without its token.
func redact(body []byte, o *outerClaim) string {
	const (
		redacted = "[redacted]"
		// A token of fewer characters may be part of any text, and is no secret.
		least = 8
	)
	tokens := []string{o.token}
	tokenAt := [2]int{o.tokenAt}
	if o.inner != nil {
		tokens = append(tokens, o.inner.token)
		tokenAt[1] = o.inner.tokenAt
	}
	var pairs []string
	for _, token := range tokens {
		if len(token) >= least {
			pairs = append(pairs, token, redacted)
		}
	}
	elsewhere := strings.NewReplacer(pairs...)
	out := make([]byte, 0, o.to-o.from+len(redacted))
	copied := o.from
	c := scan.Cursor{Doc: body, At: o.from}
	for c.At < o.to {
		from := c.At
		if c.Peek() != '"' {
			c.At++
			continue
		}
		s, _ := c.Text() // it is well-formed
		clean := redacted
		if from != tokenAt[0] && from != tokenAt[1] {
			clean = elsewhere.Replace(s)
		}
		if clean != s {
			out = AppendString(append(out, body[copied:from]...), clean)
			copied = c.At
		}
	}
	return string(append(out, body[copied:o.to]...))
}
