package external_test

import (
	"strings"
	"testing"

	wire "github.com/backline-dev/backline/schema/external"
)

func TestOver(t *testing.T) {
	t.Parallel()
	tiers := []wire.Tier{wire.TierPublic, wire.TierCommunity, wire.TierPersonal}
	for i, tier := range tiers {
		for j, ceiling := range tiers {
			c := wire.Classification{SourceTier: tier, EffectiveTier: wire.TierPublic}
			if tier.Over(ceiling) != (i > j) || c.Over(ceiling) != (i > j) {
				t.Errorf("%s over %s: %v, %v", tier, ceiling, tier.Over(ceiling), c.Over(ceiling))
			}
		}
		for _, none := range []wire.Tier{"", "Secret", "public"} {
			if !tier.Over(none) || !none.Over(tier) {
				t.Errorf("%s and %q: %v, %v", tier, none, tier.Over(none), none.Over(tier))
			}
		}
	}
	visibilities := []wire.Visibility{wire.VisibilityPrivate, wire.VisibilityOperator, wire.VisibilityShared}
	for i, v := range visibilities {
		for j, ceiling := range visibilities {
			if v.Over(ceiling) != (i > j) {
				t.Errorf("%s over %s: %v", v, ceiling, v.Over(ceiling))
			}
		}
		for _, none := range []wire.Visibility{"", "public"} {
			if !v.Over(none) || !none.Over(v) {
				t.Errorf("%s and %q: %v, %v", v, none, v.Over(none), none.Over(v))
			}
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	ceiling := wire.Budget{10, 20, 30, 40}
	for _, tc := range []struct {
		b    wire.Budget
		want bool
	}{
		{ceiling, true}, {wire.Budget{1, 1, 1, 1}, true},
		{wire.Budget{11, 20, 30, 40}, false}, {wire.Budget{10, 21, 30, 40}, false}, {wire.Budget{10, 20, 31, 40}, false}, {wire.Budget{10, 20, 30, 41}, false},
	} {
		if got := tc.b.Within(ceiling); got != tc.want {
			t.Errorf("%v within %v: %v", tc.b, ceiling, got)
		}
		if got := wire.Usage(tc.b).Within(ceiling); got != tc.want {
			t.Errorf("usage %v within %v: %v", tc.b, ceiling, got)
		}
	}
	if d := (wire.Budget{MaxWallTimeMS: 1500}).WallTime(); d.String() != "1.5s" {
		t.Errorf("WallTime = %v", d)
	}
	if d := (wire.Budget{MaxWallTimeMS: 1<<53 - 1}).WallTime(); d < 1<<62 {
		t.Errorf("WallTime = %v", d)
	}
	if d := (wire.Limits{TurnTimeoutMS: 3_600_000}).TurnTimeout(); d.String() != "1h0m0s" {
		t.Errorf("TurnTimeout = %v", d)
	}
}

// read reads a label that is valid.
func read(t *testing.T, doc string) *wire.Classification {
	t.Helper()
	c, err := wire.ParseClassification([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWidens(t *testing.T) {
	t.Parallel()
	personal := string(file(t, "valid/personal-local-classification.json"))
	community := label
	public := strings.NewReplacer("Community", "Public", `"personal_or_community":[]`, `"public_projection":{"subject_set_hash":"`+strings.Repeat("0", 64)+`","count":0}`).Replace(label)
	oneShot := string(file(t, "valid/personal-to-community-one-shot-classification.json"))
	quarantined := string(file(t, "valid/quarantined-ingress-classification.json"))
	other := strings.Replace(oneShot, `"whisper"`, `"agora"`, 1)
	for _, tc := range []struct {
		name, label, of string
		want            bool
	}{
		{"the same", personal, personal, false},
		{"Personal of Community", personal, community, false},
		{"Community of Personal", community, personal, true},
		{"Public of Community", public, community, true},
		{"Community of Public", community, public, false},
		{"declassified of not", oneShot, personal, true},
		{"not declassified of declassified", personal, oneShot, false},
		{"declassified the same", oneShot, oneShot, false},
		{"declassified for another surface", other, oneShot, true},
		{"out of quarantine", personal, quarantined, true},
		{"into quarantine", quarantined, personal, false},
	} {
		if got := read(t, tc.label).Widens(read(t, tc.of)); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if !read(t, quarantined).Quarantined() || read(t, personal).Quarantined() {
		t.Error("quarantined is not told")
	}
	if !(&wire.Classification{}).Widens(read(t, personal)) {
		t.Error("an empty label widens nothing")
	}
}

// What the other documents must say together.
func TestRules(t *testing.T) {
	t.Parallel()
	docs := map[wire.Document][]string{}
	for kind, list := range validDocuments(t) {
		for _, doc := range list {
			docs[kind] = append(docs[kind], parseNode(t, doc).text())
		}
	}
	start, goesOn := docs[wire.TurnRequestV1][0], docs[wire.TurnRequestV1][1]
	completed, failed, unknown := docs[wire.TurnOutcomeV1][0], docs[wire.TurnOutcomeV1][1], docs[wire.TurnOutcomeV1][3]
	kept, dropped := docs[wire.ProductV1][0], docs[wire.ProductV1][1]
	profile := docs[wire.ProfileV1][1]
	for _, tc := range []struct {
		kind          wire.Document
		doc, old, new string
		pointer       string // empty: accepted
	}{
		{wire.TurnRequestV1, start, `"start"`, `"continue"`, "/observation"},
		{wire.TurnRequestV1, goesOn, `"continue"`, `"start"`, "/observation"},
		{wire.TurnRequestV1, goesOn, `"receipt/ref":"r:1",`, ``, ""},
		{wire.TurnRequestV1, goesOn, `["x","y"]`, `[]`, ""},
		{wire.TurnRequestV1, goesOn, `["x","y"]`, `["x","\u0078"]`, "/observation/evidence~1refs"},
		{wire.TurnRequestV1, goesOn, `["p:1","p:2"]`, `["1","2","3","4","5","6","7","8"]`, ""},
		{wire.TurnRequestV1, goesOn, `["p:1","p:2"]`, `["1","2","3","4","5","6","7","8","9"]`, "/parent-product~1refs"},
		{wire.TurnRequestV1, goesOn, `,"artifact/size-bytes":12`, ``, "/input~1parts/0/artifact~1size-bytes"},
		{wire.TurnRequestV1, goesOn, `"artifact/size-bytes":12`, `"artifact/size-bytes":1048577`, "/input~1parts/0/artifact~1size-bytes"},
		{wire.TurnRequestV1, start, `"passage/no":1`, `"passage/no":256`, ""},
		{wire.TurnRequestV1, start, `"passage/no":1`, `"passage/no":257`, "/passage~1no"},
		{wire.TurnOutcomeV1, completed, `"product/ref":"agent-external-runtime-product:reviewer:1",`, ``, "/product~1ref"},
		{wire.TurnOutcomeV1, completed, `"completed"`, `"failed"`, "/product~1ref"},
		{wire.TurnOutcomeV1, failed, `"failed"`, `"completed"`, "/product~1ref"},
		{wire.TurnOutcomeV1, failed, `"failed",`, `"failed","product/digest":"` + digestD + `",`, "/product~1digest"},
		{wire.TurnOutcomeV1, failed, `"failed"`, `"unknown"`, "/retryability"},
		{wire.TurnOutcomeV1, unknown, `"reconciliation-required"`, `"terminal"`, "/retryability"},
		{wire.TurnOutcomeV1, unknown, `"reason/code":"unknown"`, `"reason/code":"session-lost"`, "/reason~1code"},
		{wire.TurnOutcomeV1, completed, `"session/checkpoint-ref":"external-runtime-session:reviewer:1",`, ``, ""},
		{wire.ProductV1, kept, `"retained":true`, `"retained":false`, "/artifact~1ref"},
		{wire.ProductV1, dropped, `"retained":false`, `"retained":true`, "/artifact~1ref"},
		{wire.ProfileV1, profile, `["text","artifact"]`, `["none","text","artifact","metadata"]`, ""},
		{wire.ProfileV1, profile, `["text","artifact"]`, `["text","text"]`, "/egress~1classes"},
		{wire.ProfileV1, profile, `["text","artifact"]`, `[]`, ""},
		{wire.ProfileV1, profile, `"max-events":16`, `"max-events":1025`, "/limits/max-events"},
		{wire.ProfileV1, profile, `"turn-timeout-ms":5000`, `"turn-timeout-ms":3600001`, "/limits/turn-timeout-ms"},
		{wire.BindingV1, docs[wire.BindingV1][0], `["corpus-review.v1"]`, `[]`, "/output-schema~1refs"},
	} {
		doc := strings.Replace(tc.doc, tc.old, tc.new, 1)
		if doc == tc.doc {
			t.Errorf("no %s in %s", tc.old, tc.doc)
		}
		judge(t, tc.kind, []byte(doc), tc.pointer == "", tc.pointer)
	}
}

// What a label may not say about its tiers and subjects.
func TestLabelRules(t *testing.T) {
	t.Parallel()
	oneShot := parseNode(t, string(file(t, "valid/personal-to-community-one-shot-classification.json"))).text()
	persistent := parseNode(t, string(file(t, "valid/community-to-public-persistent-classification.json"))).text()
	for _, tc := range []struct {
		doc, old, new string
		pointer       string // empty: accepted
	}{
		{label, `"effective_tier":"Community"`, `"effective_tier":"Personal"`, "/effective_tier"},
		{label, `"source_tier":"Community"`, `"source_tier":"Public"`, "/effective_tier"},
		{label, `"source_tier":"Community"`, `"source_tier":"Personal"`, ""},
		{label, `"effective_tier":"Community"`, `"effective_tier":"Public"`, "/bound_subjects/public_projection"},
		{label, `{"personal_or_community":[]}`, `{}`, "/bound_subjects/personal_or_community"},
		{label, `{"personal_or_community":[]}`, `{"public_projection":{"subject_set_hash":"` + strings.Repeat("0", 64) + `","count":0},"personal_or_community":[]}`, "/bound_subjects/public_projection"},
		{persistent, `"public_projection":{`, `"personal_or_community":[],"public_projection":{`, "/bound_subjects/personal_or_community"},
		{persistent, `"count":3`, `"count":9007199254740992`, "/bound_subjects/public_projection/count"},
		{persistent, `"count":3`, `"count":1e400`, "/bound_subjects/public_projection/count"},
		{persistent, `"count":3`, `"count":0`, ""},
		{persistent, `"ttl_seconds":86400`, `"ttl_seconds":9007199254740991`, ""},
		{persistent, `"ttl_seconds":86400`, `"ttl_seconds":0`, "/declassify_trail/0/mode/ttl_seconds"},
		{persistent, `"ttl_seconds":86400`, `"consumed_at":"2026-04-19T10:00:00Z"`, "/declassify_trail/0/mode/ttl_seconds"},
		{persistent, `"ttl_seconds":86400`, `"ttl_seconds":86400,"consumed_at":"2026-04-19T10:00:00Z"`, "/declassify_trail/0/mode/consumed_at"},
		{persistent, `"from":"Community"`, `"from":"Personal"`, "/declassify_trail/0/to"},
		{persistent, `"from":"Community"`, `"from":"Public"`, "/declassify_trail/0/from"},
		{persistent, `"to":"Public"`, `"to":"Community"`, "/declassify_trail/0/to"},
		{oneShot, `"kind":"one-shot"`, `"kind":"one-shot","ttl_seconds":1`, "/declassify_trail/0/mode/ttl_seconds"},
		{oneShot, `"kind":"one-shot"`, `"kind":"one-shot","consumed_at":"2026-04-19T10:00:00Z"`, ""},
		{oneShot, `"rationale":`, `"expires_at":"2026-04-19T10:00:00Z","rationale":`, "/declassify_trail/0/expires_at"},
		{label, `"space":"Crisis"`, `"space":"Crisis","peer_ref":"x"`, "/provenance/peer_ref"},
		{label, `"kind":"local-space","space":"Crisis"`, `"kind":"ingress","space":"Crisis"`, "/provenance/surface"},
		{label, `"kind":"local-space","space":"Crisis"`, `"kind":"ingress","surface":"inac","space":"Crisis"`, "/provenance/space"},
		{label, `"kind":"local-space","space":"Crisis"`, `"kind":"ingress","surface":"inac","peer_ref":""`, "/provenance/peer_ref"},
		{label, `"kind":"local-space","space":"Crisis"`, `"kind":"derived","parents":[{"kind":"local-space","space":"Crisis"}]`, "/provenance/parents"},
		{label, `"kind":"local-space","space":"Crisis"`, `"kind":"derived"`, "/provenance/parents"},
		{persistent, `"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"`, `"` + strings.Repeat("A", 64) + `"`, ""},
		{persistent, `"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"`, `"` + strings.Repeat("g", 64) + `"`, "/bound_subjects/public_projection/subject_set_hash"},
		{persistent, `"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"`, `"` + strings.Repeat("a", 65) + `"`, "/bound_subjects/public_projection/subject_set_hash"},
		{label, `"declassify_trail":[]`, `"declassify_trail":[],"quarantine":null`, "/quarantine"},
		{label, `"declassify_trail":[]`, `"declassify_trail":[],"quarantine":{"reason":"operator-hold","entered_at":"2026-04-19T10:00:00Z"}`, ""},
	} {
		doc := strings.Replace(tc.doc, tc.old, tc.new, 1)
		if doc == tc.doc {
			t.Errorf("no %s in %s", tc.old, tc.doc)
		}
		judge(t, wire.ClassificationV1, []byte(doc), tc.pointer == "", tc.pointer)
	}
}
