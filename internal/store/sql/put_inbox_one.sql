-- name: put_inbox_one
-- Puts one message into the inbox, in the caller's transaction; no row: the stream is gone. Locks: none but its own row.
insert into {schema}.inbox (part, stream_id, schema_version, message_key, routing_key, headers, options, payload, payload_bytes)
select (select p.part from {schema}.inbox_part p order by p.current_since desc, p.part limit 1), s.id, $2::integer, $3::text, $4::text,
       $5::text::json, $6::text::json, $7::text::json, $8::text::bytea
  from {schema}.stream s
 where s.id = $1::integer and s.state = 'active' and s.payload_kind = $9::text
