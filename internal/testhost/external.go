package testhost

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/backline-dev/backline/runtime/ndjson"
	wire "github.com/backline-dev/backline/schema/external"
)

// An External is the host's side of agent.external-runtime: it admits, as an operator does, and sends
// turns under one binding. Its fields are not changed while it is in use; its methods may be called from
// several goroutines.
type External struct {
	// URL is the base of the endpoints: http://127.0.0.1:8787/external-runtime.
	URL string
	// Token is sent as a bearer token with what hosts may do, OperatorToken with what operators may.
	Token, OperatorToken string
	// Binding is what requests name, and Profile that which it names. A nil Binding makes requests under
	// one that nobody admits; without a Profile streams are not held to its limits.
	Binding *wire.Binding
	Profile *wire.Profile
	// Client and LineLimit are as those of a [Lowkey].
	Client    *http.Client
	LineLimit int
}

// NewProfile makes a profile that is fit for tests: all that a runtime can do, mediated tools, and usage
// that the adapter measures. Change it before it is admitted.
func NewProfile(ref wire.ProfileRef) *wire.Profile {
	return &wire.Profile{
		Schema: wire.ProfileV1, ProfileRef: ref, ProfileGeneration: 1,
		DriverVariant: "driver:backline", DriverVersion: "driver:1",
		TransportClass: wire.TransportInProcess, AuthClass: wire.AuthNone,
		SessionScope: wire.ScopeAgentRuntimeBinding, SessionPersistence: wire.SessionEphemeral,
		RetentionClass: wire.RetentionNone, EgressClasses: []wire.EgressClass{},
		ToolMode: wire.ToolsMediated, UsageFidelity: wire.FidelityAuthoritative, EventOrdering: wire.StrictSequence,
		Supports:  wire.Supports{ExactResume: true, RequestIdempotency: true, Cancellation: true, Inspection: true, SessionClose: true},
		Limits:    wire.Limits{MaxEvents: 256, MaxEventBytes: 1 << 17, MaxProductBytes: 1 << 16, TurnTimeoutMS: 60_000},
		CreatedAt: wire.DateTimeOf(time.Now()), CreatedBy: "operator:testhost",
	}
}

// NewBinding makes a binding of an agent to a profile that is fit for tests, for a day. It is sealed;
// [Seal] it again after a change.
func NewBinding(ref wire.BindingRef, agent wire.AgentID, p *wire.Profile) *wire.Binding {
	now := time.Now()
	b := &wire.Binding{
		Schema: wire.BindingV1, BindingRef: ref, AgentID: agent, AgentBindingRef: "agent-binding:testhost",
		ProfileRef: p.ProfileRef, ProfileGeneration: p.ProfileGeneration, AdapterInstanceEpoch: "epoch:1",
		MaxPassages: 256, PromptPolicyRefs: []wire.PromptPolicyRef{"prompt-policy:testhost"}, OutputSchemaRefs: []wire.SchemaRef{"schema:text"},
		VisibilityCeiling: wire.VisibilityShared, ClassificationCeiling: wire.TierPersonal,
		BudgetTurnCeiling: wire.Budget{MaxTokens: 100_000, MaxCostMicros: 1_000_000, MaxWallTimeMS: 60_000, MaxSteps: 1000},
		ExpiresAt:         wire.DateTimeOf(now.Add(24 * time.Hour)), CreatedAt: wire.DateTimeOf(now), CreatedBy: "operator:testhost",
	}
	if err := Seal(b); err != nil {
		panic(err) // a struct of strings and numbers has a canonical form
	}
	return b
}

// Seal sets a binding's digest.
func Seal(b *wire.Binding) error {
	b.BindingDigest = ""
	doc, err := encode(b)
	if err != nil {
		return err
	}
	b.BindingDigest, err = wire.DigestWithout(doc, "binding/digest")
	return err
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Request makes a request under h.Binding that a server accepts: the start of a turn with fresh refs, one
// text part a text, the binding's first policy and output schema, and half of what it may set aside.
func (h *External) Request(texts ...string) *wire.TurnRequest {
	b := h.Binding
	if b == nil {
		b = NewBinding("binding:none", "agent:none", NewProfile("profile:none"))
	}
	half := func(n int64) int64 { return max(1, n/2) }
	now := time.Now()
	r := &wire.TurnRequest{
		Schema: wire.TurnRequestV1, TurnRef: wire.TurnRef(newID("turn")), Mode: wire.ModeStart,
		BindingRef: b.BindingRef, BindingDigest: b.BindingDigest, AgentID: b.AgentID,
		PassageRef: wire.PassageRef(newID("passage")), PassageNo: 1, Kind: wire.KindDraft, ParentProductRefs: []wire.ProductRef{},
		InstructionHash: wire.ContentDigest(nil), PromptPolicyRef: b.PromptPolicyRefs[0], OutputSchemaRef: b.OutputSchemaRefs[0],
		Visibility: wire.VisibilityPrivate, Classification: publicLabel(),
		BudgetReservation: wire.Budget{
			MaxTokens: half(b.BudgetTurnCeiling.MaxTokens), MaxCostMicros: half(b.BudgetTurnCeiling.MaxCostMicros),
			MaxWallTimeMS: half(b.BudgetTurnCeiling.MaxWallTimeMS), MaxSteps: half(b.BudgetTurnCeiling.MaxSteps),
		},
		IdempotencyKey: wire.IdempotencyKey(newID("key")),
		DeadlineAt:     wire.DateTimeOf(now.Add(time.Hour)), AdmittedAt: wire.DateTimeOf(now), AdmittedBy: "operator:testhost",
	}
	for _, text := range texts {
		r.InputParts = append(r.InputParts, wire.InputPart{Kind: wire.PartText, Text: text})
	}
	SealInput(r)
	return r
}

// SealInput sets a request's input digest, after its input has changed.
func SealInput(r *wire.TurnRequest) {
	digest, err := r.DigestInput()
	if err != nil {
		digest = wire.ContentDigest(nil) // text that has no canonical form; the server will say so
	}
	r.InputDigest = digest
}

// publicLabel is the label of what anybody may read.
func publicLabel() wire.Classification {
	return wire.Classification{
		Schema: wire.ClassificationV1, SourceTier: wire.TierPublic, EffectiveTier: wire.TierPublic,
		Provenance: wire.Origin{Kind: wire.OriginLocalSpace, Space: wire.SpacePublic},
		BoundSubjects: wire.BoundSubjects{PublicProjection: &wire.PublicProjection{
			SubjectSetHash: wire.SubjectSetHash(strings.Repeat("0", 64)), Count: 1,
		}},
		DeclassifyTrail: []wire.Declassify{},
	}
}

// Observe makes of a turn's request the one that continues the turn with an answer to what it asked: done
// as asked where reason is [wire.ReasonCompleted], refused for another reason. It has a fresh key.
func Observe(r *wire.TurnRequest, asked wire.RequestRef, reason wire.ReasonCode) *wire.TurnRequest {
	next := *r
	next.Mode = wire.ModeContinue
	next.IdempotencyKey = wire.IdempotencyKey(newID("key"))
	next.Observation = &wire.Observation{RequestRef: asked, Disposition: wire.Refused, ReasonCode: reason, EvidenceRefs: []wire.Ref{}}
	if reason == wire.ReasonCompleted {
		next.Observation.Disposition = wire.Admitted
		next.Observation.ReceiptRef = wire.Ref(newID("receipt"))
	}
	return &next
}

// Turn sends a request. The error is one of the connection: what is refused before it became a turn is an
// [ExternalStream] too, with another status than 200. The caller walks the stream to its end or closes it.
// Sending a request again joins the turn, or gives its stream again.
func (h *External) Turn(ctx context.Context, r *wire.TurnRequest) (*ExternalStream, error) {
	body, err := encode(r)
	if err != nil {
		return nil, err
	}
	return h.Post(ctx, body, nil)
}

// Post is Turn for a body made by hand. The fields of header, which may be nil, replace those that are
// sent otherwise; a nil value leaves one out.
func (h *External) Post(ctx context.Context, body []byte, header http.Header) (*ExternalStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	sent := time.Now()
	resp, err := h.do(ctx, http.MethodPost, "/turns", h.Token, body, header) //nolint:bodyclose // the stream has it, and closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return &ExternalStream{
		Status: resp.StatusCode, Header: resp.Header, Sent: sent,
		body: resp.Body, limit: h.LineLimit, cancel: cancel, profile: h.Profile,
	}, nil
}

func (h *External) do(ctx context.Context, method, path, token string, body []byte, header http.Header) (*http.Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.URL+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for name, values := range header {
		if req.Header[name] = values; values == nil {
			delete(req.Header, name)
		}
	}
	client := h.Client
	if client == nil {
		client = defaultClient
	}
	return client.Do(req)
}

// A Problem is an answer that is no turn and no document: as in RFC 9457.
type Problem struct {
	Status     int    `json:"status"`
	Title      string `json:"title"`
	Detail     string `json:"detail"`
	Violations []struct {
		Pointer  string `json:"pointer"`
		Found    string `json:"found"`
		Expected string `json:"expected"`
	} `json:"violations"`
}

// Error is what the server says.
func (p *Problem) Error() string {
	return fmt.Sprintf("HTTP status %d: %s", p.Status, cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))
}

// problemOf reads an answer with a status that is no success.
func problemOf(status int, body []byte) *Problem {
	p := &Problem{}
	if json.Unmarshal(body, p) != nil { // of another server, perhaps
		*p = Problem{}
	}
	p.Status = status
	return p
}

// maxAnswer is how much is read of an answer that is no stream, in bytes.
const maxAnswer = 16 << 20

// call makes a request and decodes its answer; a status from 300 on is a [*Problem].
func (h *External) call(ctx context.Context, method, path, token string, body []byte, into any) (raw []byte, err error) {
	resp, err := h.do(ctx, method, path, token, body, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it has been read
	if raw, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode >= 300 {
		err = problemOf(resp.StatusCode, raw)
	}
	if into != nil && json.Unmarshal(raw, into) != nil && err == nil {
		err = fmt.Errorf("the answer is not what was asked for: %.200q", raw)
	}
	return raw, err
}

// AdmitProfile admits a profile, and AdmitBinding a binding. A refusal is a [*Problem].
func (h *External) AdmitProfile(ctx context.Context, p *wire.Profile) error {
	return h.admit(ctx, "/profiles/", string(p.ProfileRef), p)
}

// AdmitBinding is AdmitProfile for a binding.
func (h *External) AdmitBinding(ctx context.Context, b *wire.Binding) error {
	return h.admit(ctx, "/bindings/", string(b.BindingRef), b)
}

func (h *External) admit(ctx context.Context, path, ref string, doc any) error {
	body, err := encode(doc)
	if err != nil {
		return err
	}
	_, err = h.call(ctx, http.MethodPut, path+url.PathEscape(ref), h.OperatorToken, body, nil)
	return err
}

// Setup admits h.Profile and h.Binding.
func (h *External) Setup(ctx context.Context) error {
	if err := h.AdmitProfile(ctx, h.Profile); err != nil {
		return err
	}
	return h.AdmitBinding(ctx, h.Binding)
}

// DisableProfile withdraws a profile, RevokeBinding a binding.
func (h *External) DisableProfile(ctx context.Context, ref wire.ProfileRef) error {
	_, err := h.call(ctx, http.MethodDelete, "/profiles/"+url.PathEscape(string(ref)), h.OperatorToken, nil, nil)
	return err
}

// RevokeBinding is DisableProfile for a binding.
func (h *External) RevokeBinding(ctx context.Context, ref wire.BindingRef) error {
	_, err := h.call(ctx, http.MethodDelete, "/bindings/"+url.PathEscape(string(ref)), h.OperatorToken, nil, nil)
	return err
}

// Inspect asks how a turn stands: its outcome once it has ended, and nil before. raw is what the server
// said. A turn that is not known is a [*Problem] of status 404.
func (h *External) Inspect(ctx context.Context, ref wire.TurnRef) (outcome *wire.Outcome, raw []byte, err error) {
	raw, err = h.call(ctx, http.MethodGet, "/turns/"+url.PathEscape(string(ref)), h.Token, nil, nil)
	if err != nil {
		return nil, raw, err
	}
	if kind, _ := wire.DocumentOf(raw); kind != wire.TurnOutcomeV1 {
		return nil, raw, nil
	}
	outcome, err = wire.ParseOutcome(raw)
	return outcome, raw, err
}

// Cancel asks for a turn to end, and returns the server's word: acknowledged, pending or unknown. For a
// turn that is not known the error is a [*Problem] of status 404 as well.
func (h *External) Cancel(ctx context.Context, ref wire.TurnRef) (string, error) {
	var answer struct {
		Cancellation string `json:"cancellation"`
	}
	_, err := h.call(ctx, http.MethodPost, "/turns/"+url.PathEscape(string(ref))+"/cancel", h.Token, nil, &answer)
	return answer.Cancellation, err
}

// CloseSession ends the session of a binding, and returns the server's word: closed, pending or unknown.
// For a binding that never had one the error is a [*Problem] of status 404 as well.
func (h *External) CloseSession(ctx context.Context, ref wire.BindingRef) (string, error) {
	var answer struct {
		Session string `json:"session"`
	}
	_, err := h.call(ctx, http.MethodDelete, "/bindings/"+url.PathEscape(string(ref))+"/session", h.Token, nil, &answer)
	return answer.Session, err
}

// Product fetches what a turn produced. A product whose digests do not verify is an error.
func (h *External) Product(ctx context.Context, ref wire.ProductRef) (*wire.Product, string, error) {
	var answer struct {
		Product json.RawMessage `json:"product"`
		Content string          `json:"content"`
	}
	if _, err := h.call(ctx, http.MethodGet, "/products/"+url.PathEscape(string(ref)), h.Token, nil, &answer); err != nil {
		return nil, "", err
	}
	p, err := wire.ParseProduct(answer.Product)
	if err != nil {
		return nil, "", err
	}
	if digest, err := wire.DigestWithout(answer.Product, "product/digest"); err != nil || digest != p.ProductDigest {
		return nil, "", fmt.Errorf("product/digest is %s, expected %s (%w)", p.ProductDigest, digest, err)
	}
	if digest := wire.ContentDigest([]byte(answer.Content)); digest != p.ContentDigest {
		return nil, "", fmt.Errorf("content/digest is %s, expected %s", p.ContentDigest, digest)
	}
	return p, answer.Content, nil
}

// An ExternalStream is a server's answer to one turn request. It is for one goroutine.
type ExternalStream struct {
	// Status is the HTTP status: 200 where the answer is a stream of events.
	Status int
	// Header is the response's header.
	Header http.Header
	// Sent is when the request was sent; arrival times count from it.
	Sent time.Time

	body    io.ReadCloser
	limit   int
	cancel  context.CancelFunc
	profile *wire.Profile
	walked  bool
	raw     []byte
}

// An ExternalEvent is one line of a stream.
type ExternalEvent struct {
	wire.Event
	// Line is the line's number, from 1; empty lines count.
	Line int
	// Raw is the line as it came, without its end. It belongs to the receiver.
	Raw []byte
	// At is when it was read, counted from [ExternalStream.Sent].
	At time.Duration
	// Err is a [*ProtocolError] if the line is no event, or one in a wrong place; reading goes on.
	Err error
}

// Close ends the stream: a host that goes away, which ends no turn.
func (s *ExternalStream) Close() error {
	s.cancel()
	return s.body.Close()
}

// Events walks the events as they arrive. An event that breaks the protocol is handed out with its Err,
// and reading goes on. The last pair may be an error: of the connection, a [*ndjson.LineTooLongError], a
// [*Problem] where the answer is no stream, or a [*ProtocolError] if the stream ended too early. The
// sequence can be walked once, and closes the stream when it ends or is left.
//
// The stream of a request that continues a turn begins with any number; order is held from there on.
func (s *ExternalStream) Events() iter.Seq2[ExternalEvent, error] {
	return func(yield func(ExternalEvent, error) bool) {
		if s.walked {
			yield(ExternalEvent{}, errors.New("testhost: a stream can be walked once"))
			return
		}
		s.walked = true
		defer func() { _ = s.Close() }() // read to its end, or given up
		if s.Status != http.StatusOK {
			body, err := io.ReadAll(io.LimitReader(s.body, maxAnswer))
			if err == nil {
				err = problemOf(s.Status, body)
			}
			yield(ExternalEvent{}, err)
			return
		}
		grammar := wire.Grammar{Profile: s.profile}
		first := true
		last := 0
		for line, err := range ndjson.Lines(s.body, s.limit) {
			if err != nil {
				yield(ExternalEvent{}, fmt.Errorf("read the answer: %w", err))
				return
			}
			last = line.Number
			e := ExternalEvent{Line: line.Number, Raw: bytes.Clone(line.Data), At: time.Since(s.Sent)}
			s.raw = append(append(s.raw, e.Raw...), '\n')
			if parsed, err := wire.ParseEvent(e.Raw); err != nil {
				e.Err = &ProtocolError{line.Number, err}
			} else {
				e.Event = *parsed
				if first {
					grammar.After = parsed.SeqNo - 1
				}
				first = false
				for _, v := range grammar.Next(parsed, len(e.Raw)) {
					e.Err = &ProtocolError{line.Number, errors.New(v.String())}
				}
			}
			if !yield(e, nil) {
				return
			}
		}
		if missing := grammar.End(); len(missing) > 0 {
			yield(ExternalEvent{}, &ProtocolError{last + 1, fmt.Errorf("the answer ended early: expected %s", missing[0].Expected)})
		}
	}
}

// An ExternalAnswer is a whole stream.
type ExternalAnswer struct {
	// Status is the HTTP status.
	Status int
	// Events are all events, in their order, and Raw their lines, for comparing with another answer.
	Events []ExternalEvent
	Raw    string
	// Content is what the product candidates say, joined.
	Content string
	// Asked are the tool requests and operator questions.
	Asked []wire.Event
	// Outcome is the event that ended the turn; nil where the stream ended before, as that of a turn which
	// awaits an observation does.
	Outcome *wire.Event
}

// Ended is how the turn ended and why: "completed/completed". It is empty where it has not.
func (a *ExternalAnswer) Ended() string {
	if a.Outcome == nil {
		return ""
	}
	return string(a.Outcome.Status) + "/" + string(a.Outcome.ReasonCode)
}

// Answer walks the stream to its end. The error is the first thing that was wrong: with the protocol or
// the connection, or a [*Problem]. A turn that was refused or has failed is none. The answer holds what
// came, also with an error.
func (s *ExternalStream) Answer() (*ExternalAnswer, error) {
	a := &ExternalAnswer{Status: s.Status}
	var firstErr error
	for e, err := range s.Events() {
		if err == nil {
			a.add(e)
			err = e.Err
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	a.Raw = string(s.raw)
	return a, firstErr
}

func (a *ExternalAnswer) add(e ExternalEvent) {
	a.Events = append(a.Events, e)
	switch e.Kind {
	case wire.EventProductCandidate:
		a.Content += e.Content
	case wire.EventToolRequest, wire.EventOperatorQuestion:
		a.Asked = append(a.Asked, e.Event)
	case wire.EventTurnOutcome:
		a.Outcome = &e.Event
	}
}

// Run sends a request and walks its stream to the end.
func (h *External) Run(ctx context.Context, r *wire.TurnRequest) (*ExternalAnswer, error) {
	s, err := h.Turn(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.Answer()
}
