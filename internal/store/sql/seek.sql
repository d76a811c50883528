-- name: seek
-- Moves a group, or says what that would do; see the procedure. Locks: the group's. Repeatable.
call {schema}.seek($1::integer, $2::text, $3::boolean, $4::text, $5::text, null::json)
