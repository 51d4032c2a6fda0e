package external

import (
	"encoding/json"
	"strconv"

	"github.com/backline-dev/backline/schema/internal/scan"
)

// Documents are written field by field, in the order of the contract, so that the same value has the
// same bytes always. What is written is valid UTF-8 and has no line end in it, whatever a value holds;
// whether it is a valid document depends on the value.

// Append appends the event as one line without its end, and returns the longer slice. It writes the
// fields that every event has and those of its kind, whatever the others hold; Schema is not looked at.
// Input and Question must be JSON and are written as they are, save that line ends between their values
// become spaces.
func (e *Event) Append(dst []byte) []byte {
	dst = append(dst, `{"schema":"`+string(EventV1)+`","event/ref":`...)
	dst = appendText(dst, e.EventRef)
	dst = append(dst, `,"turn/ref":`...)
	dst = appendText(dst, e.TurnRef)
	dst = append(dst, `,"seq/no":`...)
	dst = strconv.AppendInt(dst, e.SeqNo, 10)
	dst = append(dst, `,"kind":`...)
	dst = appendText(dst, e.Kind)
	switch e.Kind {
	case EventProgress:
		dst = append(dst, `,"progress/code":`...)
		dst = appendText(dst, e.ProgressCode)
		dst = append(dst, `,"progress/current":`...)
		dst = strconv.AppendInt(dst, e.ProgressCurrent, 10)
		if e.ProgressTotal != 0 {
			dst = append(dst, `,"progress/total":`...)
			dst = strconv.AppendInt(dst, e.ProgressTotal, 10)
		}
	case EventActionCandidate:
		dst = append(dst, `,"action/schema":`...)
		dst = appendText(dst, e.ActionSchema)
		dst = append(dst, `,"action/digest":`...)
		dst = appendText(dst, e.ActionDigest)
	case EventProductCandidate:
		dst = append(dst, `,"content":`...)
		dst = appendText(dst, e.Content)
		dst = append(dst, `,"output-schema/ref":`...)
		dst = appendText(dst, e.OutputSchemaRef)
	case EventToolRequest:
		dst = append(dst, `,"request/ref":`...)
		dst = appendText(dst, e.RequestRef)
		dst = append(dst, `,"tool/ref":`...)
		dst = appendText(dst, e.ToolRef)
		dst = append(dst, `,"input/schema-ref":`...)
		dst = appendText(dst, e.InputSchemaRef)
		dst = append(dst, `,"input/digest":`...)
		dst = appendText(dst, e.InputDigest)
		dst = append(dst, `,"input":`...)
		dst = appendRaw(dst, e.Input)
		dst = append(dst, `,"classification":`...)
		if e.Classification == nil {
			dst = append(dst, `null`...)
		} else {
			dst = e.Classification.Append(dst)
		}
		dst = append(dst, `,"deadline/at":`...)
		dst = appendText(dst, e.DeadlineAt)
	case EventOperatorQuestion:
		dst = append(dst, `,"request/ref":`...)
		dst = appendText(dst, e.RequestRef)
		dst = append(dst, `,"question/schema-ref":`...)
		dst = appendText(dst, e.QuestionSchemaRef)
		dst = append(dst, `,"question/digest":`...)
		dst = appendText(dst, e.QuestionDigest)
		dst = append(dst, `,"question":`...)
		dst = appendRaw(dst, e.Question)
		dst = append(dst, `,"deadline/at":`...)
		dst = appendText(dst, e.DeadlineAt)
	case EventUsage:
		dst = append(dst, `,"usage/fidelity":`...)
		dst = appendText(dst, e.UsageFidelity)
		dst = append(dst, `,"usage":`...)
		dst = e.Usage.append(dst)
	case EventTurnOutcome:
		dst = append(dst, `,"status":`...)
		dst = appendText(dst, e.Status)
		dst = append(dst, `,"reason/code":`...)
		dst = appendText(dst, e.ReasonCode)
	}
	dst = append(dst, `,"at":`...)
	dst = appendText(dst, e.At)
	return append(dst, '}')
}

// MarshalJSON writes what [Event.Append] does.
func (e Event) MarshalJSON() ([]byte, error) { return e.Append(nil), nil }

// Append appends the outcome and returns the longer slice. Schema is not looked at; fields that are
// empty where they may be missing are left out.
func (o *Outcome) Append(dst []byte) []byte {
	dst = append(dst, `{"schema":"`+string(TurnOutcomeV1)+`","outcome/ref":`...)
	dst = appendText(dst, o.OutcomeRef)
	dst = append(dst, `,"turn/ref":`...)
	dst = appendText(dst, o.TurnRef)
	dst = append(dst, `,"binding/ref":`...)
	dst = appendText(dst, o.BindingRef)
	dst = append(dst, `,"agent/id":`...)
	dst = appendText(dst, o.AgentID)
	dst = append(dst, `,"status":`...)
	dst = appendText(dst, o.Status)
	dst = append(dst, `,"reason/code":`...)
	dst = appendText(dst, o.ReasonCode)
	dst = append(dst, `,"retryability":`...)
	dst = appendText(dst, o.Retryability)
	dst = appendOptional(dst, `,"product/ref":`, o.ProductRef)
	dst = appendOptional(dst, `,"product/digest":`, o.ProductDigest)
	dst = append(dst, `,"budget/reserved":`...)
	dst = Usage(o.BudgetReserved).append(dst)
	dst = append(dst, `,"budget/charged":`...)
	dst = o.BudgetCharged.append(dst)
	dst = append(dst, `,"usage/fidelity":`...)
	dst = appendText(dst, o.UsageFidelity)
	dst = appendOptional(dst, `,"session/checkpoint-ref":`, o.SessionCheckpointRef)
	dst = append(dst, `,"selected/at":`...)
	dst = appendText(dst, o.SelectedAt)
	dst = append(dst, `,"selected/by":`...)
	dst = appendText(dst, o.SelectedBy)
	return append(dst, '}')
}

// MarshalJSON writes what [Outcome.Append] does.
func (o Outcome) MarshalJSON() ([]byte, error) { return o.Append(nil), nil }

// Append appends the product and returns the longer slice. Schema is not looked at; ArtifactRef is left
// out where it is empty.
func (p *Product) Append(dst []byte) []byte {
	dst = append(dst, `{"schema":"`+string(ProductV1)+`","product/ref":`...)
	dst = appendText(dst, p.ProductRef)
	dst = append(dst, `,"product/digest":`...)
	dst = appendText(dst, p.ProductDigest)
	dst = append(dst, `,"turn/ref":`...)
	dst = appendText(dst, p.TurnRef)
	dst = append(dst, `,"passage/ref":`...)
	dst = appendText(dst, p.PassageRef)
	dst = append(dst, `,"binding/ref":`...)
	dst = appendText(dst, p.BindingRef)
	dst = append(dst, `,"agent/id":`...)
	dst = appendText(dst, p.AgentID)
	dst = append(dst, `,"kind":`...)
	dst = appendText(dst, p.Kind)
	dst = append(dst, `,"parent-product/refs":[`...)
	for i, parent := range p.ParentProductRefs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, parent)
	}
	dst = append(dst, `],"content/digest":`...)
	dst = appendText(dst, p.ContentDigest)
	dst = append(dst, `,"content/size-bytes":`...)
	dst = strconv.AppendInt(dst, p.ContentSizeBytes, 10)
	dst = appendOptional(dst, `,"artifact/ref":`, p.ArtifactRef)
	dst = append(dst, `,"retained":`...)
	dst = strconv.AppendBool(dst, p.Retained)
	dst = append(dst, `,"output-schema/ref":`...)
	dst = appendText(dst, p.OutputSchemaRef)
	dst = append(dst, `,"producer/snapshot":`...)
	dst = appendText(dst, p.ProducerSnapshot)
	dst = append(dst, `,"budget/used":`...)
	dst = p.BudgetUsed.append(dst)
	dst = append(dst, `,"visibility":`...)
	dst = appendText(dst, p.Visibility)
	dst = append(dst, `,"classification":`...)
	dst = p.Classification.Append(dst)
	dst = append(dst, `,"committed/at":`...)
	dst = appendText(dst, p.CommittedAt)
	dst = append(dst, `,"committed/by":`...)
	dst = appendText(dst, p.CommittedBy)
	return append(dst, '}')
}

// MarshalJSON writes what [Product.Append] does.
func (p Product) MarshalJSON() ([]byte, error) { return p.Append(nil), nil }

// Append appends the label and returns the longer slice. Schema is not looked at; fields that are empty
// where they may be missing are left out.
func (c *Classification) Append(dst []byte) []byte {
	dst = append(dst, `{"schema":"`+string(ClassificationV1)+`","source_tier":`...)
	dst = appendText(dst, c.SourceTier)
	dst = append(dst, `,"effective_tier":`...)
	dst = appendText(dst, c.EffectiveTier)
	dst = append(dst, `,"provenance":`...)
	dst = c.Provenance.append(dst)
	dst = append(dst, `,"bound_subjects":`...)
	dst = c.BoundSubjects.append(dst)
	dst = append(dst, `,"declassify_trail":[`...)
	for i := range c.DeclassifyTrail {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = c.DeclassifyTrail[i].append(dst)
	}
	dst = append(dst, ']')
	if q := c.Quarantine; q != nil {
		dst = append(dst, `,"quarantine":{"reason":`...)
		dst = appendText(dst, q.Reason)
		dst = append(dst, `,"entered_at":`...)
		dst = appendText(dst, q.EnteredAt)
		dst = appendOptional(dst, `,"peer_ref":`, q.PeerRef)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// MarshalJSON writes what [Classification.Append] does.
func (c Classification) MarshalJSON() ([]byte, error) { return c.Append(nil), nil }

func (o *Origin) append(dst []byte) []byte {
	dst = append(dst, `{"kind":`...)
	dst = appendText(dst, o.Kind)
	dst = appendOptional(dst, `,"space":`, o.Space)
	dst = appendOptional(dst, `,"surface":`, o.Surface)
	dst = appendOptional(dst, `,"peer_ref":`, o.PeerRef)
	if o.Parents != nil {
		dst = append(dst, `,"parents":[`...)
		for i := range o.Parents {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = o.Parents[i].append(dst)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

func (b *BoundSubjects) append(dst []byte) []byte {
	dst = append(dst, '{')
	if b.PersonalOrCommunity != nil {
		dst = append(dst, `"personal_or_community":[`...)
		for i, s := range b.PersonalOrCommunity {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"kind":`...)
			dst = appendText(dst, s.Kind)
			dst = append(dst, `,"id":`...)
			dst = appendText(dst, s.ID)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	if p := b.PublicProjection; p != nil {
		if b.PersonalOrCommunity != nil {
			dst = append(dst, ',')
		}
		dst = append(dst, `"public_projection":{"subject_set_hash":`...)
		dst = appendText(dst, p.SubjectSetHash)
		dst = append(dst, `,"count":`...)
		dst = strconv.AppendInt(dst, p.Count, 10)
		if p.RedactedRefs != nil {
			dst = append(dst, `,"redacted_refs":[`...)
			for i, r := range p.RedactedRefs {
				if i > 0 {
					dst = append(dst, ',')
				}
				dst = append(dst, `{"kind":`...)
				dst = appendText(dst, r.Kind)
				dst = appendOptional(dst, `,"role_hint":`, r.RoleHint)
				dst = append(dst, '}')
			}
			dst = append(dst, ']')
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func (f *Declassify) append(dst []byte) []byte {
	dst = append(dst, `{"fact_id":`...)
	dst = appendText(dst, f.FactID)
	dst = append(dst, `,"from":`...)
	dst = appendText(dst, f.From)
	dst = append(dst, `,"to":`...)
	dst = appendText(dst, f.To)
	dst = append(dst, `,"surface":`...)
	dst = appendText(dst, f.Surface)
	dst = append(dst, `,"topic_class":`...)
	dst = appendText(dst, f.TopicClass)
	dst = append(dst, `,"mode":{"kind":`...)
	dst = appendText(dst, f.Mode.Kind)
	dst = appendOptional(dst, `,"consumed_at":`, f.Mode.ConsumedAt)
	if f.Mode.TTLSeconds != 0 {
		dst = append(dst, `,"ttl_seconds":`...)
		dst = strconv.AppendInt(dst, f.Mode.TTLSeconds, 10)
	}
	dst = append(dst, `},"rationale":`...)
	dst = appendText(dst, f.Rationale)
	dst = append(dst, `,"caller":{"passport_ref":`...)
	dst = appendText(dst, f.Caller.PassportRef)
	dst = append(dst, `,"role":`...)
	dst = appendText(dst, f.Caller.Role)
	dst = append(dst, `},"correlation_id":`...)
	dst = appendText(dst, f.CorrelationID)
	dst = append(dst, `,"issued_at":`...)
	dst = appendText(dst, f.IssuedAt)
	dst = appendOptional(dst, `,"expires_at":`, f.ExpiresAt)
	dst = appendOptional(dst, `,"revocation_anchor":`, f.RevocationAnchor)
	dst = appendOptional(dst, `,"evidence_ref":`, f.EvidenceRef)
	return append(dst, '}')
}

func (u Usage) append(dst []byte) []byte {
	dst = append(dst, `{"max_tokens":`...)
	dst = strconv.AppendInt(dst, u.MaxTokens, 10)
	dst = append(dst, `,"max_cost_micros":`...)
	dst = strconv.AppendInt(dst, u.MaxCostMicros, 10)
	dst = append(dst, `,"max_wall_time_ms":`...)
	dst = strconv.AppendInt(dst, u.MaxWallTimeMS, 10)
	dst = append(dst, `,"max_steps":`...)
	dst = strconv.AppendInt(dst, u.MaxSteps, 10)
	return append(dst, '}')
}

// appendRaw appends JSON as it is, without line ends, which can only be white space there; null where
// there is none.
func appendRaw(dst []byte, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return append(dst, `null`...)
	}
	from := len(dst)
	dst = append(dst, raw...)
	for i, c := range dst[from:] {
		if c == '\n' || c == '\r' {
			dst[from+i] = ' '
		}
	}
	return dst
}

// appendText appends a string for a line.
func appendText[S ~string](dst []byte, s S) []byte { return scan.AppendString(dst, string(s), true) }

// appendOptional appends a key and a string that is not empty.
func appendOptional[S ~string](dst []byte, key string, s S) []byte {
	if s == "" {
		return dst
	}
	dst = append(dst, key...)
	return scan.AppendString(dst, string(s), true)
}
