-- name: dead_count
-- How many dead letters of a group a filter means. Locks nothing. Repeatable.
select count(*) from {schema}.dead_ids($1::integer, $2::json, 0, null) as i (id)
