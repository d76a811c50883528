-- name: put_keyed
-- Puts a batch with idempotency keys into the inbox, in the caller's transaction; see the function. Locks: its keys, sorted. Its texts and integers pass through any driver.
select k.o_outcome, k.o_states, k.o_ids
  from {schema}.put_keyed($1::integer, $2::text, $3::text::uuid, $4::bigint, $5::text, $6::text, $7::text::bytea[], $8::text::integer[], $9::text, $10::text, $11::text, $12::text) k
