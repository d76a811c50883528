package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// consuming is one run of consume as a group.
type consuming struct {
	app      *app
	stream   string
	options  *consumeOptions
	until    until
	consumer *sqlstreams.Consumer[[]byte]
	group    *sqlstreams.GroupHandle

	taken atomic.Int64       // messages that were begun, for --until N
	stop  context.CancelFunc // ends the run in good order

	mu  sync.Mutex
	err error // why writing failed
}

func (a *app) consumeAs(ctx context.Context, stream string, o *consumeOptions, u until) error {
	opening, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	conn, err := a.connect(opening, openOptions{listen: true, strict: true})
	if err != nil {
		return err
	}
	defer conn.close()
	c := &consuming{app: a, stream: stream, options: o, until: u, group: conn.Group(stream, o.group)}
	if c.consumer, err = a.declare(opening, conn, stream, o); err != nil {
		return err
	}
	return c.run(ctx)
}

func (c *consuming) run(ctx context.Context) error {
	started := time.Now()
	ctx, c.stop = context.WithCancel(ctx)
	defer c.stop()
	if c.until.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.until.within)
		defer cancel()
	}
	watched := make(chan error, 1)
	go func() { watched <- c.watch(ctx) }()
	err := c.consumer.Consume(ctx, c.handle, &sqlstreams.ConsumeOptions{Handlers: c.options.handlers, QueueMargin: c.options.queueMargin, RecordMargin: c.options.recordMargin})
	c.stop()
	watchErr := <-watched
	c.summary(time.Since(started))
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(err, watchErr, c.err)
}

// handle is the group's handler.
func (c *consuming) handle(ctx context.Context, payload *[]byte) error {
	meta, _ := sqlstreams.MetaFromContext(ctx) // a handler's context always has it
	if n := c.taken.Add(1); c.until.messages > 0 && n >= c.until.messages {
		// The last one stops the run; one that began beside it goes back as if it had not been touched.
		c.stop()
		if n > c.until.messages {
			return sqlstreams.Delay(0)
		}
	}
	var data []byte // nil: a tombstone
	if payload != nil {
		data = *payload
	}
	if c.options.exec != "" {
		return c.execute(ctx, &meta, data)
	}
	m := &sqlstreams.Message{ID: meta.ID, Key: meta.Key, RoutingKey: meta.RoutingKey, SchemaVersion: meta.SchemaVersion, Headers: meta.Headers, Payload: data,
		ProducedAt: meta.ProducedAt, AppendedAt: meta.AppendedAt, ScheduledAt: meta.ScheduledAt}
	if err := c.app.writeMessage(c.app.env.Stdout, m, meta.Attempt); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		// Nobody saw the message, so it is not done; nobody will see the next ones either.
		c.err = fmt.Errorf("write to standard output: %w", err)
		c.stop()
		return sqlstreams.Delay(0)
	}
	return nil
}

// caughtUpEvery is how often the group is looked at for --until caught-up.
const caughtUpEvery = 200 * time.Millisecond

// watch ends the run when the group has caught up.
func (c *consuming) watch(ctx context.Context) error {
	if !c.until.caughtUp {
		return nil
	}
	for wait(ctx, caughtUpEvery) {
		s, err := c.group.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && retryable(err):
			continue
		case err != nil:
			c.stop()
			return err
		case s.Idle():
			c.stop()
			return nil
		case parkedOnly(s):
			// They will wait until an operator has decided.
			c.stop()
			c.app.complain(fmt.Sprintf("sqlstreams: %s wait behind dead letters that park their keys; \"sqlstreams group show %s %s%s\" names them", number(s.Waiting), s.Stream, s.Group, c.app.schemaFlag()))
			return nil
		}
	}
	return nil
}

// parkedOnly says that nothing is left but what waits behind dead letters that park their keys.
func parkedOnly(s *sqlstreams.GroupStatus) bool {
	waiting := s.Waiting
	s.Waiting = 0
	idle := s.Idle()
	s.Waiting = waiting
	return idle && len(s.Keys) > 0 && !slices.ContainsFunc(s.Keys, func(k sqlstreams.BlockedKey) bool { return k.State != "parked" })
}

// summary tells what was done, on standard error: standard output is for messages.
func (c *consuming) summary(took time.Duration) {
	h := c.consumer.Health()
	c.app.complain(fmt.Sprintf("consumer stopped after %s: claimed %d, succeeded %d, failed %d, delayed %d, dead %d, given back %d, stale %d, lease lost %d, abandoned %d",
		took.Round(10*time.Millisecond), h.Claimed, h.Succeeded, h.Failed, h.Delayed, h.Dead, h.GivenBack, h.Stale, h.LeaseLost, h.Abandoned))
}
