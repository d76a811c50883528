package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

// neighbours is how many payments come in one transaction with the slow one.
const neighbours = 7

// death is what is known of the process that was killed.
type death struct {
	pid      int
	at       time.Time // by the database's clock
	slow     int64     // the message that it was at
	held     []sqlstreams.OpenClaim
	done     int64 // messages of its ranges that were charged and not recorded
	expected int64 // messages in its ranges
}

// killOne kills an instance of charge-cards in the middle of a range, and watches the other one take over.
func (d *demo) killOne(ctx context.Context) error {
	dead, err := d.chooseVictim(ctx)
	if err != nil {
		return err
	}
	victim := d.byPID(dead.pid)
	if victim == nil {
		return fmt.Errorf("message %d is handled by pid %d, which is not ours", dead.slow, dead.pid)
	}
	if err := victim.kill(); err != nil {
		return err
	}
	d.dismiss(victim)
	if err := d.seeDeath(ctx, dead); err != nil {
		return err
	}
	d.story.tell(dead.lines()...)
	return d.takeover(ctx, dead)
}

// chooseVictim produces a slow payment among quick ones until an instance is in the middle of a range with it: at the slow one, when others of the range
// are charged and not recorded. On a machine that is very busy the first one can be over before that was seen.
func (d *demo) chooseVictim(ctx context.Context) (*death, error) {
	banks := make([]string, 1+neighbours)
	for i := range banks {
		banks[i] = ordinaryBank(i)
	}
	banks[neighbours/2] = slowBank
	for {
		ids, err := d.till.take(ctx, nil, banks...)
		if err != nil {
			return nil, err
		}
		slow, dead := ids[neighbours/2], &death{}
		missed := false
		if err := d.until(ctx, "an instance is in the middle of a range", func(ctx context.Context) (bool, error) {
			there, err := d.place.one(ctx, `select r.pid, r.message_id, r.ended_at is not null from {business}.run r where r.group_name = $1 and r.payment_id = $2 order by r.id desc limit 1`,
				[]any{chargeCards, slow}, &dead.pid, &dead.slow, &missed)
			if !there || missed || err != nil {
				return missed, err
			}
			err = d.seeHeld(ctx, dead)
			return dead.done > 0, err
		}); err != nil {
			return nil, err
		}
		if !missed {
			return dead, nil
		}
	}
}

// seeHeld reads which ranges the process holds, and how much of them it has charged.
func (d *demo) seeHeld(ctx context.Context, dead *death) error {
	status, err := d.group(chargeCards).Status(ctx)
	if err != nil {
		return err
	}
	dead.held, dead.done, dead.expected = nil, 0, 0
	for _, c := range status.Claims {
		if c.PID != dead.pid {
			continue
		}
		var done int64
		if _, err := d.place.one(ctx, `select count(*) from {business}.charge c where c.message_id > $1 and c.message_id <= $2`, []any{c.Low, c.High}, &done); err != nil {
			return err
		}
		dead.held = append(dead.held, c)
		dead.done += done
		dead.expected += c.High - c.Low
	}
	return nil
}

// seeDeath reads what the process held when it died, which nobody else can have now.
func (d *demo) seeDeath(ctx context.Context, dead *death) error {
	if _, err := d.place.one(ctx, `select clock_timestamp()`, nil, &dead.at); err != nil {
		return err
	}
	if err := d.seeHeld(ctx, dead); err != nil {
		return err
	}
	if len(dead.held) == 0 {
		return errors.New("the process that was killed held no range")
	}
	return nil
}

func (d death) lines() []line {
	lines := []line{say(alarm, "kill -9", "pid %d, an instance of %s, while it waits for the slow bank (message %d)", d.pid, chargeCards, d.slow)}
	for _, c := range d.held {
		lines = append(lines, more("it held messages %d-%d, and its lease on them has %s left", c.Low+1, c.High, seconds(c.ExpiresIn)))
	}
	return append(lines, more("of these %d it had charged %d, and recorded none", d.expected, d.done))
}

// heir is what became of a dead process's messages.
type heir struct {
	pid       int
	after     time.Duration // from the kill to its first run
	meanwhile int64         // payments charged by others meanwhile
	again     []int64       // messages whose charge was written once more
	total     int64
}

// takeover waits until another instance has handled everything that the dead one held, and starts a replacement.
func (d *demo) takeover(ctx context.Context, dead *death) error {
	h := heir{total: dead.expected}
	if err := d.until(ctx, "another instance takes over", func(ctx context.Context) (bool, error) {
		return d.seeHeir(ctx, dead, &h)
	}); err != nil {
		return err
	}
	d.story.tell(h.begins(dead, d.pace.lease())...)
	if err := d.until(ctx, "what the dead instance held is charged and recorded", func(ctx context.Context) (bool, error) {
		return d.allAgain(ctx, dead, &h)
	}); err != nil {
		return err
	}
	d.story.tell(h.ends()...)
	p, err := d.start(chargeCards)
	if err != nil {
		return err
	}
	if err := d.until(ctx, "the replacement is ready", d.allReady); err != nil {
		return err
	}
	d.story.tell(say(plain, "instances", "%s replaces the one that was killed, as a supervisor would", p))
	return nil
}

// bounds returns the ranges as two arrays.
func (d *death) bounds() (lows, highs []int64) {
	for _, c := range d.held {
		lows, highs = append(lows, c.Low), append(highs, c.High)
	}
	return lows, highs
}

func (d *demo) seeHeir(ctx context.Context, dead *death, h *heir) (bool, error) {
	lows, highs := dead.bounds()
	var began time.Time
	there, err := d.place.one(ctx, `
		select r.pid, r.began_at from {business}.run r join unnest($1::bigint[], $2::bigint[]) as held (low, high) on r.message_id > held.low and r.message_id <= held.high
		where r.group_name = $3 and r.pid <> $4 and r.began_at > $5 order by r.id limit 1`, []any{lows, highs, chargeCards, dead.pid, dead.at}, &h.pid, &began)
	if !there || err != nil {
		return false, err
	}
	h.after = began.Sub(dead.at)
	return d.place.one(ctx, `select count(*) from {business}.run r where r.group_name = $1 and r.error is null and r.ended_at > $2 and r.ended_at < $3`,
		[]any{chargeCards, dead.at, began}, &h.meanwhile)
}

// allAgain says whether everything that the dead process held is charged and recorded, and what ran again for it.
func (d *demo) allAgain(ctx context.Context, dead *death, h *heir) (bool, error) {
	status, err := d.group(chargeCards).Status(ctx)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(status.Claims, func(open sqlstreams.OpenClaim) bool {
		return slices.ContainsFunc(dead.held, func(held sqlstreams.OpenClaim) bool { return open.Low < held.High && held.Low < open.High })
	}) {
		return false, nil
	}
	lows, highs := dead.bounds()
	rows, err := d.place.pool.Query(ctx, d.place.sql(`select c.message_id, c.runs from unnest($1::bigint[], $2::bigint[]) as held (low, high)
		join {business}.charge c on c.message_id > held.low and c.message_id <= held.high order by c.message_id`), lows, highs)
	if err != nil {
		return false, fmt.Errorf("look what ran again: %w", err)
	}
	var id, runs, seen int64
	h.again = nil
	_, err = pgx.ForEachRow(rows, []any{&id, &runs}, func() error {
		seen++
		if runs > 1 {
			h.again = append(h.again, id)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look what ran again: %w", err)
	}
	return seen >= dead.expected, nil
}

func (h *heir) begins(dead *death, lease time.Duration) []line {
	return []line{
		say(good, "takeover", "%s after the kill pid %d begins with what pid %d held", seconds(h.after), h.pid, dead.pid),
		more("(the lease was %s; an instance looks for ended ones once a second)", lease),
		more("meanwhile %s had been charged by the instances that live", number(h.meanwhile, "other payment", "other payments")),
	}
}

func (h *heir) ends() []line {
	return []line{
		say(good, "run again", "all %d are charged and recorded; %s ran again (%s), having been charged and not recorded:", h.total, number(len(h.again), "message", "messages"), ranges(h.again)),
		more("their key in the table keeps the second charge from being another row"),
	}
}

// ranges writes ascending numbers as 3-5, 7.
func ranges(ids []int64) string {
	var parts []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		part := strconv.FormatInt(ids[i], 10)
		if j > i {
			part += "-" + strconv.FormatInt(ids[j], 10)
		}
		parts = append(parts, part)
		i = j + 1
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
