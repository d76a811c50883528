-- name: register_stream
-- Declares a stream and commits by itself; see the procedure. Locks: none if nothing changes, else the registration lock. Repeatable.
call {schema}.register_stream($1::text, $2::text, $3::json, $4::boolean, $5::integer, null::integer, null::text, null::text, null::json, null::json)
