-- name: forget_batches
-- Removes a producer's own confirmed batches [$2, $3). Locks: those rows, which nobody else wants. Repeatable.
delete from {schema}.producer_batch b where b.producer = $1::uuid and b.batch >= $2::bigint and b.batch < $3::bigint
