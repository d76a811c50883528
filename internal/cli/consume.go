package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// consumeOptions are the flags of consume.
type consumeOptions struct {
	group        string
	exec         string
	until        string
	handlers     int
	timeout      time.Duration
	maxAttempts  int
	queueMargin  time.Duration
	recordMargin time.Duration
	start        string
	keyOrder     string
	parkKeys     bool
}

func newConsume(a *app) *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{
		Use:   "consume STREAM",
		Short: "Print messages, or handle them as a consumer group.",
		Long: `With --group: consume as an instance of the group, which is created if it does not exist. Each message is printed, or given to the command of --exec, and is then
done for the group. Ctrl-C lets what runs finish and gives the rest back. Messages can come more than once, as with every consumer.

--exec runs "sh -c COMMAND" for each message: the payload on standard input; SQLSTREAMS_ID, SQLSTREAMS_KEY, SQLSTREAMS_STREAM, SQLSTREAMS_GROUP and
SQLSTREAMS_ATTEMPT in the environment. Exit code 0: done. 65: never try again, it becomes a dead letter. Others (75 by custom): try again after a backoff; the last
line of standard error is kept as the reason. At the message's timeout the command and all that it started are killed.

Without --group: print the messages from the beginning (--start head: from now), as stream tail does; no group moves.

--until ends the command: caught-up (nothing is left to do), a number of messages, or a duration. The settings of a group that exists are never
changed: --timeout-per-message, --max-attempts, --key-order and --park-keys that differ from them are refused (SQL0008).

--key-order ordered handles the messages of one key one at a time and in order, exclusive one at a time. A message that becomes a dead letter sets its key free; with
--park-keys its successors wait until it is redriven or discarded.`,
		Example: `  sqlstreams consume orders --group audit
  sqlstreams consume orders --group mailer --exec './send-mail' --handlers 4 --until caught-up
  sqlstreams consume orders --until 10 -o json`,
		Args:              args("STREAM"),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			u, err := o.check(cmd)
			if err != nil {
				return err
			}
			if o.group == "" {
				return a.consumeAlone(cmd.Context(), given[0], &o, u)
			}
			if err := a.changes(cmd); err != nil {
				return err
			}
			return a.consumeAs(cmd.Context(), given[0], &o, u)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.group, "group", "g", "", "consume as this group")
	flags.StringVar(&o.exec, "exec", "", "command that handles a message")
	flags.StringVar(&o.until, "until", "", "when to end: caught-up, a number of messages, or a duration such as 30s (default: never)")
	flags.IntVar(&o.handlers, "handlers", 1, "how many messages are handled at once")
	flags.DurationVar(&o.timeout, "timeout-per-message", 0, "how long a message may take (default: the group's setting, 30s)")
	flags.IntVar(&o.maxAttempts, "max-attempts", 0, "failures that make a dead letter (default: the group's setting, 10)")
	flags.DurationVar(&o.queueMargin, "queue-margin", 0, "the lease's allowance for waiting in the queue (default 15s)")
	flags.DurationVar(&o.recordMargin, "record-margin", 0, "the lease's allowance for recording results (default 2s)")
	flags.StringVar(&o.start, "start", "", "where a new group begins: beginning (default) or head")
	flags.StringVar(&o.keyOrder, "key-order", "", "how messages of one key follow each other: parallel, exclusive or ordered (default: as each message asks)")
	flags.BoolVar(&o.parkKeys, "park-keys", false, "keep the successors of a dead letter of an ordered key waiting")
	completeWords(cmd, "key-order", "parallel", "exclusive", "ordered")
	completeWords(cmd, "start", "beginning", "head")
	completeWords(cmd, "until", "caught-up")
	completeFlag(cmd, "group", a.completeGroup)
	return cmd
}

// until says when consuming ends; the zero value: never.
type until struct {
	caughtUp bool
	messages int64
	within   time.Duration
}

func parseUntil(text string) (until, error) {
	if text == "" {
		return until{}, nil
	}
	if text == "caught-up" {
		return until{caughtUp: true}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		return until{messages: n}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return until{within: d}, nil
	}
	return until{}, usagef("--until is %q; it is caught-up, a number of messages, or a duration such as 30s", text)
}

func (o *consumeOptions) check(cmd *cobra.Command) (until, error) {
	u, err := parseUntil(o.until)
	if err != nil {
		return u, err
	}
	if o.start != "" && o.start != string(sqlstreams.Beginning) && o.start != string(sqlstreams.Head) {
		return u, usagef("--start is %q; it is beginning or head", o.start)
	}
	if o.group == "" {
		for _, flag := range []string{"exec", "handlers", "timeout-per-message", "max-attempts", "queue-margin", "record-margin", "key-order", "park-keys"} {
			if cmd.Flags().Changed(flag) {
				return u, usagef("--%s needs --group", flag)
			}
		}
	}
	switch sqlstreams.KeyOrder(o.keyOrder) {
	case "", sqlstreams.Parallel, sqlstreams.Exclusive, sqlstreams.Ordered:
	default:
		return u, usagef("--key-order is %q; it is parallel, exclusive or ordered", o.keyOrder)
	}
	if o.handlers < 1 {
		return u, usagef("--handlers is %d; it is 1 or more", o.handlers)
	}
	if cmd.Flags().Changed("exec") && o.exec == "" {
		return u, usagef("--exec is empty")
	}
	if o.exec != "" && runtime.GOOS == "windows" {
		return u, usagef("--exec needs a Unix shell")
	}
	return u, nil
}

// consumeAlone prints without a group.
func (a *app) consumeAlone(ctx context.Context, stream string, o *consumeOptions, u until) error {
	from := "beginning"
	if o.start == string(sqlstreams.Head) {
		from = "now"
	}
	return a.tail(ctx, stream, tailOptions{from: from, noFollow: u.caughtUp, limit: u.messages, within: u.within})
}

// config is what the command line says of the group; nil: nothing, so the group is taken as it is.
func (o *consumeOptions) config(exists bool) *sqlstreams.ConsumerConfig {
	var c sqlstreams.ConsumerConfig
	if !exists {
		c.Start = sqlstreams.Start(o.start)
	}
	if o.timeout != 0 || o.maxAttempts != 0 {
		c.Message = &sqlstreams.MessageOptions{Timeout: o.timeout, MaxAttempts: o.maxAttempts}
	}
	c.KeyOrder, c.ParkKeyOnDeadLetter = sqlstreams.KeyOrder(o.keyOrder), o.parkKeys
	if c == (sqlstreams.ConsumerConfig{}) {
		return nil
	}
	return &c
}

// declare registers the group without changing one that exists.
func (a *app) declare(ctx context.Context, conn *connection, stream string, o *consumeOptions) (*sqlstreams.Consumer[[]byte], error) {
	groups, err := conn.ListGroups(ctx, stream)
	if err != nil {
		return nil, err
	}
	exists := false
	for _, g := range groups {
		exists = exists || g.Name == o.group
	}
	if exists && o.start != "" {
		a.complain(fmt.Sprintf("warning: group %q exists and keeps its position; --start is not applied", o.group))
	}
	consumer, err := conn.Stream(stream).Consumer(ctx, o.group, o.config(exists))
	if e, ok := errors.AsType[*sqlstreams.Error](err); ok && e.Code == diag.DeclarationConflict {
		// Both declarations in full, as the library tells them, are more than a person can compare.
		c := *e
		c.Detail = "it is declared with other settings, which this command does not change: leave --timeout-per-message, --max-attempts, --key-order and --park-keys out"
		return nil, &c
	}
	return consumer, err
}
