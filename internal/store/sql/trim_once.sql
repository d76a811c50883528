-- name: trim_once
-- Removes marks older than seven days, at most $1. Locks: those rows. Repeatable.
delete from {schema}.once o
 where o.ctid = any (array(
    select x.ctid from {schema}.once x where x.marked_at < (select clock_timestamp()) - interval '7 days' order by x.marked_at limit $1::integer))
