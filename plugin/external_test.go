package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backline-dev/backline/adapters"
	echoadapter "github.com/backline-dev/backline/adapters/echo"
	"github.com/backline-dev/backline/adapters/scripted"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/plugin"
	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/schema"
	externalwire "github.com/backline-dev/backline/schema/external"
)

const operatorToken = "operator-0123456789abcdef"

// orbiplex is a host of the same server that speaks agent.external-runtime.
func (h *host) orbiplex(prefix string) *testhost.External {
	profile := testhost.NewProfile("profile:1")
	return &testhost.External{
		URL: "http://" + h.addr + prefix + plugin.ExternalPath, OperatorToken: operatorToken, Client: h.client,
		Profile: profile, Binding: testhost.NewBinding("binding:1", "agent:muse", profile),
	}
}

func startExternal(t *testing.T, conf plugin.Config) (*plugin.Plugin, *host, *testhost.External) {
	t.Helper()
	if conf.External == nil {
		conf.External = &plugin.External{}
	}
	conf.External.OperatorToken = operatorToken
	if conf.Adapter == nil && conf.Adapters == nil {
		conf.Adapter = scripted.New(scripted.Config{})
	}
	p, h := start(t, conf)
	x := h.orbiplex(conf.Prefix)
	if err := x.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, h, x
}

// sent runs a turn of agent.external-runtime to the end of its stream.
func sent(t *testing.T, x *testhost.External, r *externalwire.TurnRequest) *testhost.ExternalAnswer {
	t.Helper()
	a, err := x.Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (h *host) fetch(t *testing.T, path string) (status int, body string) {
	t.Helper()
	res, text := h.get(t, path)
	return res.StatusCode, string(text)
}

// TestBothProtocols: one adapter and one server, whichever platform asks.
func TestBothProtocols(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "/agents"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			t.Parallel()
			protocols := make(chan adapters.Protocol, 2)
			var ends atomic.Int64
			adapter := adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
				protocols <- turn.Protocol
				return echoadapter.New().Run(ctx, turn, w)
			})
			p, h, x := startExternal(t, plugin.Config{
				Adapter: adapter, Prefix: prefix,
				Hooks: []plugin.Hooks{{TurnEnd: func(context.Context, plugin.TurnInfo, *plugin.Outcome) { ends.Add(1) }}},
			})
			h.path = prefix + plugin.DefaultTurnPath
			r, err := h.run(request{message: "over Lowkey"})
			if err != nil {
				t.Fatal(err)
			}
			if text := r.text(); text != "over Lowkey" {
				t.Errorf("over Lowkey: %q", text)
			}
			if a := sent(t, x, x.Request("over Orbiplex")); a.Content != "over Orbiplex" || a.Ended() != "completed/completed" {
				t.Errorf("over Orbiplex: %q, %s", a.Content, a.Ended())
			}
			if first, second := <-protocols, <-protocols; first != adapters.Lowkey || second != adapters.ExternalRuntime || ends.Load() != 2 {
				t.Errorf("the adapter saw %v and %v, and the hook %d ends", first, second, ends.Load())
			}
			if url := p.ExternalURL(h.addr); url != x.URL {
				t.Errorf("ExternalURL = %q, want %q", url, x.URL)
			}
			if stats := p.Stats(); stats.Turns.Total != 2 {
				t.Errorf("Stats = %+v, want 2 turns", stats)
			}

			// Its documents' schemas are those of the package.
			for _, kind := range externalwire.Values[externalwire.Document]() {
				status, body := h.fetch(t, prefix+"/schemas/external-runtime/"+string(kind)+".schema.json")
				if status != 200 || body != string(externalwire.Schema(kind)) {
					t.Errorf("the schema of %s: %d, %.80s", kind, status, body)
				}
			}
			if status, body := h.fetch(t, prefix+"/nowhere"); status != 404 || !strings.Contains(body, prefix+"/external-runtime/turns") {
				t.Errorf("nowhere: %d %s, want to be told where turns go", status, body)
			}
			// A percent-encoded ref gets through the mount as it is.
			if _, _, err := x.Inspect(t.Context(), "turn/with"); err == nil || !strings.Contains(err.Error(), "turn/with") {
				t.Errorf("Inspect of a ref with a slash: %v, want to hear that it is not known", err)
			}
		})
	}
}

// TestWithoutExternal: nothing of it is there.
func TestWithoutExternal(t *testing.T) {
	t.Parallel()
	p, h := start(t, plugin.Config{Adapter: echoadapter.New()})
	for _, path := range []string{"/external-runtime/turns", "/schemas/external-runtime/classification.v1.schema.json"} {
		if status, body := h.fetch(t, path); status != 404 || strings.Contains(body, "external") {
			t.Errorf("GET %s = %d %s", path, status, body)
		}
	}
	if _, err := p.LoadAdmissions(t.Context()); !errors.Is(err, plugin.ErrNoAdmissions) {
		t.Errorf("LoadAdmissions = %v", err)
	}
	if err := p.Sweep(t.Context()); err != nil || p.ExternalURL("x") != "" {
		t.Errorf("Sweep = %v, ExternalURL = %q", err, p.ExternalURL("x"))
	}
}

// TestAgents: which adapter answers for which agent.
func TestAgents(t *testing.T) {
	t.Parallel()
	say := func(s string) adapters.Adapter {
		return adapters.Func(func(_ context.Context, _ *adapters.Turn, w adapters.Writer) error {
			return w.Text(s)
		})
	}
	many := map[string]adapters.Adapter{"one": say("one"), "agent:two": say("two"), "not a ref": say("three")}
	for _, tc := range []struct {
		name   string
		conf   plugin.Config
		agents map[string]string
		agent  externalwire.AgentID
		want   string
	}{
		{"the only plugin", plugin.Config{ID: "one", Adapter: say("one")}, nil, "agent:any", "one"},
		{"the only one of Adapters", plugin.Config{Adapters: map[string]adapters.Adapter{"one": say("one")}}, nil, "agent:any", "one"},
		{"its own id", plugin.Config{Adapters: many}, nil, "agent:two", "two"},
		{"nobody", plugin.Config{Adapters: many}, nil, "agent:any", "refused/binding-mismatch"},
		{"named", plugin.Config{Adapters: many}, map[string]string{"agent:any": "not a ref"}, "agent:any", "three"},
		{"Adapter beside Adapters", plugin.Config{ID: "main", Adapter: say("main"), Adapters: many}, nil, "agent:any", "main"},
		{"named, over its own id", plugin.Config{Adapters: many}, map[string]string{"agent:two": "one"}, "agent:two", "one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.conf.External = &plugin.External{Agents: tc.agents}
			_, _, x := startExternal(t, tc.conf)
			x.Profile.UsageFidelity = externalwire.FidelityUnavailable
			x.Profile.ProfileGeneration = 2
			x.Binding = testhost.NewBinding("binding:1", tc.agent, x.Profile)
			if err := x.Setup(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := sent(t, x, x.Request("x"))
			if got := a.Content; got != tc.want && a.Ended() != tc.want {
				t.Errorf("%q, %s; want %s", got, a.Ended(), tc.want)
			}
		})
	}
}

// TestExternalTokens: hosts' tokens are for both protocols, the operator's for neither.
func TestExternalTokens(t *testing.T) {
	t.Parallel()
	const token = "host-0123456789abcdef"
	_, h, x := startExternal(t, plugin.Config{Tokens: map[string]plugin.Secret{"host": token}})
	for _, tc := range []struct {
		token string
		want  int
	}{{"", 401}, {operatorToken, 401}, {token, 200}} {
		x.Token = tc.token
		s, err := x.Turn(t.Context(), x.Request("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Answer(); s.Status != tc.want || (err == nil) != (tc.want == 200) {
			t.Errorf("with the token %q: %d, %v; want %d", tc.token, s.Status, err, tc.want)
		}
		r, err := h.with("Authorization", "Bearer "+tc.token).run(request{message: "x"})
		if r == nil || r.StatusCode != tc.want {
			t.Errorf("Lowkey with the token %q: %v, want %d", tc.token, err, tc.want)
		}
	}
	x.OperatorToken = token
	if err := x.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a host admits: %v, want 401", err)
	}
}

// TestDrainBoth: running turns of either protocol go on, new ones of either are refused, and what waits
// for an observation holds up nothing.
func TestDrainBoth(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 3)
	p, h, x := startExternal(t, plugin.Config{Adapter: adapters.Func(func(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
		begun <- struct{}{}
		return scripted.New(scripted.Config{}).Run(ctx, turn, w)
	})})
	waiting := x.Request(script(`{"question":{"schema":"s","question":{"a":1}}}`))
	if a := sent(t, x, waiting); len(a.Asked) != 1 {
		t.Fatalf("no question: %s", a.Raw)
	}
	// The waiting turn has its binding's session; the others need one of their own.
	y := h.orbiplex("")
	y.Binding = testhost.NewBinding("binding:2", "agent:muse", y.Profile)
	if err := y.AdmitBinding(t.Context(), y.Binding); err != nil {
		t.Fatal(err)
	}
	turns := []func() error{
		func() error {
			r, err := h.run(request{message: script(`{"text":"a"}`, `{"sleep":"700ms"}`, `{"text":"b"}`)})
			if err == nil && r.text() != "ab" {
				err = fmt.Errorf("the text is %q", r.text())
			}
			return err
		},
		func() error {
			a, err := y.Run(context.Background(), y.Request(script(`{"text":"a"}`, `{"sleep":"700ms"}`, `{"text":"b"}`, `{"usage":{"max_tokens":1,"max_cost_micros":1,"max_wall_time_ms":1,"max_steps":1}}`)))
			if err == nil && (a.Content != "ab" || a.Ended() != "completed/completed") {
				err = fmt.Errorf("%q, %s", a.Content, a.Ended())
			}
			return err
		},
	}
	ended := make(chan error, len(turns))
	for _, turn := range turns {
		go func() { ended <- turn() }()
	}
	for range 3 {
		<-begun
	}
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(context.Background()) }()
	for deadline := time.Now().Add(patience); ; {
		if status, body := h.fetch(t, "/readyz"); status == 503 && body == "draining\n" {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("/readyz is %d %s", status, body)
		}
	}
	s, err := y.Turn(t.Context(), y.Request("new"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Answer(); s.Status != 503 || s.Header.Get("Retry-After") == "" {
		t.Errorf("a new turn of Orbiplex: %d, %v", s.Status, err)
	}
	if r, err := h.run(request{turn: "new", message: "x"}); r == nil || r.StatusCode != 503 {
		t.Errorf("a new turn of Lowkey: %v", err)
	}
	for range turns {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain = %v", err)
	}
	if outcome, raw, err := x.Inspect(t.Context(), waiting.TurnRef); err != nil || outcome == nil || outcome.Status != externalwire.StatusCancelled {
		t.Errorf("the suspended turn: %s, %v; want it cancelled", raw, err)
	}
}

// A brokenStore is one whose disk has gone.
type brokenStore struct {
	ledger.Store
	down atomic.Bool
}

func (s *brokenStore) Ping(ctx context.Context) error {
	if s.down.Load() {
		return errors.New("secret path: input/output error")
	}
	return s.Store.Ping(ctx)
}

func TestReadyWithABrokenStore(t *testing.T) {
	t.Parallel()
	store := &brokenStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}
	_, h, _ := startExternal(t, plugin.Config{External: &plugin.External{Store: store}})
	for _, down := range []bool{false, true, false} {
		store.down.Store(down)
		status, body := h.fetch(t, "/readyz")
		if want := map[bool]int{false: 200, true: 503}[down]; status != want || strings.Contains(body, "secret") {
			t.Errorf("/readyz is %d %q with the store down %v", status, body, down)
		}
		if status, _ := h.fetch(t, "/healthz"); status != 200 {
			t.Errorf("/healthz is %d", status)
		}
	}
	// A closed store is down too.
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if status, _ := h.fetch(t, "/readyz"); status != 503 {
		t.Errorf("/readyz with a closed store is %d, want 503", status)
	}
}

// TestExternalRecovers: what a server left open is unknown to the next one, whose log says so.
func TestExternalRecovers(t *testing.T) {
	t.Parallel()
	store := ledger.NewMemory(ledger.MemoryConfig{})
	_, _, x := startExternal(t, plugin.Config{External: &plugin.External{Store: store}})
	r := x.Request(script(`{"question":{"schema":"s","question":{"a":1}}}`))
	sent(t, x, r)

	// The second plugin takes the store over as if the first had died.
	log := &logBuffer{}
	_, _, x = startExternal(t, plugin.Config{External: &plugin.External{Store: store}, Logger: log.logger()})
	outcome, raw, err := x.Inspect(t.Context(), r.TurnRef)
	if err != nil || outcome == nil || outcome.Status != externalwire.StatusUnknown || outcome.BudgetCharged != externalwire.Usage(r.BudgetReservation) {
		t.Errorf("the turn is %s, %v; want it unknown, and charged in full", raw, err)
	}
	if text := log.String(); !strings.Contains(text, string(r.TurnRef)) || !strings.Contains(text, "level=WARN") {
		t.Errorf("the log says\n%s", text)
	}
	// A ledger that cannot be recovered is no mistake of the configuration.
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	var wrong *plugin.ConfigError
	_, err = plugin.New(plugin.Config{ID: "muse", Adapter: echoadapter.New(), External: &plugin.External{Store: store}})
	if !errors.Is(err, ledger.ErrClosed) || errors.As(err, &wrong) {
		t.Errorf("New with a closed store: %v", err)
	}
}

func writeDoc(t *testing.T, dir, name string, doc any) {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAdmissions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	profile := testhost.NewProfile("profile:1")
	binding := testhost.NewBinding("binding:1", "agent:muse", profile)
	writeDoc(t, dir, "a.json", binding)
	writeDoc(t, dir, "b.json", profile)
	log := &logBuffer{}
	p, h := start(t, plugin.Config{Adapter: echoadapter.New(), Logger: log.logger(), External: &plugin.External{Admissions: dir}})
	x := h.orbiplex("")
	x.Profile, x.Binding = profile, binding
	if a := sent(t, x, x.Request("x")); a.Ended() != "completed/completed" {
		t.Errorf("under what the directory holds: %s", a.Ended())
	}
	if status, _ := h.fetch(t, "/external-runtime/bindings/binding:1"); status != 404 {
		t.Errorf("without an operator's token the operator's endpoints answer %d, want 404", status)
	}

	// A new binding, a new generation of the old one, and a bad file: what is good is admitted.
	old := *binding
	binding.MaxPassages = 1
	if err := testhost.Seal(binding); err != nil {
		t.Fatal(err)
	}
	writeDoc(t, dir, "a.json", binding)
	if err := os.WriteFile(filepath.Join(dir, "c.json"), []byte(`{"schema":"agent.external-runtime.profile.v1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := p.LoadAdmissions(t.Context())
	if err == nil || !strings.Contains(err.Error(), "c.json") || len(files) != 3 || files[0].Change != ledger.Replaced || files[1].Change != ledger.Unchanged || files[2].Err == nil {
		t.Errorf("LoadAdmissions = %+v, %v", files, err)
	}
	if a := sent(t, x, x.Request("x")); a.Ended() != "completed/completed" {
		t.Errorf("under the new generation: %s", a.Ended())
	}
	x.Binding = &old
	if a := sent(t, x, x.Request("x")); a.Ended() != "refused/binding-stale" {
		t.Errorf("under the old generation: %s", a.Ended())
	}
	if text := log.String(); !strings.Contains(text, "file=a.json") || !strings.Contains(text, "change=replaced") {
		t.Errorf("the log says\n%s", text)
	}

	// A server does not start with a bad file, and then nothing is admitted.
	var wrong *plugin.ConfigError
	log = &logBuffer{}
	store := ledger.NewMemory(ledger.MemoryConfig{})
	_, err = plugin.New(plugin.Config{ID: "muse", Adapter: echoadapter.New(), Logger: log.logger(), External: &plugin.External{Store: store, Admissions: dir}})
	for _, kind := range ledger.Kinds() {
		if all, err := store.Admissions(t.Context(), kind); err != nil || len(all) > 0 {
			t.Errorf("a start that failed admitted %+v, %v", all, err)
		}
	}
	if text := log.String(); strings.Contains(text, "msg=admission") {
		t.Errorf("a start that failed says\n%s", text)
	}
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "c.json") || strings.Contains(err.Error(), "\n") {
		t.Errorf("New with a bad file: %v, want a ConfigError that names it", err)
	}
	_, err = plugin.New(plugin.Config{ID: "muse", Adapter: echoadapter.New(), External: &plugin.External{Admissions: filepath.Join(dir, "none")}})
	if !errors.As(err, &wrong) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("New without the directory: %v, want a ConfigError", err)
	}
}

// TestBindingsAreTold: a server says at its start which bindings are of no use, before a host is refused.
func TestBindingsAreTold(t *testing.T) {
	t.Parallel()
	profile := testhost.NewProfile("profile:1")
	good := testhost.NewBinding("binding:good", "agent:muse", profile)
	change := func(ref externalwire.BindingRef, how func(*externalwire.Binding)) *externalwire.Binding {
		b := testhost.NewBinding(ref, "agent:muse", profile)
		how(b)
		if err := testhost.Seal(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	expired := change("binding:expired", func(b *externalwire.Binding) { b.ExpiresAt = "2026-01-01T00:00:00Z" })
	lonely := change("binding:lonely", func(b *externalwire.Binding) { b.ProfileRef = "profile:none" })
	later := change("binding:later", func(b *externalwire.Binding) { b.ProfileGeneration = 2 })
	strange := change("binding:strange", func(b *externalwire.Binding) { b.AgentID = "agent:stranger" })

	one := plugin.Config{ID: "muse", Adapter: echoadapter.New()}
	two := plugin.Config{Adapters: map[string]adapters.Adapter{"agent:muse": echoadapter.New(), "oracle": echoadapter.New()}}
	for name, tc := range map[string]struct {
		conf plugin.Config
		docs []any
		want []string // of the log, line by line; admissions themselves left out
	}{
		"all is well": {one, []any{profile, good}, []string{"level=INFO msg=\"bindings of agent.external-runtime\" bindings=1 usable=1"}},
		"some are of no use": {two, []any{profile, good, expired, lonely, later, strange}, []string{
			`level=WARN msg="every turn of a binding is refused" binding=binding:expired reason=binding-expired why="expires/at is 2026-01-01T00:00:00Z"`,
			`level=WARN msg="every turn of a binding is refused" binding=binding:later reason=profile-mismatch why="its profile/generation is 2, and that of the profile profile:1 is 1"`,
			`level=WARN msg="every turn of a binding is refused" binding=binding:lonely reason=profile-mismatch why="its profile/ref, profile:none, is not admitted"`,
			`level=WARN msg="every turn of a binding is refused" binding=binding:strange reason=binding-mismatch why="no plugin answers for its agent/id, agent:stranger: name one in External.Agents"`,
			`level=INFO msg="bindings of agent.external-runtime" bindings=5 usable=1`,
		}},
		"none is of use": {one, []any{lonely}, []string{
			`level=WARN msg="every turn of a binding is refused" binding=binding:lonely reason=profile-mismatch why="its profile/ref, profile:none, is not admitted"`,
			`level=WARN msg="no binding can be used: every turn of agent.external-runtime is refused" bindings=1 directory=`,
		}},
		"an empty directory": {one, nil, []string{`level=WARN msg="no binding can be used: every turn of agent.external-runtime is refused" bindings=0 directory=`}},
	} {
		dir := t.TempDir()
		for i, doc := range tc.docs {
			writeDoc(t, dir, fmt.Sprintf("%d.json", i), doc)
		}
		log := &logBuffer{}
		tc.conf.Logger, tc.conf.External = log.logger(), &plugin.External{Admissions: dir}
		if _, err := plugin.New(tc.conf); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "msg=admission ") {
				got = append(got, strings.TrimSpace(line[strings.Index(line, "level="):]))
			}
		}
		same := len(got) == len(tc.want)
		for i := range tc.want {
			same = same && strings.HasPrefix(got[i], tc.want[i])
		}
		if !same {
			t.Errorf("%s: the log says\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}

	// What somebody withdrew is no mistake; where nothing is to be read, nothing is said.
	store := ledger.NewMemory(ledger.MemoryConfig{})
	_, _, x := startExternal(t, plugin.Config{External: &plugin.External{Store: store}})
	if err := x.RevokeBinding(t.Context(), x.Binding.BindingRef); err != nil {
		t.Fatal(err)
	}
	for want, conf := range map[string]*plugin.External{
		"":                                      {},
		"bindings=1 directory=\"\"":             {Store: store},
		"no binding can be used: every turn of": {Store: store},
	} {
		log := &logBuffer{}
		one.Logger, one.External = log.logger(), conf
		if _, err := plugin.New(one); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); (text == "") != (want == "") || !strings.Contains(text, want) || strings.Count(text, "\n") > 1 {
			t.Errorf("the log says %q, want %q in one line", text, want)
		}
	}
}

// TestAdmissionsSayHowToMendThem: which is not what a flag's help tells.
func TestAdmissionsSayHowToMendThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	profile := testhost.NewProfile("profile:1")
	binding := testhost.NewBinding("binding:1", "agent:muse", profile)
	binding.MaxPassages++ // after it was sealed
	writeDoc(t, dir, "a.json", profile)
	writeDoc(t, dir, "b.json", binding)
	conf := plugin.Config{ID: "muse", Adapter: echoadapter.New(), Logger: slog.New(slog.DiscardHandler), External: &plugin.External{Admissions: dir}}
	const hint = "(backline validate FILE says what to mend, and where)"
	if _, err := plugin.New(conf); err == nil || !strings.Contains(err.Error(), "b.json") || !strings.Contains(err.Error(), hint) {
		t.Errorf("New says %v, want b.json and %q in it", err, hint)
	}
	conf.External.Admissions = filepath.Join(dir, "none")
	if _, err := plugin.New(conf); err == nil || strings.Contains(err.Error(), "validate") {
		t.Errorf("without the directory New says %v, and there is no file to be validated", err)
	}
}

func TestExternalConfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*plugin.Config)
		want   string
	}{
		"short operator's token": {func(c *plugin.Config) { c.External.OperatorToken = "short" }, "External.OperatorToken is shorter than 16 bytes"},
		"one token for both": {func(c *plugin.Config) {
			c.Tokens = map[string]plugin.Secret{"host": operatorToken}
			c.External.OperatorToken = operatorToken
		}, "also a host's token"},
		"agent of nobody":      {func(c *plugin.Config) { c.External.Agents = map[string]string{"agent:1": "other"} }, `plugin "other", which is not hosted here`},
		"agent that is no ref": {func(c *plugin.Config) { c.External.Agents = map[string]string{"a b": "muse"} }, `"a b"`},
		"turns in the way":     {func(c *plugin.Config) { c.TurnPath = "/external-runtime/turns" }, "which is below /external-runtime"},
		"epoch that is no ref": {func(c *plugin.Config) { c.External.Epoch = "a b" }, "Epoch"},
	} {
		conf := plugin.Config{ID: "muse", Adapter: echoadapter.New(), External: &plugin.External{}}
		tc.change(&conf)
		_, err := plugin.New(conf)
		var wrong *plugin.ConfigError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want a ConfigError that says %q", name, err, tc.want)
		}
	}
}

// TestReplicasWithMemory: several servers with a ledger each are warned about, with one elsewhere not.
func TestReplicasWithMemory(t *testing.T) {
	t.Parallel()
	for _, memory := range []bool{true, false} {
		log := &logBuffer{}
		conf := plugin.Config{ID: "muse", Adapter: echoadapter.New(), Replicas: 2, Logger: log.logger(), External: &plugin.External{}}
		if !memory {
			conf.External.Store = &brokenStore{Store: ledger.NewMemory(ledger.MemoryConfig{})}
		}
		if _, err := plugin.New(conf); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), "the ledger is in each server's own memory"); warned != memory {
			t.Errorf("warned %v with a ledger in memory %v", warned, memory)
		}
	}
}

// TestSweeps: content goes when its retention is over, and the facts stay.
func TestSweeps(t *testing.T) {
	t.Parallel()
	store := ledger.NewMemory(ledger.MemoryConfig{})
	p, _, x := startExternal(t, plugin.Config{Adapter: echoadapter.New(), External: &plugin.External{Store: store, ProductRetention: time.Nanosecond, StreamRetention: plugin.NoLimit}})
	r := x.Request("hello")
	first := sent(t, x, r)
	outcome, _, err := x.Inspect(t.Context(), r.TurnRef)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	row, err := store.Product(t.Context(), ledger.ProductRef(outcome.ProductRef))
	if err != nil || row.Keeping != ledger.Swept || len(row.Content) > 0 {
		t.Errorf("the product is %+v, %v; want it swept", row, err)
	}
	if again := sent(t, x, r); again.Raw != first.Raw {
		t.Errorf("the stream is repeated as\n%s, want\n%s", again.Raw, first.Raw)
	}
}

// A logBuffer is a log that a test reads.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// ExampleExternal serves two platforms with one adapter.
func ExampleExternal() {
	p, err := plugin.New(plugin.Config{
		ID: "muse", Adapter: echoadapter.New(),
		External: &plugin.External{OperatorToken: "keep this one to yourself"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(p)
	defer server.Close()
	fmt.Println(strings.TrimPrefix(p.TurnURL("example.com"), "http://example.com"))
	fmt.Println(strings.TrimPrefix(p.ExternalURL("example.com"), "http://example.com"))
	// Output:
	// /lowkey/turn
	// /external-runtime
}

// TestExternalSchemasCompile: a validator that is given all of them needs nothing else.
func TestExternalSchemasCompile(t *testing.T) {
	t.Parallel()
	_, h := start(t, plugin.Config{Adapter: echoadapter.New(), External: &plugin.External{}})
	var set schema.Set
	for _, kind := range externalwire.Values[externalwire.Document]() {
		_, body := h.fetch(t, "/schemas/external-runtime/"+externalwire.SchemaFile(kind))
		if err := set.Add(externalwire.SchemaID(kind), bytes.Clone([]byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range externalwire.Values[externalwire.Document]() {
		if _, err := set.Compile(externalwire.SchemaID(kind)); err != nil {
			t.Error(err)
		}
	}
}
