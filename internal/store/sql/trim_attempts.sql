-- name: trim_attempts
-- Removes history older than seven days, oldest first, at most $1. Locks: those rows. Repeatable.
delete from {schema}.attempt a
 where a.id = any (array(
    select x.id from (select y.id, y.ended_at from {schema}.attempt y order by y.id limit $1::integer) x
     where x.ended_at < (select clock_timestamp()) - interval '7 days'))
