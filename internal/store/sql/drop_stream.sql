-- name: drop_stream
-- Deletes a stream in committed steps; see the procedure. Locks: the stream's, its leaves' one by one. A repetition finishes what was left.
call {schema}.drop_stream($1::integer, $2::text)
