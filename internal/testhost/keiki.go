package testhost

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// What follows plays Keiki, the platform, as external-harness.md of its documentation and keiki.md have it.
// It shares no code with runtime/keiki or schema/keiki: what one side writes the other one reads, and a
// mistake would have to be made twice to go unseen.
//
//	keiki.go          the platform as a whole: configuration, addresses, secrets, life
//	keiki_sign.go     signatures, credentials, bearers
//	keiki_turn.go     a turn from its dispatch to its outcome
//	keiki_push.go     what is sent to the app
//	keiki_queue.go    relay and inbox
//	keiki_api.go      the turn API: what the app sends
//	keiki_faults.go   what goes wrong on purpose
//	keiki_rules.go    what an app may not do
//	keiki_record.go   what was seen

// A KeikiConfig tunes a [Keiki]. The zero value is a platform that pushes nowhere: URL of the app and of
// the platform itself can also be set later.
type KeikiConfig struct {
	// URL is the origin at which the platform is reached, as in http://127.0.0.1:8790; [Keiki.Listen]
	// and [Keiki.SetURL] set it too.
	URL string
	// BasePath is the path below which the API is served; empty means /api/v1.
	BasePath string
	// DispatchURL is where turns are pushed: the app's endpoint. [Keiki.SetDispatchURL] sets it too.
	DispatchURL string
	// Mode is how turns reach the app where they do not say themselves; empty means [KeikiPushMode].
	Mode KeikiMode
	// AgentID is the agent of turns that name none; empty means agent-1.
	AgentID string
	// Secrets are the signing secrets of agents: the first one signs, all of them verify credentials.
	// An agent without an entry has one minted when it is first needed; one with an empty list has none.
	Secrets map[string][]string
	// APIKey is the harness API key of AgentID; empty means a minted one. See [Keiki.APIKey].
	APIKey string
	// StreamPath is where below a turn's URL text is streamed to; empty means stream.
	StreamPath string
	// ResultPath is where below the base path a relay reports, with {id} for the turn's id; empty means
	// harness/turns/{id}/result.
	ResultPath string
	// Timeout is a turn's time until its deadline; 0 means ten minutes.
	Timeout time.Duration
	// Lease is how long a claim of the inbox holds before it must be refreshed, and how long a relay has
	// to report before a turn is offered again; 0 means a minute.
	Lease time.Duration
	// RotateOnRefresh gives out another turn token with each refresh of a lease; the one before is
	// refused from then on.
	RotateOnRefresh bool
	// NestedClaims gives inbox turns as {"turn":{"turn":{…},"turnToken":…}} instead of all on one level.
	NestedClaims bool
	// Recent is how long ago the inbox may have been polled for held-back turns to be queued in it; 0
	// means a minute.
	Recent time.Duration
	// Errors is the shape of error bodies.
	Errors KeikiErrorShape
	// Attempts is how often an arrival is pushed before it counts as rejected, and Backoff the pause
	// before the second attempt, doubled for each further one; 0 means 3, and 200 ms.
	Attempts int
	Backoff  time.Duration
	// PushTimeout is how long the app has for its answer to a push; 0 means ten seconds.
	PushTimeout time.Duration
	// History is how many entries of a conversation are remembered and sent along with turns that bring
	// no history of their own; 0 means none.
	History int
	// InFlight is how long after the app has acknowledged a cancellation, or has been told that a lease
	// is lost, a request may still arrive that it had sent before. 0 is right where the app was at rest.
	InFlight time.Duration
	// Keep bounds what is remembered: the number of turns that have ended, of requests, and of
	// conversations at rest; 0 means 20,000. Turns and requests take no more than 64 MiB or so each.
	Keep int
	// Client sends pushes; nil means one of its own that follows no redirect.
	Client *http.Client
	// Now is the clock that stamps, signatures, credentials, deadlines and leases are made with and
	// checked by; nil means time.Now. Timers run by the real one.
	Now func() time.Time

	// Fault says what goes wrong with a request to the API; n counts them from 1. It is called once for
	// each, by several goroutines at once, and may read the request's body. nil means nothing.
	Fault func(r *http.Request, n int) KeikiFault
	// Deliver is called once for each message that is to be delivered, before its sender is answered. An
	// error is a delivery error: the sender gets 502, and whether the contact has the message is unknown.
	// nil delivers everything. It may call the platform's methods.
	Deliver func(KeikiDelivery) error
	// OnOutcome is called for each turn that has ended, OnViolation for each violation, OnRequest for
	// each request that has been answered; nil means nobody. They may be called by several goroutines at
	// once, and may call the platform's methods.
	OnOutcome   func(KeikiOutcome)
	OnViolation func(KeikiViolation)
	OnRequest   func(KeikiRequest)
}

// A KeikiMode is how turns reach the app.
type KeikiMode string

// The modes of a harness.
const (
	KeikiPushMode  KeikiMode = "push"
	KeikiRelayMode KeikiMode = "relay"
	KeikiInboxMode KeikiMode = "inbox"
)

// A Keiki is a platform: an http.Handler of the turn API, the harness queue and the inbox, and what makes
// turns and sends them. All of its methods may be called from several goroutines.
type Keiki struct {
	cfg   KeikiConfig
	ctx   context.Context // ends with Close: held polls, delays, pushes under way
	stop  context.CancelFunc
	wg    sync.WaitGroup
	httpd *http.Server // of Listen

	mu        sync.Mutex // holds for everything below, and for what it points to
	later     []func()   // callbacks to make once mu is free
	closed    bool
	url       string
	dispatch  string
	agents    map[string]*keikiAgent
	apiKeys   map[digest]*keikiAgent
	turns     map[string]*keikiTurn
	tokens    map[digest]*keikiTurn // also those that were rotated
	ended     []*keikiTurn          // oldest first
	endedSize int                   // of what they hold, in bytes
	queue     []*keikiTurn          // of relay and inbox, in order of arrival
	convs     map[convKey]*keikiConv
	seq       int // numbers requests
	log       []*keikiLogged
	logBytes  int
	violated  []KeikiViolation
	changed   chan struct{} // closed at the next change; nil while nobody waits
	queued    chan struct{} // closed when something may be claimed
	messageNo int
}

type keikiAgent struct {
	id      string
	secrets []string
	signers []string // nil: the first of secrets
	apiKey  string
	polled  time.Time // the inbox, last
}

type convKey struct{ agent, conversation string }

// A keikiConv is what outlives the turns of a conversation.
type keikiConv struct {
	active  *keikiTurn // the last one that was begun and has not ended
	pending []KeikiMessage
	history []KeikiEntry
}

const (
	maxKeikiBody     = 1 << 20  // of a request to the API
	maxKeikiOpen     = 200_000  // turns that have not ended
	maxKeikiMessages = 10_000   // of one turn
	maxKeikiLog      = 64 << 20 // bytes of requests
	maxKeikiEnded    = 64 << 20 // bytes of turns that have ended
	maxKeikiViolated = 1_000
)

// NewKeiki makes a platform. Close it.
func NewKeiki(cfg KeikiConfig) (*Keiki, error) {
	var wrong []error
	setDefault(&cfg.BasePath, "/api/v1")
	setDefault(&cfg.Mode, KeikiPushMode)
	setDefault(&cfg.AgentID, "agent-1")
	setDefault(&cfg.APIKey, "sk_test_"+rand.Text())
	setDefault(&cfg.StreamPath, "stream")
	setDefault(&cfg.ResultPath, "harness/turns/{id}/result")
	setDefault(&cfg.Timeout, 10*time.Minute)
	setDefault(&cfg.Lease, time.Minute)
	setDefault(&cfg.Recent, time.Minute)
	setDefault(&cfg.Errors, KeikiErrorNested)
	setDefault(&cfg.Attempts, 3)
	setDefault(&cfg.Backoff, 200*time.Millisecond)
	setDefault(&cfg.PushTimeout, 10*time.Second)
	setDefault(&cfg.Keep, 20_000)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{
			Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if !strings.HasPrefix(cfg.BasePath, "/") || strings.HasSuffix(cfg.BasePath, "/") {
		wrong = append(wrong, fmt.Errorf("%q is no BasePath: expected one like /api/v1", cfg.BasePath))
	}
	if !cfg.Mode.valid() {
		wrong = append(wrong, fmt.Errorf("%q is no Mode: expected push, relay or inbox", cfg.Mode))
	}
	if !strings.HasPrefix(cfg.APIKey, "sk_") {
		wrong = append(wrong, errors.New("the APIKey does not begin with sk_"))
	}
	if !strings.Contains(cfg.ResultPath, "{id}") {
		wrong = append(wrong, fmt.Errorf("%q is no ResultPath: expected one with {id}", cfg.ResultPath))
	}
	for name, d := range map[string]time.Duration{
		"Timeout": cfg.Timeout, "Lease": cfg.Lease, "Recent": cfg.Recent, "Backoff": cfg.Backoff, "PushTimeout": cfg.PushTimeout, "InFlight": cfg.InFlight,
	} {
		if d < 0 {
			wrong = append(wrong, fmt.Errorf("%s is negative", name))
		}
	}
	if cfg.Attempts < 0 || cfg.Keep < 0 || cfg.History < 0 {
		wrong = append(wrong, errors.New("one of Attempts, Keep and History is negative"))
	}
	k := &Keiki{
		cfg:    cfg,
		agents: map[string]*keikiAgent{}, apiKeys: map[digest]*keikiAgent{},
		turns: map[string]*keikiTurn{}, tokens: map[digest]*keikiTurn{}, convs: map[convKey]*keikiConv{},
		queued: make(chan struct{}),
	}
	if cfg.URL != "" {
		wrong = append(wrong, k.SetURL(cfg.URL))
	}
	if cfg.DispatchURL != "" {
		wrong = append(wrong, k.SetDispatchURL(cfg.DispatchURL))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("testhost: %w", err)
	}
	for agent, secrets := range cfg.Secrets {
		k.SetSecrets(agent, secrets...)
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (m KeikiMode) valid() bool {
	return m == KeikiPushMode || m == KeikiRelayMode || m == KeikiInboxMode
}

// Listen serves the platform at an address, such as 127.0.0.1:0, until it is closed, and returns the
// origin at which it is reached. It may be called once.
func (k *Keiki) Listen(address string) (string, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: k, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.httpd != nil || k.closed {
		_ = l.Close() // nobody has used it
		return "", errors.New("testhost: the platform listens already, or is closed")
	}
	k.httpd = server
	if k.url == "" {
		k.url = "http://" + l.Addr().String()
	}
	k.wg.Go(func() { _ = server.Serve(l) }) // always fails, when it is closed
	return "http://" + l.Addr().String(), nil
}

// Close ends the platform: turns that have not ended stay so, held polls are answered, pushes under way
// break off. It returns when no goroutine is left; those of an http.Server around it are its owner's.
func (k *Keiki) Close() {
	k.mu.Lock()
	server := k.httpd
	k.closed = true
	for _, t := range k.turns {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
	k.mu.Unlock()
	k.stop()
	if server != nil {
		_ = server.Close() // what is cut off is meant to be
	}
	k.wg.Wait()
	k.cfg.Client.CloseIdleConnections()
}

// SetURL sets the origin at which the platform is reached, for turns that are made from now on.
func (k *Keiki) SetURL(origin string) error {
	u, err := absolute(origin)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.url = strings.TrimSuffix(u, "/")
	return nil
}

// SetDispatchURL sets where the app is from now on.
func (k *Keiki) SetDispatchURL(app string) error {
	u, err := absolute(app)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dispatch = u
	return nil
}

func absolute(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fmt.Errorf("%q is no URL like http://127.0.0.1:8790", raw)
	}
	return raw, nil
}

// APIBase is the root of the API: the origin with the base path. It is empty while the origin is not known.
func (k *Keiki) APIBase() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apiBase()
}

func (k *Keiki) apiBase() string {
	if k.url == "" {
		return ""
	}
	return k.url + k.cfg.BasePath
}

// KeikiLinks are the URLs that a turn is given.
type KeikiLinks struct {
	APIBase string `json:"apiBase,omitempty"`
	TurnURL string `json:"turnUrl,omitempty"`
	MCPURL  string `json:"mcpUrl,omitempty"`
}

// Links are the URLs of a turn, known or not.
func (k *Keiki) Links(turnID string) KeikiLinks {
	base := k.APIBase()
	return KeikiLinks{APIBase: base, TurnURL: base + "/turns/" + url.PathEscape(turnID), MCPURL: base + "/harness/mcp"}
}

// agent finds or makes an agent. k.mu is held.
func (k *Keiki) agent(id string) *keikiAgent {
	a := k.agents[id]
	if a == nil {
		a = &keikiAgent{id: id, secrets: []string{mintSecret()}, apiKey: "sk_test_" + rand.Text()}
		if id == k.cfg.AgentID {
			a.apiKey = k.cfg.APIKey
		}
		k.agents[id] = a
		k.apiKeys[digestOf(a.apiKey)] = a
	}
	return a
}

func mintSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(b[:])
}

// APIKey is an agent's harness API key, for relays and inbox pollers; the empty id means the configured agent.
func (k *Keiki) APIKey(agentID string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.agent(k.orDefault(agentID)).apiKey
}

func (k *Keiki) orDefault(agentID string) string {
	if agentID == "" {
		return k.cfg.AgentID
	}
	return agentID
}

// Secrets are an agent's signing secrets, the one that signs first; the empty id means the configured agent.
func (k *Keiki) Secrets(agentID string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.agent(k.orDefault(agentID)).secrets)
}

// SetSecrets replaces an agent's secrets: the first one signs, all of them verify credentials. Without
// any, nothing can be pushed.
func (k *Keiki) SetSecrets(agentID string, secrets ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.agent(k.orDefault(agentID))
	a.secrets, a.signers = slices.Clone(secrets), nil
}

// SetSigners says with which secrets an agent's requests are signed: one v1 each, in this order. They
// need not be secrets of the agent's. None means the first of its own.
func (k *Keiki) SetSigners(agentID string, secrets ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.agent(k.orDefault(agentID)).signers = slices.Clone(secrets)
}

// Rotate mints another secret for an agent and signs with it and with the one before, until [Keiki.Retire].
func (k *Keiki) Rotate(agentID string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.agent(k.orDefault(agentID))
	a.secrets = slices.Insert(a.secrets, 0, mintSecret())
	a.signers = slices.Clone(a.secrets[:min(2, len(a.secrets))])
	return a.secrets[0]
}

// Retire ends a rotation: of the agent's secrets the first alone stays.
func (k *Keiki) Retire(agentID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.agent(k.orDefault(agentID))
	a.secrets, a.signers = a.secrets[:min(1, len(a.secrets))], nil
}

// signers are the secrets that sign for an agent now; none where it has none.
func (k *Keiki) signers(agentID string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.agent(agentID)
	if len(a.signers) > 0 {
		return slices.Clone(a.signers)
	}
	return slices.Clone(a.secrets[:min(1, len(a.secrets))])
}

// lock and unlock hold k.mu where what is done may have to be told; it is told once k.mu is free.
func (k *Keiki) lock() { k.mu.Lock() }

func (k *Keiki) unlock() {
	later := k.later
	k.later = nil
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	k.mu.Unlock()
	for _, f := range later {
		f()
	}
}

// Until returns when what cond says is so; it looks again after each change. The error is that of ctx, or
// that the platform was closed. cond may call the platform's methods.
func (k *Keiki) Until(ctx context.Context, cond func() bool) error {
	for {
		k.mu.Lock()
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-k.ctx.Done():
			return errKeikiClosed
		}
	}
}

var errKeikiClosed = errors.New("testhost: the platform is closed")

// conv finds or makes a conversation. k.mu is held.
func (k *Keiki) conv(agentID, conversationID string) *keikiConv {
	key := convKey{agentID, conversationID}
	c := k.convs[key]
	if c == nil {
		if len(k.convs) >= k.cfg.Keep {
			for old, c := range k.convs { // any that is at rest
				if c.active == nil {
					delete(k.convs, old)
					break
				}
			}
		}
		c = &keikiConv{}
		k.convs[key] = c
	}
	return c
}

// rest forgets a conversation that has nothing to remember. k.mu is held.
func (k *Keiki) rest(agentID, conversationID string) {
	key := convKey{agentID, conversationID}
	if c := k.convs[key]; c != nil && c.active == nil && len(c.pending) == 0 && len(c.history) == 0 {
		delete(k.convs, key)
	}
}
