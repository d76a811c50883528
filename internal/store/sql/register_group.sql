-- name: register_group
-- Declares a group and commits by itself; see the procedure. Locks: none if nothing changes, else the group's. Repeatable.
call {schema}.register_group($1::integer, $2::text, $3::json, $4::boolean, $5::bigint, $6::integer, $7::text,
                             null::integer, null::text, null::json, null::json, null::integer, null::text)
