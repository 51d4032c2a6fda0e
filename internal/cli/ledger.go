package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/backline-dev/backline/runtime/ledger"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
)

func (a *app) ledgerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Read the turn ledger",
		Long: `Ledger reads the file that serve --store sqlite:FILE records turns in. It changes nothing, and may be run
while a server has the file. What turns said and produced is not shown.`,
		Example: `  backline ledger list turns.db --newest`,
	}
	cmd.AddCommand(a.ledgerListCommand(), a.ledgerShowCommand(), a.ledgerExportCommand())
	return cmd
}

// read opens the ledger in a file and looks at it.
func (a *app) readLedger(ctx context.Context, file string, look func(*sqlite.Reader) error) (err error) {
	file = strings.TrimPrefix(file, storeSQLite) // as serve --store has it
	if file == "" || file == storeMemory {
		return usagef("only a ledger in a file can be read: name the FILE that serve --store sqlite:FILE was given")
	}
	r, err := sqlite.OpenReader(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, r.Close()) }()
	return look(r)
}

// oneOf is a flag for one of the words of a ledger, or none of them.
type oneOf[T ~string] struct {
	value *T
	of    []T
}

func oneOfFlag[T ~string](fs *pflag.FlagSet, name, usage string, of []T) *T {
	var value T
	fs.Var(oneOf[T]{&value, of}, name, usage)
	return &value
}

func (o oneOf[T]) words() []string {
	words := make([]string, len(o.of))
	for i, w := range o.of {
		words[i] = string(w)
	}
	return words
}

func (o oneOf[T]) String() string {
	if o.value == nil {
		return ""
	}
	return string(*o.value)
}

func (o oneOf[T]) Type() string { return strings.Join(o.words(), "|") }

func (o oneOf[T]) Set(s string) error {
	for _, w := range o.of {
		if string(w) == s {
			*o.value = w
			return nil
		}
	}
	return fmt.Errorf("want %s", alternatives(o.words()))
}

func (a *app) ledgerListCommand() *cobra.Command {
	var q ledger.TurnQuery
	var agent, binding *string
	var limit, after *int
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "list FILE",
		Short: "List turns, one per line",
		Long: `List prints the turns in a ledger, oldest first, one per line: its number, how it ended or where it stands,
why, when it was reserved, its ref, its binding and what it was charged. A list that is cut ends with
the flag that shows what follows.`,
		Example: `  # What nobody saw the end of.
  backline ledger list turns.db --status unknown`,
		Args: takes(1, 1, "the FILE of a ledger"),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	state := oneOfFlag(fs, "state", "only turns in this state", ledger.States())
	status := oneOfFlag(fs, "status", "only turns that ended like this", ledger.Statuses())
	agent = fs.String("agent", "", "only turns of the agent with this `id`")
	binding = fs.String("binding", "", "only turns under this binding (a `ref`)")
	fs.BoolVar(&q.Newest, "newest", false, "the newest first")
	limit = countFlag(fs, "limit", 100, "how many to list, at most 1000")
	after = countFlag(fs, "after", 0, "go on after the turn with this number")
	asJSON = fs.Bool("json", false, "print one JSON object: the turns, and where the list goes on")
	cmd.RunE = a.runs(func(ctx context.Context, args []string) error {
		q.State, q.Status, q.Agent, q.Binding = *state, *status, ledger.AgentID(*agent), ledger.BindingRef(*binding)
		q.Limit, q.After = *limit, int64(*after)
		if q.Limit < 1 || q.Limit > 1000 {
			return usagef("--limit is %d, want 1 to 1000", q.Limit)
		}
		return a.readLedger(ctx, args[0], func(r *sqlite.Reader) error {
			page, err := r.ListTurns(ctx, q)
			if err != nil {
				return err
			}
			if *asJSON {
				if page.Turns == nil {
					page.Turns = []ledger.Turn{}
				}
				return a.printJSON(struct {
					Turns []ledger.Turn `json:"turns"`
					Next  int64         `json:"next,omitempty"`
				}{page.Turns, page.Next})
			}
			for i := range page.Turns {
				a.listTurn(&page.Turns[i])
			}
			if page.Next > 0 {
				_, _ = fmt.Fprintf(a.out, "… more with --after %d\n", page.Next)
			}
			return nil
		})
	})
	return cmd
}

// stands is how a turn ended, or where it stands, and why.
func stands(t *ledger.Turn) (state, reason string) {
	if t.Outcome == nil {
		return string(t.State), "-"
	}
	return string(t.Outcome.Status), string(t.Outcome.Reason)
}

func (a *app) listTurn(t *ledger.Turn) {
	state, reason := stands(t)
	charged := "-"
	if t.Outcome != nil {
		charged = amounts(t.Outcome.Charged)
	}
	_, _ = fmt.Fprintf(a.out, "%6d  %-10s %-22s %s  %s  %s  %s\n", t.Seq, state, reason, moment(t.ReservedAt),
		oneLine(string(t.Ref)), oneLine(string(t.Binding)), charged)
}

// amounts are those of a budget, in few words.
func amounts(b ledger.Budget) string {
	return fmt.Sprintf("tokens=%d cost_micros=%d wall_time_ms=%d steps=%d", b.Tokens, b.CostMicros, b.WallTimeMS, b.Steps)
}

// moment is a time with as many digits always.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (a *app) ledgerShowCommand() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:     "show FILE TURN",
		Short:   "Show a turn: its requests, its outcome, its charge",
		Example: `  backline ledger show turns.db turn:river:1`,
		Args:    takes(2, 2, "the FILE of a ledger and the TURN's ref"),
	}
	asJSON = cmd.Flags().Bool("json", false, "print one JSON object: the turn, its parts and its product")
	cmd.RunE = a.runs(func(ctx context.Context, args []string) error {
		return a.readLedger(ctx, args[0], func(r *sqlite.Reader) error {
			t, err := r.Turn(ctx, ledger.TurnRef(args[1]))
			if errors.Is(err, ledger.ErrNotFound) {
				return fmt.Errorf("the ledger knows no turn %q", args[1])
			}
			if err != nil {
				return err
			}
			parts, err := r.Parts(ctx, t.Ref)
			if err != nil {
				return err
			}
			var product *ledger.Product
			if t.Outcome != nil && t.Outcome.Product != "" {
				p, err := r.Product(ctx, t.Outcome.Product)
				if err != nil && !errors.Is(err, ledger.ErrNotFound) {
					return err
				}
				if err == nil {
					product = &p
				}
			}
			if *asJSON {
				return a.printJSON(struct {
					Turn    *ledger.Turn    `json:"turn"`
					Parts   []ledger.Part   `json:"parts"`
					Product *ledger.Product `json:"product,omitempty"`
				}{&t, append([]ledger.Part{}, parts...), product})
			}
			a.showTurn(&t, parts, product)
			return nil
		})
	})
	return cmd
}

func (a *app) showTurn(t *ledger.Turn, parts []ledger.Part, product *ledger.Product) {
	row := func(name, format string, values ...any) {
		_, _ = fmt.Fprintf(a.out, "%-12s %s\n", name, oneLine(fmt.Sprintf(format, values...)))
	}
	at := func(name string, when time.Time) {
		if !when.IsZero() {
			row(name, "%s", moment(when))
		}
	}
	row("turn", "%s", t.Ref)
	row("state", "%s", t.State)
	row("agent", "%s", t.Agent)
	row("binding", "%s %s", t.Binding, t.BindingDigest)
	if t.Profile != "" {
		row("profile", "%s generation %d", t.Profile, t.ProfileGeneration)
	}
	at("reserved", t.ReservedAt)
	at("dispatched", t.DispatchedAt)
	at("updated", t.UpdatedAt)
	at("deadline", t.Deadline)
	for _, ref := range t.Awaiting {
		row("awaits", "%s", ref)
	}
	row("budget", "%s", amounts(t.Reserved))
	if o := t.Outcome; o != nil {
		row("outcome", "%s / %s, %s, %s", o.Status, o.Reason, o.Retryability, moment(o.At))
		row("charged", "%s (%s)", amounts(o.Charged), o.Fidelity)
	}
	if p := product; p != nil {
		row("product", "%s, %d bytes, %s", p.Ref, p.Size, keeping(p.Keeping, p.Expires))
	}
	for i := range parts {
		p := &parts[i]
		ended := "runs"
		switch {
		case p.Status != "":
			ended = fmt.Sprintf("%s / %s", p.Status, p.Reason)
		case !p.Running():
			ended = "suspended"
		}
		row("request", "%s %s: %s, %s, events to %d, %d bytes, %s", p.Mode, p.Key, moment(p.StartedAt), ended, p.LastSeq, p.Size, keeping(p.Keeping, p.Expires))
	}
}

// keeping tells whether content is there, and until when.
func keeping(k ledger.Keeping, expires time.Time) string {
	if k != ledger.Kept || expires.IsZero() {
		return string(k)
	}
	return string(k) + " until " + moment(expires)
}

func (a *app) ledgerExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Print all facts as NDJSON",
		Long: `Export prints every row of a ledger as a JSON object on a line of its own, whose one member tells what it
is: admission, superseded, session, turn, part, product or claim. Turns follow in the order they were
recorded, each with its parts and its product behind it.`,
		Example: `  # What was charged under each binding.
  backline ledger export turns.db |
    jq -s 'map(.turn // empty) | group_by(.binding) | map({(.[0].binding): map(.outcome.charged.tokens) | add}) | add'`,
		Args: takes(1, 1, "the FILE of a ledger"),
	}
	cmd.RunE = a.runs(func(ctx context.Context, args []string) error {
		return a.readLedger(ctx, args[0], func(r *sqlite.Reader) error {
			enc := json.NewEncoder(a.out)
			enc.SetEscapeHTML(false)
			for record, err := range r.Export(ctx) {
				if err != nil {
					return err
				}
				if err := enc.Encode(record); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return cmd
}
