-- name: read_ids
-- The messages of deliveries, in order of id. Planned for its ids at each call. Repeatable.
select l.id, l.schema_version, l.message_key, l.routing_key, l.headers, l.options, l.payload, l.produced_at, l.appended_at, l.scheduled_at, l.redacted_at is not null
  from {schema}.log_{stream} l
 where l.id = any ($1::bigint[])
 order by l.id
