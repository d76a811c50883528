-- name: read_ids
-- The messages of deliveries that lie in one leaf, in order of id. Only that leaf is locked. Repeatable.
select l.id, l.schema_version, l.message_key, l.routing_key, l.headers, l.options, l.payload, l.produced_at, l.appended_at, l.scheduled_at, l.redacted_at is not null
  from {schema}.log_{stream}_{leaf} l
 where l.id = any ($1::bigint[])
 order by l.id
