package demo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

// group is the operator's handle on a group.
func (d *demo) group(name string) *sqlstreams.GroupHandle {
	return d.place.client.Group(streamName, name)
}

// finish ends the production and waits until the product says that everything has its outcome.
func (d *demo) finish(ctx context.Context) error {
	if err := d.rest(ctx, d.pace.Calm); err != nil {
		return err
	}
	close(d.stopTill)
	err := <-d.taking
	d.taking <- err
	if err != nil {
		return err
	}
	var produced int64
	if _, err := d.place.one(ctx, `select count(*) from {business}.payments`, nil, &produced); err != nil {
		return err
	}
	d.story.tell(say(plain, "payments", "the last one is taken; %d are in the business table", produced))
	for _, name := range groups() {
		var status *sqlstreams.GroupStatus
		if err := d.until(ctx, name+" has finished", func(ctx context.Context) (_ bool, err error) {
			status, err = d.group(name).Status(ctx)
			return err == nil && finished(status), err
		}); err != nil {
			return err
		}
		d.story.tell(say(plain, "finished", "%s: every message up to %d has its outcome", name, status.Head))
	}
	return d.endCrew()
}

// finished says that a group has nothing left to do.
func finished(s *sqlstreams.GroupStatus) bool {
	return s.Inbox == 0 && s.Backlog == 0 && s.Committed >= s.Head && s.OpenClaims == 0 && s.Pending+s.Running+s.Waiting == 0
}

// endCrew stops the children and tells what they say of themselves.
func (d *demo) endCrew() error {
	crew := d.crew
	if err := d.stopCrew(); err != nil {
		return err
	}
	for _, p := range crew {
		r, _ := p.lastReport()
		if r.Failed != "" {
			return fmt.Errorf("%s, %s: %s", p.group, p, r.Failed)
		}
		if r.Abandoned > 0 {
			d.story.tell(more("%s, %s, has stopped; it says that it abandoned %s", p.group, p, number(r.Abandoned, "handler", "handlers")))
		}
	}
	return nil
}

// count reads the score.
func (d *demo) count(ctx context.Context) (*score, error) {
	status, err := d.place.client.Stream(streamName).Status(ctx)
	if err != nil {
		return nil, err
	}
	s := &score{ids: status.Head - status.FirstID + 1}
	if _, err := d.place.one(ctx, `select count(*), count(*) filter (where c.payment_id is null or a.payment_id is null)
		from {business}.payments p left join {business}.charge c on c.payment_id = p.id left join {business}.audit a on a.payment_id = p.id`, nil, &s.produced, &s.lost); err != nil {
		return nil, err
	}
	for _, name := range groups() {
		g := groupScore{name: name, redriven: d.redriven[name]}
		status, err := d.group(name).Status(ctx)
		if err != nil {
			return nil, err
		}
		g.dead = status.Dead
		table := "charge"
		if name == auditPayments {
			table = "audit"
		}
		if _, err := d.place.one(ctx, `select (select count(*) from {business}.payments p where exists (select from {business}.`+table+` t where t.payment_id = p.id)),
			(select coalesce(sum(t.runs - 1), 0) from {business}.`+table+` t),
			(select count(*) from {business}.payments p where not exists (select from {business}.`+table+` t where t.payment_id = p.id)),
			(select count(*) from {business}.`+table+` t where not exists (select from {business}.payments p where p.id = t.payment_id))`,
			nil, &g.handled, &g.again, &g.missing, &g.invented); err != nil {
			return nil, err
		}
		s.groups = append(s.groups, g)
	}
	return s, d.nameLost(ctx, s.lost)
}

// nameLost says which payments were lost, the first few of them.
func (d *demo) nameLost(ctx context.Context, lost int64) error {
	const few = 5
	if lost == 0 {
		return nil
	}
	rows, err := d.place.pool.Query(ctx, d.place.sql(`select p.id, c.payment_id is not null, a.payment_id is not null
		from {business}.payments p left join {business}.charge c on c.payment_id = p.id left join {business}.audit a on a.payment_id = p.id
		where c.payment_id is null or a.payment_id is null order by p.id limit $1`), few)
	if err != nil {
		return fmt.Errorf("look what was lost: %w", err)
	}
	var id int64
	var charged, audited bool
	var lines []line
	_, err = pgx.ForEachRow(rows, []any{&id, &charged, &audited}, func() error {
		lines = append(lines, say(alarm, "lost", "payment %d: %s", id, missingIn(charged, audited)))
		return nil
	})
	if err != nil {
		return fmt.Errorf("look what was lost: %w", err)
	}
	d.story.tell(lines...)
	return nil
}

func missingIn(charged, audited bool) string {
	switch {
	case audited:
		return "not handled by " + chargeCards
	case charged:
		return "not handled by " + auditPayments
	default:
		return "handled by no group"
	}
}
