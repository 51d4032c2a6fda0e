package testhost

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A Lowkey is the host's side of Lowkey's external turn protocol. Its fields are not changed while it
// is in use; its methods may be called from several goroutines.
type Lowkey struct {
	// URL is where turns are posted: the endpoint of the plugin's manifest.
	URL string
	// PluginID is what turns name as their plugin.
	PluginID string
	// Token is sent as a bearer token, if there is one. (Lowkey itself sends none in version 1.)
	Token string
	// Client sends the requests; nil means one that follows no redirect, keeps to HTTP/1.1, and has no
	// time limit. Whoever wants to close its idle connections brings one.
	Client *http.Client
	// LineLimit is the longest line that is accepted, in bytes; 0 means 8 MiB.
	LineLimit int
}

// defaultClient does what a host does: no redirects, since a POST would lose its body, and no
// compression, which would hold events back.
var defaultClient = &http.Client{
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// CloseIdleConnections closes what the default client keeps open between turns, so that a program or a
// test ends without goroutines of it.
func CloseIdleConnections() { defaultClient.CloseIdleConnections() }

// Request makes a request with this message that a server accepts: the first turn of a session of its
// own, with fresh ids and an empty window.
func (h *Lowkey) Request(message string) wire.Request {
	return NewConversation(h).Request(message)
}

// Turn posts one turn. What r lacks of protocolVersion and pluginId is filled in; everything else is
// sent as it is, right or wrong. The error is one of the connection: a refusal is a [Stream] too, with
// another status. The caller walks the stream to its end or closes it. ctx holds for the whole stream:
// cancelling it is the host going away.
func (h *Lowkey) Turn(ctx context.Context, r wire.Request) (*Stream, error) {
	if r.ProtocolVersion == 0 {
		r.ProtocolVersion = wire.ProtocolVersion
	}
	if r.PluginID == "" {
		r.PluginID = h.PluginID
	}
	if r.TranscriptWindow == nil {
		r.TranscriptWindow = []wire.WindowEntry{} // null is a type error
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return h.Post(ctx, body.Bytes(), nil)
}

// Post is Turn for a body made by hand. The fields of header, which may be nil, replace those that are
// sent otherwise; a nil value leaves one out.
func (h *Lowkey) Post(ctx context.Context, body []byte, header http.Header) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token)
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
	sent := time.Now()
	resp, err := client.Do(req) //nolint:bodyclose // the stream has it, and closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return &Stream{
		Status: resp.StatusCode,
		Header: resp.Header,
		Sent:   sent,
		body:   resp.Body,
		limit:  h.LineLimit,
		cancel: cancel,
	}, nil
}

// newID makes an id that has not been used before.
func newID(kind string) string { return kind + "-" + rand.Text() }
