package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds what a shell waits for at a press of Tab.
const completeTimeout = 2 * time.Second

// completeStream offers the names of streams as the first argument. An error means: nothing to offer.
func (a *app) completeStream(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.ListStreams(ctx)
		for _, s := range all {
			names = append(names, s.Name)
		}
		return names, err
	})
}

// completeGroup offers the names of the groups of the stream that stands before it.
func (a *app) completeGroup(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(given) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.ListGroups(ctx, given[0])
		for _, g := range all {
			names = append(names, g.Name)
		}
		return names, err
	})
}

// completeStreamGroup offers a stream, then one of its groups: for commands with the arguments STREAM GROUP.
func (a *app) completeStreamGroup(cmd *cobra.Command, given []string, word string) ([]string, cobra.ShellCompDirective) {
	switch len(given) {
	case 0:
		return a.completeStream(cmd, given, word)
	case 1:
		return a.completeGroup(cmd, given, word)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) complete(cmd *cobra.Command, list func(context.Context, *connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completeTimeout)
	defer cancel()
	if err := a.checkFlags(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	conn, err := a.connect(ctx, openOptions{quiet: true})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.close()
	names, err := list(ctx, conn)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeWords offers a fixed list for a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	completeFlag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only for a flag that the command does not have, which a test notices
}
