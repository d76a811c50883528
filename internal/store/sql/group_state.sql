-- name: group_state
-- Where a group stands. No locks.
select g.paused, g.epoch, coalesce(c.claimed, 0), coalesce((select min(x.low) from {schema}.claim x where x.group_id = g.id), c.claimed, 0),
       (select h.head from {schema}.head(g.stream_id, s.first_id) h),
       (select count(*) from {schema}.claim x where x.group_id = g.id),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'pending'),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'running'),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'waiting'),
       (select count(*) from {schema}.dead_letter x where x.group_id = g.id),
       (select count(*) from {schema}.instance x where x.group_id = g.id)
  from {schema}.consumer_group g
  join {schema}.stream s on s.id = g.stream_id
  left join lateral (select x.claimed from {schema}.cursor x where x.group_id = g.id order by x.seq desc limit 1) c on true
 where g.id = $1::integer
