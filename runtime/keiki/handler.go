package keiki

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"unsafe"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// The headers of a signed request.
const (
	SignatureHeader = "Keiki-Signature"
	TurnIDHeader    = "Keiki-Turn-Id"
	TokenHeader     = "Keiki-Turn-Token"
)

// A Handler takes signed requests: turns, arrivals and cancellations. It looks at method, headers and body,
// not at the path. Its methods may be called from several goroutines.
type Handler struct {
	conf PushConfig
	body wirehttp.Body
	run  *runner
	log  *slog.Logger
}

var _ http.Handler = (*Handler)(nil)

// New returns the handler of one endpoint, or an error that names every wrong field of conf.
func New(conf PushConfig) (*Handler, error) {
	var errs []error
	conf.check(collect(&errs))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	body := wirehttp.Body{MaxBytes: conf.MaxBody, Timeout: conf.BodyTimeout, AsSent: true}
	return &Handler{conf: conf, body: body.WithDefaults(), run: newRunner(conf.Config), log: conf.Logger}, nil
}

// Drain refuses new turns from now on and waits for the running ones, their completions included. When ctx
// is done what is left ends as failed, with one short try to tell the platform; Drain then returns why ctx
// was done. It drains the engine, and may be called several times.
func (h *Handler) Drain(ctx context.Context) error { return h.run.drain(ctx) }

// Wait waits until every goroutine of the handler has ended, those of adapters that were abandoned too. It
// is for tests, after Drain.
func (h *Handler) Wait() { h.run.tasks.Wait() }

// A failure is a request that is not taken.
type failure struct {
	status  int
	code    string
	message string
	retry   int  // seconds for Retry-After; 0 for none
	closing bool // the connection is of no use any more, since the body was not read to its end
}

func fail(status int, code, format string, args ...any) *failure {
	return &failure{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// ServeHTTP takes one signed request. The order of the checks is keiki.md's, "Push".
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := h.serve(w, r)
	if f == nil {
		return
	}
	h.conf.Engine.Refuse(r.Context(), adapters.Keiki, f.code)
	h.log.DebugContext(r.Context(), "request refused", "protocol", string(adapters.Keiki), "status", f.status, "code", f.code)
	if f.closing {
		w.Header().Set("Connection", "close")
	}
	if f.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retry))
	}
	if f.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = f.code, f.message
	b, err := json.Marshal(body)
	if err != nil {
		b = []byte(`{"error":{"code":"internal","message":""}}`)
	}
	reply(w, f.status, b)
}

// reply answers with JSON. The platform is told, or it is gone; what was accepted runs in any case.
func reply(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	wirehttp.Answer(w, status, body)
}

// unread says that a request is refused before its body is read.
func (f *failure) unread(r *http.Request) *failure {
	f.closing = r.ContentLength != 0 && r.ProtoMajor < 2 // over HTTP/2 other requests share the connection
	return f
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) *failure {
	h.body.Bound(w, r)
	if r.Method != http.MethodPost {
		return fail(http.StatusMethodNotAllowed, "method_not_allowed", "Signed requests are sent with POST.").unread(r)
	}
	if !h.conf.Secrets.IsSet() {
		return fail(http.StatusServiceUnavailable, "signing_secret_missing", "No signing secret is configured: set the agent's whsec_ secret.").unread(r)
	}
	body, f := h.readBody(w, r)
	if f != nil {
		return f
	}
	secrets, f := h.verify(r, body)
	if f != nil {
		return f
	}
	req, err := wire.ParseRequest(body)
	if err != nil {
		return badRequest(err)
	}
	id := req.TurnID()
	switch header := r.Header.Get(TurnIDHeader); {
	case header == "":
		return fail(http.StatusBadRequest, "turn_id_missing", "The header %s is missing.", TurnIDHeader)
	case header != id:
		return fail(http.StatusBadRequest, "turn_id_mismatch", "The header %s names another turn than the body.", TurnIDHeader)
	}
	switch req.Kind {
	case wire.KindTurn:
		return h.turn(w, r, req.Turn, body, secrets)
	case wire.KindArrival:
		return h.arrival(w, req.Arrival)
	default:
		return h.cancelled(w, req.Cancelled)
	}
}

// verify finds the secrets for a body and checks its signature.
func (h *Handler) verify(r *http.Request, body []byte) ([]secret.Text, *failure) {
	secrets := h.conf.Secrets.Any
	if len(h.conf.Secrets.Agents) > 0 {
		agent, ok := wire.AgentID(body)
		if ok {
			secrets = h.conf.Secrets.Find(agent)
		}
		if !ok || len(secrets) == 0 {
			return nil, fail(http.StatusUnauthorized, "unknown_agent", "No signing secret is configured for this agent.")
		}
	}
	err := Verify(strings.Join(r.Header.Values(SignatureHeader), ","), body, secrets, h.conf.Now(), h.conf.Tolerance)
	if err == nil {
		return secrets, nil
	}
	var bad *SignatureError
	if !errors.As(err, &bad) {
		return nil, fail(http.StatusUnauthorized, "signature_mismatch", "The signature does not match.")
	}
	return nil, fail(http.StatusUnauthorized, string(bad.Code), "%s", bad.Error())
}

// maxComplaint is the longest text about a bad body, in bytes.
const maxComplaint = 500

// badRequest says what is wrong with a body whose signature holds.
func badRequest(err error) *failure {
	var bad *wire.Error
	if errors.As(err, &bad) {
		text := bad.Message
		if bad.Pointer != "" {
			text = bad.Pointer + ": " + text
		}
		if len(text) > maxComplaint { // keys may be of any length
			text = strings.ToValidUTF8(text[:maxComplaint], "") + "…"
		}
		return fail(http.StatusBadRequest, string(bad.Code), "%s", text)
	}
	return fail(http.StatusBadRequest, "invalid_request", "The body is not a request of Keiki's.")
}

func (h *Handler) turn(w http.ResponseWriter, r *http.Request, turn *wire.Turn, body []byte, secrets []secret.Text) *failure {
	if f := checkOrigins(turn.Links, h.run.pin); f != nil {
		return f
	}
	creds := &credentials{token: secret.Text(r.Header.Get(TokenHeader))}
	if creds.token == "" {
		creds.sign = newBearer(secrets[0], strings.Clone(turn.AgentID), strings.Clone(turn.TurnID))
	}
	// body belongs to nobody else, and is not changed.
	t, err := h.run.begin(r.Context(), assignment{turn: turn, raw: unsafe.String(unsafe.SliceData(body), len(body)), creds: creds})
	switch {
	case err == nil:
		reply(w, http.StatusAccepted, accepted(turn.TurnID, 0, false))
	case errors.Is(err, errDuplicate):
		_ = t
		h.conf.Engine.Refuse(r.Context(), adapters.Keiki, "duplicate")
		reply(w, http.StatusOK, accepted(turn.TurnID, 0, true))
	default:
		return startFailure(err)
	}
	return nil
}

// startFailure says why a turn was not started.
func startFailure(err error) *failure {
	busy := func(retry int, code, text string) *failure {
		f := fail(http.StatusServiceUnavailable, code, "%s", text)
		f.retry = retry
		return f
	}
	switch {
	case errors.Is(err, errNoAdapter):
		return fail(http.StatusNotFound, "no_adapter", "No adapter answers for this agent.")
	case errors.Is(err, errID):
		return fail(http.StatusBadRequest, string(wire.CodeInvalidRequest), "turnId or agentId is longer than %d bytes, or has a NUL in it.", ledger.MaxName)
	case errors.Is(err, runtime.ErrDraining):
		return busy(5, "draining", "The server is shutting down: send the turn again in a moment.")
	case errors.Is(err, runtime.ErrSessionBusy):
		return busy(1, "conversation_busy", "Another turn of this conversation is running: send the turn again when it has ended.")
	case errors.Is(err, runtime.ErrAtCapacity):
		return busy(1, "at_capacity", "The server runs as many turns as it may: send the turn again in a moment.")
	}
	return busy(5, "store_unavailable", "The server cannot record turns at the moment: send the turn again.")
}

// accepted is the body of an answer to what was taken.
func accepted(turnID string, sequence int64, duplicate bool) []byte {
	b := append(make([]byte, 0, 96+len(turnID)), `{"accepted":true,"turnId":`...)
	b = wire.AppendString(b, turnID)
	if sequence > 0 {
		b = strconv.AppendInt(append(b, `,"sequence":`...), sequence, 10)
	}
	if duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	return append(b, '}')
}

func (h *Handler) arrival(w http.ResponseWriter, a *wire.Arrival) *failure {
	t := h.run.find(a.AgentID, a.TurnID)
	if a.Links != (wire.Links{}) {
		home := h.run.pin
		if t != nil {
			home, _ = parseOrigin(t.links.APIBase) // it was read when the turn came
		}
		if f := checkOrigins(a.Links, home); f != nil {
			return f
		}
	}
	notRunning := fail(http.StatusConflict, "turn_not_running", "This turn is not running here, so it takes no arrivals.")
	if t == nil || t.ended() != notEnded {
		return notRunning
	}
	switch t.receive(a.Sequence, a.Messages) {
	case received:
		reply(w, http.StatusAccepted, accepted(a.TurnID, a.Sequence, false))
	case repeated:
		reply(w, http.StatusOK, accepted(a.TurnID, a.Sequence, true))
	case notTaken:
		return fail(http.StatusConflict, "arrivals_not_taken", "The agent takes no messages while a turn runs.")
	case tooMany:
		f := fail(http.StatusServiceUnavailable, "too_many_arrivals", "Too many arrivals wait for the agent.")
		f.retry = 1
		return f
	default:
		return notRunning
	}
	return nil
}

func (h *Handler) cancelled(w http.ResponseWriter, c *wire.Cancelled) *failure {
	running := false
	if t := h.run.find(c.AgentID, c.TurnID); t != nil {
		running = true
		t.end(endCancelled, nil)
	}
	b := append(append([]byte(nil), `{"cancelled":`...), strconv.FormatBool(running)...)
	b = wire.AppendString(append(b, `,"turnId":`...), c.TurnID)
	reply(w, http.StatusOK, append(b, '}'))
	return nil
}

// checkOrigins refuses URLs that would take a credential elsewhere than to home, where that is known.
func checkOrigins(l wire.Links, home origin) *failure {
	err := checkLinks(l.APIBase, l.TurnURL, l.MCPURL, home)
	if err == nil {
		return nil
	}
	var bad *linkError
	if errors.As(err, &bad) {
		return fail(http.StatusBadRequest, bad.code, "%s", bad.message)
	}
	return fail(http.StatusBadRequest, "invalid_url", "The turn's URLs cannot be used.")
}

// bodyCodes are the codes for bodies that are not taken; others have that of a body that is cut.
var bodyCodes = map[string]string{"encoding": "unsupported_encoding", "too-large": "too_large", "slow-body": "slow_body"}

// readBody reads a body as it was signed.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *failure) {
	body, refusal := h.body.Read(w, r)
	if refusal == nil {
		return body, nil
	}
	f := &failure{status: refusal.Status, code: "cut_body", message: refusal.Text, closing: refusal.Closing}
	if code := bodyCodes[refusal.Reason]; code != "" {
		f.code = code
	}
	return nil, f
}
