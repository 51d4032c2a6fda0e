package cli

import (
	"context"
	"fmt"
	goruntime "runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// modulePath is the path of Backline's own module.
const modulePath = "github.com/backline-dev/backline"

// externalVersion is the version of the agent.external-runtime documents (their names end in ".v1").
const externalVersion = 1

type versions struct {
	Version   string           `json:"version"`
	Revision  string           `json:"revision,omitempty"`
	Go        string           `json:"go"`
	Platform  string           `json:"platform"`
	Protocols map[string][]int `json:"protocols"`
}

// thisVersion reads what the Go command has built in.
func thisVersion() versions {
	v := versions{
		Version:   "(unknown)",
		Go:        goruntime.Version(),
		Platform:  goruntime.GOOS + "/" + goruntime.GOARCH,
		Protocols: map[string][]int{"lowkey": {wire.ProtocolVersion}, "external-runtime": {externalVersion}},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = moduleVersion(info)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

// moduleVersion is the version of Backline in a program: as its main module, or as a dependency of it.
func moduleVersion(info *debug.BuildInfo) string {
	if info.Main.Path == modulePath {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == modulePath {
			return dep.Version
		}
	}
	return "(unknown)"
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of Backline, Go and the protocols",
		Example: `  backline version --json`,
		Args:    takes(0, 0, ""),
	}
	asJSON = cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = a.runs(func(context.Context, []string) error {
		v := thisVersion()
		if *asJSON {
			return a.printJSON(v)
		}
		_, err := fmt.Fprintf(a.out, "backline  %s\ngo        %s %s\nlowkey    external turn protocol %d\norbiplex  agent.external-runtime %d\n", v.Version, v.Go, v.Platform, wire.ProtocolVersion, externalVersion)
		return err
	})
	return cmd
}
