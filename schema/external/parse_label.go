package external

import "bytes"

// ParseClassification reads a classification label. The error is an [*Error]. Nothing of doc is kept.
func ParseClassification(doc []byte) (*Classification, error) {
	c := new(Classification)
	if err := document(bytes.Clone(doc), func(d *decoder) bool { return d.classification(c) }); err != nil {
		err.Document = ClassificationV1
		return nil, err
	}
	return c, nil
}

var labelFields = []field[Classification]{
	{"schema", theString(ClassificationV1), false, func(d *decoder, c *Classification) bool { return constant(d, &c.Schema, ClassificationV1) }},
	{"source_tier", oneOf[Tier], false, func(d *decoder, c *Classification) bool { return code(d, &c.SourceTier) }},
	{"effective_tier", oneOf[Tier], false, func(d *decoder, c *Classification) bool { return code(d, &c.EffectiveTier) }},
	{"provenance", anObject, false, func(d *decoder, c *Classification) bool { return d.origin(&c.Provenance) }},
	{"bound_subjects", anObject, false, func(d *decoder, c *Classification) bool {
		_, ok := object(d, &c.BoundSubjects, boundFields)
		return ok
	}},
	{"declassify_trail", anArray, false, func(d *decoder, c *Classification) bool {
		return list(d, &c.DeclassifyTrail, 0, unbounded, anArray, (*decoder).declassify)
	}},
	{"quarantine", anObject, true, func(d *decoder, c *Classification) bool {
		c.Quarantine = new(Quarantine)
		_, ok := object(d, c.Quarantine, quarantineFields)
		return ok
	}},
}

func (d *decoder) classification(c *Classification) bool {
	at := d.i
	if _, ok := object(d, c, labelFields); !ok {
		return false
	}
	switch {
	case c.SourceTier == TierPublic && c.EffectiveTier != TierPublic:
		return d.wrong(d.find(at, "effective_tier"), theString(TierPublic))
	case c.SourceTier == TierCommunity && c.EffectiveTier == TierPersonal:
		return d.wrong(d.find(at, "effective_tier"), words(`"Community" or "Public"`))
	}
	// The subjects by name, or the projection: which, the effective tier tells.
	named, projected := c.BoundSubjects.PersonalOrCommunity != nil, c.BoundSubjects.PublicProjection != nil
	public := c.EffectiveTier == TierPublic
	if named != public && projected == public {
		return true
	}
	at = d.find(at, "bound_subjects")
	switch {
	case public && !projected:
		return d.lacks(at, "public_projection", anObject)
	case public:
		return d.wrong(d.find(at, "personal_or_community"), noField)
	case !named:
		return d.lacks(at, "personal_or_community", anArray)
	}
	return d.wrong(d.find(at, "public_projection"), noField)
}

// originFields is a function, since origins hold origins, and a variable would have to be there before
// itself.
func originFields() []field[Origin] {
	return []field[Origin]{
		{"kind", oneOf[OriginKind], false, func(d *decoder, o *Origin) bool { return code(d, &o.Kind) }},
		{"space", oneOf[Space], true, func(d *decoder, o *Origin) bool { return code(d, &o.Space) }},
		{"surface", oneOf[IngressSurface], true, func(d *decoder, o *Origin) bool { return code(d, &o.Surface) }},
		{"peer_ref", aString, true, func(d *decoder, o *Origin) bool { return d.name(&o.PeerRef) }},
		{"parents", twoOrigins, true, func(d *decoder, o *Origin) bool {
			return list(d, &o.Parents, 2, 2, twoOrigins, (*decoder).origin)
		}},
	}
}

var twoOrigins = words("an array of 2 elements")

const (
	originKind fieldSet = 1 << iota
	originSpace
	originSurface
	originPeer
	originParents
)

func (d *decoder) origin(o *Origin) bool {
	at := d.i
	table := originFields()
	seen, ok := object(d, o, table)
	if !ok {
		return false
	}
	switch o.Kind {
	case OriginLocalSpace:
		return only(d, at, table, seen, originKind|originSpace, 0)
	case OriginIngress:
		return only(d, at, table, seen, originKind|originSurface, originPeer)
	}
	return only(d, at, table, seen, originKind|originParents, 0)
}

var boundFields = []field[BoundSubjects]{
	{"personal_or_community", anArray, true, func(d *decoder, b *BoundSubjects) bool {
		return list(d, &b.PersonalOrCommunity, 0, unbounded, anArray, func(d *decoder, s *Subject) bool {
			_, ok := object(d, s, subjectFields)
			return ok
		})
	}},
	{"public_projection", anObject, true, func(d *decoder, b *BoundSubjects) bool {
		b.PublicProjection = new(PublicProjection)
		_, ok := object(d, b.PublicProjection, projectionFields)
		return ok
	}},
}

var subjectFields = []field[Subject]{
	{"kind", oneOf[SubjectKind], false, func(d *decoder, s *Subject) bool { return code(d, &s.Kind) }},
	{"id", aString, false, func(d *decoder, s *Subject) bool { return d.name(&s.ID) }},
}

var (
	aCount         = interval{0, noMost}
	aTTL           = interval{1, noMost}
	redactedFields = []field[RedactedRef]{
		{"kind", oneOf[SubjectKind], false, func(d *decoder, r *RedactedRef) bool { return code(d, &r.Kind) }},
		{"role_hint", aString, true, func(d *decoder, r *RedactedRef) bool { return d.name(&r.RoleHint) }},
	}
)

var projectionFields = []field[PublicProjection]{
	{"subject_set_hash", aHash, false, func(d *decoder, p *PublicProjection) bool {
		return valid(d, &p.SubjectSetHash, aHash, validSubjectSetHash)
	}},
	{"count", aCount.words, false, func(d *decoder, p *PublicProjection) bool { return d.integer(&p.Count, aCount) }},
	{"redacted_refs", anArray, true, func(d *decoder, p *PublicProjection) bool {
		return list(d, &p.RedactedRefs, 0, unbounded, anArray, func(d *decoder, r *RedactedRef) bool {
			_, ok := object(d, r, redactedFields)
			return ok
		})
	}},
}

var upperTiers = words(`"Personal" or "Community"`)

var declassifyFields = []field[Declassify]{
	{"fact_id", aString, false, func(d *decoder, f *Declassify) bool { return d.name(&f.FactID) }},
	{"from", upperTiers, false, func(d *decoder, f *Declassify) bool {
		at := d.i
		s, is := d.text()
		if is == isText && (s == string(TierPersonal) || s == string(TierCommunity)) {
			f.From = Tier(s)
			return true
		}
		return is != badText && d.wrong(at, upperTiers)
	}},
	{"to", oneOf[Tier], false, func(d *decoder, f *Declassify) bool { return code(d, &f.To) }},
	{"surface", oneOf[EgressSurface], false, func(d *decoder, f *Declassify) bool { return code(d, &f.Surface) }},
	{"topic_class", aString, false, func(d *decoder, f *Declassify) bool { return d.name(&f.TopicClass) }},
	{"mode", anObject, false, func(d *decoder, f *Declassify) bool { return d.declassifyMode(&f.Mode) }},
	{"rationale", aString, false, func(d *decoder, f *Declassify) bool { return d.name(&f.Rationale) }},
	{"caller", anObject, false, func(d *decoder, f *Declassify) bool {
		_, ok := object(d, &f.Caller, callerFields)
		return ok
	}},
	{"correlation_id", aString, false, func(d *decoder, f *Declassify) bool { return d.name(&f.CorrelationID) }},
	{"issued_at", aDateTime, false, func(d *decoder, f *Declassify) bool { return d.dateTime(&f.IssuedAt) }},
	{"expires_at", aDateTime, true, func(d *decoder, f *Declassify) bool { return d.dateTime(&f.ExpiresAt) }},
	{"revocation_anchor", aString, true, func(d *decoder, f *Declassify) bool { return d.name(&f.RevocationAnchor) }},
	{"evidence_ref", aString, true, func(d *decoder, f *Declassify) bool { return d.name(&f.EvidenceRef) }},
}

var declassifyExpiry = fields(declassifyFields, "expires_at")

func (d *decoder) declassify(f *Declassify) bool {
	at := d.i
	seen, ok := object(d, f, declassifyFields)
	if !ok {
		return false
	}
	step := TierCommunity
	if f.From == TierCommunity {
		step = TierPublic
	}
	if f.To != step {
		return d.wrong(d.find(at, "to"), theString(step))
	}
	if f.Mode.Kind == DeclassifyPersistent {
		return only(d, at, declassifyFields, seen, declassifyExpiry, ^fieldSet(0))
	}
	return only(d, at, declassifyFields, seen, 0, ^declassifyExpiry)
}

var modeFields = []field[DeclassifyMode]{
	{"kind", oneOf[DeclassifyKind], false, func(d *decoder, m *DeclassifyMode) bool { return code(d, &m.Kind) }},
	{"consumed_at", aDateTime, true, func(d *decoder, m *DeclassifyMode) bool { return d.dateTime(&m.ConsumedAt) }},
	{"ttl_seconds", aTTL.words, true, func(d *decoder, m *DeclassifyMode) bool { return d.integer(&m.TTLSeconds, aTTL) }},
}

const (
	modeKind fieldSet = 1 << iota
	modeConsumed
	modeTTL
)

func (d *decoder) declassifyMode(m *DeclassifyMode) bool {
	at := d.i
	seen, ok := object(d, m, modeFields)
	if !ok {
		return false
	}
	if m.Kind == DeclassifyOneShot {
		return only(d, at, modeFields, seen, modeKind, modeConsumed)
	}
	return only(d, at, modeFields, seen, modeKind|modeTTL, 0)
}

var callerFields = []field[DeclassifyCaller]{
	{"passport_ref", aString, false, func(d *decoder, c *DeclassifyCaller) bool { return d.name(&c.PassportRef) }},
	{"role", oneOf[CallerRole], false, func(d *decoder, c *DeclassifyCaller) bool { return code(d, &c.Role) }},
}

var quarantineFields = []field[Quarantine]{
	{"reason", oneOf[QuarantineReason], false, func(d *decoder, q *Quarantine) bool { return code(d, &q.Reason) }},
	{"entered_at", aDateTime, false, func(d *decoder, q *Quarantine) bool { return d.dateTime(&q.EnteredAt) }},
	{"peer_ref", aString, true, func(d *decoder, q *Quarantine) bool { return d.name(&q.PeerRef) }},
}
