-- name: deliveries
-- A page of a group's deliveries that wait (for their time or their key) and that a filter means, in order of id. Locks nothing. Repeatable.
-- Each id is looked up by itself, as dead letters are.
with ids as materialized (
    select i.id from {schema}.delivery_ids($1::integer, $2::json, $3::bigint, $4::integer) as i (id))
select d.message_id, d.state, d.due_at, d.attempt, d.solo, coalesce(d.message_key, ''), coalesce(d.last_error, '')
  from ids i
 cross join lateral (select l.message_id, l.state, l.due_at, l.attempt, l.solo, l.message_key, l.last_error
                       from {schema}.delivery l where l.group_id = $1::integer and l.message_id = i.id limit 1) d
 order by d.message_id
