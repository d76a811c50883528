package chaos

import (
	"context"
	"fmt"
)

// checkEffects compares what the handlers of a group left in their own transactions with what became of its messages: one effect for each that is not dead, none for the others.
func (r *run) checkEffects(ctx context.Context, group string) error {
	var stream, id int
	if err := r.pool.QueryRow(ctx, `select s.id, g.id from sqlstreams.consumer_group g join sqlstreams.stream s on s.id = g.stream_id where s.name = $1 and g.name = $2`, streamName, group).Scan(&stream, &id); err != nil {
		return err
	}
	var effects, twice, lost, dead int
	if err := r.pool.QueryRow(ctx, fmt.Sprintf(`
		select (select count(*) from public.effect e where e.group_name = $1),
		       (select count(*) from (select from public.effect e where e.group_name = $1 group by e.message having count(*) > 1) q),
		       (select count(*) from sqlstreams.log_%d l where not exists (select from public.effect e where e.group_name = $1 and e.message = l.id)
		                                                  and not exists (select from sqlstreams.dead_letter d where d.group_id = $2 and d.message_id = l.id)),
		       (select count(*) from sqlstreams.dead_letter d where d.group_id = $2 and exists (select from public.effect e where e.group_name = $1 and e.message = d.message_id))`, stream),
		group, id).Scan(&effects, &twice, &lost, &dead); err != nil {
		return err
	}
	r.say("effects of %s: %d, of which twice %d; missing %d, of dead letters %d", group, effects, twice, lost, dead)
	if twice+lost+dead > 0 || effects == 0 {
		r.fail(fmt.Errorf("effects of group %s: %d, twice %d, missing %d, of dead letters %d", group, effects, twice, lost, dead))
	}
	return nil
}
