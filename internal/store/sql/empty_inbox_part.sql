-- name: empty_inbox_part
-- Empties one retired part; see the procedure. Locks: the inbox's upkeep lock, the part exclusively and without waiting. Repeatable.
call {schema}.empty_inbox_part($1::integer, $2::interval, null::text)
