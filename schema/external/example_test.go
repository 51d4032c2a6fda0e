package external_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	wire "github.com/backline-dev/backline/schema/external"
)

const turnRequest = `{
  "schema": "agent.external-runtime.turn-request.v1",
  "turn/ref": "turn:1", "mode": "start", "binding/ref": "binding:reviewer",
  "binding/digest": "sha256:fEU6Jc4DxxxXuzELH5wTX0QPcszpvFuCz1sHt4b7_Iw",
  "agent/id": "agent:reviewer", "passage/ref": "passage:1", "passage/no": 1, "kind": "draft", "parent-product/refs": [],
  "input/parts": [{"kind": "text", "text": "Review the bounded proposal."}],
  "input/digest": "sha256:_iM5LmDx5qNO9opsVcV5-r9s1NIiIn6m7Q5jXPylKZo",
  "instruction/hash": "sha256:CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
  "prompt-policy/ref": "prompt-policy:review", "output-schema/ref": "review.v1", "visibility": "operator",
  "classification": {
    "schema": "classification.v1", "source_tier": "Community", "effective_tier": "Community",
    "provenance": {"kind": "local-space", "space": "Community"},
    "bound_subjects": {"personal_or_community": []}, "declassify_trail": []
  },
  "budget/reservation": {"max_tokens": 512, "max_cost_micros": 1000, "max_wall_time_ms": 5000, "max_steps": 1},
  "idempotency/key": "turn:1:start",
  "deadline/at": "2026-09-01T00:05:00Z", "admitted/at": "2026-09-01T00:00:00Z", "admitted/by": "local-control"
}`

func ExampleParseTurnRequest() {
	r, err := wire.ParseTurnRequest([]byte(turnRequest))
	if err != nil {
		fmt.Println(err)
		return
	}
	digest, err := r.DigestInput()
	fmt.Println(r.TurnRef, r.InputParts[0].Text, r.BudgetReservation.WallTime())
	fmt.Println(digest == r.InputDigest, err)
	fmt.Println(r.Classification.Over(wire.TierPublic), r.Visibility.Over(wire.VisibilityShared))
	// Output:
	// turn:1 Review the bounded proposal. 5s
	// true <nil>
	// true false
}

func ExampleParseTurnRequest_refused() {
	for _, body := range []string{
		strings.Replace(turnRequest, `"passage/no": 1`, `"passage/no": 257`, 1),
		strings.Replace(turnRequest, `"agent/id"`, `"agent/ID"`, 1),
		strings.Replace(turnRequest, `"kind": "draft",`, `"kind": "draft", "kind": "final",`, 1),
	} {
		_, err := wire.ParseTurnRequest([]byte(body))
		var refusal *wire.Error
		if errors.As(err, &refusal) {
			fmt.Println(refusal)
		}
	}
	// Output:
	// /passage~1no is 257, expected an integer of at least 1 and of at most 256
	// /agent~1ID is "agent:reviewer", expected no field of this name
	// malformed JSON: duplicate key "kind" (line 5, column 95, byte 300, in /kind)
}

func ExampleExplain() {
	body := strings.NewReplacer(`"start"`, `"begin"`, `"2026-09-01T00:05:00Z"`, `"soon"`, `"Review the bounded proposal."`, `""`).Replace(turnRequest)
	for _, v := range wire.Explain(wire.TurnRequestV1, []byte(body)) {
		fmt.Println(v)
	}
	// Output:
	// /mode is "begin", expected "start" or "continue"
	// /input~1parts/0/text is "", expected a string of 1 to 65536 characters
	// /deadline~1at is "soon", expected a string that is a date and time as in RFC 3339
}

func ExampleCheck() {
	label := []byte(`{"schema":"classification.v1","source_tier":"Public"}`)
	if kind, ok := wire.DocumentOf(label); ok {
		fmt.Println(kind, wire.Check(kind, label))
	}
	// Output:
	// classification.v1 /effective_tier is missing, expected "Personal", "Community" or "Public"
}

func ExampleDocumentOf() {
	fmt.Println(wire.DocumentOf([]byte(turnRequest)))
	fmt.Println(wire.DocumentOf([]byte(`{"pluginId":"muse"}`)))
	// Output:
	// agent.external-runtime.turn-request.v1 true
	//  false
}

// A binding's digest covers the document with that one field set to the empty string.
func ExampleDigestWithout() {
	digest, err := wire.DigestWithout([]byte(`{"binding/ref": "binding:1", "binding/digest": "sha256:not yet known"}`), "binding/digest")
	fmt.Println(digest, err)
	fmt.Println(wire.CanonicalDigest([]byte(`{"binding/digest":"","binding/ref":"binding:1"}`)))
	// Output:
	// sha256:_I82My8nNcyTCbPqH02dCiqrQ44yCwKCCRtd5ukFKK4 <nil>
	// sha256:_I82My8nNcyTCbPqH02dCiqrQ44yCwKCCRtd5ukFKK4 <nil>
}

func ExampleCanonicalDigest() {
	fmt.Println(wire.CanonicalDigest([]byte(`["e\u0301"]`)))
	fmt.Println(wire.CanonicalDigest([]byte(`["\u00e9"]`))) // looks the same and is another text
	// Output:
	// sha256:MoYDlNQR6zhL6YiWhWFBIZkIfF_YvjAE71UW2yF_slQ <nil>
	// sha256:C2V745Sx1DL40ZQkBu0JwhNgTLzYeymWQc-ZS8r4SxE <nil>
}

func ExampleAppendCanonical() {
	text, err := wire.AppendCanonical(nil, []byte(`{"b": 1.0, "a": [1e21, "\u003c"]}`))
	fmt.Println(string(text), err)
	// Output: {"a":[1e+21,"<"],"b":1} <nil>
}

func ExampleContentDigest() {
	fmt.Println(wire.ContentDigest([]byte("The proposal preserves the stated authority boundary.")))
	// Output: sha256:a4piDaciOyAW5Ra9_V8rd-_oUWwpNPBgmWzXOAk7vR8
}

func ExampleInputDigest() {
	fmt.Println(wire.InputDigest([]byte(turnRequest)))
	// Output: sha256:_iM5LmDx5qNO9opsVcV5-r9s1NIiIn6m7Q5jXPylKZo <nil>
}

func ExampleParseEvent() {
	e, err := wire.ParseEvent([]byte(`{"schema":"agent.external-runtime.event.v1","event/ref":"e:1","turn/ref":"turn:1","seq/no":1,"kind":"turn-outcome","status":"refused","reason/code":"policy-denied","at":"2026-09-01T00:00:01Z"}`))
	fmt.Println(e.Kind, e.Status, e.ReasonCode, err)
	// Output: turn-outcome refused policy-denied <nil>
}

func ExampleEvent_Append() {
	e := wire.Event{
		EventRef: "e:2", TurnRef: "turn:1", SeqNo: 2, Kind: wire.EventProgress,
		ProgressCode: wire.ProgressRunning, ProgressCurrent: 1200,
		At: wire.DateTimeOf(time.Date(2026, 9, 1, 0, 0, 1, 0, time.UTC)),
	}
	fmt.Println(string(e.Append(nil)))
	// Output: {"schema":"agent.external-runtime.event.v1","event/ref":"e:2","turn/ref":"turn:1","seq/no":2,"kind":"progress","progress/code":"running","progress/current":1200,"at":"2026-09-01T00:00:01Z"}
}

func ExampleGrammar() {
	lines := `{"schema":"agent.external-runtime.event.v1","event/ref":"e:1","turn/ref":"turn:1","seq/no":1,"kind":"progress","progress/code":"accepted","progress/current":0,"at":"2026-09-01T00:00:01Z"}
{"schema":"agent.external-runtime.event.v1","event/ref":"e:1","turn/ref":"turn:1","seq/no":3,"kind":"turn-outcome","status":"cancelled","reason/code":"cancelled","at":"2026-09-01T00:00:02Z"}
`
	var g wire.Grammar
	for line := range strings.Lines(lines) {
		line = strings.TrimSuffix(line, "\n")
		e, err := wire.ParseEvent([]byte(line))
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, v := range g.Next(e, len(line)) {
			fmt.Println(v)
		}
	}
	for _, v := range g.End() {
		fmt.Println(v)
	}
	// Output:
	// /1/seq~1no is 3, expected 2
	// /1/event~1ref is "e:1", expected a name that no earlier event has
}

func ExampleParseOutcome() {
	o := wire.Outcome{
		OutcomeRef: "outcome:1", TurnRef: "turn:1", BindingRef: "binding:reviewer", AgentID: "agent:reviewer",
		Status: wire.StatusFailed, ReasonCode: wire.ReasonEventTimeout, Retryability: wire.Retryable,
		BudgetReserved: wire.Budget{MaxTokens: 512, MaxCostMicros: 1000, MaxWallTimeMS: 5000, MaxSteps: 1},
		BudgetCharged:  wire.Usage{MaxTokens: 512, MaxCostMicros: 1000, MaxWallTimeMS: 5000, MaxSteps: 1},
		UsageFidelity:  wire.FidelityUnavailable, SelectedAt: "2026-09-01T00:00:06Z", SelectedBy: "backline",
	}
	back, err := wire.ParseOutcome(o.Append(nil))
	fmt.Println(back.Status, back.BudgetCharged == wire.Usage(back.BudgetReserved), err)
	// Output: failed true <nil>
}

func ExampleParseProfile() {
	_, err := wire.ParseProfile([]byte(`{"schema":"agent.external-runtime.profile.v1","profile/ref":"profile 1"}`))
	fmt.Println(err)
	// Output: /profile~1ref is "profile 1", expected a string of 1 to 512 characters matching ^[^\s\u0000-\u001f\u007f]+$
}

func ExampleParseBinding() {
	_, err := wire.ParseBinding([]byte(`{"schema":"agent.external-runtime.binding.v1","max/passages":0}`))
	fmt.Println(err)
	// Output: /max~1passages is 0, expected an integer of at least 1 and of at most 256
}

func ExampleParseProduct() {
	_, err := wire.ParseProduct([]byte(`{"schema":"agent.external-runtime.product.v1","retained":"yes"}`))
	fmt.Println(err)
	// Output: /retained is "yes", expected true or false
}

func ExampleParseClassification() {
	c, err := wire.ParseClassification([]byte(`{"schema":"classification.v1","source_tier":"Personal","effective_tier":"Personal",
		"provenance":{"kind":"ingress","surface":"import"},"bound_subjects":{"personal_or_community":[]},"declassify_trail":[],
		"quarantine":{"reason":"no-label-at-ingress","entered_at":"2026-09-01T00:00:00Z"}}`))
	fmt.Println(c.SourceTier, c.Over(wire.TierCommunity), c.Quarantined(), err)
	// Output: Personal true true <nil>
}

func ExampleSchema() {
	var doc struct {
		ID    string `json:"$id"`
		Title string `json:"title"`
	}
	err := json.Unmarshal(wire.Schema(wire.ProfileV1), &doc)
	fmt.Println(doc.ID, doc.Title, err)
	// Output: urn:orbiplex:schema:agent.external-runtime.profile:v1 Agent External Runtime Profile v1 <nil>
}

func ExampleSchemaID() {
	for _, kind := range wire.Values[wire.Document]() {
		fmt.Println(wire.SchemaID(kind))
	}
	// Output:
	// urn:orbiplex:schema:agent.external-runtime.turn-request:v1
	// urn:orbiplex:schema:agent.external-runtime.event:v1
	// urn:orbiplex:schema:agent.external-runtime.turn-outcome:v1
	// urn:orbiplex:schema:agent.external-runtime.profile:v1
	// urn:orbiplex:schema:agent.external-runtime.binding:v1
	// urn:orbiplex:schema:agent.external-runtime.product:v1
	// urn:orbiplex:schema:classification:v1
}

func ExampleSchemaFile() {
	fmt.Println(wire.SchemaFile(wire.EventV1))
	// Output: agent.external-runtime.event.v1.schema.json
}

func ExampleValues() {
	fmt.Println(wire.Values[wire.Status](), len(wire.Values[wire.ReasonCode]()))
	// Output: [completed refused failed cancelled unknown] 28
}

func ExampleDateTimeOf() {
	fmt.Println(wire.DateTimeOf(time.Date(2026, 9, 1, 2, 0, 0, 500_000_000, time.FixedZone("", 2*60*60))))
	fmt.Println(wire.DateTime("2016-12-31t23:59:60z").Time())
	// Output:
	// 2026-09-01T00:00:00.5Z
	// 2017-01-01 00:00:00 +0000 UTC <nil>
}

func ExampleValidRef() {
	fmt.Println(wire.ValidRef("agent:reviewer/1"), wire.ValidRef("a\u00a0b"), wire.ValidRef(""))
	// Output: true false false
}

func ExampleValidDigest() {
	fmt.Println(wire.ValidDigest("sha256:_iM5LmDx5qNO9opsVcV5-r9s1NIiIn6m7Q5jXPylKZo"), wire.ValidDigest("sha256:abc"))
	// Output: true false
}
