// Package keiki has the wire types of Keiki's external harness. This file holds the place of the strict decoder
// that is being written, and goes when that comes.
package keiki

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

type Kind string

const (
	KindTurn      Kind = "keiki.turn"
	KindArrival   Kind = "keiki.turn.arrival"
	KindCancelled Kind = "keiki.turn.cancelled"
)

func AgentID(body []byte) (string, bool) {
	var x struct {
		AgentID string `json:"agentId"`
	}
	return x.AgentID, json.Unmarshal(body, &x) == nil && x.AgentID != ""
}

type Code string
type Error struct {
	Code             Code
	Pointer, Message string
}

func (e *Error) Error() string { return e.Message }

type Request struct {
	Kind      Kind
	Turn      *Turn
	Arrival   *Arrival
	Cancelled *Cancelled
}
type Turn struct {
	TurnID, AgentID, ConversationID string
	Channel                         json.RawMessage
	Messages                        []Message
	History                         []Entry
	HasHistory                      bool
	Context                         json.RawMessage
	Instructions                    string
	HeldBack, Silent, QuietLoop     bool
	Deadline                        time.Time
	Links                           Links
}
type Message struct {
	Text            string
	ID              string
	Silent, Flagged bool
}
type Entry struct {
	Role, Text string
	Time       time.Time
}
type Links struct{ APIBase, TurnURL, MCPURL string }
type Arrival struct {
	TurnID, AgentID, ConversationID string
	HeldBack                        bool
	Links                           Links
	Sequence                        int64
	Messages                        []Message
}
type Cancelled struct{ TurnID, AgentID, ConversationID string }

type rawMsg struct {
	Text      string
	MessageID string
	Silent    bool
	Screening struct{ Flagged bool }
}
type rawReq struct {
	Type                            string
	Version                         any
	TurnID, AgentID, ConversationID string
	Channel, Context                json.RawMessage
	Messages                        []rawMsg
	History                         *[]struct{ Role, Text, Content string }
	Instructions                    string
	HeldBack, Silent, QuietLoop     bool
	Deadline                        any
	Keiki                           Links
	Sequence                        int64
	TurnToken                       string
	LeaseExpiresAt                  any
}

func when(v any) time.Time {
	switch x := v.(type) {
	case string:
		t, _ := time.Parse(time.RFC3339Nano, x)
		return t
	case float64:
		if x < 1e11 {
			return time.UnixMilli(int64(x * 1000))
		}
		return time.UnixMilli(int64(x))
	}
	return time.Time{}
}
func msgs(list []rawMsg) (out []Message) {
	for _, m := range list {
		out = append(out, Message{m.Text, m.MessageID, m.Silent, m.Screening.Flagged})
	}
	return
}
func (x *rawReq) turn() *Turn {
	t := &Turn{TurnID: x.TurnID, AgentID: x.AgentID, ConversationID: x.ConversationID, Channel: x.Channel, Context: x.Context, Messages: msgs(x.Messages),
		Instructions: x.Instructions, HeldBack: x.HeldBack, Silent: x.Silent, QuietLoop: x.QuietLoop, Deadline: when(x.Deadline), Links: x.Keiki}
	if x.History != nil {
		t.HasHistory = true
		for _, e := range *x.History {
			t.History = append(t.History, Entry{Role: e.Role, Text: e.Text + e.Content})
		}
	}
	return t
}
func ParseRequest(body []byte) (*Request, error) {
	var x rawReq
	if err := json.Unmarshal(body, &x); err != nil {
		return nil, &Error{"invalid_json", "", err.Error()}
	}
	if x.Type != string(KindCancelled) && x.Version != 1.0 {
		return nil, &Error{"unsupported_version", "/version", "want 1"}
	}
	switch Kind(x.Type) {
	case KindTurn:
		if x.Messages == nil || x.Keiki == (Links{}) {
			return nil, &Error{"invalid_request", "", "missing"}
		}
		return &Request{Kind: KindTurn, Turn: x.turn()}, nil
	case KindArrival:
		return &Request{Kind: KindArrival, Arrival: &Arrival{TurnID: x.TurnID, AgentID: x.AgentID, Sequence: x.Sequence, Messages: msgs(x.Messages), Links: x.Keiki}}, nil
	case KindCancelled:
		return &Request{Kind: KindCancelled, Cancelled: &Cancelled{TurnID: x.TurnID, AgentID: x.AgentID}}, nil
	}
	return nil, &Error{"unknown_type", "", "type"}
}

type Status string

const (
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
)

type Completion struct {
	Status           Status  `json:"status"`
	Error            string  `json:"error,omitempty"`
	ConsumedArrivals []int64 `json:"consumedArrivals,omitempty"`
}

func AppendString(dst []byte, s string) []byte { b, _ := json.Marshal(s); return append(dst, b...) }
func AppendSend(dst []byte, text, key string) []byte {
	b, _ := json.Marshal(map[string]string{"text": text, "idempotencyKey": key})
	return append(dst, b...)
}
func AppendComplete(dst []byte, c Completion) []byte {
	b, _ := json.Marshal(c)
	return append(dst, b...)
}

const ArrivalsPage = 50

type Batch struct {
	Sequence int64
	Messages []Message
}

func ParseArrivals(body []byte) ([]Batch, error) {
	var x struct {
		Arrivals []struct {
			Sequence int64
			Messages []rawMsg
		}
	}
	if err := json.Unmarshal(body, &x); err != nil {
		return nil, err
	}
	var out []Batch
	for _, a := range x.Arrivals {
		out = append(out, Batch{a.Sequence, msgs(a.Messages)})
	}
	return out, nil
}

type Fault struct {
	Code      string
	Retryable *bool
}

func ParseFault(body []byte) (f Fault) {
	var x struct {
		Code      string
		Retryable *bool
		Error     json.RawMessage
	}
	if json.Unmarshal(body, &x) != nil {
		return
	}
	f.Code, f.Retryable = x.Code, x.Retryable
	var e struct {
		Code      string
		Retryable *bool
	}
	if json.Unmarshal(x.Error, &e) == nil {
		if e.Code != "" {
			f.Code = e.Code
		}
		if e.Retryable != nil {
			f.Retryable = e.Retryable
		}
	} else {
		_ = json.Unmarshal(x.Error, &f.Code)
	}
	if strings.Trim(f.Code, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		f.Code = ""
	}
	return
}

type Lease struct {
	ExpiresAt time.Time
	Token     string
}

func ParseLease(body []byte) (Lease, error) {
	var x rawReq
	err := json.Unmarshal(body, &x)
	return Lease{when(x.LeaseExpiresAt), x.TurnToken}, err
}

type Claim struct {
	Turn           Turn
	Token          string
	LeaseExpiresAt time.Time
	Raw            string
}

func ParseClaim(body []byte) (*Claim, error) {
	var x struct{ Turn *json.RawMessage }
	if err := json.Unmarshal(body, &x); err != nil {
		return nil, err
	}
	if x.Turn == nil {
		return nil, nil
	}
	var r rawReq
	if err := json.Unmarshal(*x.Turn, &r); err != nil {
		return nil, err
	}
	c := &Claim{Turn: *r.turn(), Token: r.TurnToken, LeaseExpiresAt: when(r.LeaseExpiresAt)}
	if r.TurnID == "" {
		return nil, errors.New("no turn")
	}
	return c, nil
}

type Forward struct {
	ID, Body string
	Headers  map[string]string
}

func ParseForward(body []byte) (*Forward, error) {
	var x struct{ Turn *Forward }
	err := json.Unmarshal(body, &x)
	return x.Turn, err
}

type Result struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
}

func AppendResult(dst []byte, r Result) []byte { b, _ := json.Marshal(r); return append(dst, b...) }

var _ = strconv.Itoa

func (r *Request) TurnID() string {
	switch {
	case r.Turn != nil:
		return r.Turn.TurnID
	case r.Arrival != nil:
		return r.Arrival.TurnID
	}
	return r.Cancelled.TurnID
}
