package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// tailOptions say which messages are printed.
type tailOptions struct {
	from     string
	last     int64
	key      string
	grep     string
	noFollow bool
	limit    int64         // stop after so many; 0: never
	within   time.Duration // stop then; 0: never
}

// defaultLast is how many messages a tail without further words begins with.
const defaultLast = 10

func newStreamTail(a *app) *cobra.Command {
	var o tailOptions
	cmd := &cobra.Command{
		Use:   "tail STREAM",
		Short: "Print messages as they arrive.",
		Long: `Print the last messages of a stream, then those that arrive, until Ctrl-C. Nothing is consumed: no group moves. (Messages that wait for an id get it, except with --read-only.)

--from begins at an id, at the oldest message (beginning) or behind the newest (now); -n begins so many ids before the newest (10 if neither is
given). --key and --grep choose among the messages from there on. With -o json each line is one object, whose payload is JSON if it is JSON, else base64.
A connection that is lost is opened again, and nothing is left out.`,
		Example: `  sqlstreams stream tail orders
  sqlstreams stream tail orders --from beginning --no-follow -o json > orders.jsonl
  sqlstreams stream tail orders --from now --grep '"total":[0-9]{4,}'
  sqlstreams stream tail orders -n 1000 --key customer-7`,
		Args:              args("STREAM"),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			if o.from != "" && cmd.Flags().Changed("last") {
				return usagef("--from and -n exclude each other")
			}
			return a.tail(cmd.Context(), given[0], o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "where to begin: an id, beginning or now")
	flags.Int64VarP(&o.last, "last", "n", defaultLast, "begin so many ids before the newest")
	flags.StringVar(&o.key, "key", "", "only messages of this key")
	flags.StringVar(&o.grep, "grep", "", "only messages whose payload matches this regular expression")
	flags.BoolVar(&o.noFollow, "no-follow", false, "end at the newest message instead of waiting for more")
	completeWords(cmd, "from", "beginning", "now")
	return cmd
}

// tailing is one tail under way.
type tailing struct {
	app     *app
	conn    *connection
	name    string
	stream  *sqlstreams.StreamHandle
	options tailOptions
	grep    *regexp.Regexp
	drains  bool  // gives messages in the inbox their ids
	after   int64 // the last id that was read
	printed int64
}

func (a *app) tail(ctx context.Context, stream string, o tailOptions) error {
	t := &tailing{app: a, options: o, drains: !a.flags.readOnly}
	if o.last < 0 {
		return usagef("-n is %d; it is 0 or more", o.last)
	}
	var err error
	if o.grep != "" {
		if t.grep, err = regexp.Compile(o.grep); err != nil {
			return usagef("--grep is no regular expression: %s", err)
		}
	}
	if _, err := fromID(o.from); err != nil {
		return err
	}
	conn, err := a.connect(ctx, openOptions{})
	if err != nil {
		return err
	}
	defer conn.close()
	t.conn, t.name, t.stream = conn, stream, conn.Stream(stream)
	if err := t.begin(ctx); err != nil {
		return err
	}
	if o.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.within)
		defer cancel()
	}
	return t.run(ctx)
}

// fromID reads --from as far as it is an id.
func fromID(from string) (int64, error) {
	switch from {
	case "", "beginning", "now":
		return 0, nil
	}
	id, err := strconv.ParseInt(from, 10, 64)
	if err != nil || id < 0 {
		return 0, usagef("--from is %q; it is an id, beginning or now", from)
	}
	return id, nil
}

// begin finds where to read from.
func (t *tailing) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.app.flags.timeout)
	defer cancel()
	status, err := t.stream.Status(ctx)
	if err != nil {
		return err
	}
	if status.Inbox > 0 {
		t.drain(ctx)
		if status, err = t.stream.Status(ctx); err != nil {
			return err
		}
	}
	if status.Inbox > 0 {
		t.app.complain(fmt.Sprintf("note: %s in the inbox for an id, which any running consumer of the stream gives; nobody sees them before", plural(status.Inbox, "message waits", "messages wait")))
	}
	switch t.options.from {
	case "beginning":
		t.after = status.FirstID - 1
	case "now":
		t.after = status.Head
	case "":
		t.after = max(status.Head-t.options.last, status.FirstID-1)
	default:
		id, err := fromID(t.options.from)
		if err != nil {
			return err
		}
		t.after = max(id, 1) - 1
	}
	return nil
}

// The pace of looking for more: at once after something came, ever more slowly while nothing does.
const (
	tailFastest = 20 * time.Millisecond
	tailSlowest = time.Second
	tailPage    = 1000
)

func (t *tailing) run(ctx context.Context) error {
	pause := tailFastest
	lost := false
	for {
		page, err := t.stream.Read(ctx, t.after, tailPage)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C, or its time is over
		case err != nil && (t.options.noFollow || !retryable(err)):
			return err
		case err != nil:
			if !lost {
				t.app.complain("sqlstreams: " + t.app.oneLine(err) + "; trying again")
			}
			lost, pause = true, tailSlowest
		case len(page) > 0:
			lost, pause = false, tailFastest
			done, err := t.print(page)
			if err != nil || done {
				return err
			}
			continue
		case t.options.noFollow:
			return nil
		default:
			lost = false
			t.drain(ctx)
		}
		if !wait(ctx, pause) {
			return nil
		}
		pause = min(pause*2, tailSlowest)
	}
}

// drain lets those messages be seen that no consumer is there to number. Whoever may only read goes without.
func (t *tailing) drain(ctx context.Context) {
	if !t.drains {
		return
	}
	switch _, err := t.conn.Stream(t.name).Sequence(ctx); diag.CodeOf(err) {
	case diag.PermissionDenied, diag.ReadOnlyServer:
		t.drains = false
	}
}

// print reports whether as many were printed as were asked for.
func (t *tailing) print(page []sqlstreams.Message) (done bool, err error) {
	out := bufio.NewWriterSize(t.app.env.Stdout, 64<<10)
	if done, err = t.choose(out, page); err == nil {
		err = out.Flush()
	}
	if err != nil {
		return false, fmt.Errorf("write to standard output: %w", err)
	}
	return done, nil
}

func (t *tailing) choose(out io.Writer, page []sqlstreams.Message) (done bool, err error) {
	for i := range page {
		m := &page[i]
		t.after = m.ID
		if t.options.key != "" && m.Key != t.options.key || t.grep != nil && !t.grep.Match(m.Payload) {
			continue
		}
		if err := t.app.writeMessage(out, m, 0); err != nil {
			return false, err
		}
		if t.printed++; t.printed == t.options.limit {
			return true, nil
		}
	}
	return false, nil
}

func retryable(err error) bool {
	e, ok := errors.AsType[*sqlstreams.Error](err)
	return ok && e.Retryable
}

// wait reports false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
