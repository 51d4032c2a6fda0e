package cli

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	"github.com/backline-dev/backline/schema/external"
)

// busyPatience is how long a turn says nothing before the server is asked whether it waits.
const busyPatience = time.Second

// watch tells whoever waits for a turn that another one has its binding's session: the stream of a turn that
// waits for it says nothing. begun ends the watch, once something was said or nothing will be, and returns when
// there is nothing to tell any more.
func (x *externalTurn) watch(ctx context.Context) (begun func()) {
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		timer := time.NewTimer(busyPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			x.tellBusy(ctx)
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-told
	}
}

// tellBusy says which turn is in the way, if one is.
func (x *externalTurn) tellBusy(ctx context.Context) {
	_, raw, err := x.h.Inspect(ctx, x.request.TurnRef)
	var at struct {
		State      string            `json:"state"`
		WaitingFor external.TurnRef  `json:"waiting/for"`
		Until      external.DateTime `json:"deadline/at"`
	}
	if err != nil || json.Unmarshal(raw, &at) != nil || at.WaitingFor == "" {
		return // it has begun, or has ended; or it is a server that does not say
	}
	x.a.complain("the binding is busy: this turn waits, until %s at most, for %s, which runs or awaits an answer; to end that one: curl -X POST %s",
		at.Until, at.WaitingFor, shellQuote(x.h.URL+"/turns/"+url.PathEscape(string(at.WaitingFor))+"/cancel"))
}
