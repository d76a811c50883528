-- name: set_paused
-- Pauses or resumes a group. Locks: the group's. Repeatable.
call {schema}.set_paused($1::integer, $2::boolean, $3::text, $4::text, null::text)
