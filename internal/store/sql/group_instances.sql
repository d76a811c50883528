-- name: group_instances
-- The instances of a group that were seen within the last five minutes, the oldest first, at most 1,000. Locks nothing. Repeatable.
select i.id::text, i.host, i.pid, i.started_at, i.seen_at from {schema}.instance i where i.group_id = $1::integer order by i.started_at, i.id limit 1000
