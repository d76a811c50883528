-- name: delivery_count
-- How many deliveries of a group that wait a filter means; $3: only those that are not due yet. Locks nothing. Repeatable.
select count(*)
  from {schema}.delivery d
 where d.group_id = $1::integer and d.state <> 'running'
   and (not $3::boolean or d.state = 'pending' and d.due_at > clock_timestamp())
   and ($2::json is null or d.message_id in (select i.id from {schema}.delivery_ids($1::integer, $2::json, 0, null) as i (id)))
