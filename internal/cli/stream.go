package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

func newStream(a *app) *cobra.Command {
	return group("stream", "Create, look at, follow and delete streams.",
		"Create, look at, follow and delete streams: named append-only logs of messages.",
		`  sqlstreams stream create orders
  sqlstreams stream list
  sqlstreams stream tail orders`,
		newStreamCreate(a), newStreamList(a), newStreamShow(a), newStreamDelete(a), newStreamTail(a), newStreamGet(a))
}

type streamView struct {
	ID        int        `json:"id"`
	Name      string     `json:"name"`
	Kind      string     `json:"kind"` // json, bytes
	FirstID   int64      `json:"first_id"`
	Keyed     bool       `json:"keyed"`
	Compacted bool       `json:"compacted"`
	CreatedAt *time.Time `json:"created_at"`
}

func viewStream(s sqlstreams.StreamInfo) streamView {
	return streamView{ID: s.ID, Name: s.Name, Kind: s.Kind, FirstID: s.FirstID, Keyed: s.Keyed, Compacted: s.Compacted, CreatedAt: at(s.CreatedAt)}
}

func newStreamCreate(a *app) *cobra.Command {
	var codec, maxPayload, maxKey, maxHeaders string
	var keyed, compacted bool
	var ttl, lag time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a stream.",
		Long: `Create a stream, and the schema if there is none. A stream that exists with the same settings is left as it is, which is no error; one with other settings is
an error (SQL0008): this command changes no stream that exists.

Whether a stream holds JSON or bytes is decided now and never changes. Programs with a codec of their own (protobuf, encryption) need --codec raw.`,
		Example: `  sqlstreams stream create orders
  sqlstreams stream create images --codec raw --max-payload 8MiB`,
		Args: args("NAME"),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := a.changes(cmd); err != nil {
				return err
			}
			config := &sqlstreams.StreamConfig{Keyed: keyed, Compacted: compacted, TombstoneTTL: ttl, CompactionLag: lag}
			for _, s := range []struct {
				flag, text string
				target     *int
			}{{"max-payload", maxPayload, &config.MaxPayload}, {"max-key", maxKey, &config.MaxKey}, {"max-headers", maxHeaders, &config.MaxHeaders}} {
				if s.text == "" {
					continue
				}
				n, err := parseSize(s.flag, s.text)
				if err != nil {
					return err
				}
				*s.target = n
			}
			for _, flag := range []string{"tombstone-ttl", "compaction-lag"} {
				if cmd.Flags().Changed(flag) && (!compacted || ttl == 0 && flag == "tombstone-ttl" || lag == 0 && flag == "compaction-lag") {
					return usagef("--%s is a time above 0, with --compacted", flag)
				}
			}
			switch codec {
			case "json":
			case "raw":
				config.Codec = sqlstreams.Raw{}
			default:
				return usagef("--codec is %q; it is json or raw", codec)
			}
			ctx, cancel := a.once(cmd)
			defer cancel()
			return a.createStream(ctx, given[0], config)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&codec, "codec", "json", "what payloads are: json, or raw bytes")
	flags.StringVar(&maxPayload, "max-payload", "", "largest payload (default 1MiB, at most 256MiB)")
	flags.StringVar(&maxKey, "max-key", "", "longest key (default 512 bytes, at most 2048)")
	flags.StringVar(&maxHeaders, "max-headers", "", "largest headers of a message (default 16KiB, at most 1MiB)")
	flags.BoolVar(&keyed, "keyed", false, "index messages by key, so that a key's newest message and its history can be read")
	flags.BoolVar(&compacted, "compacted", false, "keep of each key the newest message, and remove older ones once they are replaced")
	flags.DurationVar(&lag, "compaction-lag", 0, "for how long a message is kept after it was replaced (default 1m)")
	flags.DurationVar(&ttl, "tombstone-ttl", 0, "for how long a tombstone is kept (default 24h)")
	completeWords(cmd, "codec", "json", "raw")
	return cmd
}

type createdView struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"` // created, unchanged
}

func (a *app) createStream(ctx context.Context, name string, config *sqlstreams.StreamConfig) error {
	conn, err := a.connect(ctx, openOptions{migrate: true, strict: true})
	if err != nil {
		return err
	}
	defer conn.close()
	outcome, err := register(ctx, conn.Client, name, config)
	if err != nil {
		return err
	}
	return a.show(createdView{Name: name, Outcome: string(outcome)}, func(w io.Writer) error {
		text := "stream %q created\n"
		if outcome == sqlstreams.Unchanged {
			text = "stream %q exists already with these settings\n"
		}
		_, err := fmt.Fprintf(w, text, name)
		return err
	})
}

// register declares a stream of the type that fits its codec.
func register(ctx context.Context, client *sqlstreams.Client, name string, config *sqlstreams.StreamConfig) (sqlstreams.Outcome, error) {
	stream, err := sqlstreams.RegisterStream[[]byte](ctx, client, name, config)
	if err != nil {
		return "", err
	}
	return stream.Outcome(), nil
}

func newStreamList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the streams.",
		Long:    "List the streams by name. -o wide also shows how much each holds, which takes a look at each.",
		Example: `  sqlstreams stream list
  sqlstreams stream list -o json | jq -r '.[].name'`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			return a.listStreams(ctx, conn)
		},
	}
}

func (a *app) listStreams(ctx context.Context, conn *connection) error {
	all, err := conn.ListStreams(ctx)
	if err != nil {
		return err
	}
	views := make([]streamView, 0, len(all))
	t := newTable("NAME", "KIND", "CREATED")
	if a.wide() {
		t = newTable("NAME", "KIND", "CREATED", "FIRST ID", "HEAD", "ON DISK", "PARTITIONS", "INBOX", "GROUPS").numbers(3, 4, 5, 6, 7, 8)
	}
	for _, s := range all {
		views = append(views, viewStream(s))
		row := []string{s.Name, s.Kind, stamp(s.CreatedAt)}
		if a.wide() {
			status, err := conn.Stream(s.Name).Status(ctx)
			if diag.CodeOf(err) == diag.StreamNotFound {
				continue // deleted meanwhile
			} else if err != nil {
				return err
			}
			row = append(row, number(status.FirstID), number(status.Head), size(status.Bytes), number(status.Partitions), number(status.Inbox), number(status.Groups))
		}
		t.add(row...)
	}
	return a.show(views, func(w io.Writer) error {
		return a.writeTable(w, t, "no streams; create one: sqlstreams stream create NAME")
	})
}
