-- name: list_groups
-- The groups of a stream, by name. No locks.
select g.id, g.name, g.config, g.config_version, g.paused, g.epoch, g.start_at, g.created_at from {schema}.consumer_group g where g.stream_id = $1::integer order by g.name
