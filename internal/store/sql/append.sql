-- name: append
-- Appends one batch and commits by itself; see the procedure. Locks: the stream's. Repeating it under one (producer, batch) stores nothing twice.
call {schema}.append($1::integer, $2::text, $3::integer, $4::uuid, $5::bigint, $6::integer, $7::text, $8::bytea[], $9::integer[], $10::text, $11::text, $12::text, $13::text,
                     $14::text, $15::text, null::text, null::bigint, null::integer, null::text, null::text)
