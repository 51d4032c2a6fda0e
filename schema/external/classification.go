package external

import "slices"

// A Classification is the label that travels with data across component boundaries
// (classification.v1): how restricted it is, where it came from, whom it is about, and what was done to
// let it go further. The tiers are Personal > Community > Public, the first the most restricted.
type Classification struct {
	Schema Document `json:"schema" jsonschema_description:"What the label is, also where it is found outside its envelope."`
	// SourceTier is what rules here go by.
	SourceTier Tier `json:"source_tier" jsonschema_description:"The tier given at first write or ingress. Never rewritten."`
	// EffectiveTier is at most SourceTier. It is a cache of the sender's, not an authority.
	EffectiveTier   Tier          `json:"effective_tier" jsonschema_description:"The tier that a concrete egress boundary derived from the trail of declassifications. At most as restricted as the source tier; a cache, not an authority."`
	Provenance      Origin        `json:"provenance" jsonschema_description:"Where the data first entered the system."`
	BoundSubjects   BoundSubjects `json:"bound_subjects" jsonschema_description:"Whom the data is about, as far as the effective tier allows."`
	DeclassifyTrail []Declassify  `json:"declassify_trail" jsonschema_description:"What was done to lower the effective tier, oldest first. May be empty. It authorises nothing by itself."`
	// Quarantine is nil unless the data is in quarantine.
	Quarantine *Quarantine `json:"quarantine,omitempty" jsonschema_description:"There exactly while the data has come in and no operator has accepted it. A guarded read of such data is refused."`
}

// An Origin is where data came from. Only the fields of its kind are set.
type Origin struct {
	Kind OriginKind `json:"kind" jsonschema_description:"What the origin is: a space of the host's, a way in from outside, or a derivation."`

	Space Space `json:"space,omitempty" jsonschema_description:"The space."`

	Surface IngressSurface `json:"surface,omitempty" jsonschema_description:"The way in."`
	// PeerRef is empty where there is none.
	PeerRef string `json:"peer_ref,omitempty" jsonschema:"minLength=1" jsonschema_description:"The peer or the import that it came from."`

	// Parents are the two origins of a derivation; more are derivations of derivations.
	Parents []Origin `json:"parents,omitempty" jsonschema:"minItems=2,maxItems=2" jsonschema_description:"The two origins of what was derived. Of more than two, all but the last are a derivation of their own."`
}

// BoundSubjects tells whom data is about: everybody by name where the effective tier is Personal or
// Community, and a projection where it is Public. Exactly one of the two is not nil.
type BoundSubjects struct {
	PersonalOrCommunity []Subject         `json:"personal_or_community,omitzero" jsonschema_description:"The subjects. There exactly where the effective tier is Personal or Community. May be empty."`
	PublicProjection    *PublicProjection `json:"public_projection,omitempty" jsonschema_description:"A projection that does not give the subjects away. There exactly where the effective tier is Public."`
}

// A Subject is somebody or something with an interest in the data.
type Subject struct {
	Kind SubjectKind `json:"kind" jsonschema_description:"What kind of subject it is."`
	ID   string      `json:"id" jsonschema:"minLength=1" jsonschema_description:"The subject."`
}

// A PublicProjection tells about subjects without naming them.
type PublicProjection struct {
	SubjectSetHash SubjectSetHash `json:"subject_set_hash" jsonschema_description:"A salted digest of the full set of subjects, in hexadecimal digits."`
	Count          int64          `json:"count" jsonschema:"minimum=0" jsonschema_description:"How many subjects there are."`
	// RedactedRefs is nil where there was none.
	RedactedRefs []RedactedRef `json:"redacted_refs,omitzero" jsonschema_description:"What an operator agreed to tell of single subjects."`
}

// A RedactedRef tells of a subject what an operator agreed to.
type RedactedRef struct {
	Kind SubjectKind `json:"kind" jsonschema_description:"What kind of subject it is."`
	// RoleHint is empty where there is none.
	RoleHint string `json:"role_hint,omitempty" jsonschema:"minLength=1" jsonschema_description:"A role that identifies nobody."`
}

// A Declassify is one act that lets data go one tier further, on one surface and for one topic. Two
// tiers take two acts.
type Declassify struct {
	FactID        string           `json:"fact_id" jsonschema:"minLength=1" jsonschema_description:"The fact that was declassified."`
	From          Tier             `json:"from" jsonschema_description:"The tier before."`
	To            Tier             `json:"to" jsonschema_description:"The tier after: Community from Personal, Public from Community."`
	Surface       EgressSurface    `json:"surface" jsonschema_description:"The one surface that the act holds for."`
	TopicClass    string           `json:"topic_class" jsonschema:"minLength=1" jsonschema_description:"The one class of topic that the act holds for."`
	Mode          DeclassifyMode   `json:"mode" jsonschema_description:"How long the act holds."`
	Rationale     string           `json:"rationale" jsonschema:"minLength=1" jsonschema_description:"Why, as the operator accepted it."`
	Caller        DeclassifyCaller `json:"caller" jsonschema_description:"Who did it."`
	CorrelationID string           `json:"correlation_id" jsonschema:"minLength=1" jsonschema_description:"What ties the request, the act and the audit entry together."`
	IssuedAt      DateTime         `json:"issued_at" jsonschema_description:"When the act was issued."`
	// ExpiresAt is there exactly in the persistent mode.
	ExpiresAt DateTime `json:"expires_at,omitempty" jsonschema_description:"When the act ends. Only in the persistent mode, and there always."`
	// RevocationAnchor and EvidenceRef are empty where there is none.
	RevocationAnchor string `json:"revocation_anchor,omitempty" jsonschema:"minLength=1" jsonschema_description:"By what the act can be revoked. Without one it is not active."`
	EvidenceRef      string `json:"evidence_ref,omitempty" jsonschema:"minLength=1" jsonschema_description:"Evidence for the decision."`
}

// A DeclassifyMode tells how long a [Declassify] holds. Only the fields of its kind are set.
type DeclassifyMode struct {
	Kind DeclassifyKind `json:"kind" jsonschema_description:"Once, or for a time."`

	// ConsumedAt is empty unless a one-shot act has been used.
	ConsumedAt DateTime `json:"consumed_at,omitempty" jsonschema_description:"When the act was used up."`
	// TTLSeconds is in seconds.
	TTLSeconds int64 `json:"ttl_seconds,omitempty" jsonschema:"minimum=1" jsonschema_description:"For how many seconds it holds."`
}

// A DeclassifyCaller is who declassified.
type DeclassifyCaller struct {
	PassportRef string     `json:"passport_ref" jsonschema:"minLength=1" jsonschema_description:"The passport that was shown."`
	Role        CallerRole `json:"role" jsonschema_description:"By what right: A0 operator, A1 local module, A2 delegated."`
}

// A Quarantine tells why data is not yet accepted.
type Quarantine struct {
	Reason    QuarantineReason `json:"reason" jsonschema_description:"Why."`
	EnteredAt DateTime         `json:"entered_at" jsonschema_description:"Since when."`
	// PeerRef is empty where there is none.
	PeerRef string `json:"peer_ref,omitempty" jsonschema:"minLength=1" jsonschema_description:"The peer that the data came from."`
}

// Over tells whether data of this tier is too restricted for the ceiling (Public < Community <
// Personal). What is none of the three is over every ceiling, and every value is over such a ceiling.
func (t Tier) Over(ceiling Tier) bool {
	// The list begins with the most restricted.
	rank, most := slices.Index(tierValues, t), slices.Index(tierValues, ceiling)
	return rank < 0 || most < 0 || rank < most
}

// Over tells whether data with this label is too restricted for the ceiling. The source tier counts;
// the effective one is only the sender's word (external-runtime.md, Order of checks, 3).
func (c *Classification) Over(ceiling Tier) bool { return c.SourceTier.Over(ceiling) }

// Quarantined tells whether the data is in quarantine; no turn may have it.
func (c *Classification) Quarantined() bool { return c.Quarantine != nil }

// Widens tells whether this label would let data go further than the label of would: a less restricted
// source tier or effective tier, an act of declassification that of does not have, or no quarantine
// where of has one. A tool request's label may not widen its turn's (external-runtime.md, Running).
func (c *Classification) Widens(of *Classification) bool {
	if of.SourceTier.Over(c.SourceTier) || of.EffectiveTier.Over(c.EffectiveTier) {
		return true
	}
	if of.Quarantined() && !c.Quarantined() {
		return true
	}
	return slices.ContainsFunc(c.DeclassifyTrail, func(act Declassify) bool {
		return !slices.Contains(of.DeclassifyTrail, act)
	})
}
