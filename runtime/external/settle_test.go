package external_test

import (
	"fmt"
	"strings"
	"testing"

	wire "github.com/backline-dev/backline/schema/external"
)

// An axis of the budget, with what the tests reserve on it.
type axis struct {
	name     string
	reserved int64
	most     string // beyond the largest that there is
	of       func(u *wire.Usage) *int64
	ours     bool // measured here where the adapter gives none
}

var axes = []axis{
	{"max_tokens", 512, "9007199254740992", func(u *wire.Usage) *int64 { return &u.MaxTokens }, false},
	{"max_cost_micros", 1000, "9007199254740992", func(u *wire.Usage) *int64 { return &u.MaxCostMicros }, false},
	{"max_wall_time_ms", 30000, "1e400", func(u *wire.Usage) *int64 { return &u.MaxWallTimeMS }, true},
	{"max_steps", 10, "4294967296", func(u *wire.Usage) *int64 { return &u.MaxSteps }, true},
}

// Settlement, as a table: each axis under each fidelity, reported in each way (external-runtime.md,
// Settlement).
func TestSettlement(t *testing.T) {
	t.Parallel()
	full := wire.Usage{MaxTokens: 512, MaxCostMicros: 1000, MaxWallTimeMS: 30000, MaxSteps: 10}
	for _, fidelity := range wire.Values[wire.Fidelity]() {
		g := newRig(t, withProfile("usage/fidelity", fidelity))
		counted := fidelity == wire.FidelityAuthoritative || fidelity == wire.FidelityHostMeasured
		for _, a := range axes {
			for _, c := range []struct {
				name    string
				value   string // empty: not reported
				second  string // another report of the axis alone
				reason  wire.ReasonCode
				charged int64 // of this axis, where it counts
			}{
				{name: "absent", reason: wire.ReasonUsageMissing},
				{name: "zero", value: "0"},
				{name: "exact", value: fmt.Sprint(a.reserved), charged: a.reserved},
				{name: "under", value: fmt.Sprint(a.reserved - 1), charged: a.reserved - 1},
				{name: "over", value: fmt.Sprint(a.reserved + 1), charged: a.reserved + 1, reason: wire.ReasonBudgetExhausted},
				{name: "overflow", value: a.most, reason: wire.ReasonUsageOverflow},
				{name: "as a double", value: "2.0", charged: 2},
				{name: "with an exponent", value: "1e0", charged: 1},
				{name: "malformed", value: `"2"`, reason: wire.ReasonUsageMalformed},
				{name: "an object", value: `{}`, reason: wire.ReasonUsageMalformed},
				{name: "a fraction", value: "1.5", reason: wire.ReasonUsageMalformed},
				{name: "negative", value: "-1", reason: wire.ReasonUsageMalformed},
				{name: "far below zero", value: "-1e400", reason: wire.ReasonUsageMalformed},
				{name: "conflicting", value: "2", second: "3", reason: wire.ReasonUsageConflict},
				{name: "the same twice", value: "2", second: "2.0", charged: 2},
				{name: "conflicting and malformed", value: "2", second: `"x"`, reason: wire.ReasonUsageMalformed},
				{name: "conflicting and overflowing", value: "2", second: a.most, reason: wire.ReasonUsageOverflow},
			} {
				name := fmt.Sprintf("%s/%s/%s", fidelity, a.name, c.name)
				reports := map[string]string{"max_tokens": "1", "max_cost_micros": "1", "max_wall_time_ms": "1", "max_steps": "1"}
				reports[a.name] = c.value
				var first []string
				for _, x := range axes {
					if v := reports[x.name]; v != "" {
						first = append(first, fmt.Sprintf("%q:%s", x.name, v))
					}
				}
				lines := []string{`{"text":"x"}`, `{"usage":{` + strings.Join(first, ",") + `}}`}
				if c.second != "" {
					lines = append(lines, fmt.Sprintf(`{"usage":{%q:%s}}`, a.name, c.second))
				}
				q := aRequest("turn:"+strings.ReplaceAll(name, " ", "-"), script(lines...))
				r := g.post(q)
				o := g.outcome(q.ref("turn/ref"))

				want := wire.Usage{MaxTokens: 1, MaxCostMicros: 1, MaxWallTimeMS: 1, MaxSteps: 1}
				*a.of(&want) = c.charged
				status, reason := "completed", wire.ReasonCompleted
				usage := c.reason == "" || c.reason == wire.ReasonBudgetExhausted
				if c.name == "absent" && a.ours {
					usage = true
					*a.of(&want) = *a.of(&o.BudgetCharged) // what was measured here
					if counted && *a.of(&o.BudgetCharged) > 5000 {
						t.Errorf("%s: %+v was measured", name, o.BudgetCharged)
					}
				} else if c.reason != "" && counted {
					status, reason = "failed", c.reason
					if reason != wire.ReasonBudgetExhausted {
						want = full
					}
				}
				if !counted {
					want = full
				}
				r.ends(status + "/" + string(reason))
				if o.BudgetCharged != want {
					t.Errorf("%s: charged %+v, want %+v", name, o.BudgetCharged, want)
				}
				if got := strings.Contains(r.kinds(), "usage"); got != usage {
					t.Errorf("%s: a usage event is %v, want %v\n%s", name, got, usage, r.body)
				}
				row, err := g.store.Turn(t.Context(), ledgerRef(q))
				if err != nil || row.Outcome.Charged.Tokens != want.MaxTokens || row.Outcome.Charged.Steps != want.MaxSteps {
					t.Errorf("%s: the ledger has %+v, %v", name, row.Outcome, err)
				}
			}
		}
	}
}

// A turn with a reason of its own keeps it. Good usage is charged as measured, bad or none in full.
func TestSettlementOfTurnsThatEndOtherwise(t *testing.T) {
	t.Parallel()
	full := wire.Usage{MaxTokens: 512, MaxCostMicros: 1000, MaxWallTimeMS: 30000, MaxSteps: 10}
	good := wire.Usage{MaxTokens: 3, MaxCostMicros: 2, MaxWallTimeMS: 5, MaxSteps: 1}
	for name, usage := range map[string]struct {
		line string
		want wire.Usage
	}{
		"good":     {goodUsage, good},
		"over":     {`{"usage":{"max_tokens":600,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1}}`, wire.Usage{MaxTokens: 600, MaxCostMicros: 2, MaxWallTimeMS: 5, MaxSteps: 1}},
		"none":     {`{"usage":{"max_wall_time_ms":5}}`, full},
		"bad":      {`{"usage":{"max_tokens":-1,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1}}`, full},
		"estimate": {`{"usage":{"max_tokens":3,"max_cost_micros":2,"max_wall_time_ms":5,"max_steps":1},"fidelity":"estimated"}`, full},
	} {
		for ends, lines := range map[string][]string{
			"failed/provider-unavailable": {usage.line, `{"error":"no"}`},
			"failed/event-malformed":      {usage.line, action("more", 1), `{"block":true}`},
			"refused/tool-not-admitted":   {usage.line, toolStep},
			"cancelled/cancelled":         {usage.line, action(), `{"block":true}`},
		} {
			t.Run(name+"/"+ends, func(t *testing.T) {
				t.Parallel()
				g := newRig(t, withProfile("tool/mode", "deny-all"))
				q := aRequest("turn:1", script(lines...))
				if strings.HasPrefix(ends, "cancelled") {
					done := g.running(q)
					g.reached("turn:1", 3)
					g.cancel("turn:1")
					(<-done).ends(ends)
				} else {
					g.post(q).ends(ends)
				}
				if o := g.outcome("turn:1"); o.BudgetCharged != usage.want {
					t.Errorf("charged %+v, want %+v", o.BudgetCharged, usage.want)
				}
			})
		}
	}
}

// An echo reports what it can count: one token, no cost, one step.
func TestAnEchoIsChargedWhatItCounts(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	g.post(aRequest("turn:1", "Review the bounded proposal.")).ends("completed/completed")
	if c := g.outcome("turn:1").BudgetCharged; c.MaxTokens != 1 || c.MaxCostMicros != 0 || c.MaxSteps != 1 {
		t.Errorf("charged %+v", c)
	}
}

// Fault L2: no usage is not zero.
func TestFaultL2NoUsage(t *testing.T) {
	t.Parallel()
	full := wire.Usage{MaxTokens: 512, MaxCostMicros: 1000, MaxWallTimeMS: 30000, MaxSteps: 10}
	for fidelity, ends := range map[wire.Fidelity]string{
		wire.FidelityAuthoritative: "failed/usage-missing", wire.FidelityHostMeasured: "failed/usage-missing",
		wire.FidelityEstimated: "completed/completed", wire.FidelityUnavailable: "completed/completed",
	} {
		g := newRig(t, withProfile("usage/fidelity", fidelity))
		none := `{"usage":{}}`
		g.post(aRequest("turn:1", script(`{"text":"x"}`, none))).ends(ends)
		g.post(aRequest("turn:2", script(`{"text":"x"}`, none, `{"unavailable":"cut"}`))).ends("failed/provider-unavailable")
		for _, turn := range []string{"turn:1", "turn:2"} {
			if c := g.outcome(turn).BudgetCharged; c != full {
				t.Errorf("%s: %s is charged %+v", fidelity, turn, c)
			}
		}
	}
}
