-- name: drain
-- Gives ids to at most $2 waiting rows and commits by itself. Locks: tries the stream's. Repeating it moves the next ones.
call {schema}.drain($1::integer, $2::integer, $3::text, null::integer, null::boolean, null::boolean, null::boolean, null::bigint, null::text)
