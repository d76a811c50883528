-- name: operate
-- One step of an operator's action on a group's dead letters or waiting deliveries; see the procedure. Locks: the group's. Repeatable.
call {schema}.operate($1::integer, $2::text, $3::json, $4::bigint, $5::integer, $6::text, $7::text, $8::bigint, null::bigint, null::bigint, null::boolean, null::boolean)
