package cli

import (
	"bufio"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

// getOptions say which messages of a stream are looked up.
type getOptions struct {
	id      int64 // 0: by key
	key     string
	history bool
	last    int
}

func newStreamGet(a *app) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get STREAM [ID]",
		Short: "Print one message, or the messages of a key.",
		Long: `Print one message by its id, or the newest message of a key, or with --history the messages of a key, the newest first. Looking by key needs a stream that is
keyed (SQL0014). A message that waits in the inbox for its id is not seen. Nothing found is a failure (status 1).`,
		Example: `  sqlstreams stream get accounts 4711
  sqlstreams stream get accounts --key a-17
  sqlstreams stream get accounts --key a-17 --history -n 20 -o json`,
		Args:              args("STREAM", "ID..."),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) > 2 || (len(given) == 2) == cmd.Flags().Changed("key") {
				return usagef("either one ID or --key says what to look up")
			}
			if !o.history && cmd.Flags().Changed("last") {
				return usagef("-n belongs to --history")
			}
			if o.history && len(given) == 2 {
				return usagef("--history belongs to --key")
			}
			if o.last < 1 || o.last > sqlstreams.MaxRead {
				return usagef("-n is %d; it is 1 to %d", o.last, sqlstreams.MaxRead)
			}
			if len(given) == 2 {
				id, err := strconv.ParseInt(given[1], 10, 64)
				if err != nil || id < 1 {
					return usagef("%q is no id", given[1])
				}
				o.id = id
			}
			ctx, cancel := a.once(cmd)
			defer cancel()
			return a.get(ctx, given[0], o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.key, "key", "", "the key to look up")
	flags.BoolVar(&o.history, "history", false, "all messages of the key, the newest first")
	flags.IntVarP(&o.last, "last", "n", 100, "at most so many of the history")
	return cmd
}

func (a *app) get(ctx context.Context, stream string, o getOptions) error {
	conn, err := a.connect(ctx, openOptions{})
	if err != nil {
		return err
	}
	defer conn.close()
	found, err := lookUp(ctx, conn.Stream(stream), o)
	if err != nil {
		return err
	}
	if len(found) == 0 && o.id > 0 {
		return failf("stream %q holds no message %d", stream, o.id)
	} else if len(found) == 0 {
		return failf("stream %q holds no message of this key", stream)
	}
	out := bufio.NewWriter(a.env.Stdout)
	for i := range found {
		if err := a.writeMessage(out, &found[i], 0); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

func lookUp(ctx context.Context, stream *sqlstreams.StreamHandle, o getOptions) ([]sqlstreams.Message, error) {
	if o.id > 0 {
		m, err := stream.Get(ctx, o.id)
		if err != nil || m == nil {
			return nil, err
		}
		return []sqlstreams.Message{*m}, nil
	}
	limit := 1
	if o.history {
		limit = o.last
	}
	return stream.Versions(ctx, o.key, 0, limit)
}
