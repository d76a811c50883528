package demo

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// charge is the handler of charge-cards.
func (c *child) charge(ctx context.Context, p *Payment) error {
	if c.isStuck(p.ID) {
		// The line to the bank hangs in this process: let another instance have the message. A delay is no failed attempt.
		return sqlstreams.Delay(c.Pace.BaseDelay / 4)
	}
	run, err := c.begin(ctx, p)
	if err != nil {
		return err
	}
	if p.Bank == stuckBank && run.attempt == 1 {
		return c.hang(p)
	}
	if err := c.askBank(ctx, p, run.attempt); err != nil {
		return errors.Join(err, c.failed(ctx, run, err))
	}
	return c.succeeded(ctx, run, p, "charge")
}

// audit is the handler of audit-payments.
func (c *child) audit(ctx context.Context, p *Payment) error {
	run, err := c.begin(ctx, p)
	if err != nil {
		return err
	}
	return c.succeeded(ctx, run, p, "audit")
}

// run is one call of a handler.
type run struct {
	id, message int64
	attempt     int
}

// begin writes down that a handler begins. Whoever is killed or hangs afterwards leaves a run without an end.
func (c *child) begin(ctx context.Context, p *Payment) (r run, err error) {
	meta, ok := sqlstreams.MetaFromContext(ctx)
	if !ok {
		return run{}, errors.New("the handler's context does not know its message")
	}
	r.message, r.attempt = meta.ID, meta.Attempt
	err = c.pool.QueryRow(ctx, c.sql(`insert into {business}.run (group_name, payment_id, message_id, attempt, pid) values ($1, $2, $3, $4, $5) returning id`),
		c.Group, p.ID, r.message, r.attempt, os.Getpid()).Scan(&r.id)
	return r, err
}

// askBank stands for the call to the bank.
func (c *child) askBank(ctx context.Context, p *Payment, attempt int) error {
	takes := c.Pace.Work
	if p.Bank == slowBank {
		takes = c.Pace.Slow
	}
	answer := time.NewTimer(takes)
	defer answer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-answer.C:
	}
	var known bool
	if err := c.pool.QueryRow(ctx, c.sql(`select exists (select from {business}.bank where name = $1)`), p.Bank).Scan(&known); err != nil {
		return err
	}
	err := handlingError(p, attempt, known)
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		return sqlstreams.Terminal(err)
	}
	return err
}

// hang waits for the bank, which does not answer while this process lives, without regard to the handler's context.
func (c *child) hang(p *Payment) error {
	c.mu.Lock()
	c.stuck[p.ID] = true
	c.mu.Unlock()
	<-c.told
	return errors.New("the bank has not answered")
}

func (c *child) isStuck(id int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stuck[id]
}

func (c *child) failed(ctx context.Context, r run, why error) error {
	_, err := c.pool.Exec(ctx, c.sql(`update {business}.run set ended_at = clock_timestamp(), error = $2 where id = $1`), r.id, why.Error())
	return err
}

// succeeded writes the effect, and that it was done once more if it was done before, together with the run's end.
func (c *child) succeeded(ctx context.Context, r run, p *Payment, table string) error {
	_, err := c.pool.Exec(ctx, c.sql(`
		with ended as (update {business}.run set ended_at = clock_timestamp() where id = $1)
		insert into {business}.`+table+` as t (payment_id, message_id) values ($2, $3)
		on conflict (payment_id) do update set runs = t.runs + 1`), r.id, p.ID, r.message)
	return err
}

func (c *child) sql(text string) string { return expand(text, c.Schema, c.Business) }
