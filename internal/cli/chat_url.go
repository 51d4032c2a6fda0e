package cli

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/plugin"
)

// A serverURL is what chat was given.
type serverURL struct {
	base  string // what /manifest.json is looked up below; empty where that cannot be told
	turns string // where turns are posted
	open  bool   // turns may be a base instead: the manifest tells
}

func parseServerURL(s string) (*serverURL, error) {
	text := s
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, usagef("%q is not the URL of a server: want an absolute http or https URL, such as http://%s", s, plugin.DefaultListen)
	case u.User != nil:
		return nil, usagef("the URL has a user name or password in it: give a token with --token-file instead")
	case u.Fragment != "":
		return nil, usagef("the URL has a fragment (#…), which no server is sent: leave it out")
	}
	path := strings.TrimRight(u.Path, "/")
	if prefix, ok := strings.CutSuffix(path, plugin.DefaultTurnPath); ok {
		base := *u
		base.Path, base.RawPath, base.RawQuery = prefix, "", ""
		return &serverURL{base: base.String(), turns: u.String()}, nil
	}
	at := &serverURL{turns: u.String(), open: true}
	if u.RawQuery == "" && u.RawPath == "" {
		u.Path = path
		at.base = u.String()
		if path == "" {
			at.turns, at.open = at.base+plugin.DefaultTurnPath, false
		}
	}
	return at, nil
}

// find looks for the server's manifest. It returns the plugin's id, and settles whether the URL was a
// base.
func (u *serverURL) find(ctx context.Context) (pluginID string) {
	m := u.fetchManifest(ctx)
	if m == nil {
		return defaultPlugin
	}
	if u.open {
		u.turns, u.open = u.base+plugin.DefaultTurnPath, false
	}
	return m.ID()
}

// fetchManifest returns nil where there is no manifest: the turn itself will tell what is wrong.
func (u *serverURL) fetchManifest(ctx context.Context) *manifest.Manifest {
	if u.base == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.base+"/manifest.json", http.NoBody)
	if err != nil {
		return nil
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	doc, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil
	}
	m, err := manifest.Parse(doc)
	if err != nil || m.ID() == "" {
		return nil
	}
	return m
}

// external is the base of the endpoints of agent.external-runtime.
func (u *serverURL) external() (string, error) {
	at, err := url.Parse(u.turns)
	if err != nil {
		return "", err // it was parsed before
	}
	if at.RawQuery != "" {
		return "", usagef("the URL has a query, which no endpoint of agent.external-runtime takes: leave it out")
	}
	at.RawPath = ""
	at.Path = strings.TrimSuffix(strings.TrimRight(at.Path, "/"), plugin.DefaultTurnPath)
	at.Path = strings.TrimSuffix(at.Path, "/turns")
	at.Path = strings.TrimSuffix(at.Path, plugin.ExternalPath) + plugin.ExternalPath
	return at.String(), nil
}
