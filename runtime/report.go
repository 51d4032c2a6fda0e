package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/backline-dev/backline/adapters"
)

// report tells hooks and log how the turn ended. A log line has ids, durations and counts, never
// content; an adapter's error text and a panic's value only where the protocol allows it.
func (r *Run) report(o *Outcome) {
	e := r.engine
	ctx := context.WithoutCancel(r.ctx.Context)
	if (!o.Abandoned || r.called.Load()) && r.hookCtx != nil { // else a hook may still be at it
		ctx = context.WithoutCancel(r.hookCtx)
	}
	info := r.info()
	for i := range e.conf.Hooks {
		if h := e.conf.Hooks[i].TurnEnd; h != nil {
			e.guard("TurnEnd", func() { h(ctx, info, o) })
		}
	}
	level := slog.LevelInfo
	if o.Status == Failed {
		level = slog.LevelWarn
	}
	if o.Cause == adapters.CausePanic {
		level = slog.LevelError
	}
	l := e.conf.Logger
	if !l.Enabled(ctx, level) {
		return
	}
	who, id := "plugin", info.PluginID
	if id == "" { // the protocol's turns are for agents
		who, id = "agent", info.AgentID
	}
	var buf [24]slog.Attr
	attrs := append(buf[:0],
		slog.String("protocol", string(info.Protocol)),
		slog.String(who, id),
		slog.String("session", info.SessionID),
		slog.String("turn", info.TurnID),
		slog.String("status", string(o.Status)),
		slog.String("cause", string(o.Cause)),
		slog.Duration("duration", o.Total),
		slog.Duration("first_output", o.FirstOutput),
		slog.Int64("chunks", o.Chunks),
		slog.Int64("bytes", o.Bytes),
		slog.Int("history", o.History),
		slog.String("continuity", string(o.Continuity)),
	)
	if o.Reason != "" {
		attrs = append(attrs, slog.String("reason", o.Reason))
	}
	if o.Waited > 0 {
		attrs = append(attrs, slog.Duration("waited", o.Waited))
	}
	if info.Principal != "" {
		attrs = append(attrs, slog.String("principal", info.Principal))
	}
	if _, ok := o.Usage.Tokens.Int(); ok { // anything else may be a text of the adapter's
		attrs = append(attrs, slog.String("tokens", o.Usage.Tokens.String()))
	}
	if o.Abandoned {
		attrs = append(attrs, slog.Bool("abandoned", true))
	}
	if o.CorrelationID != "" {
		attrs = append(attrs, slog.String("correlation", o.CorrelationID))
	}
	if o.Err != nil {
		attrs = append(attrs, slog.String("error_type", fmt.Sprintf("%T", o.Err)))
		if r.publicTexts {
			attrs = append(attrs, slog.String("error", textOf(o.Err)))
		}
	}
	if o.crash != nil {
		attrs = append(attrs, slog.String("panic_type", typeOf(o.crash.value)))
		if r.publicTexts {
			attrs = append(attrs, slog.String("panic", textOf(o.crash.value)))
		}
		attrs = append(attrs, slog.String("stack", string(o.crash.stack)))
	}
	l.LogAttrs(ctx, level, "turn", attrs...)
}

func typeOf(v any) string {
	if v == nil {
		return "runtime.Goexit"
	}
	return fmt.Sprintf("%T", v)
}

// textOf formats a value whose methods may themselves panic, at a bounded length.
func textOf(v any) (s string) {
	defer func() {
		if recover() != nil {
			s = "(its text panics)"
		}
	}()
	if v == nil {
		return "runtime.Goexit was called"
	}
	s = fmt.Sprint(v)
	if len(s) > 2000 {
		s = strings.ToValidUTF8(s[:2000], "") + "…"
	}
	return s
}
