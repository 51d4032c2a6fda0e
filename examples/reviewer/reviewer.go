package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/backline-dev/backline/adapters"
)

// review answers a turn whose message is a draft with a critique of it. It deliberates and does nothing
// else: what it would like to have done it asks the host for, and what it may not have it does without.
func review(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	if strings.TrimSpace(turn.Message) == "" {
		return adapters.Public("There is no draft to review.", nil)
	}
	if err := w.Status("reading the draft"); err != nil {
		return err
	}
	d := look(turn.Message)
	steps := int64(1)

	facts := "there is no number in it that would need a source."
	if len(d.claims) > 0 {
		steps++
		var err error
		if facts, err = check(ctx, w, d.claims); err != nil {
			return err
		}
	}
	steps++
	limit, audience, err := ask(ctx, w)
	if err != nil {
		return err
	}

	var critique strings.Builder
	fmt.Fprintf(&critique, "Critique of a draft of %d words in %d sentences.\n\n", d.words, len(d.sentences))
	fmt.Fprintf(&critique, "Facts: %s\nReaders: %s\n", facts, audience)
	for _, s := range d.sentences {
		if n := len(strings.Fields(s)); n > limit {
			fmt.Fprintf(&critique, "Style: %d words in one sentence, which begins %q; cut it in two.\n", n, excerpt(s, 40))
		}
	}
	for _, a := range turn.Attachments {
		fmt.Fprintf(&critique, "Not read: %s.\n", a.Ref) // the host keeps it, and sent no more than its name
	}
	if err := w.Text(critique.String()); err != nil {
		return err
	}
	// Reported once, at the end: a host that budgets takes two reports that differ for a contradiction. No
	// fidelity is named, so it is the one that the host expects. Words stand for tokens: there is no model
	// here to count any.
	return w.Usage(adapters.Usage{
		Tokens:     adapters.Count(int64(d.words + len(strings.Fields(critique.String())))),
		CostMicros: adapters.Count(0),
		Steps:      adapters.Count(steps),
	})
}

// check asks the host to have claims looked up, and says what became of it. The host tells what was done
// by names alone: a receipt and pieces of evidence, which whoever reads the critique can look at.
func check(ctx context.Context, w adapters.Writer, claims []string) (string, error) {
	input, err := json.Marshal(map[string]any{"claims": claims})
	if err != nil {
		return "", err
	}
	o, err := w.Tool(ctx, adapters.ToolRequest{Ref: "tool:check-facts", Schema: "check-facts.v1", Input: input})
	switch {
	case errors.Is(err, adapters.ErrNotSupported): // as behind Lowkey
		return "not checked, since this host lends no tools.", nil
	case err != nil: // the turn is over
		return "", err
	case !o.Admitted: // an answer like any other
		return fmt.Sprintf("not checked, since the host refused (%s).", o.Reason), nil
	case len(o.Evidence) == 0:
		return fmt.Sprintf("checked (%s).", o.Receipt), nil
	}
	return fmt.Sprintf("checked (%s); see %s.", o.Receipt, strings.Join(o.Evidence, ", ")), nil
}

// ask lets the operator say whom the draft is for, which sets how long a sentence may be, in words. Yes is
// an observation that is admitted, no is one that is refused.
func ask(ctx context.Context, w adapters.Writer) (limit int, audience string, err error) {
	const inside, outside = 30, 20
	o, err := w.Ask(ctx, adapters.Question{
		Schema:   "yes-no.v1",
		Question: json.RawMessage(`{"question":"Will readers outside the team see this?","yes":"sentences of 20 words","no":"sentences of 30 words"}`),
	})
	switch {
	case errors.Is(err, adapters.ErrNotSupported):
		return outside, "nobody could be asked, so the stricter measure holds.", nil
	case err != nil:
		return 0, "", err
	case !o.Admitted:
		return inside, fmt.Sprintf("the team (%s).", o.Reason), nil
	}
	return outside, "outside the team.", nil
}

// A draft is what was seen in one.
type draft struct {
	words     int
	sentences []string
	claims    []string // sentences with a number, cut short; the first few
}

func look(text string) draft {
	const most = 8 // a request to the host has its limits
	d := draft{words: len(strings.Fields(text))}
	for _, s := range sentences(text) {
		d.sentences = append(d.sentences, s)
		if len(d.claims) < most && strings.ContainsFunc(s, unicode.IsDigit) {
			d.claims = append(d.claims, excerpt(s, 200))
		}
	}
	return d
}

// sentences cuts a text behind each full stop, question mark and exclamation mark that a space follows,
// and at line ends.
func sentences(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		begin := 0
		for i, r := range line {
			if next := i + 1; strings.ContainsRune(".?!", r) && (next == len(line) || strings.ContainsRune(" \t\r\n", rune(line[next]))) {
				all, begin = append(all, strings.TrimSpace(line[begin:next])), next
			}
		}
		if rest := strings.TrimSpace(line[begin:]); rest != "" {
			all = append(all, rest)
		}
	}
	return all
}

// excerpt is the beginning of s, of at most n characters.
func excerpt(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i] + "…"
		}
	}
	return s
}
