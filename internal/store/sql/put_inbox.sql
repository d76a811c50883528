-- name: put_inbox
-- Puts a packed batch into the inbox, in the caller's transaction; no rows: the stream is gone. Locks: none but its own rows. Order: that of the batch.
insert into {schema}.inbox (part, stream_id, schema_version, message_key, routing_key, headers, options, payload, payload_bytes)
select (select p.part from {schema}.inbox_part p order by p.current_since desc, p.part limit 1), s.id, coalesce(t.version, 1), t.message_key, t.routing_key,
       t.headers::json, t.options::json, t.payload::json, t.bytes
  from {schema}.stream s
 cross join rows from (string_to_table($2::text, E'\x1e', E'\x1f'), unnest($3::text::bytea[]), unnest($4::text::integer[]), string_to_table($5::text, E'\x1e', E'\x1f'),
                       string_to_table($6::text, E'\x1e', E'\x1f'), string_to_table($7::text, E'\x1e', E'\x1f'), string_to_table($8::text, E'\x1e', E'\x1f'))
       with ordinality as t (payload, bytes, version, message_key, routing_key, headers, options, n)
 where s.id = $1::integer and s.state = 'active' and s.payload_kind = $9::text
 order by t.n
