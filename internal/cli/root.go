package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

// commandGroups are the constructors of what stands below the root. Each takes what all commands share and returns one command, with its own below it.
func commandGroups() []func(*app) *cobra.Command {
	return []func(*app) *cobra.Command{
		newStream,
		newProduce,
		newConsume,
		newDemo,
		newGroup,
		newDead,
		newMigrate,
		newExplain,
		newDev,
		newVersion,
	}
}

// app is what the commands of one run share.
type app struct {
	env   Env
	flags struct {
		database, schema, output string
		readOnly, noColor        bool
		timeout                  time.Duration
	}
	ran bool // flags and arguments were understood

	outTerminal, errTerminal bool
}

// The forms of output.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputWide  = "wide"
)

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sqlstreams",
		Short: "Streams, consumer groups and their schema in Postgres.",
		Long: `Look at streams and consumer groups in Postgres, produce, consume, and keep the schema.

The database is --database, else DATABASE_URL, else what the PG* variables say.
Exit codes: 0 done, 1 failed or absent, 2 usage.`,
		Example: `  sqlstreams migrate up
  sqlstreams stream create orders
  sqlstreams produce orders '{"id": 1}'
  sqlstreams stream tail orders
  sqlstreams explain SQL0105`,
		Args:              noArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkFlags() },
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	// Before the completion commands are made: they keep the writer.
	root.SetIn(a.env.Stdin)
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&a.flags.database, "database", "", "the database, as URL or key=value words (default: DATABASE_URL, else the PG* variables)")
	flags.StringVar(&a.flags.schema, "schema", "", `the installation's schema (default: SQLSTREAMS_SCHEMA, else "sqlstreams")`)
	flags.StringVarP(&a.flags.output, "output", "o", outputTable, "form of the output: table, wide or json")
	flags.BoolVar(&a.flags.readOnly, "read-only", false, "refuse every command that changes something")
	flags.BoolVar(&a.flags.noColor, "no-color", false, "no colour on a terminal (as the variable NO_COLOR does)")
	flags.DurationVar(&a.flags.timeout, "timeout", 30*time.Second, "how long a command that answers once may take")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%s", err) })
	for _, construct := range commandGroups() {
		root.AddCommand(construct(a))
	}
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true, Args: noArgs}) // --help is enough
	reflowHelp(root)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Write the script that completes commands, flags, streams and groups in a shell."
			cmd.Example = "  source <(sqlstreams completion bash)\n  sqlstreams completion zsh > \"${fpath[1]}/_sqlstreams\""
			cmd.Long = "Write the script that lets a shell complete commands, flags, streams and groups.\n\nEach shell's own help says where the script belongs."
		}
	}
	// Errors of flags that take words from a list are usage, too.
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputWide, outputJSON}, cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	return root
}

// reflowHelp fits the details of all commands to a terminal.
func reflowHelp(cmd *cobra.Command) {
	cmd.Long = reflow(cmd.Long)
	for _, child := range cmd.Commands() {
		reflowHelp(child)
	}
}

// group is a command that only holds others.
func group(use, short, long, example string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(children...)
	return cmd
}

// noArgs also refuses words below a group: they are commands that do not exist.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return usagef("%s takes no argument, but %q is given", commandName(cmd), args[0])
	}
	text := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), text)
}

// args wants these arguments and no more. A last name that ends with "..." may stand any number of times, also not at all.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		need, many := len(names), false
		if need > 0 && strings.HasSuffix(names[need-1], "...") {
			need, many = need-1, true
		}
		if len(given) < need {
			return usagef("%s needs %s", commandName(cmd), strings.Join(names[len(given):need], " and "))
		}
		if len(given) > need && !many && need == 0 {
			return usagef("%s takes no argument, but %q is given", commandName(cmd), given[0])
		}
		if len(given) > need && !many {
			return usagef("%s takes %s and no more, but %q is given", commandName(cmd), strings.Join(names, " and "), given[need])
		}
		return nil
	}
}

// commandName is the command as it is typed, without the program.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// checkFlags fills in what the environment says, and looks at what all commands share. Commands run after it, so an error from here is usage.
func (a *app) checkFlags() error {
	if !slices.Contains([]string{outputTable, outputJSON, outputWide}, a.flags.output) {
		return usagef("--output is %q; it is table, wide or json", a.flags.output)
	}
	if a.flags.timeout <= 0 {
		return usagef("--timeout is %s; it must be more than 0", a.flags.timeout)
	}
	if a.flags.schema == "" {
		a.flags.schema = a.env.Getenv("SQLSTREAMS_SCHEMA")
	}
	if a.flags.schema == "" {
		a.flags.schema = sqlstreams.DefaultSchema
	}
	a.ran = true
	return nil
}

// changes is called by every command that writes, before it does.
func (a *app) changes(cmd *cobra.Command) error {
	if a.flags.readOnly {
		return usagef("%s changes the installation, which --read-only forbids", commandName(cmd))
	}
	return nil
}

// once bounds a command that answers once.
func (a *app) once(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), a.flags.timeout)
}
