-- name: group_status
-- Where a group stands, for a person. Counts rows. Locks nothing. Repeatable.
select clock_timestamp(), g.paused, s.first_id, h.head, coalesce(c.claimed, 0), coalesce((select min(x.low) from {schema}.claim x where x.group_id = g.id), c.claimed, 0),
       (select count(*) from (select from {schema}.inbox i where i.stream_id = s.id limit 10000) q),
       (select i.produced_at from {schema}.inbox i where i.stream_id = s.id order by i.seq limit 1),
       (select count(*) from {schema}.claim x where x.group_id = g.id),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'pending'),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'running'),
       (select count(*) from {schema}.delivery x where x.group_id = g.id and x.state = 'waiting'),
       (select count(*) from {schema}.dead_letter x where x.group_id = g.id),
       (select min(x.due_at) from {schema}.delivery x where x.group_id = g.id and x.state = 'pending'),
       (select min(x.expires_at) from {schema}.delivery x where x.group_id = g.id and x.state = 'running')
  from {schema}.consumer_group g
  join {schema}.stream s on s.id = g.stream_id
 cross join lateral {schema}.head(s.id, s.first_id) h
  left join lateral (select x.claimed from {schema}.cursor x where x.group_id = g.id order by x.seq desc limit 1) c on true
 where g.id = $1::integer and s.state = 'active'
