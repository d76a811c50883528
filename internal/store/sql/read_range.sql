-- name: read_range
-- The messages with ids from $1 to $2, both inclusive, in order of id, of one leaf, which holds them all. Only that leaf is locked. Repeatable.
select l.id, l.schema_version, l.message_key, l.routing_key, l.headers, l.options, l.payload, l.produced_at, l.appended_at, l.scheduled_at, l.redacted_at is not null
  from {schema}.log_{stream}_{leaf} l
 where l.id >= $1 and l.id <= $2
 order by l.id
