-- name: delivery_count
-- How many deliveries of a group that wait a filter means. Locks nothing. Repeatable.
select count(*) from {schema}.delivery_ids($1::integer, $2::json, 0, null) as i (id)
