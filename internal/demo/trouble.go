package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

// changeMind rolls a transaction back and looks for what is left of it.
func (d *demo) changeMind(ctx context.Context) error {
	ids, err := d.till.take(ctx, func() error { return errChangedMind }, ordinaryBank(0))
	if !errors.Is(err, errChangedMind) {
		return fmt.Errorf("a transaction that was to be rolled back: %w", err)
	}
	stream, err := d.place.client.GetStream(ctx, streamName)
	if err != nil {
		return err
	}
	var rows, messages int64
	if _, err := d.place.one(ctx, fmt.Sprintf(`select (select count(*) from {business}.payments where id = $1),
		(select count(*) from {schema}.inbox where stream_id = $2 and payload ->> 'id' = $1::text) + (select count(*) from {schema}.log_%d where payload ->> 'id' = $1::text)`, stream.ID),
		[]any{ids[0], stream.ID}, &rows, &messages); err != nil {
		return err
	}
	d.story.tell(
		say(note, "rollback", "payment %d and its message, one transaction, rolled back on purpose", ids[0]),
		more("looked for payment %d: %s, %s", ids[0], number(rows, "row", "rows"), number(messages, "message", "messages")))
	if rows+messages != 0 {
		return fmt.Errorf("payment %d was rolled back and is there", ids[0])
	}
	return nil
}

// attempt is one run of a payment by charge-cards, as its handler wrote it down.
type attempt struct {
	message      int64
	number, pid  int
	began, ended time.Time // ended: zero if it never did
	failure      string
}

func (d *demo) attempts(ctx context.Context, payment int64) ([]attempt, error) {
	rows, err := d.place.pool.Query(ctx, d.place.sql(`select message_id, attempt, pid, began_at, ended_at, coalesce(error, '') from {business}.run
		where group_name = $1 and payment_id = $2 order by id`), chargeCards, payment)
	if err != nil {
		return nil, fmt.Errorf("look at a payment's runs: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a attempt, err error) {
		var ended *time.Time
		err = row.Scan(&a.message, &a.number, &a.pid, &a.began, &ended, &a.failure)
		if ended != nil {
			a.ended = *ended
		}
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("look at a payment's runs: %w", err)
	}
	return all, nil
}

// charged waits until charge-cards has charged payments.
func (d *demo) charged(ctx context.Context, what string, payments []int64) error {
	return d.until(ctx, what+" is charged", func(ctx context.Context) (bool, error) {
		var n int
		_, err := d.place.one(ctx, `select count(*) from {business}.charge where payment_id = any($1)`, []any{payments}, &n)
		return n == len(payments), err
	})
}

// hang produces a payment whose handler never returns.
func (d *demo) hang(ctx context.Context) error {
	ids, err := d.till.take(ctx, nil, stuckBank)
	if err != nil {
		return err
	}
	var first attempt
	if err := d.until(ctx, "a handler hangs", func(ctx context.Context) (bool, error) {
		all, err := d.attempts(ctx, ids[0])
		if len(all) > 0 {
			first = all[0]
		}
		return len(all) > 0, err
	}); err != nil {
		return err
	}
	d.story.tell(say(alarm, "hang", "a handler in pid %d waits for a bank that does not answer (message %d), and ignores its context", first.pid, first.message))
	var verdict string
	if err := d.until(ctx, "the handler is abandoned", func(ctx context.Context) (bool, error) {
		return d.place.one(ctx, `select a.error from {schema}.attempt a join {schema}.consumer_group g on g.id = a.group_id where g.name = $1 and a.message_id = $2 order by a.id limit 1`,
			[]any{chargeCards, first.message}, &verdict)
	}); err != nil {
		return err
	}
	d.story.tell(say(note, "abandoned", "recorded for attempt %d: %q", first.number, verdict))
	if err := d.charged(ctx, "the message whose handler hung", ids); err != nil {
		return err
	}
	all, err := d.attempts(ctx, ids[0])
	if err != nil {
		return err
	}
	d.story.tell(hangEnds(all)...)
	return nil
}

func hangEnds(all []attempt) []line {
	first, last := all[0], all[len(all)-1]
	label := "elsewhere"
	if first.pid == last.pid {
		label = "again"
	}
	return []line{say(good, label, "attempt %d of message %d, in pid %d, succeeds %s after the first began; the goroutine in pid %d still hangs",
		last.number, last.message, last.pid, seconds(last.ended.Sub(first.began)), first.pid)}
}

// retry produces a payment that fails before it succeeds.
func (d *demo) retry(ctx context.Context) error {
	ids, err := d.till.take(ctx, nil, busyBank)
	if err != nil {
		return err
	}
	if err := d.charged(ctx, "the message that failed", ids); err != nil {
		return err
	}
	all, err := d.attempts(ctx, ids[0])
	if err != nil {
		return err
	}
	d.story.tell(retryLines(all, d.pace.BaseDelay)...)
	return nil
}

func retryLines(all []attempt, base time.Duration) []line {
	lines := []line{say(note, "retries", "message %d fails at first; the wait begins with %s and doubles, 10 %% more or less:", all[0].message, base)}
	for i, a := range all {
		waited := ""
		if i > 0 {
			waited = fmt.Sprintf(", %s later", a.began.Sub(all[i-1].ended).Round(10*time.Millisecond))
		}
		outcome := "charged"
		if a.failure != "" {
			outcome = a.failure
		}
		lines = append(lines, more("attempt %d%s, in pid %d: %s", a.number, waited, a.pid, outcome))
	}
	return lines
}

// refusals is how many payments are refused for good.
const refusals = 3

// refuse produces payments that become dead letters, mends their cause and redrives them.
func (d *demo) refuse(ctx context.Context) error {
	ids, err := d.till.take(ctx, nil, newBank, newBank, newBank)
	if err != nil {
		return err
	}
	cards := d.group(chargeCards)
	var dead []sqlstreams.DeadGroup
	if err := d.until(ctx, "the refused payments are dead letters", func(ctx context.Context) (_ bool, err error) {
		dead, err = cards.DeadGroups(ctx, nil)
		return err == nil && deadIn(dead) >= refusals, err
	}); err != nil {
		return err
	}
	d.story.tell(deadLines(dead)...)
	if _, err := d.place.pool.Exec(ctx, d.place.sql(`insert into {business}.bank (name) values ($1)`), newBank); err != nil {
		return fmt.Errorf("sign a contract: %w", err)
	}
	n, err := cards.Redrive(ctx, &sqlstreams.DeliveryFilter{Error: dead[0].Error}, &sqlstreams.OperateOptions{Actor: "demo"})
	if err != nil {
		return err
	}
	d.redriven[chargeCards] += n
	if err := d.charged(ctx, "what was redriven", ids); err != nil {
		return err
	}
	left, err := cards.DeadGroups(ctx, nil)
	if err != nil {
		return err
	}
	d.story.tell(
		say(good, "redrive", "a row for %s in table bank, and %s redriven by that line of the list:", newBank, number(n, "message", "messages")),
		more("%d charged, %s left", len(ids), number(deadIn(left), "dead letter", "dead letters")))
	return nil
}

func deadIn(groups []sqlstreams.DeadGroup) (n int64) {
	for _, g := range groups {
		n += g.Count
	}
	return n
}

func deadLines(groups []sqlstreams.DeadGroup) []line {
	lines := []line{say(alarm, "dead", "%s of %s, by error:", number(deadIn(groups), "dead letter", "dead letters"), chargeCards)}
	for _, g := range groups {
		lines = append(lines, more("%3d  %s  %s (messages %d-%d)", g.Count, g.Reason, g.Error, g.FirstID, g.LastID))
	}
	return lines
}
