package testhost

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A KeikiRequest is a request to the platform's API, as it came and as it was answered.
type KeikiRequest struct {
	// N counts requests from 1.
	N int
	// At is when it came, and Took how long it was served.
	At   time.Time
	Took time.Duration
	// Method is the HTTP method, and Path the path with the query.
	Method, Path string
	// Route is messages, complete, lease, arrivals, stream, inbox, next (of the relay), result, mcp or empty.
	Route string
	// TurnID is the turn in the path.
	TurnID string
	// Auth is the kind of bearer: turn_token, credential, api_key, other, or empty for none.
	Auth string
	// Header is the header without Authorization.
	Header http.Header
	// Body is the request's body.
	Body []byte
	// Done is set once it has been answered, with this status, body and error code, or dropped: then
	// there is no answer, or nobody was there to have it. The answer to a poll has the turn's token.
	Done    bool
	Dropped bool
	Status  int
	Code    string
	Answer  []byte
	// Fault names what went wrong on purpose.
	Fault string
}

// A keikiLogged is a request that is remembered.
type keikiLogged struct {
	KeikiRequest
	weight    int // of k.logBytes
	forgotten bool
}

func newKeikiRequest(r *http.Request, now time.Time) *keikiLogged {
	header := r.Header.Clone()
	header.Del("Authorization")
	return &keikiLogged{KeikiRequest: KeikiRequest{At: now, Method: r.Method, Path: r.URL.RequestURI(), Header: header}}
}

// record numbers a request and keeps it. k.mu is held.
func (k *Keiki) record(rec *keikiLogged) {
	k.seq++
	rec.N = k.seq
	k.log = append(k.log, rec)
	k.weigh(rec)
}

// weigh counts what a request takes, and forgets old ones where all take too much. k.mu is held.
func (k *Keiki) weigh(rec *keikiLogged) {
	if rec.forgotten {
		return
	}
	k.logBytes -= rec.weight
	rec.weight = len(rec.Body) + len(rec.Answer) + len(rec.Path)
	for name, values := range rec.Header {
		rec.weight += len(name) + len(strings.Join(values, ""))
	}
	k.logBytes += rec.weight
	for len(k.log) > 1 && (len(k.log) > k.cfg.Keep || k.logBytes > maxKeikiLog) {
		k.logBytes -= k.log[0].weight
		k.log[0].forgotten = true
		k.log[0] = nil
		k.log = k.log[1:]
	}
}

// Requests are the requests about a turn, or all where the id is empty, in the order in which they came.
func (k *Keiki) Requests(turnID string) []KeikiRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []KeikiRequest
	for _, rec := range k.log {
		if turnID == "" || rec.TurnID == turnID {
			all = append(all, rec.KeikiRequest)
		}
	}
	return all
}

// A KeikiViolation is something that an app may not do.
type KeikiViolation struct {
	At time.Time
	// TurnID is the turn's, where it is about one; Request the request's number.
	TurnID  string
	Request int
	// Rule names what was broken: one of the Rule constants. Detail is a sentence, without any secret.
	Rule   KeikiRule
	Detail string
}

func (v KeikiViolation) String() string {
	return fmt.Sprintf("request %d, turn %q: %s: %s", v.Request, v.TurnID, v.Rule, v.Detail)
}

// Violations are what apps did and may not, in their order; of more than a thousand the last ones.
func (k *Keiki) Violations() []KeikiViolation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.violated)
}

// violate notes a violation. k.mu is held.
func (k *Keiki) violate(v KeikiViolation) {
	if len(k.violated) >= maxKeikiViolated {
		k.violated = slices.Delete(k.violated, 0, 1)
	}
	k.violated = append(k.violated, v)
	if tell := k.cfg.OnViolation; tell != nil {
		k.later = append(k.later, func() { tell(v) })
	}
}

// codeOf reads the code of an error body, of all three shapes; it is empty where there is none.
func codeOf(body []byte) string {
	var b struct {
		Error json.RawMessage `json:"error"`
		Code  string          `json:"code"`
	}
	if json.Unmarshal(body, &b) != nil {
		return ""
	}
	var nested struct {
		Code string `json:"code"`
	}
	var text string
	switch {
	case b.Code != "":
		return b.Code
	case json.Unmarshal(b.Error, &text) == nil:
		return text
	case json.Unmarshal(b.Error, &nested) == nil:
		return nested.Code
	default:
		return ""
	}
}
