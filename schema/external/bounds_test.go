package external_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	wire "github.com/backline-dev/backline/schema/external"
)

// The contract's bounds, field by field, as its schemas have them.

const safe = 1<<53 - 1

// integerBounds are the least and the most of each integer. Where the contract names no most, the rules
// for JSON do.
var integerBounds = map[wire.Document]map[string][2]int64{
	wire.TurnRequestV1: {
		"passage/no":                          {1, 256},
		"budget/reservation.max_tokens":       {1, safe},
		"budget/reservation.max_cost_micros":  {1, safe},
		"budget/reservation.max_wall_time_ms": {1, safe},
		"budget/reservation.max_steps":        {1, 1<<32 - 1},
		"input/parts.*.artifact/size-bytes":   {1, 1 << 20},
	},
	wire.EventV1: {
		"seq/no":                 {1, 1024},
		"progress/current":       {0, safe},
		"progress/total":         {1, safe},
		"usage.max_tokens":       {0, safe},
		"usage.max_cost_micros":  {0, safe},
		"usage.max_wall_time_ms": {0, safe},
		"usage.max_steps":        {0, 1<<32 - 1},
	},
	wire.TurnOutcomeV1: {
		"budget/reserved.max_tokens":       {1, safe},
		"budget/reserved.max_cost_micros":  {1, safe},
		"budget/reserved.max_wall_time_ms": {1, safe},
		"budget/reserved.max_steps":        {1, 1<<32 - 1},
		"budget/charged.max_tokens":        {0, safe},
		"budget/charged.max_cost_micros":   {0, safe},
		"budget/charged.max_wall_time_ms":  {0, safe},
		"budget/charged.max_steps":         {0, 1<<32 - 1},
	},
	wire.ProfileV1: {
		"profile/generation":       {1, safe},
		"limits.max-events":        {1, 1024},
		"limits.max-event-bytes":   {1, 1 << 20},
		"limits.max-product-bytes": {1, 1 << 20},
		"limits.turn-timeout-ms":   {1, 3_600_000},
	},
	wire.BindingV1: {
		"profile/generation":                   {1, safe},
		"max/passages":                         {1, 256},
		"budget/turn-ceiling.max_tokens":       {1, safe},
		"budget/turn-ceiling.max_cost_micros":  {1, safe},
		"budget/turn-ceiling.max_wall_time_ms": {1, safe},
		"budget/turn-ceiling.max_steps":        {1, 1<<32 - 1},
	},
	wire.ProductV1: {
		"content/size-bytes":           {1, 1 << 20},
		"budget/used.max_tokens":       {0, safe},
		"budget/used.max_cost_micros":  {0, safe},
		"budget/used.max_wall_time_ms": {0, safe},
		"budget/used.max_steps":        {0, 1<<32 - 1},
	},
	wire.ClassificationV1: {
		"bound_subjects.public_projection.count": {0, safe},
		"declassify_trail.*.mode.ttl_seconds":    {1, safe},
	},
}

func TestIntegerBounds(t *testing.T) {
	t.Parallel()
	found := map[wire.Document]map[string][2]int64{}
	for _, p := range places(t, func(_ wire.Document, path, value string) bool {
		return value[0]-'0' <= 9 && !strings.HasPrefix(path, "input.")
	}) {
		if found[p.kind] == nil {
			found[p.kind] = map[string][2]int64{}
		}
		bounds := integerBounds[p.kind][p.path]
		found[p.kind][p.path] = bounds
		for _, n := range bounds {
			judge(t, p.kind, put(t, p.doc, p.path, strconv.FormatInt(n, 10)), true, "")
		}
		judge(t, p.kind, put(t, p.doc, p.path, strconv.FormatInt(bounds[0]-1, 10)), false, pointerOf(p.path))
		judge(t, p.kind, put(t, p.doc, p.path, strconv.FormatInt(bounds[1]+1, 10)), false, pointerOf(p.path))
	}
	if diff := cmp.Diff(integerBounds, found); diff != "" {
		t.Errorf("the contract's integers and those found (-want +got):\n%s", diff)
	}
}

// Lists, texts and objects: what n of them is, and how many there may be.
func TestSizes(t *testing.T) {
	t.Parallel()
	docs := validDocuments(t)
	names := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"x%d"`, i))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	repeat := func(element string) func(n int) string {
		return func(n int) string {
			return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
		}
	}
	members := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"x%d":{"a":1,"b":[1,2,{"c,":3}]}`, i))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	letters := func(letter string) func(n int) string {
		return func(n int) string { return `"` + strings.Repeat(letter, n) + `"` }
	}
	content, tool, question := docs[wire.EventV1][0], "", ""
	for _, doc := range docs[wire.EventV1] {
		switch {
		case strings.Contains(doc, `"tool-request"`):
			tool = doc
		case strings.Contains(doc, `"operator-question"`):
			question = doc
		}
	}
	oneShot := string(file(t, "valid/personal-to-community-one-shot-classification.json"))
	persistent := string(file(t, "valid/community-to-public-persistent-classification.json"))
	act := parseNode(t, oneShot)
	act = act.members[len(act.members)-1].value.elements[0]
	const many = 300
	for _, tc := range []struct {
		kind        wire.Document
		doc, path   string
		of          func(n int) string
		least, most int // a most of many stands for none
	}{
		{wire.TurnRequestV1, docs[wire.TurnRequestV1][0], "parent-product/refs", names, 0, 8},
		{wire.TurnRequestV1, docs[wire.TurnRequestV1][0], "input/parts", repeat(`{"kind":"text","text":"x"}`), 1, 32},
		{wire.TurnRequestV1, docs[wire.TurnRequestV1][0], "input/parts.*.text", letters("é"), 1, 65536},
		{wire.TurnRequestV1, docs[wire.TurnRequestV1][1], "observation.evidence/refs", names, 0, 16},
		{wire.EventV1, content, "content", letters("é"), 1, 1 << 20},
		{wire.EventV1, content, "content", letters(`\u00e9`), 1, 1 << 20},
		{wire.EventV1, content, "content", letters("😀"), 1, 1 << 20},
		{wire.EventV1, tool, "input", members, 1, 64},
		{wire.EventV1, question, "question", members, 1, 64},
		{wire.ProfileV1, docs[wire.ProfileV1][0], "egress/classes", func(n int) string {
			return `[` + strings.Join([]string{`"text"`, `"artifact"`, `"metadata"`, `"none"`, `"x"`}[:n], ",") + `]`
		}, 0, 4},
		{wire.BindingV1, docs[wire.BindingV1][0], "prompt-policy/refs", names, 1, 16},
		{wire.BindingV1, docs[wire.BindingV1][0], "output-schema/refs", names, 1, 16},
		{wire.ProductV1, docs[wire.ProductV1][0], "parent-product/refs", names, 0, 8},
		{wire.ClassificationV1, oneShot, "bound_subjects.personal_or_community", repeat(`{"kind":"nym","id":"x"}`), 0, many},
		{wire.ClassificationV1, oneShot, "bound_subjects.personal_or_community.*.id", letters("x"), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail", repeat(act.text()), 0, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.fact_id", letters(" "), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.topic_class", letters("\u00a0"), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.rationale", letters(`\u0000`), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.correlation_id", letters("x"), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.caller.passport_ref", letters("x"), 1, many},
		{wire.ClassificationV1, oneShot, "declassify_trail.*.revocation_anchor", letters("x"), 1, many},
		{wire.ClassificationV1, docs[wire.ClassificationV1][len(docs[wire.ClassificationV1])-2], "declassify_trail.*.evidence_ref", letters("x"), 1, many},
		{wire.ClassificationV1, persistent, "bound_subjects.public_projection.redacted_refs", repeat(`{"kind":"role"}`), 0, many},
		{wire.ClassificationV1, persistent, "bound_subjects.public_projection.redacted_refs.*.role_hint", letters("x"), 1, many},
		{wire.ClassificationV1, string(file(t, "valid/quarantined-ingress-classification.json")), "provenance.peer_ref", letters("x"), 1, many},
		{wire.ClassificationV1, string(file(t, "valid/quarantined-ingress-classification.json")), "quarantine.peer_ref", letters("x"), 1, many},
		{wire.ClassificationV1, docs[wire.ClassificationV1][len(docs[wire.ClassificationV1])-1], "provenance.parents", repeat(`{"kind":"ingress","surface":"inac"}`), 2, 2},
	} {
		for _, n := range []int{tc.least, tc.most} {
			judge(t, tc.kind, put(t, tc.doc, tc.path, tc.of(n)), true, "")
		}
		for _, n := range []int{tc.least - 1, tc.most + 1} {
			if n < 0 || n > many && tc.most == many {
				continue
			}
			judge(t, tc.kind, put(t, tc.doc, tc.path, tc.of(n)), false, pointerOf(tc.path))
		}
	}
}
