-- name: rotate_inbox
-- Makes another part current once the current one exceeds $1 bytes; see the procedure. Locks: the inbox's upkeep lock. Repeatable.
call {schema}.rotate_inbox($1::bigint, null::text)
