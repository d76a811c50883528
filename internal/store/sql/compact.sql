-- name: compact
-- One step of compacting stream $1, of $2 messages, in a transaction of its own; see the procedure. Locks: nothing that anybody waits for. Repeatable.
call {schema}.compact($1::integer, $2::integer, null::bigint, null::boolean)
