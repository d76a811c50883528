package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

const (
	look = 20 * time.Millisecond // how often the parent looks
	// unmoved is how long nothing may happen before the demo gives up: much longer than a lease and a retry's wait.
	unmoved = time.Minute
	// consuming is what count-lines would take with both of its processes. The handlers' pause is made for it.
	consuming = 9 * time.Second
	// slowest bounds the pause when there are few files; it stays far below the handlers' timeout.
	slowest = 60 * time.Millisecond
)

// crew is the processes that consume, and what the parent knows of them.
type crew struct {
	tale     *story
	place    *place
	client   *sqlstreams.Client
	produced int

	victim, survivor, other *process
	killed                  time.Time       // zero: not yet
	held                    map[int64]int64 // what the victim held when it died: ranges (low, high]
	tookOver                bool            // and it was told
	done                    map[string]bool
	lines, imports          int // handled so far
	moved                   time.Time
}

// consumeFiles lets the groups read everything, and kills one of the consumers on the way.
func consumeFiles(ctx context.Context, tale *story, p *place, files *fileSet) (err error) {
	c := &crew{tale: tale, place: p, produced: len(files.list), held: map[int64]int64{}, done: map[string]bool{}}
	if c.client, err = p.client(ctx, tale); err != nil {
		return err
	}
	defer c.client.Close(context.WithoutCancel(ctx))
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.start(ctx, files); err != nil {
		return err
	}
	return c.watch(ctx)
}

func (c *crew) start(ctx context.Context, files *fileSet) error {
	pause := min(consuming*2*handlers/time.Duration(len(files.list)), slowest).Truncate(time.Millisecond)
	for _, each := range []struct {
		to    **process
		group string
		pause time.Duration
	}{{&c.victim, countLine, pause}, {&c.survivor, countLine, pause}, {&c.other, countImport, pause / 2}} {
		started, err := startProcess(c.tale, c.place.dsn, childFlags{
			group: each.group, schema: c.place.schema, app: c.place.app, root: files.root, pause: each.pause,
		})
		if err != nil {
			return err
		}
		*each.to = started
	}
	c.moved = time.Now()
	ready := func(ctx context.Context) (bool, error) {
		return c.victim.isReady() && c.survivor.isReady() && c.other.isReady(), nil
	}
	if err := c.until(ctx, ready); err != nil {
		return err
	}
	c.tale.say("consuming", "%s:   pid %d and pid %d, which share the files", countLine, c.victim.pid(), c.survivor.pid())
	c.tale.more("%s: pid %d, which gets every file as well", countImport, c.other.pid())
	c.tale.more("%d handlers each, slowed to %s a file so that the one killed holds work", handlers, pause)
	c.tale.more("lease %s = timeout %s + queue margin %s + grace %s + record margin %s", lease, timeout, queueMargin, timeoutGrace, recordMargin)
	return nil
}

// watch follows the groups until both are through.
func (c *crew) watch(ctx context.Context) error {
	c.moved = time.Now()
	return c.until(ctx, func(ctx context.Context) (bool, error) {
		if err := c.count(ctx); err != nil {
			return false, err
		}
		c.tale.progress("%s %s %s   %s %s %s", countLine, bar(c.lines, c.produced), count(c.lines), countImport, bar(c.imports, c.produced), count(c.imports))
		if c.killed.IsZero() && c.lines*5 >= c.produced*2 {
			if err := c.killOne(ctx); err != nil {
				return false, err
			}
		}
		if err := c.tellTakeover(ctx); err != nil {
			return false, err
		}
		lines, err := c.through(ctx, countLine, c.lines)
		if err != nil {
			return false, err
		}
		imports, err := c.through(ctx, countImport, c.imports)
		return lines && imports, err
	})
}

// until looks again and again, until the condition holds, a child has failed or nothing has moved for long.
func (c *crew) until(ctx context.Context, condition func(context.Context) (bool, error)) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if met, err := condition(ctx); met || err != nil {
			return err
		}
		for _, p := range c.alive() {
			if err := p.check(); err != nil {
				return err
			}
		}
		if time.Since(c.moved) > unmoved {
			return fmt.Errorf("nothing has moved for %s%s", unmoved, c.standing(ctx))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (c *crew) alive() (all []*process) {
	for _, p := range []*process{c.victim, c.survivor, c.other} {
		if p != nil && !(p == c.victim && !c.killed.IsZero()) {
			all = append(all, p)
		}
	}
	return all
}

// count looks into the application's tables.
func (c *crew) count(ctx context.Context) error {
	var lines, imports int
	app := quote(c.place.app)
	err := c.place.pool.QueryRow(ctx, `select (select count(*) from `+app+`.file_lines), (select count(*) from `+app+`.file_imports)`).Scan(&lines, &imports)
	if err != nil {
		return fmt.Errorf("look how far the groups are: %w", err)
	}
	if lines != c.lines || imports != c.imports {
		c.lines, c.imports, c.moved = lines, imports, time.Now()
	}
	return nil
}

// killOne kills one of the two processes of count-lines, which has handlers running and files waiting in its queue.
func (c *crew) killOne(ctx context.Context) error {
	c.killed = time.Now()
	if err := c.victim.kill(); err != nil {
		return err
	}
	c.tale.alarm("kill -9", "pid %d, while it works: %s has handled %s of %s files", c.victim.pid(), countLine, count(c.lines), count(c.produced))
	if err := c.seeHeld(ctx); err != nil {
		return err
	}
	ids := int64(0)
	for low, high := range c.held {
		ids += high - low
	}
	c.tale.more("it held %s messages (ranges: %d), which stay its own until their leases end", count(ids), len(c.held))
	return nil
}

// seeHeld reads which ranges the dead process holds. The library has no call that says so, and Meta.Redelivered alone is not proof: a living
// process gives back what it has claimed too much of.
func (c *crew) seeHeld(ctx context.Context) error {
	schema := quote(c.place.schema)
	rows, err := c.place.pool.Query(ctx, `select c.low, c.high from `+schema+`.claim c join `+schema+`.instance i on i.id = c.instance where i.pid = $1`, c.victim.pid())
	if err != nil {
		return fmt.Errorf("look what the dead process holds: %w", err)
	}
	var low, high int64
	_, err = pgx.ForEachRow(rows, []any{&low, &high}, func() error {
		c.held[low] = high
		return nil
	})
	if err != nil {
		return fmt.Errorf("look what the dead process holds: %w", err)
	}
	return nil
}

// inherited returns what the surviving process has begun of what the dead one held, in the order in which it did.
func (c *crew) inherited() (found []report) {
	for _, r := range c.survivor.takenOver(c.killed) {
		for low, high := range c.held {
			if r.Redelivered > low && r.Redelivered <= high {
				found = append(found, r)
			}
		}
	}
	return found
}

// tellTakeover tells when the surviving process has begun with what the dead one held.
func (c *crew) tellTakeover(ctx context.Context) error {
	if c.killed.IsZero() || c.tookOver {
		return nil
	}
	// A request that was on its way when its sender died may have come after the last look.
	if err := c.seeHeld(ctx); err != nil {
		return err
	}
	if taken := c.inherited(); len(taken) > 0 {
		c.tookOver = true
		c.tale.note("takeover", "%s after the kill (lease %s) pid %d begins with what pid %d held", seconds(taken[0].At.Sub(c.killed)), seconds(lease),
			c.survivor.pid(), c.victim.pid())
	}
	return nil
}

// through says whether a group has an outcome for every message. It asks only when the application's table says that it is nearly so.
func (c *crew) through(ctx context.Context, group string, handled int) (bool, error) {
	// One may be missing: that is what sabotage does.
	if c.done[group] || handled < c.produced-1 {
		return c.done[group], nil
	}
	state, err := c.client.GetGroup(ctx, streamName, group)
	if err != nil {
		return false, err
	}
	if state.Committed < state.Head || state.Pending+state.Running > 0 {
		return false, nil
	}
	c.done[group] = true
	c.tale.say("through", "%s: every message up to %s has its outcome, %s dead letters", group, count(state.Head), count(state.Dead))
	if group == countLine {
		return true, c.tellRunAgain(ctx)
	}
	return true, nil
}

// tellRunAgain tells what the kill has cost.
func (c *crew) tellRunAgain(ctx context.Context) error {
	if c.killed.IsZero() {
		return nil
	}
	taken := len(c.inherited())
	if taken == 0 {
		c.tale.more("pid %d held nothing when it died, so there was nothing to take over", c.victim.pid())
		return nil
	}
	var again int
	if err := c.place.pool.QueryRow(ctx, `select coalesce(sum(handled - 1), 0) from `+quote(c.place.app)+`.file_lines`).Scan(&again); err != nil {
		return fmt.Errorf("look what ran again: %w", err)
	}
	if again == 0 {
		c.tale.more("pid %d took over %s messages, none of which had been handled", c.survivor.pid(), count(taken))
		return nil
	}
	c.tale.more("pid %d took over %s messages, of which %s had been handled but not recorded:", c.survivor.pid(), count(taken), count(again))
	c.tale.more("those ran again, and the tables' primary keys kept them from counting twice")
	return nil
}

// standing says where the groups are, for whoever has to find out why nothing moves.
func (c *crew) standing(ctx context.Context) string {
	var text strings.Builder
	for _, group := range []string{countLine, countImport} {
		state, err := c.client.GetGroup(ctx, streamName, group)
		if err != nil {
			fmt.Fprintf(&text, "; %s: %v", group, err)
			continue
		}
		fmt.Fprintf(&text, "; %s: %+v", group, *state)
	}
	return text.String()
}

// stop ends every child.
func (c *crew) stop() error {
	var errs []error
	for _, p := range c.alive() {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}
