package adapters

import "strconv"

// A Fidelity tells who measured a [Usage].
type Fidelity string

// The fidelities. The empty one means the protocol's own default.
const (
	Authoritative Fidelity = "authoritative"
	HostMeasured  Fidelity = "host-measured"
	Estimated     Fidelity = "estimated"
	Unmeasurable  Fidelity = "unavailable"
)

// A Measure is one measured number, or none: the zero value is unmeasured, which is not zero.
type Measure struct{ text string }

// Count is a measured whole number.
func Count(n int64) Measure { return Measure{strconv.FormatInt(n, 10)} }

// RawMeasure is a measured value in JSON, as a provider reported it. It is passed on as it is, also
// where it is no sensible number: the protocol decides what that means. An empty text is unmeasured.
func RawMeasure(json string) Measure { return Measure{json} }

// Known tells whether anything was measured.
func (m Measure) Known() bool { return m.text != "" }

// Int is the value as an integer; false where it is unmeasured or not an integer of 64 bits.
func (m Measure) Int() (int64, bool) {
	n, err := strconv.ParseInt(m.text, 10, 64)
	return n, err == nil
}

// String is the value in JSON, or "unmeasured".
func (m Measure) String() string {
	if m.text == "" {
		return "unmeasured"
	}
	return m.text
}

// Usage is what a turn used. The four axes are those that hosts budget by.
type Usage struct {
	Tokens     Measure
	CostMicros Measure // millionths of the currency the host budgets in
	WallTimeMS Measure // milliseconds
	Steps      Measure

	// InputTokens and OutputTokens split Tokens for metrics; no protocol charges by them.
	InputTokens, OutputTokens Measure

	Fidelity Fidelity
}

// Merge returns u with every axis that later measured taken from later. Reports are cumulative, so
// the last one counts.
func (u Usage) Merge(later Usage) Usage {
	pick := func(a, b Measure) Measure {
		if b.Known() {
			return b
		}
		return a
	}
	u.Tokens = pick(u.Tokens, later.Tokens)
	u.CostMicros = pick(u.CostMicros, later.CostMicros)
	u.WallTimeMS = pick(u.WallTimeMS, later.WallTimeMS)
	u.Steps = pick(u.Steps, later.Steps)
	u.InputTokens = pick(u.InputTokens, later.InputTokens)
	u.OutputTokens = pick(u.OutputTokens, later.OutputTokens)
	if later.Fidelity != "" {
		u.Fidelity = later.Fidelity
	}
	return u
}
