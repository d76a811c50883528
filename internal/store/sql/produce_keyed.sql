-- name: produce_keyed
-- Puts a batch with idempotency keys into the inbox and commits by itself; see the function put_keyed. Locks: its keys, sorted. Repeating it under one batch stores nothing twice.
call {schema}.produce_keyed($1::integer, $2::text, $3::uuid, $4::bigint, $5::text, $6::text, $7::text::bytea[], $8::text::integer[], $9::text, $10::text, $11::text, $12::text, null::text, null::text, null::text)
