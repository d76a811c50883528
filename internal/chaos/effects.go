package chaos

import (
	"context"
	"fmt"
)

// effectTable is where handlers leave their effects: a row each time, so that a second one is seen and no handler waits for another one's row. The prior effect is the highest id among the
// effects of the key that were committed when the handler began.
const effectTable = `create table public.effect (group_name text not null, message bigint not null, message_key text, prior bigint);
	create index on public.effect (group_name, message_key, message);
	create index on public.effect (group_name, message)`

const leaveEffect = `insert into public.effect (group_name, message, message_key, prior)
	select $1, $2, k.key, (select max(e.message) from public.effect e where e.group_name = $1 and e.message_key = k.key) from (select nullif($3::text, '') as key) k`

// Effects are what the handlers of a group left in their own transactions, compared with what became of its messages.
type Effects struct {
	Group string
	Count int
	// Twice are messages with more than one, Missing messages that are not dead and have none, Dead dead ones that have one.
	Twice, Missing, Dead int
	// Disorder are effects in whose transaction the effect of the next lower message of the key was not seen. Of groups whose keys are ordered.
	Disorder int
}

func (e *Effects) wrong() int { return e.Twice + e.Missing + e.Dead + e.Disorder }

func (e *Effects) String() string {
	return fmt.Sprintf("effects of group %s: %d, of which twice %d; missing %d, of dead letters %d, before their predecessor's %d", e.Group, e.Count, e.Twice, e.Missing, e.Dead, e.Disorder)
}

// checkEffects counts the effects of a group: one for each message that is not dead, none for the others.
func (r *run) checkEffects(ctx context.Context, m membership) (*Effects, error) {
	var stream, id int
	if err := r.pool.QueryRow(ctx, `select s.id, g.id from sqlstreams.consumer_group g join sqlstreams.stream s on s.id = g.stream_id where s.name = $1 and g.name = $2`, streamName, m.Group).Scan(&stream, &id); err != nil {
		return nil, err
	}
	e := &Effects{Group: m.Group}
	if err := r.pool.QueryRow(ctx, fmt.Sprintf(`
		select (select count(*) from public.effect e where e.group_name = $1),
		       (select count(*) from (select from public.effect e where e.group_name = $1 group by e.message having count(*) > 1) q),
		       (select count(*) from sqlstreams.log_%d l where not exists (select from public.effect e where e.group_name = $1 and e.message = l.id)
		                                                  and not exists (select from sqlstreams.dead_letter d where d.group_id = $2 and d.message_id = l.id)),
		       (select count(*) from sqlstreams.dead_letter d where d.group_id = $2 and exists (select from public.effect e where e.group_name = $1 and e.message = d.message_id))`, stream),
		m.Group, id).Scan(&e.Count, &e.Twice, &e.Missing, &e.Dead); err != nil {
		return nil, err
	}
	if m.ordered() {
		// An effect that comes twice is counted above; here its first one stands for it.
		if err := r.pool.QueryRow(ctx, `
			select count(*) from (select q.prior, lag(q.message) over (partition by q.message_key order by q.message) as lower
			                        from (select e.message_key, e.message, min(e.prior) as prior from public.effect e where e.group_name = $1 and e.message_key is not null group by 1, 2) q) p
			 where p.prior is distinct from p.lower`, m.Group).Scan(&e.Disorder); err != nil {
			return nil, err
		}
	}
	r.say("%s", e)
	if e.wrong() > 0 || e.Count == 0 {
		r.fail(fmt.Errorf("%s", e))
	}
	return e, nil
}
