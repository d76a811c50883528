package cli

import (
	"errors"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams/internal/demo"
)

func newDemo(a *app) *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch consumers killed and handlers fail, and nothing lost.",
		Long: `Tell in about half a minute, with real processes, what happens to payments when an instance is killed, a handler hangs, fails, or is refused; and count what was lost.

With --database or DATABASE_URL it works in two schemas of its own there, and drops them at the end. Without, it starts a disposable server, for which it needs
PostgreSQL's programs (initdb, postgres) on this machine.
It ends with "lost 0" and exit code 0; with exit code 1 if anything was lost, or with "lost unknown" if it could not be completed.`,
		Example: `  sqlstreams demo
  sqlstreams demo --database postgres://localhost/test --keep
  sqlstreams demo --sabotage lose-one`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if demo.IsChild() {
				return told(demo.Child())
			}
			if a.json() {
				return usagef("demo tells a story, which has no JSON")
			}
			if err := a.changes(cmd); err != nil {
				return err
			}
			// A closed terminal is a reason to clean up as much as Ctrl-C is.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			o.DSN, _ = a.dsn()
			o.Out, o.Color = a.env.Stdout, a.colour(a.env.Stdout)
			err := demo.Run(ctx, o)
			if usage, ok := errors.AsType[*demo.UsageError](err); ok {
				return usagef("%s", usage.Text)
			}
			if _, ok := errors.AsType[*demo.LostError](err); ok {
				return told(err) // its last line
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Keep, "keep", false, "leave the demo's schemas in the database")
	flags.StringVar(&o.Sabotage, "sabotage", "", "break something, to see that it is noticed: "+demo.LoseOne+" deletes a message from the stream's table")
	flags.BoolVar(&o.Brief, "brief", false, "shorten all times")
	_ = flags.MarkHidden("brief") // fails for unknown flags only
	_ = cmd.RegisterFlagCompletionFunc("sabotage", cobra.FixedCompletions([]string{demo.LoseOne}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// told marks an error of which nothing is left to say but the exit code.
func told(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err: err, told: true}
}
