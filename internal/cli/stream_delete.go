package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

type deletionView struct {
	Name        string `json:"name"`
	Deleted     bool   `json:"deleted"`
	DryRun      bool   `json:"dry_run"`
	Messages    int64  `json:"messages"` // at most
	Bytes       int64  `json:"bytes"`
	Inbox       int64  `json:"inbox"`
	Groups      int    `json:"groups"`
	DeadLetters int64  `json:"dead_letters"`
}

func (v deletionView) String() string {
	text := fmt.Sprintf("up to %s (%s), %s, %s", plural(v.Messages, "message", "messages"), size(v.Bytes), plural(v.Groups, "group", "groups"), plural(v.DeadLetters, "dead letter", "dead letters"))
	if v.Inbox > 0 {
		text += fmt.Sprintf(", %s in the inbox", plural(v.Inbox, "message", "messages"))
	}
	return text
}

func newStreamDelete(a *app) *cobra.Command {
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a stream with all that belongs to it.",
		Long: `Delete a stream with its messages, its groups and their dead letters. It cannot be undone.

On a terminal the stream's name is asked for; elsewhere --yes is needed. Its name is free at once. Producers and consumers that still use it get SQL0005.`,
		Example: `  sqlstreams stream delete orders --dry-run
  sqlstreams stream delete orders
  sqlstreams stream delete orders --yes`,
		Args:              args("NAME"),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			if !dryRun {
				if err := a.changes(cmd); err != nil {
					return err
				}
				if !yes && !a.env.Terminal(a.env.Stdin) {
					return usagef("deleting needs --yes where nobody can be asked; --dry-run says what would go")
				}
			}
			return a.deleteStream(cmd, given[0], yes, dryRun)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for the name")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would go, and delete nothing")
	return cmd
}

func (a *app) deleteStream(cmd *cobra.Command, name string, yes, dryRun bool) error {
	ctx, cancel := a.once(cmd)
	defer cancel()
	conn, err := a.connect(ctx, openOptions{})
	if err != nil {
		return err
	}
	defer conn.close()
	view, err := conn.deletion(ctx, name)
	if err != nil {
		return err
	}
	if view.DryRun = dryRun; dryRun {
		return a.show(view, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "stream %q would be deleted: %s\n", name, view)
			return err
		})
	}
	if !yes {
		if err := a.askName(cmd.Context(), "stream", name, view.String()); err != nil {
			return err
		}
	}
	// The time that somebody thought about it does not count.
	cancel()
	ctx, cancel = a.once(cmd)
	defer cancel()
	if err := conn.DeleteStream(ctx, name); err != nil {
		return err
	}
	view.Deleted = true
	return a.show(view, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "stream %q deleted: %s\n", name, view)
		return err
	})
}

// deletion counts what goes with a stream.
func (c *connection) deletion(ctx context.Context, name string) (deletionView, error) {
	status, groups, err := c.lookAt(ctx, name)
	if err != nil {
		return deletionView{}, err
	}
	view := deletionView{Name: name, Messages: status.Retained, Bytes: status.Bytes, Inbox: status.Inbox, Groups: len(groups)}
	for _, g := range groups {
		view.DeadLetters += g.Dead
	}
	return view, nil
}

// askName lets whoever sits at the terminal type the name of what is about to go.
func (a *app) askName(ctx context.Context, kind, name, goes string) error {
	return a.askTyped(ctx, fmt.Sprintf("This deletes %s %q for good: %s.\nType its name to go on: ", kind, name, goes), name, fmt.Sprintf("%s %q is not deleted", kind, name))
}

// askTyped asks for a name to be typed; refused is what is said if another one is.
func (a *app) askTyped(ctx context.Context, question, name, refused string) error {
	if _, err := fmt.Fprint(a.env.Stderr, question); err != nil {
		return err
	}
	type answer struct {
		line string
		err  error
	}
	// A read from a terminal cannot be interrupted; the goroutine ends with the process.
	answers := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
		answers <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case got := <-answers:
		if strings.TrimSpace(got.line) == name {
			return nil
		}
		return failf("%s: %q was typed", refused, strings.TrimSpace(got.line))
	}
}
