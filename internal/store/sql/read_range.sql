-- name: read_range
-- The messages with ids from $1 to $2, both inclusive (an exclusive bound would lock the leaf before), in order of id. Planned for its bounds at each call, so that only the leaves in question are locked. Repeatable.
select l.id, l.schema_version, l.message_key, l.routing_key, l.headers, l.options, l.payload, l.produced_at, l.appended_at, l.scheduled_at, l.redacted_at is not null
  from {schema}.log_{stream} l
 where l.id >= $1 and l.id <= $2
 order by l.id
