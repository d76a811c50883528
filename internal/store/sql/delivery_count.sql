-- name: delivery_count
-- How many deliveries of a group that wait a filter means; $3: only those that are not due yet. Locks nothing. Repeatable.
select count(*)
  from {schema}.delivery_ids($1::integer, $2::json, 0, null) as i (id)
 where not $3::boolean
    or exists (select from {schema}.delivery d where d.group_id = $1::integer and d.message_id = i.id and d.state = 'pending' and d.due_at > clock_timestamp())
