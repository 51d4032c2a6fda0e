package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema/external"
	wire "github.com/backline-dev/backline/schema/lowkey"
)

// A published schema, by the name that validate knows the document by.
type published struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	About string `json:"about"`
	text  func() ([]byte, error)
}

const eventDefinition = "#/$defs/ExternalAgentTurnEvent"

// publishedSchemas lists all of them.
func publishedSchemas() []published {
	list := []published{
		{
			kindRequest, wire.SchemaID, "Lowkey external turn protocol v1: a request, with the event under $defs",
			func() ([]byte, error) { return wire.Schema(), nil },
		},
		{
			kindEvents, wire.SchemaID + eventDefinition, "Lowkey external turn protocol v1: one line of the response",
			eventSchema,
		},
	}
	for _, e := range externalKinds {
		list = append(list, published{
			e.name, external.SchemaID(e.kind), e.about,
			func() ([]byte, error) { return external.Schema(e.kind), nil },
		})
	}
	for _, k := range keikiKinds {
		list = append(list, published{
			k.name, k.id, k.about,
			func() ([]byte, error) { return k.text, nil },
		})
	}
	return list
}

// eventSchema is the event's part of the published schema as a document of its own.
func eventSchema() ([]byte, error) {
	whole, err := manifest.Parse(wire.Schema()) // any object, and its parts byte for byte
	if err != nil {
		return nil, err
	}
	dialect, _ := whole.Raw("/$schema")
	event, ok := whole.Raw(strings.TrimPrefix(eventDefinition, "#"))
	if !ok || len(dialect) == 0 {
		return nil, fmt.Errorf("the published schema has no %s", eventDefinition)
	}
	head := fmt.Sprintf("{%q:%s,", "$schema", dialect)
	var out bytes.Buffer
	if err := json.Indent(&out, append([]byte(head), bytes.TrimPrefix(event, []byte("{"))...), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func (a *app) schemaCommand() *cobra.Command {
	var asJSON *bool
	var names []string
	for _, p := range publishedSchemas() {
		names = append(names, p.Name)
	}
	cmd := &cobra.Command{
		Use:   "schema [NAME]",
		Short: "List or print the published JSON Schemas",
		Long: `Schema lists the published JSON Schemas (draft 2020-12), one per line with the name first, or prints the
one that is named. The names are those that validate --schema takes; the documents of
agent.external-runtime are also known by their own (agent.external-runtime.binding.v1), Keiki's requests by
their types (keiki.turn). A manifest has no schema: see manifest check.`,
		Example: `  # For a validator of another language.
  backline schema lowkey-request > external-turn-protocol.schema.json`,
		Args: takes(0, 1, "one NAME"),
	}
	asJSON = cmd.Flags().Bool("json", false, "print the list as JSON; a schema is JSON anyway")
	cmd.RunE = a.runs(func(_ context.Context, args []string) error {
		if len(args) == 0 {
			if *asJSON {
				return a.printJSON(publishedSchemas())
			}
			for _, p := range publishedSchemas() {
				_, _ = fmt.Fprintf(a.out, "%-17s %s (%s)\n", p.Name, p.About, p.ID)
			}
			return nil
		}
		for _, p := range publishedSchemas() {
			e, k := externalNamed(args[0]), keikiNamed(args[0])
			if p.Name == args[0] || e != nil && e.name == p.Name || k != nil && k.name == p.Name {
				text, err := p.text()
				if err == nil {
					_, err = a.out.Write(text)
				}
				return err
			}
		}
		return usagef("there is no schema %q: the names are %s", args[0], listing(names))
	})
	return cmd
}
