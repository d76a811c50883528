-- name: dead_groups
-- A group's dead letters that a filter means, counted by the shape of their error, the most frequent first, at most 1,000 kinds. Locks nothing. Repeatable.
select q.shape, q.reason, count(*), min(q.message_id), max(q.message_id), min(q.died_at), max(q.died_at), (array_agg(q.message_id order by q.died_at desc, q.message_id desc))[1]
  from (select {schema}.error_shape(d.error) as shape, d.reason, d.message_id, d.died_at
          from {schema}.dead_letter d
         where d.group_id = $1::integer
           and ($2::json is null or d.message_id in (select i.id from {schema}.dead_ids($1::integer, $2::json, 0, null) as i (id)))) q
 group by q.shape, q.reason
 order by count(*) desc, q.shape, q.reason
 limit 1000
