-- name: trim_instances
-- Removes instances not seen for five minutes. Locks: those rows. Repeatable.
delete from {schema}.instance i where i.seen_at < (select clock_timestamp()) - interval '5 minutes'
