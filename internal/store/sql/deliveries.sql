-- name: deliveries
-- A page of a group's deliveries that wait (for their time or their key) and that a filter means, in order of id. Locks nothing. Repeatable.
select d.message_id, d.state, d.due_at, d.attempt, d.solo, coalesce(d.message_key, ''), coalesce(d.last_error, '')
  from {schema}.delivery d
 where d.group_id = $1::integer and d.message_id in (select i.id from {schema}.delivery_ids($1::integer, $2::json, $3::bigint, $4::integer) as i (id))
 order by d.message_id
