-- name: read_copies
-- The messages of deliveries that hold their own copy because the log no longer does, in order of id. Repeatable.
select d.message_id, d.schema_version, d.message_key, d.routing_key, d.headers, d.options, d.payload, d.payload_bytes, d.produced_at, d.appended_at, d.scheduled_at
  from {schema}.delivery d
 where d.group_id = $1::integer and d.message_id = any ($2::bigint[]) and d.copied
 order by d.message_id
