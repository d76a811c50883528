-- name: wake_waiting
-- Wakes keys of group $1 that nobody woke, among at most $2 from hash $3 on; see the procedure. Locks: the group's, if there may be one. Repeatable.
call {schema}.wake_waiting($1::integer, $2::integer, $3::bigint, null::integer)
