package keiki

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
	wire "github.com/backline-dev/backline/schema/keiki"
)

// DefaultResultPath is where a relay reports what became of a request, below the API base. {id} stands for
// the id of the relayed request.
const DefaultResultPath = "harness/turns/{id}/result"

const (
	relayNextPath  = "/harness/turns/next"
	forwardTimeout = 30 * time.Second
	reportTimeout  = 2 * time.Minute  // for a report with all its repetitions
	reportAfterEnd = 10 * time.Second // of it, once the relay is to end
	maxForwardBody = 64 << 10         // of the app's answer, in bytes
	maxReports     = 256              // under way at once
)

// RelayConfig tunes a [Relay].
type RelayConfig struct {
	// APIBase is the platform's API base. Required.
	APIBase string
	// APIKey is the harness API key. Required.
	APIKey secret.Text
	// AppURL is where signed requests are forwarded to. Required.
	AppURL string
	// ResultPath is where results are reported, below APIBase. Empty means [DefaultResultPath].
	ResultPath string
	// Concurrency is how many requests are forwarded at once; those of one turn are always in order. Zero
	// means 4.
	Concurrency int
	// Transport makes the calls. Nil means one of its own.
	Transport http.RoundTripper
	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

// A Relay takes signed requests from the platform's queue and forwards them, byte for byte, to an app
// that the platform cannot reach. Make one with [NewRelay].
type Relay struct {
	conf    RelayConfig
	caller  *caller
	app     *http.Client
	poll    *poller
	backoff *backoff
	log     *slog.Logger
	tasks   sync.WaitGroup
	reports chan struct{} // one element for each report under way

	mu    sync.Mutex
	queue map[string]chan struct{} // by id: closed when the last request of it is forwarded
}

// NewRelay returns a relay, or an error that names every wrong field of conf.
func NewRelay(conf RelayConfig) (*Relay, error) {
	var errs []error
	wrong := collect(&errs)
	checkAPI(conf.APIBase, conf.APIKey, wrong)
	if _, err := parseOrigin(conf.AppURL); conf.AppURL == "" {
		wrong("AppURL is empty: give the URL of your app, such as http://127.0.0.1:8787/keiki/turn")
	} else if err != nil {
		wrong("AppURL: %v", err)
	}
	if conf.ResultPath == "" {
		conf.ResultPath = DefaultResultPath
	}
	conf.ResultPath = strings.Trim(conf.ResultPath, "/")
	if !strings.Contains(conf.ResultPath, "{id}") {
		wrong("ResultPath is %.80q, want a path with {id} in it", conf.ResultPath)
	}
	switch {
	case conf.Concurrency == 0:
		conf.Concurrency = DefaultConcurrency
	case conf.Concurrency < 0:
		wrong("Concurrency is %d, want at least 1", conf.Concurrency)
	}
	if conf.Transport == nil {
		conf.Transport = newTransport()
	}
	if conf.Logger == nil {
		conf.Logger = slog.Default()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	conf.APIBase = strings.TrimRight(conf.APIBase, "/")
	c := newCaller(conf.Transport)
	return &Relay{
		conf: conf, caller: c, app: c.client, log: conf.Logger, queue: map[string]chan struct{}{}, reports: make(chan struct{}, maxReports),
		backoff: newBackoff(250*time.Millisecond, 10*time.Second),
		poll:    newPoller(c, conf.APIBase+relayNextPath, conf.APIKey, maxWait, conf.Concurrency, conf.Logger),
	}, nil
}

// Run relays until ctx is done, and returns nil once what was in hand is forwarded and reported; or until
// the platform refuses the key: [ErrKeyRefused]. To be called once.
func (r *Relay) Run(ctx context.Context) error {
	defer r.tasks.Wait()
	return r.poll.run(ctx, func(a *answer) (bool, error) {
		f, err := wire.ParseForward(a.body)
		if err != nil {
			return false, errors.New("the answer is no request to relay")
		}
		if f == nil {
			return false, nil
		}
		before, after := r.enqueue(f.ID)
		r.tasks.Go(func() {
			result, ok := r.turn(ctx, f, before)
			r.dequeue(f.ID, after)
			r.reports <- struct{}{} // slow ones do not hold up forwards, unless there are too many
			r.poll.done()
			defer func() { <-r.reports }()
			if ok {
				r.report(ctx, f, result)
			}
		})
		return true, nil
	})
}

// enqueue takes the next place among the requests with one id, so that a cancellation cannot overtake its
// turn.
func (r *Relay) enqueue(id string) (before <-chan struct{}, after chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, after = r.queue[id], make(chan struct{})
	r.queue[id] = after
	return before, after
}

func (r *Relay) dequeue(id string, after chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(after)
	if r.queue[id] == after {
		delete(r.queue, id)
	}
}

// turn forwards a request when those before it with the same id are forwarded; false where the relay was told to
// end before it came to that: then the platform offers it again.
func (r *Relay) turn(ctx context.Context, f *wire.Forward, before <-chan struct{}) (wire.Result, bool) {
	if before != nil {
		<-before // a forward ends by itself
		if ctx.Err() != nil {
			return wire.Result{}, false
		}
	}
	return r.forward(context.WithoutCancel(ctx), f), true
}

// report tells the platform what the app said.
func (r *Relay) report(ctx context.Context, f *wire.Forward, result wire.Result) {
	report, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(reportAfterEnd, cancel)
		context.AfterFunc(report, func() { timer.Stop() })
	})()
	target := r.conf.APIBase + "/" + strings.ReplaceAll(r.conf.ResultPath, "{id}", segment(f.ID))
	body := wire.AppendResult(nil, result)
	for attempt := 0; ; attempt++ {
		a := r.caller.tell(report, http.MethodPost, target, r.conf.APIKey, body)
		v := a.judge()
		if v == settled {
			r.log.Info("request relayed", "id", f.ID, "app_status", result.Status)
			return
		}
		if v != again || report.Err() != nil {
			r.log.Error("what became of a relayed request could not be reported", "id", f.ID, "app_status", result.Status, "answer", a.word())
			return
		}
		if !sleep(report, r.backoff.next(attempt, a.after)) {
			r.log.Error("what became of a relayed request could not be reported in time", "id", f.ID, "app_status", result.Status, "answer", a.word())
			return
		}
	}
}

// segment is an id as one segment of a path, whatever it is.
func segment(id string) string {
	switch id {
	case ".", "..": // which [url.PathEscape] leaves alone, and which would lead elsewhere
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}

// forward hands the request to the app: the body and the headers of the signature as they came.
func (r *Relay) forward(ctx context.Context, f *wire.Forward) wire.Result {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	unreachable := wire.Result{Status: http.StatusBadGateway, Body: `{"error":{"code":"unreachable","message":"the relay could not reach the app"}}`}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.conf.AppURL, bytes.NewReader([]byte(f.Body)))
	if err != nil {
		r.log.Error("the app's URL cannot be called")
		return unreachable
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range f.Headers {
		name = http.CanonicalHeaderKey(name)
		if name == "Content-Type" || strings.HasPrefix(name, "Keiki-") {
			req.Header.Set(name, value)
		}
	}
	res, err := r.app.Do(req)
	if err != nil {
		r.log.Warn("the app could not be reached", "id", f.ID, "error", plainError(ctx, err))
		return unreachable
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxForwardBody))
	if err != nil && len(body) == 0 {
		r.log.Warn("the app's answer was cut off", "id", f.ID)
	}
	return wire.Result{Status: res.StatusCode, Body: strings.ToValidUTF8(string(body), "\uFFFD")}
}
