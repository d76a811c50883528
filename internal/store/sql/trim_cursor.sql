-- name: trim_cursor
-- Removes rows of cursors that a newer one has replaced, at most $1. Locks: those rows, which nobody reads for writing. Repeatable.
delete from {schema}.cursor c
 where c.ctid = any (array(
    select x.ctid from {schema}.cursor x
     where x.seq < (select y.seq from {schema}.cursor y where y.group_id = x.group_id order by y.seq desc limit 1)
     limit $1::integer))
