package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backline-dev/backline/runtime/ledger"
	externalschema "github.com/backline-dev/backline/schema/external"
)

// tellBindings says in the log how many bindings are admitted, and warns of those under which each turn is
// refused, though nobody withdrew them: a host sees a reason code alone, and only once it sends a turn.
func (p *Plugin) tellBindings(ctx context.Context) error {
	x := p.conf.External
	all, err := x.Store.Admissions(ctx, ledger.Binding)
	if err != nil {
		return fmt.Errorf("the ledger cannot be read: %w", err)
	}
	if len(all) == 0 && x.Admissions == "" {
		return nil // what is there is admitted over HTTP
	}
	usable := 0
	for i := range all {
		a := &all[i]
		if !a.InForce() {
			continue
		}
		b, err := externalschema.ParseBinding(a.Document)
		if err != nil {
			return fmt.Errorf("the admitted binding %q: %w", a.Ref, err)
		}
		reason, why, err := p.unusable(ctx, b)
		if err != nil {
			return err
		}
		if reason == "" {
			usable++
		}
		if why != "" {
			p.conf.Logger.Warn("every turn of a binding is refused", "binding", a.Ref, "reason", string(reason), "why", why)
		}
	}
	if usable == 0 {
		p.conf.Logger.Warn("no binding can be used: every turn of agent.external-runtime is refused", "bindings", len(all), "directory", x.Admissions)
		return nil
	}
	p.conf.Logger.Info("bindings of agent.external-runtime", "bindings", len(all), "usable", usable)
	return nil
}

// unusable tells for which reason every turn of a binding in force is refused now, empty for none, and why that
// may be a mistake, empty where somebody meant it.
func (p *Plugin) unusable(ctx context.Context, b *externalschema.Binding) (reason externalschema.ReasonCode, why string, err error) {
	expires, err := b.ExpiresAt.Time()
	switch {
	case err != nil:
		return "", "", err
	case !expires.After(time.Now()):
		return externalschema.ReasonBindingExpired, fmt.Sprintf("expires/at is %s", b.ExpiresAt), nil
	}
	by, other := p.conf.agents(p.conf.External.Agents, externalschema.ValidRef)
	if by[string(b.AgentID)] == nil && other == nil {
		return externalschema.ReasonBindingMismatch, fmt.Sprintf("no plugin answers for its agent/id, %s: name one in External.Agents", b.AgentID), nil
	}
	profile, err := p.conf.External.Store.Admission(ctx, ledger.Profile, string(b.ProfileRef))
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return externalschema.ReasonProfileMismatch, fmt.Sprintf("its profile/ref, %s, is not admitted", b.ProfileRef), nil
	case err != nil:
		return "", "", fmt.Errorf("the ledger cannot be read: %w", err)
	case profile.Generation != b.ProfileGeneration:
		return externalschema.ReasonProfileMismatch,
			fmt.Sprintf("its profile/generation is %d, and that of the profile %s is %d", b.ProfileGeneration, b.ProfileRef, profile.Generation), nil
	case !profile.InForce():
		return externalschema.ReasonProfileDisabled, "", nil
	}
	return "", "", nil
}
