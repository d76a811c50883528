-- name: key_ids
-- The ids of a key's messages below id $3, newest first: at most $4, about $5 bytes, from at most $6 leaves; see the function. Locks: those leaves, shared. Repeatable.
select k.o_outcome, k.o_ids, k.o_next from {schema}.key_ids($1::integer, $2::text, $3::bigint, $4::integer, $5::bigint, $6::integer) k
