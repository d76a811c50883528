-- name: finish_tx
-- Ties the transaction of a handler to its delivery; see the function. Sent with the COMMIT in one flush. Locks: the claim's row, shared, or the delivery's. Not repeatable: a lost confirmation is settled by whoever records.
select {schema}.finish_tx($1::integer, $2::bigint, $3::uuid, $4::boolean)
