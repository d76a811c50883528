-- name: trim_batches
-- Removes producers' batches older than an hour, at most $1. Locks: those rows. Repeatable.
delete from {schema}.producer_batch b
 where b.ctid = any (array(
    select x.ctid from {schema}.producer_batch x where x.created_at < (select clock_timestamp()) - interval '1 hour' limit $1::integer))
