package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

type pauseView struct {
	Stream string `json:"stream"`
	Group  string `json:"group"`
	Paused bool   `json:"paused"`
}

// newGroupPause makes pause or resume.
func newGroupPause(a *app, pause bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume STREAM GROUP",
		Short: "Let a paused group go on.",
		Long:  "Let a paused group claim messages again. A group that is not paused is left as it is.",
		Example: `  sqlstreams group resume orders mailer
  for g in $(sqlstreams group list orders -o json | jq -r '.[].name'); do sqlstreams group resume orders "$g"; done`,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := a.changes(cmd); err != nil {
				return err
			}
			return a.setPaused(cmd, given[0], given[1], pause)
		},
	}
	if pause {
		cmd.Use, cmd.Short = "pause STREAM GROUP", "Keep a group from claiming anything new."
		cmd.Long = "Keep a group from claiming anything new, messages and retries alike, until it is resumed. What runs is finished and recorded."
		cmd.Example = "  sqlstreams group pause orders mailer"
	}
	return cmd
}

func (a *app) setPaused(cmd *cobra.Command, stream, name string, pause bool) error {
	ctx, cancel := a.once(cmd)
	defer cancel()
	conn, err := a.connect(ctx, openOptions{})
	if err != nil {
		return err
	}
	defer conn.close()
	g := target{conn.Group(stream, name), stream, name}
	set, state := g.Resume, "goes on"
	if pause {
		set, state = g.Pause, "is paused"
	}
	if err := set(ctx, nil); err != nil {
		return err
	}
	return a.show(pauseView{Stream: stream, Group: name, Paused: pause}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s %s\n", g, state)
		return err
	})
}
