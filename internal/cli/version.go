package cli

import (
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams/internal/schema"
)

type versionView struct {
	Version       string `json:"version"`
	Commit        string `json:"commit"`
	Modified      bool   `json:"modified"`
	Go            string `json:"go"`
	Platform      string `json:"platform"`
	SchemaVersion int    `json:"schema_version"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which program this is.",
		Long:  "Say which program this is: its version, the commit it was built from, the version of Go, and the version of the schema that it works with.\n\nIt asks no database; `sqlstreams migrate status` does.",
		Example: `  sqlstreams version
  sqlstreams version -o json`,
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			view, err := buildVersion()
			if err != nil {
				return err
			}
			return a.show(view, func(w io.Writer) error {
				commit := view.Commit
				if view.Modified {
					commit += " (modified)"
				}
				return a.fields(w, "version", view.Version, "commit", commit, "go", view.Go, "platform", view.Platform, "schema", number(view.SchemaVersion))
			})
		},
	}
}

func buildVersion() (versionView, error) {
	steps, err := schema.Migrations()
	if err != nil {
		return versionView{}, err
	}
	view := versionView{Version: "(devel)", Commit: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, SchemaVersion: len(steps)}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return view, nil
	}
	if info.Main.Version != "" {
		view.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			view.Commit = s.Value
		case "vcs.modified":
			view.Modified = s.Value == "true"
		}
	}
	return view, nil
}
