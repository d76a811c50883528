package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

func newDeadExport(a *app) *cobra.Command {
	var filter filterFlags
	var file string
	cmd := &cobra.Command{
		Use:   "export STREAM GROUP",
		Short: "Write dead letters as JSON Lines.",
		Long: `Write dead letters as JSON Lines, by id: the whole message with its payload (as JSON, or in base64: payload_encoding says which), reason, error, number of attempts and time.

They stay where they are. With --file the file appears when all is written; without, they go to standard output. Memory does not grow with their number.`,
		Example: `  sqlstreams dead export orders mailer --file dead.jsonl
  sqlstreams dead export orders mailer --reason undecodable | jq -r .payload
  sqlstreams dead export orders mailer --file dead.jsonl && sqlstreams dead discard orders mailer --all`,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			f, err := filter.filter(cmd, time.Now())
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("file") && file == "" {
				return usagef("--file is empty")
			}
			opening, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(opening, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			g := target{conn.Group(given[0], given[1]), given[0], given[1]}
			if file == "" {
				_, err := exportDead(cmd.Context(), g, f, a.env.Stdout)
				return err
			}
			n, err := exportFile(cmd.Context(), g, f, file)
			if err == nil {
				a.complain(fmt.Sprintf("%s written to %s", plural(n, "dead letter", "dead letters"), printable(file)))
			}
			return err
		},
	}
	filter.add(cmd, true)
	cmd.Flags().StringVar(&file, "file", "", "write to this `file`, replacing it")
	_ = cmd.MarkFlagFilename("file") // fails for unknown flags only
	return cmd
}

func exportDead(ctx context.Context, g target, f *sqlstreams.DeliveryFilter, w io.Writer) (n int64, err error) {
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	_, err = eachLetter(ctx, g, f, 0, math.MaxInt, func(d *sqlstreams.DeadLetter) error {
		n++
		return encoder.Encode(viewDead(d))
	})
	return n, errors.Join(err, out.Flush())
}

// exportFile writes beside the file and renames, so that half an export is never taken for a whole one.
func exportFile(ctx context.Context, g target, f *sqlstreams.DeliveryFilter, name string) (n int64, err error) {
	part := name + ".part"
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // payloads are nobody else's business
	if err != nil {
		return 0, err
	}
	n, err = exportDead(ctx, g, f, out)
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(part))
	}
	return n, nil
}
